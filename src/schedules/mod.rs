//! A rank's schedules on its device: the steps of every collective and algorithm once, the ends of links for each
//! channel, and how a call is cut into work items that name both.
//!
//! * `device_schedules` puts the steps together; `link_tables` says where the ends of links are,
//!   `connected` which of them may be used;
//! * [`Cut`] is a call cut into work, `goodbye` the work of a rank that leaves;
//! * [`LaunchParameters`], [`kernel_names`] and [`kernel_number`] are what a launch needs besides.

mod connected;
mod cut;
mod device_schedules;
mod goodbye;
mod launch_parameters;
mod link_tables;

use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::device::{Charge, Context, DeviceMemory, Ledger, Use};
use crate::error::Error;
use crate::plan::algorithm::Algo;
use crate::plan::call::{DataType, Func};
use crate::plan::layout::LinkEnd;
use crate::plan::wiring::{ConnectionGroup, Wiring};
use crate::topology::Graph;
use crate::tuning::Choice;

use connected::Connected;
use cut::CutSource;
use device_schedules::DeviceSchedules;
use link_tables::LinkTables;

pub use cut::{Collective, Cut, ZeroCopyCuts};
pub use launch_parameters::{LaunchParameters, WaitPolicy, kernel_names, kernel_number};

/// A rank's schedules: as data, and as steps and links in device memory.
pub struct Schedules {
    rank: u32,
    source: CutSource,
    connected: Connected,
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
        let links = wiring.map(|wiring| wiring.links(rank)).unwrap_or_default();
        let graph = wiring.map_or_else(|| Arc::new(Graph::of_host(1)), |wiring| wiring.graph().clone());
        let image = DeviceSchedules::compile(rank, &graph, channels, &links)?;
        let links_at = image.steps().len().next_multiple_of(align_of::<LinkEnd>());
        let sets = wiring.map(Wiring::sets).unwrap_or_default();
        let (mut tables, links_bytes) = LinkTables::lay_out((rank, graph.nranks()), sets, &links, slot_bytes);
        let memory = DeviceMemory::zeroed(context, links_at + links_bytes as usize + 1)?;
        memory.write(0, image.steps())?;
        tables.move_by(memory.address() + links_at as u64);
        Ok(Schedules {
            rank,
            source: CutSource { schedules: image.at(memory.address()), tables },
            connected: Connected::none(rank, graph.nranks(), channels),
            _charge: ledger.charge(Use::Persist, memory.bytes()),
            memory,
        })
    }

    /// Whether there is a schedule for a function; else its calls are sends and receives.
    pub fn has(&self, func: Func) -> bool {
        Algo::ALL.into_iter().any(|algo| self.source.schedules.collective(func, algo, 0).is_some())
    }

    /// Cuts a collective into channels and pieces, as it is to be carried out.
    ///
    /// # Errors
    /// [`Error::Internal`] where there is no such schedule, [`Error::InvalidArgument`] for more bytes than memory can
    /// have.
    pub fn cut(&self, choice: Choice, call: &Collective) -> Result<Cut<'_>, Error> {
        self.source.cut(choice, call)
    }

    /// A collective that is to be carried out without slots if all ranks can, and like `cut` otherwise; none where
    /// ranks have no way to agree on that.
    ///
    /// # Errors
    /// As [`Schedules::cut`].
    pub fn zero_copy<'a>(&'a self, call: &Collective, cut: &Cut<'a>) -> Result<Option<ZeroCopyCuts<'a>>, Error> {
        self.source.zero_copy(call, cut)
    }

    /// Cuts half of a message, or a copy on one rank.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more bytes than memory can have.
    pub fn cut_half(&self, half: Half, count: u64, datatype: DataType) -> Result<Cut<'_>, Error> {
        self.source.cut_half(half, count, datatype)
    }

    /// The connection groups that a cut needs and that are not connected.
    pub fn missing(&self, cut: &Cut) -> impl Iterator<Item = ConnectionGroup> {
        let (class, proto, needed) = cut.needs();
        let there = self.connected.channels(class, proto);
        let missing = (0..needed).filter(move |channel| there & 1 << channel == 0);
        missing.map(move |channel| ConnectionGroup::Channel { class, proto, channel })
    }

    /// The connection group that half of a message needs, if it is not connected.
    pub fn missing_half(&self, half: Half) -> Option<ConnectionGroup> {
        let (Half::Send(peer) | Half::Receive(peer)) = half else { return None };
        let group = ConnectionGroup::pair(self.rank, peer);
        (!self.connected.has(group)).then_some(group)
    }

    /// Whether a connection group is connected.
    pub fn is_connected(&self, group: ConnectionGroup) -> bool {
        self.connected.has(group)
    }

    /// All connection groups that are connected.
    pub fn connected_groups(&self) -> Vec<ConnectionGroup> {
        self.connected.groups()
    }

    /// Puts the ends of a connection group's links, which are given in the order of [`Wiring::links`], on the device:
    /// from here on launches may use them. No kernel knows of them yet.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn connect(&self, group: ConnectionGroup, ends: &[LinkEnd]) -> Result<(), Error> {
        let at = self.source.tables.place(group, ends.len())?;
        self.memory.write((at - self.memory.address()) as usize, ends.as_bytes())?;
        self.connected.add(group);
        Ok(())
    }

    /// No connection group is connected any more. Nothing may be running or be launched meanwhile.
    pub fn disconnect(&self) {
        self.connected.clear();
    }

    /// Slots that a message of some bytes takes on its way to a peer.
    pub fn slots_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.source.tables.message_slot_bytes().max(1))
    }
}
