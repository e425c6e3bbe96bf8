//! The collectives, with and without a per-call configuration, and point to point.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{comm_of, guard, invalid, noted};
use super::read;
use super::types::{CommHandle, DataTypeCode, RawCollConfig, RedOpCode, ResultCode, StreamHandle};
use super::weak_aliases;
use crate::comm::{CallKind, Comm, Outcome};
use crate::error::Error;
use crate::group;
use crate::plan::call::{DataType, Func};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

weak_aliases! {
    ncclAllReduce, ncclReduce, ncclBcast, ncclBroadcast, ncclReduceScatter, ncclAllGather, ncclAlltoAll,
    ncclGather, ncclScatter, ncclSend, ncclRecv, ncclAllReduceConfig, ncclBroadcastConfig, ncclReduceConfig,
    ncclAllGatherConfig, ncclReduceScatterConfig, ncclAlltoAllConfig, ncclGatherConfig, ncclScatterConfig,
}

/// The arguments of a data call as C gave them.
#[derive(Clone, Copy)]
struct CollectiveCall {
    /// The C function, as a refusal names it.
    function: &'static str,
    func: Func,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    /// Root or peer; 0 where there is none.
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
}

/// `ncclSum` and no root, for operations that have none.
const SUM: c_int = 0;
const NO_ROOT: c_int = 0;

impl CollectiveCall {
    /// The plain call. Whatever goes wrong is remembered by an open group.
    fn run(self) -> Result<Outcome, Error> {
        self.trace();
        noted(self.checked(None))
    }

    /// The call with a configuration. An error in it comes before all others, and no group remembers it.
    ///
    /// # Safety
    /// `config` is NULL or an `ncclCollConfig_t`, by the C contract.
    unsafe fn run_with(self, config: *const RawCollConfig) -> Result<Outcome, Error> {
        self.trace();
        // SAFETY: the contract is the same.
        let config = unsafe { read::coll_config(config) }?;
        noted(self.checked(config))
    }

    fn checked(self, config: Option<crate::comm::config::CollConfig>) -> Result<Outcome, Error> {
        let comm = comm_of(self.func.name(), self.comm)?;
        let result = self.on(&comm, config);
        result.inspect_err(|error| {
            crate::launch::goodbye_if_due(&comm);
            comm.fail_call(error);
            comm.note_failure(self.function, error);
        })
    }

    /// NCCL's checks in NCCL's order (`docs/nccl-behaviour.md`), then the call.
    fn on(self, comm: &Arc<Comm>, config: Option<crate::comm::config::CollConfig>) -> Result<Outcome, Error> {
        let name = self.func.name();
        comm.check_again(CallKind::Data(name))?;
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
        let CollectiveCall { func, send, recv, count, root, stream, .. } = self;
        let (send, recv, stream) = (send as u64, recv as u64, stream as usize);
        group::submit(comm.clone(), group::Call { func, send, recv, count, datatype, reduction, root, stream, config })
    }

    /// The line by which a run can be replayed.
    fn trace(&self) {
        let CollectiveCall { function, send, recv, count, datatype, op, root, comm, stream, .. } = self;
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

/// Reduces to every rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclAllReduce", |function| {
        CollectiveCall { function, func: Func::AllReduce, send, recv, count, datatype, op, root: NO_ROOT, comm, stream }
            .run()
    })
}

/// Reduces to one rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclReduce", |function| {
        CollectiveCall { function, func: Func::Reduce, send, recv, count, datatype, op, root, comm, stream }.run()
    })
}

/// Broadcasts in place.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclBcast(
    buffer: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclBcast", |function| {
        CollectiveCall {
            function,
            func: Func::Broadcast,
            send: buffer,
            recv: buffer,
            count,
            datatype,
            op: SUM,
            root,
            comm,
            stream,
        }
        .run()
    })
}

/// Broadcasts from one rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclBroadcast", |function| {
        CollectiveCall { function, func: Func::Broadcast, send, recv, count, datatype, op: SUM, root, comm, stream }
            .run()
    })
}

/// Reduces, each rank gets a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclReduceScatter", |function| {
        CollectiveCall {
            function,
            func: Func::ReduceScatter,
            send,
            recv,
            count,
            datatype,
            op,
            root: NO_ROOT,
            comm,
            stream,
        }
        .run()
    })
}

/// Every rank gets the blocks of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclAllGather", |function| {
        CollectiveCall {
            function,
            func: Func::AllGather,
            send,
            recv,
            count,
            datatype,
            op: SUM,
            root: NO_ROOT,
            comm,
            stream,
        }
        .run()
    })
}

/// Every rank gives a block to every rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAlltoAll(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclAlltoAll", |function| {
        CollectiveCall {
            function,
            func: Func::AlltoAll,
            send,
            recv,
            count,
            datatype,
            op: SUM,
            root: NO_ROOT,
            comm,
            stream,
        }
        .run()
    })
}

/// One rank gets the blocks of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclGather", |function| {
        CollectiveCall { function, func: Func::Gather, send, recv, count, datatype, op: SUM, root, comm, stream }.run()
    })
}

/// One rank gives a block to each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclScatter", |function| {
        CollectiveCall { function, func: Func::Scatter, send, recv, count, datatype, op: SUM, root, comm, stream }.run()
    })
}

/// Sends to one rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclSend(
    send: *const c_void,
    count: usize,
    datatype: DataTypeCode,
    peer: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclSend", |function| {
        CollectiveCall {
            function,
            func: Func::Send,
            send,
            recv: std::ptr::null_mut(),
            count,
            datatype,
            op: SUM,
            root: peer,
            comm,
            stream,
        }
        .run()
    })
}

/// Receives from one rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclRecv(
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    peer: c_int,
    comm: CommHandle,
    stream: StreamHandle,
) -> ResultCode {
    guard("ncclRecv", |function| {
        CollectiveCall {
            function,
            func: Func::Recv,
            send: std::ptr::null(),
            recv,
            count,
            datatype,
            op: SUM,
            root: peer,
            comm,
            stream,
        }
        .run()
    })
}

/// ncclAllReduce with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllReduceConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclAllReduceConfig", |function| {
        let call = CollectiveCall {
            function,
            func: Func::AllReduce,
            send,
            recv,
            count,
            datatype,
            op,
            root: NO_ROOT,
            comm,
            stream,
        };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclBroadcast with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclBroadcastConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclBroadcastConfig", |function| {
        let call = CollectiveCall {
            function,
            func: Func::Broadcast,
            send,
            recv,
            count,
            datatype,
            op: SUM,
            root,
            comm,
            stream,
        };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclReduce with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduceConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclReduceConfig", |function| {
        let call = CollectiveCall { function, func: Func::Reduce, send, recv, count, datatype, op, root, comm, stream };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclAllGather with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAllGatherConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclAllGatherConfig", |function| {
        let call = CollectiveCall {
            function,
            func: Func::AllGather,
            send,
            recv,
            count,
            datatype,
            op: SUM,
            root: NO_ROOT,
            comm,
            stream,
        };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclReduceScatter with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclReduceScatterConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    op: RedOpCode,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclReduceScatterConfig", |function| {
        let call = CollectiveCall {
            function,
            func: Func::ReduceScatter,
            send,
            recv,
            count,
            datatype,
            op,
            root: NO_ROOT,
            comm,
            stream,
        };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclAlltoAll with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclAlltoAllConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclAlltoAllConfig", |function| {
        let call = CollectiveCall {
            function,
            func: Func::AlltoAll,
            send,
            recv,
            count,
            datatype,
            op: SUM,
            root: NO_ROOT,
            comm,
            stream,
        };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclGather with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGatherConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclGatherConfig", |function| {
        let call =
            CollectiveCall { function, func: Func::Gather, send, recv, count, datatype, op: SUM, root, comm, stream };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}

/// ncclScatter with a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclScatterConfig(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    datatype: DataTypeCode,
    root: c_int,
    comm: CommHandle,
    stream: StreamHandle,
    config: *const RawCollConfig,
) -> ResultCode {
    guard("ncclScatterConfig", |function| {
        let call =
            CollectiveCall { function, func: Func::Scatter, send, recv, count, datatype, op: SUM, root, comm, stream };
        // SAFETY: NULL or an ncclCollConfig_t, by the C contract.
        unsafe { call.run_with(config) }
    })
}
