//! Streams that sources take over: in plain, straight from and into the caller's memory, or sealed.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use crate::secure::{BrokenSeal, HandshakeProgress, RECORD_MAX, Refused, SEAL_MAX, SecureHandshake, Session};
use crate::sys::TcpStream;

/// So much of a message goes into one record with its head, which is copied for that.
const WITH_HEAD: usize = 4096;
/// Room for what has come of records.
const INPUT: usize = 2 * SEAL_MAX;

/// A stream whose ends have met.
pub struct SecureStream {
    tcp: TcpStream,
    sealed: Option<Box<SealedEnd>>,
}

/// What a sealed stream needs: records that come and go, and what is open and was not asked for yet.
struct SealedEnd {
    session: Box<Session>,
    output: Buffer,
    input: Buffer,
    open: Buffer,
    /// A head, and the data behind it.
    plain: Vec<u8>,
}

/// Memory, and the part of it that is used.
struct Buffer {
    bytes: Vec<u8>,
    used: Range<usize>,
}

/// A stream that is being made: who connects shows that it knows the listener's secret, and what the stream is for.
pub struct ConnectingStream {
    tcp: TcpStream,
    handshake: SecureHandshake,
    output: Vec<u8>,
    sent: usize,
    connected: bool,
    met: Option<Option<Box<Session>>>,
}

impl Buffer {
    fn new(bytes: usize) -> Buffer {
        Buffer { bytes: vec![0; bytes], used: 0..0 }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.used.clone()]
    }

    fn take(&mut self, bytes: usize) {
        self.used.start += bytes;
    }

    /// Room behind what is used, which moves to the front where there is little.
    fn room(&mut self) -> &mut [u8] {
        if self.used.start > 0 && (self.used.is_empty() || self.bytes.len() - self.used.end < SEAL_MAX) {
            self.bytes.copy_within(self.used.clone(), 0);
            self.used = 0..self.used.len();
        }
        &mut self.bytes[self.used.end..]
    }
}

fn broken(_: BrokenSeal) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what comes was changed on its way")
}

impl SecureStream {
    /// A stream, with what it is sealed by.
    pub fn new(tcp: TcpStream, session: Option<Box<Session>>) -> SecureStream {
        let sealed = |session| {
            let (output, input, open) = (Buffer::new(SEAL_MAX), Buffer::new(INPUT), Buffer::new(SEAL_MAX));
            Box::new(SealedEnd { session, output, input, open, plain: Vec::new() })
        };
        SecureStream { tcp, sealed: session.map(sealed) }
    }

    /// The connection, for what does not concern its data.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether what is sent is sealed.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Sends from two places; how many bytes were taken, 0 where there is no room now. The system may not have all of
    /// them before [`SecureStream::flush`] says so.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send_parts(&mut self, head: &[u8], data: &[u8]) -> io::Result<usize> {
        let Some(end) = &mut self.sealed else {
            return self.tcp.send_parts(&[IoSlice::new(head), IoSlice::new(data)]);
        };
        if !end.flush(&self.tcp)? {
            return Ok(0);
        }
        let sent = end.seal(head, data).map_err(broken)?;
        end.flush(&self.tcp)?;
        Ok(sent)
    }

    /// Whether the system has all that was sent.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn flush(&mut self) -> io::Result<bool> {
        self.sealed.as_mut().map_or(Ok(true), |end| end.flush(&self.tcp))
    }

    /// Takes what has come, to a place that has room; how many bytes, 0 where the other side has closed the connection,
    /// none where nothing has come.
    ///
    /// # Errors
    /// The connection has failed, or what has come was not sealed by the other side.
    pub fn receive(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.sealed {
            None => self.tcp.receive(into),
            Some(end) => end.receive(&self.tcp, into),
        }
    }

    /// The same to two places, of which the first has room. What is sealed goes to the first alone.
    ///
    /// # Errors
    /// As [`SecureStream::receive`].
    pub fn receive_parts(&mut self, into: &mut [u8], more: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.sealed {
            None => self.tcp.receive_parts(&mut [IoSliceMut::new(into), IoSliceMut::new(more)]),
            Some(end) => end.receive(&self.tcp, into),
        }
    }

    /// Whether there is something that the system does not have any more: nobody is woken for it.
    pub fn is_buffered(&self) -> bool {
        self.sealed.as_ref().is_some_and(|end| !end.open.used.is_empty() || Session::record(end.input.get()).is_some())
    }
}

impl SealedEnd {
    fn flush(&mut self, tcp: &TcpStream) -> io::Result<bool> {
        while !self.output.used.is_empty() {
            let sent = tcp.send(self.output.get())?;
            if sent == 0 {
                return Ok(false);
            }
            self.output.take(sent);
        }
        Ok(true)
    }

    /// Seals one record, where nothing waits to be sent.
    fn seal(&mut self, head: &[u8], data: &[u8]) -> Result<usize, BrokenSeal> {
        let plain = if head.is_empty() {
            &data[..data.len().min(RECORD_MAX)]
        } else {
            self.plain.clear();
            self.plain.extend_from_slice(head);
            self.plain.extend_from_slice(&data[..data.len().min(WITH_HEAD)]);
            &self.plain[..]
        };
        let bytes = self.session.seal(plain, &mut self.output.bytes)?;
        self.output.used = 0..bytes;
        Ok(plain.len())
    }

    fn receive(&mut self, tcp: &TcpStream, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            if !self.open.used.is_empty() {
                let bytes = into.len().min(self.open.used.len());
                into[..bytes].copy_from_slice(&self.open.get()[..bytes]);
                self.open.take(bytes);
                return Ok(Some(bytes));
            }
            if let Some(length) = Session::record(self.input.get()) {
                let SealedEnd { session, input, open, .. } = self;
                let record = &input.get()[..length];
                // The place must have room for the tag, which is overwritten by what comes next.
                let direct = into.len() >= length;
                let place = if direct { &mut *into } else { &mut open.bytes[..] };
                let bytes = session.open(record, place).map_err(broken)?;
                input.take(length);
                match direct && bytes > 0 {
                    true => return Ok(Some(bytes)),
                    false if direct => {}
                    false => open.used = 0..bytes,
                }
                continue;
            }
            match tcp.receive(self.input.room())? {
                None => return Ok(None),
                Some(0) => return Ok(Some(0)),
                Some(bytes) => self.input.used.end += bytes,
            }
        }
    }
}

impl ConnectingStream {
    pub(super) fn new(tcp: TcpStream, hello: Vec<u8>, mut handshake: SecureHandshake) -> ConnectingStream {
        let output = [hello, handshake.output()].concat();
        ConnectingStream { tcp, handshake, output, sent: 0, connected: false, met: None }
    }

    /// Gets on; whether the ends have met.
    ///
    /// # Errors
    /// What the system says; `InvalidData` where whoever listens does not know the secret, or is set otherwise.
    pub fn progress(&mut self) -> io::Result<bool> {
        if !self.connected {
            match self.tcp.outcome() {
                Ok(()) => self.connected = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        loop {
            while self.sent < self.output.len() {
                match self.tcp.send(&self.output[self.sent..])? {
                    0 => return Ok(false),
                    sent => self.sent += sent,
                }
            }
            if self.met.is_some() {
                return Ok(true);
            }
            let (mut buffer, most) = ([0; 256], self.handshake.missing().min(256));
            match self.tcp.receive(&mut buffer[..most])? {
                None => return Ok(false),
                Some(0) => return Err(io::ErrorKind::ConnectionReset.into()),
                Some(bytes) => self.hear(&buffer[..bytes])?,
            }
        }
    }

    fn hear(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let heard = self.handshake.receive(&mut bytes);
        self.output.extend_from_slice(&self.handshake.output());
        match heard {
            Ok(HandshakeProgress::More) => {}
            Ok(HandshakeProgress::Met(session)) => self.met = Some(session),
            Err(refused) => {
                let text = match refused {
                    Refused::Stranger => "what answers there is not the rank that listens",
                    mismatch => mismatch.text(),
                };
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        Ok(())
    }

    /// The stream, once its ends have met.
    pub fn finish(self) -> Option<SecureStream> {
        self.met.map(|session| SecureStream::new(self.tcp, session))
    }
}
