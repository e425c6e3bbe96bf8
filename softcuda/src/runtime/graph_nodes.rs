//! Nodes of graphs. Most structs of the runtime have the layout of the driver's; copies are translated.

use std::ffi::c_int;

use super::context::{call, fetch, in_context};
use super::copy::Kind;
use super::error::{Code, INVALID_DEVICE_FUNCTION, INVALID_VALUE, NOT_SUPPORTED, check};
use super::{Address, Handle, Out, driver as base, graph_driver as driver, kernel};

/// `CUDA_MEMCPY3D`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct DriverSide {
    position: [usize; 3],
    level: usize,
    kind: u32,
    gap: u32,
    host: Address,
    device: Address,
    array: Handle,
    reserved: usize,
    pitch: usize,
    rows: usize,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct DriverCopy {
    from: DriverSide,
    to: DriverSide,
    extent: [usize; 3],
}

/// `cudaArray_t`, `cudaPos` and `cudaPitchedPtr` of one side of a copy.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Side {
    array: Handle,
    position: [usize; 3],
    address: Address,
    pitch: usize,
    width: usize,
    rows: usize,
}

/// `cudaMemcpy3DParms`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Copy3d {
    from: Side,
    to: Side,
    extent: [usize; 3],
    kind: c_int,
}

impl Side {
    /// A line of memory.
    fn line(address: Address, bytes: usize) -> Side {
        Side { address, pitch: bytes, width: bytes, rows: 1, ..Side::default() }
    }

    fn to_driver(self, kind: u32) -> Result<DriverSide, Code> {
        if self.array != 0 {
            return Err(NOT_SUPPORTED);
        }
        let Side { position, address, pitch, rows, .. } = self;
        Ok(DriverSide { position, kind, host: address, device: address, pitch, rows, ..DriverSide::default() })
    }

    fn from_driver(side: DriverSide) -> Side {
        let DriverSide { position, device, pitch, rows, .. } = side;
        Side { position, address: device, pitch, width: pitch, rows, array: 0 }
    }
}

impl Copy3d {
    fn line(to: Address, from: Address, bytes: usize, kind: c_int) -> Copy3d {
        Copy3d { from: Side::line(from, bytes), to: Side::line(to, bytes), extent: [bytes, 1, 1], kind }
    }

    fn to_driver(self) -> Result<DriverCopy, Code> {
        let (from, to) = Kind::new(self.kind)?.memory_types();
        Ok(DriverCopy { from: self.from.to_driver(from)?, to: self.to.to_driver(to)?, extent: self.extent })
    }
}

/// The address of a struct of ours, for the driver to read.
fn address<T>(of: &T) -> Address {
    std::ptr::from_ref(of) as Address
}

/// # Safety
/// `from` is NULL or the address of a `T`.
unsafe fn read<T: Copy>(from: Address) -> Result<T, Code> {
    // SAFETY: the caller's promise.
    if from == 0 { Err(INVALID_VALUE) } else { Ok(unsafe { (from as *const T).read_unaligned() }) }
}

/// What both kinds of kernel parameters begin with. Functions are checked here: one that is a host stub cannot run.
#[derive(Clone, Copy)]
#[repr(C)]
struct KernelHead {
    function: Address,
    shape: [u32; 8],
    arguments: [Address; 2],
}

/// The kernel parameters at an address with the driver's function.
///
/// # Safety
/// As for [`read`].
unsafe fn kernel_head(from: Address) -> Result<KernelHead, Code> {
    // SAFETY: the caller's promise.
    let head = unsafe { read::<KernelHead>(from) }?;
    Ok(KernelHead { function: kernel::function(head.function)? as Address, ..head })
}

/// A node whose function is none answers with the runtime's error for that.
fn on_kernel(status: base::Status, head: &KernelHead) -> Result<(), Code> {
    let known = fetch::<c_int>(|value| base::cuFuncGetAttribute(value, 0, head.function as Handle)).is_ok();
    check(status).map_err(|code| if known { code } else { INVALID_DEVICE_FUNCTION })
}

/// Where the parameters of a kind begin in `cudaGraphNodeParams`, and bytes of the whole.
const UNION: u64 = 16;
const NODE_PARAMETERS: usize = 256;

/// # Safety
/// Arrays have as many entries as their counts say; `parameters` is NULL or a `cudaGraphNodeParams`.
pub(super) unsafe fn add_any(
    node: Out<Handle>,
    graph: Handle,
    (dependencies, edges, count): (Address, Address, usize),
    parameters: Address,
) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise.
        let translated = unsafe { translate(parameters) }?;
        // SAFETY: the arrays are the caller's; the struct is ours.
        check(unsafe { driver::cuGraphAddNode_v2(node, graph, dependencies, edges, count, address(&translated)) })
    })
}

/// The driver's `CUgraphNodeParams` for the runtime's.
///
/// # Safety
/// `parameters` is NULL or a `cudaGraphNodeParams`.
unsafe fn translate(parameters: Address) -> Result<[u64; NODE_PARAMETERS / 8], Code> {
    // SAFETY: the caller's promise.
    let (kind, mut copy) = unsafe { (read::<c_int>(parameters)?, read::<[u64; NODE_PARAMETERS / 8]>(parameters)?) };
    let inner = UNION as usize / 8;
    // The two structs differ in these kinds alone.
    match kind {
        // SAFETY: as above.
        0 => copy[inner] = unsafe { kernel_head(parameters + UNION) }?.function,
        1 => {
            // SAFETY: as above; the copy stands behind flags and a context.
            let translated = unsafe { read::<Copy3d>(parameters + UNION + 16) }?.to_driver()?;
            // SAFETY: a struct of integers without padding.
            let words = unsafe { std::mem::transmute::<DriverCopy, [u64; size_of::<DriverCopy>() / 8]>(translated) };
            copy[inner + 2..inner + 2 + words.len()].copy_from_slice(&words);
        }
        _ => {}
    }
    Ok(copy)
}

/// # Safety
/// `parameters` is NULL or a `cudaGraphNodeParams`.
#[unsafe(export_name = "softcudart_cudaGraphNodeSetParams")]
unsafe extern "C" fn graph_node_set_params(node: Handle, parameters: Address) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise; then a struct of ours.
        check(unsafe { driver::cuGraphNodeSetParams(node, address(&translate(parameters)?)) })
    })
}

/// # Safety
/// `parameters` is NULL or a `cudaGraphNodeParams`.
#[unsafe(export_name = "softcudart_cudaGraphExecNodeSetParams")]
unsafe extern "C" fn graph_exec_node_set_params(exec: Handle, node: Handle, parameters: Address) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise; then a struct of ours.
        check(unsafe { driver::cuGraphExecNodeSetParams(exec, node, address(&translate(parameters)?)) })
    })
}

/// # Safety
/// As for [`add_any`].
#[unsafe(export_name = "softcudart13_cudaGraphAddNode")]
unsafe extern "C" fn graph_add_node(
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

/// # Safety
/// The array has `count` entries; `parameters` is NULL or a `cudaKernelNodeParams`.
#[unsafe(export_name = "softcudart_cudaGraphAddKernelNode")]
unsafe extern "C" fn graph_add_kernel_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    parameters: Address,
) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise.
        let head = unsafe { kernel_head(parameters) }?;
        // SAFETY: as above.
        let status = unsafe { driver::cuGraphAddKernelNode_v2(node, graph, dependencies, count, address(&head)) };
        on_kernel(status, &head)
    })
}

/// # Safety
/// `parameters` is NULL or a `cudaKernelNodeParams`.
#[unsafe(export_name = "softcudart_cudaGraphKernelNodeSetParams")]
unsafe extern "C" fn graph_kernel_node_set_params(node: Handle, parameters: Address) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise.
        let head = unsafe { kernel_head(parameters) }?;
        // SAFETY: as above.
        on_kernel(unsafe { driver::cuGraphKernelNodeSetParams_v2(node, address(&head)) }, &head)
    })
}

/// # Safety
/// `parameters` is NULL or a `cudaKernelNodeParams`.
#[unsafe(export_name = "softcudart_cudaGraphExecKernelNodeSetParams")]
unsafe extern "C" fn graph_exec_kernel_node_set_params(exec: Handle, node: Handle, parameters: Address) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise.
        let head = unsafe { kernel_head(parameters) }?;
        // SAFETY: as above.
        on_kernel(unsafe { driver::cuGraphExecKernelNodeSetParams_v2(exec, node, address(&head)) }, &head)
    })
}

/// The function is the driver's: there is no host stub that stands for it.
///
/// # Safety
/// `parameters` is NULL or a `cudaKernelNodeParams`, which has the layout of the driver's first form.
#[unsafe(export_name = "softcudart_cudaGraphKernelNodeGetParams")]
unsafe extern "C" fn graph_kernel_node_get_params(node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise.
    call(|| unsafe { driver::cuGraphKernelNodeGetParams(node, parameters) })
}

/// The context that copies and memsets are made for.
fn current() -> Result<Handle, Code> {
    fetch(|context| base::cuCtxGetCurrent(context))
}

/// # Safety
/// The array has `count` entries.
unsafe fn add_copy(
    node: Out<Handle>,
    graph: Handle,
    (dependencies, count): (Address, usize),
    copy: Copy3d,
) -> Result<(), Code> {
    let copy = copy.to_driver()?;
    // SAFETY: the array is the caller's promise; the struct is ours.
    check(unsafe { driver::cuGraphAddMemcpyNode(node, graph, dependencies, count, address(&copy), current()?) })
}

/// # Safety
/// The array has `count` entries; `parameters` is NULL or a `cudaMemcpy3DParms`.
#[unsafe(export_name = "softcudart_cudaGraphAddMemcpyNode")]
unsafe extern "C" fn graph_add_memcpy_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    parameters: Address,
) -> Code {
    // SAFETY: the caller's promise.
    in_context(|| unsafe { add_copy(node, graph, (dependencies, count), read(parameters)?) })
}

/// # Safety
/// The array has `count` entries.
#[unsafe(export_name = "softcudart_cudaGraphAddMemcpyNode1D")]
unsafe extern "C" fn graph_add_memcpy_node_1d(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    to: Address,
    from: Address,
    bytes: usize,
    kind: c_int,
) -> Code {
    // SAFETY: the caller's promise.
    in_context(|| unsafe { add_copy(node, graph, (dependencies, count), Copy3d::line(to, from, bytes, kind)) })
}

fn set_copy(node: Handle, copy: Copy3d) -> Result<(), Code> {
    let copy = copy.to_driver()?;
    // SAFETY: a struct of ours.
    check(unsafe { driver::cuGraphMemcpyNodeSetParams(node, address(&copy)) })
}

/// # Safety
/// `parameters` is NULL or a `cudaMemcpy3DParms`.
#[unsafe(export_name = "softcudart_cudaGraphMemcpyNodeSetParams")]
unsafe extern "C" fn graph_memcpy_node_set_params(node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise.
    in_context(|| set_copy(node, unsafe { read(parameters) }?))
}

#[unsafe(export_name = "softcudart_cudaGraphMemcpyNodeSetParams1D")]
extern "C" fn graph_memcpy_node_set_params_1d(
    node: Handle,
    to: Address,
    from: Address,
    bytes: usize,
    kind: c_int,
) -> Code {
    in_context(|| set_copy(node, Copy3d::line(to, from, bytes, kind)))
}

fn set_exec_copy(exec: Handle, node: Handle, copy: Copy3d) -> Result<(), Code> {
    let copy = copy.to_driver()?;
    // SAFETY: a struct of ours.
    check(unsafe { driver::cuGraphExecMemcpyNodeSetParams(exec, node, address(&copy), current()?) })
}

/// # Safety
/// `parameters` is NULL or a `cudaMemcpy3DParms`.
#[unsafe(export_name = "softcudart_cudaGraphExecMemcpyNodeSetParams")]
unsafe extern "C" fn graph_exec_memcpy_node_set_params(exec: Handle, node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise.
    in_context(|| set_exec_copy(exec, node, unsafe { read(parameters) }?))
}

#[unsafe(export_name = "softcudart_cudaGraphExecMemcpyNodeSetParams1D")]
extern "C" fn graph_exec_memcpy_node_set_params_1d(
    exec: Handle,
    node: Handle,
    to: Address,
    from: Address,
    bytes: usize,
    kind: c_int,
) -> Code {
    in_context(|| set_exec_copy(exec, node, Copy3d::line(to, from, bytes, kind)))
}

/// The direction is not kept: the addresses tell it.
#[unsafe(export_name = "softcudart_cudaGraphMemcpyNodeGetParams")]
extern "C" fn graph_memcpy_node_get_params(node: Handle, parameters: Out<Copy3d>) -> Code {
    /// `cudaMemcpyDefault`.
    const DEFAULT: c_int = 4;
    in_context(|| {
        let parameters = parameters.ok_or(INVALID_VALUE)?;
        let mut copy = DriverCopy::default();
        // SAFETY: a struct of ours that may be written.
        check(unsafe { driver::cuGraphMemcpyNodeGetParams(node, std::ptr::from_mut(&mut copy) as Address) })?;
        let (from, to) = (Side::from_driver(copy.from), Side::from_driver(copy.to));
        parameters.write(Copy3d { from, to, extent: copy.extent, kind: DEFAULT });
        Ok(())
    })
}

/// # Safety
/// The array has `count` entries; `parameters` is NULL or a `cudaMemsetParams`.
#[unsafe(export_name = "softcudart_cudaGraphAddMemsetNode")]
unsafe extern "C" fn graph_add_memset_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    parameters: Address,
) -> Code {
    in_context(|| {
        let context = current()?;
        // SAFETY: the caller's promise; the struct has the driver's layout.
        check(unsafe { driver::cuGraphAddMemsetNode(node, graph, dependencies, count, parameters, context) })
    })
}

/// # Safety
/// `parameters` is NULL or a `cudaMemsetParams`.
#[unsafe(export_name = "softcudart_cudaGraphExecMemsetNodeSetParams")]
unsafe extern "C" fn graph_exec_memset_node_set_params(exec: Handle, node: Handle, parameters: Address) -> Code {
    in_context(|| {
        let context = current()?;
        // SAFETY: the caller's promise; the struct has the driver's layout.
        check(unsafe { driver::cuGraphExecMemsetNodeSetParams(exec, node, parameters, context) })
    })
}

/// # Safety
/// `parameters` is NULL or the struct of the node's kind, which has the driver's layout.
#[unsafe(export_name = "softcudart_cudaGraphMemsetNodeGetParams")]
unsafe extern "C" fn graph_memset_node_get_params(node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphMemsetNodeGetParams(node, parameters) })
}

/// # Safety
/// `parameters` is NULL or the struct of the node's kind, which has the driver's layout.
#[unsafe(export_name = "softcudart_cudaGraphMemsetNodeSetParams")]
unsafe extern "C" fn graph_memset_node_set_params(node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphMemsetNodeSetParams(node, parameters) })
}

/// # Safety
/// `parameters` is NULL or the struct of the node's kind, which has the driver's layout.
#[unsafe(export_name = "softcudart_cudaGraphAddHostNode")]
unsafe extern "C" fn graph_add_host_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    parameters: Address,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddHostNode(node, graph, dependencies, count, parameters) })
}

/// # Safety
/// `parameters` is NULL or the struct of the node's kind, which has the driver's layout.
#[unsafe(export_name = "softcudart_cudaGraphHostNodeGetParams")]
unsafe extern "C" fn graph_host_node_get_params(node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphHostNodeGetParams(node, parameters) })
}

/// # Safety
/// `parameters` is NULL or the struct of the node's kind, which has the driver's layout.
#[unsafe(export_name = "softcudart_cudaGraphHostNodeSetParams")]
unsafe extern "C" fn graph_host_node_set_params(node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphHostNodeSetParams(node, parameters) })
}

/// # Safety
/// `parameters` is NULL or the struct of the node's kind, which has the driver's layout.
#[unsafe(export_name = "softcudart_cudaGraphExecHostNodeSetParams")]
unsafe extern "C" fn graph_exec_host_node_set_params(exec: Handle, node: Handle, parameters: Address) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphExecHostNodeSetParams(exec, node, parameters) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaGraphAddEmptyNode")]
unsafe extern "C" fn graph_add_empty_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddEmptyNode(node, graph, dependencies, count) })
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaGraphAddChildGraphNode")]
unsafe extern "C" fn graph_add_child_graph_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    child: Handle,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddChildGraphNode(node, graph, dependencies, count, child) })
}

#[unsafe(export_name = "softcudart_cudaGraphChildGraphNodeGetGraph")]
extern "C" fn graph_child_graph_node_get_graph(node: Handle, graph: Out<Handle>) -> Code {
    call(|| driver::cuGraphChildGraphNodeGetGraph(node, graph))
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaGraphAddEventRecordNode")]
unsafe extern "C" fn graph_add_event_record_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    event: Handle,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddEventRecordNode(node, graph, dependencies, count, event) })
}

#[unsafe(export_name = "softcudart_cudaGraphEventRecordNodeGetEvent")]
extern "C" fn graph_event_record_node_get_event(node: Handle, event: Out<Handle>) -> Code {
    call(|| driver::cuGraphEventRecordNodeGetEvent(node, event))
}

#[unsafe(export_name = "softcudart_cudaGraphEventRecordNodeSetEvent")]
extern "C" fn graph_event_record_node_set_event(node: Handle, event: Handle) -> Code {
    call(|| driver::cuGraphEventRecordNodeSetEvent(node, event))
}

/// # Safety
/// Arrays have as many entries as their counts say, or are NULL.
#[unsafe(export_name = "softcudart_cudaGraphAddEventWaitNode")]
unsafe extern "C" fn graph_add_event_wait_node(
    node: Out<Handle>,
    graph: Handle,
    dependencies: Address,
    count: usize,
    event: Handle,
) -> Code {
    // SAFETY: the caller's promise is the driver's condition.
    call(|| unsafe { driver::cuGraphAddEventWaitNode(node, graph, dependencies, count, event) })
}

#[unsafe(export_name = "softcudart_cudaGraphEventWaitNodeGetEvent")]
extern "C" fn graph_event_wait_node_get_event(node: Handle, event: Out<Handle>) -> Code {
    call(|| driver::cuGraphEventWaitNodeGetEvent(node, event))
}

#[unsafe(export_name = "softcudart_cudaGraphEventWaitNodeSetEvent")]
extern "C" fn graph_event_wait_node_set_event(node: Handle, event: Handle) -> Code {
    call(|| driver::cuGraphEventWaitNodeSetEvent(node, event))
}

#[unsafe(export_name = "softcudart_cudaGraphExecEventRecordNodeSetEvent")]
extern "C" fn graph_exec_event_record_node_set_event(exec: Handle, node: Handle, event: Handle) -> Code {
    call(|| driver::cuGraphExecEventRecordNodeSetEvent(exec, node, event))
}

#[unsafe(export_name = "softcudart_cudaGraphExecEventWaitNodeSetEvent")]
extern "C" fn graph_exec_event_wait_node_set_event(exec: Handle, node: Handle, event: Handle) -> Code {
    call(|| driver::cuGraphExecEventWaitNodeSetEvent(exec, node, event))
}

#[unsafe(export_name = "softcudart_cudaGraphKernelNodeCopyAttributes")]
extern "C" fn graph_kernel_node_copy_attributes(to: Handle, from: Handle) -> Code {
    call(|| driver::cuGraphKernelNodeCopyAttributes(to, from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_sizes_of_cudas() {
        assert_eq!(size_of::<Copy3d>(), 160);
        assert_eq!(size_of::<DriverCopy>(), 200);
        assert_eq!(size_of::<KernelHead>(), 56);
    }
}
