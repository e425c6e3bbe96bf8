//! The end of a connection that sends.
//!
//! # Safety
//! Memory and buffers are as [`NetConnection`] and its kinds demand; the system takes any memory.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::connect::StreamSource;
use super::pieces::{HEAD, MessagePieces, head};
use super::resume::{AckReader, AnewStream};
use super::ways::Way;
use crate::error::Error;
use crate::plugin::network::{
    NetBuffer, NetConnection, NetMemory, NetRequest, NetSender, REQUESTS_MAX, RegionId, Watched,
};
use crate::proxy::SecureStream;
use crate::sys::tcp::is_lost_way;
use crate::sys::{Interest, Ready};

/// Calls of the system for one stream before others have their turn.
pub(super) const TURN: usize = 16;
/// The most bytes for one call: the system fills its whole buffer at once otherwise, of which nothing stays in the
/// processor's cache until it is read.
const CALL_MAX: usize = 128 << 10;
/// How often it is looked whether the other side answers, where another way may lead to it.
const LOOK: Duration = Duration::from_millis(500);

pub(super) struct SocketSender {
    streams: Vec<SendStream>,
    pieces: MessagePieces,
    /// Messages under way, and the number of the first one.
    messages: VecDeque<NetBuffer>,
    first: u64,
    /// Where several ways lead to the other side: what a stream that is lost is made anew by.
    resume: Option<SendResumption>,
}

/// What the sender needs to make streams anew. Then messages are under way until the other side has confirmed them.
struct SendResumption {
    source: StreamSource,
    acks: AckReader,
    /// When it is next looked whether the other side answers.
    look: Instant,
}

/// A stream, and how far it has come: so many bytes of its part of a message.
struct SendStream {
    number: usize,
    /// None while it is made anew, unless the old one may still come back to life.
    stream: Option<SecureStream>,
    way: Way,
    stamp: u32,
    anew: Option<AnewStream>,
    message: u64,
    sent: usize,
    /// The system takes nothing more for now.
    blocked: bool,
}

/// How a stream has ended.
pub(super) enum StreamEnd {
    /// Its way does not lead to the other side any more.
    Lost(io::Error),
    Over(Error),
}

/// Why a connection is over.
pub(super) fn over(stream: &SecureStream, why: &str) -> StreamEnd {
    let peer = stream.tcp().peer().map_or(String::new(), |peer| format!(" ({peer})"));
    StreamEnd::Over(Error::Remote { rank: None, text: format!("{why}{peer}") })
}

/// What the system says of a stream that has failed.
pub(super) fn failed(stream: &SecureStream, error: io::Error) -> StreamEnd {
    if is_lost_way(&error) { StreamEnd::Lost(error) } else { over(stream, &error.to_string()) }
}

impl StreamEnd {
    /// The error where there is no other way.
    pub fn error(self) -> Error {
        match self {
            StreamEnd::Lost(error) => Error::Remote { rank: None, text: error.to_string() },
            StreamEnd::Over(error) => error,
        }
    }
}

impl SendStream {
    /// Sends what is to go over this stream, as far as the system takes it.
    fn progress(
        &mut self,
        pieces: MessagePieces,
        (first, messages): (u64, &VecDeque<NetBuffer>),
    ) -> Result<(), StreamEnd> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        self.blocked = false;
        if self.message < first {
            // It had no part of what the other side has confirmed.
            (self.message, self.sent) = (first, 0);
        }
        for _ in 0..TURN {
            let Some(message) = messages.get((self.message - first) as usize) else { return Ok(()) };
            let piece = pieces.of(self.number, message.bytes);
            let heading = if self.number == 0 { HEAD } else { 0 };
            if self.sent == heading + piece.len() {
                // The system must have all of it.
                if !stream.flush().map_err(|error| failed(stream, error))? {
                    self.blocked = true;
                    return Ok(());
                }
                (self.message, self.sent) = (self.message + 1, 0);
                continue;
            }
            let (head, past) = (head(message.bytes as u32), self.sent.saturating_sub(heading));
            let place = (message.address as usize + piece.start + past) as *const u8;
            let left = (piece.len() - past).min(CALL_MAX);
            // SAFETY: as `NetSender::send` says, the buffer is there and not written meanwhile. It is not null where it
            // has bytes.
            let data = if left == 0 { &[][..] } else { unsafe { std::slice::from_raw_parts(place, left) } };
            match stream.send_parts(&head[self.sent.min(heading)..heading], data) {
                Ok(0) => {
                    self.blocked = true;
                    return Ok(());
                }
                Ok(sent) => self.sent += sent,
                Err(error) => return Err(failed(stream, error)),
            }
        }
        // There may be more: its next turn is when the system says that there is room.
        self.blocked = true;
        Ok(())
    }

    /// Makes the stream anew, as far as that goes now. `under_way`: messages that the other side may not have.
    fn resume(&mut self, pieces: MessagePieces, under_way: (u64, &VecDeque<NetBuffer>)) -> Result<(), StreamEnd> {
        let Some(anew) = &mut self.anew else { return Ok(()) };
        let Some((stream, way, position)) = anew.progress()? else { return Ok(()) };
        let (first, messages) = under_way;
        let message = position.message.checked_sub(first).and_then(|at| messages.get(at as usize));
        let heading = if self.number == 0 { HEAD } else { 0 };
        let most = message.map_or(0, |message| heading + pieces.of(self.number, message.bytes).len());
        let behind = position.message == first + messages.len() as u64;
        if message.is_none() && !behind || position.sent > most as u64 {
            return Err(over(&stream, "the other side wants what it cannot lack"));
        }
        log::info!(target: "NET", "NET/Socket : stream {} goes to {way} from now on", self.number);
        (self.message, self.sent) = (position.message, position.sent as usize);
        (self.stream, self.way, self.anew) = (Some(stream), way, None);
        self.stamp += 1;
        Ok(())
    }

    /// The way does not lead there any more. Where the system does not say so, the old connection stays until there is
    /// another one: to close it could reach the other side, which would take it for the end.
    fn lose(&mut self, source: &StreamSource, error: Option<&io::Error>) {
        if source.lost_ways.add(&self.way) {
            let why = error.map_or("nobody answers".to_string(), io::Error::to_string);
            log::warn!("NET/Socket: {} does not lead there any more: {why}; another interface is used", self.way);
        }
        if error.is_some() {
            self.stream = None;
        }
        self.anew = Some(AnewStream::new(source.maker(self.number, true)));
    }
}

impl SocketSender {
    /// `resumes`: how streams that are lost are made anew, where several ways lead to the other side.
    pub fn new(
        streams: Vec<(SecureStream, Way)>,
        pieces: MessagePieces,
        resumes: Option<StreamSource>,
    ) -> SocketSender {
        let stream = |(number, (stream, way))| {
            let (stream, anew) = (Some(stream), None);
            SendStream { number, stream, way, stamp: 0, anew, message: 0, sent: 0, blocked: false }
        };
        let look = Instant::now() + LOOK;
        SocketSender {
            streams: streams.into_iter().enumerate().map(stream).collect(),
            pieces,
            messages: VecDeque::with_capacity(REQUESTS_MAX),
            first: 0,
            resume: resumes.map(|source| SendResumption { source, acks: AckReader::default(), look }),
        }
    }

    fn progress(&mut self) -> Result<(), Error> {
        self.look();
        for number in 0..self.streams.len() {
            let (stream, under_way) = (&mut self.streams[number], (self.first, &self.messages));
            if stream.anew.is_none() {
                let outcome = stream.progress(self.pieces, under_way);
                outcome.or_else(|end| self.ended(number, end))?;
                continue;
            }
            let outcome = stream.resume(self.pieces, under_way);
            let is_back = stream.anew.is_none();
            outcome.or_else(|end| self.ended(number, end))?;
            if is_back {
                // What came behind the position wakes nobody any more.
                self.resume.iter_mut().filter(|_| number == 0).for_each(|resume| resume.acks.begin_anew());
                self.read_acks(number)?;
            }
        }
        Ok(())
    }

    /// A stream has ended: it is made anew, or everything is over.
    fn ended(&mut self, number: usize, end: StreamEnd) -> Result<(), Error> {
        match (end, &mut self.resume) {
            (StreamEnd::Lost(error), Some(SendResumption { source, acks, .. })) => {
                self.streams[number].lose(source, Some(&error));
                if number == 0 {
                    acks.begin_anew();
                }
                Ok(())
            }
            (end, _) => Err(end.error()),
        }
    }

    /// Looks now and then whether the other side answers.
    fn look(&mut self) {
        let Some(SendResumption { source, look, .. }) = &mut self.resume else { return };
        let now = Instant::now();
        if now < *look || self.messages.is_empty() {
            return;
        }
        *look = now + LOOK;
        for stream in self.streams.iter_mut().filter(|stream| stream.anew.is_none()) {
            if stream.stream.as_ref().is_some_and(|stream| stream.tcp().is_unanswered()) {
                stream.lose(source, None);
            }
        }
    }

    /// Nothing ever comes from who receives, but what it has, by the first stream, and its end.
    fn read_acks(&mut self, number: usize) -> Result<(), Error> {
        let Some(stream) = &mut self.streams[number].stream else { return Ok(()) };
        let mut buffer = [0; 64];
        loop {
            let end = match stream.receive(&mut buffer) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => over(stream, "the other side has closed the connection"),
                Ok(Some(bytes)) => {
                    let sent = self.first + self.messages.len() as u64;
                    let known = self.resume.as_mut().filter(|_| number == 0);
                    match known.is_some_and(|resume| resume.acks.take(&buffer[..bytes], sent)) {
                        true => continue,
                        false => over(stream, "the other side sends where it must not"),
                    }
                }
                Err(error) => failed(stream, error),
            };
            if self.streams[number].anew.is_some() {
                // The other side may have taken the new one already.
                self.streams[number].stream = None;
                return Ok(());
            }
            return self.ended(number, end);
        }
    }

    /// Whether all of a message is out of this side's hands.
    fn is_done(&self, message: u64) -> bool {
        match &self.resume {
            Some(resume) => resume.acks.count() > message,
            None => self.streams.iter().all(|stream| stream.message > message),
        }
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
        if !self.is_done(request.0) {
            return Ok(None);
        }
        let done = self.messages.pop_front();
        self.first += u64::from(done.is_some());
        Ok(done.map(|message| message.bytes))
    }

    fn descriptors(&self) -> usize {
        self.streams.len()
    }

    fn watched(&self, number: usize) -> Option<Watched<'_>> {
        let SendStream { stream, blocked, stamp, anew, .. } = self.streams.get(number)?;
        let interest = Interest { readable: true, writable: *blocked && anew.is_none() };
        stream.as_ref().map(|stream| Watched { fd: stream.tcp().as_fd(), interest, stamp: *stamp })
    }

    /// A stream that is made anew is no descriptor yet.
    fn is_polled(&self) -> bool {
        self.streams.iter().any(|stream| stream.anew.is_some())
    }

    fn next_look(&self) -> Option<Instant> {
        self.resume.as_ref().filter(|_| !self.messages.is_empty()).map(|resume| resume.look)
    }

    fn silence(&self) -> Option<Duration> {
        self.streams.iter().filter_map(|one| one.stream.as_ref()?.tcp().silence()).min()
    }

    fn ready(&mut self, number: usize, ready: Ready) -> Result<(), Error> {
        if ready.readable && number < self.streams.len() { self.read_acks(number) } else { Ok(()) }
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
        let unacknowledged = |one: &SendStream| one.stream.as_ref().map_or(0, |stream| stream.tcp().unacknowledged());
        self.messages.is_empty() && self.streams.iter().all(|one| one.anew.is_some() || unacknowledged(one) == 0)
    }
}

#[cfg(test)]
impl SocketSender {
    /// Takes a stream for lost. Where the system would have said so, there is no connection any more, of which the
    /// other side hears nothing.
    pub fn lose_stream(&mut self, number: usize, closed: bool) {
        let error = closed.then(|| io::Error::from(io::ErrorKind::HostUnreachable));
        let Some(SendResumption { source, acks, .. }) = &mut self.resume else { return };
        if self.streams[number].anew.is_none() {
            self.streams[number].stream.take_if(|_| closed).into_iter().for_each(std::mem::forget);
            self.streams[number].lose(source, error.as_ref());
            if number == 0 && closed {
                acks.begin_anew();
            }
        }
    }
}
