//! Copies and fills. The direction that the program names is checked by the driver, which knows
//! what an address is.

use std::ffi::c_int;

use super::context::{call, check_device, in_context, primary};
use super::driver::{self, Copy2d, Status};
use super::error::{Code, INVALID_MEMCPY_DIRECTION, check};
use super::{Address, Handle};

/// `enum cudaMemcpyKind`.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    HostToHost,
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    /// The addresses tell.
    Default,
}

impl Kind {
    pub(super) fn new(kind: c_int) -> Result<Kind, Code> {
        Ok(match kind {
            0 => Kind::HostToHost,
            1 => Kind::HostToDevice,
            2 => Kind::DeviceToHost,
            3 => Kind::DeviceToDevice,
            4 => Kind::Default,
            _ => return Err(INVALID_MEMCPY_DIRECTION),
        })
    }

    /// `CUmemorytype` of source and destination. "Unified" lets the driver find out.
    pub(super) fn memory_types(self) -> (u32, u32) {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const UNIFIED: u32 = 4;
        match self {
            Kind::HostToHost => (HOST, HOST),
            Kind::HostToDevice => (HOST, DEVICE),
            Kind::DeviceToHost => (DEVICE, HOST),
            Kind::DeviceToDevice => (DEVICE, DEVICE),
            Kind::Default => (UNIFIED, UNIFIED),
        }
    }
}

/// # Safety
/// `dst` and `src` are memory of `bytes` bytes, as for memcpy.
#[unsafe(export_name = "softcudart_cudaMemcpy")]
unsafe extern "C" fn memcpy(dst: Address, src: Address, bytes: usize, kind: c_int) -> Code {
    in_context(|| {
        let kind = Kind::new(kind)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise is the driver's condition.
        check(unsafe {
            match kind {
                Kind::HostToHost | Kind::Default => driver::cuMemcpy(dst, src, bytes),
                Kind::HostToDevice => driver::cuMemcpyHtoD_v2(dst, src, bytes),
                Kind::DeviceToHost => driver::cuMemcpyDtoH_v2(dst, src, bytes),
                Kind::DeviceToDevice => driver::cuMemcpyDtoD_v2(dst, src, bytes),
            }
        })
    })
}

/// # Safety
/// `dst` and `src` are memory of `bytes` bytes until the copy is done.
#[unsafe(export_name = "softcudart_cudaMemcpyAsync")]
unsafe extern "C" fn memcpy_async(dst: Address, src: Address, bytes: usize, kind: c_int, stream: Handle) -> Code {
    in_context(|| {
        let kind = Kind::new(kind)?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise is the driver's condition.
        check(unsafe {
            match kind {
                Kind::HostToHost | Kind::Default => driver::cuMemcpyAsync(dst, src, bytes, stream),
                Kind::HostToDevice => driver::cuMemcpyHtoDAsync_v2(dst, src, bytes, stream),
                Kind::DeviceToHost => driver::cuMemcpyDtoHAsync_v2(dst, src, bytes, stream),
                Kind::DeviceToDevice => driver::cuMemcpyDtoDAsync_v2(dst, src, bytes, stream),
            }
        })
    })
}

/// The primary contexts of two devices.
fn peers(dst: c_int, src: c_int) -> Result<(Handle, Handle), Code> {
    check_device(dst)?;
    check_device(src)?;
    Ok((primary(dst)?, primary(src)?))
}

/// # Safety
/// `dst` and `src` are memory of `bytes` bytes.
#[unsafe(export_name = "softcudart_cudaMemcpyPeer")]
unsafe extern "C" fn memcpy_peer(
    dst: Address,
    dst_device: c_int,
    src: Address,
    src_device: c_int,
    bytes: usize,
) -> Code {
    in_context(|| {
        let (to, from) = peers(dst_device, src_device)?;
        // SAFETY: the caller's promise is the driver's condition.
        check(unsafe { driver::cuMemcpyPeer(dst, to, src, from, bytes) })
    })
}

/// # Safety
/// `dst` and `src` are memory of `bytes` bytes until the copy is done.
#[unsafe(export_name = "softcudart_cudaMemcpyPeerAsync")]
unsafe extern "C" fn memcpy_peer_async(
    dst: Address,
    dst_device: c_int,
    src: Address,
    src_device: c_int,
    bytes: usize,
    stream: Handle,
) -> Code {
    in_context(|| {
        let (to, from) = peers(dst_device, src_device)?;
        // SAFETY: the caller's promise is the driver's condition.
        check(unsafe { driver::cuMemcpyPeerAsync(dst, to, src, from, bytes, stream) })
    })
}

/// The rows of a two-dimensional copy.
#[derive(Clone, Copy)]
struct Rows {
    at: Address,
    pitch: usize,
}

fn copy_2d(dst: Rows, src: Rows, width: usize, height: usize, kind: c_int) -> Result<Copy2d, Code> {
    /// `cudaErrorInvalidPitchValue`.
    const INVALID_PITCH: Code = 12;
    let (src_type, dst_type) = Kind::new(kind)?.memory_types();
    if width > dst.pitch || width > src.pitch {
        return Err(INVALID_PITCH);
    }
    Ok(Copy2d {
        src_x: 0,
        src_y: 0,
        src_type,
        src_host: src.at,
        src_device: src.at,
        src_array: 0,
        src_pitch: src.pitch,
        dst_x: 0,
        dst_y: 0,
        dst_type,
        dst_host: dst.at,
        dst_device: dst.at,
        dst_array: 0,
        dst_pitch: dst.pitch,
        width,
        height,
    })
}

/// # Safety
/// `dst` and `src` are memory of `height` rows.
#[unsafe(export_name = "softcudart_cudaMemcpy2D")]
unsafe extern "C" fn memcpy_2d(
    dst: Address,
    dst_pitch: usize,
    src: Address,
    src_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> Code {
    in_context(|| {
        let dst = Rows { at: dst, pitch: dst_pitch };
        let src = Rows { at: src, pitch: src_pitch };
        let copy = copy_2d(dst, src, width, height, kind)?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise is the driver's condition.
        check(unsafe { driver::cuMemcpy2DUnaligned_v2(&copy) })
    })
}

/// # Safety
/// `dst` and `src` are memory of `height` rows until the copy is done.
#[unsafe(export_name = "softcudart_cudaMemcpy2DAsync")]
unsafe extern "C" fn memcpy_2d_async(
    dst: Address,
    dst_pitch: usize,
    src: Address,
    src_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: Handle,
) -> Code {
    in_context(|| {
        let dst = Rows { at: dst, pitch: dst_pitch };
        let src = Rows { at: src, pitch: src_pitch };
        let copy = copy_2d(dst, src, width, height, kind)?;
        if width == 0 || height == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise is the driver's condition.
        check(unsafe { driver::cuMemcpy2DAsync_v2(&copy, stream) })
    })
}

/// Fills with the low byte of `value`; nothing to do for 0 bytes.
fn fill(bytes: usize, status: impl FnOnce() -> Status) -> Code {
    call(|| if bytes == 0 { 0 } else { status() })
}

/// The byte of a memset's value.
fn byte(value: c_int) -> u8 {
    value.to_le_bytes()[0]
}

/// # Safety
/// `ptr` is memory of `bytes` bytes.
#[unsafe(export_name = "softcudart_cudaMemset")]
unsafe extern "C" fn memset(ptr: Address, value: c_int, bytes: usize) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    fill(bytes, || unsafe { driver::cuMemsetD8_v2(ptr, byte(value), bytes) })
}

/// # Safety
/// `ptr` is memory of `bytes` bytes until the fill is done.
#[unsafe(export_name = "softcudart_cudaMemsetAsync")]
unsafe extern "C" fn memset_async(ptr: Address, value: c_int, bytes: usize, stream: Handle) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    fill(bytes, || unsafe { driver::cuMemsetD8Async(ptr, byte(value), bytes, stream) })
}

/// # Safety
/// `ptr` is memory of `height` rows.
#[unsafe(export_name = "softcudart_cudaMemset2D")]
unsafe extern "C" fn memset_2d(ptr: Address, pitch: usize, value: c_int, width: usize, height: usize) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    fill(width.min(height), || unsafe { driver::cuMemsetD2D8_v2(ptr, pitch, byte(value), width, height) })
}

/// # Safety
/// `ptr` is memory of `height` rows until the fill is done.
#[unsafe(export_name = "softcudart_cudaMemset2DAsync")]
unsafe extern "C" fn memset_2d_async(
    ptr: Address,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: Handle,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    fill(width.min(height), || unsafe { driver::cuMemsetD2D8Async(ptr, pitch, byte(value), width, height, stream) })
}
