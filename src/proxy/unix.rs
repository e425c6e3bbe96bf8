//! The carrier for processes of one host: their mailboxes, and descriptors with messages. Messages to one mailbox keep
//! their order; a mailbox that is full holds up no other.

use std::collections::{HashSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;

use super::message::{Address, Message, Undeliverable};
use super::outbox::Lost;
use crate::sys::{Mailbox, MailboxName, Sent};

/// A message on its way.
struct QueuedDatagram {
    mailbox: MailboxName,
    bytes: Vec<u8>,
    message: Message,
    /// Its source is gone: it is sent now or not at all.
    last: bool,
}

/// Messages to mailboxes.
pub(super) struct Unix {
    name: MailboxName,
    waiting: VecDeque<QueuedDatagram>,
    /// Messages of the process to itself.
    own: VecDeque<Message>,
    /// There are messages that [`Unix::send`] has not seen.
    fresh: bool,
}

impl Unix {
    /// Of the process that has this mailbox.
    pub fn new(name: MailboxName) -> Unix {
        Unix { name, waiting: VecDeque::new(), own: VecDeque::new(), fresh: false }
    }

    /// Adds a message, unless the same one waits already: who asks again and again asks once at a time.
    pub fn add(&mut self, mailbox: MailboxName, message: Message, bytes: Vec<u8>) {
        let same =
            |other: &QueuedDatagram| other.message.fd.is_none() && other.mailbox == mailbox && other.bytes == bytes;
        if message.fd.is_some() || !self.waiting.iter().any(same) {
            self.waiting.push_back(QueuedDatagram { mailbox, bytes, message, last: false });
            self.fresh = true;
        }
    }

    /// A source is gone: its messages go now, or not at all.
    pub fn last_messages(&mut self, from: Address) {
        self.waiting.iter_mut().filter(|waiting| waiting.message.from == from).for_each(|waiting| waiting.last = true);
    }

    /// Whether there is something to do at once.
    pub fn is_fresh(&self) -> bool {
        self.fresh || !self.own.is_empty()
    }

    /// Sends what there is room for; whether some mailboxes are full.
    pub fn send(&mut self, mailbox: &Mailbox, lost: &mut Vec<Lost>) -> bool {
        let mut full: HashSet<MailboxName> = HashSet::new();
        self.fresh = false;
        for waiting in std::mem::take(&mut self.waiting) {
            let QueuedDatagram { mailbox: to, bytes, message, last } = &waiting;
            if *to == self.name {
                self.keep_own(waiting.message);
                continue;
            }
            let sent = match full.contains(to) {
                true => Ok(Sent::Later),
                false => mailbox.send(to, bytes, message.fd.as_ref().map(|fd| fd.as_fd())),
            };
            match sent {
                Ok(Sent::Yes) => {}
                Ok(Sent::Later) if *last => {}
                Ok(Sent::Later) => {
                    full.insert(*to);
                    self.waiting.push_back(waiting);
                }
                Ok(Sent::Gone) => lost.push(Lost::of(message, Undeliverable::Died)),
                Err(error) => {
                    log::info!(target: "INIT", "a message to rank {} is lost: {error}", message.to.rank);
                    lost.push(Lost::of(message, Undeliverable::Failed(error)));
                }
            }
        }
        !full.is_empty()
    }

    /// A message to a source of this process needs no socket.
    fn keep_own(&mut self, mut message: Message) {
        let copy = message.fd.take().map(|fd| fd.try_clone());
        message.lost = matches!(copy, Some(Err(_)));
        message.fd = copy.and_then(Result::ok).map(Arc::new);
        self.own.push_back(message);
    }

    /// The next message of the process to itself.
    pub fn take_own(&mut self) -> Option<Message> {
        self.own.pop_front()
    }
}

/// The next message in a mailbox; none where it is empty. What is no message is left out.
pub(super) fn receive(mailbox: &Mailbox) -> Option<Message> {
    loop {
        match mailbox.take() {
            Ok(None) => return None,
            Ok(Some(datagram)) => {
                let message = Message::decode_datagram(&datagram.bytes, datagram.fd, datagram.lost);
                if message.is_some() {
                    return message;
                }
            }
            Err(error) => {
                log::info!(target: "INIT", "the mailbox of this process fails: {error}");
                return None;
            }
        }
    }
}
