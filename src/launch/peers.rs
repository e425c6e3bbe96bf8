//! Messages between two ranks: which half runs in which block, and in which order.
//!
//! Every rank visits its peers in the same order, by distance: it sends to the next rank first, and receives from
//! the one before first. Sends and receives do not wait for each other. Then a group never waits for itself
//! around the ranks, whatever the sizes: the half with the least distance can always go on.

use super::Call;
use super::plan::Plan;
use crate::comm::{Comm, Half};
use crate::error::Error;
use crate::plan::SLOTS;
use crate::plan::call::Func;

/// Blocks for each direction on a GPU.
const LANES: u32 = 8;

/// A message's half with the distance to its peer.
type Visit<'a> = (u32, &'a Call, u32);

/// Refuses a message of a rank to itself that has no partner in the group (spec §4.8).
///
/// # Errors
/// [`Error::InvalidUsage`].
pub(super) fn check<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Call> + Clone) -> Result<(), Error> {
    let own = |func| calls.clone().filter(|call| call.func == func && call.root == comm.rank()).count();
    let (sends, receives) = (own(Func::Send), own(Func::Recv));
    let (from, to) = if sends > receives { ("send to", "recv") } else { ("recv to", "send") };
    match sends == receives {
        true => Ok(()),
        false => Err(Error::InvalidUsage(format!("Trying to {from} self without a matching {to}"))),
    }
}

/// Adds the messages among some calls to a plan.
pub(super) fn add(plan: &mut Plan<'_>, calls: &[(&Call, u32)]) -> Result<(), Error> {
    if !calls.iter().any(|(call, _)| call.func.has_peer()) {
        return Ok(());
    }
    add_copies(plan, calls)?;
    let (me, nranks) = (plan.comm.rank() as u32, plan.comm.nranks() as u32);
    let sends = visits(calls, Func::Send, |peer| (peer + nranks - me) % nranks);
    let receives = visits(calls, Func::Recv, |peer| (me + nranks - peer) % nranks);
    let lanes = if plan.parts.schedules.software { 1 } else { LANES.min(nranks - 1) };
    // Where all fits in the slots, sends do not wait for the peers' receives, and one block can do both.
    let apart = !plan.parts.schedules.software || !receives.is_empty() && !all_fit(plan, &sends);
    let first = if apart && !sends.is_empty() { lanes } else { 0 };
    for (distance, call, serial) in &sends {
        plan.add_half(Half::Send(call.peer()), call, *serial, (distance - 1) % lanes)?;
    }
    for (distance, call, serial) in &receives {
        plan.add_half(Half::Receive(call.peer()), call, *serial, first + (distance - 1) % lanes)?;
    }
    Ok(())
}

/// The halves of one direction in the order of their visits; those with one peer keep their order.
fn visits<'a>(calls: &[(&'a Call, u32)], func: Func, distance: impl Fn(u32) -> u32) -> Vec<Visit<'a>> {
    let of = calls.iter().filter(|(call, _)| call.func == func);
    let mut visits: Vec<Visit<'_>> = of.map(|(call, serial)| (distance(call.peer()), *call, *serial)).collect();
    visits.retain(|(distance, ..)| *distance > 0);
    visits.sort_by_key(|(distance, ..)| *distance);
    visits
}

/// Whether what is sent to each peer fits in the slots of the link. The slots may still hold earlier messages, but
/// those are taken out by receives that come before the peer's part of this group.
fn all_fit(plan: &Plan<'_>, sends: &[Visit<'_>]) -> bool {
    let of_one_peer =
        |peer: &[Visit<'_>]| peer.iter().map(|(_, call, _)| plan.parts.schedules.slots_of(call.bytes())).sum::<u64>();
    sends.chunk_by(|(a, ..), (b, ..)| a == b).all(|peer| of_one_peer(peer) <= SLOTS as u64)
}

/// A rank's messages to itself are copies: the k-th send goes to the k-th receive.
fn add_copies(plan: &mut Plan<'_>, calls: &[(&Call, u32)]) -> Result<(), Error> {
    for (call, serial) in copies(plan.comm.rank(), calls) {
        plan.add_half(Half::Copy, &call, serial, 0)?;
    }
    Ok(())
}

/// The copies that a rank's messages to itself come to. None where both buffers are the same (spec §4.8).
pub(super) fn copies(me: i32, calls: &[(&Call, u32)]) -> Vec<(Call, u32)> {
    let own = |func| calls.iter().filter(move |(call, _)| call.func == func && call.root == me);
    let pairs = own(Func::Send).zip(own(Func::Recv)).filter(|((send, _), (receive, _))| send.send != receive.recv);
    // The sizes agree in a correct program; where they do not, neither buffer is overrun.
    let copy = |((send, serial), (receive, _)): (&(&Call, u32), &(&Call, u32))| {
        let smaller = if send.bytes() <= receive.bytes() { send } else { receive };
        (Call { send: send.send, recv: receive.recv, ..(*smaller).clone() }, *serial)
    };
    pairs.map(copy).collect()
}
