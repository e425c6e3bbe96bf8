//! From collected calls to kernel launches: checks, work items, streams.

mod call;

mod offers;
mod peers;
mod plan;

use std::sync::Arc;

use crate::comm::{self, Captured, Comm, Outcome, Parts, jobs};
use crate::device::{Capture, Stream, gate};
use crate::error::Error;
use crate::log::lines::CallLine;
use crate::log::{Place, failure};
use crate::transport::Unit;

pub use call::Call;
use plan::{Launch, Plan};

/// Launches one call at once, or captures it where its stream is being captured; [`Call::check_buffers`] comes before.
/// Where links are needed for the first time, they are connected before; of a communicator that does not block, in
/// the background.
///
/// # Errors
/// [`Error::InvalidUsage`] for a message to oneself, [`Error::Cuda`] when the driver refuses, and as [`Comm::connect`].
pub fn run_one(comm: &Arc<Comm>, call: &Call) -> Result<Outcome, Error> {
    let capture = check(comm, std::iter::once(call))?;
    let prepared = prepare(comm, std::iter::once(call), capture.as_ref())?;
    match prepared.missing.is_empty() {
        true => prepared.launch(false).map(|()| Outcome::Done),
        false => connect_and_launch(vec![prepared], true),
    }
}

/// Launches the calls of a group: communicator by communicator. What can be
/// known to be wrong is found before anything is launched, and what takes memory is done: peers wait for a launch.
/// Without `may_go_on`, the caller waits for links even where no communicator blocks.
///
/// # Errors
/// As [`run_one`], and [`Error::InvalidUsage`] for streams of which some are captured; when the driver refuses a launch,
/// the calls of later communicators are not launched.
pub fn run_group(calls: &[(Arc<Comm>, Call)], may_go_on: bool) -> Result<Outcome, Error> {
    let comms = communicators(calls);
    launch_all(&comms, calls, may_go_on).inspect_err(|_| comms.iter().for_each(|comm| farewell_if_due(comm)))
}

fn launch_all(comms: &[&Arc<Comm>], calls: &[(Arc<Comm>, Call)], may_go_on: bool) -> Result<Outcome, Error> {
    let captures = check_all(comms, calls)?;
    let each = comms.iter().zip(&captures);
    let prepared: Result<Vec<_>, Error> =
        each.map(|(comm, capture)| prepare(comm, calls_of(comm, calls), capture.as_ref())).collect();
    connect_and_launch(prepared?, may_go_on)
}

/// Connects what links are missing, and launches. Where no communicator blocks, and it `may_go_on`, in the background.
fn connect_and_launch(all: Vec<Prepared>, may_go_on: bool) -> Result<Outcome, Error> {
    let missing = all.iter().any(|prepared| !prepared.missing.is_empty());
    if !missing || !may_go_on || all.iter().any(|prepared| prepared.comm.is_blocking()) {
        return go(all, false).map(|()| Outcome::Done);
    }
    let comms: Vec<Arc<Comm>> = all.iter().map(|prepared| prepared.comm.clone()).collect();
    let busy = comms.clone();
    jobs::carry_on(comms, move || {
        go(all, true).inspect_err(|error| {
            // No call returns it.
            failure(&Place { file: "launch/mod.rs", line: line!(), function: "GroupEnd" }, error);
            busy.iter().for_each(|comm| comm.note_failure("GroupEnd", error));
        })?;
        busy.iter().for_each(|comm| comm.leave_busy());
        Ok(())
    })?;
    Ok(Outcome::InProgress)
}

/// Connects and launches now; `busy` says that the communicators are busy with it. All ask their peers before any of them
/// waits for answers.
fn go(all: Vec<Prepared>, busy: bool) -> Result<(), Error> {
    let missing = || all.iter().filter(|prepared| !prepared.missing.is_empty());
    missing().try_for_each(|prepared| prepared.comm.ask_for_links(&prepared.missing))?;
    missing().try_for_each(|prepared| prepared.comm.connect(&prepared.missing, busy))?;
    all.into_iter().try_for_each(|prepared| prepared.launch(busy))
}

/// What the last collective of a group is expected to take, in microseconds; none where there is no collective, or
/// but one rank.
///
/// # Errors
/// As [`run_group`], but for what only a launch can give.
pub fn simulate_group(calls: &[(Arc<Comm>, Call)]) -> Result<Option<f64>, Error> {
    let comms = communicators(calls);
    check_all(&comms, calls)?;
    let of_interest = |(comm, call): &&(Arc<Comm>, Call)| !call.func.has_peer() && call.count > 0 && comm.nranks() > 1;
    let last = calls.iter().rfind(of_interest);
    last.map(|(comm, call)| comm.parts()?.schedules.estimate(&plan::ask(call)?)).transpose()
}

/// The communicators of some calls, in an order that is the same on all ranks whatever the order of the calls: streams
/// can share a queue of the device, where one communicator's kernel would wait behind another's on one rank and the
/// other way round on the next.
fn communicators(calls: &[(Arc<Comm>, Call)]) -> Vec<&Arc<Comm>> {
    let mut comms: Vec<&Arc<Comm>> = Vec::new();
    for (comm, _) in calls {
        if !comms.iter().any(|seen| Arc::ptr_eq(seen, comm)) {
            comms.push(comm);
        }
    }
    comms.sort_by_key(|comm| (comm.hash(), comm.rank()));
    comms
}

fn calls_of<'a>(comm: &'a Arc<Comm>, calls: &'a [(Arc<Comm>, Call)]) -> impl Iterator<Item = &'a Call> + Clone {
    calls.iter().filter(move |(owner, _)| Arc::ptr_eq(owner, comm)).map(|(_, call)| call)
}

/// What is wrong with the calls of a group, as far as it shows before a launch; the captures of the communicators.
fn check_all(comms: &[&Arc<Comm>], calls: &[(Arc<Comm>, Call)]) -> Result<Vec<Option<Capture>>, Error> {
    let captures: Vec<_> = comms.iter().map(|comm| check(comm, calls_of(comm, calls))).collect::<Result<_, Error>>()?;
    if captures.windows(2).any(|pair| pair[0].is_some() != pair[1].is_some()) {
        let text = "Either none or all communicators in a ncclGroup() can be CUDA graph captured.";
        return Err(Error::InvalidUsage(text.to_string()));
    }
    Ok(captures)
}

/// What is wrong with calls of one communicator, as far as it shows before a launch; the capture that their streams are in.
fn check<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Call> + Clone) -> Result<Option<Capture>, Error> {
    comm.check_ready()?;
    comm.check_awake()?;
    if completion_events(calls.clone()).count() > 1 {
        return Err(Error::InvalidUsage("Only one launch-completion event may be provided in one NCCL group".to_string()));
    }
    peers::check(comm, calls.clone())?;
    let _entered = comm.context().enter_for_launch()?;
    let (mut last, mut found) = (None, None);
    for call in calls {
        let stream = Stream(call.stream);
        if last.replace(stream) == Some(stream) {
            continue;
        }
        let capture = Capture::of(comm.context(), stream)?;
        let same = |before: &Option<Capture>| before.as_ref().map(Capture::id) == capture.as_ref().map(Capture::id);
        if !found.as_ref().is_none_or(same) {
            let text = "Streams given to a communicator within a NCCL group must either be all uncaptured or all captured by \
                        the same graph.";
            return Err(Error::InvalidUsage(text.to_string()));
        }
        found = Some(capture);
    }
    Ok(found.flatten())
}

/// A thing to put on a stream.
enum Action {
    Launch(Box<Launch>),
    Copy { to: u64, from: u64, bytes: u64 },
}

/// The calls of one communicator in a group, ready to be launched.
struct Prepared {
    comm: Arc<Comm>,
    actions: Vec<Action>,
    /// The stream of the last call, which carries the kernels (spec §4.5); none where there is no call.
    stream: Option<Stream>,
    others: Vec<Stream>,
    completion: Option<usize>,
    /// Where nothing is launched now: what the calls have in common with others in their capture.
    captured: Option<Arc<Captured>>,
    /// Links that must be connected before the launch.
    missing: Vec<Unit>,
}

fn prepare<'c>(
    comm: &Arc<Comm>,
    calls: impl Iterator<Item = &'c Call> + Clone,
    capture: Option<&Capture>,
) -> Result<Prepared, Error> {
    comm::settle_graphs();
    let parts = comm.parts()?;
    let captured = capture.map(|capture| comm.captured(capture)).transpose()?;
    let stream = calls.clone().map(|call| Stream(call.stream)).last();
    let others = stream.map(|stream| other_streams(calls.clone(), stream)).unwrap_or_default();
    let completion = completion_events(calls.clone()).next();
    let mut agree = true;
    let numbered: Vec<(&Call, u32)> = calls.map(|call| (call, note(comm, parts, call, &mut agree))).collect();
    if !agree {
        // The board says so by now, so the communicator has failed.
        comm.check_ready()?;
        return Err(Error::InvalidUsage("calls do not match".to_string()));
    }
    let (actions, missing) = match comm.nranks() {
        1 => (alone(comm, parts, &numbered)?, Vec::new()),
        _ => {
            let (launches, missing) = Plan::of(comm, parts, &numbered)?.launches()?;
            (launches.into_iter().map(|launch| Action::Launch(Box::new(launch))).collect(), missing)
        }
    };
    Ok(Prepared { comm: comm.clone(), actions, stream, others, completion, captured, missing })
}

/// With one rank every call is a copy, but for a user's scalar.
fn alone(comm: &Comm, parts: &Parts, calls: &[(&Call, u32)]) -> Result<Vec<Action>, Error> {
    let copy =
        |call: &Call| (call.send != call.recv).then(|| Action::Copy { to: call.recv, from: call.send, bytes: call.bytes() });
    let mut actions = Vec::new();
    for (call, serial) in calls.iter().filter(|(call, _)| call.count > 0 && !call.func.has_peer()) {
        match plan::is_copy_alone(call) {
            true => actions.extend(copy(call)),
            false => actions.push(Action::Launch(Box::new(Plan::alone(comm, parts, call, *serial)?))),
        }
    }
    actions
        .extend(peers::copies(comm.rank(), calls).iter().filter(|(call, _)| call.count > 0).filter_map(|(call, _)| copy(call)));
    Ok(actions)
}

impl Prepared {
    /// Puts everything on the stream, in the communicator's order. `busy` says that the communicator may be busy with this.
    fn launch(self, busy: bool) -> Result<(), Error> {
        let Prepared { comm, actions, stream, others, completion, captured, .. } = self;
        let Some(stream) = stream else { return Ok(()) };
        let parts = comm.parts()?;
        let captured = captured.as_deref();
        let _entered = comm.context().enter_for_launch()?;
        let _gate = gate::launching(comm.context().device());
        let mut order = parts.order.lock();
        // Under the lock: whoever ends the communicator says so under it, and then waits for what was launched.
        comm.check_running("the launch")?;
        comm.check_usable(busy)?;
        order.before(stream, captured)?;
        others.iter().try_for_each(|other| order.join(*other, stream))?;
        let launched = actions.into_iter().try_for_each(|action| match action {
            Action::Launch(launch) => launch.go(parts, stream, captured),
            Action::Copy { to, from, bytes } => comm.context().copy(to, from, bytes as usize, stream),
        });
        // Part of it may have been launched even where it has failed.
        let marked = order.after(stream, captured);
        if let Err(error) = launched.and(marked) {
            // This rank is now out of step with the others, unless nothing was carried out.
            if captured.is_none() {
                comm.fail(&error);
            }
            return Err(error);
        }
        if let Some(event) = completion {
            comm.context().record_user_event(event, stream)?;
        }
        others.into_iter().try_for_each(|other| order.before(other, captured))
    }
}

/// The events that the configurations of calls name (delta §3.3); 0 names none.
fn completion_events<'a>(calls: impl Iterator<Item = &'a Call>) -> impl Iterator<Item = usize> {
    calls.filter_map(|call| call.config.as_ref()).map(|config| config.launch_completion_event).filter(|event| *event != 0)
}

/// The streams of a group's calls besides the last one.
fn other_streams<'a>(calls: impl Iterator<Item = &'a Call>, last: Stream) -> Vec<Stream> {
    let mut others = Vec::new();
    for call in calls {
        let stream = Stream(call.stream);
        if stream != last && !others.contains(&stream) {
            others.push(stream);
        }
    }
    others
}

/// Where a communicator has failed because ranks are out of step: marks all links of this rank, once, so that whoever
/// waits for it leaves, too.
pub fn farewell_if_due(comm: &Comm) {
    if !comm.take_farewell() {
        return;
    }
    comm.tell_leaving();
    let told = comm.parts().and_then(|parts| {
        let _entered = comm.context().enter()?;
        let launches = Plan::farewell(comm, parts)?;
        launches.into_iter().try_for_each(|launch| launch.go(parts, comm.context().setup_stream(), None))
    });
    if let Err(why) = told {
        log::info!(target: "COLL", "rank {} could not tell its peers that it leaves: {why}", comm.rank());
    }
}

/// Counts a call, logs it, and writes a collective on the board; returns a collective's number in the communicator.
/// `agree` becomes false where other ranks have called something else.
fn note(comm: &Comm, parts: &Parts, call: &Call, agree: &mut bool) -> u32 {
    log_call(comm, call);
    if call.func.has_peer() {
        return 0;
    }
    let serial = comm.count_collective();
    if let Some(board) = &parts.board {
        *agree &= board.note(call.record(serial));
    }
    serial as u32
}

fn log_call(comm: &Comm, call: &Call) {
    let count_before = comm.count_call();
    if !log::log_enabled!(target: "COLL", log::Level::Info) {
        return;
    }
    let line = CallLine {
        name: call.func.name(),
        count_before,
        send: call.send,
        recv: call.recv,
        count: call.count,
        datatype: call.datatype as i32,
        op: i32::from(call.reduction.number()),
        root: call.root,
        comm: comm.handle(),
        nranks: comm.nranks(),
        stream: call.stream,
    };
    log::info!(target: "COLL", "{}", line.collective());
}
