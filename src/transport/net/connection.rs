//! One connection: a stream to a peer, and the links that it carries.

use std::io::{IoSlice, IoSliceMut};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};

use super::frame::{HEAD, MoverFrame};
use crate::plan::SLOTS;
use crate::plan::layout::{Counter, SLOT_SIZE_UNIT, WHOLE_SLOT};
use crate::sys::{self, ChildCloses, Ready};
use crate::transport::shm::HostSegment;

/// Frames that are read or written before other connections have their turn.
const TURN: usize = 16;

/// Where this rank's part of a link is: for the host, or for the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct LinkMemory {
    /// [`SLOTS`] slots.
    pub slots: u64,
    /// A [`Counter`]: slots filled.
    pub posted: u64,
    /// A [`Counter`]: slots emptied.
    pub consumed: u64,
    /// Bytes of a slot.
    pub slot_bytes: u32,
}

/// A link, and how far it has come.
struct MovedLink {
    memory: LinkMemory,
    /// This rank sends on it.
    sends: bool,
    /// Slots that were sent, or received.
    moved: u64,
    /// Of a link that is sent on: slots that the peer has emptied. Else: of which the peer has been told.
    credit: u64,
    /// The peer was told that this end has left, or has told so.
    left: bool,
}

/// A frame that is on its way out.
struct Outgoing {
    head: [u8; HEAD],
    /// Where its data is, and how many bytes.
    data: (u64, usize),
    /// Bytes that are sent, head and data.
    sent: usize,
    /// The link whose slot it is.
    slot_of: Option<usize>,
}

/// What is read.
struct Incoming {
    head: [u8; HEAD],
    /// Bytes of the head that are there.
    headed: usize,
    /// The data that is being read: its link, its bytes, and how many of them are there.
    data: Option<(usize, u32, usize, u32)>,
}

/// A connection with a peer. It is moved by one thread at a time.
pub(in crate::transport) struct MovedConnection {
    peer: u32,
    stream: Option<MoverStream>,
    /// The ranks have nothing in common but this: where it ends, so has the peer, as far as links go.
    remote: bool,
    links: Vec<MovedLink>,
    /// The link that has the next turn to send.
    turn: usize,
    /// The frame that the system has not taken whole.
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    readable: bool,
    blocked: bool,
    /// The peer takes nothing more. What it has sent before is still to be read.
    deaf: bool,
    /// Why it is over.
    trouble: Option<String>,
    /// What links lie in; it lives as long as this.
    _memory: Arc<Mutex<HostSegment>>,
}

/// What a connection's bytes go over: a socket that does not wait, perhaps not connected yet.
pub(in crate::transport) struct MoverStream {
    // Before what it closes.
    _child_closes: ChildCloses,
    socket: OwnedFd,
    /// What goes before all frames, and how much of it has gone.
    hello: Vec<u8>,
    greeted: usize,
}

impl MoverStream {
    pub fn new(socket: OwnedFd, hello: Vec<u8>) -> MoverStream {
        MoverStream { _child_closes: ChildCloses::of(socket.as_fd()), socket, hello, greeted: 0 }
    }

    /// Sends the rest of the hello; whether all of it has gone.
    fn greet(&mut self) -> Result<bool, Errno> {
        if self.greeted < self.hello.len() {
            self.greeted += rustix::net::send(&self.socket, &self.hello[self.greeted..], SendFlags::NOSIGNAL)?;
        }
        Ok(self.greeted == self.hello.len())
    }
}

/// Whether something could be done now.
enum MoveStep {
    Done,
    Later,
    Over(String),
}

impl LinkMemory {
    fn counter(&self, base: u64, offset: usize) -> &AtomicU64 {
        // SAFETY: the memory lives as long as the connection, is aligned, and both sides take it as atomics.
        unsafe { AtomicU64::from_ptr((base as usize + offset) as *mut u64) }
    }

    fn word(&self, base: u64, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr((base as usize + offset) as *mut u32) }
    }

    fn value(&self, base: u64) -> u64 {
        self.counter(base, offset_of!(Counter, value)).load(Ordering::Acquire)
    }

    fn has_left(&self, base: u64) -> bool {
        self.word(base, offset_of!(Counter, left)).load(Ordering::Acquire) != 0
    }

    /// Moves a counter, as a kernel does: who sleeps for it is woken.
    fn post(&self, base: u64, value: u64) {
        self.counter(base, offset_of!(Counter, value)).store(value, Ordering::Release);
        self.wake(base);
    }

    fn leave(&self, base: u64) {
        self.word(base, offset_of!(Counter, left)).store(1, Ordering::Release);
        self.wake(base);
    }

    fn wake(&self, base: u64) {
        if self.word(base, offset_of!(Counter, waiters)).load(Ordering::Relaxed) != 0 {
            // Little-endian: the low word of the value is what is slept on.
            sys::wake_sleeper(self.word(base, offset_of!(Counter, value)));
        }
    }

    fn signature(&self, at: u64) -> &AtomicU32 {
        self.word(self.posted, offset_of!(Counter, signatures) + 4 * (at as usize % SLOTS))
    }

    fn slot(&self, at: u64) -> u64 {
        self.slots + at % SLOTS as u64 * u64::from(self.slot_bytes)
    }

    /// How many bytes the slot of a number holds, as its kernel has noted beside the counter.
    fn bytes(&self, at: u64) -> u32 {
        let place = self.posted as usize + offset_of!(Counter, call) + 2 * (at as usize % SLOTS);
        // SAFETY: as above.
        let size = unsafe { AtomicU16::from_ptr(place as *mut u16) }.load(Ordering::Relaxed);
        match size {
            WHOLE_SLOT => self.slot_bytes,
            size => (u32::from(size) * SLOT_SIZE_UNIT).min(self.slot_bytes),
        }
    }
}

impl MovedConnection {
    /// A connection over a stream, which may come later ([`MovedConnection::attach`]). Of each link: whether this rank
    /// sends on it, and its memory; in the same order at both ends.
    pub fn new(
        (peer, remote): (u32, bool),
        stream: Option<MoverStream>,
        links: Vec<(bool, LinkMemory)>,
        memory: Arc<Mutex<HostSegment>>,
    ) -> MovedConnection {
        let link = |(sends, memory)| MovedLink { memory, sends, moved: 0, credit: 0, left: false };
        MovedConnection {
            peer,
            stream,
            remote,
            links: links.into_iter().map(link).collect(),
            turn: 0,
            outgoing: None,
            incoming: Incoming { head: [0; HEAD], headed: 0, data: None },
            readable: true,
            blocked: false,
            deaf: false,
            trouble: None,
            _memory: memory,
        }
    }

    pub fn peer(&self) -> u32 {
        self.peer
    }

    pub fn is_remote(&self) -> bool {
        self.remote
    }

    /// What is to be watched, once it is there.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(|stream| stream.socket.as_fd())
    }

    /// The peer has connected.
    pub fn attach(&mut self, socket: OwnedFd) {
        self.stream = Some(MoverStream::new(socket, Vec::new()));
    }

    /// The system takes nothing more for now.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub fn is_broken(&self) -> bool {
        self.trouble.is_some()
    }

    /// Why it is over.
    pub fn trouble(&self) -> &str {
        self.trouble.as_deref().unwrap_or_default()
    }

    /// Whether kernels have posted what is not on its way yet, or what could be lost on its way.
    pub fn is_behind(&self) -> bool {
        let behind = |link: &MovedLink| link.sends && link.moved < link.memory.value(link.memory.posted);
        let on_its_way = || self.remote && self.socket().is_some_and(|socket| sys::tcp::unacknowledged(socket) > 0);
        let late = || self.outgoing.is_some() || self.links.iter().any(behind) || on_its_way();
        self.trouble.is_none() && !self.deaf && late()
    }

    /// What the event loop has seen.
    pub fn ready(&mut self, ready: Ready) {
        self.readable |= ready.readable;
        self.blocked &= !ready.writable;
    }

    /// Moves what can be moved; whether something was.
    pub fn progress(&mut self) -> bool {
        if self.is_broken() || self.stream.is_none() {
            return false;
        }
        let mut moved = false;
        for step in [MovedConnection::read, MovedConnection::write] {
            for _ in 0..TURN {
                match step(self) {
                    MoveStep::Done => moved = true,
                    MoveStep::Later => break,
                    MoveStep::Over(why) => {
                        self.trouble = Some(why);
                        self.leave_links();
                        return true;
                    }
                }
            }
        }
        moved
    }

    /// Nothing more comes of a peer elsewhere: whoever waits for it leaves.
    fn leave_links(&self) {
        for link in self.links.iter().filter(|_| self.remote) {
            link.memory.leave(if link.sends { link.memory.consumed } else { link.memory.posted });
        }
    }

    // --- out --------------------------------------------------------------------------------------------

    fn write(&mut self) -> MoveStep {
        if self.blocked || self.deaf {
            return MoveStep::Later;
        }
        match self.stream.as_mut().map(MoverStream::greet) {
            Some(Ok(true)) => {}
            Some(Ok(false) | Err(Errno::INTR)) => return MoveStep::Done,
            Some(Err(Errno::AGAIN)) => {
                self.blocked = true;
                return MoveStep::Later;
            }
            Some(Err(_)) => {
                self.deaf = true;
                return MoveStep::Later;
            }
            None => return MoveStep::Later,
        }
        let outgoing = match self.outgoing.take().or_else(|| self.next()) {
            Some(outgoing) => outgoing,
            None => return MoveStep::Later,
        };
        match self.stream.as_ref().map_or(Err(Errno::NOTCONN), |stream| send(&stream.socket, &outgoing)) {
            Ok(bytes) => self.sent(Outgoing { sent: outgoing.sent + bytes, ..outgoing }),
            Err(Errno::AGAIN) => {
                self.blocked = true;
                self.outgoing = Some(outgoing);
                return MoveStep::Later;
            }
            Err(Errno::INTR) => self.outgoing = Some(outgoing),
            Err(_) => self.deaf = true,
        }
        MoveStep::Done
    }

    fn sent(&mut self, outgoing: Outgoing) {
        if outgoing.sent < HEAD + outgoing.data.1 {
            self.outgoing = Some(outgoing);
        } else if let Some(link) = outgoing.slot_of.and_then(|link| self.links.get_mut(link)) {
            // The data is the system's now: the slot is free.
            link.moved += 1;
            link.memory.post(link.memory.consumed, link.moved);
        }
    }

    /// The next frame that there is to be sent; links take turns.
    fn next(&mut self) -> Option<Outgoing> {
        let all = self.links.len();
        let found = (0..all).find_map(|step| {
            let number = (self.turn + step) % all;
            Some((number, self.links[number].next(number as u16)?))
        });
        let (number, (frame, data)) = found?;
        self.turn = number + 1;
        let slot_of = matches!(frame, MoverFrame::Data { .. }).then_some(number);
        Some(Outgoing { head: frame.encode(), data, sent: 0, slot_of })
    }

    // --- in ---------------------------------------------------------------------------------------------

    fn read(&mut self) -> MoveStep {
        if !self.readable {
            return MoveStep::Later;
        }
        match self.receive() {
            Ok(0) => MoveStep::Over(format!("rank {} has closed its connection", self.peer)),
            Ok(bytes) => match self.received(bytes) {
                Ok(()) => MoveStep::Done,
                Err(what) => MoveStep::Over(format!("rank {} sent {what} on its connection", self.peer)),
            },
            Err(Errno::AGAIN) => {
                self.readable = false;
                MoveStep::Later
            }
            Err(Errno::INTR) => MoveStep::Done,
            Err(errno) => {
                MoveStep::Over(format!("the connection to rank {} is over: {}", self.peer, std::io::Error::from(errno)))
            }
        }
    }

    /// Reads the rest of the data, and the next head.
    fn receive(&mut self) -> Result<usize, Errno> {
        let Incoming { head, headed, data } = &mut self.incoming;
        let target = data.map_or((0, 0), |(link, bytes, there, _)| {
            let link = &self.links[link];
            (link.memory.slot(link.moved) as usize + there, bytes as usize - there)
        });
        // SAFETY: the slot is this connection's until it is posted; it is as long as was checked.
        let slot = unsafe { slice_mut(target) };
        let mut parts = [IoSliceMut::new(slot), IoSliceMut::new(&mut head[*headed..])];
        let Some(MoverStream { socket, .. }) = &self.stream else { return Err(Errno::AGAIN) };
        let got = rustix::net::recvmsg(socket, &mut parts, &mut RecvAncillaryBuffer::default(), RecvFlags::empty());
        got.map(|got| got.bytes)
    }

    /// So many bytes were read.
    fn received(&mut self, mut bytes: usize) -> Result<(), &'static str> {
        if let Some((link, all, there, signature)) = self.incoming.data {
            let step = bytes.min(all as usize - there);
            (self.incoming.data, bytes) = (Some((link, all, there + step, signature)), bytes - step);
            if there + step < all as usize {
                return Ok(());
            }
            self.incoming.data = None;
            self.links[link].filled(signature);
        }
        self.incoming.headed += bytes;
        match self.incoming.headed == HEAD {
            true => self.take_head(),
            false => Ok(()),
        }
    }

    fn take_head(&mut self) -> Result<(), &'static str> {
        self.incoming.headed = 0;
        let frame = MoverFrame::decode(&self.incoming.head).ok_or("what is no frame")?;
        let (MoverFrame::Data { link, .. } | MoverFrame::Credit { link, .. } | MoverFrame::Left { link, .. }) = frame;
        let link = usize::from(link);
        let of = self.links.get_mut(link).ok_or("a frame of no link")?;
        match frame {
            MoverFrame::Data { bytes, signature, .. } => {
                of.check_data(bytes)?;
                match bytes {
                    0 => of.filled(signature),
                    _ => self.incoming.data = Some((link, bytes, 0, signature)),
                }
            }
            MoverFrame::Credit { consumed, .. } => of.take_credit(consumed)?,
            MoverFrame::Left { sender, .. } if sender == of.sends => return Err("an end that is not its own"),
            MoverFrame::Left { .. } => of.memory.leave(if of.sends { of.memory.consumed } else { of.memory.posted }),
        }
        Ok(())
    }
}

impl MovedLink {
    /// What there is to be said or sent now, and where the data is.
    fn next(&mut self, number: u16) -> Option<(MoverFrame, (u64, usize))> {
        let (memory, written) = (self.memory, if self.sends { self.memory.posted } else { self.memory.consumed });
        let value = memory.value(written);
        if self.sends && self.moved < value && self.moved < self.credit + SLOTS as u64 {
            let bytes = memory.bytes(self.moved);
            let signature = memory.signature(self.moved).load(Ordering::Relaxed);
            let data = (memory.slot(self.moved), bytes as usize);
            return Some((MoverFrame::Data { link: number, bytes, signature }, data));
        }
        if !self.sends && self.credit < value {
            self.credit = value;
            return Some((MoverFrame::Credit { link: number, consumed: value }, (0, 0)));
        }
        // What was posted before goes first.
        let all = !self.sends || self.moved == value;
        if all && !self.left && memory.has_left(written) {
            self.left = true;
            return Some((MoverFrame::Left { link: number, sender: self.sends }, (0, 0)));
        }
        None
    }

    fn check_data(&self, bytes: u32) -> Result<(), &'static str> {
        if self.sends {
            return Err("data on a link of this rank's");
        }
        if bytes > self.memory.slot_bytes {
            return Err("more data than a slot has room for");
        }
        match self.moved < self.credit + SLOTS as u64 {
            true => Ok(()),
            false => Err("data for which there is no room"),
        }
    }

    /// A slot is full: whoever waits for it is told.
    fn filled(&mut self, signature: u32) {
        self.memory.signature(self.moved).store(signature, Ordering::Relaxed);
        self.moved += 1;
        self.memory.post(self.memory.posted, self.moved);
    }

    fn take_credit(&mut self, consumed: u64) -> Result<(), &'static str> {
        match self.sends && consumed <= self.moved && consumed >= self.credit {
            true => self.credit = consumed,
            false => return Err("credit for what it did not get"),
        }
        Ok(())
    }
}

/// Sends the rest of a frame, as far as the system takes it.
fn send(socket: &OwnedFd, outgoing: &Outgoing) -> Result<usize, Errno> {
    let head = &outgoing.head[outgoing.sent.min(HEAD)..];
    let past = outgoing.sent.saturating_sub(HEAD);
    // SAFETY: a slot that is posted is not written before it is consumed.
    let data = unsafe { slice((outgoing.data.0 as usize + past, outgoing.data.1 - past)) };
    let parts = [IoSlice::new(head), IoSlice::new(data)];
    rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
}

/// Bytes at an address; none at all are nowhere.
///
/// # Safety
/// There are so many bytes, and nobody writes them meanwhile.
unsafe fn slice<'a>((address, bytes): (usize, usize)) -> &'a [u8] {
    match bytes {
        0 => &[],
        // SAFETY: as the caller says.
        _ => unsafe { std::slice::from_raw_parts(address as *const u8, bytes) },
    }
}

/// As [`slice()`], to be written.
///
/// # Safety
/// As for [`slice()`], and nobody else reads them either.
unsafe fn slice_mut<'a>((address, bytes): (usize, usize)) -> &'a mut [u8] {
    match bytes {
        0 => &mut [],
        // SAFETY: as the caller says.
        _ => unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) },
    }
}
