//! The end of a communicator: finalize, destroy, abort.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Comm, State, arena};
use crate::error::Error;

/// How long an abort waits for running kernels to see the flag. They look at it many times a second.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two looks at the stream during an abort.
const ABORT_NAP: Duration = Duration::from_micros(200);

impl Comm {
    /// Waits until every launched operation has ended (spec §6.6).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the second call, and what [`Comm::check_ready`] gives.
    pub fn finalize(&self) -> Result<(), Error> {
        self.check_ready()?;
        let mut state = self.state.lock();
        if *state == State::Finalized {
            return Err(Error::InvalidArgument("ncclCommFinalize: the communicator is finalized already".to_string()));
        }
        *state = State::Finalized;
        drop(state);
        self.wait_for_launches()
    }

    /// Waits for the work and takes the handle back; the last user of the communicator frees it.
    ///
    /// # Errors
    /// The failure of a communicator that has failed: nothing is freed then, abort does that.
    pub fn destroy(self: &Arc<Comm>) -> Result<(), Error> {
        self.check_ready()?;
        if arena::remove(self.handle()).is_none() {
            return Err(Error::InvalidArgument("ncclCommDestroy: comm has already been destroyed".to_string()));
        }
        let result = self.wait_for_launches();
        self.end("Destroy");
        result
    }

    /// Makes running kernels and waiting threads leave; it never waits.
    pub fn raise_abort(&self) {
        log::info!(target: "DESTROY", "{}", self.line().abort_start());
        self.cancel.fire();
        if let Some(parts) = self.parts.get() {
            parts.flag.raise();
        }
    }

    /// Ends a communicator whatever its peers do, and frees it.
    pub fn abort(self: &Arc<Comm>) -> Result<(), Error> {
        if arena::remove(self.handle()).is_none() {
            return Err(Error::InvalidArgument("ncclCommAbort: comm has already been destroyed".to_string()));
        }
        if !self.leave_kernels() {
            log::warn!(
                "comm {:#x}: a kernel did not leave within {ABORT_LIMIT:?} of the abort; its memory is not freed",
                self.handle()
            );
            // Freeing memory under a running kernel would be worse than keeping it.
            std::mem::forget(self.clone());
        }
        self.end("Abort");
        Ok(())
    }

    /// Whether all launches have ended within the limit. Errors of the driver count as the end.
    fn leave_kernels(&self) -> bool {
        let Some(parts) = self.parts.get() else { return true };
        let deadline = Instant::now() + ABORT_LIMIT;
        loop {
            if parts.order.lock().is_idle().unwrap_or(true) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(ABORT_NAP);
        }
    }

    fn wait_for_launches(&self) -> Result<(), Error> {
        self.parts.get().map_or(Ok(()), |parts| parts.order.lock().wait())
    }

    fn end(&self, what: &str) {
        *self.state.lock() = State::Ended;
        // Sockets close now even if another thread still holds the communicator.
        if let Some(parts) = self.parts.get() {
            parts.bootstrap.lock().take();
        }
        log::info!(target: "DESTROY", "{}", self.line().gone(what));
    }
}
