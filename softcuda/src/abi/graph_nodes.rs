//! Nodes' parameters.

use super::graph::add;
use super::{CuResult, DevicePointer, Handle, In, Out, boundary, copy, launch, set};
use crate::callout::HostCall;
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::event;
use crate::graph::{Kernel, Work, body, exec};
use crate::os;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// `CUDA_KERNEL_NODE_PARAMS_v1`: the head of the later forms.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct KernelParameters {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: u32,
    parameters: *const *const c_void,
    extra: *const *const c_void,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelParametersV2 {
    head: KernelParameters,
    kernel: Handle,
    context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct FillParameters {
    to: DevicePointer,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct HostParameters {
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`
#[derive(Clone, Copy)]
#[repr(C)]
struct ChildParameters {
    graph: Handle,
    ownership: c_int,
}

pub(super) fn kernel(parameters: In<KernelParameters>) -> Outcome<Work> {
    let KernelParameters { function, grid, block, dynamic, parameters, extra } = parameters.get()?;
    Ok(Work::Kernel(Arc::new(Kernel::new(launch::of_node(function, (grid, block), dynamic, (parameters, extra))?))))
}

pub(super) fn copied(parameters: In<copy::Copy3d>) -> Outcome<Work> {
    Ok(Work::Copy(Arc::new(copy::of_node(parameters.get()?)?)))
}

pub(super) fn filled(parameters: In<FillParameters>) -> Outcome<Work> {
    let FillParameters { to, pitch, value, element, width, height } = parameters.get()?;
    if !matches!(element, 1 | 2 | 4) {
        return Err(CudaError::INVALID_VALUE);
    }
    let shape = set::Shape { element: element as usize, pitch, width, height };
    Ok(set::prepare(Driver::get()?, to, value, shape)?.map_or(Work::Empty, |(fill, _)| Work::Fill(fill)))
}

pub(super) fn host(parameters: In<HostParameters>) -> Outcome<Work> {
    let HostParameters { function, data } = parameters.get()?;
    // SAFETY: the client's promise to the call that makes the node.
    Ok(Work::Host(unsafe { HostCall::new(function.ok_or(CudaError::INVALID_VALUE)?, data) }))
}

fn child(graph: Handle) -> Outcome<Work> {
    Ok(Work::Child(body::copy(Driver::get()?, graph, true)?))
}

/// A node's event must exist now.
fn event(event: Handle, work: fn(u64) -> Work) -> Outcome<Work> {
    event::lookup(Driver::get()?, event)?;
    Ok(work(event))
}

fn check_context(handle: Handle) -> Outcome {
    let driver = Driver::get()?;
    if handle == 0 { context::current(driver).map(drop) } else { context::lookup(driver, handle).map(drop) }
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddKernelNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: *const c_void,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), kernel(In(parameters.cast()))))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddKernelNode_v2(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: *const c_void,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), kernel(In(parameters.cast()))))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddMemcpyNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: *const c_void,
    context: Handle,
) -> CuResult {
    boundary(|| {
        check_context(context)?;
        add(to, graph, (dependencies, count), copied(In(parameters.cast())))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddMemsetNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: *const c_void,
    context: Handle,
) -> CuResult {
    boundary(|| {
        check_context(context)?;
        add(to, graph, (dependencies, count), filled(In(parameters.cast())))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddHostNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: *const c_void,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), host(In(parameters.cast()))))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddChildGraphNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    of: Handle,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), child(of)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddEventRecordNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    of: Handle,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), event(of, Work::Record)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddEventWaitNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    of: Handle,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), event(of, Work::Wait)))
}

/// Where the parameters of a kind begin in `CUgraphNodeParams`.
const UNION: usize = 16;

/// What `CUgraphNodeParams` says.
pub(super) fn any(parameters: In<u8>) -> Outcome<Work> {
    let kind = In(parameters.0.cast::<c_int>()).get()?;
    let inner = parameters.0.wrapping_add(UNION);
    match kind {
        0 => kernel(In(inner.cast())),
        // Flags, a reserved word and the context come first.
        1 => copied(In(inner.wrapping_add(16).cast())),
        2 => filled(In(inner.cast())),
        3 => host(In(inner.cast())),
        4 => {
            let ChildParameters { graph, ownership } = In(inner.cast::<ChildParameters>()).get()?;
            if ownership == 0 { child(graph) } else { Err(unsupported("child graphs that move into a node")) }
        }
        5 => Ok(Work::Empty),
        6 => event(In(inner.cast()).get()?, Work::Wait),
        7 => event(In(inner.cast()).get()?, Work::Record),
        10 | 11 => Err(crate::graph::no_memory_nodes()),
        12 => Err(unsupported("batch memory operations as nodes of graphs")),
        13 => Err(unsupported("conditional nodes of graphs")),
        _ => Err(CudaError::INVALID_VALUE),
    }
}

fn unsupported(what: &str) -> CudaError {
    os::say_once(what, &format!("{what} are not supported"));
    CudaError::NOT_SUPPORTED
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddNode(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    count: usize,
    parameters: *mut c_void,
) -> CuResult {
    boundary(|| add(to, graph, (dependencies, count), any(In(parameters.cast_const().cast()))))
}

type Edges = (In<Handle>, In<u64>, usize);

fn add_any(to: Out<Handle>, graph: Handle, (dependencies, edges, count): Edges, parameters: *mut c_void) -> Outcome {
    super::capture::check_edges(edges, count)?;
    add(to, graph, (dependencies, count), any(In(parameters.cast_const().cast())))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphAddNode_v2(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    edges: In<u64>,
    count: usize,
    parameters: *mut c_void,
) -> CuResult {
    boundary(|| add_any(to, graph, (dependencies, edges, count), parameters))
}

/// The form of CUDA 13.4: other parameters for kinds that are not built.
#[unsafe(no_mangle)]
extern "C" fn cuGraphAddNode_v3(
    to: Out<Handle>,
    graph: Handle,
    dependencies: In<Handle>,
    edges: In<u64>,
    count: usize,
    parameters: *mut c_void,
) -> CuResult {
    boundary(|| add_any(to, graph, (dependencies, edges, count), parameters))
}

/// Reads something out of a node's work, of which it must be the right kind.
fn read<T>(node: Handle, find: impl FnOnce(&Work) -> Option<T>) -> Outcome<T> {
    body::with_node(Driver::get()?, node, |node| find(&node.work).ok_or(CudaError::INVALID_VALUE))
}

/// Replaces a node's work by work of the same kind; that of a child graph stays.
fn write(node: Handle, work: Work) -> Outcome {
    body::with_node(Driver::get()?, node, |node| {
        if node.work.kind() != work.kind() {
            return Err(CudaError::INVALID_VALUE);
        }
        node.work = work;
        Ok(())
    })
}

fn kernel_parameters(node: Handle) -> Outcome<KernelParameters> {
    let found = |work: &Work| if let Work::Kernel(kernel) = work { Some(kernel.clone()) } else { None };
    let kernel = read(node, found)?;
    let (launch, pointers) = (&kernel.launch, kernel.pointers.as_ptr());
    Ok(KernelParameters {
        function: launch.function,
        grid: launch.grid,
        block: launch.block,
        dynamic: launch.dynamic,
        // Valid as long as the node keeps these parameters.
        parameters: pointers.cast(),
        extra: std::ptr::null(),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeGetParams(node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| Out(parameters.cast::<KernelParameters>()).set(kernel_parameters(node)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeGetParams_v2(node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| {
        let head = kernel_parameters(node)?;
        let driver = Driver::get()?;
        let context = crate::module::lookup(driver, head.function).map_or(0, |function| function.context());
        Out(parameters.cast::<KernelParametersV2>()).set(KernelParametersV2 { head, kernel: 0, context })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeSetParams(node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| write(node, kernel(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeSetParams_v2(node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| write(node, kernel(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeSetParams(node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| write(node, simple(parameters)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecNodeSetParams(exec: Handle, node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| exec_write(exec, node, simple(parameters)?))
}

/// What `CUgraphNodeParams` says of anything but a child graph, which would have to be made anew.
fn simple(parameters: *mut c_void) -> Outcome<Work> {
    let parameters = In(parameters.cast_const().cast::<u8>());
    if In(parameters.0.cast::<c_int>()).get()? == 4 {
        return Err(unsupported("child graphs as new parameters of a node"));
    }
    any(parameters)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphMemcpyNodeGetParams(node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| {
        let planes = read(node, |work| if let Work::Copy(planes) = work { Some(planes.clone()) } else { None })?;
        Out(parameters.cast::<copy::Copy3d>()).set(copy::parameters(&planes))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphMemcpyNodeSetParams(node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| write(node, copied(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphMemsetNodeGetParams(node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| {
        let fill = read(node, |work| if let Work::Fill(fill) = work { Some(*fill) } else { None })?;
        let ((to, pitch), (value, element), (width, height)) = fill.parts();
        let found = FillParameters { to: to as u64, pitch, value, element: element as u32, width, height };
        Out(parameters.cast()).set(found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphMemsetNodeSetParams(node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| write(node, filled(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphHostNodeGetParams(node: Handle, parameters: *mut c_void) -> CuResult {
    boundary(|| {
        let (function, data) = read(node, |work| if let Work::Host(call) = work { Some(call.parts()) } else { None })?;
        Out(parameters.cast()).set(HostParameters { function: Some(function), data })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphHostNodeSetParams(node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| write(node, host(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphChildGraphNodeGetGraph(node: Handle, graph: Out<Handle>) -> CuResult {
    boundary(|| graph.set(read(node, |work| if let Work::Child(child) = work { Some(*child) } else { None })?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphEventRecordNodeGetEvent(node: Handle, to: Out<Handle>) -> CuResult {
    boundary(|| to.set(read(node, |work| if let Work::Record(event) = work { Some(*event) } else { None })?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphEventRecordNodeSetEvent(node: Handle, to: Handle) -> CuResult {
    boundary(|| write(node, event(to, Work::Record)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphEventWaitNodeGetEvent(node: Handle, to: Out<Handle>) -> CuResult {
    boundary(|| to.set(read(node, |work| if let Work::Wait(event) = work { Some(*event) } else { None })?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphEventWaitNodeSetEvent(node: Handle, to: Handle) -> CuResult {
    boundary(|| write(node, event(to, Work::Wait)?))
}

/// Kernel, copy, memset, host function and events; child graphs change as a whole, by an update.
fn exec_write(exec: Handle, node: Handle, work: Work) -> Outcome {
    exec::set_work(Driver::get()?, exec, node, work)
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecKernelNodeSetParams(exec: Handle, node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| exec_write(exec, node, kernel(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecKernelNodeSetParams_v2(exec: Handle, node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| exec_write(exec, node, kernel(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecMemcpyNodeSetParams(
    exec: Handle,
    node: Handle,
    parameters: *const c_void,
    _context: Handle,
) -> CuResult {
    boundary(|| exec_write(exec, node, copied(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecMemsetNodeSetParams(
    exec: Handle,
    node: Handle,
    parameters: *const c_void,
    _context: Handle,
) -> CuResult {
    boundary(|| exec_write(exec, node, filled(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecHostNodeSetParams(exec: Handle, node: Handle, parameters: *const c_void) -> CuResult {
    boundary(|| exec_write(exec, node, host(In(parameters.cast()))?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecEventRecordNodeSetEvent(exec: Handle, node: Handle, to: Handle) -> CuResult {
    boundary(|| exec_write(exec, node, event(to, Work::Record)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecEventWaitNodeSetEvent(exec: Handle, node: Handle, to: Handle) -> CuResult {
    boundary(|| exec_write(exec, node, event(to, Work::Wait)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeSetEnabled(exec: Handle, node: Handle, enabled: c_uint) -> CuResult {
    boundary(|| exec::enabled(Driver::get()?, exec, node, Some(enabled != 0)).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphNodeGetEnabled(exec: Handle, node: Handle, enabled: Out<c_uint>) -> CuResult {
    boundary(|| enabled.set(exec::enabled(Driver::get()?, exec, node, None)?.into()))
}

/// There are no attributes beyond the parameters.
#[unsafe(no_mangle)]
extern "C" fn cuGraphKernelNodeCopyAttributes(to: Handle, from: Handle) -> CuResult {
    boundary(|| {
        kernel_parameters(to)?;
        kernel_parameters(from).map(drop)
    })
}
