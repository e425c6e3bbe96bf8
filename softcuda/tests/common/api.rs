//! The driver interface by dlopen, as a client that knows only NVIDIA's documentation would use it.
//!
//! The functions are declared safe: the tests' point is that they bear any argument that is not a wild pointer.

use super::image::{IMAGE, Image};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;

/// Declares a table of functions, loaded by name.
macro_rules! table {
    ($($field:ident: $symbol:literal, fn($($argument:ty),*);)*) => {
        pub struct Api {
            $(pub $field: extern "C" fn($($argument),*) -> c_int,)*
            _library: libloading::Library,
        }
        impl Api {
            fn load(library: libloading::Library) -> Api {
                // SAFETY: the signatures are those of NVIDIA's documentation; the library is kept as long as they are.
                unsafe {
                    Api {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes()).expect($symbol),)*
                        _library: library,
                    }
                }
            }
        }
    };
}

table! {
    init: "cuInit", fn(c_uint);
    primary_retain: "cuDevicePrimaryCtxRetain", fn(*mut u64, c_int);
    primary_release: "cuDevicePrimaryCtxRelease_v2", fn(c_int);
    primary_reset: "cuDevicePrimaryCtxReset_v2", fn(c_int);
    primary_state: "cuDevicePrimaryCtxGetState", fn(c_int, *mut c_uint, *mut c_int);
    device_attribute: "cuDeviceGetAttribute", fn(*mut c_int, c_int, c_int);
    device_count: "cuDeviceGetCount", fn(*mut c_int);
    device_uuid: "cuDeviceGetUuid_v2", fn(*mut u8, c_int);
    device_pci: "cuDeviceGetPCIBusId", fn(*mut c_char, c_int, c_int);
    context_create: "cuCtxCreate_v2", fn(*mut u64, c_uint, c_int);
    context_destroy: "cuCtxDestroy_v2", fn(u64);
    context_push: "cuCtxPushCurrent_v2", fn(u64);
    context_pop: "cuCtxPopCurrent_v2", fn(*mut u64);
    context_set: "cuCtxSetCurrent", fn(u64);
    context_get: "cuCtxGetCurrent", fn(*mut u64);
    context_device: "cuCtxGetDevice", fn(*mut c_int);
    context_synchronize: "cuCtxSynchronize", fn();
    alloc: "cuMemAlloc_v2", fn(*mut u64, usize);
    alloc_pitch: "cuMemAllocPitch_v2", fn(*mut u64, *mut usize, usize, usize, c_uint);
    alloc_managed: "cuMemAllocManaged", fn(*mut u64, usize, c_uint);
    alloc_host: "cuMemAllocHost_v2", fn(*mut *mut c_void, usize);
    free: "cuMemFree_v2", fn(u64);
    alloc_async: "cuMemAllocAsync", fn(*mut u64, usize, u64);
    free_async: "cuMemFreeAsync", fn(u64, u64);
    host_alloc: "cuMemHostAlloc", fn(*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost", fn(*mut c_void);
    host_register: "cuMemHostRegister_v2", fn(*mut c_void, usize, c_uint);
    host_unregister: "cuMemHostUnregister", fn(*mut c_void);
    memory_info: "cuMemGetInfo_v2", fn(*mut usize, *mut usize);
    address_range: "cuMemGetAddressRange_v2", fn(*mut u64, *mut usize, u64);
    pointer_attribute: "cuPointerGetAttribute", fn(*mut c_void, c_int, u64);
    pointer_attributes: "cuPointerGetAttributes", fn(c_uint, *const c_int, *const *mut c_void, u64);
    copy_to: "cuMemcpyHtoD_v2", fn(u64, *const c_void, usize);
    copy_from: "cuMemcpyDtoH_v2", fn(*mut c_void, u64, usize);
    copy_to_async: "cuMemcpyHtoDAsync_v2", fn(u64, *const c_void, usize, u64);
    copy_from_async: "cuMemcpyDtoHAsync_v2", fn(*mut c_void, u64, usize, u64);
    copy_async: "cuMemcpyAsync", fn(u64, u64, usize, u64);
    copy_2d: "cuMemcpy2D_v2", fn(*const c_void);
    set_d8_async: "cuMemsetD8Async", fn(u64, u8, usize, u64);
    set_d16: "cuMemsetD16_v2", fn(u64, u16, usize);
    set_d32_async: "cuMemsetD32Async", fn(u64, u32, usize, u64);
    set_2d_d32: "cuMemsetD2D32_v2", fn(u64, usize, u32, usize, usize);
    ipc_get: "cuIpcGetMemHandle", fn(*mut IpcHandle, u64);
    ipc_open: "cuIpcOpenMemHandle_v2", fn(*mut u64, IpcHandle, c_uint);
    ipc_close: "cuIpcCloseMemHandle", fn(u64);
    ipc_get_event: "cuIpcGetEventHandle", fn(*mut IpcHandle, u64);
    ipc_open_event: "cuIpcOpenEventHandle", fn(*mut u64, IpcHandle);
    stream_create: "cuStreamCreate", fn(*mut u64, c_uint);
    stream_destroy: "cuStreamDestroy_v2", fn(u64);
    stream_query: "cuStreamQuery", fn(u64);
    stream_synchronize: "cuStreamSynchronize", fn(u64);
    stream_wait_event: "cuStreamWaitEvent", fn(u64, u64, c_uint);
    stream_callback: "cuStreamAddCallback", fn(u64, extern "C" fn(u64, c_int, *mut c_void), *mut c_void, c_uint);
    stream_write_32: "cuStreamWriteValue32_v2", fn(u64, u64, u32, c_uint);
    stream_wait_32: "cuStreamWaitValue32_v2", fn(u64, u64, u32, c_uint);
    stream_batch: "cuStreamBatchMemOp_v2", fn(u64, c_uint, *const [u64; 6], c_uint);
    stream_is_capturing: "cuStreamIsCapturing", fn(u64, *mut c_int);
    stream_begin_capture: "cuStreamBeginCapture_v2", fn(u64, c_int);
    stream_end_capture: "cuStreamEndCapture", fn(u64, *mut u64);
    graph_destroy: "cuGraphDestroy", fn(u64);
    graph_nodes: "cuGraphGetNodes", fn(u64, *mut u64, *mut usize);
    graph_instantiate: "cuGraphInstantiateWithFlags", fn(*mut u64, u64, u64);
    graph_launch: "cuGraphLaunch", fn(u64, u64);
    graph_update: "cuGraphExecUpdate_v2", fn(u64, u64, *mut c_void);
    exec_destroy: "cuGraphExecDestroy", fn(u64);
    exchange_capture_mode: "cuThreadExchangeStreamCaptureMode", fn(*mut c_int);
    launch_host: "cuLaunchHostFunc", fn(u64, extern "C" fn(*mut c_void), *mut c_void);
    event_create: "cuEventCreate", fn(*mut u64, c_uint);
    event_destroy: "cuEventDestroy_v2", fn(u64);
    event_record: "cuEventRecord", fn(u64, u64);
    event_query: "cuEventQuery", fn(u64);
    event_synchronize: "cuEventSynchronize", fn(u64);
    event_elapsed: "cuEventElapsedTime", fn(*mut f32, u64, u64);
    load_image: "softcudaModuleLoadImage", fn(*mut u64, *const Image);
    load_data: "cuModuleLoadData", fn(*mut u64, *const c_void);
    module_unload: "cuModuleUnload", fn(u64);
    module_function: "cuModuleGetFunction", fn(*mut u64, u64, *const c_char);
    function_attribute: "cuFuncGetAttribute", fn(*mut c_int, c_int, u64);
    launch: "cuLaunchKernel", fn(
        u64, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, u64, *const *const c_void, *const *const c_void
    );
    proc_address: "cuGetProcAddress_v2", fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
    export_table: "cuGetExportTable", fn(*mut *const c_void, *const c_void);
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct IpcHandle(pub [u8; 64]);

/// Panics unless the call succeeded.
#[track_caller]
pub fn ok(result: c_int) {
    assert_eq!(result, 0);
}

impl Api {
    /// The library of this build.
    pub fn open() -> Api {
        let path = super::library_dir().join("libcuda.so.1");
        // SAFETY: its constructors do nothing.
        Api::load(unsafe { libloading::Library::new(path).expect("libcuda.so.1") })
    }

    /// Initialised, with the primary context of device 0 current.
    pub fn ready() -> Api {
        let api = Api::open();
        ok((api.init)(0));
        api.use_device(0);
        api
    }

    /// Makes the device's primary context current.
    pub fn use_device(&self, device: c_int) -> u64 {
        let mut context = 0;
        ok((self.primary_retain)(&mut context, device));
        ok((self.context_set)(context));
        context
    }

    pub fn stream(&self, flags: c_uint) -> u64 {
        let mut stream = 0;
        ok((self.stream_create)(&mut stream, flags));
        stream
    }

    pub fn event(&self, flags: c_uint) -> u64 {
        let mut event = 0;
        ok((self.event_create)(&mut event, flags));
        event
    }

    /// Device memory, zeroed.
    pub fn memory(&self, bytes: usize) -> u64 {
        let mut pointer = 0;
        ok((self.alloc)(&mut pointer, bytes));
        ok((self.set_d8_async)(pointer, 0, bytes, 0));
        ok((self.stream_synchronize)(0));
        pointer
    }

    pub fn module(&self) -> u64 {
        let mut module = 0;
        ok((self.load_image)(&mut module, &IMAGE));
        module
    }

    pub fn function(&self, module: u64, name: &str) -> u64 {
        let name = CString::new(name).expect("no zero");
        let mut function = 0;
        ok((self.module_function)(&mut function, module, name.as_ptr()));
        function
    }

    /// One block of one thread, with arguments of 8 bytes (shorter ones in the low bytes).
    pub fn run(&self, function: u64, stream: u64, arguments: &[u64]) {
        ok(self.try_run(function, stream, (1, 1), arguments));
    }

    pub fn try_run(&self, function: u64, stream: u64, (grid, block): (u32, u32), arguments: &[u64]) -> c_int {
        let pointers: Vec<*const c_void> = arguments.iter().map(|a| ptr::from_ref(a).cast()).collect();
        (self.launch)(function, grid, 1, 1, block, 1, 1, 0, stream, pointers.as_ptr(), ptr::null())
    }

    /// A word of device memory, read after all work of the context.
    pub fn read_u64(&self, pointer: u64) -> u64 {
        let mut value = 0u64;
        ok((self.context_synchronize)());
        ok((self.copy_from)(ptr::from_mut(&mut value).cast(), pointer, 8));
        value
    }
}
