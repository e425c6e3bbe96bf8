//! Streams: the driver's own, so that a `cudaStream_t` and a `CUstream` are one object.

use std::ffi::{c_int, c_uint, c_void};

use super::context::{call, fetch, in_context};
use super::driver::{self, HostFunction, StreamCallback};
use super::error::{Code, INVALID_VALUE, check};
use super::{Address, Handle, Out};

#[unsafe(export_name = "softcudart_cudaStreamCreate")]
extern "C" fn create(stream: Out<Handle>) -> Code {
    call(|| driver::cuStreamCreate(stream, 0))
}

#[unsafe(export_name = "softcudart_cudaStreamCreateWithFlags")]
extern "C" fn create_with_flags(stream: Out<Handle>, flags: c_uint) -> Code {
    call(|| driver::cuStreamCreate(stream, flags))
}

#[unsafe(export_name = "softcudart_cudaStreamCreateWithPriority")]
extern "C" fn create_with_priority(stream: Out<Handle>, flags: c_uint, priority: c_int) -> Code {
    call(|| driver::cuStreamCreateWithPriority(stream, flags, priority))
}

#[unsafe(export_name = "softcudart_cudaStreamDestroy")]
extern "C" fn destroy(stream: Handle) -> Code {
    call(|| driver::cuStreamDestroy_v2(stream))
}

#[unsafe(export_name = "softcudart_cudaStreamQuery")]
extern "C" fn query(stream: Handle) -> Code {
    call(|| driver::cuStreamQuery(stream))
}

#[unsafe(export_name = "softcudart_cudaStreamSynchronize")]
extern "C" fn synchronize(stream: Handle) -> Code {
    call(|| driver::cuStreamSynchronize(stream))
}

#[unsafe(export_name = "softcudart_cudaStreamWaitEvent")]
extern "C" fn wait_event(stream: Handle, event: Handle, flags: c_uint) -> Code {
    call(|| driver::cuStreamWaitEvent(stream, event, flags))
}

#[unsafe(export_name = "softcudart_cudaStreamGetFlags")]
extern "C" fn get_flags(stream: Handle, flags: Out<c_uint>) -> Code {
    call(|| driver::cuStreamGetFlags(stream, flags))
}

#[unsafe(export_name = "softcudart_cudaStreamGetPriority")]
extern "C" fn get_priority(stream: Handle, priority: Out<c_int>) -> Code {
    call(|| driver::cuStreamGetPriority(stream, priority))
}

#[unsafe(export_name = "softcudart_cudaStreamGetId")]
extern "C" fn get_id(stream: Handle, id: Out<u64>) -> Code {
    call(|| driver::cuStreamGetId(stream, id))
}

#[unsafe(export_name = "softcudart_cudaStreamGetDevice")]
extern "C" fn get_device(stream: Handle, device: Out<c_int>) -> Code {
    in_context(|| {
        let device = device.ok_or(INVALID_VALUE)?;
        let context = fetch(|context| driver::cuStreamGetCtx(stream, context))?;
        let before = fetch(|out| driver::cuCtxGetCurrent(out))?;
        check(driver::cuCtxSetCurrent(context))?;
        let answer = fetch(|out| driver::cuCtxGetDevice(out));
        check(driver::cuCtxSetCurrent(before))?;
        device.write(answer?);
        Ok(())
    })
}

/// # Safety
/// `callback` may be called with `data` when the stream gets there.
#[unsafe(export_name = "softcudart_cudaStreamAddCallback")]
unsafe extern "C" fn add_callback(stream: Handle, callback: StreamCallback, data: *mut c_void, flags: c_uint) -> Code {
    // SAFETY: the caller's promise. The status that it is called with has the same number in both APIs.
    call(|| unsafe { driver::cuStreamAddCallback(stream, callback, data, flags) })
}

/// # Safety
/// `function` may be called with `data` when the stream gets there.
#[unsafe(export_name = "softcudart_cudaLaunchHostFunc")]
unsafe extern "C" fn launch_host_func(stream: Handle, function: HostFunction, data: *mut c_void) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuLaunchHostFunc(stream, function, data) })
}

#[unsafe(export_name = "softcudart_cudaStreamIsCapturing")]
extern "C" fn is_capturing(stream: Handle, status: Out<c_int>) -> Code {
    call(|| driver::cuStreamIsCapturing(stream, status))
}

/// The form of CUDA 13, with edge data.
#[unsafe(export_name = "softcudart13_cudaStreamGetCaptureInfo")]
extern "C" fn get_capture_info(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<Address>,
    edges: Out<Address>,
    count: Out<usize>,
) -> Code {
    call(|| driver::cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count))
}

/// # Safety
/// `mode` is readable and writable, or NULL.
#[unsafe(export_name = "softcudart_cudaThreadExchangeStreamCaptureMode")]
unsafe extern "C" fn exchange_capture_mode(mode: *mut c_int) -> Code {
    // SAFETY: the caller's pointer goes to the driver as it is.
    call(|| unsafe { driver::cuThreadExchangeStreamCaptureMode(mode) })
}
