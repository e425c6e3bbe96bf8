//! Events, and events of other processes.

use std::ffi::c_uint;

use super::context::call;
use super::driver::{self, IpcHandle};
use super::error::Code;
use super::{Handle, Out};

#[unsafe(export_name = "softcudart_cudaEventCreate")]
extern "C" fn create(event: Out<Handle>) -> Code {
    call(|| driver::cuEventCreate(event, 0))
}

#[unsafe(export_name = "softcudart_cudaEventCreateWithFlags")]
extern "C" fn create_with_flags(event: Out<Handle>, flags: c_uint) -> Code {
    call(|| driver::cuEventCreate(event, flags))
}

#[unsafe(export_name = "softcudart_cudaEventRecord")]
extern "C" fn record(event: Handle, stream: Handle) -> Code {
    call(|| driver::cuEventRecordWithFlags(event, stream, 0))
}

#[unsafe(export_name = "softcudart_cudaEventRecordWithFlags")]
extern "C" fn record_with_flags(event: Handle, stream: Handle, flags: c_uint) -> Code {
    call(|| driver::cuEventRecordWithFlags(event, stream, flags))
}

#[unsafe(export_name = "softcudart_cudaEventQuery")]
extern "C" fn query(event: Handle) -> Code {
    call(|| driver::cuEventQuery(event))
}

#[unsafe(export_name = "softcudart_cudaEventSynchronize")]
extern "C" fn synchronize(event: Handle) -> Code {
    call(|| driver::cuEventSynchronize(event))
}

#[unsafe(export_name = "softcudart_cudaEventDestroy")]
extern "C" fn destroy(event: Handle) -> Code {
    call(|| driver::cuEventDestroy_v2(event))
}

#[unsafe(export_name = "softcudart_cudaEventElapsedTime")]
extern "C" fn elapsed_time(milliseconds: Out<f32>, start: Handle, end: Handle) -> Code {
    call(|| driver::cuEventElapsedTime_v2(milliseconds, start, end))
}

/// The newer name in CUDA 12 of what CUDA 13 has under the old one.
#[unsafe(export_name = "softcudart12_cudaEventElapsedTime_v2")]
extern "C" fn elapsed_time_v2(milliseconds: Out<f32>, start: Handle, end: Handle) -> Code {
    elapsed_time(milliseconds, start, end)
}

#[unsafe(export_name = "softcudart_cudaIpcGetEventHandle")]
extern "C" fn ipc_get_handle(handle: Out<IpcHandle>, event: Handle) -> Code {
    call(|| driver::cuIpcGetEventHandle(handle, event))
}

#[unsafe(export_name = "softcudart_cudaIpcOpenEventHandle")]
extern "C" fn ipc_open_handle(event: Out<Handle>, handle: IpcHandle) -> Code {
    call(|| driver::cuIpcOpenEventHandle(event, handle))
}
