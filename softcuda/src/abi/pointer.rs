//! What is known of a pointer (`CUpointer_attribute`).

use super::{CuResult, DevicePointer, In, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::{Backing, Kind, Range};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

/// `CU_MEMORYTYPE_HOST`, `_DEVICE`
const HOST: u32 = 1;
const DEVICE: u32 = 2;
/// `CU_DEVICE_INVALID`
const NO_DEVICE: c_int = -2;
/// `CU_DEVICE_CPU`
const HOST_ORDINAL: c_int = -1;
/// Read and write.
const ACCESS_FLAGS: u32 = 3;

/// A value of the size that its attribute has.
enum Value {
    Byte(u8),
    Narrow(u32),
    Wide(u64),
}

impl Value {
    fn write(self, to: *mut c_void) -> Outcome {
        match self {
            Value::Byte(value) => Out(to.cast::<u8>()).set(value),
            Value::Narrow(value) => Out(to.cast::<u32>()).set(value),
            Value::Wide(value) => Out(to.cast::<u64>()).set(value),
        }
    }
}

fn place(range: &Range, address: usize, attribute: c_int) -> Outcome<Option<Value>> {
    let size = range.mapping.as_ref().map_or(range.size, |mapping| mapping.size());
    Ok(Some(match attribute {
        3 => Value::Wide(address as u64),
        // As on a GPU, the host has no address for device memory.
        4 if range.kind.is_device() && range.kind != Kind::Managed => {
            return Err(CudaError::INVALID_VALUE);
        }
        4 => Value::Wide(address as u64),
        11 | 19 => Value::Wide(range.base as u64),
        12 => Value::Wide(range.size as u64),
        18 => Value::Wide(size as u64),
        _ => return Ok(None),
    }))
}

/// The device that memory is on; for mappings also the host, or a device that cannot be seen from here.
fn ordinal(range: &Range) -> u32 {
    let Some(backing) = &range.backing else {
        return range.device as u32;
    };
    let location = backing.physical.properties.location;
    if location.is_host() { HOST_ORDINAL as u32 } else { location.numbers().1 as u32 }
}

/// What the current context's device may do with memory.
fn access_flags(range: &Range) -> Outcome<u32> {
    let viewer = context::current_device(Driver::get()?);
    let granted = |backing: &Backing| match viewer {
        Some(device) => backing.rights(Some(device)) as u32,
        None => backing.union() as u32,
    };
    Ok(range.backing.as_ref().map_or(ACCESS_FLAGS, granted))
}

fn nature(range: &Range, attribute: c_int) -> Outcome<Value> {
    let exportable = range.kind == Kind::Device;
    Ok(match attribute {
        1 => Value::Wide(range.context),
        2 => Value::Narrow(if range.kind.is_device() { DEVICE } else { HOST }),
        6 => Value::Byte(u8::from(range.sync_operations.load(Ordering::Relaxed))),
        7 | 20 => Value::Wide(range.id),
        8 => Value::Byte(u8::from(range.kind == Kind::Managed)),
        9 => Value::Narrow(ordinal(range)),
        10 => Value::Byte(u8::from(exportable)),
        13 => Value::Byte(1),
        14 => Value::Wide(range.backing.as_ref().map_or(0, |backing| backing.physical.properties.handle_types.into())),
        15 | 21 => Value::Byte(0),
        16 => Value::Narrow(access_flags(range)?),
        17 => Value::Wide(if let Kind::Pooled(pool) = range.kind { pool } else { 0 }),
        22 => Value::Narrow(-1i32 as u32),
        _ => return Err(CudaError::INVALID_VALUE),
    })
}

fn known(range: &Range, address: usize, attribute: c_int) -> Outcome<Value> {
    match place(range, address, attribute)? {
        Some(value) => Ok(value),
        None => nature(range, attribute),
    }
}

/// What `cuPointerGetAttributes` says of memory that CUDA does not know.
fn unknown(attribute: c_int) -> Outcome<Value> {
    Ok(match attribute {
        2 | 16 | 22 => Value::Narrow(0),
        6 | 8 | 10 | 13 | 15 | 21 => Value::Byte(0),
        9 => Value::Narrow(NO_DEVICE as u32),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => Value::Wide(0),
        _ => return Err(CudaError::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let range = Driver::get()?.memory.find(pointer as usize).ok_or(CudaError::INVALID_VALUE)?;
        range.check(Driver::get()?)?;
        known(&range, pointer as usize, attribute)?.write(data)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: In<c_int>,
    data: In<*mut c_void>,
    pointer: DevicePointer,
) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let range = driver.memory.find(pointer as usize);
        range.as_ref().map_or(Ok(()), |range| range.check(driver))?;
        for index in 0..count as usize {
            let attribute = attributes.get_at(index)?;
            let value = match &range {
                Some(range) => match known(range, pointer as usize, attribute) {
                    // One attribute that does not apply is told as 0, the others are still answered.
                    Err(_) => unknown(attribute)?,
                    Ok(value) => value,
                },
                None => unknown(attribute)?,
            };
            value.write(data.get_at(index)?)?;
        }
        Ok(())
    })
}

/// Only `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` can be set.
#[unsafe(no_mangle)]
extern "C" fn cuPointerSetAttribute(value: In<c_uint>, attribute: c_int, pointer: DevicePointer) -> CuResult {
    boundary(|| {
        let range = Driver::get()?.memory.find(pointer as usize).ok_or(CudaError::INVALID_VALUE)?;
        range.check(Driver::get()?)?;
        if attribute != 6 || !range.kind.is_device() {
            return Err(CudaError::INVALID_VALUE);
        }
        range.sync_operations.store(value.get()? != 0, Ordering::Relaxed);
        Ok(())
    })
}
