//! `cudaStreamGetCaptureInfo` in the forms of CUDA 12: each is a prefix of the one after it.

use std::ffi::c_int;

use super::context::call;
use super::error::Code;
use super::{Address, Handle, Out, driver};

#[unsafe(export_name = "softcudart12_cudaStreamGetCaptureInfo")]
extern "C" fn get_capture_info(stream: Handle, status: Out<c_int>, id: Out<u64>) -> Code {
    call(|| driver::cuStreamGetCaptureInfo_v3(stream, status, id, None, None, None, None))
}

#[unsafe(export_name = "softcudart12_cudaStreamGetCaptureInfo_v2")]
extern "C" fn get_capture_info_v2(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<Address>,
    count: Out<usize>,
) -> Code {
    call(|| driver::cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count))
}

/// With edge data.
#[unsafe(export_name = "softcudart12_cudaStreamGetCaptureInfo_v3")]
extern "C" fn get_capture_info_v3(
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
