//! Kernel launches.
//!
//! A kernel is named by its host stub (see `registry`), which softcuda can only refuse, or by a
//! `CUfunction` of a host image (`softcudaModuleLoadImage`), which it runs.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;

use super::context::{in_context, without_context};
use super::driver::{self, LaunchConfig};
use super::error::{
    Code, INVALID_DEVICE_FUNCTION, INVALID_RESOURCE_HANDLE, INVALID_VALUE, MISSING_CONFIGURATION, check, report,
};
use super::{Address, Dim3, Handle, Out, registry};

/// Where a launch goes and how wide it is.
#[derive(Clone, Copy, Default)]
struct Shape {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
}

/// Most `<<<…>>>` that a thread can have open at once: they nest only where a launch's arguments
/// launch kernels themselves.
const MAX_CONFIGURATIONS: usize = 1024;

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Shape>> = const { RefCell::new(Vec::new()) };
}

/// The driver's function for `func`. Error: `cudaErrorInvalidDeviceFunction`.
pub(super) fn function(func: Address) -> Result<Handle, Code> {
    if func == 0 || registry::is_kernel(func) {
        registry::refuse(func);
        return Err(INVALID_DEVICE_FUNCTION);
    }
    Handle::try_from(func).map_err(|_| INVALID_DEVICE_FUNCTION)
}

/// A driver call on a function: a handle that is none is a function that is none.
fn on_function(func: Address, status: impl FnOnce(Handle) -> driver::Status) -> Result<(), Code> {
    let checked = check(status(function(func)?));
    checked.map_err(|c| if c == INVALID_RESOURCE_HANDLE { INVALID_DEVICE_FUNCTION } else { c })
}

/// Launches `func`. An invalid handle in a launch may be the stream or the function: only then is
/// the driver asked which.
fn launch_on(func: Address, status: impl FnOnce(Handle) -> driver::Status) -> Result<(), Code> {
    let launched = check(status(function(func)?));
    if launched == Err(INVALID_RESOURCE_HANDLE) {
        attribute(func, MAX_THREADS_PER_BLOCK)?;
    }
    launched
}

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`, an attribute that every function has.
const MAX_THREADS_PER_BLOCK: c_int = 0;

fn attribute(func: Address, attribute: c_int) -> Result<c_int, Code> {
    let mut value = MaybeUninit::new(0);
    on_function(func, |f| driver::cuFuncGetAttribute(Some(&mut value), attribute, f))?;
    // SAFETY: it was initialised above, and the driver at most replaced it.
    Ok(unsafe { value.assume_init() })
}

impl Shape {
    fn shared(&self) -> Result<c_uint, Code> {
        c_uint::try_from(self.shared).map_err(|_| INVALID_VALUE)
    }

    fn config(&self) -> Result<LaunchConfig, Code> {
        Ok(LaunchConfig {
            grid: [self.grid.x, self.grid.y, self.grid.z],
            block: [self.block.x, self.block.y, self.block.z],
            shared: self.shared()?,
            stream: self.stream,
            attributes: 0,
            nattributes: 0,
        })
    }
}

/// # Safety
/// `args` points to a pointer for each of the kernel's arguments.
unsafe fn launch(func: Address, config: &LaunchConfig, args: *const *const c_void) -> Code {
    in_context(|| {
        // SAFETY: the caller's promise is the driver's condition.
        launch_on(func, |f| unsafe { driver::cuLaunchKernelEx(config, f, args, std::ptr::null()) })
    })
}

/// # Safety
/// `args` points to a pointer for each of the kernel's arguments.
#[unsafe(export_name = "softcudart_cudaLaunchKernel")]
unsafe extern "C" fn launch_kernel(
    func: Address,
    grid: Dim3,
    block: Dim3,
    args: *const *const c_void,
    shared: usize,
    stream: Handle,
) -> Code {
    match (Shape { grid, block, shared, stream }).config() {
        // SAFETY: the caller's promise.
        Ok(config) => unsafe { launch(func, &config, args) },
        Err(code) => report(Err(code)),
    }
}

/// What nvcc's stubs call since CUDA 13: `kernel` comes from `__cudaGetKernel`.
///
/// # Safety
/// `args` points to a pointer for each of the kernel's arguments.
#[unsafe(export_name = "softcudart___cudaLaunchKernel")]
unsafe extern "C" fn launch_kernel_handle(
    kernel: Address,
    grid: Dim3,
    block: Dim3,
    args: *const *const c_void,
    shared: usize,
    stream: Handle,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { launch_kernel(kernel, grid, block, args, shared, stream) }
}

/// `cudaLaunchConfig_t`.
#[repr(C)]
struct RuntimeLaunchConfig {
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: Handle,
    attributes: Address,
    nattributes: c_uint,
}

/// # Safety
/// `config` is NULL or a `cudaLaunchConfig_t`; `args` points to a pointer for each argument.
#[unsafe(export_name = "softcudart_cudaLaunchKernelExC")]
unsafe extern "C" fn launch_kernel_ex(
    config: Option<&RuntimeLaunchConfig>,
    func: Address,
    args: *const *const c_void,
) -> Code {
    let Some(given) = config else {
        return report(Err(INVALID_VALUE));
    };
    let shape = Shape { grid: given.grid, block: given.block, shared: given.shared, stream: given.stream };
    match shape.config() {
        Ok(plain) => {
            let config = LaunchConfig { attributes: given.attributes, nattributes: given.nattributes, ..plain };
            // SAFETY: the caller's promise.
            unsafe { launch(func, &config, args) }
        }
        Err(code) => report(Err(code)),
    }
}

/// # Safety
/// `args` points to a pointer for each of the kernel's arguments.
#[unsafe(export_name = "softcudart_cudaLaunchCooperativeKernel")]
unsafe extern "C" fn launch_cooperative_kernel(
    func: Address,
    grid: Dim3,
    block: Dim3,
    args: *const *const c_void,
    shared: usize,
    stream: Handle,
) -> Code {
    in_context(|| {
        let shared = Shape { shared, ..Shape::default() }.shared()?;
        let (Dim3 { x: gx, y: gy, z: gz }, Dim3 { x: bx, y: by, z: bz }) = (grid, block);
        // SAFETY: the caller's promise is the driver's condition.
        launch_on(func, |f| unsafe {
            driver::cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, stream, args)
        })
    })
}

/// The first half of `<<<grid, block, shared, stream>>>`. 0 is success.
#[unsafe(export_name = "softcudart___cudaPushCallConfiguration")]
extern "C" fn push_call_configuration(grid: Dim3, block: Dim3, shared: usize, stream: Handle) -> c_uint {
    CONFIGURATIONS.with_borrow_mut(|open| {
        if open.len() == MAX_CONFIGURATIONS {
            return 1;
        }
        open.push(Shape { grid, block, shared, stream });
        0
    })
}

/// The second half, in the kernel's host stub.
#[unsafe(export_name = "softcudart___cudaPopCallConfiguration")]
extern "C" fn pop_call_configuration(
    grid: Out<Dim3>,
    block: Out<Dim3>,
    shared: Out<usize>,
    stream: Out<Handle>,
) -> Code {
    let pop = || {
        let shape = CONFIGURATIONS.with_borrow_mut(Vec::pop).ok_or(MISSING_CONFIGURATION)?;
        grid.ok_or(INVALID_VALUE)?.write(shape.grid);
        block.ok_or(INVALID_VALUE)?.write(shape.block);
        shared.ok_or(INVALID_VALUE)?.write(shape.shared);
        stream.ok_or(INVALID_VALUE)?.write(shape.stream);
        Ok(())
    };
    report(pop())
}

/// A registered kernel's handle is its host stub, so that a refused launch can name it.
#[unsafe(export_name = "softcudart___cudaGetKernel")]
extern "C" fn get_kernel(kernel: Out<Address>, stub: Address) -> Code {
    let found = || {
        let kernel = kernel.ok_or(INVALID_VALUE)?;
        kernel.write(stub);
        if registry::is_kernel(stub) { Ok(()) } else { Err(INVALID_DEVICE_FUNCTION) }
    };
    report(found())
}

/// There is no driver function behind a host stub.
#[unsafe(export_name = "softcudart_cudaGetFuncBySymbol")]
extern "C" fn get_func_by_symbol(handle: Out<Handle>, stub: Address) -> Code {
    without_context(|| {
        handle.ok_or(INVALID_VALUE)?.write(0);
        registry::refuse(stub);
        Err(INVALID_DEVICE_FUNCTION)
    })
}

/// `struct cudaFuncAttributes`.
#[repr(C)]
#[derive(Default)]
struct FuncAttributes {
    /// Static shared memory, constants, local memory, in bytes.
    sizes: [usize; 3],
    /// From `maxThreadsPerBlock` to `nonPortableClusterSizeAllowed`.
    numbers: [c_int; 13],
    reserved: [c_int; 16],
}

#[unsafe(export_name = "softcudart_cudaFuncGetAttributes")]
extern "C" fn func_get_attributes(attributes: Out<FuncAttributes>, func: Address) -> Code {
    /// `CU_FUNC_ATTRIBUTE_*` of each number, in the struct's order.
    const NUMBERS: [c_int; 13] = [0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14];
    /// Static shared, constant, local memory.
    const SIZES: [c_int; 3] = [1, 2, 3];
    in_context(|| {
        let attributes = attributes.ok_or(INVALID_VALUE)?;
        let mut all = FuncAttributes::default();
        for (size, wanted) in all.sizes.iter_mut().zip(SIZES) {
            *size = usize::try_from(attribute(func, wanted)?).unwrap_or(0);
        }
        for (number, wanted) in all.numbers.iter_mut().zip(NUMBERS) {
            // An attribute that this driver does not keep is 0, as for a kernel without clusters.
            *number = attribute(func, wanted).unwrap_or(0);
        }
        attributes.write(all);
        Ok(())
    })
}

/// `cudaFuncAttribute` and `CUfunction_attribute` share their numbers here.
#[unsafe(export_name = "softcudart_cudaFuncSetAttribute")]
extern "C" fn func_set_attribute(func: Address, attribute: c_int, value: c_int) -> Code {
    in_context(|| on_function(func, |f| driver::cuFuncSetAttribute(f, attribute, value)))
}

#[unsafe(export_name = "softcudart_cudaFuncSetCacheConfig")]
extern "C" fn func_set_cache_config(func: Address, config: c_int) -> Code {
    in_context(|| on_function(func, |f| driver::cuFuncSetCacheConfig(f, config)))
}

#[unsafe(export_name = "softcudart_cudaOccupancyMaxActiveBlocksPerMultiprocessor")]
extern "C" fn occupancy(blocks: Out<c_int>, func: Address, threads: c_int, shared: usize) -> Code {
    occupancy_with_flags(blocks, func, threads, shared, 0)
}

#[unsafe(export_name = "softcudart_cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags")]
extern "C" fn occupancy_with_flags(
    blocks: Out<c_int>,
    func: Address,
    threads: c_int,
    shared: usize,
    flags: c_uint,
) -> Code {
    in_context(|| {
        on_function(func, |f| {
            driver::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, threads, shared, flags)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structs_have_the_sizes_of_cudas() {
        assert_eq!(size_of::<FuncAttributes>(), 144);
        assert_eq!(size_of::<RuntimeLaunchConfig>(), 56);
        assert_eq!(size_of::<LaunchConfig>(), 56);
    }

    #[test]
    fn configurations_nest() {
        let (mut grid, mut block) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let (mut shared, mut stream) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        let dim = |x| Dim3 { x, y: 1, z: 1 };
        push_call_configuration(dim(1), dim(2), 3, 4);
        push_call_configuration(dim(5), dim(6), 7, 8);
        let mut pop = || {
            let (g, b) = (Some(&mut grid), Some(&mut block));
            pop_call_configuration(g, b, Some(&mut shared), Some(&mut stream))
        };
        assert_eq!([pop(), pop(), pop()], [0, 0, MISSING_CONFIGURATION]);
        // SAFETY: two successful pops wrote it.
        assert_eq!(unsafe { stream.assume_init() }, 4);
    }
}
