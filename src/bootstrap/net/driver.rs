//! Carries out what a protocol machine wants: one epoll set, blocking waits with a deadline, no spinning.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::Timespec;
use socket2::Socket;

use super::cancel::Cancel;
use super::socket::{self, Buffers};
use crate::bootstrap::protocol::{Action, Conn, ConnectError, Level, Machine};
use crate::error::Error;
use crate::sys::{ChildCloses, off_standard};

/// Marks of the two descriptors that are no connection.
const LISTENER: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;
/// Bytes of one read.
const READ: usize = 256 << 10;
/// Connections accepted in a row before the others get their turn.
const ACCEPTS: usize = 256;
/// How long accepting pauses when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long accepting may fail before that is an error.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(5);
/// Events taken at once.
const EVENTS: usize = 256;
/// How long closing connections may take to deliver what is queued.
const GOODBYE: Duration = Duration::from_secs(1);

struct Io {
    /// Before the socket, so that it goes first.
    _child_closes: ChildCloses,
    socket: Socket,
    queue: VecDeque<Arc<[u8]>>,
    /// Bytes of the first queued block that are sent.
    sent: usize,
    connecting: bool,
    /// The machine has parted from it; it is closed once the queue is empty.
    closing: bool,
    /// Writing failed; what can still be read is read.
    broken: bool,
    /// Registered for writability.
    wants_write: bool,
}

/// Where connections come in.
struct Listener {
    /// Before the socket, so that it goes first.
    _child_closes: ChildCloses,
    socket: Socket,
}

/// Owns the sockets of one machine.
pub struct Driver {
    epoll: OwnedFd,
    listener: Option<Listener>,
    cancel: Option<Cancel>,
    /// Ends the operation in progress only.
    also: Option<Cancel>,
    buffers: Buffers,
    conns: BTreeMap<Conn, Io>,
    /// Connections with bytes that the system has not taken.
    unsent: usize,
    /// Accepting pauses until then.
    accept_at: Option<Duration>,
    /// Accepting has failed since then.
    accept_failing: Option<Duration>,
    start: Instant,
    scratch: Vec<u8>,
}

/// Why a run ended before its condition held.
#[derive(Debug)]
pub enum Stop {
    /// The cancel event fired.
    Cancelled,
    /// The time given has passed.
    Late,
    /// A call failed that cannot fail in a healthy system.
    System(Error),
}

impl Driver {
    /// A driver without connections.
    ///
    /// # Errors
    /// `System` if there are no descriptors left.
    pub fn new(listener: Option<Socket>, cancel: Option<Cancel>, buffers: Buffers) -> Result<Driver, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from).and_then(off_standard);
        let epoll = epoll.map_err(|error| Error::system("epoll_create1", "bootstrap", &error))?;
        let add = |fd: &dyn AsFdDyn, mark: u64| {
            epoll::add(&epoll, fd.fd(), EventData::new_u64(mark), EventFlags::IN)
                .map_err(|errno| Error::system("epoll_ctl", "bootstrap", &errno.into()))
        };
        if let Some(listener) = &listener {
            add(listener, LISTENER)?;
        }
        if let Some(cancel) = &cancel {
            add(cancel, CANCEL)?;
        }
        Ok(Driver {
            epoll,
            listener: listener.map(|socket| Listener { _child_closes: ChildCloses::of(socket.as_fd()), socket }),
            cancel,
            also: None,
            buffers,
            conns: BTreeMap::new(),
            unsent: 0,
            accept_at: None,
            accept_failing: None,
            start: Instant::now(),
            scratch: vec![0; READ],
        })
    }

    /// The machine's clock.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// A second event that ends waits, until it is taken away again.
    ///
    /// # Errors
    /// `System` if the system refuses.
    pub fn watch(&mut self, also: Option<Cancel>) -> Result<(), Error> {
        if let Some(old) = self.also.take() {
            let _ = epoll::delete(&self.epoll, &old);
        }
        if let Some(new) = &also {
            epoll::add(&self.epoll, new, EventData::new_u64(CANCEL), EventFlags::IN)
                .map_err(|errno| Error::system("epoll_ctl", "bootstrap", &errno.into()))?;
        }
        self.also = also;
        Ok(())
    }

    /// Whether waits are over for good.
    pub fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::fired)
    }

    /// Whether everything that the machine has sent is with the system.
    pub fn flushed(&self) -> bool {
        self.unsent == 0
    }

    /// Runs the machine until `done` holds and all it has sent is with the system. `limit` ends the wait early.
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn run<M: Machine>(
        &mut self,
        machine: &mut M,
        limit: Option<Duration>,
        mut done: impl FnMut(&mut M) -> bool,
    ) -> Result<(), Stop> {
        loop {
            self.carry_out(machine);
            if self.cancelled() || self.also.as_ref().is_some_and(Cancel::fired) {
                return Err(Stop::Cancelled);
            }
            if done(machine) && self.flushed() {
                // `done` may have made the machine say more.
                self.carry_out(machine);
                if self.flushed() {
                    return Ok(());
                }
            }
            let now = self.now();
            if limit.is_some_and(|limit| now >= limit) {
                return Err(Stop::Late);
            }
            self.wait(machine, limit).map_err(Stop::System)?;
        }
    }

    /// From now on nothing ends waits before their time.
    pub fn ignore_cancel(&mut self) {
        if let Some(cancel) = self.cancel.take() {
            let _ = epoll::delete(&self.epoll, &cancel);
        }
        let _ = self.watch(None);
    }

    /// Sends what is queued, for at most a second, and closes everything.
    pub fn goodbye<M: Machine>(&mut self, machine: &mut M) {
        let limit = self.now() + GOODBYE;
        self.listener = None;
        self.ignore_cancel();
        let _ = self.run(machine, Some(limit), |_| true);
        self.conns.clear();
    }

    fn wait<M: Machine>(&mut self, machine: &mut M, limit: Option<Duration>) -> Result<(), Error> {
        let now = self.now();
        let until = machine.deadline().into_iter().chain(limit).chain(self.accept_at).min();
        let timeout = until
            .map(|until| until.saturating_sub(now))
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::system("epoll_wait", "bootstrap", &errno.into())),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(machine)?,
                CANCEL => {}
                conn => self.ready(machine, conn, event.flags),
            }
            self.carry_out(machine);
        }
        let now = self.now();
        if self.accept_at.is_some_and(|at| now >= at) {
            self.accept_at = None;
            self.watch_listener(EventFlags::IN);
            self.accept(machine)?;
        }
        if machine.deadline().is_some_and(|deadline| now >= deadline) {
            machine.tick(now);
        }
        Ok(())
    }

    fn accept<M: Machine>(&mut self, machine: &mut M) -> Result<(), Error> {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else {
                return Ok(());
            };
            match socket::accept(&listener.socket, self.buffers) {
                Ok(None) => {
                    self.accept_failing = None;
                    return Ok(());
                }
                Ok(Some((socket, peer))) => {
                    self.accept_failing = None;
                    let conn = machine.accepted(self.start.elapsed(), peer);
                    self.adopt(machine, conn, socket, false);
                }
                Err(error) => return self.accept_failed(&error),
            }
        }
        Ok(())
    }

    /// No descriptors or memory: more descriptors if the system gives them, else a pause, in which the
    /// connection waits in the backlog, and after some seconds an error.
    fn accept_failed(&mut self, error: &io::Error) -> Result<(), Error> {
        let now = self.now();
        let exhausted = error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
        if exhausted && raise_descriptor_limit() {
            self.accept_at = Some(now);
            return Ok(());
        }
        let text = socket::text(error);
        let open = self.conns.len();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(0);
        let text = format!(
            "cannot accept connections: {text} ({open} connections open here, limit of open files of this process {limit}: ulimit -n)"
        );
        let since = *self.accept_failing.get_or_insert(now);
        if now >= since + ACCEPT_PATIENCE {
            return Err(Error::Resource(text));
        }
        if since == now {
            log::warn!(target: "BOOTSTRAP", "Bootstrap: {text}; trying again");
        }
        self.accept_at = Some(now + ACCEPT_PAUSE);
        // Level-triggered: without this every wait would return at once.
        self.watch_listener(EventFlags::empty());
        Ok(())
    }

    fn watch_listener(&self, flags: EventFlags) {
        if let Some(listener) = &self.listener {
            let _ = epoll::modify(&self.epoll, &listener.socket, EventData::new_u64(LISTENER), flags);
        }
    }

    fn adopt<M: Machine>(&mut self, machine: &mut M, conn: Conn, socket: Socket, connecting: bool) {
        let flags = if connecting { EventFlags::OUT } else { EventFlags::IN };
        if let Err(errno) = epoll::add(&self.epoll, &socket, EventData::new_u64(conn), flags) {
            let text = socket::text(&errno.into());
            let now = self.now();
            return machine.closed(now, conn, Some(text));
        }
        let io = Io {
            _child_closes: ChildCloses::of(socket.as_fd()),
            socket,
            queue: VecDeque::new(),
            sent: 0,
            connecting,
            closing: false,
            broken: false,
            wants_write: connecting,
        };
        self.conns.insert(conn, io);
    }

    fn carry_out<M: Machine>(&mut self, machine: &mut M) {
        while let Some(action) = machine.action() {
            match action {
                Action::Log(Level::Warn, text) => log::warn!(target: "BOOTSTRAP", "{text}"),
                Action::Log(Level::Attention, text) => log::warn!(target: "ATTN", "{text}"),
                Action::Log(Level::Info, text) => log::info!(target: "BOOTSTRAP", "{text}"),
                Action::StopListening => self.listener = None,
                Action::Connect { conn, to } => match socket::connect(to, self.buffers) {
                    Ok(socket) => self.adopt(machine, conn, socket, true),
                    Err(error) => machine.connected(self.start.elapsed(), conn, Err(error)),
                },
                Action::Send { conn, bytes } => {
                    let Some(io) = self.conns.get_mut(&conn) else {
                        continue;
                    };
                    if io.broken || io.closing {
                        continue;
                    }
                    self.unsent += usize::from(io.queue.is_empty());
                    io.queue.push_back(bytes);
                    self.flush(conn);
                }
                Action::Close { conn } => {
                    if let Some(io) = self.conns.get_mut(&conn) {
                        io.closing = true;
                        self.flush(conn);
                    }
                }
            }
        }
    }

    /// Hands queued bytes to the system as far as it takes them; closes what is to be closed.
    fn flush(&mut self, conn: Conn) {
        let Some(io) = self.conns.get_mut(&conn) else {
            return;
        };
        let before = !io.queue.is_empty();
        if !io.connecting {
            io.write();
        } else if io.closing {
            io.queue.clear();
        }
        let after = !io.queue.is_empty();
        self.unsent -= usize::from(before && !after);
        if io.closing && !after {
            let _ = io.socket.shutdown(Shutdown::Write);
            self.conns.remove(&conn);
            return;
        }
        if after != io.wants_write && !io.connecting {
            io.wants_write = after;
            let flags = if after { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let _ = epoll::modify(&self.epoll, &io.socket, EventData::new_u64(conn), flags);
        }
    }

    fn ready<M: Machine>(&mut self, machine: &mut M, conn: Conn, flags: EventFlags) {
        let Some(io) = self.conns.get_mut(&conn) else {
            return;
        };
        if io.connecting {
            let outcome = socket::connect_outcome(&io.socket);
            return self.connected(machine, conn, outcome);
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(conn);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.read(machine, conn);
        }
    }

    fn connected<M: Machine>(&mut self, machine: &mut M, conn: Conn, outcome: Result<(), ConnectError>) {
        let now = self.now();
        let Some(io) = self.conns.get_mut(&conn) else {
            return;
        };
        match outcome {
            Ok(()) => {
                io.connecting = false;
                io.wants_write = false;
                let _ = epoll::modify(&self.epoll, &io.socket, EventData::new_u64(conn), EventFlags::IN);
                machine.connected(now, conn, Ok(()));
            }
            Err(error) => {
                self.forget(conn);
                machine.connected(now, conn, Err(error));
            }
        }
    }

    /// Drops a connection and what was queued on it.
    fn forget(&mut self, conn: Conn) {
        if let Some(io) = self.conns.remove(&conn) {
            self.unsent -= usize::from(!io.queue.is_empty());
        }
    }

    fn read<M: Machine>(&mut self, machine: &mut M, conn: Conn) {
        let now = self.now();
        let Some(io) = self.conns.get_mut(&conn) else {
            return;
        };
        if io.closing {
            // Nobody wants it any more; the queue is what keeps the connection open.
            return;
        }
        match (&io.socket).read(&mut self.scratch) {
            Ok(0) => {
                self.forget(conn);
                machine.closed(now, conn, None);
            }
            Ok(n) => machine.received(now, conn, &self.scratch[..n]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                self.forget(conn);
                machine.closed(now, conn, Some(socket::text(&error)));
            }
        }
    }
}

impl Io {
    fn write(&mut self) {
        while let Some(first) = self.queue.front() {
            match socket::send(&self.socket, &first[self.sent..]) {
                Ok(n) => {
                    self.sent += n;
                    if self.sent == first.len() {
                        self.queue.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // What the peer said before it closed is still to be read: it may be the reason.
                    self.broken = true;
                    self.queue.clear();
                    self.sent = 0;
                }
            }
        }
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

/// `AsFd` as an object.
trait AsFdDyn {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_>;
}

impl<T: AsFd> AsFdDyn for T {
    fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.as_fd()
    }
}
