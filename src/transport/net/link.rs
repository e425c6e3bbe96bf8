//! A link as the mover sees it: this rank's slots, and a connection of a network to the peer's or from them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::slots::LinkMemory;
use super::trailer::Trailer;
use crate::error::Error;
use crate::plan::SLOTS;
use crate::plan::schedule::LinkId;
use crate::plugin::network::{
    NetConnecting, NetConnection, NetListener, NetMemory, NetProperties, NetReceiver, NetRequest, NetSender, RegionId,
    Watched,
};
use crate::sys::Ready;
use crate::transport::shm::HostSegment;

/// A link that the mover serves. It is moved by one thread at a time.
pub(in crate::transport) struct MovedLink {
    pub id: LinkId,
    /// The rank at the other end.
    pub peer: u32,
    memory: LinkMemory,
    /// All memory of this end: address and bytes.
    segment: (u64, usize),
    side: LinkSide,
    /// Why it is over.
    trouble: Option<String>,
    /// While it waits for the peer to connect: when that is pinged next, and how long after that again.
    ping: (Instant, Duration),
    /// Something may be there: what a connection with descriptors has is not asked for else.
    eager: bool,
    // What links lie in; it lives as long as this, and goes after the connection.
    _memory: Arc<Mutex<HostSegment>>,
}

/// What a link's end does.
pub(in crate::transport) enum LinkSide {
    Connecting(Box<dyn NetConnecting>),
    Sending(SendingEnd),
    Listening(Box<dyn NetListener>),
    Receiving(ReceivingEnd),
    Over,
}

pub(in crate::transport) struct SendingEnd {
    sender: Box<dyn NetSender>,
    region: RegionId,
    requests: VecDeque<NetRequest>,
    /// Slots that were given to the network, and that are free again.
    sent: u64,
    moved: u64,
    /// The peer was told that this end has left.
    left: bool,
}

pub(in crate::transport) struct ReceivingEnd {
    receiver: Box<dyn NetReceiver>,
    region: RegionId,
    requests: VecDeque<NetRequest>,
    /// Slots that were given to the network, and that have been filled.
    given: u64,
    filled: u64,
    /// The peer has left.
    ended: bool,
    /// The peer was told that this end has left.
    left: bool,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::transport) struct LinkTurn {
    /// Something was moved.
    pub moved: bool,
    /// The peer, who sends, is to be told that this end has left.
    pub tell_left: bool,
    /// There will be no connection.
    pub unconnected: bool,
    /// The peer, who has not connected, is to be pinged.
    pub ping: bool,
}

/// How long a link waits for its connection before the peer is pinged; each time twice as long again.
const PING: Duration = Duration::from_secs(1);
const LONGEST_PING: Duration = Duration::from_secs(64);

fn region(connection: &mut dyn NetConnection, (address, bytes): (u64, usize)) -> Result<RegionId, Error> {
    // SAFETY: the memory lives as long as the link, which drops the connection first.
    unsafe { connection.register(NetMemory { address, bytes, kind: NetProperties::HOST }) }
}

/// Whether it is time for a ping; the next one comes later.
fn is_due((at, pause): &mut (Instant, Duration)) -> bool {
    let now = Instant::now();
    let due = now >= *at;
    if due {
        *pause = (*pause * 2).min(LONGEST_PING);
        *at = now + *pause;
    }
    due
}

impl SendingEnd {
    fn new(mut sender: Box<dyn NetSender>, segment: (u64, usize)) -> Result<SendingEnd, Error> {
        let region = region(&mut *sender, segment)?;
        let requests = VecDeque::with_capacity(SLOTS + 1);
        Ok(SendingEnd { sender, region, requests, sent: 0, moved: 0, left: false })
    }

    fn turn(&mut self, memory: &LinkMemory, eager: &mut bool) -> Result<bool, Error> {
        let mut moved = self.post(memory)?;
        // Room may have come meanwhile, and nobody says so any more.
        *eager |= moved || self.sender.next_look().is_some_and(|at| at <= Instant::now());
        while let Some(request) = self.requests.front().filter(|_| *eager) {
            if self.sender.test(*request)?.is_none() {
                *eager = self.sender.is_polled();
                break;
            }
            self.requests.pop_front();
            if self.moved < self.sent {
                // The network does not need the slot any more.
                self.moved += 1;
                memory.post(memory.consumed, self.moved);
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Sends what kernels have posted.
    fn post(&mut self, memory: &LinkMemory) -> Result<bool, Error> {
        let (posted, mut moved) = (memory.value(memory.posted), false);
        while self.sent < posted && self.requests.len() < SLOTS {
            let (number, signature) = (self.sent, memory.signature(self.sent).load(Ordering::Relaxed));
            let trailer = Trailer::Slot { number, signature };
            if !self.send(memory, memory.bytes(number), trailer)? {
                return Ok(moved);
            }
            self.sent += 1;
            moved = true;
        }
        // What was posted before goes first, and no slot is posted any more.
        let all = self.sent == posted && self.requests.is_empty();
        if all && !self.left && memory.has_left(memory.posted) && memory.value(memory.posted) == posted {
            self.left = self.send(memory, 0, Trailer::Left { number: self.sent })?;
            moved |= self.left;
        }
        Ok(moved)
    }

    fn send(&mut self, memory: &LinkMemory, bytes: u32, trailer: Trailer) -> Result<bool, Error> {
        let buffer = memory.close_slot(self.sent, bytes, trailer, self.region);
        // SAFETY: the slot is not written again before it is free, and the memory lives as long as the link.
        let request = unsafe { self.sender.send(buffer)? };
        self.requests.extend(request);
        Ok(request.is_some())
    }

    /// Whether kernels have posted what is not on its way yet.
    fn is_behind(&self, memory: &LinkMemory) -> bool {
        self.moved < memory.value(memory.posted) || !self.requests.is_empty()
    }
}

impl ReceivingEnd {
    fn new(mut receiver: Box<dyn NetReceiver>, segment: (u64, usize)) -> Result<ReceivingEnd, Error> {
        let region = region(&mut *receiver, segment)?;
        let requests = VecDeque::with_capacity(SLOTS);
        Ok(ReceivingEnd { receiver, region, requests, given: 0, filled: 0, ended: false, left: false })
    }

    fn turn(&mut self, memory: &LinkMemory, eager: &mut bool) -> Result<LinkTurn, Error> {
        if self.ended {
            return Ok(LinkTurn::default());
        }
        *eager |= self.give(memory)?;
        let mut turn = LinkTurn::default();
        while let Some(request) = self.requests.front().filter(|_| *eager) {
            let Some(bytes) = self.receiver.test(*request)? else {
                *eager = self.receiver.is_polled();
                break;
            };
            self.requests.pop_front();
            self.take(memory, bytes)?;
            turn.moved = true;
        }
        if !self.left && memory.has_left(memory.consumed) {
            (self.left, turn.tell_left) = (true, true);
        }
        Ok(turn)
    }

    /// Gives the network the slots that kernels have emptied.
    fn give(&mut self, memory: &LinkMemory) -> Result<bool, Error> {
        let (consumed, before) = (memory.value(memory.consumed), self.given);
        while self.given < consumed + SLOTS as u64 {
            // SAFETY: nobody has the slot before it is posted, and the memory lives as long as the link.
            let request = unsafe { self.receiver.receive(memory.whole(self.given, self.region))? };
            let Some(request) = request else { break };
            self.requests.push_back(request);
            self.given += 1;
        }
        Ok(self.given > before)
    }

    /// A slot is full: whoever waits for it is told.
    fn take(&mut self, memory: &LinkMemory, bytes: usize) -> Result<(), Error> {
        match memory.trailer(self.filled, bytes) {
            Some(Trailer::Slot { number, signature }) if number == self.filled => {
                memory.signature(number).store(signature, Ordering::Relaxed);
                self.filled += 1;
                memory.post(memory.posted, self.filled);
            }
            Some(Trailer::Left { number }) if number == self.filled => {
                self.ended = true;
                memory.leave(memory.posted);
            }
            _ => {
                let text = format!("a message of {bytes} bytes came that is not slot {} of its link", self.filled);
                return Err(Error::Remote { rank: None, text });
            }
        }
        Ok(())
    }
}

impl MovedLink {
    /// A link of this rank's, `segment` being all memory of its end.
    pub fn new(
        (id, peer): (LinkId, u32),
        side: LinkSide,
        memory: LinkMemory,
        (segment, bytes): (Arc<Mutex<HostSegment>>, usize),
    ) -> MovedLink {
        let address = segment.lock().host_address();
        let (segment, _memory) = ((address, bytes), segment);
        let ping = (Instant::now() + PING, PING);
        MovedLink { id, peer, memory, segment, side, trouble: None, ping, eager: true, _memory }
    }

    pub fn is_broken(&self) -> bool {
        matches!(self.side, LinkSide::Over)
    }

    /// It asks for turns whatever kernels do: a connection is being made.
    pub fn is_pending(&self) -> bool {
        matches!(self.side, LinkSide::Connecting(_))
    }

    /// It has no descriptors by which its mover could be woken.
    pub fn is_polled(&self) -> bool {
        match &self.side {
            LinkSide::Sending(end) => end.sender.is_polled(),
            LinkSide::Receiving(end) => end.receiver.is_polled(),
            LinkSide::Connecting(_) | LinkSide::Listening(_) | LinkSide::Over => false,
        }
    }

    /// As [`NetConnection::next_look`].
    pub fn next_look(&self) -> Option<Instant> {
        if let LinkSide::Sending(end) = &self.side { end.sender.next_look() } else { None }
    }

    /// As [`NetConnection::silence`].
    pub fn silence(&self) -> Option<Duration> {
        match &self.side {
            LinkSide::Sending(end) => end.sender.silence(),
            LinkSide::Receiving(end) => end.receiver.silence(),
            LinkSide::Connecting(_) | LinkSide::Listening(_) | LinkSide::Over => None,
        }
    }

    /// As [`NetConnection::descriptors`].
    pub fn descriptors(&self) -> usize {
        match &self.side {
            LinkSide::Sending(end) => end.sender.descriptors(),
            LinkSide::Receiving(end) => end.receiver.descriptors(),
            LinkSide::Connecting(_) | LinkSide::Listening(_) | LinkSide::Over => 0,
        }
    }

    /// Why it is over.
    pub fn trouble(&self) -> &str {
        self.trouble.as_deref().unwrap_or_default()
    }

    /// Whether kernels have posted what is not on its way yet.
    pub fn is_behind(&self) -> bool {
        match &self.side {
            LinkSide::Connecting(_) => self.memory.value(self.memory.posted) > 0,
            LinkSide::Sending(end) => end.is_behind(&self.memory),
            LinkSide::Listening(_) | LinkSide::Receiving(_) | LinkSide::Over => false,
        }
    }

    /// Whether all that was sent has arrived, or does not depend on this process any more.
    pub fn is_delivered(&self) -> bool {
        !matches!(&self.side, LinkSide::Sending(end) if !end.sender.is_delivered())
    }

    /// As [`NetConnection::watched`].
    pub fn watched(&self, number: usize) -> Option<Watched<'_>> {
        match &self.side {
            LinkSide::Sending(end) => end.sender.watched(number),
            LinkSide::Receiving(end) => end.receiver.watched(number),
            LinkSide::Connecting(_) | LinkSide::Listening(_) | LinkSide::Over => None,
        }
    }

    /// What the event loop has seen of a descriptor.
    pub fn ready(&mut self, number: usize, ready: Ready) {
        self.eager = true;
        let outcome = match &mut self.side {
            LinkSide::Sending(end) => end.sender.ready(number, ready),
            LinkSide::Receiving(end) => end.receiver.ready(number, ready),
            LinkSide::Connecting(_) | LinkSide::Listening(_) | LinkSide::Over => Ok(()),
        };
        outcome.unwrap_or_else(|error| self.end(&error));
    }

    /// The peer, who receives, has left for good.
    pub fn peer_left(&self) {
        if matches!(self.side, LinkSide::Sending(_) | LinkSide::Connecting(_)) {
            self.memory.leave(self.memory.consumed);
        }
    }

    /// The peer is gone: if it sends and has not connected, it never will. What has come by a connection tells its end.
    pub fn peer_gone(&mut self, why: &str) {
        if matches!(self.side, LinkSide::Listening(_)) {
            self.end(&Error::Remote { rank: Some(self.peer), text: why.to_string() });
        }
    }

    /// Moves what can be moved.
    pub fn turn(&mut self) -> LinkTurn {
        match self.try_turn() {
            Ok(turn) => turn,
            Err(error) => {
                let unconnected = matches!(self.side, LinkSide::Connecting(_) | LinkSide::Listening(_));
                self.end(&error);
                LinkTurn { moved: true, unconnected, ..LinkTurn::default() }
            }
        }
    }

    fn try_turn(&mut self) -> Result<LinkTurn, Error> {
        let Self { side, memory, segment, eager, ping, .. } = self;
        let connected = match side {
            LinkSide::Sending(end) => {
                return Ok(LinkTurn { moved: end.turn(memory, eager)?, ..LinkTurn::default() });
            }
            LinkSide::Receiving(end) => return end.turn(memory, eager),
            LinkSide::Over => None,
            LinkSide::Connecting(connecting) => match connecting.connect()? {
                Some(sender) => Some(LinkSide::Sending(SendingEnd::new(sender, *segment)?)),
                None => None,
            },
            LinkSide::Listening(listener) => match listener.accept()? {
                Some(receiver) => Some(LinkSide::Receiving(ReceivingEnd::new(receiver, *segment)?)),
                None => return Ok(LinkTurn { ping: is_due(ping), ..LinkTurn::default() }),
            },
        };
        let moved = connected.is_some();
        connected.into_iter().for_each(|connected| *side = connected);
        Ok(LinkTurn { moved, ..LinkTurn::default() })
    }

    /// Nothing more comes or goes: whoever waits for it leaves.
    pub fn end(&mut self, error: &Error) {
        let sends = matches!(self.side, LinkSide::Sending(_) | LinkSide::Connecting(_));
        self.trouble = Some(error.to_string());
        self.side = LinkSide::Over;
        self.memory.leave(if sends { self.memory.consumed } else { self.memory.posted });
    }
}
