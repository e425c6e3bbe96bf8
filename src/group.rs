//! What `ncclGroupStart` and `ncclGroupEnd` collect, and in which order it is carried out (spec §4).
//!
//! The state is the thread's. A call outside a group is a group of one. At the end of the outermost
//! group the jobs (creation and the like) run first, then the collectives are launched. An error of
//! any call in the group makes the end return it and drops all that was collected.

use std::cell::RefCell;
use std::sync::Arc;

use crate::comm::{Comm, Outcome};
use crate::error::Error;
use crate::launch;

pub use crate::launch::Collective;

/// Work that may wait for other ranks: creation, finalisation. It runs at the end of the group.
pub struct Job {
    run: Box<dyn FnOnce() -> Result<(), Error> + Send>,
    cancel: Box<dyn Fn() + Send + Sync>,
}

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
        return Err(error);
    }
    run_jobs(group.jobs)?;
    launch::run_group(&group.calls)?;
    Ok(Outcome::Done)
}

/// Adds a collective to the open group, or launches it at once when none is open.
pub fn submit(comm: Arc<Comm>, call: Collective) -> Result<Outcome, Error> {
    if !is_open() {
        return launch::run_one(&comm, &call).map(|()| Outcome::Done);
    }
    GROUP.with_borrow_mut(|group| group.calls.push((comm, call)));
    Ok(Outcome::Done)
}

/// Adds a job to the open group, or runs it at once when none is open. `cancel` makes a running job
/// give up: it is called when another job of the group fails.
pub fn submit_job(
    run: impl FnOnce() -> Result<(), Error> + Send + 'static,
    cancel: impl Fn() + Send + Sync + 'static,
) -> Result<Outcome, Error> {
    if !is_open() {
        return run().map(|()| Outcome::Done);
    }
    GROUP.with_borrow_mut(|group| group.jobs.push(Job { run: Box::new(run), cancel: Box::new(cancel) }));
    Ok(Outcome::Done)
}

/// Runs jobs at the same time, since they wait for one another; returns the first failure.
fn run_jobs(mut jobs: Vec<Job>) -> Result<(), Error> {
    match jobs.len() {
        0 => return Ok(()),
        1 => return (jobs.remove(0).run)(),
        _ => {}
    }
    let (runs, cancels): (Vec<_>, Vec<_>) = jobs.into_iter().map(|job| (job.run, job.cancel)).unzip();
    let first = parking_lot::Mutex::new(None);
    let work = |run: Box<dyn FnOnce() -> Result<(), Error> + Send>| {
        if let Err(error) = run() {
            let mut first = first.lock();
            if first.is_none() {
                *first = Some(error);
                cancels.iter().for_each(|cancel| cancel());
            }
        }
    };
    std::thread::scope(|scope| {
        for run in runs {
            let spawned = std::thread::Builder::new().name("oxccl-job".to_string()).spawn_scoped(scope, || work(run));
            if let Err(error) = spawned {
                *first.lock() = Some(Error::system("pthread_create", "a thread for a job of a group", &error));
                cancels.iter().for_each(|cancel| cancel());
                break;
            }
        }
    });
    first.into_inner().map_or(Ok(()), Err)
}
