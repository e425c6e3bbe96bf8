//! The carrier for processes of one host: their mailboxes, and descriptors with messages. Messages to one mailbox keep
//! their order; a mailbox that is full holds up no other.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{Address, Message, Undeliverable};
use super::outbox::Lost;
use crate::sys::{Mailbox, MailboxName, Sent};

/// How long a full mailbox is left alone.
const RETRY: Duration = Duration::from_millis(1);
/// The same after many tries in vain: the receiver is stopped.
const RETRY_MAX: Duration = Duration::from_millis(50);
/// Full mailboxes that are tried again at a time. Where all ranks of a host send to all, every try of a full one costs
/// as much as a message, and most are in vain.
const TRIES: usize = 16;

/// A message on its way.
struct QueuedDatagram {
    bytes: Vec<u8>,
    message: Message,
    /// Its source is gone: it is sent now or not at all.
    last: bool,
}

/// Messages to mailboxes.
pub(super) struct Unix {
    name: MailboxName,
    /// In order, for each mailbox.
    waiting: BTreeMap<MailboxName, VecDeque<QueuedDatagram>>,
    /// Mailboxes with messages that have not been tried.
    fresh: VecDeque<MailboxName>,
    /// Mailboxes that were full; those that were tried longest ago come first.
    full: VecDeque<MailboxName>,
    /// When full ones are tried again, and how often that was in vain.
    retry: Option<Instant>,
    in_vain: u32,
    /// Messages of the process to itself.
    own: VecDeque<Message>,
}

impl Unix {
    /// Of the process that has this mailbox.
    pub fn new(name: MailboxName) -> Unix {
        Unix {
            name,
            waiting: BTreeMap::new(),
            fresh: VecDeque::new(),
            full: VecDeque::new(),
            retry: None,
            in_vain: 0,
            own: VecDeque::new(),
        }
    }

    /// Adds a message, unless the same one waits already: who asks again and again asks once at a time.
    pub fn add(&mut self, mailbox: MailboxName, message: Message, bytes: Vec<u8>) {
        if mailbox == self.name {
            return self.keep_own(message);
        }
        let is_new = !self.waiting.contains_key(&mailbox);
        let waiting = self.waiting.entry(mailbox).or_default();
        let same = |other: &QueuedDatagram| other.message.fd.is_none() && other.bytes == bytes;
        if message.fd.is_some() || !waiting.iter().any(same) {
            waiting.push_back(QueuedDatagram { bytes, message, last: false });
            if is_new {
                self.fresh.push_back(mailbox);
            }
        }
    }

    /// A source is gone: its messages go now, or not at all.
    pub fn last_messages(&mut self, from: Address) {
        let of_source = self.waiting.values_mut().flatten().filter(|waiting| waiting.message.from == from);
        of_source.for_each(|waiting| waiting.last = true);
        // Full ones are tried now.
        self.retry = self.retry.map(|_| Instant::now());
        self.fresh.extend(self.full.drain(..));
    }

    /// Whether there is something to do at once.
    pub fn is_fresh(&self) -> bool {
        !self.fresh.is_empty() || !self.own.is_empty()
    }

    /// Sends what there is room for; when to come again, where some mailboxes are full.
    pub fn send(&mut self, mailbox: &Mailbox, now: Instant, lost: &mut Vec<Lost>) -> Option<Instant> {
        let again = self.retry.is_some_and(|retry| now >= retry);
        let tried = self.full.len().min(TRIES);
        let mut due: Vec<MailboxName> = self.fresh.drain(..).collect();
        due.extend(self.full.drain(..if again { tried } else { 0 }));
        let mut moved = false;
        for to in due {
            let Some(waiting) = self.waiting.get_mut(&to) else { continue };
            moved |= send_all(mailbox, &to, waiting, lost);
            match waiting.is_empty() {
                true => drop(self.waiting.remove(&to)),
                false => self.full.push_back(to),
            }
        }
        if self.full.is_empty() {
            (self.retry, self.in_vain) = (None, 0);
        } else if again || self.retry.is_none() {
            self.in_vain = if moved { 0 } else { self.in_vain + 1 };
            self.retry = Some(now + (RETRY * (self.in_vain + 1)).min(RETRY_MAX));
        }
        self.retry
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

/// Sends messages to a mailbox as long as it has room; whether it had any.
fn send_all(mailbox: &Mailbox, to: &MailboxName, waiting: &mut VecDeque<QueuedDatagram>, lost: &mut Vec<Lost>) -> bool {
    let mut moved = false;
    while let Some(QueuedDatagram { bytes, message, .. }) = waiting.front() {
        match mailbox.send(to, bytes, message.fd.as_ref().map(|fd| fd.as_fd())) {
            Ok(Sent::Yes) => moved = true,
            Ok(Sent::Later) => break,
            Ok(Sent::Gone) => lost.push(Lost::of(message, Undeliverable::Died)),
            Err(error) => {
                log::info!(target: "INIT", "a message to rank {} is lost: {error}", message.to.rank);
                lost.push(Lost::of(message, Undeliverable::Failed(error)));
            }
        }
        waiting.pop_front();
    }
    // There is no room for these, and there was to be no other try.
    waiting.retain(|waiting| !waiting.last);
    moved
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
