//! Stream-ordered allocation and memory pools.

use super::{CuResult, DevicePointer, Handle, In, Out, boundary};
use crate::context;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::Kind;
use crate::memory::pool::MemoryPool;
use crate::stream::Op;
use std::ffi::{c_int, c_uint, c_void};

fn new_pool(driver: &'static Driver, device: usize) -> Outcome<Handle> {
    Ok(driver.pools.insert(|pool, _| pool.prepare(device)).ok_or(CudaError::OUT_OF_MEMORY)?.0)
}

/// Handles of the device's default pool and of its current one.
fn pools(driver: &'static Driver, device: &Device) -> Outcome<(Handle, Handle)> {
    let mut pools = device.pools.lock();
    if pools.0 == 0 {
        let made = new_pool(driver, device.index)?;
        *pools = (made, made);
    }
    Ok(*pools)
}

fn lookup(driver: &'static Driver, pool: Handle) -> Outcome<&'static MemoryPool> {
    driver.pools.get(pool).ok_or(CudaError::INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(to: Out<Handle>, device: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.set(pools(driver, driver.device(device)?)?.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(to: Out<Handle>, device: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.set(pools(driver, driver.device(device)?)?.1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(device: c_int, pool: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let device = driver.device(device)?;
        pools(driver, device)?;
        if lookup(driver, pool)?.device() != device.index {
            return Err(CudaError::INVALID_VALUE);
        }
        device.pools.lock().1 = pool;
        Ok(())
    })
}

/// `CUmemPoolProps`: its head.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    allocation: c_int,
    handles: c_int,
    location: c_int,
    id: c_int,
}

/// `CU_MEM_HANDLE_TYPE_NONE`, `_POSIX_FILE_DESCRIPTOR`
const HANDLE_TYPES: std::ops::RangeInclusive<c_int> = 0..=1;

/// Pinned memory on a device. It may be made for other processes, but cannot be exported yet.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolCreate(to: Out<Handle>, properties: *const c_void) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        let Properties { allocation, handles, location, id } = In(properties.cast::<Properties>()).get()?;
        if allocation != 1 || location != 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        if !HANDLE_TYPES.contains(&handles) {
            return Err(CudaError::NOT_SUPPORTED);
        }
        to.set(new_pool(driver, driver.device(id)?.index)?)
    })
}

/// A device's current pool becomes its default one again; allocations live on.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(pool: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let device = &driver.devices[lookup(driver, pool)?.device()];
        let (default, _) = pools(driver, device)?;
        if pool == default {
            return Err(CudaError::INVALID_VALUE);
        }
        driver.pools.remove(pool).ok_or(CudaError::INVALID_VALUE)?;
        driver.pools.recycle(pool);
        let mut current = device.pools.lock();
        if current.1 == pool {
            current.1 = default;
        }
        Ok(())
    })
}

/// Nothing is kept in reserve.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(pool: Handle, _keep: usize) -> CuResult {
    boundary(|| lookup(Driver::get()?, pool).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void) -> CuResult {
    boundary(|| {
        let (found, wide) = lookup(Driver::get()?, pool)?.attribute(attribute)?;
        if wide { Out(value.cast::<u64>()).set(found) } else { Out(value.cast::<u32>()).set(found as u32) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: *const c_void) -> CuResult {
    boundary(|| {
        let pool = lookup(Driver::get()?, pool)?;
        let wide = MemoryPool::is_wide(attribute);
        let given = if wide { In(value.cast::<u64>()).get()? } else { In(value.cast::<u32>()).get()?.into() };
        pool.set_attribute(attribute, given)
    })
}

/// Every device reaches all memory.
#[unsafe(no_mangle)]
extern "C" fn cuMemPoolSetAccess(pool: Handle, _map: *const c_void, _count: usize) -> CuResult {
    boundary(|| lookup(Driver::get()?, pool).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAccess(flags: Out<c_uint>, pool: Handle, _location: *const c_void) -> CuResult {
    boundary(|| {
        lookup(Driver::get()?, pool)?;
        flags.set(3)
    })
}

fn allocate(to: Out<DevicePointer>, bytes: usize, pool: Option<Handle>, stream: Handle) -> Outcome {
    let driver = Driver::get()?;
    let stream = context::stream(driver, stream)?;
    let context = context::of(driver, stream)?;
    to.check()?;
    if stream.is_captured() {
        return Err(crate::graph::no_memory_nodes());
    }
    let pool = match pool {
        Some(pool) => pool,
        None => pools(driver, &driver.devices[context.device()])?.1,
    };
    lookup(driver, pool)?;
    // Ready at once: that is sooner than the stream gets there.
    to.set(driver.memory.allocate(driver, context.owner(), bytes, Kind::Pooled(pool))? as DevicePointer)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(to: Out<DevicePointer>, bytes: usize, stream: Handle) -> CuResult {
    boundary(|| allocate(to, bytes, None, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(to: Out<DevicePointer>, bytes: usize, pool: Handle, stream: Handle) -> CuResult {
    boundary(|| allocate(to, bytes, Some(pool), stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(pointer: DevicePointer, stream: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let stream = context::stream(driver, stream)?;
        if pointer == 0 {
            return Ok(());
        }
        let base = pointer as usize;
        let range = driver.memory.find(base).filter(|r| r.base == base && r.kind.is_allocated_device());
        range.ok_or(CudaError::INVALID_VALUE)?;
        stream.submit(Op::Free(base)).map(drop)
    })
}
