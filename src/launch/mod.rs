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
    launch_all(comm, std::iter::once(call))
}

/// Launches the calls of a group: communicator by communicator, in the order of their first calls.
///
/// # Errors
/// As [`run_one`]; the calls of later communicators are then not launched.
pub fn run_group(calls: &[(Arc<Comm>, Collective)]) -> Result<(), Error> {
    let mut comms: Vec<&Arc<Comm>> = Vec::new();
    for (comm, _) in calls {
        if !comms.iter().any(|seen| Arc::ptr_eq(seen, comm)) {
            comms.push(comm);
        }
    }
    for comm in comms {
        launch_all(comm, calls.iter().filter(|(owner, _)| Arc::ptr_eq(owner, comm)).map(|(_, call)| call))?;
    }
    Ok(())
}

/// Launches calls of one communicator, in their order, in as few launches as the argument has room.
fn launch_all<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Collective> + Clone) -> Result<(), Error> {
    let Some(stream) = calls.clone().map(|call| Stream(call.stream)).last() else { return Ok(()) };
    let parts = comm.parts()?;
    let _entered = comm.context().enter_for_launch()?;
    let mut order = parts.order.lock();
    let others = other_streams(comm, calls.clone(), stream)?;
    order.before(stream)?;
    for other in &others {
        order.join(*other, stream)?;
    }
    launch_batches(comm, parts, calls.clone(), stream)?;
    order.after(stream)?;
    signal_completion(comm, calls, stream)?;
    for other in others {
        order.before(other)?;
    }
    Ok(())
}

/// Records the event that a call's configuration names (delta §3.3): one for each group.
fn signal_completion<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Collective>, stream: Stream) -> Result<(), Error> {
    let mut events =
        calls.filter_map(|call| call.config.as_ref()).map(|config| config.launch_completion_event).filter(|event| *event != 0);
    let Some(event) = events.next() else { return Ok(()) };
    if events.next().is_some() {
        return Err(Error::InvalidUsage("Only one launch-completion event may be provided in one NCCL group".to_string()));
    }
    comm.context().record_user_event(event, stream)
}

/// The streams of a group's calls besides the last one, which carries the kernels (spec §4.5).
///
/// # Errors
/// [`Error::InvalidUsage`] when any of the streams is being captured.
fn other_streams<'a>(comm: &Comm, calls: impl Iterator<Item = &'a Collective>, last: Stream) -> Result<Vec<Stream>, Error> {
    comm.context().refuse_capture(last)?;
    let mut others = Vec::new();
    for call in calls {
        let stream = Stream(call.stream);
        if stream != last && !others.contains(&stream) {
            comm.context().refuse_capture(stream)?;
            others.push(stream);
        }
    }
    Ok(others)
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
        let end = (call.count as u64).checked_mul(size).and_then(|bytes| address.checked_add(bytes));
        if end.is_none() {
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
