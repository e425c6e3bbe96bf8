//! The carrier for processes anywhere: connections whose ends show that they know the secret of the listener.
//!
//! Whoever has messages for a process connects to it, once, and keeps the connection while it is used; messages go when
//! the ends have met ([`crate::secure`]), and are sealed. The other side says of each message that it has taken it, so
//! that what it has not taken when the connection ends can be told. Who does not know the secret is a stranger, and is
//! closed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::{Hello, TcpDecoder, TcpFrame};
use super::message::{Address, ListenAddress, Message, TcpAddress, Undeliverable};
use super::outbox::Lost;
use super::stream::SecureStream;
use crate::error::Error;
use crate::secure::{HandshakeProgress, SecureHandshake, Session};
use crate::sys::tcp::is_lost_way;
use crate::sys::{Interest, Poller, Ready, TcpListener, TcpStream};

/// The most bytes that wait for one process; what is over it is refused.
pub(super) const QUEUE_MAX: usize = 4 << 20;
/// While so many bytes wait for who has connected, nothing more is read from it.
const ANSWERS_MAX: usize = 64 << 10;
/// How long a process is tried that refuses connections, or that cannot be reached.
const REFUSED_LIMIT: Duration = Duration::from_millis(300);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a process that is connected to may take to answer: it may be stopped for a while.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// The pause before the second try, which grows up to the other.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// How long a connection may take to show that it knows the secret, and how many may be about to.
pub(super) const HELLO_LIMIT: Duration = Duration::from_secs(5);
pub(super) const STRANGERS_MAX: usize = 256;
/// How long one of so many has before it makes room for others, and how long nobody is accepted until then. Many ranks
/// connect at the same time: none of them may be closed for that.
const STRANGER_GRACE: Duration = Duration::from_millis(250);
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// So much later than it wanted to, a thread looks only where it could not.
const STALL: Duration = Duration::from_millis(100);
/// After so long a connection that nobody uses is closed.
const IDLE: Duration = Duration::from_secs(60);
/// How long nobody is accepted where the process may open no more files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections accepted, and bytes read from one connection, before others have their turn.
const ACCEPT_TURN: usize = 64;
const READ_TURN: usize = 256 << 10;
/// Bytes read at once, and sealed at once.
const READ: usize = 64 << 10;
const SEALED: usize = 32 << 10;
/// The high half of the tokens of this carrier's descriptors: no source has that number.
pub(super) const TOKENS: u32 = u32::MAX;
/// Tokens from here on are those of listeners.
const LISTENERS: u32 = 1 << 31;

type ConnectionId = u32;

/// Where others connect.
pub(super) struct KeyedListener {
    pub socket: TcpListener,
    /// What others are told.
    pub address: TcpAddress,
    wanted: ListenAddress,
    token: u64,
}

/// What waits for a process.
#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// The messages that the other side has not taken: who sent them, and to whom.
    untaken: VecDeque<(Address, Address)>,
}

/// A process that messages go to.
struct TcpPeer {
    /// What waits until there is a connection.
    queue: Queue,
    connection: Option<ConnectionId>,
    /// When it was first tried, and is tried again.
    since: Instant,
    retry: Option<Instant>,
    pause: Duration,
    /// Sources here that want to know when sources there are gone.
    kept: BTreeSet<(Address, Address)>,
    /// After how long its host counts as gone.
    heartbeat: Option<Duration>,
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TcpStage {
    /// It is being made.
    Connecting(Instant),
    /// The handshake is under way.
    Greeting(Instant),
    /// Somebody has connected, and is to show that it knows the secret.
    Stranger(Instant),
    /// A stream for a source, which takes it over.
    Stream(Address, u64),
    Open,
}

struct TcpConnection {
    stream: TcpStream,
    stage: TcpStage,
    /// Whom this process has connected to.
    to: Option<TcpAddress>,
    /// The listener's address that somebody has connected to.
    at: Option<TcpAddress>,
    /// What it is for, once that was said.
    hello: Option<Hello>,
    handshake: Option<Box<SecureHandshake>>,
    session: Option<Box<Session>>,
    /// What has come of a record.
    input: Vec<u8>,
    decoder: TcpDecoder,
    queue: Queue,
    /// What goes to the system as it is, and how much of it has gone.
    output: Vec<u8>,
    sent: usize,
    interest: Interest,
    used: Instant,
    /// It stays when nobody uses it.
    kept: bool,
}

/// All connections of a process.
#[derive(Default)]
pub(super) struct Tcp {
    peers: BTreeMap<TcpAddress, TcpPeer>,
    connections: BTreeMap<ConnectionId, TcpConnection>,
    next_id: ConnectionId,
    /// Connections that may have something to send.
    dirty: BTreeSet<ConnectionId>,
    /// When there is something to be done that nobody says.
    next: Option<Instant>,
    /// Listeners that accept nobody until then.
    paused: Vec<(Arc<KeyedListener>, Instant)>,
    strangers: u64,
    /// Streams that sources are to take over.
    streams: Vec<SourceStream>,
    buffer: Vec<u8>,
}

/// A stream that somebody has connected, with the token that it has shown, for a source.
pub(super) struct SourceStream {
    pub to: Address,
    pub token: u64,
    pub stream: SecureStream,
}

/// Why a connection ends.
enum TcpEnd {
    /// The other side has closed it.
    Closed,
    /// What comes is nothing of this library's.
    Garbage,
    /// The system says so.
    Failed(io::Error),
}

impl From<io::Error> for TcpEnd {
    fn from(error: io::Error) -> TcpEnd {
        TcpEnd::Failed(error)
    }
}

impl TcpEnd {
    /// What the end of a connection to a process says of the process.
    fn why(&self, to: TcpAddress) -> Undeliverable {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        match self {
            TcpEnd::Failed(error) if is_lost_way(error) => Undeliverable::Silent,
            TcpEnd::Failed(error) if !matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                Undeliverable::Failed(Error::system("recv", to.socket().to_string(), error))
            }
            _ => Undeliverable::Died,
        }
    }
}

impl KeyedListener {
    /// `number`: the listeners that the process had before.
    pub fn open(wanted: ListenAddress, key: u128, number: usize) -> Result<KeyedListener, Error> {
        let socket = TcpListener::open(wanted.at, wanted.ports)?;
        let own = socket.address()?;
        let mut told = wanted.advertise.unwrap_or(own);
        told.set_port(own.port());
        let address = TcpAddress::new(told, key, wanted.encrypted_by.is_some());
        let token = token(LISTENERS + number as u32);
        log::info!(target: "INIT,NET", "NET/Socket : listening for other ranks at {own}, as {told}");
        Ok(KeyedListener { socket, address, wanted, token })
    }

    /// Whether it is what somebody wants who would listen at an address. Whoever has come first has said which ports
    /// it may be, and what others are told.
    pub fn serves(&self, wanted: ListenAddress) -> bool {
        let (own, mut at) = (self.wanted.at, wanted.at);
        at.set_port(own.port());
        let ports = [0, own.port(), self.address.socket().port()];
        at == own && ports.contains(&wanted.at.port()) && wanted.encrypted_by == self.wanted.encrypted_by
    }

    /// Lets the event loop know of connections.
    pub fn watch(&self, poller: &Poller) -> Result<(), Error> {
        poller.add(self.socket.as_fd(), self.token, Interest { readable: true, writable: false })
    }
}

fn token(low: u32) -> u64 {
    u64::from(TOKENS) << 32 | u64::from(low)
}

fn ended(to: Address) -> Error {
    Error::Remote {
        rank: Some(to.rank),
        text: format!("the connection that rank {}'s message came by has ended", to.rank),
    }
}

/// The listener that a token is of, as its number.
pub(super) fn listener(token: u32) -> Option<usize> {
    token.checked_sub(LISTENERS).map(|number| number as usize)
}

impl Queue {
    fn push(&mut self, ends: (Address, Address), bytes: &[u8]) -> Result<(), Error> {
        if self.bytes.len() + bytes.len() > QUEUE_MAX {
            let rank = ends.1.rank;
            return Err(Error::Resource(format!(
                "more than {QUEUE_MAX} bytes of messages wait for rank {rank}'s process"
            )));
        }
        TcpFrame::write(bytes, &mut self.bytes);
        self.untaken.push_back(ends);
        Ok(())
    }

    /// Nothing of it is still to arrive.
    fn is_settled(&self) -> bool {
        self.bytes.is_empty() && self.untaken.is_empty()
    }

    /// Nothing of it can arrive.
    fn lose(self, why: &Undeliverable, lost: &mut Vec<Lost>) {
        // Who has sent many to one source hears it once.
        let ends: BTreeSet<(Address, Address)> = self.untaken.into_iter().collect();
        lost.extend(ends.into_iter().map(|(from, to)| Lost { from, to, why: why.clone() }));
    }
}

impl TcpPeer {
    /// One that is connected to at once, which the other argument then says.
    fn new(next: &mut Option<Instant>) -> TcpPeer {
        let now = Instant::now();
        *next = Some(now);
        let (queue, kept) = (Queue::default(), BTreeSet::new());
        TcpPeer { queue, connection: None, since: now, retry: Some(now), pause: RETRY, kept, heartbeat: None }
    }

    /// It cannot be reached any more.
    fn lose(self, why: &Undeliverable, lost: &mut Vec<Lost>) {
        self.queue.lose(why, lost);
        lost.extend(self.kept.into_iter().map(|(from, to)| Lost { from, to, why: why.clone() }));
    }
}

impl TcpConnection {
    /// One that is being made to there.
    fn to(stream: TcpStream, to: TcpAddress, until: Instant, now: Instant) -> TcpConnection {
        let interest = Interest { readable: false, writable: true };
        TcpConnection { to: Some(to), ..TcpConnection::new(stream, TcpStage::Connecting(until), interest, now) }
    }

    /// One that somebody has made to a listener.
    fn at(stream: TcpStream, at: TcpAddress, now: Instant) -> TcpConnection {
        let (stage, interest) = (TcpStage::Stranger(now + HELLO_LIMIT), Interest { readable: true, writable: false });
        TcpConnection { at: Some(at), ..TcpConnection::new(stream, stage, interest, now) }
    }

    fn new(stream: TcpStream, stage: TcpStage, interest: Interest, now: Instant) -> TcpConnection {
        TcpConnection {
            stream,
            stage,
            to: None,
            at: None,
            hello: None,
            handshake: None,
            session: None,
            input: Vec::new(),
            decoder: TcpDecoder::default(),
            queue: Queue::default(),
            output: Vec::new(),
            sent: 0,
            interest,
            used: now,
            kept: false,
        }
    }

    /// What of it is to be waited for. Who has connected and does not read is not read from either.
    fn wanted(&self) -> Interest {
        let connecting = matches!(self.stage, TcpStage::Connecting(_));
        Interest {
            readable: !connecting && (self.to.is_some() || self.queue.bytes.len() < ANSWERS_MAX),
            writable: connecting || !self.output.is_empty() || self.session.is_some() && !self.queue.bytes.is_empty(),
        }
    }

    /// When it is closed: as a stranger, as one that could not be made, or as one that nobody uses.
    fn deadline(&self) -> Option<Instant> {
        match self.stage {
            TcpStage::Connecting(until) | TcpStage::Greeting(until) | TcpStage::Stranger(until) => Some(until),
            TcpStage::Stream(..) => None,
            TcpStage::Open => {
                let unused = self.to.is_some() && !self.kept && self.queue.untaken.is_empty();
                unused.then(|| self.used + IDLE)
            }
        }
    }

    /// It stays, and its end is told.
    fn keep(&mut self, heartbeat: Option<Duration>) {
        self.kept = true;
        let set = heartbeat.filter(|_| self.stage == TcpStage::Open).map(|limit| self.stream.set_heartbeat(limit));
        if let (Some(Err(error)), Some(to)) = (set, self.to) {
            log::info!(target: "NET", "{} is not watched: {error}", to.socket());
        }
    }

    fn write(&mut self, now: Instant) -> io::Result<()> {
        while !matches!(self.stage, TcpStage::Connecting(_)) && self.fill_output()? {
            let sent = self.stream.send(&self.output[self.sent..])?;
            if sent == 0 {
                break;
            }
            self.sent += sent;
            self.used = now;
        }
        Ok(())
    }

    /// Whether there is something for the system; what waits is sealed once the system has taken what was before it.
    fn fill_output(&mut self) -> io::Result<bool> {
        if self.sent < self.output.len() {
            return Ok(true);
        }
        self.output.clear();
        self.sent = 0;
        let Some(session) = &mut self.session else { return Ok(false) };
        let waiting = self.queue.bytes.as_slices().0;
        let some = waiting.len().min(SEALED);
        let sealed = session.seal_all(&waiting[..some], &mut self.output);
        sealed.map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        self.queue.bytes.drain(..some);
        Ok(some > 0)
    }

    /// Whether the system has all that is to go.
    fn is_settled(&self) -> bool {
        self.sent == self.output.len() && self.queue.is_settled()
    }

    /// Reads what has come; messages in it go to `messages`.
    fn read(&mut self, id: ConnectionId, buffer: &mut [u8], messages: &mut Vec<Message>) -> Result<(), TcpEnd> {
        let mut left = READ_TURN;
        while left > 0 && (self.to.is_some() || self.queue.bytes.len() < ANSWERS_MAX) {
            let most = match (&self.handshake, self.stage) {
                (Some(handshake), _) => handshake.missing(),
                (None, TcpStage::Stranger(_)) => self.decoder.missing(),
                (None, TcpStage::Stream(..)) => break,
                (None, _) => buffer.len(),
            };
            let Some(read) = self.stream.receive(&mut buffer[..most])? else { break };
            if read == 0 {
                return Err(TcpEnd::Closed);
            }
            left = left.saturating_sub(read);
            self.take(&buffer[..read], id, messages)?;
        }
        Ok(())
    }

    /// Bytes have come.
    fn take(&mut self, bytes: &[u8], id: ConnectionId, messages: &mut Vec<Message>) -> Result<(), TcpEnd> {
        match (&self.handshake, &mut self.session) {
            (Some(_), _) => self.shake(bytes),
            (None, None) => {
                self.decoder.push(bytes);
                let hello = self.decoder.hello().map_err(|_| TcpEnd::Garbage)?;
                if let (Some(hello), Some(at)) = (hello, self.at) {
                    self.hello = Some(hello);
                    self.handshake = Some(Box::new(at.handshake(hello, false)));
                }
                Ok(())
            }
            (None, Some(session)) => {
                self.input.extend_from_slice(bytes);
                let mut plain = Vec::new();
                let opened = session.open_all(&mut self.input, &mut plain);
                self.decoder.push(&plain);
                self.decode(id, messages)?;
                opened.map_err(|_| TcpEnd::Garbage)
            }
        }
    }

    /// Begins the handshake with who listens.
    fn greet(&mut self, to: TcpAddress, now: Instant) {
        let mut handshake = Box::new(to.handshake(Hello::Messages, true));
        self.output = [Hello::Messages.encode(), handshake.output()].concat();
        self.stage = TcpStage::Greeting(now + ANSWER_LIMIT);
        self.handshake = Some(handshake);
    }

    /// The handshake goes on.
    fn shake(&mut self, mut bytes: &[u8]) -> Result<(), TcpEnd> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        let progress = handshake.receive(&mut bytes);
        self.output.extend_from_slice(&handshake.output());
        if let HandshakeProgress::Met(session) = progress.map_err(|_| TcpEnd::Garbage)? {
            (self.handshake, self.session) = (None, session);
            self.stage = match self.hello {
                Some(Hello::Stream(to, token)) => TcpStage::Stream(to, token),
                _ => TcpStage::Open,
            };
        }
        Ok(())
    }

    fn decode(&mut self, id: ConnectionId, messages: &mut Vec<Message>) -> Result<(), TcpEnd> {
        while let Some(frame) = self.decoder.next().map_err(|_| TcpEnd::Garbage)? {
            match frame {
                TcpFrame::Taken => drop(self.queue.untaken.pop_front().ok_or(TcpEnd::Garbage)?),
                TcpFrame::Message(bytes) => {
                    messages.push(Message::decode(&bytes, id).ok_or(TcpEnd::Garbage)?);
                    TcpFrame::write(&[], &mut self.queue.bytes);
                }
            }
        }
        Ok(())
    }
}

impl Tcp {
    /// Adds a message to a process.
    ///
    /// # Errors
    /// [`Error::Resource`] where too much waits for it.
    pub fn add(&mut self, to: TcpAddress, ends: (Address, Address), bytes: &[u8]) -> Result<(), Error> {
        let peer = self.peers.entry(to).or_insert_with(|| TcpPeer::new(&mut self.next));
        let open = peer.connection.and_then(|id| Some((id, self.connections.get_mut(&id)?)));
        match open.filter(|(_, connection)| connection.stage == TcpStage::Open) {
            Some((id, connection)) => {
                self.dirty.insert(id);
                connection.queue.push(ends, bytes)
            }
            None => peer.queue.push(ends, bytes),
        }
    }

    /// Connects to a process, and stays connected: a source here wants to know when that one there is gone, also with
    /// its host, which is asked now and then, and is gone after `heartbeat` without an answer.
    pub fn keep(&mut self, to: TcpAddress, ends: (Address, Address), heartbeat: Option<Duration>) {
        let peer = self.peers.entry(to).or_insert_with(|| TcpPeer::new(&mut self.next));
        peer.kept.insert(ends);
        peer.heartbeat = peer.heartbeat.into_iter().chain(heartbeat).min();
        if let Some(connection) = peer.connection.and_then(|id| self.connections.get_mut(&id)) {
            connection.keep(peer.heartbeat);
        }
    }

    /// A source here is gone.
    pub fn forget(&mut self, from: Address) {
        let mut now_unused = Vec::new();
        for peer in self.peers.values_mut().filter(|peer| !peer.kept.is_empty()) {
            peer.kept.retain(|(kept, _)| *kept != from);
            now_unused.extend(peer.connection.filter(|_| peer.kept.is_empty()));
        }
        for id in now_unused {
            let deadline = self.connections.get_mut(&id).and_then(|connection| {
                connection.kept = false;
                connection.deadline()
            });
            deadline.into_iter().for_each(|at| self.wake_at(at));
        }
    }

    /// Adds a message that goes back over a connection.
    ///
    /// # Errors
    /// [`Error::Resource`] where too much waits for who has connected, [`Error::Remote`] where the connection has
    /// ended.
    pub fn answer(&mut self, id: ConnectionId, ends: (Address, Address), bytes: &[u8]) -> Result<(), Error> {
        let Some(connection) = self.connections.get_mut(&id) else { return Err(ended(ends.1)) };
        self.dirty.insert(id);
        connection.queue.push(ends, bytes)
    }

    /// How many connections there are.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is something to do at once.
    pub fn is_fresh(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// When there is something to do, whatever comes.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether all messages were taken.
    pub fn is_settled(&self) -> bool {
        let peers = self.peers.values().all(|peer| peer.queue.is_settled());
        peers && self.connections.values().all(TcpConnection::is_settled)
    }

    /// Sends what there is room for, and does what the time has come for.
    pub fn send(&mut self, poller: &Poller, now: Instant, lost: &mut Vec<Lost>) {
        if self.next.is_some_and(|next| next <= now) {
            self.tick(poller, now, lost);
        }
        for id in std::mem::take(&mut self.dirty) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            match connection.write(now) {
                Ok(()) => self.watch(id, poller),
                // What the other side has sent before it closed is read first.
                Err(_) if connection.interest.readable => {
                    connection.queue.bytes.clear();
                    connection.output.clear();
                    connection.sent = 0;
                }
                Err(error) => self.close(id, TcpEnd::Failed(error), poller, now, lost),
            }
        }
    }

    fn watch(&mut self, id: ConnectionId, poller: &Poller) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let wanted = connection.wanted();
        if wanted != connection.interest && poller.modify(connection.stream.as_fd(), token(id), wanted).is_ok() {
            connection.interest = wanted;
        }
    }

    /// A connection is ready.
    pub fn ready(&mut self, id: ConnectionId, ready: Ready, poller: &Poller, lost: &mut Vec<Lost>) -> Vec<Message> {
        let (now, mut messages) = (Instant::now(), Vec::new());
        let Some(connection) = self.connections.get_mut(&id) else { return messages };
        self.buffer.resize(READ, 0);
        let before = connection.stage;
        let mut result = Ok(());
        if let (TcpStage::Connecting(_), Some(to)) = (connection.stage, connection.to) {
            result = connection.stream.outcome().map_err(TcpEnd::Failed);
            if result.is_ok() {
                connection.greet(to, now);
            }
        } else if ready.readable {
            result = connection.read(id, &mut self.buffer, &mut messages);
        }
        let deadline = connection.deadline();
        if before != TcpStage::Open && connection.stage == TcpStage::Open {
            self.opened(id);
        }
        self.dirty.insert(id);
        deadline.into_iter().for_each(|at| self.wake_at(at));
        if let Err(end) = result {
            self.close(id, end, poller, now, lost);
        } else if matches!(self.connections.get(&id), Some(one) if matches!(one.stage, TcpStage::Stream(..))) {
            self.hand_over(id, poller);
        }
        messages
    }

    /// A connection becomes a source's.
    fn hand_over(&mut self, id: ConnectionId, poller: &Poller) {
        let Some(connection) = self.connections.remove(&id) else { return };
        poller.remove(connection.stream.as_fd());
        self.dirty.remove(&id);
        if let TcpStage::Stream(to, token) = connection.stage {
            let stream = SecureStream::new(connection.stream, connection.session);
            self.streams.push(SourceStream { to, token, stream });
        }
    }

    /// The streams that have come since this was asked last.
    pub fn take_streams(&mut self) -> Vec<SourceStream> {
        std::mem::take(&mut self.streams)
    }

    /// The ends have met: what waits for the process can go.
    fn opened(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Some(peer) = connection.to.and_then(|to| self.peers.get_mut(&to)) else { return };
        if !peer.kept.is_empty() {
            connection.keep(peer.heartbeat);
        }
        let Queue { mut bytes, mut untaken } = std::mem::take(&mut peer.queue);
        connection.queue.bytes.append(&mut bytes);
        connection.queue.untaken.append(&mut untaken);
    }

    /// Takes in who has connected.
    pub fn accept(&mut self, listener: &Arc<KeyedListener>, poller: &Poller, lost: &mut Vec<Lost>) {
        let now = Instant::now();
        for _ in 0..ACCEPT_TURN {
            if !self.make_room(poller, now, lost) {
                return self.pause(listener, poller, now + FULL_PAUSE);
            }
            match listener.socket.accept() {
                Ok(None) => return,
                Ok(Some(stream)) => {
                    let _ = self.insert(TcpConnection::at(stream, listener.address, now), poller);
                    self.wake_at(now + HELLO_LIMIT);
                }
                Err(error) => {
                    log::info!(target: "INIT", "this process cannot accept a connection for messages: {error}");
                    return self.pause(listener, poller, now + ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Accepts nobody until then: who connects waits in the system's queue.
    fn pause(&mut self, listener: &Arc<KeyedListener>, poller: &Poller, until: Instant) {
        poller.remove(listener.socket.as_fd());
        self.paused.push((listener.clone(), until));
        self.wake_at(until);
    }

    /// Whether there is room for another stranger: one that has been silent for a while goes for it.
    fn make_room(&mut self, poller: &Poller, now: Instant, lost: &mut Vec<Lost>) -> bool {
        let strangers = self.connections.iter().filter_map(|(id, connection)| match connection.stage {
            TcpStage::Stranger(until) => Some((until, *id)),
            _ => None,
        });
        let (count, oldest) = strangers.fold((0, None::<(Instant, ConnectionId)>), |(count, oldest), one| {
            (count + 1, Some(oldest.map_or(one, |oldest| oldest.min(one))))
        });
        let Some((until, id)) = oldest.filter(|_| count >= STRANGERS_MAX) else { return true };
        if until > now + HELLO_LIMIT - STRANGER_GRACE {
            return false;
        }
        self.close(id, TcpEnd::Garbage, poller, now, lost);
        true
    }

    fn insert(&mut self, connection: TcpConnection, poller: &Poller) -> Result<ConnectionId, Error> {
        while self.next_id >= LISTENERS || self.connections.contains_key(&self.next_id) {
            self.next_id = if self.next_id >= LISTENERS { 0 } else { self.next_id + 1 };
        }
        let id = self.next_id;
        self.next_id += 1;
        poller.add(connection.stream.as_fd(), token(id), connection.interest)?;
        self.connections.insert(id, connection);
        Ok(id)
    }

    fn wake_at(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// This process was stopped for a while, or had no processor: whoever had to say something by now could not be
    /// heard, and has its time again. A whole job may be stopped and go on, and nobody is gone for that.
    fn forgive(&mut self, now: Instant) {
        let late = self.next.map_or(Duration::ZERO, |next| now.saturating_duration_since(next));
        if late < STALL {
            return;
        }
        for connection in self.connections.values_mut() {
            match &mut connection.stage {
                TcpStage::Stranger(until) => *until = (*until).max(now + HELLO_LIMIT),
                TcpStage::Connecting(until) | TcpStage::Greeting(until) => *until = (*until).max(now + CONNECT_LIMIT),
                TcpStage::Stream(..) | TcpStage::Open => {}
            }
        }
        self.peers.values_mut().for_each(|peer| peer.since += late);
    }

    /// Connects, gives up, and closes what the time has come for.
    fn tick(&mut self, poller: &Poller, now: Instant, lost: &mut Vec<Lost>) {
        self.forgive(now);
        for (listener, at) in std::mem::take(&mut self.paused) {
            if at > now || listener.watch(poller).is_err() {
                self.paused.push((listener, at.max(now + RETRY)));
            }
        }
        let late = self.connections.iter().filter(|(_, one)| one.deadline().is_some_and(|at| at <= now));
        for (id, stage) in late.map(|(id, one)| (*id, one.stage)).collect::<Vec<_>>() {
            let end =
                if stage == TcpStage::Open { TcpEnd::Closed } else { TcpEnd::Failed(io::ErrorKind::TimedOut.into()) };
            self.close(id, end, poller, now, lost);
        }
        let due = self.peers.iter().filter(|(_, peer)| peer.retry.is_some_and(|at| at <= now));
        for to in due.map(|(to, _)| *to).collect::<Vec<_>>() {
            self.connect(to, poller, now, lost);
        }
        let deadlines = self.connections.values().filter_map(TcpConnection::deadline);
        let retries = self.peers.values().filter_map(|peer| peer.retry);
        self.next = deadlines.chain(retries).chain(self.paused.iter().map(|(_, at)| *at)).min();
    }

    fn connect(&mut self, to: TcpAddress, poller: &Poller, now: Instant, lost: &mut Vec<Lost>) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.retry = None;
        let until = (peer.since + CONNECT_LIMIT).max(now + RETRY);
        let begun = TcpStream::connect(to.socket()).and_then(|stream| {
            self.insert(TcpConnection::to(stream, to, until, now), poller)
                .map_err(|error| io::Error::other(error.to_string()))
        });
        match begun {
            Ok(id) => drop(self.peers.get_mut(&to).map(|peer| peer.connection = Some(id))),
            Err(error) => self.not_connected(to, &TcpEnd::Failed(error), now, lost),
        }
    }

    /// A process could not be connected to: it is tried again for a while.
    fn not_connected(&mut self, to: TcpAddress, end: &TcpEnd, now: Instant, lost: &mut Vec<Lost>) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        peer.connection = None;
        let refused = matches!(end, TcpEnd::Failed(error) if error.kind() == io::ErrorKind::ConnectionRefused);
        let limit = if refused { REFUSED_LIMIT } else { CONNECT_LIMIT };
        if now < peer.since + limit {
            let at = now + peer.pause;
            peer.retry = Some(at);
            peer.pause = (peer.pause * 2).min(RETRY_MAX);
            self.wake_at(at);
            return;
        }
        let why = match end {
            _ if refused => Undeliverable::Died,
            TcpEnd::Failed(error) if is_lost_way(error) && !peer.kept.is_empty() => Undeliverable::Silent,
            TcpEnd::Failed(error) => Undeliverable::Failed(Error::system("connect", to.socket().to_string(), error)),
            TcpEnd::Closed | TcpEnd::Garbage => Undeliverable::Failed(Error::Remote {
                rank: None,
                text: format!("{} does not take messages of this library", to.socket()),
            }),
        };
        log::info!(target: "INIT", "messages to {} are lost: {why:?}", to.socket());
        self.peers.remove(&to).into_iter().for_each(|peer| peer.lose(&why, lost));
    }

    fn close(&mut self, id: ConnectionId, end: TcpEnd, poller: &Poller, now: Instant, lost: &mut Vec<Lost>) {
        let Some(connection) = self.connections.remove(&id) else { return };
        poller.remove(connection.stream.as_fd());
        self.dirty.remove(&id);
        match (connection.stage, connection.to) {
            (TcpStage::Connecting(_) | TcpStage::Greeting(_), Some(to)) => self.not_connected(to, &end, now, lost),
            (_, Some(to)) => {
                let why = end.why(to);
                connection.queue.lose(&why, lost);
                self.peers.remove(&to).into_iter().for_each(|peer| peer.lose(&why, lost));
            }
            (TcpStage::Stranger(..), None) => self.count_stranger(),
            (_, None) => {
                if matches!(end, TcpEnd::Garbage) {
                    self.count_stranger();
                }
                if let Some((_, to)) = connection.queue.untaken.front().copied() {
                    connection.queue.lose(&Undeliverable::Failed(ended(to)), lost);
                }
            }
        }
    }

    fn count_stranger(&mut self) {
        self.strangers += 1;
        // Every one would be too many where somebody scans ports.
        if self.strangers.is_power_of_two() {
            let count = self.strangers;
            log::info!(target: "INIT,NET", "connections for messages that are not of this library: {count} closed");
        }
    }
}
