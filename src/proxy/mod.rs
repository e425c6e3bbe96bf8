//! The process's event loop: one thread for all communicators of a process. It waits for messages of other processes,
//! for descriptors, for times and for wakeups, and hands them to *sources*, which have registered; it knows none of
//! them. While sources move data it gives them turn after turn; while none does, it blocks and costs nothing.
//!
//! The first source starts the thread, and the last one ends it. What a source does in the thread must not wait for
//! another rank: all others wait meanwhile.
//!
//! * `message` is what goes from process to process;
//! * `outbox` has the messages that are still to be sent, in order, and the two carriers: `unix`, mailboxes of one
//!   host, and `tcp`, connections to anywhere, whose bytes are `frame`s;
//! * `source` is what the loop serves;
//! * `stream` is what sources take over of connections;
//! * `event_loop` is the thread.

mod event_loop;
mod frame;
mod message;
mod outbox;
mod source;
mod stream;
mod tcp;
#[cfg(test)]
pub(crate) mod tests;
mod unix;

pub use event_loop::{MOVERS_MAX, Registration, join, join_mover};
pub use message::{Address, Content, Destination, ListenAddress, Location, Message, TcpAddress, Undeliverable};
pub use outbox::Outbox;
pub use source::{Progress, Source};
pub use stream::{ConnectingStream, SecureStream};
