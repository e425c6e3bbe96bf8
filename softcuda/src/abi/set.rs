//! Memsets: asynchronous to the host in either form, as for device memory on a GPU.

use super::{CuResult, DevicePointer, Handle, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::Reach;
use crate::memory::access::{Fill, extent};
use crate::stream::{self, Op};
use std::ffi::{c_uchar, c_uint, c_ushort};

/// Rows of `width` elements of `element` bytes, `pitch` bytes apart.
pub(super) struct Shape {
    /// Bytes of an element: 1, 2 or 4.
    pub(super) element: usize,
    /// Bytes from row to row.
    pub(super) pitch: usize,
    /// Elements of a row.
    pub(super) width: usize,
    /// Rows.
    pub(super) height: usize,
}

impl Shape {
    fn line(element: usize, width: usize) -> Shape {
        Shape { element, pitch: 0, width, height: 1 }
    }
}

/// A checked fill, and whether its memory is the device's. `None`: there is nothing to fill.
pub(super) fn prepare(driver: &Driver, to: DevicePointer, value: u32, shape: Shape) -> Outcome<Option<(Fill, bool)>> {
    let Shape { element, pitch, width, height } = shape;
    let bytes = width.checked_mul(element).ok_or(CudaError::INVALID_VALUE)?;
    if bytes == 0 || height == 0 {
        return Ok(None);
    }
    if !(to as usize).is_multiple_of(element) || !pitch.is_multiple_of(element) || (height > 1 && pitch < bytes) {
        return Err(CudaError::INVALID_VALUE);
    }
    let viewer = context::current_device(driver);
    let place = driver.memory.classify(driver, to as usize, extent(bytes, height, pitch), Reach::Write(viewer))?;
    let on_device = place.ok_or(CudaError::INVALID_VALUE)?;
    // SAFETY: the rows lie in one known range and are aligned; that they stay is the client's promise.
    let fill = unsafe { Fill::rows((to as usize, pitch), value, element, width, height) };
    Ok(Some((fill, on_device)))
}

fn fill(to: DevicePointer, value: u32, shape: Shape, stream: Option<Handle>) -> Outcome {
    let driver = Driver::get()?;
    let object = context::stream(driver, stream.unwrap_or(0))?;
    let Some((fill, on_device)) = prepare(driver, to, value, shape)? else {
        return Ok(());
    };
    let end = object.submit(Op::Fill(fill))?;
    if stream.is_none() && !on_device {
        stream::synchronize(end);
    }
    object.check()
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(to: DevicePointer, value: c_uchar, count: usize) -> CuResult {
    boundary(|| fill(to, value.into(), Shape::line(1, count), None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16_v2(to: DevicePointer, value: c_ushort, count: usize) -> CuResult {
    boundary(|| fill(to, value.into(), Shape::line(2, count), None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32_v2(to: DevicePointer, value: c_uint, count: usize) -> CuResult {
    boundary(|| fill(to, value, Shape::line(4, count), None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(to: DevicePointer, value: c_uchar, count: usize, stream: Handle) -> CuResult {
    boundary(|| fill(to, value.into(), Shape::line(1, count), Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD16Async(to: DevicePointer, value: c_ushort, count: usize, stream: Handle) -> CuResult {
    boundary(|| fill(to, value.into(), Shape::line(2, count), Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD32Async(to: DevicePointer, value: c_uint, count: usize, stream: Handle) -> CuResult {
    boundary(|| fill(to, value, Shape::line(4, count), Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D8_v2(
    to: DevicePointer,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
) -> CuResult {
    boundary(|| fill(to, value.into(), Shape { element: 1, pitch, width, height }, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D16_v2(
    to: DevicePointer,
    pitch: usize,
    value: c_ushort,
    width: usize,
    height: usize,
) -> CuResult {
    boundary(|| fill(to, value.into(), Shape { element: 2, pitch, width, height }, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D32_v2(
    to: DevicePointer,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
) -> CuResult {
    boundary(|| fill(to, value, Shape { element: 4, pitch, width, height }, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D8Async(
    to: DevicePointer,
    pitch: usize,
    value: c_uchar,
    width: usize,
    height: usize,
    stream: Handle,
) -> CuResult {
    boundary(|| fill(to, value.into(), Shape { element: 1, pitch, width, height }, Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D16Async(
    to: DevicePointer,
    pitch: usize,
    value: c_ushort,
    width: usize,
    height: usize,
    stream: Handle,
) -> CuResult {
    boundary(|| fill(to, value.into(), Shape { element: 2, pitch, width, height }, Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD2D32Async(
    to: DevicePointer,
    pitch: usize,
    value: c_uint,
    width: usize,
    height: usize,
    stream: Handle,
) -> CuResult {
    boundary(|| fill(to, value, Shape { element: 4, pitch, width, height }, Some(stream)))
}
