//! From collected calls to kernel launches: checks, work items, streams.
//!
//! * `plan`, `peers` and `offers` make work items of calls, `prepared` puts them on streams, `background` does so
//!   while the caller polls;
//! * `target` is what all of them ask of a communicator, `comm_target` how communicators answer.

mod background;
mod call;
mod comm_target;
mod offers;
mod peers;
mod plan;
mod prepared;
mod target;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::comm::{CallKind, Outcome};
use crate::device::Stream;
use crate::error::Error;

pub use call::Call;
pub use comm_target::goodbye_if_due;
pub use target::{LaunchComm, LaunchSubmission, LaunchTarget};

use prepared::{Prepared, prepare};

/// Launches one call at once, or captures it where its stream is being captured; [`Call::check_buffers`] comes before.
/// Where links are needed for the first time, they are connected before; of a communicator that does not block, in
/// the background.
///
/// # Errors
/// [`Error::InvalidUsage`] for a message to oneself, [`Error::InvalidArgument`] for a stream of another context,
/// [`Error::Cuda`] when the driver refuses, and as [`LaunchComm::connect`].
pub fn run_one<C: LaunchComm>(comm: &Arc<C>, call: &Call) -> Result<Outcome, Error> {
    let capture = check(comm.as_ref(), std::iter::once(call))?;
    let captured = capture.map(|capture| comm.captured(&capture)).transpose()?;
    let prepared = prepare(comm, std::iter::once(call), captured, false)?;
    match prepared.missing.is_empty() {
        true => prepared.launch(false).map(|()| Outcome::Done),
        false => connect_and_launch(vec![prepared]),
    }
}

/// Launches the calls of a group: communicator by communicator. What can be
/// known to be wrong is found before anything is launched, and what takes memory is done: peers wait for a launch.
///
/// # Errors
/// As [`run_one`], and [`Error::InvalidUsage`] for streams of which some are captured; when the driver refuses a
/// launch, the calls of later communicators are not launched.
pub fn run_group<C: LaunchComm>(calls: &[(Arc<C>, Call)]) -> Result<Outcome, Error> {
    let comms = communicators(calls);
    let run = || connect_and_launch(prepare_all(&comms, calls, captured(&comms, calls)?, false)?);
    run().inspect_err(|_| comms.iter().for_each(|comm| comm.goodbye_if_due()))
}

/// Launches the calls of a group in the background, after what else the group has to do, `first`. Until everything is
/// enqueued the communicators of the calls are busy, and the `others`. What streams are meant is found out here, in the
/// calling thread.
///
/// # Errors
/// What is wrong with the calls, before anything is done; later errors are those of all these communicators.
pub fn run_group_after<C: LaunchComm>(
    calls: Vec<(Arc<C>, Call)>,
    mut others: Vec<Arc<C>>,
    first: impl FnOnce() -> Result<(), Error> + Send + 'static,
) -> Result<Outcome, Error> {
    let comms = communicators(&calls);
    let captured = captured(&comms, &calls)?;
    let own_thread = calls.iter().any(|(_, call)| Stream(call.stream).is_per_thread());
    let called: Vec<Arc<C>> = comms.into_iter().cloned().collect();
    others.extend(called.iter().cloned());
    background::begin(others, own_thread, move || {
        first()?;
        let comms: Vec<&Arc<C>> = called.iter().collect();
        let checked = comms.iter().try_for_each(|comm| comm.check_again(CallKind::Launch));
        background::told(&called, checked.and_then(|()| prepare_all(&comms, &calls, captured, true)))
    })?;
    Ok(Outcome::InProgress)
}

/// Checks the calls of a group; gives what the graphs keep for them that they are captured into.
fn captured<C: LaunchComm>(
    comms: &[&Arc<C>],
    calls: &[(Arc<C>, Call)],
) -> Result<Vec<Option<Arc<C::Captured>>>, Error> {
    let captures = check_all(comms, calls)?;
    comms
        .iter()
        .zip(captures)
        .map(|(comm, capture)| capture.map(|capture| comm.captured(&capture)).transpose())
        .collect()
}

fn prepare_all<C: LaunchComm>(
    comms: &[&Arc<C>],
    calls: &[(Arc<C>, Call)],
    captured: Vec<Option<Arc<C::Captured>>>,
    busy: bool,
) -> Result<Vec<Prepared<C>>, Error> {
    comms.iter().zip(captured).map(|(comm, captured)| prepare(comm, calls_of(comm, calls), captured, busy)).collect()
}

/// Connects what links are missing, and launches. Where no communicator blocks, in the background.
fn connect_and_launch<C: LaunchComm>(all: Vec<Prepared<C>>) -> Result<Outcome, Error> {
    let missing = all.iter().any(|prepared| !prepared.missing.is_empty());
    if missing && !all.iter().any(|prepared| prepared.comm.is_blocking()) {
        return background::connect_and_launch(all);
    }
    connect(&all, false)?;
    all.into_iter().try_for_each(|prepared| prepared.launch(false)).map(|()| Outcome::Done)
}

/// Connects links; `busy` says that the communicators are busy with it. All ask their peers before any of them waits
/// for answers.
fn connect<C: LaunchComm>(all: &[Prepared<C>], busy: bool) -> Result<(), Error> {
    let missing = || all.iter().filter(|prepared| !prepared.missing.is_empty());
    missing().try_for_each(|prepared| prepared.comm.ask_for_links(&prepared.missing))?;
    missing().try_for_each(|prepared| prepared.comm.connect(&prepared.missing, busy))
}

/// What the last collective of a group is expected to take, in microseconds; none where there is no collective, or
/// but one rank.
///
/// # Errors
/// As [`run_group`], but for what only a launch can give.
pub fn simulate_group<C: LaunchComm>(calls: &[(Arc<C>, Call)]) -> Result<Option<f64>, Error> {
    let comms = communicators(calls);
    check_all(&comms, calls)?;
    let of_interest = |(comm, call): &&(Arc<C>, Call)| !call.func.has_peer() && call.count > 0 && comm.nranks() > 1;
    let last = calls.iter().rfind(of_interest);
    let estimate = |(comm, call): &(Arc<C>, Call)| {
        let target = comm.target()?;
        let shape = plan::shape(target.tuning(), target.nranks() as u32, call)?;
        Ok(shape.estimate(&target.tuning().choose(&shape)?))
    };
    last.map(estimate).transpose()
}

/// The communicators of some calls, in an order that is the same on all ranks whatever the order of the calls: streams
/// can share a queue of the device, where one communicator's kernel would wait behind another's on one rank and the
/// other way round on the next.
fn communicators<C: LaunchComm>(calls: &[(Arc<C>, Call)]) -> Vec<&Arc<C>> {
    let mut comms: Vec<&Arc<C>> = Vec::new();
    for (comm, _) in calls {
        if !comms.iter().any(|seen| Arc::ptr_eq(seen, comm)) {
            comms.push(comm);
        }
    }
    comms.sort_by_key(|comm| (comm.hash(), comm.rank()));
    comms
}

fn calls_of<'a, C>(comm: &'a Arc<C>, calls: &'a [(Arc<C>, Call)]) -> impl Iterator<Item = &'a Call> + Clone {
    calls.iter().filter(move |(owner, _)| Arc::ptr_eq(owner, comm)).map(|(_, call)| call)
}

/// What is wrong with the calls of a group, as far as it shows before a launch; the captures of the communicators.
fn check_all<C: LaunchComm>(comms: &[&Arc<C>], calls: &[(Arc<C>, Call)]) -> Result<Vec<Option<C::Capture>>, Error> {
    let check = |comm: &&Arc<C>| check(comm.as_ref(), calls_of(comm, calls));
    let captures = comms.iter().map(check).collect::<Result<Vec<_>, Error>>()?;
    if captures.windows(2).any(|pair| pair[0].is_some() != pair[1].is_some()) {
        let text = "Either none or all communicators in a ncclGroup() can be CUDA graph captured.";
        return Err(Error::InvalidUsage(text.to_string()));
    }
    Ok(captures)
}

/// What is wrong with calls of one communicator, as far as it shows before a launch; the capture that their streams are
/// in.
fn check<'a, C: LaunchComm>(
    comm: &C,
    calls: impl Iterator<Item = &'a Call> + Clone,
) -> Result<Option<C::Capture>, Error> {
    comm.check(CallKind::Enqueue)?;
    if completion_events(calls.clone()).count() > 1 {
        return Err(Error::InvalidUsage(
            "Only one launch-completion event may be provided in one NCCL group".to_string(),
        ));
    }
    peers::check(comm.rank(), calls.clone())?;
    streams(calls.clone()).try_for_each(|stream| comm.check_stream(stream))?;
    let mut found: Option<Option<C::Capture>> = None;
    comm.each_capture(streams(calls), |_, capture| {
        let id = |capture: &Option<C::Capture>| capture.as_ref().map(C::capture_id);
        if found.as_ref().is_some_and(|before| id(before) != id(&capture)) {
            let text = "Streams given to a communicator within a NCCL group must either be all uncaptured or all \
                        captured by the same graph.";
            return Err(Error::InvalidUsage(text.to_string()));
        }
        found = Some(capture);
        Ok(())
    })?;
    Ok(found.flatten())
}

/// The streams of calls, in their order; one that is the same as the one before is left out.
fn streams<'a>(calls: impl Iterator<Item = &'a Call>) -> impl Iterator<Item = Stream> {
    let mut last = None;
    calls.map(|call| Stream(call.stream)).filter(move |stream| last.replace(*stream) != Some(*stream))
}

/// The events that the configurations of calls name; 0 names none.
fn completion_events<'a>(calls: impl Iterator<Item = &'a Call>) -> impl Iterator<Item = usize> {
    calls
        .filter_map(|call| call.config.as_ref())
        .map(|config| config.launch_completion_event)
        .filter(|event| *event != 0)
}
