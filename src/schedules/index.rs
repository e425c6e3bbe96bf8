//! What is where on a rank's device, and how calls are cut from it. The device itself is not asked.

use std::sync::Arc;

use super::Half;
use super::connected::Connected;
use super::cut::{Collective, Cut, CutSource, ZeroCopyCuts};
use super::device_schedules::{DeviceSchedules, Image};
use super::link_tables::LinkTables;
use crate::error::Error;
use crate::plan::LinkClass;
use crate::plan::algorithm::Algo;
use crate::plan::call::{DataType, Func};
use crate::plan::layout::{LinkEnd, Proto};
use crate::plan::wiring::{ConnectionGroup, Wiring};
use crate::topology::Graph;
use crate::tuning::Choice;

/// A rank's schedules by their addresses on its device, with the places of its links and which of them are connected:
/// what calls are cut from.
pub struct ScheduleIndex {
    pub(super) rank: u32,
    pub(super) source: CutSource,
    pub(super) connected: Connected,
}

/// Schedules and link tables, before they have addresses.
pub(super) struct ScheduleLayout {
    rank: u32,
    channels: u32,
    nranks: u32,
    image: Image,
    tables: LinkTables,
    links_bytes: usize,
}

impl ScheduleLayout {
    /// Compiles the schedules of a rank. See [`super::Schedules::upload`].
    ///
    /// # Errors
    /// [`Error::Internal`] for a schedule that does not fit the links.
    pub(super) fn new(
        rank: u32,
        channels: u32,
        slot_bytes: u32,
        wiring: Option<&Wiring>,
    ) -> Result<ScheduleLayout, Error> {
        let links = wiring.map(|wiring| wiring.links(rank)).unwrap_or_default();
        let graph = wiring.map_or_else(|| Arc::new(Graph::of_host(1)), |wiring| wiring.graph().clone());
        let image = DeviceSchedules::compile(rank, &graph, channels, &links)?;
        let sets = wiring.map(Wiring::sets).unwrap_or_default();
        let nranks = graph.nranks();
        let (tables, links_bytes) = LinkTables::lay_out((rank, nranks), sets, &links, slot_bytes);
        Ok(ScheduleLayout { rank, channels, nranks, image, tables, links_bytes: links_bytes as usize })
    }

    /// What stands at the begin of the memory.
    pub(super) fn steps(&self) -> &[u8] {
        self.image.steps()
    }

    /// Where the links begin.
    fn links_at(&self) -> usize {
        self.image.steps().len().next_multiple_of(align_of::<LinkEnd>())
    }

    /// Bytes of memory that it takes; never none.
    pub(super) fn bytes(&self) -> usize {
        self.links_at() + self.links_bytes + 1
    }

    /// The index when all of it is at `address`.
    pub(super) fn at(mut self, address: u64) -> ScheduleIndex {
        self.tables.move_by(address + self.links_at() as u64);
        ScheduleIndex {
            rank: self.rank,
            source: CutSource { schedules: self.image.at(address), tables: self.tables },
            connected: Connected::none(self.rank, self.nranks, self.channels),
        }
    }
}

impl ScheduleIndex {
    /// The index of a rank that has no device: for tests.
    #[cfg(test)]
    pub(crate) fn without_device(rank: u32, channels: u32, wiring: Option<&Wiring>) -> ScheduleIndex {
        const SLOT_BYTES: u32 = 4096;
        const ADDRESS: u64 = 1 << 32;
        ScheduleLayout::new(rank, channels, SLOT_BYTES, wiring).expect("schedules").at(ADDRESS)
    }

    /// A connection group is connected: for tests.
    #[cfg(test)]
    pub(crate) fn note_connected(&self, group: ConnectionGroup) {
        self.connected.add(group);
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
    /// As [`ScheduleIndex::cut`].
    pub fn zero_copy<'a>(&'a self, call: &Collective, cut: &Cut<'a>) -> Result<Option<ZeroCopyCuts<'a>>, Error> {
        self.source.zero_copy(call, cut)
    }

    /// Cuts half of a message, or a copy on one rank. Copies are by [`Proto::Simple`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for more bytes than memory can have.
    pub fn cut_half(&self, half: Half, protocol: Proto, count: u64, datatype: DataType) -> Result<Cut<'_>, Error> {
        self.source.cut_half(half, protocol, count, datatype)
    }

    /// The same half of a message without slots, for work items that come before those of `cut`: they are carried out
    /// in their place if both ranks can. None for a copy.
    pub fn half_without_slots<'a>(&'a self, half: Half, cut: &Cut<'a>) -> Option<Cut<'a>> {
        self.source.half_without_slots(half, cut)
    }

    /// The connection groups that a cut needs and that are not connected, where its first part is on channel `first` of
    /// `blocks`.
    pub fn missing(&self, cut: &Cut, first: u32, blocks: u32) -> impl Iterator<Item = ConnectionGroup> {
        let (class, proto, needed) = cut.needs();
        let there = self.connected.channels(class, proto);
        let missing =
            (0..needed).map(move |part| (first + part) % blocks).filter(move |channel| there & 1 << channel == 0);
        missing.map(move |channel| ConnectionGroup::Channel { class, proto, channel })
    }

    /// The connection group that half of a message needs, if it is not connected.
    pub fn missing_half(&self, half: Half) -> Option<ConnectionGroup> {
        let (Half::Send(peer) | Half::Receive(peer)) = half else { return None };
        let group = ConnectionGroup::pair(self.rank, peer);
        (!self.connected.has(group)).then_some(group)
    }

    /// Channels of messages between two ranks.
    pub fn message_channels(&self) -> u32 {
        self.source.tables.get(LinkClass::Peer, Proto::Simple).map_or(1, |table| table.channels)
    }

    /// Slots that a message of some bytes takes on its way to a peer.
    pub fn slots_of(&self, protocol: Proto, bytes: u64) -> u64 {
        let slot_bytes = self.source.tables.get(LinkClass::Peer, protocol).map_or(0, |table| table.slot_bytes);
        let data = (f64::from(slot_bytes) / protocol.expansion()) as u64;
        bytes.div_ceil(data.max(1))
    }
}
