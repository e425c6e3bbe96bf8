//! Direct algorithms without slots: ranks read each other's input and write each other's output where these are.
//!
//! A link of such a schedule carries signals, and the peer's buffer in place of data ([`super::layout::LinkEnd`]'s
//! `direct`). The launch sets, with [`reach`]: at the end that receives, the sender's input; at the end that sends, the
//! receiver's output. A step that receives data then reads it at its own input chunk, one that sends writes at its own
//! output chunk. There is no limit to a piece but the channel's part.
//!
//! Two signals make that safe. *Ready* says that a rank's call has begun: its input is there, its output may be
//! written. *Done* says that somebody has finished with the buffers of somebody else, who waits for it at the end, and may
//! then use them for something else. Where the result itself is written to its reader, it is the done.
//!
//! Only for protocol Simple, and not for operators that scale the input ([`super::layout::work_flag::PRE`]): a kernel
//! scales its own rank's input, and would read those of others as they are.
//!
//! The order of reduction is that of the other direct algorithms.

use super::algorithm::{self, Algo, Kind};
use super::call::Func;
use super::direct::Direct;
use super::layout::MAX_FAN;
use super::layout::step_flag::{IN, NO_DATA, OUT, POST};
use super::schedule::{Draft, Schedule};
use crate::error::Error;

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

/// Whether there is a variant of an algorithm without slots: of [`Algo::TwoStep`] and [`Algo::Direct`], for reductions
/// with at most [`MAX_REDUCE`] ranks. (AllReduce in one step would read everything n times.)
pub fn available(func: Func, algo: Algo, nranks: u32) -> bool {
    let reduces = matches!(func, Func::AllReduce | Func::Reduce | Func::ReduceScatter);
    let exists = algo == if func == Func::AllReduce { Algo::TwoStep } else { Algo::Direct };
    exists && algorithm::available(func, algo, nranks) && (!reduces || nranks <= MAX_REDUCE)
}

/// Makes a rank's schedule.
///
/// # Errors
/// [`Error::Internal`] where the variant is not [`available`], or there is no such rank or root.
pub fn compile(kind: Kind, rank: u32, nranks: u32) -> Result<Schedule, Error> {
    let Kind { func, algo, root } = kind;
    if !available(func, algo, nranks) || root >= nranks {
        let (algo, func) = (algo.name(), func.name());
        return Err(Error::Internal(format!("no {algo} {func} from root {root} for {nranks} ranks without slots")));
    }
    let me = ZeroCopy { all: Direct::new(nranks, rank)?, root };
    match func {
        Func::AllReduce => me.all_reduce(),
        Func::ReduceScatter => me.reduce_scatter(),
        Func::Reduce => me.reduce(),
        Func::AllGather => me.all_gather(),
        Func::AlltoAll => me.all_to_all(),
        Func::Gather => me.gather(),
        _ => me.distribute(func == Func::Scatter),
    }
}

const SIGNAL: Draft<'static> = Draft { flags: NO_DATA, ..Draft::ONCE };

fn signal(s: &mut Schedule, to: &[u32]) -> Result<(), Error> {
    to.chunks(MAX_FAN).try_for_each(|send| s.push(Draft { send, ..SIGNAL }))
}

fn wait(s: &mut Schedule, from: &[u32]) -> Result<(), Error> {
    from.chunks(MAX_FAN).try_for_each(|recv| s.push(Draft { recv, ..SIGNAL }))
}

/// A rank among all.
struct ZeroCopy {
    all: Direct,
    root: u32,
}

impl ZeroCopy {
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
    fn all_reduce(&self) -> Result<Schedule, Error> {
        let mut s = self.all.schedule(self.all.nranks);
        let others = self.others();
        signal(&mut s, &others)?;
        self.sum(&mut s, &others, self.rank(), self.rank())?;
        wait(&mut s, &others)?;
        Ok(s)
    }

    fn reduce_scatter(&self) -> Result<Schedule, Error> {
        let mut s = self.all.schedule(self.all.nranks);
        let others = self.others();
        signal(&mut s, &others)?;
        self.sum(&mut s, &[], self.rank(), 0)?;
        signal(&mut s, &others)?;
        wait(&mut s, &others)?;
        Ok(s)
    }

    fn reduce(&self) -> Result<Schedule, Error> {
        let mut s = self.all.schedule(1);
        if self.is_root() {
            self.sum(&mut s, &[], 0, 0)?;
            signal(&mut s, &self.others())?;
        } else {
            signal(&mut s, &[self.root])?;
            wait(&mut s, &[self.root])?;
        }
        Ok(s)
    }

    fn all_gather(&self) -> Result<Schedule, Error> {
        let mut s = self.all.schedule(self.all.nranks);
        let others = self.others();
        signal(&mut s, &others)?;
        for (i, send) in others.chunks(MAX_FAN).enumerate() {
            wait(&mut s, send)?;
            let own = if i == 0 { OUT } else { 0 };
            s.push(Draft { flags: IN | own, send, in_chunk: 0, out_chunk: self.rank(), ..Draft::ONCE })?;
        }
        wait(&mut s, &others)?;
        Ok(s)
    }

    fn all_to_all(&self) -> Result<Schedule, Error> {
        let mut s = self.all.schedule(self.all.nranks);
        let others = self.others();
        signal(&mut s, &others)?;
        s.push(Draft { flags: IN | OUT, ..Draft::ONCE }.chunk(self.rank()))?;
        for to in &others {
            wait(&mut s, &[*to])?;
            s.push(Draft { flags: IN, send: &[*to], in_chunk: *to, out_chunk: self.rank(), ..Draft::ONCE })?;
        }
        wait(&mut s, &others)?;
        Ok(s)
    }

    fn gather(&self) -> Result<Schedule, Error> {
        let mut s = self.all.schedule(self.all.nranks);
        if self.is_root() {
            signal(&mut s, &self.others())?;
            s.push(Draft { flags: IN | OUT, out_chunk: self.rank(), ..Draft::ONCE })?;
            wait(&mut s, &self.others())?;
        } else {
            wait(&mut s, &[self.root])?;
            s.push(Draft { flags: IN, send: &[self.root], out_chunk: self.rank(), ..Draft::ONCE })?;
        }
        Ok(s)
    }

    /// Broadcast and Scatter: all read from the root.
    fn distribute(&self, scatter: bool) -> Result<Schedule, Error> {
        let (nchunks, in_chunk) = if scatter { (self.all.nranks, self.rank()) } else { (1, 0) };
        let mut s = self.all.schedule(nchunks);
        if self.is_root() {
            signal(&mut s, &self.others())?;
            wait(&mut s, &self.others())?;
            // Not before: in place it writes what the others read.
            s.push(Draft { flags: IN | OUT, in_chunk, ..Draft::ONCE })?;
        } else {
            s.push(Draft { flags: OUT, recv: &[self.root], in_chunk, ..Draft::ONCE })?;
            signal(&mut s, &[self.root])?;
        }
        Ok(s)
    }
}

#[cfg(test)]
mod tests;
