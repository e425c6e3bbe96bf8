//! The thread, and how sources come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::message::{Address, Content, ListenAddress, Location, Message, TcpAddress, Undeliverable};
use super::outbox::Outbox;
use super::source::{Progress, Source};
use super::{tcp, unix};
use crate::error::Error;
use crate::sys::sync::thread::{self, JoinHandle, ThreadId};
use crate::sys::sync::{Condvar, Mutex};
use crate::sys::{self, Interest, Mailbox, Poller, Ready};

/// How long whoever ends the last source waits for the end of the thread. It takes longer only where the driver holds
/// the thread up, and then it ends by itself.
const END_LIMIT: Duration = Duration::from_secs(1);
/// How long the thread goes on for messages by TCP that nobody has taken when the last source has ended.
const LAST_LIMIT: Duration = Duration::from_millis(500);
/// Messages that are taken from the mailbox before others have their turn.
const TURN: usize = 64;
/// How often sources that move data have their turn before the system is asked for news.
const ROUNDS: usize = 32;

/// The process's: sources are those of unrelated communicators, so that none could have it.
static PROCESS: OnceLock<Arc<EventLoops>> = OnceLock::new();
/// Loops for sources that move data and are not to wait for each other; from 1 on.
static MOVERS: [OnceLock<Arc<EventLoops>>; MOVERS_MAX] = [const { OnceLock::new() }; MOVERS_MAX];
/// The most threads that move data, as NCCL has it.
pub const MOVERS_MAX: usize = 16;

/// The number of a source in its loop.
type SourceId = u32;

/// Where sources find the event loop, which is there while there are any.
pub(super) struct EventLoops(Mutex<Option<Arc<EventLoop>>>);

struct EventLoop {
    mailbox: Mailbox,
    /// Woken when there is something in `shared`.
    poller: Poller,
    shared: Mutex<LoopState>,
    ended: Condvar,
    /// How often the process had been forked: a child has no such thread.
    forks: u32,
}

/// What other threads tell the loop's.
#[derive(Default)]
struct LoopState {
    sources: BTreeMap<SourceId, SourceEntry>,
    ids: BTreeMap<Address, SourceId>,
    next_id: SourceId,
    /// What sources have sent from other threads.
    messages: Vec<Message>,
    /// Processes that they want to stay connected to.
    kept: Vec<KeptPeer>,
    /// Where processes of other hosts connect.
    listeners: Vec<Arc<tcp::KeyedListener>>,
    /// Sources that are to have a turn.
    woken: BTreeSet<SourceId>,
    /// Sources that have gone, whose messages are to be forgotten.
    gone: Vec<Address>,
    stop: bool,
    ended: bool,
    thread: Option<ThreadId>,
    handle: Option<JoinHandle<()>>,
}

/// A source that has joined.
#[derive(Clone)]
struct SourceEntry {
    address: Address,
    /// Where answers to it go.
    location: Location,
    source: Weak<dyn Source>,
}

/// A source that wants to know when another one is gone.
struct KeptPeer {
    at: TcpAddress,
    from: Address,
    to: Address,
    heartbeat: Option<Duration>,
}

/// What the thread alone knows.
struct Turns {
    outbox: Outbox,
    /// Who is to have a turn at once.
    due: Vec<SourceId>,
    /// Whose turn it is, while turns are given; kept so that nobody allocates for that.
    round: Vec<SourceId>,
    /// When others want one.
    timers: BTreeMap<SourceId, Instant>,
}

/// A source's registration. Dropping it ends it: what the source then still has in the thread ends soon. Its
/// descriptors must be taken away before.
pub struct Registration {
    loops: Arc<EventLoops>,
    event_loop: Arc<EventLoop>,
    address: Address,
    id: SourceId,
}

/// Registers a source; starts the thread for the first one. The source has a turn at once.
///
/// # Errors
/// [`Error::System`] where the process may open no more files or start no thread, [`Error::Internal`] where the address
/// is taken.
pub fn join(address: Address, source: Weak<dyn Source>) -> Result<Registration, Error> {
    PROCESS.get_or_init(|| Arc::new(EventLoops::new())).join(address, source)
}

/// As [`join`], in a thread of another number: 0 is the event loop itself. A source there is written to by nobody.
///
/// # Errors
/// As [`join`].
pub fn join_mover(number: usize, address: Address, source: Weak<dyn Source>) -> Result<Registration, Error> {
    match number % MOVERS_MAX {
        0 => join(address, source),
        number => MOVERS[number].get_or_init(|| Arc::new(EventLoops::new())).join(address, source),
    }
}

impl EventLoops {
    /// There is none.
    pub(super) fn new() -> EventLoops {
        EventLoops(Mutex::new(None))
    }

    /// Whether there is no event loop.
    #[cfg(test)]
    #[allow(dead_code, reason = "the models of interleavings ask")]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_none()
    }

    /// See [`join`].
    pub(super) fn join(
        self: &Arc<EventLoops>,
        address: Address,
        source: Weak<dyn Source>,
    ) -> Result<Registration, Error> {
        let mut place = self.0.lock();
        if place.as_ref().is_some_and(|event_loop| event_loop.forks != sys::forks()) {
            // Its descriptors were closed when the child began.
            std::mem::forget(place.take());
        }
        let event_loop = match place.as_ref() {
            Some(event_loop) => event_loop.clone(),
            None => EventLoop::start()?,
        };
        let location = Location { mailbox: event_loop.mailbox.name(), tcp: None };
        let id = event_loop.shared.lock().add(SourceEntry { address, location, source })?;
        event_loop.poller.wake();
        *place = Some(event_loop.clone());
        Ok(Registration { loops: self.clone(), event_loop, address, id })
    }
}

impl Registration {
    /// Where messages to this source go.
    pub fn location(&self) -> Location {
        let own = Location { mailbox: self.event_loop.mailbox.name(), tcp: None };
        self.event_loop.shared.lock().sources.get(&self.id).map_or(own, |entry| entry.location)
    }

    /// Lets processes of other hosts send messages to this source, by an address of this host; with port 0 the system
    /// chooses a port, or it is the one that the process listens at there already. The listener goes with the event
    /// loop.
    ///
    /// # Errors
    /// [`Error::System`] that names the address, or where the process may open no more files; [`Error::Resource`] where
    /// all ports that it may be are taken.
    pub fn listen(&self, wanted: impl Into<ListenAddress>) -> Result<Location, Error> {
        let wanted = wanted.into();
        let mut shared = self.event_loop.shared.lock();
        let known = shared.listeners.iter().find(|listener| listener.serves(wanted)).cloned();
        let listener = match known {
            Some(listener) => listener,
            None => {
                let listener = tcp::KeyedListener::open(wanted, sys::random(), shared.listeners.len())?;
                listener.watch(&self.event_loop.poller)?;
                shared.listeners.push(Arc::new(listener));
                shared.listeners[shared.listeners.len() - 1].clone()
            }
        };
        let location = Location { mailbox: self.event_loop.mailbox.name(), tcp: Some(listener.address) };
        shared.sources.get_mut(&self.id).into_iter().for_each(|entry| entry.location = location);
        Ok(location)
    }

    /// Sends messages, from any thread; the source has a turn then, too.
    pub fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let (from, reply) = (self.address, self.location());
        let mut shared = self.event_loop.shared.lock();
        shared.messages.extend(messages.into_iter().map(|message| Message { from, reply, ..message }));
        shared.woken.insert(self.id);
        drop(shared);
        self.event_loop.poller.wake();
    }

    /// Stays connected to the process of a source elsewhere, and has [`Source::undeliverable`] called for it, once,
    /// when that process is gone. Where its host is gone, so that nobody says so, that is after `heartbeat`.
    pub fn keep(&self, at: TcpAddress, to: Address, heartbeat: Option<Duration>) {
        self.event_loop.shared.lock().kept.push(KeptPeer { at, from: self.address, to, heartbeat });
        self.event_loop.poller.wake();
    }

    /// Gives the source a turn soon. From any thread.
    pub fn wake(&self) {
        self.event_loop.shared.lock().woken.insert(self.id);
        self.event_loop.poller.wake();
    }

    /// Has [`Source::ready`] called, with `token`, when a descriptor is ready, again and again as long as it is.
    ///
    /// # Errors
    /// [`Error::System`] where the system refuses.
    pub fn watch(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> Result<(), Error> {
        self.event_loop.poller.add(fd, self.token(token), interest)
    }

    /// Waits for something else of a descriptor from now on.
    ///
    /// # Errors
    /// [`Error::System`] where it is not watched.
    pub fn rewatch(&self, fd: BorrowedFd<'_>, token: u32, interest: Interest) -> Result<(), Error> {
        self.event_loop.poller.modify(fd, self.token(token), interest)
    }

    /// Takes a descriptor away, before it is closed.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) {
        self.event_loop.poller.remove(fd);
    }

    /// Whether the calling thread is the loop's, which must not wait for what the loop does.
    pub fn is_loop_thread(&self) -> bool {
        self.event_loop.is_thread(&self.event_loop.shared.lock())
    }

    fn token(&self, token: u32) -> u64 {
        u64::from(self.id) << 32 | u64::from(token)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut place = self.loops.0.lock();
        let mut shared = self.event_loop.shared.lock();
        shared.sources.remove(&self.id);
        shared.ids.remove(&self.address);
        shared.gone.push(self.address);
        let last = shared.sources.is_empty();
        // Whoever comes later finds no loop, and starts another one.
        shared.stop = last;
        drop(shared);
        if last && place.as_ref().is_some_and(|event_loop| Arc::ptr_eq(event_loop, &self.event_loop)) {
            *place = None;
        }
        drop(place);
        self.event_loop.poller.wake();
        if last {
            self.event_loop.wait_for_end();
        }
    }
}

impl LoopState {
    fn add(&mut self, entry: SourceEntry) -> Result<SourceId, Error> {
        let address = entry.address;
        if self.ids.contains_key(&address) {
            return Err(Error::Internal(format!("two sources have one address: {address:?}")));
        }
        // The last number is that of connections, and of the poller's own.
        while self.sources.contains_key(&self.next_id) || self.next_id == tcp::TOKENS {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.ids.insert(address, id);
        self.sources.insert(id, entry);
        self.woken.insert(id);
        Ok(id)
    }
}

impl EventLoop {
    fn start() -> Result<Arc<EventLoop>, Error> {
        let mailbox = Mailbox::open()?;
        let (poller, shared) = (Poller::open(&mailbox)?, Mutex::new(LoopState::default()));
        let event_loop = Arc::new(EventLoop { mailbox, poller, shared, ended: Condvar::new(), forks: sys::forks() });
        let own = event_loop.clone();
        let spawned = sys::spawn("oxccl-helper", move || own.run());
        let handle = spawned.map_err(|error| Error::system("pthread_create", "the helper thread", &error))?;
        let mut shared = event_loop.shared.lock();
        shared.thread = Some(handle.thread().id());
        shared.handle = Some(handle);
        drop(shared);
        Ok(event_loop)
    }

    fn is_thread(&self, shared: &LoopState) -> bool {
        shared.thread == Some(thread::current().id())
    }

    /// Waits for the end of the thread, but not in it.
    fn wait_for_end(&self) {
        let mut shared = self.shared.lock();
        if self.is_thread(&shared) {
            return;
        }
        let until = Instant::now() + END_LIMIT;
        while !shared.ended && !self.ended.wait_until(&mut shared, until).timed_out() {}
        let handle = shared.handle.take().filter(|_| shared.ended);
        drop(shared);
        handle.into_iter().for_each(|handle| drop(handle.join()));
    }

    fn run(&self) {
        sys::wait_precisely();
        let outbox = Outbox::new(self.mailbox.name());
        let mut turns = Turns { outbox, due: Vec::new(), round: Vec::new(), timers: BTreeMap::new() };
        let mut ready = Vec::new();
        while self.begin(&mut turns) {
            // What has come by now is looked at before it counts as late.
            let now = Instant::now();
            ready.drain(..).for_each(|ready| self.ready(ready, &mut turns));
            let more = self.receive_some(&mut turns);
            let moved = (0..ROUNDS).all(|_| self.progress(&mut turns));
            let retry = self.send(&mut turns, now);
            let again = (more || moved || !turns.due.is_empty() || turns.outbox.is_fresh()).then(Instant::now);
            let next = turns.timers.values().copied().chain(turns.outbox.tcp.next());
            let until = next.chain(retry).chain(again).min();
            if again.is_none() && until.is_some_and(|until| until <= now) {
                // A source looks again and again at what others are to write: they may need this processor for it.
                thread::yield_now();
            }
            self.poller.wait(until, &mut ready);
        }
        self.finish(&mut turns);
        self.shared.lock().ended = true;
        self.ended.notify_all();
    }

    /// Sends what is left: what mailboxes have room for, and, by TCP, what is taken within a limit.
    fn finish(&self, turns: &mut Turns) {
        let (until, mut ready) = (Instant::now() + LAST_LIMIT, Vec::new());
        turns.outbox.send(&self.mailbox, &self.poller, Instant::now());
        while !turns.outbox.tcp.is_settled() && Instant::now() < until {
            let again = turns.outbox.tcp.is_fresh().then(Instant::now);
            self.poller.wait(turns.outbox.tcp.next().into_iter().chain(again).chain([until]).min(), &mut ready);
            let now = Instant::now();
            ready.drain(..).for_each(|ready| self.ready(ready, turns));
            turns.outbox.send(&self.mailbox, &self.poller, now);
        }
        self.shared.lock().listeners.clear();
    }

    /// Takes in what other threads want; false where the thread is to end.
    fn begin(&self, turns: &mut Turns) -> bool {
        let mut shared = self.shared.lock();
        for message in std::mem::take(&mut shared.messages) {
            turns.outbox.push(message);
        }
        for KeptPeer { at, from, to, heartbeat } in std::mem::take(&mut shared.kept) {
            turns.outbox.tcp.keep(at, (from, to), heartbeat);
        }
        for gone in std::mem::take(&mut shared.gone) {
            turns.outbox.last_messages(gone);
        }
        turns.due.extend(&shared.woken);
        shared.woken.clear();
        !shared.stop
    }

    /// Takes messages from the mailbox; whether there may be more.
    fn receive_some(&self, turns: &mut Turns) -> bool {
        for _ in 0..TURN {
            match unix::receive(&self.mailbox) {
                Some(message) => self.dispatch(message, turns),
                None => return false,
            }
        }
        true
    }

    fn dispatch(&self, message: Message, turns: &mut Turns) {
        let (from, back) = (message.from, message.bounce());
        let id = self.shared.lock().ids.get(&message.to).copied();
        let outbox = &mut turns.outbox;
        let known = id.is_some_and(|id| {
            turns.due.push(id);
            let act = |entry: &SourceEntry, source: &dyn Source| match message.content {
                Content::Bytes(_) => source.receive(message, outbox.of(entry.address, entry.location)),
                Content::NoSource => source.undeliverable(from, Undeliverable::NoSource),
            };
            self.with_source(id, act).is_some()
        });
        if !known {
            back.into_iter().for_each(|back| turns.outbox.push(back));
        }
    }

    /// A descriptor is ready: of a source, or of the carrier for other hosts.
    fn ready(&self, ready: Ready, turns: &mut Turns) {
        let (id, token) = ((ready.token >> 32) as SourceId, ready.token as u32);
        let outbox = &mut turns.outbox;
        if id != tcp::TOKENS {
            turns.due.push(id);
            self.with_source(id, |entry, source| source.ready(token, ready, outbox.of(entry.address, entry.location)));
            return;
        }
        let messages = match tcp::listener(token) {
            Some(number) => {
                let listener = self.shared.lock().listeners.get(number).cloned();
                listener.iter().for_each(|listener| outbox.accept(listener, &self.poller));
                return;
            }
            None => outbox.connection_ready(token, ready, &self.poller),
        };
        let streams = outbox.tcp.take_streams();
        messages.into_iter().for_each(|message| self.dispatch(message, turns));
        for tcp::SourceStream { to, token, stream } in streams {
            // Without such a source it is closed.
            let id = self.shared.lock().ids.get(&to).copied();
            if let Some(id) = id {
                self.with_source(id, |_, source| source.connected(token, stream));
            }
        }
    }

    /// Gives a turn to each source that is to have one; whether somebody has moved something and wants another one.
    fn progress(&self, turns: &mut Turns) -> bool {
        let now = Instant::now();
        let Turns { outbox, due, round, timers } = turns;
        due.extend(timers.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id));
        std::mem::swap(due, round);
        round.sort_unstable();
        round.dedup();
        for id in round.drain(..) {
            let act = |entry: &SourceEntry, source: &dyn Source| {
                source.progress(now, outbox.of(entry.address, entry.location))
            };
            let Progress { moved: has_moved, next } = self.with_source(id, act).unwrap_or_default();
            if has_moved {
                due.push(id);
            }
            match next {
                Some(next) => drop(timers.insert(id, next)),
                None => drop(timers.remove(&id)),
            }
        }
        !due.is_empty()
    }

    /// Sends what there is to be sent; when to come again, where somebody's mailbox is full.
    fn send(&self, turns: &mut Turns, now: Instant) -> Option<Instant> {
        let retry = turns.outbox.send(&self.mailbox, &self.poller, now);
        for lost in turns.outbox.take_lost() {
            let id = self.shared.lock().ids.get(&lost.from).copied();
            if let Some(id) = id {
                turns.due.push(id);
                self.with_source(id, |_, source| source.undeliverable(lost.to, lost.why));
            }
        }
        while let Some(own) = turns.outbox.take_own() {
            self.dispatch(own, turns);
        }
        retry
    }

    /// Lets a source do something; none where there is no such source, or it panics, which is its own affair.
    fn with_source<T>(&self, id: SourceId, act: impl FnOnce(&SourceEntry, &dyn Source) -> T) -> Option<T> {
        let entry = self.shared.lock().sources.get(&id).cloned()?;
        let source = entry.source.upgrade()?;
        let done = catch_unwind(AssertUnwindSafe(|| act(&entry, &*source)));
        done.inspect_err(|_| log::warn!("the helper thread panicked for rank {}", entry.address.rank)).ok()
    }
}
