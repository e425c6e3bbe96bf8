//! One-sided operations: no communicator supports host RMA yet.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{comm_of, guard, invalid, noted};
use super::collective::check_root;
use super::types::{CommHandle, DataTypeCode, ResultCode, StreamHandle, WaitSignalDesc, WindowHandle};
use super::weak_aliases;
use crate::comm::CallKind;
use crate::error::Error;
use std::ffi::{c_int, c_uint, c_void};

weak_aliases! {
    ncclPutSignal, ncclSignal, ncclWaitSignal,
}

/// Communicator, revoked, ready, peer range; then the answer of a communicator without host RMA.
fn refuse(name: &'static str, comm: CommHandle, peer: c_int) -> Result<(), Error> {
    let comm = comm_of(name, comm)?;
    let result = (|| {
        comm.check(CallKind::Data(name))?;
        check_root(name, peer, comm.nranks())?;
        Err(invalid(format!("{name} : host RMA is not supported on this communicator")))
    })();
    result.inspect_err(|error| comm.note_failure(name, error))
}

/// Writes to a peer's window and signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclPutSignal(
    _local: *const c_void,
    _count: usize,
    _datatype: DataTypeCode,
    peer: c_int,
    _window: WindowHandle,
    _offset: usize,
    _signal: c_int,
    _context: c_int,
    _flags: c_uint,
    comm: CommHandle,
    _stream: StreamHandle,
) -> ResultCode {
    guard("ncclPutSignal", |_| noted(refuse("PutSignal", comm, peer)))
}

/// Signals a peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclSignal(
    peer: c_int,
    _signal: c_int,
    _context: c_int,
    _flags: c_uint,
    comm: CommHandle,
    _stream: StreamHandle,
) -> ResultCode {
    guard("ncclSignal", |_| noted(refuse("Signal", comm, peer)))
}

/// Waits for signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclWaitSignal(
    _ndesc: c_int,
    _descs: *mut WaitSignalDesc,
    comm: CommHandle,
    _stream: StreamHandle,
) -> ResultCode {
    guard("ncclWaitSignal", |_| noted(refuse("WaitSignal", comm, 0)))
}
