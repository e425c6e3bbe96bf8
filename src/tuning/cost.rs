//! The cost model: what a call will take.
//!
//! A rank's time is what does not depend on size (the launch, and a hop for each rank that data pass on
//! their way) plus the bytes that it sends at the speed at which it can.

use std::sync::Arc;

use super::candidates::Candidates;
use super::machine::MachineConstants;
use crate::plan::algorithm::{Algo, available};
use crate::plan::call::Func;
use crate::plan::layout::Proto;
use crate::topology::Graph;

/// Tells what calls will take over the ranks of a graph. Every rank computes with the same numbers.
#[derive(Clone, Debug)]
pub struct CostModel {
    machine: MachineConstants,
    graph: Arc<Graph>,
}

/// What each algorithm and protocol that is open to a call is expected to take, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostTable([[Option<f64>; Proto::ALL.len()]; Algo::ALL.len()]);

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

impl CostModel {
    /// A model of a machine.
    pub fn new(machine: MachineConstants, graph: Arc<Graph>) -> CostModel {
        CostModel { machine, graph }
    }

    /// What schedules are compiled from.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What a call of `bytes` bytes takes, in microseconds.
    pub fn estimate(&self, func: Func, algorithm: Algo, protocol: Proto, bytes: u64, channels: u32) -> f64 {
        let (hops, volume) = load(func, algorithm, self.graph.nranks());
        let MachineConstants { launch, link, oversubscription } = &self.machine;
        let speed = link.speed[protocol as usize] * f64::from(channels.max(1));
        launch + oversubscription * (hops * link.hop[protocol as usize] + volume * bytes as f64 / speed)
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

    /// What each way takes that is open to a call.
    pub fn costs(&self, func: Func, bytes: u64, channels: u32, candidates: Candidates) -> CostTable {
        CostTable(Algo::ALL.map(|algorithm| {
            Proto::ALL.map(|protocol| {
                let open = self.has(func, algorithm, protocol, candidates);
                open.then(|| self.estimate(func, algorithm, protocol, bytes, channels))
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
        CostModel::new(MachineConstants::software(2), Arc::new(Graph::of_host(4)))
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
