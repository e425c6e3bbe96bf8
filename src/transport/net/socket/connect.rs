//! How the streams of a connection are made, from one interface or another.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::SocketHandle;
use super::pieces::MessagePieces;
use super::send::SocketSender;
use crate::error::Error;
use crate::plugin::network::{NetConnecting, NetSender};
use crate::proxy::{ConnectingStream, SecureStream, TcpAddress};
use crate::sys::TcpStream;

/// How long one way is tried where there is another one, and how long all are.
const WAY_LIMIT: Duration = Duration::from_secs(5);
const CONNECT_LIMIT: Duration = Duration::from_secs(60);
/// The pause before all ways are tried again; it grows by as much each time.
const RETRY: Duration = Duration::from_millis(100);

/// From which address of this host to which one of the other's.
type Way = (Option<SocketAddr>, TcpAddress);

/// A connection that is being made.
pub(super) struct SocketConnecting {
    ways: Vec<Way>,
    /// The one that is tried.
    way: usize,
    rounds: u32,
    handle: SocketHandle,
    buffers: (Option<usize>, Option<usize>),
    streams: Vec<ConnectingStream>,
    began: Instant,
    way_began: Instant,
    /// When a way is tried again.
    pause: Option<Instant>,
}

impl SocketConnecting {
    /// Begins: `from` are this host's addresses, the one that is wanted first.
    pub fn begin(
        from: Vec<Option<SocketAddr>>,
        handle: SocketHandle,
        buffers: (Option<usize>, Option<usize>),
    ) -> SocketConnecting {
        let same_family = |from: &Option<SocketAddr>, to: &TcpAddress| {
            from.is_none_or(|from| from.is_ipv4() == to.socket().is_ipv4())
        };
        // The interfaces that were chosen for this connection come first, then each other pair.
        let pairs = handle.at.iter().flat_map(|to| from.iter().map(|from| (*from, *to)));
        let ways = pairs.filter(|(from, to)| same_family(from, to)).collect();
        let now = Instant::now();
        let streams = Vec::new();
        SocketConnecting { ways, way: 0, rounds: 0, handle, buffers, streams, began: now, way_began: now, pause: None }
    }

    fn progress(&mut self) -> std::io::Result<bool> {
        let way = *self.ways.get(self.way).ok_or_else(|| std::io::Error::from(std::io::ErrorKind::AddrNotAvailable))?;
        while self.streams.len() < self.handle.streams as usize {
            let token = self.handle.token.wrapping_add(self.streams.len() as u64);
            let tcp = match way.0 {
                Some(from) => TcpStream::connect_from(from, way.1.socket())?,
                None => TcpStream::connect(way.1.socket())?,
            };
            tcp.set_buffers(self.buffers.0, self.buffers.1)?;
            self.streams.push(way.1.stream(tcp, self.handle.to, token));
        }
        let mut all = true;
        for stream in &mut self.streams {
            all &= stream.progress()?;
        }
        let limit = if self.ways.len() > 1 { WAY_LIMIT } else { CONNECT_LIMIT };
        match all || self.way_began.elapsed() < limit {
            true => Ok(all),
            false => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }

    /// One way does not lead there: another one may.
    fn turn_away(&mut self, error: &std::io::Error) -> Result<(), Error> {
        let to = self.ways.get(self.way).map_or(String::new(), |(_, to)| to.socket().to_string());
        let late = self.began.elapsed() > CONNECT_LIMIT || self.ways.is_empty();
        let last = self.way + 1 >= self.ways.len();
        if last && (late || self.rounds > 0 && self.began.elapsed() > WAY_LIMIT) {
            return Err(Error::system("connect", to, error));
        }
        if self.rounds == 0 && !last {
            let from = self.ways[self.way].0.map_or(String::new(), |from| format!(" from {}", from.ip()));
            log::warn!("NET/Socket: {to} cannot be reached{from}: {error}; another interface is tried");
        }
        self.streams.clear();
        self.way = if last { 0 } else { self.way + 1 };
        self.rounds += u32::from(last);
        self.pause = last.then(|| Instant::now() + RETRY * self.rounds);
        self.way_began = Instant::now();
        Ok(())
    }
}

impl NetConnecting for SocketConnecting {
    fn connect(&mut self) -> Result<Option<Box<dyn NetSender>>, Error> {
        if self.pause.is_some_and(|until| Instant::now() < until) {
            return Ok(None);
        }
        match self.progress() {
            Ok(false) => Ok(None),
            Ok(true) => {
                let streams: Vec<SecureStream> = self.streams.drain(..).filter_map(ConnectingStream::finish).collect();
                let pieces = MessagePieces { streams: streams.len(), least: self.handle.piece_min as usize };
                Ok(Some(Box::new(SocketSender::new(streams, pieces))))
            }
            Err(error) => self.turn_away(&error).map(|()| None),
        }
    }
}
