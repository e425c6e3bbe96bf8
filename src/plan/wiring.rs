//! Which links a communicator has: every rank knows the links of every other one without being told.
//!
//! Links are connected by *connection groups*, when a call first needs one: a channel of a class and protocol, or, of
//! messages, a pair of ranks.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::hierarchical;
use super::layout::{Proto, SLOTS};
use super::pat;
use super::schedule::{LinkClass, LinkId};
use super::tree;
use crate::error::Error;
use crate::topology::{Graph, Order};

#[cfg(test)]
mod tests;

/// Bytes of slots that a rank gives to its links for messages, with all others, before rounding and limits.
const PAIRS_BYTES: u64 = 4 << 20;
/// The same for one channel of trees, of PAT, or of direct algorithms: with a ring and messages less than a MiB.
const MESH_BYTES: u64 = 896 << 10;
/// The smallest and the largest slot of a link between any two ranks, in bytes.
const PAIR_SLOT_RANGE: (u64, u64) = (8 << 10, 64 << 10);
/// Slots between any two ranks are whole pages.
const PAIR_SLOT_UNIT: u64 = 4 << 10;
/// Slots are a multiple of this many bytes: kernels rely on it.
pub const SLOT_UNIT: u32 = 64;

/// Links that are connected together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConnectionGroup {
    /// A channel of links for collectives.
    Channel {
        /// One of [`LinkClass::COLLECTIVE`].
        class: LinkClass,
        /// Their protocol.
        proto: Proto,
        /// The channel.
        channel: u32,
    },
    /// The links for messages between two ranks, in both directions.
    Pair {
        /// One rank.
        low: u32,
        /// The other, of a greater number.
        high: u32,
    },
}

impl ConnectionGroup {
    /// The links for messages between two ranks.
    pub fn pair(a: u32, b: u32) -> ConnectionGroup {
        ConnectionGroup::Pair { low: a.min(b), high: a.max(b) }
    }
}

/// Links of one class and protocol, alike on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSet {
    /// Whom they link: those whom the schedules of the class name, whatever the function and root;
    /// [`LinkClass::Direct`] and [`LinkClass::Peer`] every rank with every other one.
    pub class: LinkClass,
    /// How their slots carry data.
    pub proto: Proto,
    /// The number of channels, each with links of its own. Those of [`LinkClass::Peer`] are connected together.
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
    graph: Arc<Graph>,
    sets: Vec<LinkSet>,
    /// How far a rank's neighbours are from it in the order of trees, and in that of the ring for PAT.
    distances: (BTreeSet<u32>, BTreeSet<u32>),
}

impl Wiring {
    /// Wires the ranks of a graph. One rank has no links.
    ///
    /// # Errors
    /// [`Error::Internal`] where a set has no channel, slots of an impossible size, or class and protocol of another
    /// set.
    pub fn new(graph: Graph, sets: Vec<LinkSet>) -> Result<Wiring, Error> {
        for (number, set) in sets.iter().enumerate() {
            let twice = sets[..number].iter().any(|other| (other.class, other.proto) == (set.class, set.proto));
            if twice || set.channels == 0 || set.slot_bytes == 0 || !set.slot_bytes.is_multiple_of(SLOT_UNIT) {
                return Err(Error::Internal(format!("a set of links that cannot be: {set:?}")));
            }
        }
        let distances = (tree::distances(graph.nranks()), pat::distances(graph.nranks()));
        Ok(Wiring { graph: Arc::new(graph), sets, distances })
    }

    /// The links of a communicator on one host: a ring in the order of ranks, and small slots between others.
    ///
    /// # Errors
    /// As [`Wiring::new`].
    pub fn of_host(nranks: u32, proto: Proto, channels: u32, ring_slot_bytes: u32) -> Result<Wiring, Error> {
        let set = |class, channels, slot_bytes| LinkSet { class, proto, channels, slot_bytes };
        let graph = Graph::of_host(nranks);
        let sets = vec![
            set(LinkClass::Ring, channels, ring_slot_bytes),
            set(LinkClass::Tree, channels, mesh_slot_bytes(nranks)),
            set(LinkClass::Pat, channels, mesh_slot_bytes(nranks)),
            set(LinkClass::Direct, channels, mesh_slot_bytes(nranks)),
            set(LinkClass::Hierarchical, channels, mesh_slot_bytes(nranks)),
            set(LinkClass::Peer, 1, pair_slot_bytes(nranks)),
        ];
        Wiring::new(graph, sets)
    }

    /// The number of ranks.
    pub fn nranks(&self) -> u32 {
        self.graph.nranks()
    }

    /// What schedules are compiled from.
    pub fn graph(&self) -> &Arc<Graph> {
        &self.graph
    }

    /// The sets, in the order that they were given in.
    pub fn sets(&self) -> &[LinkSet] {
        &self.sets
    }

    /// The set of a class and protocol.
    pub fn set(&self, class: LinkClass, proto: Proto) -> Option<&LinkSet> {
        self.sets.iter().find(|set| set.class == class && set.proto == proto)
    }

    /// The links that a rank takes part in: set by set, channel by channel. Of a ring, to the next rank and from the
    /// one before; of others, peer by peer in the order of their numbers from the next one on, to a peer before from
    /// it. Last those of [`LinkClass::Peer`]: peer by peer, set by set, all channels to the peer before those from it.
    pub fn links(&self, rank: u32) -> Vec<LinkNeed> {
        let of_set = |set: &LinkSet| {
            (0..set.channels).flat_map(|channel| self.channel_links(rank, set, channel)).collect::<Vec<_>>()
        };
        let of_pair = |peer| self.pair_links(rank, peer);
        self.sets.iter().flat_map(of_set).chain(self.others(rank).flat_map(of_pair)).collect()
    }

    /// The links between two ranks for messages, set by set.
    fn pair_links(&self, rank: u32, peer: u32) -> Vec<LinkNeed> {
        let sets = self.sets.iter().filter(|set| set.class == LinkClass::Peer);
        sets.flat_map(|set| pair_links(rank, peer, set)).collect()
    }

    /// All other ranks, from the next one on.
    fn others(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let nranks = self.nranks();
        (1..nranks).map(move |distance| (rank + distance) % nranks)
    }

    /// A rank's links of one channel, in the order of [`Wiring::links`].
    fn channel_links(&self, rank: u32, set: &LinkSet, channel: u32) -> Vec<LinkNeed> {
        let need = |from, to| LinkNeed {
            id: LinkId { from, to, class: set.class, proto: set.proto, channel },
            slot_bytes: set.slot_bytes,
        };
        let nranks = self.nranks();
        let both = |peer| [need(rank, peer), need(peer, rank)];
        match set.class {
            LinkClass::Ring => {
                let ring = &self.graph.channel(channel).ring;
                let place = ring.place(rank).filter(|_| nranks > 1);
                place
                    .map_or_else(Vec::new, |at| vec![need(rank, ring.at(at + 1)), need(ring.at(at + nranks - 1), rank)])
            }
            LinkClass::Tree if self.graph.nhosts() > 1 => {
                let peers = tree::neighbours(self.graph.tree_rows(channel), rank);
                self.after_rank(rank, peers).into_iter().flat_map(both).collect()
            }
            LinkClass::Tree => {
                let tree = &self.graph.channel(channel).tree;
                self.neighbours(rank, tree, &self.distances.0).into_iter().flat_map(both).collect()
            }
            // Hierarchical algorithms are in its place.
            LinkClass::Pat if hierarchical::fits(&self.graph) => Vec::new(),
            LinkClass::Hierarchical if !hierarchical::fits(&self.graph) => Vec::new(),
            LinkClass::Hierarchical => {
                let peers = hierarchical::neighbours(self.graph.ring_rows(channel), rank);
                self.after_rank(rank, peers).into_iter().flat_map(both).collect()
            }
            LinkClass::Pat => {
                let ring = &self.graph.channel(channel).ring;
                self.neighbours(rank, ring, &self.distances.1).into_iter().flat_map(both).collect()
            }
            LinkClass::Direct if self.graph.channel(channel).peers.is_none() => Vec::new(),
            LinkClass::Direct => self.others(rank).flat_map(both).collect(),
            // Of all channels together.
            LinkClass::Peer => Vec::new(),
        }
    }

    /// The ranks at some distances from a rank in an order, either way. From the next one on, by number.
    fn neighbours(&self, rank: u32, order: &Order, distances: &BTreeSet<u32>) -> Vec<u32> {
        let places = order.place(rank).into_iter().flat_map(|at| distances.iter().map(move |distance| at + distance));
        self.after_rank(rank, places.map(|place| order.at(place)))
    }

    /// Some ranks by number, from the one next to a rank on.
    fn after_rank(&self, rank: u32, ranks: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let nranks = self.nranks();
        let ahead: BTreeSet<u32> = ranks.into_iter().map(|other| (other + nranks - rank) % nranks).collect();
        ahead.into_iter().map(|distance| (rank + distance) % nranks).collect()
    }

    /// A rank's links of a connection group, in the order of [`Wiring::links`]; none where it has none, or there is no
    /// such connection group.
    pub fn group_links(&self, rank: u32, group: ConnectionGroup) -> Vec<LinkNeed> {
        if rank >= self.nranks() {
            return Vec::new();
        }
        match group {
            ConnectionGroup::Channel { class, proto, channel } => {
                let set = self.set(class, proto).filter(|set| channel < set.channels && class != LinkClass::Peer);
                set.map(|set| self.channel_links(rank, set, channel)).unwrap_or_default()
            }
            ConnectionGroup::Pair { low, high } => {
                let peer = if rank == low { high } else { low };
                let among = (rank == low || rank == high) && low != high && high < self.nranks();
                if among { self.pair_links(rank, peer) } else { Vec::new() }
            }
        }
    }

    /// The ranks that a rank has links with in a connection group, each once.
    pub fn group_peers(&self, rank: u32, group: ConnectionGroup) -> Vec<u32> {
        let mut peers: Vec<u32> = self.group_links(rank, group).iter().map(|need| need.peer(rank)).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// The links of a set between two ranks.
fn pair_links(rank: u32, peer: u32, set: &LinkSet) -> Vec<LinkNeed> {
    let LinkSet { class, proto, channels, slot_bytes } = *set;
    let need = |from, to| {
        (0..channels).map(move |channel| LinkNeed { id: LinkId { from, to, class, proto, channel }, slot_bytes })
    };
    need(rank, peer).chain(need(peer, rank)).collect()
}

/// The size of a slot, in bytes, of a link for messages between any two of `nranks` ranks: so that all such links of a
/// rank would take about 4 MiB, within limits.
pub fn pair_slot_bytes(nranks: u32) -> u32 {
    even_slot_bytes(PAIRS_BYTES, nranks)
}

/// The size of a slot, in bytes, of a link between any two of `nranks` ranks for collectives: so that one channel of
/// them takes less than 900 KiB of a rank, within limits (up to 15 ranks do).
pub fn mesh_slot_bytes(nranks: u32) -> u32 {
    even_slot_bytes(MESH_BYTES, nranks)
}

/// The size of a slot, in bytes, of a link between any two of `nranks` ranks: so that all such links of a rank would
/// take about `all` bytes, within limits.
pub fn even_slot_bytes(all: u64, nranks: u32) -> u32 {
    let peers = u64::from(nranks.saturating_sub(1).max(1));
    let bytes = (all / SLOTS as u64 / peers).clamp(PAIR_SLOT_RANGE.0, PAIR_SLOT_RANGE.1);
    (bytes - bytes % PAIR_SLOT_UNIT) as u32
}
