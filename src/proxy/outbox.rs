//! Messages that are to be sent, and which carrier takes them.

use std::sync::Arc;
use std::time::Instant;

use super::message::{Address, Destination, Location, Message, Undeliverable};
use super::tcp::{KeyedListener, Tcp};
use super::unix::Unix;
use crate::error::Error;
use crate::sys::{MESSAGE_MAX, Mailbox, MailboxName, Poller, Ready};

/// The messages of a process that wait to be sent.
pub struct Outbox {
    from: Address,
    reply: Location,
    unix: Unix,
    pub(super) tcp: Tcp,
    lost: Vec<Lost>,
}

/// A message that cannot arrive.
pub(super) struct Lost {
    pub from: Address,
    pub to: Address,
    pub why: Undeliverable,
}

impl Lost {
    pub fn of(message: &Message, why: Undeliverable) -> Lost {
        Lost { from: message.from, to: message.to, why }
    }
}

impl Outbox {
    pub(super) fn new(mailbox: MailboxName) -> Outbox {
        let (nobody, reply) = (Address { key: 0, rank: 0 }, Location { mailbox, tcp: None });
        Outbox { from: nobody, reply, unix: Unix::new(mailbox), tcp: Tcp::default(), lost: Vec::new() }
    }

    /// Messages are from this source from now on, which has its answers there.
    pub(super) fn of(&mut self, from: Address, reply: Location) -> &mut Outbox {
        self.from = from;
        self.reply = reply;
        self
    }

    /// Adds a message. What cannot go is told by [`super::Source::undeliverable`]: one that is too long, a descriptor
    /// that would have to go by TCP, and what is too much for one process.
    pub fn add(&mut self, message: Message) {
        let Outbox { from, reply, .. } = *self;
        self.push(Message { from, reply, ..message });
    }

    /// Adds a message that says whose it is.
    pub(super) fn push(&mut self, message: Message) {
        let bytes = message.encode();
        let refused = if bytes.len() > MESSAGE_MAX {
            let text =
                format!("a message to rank {} has {} bytes, more than {MESSAGE_MAX}", message.to.rank, bytes.len());
            Some(Error::Internal(text))
        } else if message.fd.is_some() && !matches!(message.destination, Destination::Unix(_)) {
            let text = format!("a message to rank {} has a file descriptor, which cannot go by TCP", message.to.rank);
            Some(Error::Internal(text))
        } else {
            match message.destination {
                Destination::Unix(mailbox) => return self.unix.add(mailbox, message, bytes),
                Destination::Tcp(to) => self.tcp.add(to, (message.from, message.to), &bytes).err(),
                Destination::Back(connection) => self.tcp.answer(connection, (message.from, message.to), &bytes).err(),
            }
        };
        self.lost.extend(refused.map(|error| Lost::of(&message, Undeliverable::Failed(error))));
    }

    /// A source is gone. Its messages to mailboxes go now, or not at all; those by TCP as far as they can.
    pub(super) fn last_messages(&mut self, from: Address) {
        self.unix.last_messages(from);
        self.tcp.forget(from);
    }

    /// Whether there is something to do at once.
    pub(super) fn is_fresh(&self) -> bool {
        self.unix.is_fresh() || self.tcp.is_fresh() || !self.lost.is_empty()
    }

    /// A connection is ready; the messages that have come by it.
    pub(super) fn connection_ready(&mut self, id: u32, ready: Ready, poller: &Poller) -> Vec<Message> {
        self.tcp.ready(id, ready, poller, &mut self.lost)
    }

    /// Somebody connects.
    pub(super) fn accept(&mut self, listener: &Arc<KeyedListener>, poller: &Poller) {
        self.tcp.accept(listener, poller, &mut self.lost);
    }

    /// Sends what there is room for, and does what the time has come for by `now`; when to come again, where
    /// somebody's mailbox is full.
    pub(super) fn send(&mut self, mailbox: &Mailbox, poller: &Poller, now: Instant) -> Option<Instant> {
        self.tcp.send(poller, now, &mut self.lost);
        self.unix.send(mailbox, now, &mut self.lost)
    }

    /// What can never arrive.
    pub(super) fn take_lost(&mut self) -> Vec<Lost> {
        std::mem::take(&mut self.lost)
    }

    /// The next message of the process to itself.
    pub(super) fn take_own(&mut self) -> Option<Message> {
        self.unix.take_own()
    }
}
