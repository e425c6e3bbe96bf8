//! Memory for work items that do not fit a launch's argument: pinned host memory that kernels read.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::{Charge, Context, Event, HostMemory, Ledger, Stream, Use};
use crate::error::Error;
use crate::plan::layout::Work;

/// The smallest piece of memory, in work items.
const LEAST: usize = 256;

/// Pieces of memory for work items, used again when the launch that read them has ended. Their number is
/// that of the launches under way, which the driver's queues bound.
pub struct ItemStore {
    context: Arc<Context>,
    ledger: Arc<Ledger>,
    pieces: Mutex<Vec<ItemsPiece>>,
}

/// A piece, and the end of the launch that last read it.
struct ItemsPiece {
    memory: HostMemory,
    read: Event,
    _charge: Charge,
}

/// Items that a launch is about to read.
pub struct Lent {
    piece: ItemsPiece,
}

impl Lent {
    /// The device address of the first item.
    pub fn address(&self) -> u64 {
        self.piece.memory.address()
    }
}

impl ItemStore {
    /// An empty store. No memory is taken before it is needed.
    pub fn new(context: &Arc<Context>, ledger: &Arc<Ledger>) -> ItemStore {
        ItemStore { context: context.clone(), ledger: ledger.clone(), pieces: Mutex::new(Vec::new()) }
    }

    /// Copies items to memory that kernels can read.
    ///
    /// # Errors
    /// What the driver gives when it has no memory.
    pub fn lend(&self, items: &[Work]) -> Result<Lent, Error> {
        let _entered = self.context.enter()?;
        let mut piece = match self.take(items.len())? {
            Some(piece) => piece,
            None => {
                let room = items.len().next_power_of_two().max(LEAST);
                let memory = HostMemory::create(&self.context, room * size_of::<Work>())?;
                let charge = self.ledger.charge(Use::Persist, memory.bytes());
                ItemsPiece { memory, read: Event::create(&self.context)?, _charge: charge }
            }
        };
        piece.memory.write(items);
        Ok(Lent { piece })
    }

    /// A piece that is large enough and that no launch reads any more.
    fn take(&self, items: usize) -> Result<Option<ItemsPiece>, Error> {
        let mut pieces = self.pieces.lock();
        for (place, piece) in pieces.iter().enumerate() {
            if piece.memory.bytes() >= items * size_of::<Work>() && piece.read.is_done()? {
                return Ok(Some(pieces.swap_remove(place)));
            }
        }
        Ok(None)
    }

    /// Takes items back that nobody reads any more.
    pub fn put_back(&self, lent: Lent) {
        self.pieces.lock().push(lent.piece);
    }

    /// Takes items back that the stream's work up to now reads. The context must be current.
    ///
    /// # Errors
    /// What the driver gives; then nobody knows when they have been read, and they are kept for good.
    pub fn give_back(&self, lent: Lent, stream: Stream) -> Result<(), Error> {
        match lent.piece.read.record(stream) {
            Ok(()) => {
                self.pieces.lock().push(lent.piece);
                Ok(())
            }
            Err(error) => {
                std::mem::forget(lent);
                Err(error)
            }
        }
    }
}
