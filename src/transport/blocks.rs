//! Device memory that peers can map, in blocks of 2 MiB and more.
//!
//! A peer maps a whole block. `cuMemCreate` gives no less than 2 MiB, and what `cuMemAlloc` gives below that lies in a
//! block of the driver's, with neighbours that would be shared as well. So what is smaller lies together in a block,
//! and blocks become larger as a communicator needs more: what is left over stays small beside what is used.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::memory::{Need, Segment};
use crate::device::{Context, DeviceMemory, IpcMemHandle, OUT_OF_MEMORY, PhysicalMemory};
use crate::error::Error;
use crate::sys::{self, Holders};

/// Blocks are multiples of this, in bytes: what the driver shares between processes as a whole.
const UNIT: usize = 2 << 20;
/// A new block is as large as all that there are, up to so many bytes.
const GROWTH_MAX: usize = 16 << 20;

/// The memory of a block.
enum BlockMemory {
    Physical(PhysicalMemory),
    /// Where the driver has no virtual memory management, or is not to use it.
    Plain(LentMemory),
}

/// A block, which has pieces as long as it lives.
pub(super) struct MemoryBlock {
    memory: BlockMemory,
    /// By which processes tell blocks apart.
    number: u64,
    /// The size of each piece, by its offset.
    pieces: Mutex<BTreeMap<usize, usize>>,
}

/// Memory that other processes map by inter-process handles. It must not be freed before they have unmapped it, so it
/// outlives its owner if need be: see [`free_released`].
struct LentMemory {
    memory: Option<DeviceMemory>,
    /// None before it is lent.
    holders: Mutex<Option<Holders>>,
}

/// What nobody here needs any more, and others may have mapped.
static LINGERING: Mutex<Vec<(DeviceMemory, Holders)>> = Mutex::new(Vec::new());

impl LentMemory {
    fn memory(&self) -> &DeviceMemory {
        // It is taken out by the drop alone.
        self.memory.as_ref().expect("memory is there until it is dropped")
    }

    /// A handle of it, and a descriptor that whoever maps it must keep meanwhile.
    fn lend(&self) -> Result<(IpcMemHandle, OwnedFd), Error> {
        let failed = |error: std::io::Error| Error::system("pipe2", "memory that peers map", &error);
        let mut holders = self.holders.lock();
        let known = match &mut *holders {
            Some(known) => known,
            none => none.insert(Holders::new().map_err(failed)?),
        };
        Ok((self.memory().export()?, known.descriptor().map_err(failed)?))
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        if let (Some(memory), Some(mut holders)) = (self.memory.take(), self.holders.get_mut().take()) {
            holders.close();
            match holders.are_gone() {
                true => drop(memory),
                false => LINGERING.lock().push((memory, holders)),
            }
        }
    }
}

/// The devices on which memory can be freed that others had mapped, with [`free_released`].
pub fn devices_of_released() -> Vec<i32> {
    // What a parent has lent is not a forked child's to free, and somebody may have held the lock.
    if sys::is_forked() {
        return Vec::new();
    }
    let lingering = LINGERING.lock();
    let released = lingering.iter().filter(|(_, holders)| holders.are_gone());
    released.map(|(memory, _)| memory.context().device()).collect()
}

/// Frees what others had mapped on some devices, on which nothing may run.
pub fn free_released(on: impl Fn(i32) -> bool) {
    if sys::is_forked() {
        return;
    }
    let released = |(memory, holders): &mut (DeviceMemory, Holders)| {
        on(memory.context().device()) && (holders.are_gone() || memory.context().is_gone())
    };
    let freed: Vec<_> = LINGERING.lock().extract_if(.., released).collect();
    drop(freed);
}

/// A part of a block. Dropping it gives it back.
pub(super) struct BlockPiece {
    block: Arc<MemoryBlock>,
    offset: usize,
}

/// How another process comes by a block.
pub(super) enum BlockHandle {
    /// A descriptor.
    Descriptor(OwnedFd),
    /// A CUDA inter-process handle, and a descriptor to be kept as long as the block is mapped.
    Ipc(IpcMemHandle, OwnedFd),
}

/// Where pieces come from.
#[derive(Default)]
pub(super) struct BlockAllocator {
    blocks: Mutex<Vec<Weak<MemoryBlock>>>,
}

impl MemoryBlock {
    fn make(context: &Arc<Context>, physical: bool, bytes: usize) -> Result<MemoryBlock, Error> {
        let memory = match physical {
            true => BlockMemory::Physical(PhysicalMemory::allocate(context, bytes)?),
            false => BlockMemory::Plain(LentMemory {
                memory: Some(DeviceMemory::allocate(context, bytes)?),
                holders: Mutex::default(),
            }),
        };
        Ok(MemoryBlock { memory, number: sys::random(), pieces: Mutex::default() })
    }

    fn is_physical(&self) -> bool {
        matches!(self.memory, BlockMemory::Physical(_))
    }

    fn context(&self) -> &Arc<Context> {
        match &self.memory {
            BlockMemory::Physical(memory) => memory.context(),
            BlockMemory::Plain(lent) => lent.memory().context(),
        }
    }

    fn address(&self) -> u64 {
        match &self.memory {
            BlockMemory::Physical(memory) => memory.address(),
            BlockMemory::Plain(lent) => lent.memory().address(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.memory {
            BlockMemory::Physical(memory) => memory.bytes(),
            BlockMemory::Plain(lent) => lent.memory().bytes(),
        }
    }

    /// A piece of some bytes, in the first gap that is large enough.
    fn take(self: &Arc<MemoryBlock>, bytes: usize) -> Option<BlockPiece> {
        let mut pieces = self.pieces.lock();
        let offset = first_gap(&pieces, bytes, self.bytes())?;
        pieces.insert(offset, bytes);
        Some(BlockPiece { block: self.clone(), offset })
    }
}

/// Where the first gap of some bytes among pieces begins.
fn first_gap(pieces: &BTreeMap<usize, usize>, bytes: usize, end: usize) -> Option<usize> {
    let mut offset = 0;
    for (begin, size) in pieces {
        if begin - offset >= bytes {
            break;
        }
        offset = begin + size;
    }
    (end - offset >= bytes).then_some(offset)
}

impl BlockAllocator {
    /// No blocks.
    pub(super) const fn new() -> BlockAllocator {
        BlockAllocator { blocks: Mutex::new(Vec::new()) }
    }

    /// Allocates memory of whole pages; and the bytes of the block that was made for it, if one was.
    ///
    /// # Errors
    /// What the driver gives when it has no memory.
    pub(super) fn allocate(&self, context: &Arc<Context>, need: Need) -> Result<(BlockPiece, usize), Error> {
        let physical = PhysicalMemory::is_wanted(context);
        let live: Vec<Arc<MemoryBlock>> = self.blocks.lock().iter().filter_map(Weak::upgrade).collect();
        let alike =
            |block: &&Arc<MemoryBlock>| block.is_physical() == physical && block.context().key() == context.key();
        let found = live.iter().filter(alike).find_map(|block| block.take(need.bytes));
        let (piece, made) = match found {
            Some(piece) => (piece, 0),
            None => {
                let all = live.iter().filter(alike).map(|block| block.bytes()).sum();
                self.grow(context, physical, need.bytes, all)?
            }
        };
        context.zero(piece.address(), need.zeroed)?;
        Ok((piece, made))
    }

    /// A piece of a new block, where there are `all` bytes of others.
    fn grow(
        &self,
        context: &Arc<Context>,
        physical: bool,
        bytes: usize,
        all: usize,
    ) -> Result<(BlockPiece, usize), Error> {
        let least = bytes.next_multiple_of(UNIT);
        let wanted = least.max(all.min(GROWTH_MAX));
        let made = MemoryBlock::make(context, physical, wanted).or_else(|error| match error {
            Error::Cuda { code: OUT_OF_MEMORY, .. } if wanted > least => MemoryBlock::make(context, physical, least),
            Error::Cuda { code, .. } if physical && code != OUT_OF_MEMORY => {
                log::info!(target: "INIT,P2P", "memory for peers is allocated in the common way: {error}");
                MemoryBlock::make(context, false, least)
            }
            error => Err(error),
        });
        let block = Arc::new(made?);
        let none = || Error::Internal("a new block has no room".to_string());
        let piece = block.take(bytes).ok_or_else(none)?;
        let mut blocks = self.blocks.lock();
        blocks.retain(|block| block.strong_count() > 0);
        blocks.push(Arc::downgrade(&block));
        Ok((piece, block.bytes()))
    }
}

impl BlockPiece {
    /// The number of the block, its bytes, and where in it this piece begins.
    pub(super) fn place(&self) -> (u64, usize, usize) {
        (self.block.number, self.block.bytes(), self.offset)
    }

    /// How another process comes by the block.
    ///
    /// # Errors
    /// What the driver gives; [`Error::System`] where the process may open no more files.
    pub(super) fn export(&self) -> Result<BlockHandle, Error> {
        match &self.block.memory {
            BlockMemory::Physical(memory) => memory.export().map(BlockHandle::Descriptor),
            BlockMemory::Plain(lent) => lent.lend().map(|(handle, fd)| BlockHandle::Ipc(handle, fd)),
        }
    }

    /// Lets kernels of another context of this process use the block, and users' memory in the context of the block,
    /// which may be registered.
    ///
    /// # Errors
    /// What the driver gives.
    pub(super) fn let_reach(&self, user: &Context) -> Result<(), Error> {
        match &self.block.memory {
            BlockMemory::Physical(memory) => memory.let_reach(user.device())?,
            BlockMemory::Plain(_) => {}
        }
        user.enable_peer(self.block.context())
    }
}

impl Segment for BlockPiece {
    fn address(&self) -> u64 {
        self.block.address() + self.offset as u64
    }
}

impl Drop for BlockPiece {
    fn drop(&mut self) {
        self.block.pieces.lock().remove(&self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fill_gaps_and_do_not_overlap() {
        let mut pieces = BTreeMap::new();
        assert_eq!(first_gap(&pieces, 100, 99), None);
        for (bytes, at) in [(40, Some(0)), (30, Some(40)), (30, Some(70)), (1, None)] {
            let found = first_gap(&pieces, bytes, 100);
            assert_eq!(found, at);
            pieces.extend(found.map(|offset| (offset, bytes)));
        }
        pieces.remove(&40);
        assert_eq!((first_gap(&pieces, 31, 100), first_gap(&pieces, 30, 100)), (None, Some(40)));
        pieces.remove(&0);
        assert_eq!((first_gap(&pieces, 70, 100), first_gap(&pieces, 71, 100)), (Some(0), None));
    }
}
