//! Moves data for the connections of a communicator, in the event loop.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::connection::MovedConnection;
use crate::bootstrap::Cancel;
use crate::error::Error;
use crate::proxy::{self, Address, Message, Outbox, Progress, Registration, Source, Undeliverable};
use crate::sys::{self, Interest, Ready};
use crate::transport::Hooks;

/// Turns in which nothing was moved before the engine naps between them.
const HOT_TURNS: u32 = 32;
/// The first nap and the longest one: a kernel's post wakes nobody, so that it may have to wait as long.
const NAP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// Naps between looks at whether kernels still run.
const LOOKS: u32 = 16;
/// How often whoever waits for data to be on its way looks at what else could end the wait.
const LOOK: Duration = Duration::from_millis(20);
/// How long the end of a communicator waits for peers to have room for what was sent to them.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// After how long it says so.
const FLUSH_NOTICE: Duration = Duration::from_secs(10);

/// The connections of a communicator. While kernels may post something it looks at their counters turn after turn, or,
/// after a while in which nothing was posted, at naps; while none runs, only what peers send gives it a turn.
pub(in crate::transport) struct Engine {
    rank: u32,
    own: Weak<Engine>,
    hooks: Arc<OnceLock<Hooks>>,
    /// There are connections.
    used: AtomicBool,
    /// Kernels may be running.
    active: AtomicBool,
    state: Mutex<EngineState>,
    /// Somebody may wait for what was moved.
    moved: Condvar,
    forks: u32,
}

#[derive(Default)]
struct EngineState {
    registration: Option<Registration>,
    connections: BTreeMap<u32, MovedConnection>,
    next: u32,
    /// Streams that peers are to connect, by their tokens.
    expected: BTreeMap<u64, Expected>,
    /// Ranks elsewhere whose connection is over, and why.
    lost: BTreeMap<u32, String>,
    /// Turns in a row in which nothing was moved.
    idle: u32,
}

/// A stream that a peer is to connect.
enum Expected {
    /// It has not come, and nobody waits for it yet.
    Announced,
    /// A connection waits for it.
    By(u32),
    /// It has come.
    Here(OwnedFd),
}

impl Engine {
    /// One without connections, which costs nothing.
    pub fn new(rank: u32, hooks: &Arc<OnceLock<Hooks>>) -> Arc<Engine> {
        Arc::new_cyclic(|own| Engine {
            rank,
            own: own.clone(),
            hooks: hooks.clone(),
            used: AtomicBool::new(false),
            active: AtomicBool::new(false),
            state: Mutex::default(),
            moved: Condvar::new(),
            forks: sys::forks(),
        })
    }

    /// Moves data for a connection from now on; its number.
    ///
    /// # Errors
    /// As [`proxy::join`].
    pub fn add(&self, connection: MovedConnection) -> Result<u32, Error> {
        let mut state = self.state.lock();
        if state.registration.is_none() {
            let source: Weak<dyn Source> = self.own.clone();
            state.registration = Some(proxy::join(Address { key: sys::random(), rank: self.rank }, source)?);
        }
        let number = state.next;
        state.next += 1;
        if let (Some(registration), Some(socket)) = (&state.registration, connection.socket()) {
            registration.watch(socket, number, Interest::READ)?;
        }
        state.connections.insert(number, connection);
        self.used.store(true, Ordering::Release);
        drop(state);
        self.activate();
        Ok(number)
    }

    /// A peer will connect a stream and show a token.
    pub fn announce(&self, token: u64) {
        self.state.lock().expected.insert(token, Expected::Announced);
    }

    /// A connection has the stream of a token, now or when it comes.
    ///
    /// # Errors
    /// As [`Registration::watch`].
    pub fn await_stream(&self, number: u32, token: u64) -> Result<(), Error> {
        let mut state = self.state.lock();
        match state.expected.remove(&token) {
            Some(Expected::Here(stream)) => state.attach(number, stream),
            _ => {
                state.expected.insert(token, Expected::By(number));
                Ok(())
            }
        }
    }

    /// A peer has connected a stream and shown a token. One that nobody knows is closed.
    pub fn connected(&self, token: u64, stream: OwnedFd) {
        let mut state = self.state.lock();
        match state.expected.remove(&token) {
            Some(Expected::Announced) => drop(state.expected.insert(token, Expected::Here(stream))),
            Some(Expected::By(number)) => {
                if let Err(error) = state.attach(number, stream) {
                    log::warn!("rank {} cannot watch a connection: {error}", self.rank);
                }
                state.registration.iter().for_each(Registration::wake);
            }
            Some(here @ Expected::Here(_)) => drop(state.expected.insert(token, here)),
            None => log::info!(target: "NET", "rank {} was connected to by nobody that it knows", self.rank),
        }
    }

    /// Why the connection to a rank elsewhere is over, if it is.
    pub fn trouble(&self, peer: u32) -> Option<String> {
        self.state.lock().lost.get(&peer).cloned()
    }

    /// Streams of these tokens are not wanted any more.
    pub fn forget(&self, tokens: &[u64]) {
        let mut state = self.state.lock();
        tokens.iter().for_each(|token| drop(state.expected.remove(token)));
    }

    /// Closes connections.
    pub fn remove(&self, numbers: &[u32]) {
        let mut state = self.state.lock();
        let gone: Vec<MovedConnection> = numbers.iter().filter_map(|number| state.connections.remove(number)).collect();
        if let Some(registration) = &state.registration {
            let sockets = gone.iter().filter_map(MovedConnection::socket);
            sockets.for_each(|socket| registration.unwatch(socket));
        }
        let last = state.connections.is_empty();
        self.used.store(!last, Ordering::Release);
        let registration = state.registration.take_if(|_| last);
        drop(state);
        drop((registration, gone));
    }

    /// Kernels were launched that may post something. Wakes the event loop where it does not look anyway.
    pub fn activate(&self) {
        if self.used.load(Ordering::Acquire) && !self.active.swap(true, Ordering::AcqRel) {
            self.state.lock().registration.iter().for_each(Registration::wake);
        }
    }

    /// Waits until everything that kernels have posted is on its way, unless this is cancelled, or a peer has no room
    /// for it for a long time. Kernels have ended.
    pub fn flush(&self, cancel: &Cancel) {
        if !self.used.load(Ordering::Acquire) || self.forks != sys::forks() {
            return;
        }
        let (start, mut told) = (Instant::now(), false);
        self.activate();
        let mut state = self.state.lock();
        while let Some(peer) = state.undelivered() {
            if cancel.fired() || start.elapsed() > FLUSH_LIMIT {
                log::info!(target: "NET", "rank {} ends with data that rank {peer} has not taken", self.rank);
                return;
            }
            if start.elapsed() > FLUSH_NOTICE && !std::mem::replace(&mut told, true) {
                log::warn!("rank {} waits for rank {peer} to take what was sent to it, before it ends", self.rank);
            }
            self.moved.wait_for(&mut state, LOOK);
        }
    }

    /// Whether kernels may still post something: those that run, or graphs that may be launched at any time.
    fn may_post(&self) -> bool {
        self.hooks.get().is_some_and(|hooks| !(hooks.is_quiet)() || (hooks.has_graphs)())
    }

    /// When to look again after a turn in which nothing was moved.
    fn rest(&self, idle: u32, now: Instant) -> Progress {
        if !self.active.load(Ordering::Acquire) {
            return Progress::at(None);
        }
        if idle < HOT_TURNS {
            return Progress::at(Some(now));
        }
        let naps = idle - HOT_TURNS;
        if naps % LOOKS == LOOKS - 1 {
            // In this order: whoever launches afterwards finds it inactive, and wakes it.
            self.active.store(false, Ordering::SeqCst);
            if !self.may_post() {
                return Progress::at(None);
            }
            self.active.store(true, Ordering::SeqCst);
        }
        Progress::at(Some(now + (NAP.0 * (1 << naps.min(6))).min(NAP.1)))
    }
}

impl EngineState {
    /// Gives a connection its stream.
    fn attach(&mut self, number: u32, stream: OwnedFd) -> Result<(), Error> {
        // It may be gone meanwhile.
        let Some(connection) = self.connections.get_mut(&number) else { return Ok(()) };
        if let Some(registration) = &self.registration {
            registration.watch(stream.as_fd(), number, Interest::READ)?;
        }
        connection.attach(stream);
        Ok(())
    }

    /// A peer that has not been sent all that kernels have posted.
    fn undelivered(&self) -> Option<u32> {
        self.connections.values().find(|connection| connection.is_behind()).map(MovedConnection::peer)
    }

    fn turn(&mut self, rank: u32) -> bool {
        let mut moved = false;
        for (number, connection) in &mut self.connections {
            let (was_blocked, was_broken) = (connection.is_blocked(), connection.is_broken());
            moved |= connection.progress();
            let (Some(registration), Some(socket)) = (&self.registration, connection.socket()) else { continue };
            if connection.is_broken() && !was_broken {
                log::info!(target: "NET", "rank {rank}: {}", connection.trouble());
                if connection.is_remote() {
                    self.lost.entry(connection.peer()).or_insert_with(|| connection.trouble().to_string());
                }
                registration.unwatch(socket);
            } else if connection.is_blocked() != was_blocked && !connection.is_broken() {
                let interest = Interest { readable: true, writable: connection.is_blocked() };
                let _ = registration.rewatch(socket, *number, interest);
            }
        }
        moved
    }
}

impl Source for Engine {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn ready(&self, token: u32, ready: Ready, _: &mut Outbox) {
        if let Some(connection) = self.state.lock().connections.get_mut(&token) {
            connection.ready(ready);
        }
    }

    fn progress(&self, now: Instant, _: &mut Outbox) -> Progress {
        let mut state = self.state.lock();
        if state.turn(self.rank) {
            state.idle = 0;
            self.moved.notify_all();
            return Progress { moved: true, next: None };
        }
        state.idle = state.idle.saturating_add(1);
        let idle = state.idle;
        drop(state);
        self.rest(idle, now)
    }
}
