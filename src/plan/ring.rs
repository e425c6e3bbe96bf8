//! Ring algorithms: every rank sends to the next and receives from the one before, which moves the least
//! data that is possible.

use super::layout::step_flag::{IN, OUT, POST};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;
use crate::topology::Order;

/// Slots without which a ring of ranks waits for itself: a step that receives and sends gives back the slot
/// it received only when it has one to send.
const SLOTS_NEEDED: u32 = 2;

/// A rank's place in a ring.
struct RingSeat<'a> {
    ring: &'a Order,
    rank: u32,
    at: u32,
}

impl<'a> RingSeat<'a> {
    fn find(ring: &'a Order, rank: u32) -> Result<RingSeat<'a>, Error> {
        match ring.place(rank) {
            Some(at) if ring.nranks() >= 2 => Ok(RingSeat { ring, rank, at }),
            _ => Err(Error::Internal(format!("no ring of {} ranks for rank {rank}", ring.nranks()))),
        }
    }

    /// The position this many steps before the own one.
    fn before(&self, back: u32) -> u32 {
        (self.at + self.ring.nranks() - back) % self.ring.nranks()
    }

    /// The rank this many steps before.
    fn behind(&self, back: u32) -> u32 {
        self.ring.at(self.before(back))
    }

    fn next(&self) -> [u32; 1] {
        [self.ring.at(self.at + 1)]
    }

    fn prev(&self) -> [u32; 1] {
        [self.behind(1)]
    }

    /// How many steps after `root` the rank comes.
    fn after(&self, root: u32) -> Result<u32, Error> {
        let seat = RingSeat::find(self.ring, root)?;
        Ok(self.before(seat.at))
    }

    fn schedule(&self, nchunks: u32) -> Schedule {
        Schedule::new(self.rank, LinkClass::Ring, nchunks, SLOTS_NEEDED)
    }
}

/// Ring AllReduce: the schedule of `rank` in a ring that visits ranks in the order of `ring`.
///
/// There are as many chunks as ranks. In the first half each chunk goes once around and collects every
/// contribution; in the second half the result goes around once more. Chunk c is reduced in the order of
/// the ring from position c + 1 on to position c, one contribution after the other, so all ranks get the
/// same bits. Five steps do for any number of ranks, three for two.
///
/// # Errors
/// [`Error::Internal`] where `ring` has fewer than two ranks (one rank's AllReduce is a copy), more than
/// a step can repeat, or not `rank`.
pub fn all_reduce(ring: &Order, rank: u32) -> Result<Schedule, Error> {
    let seat = RingSeat::find(ring, rank)?;
    let n = ring.nranks();
    let (next, prev) = (seat.next(), seat.prev());
    let chunk = |back: u32| seat.before(back);

    let mut s = seat.schedule(n);
    let once = Draft { place: 1, ..Draft::ONCE };
    s.push(Draft { flags: IN, send: &next, place: 0, ..once }.chunk(chunk(1)))?;
    let pass = Draft { recv: &prev, send: &next, repeat: n - 2, stride: -1, ..once };
    s.push(Draft { flags: IN, ..pass }.chunk(chunk(2)))?;
    s.push(Draft { flags: IN | OUT | POST, recv: &prev, send: &next, ..once }.chunk(chunk(0)))?;
    s.push(Draft { flags: OUT, place: 0, ..pass }.chunk(chunk(1)))?;
    s.push(Draft { flags: OUT, place: 0, recv: &prev, ..once }.chunk(chunk(n - 1)))?;
    Ok(s)
}

/// Ring AllGather: every rank's chunk goes once around. Chunks have the numbers of ranks.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_gather(ring: &Order, rank: u32) -> Result<Schedule, Error> {
    let seat = RingSeat::find(ring, rank)?;
    let n = ring.nranks();
    let (next, prev) = (seat.next(), seat.prev());
    let mut s = seat.schedule(n);
    s.push(Draft { flags: IN | OUT, send: &next, out_chunk: rank, ..Draft::ONCE })?;
    let pass = Draft { flags: OUT, recv: &prev, send: &next, ..Draft::ONCE };
    s.push_run(pass, (1..n - 1).map(|back| seat.behind(back)))?;
    s.push(Draft { flags: OUT, recv: &prev, ..Draft::ONCE }.chunk(seat.behind(n - 1)))?;
    Ok(s)
}

/// Ring ReduceScatter: every chunk goes once around, collects every contribution and ends at its rank. The order
/// of reduction is the one of [`all_reduce`]: from the rank behind the chunk's own around to its own.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce_scatter(ring: &Order, rank: u32) -> Result<Schedule, Error> {
    let seat = RingSeat::find(ring, rank)?;
    let n = ring.nranks();
    let (next, prev) = (seat.next(), seat.prev());
    let mut s = seat.schedule(n);
    s.push(Draft { flags: IN, send: &next, ..Draft::ONCE }.chunk(seat.behind(1)))?;
    let pass = Draft { flags: IN, recv: &prev, send: &next, place: 1, ..Draft::ONCE };
    s.push_run(pass, (2..n).map(|back| seat.behind(back)))?;
    let last = Draft { flags: IN | OUT | POST, recv: &prev, place: 1, ..Draft::ONCE };
    s.push(Draft { in_chunk: rank, out_chunk: 0, ..last })?;
    Ok(s)
}

/// Ring Broadcast: a chain from the root around the ring, which works on as many pieces at a time as it is long.
///
/// # Errors
/// As [`all_reduce`]; also where the ring has no `root`.
pub fn broadcast(ring: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let seat = RingSeat::find(ring, rank)?;
    let (next, prev) = (seat.next(), seat.prev());
    let after = seat.after(root)?;
    let mut s = seat.schedule(1);
    let flags = if after == 0 { IN | OUT } else { OUT };
    let recv: &[u32] = if after == 0 { &[] } else { &prev };
    let send: &[u32] = if after == ring.nranks() - 1 { &[] } else { &next };
    s.push(Draft { flags, recv, send, ..Draft::ONCE })?;
    Ok(s)
}

/// Ring Reduce: a chain that begins behind the root and ends at it; every rank adds its contribution to what
/// it gets.
///
/// # Errors
/// As [`broadcast`].
pub fn reduce(ring: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let seat = RingSeat::find(ring, rank)?;
    let (next, prev) = (seat.next(), seat.prev());
    let mut s = seat.schedule(1);
    s.push(match seat.after(root)? {
        0 => Draft { flags: IN | OUT | POST, recv: &prev, place: 1, ..Draft::ONCE },
        1 => Draft { flags: IN, send: &next, ..Draft::ONCE },
        _ => Draft { flags: IN, recv: &prev, send: &next, place: 1, ..Draft::ONCE },
    })?;
    Ok(s)
}
