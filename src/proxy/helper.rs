//! The thread, and how sources come and go.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::message::{Address, Content, Envelope};
use super::outbox::{Message, Outbox};
use super::source::Source;
use crate::error::Error;
use crate::sys::sync::thread::{self, JoinHandle, ThreadId};
use crate::sys::sync::{Condvar, Mutex};
use crate::sys::{self, Datagram, Mailbox, MailboxName};

/// How long the thread rests while somebody's mailbox is full.
const FULL_RETRY: Duration = Duration::from_millis(1);
/// The same after many tries in vain: the receiver is stopped.
const FULL_RETRY_MAX: Duration = Duration::from_millis(50);
/// How long whoever ends the last source waits for the end of the thread. It takes longer only where the driver holds
/// the thread up, and then it ends by itself.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Messages that are taken from the mailbox before others have their turn.
const TURN: usize = 64;

/// The process's: sources are those of unrelated communicators, so that none could have it.
static PROCESS: OnceLock<Arc<Helpers>> = OnceLock::new();

/// Where sources find the helper, which is there while there are any.
pub(super) struct Helpers(Mutex<Option<Arc<Helper>>>);

struct Helper {
    /// Its wakeup wakeups when there is something in `state`.
    mailbox: Mailbox,
    state: Mutex<State>,
    ended: Condvar,
    /// How often the process had been forked: a child has no such thread.
    forks: u32,
}

#[derive(Default)]
struct State {
    sources: BTreeMap<Address, Weak<dyn Source>>,
    /// What sources have sent from other threads.
    messages: Vec<(Address, Message)>,
    /// Sources that have gone, whose messages are to be forgotten.
    gone: Vec<Address>,
    stop: bool,
    ended: bool,
    thread: Option<ThreadId>,
    handle: Option<JoinHandle<()>>,
}

/// A source's registration. Dropping it ends it: what the source then still has in the thread ends soon.
pub struct Member {
    helpers: Arc<Helpers>,
    helper: Arc<Helper>,
    address: Address,
}

/// Registers a source; starts the thread for the first one.
///
/// # Errors
/// [`Error::System`] where the process may open no more files or start no thread, [`Error::Internal`] where the address
/// is taken.
pub fn join(address: Address, source: Weak<dyn Source>) -> Result<Member, Error> {
    PROCESS.get_or_init(|| Arc::new(Helpers::new())).join(address, source)
}

impl Helpers {
    /// There is none.
    pub(super) fn new() -> Helpers {
        Helpers(Mutex::new(None))
    }

    /// Whether there is no helper.
    #[cfg(test)]
    #[allow(dead_code, reason = "the models in tests/races ask")]
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_none()
    }

    /// See [`join`].
    pub(super) fn join(self: &Arc<Helpers>, address: Address, source: Weak<dyn Source>) -> Result<Member, Error> {
        let mut place = self.0.lock();
        if place.as_ref().is_some_and(|helper| helper.forks != sys::forks()) {
            // Its descriptors were closed when the child began.
            std::mem::forget(place.take());
        }
        let helper = match place.as_ref() {
            Some(helper) => helper.clone(),
            None => Helper::start()?,
        };
        let mut state = helper.state.lock();
        if state.sources.contains_key(&address) {
            return Err(Error::Internal(format!("two sources have one address: {address:?}")));
        }
        state.sources.insert(address, source);
        drop(state);
        // It may want to be called.
        helper.mailbox.wake();
        *place = Some(helper.clone());
        Ok(Member { helpers: self.clone(), helper, address })
    }
}

impl Member {
    /// The mailbox that messages to this source go to.
    pub fn mailbox(&self) -> MailboxName {
        self.helper.mailbox.name()
    }

    /// Sends messages, from any thread.
    pub fn send(&self, messages: impl IntoIterator<Item = Message>) {
        let mut state = self.helper.state.lock();
        state.messages.extend(messages.into_iter().map(|message| (self.address, message)));
        drop(state);
        self.helper.mailbox.wake();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut place = self.helpers.0.lock();
        let mut state = self.helper.state.lock();
        state.sources.remove(&self.address);
        state.gone.push(self.address);
        let last = state.sources.is_empty();
        // Whoever comes later finds no helper, and starts another one.
        state.stop = last;
        drop(state);
        if last && place.as_ref().is_some_and(|helper| Arc::ptr_eq(helper, &self.helper)) {
            *place = None;
        }
        drop(place);
        self.helper.mailbox.wake();
        if last {
            self.helper.wait_for_end();
        }
    }
}

impl Helper {
    fn start() -> Result<Arc<Helper>, Error> {
        let (mailbox, state) = (Mailbox::open()?, Mutex::new(State::default()));
        let helper = Arc::new(Helper { mailbox, state, ended: Condvar::new(), forks: sys::forks() });
        let own = helper.clone();
        let spawned = sys::spawn("oxccl-helper", move || own.run());
        let handle = spawned.map_err(|error| Error::system("pthread_create", "the helper thread", &error))?;
        let mut state = helper.state.lock();
        state.thread = Some(handle.thread().id());
        state.handle = Some(handle);
        drop(state);
        Ok(helper)
    }

    /// Waits for the end of the thread, but not in it.
    fn wait_for_end(&self) {
        let mut state = self.state.lock();
        if state.thread == Some(thread::current().id()) {
            return;
        }
        let until = Instant::now() + END_LIMIT;
        while !state.ended && !self.ended.wait_until(&mut state, until).timed_out() {}
        let handle = state.handle.take().filter(|_| state.ended);
        drop(state);
        handle.into_iter().for_each(|handle| drop(handle.join()));
    }

    fn run(&self) {
        let mut outbox = Outbox::new(self.mailbox.name());
        let mut full_for = 0;
        while let Some(round) = self.begin(&mut outbox) {
            let more = self.receive_some(&mut outbox);
            let next = self.tick_all(&round, &mut outbox);
            let sending = outbox.send(&self.mailbox);
            for (from, to) in sending.dead {
                self.with_source(from, |source| source.undeliverable(to, true));
            }
            while let Some(own) = outbox.take_own() {
                self.dispatch(own, &mut outbox);
            }
            full_for = if sending.full { full_for + 1 } else { 0 };
            let retry = (full_for > 0).then(|| Instant::now() + (FULL_RETRY * full_for).min(FULL_RETRY_MAX));
            let again = (more || outbox.is_fresh()).then(Instant::now);
            self.mailbox.wait(next.into_iter().chain(retry).chain(again).min());
        }
        outbox.send(&self.mailbox);
        self.state.lock().ended = true;
        self.ended.notify_all();
    }

    /// Takes in what other threads want; the sources there are, or none where the thread is to end.
    fn begin(&self, outbox: &mut Outbox) -> Option<Vec<Address>> {
        let mut state = self.state.lock();
        for (from, message) in std::mem::take(&mut state.messages) {
            outbox.of(from).add(message);
        }
        for gone in std::mem::take(&mut state.gone) {
            outbox.last_messages(gone);
        }
        (!state.stop).then(|| state.sources.keys().copied().collect())
    }

    /// Takes messages from the mailbox; whether there may be more.
    fn receive_some(&self, outbox: &mut Outbox) -> bool {
        for _ in 0..TURN {
            match self.mailbox.take() {
                Ok(Some(datagram)) => self.dispatch(datagram, outbox),
                Ok(None) => return false,
                Err(error) => {
                    log::info!(target: "INIT", "the mailbox of this process fails: {error}");
                    return false;
                }
            }
        }
        true
    }

    fn dispatch(&self, datagram: Datagram, outbox: &mut Outbox) {
        let Some(envelope) = Envelope::decode(&datagram.bytes) else { return };
        let Datagram { fd, lost, .. } = datagram;
        let known = self.with_source(envelope.to, |source| match &envelope.content {
            Content::Bytes(bytes) => source.receive(envelope.from, bytes, fd, lost, outbox.of(envelope.to)),
            Content::NoSource => source.undeliverable(envelope.from, false),
        });
        if !known {
            outbox.bounce(&envelope);
        }
    }

    /// The earliest time at which a source wants to be called again.
    fn tick_all(&self, sources: &[Address], outbox: &mut Outbox) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for address in sources {
            self.with_source(*address, |source| {
                next = source.tick(now, outbox.of(*address)).into_iter().chain(next).min();
            });
        }
        next
    }

    /// Lets a source do something; false where there is no such source. A panic is the source's own.
    fn with_source(&self, address: Address, act: impl FnOnce(&dyn Source)) -> bool {
        let source = self.state.lock().sources.get(&address).and_then(Weak::upgrade);
        let Some(source) = source else { return false };
        if catch_unwind(AssertUnwindSafe(|| act(&*source))).is_err() {
            log::warn!("the helper thread panicked for rank {}", address.rank);
        }
        true
    }
}
