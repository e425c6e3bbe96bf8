//! Captures and graphs of the driver API, as the runtime calls them.
//!
//! Arrays and structs are passed on as plain addresses: the driver reads and writes them, or says that they are NULL.

#![allow(non_snake_case)]

use std::ffi::{c_int, c_uint};

use super::driver::{HostFunction, Status};
use super::{Address, Handle, Out};

// SAFETY: the prototypes are those of cuda.h, which tests/headers.rs holds against NVIDIA's. Functions that are given
// the address of an array or a struct are not safe.
unsafe extern "C" {
    pub(super) safe fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> Status;
    pub(super) fn cuStreamBeginCaptureToGraph(
        stream: Handle,
        graph: Handle,
        dependencies: Address,
        edges: Address,
        count: usize,
        mode: c_int,
    ) -> Status;
    pub(super) safe fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> Status;
    pub(super) fn cuStreamUpdateCaptureDependencies_v2(
        stream: Handle,
        dependencies: Address,
        edges: Address,
        count: usize,
        flags: c_uint,
    ) -> Status;

    pub(super) safe fn cuGraphCreate(graph: Out<Handle>, flags: c_uint) -> Status;
    pub(super) safe fn cuGraphDestroy(graph: Handle) -> Status;
    pub(super) safe fn cuGraphClone(clone: Out<Handle>, graph: Handle) -> Status;
    pub(super) safe fn cuGraphGetId(graph: Handle, id: Out<c_uint>) -> Status;
    pub(super) fn cuGraphDebugDotPrint(graph: Handle, path: Address, flags: c_uint) -> Status;
    pub(super) fn cuGraphGetNodes(graph: Handle, nodes: Address, count: Address) -> Status;
    pub(super) fn cuGraphGetRootNodes(graph: Handle, nodes: Address, count: Address) -> Status;
    pub(super) fn cuGraphGetEdges_v2(
        graph: Handle,
        from: Address,
        to: Address,
        edges: Address,
        count: Address,
    ) -> Status;
    pub(super) fn cuGraphAddDependencies_v2(
        graph: Handle,
        from: Address,
        to: Address,
        edges: Address,
        count: usize,
    ) -> Status;
    pub(super) fn cuGraphRemoveDependencies_v2(
        graph: Handle,
        from: Address,
        to: Address,
        edges: Address,
        count: usize,
    ) -> Status;
    pub(super) safe fn cuGraphDestroyNode(node: Handle) -> Status;
    pub(super) safe fn cuGraphNodeFindInClone(node: Out<Handle>, original: Handle, clone: Handle) -> Status;
    pub(super) safe fn cuGraphNodeGetType(node: Handle, kind: Out<c_int>) -> Status;
    pub(super) safe fn cuGraphNodeGetContainingGraph(node: Handle, graph: Out<Handle>) -> Status;
    pub(super) fn cuGraphNodeGetDependencies_v2(node: Handle, nodes: Address, edges: Address, count: Address)
    -> Status;
    pub(super) fn cuGraphNodeGetDependentNodes_v2(
        node: Handle,
        nodes: Address,
        edges: Address,
        count: Address,
    ) -> Status;
    pub(super) safe fn cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: c_uint) -> Status;
    pub(super) safe fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: Out<c_uint>) -> Status;
    pub(super) safe fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) -> Status;
    pub(super) safe fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) -> Status;
    pub(super) safe fn cuGraphEventRecordNodeGetEvent(node: Handle, event: Out<Handle>) -> Status;
    pub(super) safe fn cuGraphEventRecordNodeSetEvent(node: Handle, event: Handle) -> Status;
    pub(super) safe fn cuGraphEventWaitNodeGetEvent(node: Handle, event: Out<Handle>) -> Status;
    pub(super) safe fn cuGraphEventWaitNodeSetEvent(node: Handle, event: Handle) -> Status;

    pub(super) fn cuGraphAddNode_v2(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        edges: Address,
        count: usize,
        parameters: Address,
    ) -> Status;
    pub(super) fn cuGraphNodeSetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphExecNodeSetParams(exec: Handle, node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphAddKernelNode_v2(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        parameters: Address,
    ) -> Status;
    pub(super) fn cuGraphAddHostNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        parameters: Address,
    ) -> Status;
    pub(super) fn cuGraphAddMemcpyNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        parameters: Address,
        context: Handle,
    ) -> Status;
    pub(super) fn cuGraphAddMemsetNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        parameters: Address,
        context: Handle,
    ) -> Status;
    pub(super) fn cuGraphAddEmptyNode(node: Out<Handle>, graph: Handle, dependencies: Address, count: usize) -> Status;
    pub(super) fn cuGraphAddChildGraphNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        child: Handle,
    ) -> Status;
    pub(super) fn cuGraphAddEventRecordNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        event: Handle,
    ) -> Status;
    pub(super) fn cuGraphAddEventWaitNode(
        node: Out<Handle>,
        graph: Handle,
        dependencies: Address,
        count: usize,
        event: Handle,
    ) -> Status;

    pub(super) fn cuGraphKernelNodeGetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphMemcpyNodeGetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphMemcpyNodeSetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphMemsetNodeGetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphMemsetNodeSetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphHostNodeGetParams(node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphHostNodeSetParams(node: Handle, parameters: Address) -> Status;

    pub(super) safe fn cuGraphInstantiateWithFlags(exec: Out<Handle>, graph: Handle, flags: u64) -> Status;
    pub(super) fn cuGraphInstantiateWithParams(exec: Out<Handle>, graph: Handle, parameters: Address) -> Status;
    pub(super) safe fn cuGraphUpload(exec: Handle, stream: Handle) -> Status;
    pub(super) safe fn cuGraphLaunch(exec: Handle, stream: Handle) -> Status;
    pub(super) safe fn cuGraphExecDestroy(exec: Handle) -> Status;
    pub(super) safe fn cuGraphExecGetFlags(exec: Handle, flags: Out<u64>) -> Status;
    pub(super) safe fn cuGraphExecGetId(exec: Handle, id: Out<c_uint>) -> Status;
    pub(super) fn cuGraphExecUpdate_v2(exec: Handle, graph: Handle, result: Address) -> Status;
    pub(super) fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, parameters: Address) -> Status;
    pub(super) fn cuGraphExecMemcpyNodeSetParams(
        exec: Handle,
        node: Handle,
        parameters: Address,
        context: Handle,
    ) -> Status;
    pub(super) fn cuGraphExecMemsetNodeSetParams(
        exec: Handle,
        node: Handle,
        parameters: Address,
        context: Handle,
    ) -> Status;
    pub(super) fn cuGraphExecHostNodeSetParams(exec: Handle, node: Handle, parameters: Address) -> Status;
    pub(super) safe fn cuGraphExecEventRecordNodeSetEvent(exec: Handle, node: Handle, event: Handle) -> Status;
    pub(super) safe fn cuGraphExecEventWaitNodeSetEvent(exec: Handle, node: Handle, event: Handle) -> Status;

    pub(super) safe fn cuDeviceGraphMemTrim(device: c_int) -> Status;
    pub(super) fn cuDeviceGetGraphMemAttribute(device: c_int, attribute: c_int, value: Address) -> Status;
    pub(super) fn cuDeviceSetGraphMemAttribute(device: c_int, attribute: c_int, value: Address) -> Status;

    pub(super) fn cuUserObjectCreate(
        object: Out<Handle>,
        data: Address,
        destructor: HostFunction,
        references: c_uint,
        flags: c_uint,
    ) -> Status;
    pub(super) safe fn cuUserObjectRetain(object: Handle, count: c_uint) -> Status;
    pub(super) safe fn cuUserObjectRelease(object: Handle, count: c_uint) -> Status;
    pub(super) safe fn cuGraphRetainUserObject(graph: Handle, object: Handle, count: c_uint, flags: c_uint) -> Status;
    pub(super) safe fn cuGraphReleaseUserObject(graph: Handle, object: Handle, count: c_uint) -> Status;
}
