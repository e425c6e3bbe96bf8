//! Typed bindings to the CUDA driver calls that tests and `perf` use, loaded at run time.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};

use super::nccl::{open, symbol};

/// A driver call that did not return `CUDA_SUCCESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function.
    pub call: &'static str,
    /// Its `CUresult`.
    pub code: i32,
    /// The driver's name for the code.
    pub name: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} returned {} ({})", self.call, self.code, self.name)
    }
}

impl std::error::Error for Failure {}

/// A `CUcontext`; it may be current in several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Context(pub *mut c_void);

// SAFETY: the driver allows a context to be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A `CUstream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Stream(pub *mut c_void);

// SAFETY: the driver allows a stream to be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

/// The driver and its functions. It stays loaded for the life of the process.
#[derive(Clone, Copy)]
pub struct Cuda {
    soft: bool,
    init: unsafe extern "C" fn(c_uint) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device_get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    device_name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    ctx_retain: unsafe extern "C" fn(*mut Context, c_int) -> c_int,
    ctx_release: unsafe extern "C" fn(c_int) -> c_int,
    ctx_set: unsafe extern "C" fn(Context) -> c_int,
    ctx_sync: unsafe extern "C" fn() -> c_int,
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> c_int,
    to_host: unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int,
    mem_info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    set_bytes: unsafe extern "C" fn(u64, u8, usize) -> c_int,
    stream_create: unsafe extern "C" fn(*mut Stream, c_uint) -> c_int,
    stream_sync: unsafe extern "C" fn(Stream) -> c_int,
    stream_destroy: unsafe extern "C" fn(Stream) -> c_int,
}

impl Cuda {
    /// Loads `libcuda.so.1`, or the file of this name, and calls `cuInit`.
    ///
    /// # Errors
    /// If it cannot be loaded, lacks a function, or has no device it can start.
    pub fn load(name: impl AsRef<OsStr>) -> Result<Cuda, String> {
        let l = open(name)?;
        // SAFETY: the types of the fields are the prototypes of cuda.h.
        let cuda = unsafe {
            Cuda {
                soft: l.get::<*const c_void>(b"softcudaModuleLoadImage").is_ok(),
                init: symbol(l, "cuInit")?,
                error_name: symbol(l, "cuGetErrorName")?,
                device_count: symbol(l, "cuDeviceGetCount")?,
                device_get: symbol(l, "cuDeviceGet")?,
                device_name: symbol(l, "cuDeviceGetName")?,
                ctx_retain: symbol(l, "cuDevicePrimaryCtxRetain")?,
                ctx_release: symbol(l, "cuDevicePrimaryCtxRelease_v2")?,
                ctx_set: symbol(l, "cuCtxSetCurrent")?,
                ctx_sync: symbol(l, "cuCtxSynchronize")?,
                alloc: symbol(l, "cuMemAlloc_v2")?,
                free: symbol(l, "cuMemFree_v2")?,
                to_device: symbol(l, "cuMemcpyHtoD_v2")?,
                to_host: symbol(l, "cuMemcpyDtoH_v2")?,
                mem_info: symbol(l, "cuMemGetInfo_v2")?,
                set_bytes: symbol(l, "cuMemsetD8_v2")?,
                stream_create: symbol(l, "cuStreamCreate")?,
                stream_sync: symbol(l, "cuStreamSynchronize")?,
                stream_destroy: symbol(l, "cuStreamDestroy_v2")?,
            }
        };
        // SAFETY: cuInit takes flags, which must be 0.
        cuda.check("cuInit", unsafe { (cuda.init)(0) }).map_err(|failure| failure.to_string())?;
        Ok(cuda)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), Failure> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the pointer is to a live pointer; the answer is a static C string or NULL.
        let name = unsafe {
            (self.error_name)(code, &mut name);
            if name.is_null() { None } else { Some(CStr::from_ptr(name)) }
        };
        let name = name.map_or_else(|| "unknown code".into(), |name| name.to_string_lossy().into_owned());
        Err(Failure { call, code, name })
    }

    /// Whether this is the software device (its handshake symbol is there).
    pub fn is_software(&self) -> bool {
        self.soft
    }

    /// Number of devices.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn device_count(&self) -> Result<usize, Failure> {
        let mut n = 0;
        // SAFETY: the pointer is to a live int.
        self.check("cuDeviceGetCount", unsafe { (self.device_count)(&mut n) })?;
        Ok(usize::try_from(n).unwrap_or(0))
    }

    /// The name of a device.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn device_name(&self, device: usize) -> Result<String, Failure> {
        let mut name = [0u8; 128];
        // SAFETY: the buffer has the length that is given, less the last byte, which stays NUL.
        let code = unsafe { (self.device_name)(name.as_mut_ptr().cast(), 127, self.device(device)?) };
        self.check("cuDeviceGetName", code)?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    fn device(&self, ordinal: usize) -> Result<c_int, Failure> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is to a live int.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&mut device, ordinal) })?;
        Ok(device)
    }

    /// Retains a device's primary context and makes it current.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn use_device(&self, ordinal: usize) -> Result<Context, Failure> {
        let device = self.device(ordinal)?;
        let mut context = Context(std::ptr::null_mut());
        // SAFETY: the pointer is to a live context handle.
        self.check("cuDevicePrimaryCtxRetain", unsafe { (self.ctx_retain)(&mut context, device) })?;
        self.set_current(context)?;
        Ok(context)
    }

    /// Gives a primary context back.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn release_device(&self, ordinal: usize) -> Result<(), Failure> {
        let device = self.device(ordinal)?;
        // SAFETY: the device is one that the driver gave out.
        self.check("cuDevicePrimaryCtxRelease", unsafe { (self.ctx_release)(device) })
    }

    /// `cuCtxSetCurrent`.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn set_current(&self, context: Context) -> Result<(), Failure> {
        // SAFETY: the context is one that the driver gave out.
        self.check("cuCtxSetCurrent", unsafe { (self.ctx_set)(context) })
    }

    /// `cuCtxSynchronize`.
    ///
    /// # Errors
    /// What the driver returns, errors of earlier work among it.
    pub fn synchronize(&self) -> Result<(), Failure> {
        // SAFETY: no arguments.
        self.check("cuCtxSynchronize", unsafe { (self.ctx_sync)() })
    }

    /// Device memory, as an address.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn alloc(&self, bytes: usize) -> Result<u64, Failure> {
        let mut pointer = 0;
        // SAFETY: the pointer is to a live address.
        self.check("cuMemAlloc", unsafe { (self.alloc)(&mut pointer, bytes) })?;
        Ok(pointer)
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// What the driver returns.
    ///
    /// # Safety
    /// Nothing may use the memory any more.
    pub unsafe fn free(&self, pointer: u64) -> Result<(), Failure> {
        // SAFETY: the caller vouches for the memory.
        self.check("cuMemFree", unsafe { (self.free)(pointer) })
    }

    /// Free bytes and all bytes of the current device.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn memory(&self) -> Result<(usize, usize), Failure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to live integers.
        self.check("cuMemGetInfo", unsafe { (self.mem_info)(&mut free, &mut total) })?;
        Ok((free, total))
    }

    /// Copies to device memory and waits for it.
    ///
    /// # Errors
    /// What the driver returns; it knows how large its allocations are.
    pub fn copy_to_device(&self, to: u64, from: &[u8]) -> Result<(), Failure> {
        // SAFETY: the source is a live slice; the driver checks the destination.
        let code = unsafe { (self.to_device)(to, from.as_ptr().cast(), from.len()) };
        self.check("cuMemcpyHtoD", code)
    }

    /// Copies from device memory and waits for it.
    ///
    /// # Errors
    /// What the driver returns; it knows how large its allocations are.
    pub fn copy_to_host(&self, to: &mut [u8], from: u64) -> Result<(), Failure> {
        // SAFETY: the destination is a live slice; the driver checks the source.
        let code = unsafe { (self.to_host)(to.as_mut_ptr().cast(), from, to.len()) };
        self.check("cuMemcpyDtoH", code)
    }

    /// Fills device memory with a byte.
    ///
    /// # Errors
    /// What the driver returns; it knows how large its allocations are.
    pub fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<(), Failure> {
        // SAFETY: the driver checks the destination.
        self.check("cuMemsetD8", unsafe { (self.set_bytes)(at, byte, bytes) })
    }

    /// A stream of the current context that does not wait for the legacy stream.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn stream(&self) -> Result<Stream, Failure> {
        const NON_BLOCKING: c_uint = 1;
        let mut stream = Stream(std::ptr::null_mut());
        // SAFETY: the pointer is to a live stream handle.
        self.check("cuStreamCreate", unsafe { (self.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }

    /// Waits for all work of a stream.
    ///
    /// # Errors
    /// What the driver returns, errors of the work among it.
    pub fn wait(&self, stream: Stream) -> Result<(), Failure> {
        // SAFETY: the stream is one that the driver gave out.
        self.check("cuStreamSynchronize", unsafe { (self.stream_sync)(stream) })
    }

    /// Destroys a stream.
    ///
    /// # Errors
    /// What the driver returns.
    pub fn destroy_stream(&self, stream: Stream) -> Result<(), Failure> {
        // SAFETY: the stream is one that the driver gave out; callers use it once here.
        self.check("cuStreamDestroy", unsafe { (self.stream_destroy)(stream) })
    }
}
