//! A rank's schedules on its device: the steps of every collective and algorithm once, the ends of links for each
//! channel, and how a call is cut into work items that name both.
//!
//! * `device_schedules` puts the steps together; `link_tables` says where the ends of links are,
//!   `connected` which of them may be used;
//! * [`ScheduleIndex`] is all of that without the device: what calls are cut from;
//! * [`Cut`] is a call cut into work, `goodbye` the work of a rank that leaves;
//! * [`LaunchParameters`], [`kernel_names`], [`kernel_number`] and [`MESSAGES_KERNEL`] are what a launch needs besides.

mod connected;
mod cut;
mod device_schedules;
mod goodbye;
mod index;
mod launch_parameters;
mod link_tables;

use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::device::{Charge, Context, DeviceMemory, Ledger, Use};
use crate::error::Error;
use crate::plan::layout::LinkEnd;
use crate::plan::wiring::{ConnectionGroup, Wiring};

use index::ScheduleLayout;

pub use cut::{Collective, Cut, ZeroCopyCuts};
pub use index::ScheduleIndex;
pub use launch_parameters::{LaunchParameters, MESSAGES_KERNEL, WaitPolicy, kernel_names, kernel_number};

/// A rank's schedules: as data, and as steps and links in device memory.
pub struct Schedules {
    index: ScheduleIndex,
    memory: DeviceMemory,
    _charge: Charge,
}

/// Half of a message between two ranks, or a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// To this rank.
    Send(u32),
    /// From this rank.
    Receive(u32),
    /// From input to output on one rank.
    Copy,
}

impl Schedules {
    /// Puts the schedules of rank `rank` on its device, with room for the ends of links. Without a wiring the rank is
    /// the only one, and has copies alone, in pieces of `slot_bytes`.
    ///
    /// # Errors
    /// What the driver gives when it has no memory.
    pub fn upload(
        context: &Arc<Context>,
        rank: u32,
        channels: u32,
        slot_bytes: u32,
        wiring: Option<&Wiring>,
        ledger: &Arc<Ledger>,
    ) -> Result<Schedules, Error> {
        let layout = ScheduleLayout::new(rank, channels, slot_bytes, wiring)?;
        let memory = DeviceMemory::zeroed(context, layout.bytes())?;
        memory.write(0, layout.steps())?;
        let index = layout.at(memory.address());
        Ok(Schedules { index, _charge: ledger.charge(Use::Persist, memory.bytes()), memory })
    }

    /// What calls are cut from.
    pub fn index(&self) -> &ScheduleIndex {
        &self.index
    }

    /// Whether a connection group is connected.
    pub fn is_connected(&self, group: ConnectionGroup) -> bool {
        self.index.connected.has(group)
    }

    /// All connection groups that are connected.
    pub fn connected_groups(&self) -> Vec<ConnectionGroup> {
        self.index.connected.groups()
    }

    /// Puts the ends of a connection group's links, which are given in the order of [`Wiring::links`], on the device:
    /// from here on launches may use them. No kernel knows of them yet.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn connect(&self, group: ConnectionGroup, ends: &[LinkEnd]) -> Result<(), Error> {
        let at = self.index.source.tables.place(group, ends.len())?;
        self.memory.write((at - self.memory.address()) as usize, ends.as_bytes())?;
        self.index.connected.add(group);
        Ok(())
    }

    /// No connection group is connected any more. Nothing may be running or be launched meanwhile.
    pub fn disconnect(&self) {
        self.index.connected.clear();
    }
}
