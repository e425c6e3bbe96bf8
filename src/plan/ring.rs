//! Ring algorithms: every rank sends to the next and receives from the one before, which moves the least
//! data that is possible.

use super::layout::step_flag::{IN, OUT, POST};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;

/// Slots without which a ring of ranks waits for itself: a step that receives and sends gives back the slot
/// it received only when it has one to send.
const SLOTS_NEEDED: u32 = 2;

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
pub fn all_reduce(ring: &[u32], rank: u32) -> Result<Schedule, Error> {
    let n = ring.len();
    let at = ring.iter().position(|&r| r == rank);
    let (Some(at), 2..) = (at, n) else {
        return Err(Error::Internal(format!("no ring of {n} ranks for rank {rank}")));
    };
    let many = |n: usize| u32::try_from(n).map_err(|_| Error::Internal(format!("a ring of {n} ranks")));
    let around = many(n - 2)?;
    let next = [ring[(at + 1) % n]];
    let prev = [ring[(at + n - 1) % n]];
    // The chunk `back` positions before this rank's own.
    let chunk = |back: usize| many((at + n - back) % n);

    let mut s = Schedule::new(rank, LinkClass::Ring, many(n)?, SLOTS_NEEDED);
    let once = Draft { place: 1, ..Draft::ONCE };
    s.push(Draft { flags: IN, send: &next, place: 0, ..once }.chunk(chunk(1)?))?;
    let pass = Draft { recv: &prev, send: &next, repeat: around, stride: -1, ..once };
    s.push(Draft { flags: IN, ..pass }.chunk(chunk(2)?))?;
    s.push(Draft { flags: IN | OUT | POST, recv: &prev, send: &next, ..once }.chunk(chunk(0)?))?;
    s.push(Draft { flags: OUT, place: 0, ..pass }.chunk(chunk(1)?))?;
    s.push(Draft { flags: OUT, place: 0, recv: &prev, ..once }.chunk(chunk(n - 1)?))?;
    Ok(s)
}
