//! Launches that wait for links, or for what a group does before its calls, while their caller polls.

use std::sync::Arc;
use std::time::Duration;

use super::connect;
use super::prepared::Prepared;
use super::target::LaunchComm;
use crate::comm::{Outcome, handover};
use crate::error::Error;
use crate::log::{Place, failure};

/// How long a call on the calling thread's default stream waits for its links, so that it is enqueued when it returns:
/// nobody else can do it. Links take some milliseconds, unless a peer was stopped.
const OWN_STREAM_WAIT: Duration = Duration::from_millis(200);

/// Connects links and launches, in the background.
///
/// # Errors
/// As [`begin`].
pub(super) fn connect_and_launch<C: LaunchComm>(all: Vec<Prepared<C>>) -> Result<Outcome, Error> {
    let own_thread = all.iter().any(Prepared::is_for_this_thread);
    let comms = all.iter().map(|prepared| prepared.comm.clone()).collect();
    begin(comms, own_thread, move || Ok(all))?;
    let done = own_thread.then(|| handover::wait_for_last(OWN_STREAM_WAIT)).flatten();
    Ok(match done {
        Some(Ok(())) => Outcome::Done,
        // Where it has failed, the communicators have.
        _ => Outcome::InProgress,
    })
}

/// Starts a thread that does some `work`, connects the links and launches; with `own_thread`, the calling thread
/// launches when it next calls the library. The communicators are busy until everything is enqueued, and fail all if
/// something fails.
///
/// # Errors
/// [`Error::System`] when there is no thread; the communicators have then failed. As [`LaunchComm::hand_over`].
pub(super) fn begin<C: LaunchComm>(
    comms: Vec<Arc<C>>,
    own_thread: bool,
    work: impl FnOnce() -> Result<Vec<Prepared<C>>, Error> + Send + 'static,
) -> Result<(), Error> {
    let giver = own_thread.then(|| C::hand_over(&comms)).transpose()?;
    let ours = comms.clone();
    C::carry_on(comms, move || {
        let connected = work().and_then(|all| told(&ours, connect(&all, true)).map(|()| all));
        let all = connected.inspect_err(|error| end(&ours, &Err(error.clone())))?;
        let rest = move || {
            let result = told(&ours, all.into_iter().try_for_each(|prepared| prepared.launch(true)));
            end(&ours, &result);
            result
        };
        match giver {
            None => rest(),
            Some(giver) => {
                // It comes back where its thread has ended, and the communicators know of that.
                drop(giver.give(Box::new(rest)));
                Ok(())
            }
        }
    })
}

fn end<C: LaunchComm>(comms: &[Arc<C>], result: &Result<(), Error>) {
    comms.iter().for_each(|comm| comm.end_busy(result));
}

/// Logs an error that no call returns, unless nobody is there any more to hear of it.
pub(super) fn told<C: LaunchComm, T>(comms: &[Arc<C>], result: Result<T, Error>) -> Result<T, Error> {
    let place = Place { file: "launch/background.rs", line: line!(), function: "GroupEnd" };
    result.inspect_err(|error| {
        if !comms.iter().all(|comm| comm.has_ended()) {
            failure(&place, error);
        }
    })
}
