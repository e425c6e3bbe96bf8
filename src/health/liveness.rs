//! Which ranks are there: who is gone with its process, and who says that it leaves.

use serde::{Deserialize, Serialize};

use crate::sys::is_open;
use crate::transport::{Links, PeerFacts};

/// What ranks tell each other about themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthNotice {
    /// It has met an error and will not take part in calls any more.
    Leaving,
}

/// Whether the process of a peer on this rank's host has ended, or at least all communicators that it had. What cannot
/// be found out is not so.
pub fn has_ended(me: &PeerFacts, peer: &PeerFacts) -> bool {
    me.process != peer.process && me.host.can_pass_descriptors(&peer.host) && !is_open(&peer.location.mailbox)
}

/// Tells all other ranks that this one has met an error: what they wait for will not come.
pub fn tell_leaving(links: &Links) {
    // Nothing of it can fail: it writes to memory.
    links.tell_all(&postcard::to_stdvec(&HealthNotice::Leaving).unwrap_or_default());
}

/// What another rank has told; none where it cannot be read.
pub fn heard(bytes: &[u8]) -> Option<HealthNotice> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_read_and_nonsense_is_none() {
        let bytes = postcard::to_stdvec(&HealthNotice::Leaving).expect("bytes");
        assert_eq!(heard(&bytes), Some(HealthNotice::Leaving));
        assert_eq!((heard(&[]), heard(&[200])), (None, None));
    }
}
