//! The helper thread: one for all communicators of a process. It waits for letters of other processes and for times, and
//! hands both to *sources*, which have registered; it knows none of them.
//!
//! The first source starts the thread, and the last one ends it. What a source does in the thread must not wait for
//! another rank: all others wait meanwhile.
//!
//! * `letter` is what goes from process to process;
//! * `outbox` has the letters that are still to be sent, in order;
//! * `helper` is the thread.

mod helper;
mod letter;
mod outbox;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::time::Instant;

pub use helper::{Member, join};
pub use letter::Address;
pub use outbox::{Letter, Outbox};

/// Something that letters are for.
pub trait Source: Send + Sync {
    /// A letter has come; what it answers goes to `out`. `fd` is the descriptor that came with it; where it says `lost`
    /// there was one, and this process could open no more files.
    fn receive(&self, from: Address, bytes: &[u8], fd: Option<OwnedFd>, lost: bool, out: &mut Outbox);
    /// A letter cannot arrive, now or ever: its process has died, or has no such source any more.
    fn undeliverable(&self, to: Address, died: bool);
    /// Called now and then, at the latest at the time that it gave last. Gives the time of the next call; none: when there
    /// are letters, or [`Member::nudge`] asks for it.
    fn tick(&self, now: Instant, out: &mut Outbox) -> Option<Instant>;
}
