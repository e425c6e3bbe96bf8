//! Direct algorithms without slots: ranks read each other's input and write each other's output where these are.
//!
//! A link of such a schedule carries signals, and the peer's buffer in place of data ([`super::layout::LinkEnd`]'s
//! `direct`). The launch sets, with [`reach`]: at the end that receives, the sender's input; at the end that sends, the
//! receiver's output. A step that receives data then reads it at its own input chunk, one that sends writes at its own
//! output chunk. There is no limit to a piece but the channel's part.
//!
//! Two signals make that safe. *Ready* says that a rank's call has begun: its input is there, its output may be
//! written. *Done* says that somebody has finished with the buffers of somebody else, who waits for it at the end, and
//! may then use them for something else. Where the result itself is written to its reader, it is the done.
//!
//! Only for protocol Simple, and not for operators that scale the input ([`super::layout::work_flag::PRE`]): a kernel
//! scales its own rank's input, and would read those of others as they are.
//!
//! The order of reduction is that of the other direct algorithms.
//!
//! Whether a call is carried out so is agreed on by the kernels ([`agreed`]): a rank's host knows which of its own
//! memory is registered, but not whether its peers have that mapped by now.

use super::algorithm::{self, Algo, ScheduleKind};
use super::call::Func;
use super::direct::DirectRank;
use super::layout::MAX_FAN;
use super::layout::step_flag::{IN, NO_DATA, OFFER, OUT, POST, VERDICT};
use super::schedule::{Draft, Schedule};
use super::shape::{has_input, has_output};
use crate::error::Error;
use crate::topology::Graph;

/// The most ranks of a reduction: all contributions are read in one step.
pub const MAX_REDUCE: u32 = MAX_FAN as u32 + 1;

/// Which buffers of a peer a schedule uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// It reads inputs: the receiving ends of links must have the sender's.
    pub input: bool,
    /// It writes outputs: the sending ends of links must have the receiver's.
    pub output: bool,
}

/// Which buffers a function's schedules use.
pub fn reach(func: Func) -> Reach {
    Reach {
        input: !matches!(func, Func::AllGather | Func::AlltoAll | Func::Gather),
        output: matches!(func, Func::AllReduce | Func::AllGather | Func::AlltoAll | Func::Gather),
    }
}

/// The algorithm that has a variant without slots.
pub fn algo(func: Func) -> Algo {
    if func == Func::AllReduce { Algo::TwoStep } else { Algo::Direct }
}

/// Whether there is a variant of an algorithm without slots: of [`Algo::TwoStep`] and [`Algo::Direct`] on one host, for
/// reductions with at most [`MAX_REDUCE`] ranks. (AllReduce in one step would read everything n times.)
pub fn available(func: Func, algo: Algo, graph: &Graph) -> bool {
    let reduces = matches!(func, Func::AllReduce | Func::Reduce | Func::ReduceScatter);
    let exists = algo == self::algo(func) && algorithm::available(func, algo, graph) && graph.nhosts() == 1;
    exists && (!reduces || graph.nranks() <= MAX_REDUCE)
}

/// Which buffers of a rank its peers use.
pub fn offers(func: Func, root: u32, rank: u32) -> Reach {
    let Reach { input, output } = reach(func);
    let read = func != Func::Reduce || rank != root;
    Reach { input: input && read && has_input(func, root, rank), output: output && has_output(func, root, rank) }
}

/// Whether ranks can agree on a variant ([`agreed`]): every rank hears all others in one step.
pub fn can_agree(func: Func, algo: Algo, graph: &Graph) -> bool {
    available(func, algo, graph) && graph.nranks() <= MAX_REDUCE
}

/// Makes a rank's schedule of a channel for work items with [`super::layout::work_flag::OFFER`]: before it all ranks
/// tell each other where their buffers are, and whether they reach those of the others (`kernels/offers.cuh`).
///
/// # Errors
/// As [`compile`], and where ranks cannot agree.
pub fn agreed(kind: ScheduleKind, graph: &Graph, channel: u32, rank: u32) -> Result<Schedule, Error> {
    if !can_agree(kind.func, kind.algo, graph) {
        let (nranks, func) = (graph.nranks(), kind.func.name());
        return Err(Error::Internal(format!("{nranks} ranks do not agree on a {func} in one step")));
    }
    let me = ZeroCopy::find(kind.root, graph, channel, rank)?;
    let (others, mut s) = (me.others(), me.schedule(kind.func));
    for flag in [OFFER, VERDICT] {
        let signal = Draft { flags: NO_DATA | flag, ..Draft::ONCE };
        s.push(Draft { send: &others, ..signal })?;
        s.push(Draft { recv: &others, ..signal })?;
    }
    me.add(kind.func, &mut s)?;
    Ok(s)
}

/// Makes a rank's schedule of a channel.
///
/// # Errors
/// [`Error::Internal`] where the variant is not [`available`], or there is no such rank or root.
pub fn compile(kind: ScheduleKind, graph: &Graph, channel: u32, rank: u32) -> Result<Schedule, Error> {
    let ScheduleKind { func, algo, root } = kind;
    let nranks = graph.nranks();
    if !available(func, algo, graph) || root >= nranks {
        let (algo, func) = (algo.name(), func.name());
        return Err(Error::Internal(format!("no {algo} {func} from root {root} for {nranks} ranks without slots")));
    }
    let me = ZeroCopy::find(root, graph, channel, rank)?;
    let mut s = me.schedule(func);
    me.add(func, &mut s)?;
    Ok(s)
}

const SIGNAL: Draft<'static> = Draft { flags: NO_DATA, ..Draft::ONCE };

fn signal(s: &mut Schedule, to: &[u32]) -> Result<(), Error> {
    to.chunks(MAX_FAN).try_for_each(|send| s.push(Draft { send, ..SIGNAL }))
}

fn wait(s: &mut Schedule, from: &[u32]) -> Result<(), Error> {
    from.chunks(MAX_FAN).try_for_each(|recv| s.push(Draft { recv, ..SIGNAL }))
}

/// A rank among all.
struct ZeroCopy<'a> {
    all: DirectRank<'a>,
    root: u32,
}

impl<'a> ZeroCopy<'a> {
    fn find(root: u32, graph: &'a Graph, channel: u32, rank: u32) -> Result<ZeroCopy<'a>, Error> {
        Ok(ZeroCopy { all: DirectRank::new(algorithm::peers(graph.channel(channel))?, rank)?, root })
    }

    /// An empty schedule of a function.
    fn schedule(&self, func: Func) -> Schedule {
        self.all.schedule(if matches!(func, Func::Reduce | Func::Broadcast) { 1 } else { self.all.nranks })
    }

    /// Adds a function's steps.
    fn add(&self, func: Func, s: &mut Schedule) -> Result<(), Error> {
        match func {
            Func::AllReduce => self.all_reduce(s),
            Func::ReduceScatter => self.reduce_scatter(s),
            Func::Reduce => self.reduce(s),
            Func::AllGather => self.all_gather(s),
            Func::AlltoAll => self.all_to_all(s),
            Func::Gather => self.gather(s),
            _ => self.distribute(s, func == Func::Scatter),
        }
    }

    fn rank(&self) -> u32 {
        self.all.rank
    }

    fn is_root(&self) -> bool {
        self.rank() == self.root
    }

    fn others(&self) -> Vec<u32> {
        self.all.following()
    }

    /// Reads everybody's chunk and reduces, in the order of ranks.
    fn sum(&self, s: &mut Schedule, send: &[u32], in_chunk: u32, out_chunk: u32) -> Result<(), Error> {
        let recv: Vec<u32> = (0..self.all.nranks).filter(|r| *r != self.rank()).collect();
        let place = self.rank() as u8;
        s.push(Draft { flags: IN | OUT | POST, recv: &recv, send, place, in_chunk, out_chunk, ..Draft::ONCE })
    }

    /// Each rank reduces one chunk and writes the result to all. A chunk's reader is its writer, also in place.
    fn all_reduce(&self, s: &mut Schedule) -> Result<(), Error> {
        let others = self.others();
        signal(s, &others)?;
        self.sum(s, &others, self.rank(), self.rank())?;
        wait(s, &others)?;
        Ok(())
    }

    fn reduce_scatter(&self, s: &mut Schedule) -> Result<(), Error> {
        let others = self.others();
        signal(s, &others)?;
        self.sum(s, &[], self.rank(), 0)?;
        signal(s, &others)?;
        wait(s, &others)?;
        Ok(())
    }

    fn reduce(&self, s: &mut Schedule) -> Result<(), Error> {
        if self.is_root() {
            self.sum(s, &[], 0, 0)?;
            signal(s, &self.others())?;
        } else {
            signal(s, &[self.root])?;
            wait(s, &[self.root])?;
        }
        Ok(())
    }

    fn all_gather(&self, s: &mut Schedule) -> Result<(), Error> {
        let others = self.others();
        signal(s, &others)?;
        for (i, send) in others.chunks(MAX_FAN).enumerate() {
            wait(s, send)?;
            let own = if i == 0 { OUT } else { 0 };
            s.push(Draft { flags: IN | own, send, in_chunk: 0, out_chunk: self.rank(), ..Draft::ONCE })?;
        }
        wait(s, &others)?;
        Ok(())
    }

    fn all_to_all(&self, s: &mut Schedule) -> Result<(), Error> {
        let others = self.others();
        signal(s, &others)?;
        s.push(Draft { flags: IN | OUT, ..Draft::ONCE }.chunk(self.rank()))?;
        for to in &others {
            wait(s, &[*to])?;
            s.push(Draft { flags: IN, send: &[*to], in_chunk: *to, out_chunk: self.rank(), ..Draft::ONCE })?;
        }
        wait(s, &others)?;
        Ok(())
    }

    fn gather(&self, s: &mut Schedule) -> Result<(), Error> {
        if self.is_root() {
            signal(s, &self.others())?;
            s.push(Draft { flags: IN | OUT, out_chunk: self.rank(), ..Draft::ONCE })?;
            wait(s, &self.others())?;
        } else {
            wait(s, &[self.root])?;
            s.push(Draft { flags: IN, send: &[self.root], out_chunk: self.rank(), ..Draft::ONCE })?;
        }
        Ok(())
    }

    /// Broadcast and Scatter: all read from the root.
    fn distribute(&self, s: &mut Schedule, scatter: bool) -> Result<(), Error> {
        let in_chunk = if scatter { self.rank() } else { 0 };
        if self.is_root() {
            signal(s, &self.others())?;
            wait(s, &self.others())?;
            // Not before: in place it writes what the others read.
            s.push(Draft { flags: IN | OUT, in_chunk, ..Draft::ONCE })?;
        } else {
            s.push(Draft { flags: OUT, recv: &[self.root], in_chunk, ..Draft::ONCE })?;
            signal(s, &[self.root])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
