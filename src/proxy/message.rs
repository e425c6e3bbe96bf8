//! What goes from process to process, as bytes. Pure.

use serde::{Deserialize, Serialize};

use crate::sys::MailboxName;

/// What a datagram of this library begins with, so that a stranger's is none.
const MAGIC: u32 = 0x6f78_7031;

/// A source, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// A number that no other source has.
    pub key: u64,
    /// The rank that it is in its communicator.
    pub rank: u32,
}

/// Whom a datagram is for, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope {
    magic: u32,
    /// The source that it is for.
    pub to: Address,
    /// The source that it comes from.
    pub from: Address,
    /// The mailbox of the sender.
    pub reply: MailboxName,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Content {
    /// For the source.
    Bytes(Vec<u8>),
    /// The other way round: there is no source where a message went.
    NoSource,
}

impl Envelope {
    pub fn new(to: Address, from: Address, reply: MailboxName, content: Content) -> Envelope {
        Envelope { magic: MAGIC, to, from, reply, content }
    }

    pub fn encode(&self) -> Vec<u8> {
        // Nothing of it can fail: it writes to memory.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// The envelope in some bytes; none where they are something else.
    pub fn decode(bytes: &[u8]) -> Option<Envelope> {
        postcard::from_bytes::<Envelope>(bytes).ok().filter(|envelope| envelope.magic == MAGIC)
    }

    /// What goes back where there is no such source; nothing goes back for that itself.
    pub fn bounce(&self, reply: MailboxName) -> Option<Envelope> {
        matches!(self.content, Content::Bytes(_)).then(|| Envelope::new(self.from, self.to, reply, Content::NoSource))
    }
}
