//! Jobs: work that waits for other ranks, such as the creation of communicators.

use parking_lot::Mutex;

use crate::error::Error;

/// Work that may wait for other ranks.
pub struct Job {
    /// Does the work.
    pub run: Box<dyn FnOnce() -> Result<(), Error> + Send>,
    /// Makes running work give up; called when another job of the group fails.
    pub cancel: Box<dyn Fn() + Send + Sync>,
    /// Called in place of `run` when the work will not be done, because of an error.
    pub discard: Box<dyn FnOnce(&Error) + Send>,
}

impl Job {
    /// A job of one rank alone: others do not wait for it.
    pub fn local(run: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Job {
        Job { run: Box::new(run), cancel: Box::new(|| {}), discard: Box::new(|_| {}) }
    }
}

/// Runs jobs at the same time, since they wait for one another; returns the first failure.
pub fn run_all(mut jobs: Vec<Job>) -> Result<(), Error> {
    match jobs.len() {
        0 => return Ok(()),
        1 => return (jobs.remove(0).run)(),
        _ => {}
    }
    let (runs, (cancels, mut discards)): (Vec<_>, (Vec<_>, Vec<_>)) =
        jobs.into_iter().map(|job| (job.run, (job.cancel, job.discard))).unzip();
    let first = Mutex::new(None);
    let fail = |error: Error| {
        if first.lock().get_or_insert(error.clone()) == &error {
            cancels.iter().for_each(|cancel| cancel());
        }
    };
    std::thread::scope(|scope| {
        for (index, run) in runs.into_iter().enumerate() {
            let work = || run().unwrap_or_else(&fail);
            if let Err(error) = std::thread::Builder::new().name("oxccl-job".to_string()).spawn_scoped(scope, work) {
                let error = Error::system("pthread_create", "a thread for a job of a group", &error);
                discards.drain(index..).for_each(|discard| discard(&error));
                fail(error);
                break;
            }
        }
    });
    first.into_inner().map_or(Ok(()), Err)
}
