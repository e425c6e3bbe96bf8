//! What messages are for.

use std::os::fd::OwnedFd;
use std::time::Instant;

use super::message::Address;
use super::outbox::Outbox;

/// Something that messages are for.
pub trait Source: Send + Sync {
    /// A message has come; what it answers goes to `out`. `fd` is the descriptor that came with it; where it says
    /// `lost` there was one, and this process could open no more files.
    fn receive(&self, from: Address, bytes: &[u8], fd: Option<OwnedFd>, lost: bool, out: &mut Outbox);
    /// A message cannot arrive, now or ever: its process has died, or has no such source any more.
    fn undeliverable(&self, to: Address, died: bool);
    /// Called when it has joined and now and then, at the latest at the time that it gave last. Gives the time of the
    /// next call; none: when there are messages.
    fn tick(&self, now: Instant, out: &mut Outbox) -> Option<Instant>;
}
