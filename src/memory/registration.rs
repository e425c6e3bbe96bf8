//! Memory that users have registered (`ncclCommRegister`, `ncclMemAlloc`): what peers may use in place of slots.
//!
//! A rank publishes its registrations on the host's flight recorder. Before a call that could do without slots, each
//! rank looks whether its peers' have changed, maps what is new, and writes its address to a table that kernels read. A
//! rank that has not mapped a peer's memory yet says so to the others in the kernel, and all of them use slots.
//!
//! What is freed without a word is noticed at the next use: no two allocations have one buffer id.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::pieces::{Arrival, PieceReply, Pieces};
use crate::device::{self, Allocation, Context, HostMemory, IpcMemHandle};
use crate::error::Error;
use crate::health::{FlightRecorder, Registered};
use crate::plan::layout::REGISTRATIONS;
use crate::plan::offer::{MISSING, Tag};
use crate::transport::{PeerBuffer, PeerFacts};

/// The most mappings that wait to be undone. Past it, nothing new is mapped.
const RETIRED_MAX: usize = 256;

/// What a user may do with an allocation: a registered range, by its handle; 0 for the whole memory of `ncclMemAlloc`.
struct RegisteredRange {
    handle: usize,
    from: u64,
    to: u64,
}

/// Memory of this rank that peers may map.
struct OwnRegistration {
    tag: Tag,
    /// An allocation, or several that lie side by side.
    allocations: Vec<Allocation>,
    ranges: Vec<RegisteredRange>,
}

/// A peer's registration here.
struct Mapped {
    tag: Tag,
    /// None for memory of this process, and where it could not be mapped.
    buffer: Option<PeerBuffer>,
}

/// What is known of a peer.
struct RegisteringPeer {
    rank: u32,
    /// Its place on the flight recorder.
    place: usize,
    same_process: bool,
    /// [`FlightRecorder::changes`] at the last look.
    seen: u64,
    mapped: Vec<Option<Mapped>>,
}

#[derive(Default)]
struct RegistrationState {
    own: Vec<Option<OwnRegistration>>,
    /// The handles that users have. Memory may go before its handle.
    handles: HashSet<usize>,
    /// Tags given out so far.
    given: u32,
    peers: Vec<RegisteringPeer>,
    /// Of registrations that are gone. Kernels may be using it.
    retired: Vec<PeerBuffer>,
}

/// The registrations of a communicator's ranks, as one rank sees them.
pub struct Registrations {
    context: Arc<Context>,
    /// [`REGISTRATIONS`] words for each rank.
    table: HostMemory,
    /// What peers must ask for, and be asked for.
    pieces: Pieces,
    state: Mutex<RegistrationState>,
}

impl Registrations {
    /// No registrations.
    ///
    /// # Errors
    /// What the driver gives when it has no memory.
    pub fn new(context: &Arc<Context>, peers: &[PeerFacts], recorder: &FlightRecorder) -> Result<Registrations, Error> {
        let table = HostMemory::create(context, peers.len() * REGISTRATIONS * size_of::<u64>())?;
        let me = &peers[recorder.ranks()[recorder.mine()] as usize];
        let peer = |(place, rank): (usize, &u32)| {
            let (rank, facts) = (*rank, &peers[*rank as usize]);
            let mapped = std::iter::repeat_with(|| None).take(REGISTRATIONS).collect();
            let same_process = facts.process == me.process && facts.host == me.host;
            (rank != me.rank).then_some(RegisteringPeer { rank, place, same_process, seen: 0, mapped })
        };
        let own = std::iter::repeat_with(|| None).take(REGISTRATIONS).collect();
        let peers = recorder.ranks().iter().enumerate().filter_map(peer).collect();
        let state = RegistrationState { own, peers, ..RegistrationState::default() };
        let pieces = Pieces::new(context);
        Ok(Registrations { context: context.clone(), table, pieces, state: Mutex::new(state) })
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Unmaps all memory of peers, until the next [`Registrations::look`]. No kernel may be using it.
    pub fn unmap(&self) {
        let mut state = self.state.lock();
        self.table.words().iter().for_each(|word| word.store(0, Ordering::Release));
        for peer in &mut state.peers {
            // No number of changes that a flight recorder has.
            peer.seen = u64::MAX;
            peer.mapped.iter_mut().for_each(|mapped| *mapped = None);
        }
        state.retired.clear();
        self.pieces.clear();
    }

    /// The address of the table for kernels.
    pub fn table(&self) -> u64 {
        self.table.address()
    }

    /// Registers a range for the user; none where peers could not map it, or too much is registered.
    pub fn register(&self, recorder: &FlightRecorder, from: u64, bytes: u64) -> Option<usize> {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let to = from.checked_add(bytes)?;
        let mut state = self.state.lock();
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let added = self.add(&mut state, recorder, RegisteredRange { handle, from, to });
        added.then(|| state.handles.insert(handle)).map(|_| handle)
    }

    fn add(&self, state: &mut RegistrationState, recorder: &FlightRecorder, range: RegisteredRange) -> bool {
        if range.from >= range.to {
            return false;
        }
        // What had some of these addresses before is gone.
        let touched = |own: &OwnRegistration| own.base() < range.to && range.from < own.end();
        self.forget(state, recorder, |own| touched(own) && !self.is_there(&own.allocations));
        if let Some(own) = state.own.iter_mut().flatten().find(|own| own.base() <= range.from && range.to <= own.end())
        {
            own.ranges.push(range);
            return true;
        }
        let Some(allocations) = Allocation::of_range(&self.context, range.from, range.to) else { return false };
        let Some(number) = state.own.iter().position(Option::is_none) else {
            log::info!(target: "REG", "{REGISTRATIONS} pieces of memory are registered; more are not used");
            return false;
        };
        let Some((segments, handle)) = self.handles(&allocations) else { return false };
        let tag = Tag::new(number, state.given);
        state.given = state.given.wrapping_add(1);
        let own = OwnRegistration { tag, allocations, ranges: vec![range] };
        let (base, bytes) = (own.base(), own.end() - own.base());
        if segments > 0 {
            self.pieces.publish(tag.bits(), Some(&own.allocations));
        }
        recorder.publish(number, Some(Registered { tag, base, bytes, segments, handle }));
        log::info!(target: "REG", "registered {base:#x}, {bytes} bytes, as {number}");
        state.own[number] = Some(own);
        true
    }

    /// How peers come by memory: the number of pieces that have descriptors, or the handle of the only one. None where
    /// there is no way: memory of pools, for one.
    fn handles(&self, allocations: &[Allocation]) -> Option<(u32, [u8; 64])> {
        if allocations.iter().all(|allocation| allocation.has_descriptor(&self.context)) {
            return Some((u32::try_from(allocations.len()).ok()?, [0; 64]));
        }
        match allocations {
            [one] => one.export(&self.context).ok().map(|handle| (0, handle.0)),
            _ => None,
        }
    }

    /// Whether memory is still what it was.
    fn is_there(&self, allocations: &[Allocation]) -> bool {
        let same = |one: &Allocation| device::buffer_id(&self.context, one.base) == Some(one.id);
        allocations.iter().all(same)
    }

    /// Takes registrations back.
    fn forget(
        &self,
        state: &mut RegistrationState,
        recorder: &FlightRecorder,
        which: impl Fn(&OwnRegistration) -> bool,
    ) {
        for (number, place) in state.own.iter_mut().enumerate() {
            if let Some(own) = place.take_if(|own| which(own)) {
                self.pieces.publish(own.tag.bits(), None);
                recorder.publish(number, None);
            }
        }
    }

    /// Takes a user's registration back; false for a handle that is none.
    pub fn deregister(&self, recorder: &FlightRecorder, handle: usize) -> bool {
        let mut state = self.state.lock();
        state.own.iter_mut().flatten().for_each(|own| own.ranges.retain(|range| range.handle != handle));
        self.forget(&mut state, recorder, |own| own.ranges.is_empty());
        state.handles.remove(&handle)
    }

    /// Takes all registrations of an allocation back that is gone. Another one may begin at its address by now, unless
    /// it was `kept`.
    pub fn freed(&self, recorder: &FlightRecorder, base: u64, kept: bool) {
        let gone = |own: &OwnRegistration| {
            (own.base()..own.end()).contains(&base) && (kept || !self.is_there(&own.allocations))
        };
        self.forget(&mut self.state.lock(), recorder, gone);
    }

    /// A buffer as peers find it; [`MISSING`] where they cannot. Memory of `ncclMemAlloc` is registered by itself.
    pub fn offer(&self, recorder: &FlightRecorder, address: u64, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let Some(end) = address.checked_add(bytes) else { return MISSING };
        // Of many pieces only those are looked at that the buffer lies in.
        let gone = |own: &OwnRegistration| {
            let touched = own.base() < end && address < own.end();
            let pieces = if touched { &own.allocations[..] } else { &[] };
            let mut used = pieces.iter().filter(|one| one.base < end && address < one.end());
            used.any(|one| device::buffer_id(&self.context, one.base.max(address)) != Some(one.id))
        };
        self.forget(&mut state, recorder, gone);
        if let Some(offer) = state.offer(address, bytes) {
            return offer;
        }
        let of_user = state
            .own
            .iter()
            .flatten()
            .any(|own| own.covers(address) && own.ranges.iter().any(|range| range.handle == 0));
        if of_user || !device::is_given(address) {
            return MISSING;
        }
        let Ok(Some(whole)) = Allocation::at(&self.context, address) else { return MISSING };
        let range = RegisteredRange { handle: 0, from: whole.base, to: whole.base + whole.bytes };
        match self.add(&mut state, recorder, range) {
            true => state.offer(address, bytes).unwrap_or(MISSING),
            false => MISSING,
        }
    }

    /// Maps what peers have registered since the last look. What they have taken back goes when `quiet` says that no
    /// kernel of the device may be waiting: unmapping waits for the device. Gives messages to other ranks, for what
    /// must be asked for.
    pub fn look(&self, recorder: &FlightRecorder, quiet: impl FnOnce() -> bool) -> Vec<(u32, Vec<u8>)> {
        let mut state = self.state.lock();
        let mut asks = Vec::new();
        let RegistrationState { peers, retired, .. } = &mut *state;
        for peer in peers {
            let changes = recorder.changes(peer.place);
            if changes != peer.seen && self.map(peer, recorder, retired, &mut asks) {
                peer.seen = changes;
            }
        }
        if !retired.is_empty() && quiet() {
            retired.clear();
        }
        asks
    }

    /// A message of another rank about memory that is registered; the answers. In the event loop.
    pub fn receive(&self, from: u32, bytes: &[u8], fd: Option<OwnedFd>) -> Vec<PieceReply> {
        self.pieces.receive(from, bytes, fd)
    }

    /// Maps what a peer has registered. False: something is still on its way.
    fn map(
        &self,
        peer: &mut RegisteringPeer,
        recorder: &FlightRecorder,
        retired: &mut Vec<PeerBuffer>,
        asks: &mut Vec<(u32, Vec<u8>)>,
    ) -> bool {
        let first = peer.rank as usize * REGISTRATIONS;
        let table = &self.table.words()[first..first + REGISTRATIONS];
        let (rank, same_process) = (peer.rank, peer.same_process);
        let (mut all, mut tags) = (true, HashSet::new());
        for ((word, mapped), record) in table.iter().zip(&mut peer.mapped).zip(recorder.registered(peer.place)) {
            tags.extend(record.map(|record| record.tag.bits()));
            if mapped.as_ref().map(|mapped| mapped.tag) == record.map(|record| record.tag) {
                continue;
            }
            word.store(0, Ordering::Relaxed);
            retired.extend(mapped.take().and_then(|old| old.buffer));
            let Some(record) = record.filter(|_| retired.len() < RETIRED_MAX) else { continue };
            let buffer = match same_process {
                true => Ok(None),
                false => self.open(rank, &record, asks),
            };
            let Ok(buffer) = buffer else {
                all = false;
                continue;
            };
            let own = same_process && self.reach(&record);
            let address = if own { Some(record.base) } else { buffer.as_ref().map(PeerBuffer::address) };
            word.store(address.and_then(|address| record.tag.place(address)).unwrap_or(0), Ordering::Release);
            *mapped = Some(Mapped { tag: record.tag, buffer });
        }
        self.pieces.keep(rank, |tag| tags.contains(&tag));
        all
    }

    /// Makes memory of this process reachable that its user has mapped for its own device.
    fn reach(&self, record: &Registered) -> bool {
        let Ok(bytes) = usize::try_from(record.bytes) else { return false };
        let let_reach = || device::let_reach(&self.context, record.base, bytes, self.context.device());
        record.segments == 0 || let_reach().is_ok()
    }

    /// A peer's memory; none where it cannot be mapped. Error: it is on its way.
    fn open(
        &self,
        rank: u32,
        record: &Registered,
        asks: &mut Vec<(u32, Vec<u8>)>,
    ) -> Result<Option<PeerBuffer>, OnItsWay> {
        let opened = match record.segments {
            0 => PeerBuffer::open(&self.context, IpcMemHandle(record.handle)),
            of => match self.pieces.arrival(rank, record.tag.bits(), of) {
                Arrival::Ask(message) => {
                    asks.push((rank, message));
                    return Err(OnItsWay);
                }
                Arrival::Coming => return Err(OnItsWay),
                Arrival::Failed => return Ok(None),
                Arrival::Here(pieces) => PeerBuffer::of_segments(&self.context, &pieces),
            },
        };
        Ok(opened.inspect_err(|error| log::info!(target: "REG", "memory of rank {rank} is not mapped: {error}")).ok())
    }
}

/// Memory that was asked for has not come yet.
struct OnItsWay;

impl OwnRegistration {
    fn base(&self) -> u64 {
        self.allocations.first().map_or(0, |first| first.base)
    }

    fn end(&self) -> u64 {
        self.allocations.last().map_or(0, Allocation::end)
    }

    fn covers(&self, address: u64) -> bool {
        (self.base()..self.end()).contains(&address)
    }
}

impl RegistrationState {
    /// A buffer that is in a registered range.
    fn offer(&self, address: u64, bytes: u64) -> Option<u64> {
        let inside = |range: &RegisteredRange| range.from <= address && bytes <= range.to.saturating_sub(address);
        let own = self.own.iter().flatten().find(|own| own.ranges.iter().any(inside))?;
        Some(own.tag.offer(address - own.base()))
    }
}
