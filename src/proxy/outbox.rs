//! Messages that are to be sent. Those to one mailbox keep their order; a mailbox that is full holds up no other.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::message::{Address, Content, Envelope};
use crate::sys::{Datagram, Mailbox, MailboxName, Sent};

/// A message from a source to another one.
#[derive(Clone)]
pub struct Message {
    /// The mailbox of that one's process.
    pub mailbox: MailboxName,
    /// Whom it is for.
    pub to: Address,
    /// What it says.
    pub bytes: Vec<u8>,
    /// What goes with it; it stays open until the message is sent.
    pub fd: Option<Arc<OwnedFd>>,
}

/// A message on its way.
struct Waiting {
    mailbox: MailboxName,
    from: Address,
    to: Address,
    bytes: Vec<u8>,
    fd: Option<Arc<OwnedFd>>,
    /// Its source is gone: it is sent now or not at all.
    last: bool,
}

/// The messages of a process that wait to be sent.
pub struct Outbox {
    from: Address,
    reply: MailboxName,
    waiting: VecDeque<Waiting>,
    /// Messages of the process to itself.
    own: VecDeque<Datagram>,
    /// There are messages that [`Outbox::send`] has not seen.
    fresh: bool,
}

/// What came of sending.
#[derive(Default)]
pub(super) struct Sending {
    /// Messages that can never arrive: who sent them, and to whom.
    pub dead: Vec<(Address, Address)>,
    /// Some mailboxes are full.
    pub full: bool,
}

impl Outbox {
    pub(super) fn new(reply: MailboxName) -> Outbox {
        let nobody = Address { key: 0, rank: 0 };
        Outbox { from: nobody, reply, waiting: VecDeque::new(), own: VecDeque::new(), fresh: false }
    }

    /// Messages are from this source from now on.
    pub(super) fn of(&mut self, from: Address) -> &mut Outbox {
        self.from = from;
        self
    }

    /// Adds a message, unless the same one waits already: who asks again and again asks once at a time.
    pub fn add(&mut self, message: Message) {
        let Message { mailbox, to, bytes, fd } = message;
        let envelope = Envelope::new(to, self.from, self.reply, Content::Bytes(bytes));
        self.push(mailbox, self.from, to, envelope.encode(), fd);
    }

    /// Adds what says that there is no source.
    pub(super) fn bounce(&mut self, envelope: &Envelope) {
        if let Some(back) = envelope.bounce(self.reply) {
            self.push(envelope.reply, envelope.to, envelope.from, back.encode(), None);
        }
    }

    fn push(&mut self, mailbox: MailboxName, from: Address, to: Address, bytes: Vec<u8>, fd: Option<Arc<OwnedFd>>) {
        let same = |other: &Waiting| other.fd.is_none() && other.mailbox == mailbox && other.bytes == bytes;
        if fd.is_some() || !self.waiting.iter().any(same) {
            self.waiting.push_back(Waiting { mailbox, from, to, bytes, fd, last: false });
            self.fresh = true;
        }
    }

    /// A source is gone: its messages go now, or not at all.
    pub(super) fn last_messages(&mut self, from: Address) {
        self.waiting.iter_mut().filter(|message| message.from == from).for_each(|message| message.last = true);
    }

    /// Whether there is something to do at once.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh || !self.own.is_empty()
    }

    /// Sends what there is room for.
    pub(super) fn send(&mut self, mailbox: &Mailbox) -> Sending {
        let mut sending = Sending::default();
        let mut full: HashSet<MailboxName> = HashSet::new();
        self.fresh = false;
        for message in std::mem::take(&mut self.waiting) {
            if message.mailbox == self.reply {
                self.keep_own(message);
                continue;
            }
            let sent = match full.contains(&message.mailbox) {
                true => Ok(Sent::Later),
                false => mailbox.send(&message.mailbox, &message.bytes, message.fd.as_ref().map(|fd| fd.as_fd())),
            };
            match sent {
                Ok(Sent::Yes) => {}
                Ok(Sent::Later) if message.last => {}
                Ok(Sent::Later) => {
                    full.insert(message.mailbox);
                    self.waiting.push_back(message);
                }
                Ok(Sent::Gone) => sending.dead.push((message.from, message.to)),
                Err(error) => {
                    log::info!(target: "INIT", "a message to rank {} is lost: {error}", message.to.rank);
                    sending.dead.push((message.from, message.to));
                }
            }
        }
        sending.full = !full.is_empty();
        sending
    }

    /// A message to a source of this process needs no socket.
    fn keep_own(&mut self, message: Waiting) {
        let (fd, lost) = match message.fd.map(|fd| fd.try_clone()) {
            None => (None, false),
            Some(Ok(fd)) => (Some(fd), false),
            Some(Err(_)) => (None, true),
        };
        self.own.push_back(Datagram { bytes: message.bytes, fd, lost });
    }

    /// The next message of the process to itself.
    pub(super) fn take_own(&mut self) -> Option<Datagram> {
        self.own.pop_front()
    }
}
