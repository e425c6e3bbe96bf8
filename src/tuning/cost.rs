//! The cost model: what a call will take.
//!
//! On software devices a rank's time is what does not depend on size (the launch, and a hop for each rank that data
//! pass on their way) plus the bytes that it sends at the speed at which it can. On GPUs it is counted in turns: see
//! [`super::turns`].

use std::sync::Arc;

use super::candidates::Candidates;
use super::machine::{MachineConstants, ProcessorConstants};
use super::network::{self, NetworkLoad};
use super::slots::SlotSizes;
use super::tuner::{self, Choice};
use super::turns::{self, CallTurns};
use super::zero_copy::{self, ZeroCopyTurns};
use super::{ByFunction, OFFER_BYTES, by_function};
use crate::plan::algorithm::{Algo, available, class};
use crate::plan::call::Func;
use crate::plan::layout::Proto;
use crate::plan::timing::TimedCall;
use crate::topology::Graph;

/// Tells what calls will take over the ranks of a graph. Every rank computes with the same numbers.
#[derive(Clone, Debug)]
pub struct CostModel {
    machine: MachineConstants,
    graph: Arc<Graph>,
    slots: SlotSizes,
    /// By function and algorithm; of software devices only.
    network: ByFunction<[NetworkLoad; Algo::ALL.len()]>,
    /// By function and algorithm; of GPUs only.
    turns: ByFunction<[Option<CallTurns>; Algo::ALL.len()]>,
    zero_copy: ByFunction<ZeroCopyTurns>,
}

/// What each algorithm and protocol that is open to a call is expected to take, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable([[Option<f64>; Proto::ALL.len()]; Algo::ALL.len()]);

/// More channels must make a call shorter by this factor.
const WORTH: f64 = 0.98;

/// Hops on the longest way that data take, and how many times the call's bytes the busiest rank sends.
/// The bytes of a call are those of its larger buffer.
fn load(func: Func, algorithm: Algo, n: u32) -> (f64, f64) {
    let n = f64::from(n);
    let log = n.log2().ceil();
    let part = (n - 1.0) / n;
    match (func, algorithm) {
        (Func::AllReduce, Algo::Ring) => (2.0 * (n - 1.0), 2.0 * part),
        (Func::AllReduce, Algo::Tree) => (2.0 * log, 2.0),
        (Func::AllReduce, Algo::TwoStep) => (2.0, 2.0 * part),
        (Func::AllReduce, _) => (1.0, n - 1.0),
        (Func::Broadcast | Func::Reduce, Algo::Ring) => (n - 1.0, 1.0),
        (Func::Broadcast | Func::Reduce, Algo::Tree) => (log, 2.0),
        (Func::Broadcast | Func::Reduce, _) => (1.0, n - 1.0),
        (_, Algo::Ring) => (n - 1.0, part),
        // By rounds within a block of offsets, and one block after the other.
        (_, Algo::Pat) => (if n <= 16.0 { log } else { n / 4.0 }, part),
        _ => (1.0, part),
    }
}

/// The hops of these in hosts, where others are between hosts.
fn hops_in_hosts(hops: f64, algorithm: Algo, graph: &Graph, network: &NetworkLoad) -> f64 {
    let width = f64::from(graph.ring_rows(0).most());
    match algorithm {
        _ if !network.is_any() => hops,
        Algo::Ring => hops - network.hops,
        Algo::Tree => hops / f64::from(graph.nranks()).log2().ceil().max(1.0) * width.log2().ceil(),
        _ => hops.min(2.0) * f64::from(u8::from(width > 1.0)),
    }
}

impl ProcessorConstants {
    fn estimate(&self, (hops, volume): (f64, f64), protocol: Proto, bytes: u64, channels: u32) -> f64 {
        let speed = self.speed[protocol as usize] * f64::from(channels.max(1));
        self.launch + self.oversubscription * (hops * self.hop[protocol as usize] + volume * bytes as f64 / speed)
    }

    /// What goes between hosts takes besides.
    fn over_network(&self, load: &NetworkLoad, bytes: u64, slot_bytes: u32) -> f64 {
        let moved = load.volume() * bytes as f64;
        // A slot for each hop at least.
        let slots = (moved / f64::from(slot_bytes.max(1))).max(load.hops);
        let waits = load.pieces(bytes as f64, f64::from(slot_bytes)) * load.hops;
        waits * self.network.latency + slots * self.network.message + moved / self.network.bandwidth
    }
}

impl CostModel {
    /// A model of a machine whose links have slots of some sizes.
    pub fn new(machine: MachineConstants, graph: Arc<Graph>, slots: SlotSizes) -> CostModel {
        let gpus = matches!(machine, MachineConstants::Gpus(..));
        let turns = by_function(|func| gpus.then(|| Algo::ALL.map(|algorithm| turns::of(func, algorithm, &graph))));
        let zero_copy = by_function(|func| if gpus { zero_copy::of(func, &graph) } else { None });
        let load = |func, algorithm| match available(func, algorithm, &graph) {
            true => network::of(func, algorithm, &graph),
            false => NetworkLoad::default(),
        };
        let network = by_function(|func| (!gpus).then(|| Algo::ALL.map(|algorithm| load(func, algorithm))));
        CostModel { machine, graph, slots, network, turns, zero_copy }
    }

    /// What schedules are compiled from.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What a call of `bytes` bytes takes, in microseconds.
    pub fn estimate(&self, func: Func, algorithm: Algo, protocol: Proto, bytes: u64, channels: u32) -> f64 {
        match &self.machine {
            MachineConstants::Processors(constants) => {
                let (hops, volume) = load(func, algorithm, self.graph.nranks());
                let network =
                    self.network[func as usize].map_or_else(NetworkLoad::default, |of| of[algorithm as usize]);
                let hops = hops_in_hosts(hops, algorithm, &self.graph, &network);
                let there = constants.over_network(&network, bytes, self.slot_bytes(func, algorithm, protocol));
                constants.estimate((hops, volume), protocol, bytes, channels) + there
            }
            MachineConstants::Gpus(machine, kernel) => {
                let turns = self.turns[func as usize].as_ref().and_then(|turns| turns[algorithm as usize].as_ref());
                let slot_bytes = self.slot_bytes(func, algorithm, protocol);
                let call = TimedCall { func, algorithm, protocol, bytes, channels, slot_bytes };
                // What there is no schedule of is not chosen.
                turns.map_or(f64::INFINITY, |turns| turns.estimate(machine, kernel, &call))
            }
        }
    }

    /// What a call takes with the peers' buffers in place of slots, in microseconds; None where that is not known, as
    /// of software devices, or where ranks cannot agree on it.
    pub fn estimate_zero_copy(&self, func: Func, bytes: u64, channels: u32) -> Option<f64> {
        let MachineConstants::Gpus(machine, kernel) = &self.machine else { return None };
        let turns = self.zero_copy[func as usize].as_ref()?;
        Some(turns.estimate(machine, kernel, bytes, channels))
    }

    /// Whether ranks shall ask each other if they can do without slots in a call that is carried out so otherwise.
    pub(super) fn worth_asking(&self, func: Func, bytes: u64, choice: &Choice) -> bool {
        let Choice { algorithm, protocol, channels } = *choice;
        protocol == Proto::Simple
            && match self.machine {
                MachineConstants::Processors(_) => bytes >= OFFER_BYTES,
                MachineConstants::Gpus(..) => self
                    .estimate_zero_copy(func, bytes, channels)
                    .is_some_and(|time| time < self.estimate(func, algorithm, protocol, bytes, channels)),
            }
    }

    /// Bytes of a slot of the links that a function's calls use by an algorithm and protocol.
    pub(super) fn slot_bytes(&self, func: Func, algorithm: Algo, protocol: Proto) -> u32 {
        self.slots.of(class(func, algorithm, &self.graph), protocol)
    }

    /// The channels that a call is worth if it is carried out so, of at most `most`. On a GPU, so many as make it
    /// quickest, but no more for a gain that a fraction of the GPU is not worth.
    pub fn channels(&self, func: Func, algorithm: Algo, protocol: Proto, bytes: u64, most: u32) -> u32 {
        if let MachineConstants::Processors(_) = self.machine {
            return tuner::channels(bytes, most);
        }
        let mut best = (1, self.estimate(func, algorithm, protocol, bytes, 1));
        for channels in std::iter::successors(Some(2), |channels| Some(channels * 2)).take_while(|n| *n / 2 < most) {
            let channels = channels.min(most);
            let time = self.estimate(func, algorithm, protocol, bytes, channels);
            if time < best.1 * WORTH {
                best = (channels, time);
            }
        }
        best.0
    }

    /// Whether there is any way to carry out a function's calls.
    pub fn has_any(&self, func: Func, candidates: Candidates) -> bool {
        Algo::ALL.into_iter().any(|algorithm| {
            let allowed = |protocol| candidates.allows(algorithm, protocol);
            available(func, algorithm, &self.graph) && Proto::ALL.into_iter().any(allowed)
        })
    }

    /// Whether calls of a function can be carried out so.
    pub fn has(&self, func: Func, algorithm: Algo, protocol: Proto, candidates: Candidates) -> bool {
        available(func, algorithm, &self.graph) && candidates.allows(algorithm, protocol)
    }

    /// What each way takes that is open to a call, with so many channels as it is worth, of at most `most`.
    pub fn costs(&self, func: Func, bytes: u64, most: u32, candidates: Candidates) -> CostTable {
        CostTable(Algo::ALL.map(|algorithm| {
            Proto::ALL.map(|protocol| {
                let open = self.has(func, algorithm, protocol, candidates);
                open.then(|| {
                    let channels = self.channels(func, algorithm, protocol, bytes, most);
                    self.estimate(func, algorithm, protocol, bytes, channels)
                })
            })
        }))
    }
}

impl CostTable {
    /// What an algorithm with a protocol takes, in microseconds; None where it is not open to the call.
    pub fn get(&self, algorithm: Algo, protocol: Proto) -> Option<f64> {
        self.0[algorithm as usize][protocol as usize]
    }

    /// All that is open to the call, by algorithm, then by protocol.
    pub fn entries(&self) -> impl Iterator<Item = (Algo, Proto, f64)> {
        let pairs = Algo::ALL.into_iter().flat_map(|algorithm| Proto::ALL.map(|protocol| (algorithm, protocol)));
        pairs.filter_map(|(algorithm, protocol)| Some((algorithm, protocol, self.get(algorithm, protocol)?)))
    }

    /// The quickest, and of those that are as quick the first; None where nothing is open.
    pub fn quickest(&self) -> Option<(Algo, Proto)> {
        let quickest = self.entries().min_by(|(.., a), (.., b)| a.total_cmp(b));
        quickest.map(|(algorithm, protocol, _)| (algorithm, protocol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> CostModel {
        CostModel::new(MachineConstants::software(2), Arc::new(Graph::of_host(4)), SlotSizes::default())
    }

    #[test]
    fn the_places_in_a_table_are_the_numbers() {
        assert!((0..).zip(Algo::ALL).all(|(place, algorithm)| algorithm as usize == place));
        assert!((0..).zip(Proto::ALL).all(|(place, protocol)| protocol as usize == place));
    }

    #[test]
    fn a_table_has_what_is_open() {
        let candidates = Candidates { algorithms: 1 << Algo::Ring as u8 | 1 << Algo::Pat as u8, ..Candidates::ALL };
        let costs = model().costs(Func::AllReduce, 1024, 1, candidates);
        assert!(costs.entries().all(|(algorithm, ..)| algorithm == Algo::Ring));
        assert_eq!(costs.entries().count(), Proto::ALL.len());
        assert_eq!(costs.get(Algo::Pat, Proto::Simple), None);
        assert_eq!(costs.quickest(), Some((Algo::Ring, Proto::Simple)));
        let none = Candidates { algorithms: 1 << Algo::Pat as u8, ..Candidates::ALL };
        assert_eq!(model().costs(Func::AllReduce, 1024, 1, none).quickest(), None);
        assert!(model().has_any(Func::AllReduce, candidates) && !model().has_any(Func::AllReduce, none));
    }
}
