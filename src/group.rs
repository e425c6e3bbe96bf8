//! What `ncclGroupStart` and `ncclGroupEnd` collect, and in which order it is carried out (spec §4).
//!
//! The state is the thread's. A call outside a group is a group of one. At the end of the outermost
//! group the jobs (creation and the like) run first, then the collectives are launched. An error of
//! any call in the group makes the end return it and drops all that was collected.

use std::cell::RefCell;
use std::sync::Arc;

use crate::bootstrap::UniqueId;
use crate::comm::jobs::{self, Job};
use crate::comm::{self, Comm, Config, InitRequest, Outcome};
use crate::error::Error;
use crate::launch;

pub use crate::launch::Collective;

#[derive(Default)]
struct Group {
    depth: u32,
    error: Option<Error>,
    jobs: Vec<Job>,
    calls: Vec<(Arc<Comm>, Collective)>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// Opens a group, or goes one level deeper.
pub fn start() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Whether the calling thread has a group open.
pub fn is_open() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

/// Remembers that a call inside a group failed; the end of the group returns the last such error.
pub fn note_error(error: &Error) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.error = Some(error.clone());
        }
    });
}

/// Closes a group. The outermost end carries out what was collected.
///
/// # Errors
/// [`Error::InvalidUsage`] without a start; else the last error of a call in the group, or the first
/// failure of what was collected.
pub fn end() -> Result<Outcome, Error> {
    let group = GROUP.with_borrow_mut(|group| {
        match group.depth {
            0 => return Err(Error::InvalidUsage("ncclGroupEnd: not in a group call.".to_string())),
            1 => {}
            _ => {
                group.depth -= 1;
                return Ok(None);
            }
        }
        Ok(Some(std::mem::take(group)))
    })?;
    match group {
        Some(group) => carry_out(group),
        None => Ok(Outcome::Done),
    }
}

fn carry_out(group: Group) -> Result<Outcome, Error> {
    if let Some(error) = group.error {
        group.jobs.into_iter().for_each(|job| (job.discard)(&error));
        return Err(error);
    }
    jobs::run_all(group.jobs)?;
    launch::run_group(&group.calls)?;
    Ok(Outcome::Done)
}

/// Adds a collective to the open group, or launches it at once when none is open.
pub fn submit(comm: Arc<Comm>, call: Collective) -> Result<Outcome, Error> {
    launch::check_buffers(&call)?;
    if !is_open() {
        return launch::run_one(&comm, &call).map(|()| Outcome::Done);
    }
    GROUP.with_borrow_mut(|group| group.calls.push((comm, call)));
    Ok(Outcome::Done)
}

/// Adds a job to the open group, or runs it at once when none is open.
fn submit_job(job: Job) -> Result<Outcome, Error> {
    if !is_open() {
        return (job.run)().map(|()| Outcome::Done);
    }
    GROUP.with_borrow_mut(|group| group.jobs.push(job));
    Ok(Outcome::Done)
}

/// Creates a communicator (`ncclCommInitRank` and its kin). `publish` is told the handle: at once for
/// a non-blocking communicator, else when the creation has succeeded.
///
/// # Errors
/// Whatever the arguments or the creation give; a blocking creation outside a group returns its end.
pub fn init_rank(request: InitRequest, publish: impl FnOnce(usize) + Send + 'static) -> Result<Outcome, Error> {
    let blocking = request.config.blocking || request.always_blocking;
    let (id, nranks, rank) = (request.id, request.nranks, request.rank);
    let comm = Comm::create(request).inspect_err(|error| comm::excuse(&id, nranks, rank, error))?;
    if !blocking {
        publish(comm.handle());
        comm.init_in_background(id)?;
        return Ok(Outcome::InProgress);
    }
    let job = creation(&comm, id);
    let run = move || {
        (job.run)()?;
        publish(comm.handle());
        Ok(())
    };
    submit_job(Job { run: Box::new(run), ..job })
}

/// The job that creates a communicator.
fn creation(comm: &Arc<Comm>, id: UniqueId) -> Job {
    let (runner, canceller, quitter) = (comm.clone(), comm.clone(), comm.clone());
    Job {
        run: Box::new(move || runner.init(&id)),
        cancel: Box::new(move || canceller.cancel_init()),
        discard: Box::new(move |error| quitter.give_up(&id, error)),
    }
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
    let create = |(rank, device): (usize, &i32)| {
        Comm::create(InitRequest {
            function: "ncclCommInitAll",
            nranks: devices.len() as i32,
            rank: rank as i32,
            id,
            config: config.clone(),
            always_blocking: true,
            device: Some(*device),
        })
    };
    let mut comms: Vec<Arc<Comm>> = Vec::with_capacity(devices.len());
    let made = devices.iter().enumerate().map(create).try_for_each(|made| made.map(|comm| comms.push(comm)));
    let ready = made.and_then(|()| jobs::run_all(comms.iter().map(|comm| creation(comm, id)).collect()));
    if let Err(error) = ready {
        comms.iter().for_each(|comm| drop(comm.abort()));
        return Err(error);
    }
    Ok(comms.iter().map(|comm| comm.handle()).collect())
}

/// Waits for the work of a communicator (`ncclCommFinalize`).
pub fn finalize(comm: Arc<Comm>) -> Result<Outcome, Error> {
    submit_job(Job::local(move || comm.finalize()))
}

/// Frees a communicator once its work has ended (`ncclCommDestroy`).
pub fn destroy(comm: Arc<Comm>) -> Result<Outcome, Error> {
    submit_job(Job::local(move || comm.destroy()))
}

/// Stops and frees a communicator, whatever its peers do (`ncclCommAbort`).
pub fn abort(comm: Arc<Comm>) -> Result<Outcome, Error> {
    // Now, not at the end of the group: other threads may be waiting inside the communicator.
    comm.raise_abort();
    submit_job(Job::local(move || comm.abort()))
}
