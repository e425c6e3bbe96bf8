//! The thread, and how sources come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::message::{Address, Content, Envelope};
use super::outbox::{Message, Outbox};
use super::source::{Progress, Source};
use crate::error::Error;
use crate::sys::sync::thread::{self, JoinHandle, ThreadId};
use crate::sys::sync::{Condvar, Mutex};
use crate::sys::{self, Datagram, Interest, Mailbox, MailboxName, Poller, Ready};

/// How long the thread rests while somebody's mailbox is full.
const FULL_RETRY: Duration = Duration::from_millis(1);
/// The same after many tries in vain: the receiver is stopped.
const FULL_RETRY_MAX: Duration = Duration::from_millis(50);
/// How long whoever ends the last source waits for the end of the thread. It takes longer only where the driver holds
/// the thread up, and then it ends by itself.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Messages that are taken from the mailbox before others have their turn.
const TURN: usize = 64;
/// How often sources that move data have their turn before the system is asked for news.
const ROUNDS: usize = 32;

/// The process's: sources are those of unrelated communicators, so that none could have it.
static PROCESS: OnceLock<Arc<EventLoops>> = OnceLock::new();

/// The number of a source in its loop.
type SourceId = u32;

/// Where sources find the event loop, which is there while there are any.
pub(super) struct EventLoops(Mutex<Option<Arc<EventLoop>>>);

struct EventLoop {
    mailbox: Mailbox,
    /// Woken when there is something in `shared`.
    poller: Poller,
    shared: Mutex<Shared>,
    ended: Condvar,
    /// How often the process had been forked: a child has no such thread.
    forks: u32,
}

/// What other threads tell the loop's.
#[derive(Default)]
struct Shared {
    sources: BTreeMap<SourceId, (Address, Weak<dyn Source>)>,
    ids: BTreeMap<Address, SourceId>,
    next_id: SourceId,
    /// What sources have sent from other threads.
    messages: Vec<(Address, Message)>,
    /// Sources that are to have a turn.
    woken: BTreeSet<SourceId>,
    /// Sources that have gone, whose messages are to be forgotten.
    gone: Vec<Address>,
    stop: bool,
    ended: bool,
    thread: Option<ThreadId>,
    handle: Option<JoinHandle<()>>,
}

/// What the thread alone knows.
struct Turns {
    outbox: Outbox,
    /// Who is to have a turn at once.
    due: BTreeSet<SourceId>,
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
        let id = event_loop.shared.lock().add(address, source)?;
        event_loop.poller.wake();
        *place = Some(event_loop.clone());
        Ok(Registration { loops: self.clone(), event_loop, address, id })
    }
}

impl Registration {
    /// The mailbox that messages to this source go to.
    pub fn mailbox(&self) -> MailboxName {
        self.event_loop.mailbox.name()
    }

    /// Sends messages, from any thread; the source has a turn then, too.
    pub fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let mut shared = self.event_loop.shared.lock();
        shared.messages.extend(messages.into_iter().map(|message| (self.address, message)));
        shared.woken.insert(self.id);
        drop(shared);
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

impl Shared {
    fn add(&mut self, address: Address, source: Weak<dyn Source>) -> Result<SourceId, Error> {
        if self.ids.contains_key(&address) {
            return Err(Error::Internal(format!("two sources have one address: {address:?}")));
        }
        // The last number is the poller's own.
        while self.sources.contains_key(&self.next_id) || self.next_id == SourceId::MAX {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        self.ids.insert(address, id);
        self.sources.insert(id, (address, source));
        self.woken.insert(id);
        Ok(id)
    }
}

impl EventLoop {
    fn start() -> Result<Arc<EventLoop>, Error> {
        let mailbox = Mailbox::open()?;
        let (poller, shared) = (Poller::open(&mailbox)?, Mutex::new(Shared::default()));
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

    fn is_thread(&self, shared: &Shared) -> bool {
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
        let outbox = Outbox::new(self.mailbox.name());
        let mut turns = Turns { outbox, due: BTreeSet::new(), timers: BTreeMap::new() };
        let (mut ready, mut full_for) = (Vec::new(), 0);
        while self.begin(&mut turns) {
            ready.drain(..).for_each(|ready| self.ready(ready, &mut turns));
            let more = self.receive_some(&mut turns);
            let moved = (0..ROUNDS).all(|_| self.progress(&mut turns));
            let full = self.send(&mut turns);
            full_for = if full { full_for + 1 } else { 0 };
            let retry = (full_for > 0).then(|| Instant::now() + (FULL_RETRY * full_for).min(FULL_RETRY_MAX));
            let again = (more || moved || !turns.due.is_empty() || turns.outbox.is_fresh()).then(Instant::now);
            let next = turns.timers.values().copied();
            self.poller.wait(next.chain(retry).chain(again).min(), &mut ready);
        }
        turns.outbox.send(&self.mailbox);
        self.shared.lock().ended = true;
        self.ended.notify_all();
    }

    /// Takes in what other threads want; false where the thread is to end.
    fn begin(&self, turns: &mut Turns) -> bool {
        let mut shared = self.shared.lock();
        for (from, message) in std::mem::take(&mut shared.messages) {
            turns.outbox.of(from).add(message);
        }
        for gone in std::mem::take(&mut shared.gone) {
            turns.outbox.last_messages(gone);
        }
        turns.due.append(&mut shared.woken);
        !shared.stop
    }

    /// Takes messages from the mailbox; whether there may be more.
    fn receive_some(&self, turns: &mut Turns) -> bool {
        for _ in 0..TURN {
            match self.mailbox.take() {
                Ok(Some(datagram)) => self.dispatch(datagram, turns),
                Ok(None) => return false,
                Err(error) => {
                    log::info!(target: "INIT", "the mailbox of this process fails: {error}");
                    return false;
                }
            }
        }
        true
    }

    fn dispatch(&self, datagram: Datagram, turns: &mut Turns) {
        let Some(envelope) = Envelope::decode(&datagram.bytes) else { return };
        let Datagram { fd, lost, .. } = datagram;
        let id = self.shared.lock().ids.get(&envelope.to).copied();
        let outbox = &mut turns.outbox;
        let known = id.is_some_and(|id| {
            turns.due.insert(id);
            let act = |source: &dyn Source| match &envelope.content {
                Content::Bytes(bytes) => source.receive(envelope.from, bytes, fd, lost, outbox.of(envelope.to)),
                Content::NoSource => source.undeliverable(envelope.from, false),
            };
            self.with_source(id, |_, source| act(source)).is_some()
        });
        if !known {
            turns.outbox.bounce(&envelope);
        }
    }

    /// A descriptor of a source is ready.
    fn ready(&self, ready: Ready, turns: &mut Turns) {
        let (id, token) = ((ready.token >> 32) as SourceId, ready.token as u32);
        turns.due.insert(id);
        let outbox = &mut turns.outbox;
        self.with_source(id, |address, source| source.ready(token, ready, outbox.of(address)));
    }

    /// Gives a turn to each source that is to have one; whether somebody has moved something and wants another one.
    fn progress(&self, turns: &mut Turns) -> bool {
        let now = Instant::now();
        let Turns { outbox, due, timers } = turns;
        due.extend(timers.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id));
        let mut moved = BTreeSet::new();
        for id in std::mem::take(due) {
            let progress = self.with_source(id, |address, source| source.progress(now, outbox.of(address)));
            let Progress { moved: has_moved, next } = progress.unwrap_or_default();
            if has_moved {
                moved.insert(id);
            }
            match next {
                Some(next) => drop(timers.insert(id, next)),
                None => drop(timers.remove(&id)),
            }
        }
        let any = !moved.is_empty();
        due.append(&mut moved);
        any
    }

    /// Sends what there is to be sent; whether somebody's mailbox is full.
    fn send(&self, turns: &mut Turns) -> bool {
        let sending = turns.outbox.send(&self.mailbox);
        for (from, to) in sending.dead {
            let id = self.shared.lock().ids.get(&from).copied();
            if let Some(id) = id {
                turns.due.insert(id);
                self.with_source(id, |_, source| source.undeliverable(to, true));
            }
        }
        while let Some(own) = turns.outbox.take_own() {
            self.dispatch(own, turns);
        }
        sending.full
    }

    /// Lets a source do something; none where there is no such source, or it panics, which is its own affair.
    fn with_source<T>(&self, id: SourceId, act: impl FnOnce(Address, &dyn Source) -> T) -> Option<T> {
        let (address, source) = self.shared.lock().sources.get(&id).cloned()?;
        let source = source.upgrade()?;
        let done = catch_unwind(AssertUnwindSafe(|| act(address, &*source)));
        done.inspect_err(|_| log::warn!("the helper thread panicked for rank {}", address.rank)).ok()
    }
}
