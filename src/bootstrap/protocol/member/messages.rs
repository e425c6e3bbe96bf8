//! Messages from rank to rank: one connection per ordered pair, opened at the first message and kept.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::super::wire::{Decoder, Encoder, FrameKind, Malformed};
use super::super::{Conn, MAX_BLOCK};
use super::dial::Target;
use super::{Error, Failure, Link, Member, Purpose, Role};

/// The most bytes of messages that wait for their receive call.
const MAX_WAITING: usize = 256 << 20;

#[derive(Default)]
pub(super) struct Messages {
    /// Connections to ranks that this one sends to.
    out: BTreeMap<u32, Conn>,
    /// What waits until a connection is answered.
    queue: BTreeMap<u32, VecDeque<Arc<[u8]>>>,
    /// What has come, by sender and tag, in the order of sending.
    inbox: BTreeMap<(u32, u64), VecDeque<Vec<u8>>>,
    waiting_bytes: usize,
    /// The receive in progress.
    awaited: Option<(u32, u64)>,
    /// Ranks whose connections have ended: why, and whether they had said so.
    gone: BTreeMap<u32, (String, bool)>,
}

impl Messages {
    pub(super) fn connecting(&mut self, rank: u32, conn: Conn) {
        self.out.insert(rank, conn);
    }

    pub(super) fn awaited(&self) -> Option<u32> {
        self.awaited.map(|(rank, _)| rank)
    }

    /// Whether the message that is waited for must still come from `rank`.
    pub(super) fn waits_for(&self, rank: u32) -> bool {
        self.awaited.is_some_and(|awaited| awaited.0 == rank && !self.inbox.contains_key(&awaited))
    }

    pub(super) fn queued_for(&self, rank: u32) -> bool {
        self.queue.contains_key(&rank)
    }

    /// Gives up the send or the receive in progress.
    pub(super) fn stop(&mut self) {
        self.queue.clear();
        self.awaited = None;
    }

    pub(super) fn gone(&mut self, rank: u32, why: &str, bye: bool) {
        self.gone.entry(rank).or_insert((why.to_string(), bye));
    }

    pub(super) fn heard_of_end(&self, rank: u32) -> Option<(String, bool)> {
        self.gone.get(&rank).cloned()
    }

    pub(super) fn why_gone(&self, rank: u32) -> (String, bool) {
        self.heard_of_end(rank).unwrap_or(("it said goodbye".to_string(), true))
    }

    fn put(&mut self, from: u32, tag: u64, bytes: Vec<u8>) {
        self.waiting_bytes += bytes.len();
        self.inbox.entry((from, tag)).or_default().push_back(bytes);
    }

    fn take(&mut self, from: u32, tag: u64) -> Option<Vec<u8>> {
        let queue = self.inbox.get_mut(&(from, tag))?;
        let bytes = queue.pop_front()?;
        if queue.is_empty() {
            self.inbox.remove(&(from, tag));
        }
        self.waiting_bytes -= bytes.len();
        Some(bytes)
    }
}

impl Member {
    /// Queues a message for a rank; [`Member::sent`] says when it is on its way.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank or a size out of range; the first error of the communicator; `Remote` if
    /// the rank has left.
    pub fn send_message(&mut self, now: Duration, peer: u32, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.trouble = None;
        self.check_peer(peer)?;
        if bytes.len() > MAX_BLOCK {
            return Err(Error::InvalidArgument(format!(
                "a message of {} bytes to rank {peer}, {MAX_BLOCK} are allowed",
                bytes.len()
            )));
        }
        if peer == self.config.rank {
            self.messages.put(peer, tag, bytes.to_vec());
            return Ok(());
        }
        self.limit = self.config.timeout.map(|timeout| now + timeout);
        let frame = Encoder::new(FrameKind::Message, 8 + bytes.len()).u64(tag).raw(bytes).finish();
        self.messages.queue.entry(peer).or_default().push_back(frame);
        self.connect_peer(now, peer);
        self.flush_messages(peer);
        self.error().cloned().map_or(Ok(()), Err)
    }

    /// Whether no message to a rank waits for its connection any more.
    pub fn sent(&self, peer: u32) -> bool {
        !self.messages.queue.contains_key(&peer)
    }

    /// Begins to wait for a message; it comes by [`Member::take_message`].
    ///
    /// # Errors
    /// As [`Member::send_message`].
    pub fn start_receive(&mut self, now: Duration, peer: u32, tag: u64) -> Result<(), Error> {
        self.trouble = None;
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if peer == self.config.rank && !self.messages.inbox.contains_key(&(peer, tag)) {
            return Err(Error::InvalidUsage(format!(
                "rank {peer} waits for a message of tag {tag} from itself that it has not sent"
            )));
        }
        self.messages.awaited = Some((peer, tag));
        if self.messages.inbox.contains_key(&(peer, tag)) {
            return Ok(());
        }
        self.limit = self.config.timeout.map(|timeout| now + timeout);
        if self.receives_from(peer) {
            return Ok(());
        }
        self.check_peer(peer)?;
        // The connection tells if the peer dies, also one that this rank has no other connection with.
        self.connect_peer(now, peer);
        self.error().cloned().map_or(Ok(()), Err)
    }

    /// The message that [`Member::start_receive`] waits for, once it is there.
    pub fn take_message(&mut self) -> Option<Vec<u8>> {
        let (peer, tag) = self.messages.awaited?;
        let bytes = self.messages.take(peer, tag)?;
        self.messages.awaited = None;
        self.limit = None;
        Some(bytes)
    }

    /// The time limit of a send is over with it.
    pub fn end_send(&mut self) {
        self.limit = None;
    }

    fn check_peer(&mut self, peer: u32) -> Result<(), Error> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        if peer >= self.config.nranks {
            return Err(Error::InvalidArgument(format!(
                "rank {peer} is out of range, there are {} ranks",
                self.config.nranks
            )));
        }
        if let Some((why, bye)) = self.messages.gone.get(&peer).cloned() {
            let failure = self.absence(peer, &why, bye);
            self.fail_with(&failure);
            return Err(failure.error());
        }
        Ok(())
    }

    fn connect_peer(&mut self, now: Duration, peer: u32) {
        let target = Target::Peer(peer, Purpose::Messages);
        if self.messages.out.contains_key(&peer) || self.dials.has(target) {
            return;
        }
        if let Err(bad) = self.dial(now, peer, Purpose::Messages) {
            self.fail_with(&Failure::remote(Some(peer), bad.0));
        }
    }

    /// Sends what waits for a rank, if it has answered.
    pub(super) fn flush_messages(&mut self, peer: u32) {
        let Some(conn) = self.messages.out.get(&peer).copied() else {
            return;
        };
        if !matches!(self.links.get(&conn), Some(Link { role: Role::Out(_, _, true), .. })) {
            return;
        }
        for frame in self.messages.queue.remove(&peer).unwrap_or_default() {
            self.send(conn, frame);
        }
    }

    pub(super) fn message(&mut self, from: u32, payload: &[u8]) -> Result<(), Malformed> {
        let mut decoder = Decoder(payload);
        let tag = decoder.u64()?;
        if self.messages.waiting_bytes + decoder.0.len() > MAX_WAITING {
            return Err(Malformed(format!("messages that nobody receives, beyond {MAX_WAITING} bytes")));
        }
        self.messages.put(from, tag, decoder.0.to_vec());
        Ok(())
    }
}
