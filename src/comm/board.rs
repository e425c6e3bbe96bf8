//! The board of a host is shared when a communicator is made.

use std::time::Duration;

use crate::error::Error;
use crate::health::Board;
use crate::health::board::PART_BYTES;
use crate::sys::{SharedFile, SharedMemory};
use crate::transport::{Links, PeerFacts};

/// How long a rank waits for the board. All ranks are in the same phase; without a board, messages about calls that
/// do not match say less, and that is all.
const LIMIT: Duration = Duration::from_secs(5);

/// The board of this rank's host: its lowest rank makes it and passes it on. None where no other rank can be reached.
pub(super) fn share(me: &PeerFacts, peers: &[PeerFacts], links: &Links) -> Option<Board> {
    let here: Vec<&PeerFacts> = peers.iter().filter(|peer| me.host.can_pass_descriptors(&peer.host)).collect();
    let ranks: Vec<u32> = here.iter().map(|peer| peer.rank).collect();
    if here.len() < 2 {
        return None;
    }
    let memory = match here[0].rank == me.rank {
        true => make(&here[1..], here.len() * PART_BYTES, links),
        false => links.receive_memory(LIMIT),
    };
    match memory {
        Ok(memory) => Board::new(memory, ranks, me.rank),
        Err(error) => {
            log::info!(target: "INIT", "rank {} has no board of its host's calls: {error}", me.rank);
            None
        }
    }
}

fn make(others: &[&PeerFacts], bytes: usize, links: &Links) -> Result<SharedMemory, Error> {
    let file = SharedFile::create("oxccl-board", bytes)?;
    file.reserve(0, bytes)?;
    for other in others {
        // Who does not get it does without.
        if let Err(error) = links.send_memory(other, &file) {
            log::info!(target: "INIT", "rank {} does not get the board of its host's calls: {error}", other.rank);
        }
    }
    file.map()
}
