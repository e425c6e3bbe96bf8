//! Host functions, callbacks and words of memory in stream order.

use super::callout::{Callback, HostCall, RawCallback};
use super::{CuResult, DevicePointer, Handle, boundary};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::Reach;
use crate::memory::access::{Condition, ValueWait, ValueWrite};
use crate::stream::{self, Op};
use std::ffi::{c_uint, c_void};

type HostFunction = unsafe extern "C" fn(*mut c_void);

fn launch_host(stream: Handle, function: Option<HostFunction>, data: *mut c_void) -> Outcome {
    let stream = stream::lookup(Driver::get()?, stream)?;
    let function = function.ok_or(CudaError::INVALID_VALUE)?;
    // SAFETY: the client's promise to this call.
    stream.submit(Op::Host(unsafe { HostCall::new(function, data) })).map(drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc(stream: Handle, function: Option<HostFunction>, data: *mut c_void) -> CuResult {
    boundary(|| launch_host(stream, function, data))
}

/// The mode says how the driver's thread should wait; ours decides by itself.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchHostFunc_v2(stream: Handle, function: Option<HostFunction>, data: *mut c_void, _mode: c_uint) -> CuResult {
    boundary(|| launch_host(stream, function, data))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamAddCallback(stream: Handle, function: Option<RawCallback>, data: *mut c_void, flags: c_uint) -> CuResult {
    boundary(|| {
        let object = stream::lookup(Driver::get()?, stream)?;
        let function = function.filter(|_| flags == 0).ok_or(CudaError::INVALID_VALUE)?;
        // SAFETY: the client's promise to this call.
        let callback = unsafe { Callback::new(function, stream, data) };
        object.submit(Op::Callback(Box::new(callback))).map(drop)
    })
}

/// The word must lie in memory that the device knows, and be aligned.
fn check(address: DevicePointer, bytes: usize, reach: Reach) -> Outcome {
    let known = Driver::get()?.memory.classify_for(address as usize, bytes, reach)?.is_some();
    if known && (address as usize).is_multiple_of(bytes) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

fn write(stream: Handle, address: DevicePointer, value: u64, wide: bool, flags: c_uint) -> Outcome {
    let stream = stream::lookup(Driver::get()?, stream)?;
    check(address, if wide { 8 } else { 4 }, Reach::Write)?;
    if flags > 1 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: checked; that the memory stays is the client's promise.
    stream.submit(Op::Write(unsafe { ValueWrite::new(address as usize, value, wide) })).map(drop)
}

fn wait(stream: Handle, address: DevicePointer, value: u64, wide: bool, flags: c_uint) -> Outcome {
    let stream = stream::lookup(Driver::get()?, stream)?;
    check(address, if wide { 8 } else { 4 }, Reach::Read)?;
    let condition = Condition::from_flags(flags)?;
    // SAFETY: checked; that the memory stays is the client's promise.
    stream.submit(Op::WaitValue(unsafe { ValueWait::new(address as usize, value, wide, condition) })).map(drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32_v2(stream: Handle, address: DevicePointer, value: u32, flags: c_uint) -> CuResult {
    boundary(|| write(stream, address, value.into(), false, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue64_v2(stream: Handle, address: DevicePointer, value: u64, flags: c_uint) -> CuResult {
    boundary(|| write(stream, address, value, true, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue32_v2(stream: Handle, address: DevicePointer, value: u32, flags: c_uint) -> CuResult {
    boundary(|| wait(stream, address, value.into(), false, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue64_v2(stream: Handle, address: DevicePointer, value: u64, flags: c_uint) -> CuResult {
    boundary(|| wait(stream, address, value, true, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue32(stream: Handle, address: DevicePointer, value: u32, flags: c_uint) -> CuResult {
    boundary(|| write(stream, address, value.into(), false, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue64(stream: Handle, address: DevicePointer, value: u64, flags: c_uint) -> CuResult {
    boundary(|| write(stream, address, value, true, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue32(stream: Handle, address: DevicePointer, value: u32, flags: c_uint) -> CuResult {
    boundary(|| wait(stream, address, value.into(), false, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue64(stream: Handle, address: DevicePointer, value: u64, flags: c_uint) -> CuResult {
    boundary(|| wait(stream, address, value, true, flags))
}
