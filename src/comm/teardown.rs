//! The end of a communicator: finalize, destroy, abort.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Comm, State, arena};
use crate::error::Error;
use crate::health::Board;
use crate::plan::layout::kernel_error;

/// How long an abort waits for running kernels to see the flag. They look at it many times a second.
const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two looks at the stream during an abort.
const ABORT_NAP: Duration = Duration::from_micros(200);

/// Ended communicators whose memory is not freed yet. They have no handle and no owner any more.
static ENDED: Mutex<Vec<Arc<Comm>>> = Mutex::new(Vec::new());

impl Comm {
    /// Waits until every launched operation has ended and every graph is gone that has some (spec §6.6).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the second call, and what the launched operations give.
    pub fn finalize(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        self.check_unfinalized()?;
        self.finalized.store(true, Ordering::Release);
        self.wait_for_graphs("ncclCommFinalize");
        self.wait_for_launches()?;
        self.leave_busy();
        Ok(())
    }

    /// Refuses a second `ncclCommFinalize`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where there was one.
    pub fn check_unfinalized(&self) -> Result<(), Error> {
        if !self.finalized.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::InvalidArgument("ncclCommFinalize: the communicator is finalized already".to_string()))
    }

    /// Waits for the work and for graphs, and takes the handle back; the last user of the communicator frees it.
    ///
    /// # Errors
    /// The failure of a communicator that has failed: nothing is freed then, abort does that. [`Error::InvalidArgument`]
    /// where somebody else aborts or destroys it meanwhile.
    pub fn destroy(self: &Arc<Comm>) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        self.check_ready()?;
        // The handle stays good meanwhile, so that another thread can abort what waits in vain.
        self.wait_for_graphs("ncclCommDestroy");
        let result = self.wait_for_launches();
        // Who raised the abort is about to take the handle back; were it gone, the abort would fail.
        if self.is_aborted() {
            return Err(Error::InvalidArgument("ncclCommDestroy: comm has been aborted meanwhile".to_string()));
        }
        if arena::remove(self.handle()).is_none() {
            return Err(Error::InvalidArgument("ncclCommDestroy: comm has already been destroyed".to_string()));
        }
        self.refuse_launches();
        // A launch of another thread may have slipped in between; a graph keeps the communicator alive.
        let result = result.and(self.wait_for_launches());
        self.end("Destroy");
        result
    }

    /// Makes running kernels and waiting threads leave; it never waits.
    pub fn raise_abort(&self) {
        if self.is_inherited() {
            return;
        }
        log::info!(target: "DESTROY", "{}", self.line().abort_start());
        self.cancel.fire();
        if let Some(parts) = self.parts.get() {
            parts.flag.raise();
        }
        self.leave_graphs();
    }

    /// Whether kernels have been told to leave.
    pub(super) fn is_aborted(&self) -> bool {
        self.parts.get().is_some_and(|parts| parts.flag.is_raised())
    }

    /// Ends a communicator whatever its peers do, and frees it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where somebody else has ended it meanwhile.
    pub fn abort(self: &Arc<Comm>) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        if arena::remove(self.handle()).is_none() {
            return Err(Error::InvalidArgument("ncclCommAbort: comm has already been destroyed".to_string()));
        }
        let deadline = Instant::now() + ABORT_LIMIT;
        self.refuse_launches();
        if !(self.leave_background(deadline) && self.leave_kernels(deadline)) {
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
    fn leave_kernels(&self, deadline: Instant) -> bool {
        let Some(parts) = self.parts.get() else { return true };
        // Creation may have ended after the abort had looked for the flag.
        parts.flag.raise();
        loop {
            if self.is_idle() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(ABORT_NAP);
        }
    }

    /// Whether no communicator on this one's device has a launch under way.
    pub fn device_is_quiet(&self) -> bool {
        arena::all().iter().filter(|comm| comm.device == self.device).all(|comm| comm.is_idle())
    }

    /// Whether no launch is under way; errors of the driver count as none.
    fn is_idle(&self) -> bool {
        let Some(parts) = self.parts.get() else { return true };
        let Ok(_entered) = self.context.enter() else { return true };
        // Held means that something is being launched; the driver may keep that waiting for room.
        parts.order.try_lock().is_some_and(|order| order.is_idle().unwrap_or(true))
    }

    pub(super) fn wait_for_launches(&self) -> Result<(), Error> {
        let Some(parts) = self.parts.get() else { return Ok(()) };
        // Not under the lock: others look meanwhile, and an abort must get by.
        let Some(end) = parts.order.lock().end() else { return Ok(()) };
        let _entered = self.context.enter()?;
        end.wait()?;
        self.kernel_failure().map_or(Ok(()), Err)
    }

    /// What a kernel said against the work that it was given; aborts are no news.
    pub(super) fn kernel_failure(&self) -> Option<Error> {
        let parts = self.parts.get()?;
        let report = parts.flag.error();
        let trouble = parts.board.as_ref().is_some_and(Board::trouble);
        if matches!(report[0], kernel_error::NONE | kernel_error::ABORTED) && !trouble {
            return None;
        }
        let [code, peer, serial, ..] = report;
        let known = parts.board.as_ref().and_then(Board::disagreement).map(Error::InvalidUsage);
        Some(match (code, known) {
            (kernel_error::NONE | kernel_error::ABORTED, Some(error)) => error,
            (kernel_error::NONE | kernel_error::ABORTED, None) => {
                Error::InvalidUsage("ranks have made calls that do not match".to_string())
            }
            (kernel_error::MISMATCH | kernel_error::PEER_LEFT, Some(error)) => error,
            (kernel_error::MISMATCH, None) => {
                Error::InvalidUsage(format!("rank {peer} made another call than this rank's collective {serial}"))
            }
            (kernel_error::PEER_LEFT, None) => {
                let text = format!("rank {peer} left collective {serial} of this rank after an error of its own");
                Error::Remote { rank: Some(peer), text }
            }
            _ => Error::Internal("a kernel was given work that it cannot run; outputs are not complete".to_string()),
        })
    }

    /// From here on nothing is launched: a launch looks at the state under the same lock.
    fn refuse_launches(&self) {
        let _order = self.parts.get().map(|parts| parts.order.lock());
        *self.state.lock() = State::Ended;
    }

    fn end(self: &Arc<Comm>, what: &str) {
        // Sockets close now even if another thread still holds the communicator.
        let bootstrap = self.parts.get().and_then(|parts| parts.bootstrap.lock().take());
        drop(bootstrap);
        // Nor do peers get any more of this rank's memory; what they have stays until it is freed.
        if let Some(links) = self.parts.get().and_then(|parts| parts.links.as_ref()) {
            links.close();
        }
        log::info!(target: "DESTROY", "{}", self.memory_line());
        log::info!(target: "DESTROY", "{}", self.line().gone(what));
        ENDED.lock().push(self.clone());
        free_ended();
    }
}

/// Drops a communicator where nothing must be freed: one that has ended is left to [`free_ended`].
pub(super) fn let_go(comm: Arc<Comm>) {
    let mut ended = ENDED.lock();
    let has_ended = *comm.state.lock() == State::Ended;
    // Else who ends it has yet to come by here, so that this one is not the last.
    if has_ended { ended.push(comm) } else { drop(comm) }
}

/// Frees ended communicators, but none on a device where another communicator's kernel may wait for a
/// peer: freeing waits for the device, and the caller may be the one who is to abort that communicator.
/// What graphs hold is freed when they are gone.
pub(super) fn free_ended() {
    super::settle_graphs();
    // Not under the lock: what the driver is asked may end graphs.
    let ended = std::mem::take(&mut *ENDED.lock());
    if ended.is_empty() {
        return;
    }
    let busy: Vec<i32> = arena::all().iter().filter(|comm| !comm.is_idle()).map(|comm| comm.device).collect();
    let (keep, free): (Vec<_>, Vec<_>) = ended.into_iter().partition(|comm| busy.contains(&comm.device));
    ENDED.lock().extend(keep);
    drop(free);
}
