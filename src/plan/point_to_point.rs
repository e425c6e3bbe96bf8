//! Sends and receives: one schedule for each half of a message. The work item chooses the link.
//!
//! A rank's sends and its receives go on independently of each other, each in a block of its own: one that did both in
//! turn would wait for itself around a ring of ranks. The half that sends visits peers in the order of their distance
//! ahead of the rank, the half that receives in the order of their distance behind ([`send_distance`],
//! [`receive_distance`]), and messages to one peer in the order of the calls. So every rank visits the pairs in the
//! same order, and the message that is the first in it of all that are not done can always go on, whatever the number
//! of slots.
//!
//! Where the sender's buffer is registered, the receiver may read it in place of slots ([`offer`], [`pull`]). A sender
//! then waits for its receiver as with links of one slot, so the order is still enough.

use super::layout::step_flag::{IN, NO_DATA, OFFER, OUT, POST, PULL};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;

/// When the half that sends visits a peer: in increasing order.
pub fn send_distance(rank: u32, peer: u32, nranks: u32) -> u32 {
    (peer + nranks - rank) % nranks
}

/// When the half that receives visits a peer: in increasing order.
pub fn receive_distance(rank: u32, peer: u32, nranks: u32) -> u32 {
    (rank + nranks - peer) % nranks
}

/// Sends the input. The steps are the same for all peers: link 0 is the one to the peer.
///
/// # Errors
/// None in practice: the step fits.
pub fn send(rank: u32, peer: u32) -> Result<Schedule, Error> {
    one_step(rank, Draft { flags: IN, send: &[peer], ..Draft::ONCE })
}

/// Receives the output. The steps are the same for all peers: link 0 is the one from the peer.
///
/// # Errors
/// None in practice: the step fits.
pub fn receive(rank: u32, peer: u32) -> Result<Schedule, Error> {
    one_step(rank, Draft { flags: OUT, recv: &[peer], ..Draft::ONCE })
}

/// Offers the input to the peer, and waits until the peer has taken it, or will not.
///
/// # Errors
/// None in practice: the steps fit.
pub fn offer(rank: u32, peer: u32) -> Result<Schedule, Error> {
    let mut s = one_step(rank, Draft { flags: NO_DATA | OFFER, send: &[peer], ..Draft::ONCE })?;
    s.push(Draft { flags: NO_DATA | PULL, send: &[peer], ..Draft::ONCE })?;
    Ok(s)
}

/// Receives the output straight from the peer's input, if that is what the peer's next slot offers.
///
/// # Errors
/// None in practice: the step fits.
pub fn pull(rank: u32, peer: u32) -> Result<Schedule, Error> {
    one_step(rank, Draft { flags: OUT | PULL, recv: &[peer], ..Draft::ONCE })
}

/// Copies the input to the output: a message to oneself, or the collective of a rank that is alone. The operator's
/// scalars are applied.
///
/// # Errors
/// None in practice: the step fits.
pub fn copy(rank: u32) -> Result<Schedule, Error> {
    one_step(rank, Draft { flags: IN | OUT | POST, ..Draft::ONCE })
}

fn one_step(rank: u32, draft: Draft<'_>) -> Result<Schedule, Error> {
    let mut s = Schedule::new(rank, LinkClass::Peer, 1, 1);
    s.push(draft)?;
    Ok(s)
}

#[cfg(test)]
mod tests;
