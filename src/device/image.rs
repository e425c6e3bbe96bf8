//! The kernels: one image per context, loaded once and shared by its communicators.

use std::collections::HashMap;
#[cfg(test)]
use std::ffi::c_int;
use std::ffi::{CString, c_void};
use std::fmt::{self, Display, Formatter};
use std::ptr::null_mut;
use std::sync::{Arc, Weak};

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
    CUlaunchMemSyncDomain, CUmodule, CUstream,
};
use parking_lot::Mutex;

use super::context::{Context, ContextKey};
use super::driver::{Driver, LaunchEx, OUT_OF_MEMORY};
use super::embedded::{self, Embedded};
use super::nvrtc;
use crate::error::Error;

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

    /// The kernels in the best image there is: one that the build has embedded, else one that is made now.
    fn load(context: &Arc<Context>, names: &[String]) -> Result<Kernels, Error> {
        let _entered = context.enter()?;
        let (driver, capability) = (context.driver(), context.capability()?);
        let open = |image: KernelImage| Kernels::open(context, names, image);
        let mut refused = Vec::new();
        let found = match driver.load_image() {
            Some(_) => first_usable(&[KernelImage::Host], open, &mut refused)?,
            None => first_usable(&images(capability), open, &mut refused)?,
        };
        if let Some(kernels) = found {
            return Ok(kernels);
        }
        context.check_alive()?;
        let made = nvrtc::load(driver.version(), capability, |code| open(KernelImage::Made(code)));
        made.map_err(|error| no_code(capability, &refused, error))
    }

    /// Loads an image and all kernels in it: a driver that loads lazily would tell only at the first launch what it
    /// cannot do. The context must be current.
    fn open(context: &Arc<Context>, names: &[String], image: KernelImage) -> Result<Kernels, Error> {
        let driver = context.driver();
        let module = load_module(driver, image)?;
        // From here on the drop unloads it.
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
            match driver.function_load() {
                // SAFETY: the function belongs to the loaded module.
                Some(load) => driver.check("cuFuncLoad", unsafe { load(function) })?,
                None => kernels.attribute(function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS).map(drop)?,
            }
        }
        Ok(kernels)
    }

    /// What the driver says of a function, which it loads for that. The context must be current.
    fn attribute(&self, function: CUfunction, which: CUfunction_attribute) -> Result<i32, Error> {
        let (driver, mut value) = (self.context.driver(), 0);
        // SAFETY: the function belongs to the loaded module; the pointer is to a live integer.
        let code = unsafe { (driver.table.function_attribute)(&mut value, which, function) };
        driver.check("cuFuncGetAttribute", code).map(|()| value)
    }

    /// What the driver says of kernel number `index`.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver cannot load the kernel.
    pub fn facts(&self, index: usize) -> Result<KernelFacts, Error> {
        let _entered = self.context.enter()?;
        let attribute = |which| self.attribute(self.functions[index], which);
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

/// Kernels that can be loaded.
#[derive(Clone, Copy)]
enum KernelImage<'a> {
    /// For the processor: the software device runs them.
    Host,
    /// Of this build.
    Embedded(&'a Embedded),
    /// Freshly compiled: machine code, or PTX with a zero byte at its end.
    Made(&'a [u8]),
}

impl Display for KernelImage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelImage::Host => "host image",
            KernelImage::Embedded(embedded) => embedded.code,
            KernelImage::Made(_) => "compiled now",
        })
    }
}

/// The embedded images that a device may run.
fn images(capability: i32) -> Vec<KernelImage<'static>> {
    embedded::for_device(capability).into_iter().map(KernelImage::Embedded).collect()
}

/// The first image that can be used. Whatever is wrong with one, short of memory, the next may do: of newer drivers and
/// lazy loading nobody knows all codes.
fn first_usable<I: Copy + Display, K>(
    images: &[I],
    open: impl Fn(I) -> Result<K, Error>,
    refused: &mut Vec<String>,
) -> Result<Option<K>, Error> {
    for image in images {
        match open(*image) {
            Ok(kernels) => return Ok(Some(kernels)),
            Err(error @ Error::Cuda { code: OUT_OF_MEMORY, .. }) => return Err(error),
            Err(error) => {
                log::info!(target: "INIT", "the embedded kernels ({image}) cannot be used: {error}");
                refused.push(format!("{image}: {error}"));
            }
        }
    }
    Ok(None)
}

/// Why there are no kernels for a device, where `error` is why none could be made.
fn no_code(capability: i32, refused: &[String], error: Error) -> Error {
    let refused = if refused.is_empty() { String::new() } else { format!(" ({})", refused.join("; ")) };
    let text = format!(
        "no kernels for compute capability {}.{}: this build has code for {}{refused}, and none could be made",
        capability / 10,
        capability % 10,
        if embedded::CODES.is_empty() { "no GPU" } else { embedded::CODES },
    );
    match error {
        Error::Cuda { code: OUT_OF_MEMORY, .. } => error,
        Error::Internal(why) => Error::Internal(format!("{text}: {why}")),
        Error::NoCuda(why) => Error::NoCuda(format!("{text}: {why}")),
        other => Error::NoCuda(format!("{text}: {other}")),
    }
}

/// Loads an image. A context must be current.
fn load_module(driver: &Driver, image: KernelImage) -> Result<CUmodule, Error> {
    let mut module = null_mut();
    let embedded = match image {
        KernelImage::Embedded(embedded) => embedded.image()?,
        _ => Vec::new(),
    };
    let code = match (image, driver.load_image()) {
        (KernelImage::Host, Some(load_image)) => {
            // SAFETY: the host image is a static table of this library.
            let code = unsafe { load_image(&mut module, oxccl_host_image()) };
            driver.check("softcudaModuleLoadImage", code)?;
            return Ok(module);
        }
        (KernelImage::Made(code), _) => code,
        _ => &embedded,
    };
    // SAFETY: the image is one that a compiler of NVIDIA's made and says itself how long it is (PTX by a zero byte at
    // its end, which NVRTC counts in); the driver copies what it keeps of it.
    driver.check("cuModuleLoadData", unsafe { (driver.table.module_load)(&mut module, code.as_ptr().cast()) })?;
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuda(code: c_int) -> Error {
        Error::Cuda { call: "cuModuleGetFunction", code, text: "no".to_string() }
    }

    /// Tries images that are numbers: each opens with its own code, 0 is success.
    fn try_all(images: &[c_int]) -> (Result<Option<c_int>, Error>, usize) {
        let mut refused = Vec::new();
        let open = |code| if code == 0 { Ok(7) } else { Err(cuda(code)) };
        (first_usable(images, open, &mut refused), refused.len())
    }

    #[test]
    fn whatever_is_wrong_with_an_image_the_next_one_is_tried() {
        let of_a_driver = [200, 209, 218, 221, 222, 223, 301, 500, 700, 999, 12345];
        assert!(matches!(try_all(&of_a_driver), (Ok(None), 11)));
        assert!(matches!(try_all(&[209, 500, 0, 3]), (Ok(Some(7)), 2)));
        assert!(matches!(try_all(&[]), (Ok(None), 0)));
        // Another image would need no less memory.
        let (result, _) = try_all(&[209, OUT_OF_MEMORY, 0]);
        assert!(matches!(result, Err(Error::Cuda { code: OUT_OF_MEMORY, .. })));
    }

    #[test]
    fn the_compute_capability_without_code_is_named() {
        let refused = ["fatbin: 209".to_string()];
        let text = |error| no_code(103, &refused, error).to_string();
        for error in [Error::NoCuda("no compiler".to_string()), Error::Internal("bad source".to_string()), cuda(209)] {
            let (why, text) = (error.to_string(), text(error));
            assert!(text.contains("compute capability 10.3") && text.contains("fatbin: 209"), "{text}");
            assert!(
                ["no compiler", "bad source", "cuModuleGetFunction"].iter().any(|part| text.contains(part)),
                "{why}"
            );
        }
        assert!(matches!(no_code(90, &[], cuda(OUT_OF_MEMORY)), Error::Cuda { code: OUT_OF_MEMORY, .. }));
    }
}
