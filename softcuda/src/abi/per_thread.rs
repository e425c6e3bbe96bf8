//! The forms of functions for programs whose default stream is per thread (`--default-stream per-thread`,
//! `CUDA_API_PER_THREAD_DEFAULT_STREAM`): names with `_ptds` where the default stream is implied, with `_ptsz` where a
//! stream of 0 means it. `cuGetProcAddress` gives them for its flag. Each is the function itself with another meaning
//! of stream 0; `SOFTCUDA_FAULT` knows it by the function's own name.

use super::{CuResult, DevicePointer, Handle};
use crate::context::with_own_default;
use std::ffi::{c_int, c_uchar, c_uint, c_ushort, c_void};

macro_rules! own_default {
    ($($form:ident = $function:ident($($argument:ident: $kind:ty),*);)*) => {
        // SAFETY: the exported functions of this room. What is a reference or a structure of 8 bytes there is an
        // address or a number here, passed on as it is; each looks at its arguments as it does when a C program calls
        // it.
        unsafe extern "C" {
            $(safe fn $function($($argument: $kind),*) -> CuResult;)*
        }
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $form($($argument: $kind),*) -> CuResult {
                with_own_default(|| $function($($argument),*))
            }
        )*
    };
}

own_default! {
    cuMemcpy_ptds = cuMemcpy(to: DevicePointer, from: DevicePointer, bytes: usize);
    cuMemcpyHtoD_v2_ptds = cuMemcpyHtoD_v2(to: DevicePointer, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2_ptds = cuMemcpyDtoH_v2(to: *const c_void, from: DevicePointer, bytes: usize);
    cuMemcpyDtoD_v2_ptds = cuMemcpyDtoD_v2(to: DevicePointer, from: DevicePointer, bytes: usize);
    cuMemcpyPeer_ptds = cuMemcpyPeer(
        to: DevicePointer, to_context: Handle, from: DevicePointer, from_context: Handle, bytes: usize
    );
    cuMemcpy2D_v2_ptds = cuMemcpy2D_v2(copy: *const c_void);
    cuMemcpy2DUnaligned_v2_ptds = cuMemcpy2DUnaligned_v2(copy: *const c_void);
    cuMemcpy3D_v2_ptds = cuMemcpy3D_v2(copy: *const c_void);
    cuMemcpy3DPeer_ptds = cuMemcpy3DPeer(copy: *const c_void);
    cuMemsetD8_v2_ptds = cuMemsetD8_v2(to: DevicePointer, value: c_uchar, count: usize);
    cuMemsetD16_v2_ptds = cuMemsetD16_v2(to: DevicePointer, value: c_ushort, count: usize);
    cuMemsetD32_v2_ptds = cuMemsetD32_v2(to: DevicePointer, value: c_uint, count: usize);
    cuMemsetD2D8_v2_ptds = cuMemsetD2D8_v2(
        to: DevicePointer, pitch: usize, value: c_uchar, width: usize, height: usize
    );
    cuMemsetD2D16_v2_ptds = cuMemsetD2D16_v2(
        to: DevicePointer, pitch: usize, value: c_ushort, width: usize, height: usize
    );
    cuMemsetD2D32_v2_ptds = cuMemsetD2D32_v2(
        to: DevicePointer, pitch: usize, value: c_uint, width: usize, height: usize
    );
    cuMemcpyAsync_ptsz = cuMemcpyAsync(to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2_ptsz = cuMemcpyHtoDAsync_v2(
        to: DevicePointer, from: *const c_void, bytes: usize, stream: Handle
    );
    cuMemcpyDtoHAsync_v2_ptsz = cuMemcpyDtoHAsync_v2(
        to: *const c_void, from: DevicePointer, bytes: usize, stream: Handle
    );
    cuMemcpyDtoDAsync_v2_ptsz = cuMemcpyDtoDAsync_v2(
        to: DevicePointer, from: DevicePointer, bytes: usize, stream: Handle
    );
    cuMemcpyPeerAsync_ptsz = cuMemcpyPeerAsync(
        to: DevicePointer, to_context: Handle, from: DevicePointer, from_context: Handle, bytes: usize, stream: Handle
    );
    cuMemcpy2DAsync_v2_ptsz = cuMemcpy2DAsync_v2(copy: *const c_void, stream: Handle);
    cuMemcpy3DAsync_v2_ptsz = cuMemcpy3DAsync_v2(copy: *const c_void, stream: Handle);
    cuMemcpy3DPeerAsync_ptsz = cuMemcpy3DPeerAsync(copy: *const c_void, stream: Handle);
    cuMemPrefetchAsync_v2_ptsz = cuMemPrefetchAsync_v2(
        pointer: DevicePointer, bytes: usize, location: u64, flags: c_uint, stream: Handle
    );
    cuMemsetD8Async_ptsz = cuMemsetD8Async(to: DevicePointer, value: c_uchar, count: usize, stream: Handle);
    cuMemsetD16Async_ptsz = cuMemsetD16Async(to: DevicePointer, value: c_ushort, count: usize, stream: Handle);
    cuMemsetD32Async_ptsz = cuMemsetD32Async(to: DevicePointer, value: c_uint, count: usize, stream: Handle);
    cuMemsetD2D8Async_ptsz = cuMemsetD2D8Async(
        to: DevicePointer, pitch: usize, value: c_uchar, width: usize, height: usize, stream: Handle
    );
    cuMemsetD2D16Async_ptsz = cuMemsetD2D16Async(
        to: DevicePointer, pitch: usize, value: c_ushort, width: usize, height: usize, stream: Handle
    );
    cuMemsetD2D32Async_ptsz = cuMemsetD2D32Async(
        to: DevicePointer, pitch: usize, value: c_uint, width: usize, height: usize, stream: Handle
    );
    cuMemAllocAsync_ptsz = cuMemAllocAsync(to: *const c_void, bytes: usize, stream: Handle);
    cuMemAllocFromPoolAsync_ptsz = cuMemAllocFromPoolAsync(
        to: *const c_void, bytes: usize, pool: Handle, stream: Handle
    );
    cuMemFreeAsync_ptsz = cuMemFreeAsync(pointer: DevicePointer, stream: Handle);
    cuStreamGetPriority_ptsz = cuStreamGetPriority(stream: Handle, to: *const c_void);
    cuStreamGetFlags_ptsz = cuStreamGetFlags(stream: Handle, to: *const c_void);
    cuStreamGetId_ptsz = cuStreamGetId(stream: Handle, to: *const c_void);
    cuStreamGetCtx_ptsz = cuStreamGetCtx(stream: Handle, to: *const c_void);
    cuStreamGetCtx_v2_ptsz = cuStreamGetCtx_v2(stream: Handle, to: *const c_void, green: *const c_void);
    cuStreamGetDevResource_ptsz = cuStreamGetDevResource(stream: Handle, to: *const c_void, kind: c_uint);
    cuStreamGetDevice_ptsz = cuStreamGetDevice(stream: Handle, to: *const c_void);
    cuStreamCopyAttributes_ptsz = cuStreamCopyAttributes(to: Handle, from: Handle);
    cuStreamWaitEvent_ptsz = cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    cuStreamQuery_ptsz = cuStreamQuery(stream: Handle);
    cuStreamSynchronize_ptsz = cuStreamSynchronize(stream: Handle);
    cuStreamAddCallback_ptsz = cuStreamAddCallback(
        stream: Handle, function: *const c_void, data: *const c_void, flags: c_uint
    );
    cuStreamIsCapturing_ptsz = cuStreamIsCapturing(stream: Handle, status: *const c_void);
    cuStreamGetCaptureInfo_v2_ptsz = cuStreamGetCaptureInfo_v2(
        stream: Handle, status: *const c_void, id: *const c_void, graph: *const c_void, dependencies: *const c_void,
        count: *const c_void
    );
    cuStreamGetCaptureInfo_v3_ptsz = cuStreamGetCaptureInfo_v3(
        stream: Handle, status: *const c_void, id: *const c_void, graph: *const c_void, dependencies: *const c_void,
        edges: *const c_void, count: *const c_void
    );
    cuStreamBeginCapture_v2_ptsz = cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamBeginCaptureToGraph_ptsz = cuStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, dependencies: *const c_void, edges: *const c_void, count: usize, mode: c_int
    );
    cuStreamEndCapture_ptsz = cuStreamEndCapture(stream: Handle, graph: *const c_void);
    cuStreamUpdateCaptureDependencies_v2_ptsz = cuStreamUpdateCaptureDependencies_v2(
        stream: Handle, dependencies: *const c_void, edges: *const c_void, count: usize, flags: c_uint
    );
    cuStreamWriteValue32_v2_ptsz = cuStreamWriteValue32_v2(
        stream: Handle, address: DevicePointer, value: u32, flags: c_uint
    );
    cuStreamWriteValue64_v2_ptsz = cuStreamWriteValue64_v2(
        stream: Handle, address: DevicePointer, value: u64, flags: c_uint
    );
    cuStreamWaitValue32_v2_ptsz = cuStreamWaitValue32_v2(
        stream: Handle, address: DevicePointer, value: u32, flags: c_uint
    );
    cuStreamWaitValue64_v2_ptsz = cuStreamWaitValue64_v2(
        stream: Handle, address: DevicePointer, value: u64, flags: c_uint
    );
    cuStreamBatchMemOp_ptsz = cuStreamBatchMemOp(
        stream: Handle, count: c_uint, operations: *const c_void, flags: c_uint
    );
    cuStreamBatchMemOp_v2_ptsz = cuStreamBatchMemOp_v2(
        stream: Handle, count: c_uint, operations: *const c_void, flags: c_uint
    );
    cuEventRecord_ptsz = cuEventRecord(event: Handle, stream: Handle);
    cuEventRecordWithFlags_ptsz = cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    cuLaunchHostFunc_ptsz = cuLaunchHostFunc(stream: Handle, function: *const c_void, data: *const c_void);
    cuLaunchHostFunc_v2_ptsz = cuLaunchHostFunc_v2(
        stream: Handle, function: *const c_void, data: *const c_void, mode: c_uint
    );
    cuLaunchKernel_ptsz = cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic: c_uint, stream: Handle, parameters: *const c_void, extra: *const c_void
    );
    cuLaunchCooperativeKernel_ptsz = cuLaunchCooperativeKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
        block_z: c_uint, dynamic: c_uint, stream: Handle, parameters: *const c_void
    );
    cuLaunchKernelEx_ptsz = cuLaunchKernelEx(
        config: *const c_void, function: Handle, parameters: *const c_void, extra: *const c_void
    );
    cuGraphLaunch_ptsz = cuGraphLaunch(graph: Handle, stream: Handle);
    cuGraphUpload_ptsz = cuGraphUpload(graph: Handle, stream: Handle);
    cuGraphInstantiateWithParams_ptsz = cuGraphInstantiateWithParams(
        to: *const c_void, graph: Handle, parameters: *const c_void
    );
}
