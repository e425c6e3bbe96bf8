//! The helper thread: one for all communicators of a process. It waits for messages of other processes and for times,
//! and hands both to *sources*, which have registered; it knows none of them.
//!
//! The first source starts the thread, and the last one ends it. What a source does in the thread must not wait for
//! another rank: all others wait meanwhile.
//!
//! * `message` is what goes from process to process;
//! * `outbox` has the messages that are still to be sent, in order;
//! * `source` is what they are for;
//! * `helper` is the thread.

mod helper;
mod message;
mod outbox;
mod source;
#[cfg(test)]
mod tests;

pub use helper::{Member, join};
pub use message::Address;
pub use outbox::{Message, Outbox};
pub use source::Source;
