//! Which connection groups are connected.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::plan::LinkClass;
use crate::plan::layout::Proto;
use crate::plan::wiring::ConnectionGroup;

/// The connection groups that launches may use. What is set stays so but for [`Connected::clear`], so that a call
/// needs no lock.
pub(super) struct Connected {
    rank: u32,
    nranks: u32,
    nchannels: u32,
    /// By class and protocol, a bit for each channel.
    channels: [[AtomicU64; Proto::ALL.len()]; LinkClass::ALL.len()],
    /// A bit for each rank that messages can be exchanged with.
    peers: Vec<AtomicU64>,
}

impl Connected {
    /// Nothing is connected.
    pub(super) fn none(rank: u32, nranks: u32, nchannels: u32) -> Connected {
        let peers = (0..nranks.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        Connected { rank, nranks, nchannels, channels: Default::default(), peers }
    }

    /// The channels of a class and protocol that are connected, as bits.
    pub(super) fn channels(&self, class: LinkClass, proto: Proto) -> u64 {
        self.channels[class as usize][proto as usize].load(Ordering::Acquire)
    }

    /// Whether a connection group is connected.
    pub(super) fn has(&self, group: ConnectionGroup) -> bool {
        let (word, bit) = self.place(group);
        word.load(Ordering::Acquire) & bit != 0
    }

    /// All connection groups that are connected.
    pub(super) fn groups(&self) -> Vec<ConnectionGroup> {
        let sets = LinkClass::COLLECTIVE.into_iter().flat_map(|class| Proto::ALL.map(|proto| (class, proto)));
        let channels = sets.flat_map(|(class, proto)| {
            (0..self.nchannels).map(move |channel| ConnectionGroup::Channel { class, proto, channel })
        });
        let others = (0..self.nranks).filter(|peer| *peer != self.rank);
        let all = channels.chain(others.map(|peer| ConnectionGroup::pair(self.rank, peer)));
        all.filter(|group| self.has(*group)).collect()
    }

    pub(super) fn add(&self, group: ConnectionGroup) {
        let (word, bit) = self.place(group);
        word.fetch_or(bit, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.channels.iter().flatten().chain(&self.peers).for_each(|word| word.store(0, Ordering::Release));
    }

    /// Where it is noted whether a connection group is connected: a word, and the bit in it.
    fn place(&self, group: ConnectionGroup) -> (&AtomicU64, u64) {
        match group {
            ConnectionGroup::Channel { class, proto, channel } => {
                (&self.channels[class as usize][proto as usize], 1 << channel)
            }
            ConnectionGroup::Pair { low, high } => {
                let peer = low + high - self.rank;
                (&self.peers[(peer / u64::BITS) as usize], 1 << (peer % u64::BITS))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_connected_is_known_until_all_is_cleared() {
        let connected = Connected::none(1, 100, 3);
        let channel = ConnectionGroup::Channel { class: LinkClass::Direct, proto: Proto::Ll, channel: 2 };
        let groups = [channel, ConnectionGroup::pair(1, 0), ConnectionGroup::pair(70, 1)];
        assert_eq!(connected.groups(), []);
        groups.iter().for_each(|group| connected.add(*group));
        assert_eq!(connected.groups(), groups);
        assert_eq!(connected.channels(LinkClass::Direct, Proto::Ll), 0b100);
        assert!(!connected.has(ConnectionGroup::pair(1, 71)));
        connected.clear();
        assert_eq!(connected.groups(), []);
    }
}
