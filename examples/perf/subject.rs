//! What is measured: the collectives, and an exchange with the neighbours; their names, sizes and bus bandwidth
//! as nccl-tests defines them.

use serde::{Deserialize, Serialize};

use crate::common::contract::Func;

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AlltoAll,
    Gather,
    Scatter,
    /// Each rank sends to the next and receives from the one before.
    SendRecv,
}

impl Subject {
    /// All of them, in the order of `perf all`.
    pub const ALL: [Subject; 9] = [
        Subject::AllReduce,
        Subject::AllGather,
        Subject::ReduceScatter,
        Subject::Broadcast,
        Subject::Reduce,
        Subject::AlltoAll,
        Subject::Gather,
        Subject::Scatter,
        Subject::SendRecv,
    ];

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Subject::AllReduce => "all_reduce",
            Subject::AllGather => "all_gather",
            Subject::ReduceScatter => "reduce_scatter",
            Subject::Broadcast => "broadcast",
            Subject::Reduce => "reduce",
            Subject::AlltoAll => "alltoall",
            Subject::Gather => "gather",
            Subject::Scatter => "scatter",
            Subject::SendRecv => "sendrecv",
        }
    }

    /// The subject of a word: with or without underscores, or as nccl-tests names its programs.
    pub fn of(word: &str) -> Option<Subject> {
        let bare = |word: &str| word.trim_end_matches("_perf").replace('_', "");
        Subject::ALL.into_iter().find(|subject| bare(subject.word()) == bare(word))
    }

    /// The collective; `None` for the exchange.
    pub fn func(self) -> Option<Func> {
        match self {
            Subject::AllReduce => Some(Func::AllReduce),
            Subject::AllGather => Some(Func::AllGather),
            Subject::ReduceScatter => Some(Func::ReduceScatter),
            Subject::Broadcast => Some(Func::Broadcast),
            Subject::Reduce => Some(Func::Reduce),
            Subject::AlltoAll => Some(Func::AlltoAll),
            Subject::Gather => Some(Func::Gather),
            Subject::Scatter => Some(Func::Scatter),
            Subject::SendRecv => None,
        }
    }

    /// Whether it has an operator.
    pub fn reduces(self) -> bool {
        self.func().is_some_and(Func::reduces)
    }

    /// Whether it has a root.
    pub fn rooted(self) -> bool {
        self.func().is_some_and(Func::rooted)
    }

    /// Whether one buffer may be input and output.
    pub fn has_in_place(self) -> bool {
        self.func().is_some_and(Func::has_in_place)
    }

    /// Blocks of the call's count in the larger buffer: the column `size` is that buffer's.
    pub fn blocks(self, nranks: usize) -> usize {
        match self {
            Subject::AllGather | Subject::ReduceScatter | Subject::AlltoAll | Subject::Gather | Subject::Scatter => {
                nranks
            }
            Subject::AllReduce | Subject::Broadcast | Subject::Reduce | Subject::SendRecv => 1,
        }
    }

    /// The call's count for a size in bytes; at least one element unless the size is 0.
    pub fn count(self, bytes: usize, element: usize, nranks: usize) -> usize {
        (bytes / element / self.blocks(nranks)).max(usize::from(bytes > 0))
    }

    /// Bus bandwidth over algorithm bandwidth: what the hardware's links carry for each byte of `size`. A ring of n
    /// ranks sends every byte of an AllReduce 2(n−1)/n times.
    pub fn bus_factor(self, nranks: usize) -> f64 {
        let others = (nranks as f64 - 1.0) / nranks as f64;
        match self {
            Subject::AllReduce => 2.0 * others,
            Subject::AllGather | Subject::ReduceScatter | Subject::AlltoAll | Subject::Gather | Subject::Scatter => {
                others
            }
            Subject::Broadcast | Subject::Reduce | Subject::SendRecv => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood() {
        for (word, subject) in [
            ("all_reduce", Subject::AllReduce),
            ("allreduce", Subject::AllReduce),
            ("all_reduce_perf", Subject::AllReduce),
            ("alltoall", Subject::AlltoAll),
            ("all_to_all", Subject::AlltoAll),
            ("sendrecv_perf", Subject::SendRecv),
            ("reducescatter", Subject::ReduceScatter),
            ("reduce", Subject::Reduce),
        ] {
            assert_eq!(Subject::of(word), Some(subject), "{word}");
        }
        assert_eq!(Subject::of("all"), None);
        assert!(Subject::ALL.iter().all(|subject| Subject::of(subject.word()) == Some(*subject)));
    }

    #[test]
    fn factors_and_counts_are_those_of_nccl_tests() {
        assert_eq!(
            Subject::ALL.map(|subject| subject.bus_factor(4)),
            [1.5, 0.75, 0.75, 1.0, 1.0, 0.75, 0.75, 0.75, 1.0]
        );
        assert_eq!(Subject::ALL.map(|subject| subject.bus_factor(1)), [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(Subject::AllGather.count(1024, 4, 4), 64);
        assert_eq!(Subject::Broadcast.count(1024, 4, 4), 256);
        assert_eq!([0, 1, 8].map(|bytes| Subject::Scatter.count(bytes, 4, 4)), [0, 1, 1]);
    }
}
