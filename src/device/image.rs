//! The kernels: one image per context, loaded once and shared by its communicators.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUlaunchMemSyncDomain, CUmodule, CUresult, CUstream,
};
use parking_lot::Mutex;

use super::context::{Context, ContextKey};
use super::driver::{Driver, LaunchEx, NO_BINARY_FOR_GPU};
use super::nvrtc;
use crate::error::Error;

/// The fatbin that nvcc made at build time; empty where it was not found.
static FATBIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/device.fatbin"));

/// What drivers say of an image that is not for them.
const DOES_NOT_FIT: [c_int; 5] = [
    NO_BINARY_FOR_GPU,
    CUresult::CUDA_ERROR_INVALID_IMAGE as c_int,
    CUresult::CUDA_ERROR_INVALID_PTX as c_int,
    CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND as c_int,
    CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as c_int,
];

// SAFETY: the declaration is that of kernels/entry.cu; the function takes nothing and cannot fail.
unsafe extern "C" {
    /// The host image for this processor (`kernels/entry.cu`).
    fn oxccl_host_image() -> *const c_void;
}

/// The first compute capability with memory synchronisation domains.
const DOMAINS_SINCE: i32 = 90;

/// A stream of the user's, as the C interface gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub usize);

/// `CU_STREAM_LEGACY`, which 0 stands for too. The headers have both names as casts, which cudarc lacks.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`: another stream in each thread.
const PER_THREAD: usize = 2;

impl Stream {
    /// Whether it names a default stream, of whatever context is current.
    pub fn is_default(self) -> bool {
        matches!(self.0, 0 | LEGACY | PER_THREAD)
    }

    /// Whether it names the calling thread's own default stream.
    pub fn is_per_thread(self) -> bool {
        self.0 == PER_THREAD
    }

    pub(super) fn raw(self) -> CUstream {
        self.0 as CUstream
    }
}

/// What the driver says of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Registers of a thread.
    pub registers: i32,
    /// Bytes of a thread's stack.
    pub local_bytes: i32,
    /// Bytes of a block's shared memory.
    pub shared_bytes: i32,
}

/// The loaded kernels of one context.
pub struct Kernels {
    context: Arc<Context>,
    module: CUmodule,
    functions: Vec<CUfunction>,
    /// How kernels are launched where devices have memory synchronisation domains.
    in_domain: Option<LaunchEx>,
}

// SAFETY: modules and functions may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above; nothing is changed after the load.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// The kernels of a context: those that are loaded already, else freshly loaded ones. `names` are
    /// the entry points; the place of a name in the slice is its number in [`Kernels::launch`].
    pub fn get(context: &Arc<Context>, names: &[String]) -> Result<Arc<Kernels>, Error> {
        // One image per context and process: loading on a GPU takes tens of milliseconds.
        static LOADED: Mutex<Option<HashMap<ContextKey, Weak<Kernels>>>> = Mutex::new(None);
        let mut guard = LOADED.lock();
        let loaded = guard.get_or_insert_default();
        loaded.retain(|_, kernels| kernels.strong_count() > 0);
        if let Some(kernels) = loaded.get(&context.key()).and_then(Weak::upgrade) {
            return Ok(kernels);
        }
        let kernels = Arc::new(Kernels::load(context, names)?);
        loaded.insert(context.key(), Arc::downgrade(&kernels));
        Ok(kernels)
    }

    fn load(context: &Arc<Context>, names: &[String]) -> Result<Kernels, Error> {
        let _entered = context.enter()?;
        let module = load_module(context)?;
        let driver = context.driver();
        let mut kernels = Kernels { context: context.clone(), module, functions: Vec::new(), in_domain: None };
        if context.capability()? >= DOMAINS_SINCE {
            kernels.in_domain = driver.launch_in_domain();
        }
        for name in names {
            let symbol = CString::new(name.as_str()).map_err(|_| Error::Internal(format!("kernel name {name:?}")))?;
            let mut function = null_mut();
            // SAFETY: the module is loaded; the name is NUL-terminated; the pointer is live.
            let code = unsafe { (driver.table.module_function)(&mut function, module, symbol.as_ptr()) };
            driver.check("cuModuleGetFunction", code)?;
            kernels.functions.push(function);
        }
        Ok(kernels)
    }

    /// What the driver says of kernel number `index`.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver cannot load the kernel.
    pub fn facts(&self, index: usize) -> Result<KernelFacts, Error> {
        let _entered = self.context.enter()?;
        let driver = self.context.driver();
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the function belongs to the loaded module; the pointer is to a live integer.
            let code = unsafe { (driver.table.function_attribute)(&mut value, which, self.functions[index]) };
            driver.check("cuFuncGetAttribute", code).map(|()| value)
        };
        Ok(KernelFacts {
            registers: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared_bytes: attribute(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
        })
    }

    /// Launches kernel number `index` with one argument of `bytes` bytes. The context must be current.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver refuses the launch.
    ///
    /// # Safety
    /// The argument must be what the kernel takes by value, and everything that it points to must
    /// stay alive until the launch has ended.
    pub unsafe fn launch<T>(
        &self,
        index: usize,
        blocks: u32,
        threads: u32,
        stream: Stream,
        argument: &T,
    ) -> Result<(), Error> {
        let (driver, function) = (self.context.driver(), self.functions[index]);
        let mut parameters = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        let (parameters, extra) = (parameters.as_mut_ptr(), null_mut());
        if let Some(launch) = self.in_domain {
            let mut attribute = remote_domain();
            let config = launch_config(blocks, threads, stream, &mut attribute);
            // SAFETY: the function belongs to the loaded module; the driver copies the argument and the attribute, both
            // live, before it returns.
            return driver.check("cuLaunchKernelEx", unsafe { launch(&config, function, parameters, extra) });
        }
        let launch = driver.table.launch;
        // SAFETY: as above.
        let code = unsafe { launch(function, blocks, 1, 1, threads, 1, 1, 0, stream.raw(), parameters, extra) };
        driver.check("cuLaunchKernel", code)
    }
}

/// What a fence of a kernel at system scope waits for are the stores of its own domain. Kernels of communication are in
/// another one than those of the application, so that they do not wait for all that the application has stored.
fn remote_domain() -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        pad: [0; 4],
        value: CUlaunchAttributeValue { memSyncDomain: CUlaunchMemSyncDomain::CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE },
    }
}

/// Blocks in one dimension, with one attribute.
fn launch_config(blocks: u32, threads: u32, stream: Stream, attribute: &mut CUlaunchAttribute) -> CUlaunchConfig {
    CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.raw(),
        attrs: attribute,
        numAttrs: 1,
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the module is ours and no launch of it is under way.
            unsafe { (self.context.driver().table.module_unload)(self.module) };
        }
    }
}

/// Loads the image that fits the driver. A context must be current.
fn load_module(context: &Context) -> Result<CUmodule, Error> {
    let driver = context.driver();
    let mut module = null_mut();
    if let Some(load_image) = driver.load_image() {
        // SAFETY: the host image is a static table of this library.
        let code = unsafe { load_image(&mut module, oxccl_host_image()) };
        driver.check("softcudaModuleLoadImage", code)?;
        return Ok(module);
    }
    match load_data(driver, FATBIN) {
        // This build has no code for GPUs, or none for this one or its driver.
        Err(Error::Cuda { code, text, .. }) if DOES_NOT_FIT.contains(&code) => {
            log::info!(target: "INIT", "the embedded kernels do not fit this device and driver ({text})");
        }
        loaded => return loaded,
    }
    nvrtc::load(driver.version(), context.capability()?, |kernels| load_data(driver, kernels))
}

/// Loads a fatbin, machine code or PTX. A context must be current.
fn load_data(driver: &Driver, image: &[u8]) -> Result<CUmodule, Error> {
    if image.is_empty() {
        return Err(Error::Cuda {
            call: "cuModuleLoadData",
            code: NO_BINARY_FOR_GPU,
            text: "no kernels in this build".to_string(),
        });
    }
    let mut module = null_mut();
    // SAFETY: the image is one that a compiler of NVIDIA's made and says itself how long it is (PTX by a zero byte at
    // its end, which NVRTC counts in); the driver copies what it keeps of it.
    driver.check("cuModuleLoadData", unsafe { (driver.table.module_load)(&mut module, image.as_ptr().cast()) })?;
    Ok(module)
}
