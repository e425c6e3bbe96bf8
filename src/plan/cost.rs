//! What a call will take: a model with a few measured constants, and the choice that follows from it. Pure.
//!
//! A rank's time is what does not depend on size (the launch, and a hop for each rank that data pass on
//! their way) plus the bytes that it sends at the speed at which it can. Every rank computes the same table
//! from the same numbers, so that all choose alike.

use super::algorithm::{Algo, available};
use super::call::Func;
use super::layout::Proto;
use crate::topology::Graph;

/// What the model knows of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Microseconds of a launch.
    pub launch: f64,
    /// Microseconds until data that one rank posts are seen by another, by protocol: `hop[Proto as usize]`.
    pub hop: [f64; Proto::ALL.len()],
    /// Bytes that one channel of a rank sends in a microsecond, by protocol.
    pub speed: [f64; Proto::ALL.len()],
    /// Ranks for each processor that runs their kernels, at least 1: they take turns then.
    pub oversubscription: f64,
}

/// Algorithms and protocols that one call could be carried out by, as a user's filters leave them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidates {
    /// Allowed algorithms: bit `1 << algo`.
    pub algos: u8,
    /// Allowed protocols: bit `1 << proto`.
    pub protos: u8,
}

impl Candidates {
    /// Everything.
    pub const ALL: Candidates = Candidates { algos: !0, protos: !0 };

    /// Whether an algorithm with a protocol is allowed.
    pub fn allows(self, algo: Algo, proto: Proto) -> bool {
        self.algos & 1 << algo as u8 != 0 && self.protos & 1 << proto as u8 != 0
    }
}

/// One way of carrying out a call, and what it is expected to take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The algorithm.
    pub algo: Algo,
    /// The protocol.
    pub proto: Proto,
    /// Microseconds.
    pub us: f64,
}

/// Hops on the longest way that data take, and how many times the call's bytes the busiest rank sends.
/// The bytes of a call are those of its larger buffer.
fn load(func: Func, algo: Algo, n: u32) -> (f64, f64) {
    let n = f64::from(n);
    let log = n.log2().ceil();
    let part = (n - 1.0) / n;
    match (func, algo) {
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

impl Machine {
    /// What a call of `bytes` bytes over `nranks` ranks takes, in microseconds.
    pub fn estimate(&self, func: Func, algo: Algo, proto: Proto, nranks: u32, bytes: u64, channels: u32) -> f64 {
        let (hops, volume) = load(func, algo, nranks);
        let speed = self.speed[proto as usize] * f64::from(channels.max(1));
        self.launch + self.oversubscription * (hops * self.hop[proto as usize] + volume * bytes as f64 / speed)
    }

    /// All candidates that are open to a call, the quickest first.
    pub fn rank(&self, func: Func, graph: &Graph, bytes: u64, channels: u32, candidates: Candidates) -> Vec<Choice> {
        let mut choices = Vec::new();
        for algo in Algo::ALL {
            for proto in Proto::ALL {
                if available(func, algo, graph) && candidates.allows(algo, proto) {
                    choices.push(Choice {
                        algo,
                        proto,
                        us: self.estimate(func, algo, proto, graph.nranks(), bytes, channels),
                    });
                }
            }
        }
        choices.sort_by(|a, b| a.us.total_cmp(&b.us));
        choices
    }
}

/// Sizes are classed by their number of bits.
const CLASSES: usize = 64;

/// The choice for every size of one function.
#[derive(Clone, Debug)]
pub struct Choices([Choice; CLASSES]);

impl Choices {
    /// Fills the table; none where no way is open. `channels` tells how many channels a call of some bytes has.
    pub fn fill(
        machine: &Machine,
        func: Func,
        graph: &Graph,
        candidates: Candidates,
        channels: impl Fn(u64) -> u32,
    ) -> Option<Choices> {
        let best = |class: usize| {
            // The middle of the class.
            let bytes = (1u64 << class.min(62)) / 4 * 3;
            machine.rank(func, graph, bytes, channels(bytes), candidates).first().copied()
        };
        let mut table = [best(0)?; CLASSES];
        for (class, choice) in table.iter_mut().enumerate().skip(1) {
            *choice = best(class)?;
        }
        Some(Choices(table))
    }

    /// The choice for a call of `bytes` bytes.
    pub fn of(&self, bytes: u64) -> Choice {
        self.0[(u64::BITS - bytes.leading_zeros()).min(CLASSES as u32 - 1) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Machine =
        Machine { launch: 0.5, hop: [1.0; Proto::ALL.len()], speed: [5000.0; Proto::ALL.len()], oversubscription: 2.0 };

    #[test]
    fn few_bytes_take_few_hops_and_many_bytes_the_ring() {
        let table =
            Choices::fill(&HOST, Func::AllReduce, &Graph::of_host(4), Candidates::ALL, |_| 1).expect("candidates");
        assert_eq!(table.of(8).algo, Algo::Direct);
        assert_ne!(table.of(64 << 20).algo, Algo::Direct);
        assert!(table.of(8).us < table.of(1 << 20).us);
    }

    #[test]
    fn filters_are_obeyed() {
        let candidates = Candidates { algos: 1 << Algo::Ring as u8, protos: 1 << Proto::Ll as u8 };
        let table = Choices::fill(&HOST, Func::AllReduce, &Graph::of_host(4), candidates, |_| 1).expect("candidates");
        assert!((0..40).all(|bits| (table.of(1 << bits).algo, table.of(1 << bits).proto) == (Algo::Ring, Proto::Ll)));
        assert!(
            Choices::fill(&HOST, Func::AllReduce, &Graph::of_host(4), Candidates { algos: 0, ..candidates }, |_| 1)
                .is_none()
        );
    }
}
