//! Shared host memory: a memfd for all ranks of a host, registered with CUDA by each.
//!
//! One rank makes the file and passes it to the others, one message to each post box: a box has room for few (10 where
//! nothing else is set), so that nobody ever waits for room. Every rank reserves the pages of its own part.

use std::time::Duration;

use super::{Offer, PeerFacts, Plan, Segment, Setup, Transport, wrong_offer};
use crate::device::RegisteredMemory;
use crate::error::Error;
use crate::sys::{SharedFile, SharedMemory};

/// How long a rank waits for a peer's descriptor, or for room in a peer's post box. Both sides are in
/// the same phase of set-up, so that only a dead or stopped peer takes this long.
const PASS_LIMIT: Duration = Duration::from_secs(20);

/// Ranks of one host, by way of host memory.
pub(super) struct Shm;

/// Mapped host memory, in the end registered for the device. The fields drop in this order.
struct HostSegment {
    registered: Option<RegisteredMemory>,
    memory: SharedMemory,
    /// Only until the pages are reserved: a mapping needs no descriptor.
    file: Option<SharedFile>,
    own: (usize, usize),
}

impl HostSegment {
    fn map(file: SharedFile, plan: &Plan) -> Result<HostSegment, Error> {
        Ok(HostSegment { registered: None, memory: file.map()?, file: Some(file), own: plan.own })
    }
}

impl Segment for HostSegment {
    fn address(&self) -> u64 {
        self.registered.as_ref().map_or(0, RegisteredMemory::address)
    }

    fn reserve(&self) -> Result<(), Error> {
        self.file.as_ref().map_or(Ok(()), |file| file.reserve(self.own.0, self.own.1 - self.own.0))
    }

    fn register(&mut self, setup: &Setup<'_>) -> Result<(), Error> {
        self.file = None;
        // SAFETY: this object owns the mapping and drops the registration first.
        let registered = unsafe { RegisteredMemory::register(setup.context, self.memory.address(), self.memory.bytes()) };
        self.registered = Some(registered?);
        Ok(())
    }
}

impl Transport for Shm {
    fn label(&self) -> &'static str {
        "SHM/direct"
    }

    fn connection(&self) -> Option<u32> {
        None
    }

    fn pools(&self) -> bool {
        true
    }

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        !a.shm_disabled && !b.shm_disabled && a.host.can_pass_descriptors(&b.host)
    }

    fn offer(&self, setup: &mut Setup<'_>, peers: &[PeerFacts], plan: &Plan) -> Result<(Box<dyn Segment>, Offer), Error> {
        let file = SharedFile::create("oxccl-link", plan.bytes)?;
        let key = rand::random();
        for rank in plan.members.iter().filter(|rank| **rank != setup.me.rank) {
            let peer = &peers[*rank as usize];
            let sent = setup.post.send(&peer.post, key, file.descriptor(), setup.cancel, PASS_LIMIT);
            sent.map_err(|error| blame(error, peer))?;
        }
        Ok((Box::new(HostSegment::map(file, plan)?), Offer::Shared(key)))
    }

    fn accept(&self, setup: &mut Setup<'_>, maker: &PeerFacts, offer: &Offer, plan: &Plan) -> Result<Box<dyn Segment>, Error> {
        let Offer::Shared(key) = offer else { return Err(wrong_offer(maker, self.label())) };
        let fd = setup.post.receive(*key, setup.cancel, PASS_LIMIT).map_err(|error| blame(error, maker))?;
        let file = SharedFile::adopt(fd, plan.bytes).map_err(|error| blame(error, maker))?;
        Ok(Box::new(HostSegment::map(file, plan)?))
    }
}

/// Puts the peer's rank into an error about it.
fn blame(error: Error, peer: &PeerFacts) -> Error {
    match error {
        Error::Remote { text, .. } => Error::Remote { rank: Some(peer.rank), text: format!("rank {}: {text}", peer.rank) },
        Error::Timeout(text) => Error::Remote { rank: Some(peer.rank), text: format!("rank {}: {text}", peer.rank) },
        other => other,
    }
}
