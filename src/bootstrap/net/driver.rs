//! A machine that callers wait for, as a source of the event loop: whatever comes is taken in at any time, also while
//! nobody waits.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use socket2::Socket;

use super::cancel::{Cancel, CancelListener};
use super::connections::{Connections, WireSettings};
use super::shared::Shared;
use crate::bootstrap::protocol::Machine;
use crate::error::Error;
use crate::proxy::{self, Address, Message, Outbox, Progress, Source, Undeliverable};
use crate::sys::{self, Ready};

/// How long closing connections may take to deliver what is queued.
pub const GOODBYE: Duration = Duration::from_secs(1);

/// Drives one machine. Its sockets close with it; a forked child leaves all of it alone.
pub struct MachineDriver<M: Machine + Send + 'static> {
    served: Arc<ServedMachine<M>>,
    /// How often the process had been forked.
    forks: u32,
}

struct ServedMachine<M: Machine>(Shared<DriverState<M>>);

struct DriverState<M: Machine> {
    connections: Connections<M>,
    wait: Option<Wait<M>>,
    cancel: Option<Cancel>,
    /// Ends the operation in progress only.
    also: Option<Cancel>,
    ending: Option<Ending<M>>,
    /// Itself, while nobody else keeps it, until its end.
    own: Option<Arc<ServedMachine<M>>>,
    /// When the event loop gives it a turn.
    timer: Option<Duration>,
}

/// What a caller waits for.
struct Wait<M> {
    done: Box<dyn FnMut(&mut M) -> bool + Send>,
    holds: bool,
    outcome: Option<Result<(), Stop>>,
}

/// Why a run ended before its condition held.
#[derive(Debug)]
pub enum Stop {
    /// A cancel was fired.
    Cancelled,
    /// The time given has passed.
    Late,
    /// A call failed that cannot fail in a healthy system.
    System(Error),
}

/// How a machine parts from the others.
pub struct Parting<M> {
    /// As long as this holds it stays.
    pub awaits: fn(&M) -> bool,
    /// But not longer.
    pub within: Duration,
    /// What it says in the end.
    pub leave: fn(&mut M),
}

struct Ending<M> {
    parting: Parting<M>,
    until: Duration,
    stage: DriverStage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DriverStage {
    Awaiting,
    /// It has said everything, but the system may not have taken all of it.
    Flushing,
    Over,
}

impl<M: Machine + Send + 'static> MachineDriver<M> {
    /// Starts a machine, which gets its time, with a listener or without.
    ///
    /// # Errors
    /// `System` if there are no descriptors left.
    pub fn new(
        machine: impl FnOnce(Duration) -> M,
        listener: Option<Socket>,
        cancel: Option<Cancel>,
        wire: WireSettings,
    ) -> Result<MachineDriver<M>, Error> {
        let connections = Connections::new(machine, listener, wire);
        let state = DriverState { connections, wait: None, cancel, also: None, ending: None, own: None, timer: None };
        let served = Arc::new(ServedMachine(Shared::new(state)));
        let source: Arc<dyn Source> = served.clone();
        let mut state = served.0.lock();
        // Its first turn waits for the lock.
        let registration = proxy::join(Address { key: sys::random(), rank: 0 }, Arc::downgrade(&source))?;
        state.connections.register(registration)?;
        state.cancel.iter().for_each(|cancel| cancel.listen(served.listener()));
        // It says so in its first turn.
        state.timer = state.deadline();
        drop(state);
        Ok(MachineDriver { served, forks: sys::forks() })
    }

    /// A second event that ends waits, until it is taken away again.
    pub fn watch(&self, also: Option<Cancel>) {
        also.iter().for_each(|also| also.listen(self.served.listener()));
        self.served.0.lock().also = also;
    }

    /// Whether waits are over for good.
    pub fn cancelled(&self) -> bool {
        self.served.0.lock().cancel.as_ref().is_some_and(Cancel::fired)
    }

    /// Asks the machine, or tells it something; what it wants is carried out at once.
    pub fn with<R>(&self, act: impl FnOnce(&mut M, Duration) -> R) -> R {
        let mut state = self.served.0.lock();
        let now = state.connections.now();
        let result = act(&mut state.connections.machine, now);
        if state.settle() {
            self.served.0.notify();
        }
        state.set_timer();
        result
    }

    /// Waits until `done` has a result and all that the machine has sent is with the system. `limit` ends the wait
    /// early. One caller at a time, and never the event loop's thread, which would wait for itself.
    ///
    /// # Errors
    /// See [`Stop`].
    pub fn run<T: Send + 'static>(
        &self,
        limit: Option<Instant>,
        mut done: impl FnMut(&mut M) -> Option<T> + Send + 'static,
    ) -> Result<T, Stop> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let done = Box::new(move |machine: &mut M| {
            let mut slot = slot.lock();
            *slot = done(machine);
            slot.is_some()
        });
        let mut state = self.served.0.lock();
        state.wait = Some(Wait { done, holds: false, outcome: None });
        state.connections.attended = true;
        state.settle();
        state.set_timer();
        let look = |state: &mut DriverState<M>| match state.is_cancelled() {
            true => Some(Err(Stop::Cancelled)),
            false => state.wait.as_mut().and_then(|wait| wait.outcome.take()),
        };
        let outcome = match state.is_loop_thread() {
            true => look(&mut state).or_else(|| Some(Err(Stop::System(waits_for_itself())))),
            false => self.served.0.wait(&mut state, limit, look),
        };
        state.wait = None;
        state.connections.attended = false;
        drop(state);
        outcome.unwrap_or(Err(Stop::Late))?;
        let found = result.lock().take();
        found.ok_or_else(|| Stop::System(Error::Internal("a wait ended without a result".to_string())))
    }

    /// Leaves the event loop with a machine that needs no connections any more.
    pub fn retire(&self) {
        let registration = self.served.0.lock().connections.retire();
        drop(registration);
    }

    /// Parts from the others and closes all connections. It returns when that is done; the event loop's thread does not
    /// wait, and the connections stay until then.
    pub fn finish(&self, parting: Parting<M>) {
        let limit = Instant::now() + parting.within + GOODBYE;
        let mut state = self.served.0.lock();
        let until = state.connections.now() + parting.within;
        state.ending = Some(Ending { parting, until, stage: DriverStage::Awaiting });
        state.settle();
        state.set_timer();
        if !state.is_over() && state.is_loop_thread() {
            state.own = Some(self.served.clone());
            return;
        }
        let over = |state: &mut DriverState<M>| state.is_over().then_some(());
        if self.served.0.wait(&mut state, Some(limit), over).is_none() {
            state.connections.close();
        }
    }

    /// Whether this is a forked child of the process that it was made in.
    pub fn is_inherited(&self) -> bool {
        self.forks != sys::forks()
    }
}

impl<M: Machine + Send + 'static> Drop for MachineDriver<M> {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The descriptors were closed when the child began, and their numbers may be somebody else's.
            std::mem::forget(self.served.clone());
            return;
        }
        let mut state = self.served.0.lock();
        if state.own.is_some() {
            return;
        }
        // Here, since the event loop's thread may have hold of the source for a moment: who ends the last communicator
        // is to find no thread left.
        let registration = state.connections.retire();
        drop(state);
        drop(registration);
    }
}

fn waits_for_itself() -> Error {
    Error::Internal("the event loop's thread waits for other ranks".to_string())
}

impl<M: Machine + Send + 'static> ServedMachine<M> {
    fn listener(self: &Arc<Self>) -> Weak<dyn CancelListener> {
        let listener: Arc<dyn CancelListener> = self.clone();
        Arc::downgrade(&listener)
    }

    /// Does something in the event loop's thread, and says when it wants its next turn. A panic leaves nobody waiting.
    fn turn(&self, act: impl FnOnce(&mut DriverState<M>)) -> Option<Instant> {
        let mut state = self.0.lock();
        let done = catch_unwind(AssertUnwindSafe(|| {
            act(&mut state);
            state.settle()
        }));
        if let (Err(_), Some(wait)) = (&done, &mut state.wait) {
            wait.outcome = Some(Err(Stop::System(Error::Internal("the bootstrap has panicked".to_string()))));
        }
        if matches!(done, Err(_) | Ok(true)) {
            self.0.notify();
        }
        state.timer = state.deadline();
        let next = state.timer.and_then(|time| state.connections.instant(time));
        let own = if done.is_err() || state.is_over() { state.own.take() } else { None };
        drop(state);
        // Who calls has another one.
        drop(own);
        done.unwrap_or_else(|panic| resume_unwind(panic));
        next
    }
}

impl<M: Machine + Send + 'static> Source for ServedMachine<M> {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn ready(&self, token: u32, ready: Ready, _: &mut Outbox) {
        self.turn(|state| state.connections.ready(token, ready));
    }

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::at(self.turn(|state| state.connections.tick()))
    }
}

impl<M: Machine + Send> CancelListener for ServedMachine<M> {
    fn cancelled(&self) {
        self.0.cancelled();
    }
}

impl<M: Machine> DriverState<M> {
    /// Carries out what the machine wants; whether that is news for who waits.
    fn settle(&mut self) -> bool {
        self.connections.carry_out();
        if self.ending.is_some() {
            return self.end();
        }
        let Some(wait) = self.wait.as_mut().filter(|wait| wait.outcome.is_none()) else { return false };
        if let Some(error) = self.connections.take_error() {
            wait.outcome = Some(Err(Stop::System(error)));
            return true;
        }
        if !wait.holds {
            wait.holds = (wait.done)(&mut self.connections.machine);
            // It may have made the machine say more.
            self.connections.carry_out();
        }
        if wait.holds && self.connections.flushed() {
            wait.outcome = Some(Ok(()));
        }
        wait.outcome.is_some()
    }

    /// Goes on to part from the others; whether that is over now.
    fn end(&mut self) -> bool {
        let Some(ending) = &mut self.ending else { return false };
        let now = self.connections.now();
        let Parting { awaits, leave, .. } = ending.parting;
        if ending.stage == DriverStage::Awaiting && (now >= ending.until || !awaits(&self.connections.machine)) {
            leave(&mut self.connections.machine);
            self.connections.stop_listening();
            self.connections.carry_out();
            (ending.stage, ending.until) = (DriverStage::Flushing, now + GOODBYE);
        }
        if ending.stage == DriverStage::Flushing && (now >= ending.until || self.connections.flushed()) {
            self.connections.close();
            ending.stage = DriverStage::Over;
            return true;
        }
        false
    }

    fn is_over(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.stage == DriverStage::Over)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.iter().chain(&self.also).any(Cancel::fired)
    }

    fn is_loop_thread(&self) -> bool {
        self.connections.registration().is_some_and(proxy::Registration::is_loop_thread)
    }

    /// When it wants a turn.
    fn deadline(&self) -> Option<Duration> {
        let ending = self.ending.as_ref().filter(|ending| ending.stage != DriverStage::Over).map(|ending| ending.until);
        ending.into_iter().chain(self.connections.deadline()).min()
    }

    /// Tells the event loop, from another thread, where it wants a turn earlier than the loop knows.
    fn set_timer(&mut self) {
        let Some(deadline) = self.deadline() else { return };
        if self.timer.is_none_or(|timer| deadline < timer) {
            self.timer = Some(deadline);
            self.connections.registration().into_iter().for_each(proxy::Registration::wake);
        }
    }
}

#[cfg(test)]
mod tests;
