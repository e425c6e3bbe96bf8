//! Work that goes on while its caller polls (non-blocking communicators, spec §6.2).

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::{Comm, State};

/// A thread that works for communicators.
#[derive(Default)]
pub(super) struct Background {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Background {
    /// The thread has done its work and touches the communicators no more.
    pub(super) fn finish(&self) {
        *self.done.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for the end; false: it did not come until the deadline.
    fn wait(&self, deadline: Instant) -> bool {
        let mut done = self.done.lock();
        while !*done {
            if self.changed.wait_until(&mut done, deadline).timed_out() {
                return *done;
            }
        }
        true
    }
}

impl Comm {
    /// Marks the communicator as busy with what a thread does.
    pub(super) fn enter_background(&self, background: &Arc<Background>) {
        *self.background.lock() = Some(background.clone());
        let mut state = self.state.lock();
        if *state == State::Ready {
            *state = State::Busy;
        }
    }

    /// Waits until no thread works for the communicator; false: one still did at the deadline.
    pub(super) fn leave_background(&self, deadline: Instant) -> bool {
        let background = self.background.lock().take();
        background.is_none_or(|background| background.wait(deadline))
    }
}
