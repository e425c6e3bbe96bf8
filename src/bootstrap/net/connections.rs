//! The sockets of one protocol machine, in the event loop: carries out what the machine wants, and tells it what comes.
//! Nothing here waits.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::secure_layer::{ConnectionSecurity, LayerEnd, SecureLayer};
use super::socket::{self, Buffers};
use crate::bootstrap::protocol::wire::PREAMBLE;
use crate::bootstrap::protocol::{Action, Cause, Conn, ConnectError, Level, Machine};
use crate::error::Error;
use crate::proxy::Registration;
use crate::sys::{self, ChildCloses, Interest, Ready, tcp};

/// The listener's token; connections have others.
const LISTENER: u32 = u32::MAX;
/// Bytes of one read.
const READ: usize = 256 << 10;
/// Bytes that are sealed before they are sent.
const SEALED: usize = 64 << 10;
/// How long a connection that its machine has parted from may take for the handshake, where something is still to be
/// said over it.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Connections accepted in a row before others get their turn.
const ACCEPTS: usize = 64;
/// How long accepting pauses when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long accepting may fail before that is an error.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(5);

/// Lines for the log in such a time; more are counted.
const LINES: u32 = 32;
const LINES_PERIOD: Duration = Duration::from_secs(10);

/// Lines that were written since a time.
#[derive(Clone, Copy, Debug, Default)]
struct LineCount {
    since: Duration,
    said: u32,
    left_out: u64,
}

/// What is waited for while a connect is under way, and where only what is queued keeps a connection open.
const WRITE: Interest = Interest { readable: false, writable: true };
/// Nothing but failures.
const NOTHING: Interest = Interest { readable: false, writable: false };

struct Io {
    /// Before the socket, so that it goes first.
    _child_closes: ChildCloses,
    socket: Socket,
    token: u32,
    interest: Interest,
    layer: SecureLayer,
    queue: VecDeque<Arc<[u8]>>,
    /// Bytes of the first queued block that are sealed.
    sealed: usize,
    /// What goes to the system as it is, and how much of it has gone.
    output: Vec<u8>,
    sent: usize,
    connecting: bool,
    /// The machine has parted from it; it is closed once the queue is empty.
    closing: bool,
    /// Writing failed; what can still be read is read.
    broken: bool,
}

/// Where connections come in.
struct Listener {
    /// Before the socket, so that it goes first.
    _child_closes: ChildCloses,
    socket: Socket,
}

/// How accepting goes.
#[derive(Clone, Copy, Debug, Default)]
struct Accepting {
    /// It pauses until then.
    at: Option<Duration>,
    /// It has failed since then.
    failing: Option<Duration>,
}

/// What a machine's connections have.
#[derive(Clone, Debug)]
pub struct WireSettings {
    /// Sizes of the system's buffers.
    pub buffers: Buffers,
    /// What they are secured by.
    pub security: ConnectionSecurity,
}

/// A machine and its sockets.
pub struct Connections<M: Machine> {
    /// After it was given something, [`Connections::carry_out`] is due.
    pub machine: M,
    /// Somebody needs connections to come in: where that fails, it is an error.
    pub attended: bool,
    listener: Option<Listener>,
    wire: WireSettings,
    conns: BTreeMap<Conn, Io>,
    /// Connections that the machine has parted from during the handshake, and until when they may go on.
    parting: VecDeque<(Duration, Conn)>,
    /// The machine knows what connections that come in begin with.
    expects: bool,
    /// Which connection a token stands for.
    tokens: BTreeMap<u32, Conn>,
    next_token: u32,
    /// Connections with bytes that the system has not taken.
    unsent: usize,
    accepting: Accepting,
    /// A call failed that cannot fail in a healthy system.
    error: Option<Error>,
    start: Instant,
    lines: LineCount,
    scratch: Vec<u8>,
    /// After the sockets, so that it goes last; none before [`Connections::register`].
    registration: Option<Registration>,
}

impl<M: Machine> Connections<M> {
    /// No connections yet. `machine` gets its time.
    pub fn new(machine: impl FnOnce(Duration) -> M, listener: Option<Socket>, wire: WireSettings) -> Connections<M> {
        let start = Instant::now();
        Connections {
            machine: machine(start.elapsed()),
            attended: false,
            listener: listener.map(|socket| Listener { _child_closes: ChildCloses::of(socket.as_fd()), socket }),
            wire,
            conns: BTreeMap::new(),
            parting: VecDeque::new(),
            expects: false,
            tokens: BTreeMap::new(),
            next_token: 0,
            unsent: 0,
            accepting: Accepting::default(),
            error: None,
            start,
            lines: LineCount::default(),
            scratch: vec![0; READ],
            registration: None,
        }
    }

    /// Gives it its place in the event loop, and begins.
    ///
    /// # Errors
    /// `System` if the system refuses to watch the listener.
    pub fn register(&mut self, registration: Registration) -> Result<(), Error> {
        let registration = self.registration.insert(registration);
        if let Some(listener) = &self.listener {
            registration.watch(listener.socket.as_fd(), LISTENER, Interest::READ)?;
        }
        self.carry_out();
        Ok(())
    }

    /// Its place in the event loop.
    pub fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }

    /// The machine's clock.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// A time of that clock.
    pub fn instant(&self, time: Duration) -> Option<Instant> {
        self.start.checked_add(time)
    }

    /// Whether everything that the machine has sent is with the system.
    pub fn flushed(&self) -> bool {
        self.unsent == 0
    }

    /// An error that is none of the machine's, once.
    pub fn take_error(&mut self) -> Option<Error> {
        self.error.take()
    }

    /// When [`Connections::tick`] is wanted.
    pub fn deadline(&self) -> Option<Duration> {
        let parting = self.parting.front().map(|(until, _)| *until);
        self.machine.deadline().into_iter().chain(self.accepting.at).chain(parting).min()
    }

    /// Does what is due by now.
    pub fn tick(&mut self) {
        let now = self.now();
        if self.accepting.at.is_some_and(|at| now >= at) {
            self.accepting.at = None;
            self.watch_listener(Interest::READ);
            self.accept();
        }
        while let Some((_, conn)) = self.parting.pop_front_if(|(until, _)| now >= *until) {
            if self.conns.get(&conn).is_some_and(|io| io.closing) {
                self.forget(conn);
            }
        }
        if self.machine.deadline().is_some_and(|deadline| now >= deadline) {
            self.machine.tick(now);
        }
    }

    /// A descriptor is ready.
    pub fn ready(&mut self, token: u32, ready: Ready) {
        if token == LISTENER {
            return self.accept();
        }
        // What was closed a moment ago has no token any more.
        let Some(conn) = self.tokens.get(&token).copied() else { return };
        let Some(io) = self.conns.get(&conn) else { return };
        if io.connecting {
            let outcome = socket::connect_outcome(&io.socket);
            return self.connected(conn, outcome);
        }
        if ready.writable || io.closing {
            self.flush(conn);
        }
        if ready.readable && self.conns.get(&conn).is_some_and(Io::is_read) {
            self.read(conn);
        }
    }

    /// Carries out what the machine wants.
    pub fn carry_out(&mut self) {
        self.carry_out_actions();
        if !self.expects && self.machine.preamble().is_some() {
            self.expects = true;
            let waiting = self.conns.iter().filter(|(_, io)| io.layer.is_unknown()).map(|(conn, _)| *conn);
            waiting.collect::<Vec<Conn>>().into_iter().for_each(|conn| self.take_in(conn, &[]));
            self.carry_out_actions();
        }
    }

    fn carry_out_actions(&mut self) {
        while let Some(action) = self.machine.action() {
            match action {
                Action::Log(Level::Warn, text) => log::warn!(target: "BOOTSTRAP", "{text}"),
                Action::Log(Level::Attention, text) => log::warn!(target: "ATTN", "{text}"),
                Action::Log(Level::Info, text) => self.inform(&text),
                Action::StopListening => self.stop_listening(),
                Action::Connect { conn, to } => match self.connect(conn, to) {
                    Ok(false) => {}
                    Ok(true) => self.machine.connected(self.start.elapsed(), conn, Ok(())),
                    Err(error) => self.machine.connected(self.start.elapsed(), conn, Err(error)),
                },
                Action::Send { conn, bytes } => self.send(conn, bytes),
                Action::Close { conn } => {
                    if let Some(io) = self.conns.get_mut(&conn) {
                        io.closing = true;
                        if io.layer.is_handshake() {
                            self.parting.push_back((self.start.elapsed() + LAST_WORDS, conn));
                        }
                        self.flush(conn);
                    }
                }
            }
        }
    }

    /// A line for the log, unless there were too many: whoever scans ports makes one for each connection.
    fn inform(&mut self, text: &str) {
        let now = self.start.elapsed();
        if now >= self.lines.since + LINES_PERIOD {
            self.tell_left_out();
            self.lines = LineCount { since: now, said: 0, left_out: 0 };
        }
        if self.lines.said < LINES {
            self.lines.said += 1;
            log::info!(target: "BOOTSTRAP", "{text}");
        } else {
            self.lines.left_out += 1;
        }
    }

    fn tell_left_out(&mut self) {
        let left_out = std::mem::take(&mut self.lines.left_out);
        if left_out > 0 {
            log::info!(target: "BOOTSTRAP", "Bootstrap: {left_out} lines like the last ones were left out");
        }
    }

    /// Nobody else can connect.
    pub fn stop_listening(&mut self) {
        self.tell_left_out();
        if let Some(listener) = self.listener.take() {
            self.unwatch(listener.socket.as_fd());
        }
        self.accepting.at = None;
    }

    /// Closes everything at once.
    pub fn close(&mut self) {
        self.stop_listening();
        while let Some((conn, _)) = self.conns.first_key_value() {
            self.forget(*conn);
        }
    }

    /// Closes everything, and leaves the event loop for good: the caller is to let go of the place, and not under a
    /// lock that the loop's thread takes.
    pub fn retire(&mut self) -> Option<Registration> {
        self.close();
        self.registration.take()
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            match socket::accept(&listener.socket, self.wire.buffers) {
                Ok(None) => {
                    self.accepting.failing = None;
                    return;
                }
                Ok(Some((socket, peer))) => {
                    self.accepting.failing = None;
                    let conn = self.machine.accepted(self.start.elapsed(), peer);
                    if let Err(error) = self.adopt(conn, socket, SecureLayer::accepted(), false) {
                        self.machine.closed(self.start.elapsed(), conn, Some(error.to_string()));
                    }
                }
                Err(error) => return self.accept_failed(&error),
            }
        }
    }

    /// No descriptors or memory: more descriptors if the system gives them, else a pause, in which the
    /// connection waits in the backlog, and after some seconds an error.
    fn accept_failed(&mut self, error: &io::Error) {
        let now = self.now();
        let exhausted = error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
        if exhausted && raise_descriptor_limit() {
            self.accepting.at = Some(now);
            return;
        }
        let text = socket::text(error);
        let open = self.conns.len();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
        let text = format!(
            "cannot accept connections: {text} ({open} connections open here, limit of open files of this process {limit}: ulimit -n)"
        );
        let since = *self.accepting.failing.get_or_insert(now);
        match (since == now, self.attended) {
            (true, true) => log::warn!(target: "BOOTSTRAP", "Bootstrap: {text}; trying again"),
            (true, false) => log::info!(target: "BOOTSTRAP", "Bootstrap: {text}; trying again"),
            (false, true) if now >= since + ACCEPT_PATIENCE => {
                self.accepting.failing = None;
                self.error = Some(Error::Resource(text));
            }
            (false, _) => {}
        }
        self.accepting.at = Some(now + ACCEPT_PAUSE);
        // Level-triggered: without this it would be ready all the time.
        self.watch_listener(NOTHING);
    }

    fn watch_listener(&self, interest: Interest) {
        if let (Some(listener), Some(registration)) = (&self.listener, &self.registration) {
            // It is watched, so that this cannot fail.
            let _ = registration.rewatch(listener.socket.as_fd(), LISTENER, interest);
        }
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) {
        if let Some(registration) = &self.registration {
            registration.unwatch(fd);
        }
    }

    /// Begins to connect; whether it is through already, as it mostly is on one host.
    fn connect(&mut self, conn: Conn, to: SocketAddr) -> Result<bool, ConnectError> {
        let socket = socket::connect(to, self.wire.buffers)?;
        let through = socket.peer_addr().is_ok();
        if through {
            socket::connect_outcome(&socket)?;
        }
        let other = |error: Error| ConnectError { cause: Cause::Other, text: error.to_string() };
        self.adopt(conn, socket, SecureLayer::connecting(), !through).map_err(other)?;
        Ok(through)
    }

    fn adopt(&mut self, conn: Conn, socket: Socket, layer: SecureLayer, connecting: bool) -> Result<(), Error> {
        let interest = if connecting { WRITE } else { Interest::READ };
        let token = self.new_token();
        if let Some(registration) = &self.registration {
            registration.watch(socket.as_fd(), token, interest)?;
        }
        let io = Io {
            _child_closes: ChildCloses::of(socket.as_fd()),
            socket,
            token,
            interest,
            layer,
            queue: VecDeque::new(),
            sealed: 0,
            output: Vec::new(),
            sent: 0,
            connecting,
            closing: false,
            broken: false,
        };
        self.tokens.insert(token, conn);
        self.conns.insert(conn, io);
        Ok(())
    }

    /// A number that no connection has. They come round again after four billion.
    fn new_token(&mut self) -> u32 {
        while self.next_token == LISTENER || self.tokens.contains_key(&self.next_token) {
            self.next_token = self.next_token.wrapping_add(1);
        }
        let token = self.next_token;
        self.next_token = token.wrapping_add(1);
        token
    }

    fn send(&mut self, conn: Conn, bytes: Arc<[u8]>) {
        let Some(io) = self.conns.get_mut(&conn).filter(|io| !io.broken && !io.closing) else { return };
        if io.layer.is_foreign() {
            return;
        }
        let before = io.is_unsent();
        let begins = if io.layer.is_fresh() { bytes.split_first_chunk::<PREAMBLE>() } else { None };
        match begins {
            Some((preamble, rest)) => {
                let magic = u64::from_le_bytes(preamble[..8].try_into().unwrap_or_default());
                let security = self.wire.security.of(self.machine.secret(magic));
                io.layer.begin(&security, *preamble, sys::random_bytes());
                io.output.extend(io.layer.output());
                io.queue.push_back(rest.into());
            }
            None => io.queue.push_back(bytes),
        }
        self.unsent += usize::from(!before);
        self.flush(conn);
    }

    /// Hands queued bytes to the system as far as it takes them; closes what is to be closed.
    fn flush(&mut self, conn: Conn) {
        let Some(io) = self.conns.get_mut(&conn) else { return };
        let before = io.is_unsent();
        if !io.connecting {
            io.write();
        } else if io.closing {
            io.drop_output();
        }
        let after = io.is_unsent();
        self.unsent -= usize::from(before && !after);
        if io.closing && !after {
            let _ = io.socket.shutdown(Shutdown::Write);
            return self.forget(conn);
        }
        if !io.connecting {
            // What comes on a connection that is to be closed is not read, and must not be waited for.
            let wanted = Interest { readable: io.is_read(), writable: !io.output.is_empty() };
            self.wait_for(conn, wanted);
        }
    }

    fn wait_for(&mut self, conn: Conn, interest: Interest) {
        let (Some(io), Some(registration)) = (self.conns.get_mut(&conn), &self.registration) else { return };
        if std::mem::replace(&mut io.interest, interest) != interest {
            // It is watched, so that this cannot fail.
            let _ = registration.rewatch(io.socket.as_fd(), io.token, interest);
        }
    }

    fn connected(&mut self, conn: Conn, outcome: Result<(), ConnectError>) {
        let now = self.now();
        match outcome {
            Ok(()) => {
                self.conns.get_mut(&conn).into_iter().for_each(|io| io.connecting = false);
                self.wait_for(conn, Interest::READ);
                self.machine.connected(now, conn, Ok(()));
            }
            Err(error) => {
                self.forget(conn);
                self.machine.connected(now, conn, Err(error));
            }
        }
    }

    /// Drops a connection and what was queued on it.
    fn forget(&mut self, conn: Conn) {
        if let Some(io) = self.conns.remove(&conn) {
            self.unsent -= usize::from(io.is_unsent());
            self.tokens.remove(&io.token);
            self.unwatch(io.socket.as_fd());
        }
    }

    fn read(&mut self, conn: Conn) {
        let now = self.now();
        let Some(io) = self.conns.get_mut(&conn) else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        match (&io.socket).read(&mut scratch) {
            Ok(0) => {
                self.forget(conn);
                self.machine.closed(now, conn, None);
            }
            Ok(n) => self.take_in(conn, &scratch[..n]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                self.forget(conn);
                self.machine.closed(now, conn, Some(socket::text(&error)));
            }
        }
        self.scratch = scratch;
    }

    /// Bytes have come: the machine sees what they mean.
    fn take_in(&mut self, conn: Conn, bytes: &[u8]) {
        let (now, expected) = (self.now(), self.machine.preamble());
        let Some(io) = self.conns.get_mut(&conn) else { return };
        let (before, mut plain) = (io.is_unsent(), Vec::new());
        let outcome = io.layer.receive(bytes, (&self.wire.security, expected), sys::random_bytes, &mut plain);
        io.output.extend(io.layer.output());
        if io.layer.is_foreign() {
            // What was to be said is nothing for who answers.
            io.drop_output();
        }
        self.unsent = self.unsent + usize::from(io.is_unsent()) - usize::from(before);
        let heard = !io.closing;
        self.flush(conn);
        if heard && !plain.is_empty() {
            self.machine.received(now, conn, &plain);
        }
        let Err(end) = outcome else { return };
        self.forget(conn);
        match end {
            _ if !heard => {}
            LayerEnd::Broken(why) => self.machine.closed(now, conn, Some(why)),
            LayerEnd::Mismatch(refused) => self.machine.mismatched(now, conn, refused.text()),
        }
    }
}

impl<M: Machine> Drop for Connections<M> {
    fn drop(&mut self) {
        self.close();
    }
}

impl Io {
    /// The system has not taken all that was said.
    fn is_unsent(&self) -> bool {
        !self.queue.is_empty() || !self.output.is_empty()
    }

    /// Whether somebody wants what comes: what does on a connection that is to be closed is of no account, once the
    /// ends have met.
    fn is_read(&self) -> bool {
        !self.closing || self.layer.is_handshake()
    }

    fn drop_output(&mut self) {
        self.queue.clear();
        self.output.clear();
        (self.sealed, self.sent) = (0, 0);
    }

    fn write(&mut self) {
        while self.fill_output() {
            match tcp::send(&self.socket, &self.output[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // What the peer said before it closed is still to be read: it may be the reason.
                    self.broken = true;
                    self.drop_output();
                }
            }
        }
    }

    /// Whether there is something for the system; what waits is sealed once the system has taken what was before it.
    fn fill_output(&mut self) -> bool {
        if self.sent < self.output.len() {
            return true;
        }
        self.output.clear();
        self.sent = 0;
        if !self.layer.is_open() {
            return false;
        }
        while let Some(first) = self.queue.front().filter(|_| self.output.len() < SEALED) {
            let end = first.len().min(self.sealed + SEALED);
            if !self.layer.seal(&first[self.sealed..end], &mut self.output) {
                self.broken = true;
                self.drop_output();
                return false;
            }
            self.sealed = end;
            if end == first.len() {
                self.queue.pop_front();
                self.sealed = 0;
            }
        }
        !self.output.is_empty()
    }
}

/// Raises the soft limit of open descriptors to the hard one; whether there was room.
pub(super) fn raise_descriptor_limit() -> bool {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).is_ok()
}
