//! Work that goes on while its caller polls: that of communicators which do not block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::Comm;
use super::lifecycle::CommEvent;
use crate::error::Error;
use crate::sys;
use crate::sys::sync::{Condvar, Mutex};

/// A thread that works for communicators.
pub(super) struct Background {
    done: Mutex<bool>,
    changed: Condvar,
}

impl Background {
    /// One that has work.
    pub(super) fn new() -> Background {
        Background { done: Mutex::new(false), changed: Condvar::new() }
    }

    /// The thread has done its work and touches the communicators no more.
    fn finish(&self) {
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

/// Starts `work` for communicators on a thread of its own; their states tell how it goes.
///
/// # Errors
/// [`Error::System`] when there is no thread; the communicators have then failed.
pub(super) fn start(
    comms: Vec<Arc<Comm>>,
    work: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<(), Error> {
    let background = Arc::new(Background::new());
    comms.iter().for_each(|comm| comm.enter_background(&background));
    let (ours, theirs) = (comms.clone(), background.clone());
    let run = move || {
        let result = catch_unwind(AssertUnwindSafe(work));
        let result = result.unwrap_or_else(|_| Err(Error::Internal("the end of a group panicked".to_string())));
        if let Err(error) = result {
            ours.iter().for_each(|comm| comm.fail(&error));
        }
        // What belongs to the communicators goes before somebody learns that the thread is done with them.
        drop(ours);
        theirs.finish();
    };
    match sys::spawn("oxccl-init", run) {
        Ok(_) => Ok(()),
        Err(error) => {
            let error = Error::system("pthread_create", "a thread for non-blocking communicators", &error);
            comms.iter().for_each(|comm| comm.fail(&error));
            background.finish();
            Err(error)
        }
    }
}

impl Comm {
    /// The communicator is in progress with what a thread does.
    fn enter_background(&self, background: &Arc<Background>) {
        *self.background.lock() = Some(background.clone());
        self.happen(CommEvent::Begun);
    }

    /// Waits until no thread works for the communicator; false: one still did at the deadline.
    pub(super) fn leave_background(&self, deadline: Instant) -> bool {
        let background = self.background.lock().take();
        background.is_none_or(|background| background.wait(deadline))
    }
}
