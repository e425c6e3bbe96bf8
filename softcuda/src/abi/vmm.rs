//! Virtual memory management.

use super::{CuResult, DevicePointer, In, Out, boundary};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::physical::{GRANULARITY, Location, Properties, is_node};
use crate::memory::space::Rights;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::IntoRawFd;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`
const PINNED: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
const FILE_DESCRIPTOR: u32 = 1;
/// All of `CUmemAllocationHandleType`.
const HANDLE_TYPES: u32 = 15;
/// Entries that one `cuMemSetAccess` may have: more locations than there can be.
const MAX_ENTRIES: usize = 4096;

/// `CUmemLocation`
#[derive(Clone, Copy)]
#[repr(C)]
struct RawLocation {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`
#[derive(Clone, Copy)]
#[repr(C)]
struct RawProperties {
    kind: c_int,
    handle_types: u32,
    location: RawLocation,
    win32: usize,
    compression: u8,
    gpu_direct_rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`
#[derive(Clone, Copy)]
#[repr(C)]
struct RawAccess {
    location: RawLocation,
    flags: c_int,
}

fn location(driver: &Driver, raw: RawLocation) -> Outcome<Location> {
    match raw.kind {
        1 => Ok(Location::Device(driver.device(raw.id)?.index)),
        2 => Ok(Location::Host),
        3 if is_node(raw.id) => Ok(Location::Node(raw.id)),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

impl RawProperties {
    /// What can be had. Compression is only asked for, so that it may be left out; the other
    /// properties would be missed.
    fn check(&self, driver: &Driver) -> Outcome<Properties> {
        let location = location(driver, self.location)?;
        if self.kind != PINNED || self.handle_types & !HANDLE_TYPES != 0 || self.compression > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        if location == Location::Host && self.handle_types != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        if self.handle_types & !FILE_DESCRIPTOR != 0 || self.gpu_direct_rdma != 0 || self.usage != 0 {
            return Err(CudaError::NOT_SUPPORTED);
        }
        Ok(Properties { location, handle_types: self.handle_types })
    }

    fn of(properties: Properties) -> RawProperties {
        let (kind, id) = properties.location.numbers();
        RawProperties {
            kind: PINNED,
            handle_types: properties.handle_types,
            location: RawLocation { kind, id },
            win32: 0,
            compression: 0,
            gpu_direct_rdma: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// The one number that flags may be.
fn check_flags(flags: c_ulonglong) -> Outcome {
    if flags == 0 { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

/// The same for the minimum and the recommended granularity.
#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(to: Out<usize>, properties: *const c_void, option: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        In(properties.cast::<RawProperties>()).get()?.check(driver)?;
        if option > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        to.set(GRANULARITY)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemCreate(to: Out<u64>, size: usize, properties: *const c_void, flags: c_ulonglong) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        check_flags(flags)?;
        let properties = In(properties.cast::<RawProperties>()).get()?.check(driver)?;
        if let Location::Device(device) = properties.location {
            driver.check(device)?;
        }
        to.set(driver.memory.create(driver, size, properties)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> CuResult {
    boundary(|| Driver::get()?.memory.release(handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(to: Out<u64>, address: *mut c_void) -> CuResult {
    let address = address as usize;
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        to.set(driver.memory.retain(address)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationPropertiesFromHandle(to: *mut c_void, handle: u64) -> CuResult {
    boundary(|| {
        let physical = Driver::get()?.memory.physical(handle)?;
        Out(to.cast::<RawProperties>()).set(RawProperties::of(physical.properties))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    to: Out<DevicePointer>,
    size: usize,
    alignment: usize,
    hint: DevicePointer,
    flags: c_ulonglong,
) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        check_flags(flags)?;
        to.set(driver.memory.reserve(size, alignment, hint as usize)? as DevicePointer)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(pointer: DevicePointer, size: usize) -> CuResult {
    boundary(|| Driver::get()?.memory.unreserve(pointer as usize, size))
}

/// The offset must be 0, as with CUDA 13.
#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
    pointer: DevicePointer,
    size: usize,
    offset: usize,
    handle: u64,
    flags: c_ulonglong,
) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        check_flags(flags)?;
        check_flags(offset as c_ulonglong)?;
        driver.memory.map(driver, pointer as usize, size, handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(pointer: DevicePointer, size: usize) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        driver.memory.unmap(pointer as usize, size, &|device| driver.synchronize_device(device))
    })
}

/// Whose rights are meant: a device's, or (`None`) the host's.
fn subject(driver: &Driver, raw: RawLocation) -> Outcome<Option<usize>> {
    match raw.kind {
        1 => Ok(Some(driver.device(raw.id)?.index)),
        2..=4 => Ok(None),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

fn rights(flags: c_int) -> Outcome<Rights> {
    match flags {
        0 => Ok(Rights::None),
        1 => Ok(Rights::Read),
        3 => Ok(Rights::Write),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(pointer: DevicePointer, size: usize, wanted: *const c_void, count: usize) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let wanted = In(wanted.cast::<RawAccess>());
        if count == 0 || count > MAX_ENTRIES {
            return Err(CudaError::INVALID_VALUE);
        }
        let entry = |index| {
            let raw = wanted.get_at(index)?;
            Ok((subject(driver, raw.location)?, rights(raw.flags)?))
        };
        let entries = (0..count).map(entry).collect::<Outcome<Vec<_>>>()?;
        driver.memory.set_access(driver, pointer as usize, size, &entries)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAccess(flags: Out<c_ulonglong>, location: *const c_void, pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        flags.check()?;
        let subject = subject(driver, In(location.cast::<RawLocation>()).get()?)?;
        flags.set(driver.memory.access(pointer as usize, subject)? as c_ulonglong)
    })
}

/// A handle type that is known, and can be had.
fn check_type(handle_type: c_int) -> Outcome {
    match handle_type {
        1 => Ok(()),
        2 | 4 | 8 => Err(CudaError::NOT_SUPPORTED),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

/// The descriptor is the client's to close.
#[unsafe(no_mangle)]
extern "C" fn cuMemExportToShareableHandle(to: *mut c_void, handle: u64, kind: c_int, flags: c_ulonglong) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let to = Out(to.cast::<c_int>());
        to.check()?;
        check_flags(flags)?;
        check_type(kind)?;
        to.set(driver.memory.export(handle, FILE_DESCRIPTOR)?.into_raw_fd())
    })
}

/// The descriptor, passed as if it were a pointer, stays the client's.
#[unsafe(no_mangle)]
extern "C" fn cuMemImportFromShareableHandle(to: Out<u64>, shared: *mut c_void, kind: c_int) -> CuResult {
    let fd = shared as usize;
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        check_type(kind)?;
        let fd = c_int::try_from(fd).map_err(|_| CudaError::INVALID_VALUE)?;
        to.set(driver.memory.import(driver, fd)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_have_the_size_of_cudas() {
        assert_eq!(size_of::<RawProperties>(), 32);
        assert_eq!(size_of::<RawAccess>(), 12);
    }
}
