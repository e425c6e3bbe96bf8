//! The calls of one communicator in a group, ready to be launched: what is put on streams, in which order.

use std::sync::Arc;

use super::plan::{self, Launch, Plan};
use super::{Call, completion_events, peers};
use crate::comm::{self, CallKind, Captured, Comm, Parts};
use crate::device::{Capture, Stream, gate};
use crate::error::Error;
use crate::log::lines::CallLine;
use crate::transport::ConnectionGroup;

/// A thing to put on a stream.
enum Action {
    Launch(Box<Launch>),
    Copy { to: u64, from: u64, bytes: u64 },
}

/// The calls of one communicator in a group, ready to be launched.
pub(super) struct Prepared {
    pub(super) comm: Arc<Comm>,
    actions: Vec<Action>,
    /// The stream of the last call, which carries the kernels; none where there is no call.
    stream: Option<Stream>,
    others: Vec<Stream>,
    completion: Option<usize>,
    /// Where nothing is launched now: what the calls have in common with others in their capture.
    captured: Option<Arc<Captured>>,
    /// Links that must be connected before the launch.
    pub(super) missing: Vec<ConnectionGroup>,
}

/// Makes everything ready that takes memory. `busy` says that the communicator may be busy with this.
pub(super) fn prepare<'c>(
    comm: &Arc<Comm>,
    calls: impl Iterator<Item = &'c Call> + Clone,
    captured: Option<Arc<Captured>>,
    busy: bool,
) -> Result<Prepared, Error> {
    comm::settle_graphs();
    let parts = comm.parts()?;
    let stream = calls.clone().map(|call| Stream(call.stream)).last();
    let others = stream.map(|stream| other_streams(calls.clone(), stream)).unwrap_or_default();
    let completion = completion_events(calls.clone()).next();
    let mut agree = true;
    let numbered: Vec<(&Call, u32)> = calls.map(|call| (call, note(comm, parts, call, &mut agree))).collect();
    if !agree {
        // The flight recorder says so by now, so the communicator has failed.
        comm.check_again(CallKind::step(busy))?;
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
    let copy = |call: &Call| {
        (call.send != call.recv).then(|| Action::Copy { to: call.recv, from: call.send, bytes: call.bytes() })
    };
    let mut actions = Vec::new();
    for (call, serial) in calls.iter().filter(|(call, _)| call.count > 0 && !call.func.has_peer()) {
        match plan::is_copy_alone(call) {
            true => actions.extend(copy(call)),
            false => actions.push(Action::Launch(Box::new(Plan::alone(comm, parts, call, *serial)?))),
        }
    }
    actions.extend(
        peers::copies(comm.rank(), calls).iter().filter(|(call, _)| call.count > 0).filter_map(|(call, _)| copy(call)),
    );
    Ok(actions)
}

impl Prepared {
    /// Whether a stream is meant that only the thread that made the call can name.
    pub(super) fn is_for_this_thread(&self) -> bool {
        self.stream.iter().chain(&self.others).any(|stream| stream.is_per_thread())
    }

    /// What was launched later than called must find the context and the captures of the streams as they were.
    fn check_again(&self) -> Result<(), Error> {
        self.comm.context().check_alive()?;
        let _entered = self.comm.context().enter_for_launch()?;
        let expected = self.captured.as_ref().map(|captured| captured.capture());
        for stream in self.stream.iter().chain(&self.others) {
            if Capture::of(self.comm.context(), *stream)?.map(|capture| capture.id()) != expected {
                return Err(Error::InvalidUsage(format!(
                    "a capture of stream {:#x} began or ended before a call on it was enqueued: ncclCommGetAsyncError \
                     says ncclInProgress until then",
                    stream.0
                )));
            }
        }
        Ok(())
    }

    /// Puts everything on the stream, in the communicator's order. `busy` says that the communicator may be busy with
    /// this.
    pub(super) fn launch(self, busy: bool) -> Result<(), Error> {
        if busy {
            self.check_again()?;
        }
        let Prepared { comm, actions, stream, others, completion, captured, .. } = self;
        let Some(stream) = stream else { return Ok(()) };
        let parts = comm.parts()?;
        let captured = captured.as_deref();
        let _entered = comm.context().enter_for_launch()?;
        let _gate = gate::launching(comm.context().device());
        let mut order = parts.order();
        // Under the lock: whoever ends the communicator says so under it, and then waits for what was launched.
        comm.check_again(CallKind::launch(busy))?;
        order.before(stream, captured)?;
        others.iter().try_for_each(|other| order.join(*other, stream))?;
        let launched = actions.into_iter().try_for_each(|action| match action {
            Action::Launch(launch) => launch.go(parts, stream, captured),
            Action::Copy { to, from, bytes } => comm.context().copy(to, from, bytes as usize, stream),
        });
        // Part of it may have been launched even where it has failed.
        let marked = order.after(stream, captured);
        parts.launched();
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

/// Counts a call, logs it, and writes a collective on the flight recorder; returns a collective's number in the
/// communicator. `agree` becomes false where other ranks have called something else.
fn note(comm: &Comm, parts: &Parts, call: &Call, agree: &mut bool) -> u32 {
    log_call(comm, call);
    if call.func.has_peer() {
        return 0;
    }
    let serial = comm.counters().count_collective();
    *agree &= parts.note(call.record(serial));
    serial as u32
}

fn log_call(comm: &Comm, call: &Call) {
    let count_before = comm.counters().count_call();
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
