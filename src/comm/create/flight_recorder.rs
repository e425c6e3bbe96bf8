//! The flight recorder of a host is shared when a communicator is made.

use std::time::Duration;

use crate::error::Error;
use crate::health::FlightRecorder;
use crate::health::flight_recorder::PART_BYTES;
use crate::sys::{SharedFile, SharedMemory};
use crate::transport::{Links, PeerFacts};

/// How long a rank waits for the flight recorder. All ranks are in the same phase; without a flight recorder, messages
/// about calls that do not match say less, and that is all.
const LIMIT: Duration = Duration::from_secs(5);

/// The flight recorder of this rank's host: its lowest rank makes it and passes it on. One that is alone there has its
/// own, from which it tells others.
pub(super) fn share(me: &PeerFacts, peers: &[PeerFacts], links: &Links) -> Option<FlightRecorder> {
    let here: Vec<&PeerFacts> = peers.iter().filter(|peer| me.host.can_pass_descriptors(&peer.host)).collect();
    let ranks: Vec<u32> = here.iter().map(|peer| peer.rank).collect();
    let memory = match here[0].rank == me.rank {
        true if here.len() == 1 => SharedMemory::anonymous(PART_BYTES),
        true => make(&here[1..], here.len() * PART_BYTES, links),
        false => links.receive_memory(LIMIT),
    };
    match memory {
        Ok(memory) => FlightRecorder::new(memory, ranks, me.rank),
        Err(error) => {
            log::info!(target: "INIT", "rank {} has no flight recorder of its host: {error}", me.rank);
            None
        }
    }
}

fn make(others: &[&PeerFacts], bytes: usize, links: &Links) -> Result<SharedMemory, Error> {
    let file = SharedFile::create("oxccl-flight-recorder", bytes)?;
    file.reserve(0, bytes)?;
    for other in others {
        // Who does not get it does without.
        if let Err(error) = links.send_memory(other, &file) {
            log::info!(target: "INIT", "rank {} does not get the flight recorder of its host: {error}", other.rank);
        }
    }
    file.map()
}
