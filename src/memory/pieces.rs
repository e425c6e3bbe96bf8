//! Registered memory of `cuMemCreate` on its way to other processes. It has no handle that could stand on the flight
//! recorder: who wants to map it asks for descriptors, and the event loop of its owner sends them, one for each piece,
//! a few at a time. A descriptor is turned into memory as soon as it comes, so that none stays open; whoever calls next
//! maps it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::device::{Allocation, Context, ImportedSegment};
use crate::error::Error;

/// Descriptors that are sent without being asked again: each that is on its way counts as an open file.
const WINDOW: u32 = 16;

/// What ranks tell each other. Tags are those of registrations, as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum PieceMessage {
    /// Somebody wants to map a registration, and lacks what begins with a piece.
    Want { tag: u32, from: u32 },
    /// A piece of so many bytes; its descriptor comes with the message.
    Piece { tag: u32, number: u32, bytes: u64 },
    /// The registration is gone, or its descriptors cannot be had.
    Gone { tag: u32 },
}

/// A message to another rank, and what goes with it.
pub type PieceReply = (Vec<u8>, Option<Arc<OwnedFd>>);

/// Pieces of a peer's registration.
struct Coming {
    of: u32,
    pieces: Vec<ImportedSegment>,
    failed: bool,
}

/// How it stands with a peer's registration.
pub(super) enum Arrival {
    /// It must be asked for.
    Ask(Vec<u8>),
    /// It is on its way.
    Coming,
    /// All pieces are there, in order.
    Here(Vec<ImportedSegment>),
    /// It will not come.
    Failed,
}

/// What a rank of a communicator has registered and is asked for, and what it has asked others for. No lock is held
/// while CUDA is called that could wait for the device.
pub(super) struct Pieces {
    context: Arc<Context>,
    own: Mutex<BTreeMap<u32, Arc<[Allocation]>>>,
    /// By rank and tag.
    coming: Mutex<BTreeMap<(u32, u32), Coming>>,
}

fn encode(message: PieceMessage) -> Vec<u8> {
    // Nothing of it can fail: it writes to memory.
    postcard::to_stdvec(&message).unwrap_or_default()
}

impl Pieces {
    pub fn new(context: &Arc<Context>) -> Pieces {
        Pieces { context: context.clone(), own: Mutex::default(), coming: Mutex::default() }
    }

    /// Others may ask for a registration from now on; for none, no more.
    pub fn publish(&self, tag: u32, allocations: Option<&[Allocation]>) {
        let mut own = self.own.lock();
        match allocations {
            Some(allocations) => drop(own.insert(tag, allocations.into())),
            None => drop(own.remove(&tag)),
        }
    }

    /// How it stands with a registration of `of` pieces. What is here is given away.
    pub fn arrival(&self, rank: u32, tag: u32, of: u32) -> Arrival {
        let mut coming = self.coming.lock();
        let Some(known) = coming.get(&(rank, tag)) else {
            coming.insert((rank, tag), Coming { of, pieces: Vec::new(), failed: false });
            return Arrival::Ask(encode(PieceMessage::Want { tag, from: 0 }));
        };
        match (known.failed, known.pieces.len() == of as usize) {
            (false, false) => Arrival::Coming,
            (true, _) => Arrival::Failed,
            (false, true) => coming.remove(&(rank, tag)).map_or(Arrival::Failed, |here| Arrival::Here(here.pieces)),
        }
    }

    /// Forgets what a peer no longer has.
    pub fn keep(&self, rank: u32, has: impl Fn(u32) -> bool) {
        let mut coming = self.coming.lock();
        let gone: Vec<_> = coming.extract_if(.., |(of, tag), _| *of == rank && !has(*tag)).collect();
        drop((coming, gone));
    }

    /// Forgets everything that has come.
    pub fn clear(&self) {
        let coming = std::mem::take(&mut *self.coming.lock());
        drop(coming);
    }

    /// A message of another rank; the answers. In the event loop.
    pub fn receive(&self, from: u32, bytes: &[u8], fd: Option<OwnedFd>) -> Vec<PieceReply> {
        match postcard::from_bytes(bytes) {
            Ok(PieceMessage::Want { tag, from }) => self.send(tag, from),
            Ok(PieceMessage::Piece { tag, number, bytes }) => {
                let next = self.take(from, tag, number, (bytes, fd));
                next.map(|from| (encode(PieceMessage::Want { tag, from }), None)).into_iter().collect()
            }
            Ok(PieceMessage::Gone { tag }) => {
                self.fail(from, tag);
                Vec::new()
            }
            Err(_) => {
                log::info!(target: "REG", "rank {from} sent a message about registered memory that cannot be read");
                Vec::new()
            }
        }
    }

    fn send(&self, tag: u32, from: u32) -> Vec<PieceReply> {
        let own = self.own.lock().get(&tag).cloned();
        let Some(own) = own else { return vec![(encode(PieceMessage::Gone { tag }), None)] };
        let reply = |(number, piece): (u32, &Allocation)| {
            let fd = piece.descriptor(&self.context)?;
            Ok((encode(PieceMessage::Piece { tag, number, bytes: piece.bytes }), Some(Arc::new(fd))))
        };
        let some = (0..).zip(own.iter()).skip(from as usize).take(WINDOW as usize);
        let replies: Result<Vec<PieceReply>, Error> = some.map(reply).collect();
        replies.unwrap_or_else(|error| {
            log::info!(target: "REG", "registered memory cannot be passed on: {error}");
            vec![(encode(PieceMessage::Gone { tag }), None)]
        })
    }

    /// A piece has come, or should have. The first one that is to be asked for now.
    fn take(&self, from: u32, tag: u32, number: u32, (bytes, fd): (u64, Option<OwnedFd>)) -> Option<u32> {
        let wanted = |coming: &Coming| !coming.failed && coming.pieces.len() == number as usize && number < coming.of;
        if !self.coming.lock().get(&(from, tag)).is_some_and(wanted) {
            return None;
        }
        let none = || Error::Resource("its descriptor did not arrive".to_string());
        let size = usize::try_from(bytes).map_err(|error| Error::Internal(error.to_string()));
        let piece = size.and_then(|size| ImportedSegment::of(&self.context, fd.ok_or_else(none)?.as_fd(), size));
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                log::info!(target: "REG", "memory of rank {from} is not mapped: {error}");
                self.fail(from, tag);
                return None;
            }
        };
        let mut coming = self.coming.lock();
        let known = coming.get_mut(&(from, tag))?;
        known.pieces.push(piece);
        let next = number + 1;
        (next < known.of && next.is_multiple_of(WINDOW)).then_some(next)
    }

    fn fail(&self, from: u32, tag: u32) {
        let mut coming = self.coming.lock();
        let Some(known) = coming.get_mut(&(from, tag)) else { return };
        known.failed = true;
        let pieces = std::mem::take(&mut known.pieces);
        drop((coming, pieces));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_encoding() {
        for message in [
            PieceMessage::Want { tag: 256, from: 16 },
            PieceMessage::Piece { tag: u32::MAX, number: 9, bytes: 1 << 40 },
            PieceMessage::Gone { tag: 7 },
        ] {
            assert_eq!(postcard::from_bytes::<PieceMessage>(&encode(message)), Ok(message));
        }
    }
}
