//! Messages between two ranks: which half runs in which block, and in which order.
//!
//! Every rank visits its peers in the same order, by distance: it sends to the next rank first, and receives from
//! the one before first; large messages go on several channels, which are in an order, too. Sends and receives do not
//! wait for each other. Then a group never waits for itself around the ranks, whatever the sizes: the half with the
//! least distance and channel can always go on.
//!
//! Blocks that send and blocks that receive take turns, so that where only the first of them find room on a device,
//! both go on. Both ranks of a message have it in the same pair of blocks.

use super::Call;
use super::plan::Plan;
use super::target::LaunchTarget;
use crate::error::Error;
use crate::plan::SLOTS;
use crate::plan::call::Func;
use crate::plan::layout::Proto;
use crate::plan::point_to_point::{receive_distance, send_distance};
use crate::plan::shape::{Shape, has_input, has_output, shape};
use crate::schedules::Half;

/// Pairs of blocks on a GPU, one that sends and one that receives.
const LANES: u32 = 16;

/// A message's half with the distance to its peer.
type PeerVisit<'a> = (u32, &'a Call, u32);

/// Refuses a message of a rank to itself that has no partner in the group.
///
/// # Errors
/// [`Error::InvalidUsage`].
pub(super) fn check<'a>(rank: i32, calls: impl Iterator<Item = &'a Call> + Clone) -> Result<(), Error> {
    let own = |func| calls.clone().filter(|call| call.func == func && call.root == rank).count();
    let (sends, receives) = (own(Func::Send), own(Func::Recv));
    let (from, to) = if sends > receives { ("send to", "recv") } else { ("recv to", "send") };
    match sends == receives {
        true => Ok(()),
        false => Err(Error::InvalidUsage(format!("Trying to {from} self without a matching {to}"))),
    }
}

/// Adds the messages among some calls to a plan.
pub(super) fn add<T: LaunchTarget>(plan: &mut Plan<'_, T>, calls: &[(&Call, u32)]) -> Result<(), Error> {
    if !calls.iter().any(|(call, _)| call.func.has_peer()) {
        return Ok(());
    }
    add_copies(plan, calls)?;
    let (me, nranks) = (plan.target.rank() as u32, plan.target.nranks() as u32);
    let sends = visits(calls, Func::Send, |peer| send_distance(me, peer, nranks));
    let receives = visits(calls, Func::Recv, |peer| receive_distance(me, peer, nranks));
    let channels = plan.target.schedules().message_channels();
    let lanes = if plan.target.is_software() { 1 } else { LANES.min((nranks - 1) * channels) };
    // Where all fits in the slots, sends do not wait for the peers' receives, and one block can do both.
    let apart = !plan.target.is_software() || !receives.is_empty() && !all_fit(plan, &sends);
    // Peers first: small messages have but one channel each.
    let lane = |distance: u32, channel: u32| (distance - 1 + channel * (nranks - 1)) % lanes;
    let directions = if apart { 2 } else { 1 };
    for (distance, call, serial) in &sends {
        plan.add_half(Half::Send(call.peer()), call, *serial, |channel| directions * lane(*distance, channel))?;
    }
    for (distance, call, serial) in &receives {
        let block = |channel| directions * lane(*distance, channel) + directions - 1;
        plan.add_half(Half::Receive(call.peer()), call, *serial, block)?;
    }
    plan.close_up();
    Ok(())
}

/// The halves of one direction in the order of their visits; those with one peer keep their order.
fn visits<'a>(calls: &[(&'a Call, u32)], func: Func, distance: impl Fn(u32) -> u32) -> Vec<PeerVisit<'a>> {
    let of = calls.iter().filter(|(call, _)| call.func == func);
    let mut visits: Vec<PeerVisit<'_>> = of.map(|(call, serial)| (distance(call.peer()), *call, *serial)).collect();
    visits.retain(|(distance, ..)| *distance > 0);
    visits.sort_by_key(|(distance, ..)| *distance);
    visits
}

/// Whether what is sent to each peer fits in the slots of the links. The slots may still hold earlier messages, but
/// those are taken out by receives that come before the peer's part of this group. What is read from the sender's
/// buffer the sender waits for.
fn all_fit<T: LaunchTarget>(plan: &Plan<'_, T>, sends: &[PeerVisit<'_>]) -> bool {
    let (tuning, schedules) = (plan.target.tuning(), plan.target.schedules());
    let slots = |peer: &[PeerVisit<'_>], proto: Proto| {
        let bytes = peer.iter().map(|(_, call, _)| call.bytes());
        let of_proto = bytes.filter(|bytes| tuning.message_protocol(*bytes) == proto);
        of_proto.map(|bytes| schedules.slots_of(proto, bytes)).sum::<u64>()
    };
    let fits = |peer: &[PeerVisit<'_>]| Proto::ALL.into_iter().all(|proto| slots(peer, proto) <= SLOTS as u64);
    let pulled = sends.iter().any(|(_, call, _)| tuning.pulls_message(call.bytes()));
    !pulled && sends.chunk_by(|(a, ..), (b, ..)| a == b).all(fits)
}

/// A rank's messages to itself are copies: the k-th send goes to the k-th receive.
fn add_copies<T: LaunchTarget>(plan: &mut Plan<'_, T>, calls: &[(&Call, u32)]) -> Result<(), Error> {
    for (call, serial) in copies(plan.target.rank(), calls) {
        plan.add_half(Half::Copy, &call, serial, |channel| channel)?;
    }
    Ok(())
}

/// The copies that a rank's messages to itself come to. None where both buffers are the same.
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

/// The calls, with AlltoAll, Gather and Scatter as the messages that they consist of; none where they have schedules.
pub(super) fn expanded(target: &impl LaunchTarget, calls: &[(&Call, u32)]) -> Option<Vec<(Call, u32)>> {
    let nranks = target.nranks() as u32;
    let is_messages =
        |func| matches!(func, Func::AlltoAll | Func::Gather | Func::Scatter) && !target.schedules().has(func);
    if !calls.iter().any(|(call, _)| is_messages(call.func)) {
        return None;
    }
    let expand = |(call, serial): &(&Call, u32)| match is_messages(call.func) {
        true => messages(call, target.rank() as u32, nranks).into_iter().map(|half| (half, *serial)).collect(),
        false => vec![((*call).clone(), *serial)],
    };
    Some(calls.iter().flat_map(expand).collect())
}

/// A rank's halves of the messages that a call consists of: every block of the input goes to a rank, every block of
/// the output comes from one.
fn messages(call: &Call, me: u32, nranks: u32) -> Vec<Call> {
    let root = call.root as u32;
    let half = |func, peer: u32, send, recv| Call { func, root: peer as i32, send, recv, config: None, ..call.clone() };
    let block = |buffer: u64, place: u32| buffer + u64::from(place) * call.bytes();
    let (mut all, everyone) = (Vec::new(), 0..nranks);
    match shape(call.func, nranks) {
        Shape::Uniform { input: 1, .. } => all.push(half(Func::Send, root, call.send, 0)),
        _ if has_input(call.func, root, me) => {
            all.extend(everyone.clone().map(|peer| half(Func::Send, peer, block(call.send, peer), 0)))
        }
        _ => {}
    }
    match shape(call.func, nranks) {
        Shape::Uniform { output: 1, .. } => all.push(half(Func::Recv, root, 0, call.recv)),
        _ if has_output(call.func, root, me) => {
            all.extend(everyone.map(|peer| half(Func::Recv, peer, 0, block(call.recv, peer))))
        }
        _ => {}
    }
    all
}
