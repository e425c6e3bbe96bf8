//! Jobs: what a group carries out before its data calls, such as the creation of communicators.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::derive::{Derivation, Publish};
use super::teardown::free_when_unused;
use super::{CallKind, Comm, background};
use crate::bootstrap::{Cancel, Presence, UniqueId};
use crate::error::Error;
use crate::log::Place;
use crate::sys;

/// What is to be done with a communicator.
pub enum Task {
    /// Its creation; the handle is handed over once it has succeeded, unless the user has it already.
    Init {
        /// The rendezvous: one id, or several that share the work.
        ids: Vec<UniqueId>,
        /// Takes the handle.
        publish: Option<Publish>,
        /// What the root knows of this rank until it has checked in.
        presence: Option<Presence>,
    },
    /// Another communicator is derived from it (split, shrink), or it is derived itself (grow).
    Derive(Box<Derivation>),
    /// `ncclCommFinalize`.
    Finalize,
    /// `ncclCommRevoke`.
    Revoke,
    /// `ncclCommDestroy`.
    Destroy,
    /// `ncclCommAbort`.
    Abort,
    /// `ncclCommSuspend`.
    Suspend,
    /// `ncclCommResume`.
    Resume,
}

/// Work on a communicator that may wait for other ranks.
pub struct Job {
    comm: Arc<Comm>,
    task: Task,
    blocking: bool,
}

impl Job {
    /// A job. `blocking` says whether its caller expects the final result.
    pub fn new(comm: Arc<Comm>, task: Task, blocking: bool) -> Job {
        Job { comm, task, blocking }
    }

    /// Whether the caller expects the final result.
    pub fn is_blocking(&self) -> bool {
        self.blocking
    }

    /// Whether the job ends its communicator; that makes the whole group blocking.
    pub fn is_end(&self) -> bool {
        matches!(self.task, Task::Destroy | Task::Abort)
    }

    /// Jobs of one lane are done in the order of their calls: those of a communicator, with what is derived from it.
    fn lane(&self) -> *const Comm {
        match &self.task {
            Task::Derive(derivation) => Arc::as_ptr(derivation.parent()),
            _ => Arc::as_ptr(&self.comm),
        }
    }

    /// What makes it give up where it waits for other ranks.
    fn giving_up(&self) -> Option<GivingUp> {
        match &self.task {
            Task::Init { .. } => Some(GivingUp::Creation(self.comm.clone())),
            Task::Derive(derivation) => Some(GivingUp::Derivation(derivation.cancel().clone())),
            Task::Finalize | Task::Revoke | Task::Destroy | Task::Abort | Task::Suspend | Task::Resume => None,
        }
    }

    /// Does the work. A panic is an error, so that nobody waits for what will not come.
    ///
    /// # Errors
    /// What the work gives.
    pub fn run(self) -> Result<(), Error> {
        if self.comm.is_inherited() {
            return self.decline();
        }
        let (comm, ends) = (self.comm.clone(), self.is_end());
        let result = catch_unwind(AssertUnwindSafe(|| self.carry_out())).unwrap_or_else(|_| {
            let error = Error::Internal("a job of a communicator panicked".to_string());
            comm.fail(&error);
            Err(error)
        });
        // A job that has failed may be the last to have a communicator that was aborted meanwhile.
        if ends || result.is_err() {
            free_when_unused(comm);
        }
        result
    }

    /// In a forked child: what belongs to the parent is left alone, even by its destructors. To end it is no error.
    fn decline(self) -> Result<(), Error> {
        let result = match self.task {
            Task::Finalize | Task::Destroy | Task::Abort => Ok(()),
            _ => self.comm.check(CallKind::Use),
        };
        std::mem::forget(self);
        result
    }

    fn carry_out(self) -> Result<(), Error> {
        match self.task {
            Task::Init { ids, publish, presence } => {
                let made = self.comm.init(&ids, publish.is_none());
                drop(presence);
                made?;
                publish.into_iter().for_each(|publish| publish(self.comm.handle()));
                Ok(())
            }
            Task::Derive(derivation) => {
                // A communicator that grows out of another one tells it itself.
                let polled = !self.blocking && Arc::ptr_eq(derivation.parent(), &self.comm);
                let function = derivation.function();
                derivation.carry_out().inspect_err(|error| {
                    // No call returns it.
                    if polled {
                        crate::log::failure(&Place { file: "comm/jobs.rs", line: line!(), function }, error);
                    }
                })
            }
            Task::Finalize => self.comm.finalize(),
            Task::Revoke => self.comm.revoke(),
            Task::Destroy => self.comm.destroy(),
            Task::Abort => self.comm.abort(),
            Task::Suspend => self.comm.suspend(),
            Task::Resume => self.comm.resume(),
        }
    }

    /// What becomes of the communicator where the group drops the job: one that nobody has a handle of
    /// goes, and one that is polled tells the error.
    pub fn drop_for(self, error: &Error) {
        match self.task {
            Task::Init { ids, publish, presence } => {
                self.comm.give_up(&ids, publish.is_none(), error);
                drop(presence);
            }
            Task::Derive(derivation) => {
                derivation.drop_for(error);
                if !self.blocking {
                    self.comm.fail(error);
                }
            }
            _ if !self.blocking => self.comm.fail(error),
            _ => {}
        }
    }
}

/// See [`Job::giving_up`].
enum GivingUp {
    Creation(Arc<Comm>),
    Derivation(Cancel),
}

impl GivingUp {
    fn fire(&self) {
        match self {
            GivingUp::Creation(comm) => comm.cancel_init(),
            GivingUp::Derivation(cancel) => cancel.fire(),
        }
    }
}

/// The communicators of jobs that are polled, and busy until everything of their group is done.
pub fn polled(jobs: &[Job]) -> Vec<Arc<Comm>> {
    jobs.iter().filter(|job| !job.blocking && !job.is_end()).map(|job| job.comm.clone()).collect()
}

/// Runs jobs at the same time, since they wait for one another, but those of one communicator in the order of their
/// calls; returns the first failure. A failure makes those that wait give up. Communicators that are polled stay busy.
///
/// # Errors
/// The first failure of a job, or of the system to start a thread.
pub fn run_together(jobs: Vec<Job>) -> Result<(), Error> {
    let mut lanes = lanes(jobs);
    match lanes.len() {
        0 => Ok(()),
        1 => run_lane(lanes.remove(0)),
        _ => run_lanes(lanes),
    }
}

/// The same, and all communicators can be used after it.
///
/// # Errors
/// As [`run_together`].
pub fn run_all(jobs: Vec<Job>) -> Result<(), Error> {
    let polled = polled(&jobs);
    let result = run_together(jobs);
    polled.iter().for_each(|comm| comm.end_busy(&result));
    result
}

fn lanes(jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let mut lanes: Vec<Vec<Job>> = Vec::new();
    for job in jobs {
        match lanes.iter_mut().find(|lane| lane[0].lane() == job.lane()) {
            Some(lane) => lane.push(job),
            None => lanes.push(vec![job]),
        }
    }
    lanes
}

/// After a failure only what ends a communicator is still done.
fn run_lane(lane: Vec<Job>) -> Result<(), Error> {
    let mut result = Ok(());
    for job in lane {
        result = match (result, job.is_end()) {
            (Ok(()), _) => job.run(),
            (Err(error), true) => job.run().and(Err(error)),
            (Err(error), false) => {
                job.drop_for(&error);
                Err(error)
            }
        };
    }
    result
}

fn run_lanes(lanes: Vec<Vec<Job>>) -> Result<(), Error> {
    let others: Vec<GivingUp> = lanes.iter().flatten().filter_map(Job::giving_up).collect();
    let first = Mutex::new(None);
    let fail = |error: Error| {
        if first.lock().get_or_insert(error.clone()) == &error {
            others.iter().for_each(GivingUp::fire);
        }
    };
    std::thread::scope(|scope| {
        for lane in lanes {
            // Where the thread cannot be started the jobs come back, to be dropped properly.
            let place = Arc::new(Mutex::new(lane));
            let theirs = place.clone();
            let fail = &fail;
            let work = move || {
                let lane = std::mem::take(&mut *theirs.lock());
                run_lane(lane).unwrap_or_else(fail);
            };
            if let Err(error) = sys::spawn_scoped(scope, "oxccl-job", work) {
                let error = Error::system("pthread_create", "a thread for a job of a group", &error);
                fail(error.clone());
                std::mem::take(&mut *place.lock()).into_iter().for_each(|job| job.drop_for(&error));
            }
        }
    });
    first.into_inner().map_or(Ok(()), Err)
}

/// Starts `work` for communicators on a thread of its own: they are busy, unless they were not ready, until somebody
/// ends that; they fail with `work`.
///
/// # Errors
/// [`Error::System`] when there is no thread; the communicators have then failed.
pub fn carry_on(comms: Vec<Arc<Comm>>, work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
    background::start(comms, work)
}
