//! Schedules over links between any two ranks, written for these tests, and what they must give.

use nccl::plan::call::DataType;
use nccl::plan::layout::Proto;
use nccl::plan::layout::step_flag::{IN, NO_DATA, OUT, POST};
use nccl::plan::schedule::{Draft, LinkClass, Schedule};
use nccl::plan::work::Geometry;

use crate::oracle;

fn others(n: u32, rank: u32) -> Vec<u32> {
    (0..n).filter(|&r| r != rank).collect()
}

fn schedule(rank: u32, nchunks: u32, steps: &[Draft<'_>]) -> Schedule {
    let mut s = Schedule::new(rank, LinkClass::Mesh, nchunks, 2);
    steps.iter().for_each(|&step| s.push(step).expect("a sound step"));
    s
}

/// AllReduce in one step: everybody sends to everybody, reduces in the order of ranks.
pub fn all_reduce(n: u32, rank: u32) -> Schedule {
    let others = others(n, rank);
    let give = Draft { flags: IN, send: &others, ..Draft::ONCE };
    schedule(rank, 1, &[give, Draft { flags: IN | OUT | POST, recv: &others, place: rank as u8, ..Draft::ONCE }])
}

/// AllGather: the input has one chunk, the output n.
pub fn all_gather(n: u32, rank: u32) -> Schedule {
    let others = others(n, rank);
    let mut steps = vec![Draft { flags: IN | OUT, send: &others, out_chunk: rank, ..Draft::ONCE }];
    steps.extend(others.chunks(1).map(|from| Draft { flags: OUT, recv: from, out_chunk: from[0], ..Draft::ONCE }));
    schedule(rank, n, &steps)
}

/// ReduceScatter: the input has n chunks, the output one.
pub fn reduce_scatter(n: u32, rank: u32) -> Schedule {
    let others = others(n, rank);
    let mut steps: Vec<_> = others.chunks(1).map(|to| Draft { flags: IN, send: to, in_chunk: to[0], ..Draft::ONCE }).collect();
    let last = Draft { flags: IN | OUT | POST, recv: &others, place: rank as u8, in_chunk: rank, ..Draft::ONCE };
    steps.push(last);
    schedule(rank, n, &steps)
}

/// AlltoAll: what is received stands where the sender's number says.
pub fn all_to_all(n: u32, rank: u32) -> Schedule {
    let to: Vec<u32> = (1..n).map(|d| (rank + d) % n).collect();
    let from: Vec<u32> = (1..n).map(|d| (rank + n - d) % n).collect();
    let mut steps = vec![Draft { flags: IN | OUT, ..Draft::ONCE }.chunk(rank)];
    for (to, from) in to.chunks(1).zip(from.chunks(1)) {
        steps.push(Draft { flags: IN, send: to, in_chunk: to[0], ..Draft::ONCE });
        steps.push(Draft { flags: OUT, recv: from, out_chunk: from[0], ..Draft::ONCE });
    }
    schedule(rank, n, &steps)
}

/// Signals only: everybody waits for everybody.
pub fn barrier(n: u32, rank: u32) -> Schedule {
    let others = others(n, rank);
    let signal = Draft { flags: NO_DATA, ..Draft::ONCE };
    schedule(rank, 1, &[Draft { send: &others, ..signal }, Draft { recv: &others, ..signal }])
}

/// A chain of ranks with two chunks, each passed on as it comes. The first rank never waits for data.
pub fn broadcast(n: u32, rank: u32) -> Schedule {
    let (from, to) = ([rank.wrapping_sub(1)], [rank + 1]);
    let recv: &[u32] = if rank == 0 { &[] } else { &from };
    let send: &[u32] = if rank + 1 == n { &[] } else { &to };
    let flags = if rank == 0 { IN | OUT } else { OUT };
    schedule(rank, 2, &[Draft { flags, recv, send, repeat: 2, stride: 1, ..Draft::ONCE }])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Barrier,
    Broadcast,
}

impl Kind {
    /// Their place is the number of the collective in a world of all.
    pub const ALL: [Kind; 6] =
        [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll, Kind::Barrier, Kind::Broadcast];

    pub fn schedule(self, n: u32, rank: u32) -> Schedule {
        match self {
            Kind::AllReduce => all_reduce(n, rank),
            Kind::AllGather => all_gather(n, rank),
            Kind::ReduceScatter => reduce_scatter(n, rank),
            Kind::AllToAll => all_to_all(n, rank),
            Kind::Barrier => barrier(n, rank),
            Kind::Broadcast => broadcast(n, rank),
        }
    }

    fn nchunks(self, n: u32) -> u32 {
        match self {
            Kind::AllReduce | Kind::Barrier => 1,
            Kind::Broadcast => 2,
            _ => n,
        }
    }

    /// Chunks of a rank's input and output.
    pub fn chunks(self, n: u32) -> (u64, u64) {
        let n = u64::from(n);
        match self {
            Kind::AllReduce => (1, 1),
            Kind::AllGather => (1, n),
            Kind::ReduceScatter => (n, 1),
            Kind::AllToAll => (n, n),
            Kind::Barrier => (0, 0),
            Kind::Broadcast => (2, 2),
        }
    }

    /// All of a call with chunks of `block` elements on one channel, in pieces of at most `piece`.
    pub fn geometry(self, n: u32, block: u64, piece: u64, proto: Proto) -> Geometry {
        let nchunks = self.nchunks(n);
        Geometry { count: block * u64::from(nchunks), nchunks, nchannels: 1, block, part: block.max(1), piece, proto }
    }

    /// Element `i` of a rank's output, from all ranks' inputs of integers that are added.
    pub fn want(self, datatype: DataType, input: &dyn Fn(u32, u64) -> u64, n: u32, block: u64, rank: u32, i: u64) -> u64 {
        let sum = |at: u64| {
            let add = |a, b| oracle::reduce(datatype, nccl::plan::call::Op::Sum, a, b);
            (1..n).fold(input(0, at), |sum, r| add(sum, input(r, at)))
        };
        match self {
            Kind::AllReduce => sum(i),
            Kind::AllGather => input((i / block) as u32, i % block),
            Kind::ReduceScatter => sum(u64::from(rank) * block + i),
            Kind::AllToAll => input((i / block) as u32, u64::from(rank) * block + i % block),
            Kind::Barrier => 0,
            Kind::Broadcast => input(0, i),
        }
    }
}
