//! Memory pools of stream-ordered allocation. Structs and numbers are the driver's.

use std::ffi::{c_int, c_void};

use super::context::{call, check_device, in_context, without_context};
use super::error::{Code, check};
use super::memory::allocate;
use super::{Address, Handle, Out, driver};

#[unsafe(export_name = "softcudart_cudaDeviceGetDefaultMemPool")]
extern "C" fn default_pool(pool: Out<Handle>, device: c_int) -> Code {
    without_context(|| {
        check_device(device)?;
        check(driver::cuDeviceGetDefaultMemPool(pool, device))
    })
}

#[unsafe(export_name = "softcudart_cudaDeviceGetMemPool")]
extern "C" fn get_pool(pool: Out<Handle>, device: c_int) -> Code {
    without_context(|| {
        check_device(device)?;
        check(driver::cuDeviceGetMemPool(pool, device))
    })
}

#[unsafe(export_name = "softcudart_cudaDeviceSetMemPool")]
extern "C" fn set_pool(device: c_int, pool: Handle) -> Code {
    without_context(|| {
        check_device(device)?;
        check(driver::cuDeviceSetMemPool(device, pool))
    })
}

/// # Safety
/// `properties` is NULL or a `cudaMemPoolProps`.
#[unsafe(export_name = "softcudart_cudaMemPoolCreate")]
unsafe extern "C" fn create(pool: Out<Handle>, properties: *const c_void) -> Code {
    // SAFETY: cudaMemPoolProps has the layout of CUmemPoolProps (tests/headers.rs).
    call(|| unsafe { driver::cuMemPoolCreate(pool, properties) })
}

#[unsafe(export_name = "softcudart_cudaMemPoolDestroy")]
extern "C" fn destroy(pool: Handle) -> Code {
    call(|| driver::cuMemPoolDestroy(pool))
}

#[unsafe(export_name = "softcudart_cudaMemPoolTrimTo")]
extern "C" fn trim_to(pool: Handle, keep: usize) -> Code {
    call(|| driver::cuMemPoolTrimTo(pool, keep))
}

/// # Safety
/// `value` is NULL or points to the attribute's type.
#[unsafe(export_name = "softcudart_cudaMemPoolGetAttribute")]
unsafe extern "C" fn get_attribute(pool: Handle, attribute: c_int, value: *mut c_void) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuMemPoolGetAttribute(pool, attribute, value) })
}

/// # Safety
/// `value` is NULL or points to the attribute's type.
#[unsafe(export_name = "softcudart_cudaMemPoolSetAttribute")]
unsafe extern "C" fn set_attribute(pool: Handle, attribute: c_int, value: *mut c_void) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuMemPoolSetAttribute(pool, attribute, value) })
}

/// # Safety
/// `location` is NULL or a `cudaMemLocation`.
#[unsafe(export_name = "softcudart_cudaMemPoolGetAccess")]
unsafe extern "C" fn get_access(flags: Out<c_int>, pool: Handle, location: *mut c_void) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuMemPoolGetAccess(flags, pool, location) })
}

/// # Safety
/// `access` points to `count` of `cudaMemAccessDesc`.
#[unsafe(export_name = "softcudart_cudaMemPoolSetAccess")]
unsafe extern "C" fn set_access(pool: Handle, access: *const c_void, count: usize) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuMemPoolSetAccess(pool, access, count) })
}

#[unsafe(export_name = "softcudart_cudaMallocFromPoolAsync")]
extern "C" fn malloc_from_pool_async(ptr: Out<Address>, size: usize, pool: Handle, stream: Handle) -> Code {
    in_context(|| allocate(ptr, size, |ptr, size| driver::cuMemAllocFromPoolAsync(ptr, size, pool, stream)))
}
