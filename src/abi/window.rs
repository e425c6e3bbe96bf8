//! Windows and the getters of addresses in them.
//!
//! No communicator supports symmetric memory yet, so a registration succeeds with a NULL window, and every
//! window that is not NULL is unknown.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{comm_of, guard, invalid, not_null, ready, store};
use super::types::{CommHandle, MultimemHandle, ResultCode, Team, WindowHandle};
use super::weak_aliases;
use crate::comm::CallKind;
use crate::error::Error;
use std::ffi::{c_int, c_void};

weak_aliases! {
    ncclCommWindowRegister, ncclCommWindowDeregister, ncclWinGetUserPtr, ncclGetLsaDevicePointer,
    ncclGetPeerDevicePointer, ncclGetLsaMultimemDevicePointer, ncclGetMultimemDevicePointer,
    ncclGetMultimemDeviceLeInfo, ncclGetCftDeviceLeInfo, ncclGetPeerDeviceLeInfo,
}

/// `NCCL_WIN_COLL_SYMMETRIC` with `NCCL_WIN_GIN_ONLY`: refused whether or not windows exist.
const SYMMETRIC: c_int = 1;
const GIN_ONLY: c_int = 4;

/// Registers memory with all ranks; NULL means that there is no support.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommWindowRegister(
    comm: CommHandle,
    buffer: *mut c_void,
    size: usize,
    window: *mut WindowHandle,
    flags: c_int,
) -> ResultCode {
    guard("ncclCommWindowRegister", |name| -> Result<(), Error> {
        let comm = comm_of(name, comm)?;
        // SAFETY: NULL or valid for writing by the C contract.
        unsafe { store(name, "win", window, std::ptr::null_mut()) }?;
        if buffer.is_null() || size == 0 {
            return Err(invalid(format!("{name} : invalid buffer {buffer:p} of size {size}")));
        }
        comm.check(CallKind::Use)?;
        if flags & SYMMETRIC != 0 && flags & GIN_ONLY != 0 {
            let text = "NCCL_WIN_COLL_SYMMETRIC cannot be combined with window capability-restriction flags";
            return Err(invalid(format!("{text} (flags {flags:#x})")));
        }
        Ok(())
    })
}

/// Takes a registration back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommWindowDeregister(comm: CommHandle, window: WindowHandle) -> ResultCode {
    guard("ncclCommWindowDeregister", |name| -> Result<(), Error> {
        comm_of(name, comm)?;
        if window.is_null() { Ok(()) } else { Err(unknown(name, window)) }
    })
}

/// The address that a window was made for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclWinGetUserPtr(
    comm: CommHandle,
    _window: WindowHandle,
    out: *mut *mut c_void,
) -> ResultCode {
    guard("ncclWinGetUserPtr", |name| -> Result<(), Error> {
        ready(name, comm)?;
        // SAFETY: NULL or valid for writing by the C contract.
        unsafe { store(name, "outUserPtr", out, std::ptr::null_mut()) }
    })
}

fn unknown(name: &str, window: WindowHandle) -> Error {
    invalid(format!("{name} : Could not find communicator matching window {window:p}"))
}

/// The checks of every getter: window and out pointers not NULL, the window known.
fn find<A, B>(
    name: &str,
    window: WindowHandle,
    first: (&str, *mut A),
    second: Option<(&str, *mut B)>,
) -> Result<(), Error> {
    not_null(name, "window", window)?;
    not_null(name, first.0, first.1)?;
    second.map_or(Ok(()), |(argument, pointer)| not_null(name, argument, pointer))?;
    Err(unknown(name, window))
}

/// The getters of one address.
fn pointer(name: &str, window: WindowHandle, out: *mut *mut c_void) -> Result<(), Error> {
    find::<_, c_void>(name, window, ("outPtr", out), None)
}

/// The getters of an endpoint.
fn endpoint(name: &str, window: WindowHandle, id: *mut u32, offset: *mut usize) -> Result<(), Error> {
    find(name, window, ("leId", id), Some(("leOffset", offset)))
}

/// The address of a load/store peer's memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetLsaDevicePointer(
    window: WindowHandle,
    _offset: usize,
    _rank: c_int,
    out: *mut *mut c_void,
) -> ResultCode {
    guard("ncclGetLsaDevicePointer", |name| pointer(name, window, out))
}

/// The same by rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetPeerDevicePointer(
    window: WindowHandle,
    _offset: usize,
    _peer: c_int,
    out: *mut *mut c_void,
) -> ResultCode {
    guard("ncclGetPeerDevicePointer", |name| pointer(name, window, out))
}

/// The multicast address of a window.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetLsaMultimemDevicePointer(
    window: WindowHandle,
    _offset: usize,
    out: *mut *mut c_void,
) -> ResultCode {
    guard("ncclGetLsaMultimemDevicePointer", |name| pointer(name, window, out))
}

/// The same for a multicast handle of the caller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetMultimemDevicePointer(
    window: WindowHandle,
    _offset: usize,
    multimem: MultimemHandle,
    out: *mut *mut c_void,
) -> ResultCode {
    guard("ncclGetMultimemDevicePointer", |name| -> Result<(), Error> {
        not_null(name, "window", window)?;
        not_null(name, "multimem", multimem.base)?;
        pointer(name, window, out)
    })
}

/// A logical endpoint for multicast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetMultimemDeviceLeInfo(
    window: WindowHandle,
    _offset: usize,
    id: *mut u32,
    id_offset: *mut usize,
) -> ResultCode {
    guard("ncclGetMultimemDeviceLeInfo", |name| endpoint(name, window, id, id_offset))
}

/// A logical endpoint of a team's rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetCftDeviceLeInfo(
    window: WindowHandle,
    _offset: usize,
    _peer: c_int,
    _team: Team,
    id: *mut u32,
    id_offset: *mut usize,
) -> ResultCode {
    guard("ncclGetCftDeviceLeInfo", |name| endpoint(name, window, id, id_offset))
}

/// A logical endpoint of a rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetPeerDeviceLeInfo(
    window: WindowHandle,
    _offset: usize,
    _peer: c_int,
    id: *mut u32,
    id_offset: *mut usize,
) -> ResultCode {
    guard("ncclGetPeerDeviceLeInfo", |name| endpoint(name, window, id, id_offset))
}
