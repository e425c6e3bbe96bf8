//! A state that the event loop's thread changes and callers wait for.

use std::time::Instant;

use super::cancel::CancelListener;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};

/// A state, and the news that it has changed.
pub struct Shared<S> {
    state: Mutex<S>,
    news: Condvar,
}

impl<S> Shared<S> {
    /// Nobody waits for it.
    pub fn new(state: S) -> Shared<S> {
        Shared { state: Mutex::new(state), news: Condvar::new() }
    }

    /// The state, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// Tells who waits that the state has changed in a way that matters to them.
    pub fn notify(&self) {
        self.news.notify_all();
    }

    /// Waits until `look` finds something; none where it has not by `until`. It looks at first, and whenever there are
    /// news.
    pub fn wait<T>(
        &self,
        state: &mut MutexGuard<'_, S>,
        until: Option<Instant>,
        mut look: impl FnMut(&mut S) -> Option<T>,
    ) -> Option<T> {
        loop {
            let found = look(state);
            if found.is_some() {
                return found;
            }
            match until {
                Some(until) if self.news.wait_until(state, until).timed_out() => return look(state),
                Some(_) => {}
                None => self.news.wait(state),
            }
        }
    }
}

impl<S: Send> CancelListener for Shared<S> {
    fn cancelled(&self) {
        // Whoever has looked before the cancel was fired waits by the time that the lock is free.
        drop(self.lock());
        self.notify();
    }
}
