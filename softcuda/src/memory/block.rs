//! Blocks that small allocations share, as those of a GPU's driver do (`SOFTCUDA_STRICT_IPC`): whoever exports one of
//! them exports its neighbours as well.

use super::{HUGE, Mapping, ipc};
use crate::device::{Owner, State};
use crate::error::Outcome;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Alignment of allocations in a block.
const ALIGN: usize = 512;

/// Memory of a context, of which allocations are pieces.
pub struct Block {
    owner: Owner,
    /// The memory.
    pub mapping: Mapping,
    /// Identifies it in all processes.
    pub tag: u128,
    /// Size of each piece, by its offset.
    pieces: Mutex<BTreeMap<usize, usize>>,
}

/// A part of a block.
pub struct Piece {
    /// The block.
    pub block: Arc<Block>,
    /// Bytes from the block's first address.
    pub offset: usize,
}

impl Block {
    /// How many allocations lie in it.
    pub fn pieces(&self) -> usize {
        self.pieces.lock().len()
    }

    fn take(&self, bytes: usize) -> Option<usize> {
        let mut pieces = self.pieces.lock();
        let mut offset = 0;
        for (begin, size) in pieces.iter() {
            if offset + bytes <= *begin {
                break;
            }
            offset = (begin + size).next_multiple_of(ALIGN);
        }
        let fits = offset + bytes <= HUGE;
        fits.then(|| {
            pieces.insert(offset, bytes);
            offset
        })
    }
}

/// All blocks of a process.
#[derive(Default)]
pub struct Blocks(Mutex<Vec<Arc<Block>>>);

impl Blocks {
    /// A piece of a block of the context, of a new one where none has room.
    pub fn take(&self, driver: &State, owner: Owner, bytes: usize) -> Outcome<Piece> {
        let mut blocks = self.0.lock();
        let found = blocks.iter().filter(|block| block.owner == owner).find_map(|block| {
            let offset = block.take(bytes)?;
            Some(Piece { block: block.clone(), offset })
        });
        if let Some(piece) = found {
            return Ok(piece);
        }
        let device = &driver.devices[owner.device];
        device.take_memory(HUGE as u64)?;
        let tag = ipc::new_tag();
        let mapping = Mapping::with_file(HUGE, &ipc::file_name(tag));
        let mapping = mapping.inspect_err(|_| device.give_memory(HUGE as u64))?;
        let block = Arc::new(Block { owner, mapping, tag, pieces: Mutex::new(BTreeMap::from([(0, bytes)])) });
        blocks.push(block.clone());
        Ok(Piece { block, offset: 0 })
    }

    /// Takes a piece back; a block without pieces goes.
    pub fn give(&self, driver: &State, piece: &Piece) {
        let mut blocks = self.0.lock();
        piece.block.pieces.lock().remove(&piece.offset);
        if piece.block.pieces() == 0 {
            blocks.retain(|block| !Arc::ptr_eq(block, &piece.block));
            driver.devices[piece.block.owner.device].give_memory(HUGE as u64);
        }
    }
}
