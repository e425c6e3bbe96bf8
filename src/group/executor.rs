//! Carries out what a group has collected: jobs before data calls.

use std::sync::Arc;

use parking_lot::Mutex;

use super::collector::{Collected, GroupJob, GroupPlan};
use crate::comm::jobs::{self, Job};
use crate::comm::{Comm, Outcome};
use crate::error::Error;
use crate::launch::{self, Call};

/// What the end of a group has done.
pub(super) trait GroupExecutor {
    /// What is carried out before the calls.
    type Job: GroupJob;
    /// A communicator.
    type Comm: Clone;

    /// Carries jobs out and waits for them.
    ///
    /// # Errors
    /// The first failure of a job.
    fn run_jobs(&self, jobs: Vec<Self::Job>) -> Result<(), Error>;

    /// Launches data calls.
    ///
    /// # Errors
    /// As [`launch::run_group`].
    fn launch(&self, calls: &[(Self::Comm, Call)]) -> Result<Outcome, Error>;

    /// Begins to carry out jobs, and then data calls, in the background. The jobs are taken when that has begun.
    ///
    /// # Errors
    /// As [`launch::run_group_after`].
    fn begin(&self, jobs: Arc<Mutex<Vec<Self::Job>>>, calls: Vec<(Self::Comm, Call)>) -> Result<Outcome, Error>;

    /// The expected time of the last collective among some calls, in microseconds.
    ///
    /// # Errors
    /// As [`launch::simulate_group`].
    fn simulate(&self, calls: &[(Self::Comm, Call)]) -> Result<Option<f64>, Error>;

    /// A job is not carried out.
    fn drop_job(&self, job: Self::Job, error: &Error);

    /// A communicator's data call is not carried out: who polls for it must see that.
    fn fail_call(&self, comm: &Self::Comm, error: &Error);
}

/// Carries a group out.
///
/// # Errors
/// The last error of a call in the group, or the first failure of what was collected.
pub(super) fn carry_out<E: GroupExecutor>(executor: &E, group: Collected<E::Job, E::Comm>) -> Result<Outcome, Error> {
    match group.plan() {
        GroupPlan::Drop(error, jobs, calls) => {
            jobs.into_iter().for_each(|job| executor.drop_job(job, &error));
            calls.iter().for_each(|(comm, _)| executor.fail_call(comm, &error));
            Err(error)
        }
        GroupPlan::Wait(jobs, calls) => {
            executor.run_jobs(jobs)?;
            executor.launch(&calls)
        }
        GroupPlan::Background(jobs, calls) => in_background(executor, jobs, calls),
    }
}

/// Carries out a group that its caller polls for. All of its communicators are busy until the whole group is enqueued.
fn in_background<E: GroupExecutor>(
    executor: &E,
    jobs: Vec<E::Job>,
    calls: Vec<(E::Comm, Call)>,
) -> Result<Outcome, Error> {
    let called: Vec<E::Comm> = calls.iter().map(|(comm, _)| comm.clone()).collect();
    // The jobs come back where nothing is begun, to be dropped properly.
    let place = Arc::new(Mutex::new(jobs));
    executor.begin(place.clone(), calls).inspect_err(|error| {
        std::mem::take(&mut *place.lock()).into_iter().for_each(|job| executor.drop_job(job, error));
        called.iter().for_each(|comm| executor.fail_call(comm, error));
    })
}

/// Carries out the jobs of a group, but estimates its calls.
///
/// # Errors
/// As [`carry_out`].
pub(super) fn simulate<E: GroupExecutor>(
    executor: &E,
    group: Collected<E::Job, E::Comm>,
) -> Result<Option<f64>, Error> {
    let Collected { error, jobs, calls } = group;
    match error {
        Some(error) => {
            jobs.into_iter().for_each(|job| executor.drop_job(job, &error));
            Err(error)
        }
        None => {
            executor.run_jobs(jobs)?;
            executor.simulate(&calls)
        }
    }
}

/// Carries groups out on communicators.
pub(super) struct CommExecutor;

impl GroupJob for Job {
    fn is_blocking(&self) -> bool {
        Job::is_blocking(self)
    }

    fn is_end(&self) -> bool {
        Job::is_end(self)
    }
}

impl GroupExecutor for CommExecutor {
    type Job = Job;
    type Comm = Arc<Comm>;

    fn run_jobs(&self, jobs: Vec<Job>) -> Result<(), Error> {
        jobs::run_all(jobs)
    }

    fn launch(&self, calls: &[(Arc<Comm>, Call)]) -> Result<Outcome, Error> {
        launch::run_group(calls)
    }

    fn begin(&self, jobs: Arc<Mutex<Vec<Job>>>, calls: Vec<(Arc<Comm>, Call)>) -> Result<Outcome, Error> {
        let others = jobs::polled(&jobs.lock());
        launch::run_group_after(calls, others, move || jobs::run_together(std::mem::take(&mut *jobs.lock())))
    }

    fn simulate(&self, calls: &[(Arc<Comm>, Call)]) -> Result<Option<f64>, Error> {
        launch::simulate_group(calls)
    }

    fn drop_job(&self, job: Job, error: &Error) {
        job.drop_for(error);
    }

    fn fail_call(&self, comm: &Arc<Comm>, error: &Error) {
        comm.fail_call(error);
    }
}
