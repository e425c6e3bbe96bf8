//! What one thread collects between the start and the end of a group, and what is to become of it. Pure: it knows
//! jobs by two questions and communicators not at all.

use crate::error::Error;
use crate::launch::Call;

/// What the end of a group asks a job.
pub(super) trait GroupJob {
    /// Whether its caller expects the final result.
    fn is_blocking(&self) -> bool;
    /// Whether it ends its communicator.
    fn is_end(&self) -> bool;
}

/// The open groups of a thread: how many, and what their calls have left. `J` is a job, `M` names a communicator.
pub(super) struct Collector<J, M> {
    depth: u32,
    collected: Collected<J, M>,
}

/// What a group has collected.
pub(super) struct Collected<J, M> {
    /// The last error of a call in the group.
    pub error: Option<Error>,
    /// What is carried out before the calls.
    pub jobs: Vec<J>,
    /// The data calls, in their order.
    pub calls: Vec<(M, Call)>,
}

/// What becomes of a group at its end.
pub(super) enum GroupPlan<J, M> {
    /// Nothing of it is carried out; all communicators that are polled learn of the error.
    Drop(Error, Vec<J>, Vec<(M, Call)>),
    /// The end of the group waits for the jobs, and then launches the calls.
    Wait(Vec<J>, Vec<(M, Call)>),
    /// All of it is carried out in the background, and polled for.
    Background(Vec<J>, Vec<(M, Call)>),
}

impl<J, M> Collector<J, M> {
    /// No group is open.
    pub(super) const EMPTY: Collector<J, M> = Collector { depth: 0, collected: Collected::NOTHING };

    /// Opens a group, or goes one level deeper.
    pub(super) fn start(&mut self) {
        self.depth += 1;
    }

    /// Whether a group is open.
    pub(super) fn is_open(&self) -> bool {
        self.depth > 0
    }

    /// Remembers the error of a call in an open group, in place of an earlier one.
    pub(super) fn note_error(&mut self, error: &Error) {
        if self.is_open() {
            self.collected.error = Some(error.clone());
        }
    }

    /// Adds a job to the open group.
    pub(super) fn add_job(&mut self, job: J) {
        self.collected.jobs.push(job);
    }

    /// Adds a data call to the open group.
    pub(super) fn add_call(&mut self, comm: M, call: Call) {
        self.collected.calls.push((comm, call));
    }

    /// Closes a group. The end of the outermost one gives what was collected, and nothing is left of it.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] without a start.
    pub(super) fn end(&mut self) -> Result<Option<Collected<J, M>>, Error> {
        match self.depth {
            0 => return Err(Error::InvalidUsage("ncclGroupEnd: not in a group call.".to_string())),
            1 => {}
            _ => {
                self.depth -= 1;
                return Ok(None);
            }
        }
        Ok(Some(std::mem::replace(self, Collector::EMPTY).collected))
    }
}

impl<J, M> Collected<J, M> {
    /// Nothing.
    pub(super) const NOTHING: Collected<J, M> = Collected { error: None, jobs: Vec::new(), calls: Vec::new() };
}

impl<J: GroupJob, M> Collected<J, M> {
    /// What is to become of it.
    pub(super) fn plan(self) -> GroupPlan<J, M> {
        let Collected { error, jobs, calls } = self;
        if let Some(error) = error.or_else(|| mixed(&jobs)) {
            return GroupPlan::Drop(error, jobs, calls);
        }
        if jobs.is_empty() || jobs.iter().any(|job| job.is_blocking() || job.is_end()) {
            return GroupPlan::Wait(jobs, calls);
        }
        GroupPlan::Background(jobs, calls)
    }
}

/// Jobs that are waited for and jobs that are polled for do not go together, unless the group
/// ends communicators: then all are waited for.
fn mixed<J: GroupJob>(jobs: &[J]) -> Option<Error> {
    let blocking = |wanted| jobs.iter().any(|job| job.is_blocking() == wanted);
    if jobs.iter().any(J::is_end) || !(blocking(true) && blocking(false)) {
        return None;
    }
    let text = "Blocking and nonblocking communicators are not allowed in the same group.";
    Some(Error::InvalidArgument(text.to_string()))
}
