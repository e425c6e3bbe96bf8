//! Graphs as the runtime of CUDA 12 has them: calls without edge data, and with them under names of their own.

use std::ffi::c_uint;

use super::context::call;
use super::error::Code;
use super::graph_nodes::add_any;
use super::{Address, Handle, Out, graph_driver as driver};

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaStreamUpdateCaptureDependencies")]
unsafe extern "C" fn stream_update_capture_dependencies(
    stream: Handle,
    dependencies: Address,
    count: usize,
    flags: c_uint,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuStreamUpdateCaptureDependencies_v2(stream, dependencies, 0, count, flags) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaStreamUpdateCaptureDependencies_v2")]
unsafe extern "C" fn stream_update_capture_dependencies_v2(
    stream: Handle,
    dependencies: Address,
    edges: Address,
    count: usize,
    flags: c_uint,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuStreamUpdateCaptureDependencies_v2(stream, dependencies, edges, count, flags) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphGetEdges")]
unsafe extern "C" fn graph_get_edges(graph: Handle, from: Address, to: Address, count: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphGetEdges_v2(graph, from, to, 0, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphGetEdges_v2")]
unsafe extern "C" fn graph_get_edges_v2(
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
#[unsafe(export_name = "softcudart12_cudaGraphAddDependencies")]
unsafe extern "C" fn graph_add_dependencies(graph: Handle, from: Address, to: Address, count: usize) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddDependencies_v2(graph, from, to, 0, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphAddDependencies_v2")]
unsafe extern "C" fn graph_add_dependencies_v2(
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
#[unsafe(export_name = "softcudart12_cudaGraphRemoveDependencies")]
unsafe extern "C" fn graph_remove_dependencies(graph: Handle, from: Address, to: Address, count: usize) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphRemoveDependencies_v2(graph, from, to, 0, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphRemoveDependencies_v2")]
unsafe extern "C" fn graph_remove_dependencies_v2(
    graph: Handle,
    from: Address,
    to: Address,
    edges: Address,
    count: usize,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphRemoveDependencies_v2(graph, from, to, edges, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphNodeGetDependencies")]
unsafe extern "C" fn graph_node_get_dependencies(node: Handle, nodes: Address, count: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphNodeGetDependencies_v2(node, nodes, 0, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphNodeGetDependencies_v2")]
unsafe extern "C" fn graph_node_get_dependencies_v2(
    node: Handle,
    nodes: Address,
    edges: Address,
    count: Address,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphNodeGetDependencies_v2(node, nodes, edges, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphNodeGetDependentNodes")]
unsafe extern "C" fn graph_node_get_dependent_nodes(node: Handle, nodes: Address, count: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphNodeGetDependentNodes_v2(node, nodes, 0, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart12_cudaGraphNodeGetDependentNodes_v2")]
unsafe extern "C" fn graph_node_get_dependent_nodes_v2(
    node: Handle,
    nodes: Address,
    edges: Address,
    count: Address,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphNodeGetDependentNodes_v2(node, nodes, edges, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say; `parameters` is NULL or a `cudaGraphNodeParams`.
#[unsafe(export_name = "softcudart12_cudaGraphAddNode")]
unsafe extern "C" fn graph_add_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    parameters: Address,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { add_any(node, graph, (dependencies, 0, count), parameters) }
}

/// # Safety
/// As for `cudaGraphAddNode`.
#[unsafe(export_name = "softcudart12_cudaGraphAddNode_v2")]
unsafe extern "C" fn graph_add_node_v2(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    edges: Address,
    count: usize,
    parameters: Address,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { add_any(node, graph, (dependencies, edges, count), parameters) }
}
