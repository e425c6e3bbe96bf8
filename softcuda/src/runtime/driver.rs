//! The driver API as the runtime calls it: the public symbols of this same library.
//!
//! Functions that only take handles, numbers and out-parameters are `safe`: the driver checks
//! handles, and an out-parameter is a reference. Functions that write memory at an address or run
//! foreign code are not.

#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{Address, Handle, Out};

/// A `CUresult`.
pub(super) type Status = i32;

/// A function that a stream calls.
pub(super) type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;

/// A callback of `cuStreamAddCallback`: stream, status, data.
pub(super) type StreamCallback = Option<unsafe extern "C" fn(Handle, Status, *mut c_void)>;

/// 64 bytes that mean something to the driver of another process.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// `CUDA_MEMCPY2D_v2`.
#[repr(C)]
pub(super) struct Copy2d {
    pub(super) src_x: usize,
    pub(super) src_y: usize,
    pub(super) src_type: u32,
    pub(super) src_host: Address,
    pub(super) src_device: Address,
    pub(super) src_array: Handle,
    pub(super) src_pitch: usize,
    pub(super) dst_x: usize,
    pub(super) dst_y: usize,
    pub(super) dst_type: u32,
    pub(super) dst_host: Address,
    pub(super) dst_device: Address,
    pub(super) dst_array: Handle,
    pub(super) dst_pitch: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(super) struct LaunchConfig {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
    pub(super) stream: Handle,
    pub(super) attributes: Address,
    pub(super) nattributes: u32,
}

// SAFETY: the prototypes are those of cuda.h, which tests/headers.rs holds against NVIDIA's.
unsafe extern "C" {
    pub(super) safe fn cuInit(flags: c_uint) -> Status;
    pub(super) safe fn cuDriverGetVersion(version: Out<c_int>) -> Status;
    pub(super) safe fn cuGetErrorString(status: Status, text: Out<*const c_char>) -> Status;
    pub(super) fn cuGetProcAddress_v2(
        symbol: *const c_char,
        function: Out<*mut c_void>,
        version: c_int,
        flags: u64,
        found: Out<c_int>,
    ) -> Status;

    pub(super) safe fn cuDeviceGetCount(count: Out<c_int>) -> Status;
    pub(super) fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> Status;
    pub(super) safe fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) -> Status;
    pub(super) safe fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> Status;
    pub(super) safe fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Status;
    pub(super) fn cuDeviceGetByPCIBusId(device: Out<c_int>, bus_id: *const c_char) -> Status;
    pub(super) fn cuDeviceGetPCIBusId(bus_id: *mut c_char, len: c_int, device: c_int) -> Status;
    pub(super) safe fn cuDeviceCanAccessPeer(answer: Out<c_int>, device: c_int, peer: c_int) -> Status;
    pub(super) safe fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, src: c_int, dst: c_int) -> Status;
    pub(super) safe fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) -> Status;
    pub(super) safe fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) -> Status;
    pub(super) safe fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) -> Status;
    pub(super) safe fn cuDevicePrimaryCtxReset_v2(device: c_int) -> Status;
    pub(super) safe fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Status;

    pub(super) safe fn cuCtxGetCurrent(context: Out<Handle>) -> Status;
    pub(super) safe fn cuCtxSetCurrent(context: Handle) -> Status;
    pub(super) safe fn cuCtxGetDevice(device: Out<c_int>) -> Status;
    pub(super) safe fn cuCtxSynchronize() -> Status;
    pub(super) safe fn cuCtxSetLimit(limit: c_int, value: usize) -> Status;
    pub(super) safe fn cuCtxGetLimit(value: Out<usize>, limit: c_int) -> Status;
    pub(super) safe fn cuCtxSetCacheConfig(config: c_int) -> Status;
    pub(super) safe fn cuCtxGetCacheConfig(config: Out<c_int>) -> Status;
    pub(super) safe fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) -> Status;
    pub(super) safe fn cuCtxEnablePeerAccess(peer: Handle, flags: c_uint) -> Status;
    pub(super) safe fn cuCtxDisablePeerAccess(peer: Handle) -> Status;

    pub(super) safe fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Status;
    pub(super) safe fn cuMemAlloc_v2(ptr: Out<Address>, size: usize) -> Status;
    pub(super) safe fn cuMemAllocPitch_v2(
        ptr: Out<Address>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        element: c_uint,
    ) -> Status;
    pub(super) safe fn cuMemFree_v2(ptr: Address) -> Status;
    pub(super) safe fn cuMemHostAlloc(ptr: Out<Address>, size: usize, flags: c_uint) -> Status;
    pub(super) safe fn cuMemFreeHost(ptr: Address) -> Status;
    pub(super) safe fn cuMemAllocManaged(ptr: Out<Address>, size: usize, flags: c_uint) -> Status;
    pub(super) safe fn cuMemAllocAsync(ptr: Out<Address>, size: usize, stream: Handle) -> Status;
    pub(super) safe fn cuMemFreeAsync(ptr: Address, stream: Handle) -> Status;
    pub(super) safe fn cuMemHostRegister_v2(ptr: Address, size: usize, flags: c_uint) -> Status;
    pub(super) safe fn cuMemHostUnregister(ptr: Address) -> Status;
    pub(super) safe fn cuMemHostGetDevicePointer_v2(device: Out<Address>, host: Address, flags: c_uint) -> Status;
    pub(super) safe fn cuMemHostGetFlags(flags: Out<c_uint>, host: Address) -> Status;
    pub(super) fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *const c_uint,
        data: *const *mut c_void,
        ptr: Address,
    ) -> Status;
    pub(super) safe fn cuIpcGetMemHandle(handle: Out<IpcHandle>, ptr: Address) -> Status;
    pub(super) safe fn cuIpcOpenMemHandle_v2(ptr: Out<Address>, handle: IpcHandle, flags: c_uint) -> Status;
    pub(super) safe fn cuIpcCloseMemHandle(ptr: Address) -> Status;
    pub(super) safe fn cuIpcGetEventHandle(handle: Out<IpcHandle>, event: Handle) -> Status;
    pub(super) safe fn cuIpcOpenEventHandle(event: Out<Handle>, handle: IpcHandle) -> Status;

    pub(super) safe fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) -> Status;
    pub(super) safe fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) -> Status;
    pub(super) safe fn cuDeviceSetMemPool(device: c_int, pool: Handle) -> Status;
    pub(super) fn cuMemPoolCreate(pool: Out<Handle>, properties: *const c_void) -> Status;
    pub(super) safe fn cuMemPoolDestroy(pool: Handle) -> Status;
    pub(super) safe fn cuMemPoolTrimTo(pool: Handle, keep: usize) -> Status;
    pub(super) fn cuMemPoolGetAttribute(pool: Handle, attribute: c_int, value: *mut c_void) -> Status;
    pub(super) fn cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: *mut c_void) -> Status;
    pub(super) fn cuMemPoolGetAccess(flags: Out<c_int>, pool: Handle, location: *mut c_void) -> Status;
    pub(super) fn cuMemPoolSetAccess(pool: Handle, access: *const c_void, count: usize) -> Status;
    pub(super) safe fn cuMemAllocFromPoolAsync(ptr: Out<Address>, size: usize, pool: Handle, stream: Handle) -> Status;

    pub(super) fn cuMemcpy(dst: Address, src: Address, bytes: usize) -> Status;
    pub(super) fn cuMemcpyHtoD_v2(dst: Address, src: Address, bytes: usize) -> Status;
    pub(super) fn cuMemcpyDtoH_v2(dst: Address, src: Address, bytes: usize) -> Status;
    pub(super) fn cuMemcpyDtoD_v2(dst: Address, src: Address, bytes: usize) -> Status;
    pub(super) fn cuMemcpyAsync(dst: Address, src: Address, bytes: usize, stream: Handle) -> Status;
    pub(super) fn cuMemcpyHtoDAsync_v2(dst: Address, src: Address, bytes: usize, stream: Handle) -> Status;
    pub(super) fn cuMemcpyDtoHAsync_v2(dst: Address, src: Address, bytes: usize, stream: Handle) -> Status;
    pub(super) fn cuMemcpyDtoDAsync_v2(dst: Address, src: Address, bytes: usize, stream: Handle) -> Status;
    pub(super) fn cuMemcpyPeer(
        dst: Address,
        dst_context: Handle,
        src: Address,
        src_context: Handle,
        bytes: usize,
    ) -> Status;
    pub(super) fn cuMemcpyPeerAsync(
        dst: Address,
        dst_context: Handle,
        src: Address,
        src_context: Handle,
        bytes: usize,
        stream: Handle,
    ) -> Status;
    pub(super) fn cuMemcpy2DUnaligned_v2(copy: &Copy2d) -> Status;
    pub(super) fn cuMemcpy2DAsync_v2(copy: &Copy2d, stream: Handle) -> Status;
    pub(super) fn cuMemsetD8_v2(dst: Address, value: u8, count: usize) -> Status;
    pub(super) fn cuMemsetD8Async(dst: Address, value: u8, count: usize, stream: Handle) -> Status;
    pub(super) fn cuMemsetD2D8_v2(dst: Address, pitch: usize, value: u8, width: usize, height: usize) -> Status;
    pub(super) fn cuMemsetD2D8Async(
        dst: Address,
        pitch: usize,
        value: u8,
        width: usize,
        height: usize,
        stream: Handle,
    ) -> Status;

    pub(super) safe fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) -> Status;
    pub(super) safe fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Status;
    pub(super) safe fn cuStreamDestroy_v2(stream: Handle) -> Status;
    pub(super) safe fn cuStreamQuery(stream: Handle) -> Status;
    pub(super) safe fn cuStreamSynchronize(stream: Handle) -> Status;
    pub(super) safe fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> Status;
    pub(super) safe fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) -> Status;
    pub(super) safe fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) -> Status;
    pub(super) safe fn cuStreamGetId(stream: Handle, id: Out<u64>) -> Status;
    pub(super) safe fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> Status;
    pub(super) fn cuStreamAddCallback(
        stream: Handle,
        callback: StreamCallback,
        data: *mut c_void,
        flags: c_uint,
    ) -> Status;
    pub(super) fn cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void) -> Status;
    pub(super) safe fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) -> Status;
    pub(super) safe fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        dependencies: Out<Address>,
        count: Out<usize>,
    ) -> Status;
    pub(super) safe fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<c_int>,
        id: Out<u64>,
        graph: Out<Handle>,
        dependencies: Out<Address>,
        edges: Out<Address>,
        count: Out<usize>,
    ) -> Status;
    pub(super) fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Status;

    pub(super) safe fn cuEventCreate(event: Out<Handle>, flags: c_uint) -> Status;
    pub(super) safe fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) -> Status;
    pub(super) safe fn cuEventQuery(event: Handle) -> Status;
    pub(super) safe fn cuEventSynchronize(event: Handle) -> Status;
    pub(super) safe fn cuEventDestroy_v2(event: Handle) -> Status;
    pub(super) safe fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) -> Status;

    pub(super) safe fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) -> Status;
    pub(super) safe fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> Status;
    pub(super) safe fn cuFuncSetCacheConfig(function: Handle, config: c_int) -> Status;
    pub(super) fn cuLaunchKernelEx(
        config: &LaunchConfig,
        function: Handle,
        params: *const *const c_void,
        extra: *const *const c_void,
    ) -> Status;
    pub(super) fn cuLaunchCooperativeKernel(
        function: Handle,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        stream: Handle,
        params: *const *const c_void,
    ) -> Status;
    pub(super) safe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>,
        function: Handle,
        block_size: c_int,
        shared: usize,
        flags: c_uint,
    ) -> Status;
}
