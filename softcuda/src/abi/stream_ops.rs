//! Host functions, callbacks and words of memory in stream order.

use super::{CuResult, DevicePointer, Handle, In, boundary};
use crate::callout::{Callback, HostCall, RawCallback};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::Reach;
use crate::memory::access::{Condition, ValueWait, ValueWrite};
use crate::stream::Op;
use std::ffi::{c_uint, c_void};

/// Operations of a batch, as with NVIDIA's driver.
const MAX_BATCH: c_uint = 256;

type HostFunction = unsafe extern "C" fn(*mut c_void);

fn launch_host(stream: Handle, function: Option<HostFunction>, data: *mut c_void) -> Outcome {
    let stream = context::stream(Driver::get()?, stream)?;
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
extern "C" fn cuLaunchHostFunc_v2(
    stream: Handle,
    function: Option<HostFunction>,
    data: *mut c_void,
    _mode: c_uint,
) -> CuResult {
    boundary(|| launch_host(stream, function, data))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamAddCallback(
    stream: Handle,
    function: Option<RawCallback>,
    data: *mut c_void,
    flags: c_uint,
) -> CuResult {
    boundary(|| {
        let object = context::stream(Driver::get()?, stream)?;
        let function = function.filter(|_| flags == 0).ok_or(CudaError::INVALID_VALUE)?;
        // SAFETY: the client's promise to this call.
        let callback = unsafe { Callback::new(function, stream, data) };
        object.submit(Op::Callback(Box::new(callback))).map(drop)
    })
}

/// The word must lie in memory that the device knows, and be aligned.
fn check(address: DevicePointer, bytes: usize, reach: fn(Option<usize>) -> Reach) -> Outcome {
    let driver = Driver::get()?;
    let reach = reach(context::current_device(driver));
    let known = driver.memory.classify(driver, address as usize, bytes, reach)?.is_some();
    if known && (address as usize).is_multiple_of(bytes) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

fn written(address: DevicePointer, value: u64, wide: bool, flags: c_uint) -> Outcome<Op> {
    check(address, if wide { 8 } else { 4 }, Reach::Write)?;
    if flags > 1 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: checked; that the memory stays is the client's promise.
    Ok(Op::Write(unsafe { ValueWrite::new(address as usize, value, wide) }))
}

fn awaited(address: DevicePointer, value: u64, wide: bool, flags: c_uint) -> Outcome<Op> {
    check(address, if wide { 8 } else { 4 }, Reach::Read)?;
    let condition = Condition::from_flags(flags)?;
    // SAFETY: checked; that the memory stays is the client's promise.
    Ok(Op::WaitValue(unsafe { ValueWait::new(address as usize, value, wide, condition) }))
}

fn write(stream: Handle, address: DevicePointer, value: u64, wide: bool, flags: c_uint) -> Outcome {
    let stream = context::stream(Driver::get()?, stream)?;
    stream.submit(written(address, value, wide, flags)?).map(drop)
}

fn wait(stream: Handle, address: DevicePointer, value: u64, wide: bool, flags: c_uint) -> Outcome {
    let stream = context::stream(Driver::get()?, stream)?;
    stream.submit(awaited(address, value, wide, flags)?).map(drop)
}

/// `CUstreamBatchMemOpParams`: 6 words, of which `alias` and what lies behind it are not used.
#[derive(Clone, Copy)]
#[repr(C)]
struct BatchOp {
    kind: c_uint,
    /// Of the kinds without an address, whose flags stand here.
    short_flags: c_uint,
    address: DevicePointer,
    /// The value; 32-bit ones in the low half.
    value: u64,
    flags: c_uint,
    rest: [c_uint; 5],
}

const _: () = assert!(size_of::<BatchOp>() == 48);

impl BatchOp {
    /// What it does in a stream; flushes and barriers have nothing to do here, since every operation waits for the
    /// last.
    fn operation(&self) -> Outcome<Option<Op>> {
        let low = u64::from(self.value as u32);
        match self.kind {
            1 => awaited(self.address, low, false, self.flags).map(Some),
            2 => written(self.address, low, false, self.flags).map(Some),
            4 => awaited(self.address, self.value, true, self.flags).map(Some),
            5 => written(self.address, self.value, true, self.flags).map(Some),
            3 if self.short_flags == 0 => Ok(None),
            6 if self.short_flags <= 1 => Ok(None),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }
}

/// All operations or, where one is refused, none.
fn batch(stream: Handle, count: c_uint, operations: In<BatchOp>, flags: c_uint) -> Outcome {
    let stream = context::stream(Driver::get()?, stream)?;
    if count > MAX_BATCH || flags != 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    let operations = operations.list(count as usize)?;
    let operations: Outcome<Vec<Option<Op>>> = operations.iter().map(BatchOp::operation).collect();
    operations?.into_iter().flatten().try_for_each(|operation| stream.submit(operation).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBatchMemOp(stream: Handle, count: c_uint, operations: *const c_void, flags: c_uint) -> CuResult {
    boundary(|| batch(stream, count, In(operations.cast()), flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBatchMemOp_v2(
    stream: Handle,
    count: c_uint,
    operations: *const c_void,
    flags: c_uint,
) -> CuResult {
    boundary(|| batch(stream, count, In(operations.cast()), flags))
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
