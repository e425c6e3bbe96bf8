//! Every collective by every algorithm that `plan` knows, and what it must give by the specification.

use nccl::plan::algorithm::{self, Algo, ScheduleKind};
use nccl::plan::call::{DataType, Func, Op};
use nccl::plan::layout::step_flag::NO_DATA;
use nccl::plan::schedule::{Draft, LinkClass, Schedule};
use nccl::plan::shape::{Shape, shape};
use nccl::topology::Graph;

use crate::oracle;

const FUNCS: [Func; 8] = Func::COLLECTIVES;

/// All that `n` ranks can call, roots being the first and the last.
pub fn all(n: u32) -> Vec<ScheduleKind> {
    let mut kinds = Vec::new();
    for (func, algo) in FUNCS.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo))) {
        let rooted = matches!(func, Func::Broadcast | Func::Reduce | Func::Gather | Func::Scatter);
        let roots = if rooted { vec![0, n - 1] } else { vec![0] };
        let made = roots.into_iter().map(|root| ScheduleKind { func, algo, root });
        kinds.extend(made.filter(|_| algorithm::available(func, algo, &Graph::of_host(n))));
    }
    kinds
}

pub fn schedule(kind: ScheduleKind, rank: u32, n: u32) -> Schedule {
    algorithm::compile(kind, &Graph::of_host(n), 0, rank).expect("a schedule")
}

/// AllReduce between any two ranks in one step.
pub fn direct(rank: u32, n: u32) -> Schedule {
    schedule(ScheduleKind { func: Func::AllReduce, algo: Algo::Direct, root: 0 }, rank, n)
}

/// Signals only: everybody waits for everybody.
pub fn barrier(rank: u32, n: u32) -> Schedule {
    let others: Vec<u32> = (0..n).filter(|&r| r != rank).collect();
    let signal = Draft { flags: NO_DATA, ..Draft::ONCE };
    let mut s = Schedule::new(rank, LinkClass::Direct, 1, 2);
    s.push(Draft { send: &others, ..signal }).expect("a sound step");
    s.push(Draft { recv: &others, ..signal }).expect("a sound step");
    s
}

/// Elements of a rank's input and output in a call of `count`.
pub fn elements(func: Func, n: u32, count: u64) -> (u64, u64) {
    match shape(func, n) {
        Shape::Divided => (count, count),
        Shape::Uniform { input, output } => (u64::from(input) * count, u64::from(output) * count),
    }
}

/// One call of integers that are added.
pub struct Expected<'a> {
    pub kind: ScheduleKind,
    pub n: u32,
    pub count: u64,
    pub datatype: DataType,
    /// Element of a rank's input.
    pub input: &'a dyn Fn(u32, u64) -> u64,
}

impl Expected<'_> {
    fn sum(&self, at: u64) -> u64 {
        let add = |a, b| oracle::reduce(self.datatype, Op::Sum, a, b);
        (1..self.n).fold((self.input)(0, at), |sum, rank| add(sum, (self.input)(rank, at)))
    }

    /// Element `i` of a rank's output.
    pub fn output(&self, rank: u32, i: u64) -> u64 {
        let own = u64::from(rank) * self.count;
        let root = self.kind.root;
        match self.kind.func {
            Func::AllReduce | Func::Reduce => self.sum(i),
            Func::Broadcast => (self.input)(root, i),
            Func::AllGather | Func::Gather => (self.input)((i / self.count) as u32, i % self.count),
            Func::ReduceScatter => self.sum(own + i),
            Func::AlltoAll => (self.input)((i / self.count) as u32, own + i % self.count),
            Func::Scatter => (self.input)(root, own + i),
            Func::Send | Func::Recv => unreachable!("no collective"),
        }
    }
}
