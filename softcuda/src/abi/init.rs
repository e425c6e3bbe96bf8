//! Initialisation and versions.

use super::{CuResult, Out, boundary};
use crate::driver::Driver;
use crate::error::CudaError;
use crate::os;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

/// CUDA 13.0.
pub const DRIVER_VERSION: c_int = 13000;

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> CuResult {
    boundary(|| if flags == 0 { Driver::init() } else { Err(CudaError::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> CuResult {
    boundary(|| version.set(DRIVER_VERSION))
}

/// `SOFTCUDA_NO_WAKE=1`: 1 if host images are to do without wake-ups (see `softcuda.h`). Needs no `cuInit`.
#[unsafe(no_mangle)]
extern "C" fn softcudaNoWake() -> c_int {
    static NO_WAKE: OnceLock<bool> = OnceLock::new();
    c_int::from(*NO_WAKE.get_or_init(|| std::env::var("SOFTCUDA_NO_WAKE").is_ok_and(|text| text.trim() == "1")))
}

/// The device is lost from now on (see `softcuda.h`). `NOT_PERMITTED` unless `SOFTCUDA_FAULT` announces that.
#[unsafe(no_mangle)]
extern "C" fn softcudaLoseDevice(device: c_int, code: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let index = driver.device(device)?.index;
        if !driver.may_lose {
            return Err(CudaError::NOT_PERMITTED);
        }
        if code > 0 { driver.lose(index, code) } else { Err(CudaError::INVALID_VALUE) }
    })
}

/// What a program has done wrong that asks for NVIDIA's tables.
const FOREIGN_RUNTIME: &str = "a CUDA runtime that is not softcuda's is in use (it calls cuGetExportTable) \
     and cannot run here: NVIDIA's libcudart, or a library that has it inside, like NVIDIA's libnccl.so.2; put \
     softcuda's libcudart.so and the library that replaces the other one into LD_PRELOAD";

/// NVIDIA's undocumented tables: there are none. Only NVIDIA's runtime asks for them, and gives up without.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(table: Out<*const c_void>, _id: *const c_void) -> CuResult {
    boundary(|| {
        os::say_once("cuGetExportTable", FOREIGN_RUNTIME);
        table.set(std::ptr::null())?;
        Err(CudaError::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStart() -> CuResult {
    boundary(|| Driver::get().map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuProfilerStop() -> CuResult {
    boundary(|| Driver::get().map(|_| ()))
}

/// Log callbacks are accepted and never called: there is no log.
#[unsafe(no_mangle)]
extern "C" fn cuLogsRegisterCallback(
    _function: *const c_void,
    _data: *mut c_void,
    handle: Out<*mut c_void>,
) -> CuResult {
    boundary(|| {
        handle.set_if_wanted(std::ptr::without_provenance_mut(16));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLogsUnregisterCallback(_handle: *mut c_void) -> CuResult {
    boundary(|| Ok(()))
}
