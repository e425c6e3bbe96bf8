//! One-sided operations (spec §3.7, delta §3.4): no communicator supports host RMA yet.

use super::boundary::{comm_of, invalid, noted};
use super::collective::check_root;
use super::exports;
use super::types::{Handle, ResultCode, WaitSignalDesc};
use crate::error::Error;
use std::ffi::{c_int, c_uint, c_void};

exports! {
    /// Writes to a peer's window and signals.
    fn ncclPutSignal = pncclPutSignal(local: *const c_void, count: usize, datatype: c_int, peer: c_int, window: Handle, offset: usize, signal: c_int, context: c_int, flags: c_uint, comm: Handle, stream: Handle) -> ResultCode = put_signal;
    /// Signals a peer.
    fn ncclSignal = pncclSignal(peer: c_int, signal: c_int, context: c_int, flags: c_uint, comm: Handle, stream: Handle) -> ResultCode = signal_peer;
    /// Waits for signals.
    fn ncclWaitSignal = pncclWaitSignal(ndesc: c_int, descs: *mut WaitSignalDesc, comm: Handle, stream: Handle) -> ResultCode = wait_signal;
}

/// Communicator, revoked, ready, peer range; then the answer of a communicator without host RMA.
fn refuse(name: &'static str, comm: Handle, peer: c_int) -> Result<(), Error> {
    let comm = comm_of(name, comm)?;
    let result = (|| {
        comm.check_running(name)?;
        comm.check_ready()?;
        check_root(name, peer, comm.nranks())?;
        Err(invalid(format!("{name} : host RMA is not supported on this communicator")))
    })();
    result.inspect_err(|error| comm.note_failure(name, error))
}

fn put_signal(
    _local: *const c_void,
    _count: usize,
    _datatype: c_int,
    peer: c_int,
    _window: Handle,
    _offset: usize,
    _signal: c_int,
    _context: c_int,
    _flags: c_uint,
    comm: Handle,
    _stream: Handle,
) -> Result<(), Error> {
    noted(refuse("PutSignal", comm, peer))
}

fn signal_peer(peer: c_int, _signal: c_int, _context: c_int, _flags: c_uint, comm: Handle, _stream: Handle) -> Result<(), Error> {
    noted(refuse("Signal", comm, peer))
}

fn wait_signal(_ndesc: c_int, _descs: *mut WaitSignalDesc, comm: Handle, _stream: Handle) -> Result<(), Error> {
    noted(refuse("WaitSignal", comm, 0))
}
