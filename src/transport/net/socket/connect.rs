//! How the streams of a connection are made, by one way or another.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::SocketHandle;
use super::pieces::MessagePieces;
use super::send::SocketSender;
use super::ways::{LostWays, Way, WayEnds};
use crate::error::Error;
use crate::plugin::network::{NetConnecting, NetSender};
use crate::proxy::{Address, ConnectingStream, SecureStream};
use crate::sys::TcpStream;

/// How long one way is tried where there is another one, and how long all are.
const WAY_LIMIT: Duration = Duration::from_secs(5);
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// The pause before all ways are tried again; it grows by as much each time.
const RETRY: Duration = Duration::from_millis(100);

/// A stream that is being made.
pub(super) struct StreamMaker {
    ways: Vec<Way>,
    lost_ways: Arc<LostWays>,
    to: Address,
    token: u64,
    buffers: (Option<usize>, Option<usize>),
    /// The one that is tried, and how often all were.
    way: usize,
    rounds: u32,
    stream: StreamAttempt,
    began: Instant,
    way_began: Instant,
}

enum StreamAttempt {
    /// Not before then.
    Pause(Instant),
    Connecting(Box<ConnectingStream>),
}

/// A connection that is being made.
pub(super) struct SocketConnecting {
    makers: Vec<StreamMaker>,
    made: Vec<Option<SecureStream>>,
    piece_min: usize,
}

impl StreamMaker {
    /// Of the stream of a number.
    fn new(
        number: u32,
        (ends, lost_ways): (&WayEnds, &Arc<LostWays>),
        handle: &SocketHandle,
        buffers: (Option<usize>, Option<usize>),
    ) -> StreamMaker {
        let (mut ways, now) = (ends.ways(number as usize), Instant::now());
        lost_ways.put_last(&mut ways);
        StreamMaker {
            ways,
            lost_ways: lost_ways.clone(),
            to: handle.to,
            token: handle.token.wrapping_add(u64::from(number)),
            buffers,
            way: 0,
            rounds: 0,
            stream: StreamAttempt::Pause(now),
            began: now,
            way_began: now,
        }
    }

    /// Gets on: the stream, once its ends have met.
    ///
    /// # Errors
    /// [`Error::System`] that names the address: no way leads there.
    pub fn progress(&mut self) -> Result<Option<SecureStream>, Error> {
        match self.attempt() {
            Ok(made) => {
                if made.is_some() {
                    self.ways.get(self.way).into_iter().for_each(|way| self.lost_ways.remove(way));
                }
                Ok(made)
            }
            Err(error) => self.turn_away(&error).map(|()| None),
        }
    }

    fn attempt(&mut self) -> io::Result<Option<SecureStream>> {
        let way = *self.ways.get(self.way).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        if let StreamAttempt::Pause(until) = self.stream {
            if Instant::now() < until {
                return Ok(None);
            }
            let tcp = match way.from {
                Some(from) => TcpStream::connect_from(from, way.to.socket())?,
                None => TcpStream::connect(way.to.socket())?,
            };
            tcp.set_buffers(self.buffers.0, self.buffers.1)?;
            self.stream = StreamAttempt::Connecting(Box::new(way.to.stream(tcp, self.to, self.token)));
            self.way_began = Instant::now();
        }
        let StreamAttempt::Connecting(stream) = &mut self.stream else { return Ok(None) };
        if stream.progress()? {
            let met = std::mem::replace(&mut self.stream, StreamAttempt::Pause(Instant::now()));
            let StreamAttempt::Connecting(met) = met else { return Ok(None) };
            return Ok(met.finish());
        }
        let limit = if self.ways.len() > 1 { WAY_LIMIT } else { CONNECT_LIMIT };
        if self.way_began.elapsed() < limit { Ok(None) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// One way does not lead there: another one may.
    fn turn_away(&mut self, error: &io::Error) -> Result<(), Error> {
        let Some(way) = self.ways.get(self.way) else {
            return Err(Error::system("connect", "none of the addresses is of a family that this host has", error));
        };
        let (late, last) = (self.began.elapsed() > CONNECT_LIMIT, self.way + 1 >= self.ways.len());
        if last && (late || self.rounds > 0 && self.began.elapsed() > WAY_LIMIT) {
            return Err(Error::system("connect", way.to_string(), error));
        }
        let is_new = self.ways.len() > 1 && self.lost_ways.add(way);
        if is_new && way.direct {
            log::warn!("NET/Socket: {way} cannot be reached: {error}; another interface is used");
        } else if is_new {
            log::info!(target: "NET", "NET/Socket : {way} cannot be reached: {error}; another interface is used");
        }
        self.way = if last { 0 } else { self.way + 1 };
        self.rounds += u32::from(last);
        let pause = if last { RETRY * self.rounds } else { Duration::ZERO };
        self.stream = StreamAttempt::Pause(Instant::now() + pause);
        Ok(())
    }
}

impl SocketConnecting {
    /// Begins to make the streams that a handle asks for.
    pub fn begin(
        ends: &WayEnds,
        handle: &SocketHandle,
        buffers: (Option<usize>, Option<usize>),
        lost_ways: &Arc<LostWays>,
    ) -> SocketConnecting {
        let maker = |number| StreamMaker::new(number, (ends, lost_ways), handle, buffers);
        let makers: Vec<StreamMaker> = (0..handle.streams).map(maker).collect();
        let made = makers.iter().map(|_| None).collect();
        SocketConnecting { makers, made, piece_min: handle.piece_min as usize }
    }
}

impl NetConnecting for SocketConnecting {
    fn connect(&mut self) -> Result<Option<Box<dyn NetSender>>, Error> {
        for (maker, made) in self.makers.iter_mut().zip(&mut self.made).filter(|(_, made)| made.is_none()) {
            *made = maker.progress()?;
        }
        if self.made.iter().any(Option::is_none) {
            return Ok(None);
        }
        let streams: Vec<SecureStream> = self.made.drain(..).flatten().collect();
        let pieces = MessagePieces { streams: streams.len(), least: self.piece_min };
        Ok(Some(Box::new(SocketSender::new(streams, pieces))))
    }
}
