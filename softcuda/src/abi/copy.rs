//! Copies. Which of them wait follows CUDA's rules on synchronisation: a copy that touches pageable memory returns when
//! that memory was read or written, one between device memories never makes the host wait.

use super::{CuResult, DevicePointer, Handle, In, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::memory::Reach;
use crate::memory::access::Transfer;
use crate::memory::space::Rights;
use crate::stream::{self, Op, Stream, Transfer3d};
use std::ffi::{c_int, c_uint, c_void};

/// Pageable memory up to this size is read at submission into a staging buffer; more is waited for, as on a GPU.
const STAGED: usize = 64 << 10;

/// What a call says about one side of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Device memory, or host memory that the device can reach.
    Device,
    /// The same of a copy between contexts: any of their devices may have access.
    Peer,
    /// Host memory, pinned or not.
    Host,
    /// Whatever the address is.
    Any,
}

/// What an address is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Device,
    Pinned,
    Pageable,
}

fn find(driver: &'static Driver, side: Side, (address, extent): (usize, usize), needed: Rights) -> Outcome<Place> {
    let reach = match (side, needed) {
        (Side::Peer, needed) => Reach::Peer(needed),
        (_, Rights::Write) => Reach::Write(context::current_device(driver)),
        _ => Reach::Read(context::current_device(driver)),
    };
    let known = driver.memory.classify(driver, address, extent, reach);
    match (side, known) {
        (_, Ok(Some(true))) => Ok(Place::Device),
        (_, Ok(Some(false))) => Ok(Place::Pinned),
        (_, Err(error)) if error != CudaError::INVALID_VALUE => Err(error),
        (Side::Device | Side::Peer, _) | (Side::Any, Err(_)) => Err(CudaError::INVALID_VALUE),
        (Side::Host | Side::Any, _) if address == 0 => Err(CudaError::INVALID_VALUE),
        // Mapped, but without the right, is not pageable: it would be a crash.
        (Side::Host, Err(_)) if driver.memory.find(address).is_some_and(|range| !range.permits(reach)) => {
            Err(CudaError::INVALID_VALUE)
        }
        (Side::Host | Side::Any, _) => Ok(Place::Pageable),
    }
}

/// What the planes' destination and source are. Error: no such memory.
fn places(driver: &'static Driver, planes: &[Transfer], to: Side, from: Side) -> Outcome<(Place, Place)> {
    let mut found = (Place::Device, Place::Device);
    for plane in planes {
        found =
            (find(driver, to, plane.destination(), Rights::Write)?, find(driver, from, plane.source(), Rights::Read)?);
    }
    Ok(found)
}

/// Submits a copy and waits where CUDA does. `asynchronous`: one of the `Async` calls.
fn submit(stream: &'static Stream, planes: &[Transfer], to: Side, from: Side, asynchronous: bool) -> Outcome {
    let driver = Driver::get()?;
    if !asynchronous {
        driver.graphs.captures.allow_unsafe()?;
    }
    let (target, source) = places(driver, planes, to, from)?;
    let bytes: usize = planes.iter().map(Transfer::bytes).sum();
    let staged = asynchronous && source == Place::Pageable && target == Place::Device && bytes <= STAGED;
    let operation = match planes {
        [] => return Ok(()),
        [plane] if staged => Op::CopyStaged(plane.stage()),
        [plane] => Op::Copy(*plane),
        planes => Op::Copy3d(Box::new(Transfer3d { planes: planes.to_vec() })),
    };
    let free = match (source, target) {
        (Place::Device, Place::Device) => true,
        (Place::Pageable, Place::Device) => staged && planes.len() == 1,
        (Place::Pageable, _) | (_, Place::Pageable) => false,
        (Place::Pinned, Place::Pinned) => false,
        _ => asynchronous,
    };
    let end = stream.submit(operation)?;
    if !free {
        stream::synchronize(end);
    }
    stream.check()
}

fn linear(to: (u64, Side), from: (u64, Side), bytes: usize, stream: Option<Handle>) -> Outcome {
    let object = context::stream(Driver::get()?, stream.unwrap_or(0))?;
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: device ranges are checked in `submit`; host ranges, and all of them until the copy is done, are the
    // client's promise.
    let transfer = unsafe { Transfer::linear(to.0 as usize, from.0 as usize, bytes) };
    submit(object, &[transfer], to.1, from.1, stream.is_some())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy(to: DevicePointer, from: DevicePointer, bytes: usize) -> CuResult {
    boundary(|| linear((to, Side::Any), (from, Side::Any), bytes, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle) -> CuResult {
    boundary(|| linear((to, Side::Any), (from, Side::Any), bytes, Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: DevicePointer, from: In<c_void>, bytes: usize) -> CuResult {
    boundary(|| linear((to, Side::Device), (from.address() as u64, Side::Host), bytes, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: DevicePointer, from: In<c_void>, bytes: usize, stream: Handle) -> CuResult {
    boundary(|| linear((to, Side::Device), (from.address() as u64, Side::Host), bytes, Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: In<c_void>, from: DevicePointer, bytes: usize) -> CuResult {
    boundary(|| linear((to.address() as u64, Side::Host), (from, Side::Device), bytes, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: In<c_void>, from: DevicePointer, bytes: usize, stream: Handle) -> CuResult {
    boundary(|| linear((to.address() as u64, Side::Host), (from, Side::Device), bytes, Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize) -> CuResult {
    boundary(|| linear((to, Side::Device), (from, Side::Device), bytes, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle) -> CuResult {
    boundary(|| linear((to, Side::Device), (from, Side::Device), bytes, Some(stream)))
}

fn peer(to: (u64, Handle), from: (u64, Handle), bytes: usize, stream: Option<Handle>) -> Outcome {
    let driver = Driver::get()?;
    let contexts = [context::lookup(driver, to.1)?, context::lookup(driver, from.1)?];
    contexts.iter().try_for_each(|context| driver.check(context.device()))?;
    let copy = || linear((to.0, Side::Peer), (from.0, Side::Peer), bytes, stream);
    if stream.is_some() {
        return copy();
    }
    // The form without a stream is in order with all work of both contexts and of the current one.
    contexts.iter().try_for_each(|context| context.synchronize(driver))?;
    copy()?;
    stream::synchronize_stream(context::stream(driver, 0)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeer(
    to: DevicePointer,
    to_context: Handle,
    from: DevicePointer,
    from_context: Handle,
    bytes: usize,
) -> CuResult {
    boundary(|| peer((to, to_context), (from, from_context), bytes, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: DevicePointer,
    to_context: Handle,
    from: DevicePointer,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> CuResult {
    boundary(|| peer((to, to_context), (from, from_context), bytes, Some(stream)))
}

/// One side of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side2d {
    x: usize,
    y: usize,
    memory: c_uint,
    host: usize,
    device: DevicePointer,
    array: usize,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`
#[derive(Clone, Copy)]
#[repr(C)]
struct Copy2d {
    from: Side2d,
    to: Side2d,
    width: usize,
    height: usize,
}

/// One side of `CUDA_MEMCPY3D` and of `CUDA_MEMCPY3D_PEER`, which differ in the meaning of `context` alone.
#[derive(Clone, Copy)]
#[repr(C)]
struct Side3d {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    memory: c_uint,
    host: usize,
    device: DevicePointer,
    array: usize,
    context: usize,
    pitch: usize,
    rows: usize,
}

/// `CUDA_MEMCPY3D`, `CUDA_MEMCPY3D_PEER`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Copy3d {
    from: Side3d,
    to: Side3d,
    width: usize,
    height: usize,
    depth: usize,
}

/// Address by `CUmemorytype`; there are no arrays.
fn base(memory: c_uint, host: usize, device: DevicePointer) -> Outcome<(usize, Side)> {
    match memory {
        1 => Ok((host, Side::Host)),
        2 => Ok((device as usize, Side::Device)),
        4 => Ok((device as usize, Side::Any)),
        3 => Err(CudaError::NOT_SUPPORTED),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

impl Side3d {
    /// Address and pitch of the first row of each plane, and what kind of address.
    fn planes(&self, width: usize, height: usize, depth: usize) -> Outcome<(Vec<(usize, usize)>, Side)> {
        let (base, side) = base(self.memory, self.host, self.device)?;
        let pitch = if self.pitch == 0 { width } else { self.pitch };
        let rows = if self.rows == 0 { height } else { self.rows };
        let narrow = self.x.checked_add(width).is_none_or(|end| end > pitch) && height > 1;
        if narrow || (self.y.saturating_add(height) > rows && depth > 1) || self.level != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let row = |z: usize| {
            z.checked_mul(rows)?.checked_add(self.y)?.checked_mul(pitch)?.checked_add(self.x)?.checked_add(base)
        };
        let address = |z: usize| row(self.z.checked_add(z)?).map(|address| (address, pitch));
        let planes: Option<Vec<_>> = (0..depth).map(address).collect();
        Ok((planes.ok_or(CudaError::INVALID_VALUE)?, side))
    }
}

impl From<Side2d> for Side3d {
    fn from(side: Side2d) -> Side3d {
        let Side2d { x, y, memory, host, device, array, pitch } = side;
        Side3d { x, y, z: 0, level: 0, memory, host, device, array, context: 0, pitch, rows: 0 }
    }
}

/// The planes of a copy, none where there is nothing to copy, and what kind of addresses they have.
fn planes(copy: Copy3d) -> Outcome<(Vec<Transfer>, Side, Side)> {
    let Copy3d { from, to, width, height, depth } = copy;
    if width == 0 || height == 0 || depth == 0 {
        return Ok((Vec::new(), Side::Any, Side::Any));
    }
    let (sources, from) = from.planes(width, height, depth)?;
    let (targets, to) = to.planes(width, height, depth)?;
    // SAFETY: as for `linear`.
    let plane = |(to, from): (&(usize, usize), &(usize, usize))| unsafe { Transfer::rows(*to, *from, width, height) };
    Ok((targets.iter().zip(&sources).map(plane).collect(), to, from))
}

fn copy_planes(copy: Copy3d, stream: Option<Handle>) -> Outcome {
    let object = context::stream(Driver::get()?, stream.unwrap_or(0))?;
    let (planes, to, from) = planes(copy)?;
    submit(object, &planes, to, from, stream.is_some())
}

/// The planes of a graph's copy node, checked.
pub(super) fn of_node(copy: Copy3d) -> Outcome<Vec<Transfer>> {
    let (planes, to, from) = planes(copy)?;
    places(Driver::get()?, &planes, to, from)?;
    Ok(planes)
}

/// The copy node's parameters that stand for these planes.
pub(super) fn parameters(planes: &[Transfer]) -> Copy3d {
    let side = |(address, pitch): (usize, usize), next: Option<usize>| {
        let rows = next.map_or(0, |next| next.abs_diff(address).checked_div(pitch).unwrap_or(0));
        Side3d {
            x: 0,
            y: 0,
            z: 0,
            level: 0,
            memory: 4,
            host: 0,
            device: address as u64,
            array: 0,
            context: 0,
            pitch,
            rows,
        }
    };
    let Some((to, from, (width, height))) = planes.first().map(Transfer::parts) else {
        return Copy3d { from: side((0, 0), None), to: side((0, 0), None), width: 0, height: 0, depth: 0 };
    };
    let next = planes.get(1).map(Transfer::parts);
    let (from, to) = (side(from, next.map(|next| next.1.0)), side(to, next.map(|next| next.0.0)));
    Copy3d { from, to, width, height, depth: planes.len() }
}

fn copy_2d(copy: In<c_void>, stream: Option<Handle>) -> Outcome {
    let Copy2d { from, to, width, height } = In(copy.0.cast::<Copy2d>()).get()?;
    copy_planes(Copy3d { from: from.into(), to: to.into(), width, height, depth: 1 }, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2D_v2(copy: In<c_void>) -> CuResult {
    boundary(|| copy_2d(copy, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DUnaligned_v2(copy: In<c_void>) -> CuResult {
    boundary(|| copy_2d(copy, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(copy: In<c_void>, stream: Handle) -> CuResult {
    boundary(|| copy_2d(copy, Some(stream)))
}

fn copy_3d(copy: In<c_void>, stream: Option<Handle>) -> Outcome {
    copy_planes(In(copy.0.cast::<Copy3d>()).get()?, stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy3D_v2(copy: In<c_void>) -> CuResult {
    boundary(|| copy_3d(copy, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy3DAsync_v2(copy: In<c_void>, stream: Handle) -> CuResult {
    boundary(|| copy_3d(copy, Some(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy3DPeer(copy: In<c_void>) -> CuResult {
    boundary(|| copy_3d(copy, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy3DPeerAsync(copy: In<c_void>, stream: Handle) -> CuResult {
    boundary(|| copy_3d(copy, Some(stream)))
}

/// Memory is where it is; the call only has to be sound.
fn prefetch(pointer: DevicePointer, bytes: usize, device: c_int, stream: Handle) -> Outcome {
    let driver = Driver::get()?;
    context::stream(driver, stream)?;
    if device >= 0 {
        driver.device(device)?;
    }
    let reach = Reach::Read(context::current_device(driver));
    driver.memory.classify(driver, pointer as usize, bytes, reach)?.map(|_| ()).ok_or(CudaError::INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync(pointer: DevicePointer, bytes: usize, device: c_int, stream: Handle) -> CuResult {
    boundary(|| prefetch(pointer, bytes, device, stream))
}

/// `CUmemLocation`
#[derive(Clone, Copy)]
#[repr(C)]
struct Location {
    kind: c_int,
    id: c_int,
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPrefetchAsync_v2(
    pointer: DevicePointer,
    bytes: usize,
    location: Location,
    _flags: c_uint,
    stream: Handle,
) -> CuResult {
    // Kind 1 is a device; the others are host memory.
    boundary(|| prefetch(pointer, bytes, if location.kind == 1 { location.id } else { -1 }, stream))
}
