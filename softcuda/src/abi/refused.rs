//! Functions of the driver interface that programs look for and that are not built: each says `NOT_SUPPORTED`, and its
//! name once on stderr. A caller's arguments are never looked at.

use super::{CuResult, boundary};
use crate::error::{CudaError, Outcome};
use crate::os;

fn refuse(name: &str) -> Outcome {
    os::say_once(name, &format!("{name} is not supported"));
    Err(CudaError::NOT_SUPPORTED)
}

macro_rules! refused {
    ($($name:ident)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> CuResult {
                boundary(|| refuse(stringify!($name)))
            }
        )*
    };
}

refused! {
    cuStreamBeginRecaptureToGraph cuGraphNodeGetLocalId cuGraphNodeGetToolsId
    cuGraphAddMemAllocNode cuGraphMemAllocNodeGetParams cuGraphAddMemFreeNode cuGraphMemFreeNodeGetParams
    cuGraphAddBatchMemOpNode cuGraphBatchMemOpNodeGetParams cuGraphBatchMemOpNodeSetParams
    cuGraphExecBatchMemOpNodeSetParams cuGraphConditionalHandleCreate cuGraphExecChildGraphNodeSetParams
    cuGraphKernelNodeGetAttribute cuGraphKernelNodeSetAttribute cuGraphNodeGetParams
    cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode
    cuMemGetHandleForAddressRange
    cuMulticastCreate cuMulticastAddDevice cuMulticastBindMem cuMulticastBindAddr cuMulticastUnbind
    cuMulticastGetGranularity
    cuStreamAttachMemAsync cuStreamGetAttribute cuStreamSetAttribute
    cuMemRangeGetAttribute cuMemRangeGetAttributes
    cuMemPoolExportToShareableHandle cuMemPoolImportFromShareableHandle cuMemPoolExportPointer cuMemPoolImportPointer
    cuLibraryGetKernel cuLibraryGetModule cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetUnifiedFunction
    cuLibraryGetKernelCount cuLibraryEnumerateKernels cuKernelGetFunction cuKernelGetAttribute cuKernelSetAttribute
    cuLinkCreate_v2 cuLinkAddData_v2 cuLinkAddFile_v2 cuLinkComplete cuLinkDestroy
    cuArrayCreate_v2 cuArray3DCreate_v2 cuArrayDestroy cuTexObjectCreate cuTexObjectDestroy cuSurfObjectCreate
    cuSurfObjectDestroy cuImportExternalMemory cuDestroyExternalMemory cuImportExternalSemaphore
    cuDestroyExternalSemaphore cuLaunchCooperativeKernelMultiDevice cuOccupancyMaxActiveClusters
    cuOccupancyMaxPotentialClusterSize cuOccupancyAvailableDynamicSMemPerBlock
    cuCtxGetExecAffinity
    cuTensorMapEncodeTiled cuTensorMapEncodeIm2col cuTensorMapReplaceAddress
}
