//! From collected calls to kernel launches: checks, work items, streams.

mod work;

use std::sync::Arc;

use crate::comm::config::CollConfig;
use crate::comm::{Comm, Parts};
use crate::device::Stream;
use crate::error::Error;
use crate::log::lines::CallLine;
use crate::plan::call::{DataType, Func, Op};

use work::Batch;

/// A call of a collective, as the C interface gives it, with its numbers checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Which function.
    pub func: Func,
    /// The device address of the input.
    pub send: u64,
    /// The device address of the output.
    pub recv: u64,
    /// The number of elements, as the function counts them.
    pub count: usize,
    /// The element type.
    pub datatype: DataType,
    /// The reduction.
    pub op: Op,
    /// The root; 0 where the function has none.
    pub root: i32,
    /// The user's stream.
    pub stream: usize,
    /// The configuration of the call; tuning fields are hints.
    pub config: Option<CollConfig>,
}

/// Launches one call at once; [`check_buffers`] comes before.
///
/// # Errors
/// [`Error::InvalidUsage`] for a stream that is being captured, [`Error::Cuda`] when the driver refuses.
pub fn run_one(comm: &Arc<Comm>, call: &Collective) -> Result<(), Error> {
    check(comm, std::iter::once(call))?;
    launch_all(comm, std::iter::once(call))
}

/// Launches the calls of a group: communicator by communicator, in the order of their first calls. What
/// can be known to be wrong is found before anything is launched: peers wait for a launch.
///
/// # Errors
/// As [`run_one`]; when the driver refuses a launch, the calls of later communicators are not launched.
pub fn run_group(calls: &[(Arc<Comm>, Collective)]) -> Result<(), Error> {
    let mut comms: Vec<&Arc<Comm>> = Vec::new();
    for (comm, _) in calls {
        if !comms.iter().any(|seen| Arc::ptr_eq(seen, comm)) {
            comms.push(comm);
        }
    }
    let calls_of = |comm| calls.iter().filter(move |(owner, _)| Arc::ptr_eq(owner, comm)).map(|(_, call): &(_, Collective)| call);
    comms.iter().try_for_each(|comm| check(comm, calls_of(comm)))?;
    comms.iter().try_for_each(|comm| launch_all(comm, calls_of(comm)))
}

/// What is wrong with calls of one communicator, as far as it shows before a launch.
fn check<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Collective> + Clone) -> Result<(), Error> {
    comm.check_ready()?;
    if completion_events(calls.clone()).count() > 1 {
        return Err(Error::InvalidUsage("Only one launch-completion event may be provided in one NCCL group".to_string()));
    }
    let _entered = comm.context().enter_for_launch()?;
    let mut last = None;
    for call in calls {
        let stream = Stream(call.stream);
        if last.replace(stream) != Some(stream) {
            comm.context().refuse_capture(stream)?;
        }
    }
    Ok(())
}

/// Launches calls of one communicator, in their order, in as few launches as the argument has room.
fn launch_all<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Collective> + Clone) -> Result<(), Error> {
    let Some(stream) = calls.clone().map(|call| Stream(call.stream)).last() else { return Ok(()) };
    let parts = comm.parts()?;
    let _entered = comm.context().enter_for_launch()?;
    let mut order = parts.order.lock();
    // Under the lock: whoever ends the communicator says so under it, and then waits for what was launched.
    comm.check_ready()?;
    let others = other_streams(calls.clone(), stream);
    order.before(stream)?;
    for other in &others {
        order.join(*other, stream)?;
    }
    let launched = launch_batches(comm, parts, calls.clone(), stream);
    // Part of it may have been launched even where it has failed.
    let marked = order.after(stream);
    if let Err(error) = launched.and(marked) {
        // This rank is now out of step with the others.
        comm.fail(&error);
        return Err(error);
    }
    signal_completion(comm, calls, stream)?;
    others.into_iter().try_for_each(|other| order.before(other))
}

/// The events that the configurations of calls name; 0 names none.
fn completion_events<'a>(calls: impl Iterator<Item = &'a Collective>) -> impl Iterator<Item = usize> {
    calls.filter_map(|call| call.config.as_ref()).map(|config| config.launch_completion_event).filter(|event| *event != 0)
}

/// Records the event that a call's configuration names (delta §3.3).
fn signal_completion<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Collective>, stream: Stream) -> Result<(), Error> {
    completion_events(calls).try_for_each(|event| comm.context().record_user_event(event, stream))
}

/// The streams of a group's calls besides the last one, which carries the kernels (spec §4.5).
fn other_streams<'a>(calls: impl Iterator<Item = &'a Collective>, last: Stream) -> Vec<Stream> {
    let mut others = Vec::new();
    for call in calls {
        let stream = Stream(call.stream);
        if stream != last && !others.contains(&stream) {
            others.push(stream);
        }
    }
    others
}

fn launch_batches<'a>(
    comm: &Comm,
    parts: &Parts,
    calls: impl Iterator<Item = &'a Collective>,
    stream: Stream,
) -> Result<(), Error> {
    let Some(schedules) = &parts.schedules else {
        return calls.into_iter().try_for_each(|call| copy_alone(comm, call, stream));
    };
    let mut batch = Batch::new(schedules, parts.flag.address());
    for call in calls {
        log_call(comm, call);
        if call.count == 0 {
            continue;
        }
        batch.add(parts, stream, call, comm.nranks() as u32)?;
    }
    batch.launch(parts, stream)
}

/// With one rank every collective is a copy; averaging over one rank changes nothing.
fn copy_alone(comm: &Comm, call: &Collective, stream: Stream) -> Result<(), Error> {
    log_call(comm, call);
    if call.count == 0 || call.send == call.recv {
        return Ok(());
    }
    comm.context().copy(call.recv, call.send, call.count * call.datatype.size(), stream)
}

/// Refuses buffers that no kernel could use: NULL, an end past the address space, an address that is
/// not aligned to the element type. At the call, so that a group learns of it there.
///
/// # Errors
/// [`Error::InvalidArgument`] names the buffer.
pub fn check_buffers(call: &Collective) -> Result<(), Error> {
    let size = call.datatype.size() as u64;
    for (name, address) in [("sendbuff", call.send), ("recvbuff", call.recv)] {
        let name = || format!("{} : {name} {address:#x}", call.func.name());
        if call.count > 0 && address == 0 {
            return Err(Error::InvalidArgument(format!("{} is not a valid pointer", name())));
        }
        if call.count > 0 && address % size != 0 {
            return Err(Error::InvalidArgument(format!(
                "{} is not aligned to the {size} bytes of {}",
                name(),
                call.datatype.name()
            )));
        }
        // No buffer has 2^63 bytes; how a call is split counts on that.
        let bytes = (call.count as u64).checked_mul(size).filter(|bytes| i64::try_from(*bytes).is_ok());
        if bytes.and_then(|bytes| address.checked_add(bytes)).is_none() {
            return Err(Error::InvalidArgument(format!("{}: {} elements end outside the address space", name(), call.count)));
        }
    }
    Ok(())
}

fn log_call(comm: &Comm, call: &Collective) {
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
        op: call.op as i32,
        root: call.root,
        comm: comm.handle(),
        nranks: comm.nranks(),
        stream: call.stream,
    };
    log::info!(target: "COLL", "{}", line.collective());
}
