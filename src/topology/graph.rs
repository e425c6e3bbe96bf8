//! The graph of a communicator: who follows whom on each channel, and which ranks share a host.

use std::collections::BTreeMap;

use super::hosts::HostRows;
use super::order::Order;
use crate::error::Error;

/// The most ranks of one host that are linked with one another for collectives: beyond, other ways are faster and slots
/// take too much memory.
pub const MAX_PEERS: u32 = 64;
/// The most channels of several hosts that are different.
const MAX_CHANNELS: usize = 64;

/// What the algorithms follow on one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The ring: each rank sends to the next one. PAT counts distances along it.
    pub ring: Order,
    /// Who takes which seat in the two trees; with a root, seats are counted from it.
    pub tree: Order,
    /// In which order direct algorithms visit ranks, each from the one behind itself on. None: there are no direct
    /// algorithms, since not every rank is linked with every other one.
    pub peers: Option<Order>,
}

impl Channel {
    /// The same order for all algorithms.
    fn along(order: Order) -> Channel {
        let peers = (order.nranks() <= MAX_PEERS).then(|| order.clone());
        Channel { ring: order.clone(), tree: order, peers }
    }

    fn orders(&self) -> impl Iterator<Item = &Order> {
        [&self.ring, &self.tree].into_iter().chain(&self.peers)
    }
}

/// What the schedules of a communicator are compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// By rank, the number of its host.
    hosts: Vec<u32>,
    channels: Vec<Channel>,
    /// By channel, host by host: the ring, and the tree.
    rows: Vec<(HostRows, HostRows)>,
}

impl Graph {
    /// A graph of ranks whose hosts `hosts` numbers. A communicator can have more channels than `channels` lists: these
    /// are repeated then.
    ///
    /// # Errors
    /// [`Error::Internal`] where there is no channel, an order is of another number of ranks, or not all channels have
    /// [`Channel::peers`] or none has.
    pub fn new(hosts: Vec<u32>, channels: Vec<Channel>) -> Result<Graph, Error> {
        let nranks = hosts.len();
        let Some(first) = channels.first() else { return Err(Error::Internal("a graph without channels".to_string())) };
        for (number, channel) in channels.iter().enumerate() {
            if channel.orders().any(|order| order.ranks().len() != nranks) {
                return Err(Error::Internal(format!("channel {number} of a graph does not have {nranks} ranks")));
            }
            if channel.peers.is_some() != first.peers.is_some() {
                return Err(Error::Internal(format!("channel {number} of a graph links other ranks than channel 0")));
            }
        }
        Ok(Graph::with(hosts, channels))
    }

    fn with(hosts: Vec<u32>, channels: Vec<Channel>) -> Graph {
        let rows = |channel: &Channel| (HostRows::of(&channel.ring, &hosts), HostRows::of(&channel.tree, &hosts));
        let rows = channels.iter().map(rows).collect();
        Graph { hosts, channels, rows }
    }

    /// The ranks of one host, in the order of their numbers on every channel.
    pub fn of_host(nranks: u32) -> Graph {
        Graph::with(vec![0; nranks as usize], vec![Channel::along(Order::of_numbers(nranks))])
    }

    /// The ranks of the hosts that `hosts` numbers, by rank. Every order goes through one host after the other, in the
    /// order of their first ranks. Each channel enters a host at another rank, and so leaves it at another one, since
    /// these can have network interfaces of their own: there are as many channels as ranks on the largest host.
    pub fn of_hosts(hosts: Vec<u32>) -> Graph {
        let mut first: BTreeMap<u32, usize> = BTreeMap::new();
        for (rank, host) in hosts.iter().enumerate() {
            first.entry(*host).or_insert(rank);
        }
        if first.len() <= 1 {
            return Graph::of_host(hosts.len() as u32);
        }
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); hosts.len()];
        (0..).zip(&hosts).for_each(|(rank, host)| rows[first[host]].push(rank));
        rows.retain(|row| !row.is_empty());
        let most = rows.iter().map(Vec::len).max().unwrap_or(1);
        let turned = |by: usize| {
            let turn = |row: &Vec<u32>| row.iter().cycle().skip(by % row.len()).take(row.len()).copied().collect();
            rows.iter().flat_map(|row| -> Vec<u32> { turn(row) }).collect::<Vec<u32>>()
        };
        // Every rank is in one row, so this is an order.
        let orders = (0..most.min(MAX_CHANNELS)).filter_map(|by| Order::new(turned(by)).ok());
        let peers = Some(Order::of_numbers(hosts.len() as u32)).filter(|peers| peers.nranks() <= MAX_PEERS);
        let channel = |order: Order| Channel { ring: order.clone(), tree: order, peers: peers.clone() };
        let channels = orders.map(channel).collect();
        Graph::with(hosts, channels)
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// By rank, the number of its host.
    pub fn hosts(&self) -> &[u32] {
        &self.hosts
    }

    /// How many channels are different at most: those beyond repeat them.
    pub fn nchannels(&self) -> u32 {
        self.channels.len() as u32
    }

    /// A channel.
    pub fn channel(&self, channel: u32) -> &Channel {
        &self.channels[channel as usize % self.channels.len()]
    }

    /// The ring of a channel, host by host.
    pub fn ring_rows(&self, channel: u32) -> &HostRows {
        &self.rows[channel as usize % self.rows.len()].0
    }

    /// The trees' seats of a channel, host by host.
    pub fn tree_rows(&self, channel: u32) -> &HostRows {
        &self.rows[channel as usize % self.rows.len()].1
    }

    /// How many hosts there are.
    pub fn nhosts(&self) -> u32 {
        self.rows.first().map_or(1, |(ring, _)| ring.nhosts())
    }

    /// Whether every rank is linked with every other one, as direct algorithms need it.
    pub fn has_peers(&self) -> bool {
        self.channels.iter().all(|channel| channel.peers.is_some())
    }
}

#[cfg(test)]
impl Graph {
    /// Ranks in turn on some hosts, and on each channel in orders of its own: a ring that enters each host once, a tree
    /// with other orders of hosts and ranks, and peers in any order, if they are few enough.
    pub(crate) fn shuffled(nranks: u32, nhosts: u32, nchannels: u32, seed: u64) -> Graph {
        use rand::rngs::StdRng;
        use rand::seq::SliceRandom;
        use rand::{RngExt, SeedableRng};
        let mut random = StdRng::seed_from_u64(seed);
        let hosts: Vec<u32> = (0..nranks).map(|rank| rank % nhosts).collect();
        let mut order = |by_host: bool| {
            let salt: u64 = random.random();
            let mut ranks: Vec<u32> = (0..nranks).collect();
            ranks.shuffle(&mut random);
            // Hosts in some order, too; the sort keeps that of the ranks.
            let host = |rank: &u32| (u64::from(hosts[*rank as usize]) + 1).wrapping_mul(salt | 1);
            ranks.sort_by_key(|rank| if by_host { host(rank) } else { 0 });
            Order::new(ranks).expect("all ranks")
        };
        let channels = (0..nchannels).map(|_| Channel {
            ring: order(true),
            tree: order(true),
            peers: (nranks <= MAX_PEERS).then(|| order(false)),
        });
        let channels = channels.collect();
        Graph::new(hosts, channels).expect("a graph")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_repeat() {
        let graph = Graph::shuffled(6, 2, 3, 1);
        assert_eq!((graph.nranks(), graph.nchannels(), graph.hosts()), (6, 3, &[0, 1, 0, 1, 0, 1][..]));
        assert_ne!(graph.channel(0).ring, graph.channel(1).ring);
        assert!((0..3).all(|channel| graph.channel(channel) == graph.channel(channel + 6)));
    }

    #[test]
    fn rings_enter_a_host_once() {
        for seed in 0..20 {
            let graph = Graph::shuffled(24, 4, 2, seed);
            for channel in 0..2 {
                let mut hosts: Vec<u32> =
                    graph.channel(channel).ring.ranks().iter().map(|rank| graph.hosts()[*rank as usize]).collect();
                hosts.dedup();
                assert_eq!(hosts.len(), 4, "seed {seed}: {hosts:?}");
            }
        }
    }

    #[test]
    fn one_host_is_in_the_order_of_numbers() {
        let graph = Graph::of_host(3);
        let order = Order::of_numbers(3);
        let channel = Channel { ring: order.clone(), tree: order.clone(), peers: Some(order) };
        assert_eq!((graph.channel(7), graph.has_peers(), graph.nchannels()), (&channel, true, 1));
        assert!(Graph::of_host(MAX_PEERS).has_peers() && !Graph::of_host(MAX_PEERS + 1).has_peers());
    }

    /// Hosts in turn, in any order, and of different sizes: each channel goes through one after the other, and enters
    /// it elsewhere.
    #[test]
    fn orders_go_through_one_host_after_the_other() {
        let graph = Graph::of_hosts(vec![4, 1, 4, 1, 4, 0]);
        assert_eq!((graph.nchannels(), graph.nhosts(), graph.has_peers()), (3, 3, true));
        let ring = |channel| graph.channel(channel).ring.ranks().to_vec();
        assert_eq!([ring(0), ring(1)], [vec![0, 2, 4, 1, 3, 5], vec![2, 4, 0, 3, 1, 5]]);
        assert_eq!((ring(2), ring(3)), (vec![4, 0, 2, 1, 3, 5], ring(0)));
        assert_eq!(graph.ring_rows(2).row(0), [4, 0, 2]);
        assert_eq!(graph.channel(0).peers, Some(Order::of_numbers(6)));
        assert_eq!(Graph::of_hosts(vec![3; 5]), Graph { hosts: vec![0; 5], ..Graph::of_host(5) });
        assert!(!Graph::of_hosts((0..MAX_PEERS + 1).map(|rank| rank % 2).collect()).has_peers());
    }

    #[test]
    fn nonsense_is_refused() {
        let channel = |nranks| Channel::along(Order::of_numbers(nranks));
        let refused = |nranks, channels| Graph::new(vec![0; nranks], channels).expect_err("refused").to_string();
        assert!(refused(2, vec![]).contains("without channels"));
        assert!(refused(2, vec![channel(2), channel(3)]).contains("channel 1 of a graph does not have 2 ranks"));
        let alone = Channel { peers: None, ..channel(2) };
        assert!(refused(2, vec![channel(2), alone]).contains("links other ranks"));
    }
}
