//! Direct algorithms: every rank sends to every other. One hop where the result is copied from, two where it is
//! reduced in parts; the lowest latency there is.
//!
//! *Order of reduction.* Always that of the ranks: ((x0 + x1) + x2) + …, whatever the number of ranks, the chunk or the
//! algorithm, and in which order peers are visited. So AllReduce in one step and in two, Reduce and ReduceScatter give
//! the same bits.
//!
//! A step receives from at most [`MAX_FAN`] links, so with more ranks a reduction takes several steps: the sum so far
//! is kept in the output and goes on from there. A rank whose own place is not in the first of them would need the sum
//! and its own contribution from its buffers at the same time, and in place they would be one. Such a rank sends its
//! contribution to the rank [`MAX_FAN`] before it, which sends it back (an *echo*): then it comes from a link like all
//! others, and its own buffer is free for the sum.

use super::layout::MAX_FAN;
use super::layout::step_flag::{FROM_OUT, IN, OUT, POST};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;
use crate::topology::Order;

/// Slots without which ranks would wait for each other: proved by the executor.
const SLOTS_NEEDED: u32 = 2;
const FAN: u32 = MAX_FAN as u32;

/// A rank among all: what it does to take part in the reductions, copies and scatterings of others.
pub(super) struct DirectRank<'a> {
    pub rank: u32,
    pub nranks: u32,
    peers: &'a Order,
    /// The rank's place among the peers.
    at: u32,
}

impl<'a> DirectRank<'a> {
    pub fn new(peers: &'a Order, rank: u32) -> Result<DirectRank<'a>, Error> {
        let nranks = peers.nranks();
        match peers.place(rank) {
            Some(at) if nranks >= 2 => Ok(DirectRank { rank, nranks, peers, at }),
            _ => Err(Error::Internal(format!("no schedule of {nranks} ranks for rank {rank}"))),
        }
    }

    pub fn schedule(&self, nchunks: u32) -> Schedule {
        Schedule::new(self.rank, LinkClass::Direct, nchunks, SLOTS_NEEDED)
    }

    /// All others, beginning with the next, so that not all ranks send to the same one first.
    pub fn following(&self) -> Vec<u32> {
        (1..self.nranks).map(|d| self.peers.at(self.at + d)).collect()
    }

    /// All others, beginning with the one before: in the order in which their data comes.
    fn preceding(&self) -> Vec<u32> {
        (1..self.nranks).map(|d| self.peers.at(self.at + self.nranks - d)).collect()
    }

    /// Whether the own contribution comes back as an echo before it is reduced.
    fn needs_echo(rank: u32) -> bool {
        rank > FAN
    }

    /// Sends the own contribution of a chunk away, to get it back.
    fn ask_for_echo(&self, s: &mut Schedule, chunk: u32) -> Result<(), Error> {
        if !DirectRank::needs_echo(self.rank) {
            return Ok(());
        }
        s.push(Draft { flags: IN, send: &[self.rank - FAN], ..Draft::ONCE }.chunk(chunk))
    }

    /// Sends back what the rank behind has sent. It must be the first data that comes from there, and the own
    /// contribution must be sent there before.
    fn echo(&self, s: &mut Schedule, chunk: impl Fn(u32) -> u32) -> Result<(), Error> {
        let of = self.rank + FAN;
        if of >= self.nranks || !DirectRank::needs_echo(of) {
            return Ok(());
        }
        s.push(Draft { recv: &[of], send: &[of], ..Draft::ONCE }.chunk(chunk(of)))
    }

    /// Reduces everybody's contribution, in the order of ranks: `from` and `to` are the chunks of input and output.
    /// The result is also sent to `send`.
    fn reduce(&self, s: &mut Schedule, from: u32, to: u32, send: &[u32]) -> Result<(), Error> {
        let sources: Vec<u32> = (0..self.nranks).collect();
        let first = if DirectRank::needs_echo(self.rank) { FAN } else { (FAN + 1).min(self.nranks) };
        let (first, rest) = sources.split_at(first as usize);
        let groups = std::iter::once(first).chain(rest.chunks(MAX_FAN));
        let last = rest.chunks(MAX_FAN).count();
        for (i, group) in groups.enumerate() {
            let end = if i == last { POST } else { 0 };
            let send = if i == last { send } else { &[] };
            let sum = Draft { flags: OUT | end, send, in_chunk: to, out_chunk: to, ..Draft::ONCE };
            if i > 0 {
                let recv = self.with_echo(group);
                s.push(Draft { flags: sum.flags | IN | FROM_OUT, recv: &recv, ..sum })?;
            } else if DirectRank::needs_echo(self.rank) {
                s.push(Draft { recv: group, ..sum })?;
            } else {
                let recv: Vec<u32> = group.iter().copied().filter(|r| *r != self.rank).collect();
                let own = Draft { flags: sum.flags | IN, place: self.rank as u8, in_chunk: from, ..sum };
                s.push(Draft { recv: &recv, ..own })?;
            }
        }
        Ok(())
    }

    /// Where the contributions of some ranks come from: the own one from whoever echoes it.
    fn with_echo(&self, group: &[u32]) -> Vec<u32> {
        group.iter().map(|r| if *r == self.rank { r - FAN } else { *r }).collect()
    }

    /// Sends one chunk to many, as many at a time as a step can.
    fn fan_out(&self, s: &mut Schedule, to: &[u32], draft: Draft<'_>) -> Result<(), Error> {
        to.chunks(MAX_FAN).try_for_each(|send| s.push(Draft { send, ..draft }))
    }

    /// Copies the own chunk to the output and sends it to all.
    fn own_to_all(&self, s: &mut Schedule, out_chunk: u32) -> Result<(), Error> {
        let following = self.following();
        let (first, rest) = following.split_at(MAX_FAN.min(following.len()));
        s.push(Draft { flags: IN | OUT, send: first, out_chunk, ..Draft::ONCE })?;
        self.fan_out(s, rest, Draft { flags: IN, ..Draft::ONCE })
    }

    /// Receives a chunk from each of the others.
    fn collect(&self, s: &mut Schedule) -> Result<(), Error> {
        let from = self.preceding();
        from.iter().try_for_each(|&q| s.push(Draft { flags: OUT, recv: &[q], ..Draft::ONCE }.chunk(q)))
    }

    /// Sends to each of the others the chunk of the input that has its number.
    fn hand_out(&self, s: &mut Schedule) -> Result<(), Error> {
        let to = self.following();
        to.iter().try_for_each(|&q| s.push(Draft { flags: IN, send: &[q], ..Draft::ONCE }.chunk(q)))
    }
}

/// Direct AllReduce in one step: everybody's data to everybody, who adds it all up.
///
/// # Errors
/// [`Error::Internal`] where there are fewer than two `peers`, or no `rank` among them.
pub fn all_reduce(peers: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(1);
    me.ask_for_echo(&mut s, 0)?;
    me.fan_out(&mut s, &me.following(), Draft { flags: IN, ..Draft::ONCE })?;
    me.echo(&mut s, |_| 0)?;
    me.reduce(&mut s, 0, 0, &[])?;
    Ok(s)
}

/// Direct AllReduce in two steps: each rank reduces the chunk that has its number, and sends the result to all.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_reduce_in_two(peers: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(me.nranks);
    me.ask_for_echo(&mut s, rank)?;
    me.hand_out(&mut s)?;
    me.echo(&mut s, |of| of)?;
    let following = me.following();
    let (first, rest) = following.split_at(MAX_FAN.min(following.len()));
    me.reduce(&mut s, rank, rank, first)?;
    me.fan_out(&mut s, rest, Draft { flags: IN | FROM_OUT, ..Draft::ONCE }.chunk(rank))?;
    me.collect(&mut s)?;
    Ok(s)
}

/// Direct ReduceScatter: the first half of [`all_reduce_in_two`].
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce_scatter(peers: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(me.nranks);
    me.ask_for_echo(&mut s, rank)?;
    me.hand_out(&mut s)?;
    me.echo(&mut s, |of| of)?;
    me.reduce(&mut s, rank, 0, &[])?;
    Ok(s)
}

/// Direct AllGather.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather(peers: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(me.nranks);
    me.own_to_all(&mut s, rank)?;
    me.collect(&mut s)?;
    Ok(s)
}

/// Direct Broadcast: the root sends to all.
///
/// # Errors
/// As [`all_reduce`].
pub fn broadcast(peers: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(1);
    match rank == root {
        true => me.own_to_all(&mut s, 0)?,
        false => s.push(Draft { flags: OUT, recv: &[root], ..Draft::ONCE })?,
    }
    Ok(s)
}

/// Direct Reduce: all send to the root.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce(peers: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(1);
    if rank == root {
        me.ask_for_echo(&mut s, 0)?;
        me.reduce(&mut s, 0, 0, &[])?;
        return Ok(s);
    }
    s.push(Draft { flags: IN, send: &[root], ..Draft::ONCE })?;
    if DirectRank::needs_echo(root) && rank == root - FAN {
        me.echo(&mut s, |_| 0)?;
    }
    Ok(s)
}

/// Direct AlltoAll: at each distance, a chunk to the rank that far ahead, and one from the rank that far behind.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_to_all(peers: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(me.nranks);
    s.push(Draft { flags: IN | OUT, ..Draft::ONCE }.chunk(rank))?;
    for (to, from) in me.following().into_iter().zip(me.preceding()) {
        s.push(Draft { flags: IN, send: &[to], ..Draft::ONCE }.chunk(to))?;
        s.push(Draft { flags: OUT, recv: &[from], ..Draft::ONCE }.chunk(from))?;
    }
    Ok(s)
}

/// Direct Gather: all send to the root.
///
/// # Errors
/// As [`all_reduce`].
pub fn gather(peers: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(me.nranks);
    if rank != root {
        s.push(Draft { flags: IN, send: &[root], ..Draft::ONCE })?;
        return Ok(s);
    }
    s.push(Draft { flags: IN | OUT, out_chunk: rank, ..Draft::ONCE })?;
    me.collect(&mut s)?;
    Ok(s)
}

/// Direct Scatter: the root sends to all.
///
/// # Errors
/// As [`all_reduce`].
pub fn scatter(peers: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = DirectRank::new(peers, rank)?;
    let mut s = me.schedule(me.nranks);
    if rank != root {
        s.push(Draft { flags: OUT, recv: &[root], ..Draft::ONCE })?;
        return Ok(s);
    }
    me.hand_out(&mut s)?;
    s.push(Draft { flags: IN | OUT, in_chunk: rank, ..Draft::ONCE })?;
    Ok(s)
}
