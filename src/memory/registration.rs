//! Memory that users have registered (`ncclCommRegister`, `ncclMemAlloc`): what peers may use in place of slots.
//!
//! A rank publishes its registrations on the host's flight recorder. Before a call that could do without slots, each
//! rank looks whether its peers' have changed, maps what is new, and writes its address to a table that kernels read. A
//! rank that has not mapped a peer's memory yet says so to the others in the kernel, and all of them use slots.
//!
//! What is freed without a word is noticed at the next use: no two allocations have one buffer id.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

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

/// An allocation of this rank that peers may map.
struct OwnRegistration {
    tag: Tag,
    allocation: Allocation,
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
        Ok(Registrations { context: context.clone(), table, state: Mutex::new(state) })
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
        let allocation = Allocation::at(&self.context, range.from).ok().flatten();
        let Some(allocation) = allocation.filter(|found| range.from < range.to && range.to <= found.base + found.bytes)
        else {
            return false;
        };
        if let Some(own) = state.own.iter_mut().flatten().find(|own| own.allocation == allocation) {
            own.ranges.push(range);
            return true;
        }
        // What had these addresses before is gone.
        state.forget(recorder, |own| {
            own.allocation.base < allocation.base + allocation.bytes && allocation.base < own.end()
        });
        let Some(number) = state.own.iter().position(Option::is_none) else { return false };
        let Ok(handle) = allocation.export(&self.context) else { return false };
        let tag = Tag::new(number, state.given);
        state.given = state.given.wrapping_add(1);
        let record = Registered { tag, base: allocation.base, bytes: allocation.bytes, handle: handle.0 };
        recorder.publish(number, Some(record));
        log::info!(target: "REG", "registered {:#x}, {} bytes, as {number}", allocation.base, allocation.bytes);
        state.own[number] = Some(OwnRegistration { tag, allocation, ranges: vec![range] });
        true
    }

    /// Takes a user's registration back; false for a handle that is none.
    pub fn deregister(&self, recorder: &FlightRecorder, handle: usize) -> bool {
        let mut state = self.state.lock();
        state.own.iter_mut().flatten().for_each(|own| own.ranges.retain(|range| range.handle != handle));
        state.forget(recorder, |own| own.ranges.is_empty());
        state.handles.remove(&handle)
    }

    /// Takes all registrations of an allocation back that is gone. Another one may begin at its address by now.
    pub fn freed(&self, recorder: &FlightRecorder, base: u64) {
        let gone = |own: &OwnRegistration| {
            own.allocation.base == base && device::buffer_id(&self.context, base) != Some(own.allocation.id)
        };
        self.state.lock().forget(recorder, gone);
    }

    /// A buffer as peers find it; [`MISSING`] where they cannot. Memory of `ncclMemAlloc` is registered by itself.
    pub fn offer(&self, recorder: &FlightRecorder, address: u64, bytes: u64) -> u64 {
        let Some(id) = device::buffer_id(&self.context, address) else { return MISSING };
        let mut state = self.state.lock();
        state.forget(recorder, |own| own.covers(address) && own.allocation.id != id);
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
    /// kernel of the device may be waiting: unmapping waits for the device.
    pub fn look(&self, recorder: &FlightRecorder, quiet: impl FnOnce() -> bool) {
        let mut state = self.state.lock();
        let RegistrationState { peers, retired, .. } = &mut *state;
        for peer in peers {
            let changes = recorder.changes(peer.place);
            if changes != peer.seen {
                peer.seen = changes;
                self.map(peer, recorder, retired);
            }
        }
        if !retired.is_empty() && quiet() {
            retired.clear();
        }
    }

    fn map(&self, peer: &mut RegisteringPeer, recorder: &FlightRecorder, retired: &mut Vec<PeerBuffer>) {
        let first = peer.rank as usize * REGISTRATIONS;
        let table = &self.table.words()[first..first + REGISTRATIONS];
        for ((word, mapped), record) in table.iter().zip(&mut peer.mapped).zip(recorder.registered(peer.place)) {
            if mapped.as_ref().map(|mapped| mapped.tag) == record.map(|record| record.tag) {
                continue;
            }
            word.store(0, Ordering::Relaxed);
            retired.extend(mapped.take().and_then(|old| old.buffer));
            if let Some(record) = record.filter(|_| retired.len() < RETIRED_MAX) {
                let buffer = if peer.same_process { None } else { self.open(peer.rank, &record) };
                let address =
                    if peer.same_process { Some(record.base) } else { buffer.as_ref().map(PeerBuffer::address) };
                word.store(address.and_then(|address| record.tag.place(address)).unwrap_or(0), Ordering::Release);
                *mapped = Some(Mapped { tag: record.tag, buffer });
            }
        }
    }

    fn open(&self, rank: u32, record: &Registered) -> Option<PeerBuffer> {
        let opened = PeerBuffer::open(&self.context, IpcMemHandle(record.handle));
        opened.inspect_err(|error| log::info!(target: "REG", "memory of rank {rank} is not mapped: {error}")).ok()
    }
}

impl OwnRegistration {
    fn end(&self) -> u64 {
        self.allocation.base + self.allocation.bytes
    }

    fn covers(&self, address: u64) -> bool {
        (self.allocation.base..self.end()).contains(&address)
    }
}

impl RegistrationState {
    /// Takes registrations back.
    fn forget(&mut self, recorder: &FlightRecorder, which: impl Fn(&OwnRegistration) -> bool) {
        for (number, own) in self.own.iter_mut().enumerate() {
            if own.as_ref().is_some_and(&which) {
                *own = None;
                recorder.publish(number, None);
            }
        }
    }

    /// A buffer that is in a registered range.
    fn offer(&self, address: u64, bytes: u64) -> Option<u64> {
        let inside = |range: &RegisteredRange| range.from <= address && bytes <= range.to.saturating_sub(address);
        let own = self.own.iter().flatten().find(|own| own.ranges.iter().any(inside))?;
        Some(own.tag.offer(address - own.allocation.base))
    }
}
