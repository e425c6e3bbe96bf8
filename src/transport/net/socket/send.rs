//! The end of a connection that sends.
//!
//! # Safety
//! Memory and buffers are as [`NetConnection`] and its kinds demand; the system takes any memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use super::pieces::{HEAD, MessagePieces, head};
use crate::error::Error;
use crate::plugin::network::{NetBuffer, NetConnection, NetMemory, NetRequest, NetSender, REQUESTS_MAX, RegionId};
use crate::proxy::SecureStream;
use crate::sys::{Interest, Ready};

/// Calls of the system for one stream before others have their turn.
pub(super) const TURN: usize = 16;

pub(super) struct SocketSender {
    streams: Vec<SendStream>,
    pieces: MessagePieces,
    /// Messages under way, and the number of the first one.
    messages: VecDeque<NetBuffer>,
    first: u64,
}

/// A stream, and how far it has come: so many bytes of its part of a message.
struct SendStream {
    stream: SecureStream,
    message: u64,
    sent: usize,
    /// The system takes nothing more for now.
    blocked: bool,
}

/// Why a connection is over.
pub(super) fn over(stream: &SecureStream, why: &str) -> Error {
    let peer = stream.tcp().peer().map_or(String::new(), |peer| format!(" ({peer})"));
    Error::Remote { rank: None, text: format!("{why}{peer}") }
}

impl SendStream {
    /// Sends what is to go over this stream, as far as the system takes it.
    fn progress(
        &mut self,
        number: usize,
        pieces: MessagePieces,
        (first, messages): (u64, &VecDeque<NetBuffer>),
    ) -> Result<(), Error> {
        for _ in 0..TURN {
            let Some(message) = messages.get((self.message - first) as usize) else { return Ok(()) };
            let piece = pieces.of(number, message.bytes);
            let heading = if number == 0 { HEAD } else { 0 };
            if self.sent == heading + piece.len() {
                if !self.flush()? {
                    return Ok(());
                }
                (self.message, self.sent) = (self.message + 1, 0);
                continue;
            }
            let (head, past) = (head(message.bytes as u32), self.sent.saturating_sub(heading));
            let place = (message.address as usize + piece.start + past) as *const u8;
            let left = piece.len() - past;
            // SAFETY: as `NetSender::send` says, the buffer is there and not written meanwhile. It is not null where it
            // has bytes.
            let data = if left == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(place, left) } };
            match self.stream.send_parts(&head[self.sent.min(heading)..heading], data) {
                Ok(0) => {
                    self.blocked = true;
                    return Ok(());
                }
                Ok(sent) => self.sent += sent,
                Err(error) => return Err(over(&self.stream, &error.to_string())),
            }
        }
        // There may be more: its next turn is when the system says that there is room.
        self.blocked = true;
        Ok(())
    }

    /// Whether the system has all of the message; else the stream is blocked.
    fn flush(&mut self) -> Result<bool, Error> {
        let flushed = self.stream.flush().map_err(|error| over(&self.stream, &error.to_string()))?;
        self.blocked |= !flushed;
        Ok(flushed)
    }
}

impl SocketSender {
    pub fn new(streams: Vec<SecureStream>, pieces: MessagePieces) -> SocketSender {
        let stream = |stream| SendStream { stream, message: 0, sent: 0, blocked: false };
        SocketSender {
            streams: streams.into_iter().map(stream).collect(),
            pieces,
            messages: VecDeque::with_capacity(REQUESTS_MAX),
            first: 0,
        }
    }

    fn progress(&mut self) -> Result<(), Error> {
        for (number, stream) in self.streams.iter_mut().enumerate() {
            stream.blocked = false;
            stream.progress(number, self.pieces, (self.first, &self.messages))?;
        }
        Ok(())
    }
}

impl NetConnection for SocketSender {
    /// The system takes any memory.
    unsafe fn register(&mut self, memory: NetMemory) -> Result<RegionId, Error> {
        Ok(RegionId(memory.address))
    }

    fn deregister(&mut self, _: RegionId) {}

    fn test(&mut self, request: NetRequest) -> Result<Option<usize>, Error> {
        self.progress()?;
        if self.streams.iter().any(|stream| stream.message <= request.0) {
            return Ok(None);
        }
        let done = self.messages.pop_front();
        self.first += u64::from(done.is_some());
        Ok(done.map(|message| message.bytes))
    }

    fn watched(&self, number: usize) -> Option<(BorrowedFd<'_>, Interest)> {
        let SendStream { stream, blocked, .. } = self.streams.get(number)?;
        Some((stream.tcp().as_fd(), Interest { readable: true, writable: *blocked }))
    }

    /// Nothing ever comes from who receives, but its end.
    fn ready(&mut self, number: usize, ready: Ready) -> Result<(), Error> {
        let Some(SendStream { stream, .. }) = self.streams.get(number).filter(|_| ready.readable) else {
            return Ok(());
        };
        match stream.tcp().receive(&mut [0; 1]) {
            Ok(None) => Ok(()),
            Ok(Some(0)) => Err(over(stream, "the other side has closed the connection")),
            Ok(Some(_)) => Err(over(stream, "the other side sends where it must not")),
            Err(error) => Err(over(stream, &error.to_string())),
        }
    }
}

impl NetSender for SocketSender {
    unsafe fn send(&mut self, buffer: NetBuffer) -> Result<Option<NetRequest>, Error> {
        if self.messages.len() >= REQUESTS_MAX {
            return Ok(None);
        }
        if u32::try_from(buffer.bytes).is_err() {
            return Err(Error::Internal(format!("a message of {} bytes is too long for a socket", buffer.bytes)));
        }
        let request = NetRequest(self.first + self.messages.len() as u64);
        self.messages.push_back(buffer);
        self.progress()?;
        Ok(Some(request))
    }

    /// Where this process ends, the system delivers what it has, unless it must reset the connection.
    fn is_delivered(&self) -> bool {
        self.messages.is_empty() && self.streams.iter().all(|one| one.stream.tcp().unacknowledged() == 0)
    }
}
