//! The runtime for programs whose default stream is per thread (`nvcc --default-stream per-thread`): names with `_ptds`
//! where the default stream is implied, with `_ptsz` where a stream of 0 means it. Each is the function itself with
//! another meaning of stream 0.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::error::Code;
use super::{Address, Dim3, Handle};
use crate::context::with_own_default;

macro_rules! own_default {
    ($(#[$name:meta] $form:ident = $function:ident($($argument:ident: $kind:ty),*);)*) => {
        // SAFETY: the exported functions of this room, of the same ABI: what is a reference there is an address here,
        // passed on as it is; each treats its arguments as it does when a C program calls it.
        unsafe extern "C" {
            $(safe fn $function($($argument: $kind),*) -> Code;)*
        }
        $(
            #[$name]
            extern "C" fn $form($($argument: $kind),*) -> Code {
                with_own_default(|| $function($($argument),*))
            }
        )*
    };
}

own_default! {
    #[unsafe(export_name = "softcudart_cudaMemcpy_ptds")]
    memcpy = softcudart_cudaMemcpy(to: Address, from: Address, bytes: usize, kind: c_int);
    #[unsafe(export_name = "softcudart_cudaMemcpy2D_ptds")]
    memcpy_2d = softcudart_cudaMemcpy2D(
        to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int
    );
    #[unsafe(export_name = "softcudart_cudaMemset_ptds")]
    memset = softcudart_cudaMemset(to: Address, value: c_int, bytes: usize);
    #[unsafe(export_name = "softcudart_cudaMemset2D_ptds")]
    memset_2d = softcudart_cudaMemset2D(to: Address, pitch: usize, value: c_int, width: usize, height: usize);
    #[unsafe(export_name = "softcudart_cudaMemcpyAsync_ptsz")]
    memcpy_async = softcudart_cudaMemcpyAsync(to: Address, from: Address, bytes: usize, kind: c_int, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaMemcpy2DAsync_ptsz")]
    memcpy_2d_async = softcudart_cudaMemcpy2DAsync(
        to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int,
        stream: Handle
    );
    #[unsafe(export_name = "softcudart_cudaMemsetAsync_ptsz")]
    memset_async = softcudart_cudaMemsetAsync(to: Address, value: c_int, bytes: usize, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaMemset2DAsync_ptsz")]
    memset_2d_async = softcudart_cudaMemset2DAsync(
        to: Address, pitch: usize, value: c_int, width: usize, height: usize, stream: Handle
    );
    #[unsafe(export_name = "softcudart_cudaMallocAsync_ptsz")]
    malloc_async = softcudart_cudaMallocAsync(to: *const c_void, bytes: usize, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaMallocFromPoolAsync_ptsz")]
    malloc_from_pool_async = softcudart_cudaMallocFromPoolAsync(
        to: *const c_void, bytes: usize, pool: Handle, stream: Handle
    );
    #[unsafe(export_name = "softcudart_cudaFreeAsync_ptsz")]
    free_async = softcudart_cudaFreeAsync(pointer: Address, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaStreamGetPriority_ptsz")]
    stream_get_priority = softcudart_cudaStreamGetPriority(stream: Handle, to: *const c_void);
    #[unsafe(export_name = "softcudart_cudaStreamGetFlags_ptsz")]
    stream_get_flags = softcudart_cudaStreamGetFlags(stream: Handle, to: *const c_void);
    #[unsafe(export_name = "softcudart_cudaStreamGetId_ptsz")]
    stream_get_id = softcudart_cudaStreamGetId(stream: Handle, to: *const c_void);
    #[unsafe(export_name = "softcudart_cudaStreamGetDevice_ptsz")]
    stream_get_device = softcudart_cudaStreamGetDevice(stream: Handle, to: *const c_void);
    #[unsafe(export_name = "softcudart_cudaStreamWaitEvent_ptsz")]
    stream_wait_event = softcudart_cudaStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint);
    #[unsafe(export_name = "softcudart_cudaStreamQuery_ptsz")]
    stream_query = softcudart_cudaStreamQuery(stream: Handle);
    #[unsafe(export_name = "softcudart_cudaStreamSynchronize_ptsz")]
    stream_synchronize = softcudart_cudaStreamSynchronize(stream: Handle);
    #[unsafe(export_name = "softcudart_cudaStreamAddCallback_ptsz")]
    stream_add_callback = softcudart_cudaStreamAddCallback(
        stream: Handle, function: *const c_void, data: *const c_void, flags: c_uint
    );
    #[unsafe(export_name = "softcudart_cudaStreamIsCapturing_ptsz")]
    stream_is_capturing = softcudart_cudaStreamIsCapturing(stream: Handle, status: *const c_void);
    #[unsafe(export_name = "softcudart_cudaEventRecord_ptsz")]
    event_record = softcudart_cudaEventRecord(event: Handle, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaEventRecordWithFlags_ptsz")]
    event_record_with_flags = softcudart_cudaEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint);
    #[unsafe(export_name = "softcudart_cudaLaunchHostFunc_ptsz")]
    launch_host_func = softcudart_cudaLaunchHostFunc(stream: Handle, function: *const c_void, data: *const c_void);
    #[unsafe(export_name = "softcudart_cudaLaunchKernel_ptsz")]
    launch_kernel = softcudart_cudaLaunchKernel(
        function: Address, grid: Dim3, block: Dim3, arguments: *const c_void, shared: usize, stream: Handle
    );
    #[unsafe(export_name = "softcudart___cudaLaunchKernel_ptsz")]
    launch_kernel_handle = softcudart___cudaLaunchKernel(
        function: Address, grid: Dim3, block: Dim3, arguments: *const c_void, shared: usize, stream: Handle
    );
    #[unsafe(export_name = "softcudart_cudaLaunchCooperativeKernel_ptsz")]
    launch_cooperative_kernel = softcudart_cudaLaunchCooperativeKernel(
        function: Address, grid: Dim3, block: Dim3, arguments: *const c_void, shared: usize, stream: Handle
    );
    #[unsafe(export_name = "softcudart_cudaLaunchKernelExC_ptsz")]
    launch_kernel_ex = softcudart_cudaLaunchKernelExC(
        config: *const c_void, function: Address, arguments: *const c_void
    );
    #[unsafe(export_name = "softcudart_cudaGraphLaunch_ptsz")]
    graph_launch = softcudart_cudaGraphLaunch(graph: Handle, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaGraphUpload_ptsz")]
    graph_upload = softcudart_cudaGraphUpload(graph: Handle, stream: Handle);
    #[unsafe(export_name = "softcudart_cudaGraphInstantiateWithParams_ptsz")]
    graph_instantiate = softcudart_cudaGraphInstantiateWithParams(
        to: *const c_void, graph: Handle, parameters: *const c_void
    );
    #[unsafe(export_name = "softcudart_cudaStreamBeginCapture_ptsz")]
    begin_capture = softcudart_cudaStreamBeginCapture(stream: Handle, mode: c_int);
    #[unsafe(export_name = "softcudart_cudaStreamBeginCaptureToGraph_ptsz")]
    begin_capture_to_graph = softcudart_cudaStreamBeginCaptureToGraph(
        stream: Handle, graph: Handle, dependencies: *const c_void, edges: *const c_void, count: usize, mode: c_int
    );
    #[unsafe(export_name = "softcudart_cudaStreamEndCapture_ptsz")]
    end_capture = softcudart_cudaStreamEndCapture(stream: Handle, graph: *const c_void);
    #[unsafe(export_name = "softcudart12_cudaStreamUpdateCaptureDependencies_ptsz")]
    update_capture_12 = softcudart12_cudaStreamUpdateCaptureDependencies(
        stream: Handle, dependencies: *const c_void, count: usize, flags: c_uint
    );
    #[unsafe(export_name = "softcudart12_cudaStreamUpdateCaptureDependencies_v2_ptsz")]
    update_capture_12_v2 = softcudart12_cudaStreamUpdateCaptureDependencies_v2(
        stream: Handle, dependencies: *const c_void, edges: *const c_void, count: usize, flags: c_uint
    );
    #[unsafe(export_name = "softcudart13_cudaStreamUpdateCaptureDependencies_ptsz")]
    update_capture_13 = softcudart13_cudaStreamUpdateCaptureDependencies(
        stream: Handle, dependencies: *const c_void, edges: *const c_void, count: usize, flags: c_uint
    );
    #[unsafe(export_name = "softcudart12_cudaStreamGetCaptureInfo_ptsz")]
    capture_info_12 = softcudart12_cudaStreamGetCaptureInfo(stream: Handle, status: *const c_void, id: *const c_void);
    #[unsafe(export_name = "softcudart12_cudaStreamGetCaptureInfo_v2_ptsz")]
    capture_info_12_v2 = softcudart12_cudaStreamGetCaptureInfo_v2(
        stream: Handle, status: *const c_void, id: *const c_void, graph: *const c_void, dependencies: *const c_void,
        count: *const c_void
    );
    #[unsafe(export_name = "softcudart12_cudaStreamGetCaptureInfo_v3_ptsz")]
    capture_info_12_v3 = softcudart12_cudaStreamGetCaptureInfo_v3(
        stream: Handle, status: *const c_void, id: *const c_void, graph: *const c_void, dependencies: *const c_void,
        edges: *const c_void, count: *const c_void
    );
    #[unsafe(export_name = "softcudart13_cudaStreamGetCaptureInfo_ptsz")]
    capture_info_13 = softcudart13_cudaStreamGetCaptureInfo(
        stream: Handle, status: *const c_void, id: *const c_void, graph: *const c_void, dependencies: *const c_void,
        edges: *const c_void, count: *const c_void
    );
}

/// `cudaEnablePerThreadDefaultStream`
const PER_THREAD: u64 = 2;

// SAFETY: as above.
unsafe extern "C" {
    safe fn softcudart12_cudaGetDriverEntryPoint(
        name: *const c_char,
        to: *mut c_void,
        flags: u64,
        found: *mut c_int,
    ) -> Code;
    safe fn softcudart13_cudaGetDriverEntryPoint(
        name: *const c_char,
        to: *mut c_void,
        flags: u64,
        found: *mut c_int,
    ) -> Code;
    safe fn softcudart_cudaGetDriverEntryPointByVersion(
        name: *const c_char,
        to: *mut c_void,
        version: c_uint,
        flags: u64,
        found: *mut c_int,
    ) -> Code;
}

/// The default flags mean this form's own kind of default stream.
fn own_flags(flags: u64) -> u64 {
    if flags == 0 { PER_THREAD } else { flags }
}

#[unsafe(export_name = "softcudart12_cudaGetDriverEntryPoint_ptsz")]
extern "C" fn entry_point_12(name: *const c_char, to: *mut c_void, flags: u64, found: *mut c_int) -> Code {
    softcudart12_cudaGetDriverEntryPoint(name, to, own_flags(flags), found)
}

#[unsafe(export_name = "softcudart13_cudaGetDriverEntryPoint_ptsz")]
extern "C" fn entry_point_13(name: *const c_char, to: *mut c_void, flags: u64, found: *mut c_int) -> Code {
    softcudart13_cudaGetDriverEntryPoint(name, to, own_flags(flags), found)
}

#[unsafe(export_name = "softcudart_cudaGetDriverEntryPointByVersion_ptsz")]
extern "C" fn entry_point(
    name: *const c_char,
    to: *mut c_void,
    version: c_uint,
    flags: u64,
    found: *mut c_int,
) -> Code {
    softcudart_cudaGetDriverEntryPointByVersion(name, to, version, own_flags(flags), found)
}
