//! The calls of one communicator in a group, ready to be launched: what is put on streams, in which order.

use std::sync::Arc;

use super::plan::{self, Launch, Plan};
use super::target::{LaunchComm, LaunchSubmission, LaunchTarget};
use super::{Call, completion_events, peers};
use crate::comm::{self, CallKind};
use crate::device::Stream;
use crate::error::Error;
use crate::health::record::CAPTURED;
use crate::log::lines::CallLine;
use crate::transport::ConnectionGroup;

/// A thing to put on a stream.
enum StreamOperation<Lent> {
    Launch(Box<Launch<Lent>>),
    Copy { to: u64, from: u64, bytes: u64 },
}

/// The calls of one communicator in a group, ready to be launched.
pub(super) struct Prepared<C: LaunchComm> {
    pub(super) comm: Arc<C>,
    operations: Vec<StreamOperation<C::Lent>>,
    /// The stream of the last call, which carries the kernels; none where there is no call.
    stream: Option<Stream>,
    others: Vec<Stream>,
    completion: Option<usize>,
    /// Where nothing is launched now: what the calls have in common with others in their capture.
    captured: Option<Arc<C::Captured>>,
    /// Links that must be connected before the launch.
    pub(super) missing: Vec<ConnectionGroup>,
}

/// Makes everything ready that takes memory. `busy` says that the communicator may be busy with this.
pub(super) fn prepare<'c, C: LaunchComm>(
    comm: &Arc<C>,
    calls: impl Iterator<Item = &'c Call> + Clone,
    captured: Option<Arc<C::Captured>>,
    busy: bool,
) -> Result<Prepared<C>, Error> {
    comm::settle_graphs();
    let target = &comm.target()?;
    let stream = calls.clone().map(|call| Stream(call.stream)).last();
    let others = stream.map(|stream| other_streams(calls.clone(), stream)).unwrap_or_default();
    let completion = completion_events(calls.clone()).next();
    let mut agree = true;
    let numbered: Vec<(&Call, u32)> =
        calls.map(|call| (call, note(target, call, captured.is_some(), &mut agree))).collect();
    if !agree {
        // The flight recorder says so by now, so the communicator has failed.
        comm.check_again(CallKind::step(busy))?;
        return Err(Error::InvalidUsage("calls do not match".to_string()));
    }
    let (operations, missing) = match target.nranks() {
        1 => (alone(target, &numbered)?, Vec::new()),
        _ => {
            let (launches, missing) = Plan::of(target, &numbered)?.launches()?;
            (launches.into_iter().map(|launch| StreamOperation::Launch(Box::new(launch))).collect(), missing)
        }
    };
    Ok(Prepared { comm: comm.clone(), operations, stream, others, completion, captured, missing })
}

/// With one rank every call is a copy, but for a user's scalar.
fn alone<T: LaunchTarget>(target: &T, calls: &[(&Call, u32)]) -> Result<Vec<StreamOperation<T::Lent>>, Error> {
    let copy = |call: &Call| {
        (call.send != call.recv).then(|| StreamOperation::Copy { to: call.recv, from: call.send, bytes: call.bytes() })
    };
    let mut operations = Vec::new();
    for (call, serial) in calls.iter().filter(|(call, _)| call.count > 0 && !call.func.has_peer()) {
        match plan::is_copy_alone(call) {
            true => operations.extend(copy(call)),
            false => operations.push(StreamOperation::Launch(Box::new(Plan::alone(target, call, *serial)?))),
        }
    }
    operations.extend(
        peers::copies(target.rank(), calls)
            .iter()
            .filter(|(call, _)| call.count > 0)
            .filter_map(|(call, _)| copy(call)),
    );
    Ok(operations)
}

impl<C: LaunchComm> Prepared<C> {
    /// Whether a stream is meant that only the thread that made the call can name.
    pub(super) fn is_for_this_thread(&self) -> bool {
        self.stream.iter().chain(&self.others).any(|stream| stream.is_per_thread())
    }

    /// What was launched later than called must find the context and the captures of the streams as they were.
    fn check_again(&self) -> Result<(), Error> {
        self.comm.check_context()?;
        let expected = self.captured.as_ref().map(|captured| C::captured_id(captured));
        self.comm.each_capture(self.stream.iter().chain(&self.others).copied(), |stream, capture| {
            if capture.as_ref().map(C::capture_id) == expected {
                return Ok(());
            }
            Err(Error::InvalidUsage(format!(
                "a capture of stream {:#x} began or ended before a call on it was enqueued: ncclCommGetAsyncError \
                 says ncclInProgress until then",
                stream.0
            )))
        })
    }

    /// Puts everything on the stream, in the communicator's order. `busy` says that the communicator may be busy with
    /// this.
    pub(super) fn launch(self, busy: bool) -> Result<(), Error> {
        if busy {
            self.check_again()?;
        }
        let Prepared { comm, operations, stream, others, completion, captured, .. } = self;
        let Some(stream) = stream else { return Ok(()) };
        let mut submission = comm.submit(captured.as_deref())?;
        // Only now: whoever ends the communicator says so while nothing is submitted, and then waits for what was.
        comm.check_again(CallKind::launch(busy))?;
        submission.before(stream)?;
        others.iter().try_for_each(|other| submission.join(*other, stream))?;
        let launched = operations.into_iter().try_for_each(|operation| match operation {
            StreamOperation::Launch(launch) => submission.launch(*launch, stream),
            StreamOperation::Copy { to, from, bytes } => submission.copy(to, from, bytes, stream),
        });
        // Part of it may have been launched even where it has failed.
        let marked = submission.after(stream);
        if let Err(error) = launched.and(marked) {
            // This rank is now out of step with the others, unless nothing was carried out.
            if captured.is_none() {
                comm.fail(&error);
            }
            return Err(error);
        }
        if let Some(event) = completion {
            submission.record_event(event, stream)?;
        }
        others.into_iter().try_for_each(|other| submission.before(other))
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
/// communicator. `agree` becomes false where other ranks have called something else. A captured one is not a call yet,
/// and ranks need not capture as many: kernels compare them when they are replayed.
fn note(target: &impl LaunchTarget, call: &Call, captured: bool, agree: &mut bool) -> u32 {
    log_call(target, call);
    if call.func.has_peer() {
        return 0;
    }
    if captured {
        return CAPTURED;
    }
    let serial = target.count_collective();
    *agree &= target.note(call.record(serial));
    serial as u32
}

fn log_call(target: &impl LaunchTarget, call: &Call) {
    let count_before = target.count_call();
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
        comm: target.handle(),
        nranks: target.nranks(),
        stream: call.stream,
    };
    log::info!(target: "COLL", "{}", line.collective());
}
