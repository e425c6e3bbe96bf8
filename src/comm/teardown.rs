//! The end of a communicator: finalize, destroy, abort.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::lifecycle::{CallKind, CommEvent};
use super::{Comm, arena};
use crate::device::{self, FreedMemory, gate};
use crate::error::Error;
use crate::health::record::CAPTURED;
use crate::health::{FailureCause, FlightRecorder};
use crate::plan::layout::kernel_error;
use crate::sys;
use crate::transport::{self, Links, PeerFacts};

/// How long an abort waits for running kernels to see the flag. They look at it many times a second.
pub(super) const ABORT_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two looks at the stream during an abort.
const ABORT_NAP: Duration = Duration::from_micros(200);
/// How long the end of a communicator waits for the event loop to be done with it, and how often it looks.
const LOOP_LIMIT: Duration = Duration::from_millis(100);
const LOOP_LOOK: Duration = Duration::from_micros(100);

/// Ended communicators whose memory is not freed yet: nobody else may be the last to drop one. They have no handle any
/// more.
static ENDED: Mutex<Vec<Arc<Comm>>> = Mutex::new(Vec::new());

/// Memory of `ncclMemAlloc` that its users have given back, while something runs where it could be used.
static FREED: Mutex<Vec<FreedMemory>> = Mutex::new(Vec::new());

/// Frees memory of `ncclMemAlloc`, as soon as nothing runs on any device that could use it: who unmaps it waits for
/// that, and a kernel of another rank may wait for a later call of the caller's.
///
/// # Errors
/// As [`device::free`].
pub fn free_memory(address: u64) -> Result<(), Error> {
    let freed = device::free(address)?;
    // A peer may have been using it until it was freed.
    super::registration::memory_freed(address, freed.is_some());
    FREED.lock().unwrap_or_else(PoisonError::into_inner).extend(freed);
    free_ended();
    Ok(())
}

/// All memory that waits to be freed; none in a forked child, where it is the parent's.
fn take_freed() -> Vec<FreedMemory> {
    match sys::forks() > 0 {
        true => Vec::new(),
        false => std::mem::take(&mut *FREED.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

impl Comm {
    /// Waits until every launched operation has ended and every graph is gone that has some.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the second call, and what the launched operations give.
    pub fn finalize(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        self.permits(CallKind::Finalize)?;
        self.device.context.check_alive()?;
        self.claim(CallKind::Finalize, CommEvent::Finalized)?;
        self.wait_for_graphs("ncclCommFinalize");
        self.wait_for_launches()?;
        Ok(())
    }

    /// Waits for the work and for graphs, and takes the handle back; [`free_ended`] frees it.
    ///
    /// # Errors
    /// The failure of a communicator that has failed: nothing is freed then, abort does that. [`Error::Cuda`] where its
    /// context or device is lost; it is freed all the same. [`Error::InvalidArgument`] where somebody else aborts or
    /// destroys it meanwhile.
    pub fn destroy(self: &Arc<Comm>) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        let ready = self.check(CallKind::Use);
        if let Err(lost) = self.check_device() {
            // What lay there is lost with it, and nothing runs.
            self.stop();
            self.abort()?;
            return ready.and(Err(lost));
        }
        ready?;
        // The handle stays good meanwhile, so that another thread can abort what waits in vain.
        self.wait_for_graphs("ncclCommDestroy");
        let result = self.wait_for_launches();
        // Who raised the abort is about to take the handle back; were it gone, the abort would fail.
        if self.state().is_aborted() {
            return Err(Error::InvalidArgument("ncclCommDestroy: comm has been aborted meanwhile".to_string()));
        }
        if arena::remove(self.handle()).is_none() {
            return Err(Error::InvalidArgument("ncclCommDestroy: comm has already been destroyed".to_string()));
        }
        // Who launches now waits for nobody but the device.
        while !self.refuse_launches(Instant::now() + ABORT_LIMIT) {}
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
        self.happen(CommEvent::Aborted);
    }

    /// Ends waits and kernels.
    pub(super) fn stop(&self) {
        self.cancel.fire();
        self.derivations.stop_deriving();
        if let Some(parts) = self.parts.get() {
            parts.flag.raise();
        }
    }

    /// Ends a communicator whatever its peers do; [`free_ended`] frees it.
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
        let refused = self.refuse_launches(deadline);
        // What a thread in the background still has, it lets go when it comes to its end.
        let left = self.leave_background(deadline);
        if !(refused && self.leave_kernels(deadline)) {
            let comm = self.handle();
            log::warn!(
                "comm {comm:#x}: a kernel did not leave within {ABORT_LIMIT:?} of the abort; its memory is freed when \
                 it has"
            );
        } else if !left {
            let comm = self.handle();
            log::info!(
                target: "INIT,DESTROY",
                "comm {comm:#x}: what was under way goes on for a while after the abort"
            );
        }
        self.end("Abort");
        Ok(())
    }

    /// Whether all launches have ended within the limit. Errors of the driver count as the end.
    pub(super) fn leave_kernels(&self, deadline: Instant) -> bool {
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

    /// Whether no communicator on this one's device has a launch under way, or may have.
    pub fn device_is_quiet(&self) -> bool {
        let quiet = |comm: &Comm| comm.device.number != self.device.number || comm.is_quiet();
        let mut all = true;
        arena::each(|comm| all &= quiet(comm));
        all && ended().iter().all(|comm| quiet(comm))
    }

    /// Whether nothing of it can be running. While a graph lives nobody can tell: a replay that is queued records its
    /// event only when it comes to that, and until then the event tells of the record before.
    fn is_quiet(&self) -> bool {
        self.is_idle() && !self.has_graphs()
    }

    /// Whether no launch is under way; errors of the driver count as none.
    pub(super) fn is_idle(&self) -> bool {
        self.ask_idle().unwrap_or(true)
    }

    /// Whether no launch is under way.
    ///
    /// # Errors
    /// What the driver gives where the context or the device is lost.
    pub(super) fn ask_idle(&self) -> Result<bool, Error> {
        if self.is_inherited() {
            return Ok(true);
        }
        let _entered = self.device.context.enter()?;
        let Some(parts) = self.parts.get() else { return Ok(true) };
        // Held means that something is being launched; the driver may keep that waiting for room.
        parts.orders.own.try_lock().map_or(Ok(false), |order| order.is_idle())
    }

    /// The devices on which it has memory: its own, and those of ranks of this process, whose memory lives until the
    /// last that has used it lets it go.
    fn devices_of_memory(&self) -> impl Iterator<Item = i32> {
        let peers = self.parts.get().map_or(&[][..], |parts| &parts.peers);
        let mine = peers.get(self.identity.rank as usize).map(|mine| (mine.process, &mine.host));
        let here = move |peer: &&PeerFacts| Some((peer.process, &peer.host)) == mine;
        std::iter::once(self.device.number).chain(peers.iter().filter(here).map(|peer| peer.device))
    }

    pub(super) fn wait_for_launches(&self) -> Result<(), Error> {
        let Some(parts) = self.parts.get() else { return Ok(()) };
        // Not under the lock: others look meanwhile, and an abort must get by.
        let Some(end) = parts.orders.own.lock().end() else { return Ok(()) };
        let _entered = self.device.context.enter()?;
        end.wait()?;
        self.kernel_failure().map_or(Ok(()), Err)
    }

    /// What a kernel said against the work that it was given; aborts are no news.
    pub(super) fn kernel_failure(&self) -> Option<Error> {
        let parts = self.parts.get()?;
        let report = parts.flag.error();
        let trouble = parts.recorder.as_ref().is_some_and(FlightRecorder::trouble);
        if matches!(report[0], kernel_error::NONE | kernel_error::ABORTED) && !trouble {
            return None;
        }
        let ([code, peer, serial, ..], rank) = (report, self.identity.rank);
        let call = match serial {
            CAPTURED => "a captured collective".to_string(),
            _ => format!("collective {serial}"),
        };
        self.await_reports(peer, code == kernel_error::PEER_LEFT);
        let known = parts.recorder.as_ref().and_then(FlightRecorder::disagreement).map(Error::InvalidUsage);
        Some(match (code, known) {
            (kernel_error::NONE | kernel_error::ABORTED, Some(error)) => error,
            (kernel_error::NONE | kernel_error::ABORTED, None) => {
                Error::InvalidUsage("ranks have made calls that do not match".to_string())
            }
            (kernel_error::MISMATCH | kernel_error::PEER_LEFT, Some(error)) => error,
            (kernel_error::MISMATCH, None) => {
                Error::InvalidUsage(format!("rank {peer} made another call than {call} of rank {rank}"))
            }
            (kernel_error::PEER_LEFT, None) => {
                let text = format!("rank {peer} left {call} of this rank after an error of its own");
                // Who was the first is known to whoever was next to it: others have met ranks that left for that.
                let told = parts.recorder.as_ref().and_then(|recorder| recorder.reports().cause(peer));
                let own = || parts.links.as_ref().and_then(|links| links.failure(peer));
                told.map(FailureCause::error).or_else(own).unwrap_or(Error::Remote { rank: Some(peer), text })
            }
            _ => Error::Internal("a kernel was given work that it cannot run; outputs are not complete".to_string()),
        })
    }

    /// From here on nothing is launched: a launch looks at the state under the same lock. False: at the deadline
    /// somebody was still launching. The driver keeps a launch waiting while its stream is full.
    fn refuse_launches(&self, deadline: Instant) -> bool {
        let order = self.parts.get().map(|parts| parts.orders.own.try_lock_until(deadline));
        self.happen(CommEvent::Ended);
        !matches!(order, Some(None))
    }

    /// Whether only the list of ended communicators has it. The event loop must not be the last to have its links: it
    /// would wait for the device, and kernels there for it.
    fn is_unused(self: &Arc<Comm>) -> bool {
        let links = self.parts.get().and_then(|parts| parts.links.as_ref());
        // The links first: they are closed, so that the event loop comes by nothing any more once it has let them go.
        links.is_none_or(|links| Arc::strong_count(links) == 1) && Arc::strong_count(self) == 1 && !self.is_inherited()
    }

    fn end(self: &Arc<Comm>, what: &str) {
        self.derivations.stop_deriving();
        // Who aborts may have begun a call that it never launched: whom others wait for in vain, they are to find out.
        let recorder = self.parts.get().and_then(|parts| parts.recorder.as_ref());
        recorder.into_iter().filter(|_| !self.state().is_aborted()).for_each(FlightRecorder::end);
        // Sockets close now even if another thread still holds the communicator.
        let bootstrap = self.parts.get().and_then(|parts| parts.bootstrap.lock().take());
        drop(bootstrap);
        // Nor do peers get any more of this rank's memory; what they have stays until it is freed.
        if let Some(links) = self.parts.get().and_then(|parts| parts.links.as_ref()) {
            links.close();
            await_event_loop(links);
        }
        log::info!(target: "DESTROY", "{}", self.memory_line());
        log::info!(target: "DESTROY", "{}", self.line().gone(what));
        ended().push(self.clone());
    }
}

/// Waits until the event loop, which may just have a message for closed links, has let them go: else the communicator
/// would be freed by the next call only, and there may be none.
fn await_event_loop(links: &Arc<Links>) {
    let until = Instant::now() + LOOP_LIMIT;
    while Arc::strong_count(links) > 1 && Instant::now() < until {
        std::thread::sleep(LOOP_LOOK);
    }
}

fn ended() -> MutexGuard<'static, Vec<Arc<Comm>>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All ended communicators, which the caller is to free. In a forked child none where the list is locked: who has
/// locked it may be missing.
fn take_ended() -> Vec<Arc<Comm>> {
    if sys::forks() > 0 && matches!(ENDED.try_lock(), Err(TryLockError::WouldBlock)) {
        return Vec::new();
    }
    std::mem::take(&mut *ended())
}

/// Frees a communicator if it has ended, and others that have, once nobody uses it any more. Event loops ask
/// communicators something now and then, which is soon over, and there may be no later call to free it.
pub(super) fn free_when_unused(comm: Arc<Comm>) {
    let (has_ended, left) = (comm.has_ended(), Arc::downgrade(&comm));
    drop(comm);
    free_ended();
    let until = Instant::now() + LOOP_LIMIT;
    // The list has it, too.
    while has_ended && left.strong_count() > 1 && Instant::now() < until {
        std::thread::sleep(LOOP_LOOK);
    }
    if has_ended && left.strong_count() > 0 {
        free_ended();
    }
}

/// Frees ended communicators that nobody uses any more, but none on a device where a kernel may wait for a peer, or
/// behind work of the user's: freeing waits for the device, and the caller may be the one who is to abort that kernel's
/// communicator, or whom that kernel waits for. Threads that are still inside one, and graphs, keep it; the next call
/// here frees it. So does it with memory that peers had mapped by inter-process handles when its communicator ended.
pub fn free_ended() {
    super::settle_graphs();
    // Not under the lock: what the driver is asked may end graphs.
    let (ended, freed, released) = (take_ended(), take_freed(), transport::devices_of_released());
    if ended.is_empty() && freed.is_empty() && released.is_empty() {
        return;
    }
    // Without a handle nobody can come by it anew.
    let (unused, mut keep): (Vec<_>, Vec<_>) = ended.into_iter().partition(Comm::is_unused);
    let devices: BTreeSet<i32> = unused.iter().flat_map(|comm| comm.devices_of_memory()).chain(released).collect();
    let devices = devices.into_iter().chain(freed.iter().flat_map(|memory| memory.devices().to_vec()));
    let devices: BTreeSet<i32> = devices.collect();
    // From here on nothing is launched there until the memory is free.
    let gates: BTreeMap<i32, _> =
        devices.into_iter().filter_map(|device| Some((device, gate::allocating(device)?))).collect();
    let mut busy: BTreeSet<i32> =
        keep.iter().chain(&unused).filter(|comm| !comm.is_quiet()).map(|comm| comm.device.number).collect();
    arena::each(|comm| busy.extend((!comm.is_quiet()).then_some(comm.device.number)));
    let is_quiet = |device| gates.contains_key(&device) && !busy.contains(&device);
    let (free, behind): (Vec<_>, Vec<_>) =
        unused.into_iter().partition(|comm: &Arc<Comm>| comm.devices_of_memory().all(is_quiet));
    keep.extend(behind);
    self::ended().extend(keep);
    drop(free);
    let quiet = |memory: &FreedMemory| memory.devices().iter().all(|device| is_quiet(*device));
    let (freed, later): (Vec<_>, Vec<_>) = freed.into_iter().partition(quiet);
    FREED.lock().unwrap_or_else(PoisonError::into_inner).extend(later);
    drop(freed);
    transport::free_released(is_quiet);
}
