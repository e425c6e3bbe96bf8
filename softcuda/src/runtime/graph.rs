//! Captures and graphs: the driver's own, so that a `cudaGraph_t` and a `CUgraph` are one object. Nodes' parameters are
//! in `graph_nodes`.

use std::ffi::{c_int, c_uint};

use super::context::call;
use super::driver::HostFunction;
use super::error::Code;
use super::{Address, Handle, Out, graph_driver as driver};

#[unsafe(export_name = "softcudart_cudaStreamBeginCapture")]
extern "C" fn stream_begin_capture(stream: Handle, mode: c_int) -> Code {
    call(|| driver::cuStreamBeginCapture_v2(stream, mode))
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaStreamBeginCaptureToGraph")]
unsafe extern "C" fn stream_begin_capture_to_graph(
    stream: Handle,
    graph: Handle,
    dependencies: Address,
    edges: Address,
    count: usize,
    mode: c_int,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode) })
}

#[unsafe(export_name = "softcudart_cudaStreamEndCapture")]
extern "C" fn stream_end_capture(stream: Handle, graph: Out<Handle>) -> Code {
    call(|| driver::cuStreamEndCapture(stream, graph))
}

/// The form of CUDA 13, with edge data, as those below.
///
/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart13_cudaStreamUpdateCaptureDependencies")]
unsafe extern "C" fn stream_update_capture_dependencies(
    stream: Handle,
    dependencies: Address,
    edges: Address,
    count: usize,
    flags: c_uint,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuStreamUpdateCaptureDependencies_v2(stream, dependencies, edges, count, flags) })
}

#[unsafe(export_name = "softcudart_cudaGraphCreate")]
extern "C" fn graph_create(graph: Out<Handle>, flags: c_uint) -> Code {
    call(|| driver::cuGraphCreate(graph, flags))
}

#[unsafe(export_name = "softcudart_cudaGraphDestroy")]
extern "C" fn graph_destroy(graph: Handle) -> Code {
    call(|| driver::cuGraphDestroy(graph))
}

#[unsafe(export_name = "softcudart_cudaGraphClone")]
extern "C" fn graph_clone(clone: Out<Handle>, graph: Handle) -> Code {
    call(|| driver::cuGraphClone(clone, graph))
}

#[unsafe(export_name = "softcudart_cudaGraphGetId")]
extern "C" fn graph_get_id(graph: Handle, id: Out<c_uint>) -> Code {
    call(|| driver::cuGraphGetId(graph, id))
}

/// # Safety
/// `path` is a C string or NULL.
#[unsafe(export_name = "softcudart_cudaGraphDebugDotPrint")]
unsafe extern "C" fn graph_debug_dot_print(graph: Handle, path: Address, flags: c_uint) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphDebugDotPrint(graph, path, flags) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaGraphGetNodes")]
unsafe extern "C" fn graph_get_nodes(graph: Handle, nodes: Address, count: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphGetNodes(graph, nodes, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaGraphGetRootNodes")]
unsafe extern "C" fn graph_get_root_nodes(graph: Handle, nodes: Address, count: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphGetRootNodes(graph, nodes, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart13_cudaGraphGetEdges")]
unsafe extern "C" fn graph_get_edges(
    graph: Handle,
    from: Address,
    to: Address,
    edges: Address,
    count: Address,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphGetEdges_v2(graph, from, to, edges, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart13_cudaGraphAddDependencies")]
unsafe extern "C" fn graph_add_dependencies(
    graph: Handle,
    from: Address,
    to: Address,
    edges: Address,
    count: usize,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddDependencies_v2(graph, from, to, edges, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart13_cudaGraphRemoveDependencies")]
unsafe extern "C" fn graph_remove_dependencies(
    graph: Handle,
    from: Address,
    to: Address,
    edges: Address,
    count: usize,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphRemoveDependencies_v2(graph, from, to, edges, count) })
}

#[unsafe(export_name = "softcudart_cudaGraphDestroyNode")]
extern "C" fn graph_destroy_node(node: Handle) -> Code {
    call(|| driver::cuGraphDestroyNode(node))
}

#[unsafe(export_name = "softcudart_cudaGraphNodeFindInClone")]
extern "C" fn graph_node_find_in_clone(node: Out<Handle>, original: Handle, clone: Handle) -> Code {
    call(|| driver::cuGraphNodeFindInClone(node, original, clone))
}

#[unsafe(export_name = "softcudart_cudaGraphNodeGetType")]
extern "C" fn graph_node_get_type(node: Handle, kind: Out<c_int>) -> Code {
    call(|| driver::cuGraphNodeGetType(node, kind))
}

#[unsafe(export_name = "softcudart_cudaGraphNodeGetContainingGraph")]
extern "C" fn graph_node_get_containing_graph(node: Handle, graph: Out<Handle>) -> Code {
    call(|| driver::cuGraphNodeGetContainingGraph(node, graph))
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart13_cudaGraphNodeGetDependencies")]
unsafe extern "C" fn graph_node_get_dependencies(node: Handle, nodes: Address, edges: Address, count: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphNodeGetDependencies_v2(node, nodes, edges, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart13_cudaGraphNodeGetDependentNodes")]
unsafe extern "C" fn graph_node_get_dependent_nodes(
    node: Handle,
    nodes: Address,
    edges: Address,
    count: Address,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphNodeGetDependentNodes_v2(node, nodes, edges, count) })
}

#[unsafe(export_name = "softcudart_cudaGraphNodeSetEnabled")]
extern "C" fn graph_node_set_enabled(exec: Handle, node: Handle, enabled: c_uint) -> Code {
    call(|| driver::cuGraphNodeSetEnabled(exec, node, enabled))
}

#[unsafe(export_name = "softcudart_cudaGraphNodeGetEnabled")]
extern "C" fn graph_node_get_enabled(exec: Handle, node: Handle, enabled: Out<c_uint>) -> Code {
    call(|| driver::cuGraphNodeGetEnabled(exec, node, enabled))
}

#[unsafe(export_name = "softcudart_cudaGraphInstantiate")]
extern "C" fn graph_instantiate(exec: Out<Handle>, graph: Handle, flags: u64) -> Code {
    call(|| driver::cuGraphInstantiateWithFlags(exec, graph, flags))
}

#[unsafe(export_name = "softcudart_cudaGraphInstantiateWithFlags")]
extern "C" fn graph_instantiate_with_flags(exec: Out<Handle>, graph: Handle, flags: u64) -> Code {
    call(|| driver::cuGraphInstantiateWithFlags(exec, graph, flags))
}

/// # Safety
/// The address is NULL or that of the struct that the call is about.
#[unsafe(export_name = "softcudart_cudaGraphInstantiateWithParams")]
unsafe extern "C" fn graph_instantiate_with_params(exec: Out<Handle>, graph: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphInstantiateWithParams(exec, graph, parameters) })
}

#[unsafe(export_name = "softcudart_cudaGraphUpload")]
extern "C" fn graph_upload(exec: Handle, stream: Handle) -> Code {
    call(|| driver::cuGraphUpload(exec, stream))
}

#[unsafe(export_name = "softcudart_cudaGraphLaunch")]
extern "C" fn graph_launch(exec: Handle, stream: Handle) -> Code {
    call(|| driver::cuGraphLaunch(exec, stream))
}

#[unsafe(export_name = "softcudart_cudaGraphExecDestroy")]
extern "C" fn graph_exec_destroy(exec: Handle) -> Code {
    call(|| driver::cuGraphExecDestroy(exec))
}

#[unsafe(export_name = "softcudart_cudaGraphExecGetFlags")]
extern "C" fn graph_exec_get_flags(exec: Handle, flags: Out<u64>) -> Code {
    call(|| driver::cuGraphExecGetFlags(exec, flags))
}

#[unsafe(export_name = "softcudart_cudaGraphExecGetId")]
extern "C" fn graph_exec_get_id(exec: Handle, id: Out<c_uint>) -> Code {
    call(|| driver::cuGraphExecGetId(exec, id))
}

/// # Safety
/// The address is NULL or that of the struct that the call is about.
#[unsafe(export_name = "softcudart_cudaGraphExecUpdate")]
unsafe extern "C" fn graph_exec_update(exec: Handle, graph: Handle, result: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphExecUpdate_v2(exec, graph, result) })
}

#[unsafe(export_name = "softcudart_cudaDeviceGraphMemTrim")]
extern "C" fn device_graph_mem_trim(device: c_int) -> Code {
    call(|| driver::cuDeviceGraphMemTrim(device))
}

/// # Safety
/// `value` is NULL or has the type of the attribute.
#[unsafe(export_name = "softcudart_cudaDeviceGetGraphMemAttribute")]
unsafe extern "C" fn device_get_graph_mem_attribute(device: c_int, attribute: c_int, value: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuDeviceGetGraphMemAttribute(device, attribute, value) })
}

/// # Safety
/// `value` is NULL or has the type of the attribute.
#[unsafe(export_name = "softcudart_cudaDeviceSetGraphMemAttribute")]
unsafe extern "C" fn device_set_graph_mem_attribute(device: c_int, attribute: c_int, value: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuDeviceSetGraphMemAttribute(device, attribute, value) })
}

/// # Safety
/// `destructor` may be called with `data` when nobody refers to the object any more.
#[unsafe(export_name = "softcudart_cudaUserObjectCreate")]
unsafe extern "C" fn user_object_create(
    object: Out<Handle>,
    data: Address,
    destructor: HostFunction,
    references: c_uint,
    flags: c_uint,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuUserObjectCreate(object, data, destructor, references, flags) })
}

#[unsafe(export_name = "softcudart_cudaUserObjectRetain")]
extern "C" fn user_object_retain(object: Handle, count: c_uint) -> Code {
    call(|| driver::cuUserObjectRetain(object, count))
}

#[unsafe(export_name = "softcudart_cudaUserObjectRelease")]
extern "C" fn user_object_release(object: Handle, count: c_uint) -> Code {
    call(|| driver::cuUserObjectRelease(object, count))
}

#[unsafe(export_name = "softcudart_cudaGraphRetainUserObject")]
extern "C" fn graph_retain_user_object(graph: Handle, object: Handle, count: c_uint, flags: c_uint) -> Code {
    call(|| driver::cuGraphRetainUserObject(graph, object, count, flags))
}

#[unsafe(export_name = "softcudart_cudaGraphReleaseUserObject")]
extern "C" fn graph_release_user_object(graph: Handle, object: Handle, count: c_uint) -> Code {
    call(|| driver::cuGraphReleaseUserObject(graph, object, count))
}
