//! What the event loop serves.

use std::time::Instant;

use super::message::{Address, Message, Undeliverable};
use super::outbox::Outbox;
use super::stream::SecureStream;
use crate::sys::Ready;

/// Something that the event loop serves: it has messages, descriptors and times, and gets a turn when one of them is
/// there. Nothing of it may wait for another rank: all others wait meanwhile.
pub trait Source: Send + Sync {
    /// A message has come; what it answers goes to `out`.
    fn receive(&self, message: Message, out: &mut Outbox);
    /// A message cannot arrive, or may not have. That a process is gone may also be told of messages that it has
    /// taken just before, and of processes to which this one stays connected ([`super::Registration::keep`]).
    fn undeliverable(&self, to: Address, why: Undeliverable);
    /// Somebody has connected a stream for it, with this token ([`super::TcpAddress::stream`]). It does not wait.
    fn connected(&self, _token: u64, _stream: SecureStream) {}
    /// A descriptor is ready that it has watched ([`super::Registration::watch`]) with this token.
    fn ready(&self, _token: u32, _ready: Ready, _out: &mut Outbox) {}
    /// Its turn: when it has joined, after a message or a ready descriptor, when it was woken, at the time that it gave
    /// last, and as long as it says that it moves something.
    fn progress(&self, now: Instant, out: &mut Outbox) -> Progress;
}

/// What came of a source's turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It has moved something, and wants another turn at once.
    pub moved: bool,
    /// When it wants another turn at the latest; none: when there is something for it.
    pub next: Option<Instant>,
}

impl Progress {
    /// Nothing was moved.
    pub fn at(next: Option<Instant>) -> Progress {
        Progress { moved: false, next }
    }
}
