//! Peer memory: device memory of one rank that the device of another rank reaches.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::blocks::{BlockAllocator, BlockHandle, BlockPiece};
use super::memory::{Made, Maker, Need, Offer, Segment, Sharing};
use super::opened::{ForeignMemory, MemoryName, Opened};
use super::{PeerFacts, TransportId, wrong_info};
use crate::device::{ALREADY_MAPPED, Context, ImportedSegment, IpcMemHandle, PeerMemory, PhysicalMemory};
use crate::error::Error;
use crate::sys::{self, Hold};

/// How long a mapping that is about to go is waited for, and how often it is looked at.
const UNMAP_LIMIT: Duration = Duration::from_millis(500);
const UNMAP_NAP: Duration = Duration::from_millis(1);

/// Both ranks are threads of one process: a pointer will do.
#[derive(Clone, Copy)]
pub(super) struct Direct;

/// The ranks are processes of one host: the memory goes over by a descriptor, or by a CUDA inter-process handle.
#[derive(Clone, Copy)]
pub(super) struct Ipc;

impl Segment for Arc<BlockPiece> {
    fn address(&self) -> u64 {
        (**self).address()
    }
}

/// A piece of another process's block.
struct ForeignPiece {
    block: Opened,
    offset: u64,
}

impl Segment for ForeignPiece {
    fn address(&self) -> u64 {
        self.block.address() + self.offset
    }
}

/// Whether the driver leaves it open that the devices reach each other. Where a process does not see the other's
/// device, to map memory of it is the only way to find out.
fn devices_may_reach_each_other(a: &PeerFacts, b: &PeerFacts) -> bool {
    !a.reach.unreachable.contains(&b.uuid) && !b.reach.unreachable.contains(&a.uuid)
}

/// A user's buffer in another process, mapped here. Dropping it unmaps it, unless it has other users.
pub struct PeerBuffer(Opened);

impl PeerBuffer {
    /// Maps the allocation behind a handle.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the allocation or the process is gone.
    pub fn open(context: &Arc<Context>, handle: IpcMemHandle) -> Result<PeerBuffer, Error> {
        let map = || PeerMemory::open(context, handle).map(|memory| ForeignMemory::Ipc { memory, _hold: None });
        Opened::open(context, MemoryName::Handle(handle.0), map).map(PeerBuffer)
    }

    /// Maps memory that lies side by side in another process.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn of_segments(context: &Arc<Context>, segments: &[ImportedSegment]) -> Result<PeerBuffer, Error> {
        let map = || PhysicalMemory::of_segments(context, segments).map(ForeignMemory::Physical);
        Opened::open(context, MemoryName::Block(sys::random()), map).map(PeerBuffer)
    }

    /// Where the allocation begins, for kernels of this rank.
    pub fn address(&self) -> u64 {
        self.0.address()
    }
}

/// Memory that ranks of this process offer each other, by number. The rank that made it and the peer
/// that uses it each hold it alive, so that either may be destroyed first.
static OFFERED: Mutex<Option<HashMap<u64, Weak<BlockPiece>>>> = Mutex::new(None);

fn publish(memory: &Arc<BlockPiece>) -> u64 {
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
        a.process == b.process && a.host == b.host && !apart && devices_may_reach_each_other(a, b)
    }

    fn make(&self, maker: Maker<'_>, need: Need) -> Result<Made, Error> {
        let (piece, bytes) = maker.blocks.allocate(maker.context, need)?;
        let piece = Arc::new(piece);
        let number = publish(&piece);
        Ok(Made { segment: Box::new(piece), offer: Offer::SameProcess(number), fd: None, bytes })
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

/// Maps a block. Where the driver says that it is mapped already, somebody in this process is about to unmap what was
/// there before: that is no reason to do without peer memory.
fn open_block(context: &Arc<Context>, handle: IpcMemHandle, hold: Option<Hold>) -> Result<ForeignMemory, Error> {
    let until = Instant::now() + UNMAP_LIMIT;
    loop {
        match PeerMemory::open(context, handle) {
            Err(Error::Cuda { code: ALREADY_MAPPED, .. }) if Instant::now() < until => std::thread::sleep(UNMAP_NAP),
            opened => return opened.map(|memory| ForeignMemory::Ipc { memory, _hold: hold }),
        }
    }
}

impl Sharing for Ipc {
    const ID: TransportId = TransportId::Ipc;
    const LABEL: &'static str = "P2P/IPC";

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        // Descriptors go with all memory: of `cuMemCreate` itself, else by which its owner knows who has mapped it.
        let host = a.host.can_see_process(&b.host) && a.host.can_pass_descriptors(&b.host);
        a.process != b.process && host && devices_may_reach_each_other(a, b)
    }

    fn make(&self, maker: Maker<'_>, need: Need) -> Result<Made, Error> {
        let (piece, bytes) = maker.blocks.allocate(maker.context, need)?;
        let (number, block_bytes, offset) = piece.place();
        let (handle, fd) = match piece.export()? {
            BlockHandle::Descriptor(fd) => (None, Some(fd)),
            BlockHandle::Ipc(handle, fd) => (Some(handle.0.to_vec()), Some(fd)),
        };
        let offer = Offer::Block { number, bytes: block_bytes as u64, offset: offset as u64, handle };
        Ok(Made { segment: Box::new(piece), offer, fd, bytes })
    }

    fn open(
        &self,
        context: &Arc<Context>,
        maker: &PeerFacts,
        offer: Offer,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Box<dyn Segment>, Error> {
        let wrong = || wrong_info(maker, Self::LABEL);
        let Offer::Block { number, bytes: block_bytes, offset, handle } = offer else { return Err(wrong()) };
        let size = usize::try_from(block_bytes).map_err(|_| wrong())?;
        if offset.checked_add(bytes as u64).is_none_or(|end| end > block_bytes) {
            return Err(wrong());
        }
        let map = || match (handle, fd) {
            (Some(handle), fd) => {
                let handle = <[u8; 64]>::try_from(handle.as_slice()).map_err(|_| wrong())?;
                open_block(context, IpcMemHandle(handle), fd.map(Hold::of))
            }
            (None, Some(fd)) => PhysicalMemory::import(context, fd.as_fd(), size).map(ForeignMemory::Physical),
            (None, None) => Err(wrong()),
        };
        let block = Opened::open(context, MemoryName::Block(number), map)?;
        Ok(Box::new(ForeignPiece { block, offset }))
    }
}

/// What is shared between processes to see whether that works, of all communicators of this process: a page each.
pub(super) static PROBES: BlockAllocator = BlockAllocator::new();
