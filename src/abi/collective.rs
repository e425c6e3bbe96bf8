//! The collectives, with and without a per-call configuration, and point to point (spec §3.6, §3.7, delta §3.1).
//!
//! # Safety
//! The bodies get the arguments of the C functions as they are: pointers are NULL or valid for what the function
//! is documented to do with them.

use super::boundary::{comm_of, invalid, noted};
use super::exports;
use super::read;
use super::types::{CollConfig, Handle, ResultCode};
use crate::comm::{Comm, Outcome};
use crate::error::Error;
use crate::group;
use crate::plan::call::{DataType, Func};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

exports! {
    /// Reduces to every rank.
    fn ncclAllReduce = pncclAllReduce(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle) -> ResultCode = all_reduce;
    /// Reduces to one rank.
    fn ncclReduce = pncclReduce(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, op: c_int, root: c_int, comm: Handle, stream: Handle) -> ResultCode = reduce;
    /// Broadcasts in place.
    fn ncclBcast = pncclBcast(buffer: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) -> ResultCode = bcast;
    /// Broadcasts from one rank.
    fn ncclBroadcast = pncclBroadcast(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) -> ResultCode = broadcast;
    /// Reduces, each rank gets a block.
    fn ncclReduceScatter = pncclReduceScatter(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle) -> ResultCode = reduce_scatter;
    /// Every rank gets the blocks of all.
    fn ncclAllGather = pncclAllGather(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, comm: Handle, stream: Handle) -> ResultCode = all_gather;
    /// Every rank gives a block to every rank.
    fn ncclAlltoAll = pncclAlltoAll(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, comm: Handle, stream: Handle) -> ResultCode = all_to_all;
    /// One rank gets the blocks of all.
    fn ncclGather = pncclGather(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) -> ResultCode = gather;
    /// One rank gives a block to each.
    fn ncclScatter = pncclScatter(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle) -> ResultCode = scatter;
    /// Sends to one rank.
    fn ncclSend = pncclSend(send: *const c_void, count: usize, datatype: c_int, peer: c_int, comm: Handle, stream: Handle) -> ResultCode = send_to;
    /// Receives from one rank.
    fn ncclRecv = pncclRecv(recv: *mut c_void, count: usize, datatype: c_int, peer: c_int, comm: Handle, stream: Handle) -> ResultCode = receive;
    /// ncclAllReduce with a configuration.
    fn ncclAllReduceConfig = pncclAllReduceConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = all_reduce_config;
    /// ncclBroadcast with a configuration.
    fn ncclBroadcastConfig = pncclBroadcastConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = broadcast_config;
    /// ncclReduce with a configuration.
    fn ncclReduceConfig = pncclReduceConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, op: c_int, root: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = reduce_config;
    /// ncclAllGather with a configuration.
    fn ncclAllGatherConfig = pncclAllGatherConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = all_gather_config;
    /// ncclReduceScatter with a configuration.
    fn ncclReduceScatterConfig = pncclReduceScatterConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, op: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = reduce_scatter_config;
    /// ncclAlltoAll with a configuration.
    fn ncclAlltoAllConfig = pncclAlltoAllConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = all_to_all_config;
    /// ncclGather with a configuration.
    fn ncclGatherConfig = pncclGatherConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = gather_config;
    /// ncclScatter with a configuration.
    fn ncclScatterConfig = pncclScatterConfig(send: *const c_void, recv: *mut c_void, count: usize, datatype: c_int, root: c_int, comm: Handle, stream: Handle, config: *const CollConfig) -> ResultCode = scatter_config;
}

/// The arguments of a data call as C gave them.
#[derive(Clone, Copy)]
struct Call {
    /// The C function, as a refusal names it.
    function: &'static str,
    func: Func,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: c_int,
    op: c_int,
    /// Root or peer; 0 where there is none.
    root: c_int,
    comm: Handle,
    stream: Handle,
}

/// Buffers, count and datatype, and where the call goes.
type Data = (*const c_void, *mut c_void, usize, c_int);
type Target = (Handle, Handle);
/// `ncclSum` and no root, for operations that have none.
const SUM: c_int = 0;
const NO_ROOT: c_int = 0;

impl Call {
    fn new(function: &'static str, func: Func, data: Data, op: c_int, root: c_int, target: Target) -> Call {
        let (send, recv, count, datatype) = data;
        Call { function, func, send, recv, count, datatype, op, root, comm: target.0, stream: target.1 }
    }

    /// The plain call. Whatever goes wrong is remembered by an open group.
    fn run(self) -> Result<Outcome, Error> {
        self.trace();
        noted(self.checked(None))
    }

    /// The call with a configuration. An error in it comes before all others, and no group remembers it.
    ///
    /// # Safety
    /// `config` is NULL or an `ncclCollConfig_t`, by the C contract.
    unsafe fn run_with(self, config: *const CollConfig) -> Result<Outcome, Error> {
        self.trace();
        // SAFETY: the contract is the same.
        let config = unsafe { read::coll_config(config) }?;
        noted(self.checked(config))
    }

    fn checked(self, config: Option<crate::comm::config::CollConfig>) -> Result<Outcome, Error> {
        let comm = comm_of(self.func.name(), self.comm)?;
        let result = self.on(&comm, config);
        result.inspect_err(|error| {
            crate::launch::farewell_if_due(&comm);
            comm.fail_call(error);
            comm.note_failure(self.function, error);
        })
    }

    /// The checks of spec §3.6 in their order, then the call.
    fn on(self, comm: &Arc<Comm>, config: Option<crate::comm::config::CollConfig>) -> Result<Outcome, Error> {
        let name = self.func.name();
        comm.check_running(name)?;
        comm.check_state()?;
        check_root(name, self.root, comm.nranks())?;
        let datatype = DataType::from_c(self.datatype);
        let datatype = datatype.ok_or_else(|| invalid(format!("{name} : invalid type {}", self.datatype)))?;
        let reduction = comm.operators().find(name, self.op, datatype)?;
        if self.count == 0 && !matches!(self.func, Func::Send | Func::Recv) {
            return Ok(Outcome::Done);
        }
        if let Some(config) = &config {
            config.algorithms(self.func)?;
        }
        let Call { func, send, recv, count, root, stream, .. } = self;
        let (send, recv, stream) = (send as u64, recv as u64, stream as usize);
        group::submit(comm.clone(), group::Call { func, send, recv, count, datatype, reduction, root, stream, config })
    }

    /// The line by which a run can be replayed (spec §9.4).
    fn trace(&self) {
        let Call { function, send, recv, count, datatype, op, root, comm, stream, .. } = self;
        ::log::trace!(
            target: "CALL",
            "{function}({:x},{:x},{count},{datatype},{op},{root},{comm:p},{stream:p})",
            *send as usize,
            *recv as usize
        );
    }
}

/// The number behind the range is the count of ranks, as NCCL prints it.
pub(super) fn check_root(name: &str, root: c_int, nranks: i32) -> Result<(), Error> {
    if (0..nranks).contains(&root) {
        return Ok(());
    }
    Err(invalid(format!("{name} : invalid root {root} (root should be in the 0..{nranks} range)")))
}

type Buffer = *const c_void;
type Room = *mut c_void;

fn all_reduce(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
) -> Result<Outcome, Error> {
    Call::new("ncclAllReduce", Func::AllReduce, (send, recv, count, dt), op, NO_ROOT, (comm, stream)).run()
}

fn reduce(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> Result<Outcome, Error> {
    Call::new("ncclReduce", Func::Reduce, (send, recv, count, dt), op, root, (comm, stream)).run()
}

fn bcast(buffer: Room, count: usize, dt: c_int, root: c_int, comm: Handle, stream: Handle) -> Result<Outcome, Error> {
    Call::new("ncclBcast", Func::Broadcast, (buffer, buffer, count, dt), SUM, root, (comm, stream)).run()
}

fn broadcast(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> Result<Outcome, Error> {
    Call::new("ncclBroadcast", Func::Broadcast, (send, recv, count, dt), SUM, root, (comm, stream)).run()
}

fn reduce_scatter(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
) -> Result<Outcome, Error> {
    Call::new("ncclReduceScatter", Func::ReduceScatter, (send, recv, count, dt), op, NO_ROOT, (comm, stream)).run()
}

fn all_gather(send: Buffer, recv: Room, count: usize, dt: c_int, comm: Handle, stream: Handle) -> Result<Outcome, Error> {
    Call::new("ncclAllGather", Func::AllGather, (send, recv, count, dt), SUM, NO_ROOT, (comm, stream)).run()
}

fn all_to_all(send: Buffer, recv: Room, count: usize, dt: c_int, comm: Handle, stream: Handle) -> Result<Outcome, Error> {
    Call::new("ncclAlltoAll", Func::AlltoAll, (send, recv, count, dt), SUM, NO_ROOT, (comm, stream)).run()
}

fn gather(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> Result<Outcome, Error> {
    Call::new("ncclGather", Func::Gather, (send, recv, count, dt), SUM, root, (comm, stream)).run()
}

fn scatter(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> Result<Outcome, Error> {
    Call::new("ncclScatter", Func::Scatter, (send, recv, count, dt), SUM, root, (comm, stream)).run()
}

fn send_to(send: Buffer, count: usize, dt: c_int, peer: c_int, comm: Handle, stream: Handle) -> Result<Outcome, Error> {
    let data = (send, std::ptr::null_mut(), count, dt);
    Call::new("ncclSend", Func::Send, data, SUM, peer, (comm, stream)).run()
}

fn receive(recv: Room, count: usize, dt: c_int, peer: c_int, comm: Handle, stream: Handle) -> Result<Outcome, Error> {
    let data = (std::ptr::null(), recv, count, dt);
    Call::new("ncclRecv", Func::Recv, data, SUM, peer, (comm, stream)).run()
}

unsafe fn all_reduce_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclAllReduceConfig", Func::AllReduce, (send, recv, count, dt), op, NO_ROOT, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn broadcast_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclBroadcastConfig", Func::Broadcast, (send, recv, count, dt), SUM, root, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn reduce_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    op: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclReduceConfig", Func::Reduce, (send, recv, count, dt), op, root, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn all_gather_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclAllGatherConfig", Func::AllGather, (send, recv, count, dt), SUM, NO_ROOT, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn reduce_scatter_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    op: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclReduceScatterConfig", Func::ReduceScatter, (send, recv, count, dt), op, NO_ROOT, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn all_to_all_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclAlltoAllConfig", Func::AlltoAll, (send, recv, count, dt), SUM, NO_ROOT, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn gather_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclGatherConfig", Func::Gather, (send, recv, count, dt), SUM, root, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}

unsafe fn scatter_config(
    send: Buffer,
    recv: Room,
    count: usize,
    dt: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
    config: *const CollConfig,
) -> Result<Outcome, Error> {
    let call = Call::new("ncclScatterConfig", Func::Scatter, (send, recv, count, dt), SUM, root, (comm, stream));
    // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
    unsafe { call.run_with(config) }
}
