//! `nvmlReturn_t`: numbers of NVIDIA's `nvml.h`, short texts of our own.

use super::Return;
use crate::os;
use std::ffi::{CStr, c_char};

/// An answer other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmlError(pub Return);

pub const UNINITIALIZED: NvmlError = NvmlError(1);
pub const INVALID_ARGUMENT: NvmlError = NvmlError(2);
pub const NOT_SUPPORTED: NvmlError = NvmlError(3);
pub const NOT_FOUND: NvmlError = NvmlError(6);
pub const ARGUMENT_TOO_SMALL: NvmlError = NvmlError(7);
pub const VERSION_MISMATCH: NvmlError = NvmlError(25);
pub const UNKNOWN: NvmlError = NvmlError(999);

/// Texts by number, from 0 on.
const TEXTS: [&CStr; 31] = [
    c"Success",
    c"Uninitialized",
    c"Invalid Argument",
    c"Not Supported",
    c"Insufficient Permissions",
    c"Already Initialized",
    c"Not Found",
    c"Insufficient Size",
    c"Insufficient External Power",
    c"Driver Not Loaded",
    c"Timeout",
    c"Interrupt Request Issue",
    c"Shared Library Not Found",
    c"Function Not Found",
    c"Corrupted infoROM",
    c"GPU is lost",
    c"GPU requires reset",
    c"Operating System Error",
    c"Driver/library version mismatch",
    c"In use by another client",
    c"Insufficient Memory",
    c"No data",
    c"ECC not supported with virtual GPUs",
    c"Insufficient resources",
    c"Frequency not supported",
    c"Argument version mismatch",
    c"Deprecated",
    c"Not ready",
    c"GPU not found",
    c"Invalid state",
    c"Reset type not supported",
];

#[unsafe(export_name = "softnvml_nvmlErrorString")]
extern "C" fn nvmlErrorString(code: Return) -> *const c_char {
    let known = usize::try_from(code).ok().and_then(|index| TEXTS.get(index));
    known.copied().unwrap_or(c"Unknown Error").as_ptr()
}

/// Where a function that is not built ends up: says so once for each name.
///
/// # Safety
/// `name` is a C string.
#[unsafe(export_name = "softcuda_nvml_unbuilt")]
unsafe extern "C" fn unbuilt(name: *const c_char) -> Return {
    // SAFETY: libnvidia-ml passes a string constant of its own.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    os::say_once(&name, &format!("{name} is not supported (NVML_ERROR_NOT_SUPPORTED)"));
    super::boundary(|| if super::count().is_ok() { Err(NOT_SUPPORTED) } else { Err(UNINITIALIZED) })
}
