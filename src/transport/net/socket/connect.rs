//! How the streams of a connection are made, by one way or another.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
/// The same of one that is made anew: as long as the system would go on sending.
const ANEW_LIMIT: Duration = Duration::from_secs(900);
/// The pause before all ways are tried again; it grows by as much each time, up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// What the token of a stream has in it that may be made anew.
pub(super) const TOKEN_RESUMES: u64 = 1 << 63;

/// How the streams of a connection are made.
#[derive(Clone)]
pub(super) struct StreamSource {
    pub ends: WayEnds,
    pub lost_ways: Arc<LostWays>,
    pub to: Address,
    /// The token of the first stream.
    pub token: u64,
    pub buffers: (Option<usize>, Option<usize>),
}

/// A stream that is being made.
pub(super) struct StreamMaker {
    ways: Vec<Way>,
    lost_ways: Arc<LostWays>,
    to: Address,
    token: u64,
    buffers: (Option<usize>, Option<usize>),
    /// How long it is tried, if not all ways refuse it before.
    patience: Duration,
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
    source: StreamSource,
    makers: Vec<StreamMaker>,
    made: Vec<Option<(SecureStream, Way)>>,
    piece_min: usize,
}

impl StreamSource {
    /// Whether a stream that is lost can be made anew.
    pub fn resumes(&self) -> bool {
        self.ends.ways(0).len() > 1
    }

    /// Makes the stream of a number. `anew`: there was one, and it is tried for as long as the system would have done.
    pub fn maker(&self, number: usize, anew: bool) -> StreamMaker {
        let (mut ways, now) = (self.ends.ways(number), Instant::now());
        self.lost_ways.put_last(&mut ways);
        let resumes = if ways.len() > 1 { TOKEN_RESUMES } else { 0 };
        StreamMaker {
            ways,
            lost_ways: self.lost_ways.clone(),
            to: self.to,
            token: self.token.wrapping_add(number as u64) | resumes,
            buffers: self.buffers,
            patience: if anew { ANEW_LIMIT } else { WAY_LIMIT },
            way: 0,
            rounds: 0,
            stream: StreamAttempt::Pause(now),
            began: now,
            way_began: now,
        }
    }
}

impl StreamMaker {
    /// Gets on: the stream, once its ends have met.
    ///
    /// # Errors
    /// [`Error::System`] that names the address: no way leads there.
    pub fn progress(&mut self) -> Result<Option<(SecureStream, Way)>, Error> {
        match self.attempt() {
            Ok(made) => Ok(made.zip(self.ways.get(self.way).copied()).inspect(|(_, way)| self.lost_ways.remove(way))),
            Err(error) => self.turn_away(&error).map(|()| None),
        }
    }

    fn attempt(&mut self) -> io::Result<Option<SecureStream>> {
        let way = *self.ways.get(self.way).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        if let StreamAttempt::Pause(until) = self.stream {
            if Instant::now() < until {
                return Ok(None);
            }
            let tcp = TcpStream::connect_from(way.from, way.to.socket())?;
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
        let limit = CONNECT_LIMIT.max(self.patience);
        let (late, last) = (self.began.elapsed() > limit, self.way + 1 >= self.ways.len());
        if last && (late || self.rounds > 0 && self.began.elapsed() > self.patience) {
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
        let pause = if last { (RETRY.0 * self.rounds).min(RETRY.1) } else { Duration::ZERO };
        self.stream = StreamAttempt::Pause(Instant::now() + pause);
        Ok(())
    }
}

impl SocketConnecting {
    /// Begins to make some streams, whose pieces of messages are no shorter than that.
    pub fn begin(source: StreamSource, streams: u32, piece_min: usize) -> SocketConnecting {
        let makers: Vec<StreamMaker> = (0..streams).map(|number| source.maker(number as usize, false)).collect();
        let made = makers.iter().map(|_| None).collect();
        SocketConnecting { source, makers, made, piece_min }
    }
}

impl NetConnecting for SocketConnecting {
    fn connect(&mut self) -> Result<Option<Box<dyn NetSender>>, Error> {
        Ok(self.finish()?.map(|sender| Box::new(sender) as Box<dyn NetSender>))
    }
}

impl SocketConnecting {
    /// The end that sends, once all streams are made.
    pub fn finish(&mut self) -> Result<Option<SocketSender>, Error> {
        for (maker, made) in self.makers.iter_mut().zip(&mut self.made).filter(|(_, made)| made.is_none()) {
            *made = maker.progress()?;
        }
        if self.made.iter().any(Option::is_none) {
            return Ok(None);
        }
        let streams: Vec<(SecureStream, Way)> = self.made.drain(..).flatten().collect();
        let pieces = MessagePieces { streams: streams.len(), least: self.piece_min };
        let resumes = self.source.resumes().then(|| self.source.clone());
        Ok(Some(SocketSender::new(streams, pieces, resumes)))
    }
}
