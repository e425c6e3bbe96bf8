//! Whether data arrive in peer memory. A device may say that it reaches another one where what it writes is lost, as
//! behind a PCI switch with Access Control Services or an IOMMU, or where what it reads is something else. So each rank
//! writes to every peer's memory and reads there, a line each, and the owners look whether theirs have come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::PeerFacts;
use super::layout::PAGE;
use crate::device::{Context, DeviceCopy, WatchedStream};
use crate::error::Error;

/// How long the copies to and from one peer may take: some microseconds are usual.
pub const LIMIT: Duration = Duration::from_secs(5);
/// After so many peers whose copies do not end, no others are tried: a creation is not to take forever.
const STUCK_MAX: usize = 2;
/// Bytes that are written and read at a time: what caches and buses move as a whole, or less.
const LINE: usize = 64;

/// Why two ranks cannot use peer memory, as one of them has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerFault {
    /// It could not be made, or mapped, or the driver refused a copy.
    Refused(String),
    /// A copy to or from the peer's memory has not ended in time, or was not even tried after others had not.
    Stuck,
    /// What the peer has written to this rank's memory has not arrived.
    WriteLost,
    /// This rank reads something else than what is in the peer's memory.
    ReadWrong,
}

/// What three lines of a rank's memory are for, for each rank of its host.
#[derive(Clone, Copy)]
enum LineUse {
    /// The owner's, for that rank to read.
    Outgoing,
    /// What that rank writes.
    Incoming,
    /// What the owner reads from that rank.
    Fetched,
}

/// Where lines lie in each rank's memory, alike for all ranks of a host.
pub(super) struct Lines {
    /// The host's ranks.
    ranks: Vec<u32>,
}

impl Lines {
    /// Those for the host of a rank.
    pub fn of_host(facts: &[PeerFacts], me: u32) -> Lines {
        let host = &facts[me as usize].host;
        Lines { ranks: facts.iter().filter(|peer| peer.host.same_host(host)).map(|peer| peer.rank).collect() }
    }

    /// The memory that a rank needs: whole pages.
    pub fn bytes(&self) -> usize {
        (3 * LINE * self.ranks.len()).next_multiple_of(PAGE)
    }

    /// Where a line begins that is for a rank of the host.
    fn place(&self, what: LineUse, rank: u32) -> usize {
        let index = self.ranks.iter().position(|other| *other == rank).unwrap_or(0);
        LINE * (what as usize * self.ranks.len() + index)
    }

    /// What a rank's memory holds before anybody writes to it: its outgoing lines.
    pub fn outgoing(&self, me: u32, salt: u64) -> Vec<u8> {
        self.ranks.iter().flat_map(|peer| line(salt, me, *peer)).collect()
    }
}

/// What one rank has for another: bytes that no memory holds by chance.
fn line(salt: u64, from: u32, to: u32) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    let pair = u64::from(from) << 32 | u64::from(to);
    for (word, at) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(1u64..) {
        // The finalizer of SplitMix64.
        let mut x = (salt ^ pair).wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        *word = (x ^ x >> 31).to_le_bytes();
    }
    bytes
}

/// A peer whose memory is mapped.
#[derive(Clone, Copy)]
pub(super) struct MappedPeer {
    pub rank: u32,
    /// Where its memory begins here.
    pub theirs: u64,
    /// Where this rank's memory begins that the peer has mapped.
    pub own: u64,
}

/// What has come of copies.
#[derive(Default)]
pub(super) struct Copied {
    pub faults: Vec<(u32, PeerFault)>,
    /// Copies may go on forever: memory that they use is not to be unmapped, which would wait for them.
    pub stuck: bool,
}

/// Writes a line to each peer's memory, and reads one there.
///
/// # Errors
/// [`Error::Cuda`] where the context does not live on.
pub(super) fn copy(context: &Arc<Context>, lines: &Lines, me: u32, peers: &[MappedPeer]) -> Result<Copied, Error> {
    let (mut copied, mut left, mut stuck) = (Copied::default(), peers, 0);
    while !left.is_empty() && stuck < STUCK_MAX {
        let stream = WatchedStream::create(context)?;
        let begun: Vec<_> = left.iter().map(|peer| stream.begin(&copies(lines, me, peer))).collect();
        let mut through = 0;
        for (peer, begun) in left.iter().zip(begun) {
            through += 1;
            match begun {
                Err(error) => copied.faults.push((peer.rank, PeerFault::Refused(error.to_string()))),
                Ok(end) if end.wait(LIMIT)? => {}
                Ok(_) => {
                    copied.faults.push((peer.rank, PeerFault::Stuck));
                    stuck += 1;
                    // What is behind it waits for it.
                    break;
                }
            }
        }
        left = &left[through..];
    }
    copied.faults.extend(left.iter().map(|peer| (peer.rank, PeerFault::Stuck)));
    copied.stuck = stuck > 0;
    Ok(copied)
}

fn copies(lines: &Lines, me: u32, peer: &MappedPeer) -> [DeviceCopy; 2] {
    let at = |base: u64, what, rank| base + lines.place(what, rank) as u64;
    let write = (at(peer.theirs, LineUse::Incoming, me), at(peer.own, LineUse::Outgoing, peer.rank));
    let read = (at(peer.own, LineUse::Fetched, peer.rank), at(peer.theirs, LineUse::Outgoing, me));
    [write, read].map(|(to, from)| DeviceCopy { to, from, bytes: LINE })
}

/// Looks into this rank's memory when all have copied: what the peers have written, and what was read there.
pub(super) fn check(
    memory: &[u8],
    lines: &Lines,
    me: u32,
    peers: &BTreeMap<u32, u64>,
    known: &BTreeSet<u32>,
) -> Vec<(u32, PeerFault)> {
    let mut faults = Vec::new();
    for (peer, salt) in peers.iter().filter(|(peer, _)| !known.contains(peer)) {
        let expected = line(*salt, *peer, me);
        let arrived = |what| {
            let at = lines.place(what, *peer);
            memory.get(at..at + LINE).is_some_and(|bytes| *bytes == expected)
        };
        if !arrived(LineUse::Incoming) {
            faults.push((*peer, PeerFault::WriteLost));
        } else if !arrived(LineUse::Fetched) {
            faults.push((*peer, PeerFault::ReadWrong));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Lines {
        Lines { ranks: vec![1, 4, 9] }
    }

    /// The memory of rank 4, to which ranks 1 and 9 have written what `write` makes of their lines.
    fn memory(write: impl Fn(u32, LineUse, &mut [u8])) -> Vec<u8> {
        let mut memory = lines().outgoing(4, 7);
        memory.resize(lines().bytes(), 0);
        for peer in [1, 9] {
            for what in [LineUse::Incoming, LineUse::Fetched] {
                let at = lines().place(what, peer);
                memory[at..at + LINE].copy_from_slice(&line(u64::from(peer), peer, 4));
                write(peer, what, &mut memory[at..at + LINE]);
            }
        }
        memory
    }

    fn faults(write: impl Fn(u32, LineUse, &mut [u8]), known: &[u32]) -> Vec<(u32, PeerFault)> {
        let peers = BTreeMap::from([(1, 1), (9, 9)]);
        check(&memory(write), &lines(), 4, &peers, &known.iter().copied().collect())
    }

    #[test]
    fn each_byte_counts() {
        assert_eq!(faults(|_, _, _| {}, &[]), []);
        for at in 0..LINE {
            let spoil = |peer, what, bytes: &mut [u8]| {
                if peer == 9 && matches!(what, LineUse::Incoming) {
                    bytes[at] ^= 1;
                }
            };
            assert_eq!(faults(spoil, &[]), [(9, PeerFault::WriteLost)]);
            assert_eq!(faults(spoil, &[9]), [], "it is known already");
        }
        let fetched = |peer, what, bytes: &mut [u8]| {
            if peer == 1 && matches!(what, LineUse::Fetched) {
                bytes.fill(0xff);
            }
        };
        assert_eq!(faults(fetched, &[]), [(1, PeerFault::ReadWrong)]);
    }

    #[test]
    fn lines_do_not_overlap_and_differ() {
        let lines = lines();
        let mut places = Vec::new();
        for rank in [1, 4, 9] {
            places.extend([LineUse::Outgoing, LineUse::Incoming, LineUse::Fetched].map(|what| lines.place(what, rank)));
        }
        places.sort_unstable();
        assert_eq!(places, (0..9).map(|at| at * LINE).collect::<Vec<_>>());
        assert_eq!(lines.bytes(), PAGE);
        assert_eq!(lines.outgoing(4, 7)[LINE..2 * LINE], line(7, 4, 4));
        assert!(line(1, 2, 3) != line(1, 3, 2) && line(1, 2, 3) != line(2, 2, 3) && line(0, 0, 0) != [0; LINE]);
    }
}
