//! Allocation and registration.

use super::{CuResult, DevicePointer, Out, boundary};
use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::Kind;
use std::ffi::{c_int, c_uint, c_void};

/// Pitches are multiples of this.
const PITCH_ALIGN: usize = 512;
/// `CU_MEMHOSTALLOC_PORTABLE`, `_DEVICEMAP`, `_WRITECOMBINED`.
const HOST_FLAGS: c_uint = 7;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `_DEVICEMAP`, `_IOMEMORY`, `_READ_ONLY`.
const REGISTER_FLAGS: c_uint = 15;

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let device = &driver.devices[context::current(driver)?.device()];
        free.set(device.free_memory() as usize)?;
        total.set(device.total as usize)
    })
}

/// CUDA's implicit synchronisation: work that was submitted before device memory or page-locked memory is allocated,
/// and work submitted after it, do not run at the same time. A GPU may wait here, so a program that launches what
/// earlier work waits for only after an allocation is one that can hang.
fn wait_for_earlier_work(driver: &'static Driver, context: &Context) -> Outcome {
    if driver.config.alloc_waits { driver.synchronize_device(context.device()) } else { Ok(()) }
}

fn allocate(to: Out<DevicePointer>, bytes: usize, kind: Kind) -> Outcome {
    let driver = Driver::get()?;
    let context = context::current(driver)?;
    to.check()?;
    driver.graphs.captures.allow_unsafe()?;
    wait_for_earlier_work(driver, context)?;
    to.set(driver.memory.allocate(driver, context.owner(), bytes, kind)? as DevicePointer)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(to: Out<DevicePointer>, bytes: usize) -> CuResult {
    boundary(|| allocate(to, bytes, Kind::Device))
}

/// Flags: attached to all streams, or to the host; there is no third.
#[unsafe(no_mangle)]
extern "C" fn cuMemAllocManaged(to: Out<DevicePointer>, bytes: usize, flags: c_uint) -> CuResult {
    boundary(|| if matches!(flags, 1 | 2) { allocate(to, bytes, Kind::Managed) } else { Err(CudaError::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocPitch_v2(
    to: Out<DevicePointer>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: c_uint,
) -> CuResult {
    boundary(|| {
        pitch.check()?;
        if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH_ALIGN).ok_or(CudaError::OUT_OF_MEMORY)?;
        allocate(to, row.checked_mul(height).ok_or(CudaError::OUT_OF_MEMORY)?, Kind::Device)?;
        pitch.set(row)
    })
}

/// Freeing the null pointer does nothing.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        if pointer == 0 {
            return Ok(());
        }
        driver.graphs.captures.allow_unsafe()?;
        driver.memory.free(driver, pointer as usize, &|device| driver.synchronize_device(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: Out<DevicePointer>, size: Out<usize>, pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let range = Driver::get()?
            .memory
            .find(pointer as usize)
            .filter(|range| range.kind.is_device() || range.backing.is_some());
        let range = range.ok_or(CudaError::NOT_FOUND)?;
        range.check(Driver::get()?)?;
        base.set_if_wanted(range.base as DevicePointer);
        size.set_if_wanted(range.size);
        Ok(())
    })
}

fn allocate_host(to: Out<*mut c_void>, bytes: usize, flags: c_uint) -> Outcome {
    let driver = Driver::get()?;
    let context = context::current(driver)?;
    to.check()?;
    driver.graphs.captures.allow_unsafe()?;
    if flags & !HOST_FLAGS != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    wait_for_earlier_work(driver, context)?;
    to.set(driver.memory.allocate_host(driver, context.owner(), bytes, flags)? as *mut c_void)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(to: Out<*mut c_void>, bytes: usize) -> CuResult {
    boundary(|| allocate_host(to, bytes, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(to: Out<*mut c_void>, bytes: usize, flags: c_uint) -> CuResult {
    boundary(|| allocate_host(to, bytes, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> CuResult {
    let pointer = pointer as usize;
    boundary(|| {
        let driver = Driver::get()?;
        if pointer == 0 {
            return Ok(());
        }
        driver.graphs.captures.allow_unsafe()?;
        driver.memory.free_host(pointer, &|device| driver.synchronize_device(device))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint) -> CuResult {
    let pointer = pointer as usize;
    boundary(|| {
        let driver = Driver::get()?;
        let context = context::current(driver)?;
        driver.graphs.captures.allow_unsafe()?;
        if flags & !REGISTER_FLAGS != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        wait_for_earlier_work(driver, context)?;
        driver.memory.register(driver, context.owner(), pointer, bytes, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(pointer: *mut c_void) -> CuResult {
    let pointer = pointer as usize;
    boundary(|| {
        let driver = Driver::get()?;
        driver.graphs.captures.allow_unsafe()?;
        driver.memory.unregister(pointer, &|device| driver.synchronize_device(device))
    })
}

/// Host and device share addresses.
#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(to: Out<DevicePointer>, pointer: *mut c_void, flags: c_uint) -> CuResult {
    let pointer = pointer as usize;
    boundary(|| {
        let known = Driver::get()?.memory.find(pointer).is_some_and(|range| !range.kind.is_device());
        if !known || flags != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        to.set(pointer as DevicePointer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(flags: Out<c_uint>, pointer: *mut c_void) -> CuResult {
    let pointer = pointer as usize;
    boundary(|| {
        let range = Driver::get()?.memory.find(pointer).ok_or(CudaError::INVALID_VALUE)?;
        match range.kind {
            // Memory is always mapped for the device, as with unified addressing on a GPU.
            Kind::Pinned(given) | Kind::Registered(given) => flags.set(given | 2),
            _ => Err(CudaError::INVALID_VALUE),
        }
    })
}

/// Advice is taken and not needed.
fn advise(pointer: DevicePointer, bytes: usize, device: c_int) -> Outcome {
    let driver = Driver::get()?;
    if device >= 0 {
        driver.device(device)?;
    }
    let managed = driver.memory.find(pointer as usize).is_some_and(|range| range.kind == Kind::Managed);
    if managed && bytes > 0 { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise(pointer: DevicePointer, bytes: usize, _advice: c_int, device: c_int) -> CuResult {
    boundary(|| advise(pointer, bytes, device))
}

/// `CUmemLocation`
#[derive(Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_int,
    id: c_int,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAdvise_v2(pointer: DevicePointer, bytes: usize, _advice: c_int, location: Location) -> CuResult {
    boundary(|| advise(pointer, bytes, if location.kind == 1 { location.id } else { -1 }))
}
