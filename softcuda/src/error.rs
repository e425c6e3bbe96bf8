//! `CUresult` codes: numbers and names as in NVIDIA's `cuda.h` (CUDA 13), short texts of our own.

use std::ffi::CStr;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaError(pub i32);

/// What driver calls give back inside this crate.
pub type Outcome<T = ()> = Result<T, CudaError>;

macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the table's own texts say it")]
        impl CudaError {
            $(#[allow(dead_code, reason = "the whole list of cuda.h")] pub const $name: CudaError = CudaError($code);)*
        }
        /// Code, name without `CUDA_ERROR_`, text.
        const CODES: &[(i32, &str, &CStr)] = &[$(($code, stringify!($name), $text),)*];
    };
}

codes! {
    INVALID_VALUE = 1, c"invalid argument";
    OUT_OF_MEMORY = 2, c"out of memory";
    NOT_INITIALIZED = 3, c"initialization error";
    DEINITIALIZED = 4, c"driver shutting down";
    PROFILER_DISABLED = 5, c"profiler disabled while using external profiling tool";
    PROFILER_NOT_INITIALIZED = 6, c"profiler not initialized";
    PROFILER_ALREADY_STARTED = 7, c"profiler already started";
    PROFILER_ALREADY_STOPPED = 8, c"profiler already stopped";
    STUB_LIBRARY = 34, c"the CUDA driver library is a stub";
    CALL_REQUIRES_NEWER_DRIVER = 36, c"the call requires a newer driver";
    DEVICE_UNAVAILABLE = 46, c"CUDA-capable device is busy or unavailable";
    MULTICAST_RESOURCE_FULL = 47, c"multicast resources exhausted";
    NO_DEVICE = 100, c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"invalid device ordinal";
    DEVICE_NOT_LICENSED = 102, c"device not licensed";
    INVALID_IMAGE = 200, c"device kernel image is invalid";
    INVALID_CONTEXT = 201, c"invalid device context";
    CONTEXT_ALREADY_CURRENT = 202, c"context already current";
    MAP_FAILED = 205, c"mapping of buffer object failed";
    UNMAP_FAILED = 206, c"unmapping of buffer object failed";
    ARRAY_IS_MAPPED = 207, c"array is mapped";
    ALREADY_MAPPED = 208, c"resource already mapped";
    NO_BINARY_FOR_GPU = 209, c"no kernel image is available for execution on the device";
    ALREADY_ACQUIRED = 210, c"resource already acquired";
    NOT_MAPPED = 211, c"resource not mapped";
    NOT_MAPPED_AS_ARRAY = 212, c"resource not mapped as array";
    NOT_MAPPED_AS_POINTER = 213, c"resource not mapped as pointer";
    ECC_UNCORRECTABLE = 214, c"uncorrectable ECC error encountered";
    UNSUPPORTED_LIMIT = 215, c"limit is not supported on this architecture";
    CONTEXT_ALREADY_IN_USE = 216, c"exclusive-thread device already in use by a different thread";
    PEER_ACCESS_UNSUPPORTED = 217, c"peer access is not supported between these two devices";
    INVALID_PTX = 218, c"a PTX JIT compilation failed";
    INVALID_GRAPHICS_CONTEXT = 219, c"invalid graphics context";
    NVLINK_UNCORRECTABLE = 220, c"uncorrectable NVLink error detected";
    JIT_COMPILER_NOT_FOUND = 221, c"PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, c"the provided PTX was compiled with an unsupported toolchain";
    JIT_COMPILATION_DISABLED = 223, c"PTX JIT compilation was disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224, c"the provided execution affinity is not supported";
    UNSUPPORTED_DEVSIDE_SYNC = 225, c"device-side synchronization is not supported";
    CONTAINED = 226, c"an exception was contained";
    INSUFFICIENT_LOADER_VERSION = 227, c"the image needs a newer loader";
    INVALID_SOURCE = 300, c"device kernel image is invalid";
    FILE_NOT_FOUND = 301, c"file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, c"shared object symbol not found";
    SHARED_OBJECT_INIT_FAILED = 303, c"shared object initialization failed";
    OPERATING_SYSTEM = 304, c"OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, c"invalid resource handle";
    ILLEGAL_STATE = 401, c"the operation cannot be performed in the present state";
    LOSSY_QUERY = 402, c"the query would lose information";
    NOT_FOUND = 500, c"named symbol not found";
    NOT_READY = 600, c"device not ready";
    ILLEGAL_ADDRESS = 700, c"an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, c"too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, c"the launch timed out and was terminated";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703, c"launch uses incompatible texturing mode";
    PEER_ACCESS_ALREADY_ENABLED = 704, c"peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, c"peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, c"cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, c"context is destroyed";
    ASSERT = 710, c"device-side assert triggered";
    TOO_MANY_PEERS = 711, c"peer mapping resources exhausted";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, c"hardware stack error";
    ILLEGAL_INSTRUCTION = 715, c"an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, c"misaligned address";
    INVALID_ADDRESS_SPACE = 717, c"operation not supported on global or shared address space";
    INVALID_PC = 718, c"invalid program counter";
    LAUNCH_FAILED = 719, c"unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, c"too many blocks in cooperative launch";
    TENSOR_MEMORY_LEAK = 721, c"a block exited without freeing its tensor memory";
    NOT_PERMITTED = 800, c"operation not permitted";
    NOT_SUPPORTED = 801, c"operation not supported";
    SYSTEM_NOT_READY = 802, c"system not yet initialized";
    SYSTEM_DRIVER_MISMATCH = 803, c"system has unsupported display driver / cuda driver combination";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804, c"forward compatibility was attempted on non supported HW";
    MPS_CONNECTION_FAILED = 805, c"MPS client failed to connect to the MPS control daemon or the MPS server";
    MPS_RPC_FAILURE = 806, c"the remote procedural call between the MPS server and the MPS client failed";
    MPS_SERVER_NOT_READY = 807, c"MPS server is not ready to accept new MPS client requests";
    MPS_MAX_CLIENTS_REACHED = 808, c"the hardware resources required to create MPS client have been exhausted";
    MPS_MAX_CONNECTIONS_REACHED = 809,
        c"the hardware resources required to support device connections have been exhausted";
    MPS_CLIENT_TERMINATED = 810, c"the MPS client has been terminated by the server";
    CDP_NOT_SUPPORTED = 811, c"the program uses CUDA dynamic parallelism, which is not supported";
    CDP_VERSION_MISMATCH = 812, c"unsupported version of CUDA dynamic parallelism";
    STREAM_CAPTURE_UNSUPPORTED = 900, c"operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, c"operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, c"operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, c"capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, c"capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, c"dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, c"operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, c"operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, c"attempt to terminate a thread-local capture sequence from another thread";
    TIMEOUT = 909, c"the wait operation timed out";
    GRAPH_EXEC_UPDATE_FAILURE = 910, c"the graph update was not performed because it violated constraints";
    EXTERNAL_DEVICE = 911, c"an error has occurred outside of CUDA";
    INVALID_CLUSTER_SIZE = 912, c"invalid cluster size";
    FUNCTION_NOT_LOADED = 913, c"function not loaded";
    INVALID_RESOURCE_TYPE = 914, c"invalid resource type";
    INVALID_RESOURCE_CONFIGURATION = 915, c"invalid resource configuration";
    KEY_ROTATION = 916, c"key rotation in progress";
    STREAM_DETACHED = 917, c"the stream is detached";
    GRAPH_RECAPTURE_FAILURE = 918, c"the graph could not be captured again";
    FABRIC_NOT_READY = 919, c"the fabric is not ready";
    UNKNOWN = 999, c"unknown error";
}

/// The constant's name, as `cuGetErrorName` gives it.
pub fn name(code: i32) -> Option<&'static CStr> {
    use std::collections::HashMap;
    use std::ffi::CString;
    use std::sync::OnceLock;
    static NAMES: OnceLock<HashMap<i32, CString>> = OnceLock::new();
    if code == 0 {
        return Some(c"CUDA_SUCCESS");
    }
    let names = NAMES.get_or_init(|| {
        CODES.iter().filter_map(|(n, name, _)| Some((*n, CString::new(format!("CUDA_ERROR_{name}")).ok()?))).collect()
    });
    names.get(&code).map(|n| n.as_c_str())
}

/// The text, as `cuGetErrorString` gives it.
pub fn text(code: i32) -> Option<&'static CStr> {
    if code == 0 {
        return Some(c"no error");
    }
    CODES.iter().find(|(n, _, _)| *n == code).map(|(_, _, text)| *text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_and_texts() {
        assert_eq!(super::name(0), Some(c"CUDA_SUCCESS"));
        assert_eq!(super::name(201), Some(c"CUDA_ERROR_INVALID_CONTEXT"));
        assert_eq!(super::text(2), Some(c"out of memory"));
        assert_eq!(super::name(12345), None);
        assert_eq!(super::text(12345), None);
    }
}
