//! The CUDA driver, found at run time: a table of the functions that this library calls.
//!
//! The library never links to CUDA. It takes the `libcuda.so.1` that is already in the process, where
//! there is one, so that it always talks to the driver that the application talks to. Structures, handles and
//! numbers are those of cudarc, which has them from NVIDIA's headers; of its functions none is used. What a
//! driver returns is a plain integer: a newer one may give codes that no enum knows.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction,
    CUfunction_attribute, CUgraph, CUgraphNode, CUhostFn, CUipcMemHandle, CUlaunchConfig, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmodule, CUpointer_attribute, CUresult, CUstream, CUuserObject, CUuuid,
};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::error::Error;
use crate::sys;

/// The driver's soname; the only name that is tried, so that a toolkit's stub library never wins.
const SONAME: &str = "libcuda.so.1";
/// The call has done what it was to do.
pub(super) const SUCCESS: c_int = CUresult::CUDA_SUCCESS as c_int;
/// The device has no memory left.
pub const OUT_OF_MEMORY: c_int = CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int;
/// The context was destroyed, or is a primary one that was reset.
pub(super) const CONTEXT_IS_DESTROYED: c_int = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED as c_int;
/// Not an error: the queried work is still running.
pub(super) const NOT_READY: c_int = CUresult::CUDA_ERROR_NOT_READY as c_int;
/// The memory is mapped in this process.
pub const ALREADY_MAPPED: c_int = CUresult::CUDA_ERROR_ALREADY_MAPPED as c_int;
/// Harmless.
pub(super) const PEER_ACCESS_ALREADY_ENABLED: c_int = CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as c_int;
/// The first driver that knows memory synchronisation domains.
const MEM_SYNC_DOMAINS_SINCE: i32 = 12000;
/// Somebody else has registered it.
pub(super) const HOST_MEMORY_ALREADY_REGISTERED: c_int = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED as c_int;

/// An inter-process memory handle (`CUipcMemHandle`) as the bytes that ranks send each other.
#[derive(Clone, Copy, Debug)]
pub struct IpcMemHandle(pub [u8; 64]);

impl From<CUipcMemHandle> for IpcMemHandle {
    fn from(handle: CUipcMemHandle) -> IpcMemHandle {
        IpcMemHandle(handle.reserved.map(|byte| byte as u8))
    }
}

impl From<IpcMemHandle> for CUipcMemHandle {
    fn from(handle: IpcMemHandle) -> CUipcMemHandle {
        CUipcMemHandle { reserved: handle.0.map(|byte| byte as c_char) }
    }
}

/// The oldest driver that will do, as it says its version: what compilers of CUDA 12 make runs on it, whichever they
/// are. It has all of [`Table`], and of the other tables, too (`tests/driver.rs`).
const OLDEST: c_int = 12000;

/// Declares the function table and how it is filled; a missing symbol is reported by its name.
macro_rules! driver_table {
    ($( #[$doc:meta] )* struct $table:ident; $( fn $name:ident = $symbol:literal ( $($arg:ty),* ); )*) => {
        $( #[$doc] )*
        pub(super) struct $table { $( pub(super) $name: unsafe extern "C" fn($($arg),*) -> c_int, )* }

        impl $table {
            fn load(library: &Library) -> Result<$table, Error> {
                Ok($table { $( $name: {
                    // SAFETY: the driver API declares the symbol with this signature.
                    let symbol = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($symbol.as_bytes()) };
                    *symbol.map_err(|_| lacking(library, $symbol))?
                }, )* })
            }
        }
    };
}

/// The driver has not what this library cannot do without, though it is new enough by its version or says none.
fn lacking(library: &Library, symbol: &str) -> Error {
    let text = format!(
        "the CUDA driver {} lacks {symbol}: it is too old ({} is the oldest), or a placeholder",
        file_of(library),
        named(OLDEST)
    );
    Error::NoCuda(text)
}

/// A driver's version in words.
fn named(version: c_int) -> String {
    let release = if version == OLDEST { ", release 525" } else { "" };
    format!("CUDA {}.{}{release}", version / 1000, version % 1000 / 10)
}

/// The version of a driver, which needs no `cuInit`.
///
/// # Errors
/// [`Error::NoCuda`] with both versions where it is older than [`OLDEST`].
fn version_of(library: &Library) -> Result<c_int, Error> {
    const SYMBOL: &str = "cuDriverGetVersion";
    // SAFETY: the driver API declares the symbol with this signature.
    let symbol = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(SYMBOL.as_bytes()) };
    let ask = symbol.map_err(|_| lacking(library, SYMBOL))?;
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    let code = unsafe { ask(&mut version) };
    if code != SUCCESS {
        return Err(Error::Cuda { call: SYMBOL, code, text: "no version".to_string() });
    }
    if version < OLDEST {
        return Err(Error::NoCuda(format!(
            "the CUDA driver {} is too old: it is one of {}, and oxccl needs {} or newer",
            file_of(library),
            named(version),
            named(OLDEST)
        )));
    }
    Ok(version)
}

/// The file of a driver, as the loader names it.
fn file_of(library: &Library) -> String {
    // SAFETY: only the symbol's address is taken.
    let symbol = unsafe { library.get::<*const c_void>(b"cuInit") };
    symbol.ok().and_then(|symbol| sys::loaded_file(symbol.into_raw().addr())).unwrap_or_else(|| SONAME.to_string())
}

driver_table! {
    /// The driver functions that this library calls, each a C function pointer.
    struct Table;
    fn init = "cuInit"(c_uint);
    fn device_count = "cuDeviceGetCount"(*mut c_int);
    fn device_uuid = "cuDeviceGetUuid"(*mut CUuuid, CUdevice);
    fn device_bus_id = "cuDeviceGetPCIBusId"(*mut c_char, c_int, CUdevice);
    fn device_attribute = "cuDeviceGetAttribute"(*mut c_int, CUdevice_attribute, CUdevice);
    fn can_access_peer = "cuDeviceCanAccessPeer"(*mut c_int, CUdevice, CUdevice);
    fn peer_attribute = "cuDeviceGetP2PAttribute"(*mut c_int, CUdevice_P2PAttribute, CUdevice, CUdevice);
    fn primary_retain = "cuDevicePrimaryCtxRetain"(*mut CUcontext, CUdevice);
    fn primary_release = "cuDevicePrimaryCtxRelease_v2"(CUdevice);
    fn primary_state = "cuDevicePrimaryCtxGetState"(CUdevice, *mut c_uint, *mut c_int);
    fn ctx_current = "cuCtxGetCurrent"(*mut CUcontext);
    fn ctx_push = "cuCtxPushCurrent_v2"(CUcontext);
    fn ctx_pop = "cuCtxPopCurrent_v2"(*mut CUcontext);
    fn ctx_device = "cuCtxGetDevice"(*mut CUdevice);
    fn enable_peer = "cuCtxEnablePeerAccess"(CUcontext, c_uint);
    fn mem_alloc = "cuMemAlloc_v2"(*mut CUdeviceptr, usize);
    fn mem_free = "cuMemFree_v2"(CUdeviceptr);
    fn address_range = "cuMemGetAddressRange_v2"(*mut CUdeviceptr, *mut usize, CUdeviceptr);
    fn host_register = "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    fn host_unregister = "cuMemHostUnregister"(*mut c_void);
    fn host_pointer = "cuMemHostGetDevicePointer_v2"(*mut CUdeviceptr, *mut c_void, c_uint);
    fn copy_to_device = "cuMemcpyHtoDAsync_v2"(CUdeviceptr, *const c_void, usize, CUstream);
    fn copy_to_host = "cuMemcpyDtoHAsync_v2"(*mut c_void, CUdeviceptr, usize, CUstream);
    fn copy_async = "cuMemcpyDtoDAsync_v2"(CUdeviceptr, CUdeviceptr, usize, CUstream);
    fn set_bytes = "cuMemsetD8Async"(CUdeviceptr, u8, usize, CUstream);
    fn ipc_get = "cuIpcGetMemHandle"(*mut CUipcMemHandle, CUdeviceptr);
    fn ipc_open = "cuIpcOpenMemHandle_v2"(*mut CUdeviceptr, CUipcMemHandle, c_uint);
    fn ipc_close = "cuIpcCloseMemHandle"(CUdeviceptr);
    fn pointer_attribute = "cuPointerGetAttribute"(*mut c_void, CUpointer_attribute, CUdeviceptr);
    fn stream_context = "cuStreamGetCtx"(CUstream, *mut CUcontext);
    fn stream_wait = "cuStreamWaitEvent"(CUstream, CUevent, c_uint);
    fn stream_capturing = "cuStreamIsCapturing"(CUstream, *mut c_uint);
    fn capture_mode = "cuThreadExchangeStreamCaptureMode"(*mut c_uint);
    fn stream_create = "cuStreamCreate"(*mut CUstream, c_uint);
    fn stream_destroy = "cuStreamDestroy_v2"(CUstream);
    fn stream_sync = "cuStreamSynchronize"(CUstream);
    fn event_create = "cuEventCreate"(*mut CUevent, c_uint);
    fn event_destroy = "cuEventDestroy_v2"(CUevent);
    fn event_record = "cuEventRecord"(CUevent, CUstream);
    fn event_query = "cuEventQuery"(CUevent);
    fn event_sync = "cuEventSynchronize"(CUevent);
    fn module_load = "cuModuleLoadData"(*mut CUmodule, *const c_void);
    fn module_unload = "cuModuleUnload"(CUmodule);
    fn function_attribute = "cuFuncGetAttribute"(*mut c_int, CUfunction_attribute, CUfunction);
    fn module_function = "cuModuleGetFunction"(*mut CUfunction, CUmodule, *const c_char);
    fn launch = "cuLaunchKernel"(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void
    );
    fn error_string = "cuGetErrorString"(c_int, *mut *const c_char);
}

driver_table! {
    /// What calls in CUDA graphs need besides; drivers before CUDA 11.3 lack some of it.
    struct GraphTable;
    fn capture_info = "cuStreamGetCaptureInfo_v2"(
        CUstream, *mut c_uint, *mut u64, *mut CUgraph, *mut *const CUgraphNode, *mut usize
    );
    fn record_with = "cuEventRecordWithFlags"(CUevent, CUstream, c_uint);
    fn object_create = "cuUserObjectCreate"(*mut CUuserObject, *mut c_void, CUhostFn, c_uint, c_uint);
    fn object_release = "cuUserObjectRelease"(CUuserObject, c_uint);
    fn graph_retain = "cuGraphRetainUserObject"(CUgraph, CUuserObject, c_uint, c_uint);
}

driver_table! {
    /// Virtual memory management; drivers before CUDA 11.0 lack some of it.
    struct VirtualTable;
    fn granularity = "cuMemGetAllocationGranularity"(
        *mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags
    );
    fn create = "cuMemCreate"(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
    fn release = "cuMemRelease"(CUmemGenericAllocationHandle);
    fn export = "cuMemExportToShareableHandle"(
        *mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong
    );
    fn import = "cuMemImportFromShareableHandle"(
        *mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType
    );
    fn retain = "cuMemRetainAllocationHandle"(*mut CUmemGenericAllocationHandle, *mut c_void);
    fn properties = "cuMemGetAllocationPropertiesFromHandle"(*mut CUmemAllocationProp, CUmemGenericAllocationHandle);
    fn reserve = "cuMemAddressReserve"(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    fn free_address = "cuMemAddressFree"(CUdeviceptr, usize);
    fn map = "cuMemMap"(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    fn unmap = "cuMemUnmap"(CUdeviceptr, usize);
    fn set_access = "cuMemSetAccess"(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
}

/// `cuLaunchKernelEx`, which drivers before CUDA 11.6 lack.
pub(super) type LaunchEx =
    unsafe extern "C" fn(*const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> c_int;
/// `cuCtxGetId`, which drivers before CUDA 12.0 lack.
type ContextNumber = unsafe extern "C" fn(CUcontext, *mut c_ulonglong) -> c_int;
/// `cuFuncLoad`, which drivers before CUDA 12.4 lack.
type FunctionLoad = unsafe extern "C" fn(CUfunction) -> c_int;
/// The software device's extra entry point: loads a host image in place of a fatbin.
type LoadImage = unsafe extern "C" fn(*mut CUmodule, *const c_void) -> c_int;
/// The software device's question whether host images shall do without wake-ups.
type NoWake = unsafe extern "C" fn() -> c_int;

/// The loaded and initialised CUDA driver.
pub struct Driver {
    pub(super) table: Table,
    pub(super) graphs: Option<GraphTable>,
    pub(super) virtual_memory: Option<VirtualTable>,
    context_number: Option<ContextNumber>,
    launch_ex: Option<LaunchEx>,
    load_image: Option<LoadImage>,
    no_wake: bool,
    function_load: Option<FunctionLoad>,
    version: i32,
    // Kept so that the table's functions stay mapped.
    _library: Library,
}

impl Driver {
    /// The process's driver. The first call loads and initialises it; a failure is not remembered,
    /// since the application may load its driver later.
    ///
    /// # Errors
    /// [`Error::NoCuda`] when there is no driver, [`Error::Cuda`] when `cuInit` fails.
    pub fn get() -> Result<&'static Driver, Error> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let driver = Driver::load()?;
        Ok(DRIVER.get_or_init(|| driver))
    }

    fn load() -> Result<Driver, Error> {
        let library = open_library()?;
        let version = version_of(&library)?;
        let (table, graphs) = (Table::load(&library)?, GraphTable::load(&library).ok());
        // SAFETY: softcuda.h declares the symbol with this signature; other drivers lack it.
        let load_image = unsafe { library.get::<LoadImage>(b"softcudaModuleLoadImage") }.ok().map(|s| *s);
        // SAFETY: as above; the function takes nothing and needs no `cuInit`.
        let no_wake = unsafe { library.get::<NoWake>(b"softcudaNoWake").is_ok_and(|asked| asked() != 0) };
        // SAFETY: the driver API declares the symbol with this signature.
        let context_number = unsafe { library.get::<ContextNumber>(b"cuCtxGetId") }.ok().map(|s| *s);
        // SAFETY: as above.
        let launch_ex = unsafe { library.get::<LaunchEx>(b"cuLaunchKernelEx") }.ok().map(|s| *s);
        let virtual_memory = VirtualTable::load(&library).ok();
        // SAFETY: as above.
        let function_load = unsafe { library.get::<FunctionLoad>(b"cuFuncLoad") }.ok().map(|s| *s);
        let driver = Driver {
            table,
            graphs,
            virtual_memory,
            context_number,
            launch_ex,
            load_image,
            no_wake,
            function_load,
            version,
            _library: library,
        };
        // SAFETY: the only argument is a flag word that must be 0.
        driver.check("cuInit", unsafe { (driver.table.init)(0) })?;
        log::info!(target: "INIT", "cudaDriverVersion {version}");
        Ok(driver)
    }

    /// The driver's CUDA version: major × 1000 + minor × 10.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Whether the driver is the software device, which runs host images.
    pub fn is_software(&self) -> bool {
        self.load_image.is_some()
    }

    /// Whether host images shall do without wake-ups (`SOFTCUDA_NO_WAKE=1`), as code on a GPU must.
    pub fn no_wake(&self) -> bool {
        self.no_wake
    }

    pub(super) fn context_number(&self) -> Option<ContextNumber> {
        self.context_number
    }

    pub(super) fn function_load(&self) -> Option<FunctionLoad> {
        self.function_load
    }

    /// The launch with attributes, where the driver knows memory synchronisation domains (CUDA 12.0).
    pub(super) fn launch_in_domain(&self) -> Option<LaunchEx> {
        self.launch_ex.filter(|_| self.version >= MEM_SYNC_DOMAINS_SINCE)
    }

    pub(super) fn load_image(&self) -> Option<LoadImage> {
        self.load_image
    }

    /// Maps a driver result to an error that names the call.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a static string, or NULL for a code it does not know.
        let known = unsafe { (self.table.error_string)(code, &mut text) } == SUCCESS && !text.is_null();
        let text = if known {
            // SAFETY: the driver's string is static and NUL-terminated.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            "unrecognized error code".to_string()
        };
        Err(Error::Cuda { call, code, text })
    }
}

/// The driver library: the copy that the process already has, else the loader's choice.
fn open_library() -> Result<Library, Error> {
    // SAFETY: RTLD_NOLOAD runs no initialiser; it finds a library that is already mapped.
    let mapped = unsafe { Library::open(Some(SONAME), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD) };
    if let Ok(library) = mapped {
        return Ok(library);
    }
    // SAFETY: loading the CUDA driver is what the caller asks for; its initialisers are the driver's own.
    unsafe { Library::open(Some(SONAME), RTLD_LAZY | RTLD_LOCAL) }
        .map_err(|error| Error::NoCuda(format!("no CUDA driver: {SONAME} cannot be loaded ({})", why(&error))))
}

/// What the loader says of a library or symbol: the error itself says only what failed.
pub(super) fn why(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
