//! How many threads and streams there are: what users ask for, or what a cloud's network needs.

use super::STREAMS_MAX;
use crate::bootstrap::HostInterface;
use crate::params::{self, Snapshot};
use crate::proxy::{ListenAddress, MOVERS_MAX};
use crate::sys;

/// How connections are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketSettings {
    /// The threads of a communicator that move data.
    pub threads: u32,
    /// The streams of a connection that this rank listens for; none: one for each interface.
    pub streams: Option<u32>,
    /// The least bytes of a piece of a message.
    pub piece_min: u32,
    /// Sizes of the system's buffers, where they are asked for.
    pub buffers: (Option<usize>, Option<usize>),
    /// The fingerprint of the user's key, where data are encrypted.
    pub encrypted_by: Option<u128>,
}

impl SocketSettings {
    /// What the environment says, for interfaces of this host, of which the first decides.
    pub fn read(interfaces: &[(HostInterface, ListenAddress)]) -> SocketSettings {
        let params = params::snapshot();
        let (asked, vendor) = (asked(&params), interfaces.first().and_then(|(first, _)| first.vendor));
        let (threads, per_thread) = counts(asked, vendor);
        let fixed = asked != (None, None) || threads * per_thread > 1;
        let buffer = |key| usize::try_from(params.int(key)).ok().filter(|bytes| *bytes > 0);
        SocketSettings {
            threads,
            streams: fixed.then_some(threads * per_thread),
            piece_min: params.int(params::SOCKET_MIN_TASKSIZE) as u32,
            buffers: (buffer(params::SOCKET_SNDBUF), buffer(params::SOCKET_RCVBUF)),
            encrypted_by: None,
        }
    }

    /// The same where data are encrypted by the key of a fingerprint, if there is one.
    pub fn encrypted_by(self, encrypted_by: Option<u128>) -> SocketSettings {
        SocketSettings { encrypted_by, ..self }
    }
}

/// Threads, and sockets for each, as they are asked for.
fn asked(params: &Snapshot) -> (Option<u32>, Option<u32>) {
    let number = |key| u32::try_from(params.int(key)).ok().filter(|number| *number > 0);
    (number(params::SOCKET_NTHREADS), number(params::NSOCKS_PERTHREAD))
}

/// Threads, and streams for each. Amazon limits what one stream carries, and Google's card shares its queues among
/// streams: NCCL's numbers for them. Elsewhere one thread and one stream, since each channel has its own connection.
fn counts((threads, per_thread): (Option<u32>, Option<u32>), vendor: Option<u16>) -> (u32, u32) {
    let usual = match vendor {
        Some(0x1d0f) => (2, 8),
        Some(0x1ae0) => (4, 1),
        _ => (1, 1),
    };
    let threads = threads.unwrap_or(usual.0).min(MOVERS_MAX as u32);
    let threads = if usual.0 > 1 { threads.min((sys::allowed_cpus() as u32 / 2).max(1)) } else { threads };
    let per_thread = per_thread.unwrap_or(usual.1).max(1);
    (threads, per_thread.min(STREAMS_MAX / threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_much_gets_what_there_is() {
        assert_eq!(counts((None, None), None), (1, 1));
        assert_eq!(counts((Some(3), Some(2)), None), (3, 2));
        assert_eq!(counts((Some(16), Some(64)), None), (16, 4));
        let (threads, streams) = counts((None, None), Some(0x1d0f));
        assert!((1..=2).contains(&threads) && streams == 8);
    }
}
