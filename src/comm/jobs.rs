//! Jobs: what a group carries out before its data calls, such as the creation of communicators.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Background, Comm};
use crate::bootstrap::UniqueId;
use crate::error::Error;

/// What is to be done with a communicator.
pub enum Task {
    /// Its creation; the handle is handed over once it has succeeded, unless the user has it already.
    Init {
        /// The rendezvous.
        id: UniqueId,
        /// Takes the handle.
        publish: Option<Box<dyn FnOnce(usize) + Send>>,
    },
    /// `ncclCommFinalize`.
    Finalize,
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

    /// Whether the job ends its communicator; that makes the whole group blocking (spec §4.1).
    pub fn is_end(&self) -> bool {
        matches!(self.task, Task::Destroy | Task::Abort)
    }

    /// Does the work. A panic is an error, so that nobody waits for what will not come.
    ///
    /// # Errors
    /// What the work gives.
    pub fn run(self) -> Result<(), Error> {
        let comm = self.comm.clone();
        catch_unwind(AssertUnwindSafe(|| self.carry_out())).unwrap_or_else(|_| {
            let error = Error::Internal("a job of a communicator panicked".to_string());
            comm.fail(&error);
            Err(error)
        })
    }

    fn carry_out(self) -> Result<(), Error> {
        match self.task {
            Task::Init { id, publish } => {
                self.comm.init(&id, publish.is_none())?;
                publish.into_iter().for_each(|publish| publish(self.comm.handle()));
                Ok(())
            }
            Task::Finalize => self.comm.finalize(),
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
            Task::Init { id, publish } => self.comm.give_up(&id, publish.is_none(), error),
            _ if !self.blocking => self.comm.fail(error),
            _ => {}
        }
    }
}

/// Runs jobs at the same time, since they wait for one another; returns the first failure. A failure
/// makes those that wait give up.
///
/// # Errors
/// The first failure of a job, or of the system to start a thread.
pub fn run_all(mut jobs: Vec<Job>) -> Result<(), Error> {
    match jobs.len() {
        0 => return Ok(()),
        1 => return jobs.remove(0).run(),
        _ => {}
    }
    let comms: Vec<Arc<Comm>> = jobs.iter().filter(|job| !job.is_end()).map(|job| job.comm.clone()).collect();
    let first = Mutex::new(None);
    let fail = |error: Error| {
        if first.lock().get_or_insert(error.clone()) == &error {
            comms.iter().for_each(|comm| comm.cancel_init());
        }
    };
    std::thread::scope(|scope| {
        for job in jobs {
            // Where the thread cannot be started the job comes back, to be dropped properly.
            let place = Arc::new(Mutex::new(Some(job)));
            let theirs = place.clone();
            let fail = &fail;
            let work = move || theirs.lock().take().map_or(Ok(()), Job::run).unwrap_or_else(fail);
            if let Err(error) = std::thread::Builder::new().name("oxccl-job".to_string()).spawn_scoped(scope, work) {
                let error = Error::system("pthread_create", "a thread for a job of a group", &error);
                fail(error.clone());
                place.lock().take().into_iter().for_each(|job| job.drop_for(&error));
            }
        }
    });
    first.into_inner().map_or(Ok(()), Err)
}

/// Starts `work` for the communicators of jobs on a thread of its own; their states tell how it goes.
///
/// # Errors
/// [`Error::System`] when there is no thread; the communicators have then failed.
pub fn in_background(jobs: Vec<Job>, work: impl FnOnce(Vec<Job>) -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
    let comms: Vec<Arc<Comm>> = jobs.iter().map(|job| job.comm.clone()).collect();
    carry_on(comms, move || work(jobs))
}

/// Starts `work` for communicators on a thread of its own: they are busy, unless they were not ready, until `work` says
/// that they are ready again.
///
/// # Errors
/// As [`in_background`].
pub fn carry_on(comms: Vec<Arc<Comm>>, work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
    let background = Arc::new(Background::default());
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
    match std::thread::Builder::new().name("oxccl-init".to_string()).spawn(run) {
        Ok(_) => Ok(()),
        Err(error) => {
            let error = Error::system("pthread_create", "a thread for non-blocking communicators", &error);
            comms.iter().for_each(|comm| comm.fail(&error));
            background.finish();
            Err(error)
        }
    }
}
