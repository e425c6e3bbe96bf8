//! Which algorithms there are, for which function, and the way from a name to a schedule.
//!
//! With n ranks, S bytes that the user's count says, and `log` the logarithm to base 2, rounded up. *Steps* are the
//! turns that the busiest rank takes for every piece; *hops* are messages that wait for each other, at most; *bytes*
//! are what the busiest rank sends.
//!
//! | Function | Algorithm | Steps | Hops | Bytes | Order of reduction |
//! |---|---|---|---|---|---|
//! | AllReduce | ring | 2n - 1 | 2n - 2 | 2S(n - 1)/n | chunk c: c + 1, …, n - 1, 0, …, c, one by one |
//! | | tree | 4 | 2 log + 2 | 2S | by tree: 0, 1, …, and n - 1, n - 2, … (n even) or 1, 2, …, 0 (n odd), sums of sums |
//! | | direct | 2 (n ≤ 9) | 1 | S(n - 1) | 0, 1, …, n - 1, one by one |
//! | | direct2 | 2n - 1 (n ≤ 9) | 2 | 2S(n - 1)/n | 0, 1, …, n - 1, one by one |
//! | Broadcast | ring | 1 | n - 1 | S | |
//! | | tree | 2 | log + 1 | S | |
//! | | direct | 1 (n ≤ 9) | 1 | S(n - 1) | |
//! | Reduce | ring | 1 | n - 1 | S | root + 1, …, root, one by one |
//! | | tree | 2 | log + 1 | S | from the root on: 0, 1, …, and 0, 2, 3, …, 1 (n even) or 0, n - 1, …, 1, sums of sums |
//! | | direct | 1 (n ≤ 9) | 1 | S | 0, 1, …, n - 1, one by one |
//! | AllGather | ring | n | n - 1 | S(n - 1) | |
//! | | direct | n (n ≤ 9) | 1 | S(n - 1) | |
//! | | pat | n | log (n ≤ 16), else about n/4 | S(n - 1) | |
//! | ReduceScatter | ring | n | n - 1 | S(n - 1) | chunk c: c + 1, …, n - 1, 0, …, c, one by one |
//! | | direct | n (n ≤ 9) | 1 | S(n - 1) | 0, 1, …, n - 1, one by one |
//! | | pat | n | log (n ≤ 16), else about n/4 | S(n - 1) | as the ring's, sums of sums |
//! | AlltoAll | direct | 2n - 1 | 1 | S(n - 1) | |
//! | Gather, Scatter | direct | n | 1 | S, at Scatter's root S(n - 1) | |
//!
//! *Direct with more than 9 ranks* takes another step for every 8 ranks more, on the side that sends and on the one
//! that receives, and two hops more where it reduces (`direct` says why).
//!
//! *On several hosts* direct, direct2 and PAT are hierarchical ([`hierarchical`]), but for AlltoAll, Gather and
//! Scatter, whose chunks go straight where they belong. With H hosts, what is sent from host to host, of all hosts
//! together, and the hops there that wait for each other:
//!
//! | Function | Algorithm | Hops between hosts | Bytes between hosts |
//! |---|---|---|---|
//! | AllReduce | ring | 2H (n - 1)/n | 2SH (n - 1)/n |
//! | | tree | 2 log H | 2S(H - 1): the least there is |
//! | | direct (H ≤ 8) | 1 | SH(H - 1) |
//! | | direct2 | 2 (H ≤ 8), else 2 log H | 2S(H - 1): the least there is |
//! | Broadcast, Reduce | ring | H - 1 | S(H - 1), or SH |
//! | | tree | log H | S(H - 1) |
//! | | direct (H ≤ 8) | 1 | S(H - 1) |
//! | AllGather, ReduceScatter | ring | H (n - 1)/n | SH(n - 1) |
//! | | direct (H ≤ 8) | 1 | Sn(H - 1): the least there is |
//! | | pat | log H | Sn(H - 1): the least there is |
//! | AlltoAll, Gather, Scatter | direct | 1 | what is for ranks of other hosts |
//!
//! *Which results are the same.* The order of reduction is fixed by the schedule: by function, algorithm, number of
//! ranks and root, and for the ring, PAT and the tree by the chunk, that is, by where in the buffer an element is. It
//! does not depend on time, protocol, transport, channels or what is in place. So a call gives the same bits in every
//! run in which the same algorithm is chosen. AllReduce gives the same bits on all ranks, with every algorithm. direct
//! and direct2 on one host give the same bits as each other and as direct Reduce and ReduceScatter, wherever an element
//! is.
//!
//! The table is about a graph in which every order is 0, 1, …, n - 1, as that of one host is ([`Graph::of_host`]). In
//! another graph, read *the rank at this place of the order* for each number in the order of a ring's or PAT's chunks
//! and a tree's seats ([`Channel::ring`], [`Channel::tree`]). Chunks of ReduceScatter have the numbers of ranks, those
//! of a ring's AllReduce the numbers of places. On one host direct algorithms always add in the order of ranks; on
//! several they, PAT and trees add up in each host first. Where channels have different orders, as on several hosts,
//! the result also depends on which channel an element is on.

use super::call::Func;
use super::hierarchical::{self, HostPattern, STAR_HOSTS};
use super::schedule::{LinkClass, Schedule};
use super::{direct, pat, ring, tree};
use crate::error::Error;
use crate::topology::{Channel, Graph, Order};

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algo {
    /// From each rank to the next ([`ring`]).
    Ring,
    /// Two trees ([`tree`]).
    Tree,
    /// From each rank to every other ([`direct`]); of several hosts, from each host to every other ([`hierarchical`]).
    Direct,
    /// The same in two steps: the reduction of a part by each rank, then its result to every other.
    TwoStep,
    /// Parallel aggregated trees ([`pat`]).
    Pat,
}

impl Algo {
    /// All algorithms.
    pub const ALL: [Algo; 5] = [Algo::Ring, Algo::Tree, Algo::Direct, Algo::TwoStep, Algo::Pat];

    /// The name in log lines and settings, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Algo::Ring => "ring",
            Algo::Tree => "tree",
            Algo::Direct => "direct",
            Algo::TwoStep => "direct2",
            Algo::Pat => "pat",
        }
    }

    /// The algorithm of a name; upper and lower case are alike.
    pub fn from_name(name: &str) -> Option<Algo> {
        Algo::ALL.into_iter().find(|algo| algo.name().eq_ignore_ascii_case(name))
    }
}

/// What a schedule is made for, besides the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScheduleKind {
    /// The function.
    pub func: Func,
    /// The algorithm.
    pub algo: Algo,
    /// The root; 0 where the function has none.
    pub root: u32,
}

/// Whether there is such an algorithm for a function and graph. One rank needs none, and messages between two ranks
/// have none ([`super::point_to_point`]). Where not every rank is linked with every other one ([`Graph::has_peers`]),
/// AlltoAll, Gather and Scatter are sends and receives, and one host has no direct algorithms. On several hosts these
/// are hierarchical.
pub fn available(func: Func, algo: Algo, graph: &Graph) -> bool {
    let exists = match func {
        Func::AllReduce => algo != Algo::Pat,
        Func::Broadcast | Func::Reduce => matches!(algo, Algo::Ring | Algo::Tree | Algo::Direct),
        Func::AllGather | Func::ReduceScatter => matches!(algo, Algo::Ring | Algo::Direct | Algo::Pat),
        Func::AlltoAll | Func::Gather | Func::Scatter => algo == Algo::Direct,
        Func::Send | Func::Recv => false,
    };
    let possible = match algo {
        Algo::Ring | Algo::Tree | Algo::Pat => true,
        _ if graph.nhosts() == 1 || is_one_to_one(func) => graph.has_peers(),
        Algo::Direct => hierarchical::fits(graph) && graph.nhosts() <= STAR_HOSTS,
        Algo::TwoStep => hierarchical::fits(graph),
    };
    exists && possible && graph.nranks() >= 2
}

/// Whether each chunk is for one rank: then it goes straight there, whatever hosts there are.
fn is_one_to_one(func: Func) -> bool {
    matches!(func, Func::AlltoAll | Func::Gather | Func::Scatter)
}

/// Whether an algorithm is a hierarchical one ([`hierarchical`]).
pub fn is_hierarchical(func: Func, algo: Algo, graph: &Graph) -> bool {
    !matches!(algo, Algo::Ring | Algo::Tree) && !is_one_to_one(func) && hierarchical::fits(graph)
}

/// The class of the links that the schedules of an algorithm use.
pub fn class(func: Func, algo: Algo, graph: &Graph) -> LinkClass {
    match algo {
        _ if is_hierarchical(func, algo, graph) => LinkClass::Hierarchical,
        Algo::Ring => LinkClass::Ring,
        Algo::Tree => LinkClass::Tree,
        Algo::Direct | Algo::TwoStep => LinkClass::Direct,
        Algo::Pat => LinkClass::Pat,
    }
}

/// Makes a rank's schedule of a channel. All channels have the same number of chunks.
///
/// # Errors
/// [`Error::Internal`] where the algorithm is not [`available`], or there is no such rank or root.
pub fn compile(kind: ScheduleKind, graph: &Graph, channel: u32, rank: u32) -> Result<Schedule, Error> {
    let ScheduleKind { func, algo, root } = kind;
    let nranks = graph.nranks();
    if !available(func, algo, graph) || rank >= nranks || root >= nranks {
        return Err(Error::Internal(format!(
            "no {} {} from root {root} for rank {rank} of {nranks}",
            algo.name(),
            func.name()
        )));
    }
    if is_hierarchical(func, algo, graph) {
        return compile_hierarchical(kind, graph, channel, rank);
    }
    let seats = graph.tree_rows(channel);
    let channel = graph.channel(channel);
    let ring = &channel.ring;
    match (algo, func) {
        (Algo::Ring, Func::AllReduce) => ring::all_reduce(ring, rank),
        (Algo::Ring, Func::AllGather) => ring::all_gather(ring, rank),
        (Algo::Ring, Func::ReduceScatter) => ring::reduce_scatter(ring, rank),
        (Algo::Ring, Func::Broadcast) => ring::broadcast(ring, root, rank),
        (Algo::Ring, _) => ring::reduce(ring, root, rank),
        (Algo::Tree, Func::AllReduce) => tree::all_reduce(seats, rank),
        (Algo::Tree, Func::Broadcast) => tree::broadcast(seats, root, rank),
        (Algo::Tree, _) => tree::reduce(seats, root, rank),
        (Algo::TwoStep, _) => direct::all_reduce_in_two(peers(channel)?, rank),
        (Algo::Pat, Func::AllGather) => pat::all_gather(ring, rank),
        (Algo::Pat, _) => pat::reduce_scatter(ring, rank),
        (Algo::Direct, _) => compile_direct(func, root, peers(channel)?, rank),
    }
}

/// The order of a channel's peers.
///
/// # Errors
/// [`Error::Internal`] where it has none.
pub(super) fn peers(channel: &Channel) -> Result<&Order, Error> {
    channel.peers.as_ref().ok_or_else(|| Error::Internal("not every rank is linked with every other one".to_string()))
}

fn compile_hierarchical(kind: ScheduleKind, graph: &Graph, channel: u32, rank: u32) -> Result<Schedule, Error> {
    let ScheduleKind { func, algo, root } = kind;
    let rows = graph.ring_rows(channel);
    let pattern = if algo == Algo::Pat { HostPattern::Binomial } else { HostPattern::Star };
    match func {
        Func::AllReduce if algo == Algo::Direct => hierarchical::all_reduce(rows, rank),
        Func::AllReduce => hierarchical::all_reduce_in_two(rows, rank),
        Func::Broadcast => hierarchical::broadcast(rows, root, rank),
        Func::Reduce => hierarchical::reduce(rows, root, rank),
        Func::AllGather => hierarchical::all_gather(rows, pattern, rank),
        _ => hierarchical::reduce_scatter(rows, pattern, rank),
    }
}

fn compile_direct(func: Func, root: u32, peers: &Order, rank: u32) -> Result<Schedule, Error> {
    match func {
        Func::AllReduce => direct::all_reduce(peers, rank),
        Func::Broadcast => direct::broadcast(peers, root, rank),
        Func::Reduce => direct::reduce(peers, root, rank),
        Func::AllGather => direct::all_gather(peers, rank),
        Func::ReduceScatter => direct::reduce_scatter(peers, rank),
        Func::Gather => direct::gather(peers, root, rank),
        Func::Scatter => direct::scatter(peers, root, rank),
        Func::AlltoAll => direct::all_to_all(peers, rank),
        Func::Send | Func::Recv => Err(Error::Internal(format!("{} is not a collective", func.name()))),
    }
}

#[cfg(test)]
mod tests;
