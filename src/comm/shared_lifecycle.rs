//! A communicator's life, for all of its threads.

use std::sync::atomic::{AtomicU8, Ordering};

use super::lifecycle::{CallKind, CommEvent, CommState, Effect, Lifecycle};
use crate::error::Error;
use crate::sys;
use crate::sys::sync::Mutex;

/// A [`Lifecycle`] that several threads know. It changes under its lock; a look at it takes none, since data calls look
/// several times, and since who holds the lock may be missing in a forked child.
pub(super) struct SharedLifecycle {
    whole: Mutex<Lifecycle>,
    /// The state of `whole`, written by who holds its lock.
    state: AtomicU8,
    /// How often the process had been forked when the communicator was made.
    forks: u32,
}

impl SharedLifecycle {
    /// That of a communicator whose creation begins.
    pub(super) fn new() -> SharedLifecycle {
        let whole = Lifecycle::new();
        let state = AtomicU8::new(whole.state().bits());
        SharedLifecycle { whole: Mutex::new(whole), state, forks: sys::forks() }
    }

    /// Whether this process is a forked child of the one that made the communicator.
    pub(super) fn is_inherited(&self) -> bool {
        self.forks != sys::forks()
    }

    /// Its state now.
    pub(super) fn state(&self) -> CommState {
        let state = CommState::of_bits(self.state.load(Ordering::Acquire));
        if self.is_inherited() { state.inherited() } else { state }
    }

    /// What it has failed with, if it has; in a forked child, nothing.
    pub(super) fn failure(&self) -> Option<Error> {
        if self.is_inherited() { None } else { self.whole.lock().failure().cloned() }
    }

    /// Whether a call is permitted now; if so, its state.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn permits(&self, call: CallKind) -> Result<CommState, Error> {
        let state = self.state();
        match state.permits(call) {
            Ok(()) => Ok(state),
            Err(refusal) => Err(refusal.error(self.failure().as_ref())),
        }
    }

    /// Something happens; `carry_out` does what is to be done, in its order.
    pub(super) fn happen(&self, event: CommEvent<'_>, carry_out: impl FnMut(Effect)) {
        if !self.is_inherited() {
            // Nothing is asked, so that nothing is refused.
            let _ = self.happen_if(None, event, carry_out);
        }
    }

    /// The same in one step with the question whether a call is permitted.
    ///
    /// # Errors
    /// Why the call is not permitted; nothing has happened then.
    pub(super) fn claim(
        &self,
        call: CallKind,
        event: CommEvent<'_>,
        carry_out: impl FnMut(Effect),
    ) -> Result<(), Error> {
        if self.is_inherited() {
            return self.permits(call).map(drop);
        }
        self.happen_if(Some(call), event, carry_out)
    }

    fn happen_if(
        &self,
        call: Option<CallKind>,
        event: CommEvent<'_>,
        mut carry_out: impl FnMut(Effect),
    ) -> Result<(), Error> {
        let whole = self.whole.lock();
        let asked = call.map_or(Ok(()), |call| whole.state().permits(call));
        asked.map_err(|refusal| refusal.error(whole.failure()))?;
        let (next, effects) = whole.after(event);
        // Held until the new state is shown: what comes before must be over when somebody sees it.
        let mut held = Some((whole, next));
        for effect in effects {
            match effect {
                Effect::Show => self.show(&mut held),
                effect => carry_out(*effect),
            }
        }
        Ok(())
    }

    fn show<L: std::ops::DerefMut<Target = Lifecycle>>(&self, held: &mut Option<(L, Lifecycle)>) {
        if let Some((mut whole, next)) = held.take() {
            *whole = next;
            self.state.store(whole.state().bits(), Ordering::Release);
        }
    }
}
