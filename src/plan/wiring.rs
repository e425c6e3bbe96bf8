//! Which links a communicator has: every rank knows the links of every other one without being told.

use super::algorithm::MAX_MESH;
use super::layout::{Proto, SLOTS};
use super::schedule::{LinkClass, LinkId};
use crate::error::Error;

#[cfg(test)]
mod tests;

/// Bytes of slots that a rank gives to one set of links with all others, before rounding and limits.
const PAIRS_BYTES: u64 = 4 << 20;
/// The smallest and the largest slot of a link between any two ranks, in bytes.
const PAIR_SLOT_RANGE: (u64, u64) = (8 << 10, 64 << 10);
/// Slots between any two ranks are whole pages.
const PAIR_SLOT_UNIT: u64 = 4 << 10;
/// Slots are a multiple of this many bytes: kernels rely on it.
pub const SLOT_UNIT: u32 = 64;

/// Links of one class and protocol, alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSet {
    /// Whom they link: [`LinkClass::Ring`] each rank with the next one, the others every rank with every other one.
    pub class: LinkClass,
    /// How their slots carry data.
    pub proto: Proto,
    /// The number of channels, each with links of its own.
    pub channels: u32,
    /// The size of a slot in bytes, a multiple of [`SLOT_UNIT`].
    pub slot_bytes: u32,
}

/// A link that a rank takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkNeed {
    /// Which link.
    pub id: LinkId,
    /// The size of one of its slots in bytes.
    pub slot_bytes: u32,
}

impl LinkNeed {
    /// The rank at the other end.
    pub fn peer(&self, me: u32) -> u32 {
        if self.id.from == me { self.id.to } else { self.id.from }
    }
}

/// All links of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    ring: Vec<u32>,
    /// The place of each rank in the ring.
    places: Vec<usize>,
    sets: Vec<LinkSet>,
}

impl Wiring {
    /// Wires the ranks that `ring` lists, each once, in the order of the ring. One rank has no links.
    ///
    /// # Errors
    /// [`Error::Internal`] where `ring` is not all ranks from 0 on, or a set has no channel, slots of an impossible
    /// size, or class and protocol of another set.
    pub fn new(ring: Vec<u32>, sets: Vec<LinkSet>) -> Result<Wiring, Error> {
        let mut places = vec![usize::MAX; ring.len()];
        for (place, &rank) in ring.iter().enumerate() {
            match places.get_mut(rank as usize) {
                Some(free) if *free == usize::MAX => *free = place,
                _ => return Err(Error::Internal(format!("a ring of {} ranks with rank {rank} at {place}", ring.len()))),
            }
        }
        for (number, set) in sets.iter().enumerate() {
            let twice = sets[..number].iter().any(|other| (other.class, other.proto) == (set.class, set.proto));
            if twice || set.channels == 0 || set.slot_bytes == 0 || !set.slot_bytes.is_multiple_of(SLOT_UNIT) {
                return Err(Error::Internal(format!("a set of links that cannot be: {set:?}")));
            }
        }
        Ok(Wiring { ring, places, sets })
    }

    /// The links of a communicator on one host: a ring in the order of ranks, and small slots between any two.
    ///
    /// # Errors
    /// As [`Wiring::new`].
    pub fn of_host(nranks: u32, proto: Proto, channels: u32, ring_slot_bytes: u32) -> Result<Wiring, Error> {
        let small = pair_slot_bytes(nranks, channels);
        let set = |class, slot_bytes| LinkSet { class, proto, channels, slot_bytes };
        let mut sets = vec![set(LinkClass::Ring, ring_slot_bytes)];
        if nranks <= MAX_MESH {
            sets.push(set(LinkClass::Mesh, small));
        }
        sets.push(set(LinkClass::Peer, small));
        Wiring::new((0..nranks).collect(), sets)
    }

    /// The number of ranks.
    pub fn nranks(&self) -> u32 {
        self.ring.len() as u32
    }

    /// The sets, in the order that they were given in.
    pub fn sets(&self) -> &[LinkSet] {
        &self.sets
    }

    /// The set of a class and protocol.
    pub fn set(&self, class: LinkClass, proto: Proto) -> Option<&LinkSet> {
        self.sets.iter().find(|set| set.class == class && set.proto == proto)
    }

    /// The links that a rank takes part in: set by set, channel by channel, peer by peer in the order of the ring
    /// from the next one on; to a peer before from it.
    pub fn links(&self, rank: u32) -> Vec<LinkNeed> {
        let (nranks, place) = (self.ring.len(), self.places[rank as usize]);
        let mut links = Vec::new();
        for set in self.sets.iter().filter(|_| nranks > 1) {
            let need = |from, to, channel| LinkNeed {
                id: LinkId { from, to, class: set.class, proto: set.proto, channel },
                slot_bytes: set.slot_bytes,
            };
            for channel in 0..set.channels {
                for distance in 1..nranks {
                    let peer = self.ring[(place + distance) % nranks];
                    let (next, previous) = match set.class {
                        LinkClass::Ring => (distance == 1, distance == nranks - 1),
                        LinkClass::Mesh | LinkClass::Peer => (true, true),
                    };
                    links.extend(next.then(|| need(rank, peer, channel)));
                    links.extend(previous.then(|| need(peer, rank, channel)));
                }
            }
        }
        links
    }
}

/// The size of a slot, in bytes, of a link between any two of `nranks` ranks: so that all such links of a rank
/// take about 4 MiB, within limits.
pub fn pair_slot_bytes(nranks: u32, channels: u32) -> u32 {
    let peers = u64::from(nranks.saturating_sub(1).max(1));
    let even = PAIRS_BYTES / SLOTS as u64 / peers / u64::from(channels.max(1));
    let bytes = even.clamp(PAIR_SLOT_RANGE.0, PAIR_SLOT_RANGE.1);
    (bytes - bytes % PAIR_SLOT_UNIT) as u32
}
