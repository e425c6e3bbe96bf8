//! Windows and the getters of addresses in them (spec §3.4, §6.8, §11.2, delta §3.5, §3.6).
//!
//! No communicator supports symmetric memory yet, so a registration succeeds with a NULL window, and every
//! window that is not NULL is unknown.
//!
//! # Safety
//! The bodies get the arguments of the C functions as they are: pointers are NULL or valid for what the function
//! is documented to do with them.

use super::boundary::{comm_of, invalid, not_null, ready, store};
use super::exports;
use super::types::{Handle, ResultCode, Team};
use crate::error::Error;
use std::ffi::{c_int, c_void};

exports! {
    /// Registers memory with all ranks; NULL means that there is no support.
    fn ncclCommWindowRegister = pncclCommWindowRegister(comm: Handle, buffer: *mut c_void, size: usize, window: *mut Handle, flags: c_int) -> ResultCode = register;
    /// Takes a registration back.
    fn ncclCommWindowDeregister = pncclCommWindowDeregister(comm: Handle, window: Handle) -> ResultCode = deregister;
    /// The address that a window was made for.
    fn ncclWinGetUserPtr = pncclWinGetUserPtr(comm: Handle, window: Handle, out: *mut *mut c_void) -> ResultCode = user_pointer;
    /// The address of a load/store peer's memory.
    fn ncclGetLsaDevicePointer = pncclGetLsaDevicePointer(window: Handle, offset: usize, rank: c_int, out: *mut *mut c_void) -> ResultCode = lsa_pointer;
    /// The same by rank.
    fn ncclGetPeerDevicePointer = pncclGetPeerDevicePointer(window: Handle, offset: usize, peer: c_int, out: *mut *mut c_void) -> ResultCode = peer_pointer;
    /// The multicast address of a window.
    fn ncclGetLsaMultimemDevicePointer = pncclGetLsaMultimemDevicePointer(window: Handle, offset: usize, out: *mut *mut c_void) -> ResultCode = lsa_multimem_pointer;
    /// The same for a multicast handle of the caller.
    fn ncclGetMultimemDevicePointer = pncclGetMultimemDevicePointer(window: Handle, offset: usize, multimem: Handle, out: *mut *mut c_void) -> ResultCode = multimem_pointer;
    /// A logical endpoint for multicast.
    fn ncclGetMultimemDeviceLeInfo = pncclGetMultimemDeviceLeInfo(window: Handle, offset: usize, id: *mut u32, id_offset: *mut usize) -> ResultCode = multimem_endpoint;
    /// A logical endpoint of a team's rank.
    fn ncclGetCftDeviceLeInfo = pncclGetCftDeviceLeInfo(window: Handle, offset: usize, peer: c_int, team: Team, id: *mut u32, id_offset: *mut usize) -> ResultCode = cft_endpoint;
    /// A logical endpoint of a rank.
    fn ncclGetPeerDeviceLeInfo = pncclGetPeerDeviceLeInfo(window: Handle, offset: usize, peer: c_int, id: *mut u32, id_offset: *mut usize) -> ResultCode = peer_endpoint;
}

/// `NCCL_WIN_COLL_SYMMETRIC` with `NCCL_WIN_GIN_ONLY`: refused whether or not windows exist.
const SYMMETRIC: c_int = 1;
const GIN_ONLY: c_int = 4;

unsafe fn register(comm: Handle, buffer: *mut c_void, size: usize, window: *mut Handle, flags: c_int) -> Result<(), Error> {
    const NAME: &str = "ncclCommWindowRegister";
    let comm = comm_of(NAME, comm)?;
    // SAFETY: NULL or valid for writing by the C contract.
    unsafe { store(NAME, "win", window, std::ptr::null_mut()) }?;
    if buffer.is_null() || size == 0 {
        return Err(invalid(format!("{NAME} : invalid buffer {buffer:p} of size {size}")));
    }
    comm.check_ready()?;
    if flags & SYMMETRIC != 0 && flags & GIN_ONLY != 0 {
        let text = "NCCL_WIN_COLL_SYMMETRIC cannot be combined with window capability-restriction flags";
        return Err(invalid(format!("{text} (flags {flags:#x})")));
    }
    Ok(())
}

fn deregister(comm: Handle, window: Handle) -> Result<(), Error> {
    comm_of("ncclCommWindowDeregister", comm)?;
    if window.is_null() { Ok(()) } else { Err(unknown("ncclCommWindowDeregister", window)) }
}

unsafe fn user_pointer(comm: Handle, _window: Handle, out: *mut *mut c_void) -> Result<(), Error> {
    const NAME: &str = "ncclWinGetUserPtr";
    ready(NAME, comm)?;
    // SAFETY: NULL or valid for writing by the C contract.
    unsafe { store(NAME, "outUserPtr", out, std::ptr::null_mut()) }
}

fn unknown(name: &str, window: Handle) -> Error {
    invalid(format!("{name} : Could not find communicator matching window {window:p}"))
}

/// The checks of every getter: window and out pointers not NULL, the window known.
fn find<A, B>(name: &str, window: Handle, first: (&str, *mut A), second: Option<(&str, *mut B)>) -> Result<(), Error> {
    not_null(name, "window", window)?;
    not_null(name, first.0, first.1)?;
    second.map_or(Ok(()), |(argument, pointer)| not_null(name, argument, pointer))?;
    Err(unknown(name, window))
}

/// The getters of one address.
fn pointer(name: &str, window: Handle, out: *mut *mut c_void) -> Result<(), Error> {
    find::<_, c_void>(name, window, ("outPtr", out), None)
}

/// The getters of an endpoint.
fn endpoint(name: &str, window: Handle, id: *mut u32, offset: *mut usize) -> Result<(), Error> {
    find(name, window, ("leId", id), Some(("leOffset", offset)))
}

fn lsa_pointer(window: Handle, _offset: usize, _rank: c_int, out: *mut *mut c_void) -> Result<(), Error> {
    pointer("ncclGetLsaDevicePointer", window, out)
}

fn peer_pointer(window: Handle, _offset: usize, _peer: c_int, out: *mut *mut c_void) -> Result<(), Error> {
    pointer("ncclGetPeerDevicePointer", window, out)
}

fn lsa_multimem_pointer(window: Handle, _offset: usize, out: *mut *mut c_void) -> Result<(), Error> {
    pointer("ncclGetLsaMultimemDevicePointer", window, out)
}

fn multimem_pointer(window: Handle, _offset: usize, multimem: Handle, out: *mut *mut c_void) -> Result<(), Error> {
    const NAME: &str = "ncclGetMultimemDevicePointer";
    not_null(NAME, "window", window)?;
    not_null(NAME, "multimem", multimem)?;
    pointer(NAME, window, out)
}

fn multimem_endpoint(window: Handle, _offset: usize, id: *mut u32, id_offset: *mut usize) -> Result<(), Error> {
    endpoint("ncclGetMultimemDeviceLeInfo", window, id, id_offset)
}

fn cft_endpoint(
    window: Handle,
    _offset: usize,
    _peer: c_int,
    _team: Team,
    id: *mut u32,
    id_offset: *mut usize,
) -> Result<(), Error> {
    endpoint("ncclGetCftDeviceLeInfo", window, id, id_offset)
}

fn peer_endpoint(window: Handle, _offset: usize, _peer: c_int, id: *mut u32, id_offset: *mut usize) -> Result<(), Error> {
    endpoint("ncclGetPeerDeviceLeInfo", window, id, id_offset)
}
