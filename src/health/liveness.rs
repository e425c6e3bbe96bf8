//! Which ranks are there: who is gone with its process, and who says that it leaves.

use serde::{Deserialize, Serialize};

use super::cause::FailureCause;
use super::record::Record;
use crate::sys::is_open;
use crate::transport::{Links, PeerFacts};

/// What ranks tell each other about themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HealthNotice {
    /// It has met an error and will not take part in calls any more.
    Leaving {
        /// What it knows of it.
        cause: Option<FailureCause>,
    },
    /// What it has called, to a rank of another host.
    Calls {
        /// Its last calls, in no order.
        calls: Vec<Record>,
        /// It wants to know those of that one.
        ask: bool,
    },
}

impl HealthNotice {
    /// What goes over.
    pub fn encode(&self) -> Vec<u8> {
        // Nothing of it can fail: it writes to memory.
        postcard::to_stdvec(self).unwrap_or_default()
    }
}

/// Whether the process of a peer on this rank's host has ended, or at least all communicators that it had. What cannot
/// be found out is not so.
pub fn has_ended(me: &PeerFacts, peer: &PeerFacts) -> bool {
    me.process != peer.process && me.host.can_pass_descriptors(&peer.host) && !is_open(&peer.location.mailbox)
}

/// Tells all other ranks that this one has met an error: what they wait for will not come.
pub fn tell_leaving(links: &Links, cause: Option<FailureCause>) {
    links.tell_all(&HealthNotice::Leaving { cause }.encode());
}

/// What another rank has told; none where it cannot be read.
pub fn heard(bytes: &[u8]) -> Option<HealthNotice> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn notices_are_read_and_nonsense_is_none() {
        let call = Record { serial: 3, func: 1, datatype: 2, op: 3, root: 4, count: 5 };
        let cause = FailureCause::of(3, &Error::InvalidUsage("calls do not match".to_string()));
        for notice in [HealthNotice::Leaving { cause }, HealthNotice::Calls { calls: vec![call; 32], ask: true }] {
            assert_eq!(heard(&notice.encode()), Some(notice));
        }
        assert_eq!((heard(&[]), heard(&[200])), (None, None));
    }
}
