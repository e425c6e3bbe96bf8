//! Stand-in until the algorithms land.
use super::call::Func;
use super::layout::step_flag::{IN, OUT, POST};
use super::ring;
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Algo {
    /// Ring.
    Ring,
    /// Tree.
    Tree,
    /// Direct.
    Direct,
    /// Two steps.
    TwoStep,
    /// PAT.
    Pat,
}

impl Algo {
    /// All.
    pub const ALL: [Algo; 5] = [Algo::Ring, Algo::Tree, Algo::Direct, Algo::TwoStep, Algo::Pat];
    /// Name.
    pub fn name(self) -> &'static str {
        ["ring", "tree", "direct", "direct2", "pat"][self as usize]
    }
}

/// Which schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Function.
    pub func: Func,
    /// Algorithm.
    pub algo: Algo,
    /// Root.
    pub root: u32,
}

/// Whether.
pub fn available(func: Func, algo: Algo, _nranks: u32) -> bool {
    func == Func::AllReduce && algo == Algo::Ring
}

/// Compile.
pub fn compile(kind: Kind, rank: u32, nranks: u32) -> Result<Schedule, Error> {
    let _ = kind;
    let ring: Vec<u32> = (0..nranks).collect();
    ring::all_reduce(&ring, rank)
}

fn one(rank: u32, draft: Draft<'_>) -> Result<Schedule, Error> {
    let mut s = Schedule::new(rank, LinkClass::Peer, 1, 1);
    s.push(draft)?;
    Ok(s)
}

/// Send.
pub fn send(rank: u32, peer: u32) -> Result<Schedule, Error> {
    one(rank, Draft { flags: IN, send: &[peer], ..Draft::ONCE })
}
/// Receive.
pub fn receive(rank: u32, peer: u32) -> Result<Schedule, Error> {
    one(rank, Draft { flags: OUT, recv: &[peer], ..Draft::ONCE })
}
/// Copy.
pub fn copy(rank: u32) -> Result<Schedule, Error> {
    one(rank, Draft { flags: IN | OUT | POST, ..Draft::ONCE })
}

/// Whether the data are blocks of the call's count, one for each chunk of the schedule; else the count is cut.
pub fn has_blocks(func: Func) -> bool {
    !matches!(func, Func::AllReduce | Func::Broadcast | Func::Reduce | Func::Send | Func::Recv)
}
