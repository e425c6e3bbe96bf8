//! The end of a connection that receives.
//!
//! # Safety
//! Memory and buffers are as [`NetConnection`] and its kinds demand; the system takes any memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use super::pieces::{HEAD, MessagePieces, length};
use super::send::{TURN, over};
use crate::error::Error;
use crate::plugin::network::{NetBuffer, NetConnection, NetMemory, NetReceiver, NetRequest, REQUESTS_MAX, RegionId};
use crate::proxy::SecureStream;
use crate::sys::Interest;

/// Bytes that are read beyond what is wanted: heads, and messages so short that copying them costs less than another
/// call of the system.
const STAGE: usize = 1024;

pub(super) struct SocketReceiver {
    streams: Vec<ReceiveStream>,
    pieces: MessagePieces,
    inbox: Inbox,
}

/// What there is memory for, and what is known of it.
struct Inbox {
    /// Memory for messages, and the number of the first one.
    buffers: VecDeque<NetBuffer>,
    first: u64,
    /// The bytes of messages whose heads have come, from the first one on.
    lengths: VecDeque<u32>,
}

/// A stream, and how far it has come: so many bytes of its part of a message.
struct ReceiveStream {
    stream: SecureStream,
    message: u64,
    got: usize,
    /// What was read beyond that.
    stage: Stage,
}

/// Bytes that nobody has asked for yet.
struct Stage {
    bytes: [u8; STAGE],
    begin: usize,
    end: usize,
}

impl Stage {
    fn len(&self) -> usize {
        self.end - self.begin
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let bytes = into.len().min(self.len());
        into[..bytes].copy_from_slice(&self.bytes[self.begin..self.begin + bytes]);
        self.begin += bytes;
        bytes
    }

    /// Room for more, after what there is was moved to the front.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        &mut self.bytes[self.end..]
    }

    fn head(&mut self) -> Option<[u8; HEAD]> {
        let mut head = [0; HEAD];
        (self.len() >= HEAD).then(|| self.take(&mut head)).map(|_| head)
    }
}

/// Where bytes of a message go.
///
/// # Safety
/// They lie in a buffer that was given to [`NetReceiver::receive`], and nobody else has them meanwhile.
unsafe fn place<'a>(address: u64, bytes: usize) -> &'a mut [u8] {
    match bytes {
        0 => &mut [],
        // SAFETY: as the caller says.
        _ => unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) },
    }
}

impl ReceiveStream {
    /// Takes what has come, as far as there is memory for it.
    fn progress(&mut self, number: usize, pieces: MessagePieces, inbox: &mut Inbox) -> Result<(), Error> {
        let mut turns = 0;
        // What was taken from the system wakes nobody.
        while turns < TURN || self.stream.is_buffered() {
            turns += 1;
            let at = (self.message - inbox.first) as usize;
            let Some(buffer) = inbox.buffers.get(at).copied() else { return Ok(()) };
            let Some(bytes) = inbox.lengths.get(at).copied() else {
                match number == 0 && self.take_head(buffer, inbox)? {
                    true => continue,
                    false => return Ok(()),
                }
            };
            let piece = pieces.of(number, bytes as usize);
            let left = piece.len() - self.got;
            // SAFETY: the head said no more bytes than the buffer has; the pieces of streams do not overlap.
            let rest = unsafe { place(buffer.address + (piece.start + self.got) as u64, left) };
            if left > 0 && !self.fill(rest)? {
                return Ok(());
            }
            if self.got == piece.len() {
                (self.message, self.got) = (self.message + 1, 0);
            }
        }
        Ok(())
    }

    /// Reads the head of the next message; false where it has not come.
    fn take_head(&mut self, buffer: NetBuffer, inbox: &mut Inbox) -> Result<bool, Error> {
        let Some(head) = self.stage.head() else {
            let read = self.stream.receive(self.stage.room());
            let Some(read) = self.count(read)? else { return Ok(false) };
            self.stage.end += read;
            return Ok(true);
        };
        let bytes = length(head).ok_or_else(|| over(&self.stream, "what comes is no message of this library"))?;
        if bytes as usize > buffer.bytes {
            let text = format!("a message of {bytes} bytes was sent where {} were expected", buffer.bytes);
            return Err(over(&self.stream, &text));
        }
        inbox.lengths.push_back(bytes);
        Ok(true)
    }

    /// Reads data; false where nothing has come.
    fn fill(&mut self, rest: &mut [u8]) -> Result<bool, Error> {
        let staged = self.stage.take(rest);
        self.got += staged;
        let rest = &mut rest[staged..];
        if rest.is_empty() {
            return Ok(true);
        }
        // The stage is empty now.
        let wanted = rest.len();
        let read = self.stream.receive_parts(rest, self.stage.room());
        let Some(read) = self.count(read)? else { return Ok(staged > 0) };
        self.got += read.min(wanted);
        self.stage.end += read.saturating_sub(wanted);
        Ok(true)
    }

    /// What came of a read: bytes, nothing, or the end.
    fn count(&self, read: std::io::Result<Option<usize>>) -> Result<Option<usize>, Error> {
        match read {
            Ok(Some(0)) => Err(over(&self.stream, "the other side has closed the connection")),
            Ok(read) => Ok(read),
            Err(error) => Err(over(&self.stream, &error.to_string())),
        }
    }
}

impl SocketReceiver {
    pub fn new(streams: Vec<SecureStream>, piece_min: u32) -> SocketReceiver {
        let pieces = MessagePieces { streams: streams.len(), least: piece_min as usize };
        let stage = || Stage { bytes: [0; STAGE], begin: 0, end: 0 };
        let stream = |stream| ReceiveStream { stream, message: 0, got: 0, stage: stage() };
        let inbox = Inbox {
            buffers: VecDeque::with_capacity(REQUESTS_MAX),
            first: 0,
            lengths: VecDeque::with_capacity(REQUESTS_MAX),
        };
        SocketReceiver { streams: streams.into_iter().map(stream).collect(), pieces, inbox }
    }

    /// All streams get on, also where one has ended.
    fn progress(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for (number, stream) in self.streams.iter_mut().enumerate() {
            outcome = outcome.and(stream.progress(number, self.pieces, &mut self.inbox));
        }
        outcome
    }
}

impl NetConnection for SocketReceiver {
    /// The system takes any memory.
    unsafe fn register(&mut self, memory: NetMemory) -> Result<RegionId, Error> {
        Ok(RegionId(memory.address))
    }

    fn deregister(&mut self, _: RegionId) {}

    fn test(&mut self, request: NetRequest) -> Result<Option<usize>, Error> {
        // What has come by the time at which the other side has ended still counts.
        let progress = self.progress();
        if self.streams.iter().any(|stream| stream.message <= request.0) {
            return progress.map(|()| None);
        }
        let inbox = &mut self.inbox;
        let done = inbox.buffers.pop_front().and_then(|_| inbox.lengths.pop_front());
        inbox.first += u64::from(done.is_some());
        Ok(done.map(|bytes| bytes as usize))
    }

    /// What nobody has memory for stays in the system, and is not to wake anybody.
    fn watched(&self, number: usize) -> Option<(BorrowedFd<'_>, Interest)> {
        let ReceiveStream { stream, message, .. } = self.streams.get(number)?;
        let wanted = ((message - self.inbox.first) as usize) < self.inbox.buffers.len();
        Some((stream.tcp().as_fd(), Interest { readable: wanted, writable: false }))
    }
}

impl NetReceiver for SocketReceiver {
    unsafe fn receive(&mut self, buffer: NetBuffer) -> Result<Option<NetRequest>, Error> {
        if self.inbox.buffers.len() >= REQUESTS_MAX {
            return Ok(None);
        }
        let request = NetRequest(self.inbox.first + self.inbox.buffers.len() as u64);
        self.inbox.buffers.push_back(buffer);
        Ok(Some(request))
    }
}
