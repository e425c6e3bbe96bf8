//! Peer memory: device memory of one rank that the device of another rank reaches.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::memory::{Made, Need, Offer, Segment, Sharing};
use super::opened::Opened;
use super::{PeerFacts, TransportId, wrong_info};
use crate::device::{Context, DeviceMemory, IpcMemHandle, PhysicalMemory};
use crate::error::Error;
use crate::sys;

/// Both ranks are threads of one process: a pointer will do.
#[derive(Clone, Copy)]
pub(super) struct Direct;

/// The ranks are processes of one host: the memory goes over by a CUDA inter-process handle.
#[derive(Clone, Copy)]
pub(super) struct Ipc;

/// Device memory that is offered to ranks of this process.
enum OfferedMemory {
    Plain(DeviceMemory),
    Physical(PhysicalMemory),
}

impl OfferedMemory {
    fn make(context: &Arc<Context>, need: Need) -> Result<OfferedMemory, Error> {
        match is_plain(context, need) {
            true => DeviceMemory::zeroed_at_first(context, need.bytes, need.zeroed).map(OfferedMemory::Plain),
            false => PhysicalMemory::zeroed_at_first(context, need.bytes, need.zeroed)
                .map(|(memory, _)| OfferedMemory::Physical(memory)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            OfferedMemory::Plain(memory) => memory.bytes(),
            OfferedMemory::Physical(memory) => memory.bytes(),
        }
    }

    fn let_reach(&self, user: &Arc<Context>) -> Result<(), Error> {
        match self {
            OfferedMemory::Plain(memory) => user.enable_peer(memory.context()),
            OfferedMemory::Physical(memory) => memory.let_reach(user),
        }
    }
}

/// Whether memory is allocated in the common way, which is the thriftier one: unless the driver would perhaps wait for
/// what runs, and there is another way.
fn is_plain(context: &Context, need: Need) -> bool {
    need.quiet || !PhysicalMemory::is_possible(context)
}

impl Segment for DeviceMemory {
    fn address(&self) -> u64 {
        DeviceMemory::address(self)
    }
}

impl Segment for PhysicalMemory {
    fn address(&self) -> u64 {
        PhysicalMemory::address(self)
    }
}

impl Segment for Arc<OfferedMemory> {
    fn address(&self) -> u64 {
        match &**self {
            OfferedMemory::Plain(memory) => memory.address(),
            OfferedMemory::Physical(memory) => memory.address(),
        }
    }
}

impl Segment for Opened {
    fn address(&self) -> u64 {
        Opened::address(self)
    }
}

fn devices_reach_each_other(a: &PeerFacts, b: &PeerFacts) -> bool {
    a.reachable.contains(&b.uuid) && b.reachable.contains(&a.uuid)
}

/// A user's buffer in another process, mapped here. Dropping it unmaps it, unless it has other users.
pub struct PeerBuffer(Opened);

impl PeerBuffer {
    /// Maps the allocation behind a handle.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the allocation or the process is gone.
    pub fn open(context: &Arc<Context>, handle: IpcMemHandle) -> Result<PeerBuffer, Error> {
        Opened::open(context, handle).map(PeerBuffer)
    }

    /// Where the allocation begins, for kernels of this rank.
    pub fn address(&self) -> u64 {
        self.0.address()
    }
}

/// Memory that ranks of this process offer each other, by number. The rank that made it and the peer
/// that uses it each hold it alive, so that either may be destroyed first.
static OFFERED: Mutex<Option<HashMap<u64, Weak<OfferedMemory>>>> = Mutex::new(None);

fn publish(memory: &Arc<OfferedMemory>) -> u64 {
    let mut guard = OFFERED.lock();
    let offered = guard.get_or_insert_default();
    offered.retain(|_, memory| memory.strong_count() > 0);
    loop {
        let number = sys::random();
        if let std::collections::hash_map::Entry::Vacant(place) = offered.entry(number) {
            place.insert(Arc::downgrade(memory));
            return number;
        }
    }
}

impl Sharing for Direct {
    const ID: TransportId = TransportId::Direct;
    const LABEL: &'static str = "P2P/direct pointer";

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        let apart = a.device == b.device && a.context != b.context;
        a.process == b.process && a.host == b.host && !apart && devices_reach_each_other(a, b)
    }

    fn make(&self, context: &Arc<Context>, need: Need) -> Result<Made, Error> {
        let memory = Arc::new(OfferedMemory::make(context, need)?);
        let (number, bytes) = (publish(&memory), memory.bytes());
        Ok(Made { segment: Box::new(memory), offer: Offer::SameProcess(number), fd: None, bytes })
    }

    fn open(
        &self,
        context: &Arc<Context>,
        maker: &PeerFacts,
        offer: Offer,
        _fd: Option<OwnedFd>,
        _bytes: usize,
    ) -> Result<Box<dyn Segment>, Error> {
        let Offer::SameProcess(number) = offer else { return Err(wrong_info(maker, Self::LABEL)) };
        let memory = OFFERED.lock().get_or_insert_default().get(&number).and_then(Weak::upgrade);
        let memory = memory.ok_or_else(|| Error::Remote {
            rank: Some(maker.rank),
            text: format!("rank {} of this process gave up before its memory was mapped", maker.rank),
        })?;
        memory.let_reach(context)?;
        Ok(Box::new(memory))
    }
}

impl Sharing for Ipc {
    const ID: TransportId = TransportId::Ipc;
    const LABEL: &'static str = "P2P/IPC";

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        a.process != b.process && a.host.can_see_process(&b.host) && devices_reach_each_other(a, b)
    }

    fn make(&self, context: &Arc<Context>, need: Need) -> Result<Made, Error> {
        if !is_plain(context, need) {
            let (memory, fd) = PhysicalMemory::zeroed_at_first(context, need.bytes, need.zeroed)?;
            let bytes = memory.bytes();
            return Ok(Made { segment: Box::new(memory), offer: Offer::Physical(bytes as u64), fd: Some(fd), bytes });
        }
        let memory = DeviceMemory::zeroed_at_first(context, need.bytes, need.zeroed)?;
        let handle = memory.export()?;
        Ok(Made { segment: Box::new(memory), offer: Offer::Ipc(handle.0.to_vec()), fd: None, bytes: need.bytes })
    }

    fn open(
        &self,
        context: &Arc<Context>,
        maker: &PeerFacts,
        offer: Offer,
        fd: Option<OwnedFd>,
        _bytes: usize,
    ) -> Result<Box<dyn Segment>, Error> {
        if let (Offer::Physical(bytes), Some(fd)) = (&offer, &fd) {
            let bytes = usize::try_from(*bytes).map_err(|_| wrong_info(maker, Self::LABEL))?;
            return Ok(Box::new(PhysicalMemory::import(context, fd.as_fd(), bytes)?));
        }
        let Offer::Ipc(bytes) = offer else { return Err(wrong_info(maker, Self::LABEL)) };
        let handle = <[u8; 64]>::try_from(bytes.as_slice()).map_err(|_| wrong_info(maker, Self::LABEL))?;
        Ok(Box::new(Opened::open(context, IpcMemHandle(handle))?))
    }
}
