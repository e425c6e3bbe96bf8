//! Shared host memory: a memfd of one rank that the other maps, registered with CUDA on both sides.

use std::time::Duration;

use super::{Offer, PeerFacts, Segment, Setup, Transport, wrong_offer};
use crate::device::{Context, RegisteredMemory};
use crate::error::Error;
use crate::sys::SharedMemory;
use std::sync::Arc;

/// How long a rank waits for a peer's descriptor, or for room in a peer's post box. Both sides are in
/// the same phase of set-up, so that only a dead or stopped peer takes this long.
const PASS_LIMIT: Duration = Duration::from_secs(20);

/// Ranks of one host, by way of host memory.
pub(super) struct Shm;

/// Mapped host memory, registered for the device. The fields drop in this order.
struct HostSegment {
    registered: RegisteredMemory,
    _memory: SharedMemory,
}

impl HostSegment {
    fn register(context: &Arc<Context>, memory: SharedMemory) -> Result<HostSegment, Error> {
        // SAFETY: the object below owns the mapping and drops the registration first.
        let registered = unsafe { RegisteredMemory::register(context, memory.address(), memory.bytes()) }?;
        Ok(HostSegment { registered, _memory: memory })
    }
}

impl Segment for HostSegment {
    fn address(&self) -> u64 {
        self.registered.address()
    }
}

impl Transport for Shm {
    fn label(&self) -> &'static str {
        "SHM/direct"
    }

    fn connection(&self) -> Option<u32> {
        None
    }

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        !a.shm_disabled && !b.shm_disabled && a.host.can_pass_descriptors(&b.host)
    }

    fn offer(&self, setup: &mut Setup<'_>, peer: &PeerFacts, bytes: usize) -> Result<(Box<dyn Segment>, Offer), Error> {
        let memory = SharedMemory::create("oxccl-link", bytes)?;
        let key = rand::random();
        let sent = setup.post.send(&peer.post, key, memory.descriptor(), setup.cancel, PASS_LIMIT);
        sent.map_err(|error| blame(error, peer))?;
        let segment = HostSegment::register(setup.context, memory)?;
        Ok((Box::new(segment), Offer::Shared { key, bytes: bytes as u64 }))
    }

    fn accept(&self, setup: &mut Setup<'_>, peer: &PeerFacts, offer: &Offer) -> Result<Box<dyn Segment>, Error> {
        let Offer::Shared { key, bytes } = offer else { return Err(wrong_offer(peer, self.label())) };
        let bytes = usize::try_from(*bytes).map_err(|_| wrong_offer(peer, self.label()))?;
        let fd = setup.post.receive(*key, setup.cancel, PASS_LIMIT).map_err(|error| blame(error, peer))?;
        let memory = SharedMemory::adopt(fd, bytes).map_err(|error| blame(error, peer))?;
        Ok(Box::new(HostSegment::register(setup.context, memory)?))
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
