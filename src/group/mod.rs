//! What `ncclGroupStart` and `ncclGroupEnd` collect, and in which order it is carried out.
//!
//! The state is the thread's. A call outside a group is a group of one. At the end of the outermost
//! group the jobs (creation and the like) run first, then the collectives are launched. An error of
//! any call in the group makes the end return it and drops all that was collected.
//!
//! `collector` decides what becomes of a group, and knows no communicator; `executor` does it.

mod collector;
mod executor;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::bootstrap::{Presence, UniqueId};
use crate::comm::derive::{Derivation, DerivePlan, Publish};
use crate::comm::jobs::{self, Job, Task};
use crate::comm::{self, CallKind, Comm, Config, InitRequest, Outcome};
use crate::device::Context;
use crate::error::Error;
use crate::launch;

use collector::{Collected, Collector};
use executor::{CommExecutor, carry_out, simulate};

pub use crate::launch::Call;

type Group = Collector<Job, Arc<Comm>>;

thread_local! {
    // Never dropped, so that it can be used to the very end of the thread: programs destroy their
    // communicators in exit handlers, when what is dropped is gone. A closed group owns nothing.
    static GROUP: ManuallyDrop<RefCell<Group>> = const { ManuallyDrop::new(RefCell::new(Group::EMPTY)) };
}

fn with_group<R>(f: impl FnOnce(&mut Group) -> R) -> R {
    GROUP.with(|group| f(&mut group.borrow_mut()))
}

/// Opens a group, or goes one level deeper.
pub fn start() {
    with_group(Group::start);
}

/// Whether the calling thread has a group open.
pub fn is_open() -> bool {
    with_group(|group| group.is_open())
}

/// Remembers that a call inside a group failed; the end of the group returns the last such error.
pub fn note_error(error: &Error) {
    with_group(|group| group.note_error(error));
}

/// Closes a group. The outermost end carries out what was collected.
///
/// # Errors
/// [`Error::InvalidUsage`] without a start; else the last error of a call in the group, or the first
/// failure of what was collected.
pub fn end() -> Result<Outcome, Error> {
    match with_group(Group::end)? {
        Some(group) => carry_out(&CommExecutor, group),
        None => Ok(Outcome::Done),
    }
}

/// Closes a group without carrying it out. The outermost end gives the expected time of the last collective in
/// microseconds, where there is one.
///
/// # Errors
/// As [`end`].
pub fn simulate_end() -> Result<Option<f64>, Error> {
    match with_group(Group::end)? {
        Some(group) => simulate(&CommExecutor, group),
        None => Ok(None),
    }
}

/// Adds a collective to the open group, or launches it at once when none is open.
pub fn submit(comm: Arc<Comm>, call: Call) -> Result<Outcome, Error> {
    call.check_buffers(comm.rank(), comm.nranks())?;
    if !is_open() {
        return launch::run_one(&comm, &call);
    }
    with_group(|group| group.add_call(comm, call));
    Ok(Outcome::Done)
}

/// Adds a job to the open group, or carries it out as a group of one when none is open.
fn submit_job(job: Job) -> Result<Outcome, Error> {
    if !is_open() {
        return carry_out(&CommExecutor, Collected { jobs: vec![job], ..Collected::NOTHING });
    }
    with_group(|group| group.add_job(job));
    Ok(Outcome::Done)
}

/// Creates a communicator (`ncclCommInitRank` and its like). `publish` is told the handle: at once for
/// a non-blocking communicator, else when the creation has succeeded. Several `ids` share the work of meeting.
///
/// # Errors
/// Whatever the arguments or the creation give; a blocking creation outside a group returns its end.
pub fn init_rank(request: InitRequest, ids: Vec<UniqueId>, publish: Publish) -> Result<Outcome, Error> {
    let blocking = request.config.blocking || request.always_blocking;
    let (nranks, rank) = (request.nranks, request.rank);
    let comm = Comm::create(request).inspect_err(|error| comm::report_failure(&ids, nranks, rank, error))?;
    if blocking {
        return submit_job(Job::new(comm, Task::Init { ids, publish: Some(publish), presence: None }, true));
    }
    publish(comm.handle());
    let presence =
        if nranks > 1 { Presence::announce(&ids, rank.cast_unsigned(), nranks.cast_unsigned()) } else { None };
    submit_job(Job::new(comm, Task::Init { ids, publish: None, presence }, false))?;
    Ok(Outcome::InProgress)
}

/// Creates the communicators of all ranks in one process, one for each device (`ncclCommInitAll`).
/// Returns their handles. It blocks whatever the configuration says, and is no part of an open group.
///
/// # Errors
/// [`Error::InvalidArgument`] for a device that is not there, [`Error::InvalidUsage`] for one that is
/// named twice, and what creation gives; then none is left.
pub fn init_all(devices: &[i32], config: Config) -> Result<Vec<usize>, Error> {
    comm::check_device_list(devices)?;
    let id = comm::unique_id()?;
    let mut comms: Vec<Arc<Comm>> = Vec::new();
    let result = devices.iter().enumerate().try_for_each(|(rank, device)| {
        let place = (devices.len() as i32, rank as i32);
        let request = InitRequest::new("ncclCommInitAll", place, id, config.clone());
        let context = Some(Context::retain(*device)?);
        comms.push(Comm::create(InitRequest { always_blocking: true, context, ..request })?);
        Ok(())
    });
    let task = || Task::Init { ids: vec![id], publish: Some(Box::new(|_| ())), presence: None };
    let job = |comm: &Arc<Comm>| Job::new(comm.clone(), task(), true);
    let result = result.and_then(|()| jobs::run_all(comms.iter().map(job).collect()));
    match result {
        Ok(()) => Ok(comms.iter().map(|comm| comm.handle()).collect()),
        Err(error) => {
            // Those that have failed themselves are gone already.
            comms.into_iter().for_each(|comm| drop(comm.abort()));
            comm::free_ended();
            Err(error)
        }
    }
}

/// Waits for the work of a communicator (`ncclCommFinalize`).
///
/// # Errors
/// [`Error::InvalidArgument`] for the second call.
pub fn finalize(comm: Arc<Comm>) -> Result<Outcome, Error> {
    if comm.is_inherited() {
        return Ok(Outcome::Done);
    }
    comm.permits(CallKind::Finalize)?;
    let blocking = comm.is_blocking();
    submit_job(Job::new(comm, Task::Finalize, blocking))
}

/// Frees a communicator once its work has ended (`ncclCommDestroy`).
///
/// # Errors
/// The communicator's own failure.
pub fn destroy(comm: Arc<Comm>) -> Result<Outcome, Error> {
    let blocking = comm.is_blocking();
    submit_job(Job::new(comm, Task::Destroy, blocking))
}

/// Gives the memory of a communicator's links up for a while (`ncclCommSuspend`).
///
/// # Errors
/// What ends the wait for the other ranks.
pub fn suspend(comm: Arc<Comm>) -> Result<Outcome, Error> {
    let blocking = comm.is_blocking();
    submit_job(Job::new(comm, Task::Suspend, blocking))
}

/// Makes a communicator usable again (`ncclCommResume`).
///
/// # Errors
/// As [`suspend`].
pub fn resume(comm: Arc<Comm>) -> Result<Outcome, Error> {
    let blocking = comm.is_blocking();
    submit_job(Job::new(comm, Task::Resume, blocking))
}

/// Stops and frees a communicator, whatever its peers do (`ncclCommAbort`).
///
/// # Errors
/// [`Error::InvalidArgument`] where it is gone already.
pub fn abort(comm: Arc<Comm>) -> Result<Outcome, Error> {
    // Now, not at the end of the group: other threads may be waiting inside the communicator.
    comm.raise_abort();
    let blocking = comm.is_blocking();
    submit_job(Job::new(comm, Task::Abort, blocking))
}

/// Derives a communicator from another one (`ncclCommSplit`, `ncclCommShrink`); `publish` takes its handle when it is
/// there, also where the parent is polled for that.
///
/// # Errors
/// What the ranks give; a rank that fails before it takes part tells the others.
pub fn derive(parent: Arc<Comm>, plan: DerivePlan, config: Config, publish: Publish) -> Result<Outcome, Error> {
    let blocking = parent.is_blocking();
    let derivation = Derivation::new(parent.clone(), plan.clone(), config, publish);
    let derivation = derivation.inspect_err(|error| parent.refuse(&plan, error))?;
    submit_job(Job::new(parent, Task::Derive(Box::new(derivation)), blocking))
}

/// Lets new ranks join those of a communicator (`ncclCommGrow`, called by a rank that exists). `publish` takes the
/// handle: at once for a non-blocking communicator, else when it is there.
///
/// # Errors
/// As [`derive()`].
pub fn grow(parent: &Arc<Comm>, plan: DerivePlan, config: Config, publish: Publish) -> Result<Outcome, Error> {
    let blocking = config.blocking;
    let made = Derivation::new(parent.clone(), plan.clone(), config, publish)
        .and_then(|mut derivation| derivation.make_child().map(|child| (derivation, child)));
    let (mut derivation, child) = made.inspect_err(|error| parent.refuse(&plan, error))?;
    if !blocking {
        derivation.publish_now();
    }
    submit_job(Job::new(child, Task::Derive(Box::new(derivation)), blocking))
}

/// Stops what runs on a communicator, and keeps it (`ncclCommRevoke`).
///
/// # Errors
/// [`Error::InvalidArgument`] where it was revoked or finalized before.
pub fn revoke(comm: Arc<Comm>) -> Result<Outcome, Error> {
    // Now, not at the end of the group: other threads may be waiting for what runs.
    comm.begin_revoke()?;
    let blocking = comm.is_blocking();
    submit_job(Job::new(comm, Task::Revoke, blocking))
}
