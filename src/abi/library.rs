//! The library itself: version, error texts, memory, ids, encryption.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{guard, invalid, never_made, not_null, prepare, store};
use super::read::versioned;
use super::types::{CommHandle, EncryptionConfig, ResultCode, UniqueId};
use super::weak_aliases;
use crate::comm::config::{MAGIC, VERSION};
use crate::error::Error;
use crate::log;
use crate::secure::{UserKey, set_user_key};
use crate::{comm, device};
use std::ffi::{CStr, c_char, c_int, c_void};

weak_aliases! {
    ncclGetVersion, ncclGetErrorString, ncclGetLastError, ncclResetDebugInit, ncclGetUniqueId, ncclMemAlloc,
    ncclMemFree, ncclSetEncryption,
}

/// Makes the next log line read the environment again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclResetDebugInit() {
    guard("ncclResetDebugInit", |_| log::reset())
}

/// As `ncclResetDebugInit`; the one exported name without a twin.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclResetDebugInitInternal() {
    log::reset();
}

/// Writes the version of the interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetVersion(version: *mut c_int) -> ResultCode {
    guard("ncclGetVersion", |_| -> Result<(), Error> {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { store("GetVersion", "version", version, VERSION as c_int) }
    })
}

/// NCCL's words, which programs print and match.
pub(super) fn error_string(result: c_int) -> &'static CStr {
    match result {
        0 => c"no error",
        1 => c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        2 => c"unhandled system error (run with NCCL_DEBUG=INFO for details)",
        3 => c"internal error - please report this issue to the NCCL developers",
        4 => c"invalid argument (run with NCCL_DEBUG=WARN for details)",
        5 => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        8 => c"timeout",
        _ => c"unknown result code",
    }
}

/// The text of a result code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetErrorString(result: ResultCode) -> *const c_char {
    guard("ncclGetErrorString", |_| error_string(result.0).as_ptr())
}

/// The text of the process's last warning; the argument does not matter.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetLastError(_comm: CommHandle) -> *const c_char {
    guard("ncclGetLastError", |_| log::last_error())
}

/// Makes an id for a new communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGetUniqueId(id: *mut UniqueId) -> ResultCode {
    guard("ncclGetUniqueId", |name| -> Result<(), Error> {
        prepare();
        not_null("GetUniqueId", "out", id)?;
        let made = comm::unique_id().inspect_err(|error| never_made(name, error))?;
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { store("GetUniqueId", "out", id, made) }
    })
}

/// Allocates device memory that peers can map.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ResultCode {
    guard("ncclMemAlloc", |name| -> Result<(), Error> {
        prepare();
        if ptr.is_null() {
            comm::check_cuda()?;
            return Err(Error::Cuda { call: name, code: 1, text: "invalid argument: ptr is NULL".to_string() });
        }
        let address = device::allocate(size)? as *mut c_void;
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { store("MemAlloc", "ptr", ptr, address) }
    })
}

/// Frees what ncclMemAlloc gave.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclMemFree(ptr: *mut c_void) -> ResultCode {
    guard("ncclMemFree", |_| -> Result<(), Error> { comm::free_memory(ptr as u64) })
}

/// Shortest key, in bytes.
const SHORTEST_KEY: usize = 32;

/// Sets the key that connections of communicators made from now on are encrypted with; NULL, or the mode NONE: none.
/// The key is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclSetEncryption(config: *const EncryptionConfig) -> ResultCode {
    guard("ncclSetEncryption", |_| -> Result<(), Error> {
        // SAFETY: the contract is the same.
        let key = unsafe { encryption_key(config) }?;
        set_user_key(key);
        Ok(())
    })
}

/// The key in a configuration, checked as NCCL does; none where there is to be no encryption.
///
/// # Safety
/// `config` is NULL or points to an `ncclEncryptionConfig_t` of any version, whose key is NULL or NUL-terminated.
unsafe fn encryption_key(config: *const EncryptionConfig) -> Result<Option<UserKey>, Error> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: the magic lies in the first 16 bytes, which every version has.
    let magic = unsafe { (&raw const (*config).magic).read() };
    if magic != MAGIC {
        return Err(invalid(format!(
            "ncclEncryptionConfig_t argument not initialized via its INITIALIZER macro (got magic {magic:#x})"
        )));
    }
    let plain = EncryptionConfig { size: 0, magic, version: VERSION, mode: 0, psk: std::ptr::null() };
    // SAFETY: an ncclEncryptionConfig_t begins with its size and is C integers and a pointer.
    let config = unsafe { versioned(config, plain) };
    match config.mode {
        0 => Ok(None),
        1 if config.psk.is_null() => Err(invalid("ncclSetEncryption : the pre-shared key is NULL")),
        1 => {
            // SAFETY: it is not NULL, so that it ends with a zero. It is read here alone, and no copy of it is kept.
            let key = unsafe { CStr::from_ptr(config.psk) }.to_bytes();
            if key.len() < SHORTEST_KEY {
                let length = key.len();
                return Err(invalid(format!(
                    "ncclSetEncryption : the pre-shared key has {length} bytes, it must be at least {SHORTEST_KEY} bytes"
                )));
            }
            Ok(Some(UserKey::new(key)))
        }
        mode => Err(invalid(format!("ncclSetEncryption : unknown encryption mode {mode}"))),
    }
}
