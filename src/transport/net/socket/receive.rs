//! The end of a connection that receives.
//!
//! # Safety
//! Memory and buffers are as [`NetConnection`] and its kinds demand; the system takes any memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::ExpectedStreams;
use super::pieces::{HEAD, MessagePieces, length};
use super::resume::StreamPosition;
use super::send::{StreamEnd, TURN, failed, over};
use crate::error::Error;
use crate::plugin::network::{
    NetBuffer, NetConnection, NetMemory, NetReceiver, NetRequest, REQUESTS_MAX, RegionId, Watched,
};
use crate::proxy::SecureStream;
use crate::sys::{Bell, Interest, Ready};

/// Bytes that are read beyond what is wanted: heads, and messages so short that copying them costs less than another
/// call of the system.
const STAGE: usize = 1024;

pub(super) struct SocketReceiver {
    streams: Vec<ReceiveStream>,
    pieces: MessagePieces,
    inbox: Inbox,
    /// Where streams may be made anew: how they come, and how many messages were confirmed.
    resume: Option<(ExpectedStreams, u64)>,
}

/// The streams of a connection, as they come.
pub(super) struct ArrivingStreams {
    streams: Mutex<Vec<Option<SecureStream>>>,
    /// They may come again.
    resumes: AtomicBool,
    /// One has come again.
    anew: AtomicBool,
    /// Tells the receiver, once there is one, that one has come.
    bell: OnceLock<Bell>,
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
    number: usize,
    /// None: it was lost, and may come anew.
    stream: Option<SecureStream>,
    stamp: u32,
    message: u64,
    got: usize,
    /// What the sender is to be told.
    reply: Vec<u8>,
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

impl ArrivingStreams {
    pub fn new(streams: usize) -> ArrivingStreams {
        let streams = Mutex::new((0..streams).map(|_| None).collect());
        ArrivingStreams {
            streams,
            resumes: AtomicBool::new(false),
            anew: AtomicBool::new(false),
            bell: OnceLock::new(),
        }
    }

    /// One has come; false where there is none of that number.
    pub fn put(&self, number: usize, resumes: bool, stream: SecureStream) -> bool {
        self.resumes.fetch_or(resumes, Ordering::AcqRel);
        let known = self.streams.lock().get_mut(number).map(|place| *place = Some(stream)).is_some();
        self.anew.store(true, Ordering::Release);
        self.bell.get().into_iter().for_each(Bell::ring);
        known
    }

    pub fn resumes(&self) -> bool {
        self.resumes.load(Ordering::Acquire)
    }

    /// All of them, once they are there.
    ///
    /// # Errors
    /// The process may open no more files.
    pub fn take_all(&self) -> Result<Option<Vec<SecureStream>>, Error> {
        if self.streams.lock().iter().any(Option::is_none) {
            return Ok(None);
        }
        if self.resumes() && self.bell.get().is_none() {
            let _ = self.bell.set(Bell::new()?);
        }
        Ok(Some(self.streams.lock().iter_mut().filter_map(Option::take).collect()))
    }
}

impl ReceiveStream {
    /// Takes what has come, as far as there is memory for it.
    fn progress(&mut self, pieces: MessagePieces, inbox: &mut Inbox) -> Result<(), StreamEnd> {
        let Some(mut stream) = self.stream.take() else { return Ok(()) };
        let outcome = self.take_in(&mut stream, pieces, inbox);
        // Nobody hears of a connection any more that the system has given up.
        self.stream = (!matches!(outcome, Err(StreamEnd::Lost(_)))).then_some(stream);
        outcome
    }

    fn take_in(
        &mut self,
        stream: &mut SecureStream,
        pieces: MessagePieces,
        inbox: &mut Inbox,
    ) -> Result<(), StreamEnd> {
        let mut turns = 0;
        // What was taken from the system wakes nobody.
        while turns < TURN || stream.is_buffered() {
            turns += 1;
            let at = (self.message - inbox.first) as usize;
            let Some(buffer) = inbox.buffers.get(at).copied() else { return Ok(()) };
            let Some(bytes) = inbox.lengths.get(at).copied() else {
                match self.number == 0 && self.take_head(stream, buffer, inbox)? {
                    true => continue,
                    false => return Ok(()),
                }
            };
            let piece = pieces.of(self.number, bytes as usize);
            let left = piece.len() - self.got;
            // SAFETY: the head said no more bytes than the buffer has; the pieces of streams do not overlap.
            let rest = unsafe { place(buffer.address + (piece.start + self.got) as u64, left) };
            if left > 0 && !self.fill(stream, rest)? {
                return Ok(());
            }
            if self.got == piece.len() {
                (self.message, self.got) = (self.message + 1, 0);
            }
        }
        Ok(())
    }

    /// Reads the head of the next message; false where it has not come.
    fn take_head(
        &mut self,
        stream: &mut SecureStream,
        buffer: NetBuffer,
        inbox: &mut Inbox,
    ) -> Result<bool, StreamEnd> {
        let Some(head) = self.stage.head() else {
            let read = stream.receive(self.stage.room());
            let Some(read) = count(stream, read)? else { return Ok(false) };
            self.stage.end += read;
            return Ok(true);
        };
        let bytes = length(head).ok_or_else(|| over(stream, "what comes is no message of this library"))?;
        if bytes as usize > buffer.bytes {
            let text = format!("a message of {bytes} bytes was sent where {} were expected", buffer.bytes);
            return Err(over(stream, &text));
        }
        inbox.lengths.push_back(bytes);
        Ok(true)
    }

    /// Reads data; false where nothing has come.
    fn fill(&mut self, stream: &mut SecureStream, rest: &mut [u8]) -> Result<bool, StreamEnd> {
        let staged = self.stage.take(rest);
        self.got += staged;
        let rest = &mut rest[staged..];
        if rest.is_empty() {
            return Ok(true);
        }
        // The stage is empty now.
        let wanted = rest.len();
        let read = stream.receive_parts(rest, self.stage.room());
        let Some(read) = count(stream, read)? else { return Ok(staged > 0) };
        self.got += read.min(wanted);
        self.stage.end += read.saturating_sub(wanted);
        Ok(true)
    }

    /// The stream has come anew: its other end goes on where this one stands.
    fn resume(&mut self, stream: SecureStream, pieces: MessagePieces, inbox: &mut Inbox) {
        // What has come by the old one still counts. How that has ended does not.
        let _ = self.progress(pieces, inbox);
        let head_is_known = self.number == 0 && inbox.lengths.len() as u64 > self.message - inbox.first;
        let sent = self.got + if head_is_known { HEAD } else { 0 };
        (self.stage.begin, self.stage.end) = (0, 0);
        self.reply = StreamPosition { message: self.message, sent: sent as u64 }.encode().to_vec();
        self.stream = Some(stream);
        self.stamp += 1;
    }

    /// Tells the sender what it is to be told, as far as the system takes it.
    fn flush(&mut self) -> Result<(), StreamEnd> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if !self.reply.is_empty() {
            let sent = stream.send_parts(&[], &self.reply).map_err(|error| failed(stream, error));
            self.reply.drain(..sent?);
        }
        stream.flush().map(drop).map_err(|error| failed(stream, error))
    }
}

/// What came of a read: bytes, nothing, or the end.
fn count(stream: &SecureStream, read: io::Result<Option<usize>>) -> Result<Option<usize>, StreamEnd> {
    match read {
        Ok(Some(0)) => Err(over(stream, "the other side has closed the connection")),
        Ok(read) => Ok(read),
        Err(error) => Err(failed(stream, error)),
    }
}

impl SocketReceiver {
    /// `resumes`: by which streams come anew, where they may.
    pub fn new(streams: Vec<SecureStream>, piece_min: u32, resumes: Option<ExpectedStreams>) -> SocketReceiver {
        let pieces = MessagePieces { streams: streams.len(), least: piece_min as usize };
        let stream = |(number, stream)| {
            let (stream, stage) = (Some(stream), Stage { bytes: [0; STAGE], begin: 0, end: 0 });
            ReceiveStream { number, stream, stamp: 0, message: 0, got: 0, reply: Vec::new(), stage }
        };
        let inbox = Inbox {
            buffers: VecDeque::with_capacity(REQUESTS_MAX),
            first: 0,
            lengths: VecDeque::with_capacity(REQUESTS_MAX),
        };
        let streams = streams.into_iter().enumerate().map(stream).collect();
        SocketReceiver { streams, pieces, inbox, resume: resumes.map(|expected| (expected, 0)) }
    }

    /// All streams get on, also where one has ended.
    fn progress(&mut self) -> Result<(), Error> {
        self.take_anew();
        let (mut outcome, resumes) = (Ok(()), self.resume.is_some());
        for stream in &mut self.streams {
            outcome = outcome.and(may_be_lost(resumes, stream.progress(self.pieces, &mut self.inbox)));
        }
        self.confirm();
        for stream in self.streams.iter_mut().filter(|_| resumes) {
            let flushed = stream.flush();
            if matches!(flushed, Err(StreamEnd::Lost(_))) {
                stream.stream = None;
            }
            // Where it is over, reading says so after what has come.
        }
        outcome
    }

    /// Takes streams that have come anew.
    fn take_anew(&mut self) {
        let Some((expected, confirmed)) = &self.resume else { return };
        let arriving = expected.streams();
        if !arriving.anew.load(Ordering::Relaxed) || !arriving.anew.swap(false, Ordering::Acquire) {
            return;
        }
        let mut anew = arriving.streams.lock();
        for (stream, anew) in self.streams.iter_mut().zip(anew.iter_mut()) {
            let Some(anew) = anew.take() else { continue };
            stream.resume(anew, self.pieces, &mut self.inbox);
            if stream.number == 0 {
                stream.reply.extend_from_slice(&confirmed.to_le_bytes());
            }
        }
    }

    /// Confirms messages that have come whole.
    fn confirm(&mut self) {
        let Some((_, confirmed)) = &mut self.resume else { return };
        let whole = self.streams.iter().map(|stream| stream.message).min().unwrap_or(0);
        if whole > *confirmed {
            *confirmed = whole;
            let first = &mut self.streams[0];
            // One that is lost says so when it comes anew.
            if first.stream.is_some() {
                first.reply.extend_from_slice(&whole.to_le_bytes());
            }
        }
    }
}

/// Streams that are lost come anew where they may.
fn may_be_lost(resumes: bool, outcome: Result<(), StreamEnd>) -> Result<(), Error> {
    match outcome {
        Err(StreamEnd::Lost(_)) if resumes => Ok(()),
        other => other.map_err(StreamEnd::error),
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

    fn descriptors(&self) -> usize {
        self.streams.len() + usize::from(self.resume.is_some())
    }

    /// What nobody has memory for stays in the system, and is not to wake anybody. Behind the streams is the bell that
    /// tells that one has come anew.
    fn watched(&self, number: usize) -> Option<Watched<'_>> {
        let Some(ReceiveStream { stream, stamp, message, reply, .. }) = self.streams.get(number) else {
            let bell = self.resume.as_ref()?.0.streams().bell.get()?;
            return Some(Watched {
                fd: bell.as_fd(),
                interest: Interest { readable: true, writable: false },
                stamp: 0,
            });
        };
        let readable = ((message - self.inbox.first) as usize) < self.inbox.buffers.len();
        let interest = Interest { readable, writable: !reply.is_empty() };
        stream.as_ref().map(|stream| Watched { fd: stream.tcp().as_fd(), interest, stamp: *stamp })
    }

    fn silence(&self) -> Option<Duration> {
        self.streams.iter().filter_map(|one| one.stream.as_ref()?.tcp().silence()).min()
    }

    fn ready(&mut self, number: usize, _: Ready) -> Result<(), Error> {
        let Some((expected, _)) = &self.resume else { return Ok(()) };
        if number == self.streams.len() {
            expected.streams().bell.get().into_iter().for_each(Bell::clear);
        }
        self.progress()
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
