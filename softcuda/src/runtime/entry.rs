//! Versions, driver entry points, and the calls that are not built.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use parking_lot::Mutex;

use super::context::without_context;
use super::error::{Code, INVALID_VALUE, NOT_SUPPORTED, SYMBOL_NOT_FOUND, check, report};
use super::{Out, driver};
use crate::os;

/// What `libcudart.so.13` and `.12` say they are: 1000 × major + 10 × minor.
const RUNTIME_13: c_int = 13_000;
const RUNTIME_12: c_int = 12_080;

#[unsafe(export_name = "softcudart13_cudaRuntimeGetVersion")]
extern "C" fn runtime_get_version(version: Out<c_int>) -> Code {
    report(write(version, RUNTIME_13))
}

#[unsafe(export_name = "softcudart12_cudaRuntimeGetVersion")]
extern "C" fn runtime_get_version_12(version: Out<c_int>) -> Code {
    report(write(version, RUNTIME_12))
}

fn write<T>(to: Out<T>, value: T) -> Result<(), Code> {
    to.ok_or(INVALID_VALUE)?.write(value);
    Ok(())
}

#[unsafe(export_name = "softcudart_cudaDriverGetVersion")]
extern "C" fn driver_get_version(version: Out<c_int>) -> Code {
    report(check(driver::cuDriverGetVersion(version)))
}

/// # Safety
/// `symbol` is a C string or NULL.
#[unsafe(export_name = "softcudart13_cudaGetDriverEntryPoint")]
unsafe extern "C" fn get_driver_entry_point(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    flags: u64,
    found: Out<c_int>,
) -> Code {
    // SAFETY: the caller's string goes on as it is.
    unsafe { entry_point_by_version(symbol, function, RUNTIME_13.unsigned_abs(), flags, found) }
}

/// # Safety
/// `symbol` is a C string or NULL.
#[unsafe(export_name = "softcudart12_cudaGetDriverEntryPoint")]
unsafe extern "C" fn get_driver_entry_point_12(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    flags: u64,
    found: Out<c_int>,
) -> Code {
    // SAFETY: the caller's string goes on as it is.
    unsafe { entry_point_by_version(symbol, function, RUNTIME_12.unsigned_abs(), flags, found) }
}

/// A name that the driver does not have is success with a NULL function, and `found` says so.
///
/// # Safety
/// `symbol` is a C string or NULL.
#[unsafe(export_name = "softcudart_cudaGetDriverEntryPointByVersion")]
unsafe extern "C" fn entry_point_by_version(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    version: c_uint,
    flags: u64,
    found: Out<c_int>,
) -> Code {
    without_context(|| {
        let function = function.ok_or(INVALID_VALUE)?;
        let version = c_int::try_from(version).map_err(|_| INVALID_VALUE)?;
        if symbol.is_null() {
            return Err(INVALID_VALUE);
        }
        function.write(std::ptr::null_mut());
        let mut spare = MaybeUninit::uninit();
        let found = found.unwrap_or(&mut spare);
        // SAFETY: the caller's string goes to the driver as it is.
        let status = unsafe { driver::cuGetProcAddress_v2(symbol, Some(function), version, flags, Some(found)) };
        if status == SYMBOL_NOT_FOUND { Ok(()) } else { check(status) }
    })
}

/// Where a runtime function that is not built ends up: says so once for each name.
///
/// # Safety
/// `name` is a C string for the life of the process.
#[unsafe(export_name = "softcuda_runtime_unbuilt")]
unsafe extern "C" fn unbuilt(name: *const c_char) -> Code {
    // SAFETY: libcudart passes a string constant of its own.
    let name = unsafe { CStr::from_ptr(name) };
    static NAMED: Mutex<BTreeSet<Box<CStr>>> = Mutex::new(BTreeSet::new());
    if NAMED.lock().insert(name.into()) {
        os::say(&format!("{} is not supported (cudaErrorNotSupported)", name.to_string_lossy()));
    }
    report(Err(NOT_SUPPORTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_version_needs_somewhere_to_go() {
        assert_eq!(write::<c_int>(None, 1), Err(INVALID_VALUE));
        let mut slot = MaybeUninit::new(0);
        assert_eq!(runtime_get_version(Some(&mut slot)), 0);
    }
}
