//! Modules and functions. The only code that can be loaded is a host image (`softcuda.h`): there is no GPU, so there is
//! no binary for it either.

use super::{CuResult, DevicePointer, Handle, In, Out, boundary};
use crate::callout::Entry;
use crate::context;
use crate::device::{MAX_BLOCK_THREADS, SHARED_PER_BLOCK_OPTIN};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::module::{self, Description, Function};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;

const IMAGE_MAGIC: u32 = 0x5343_4944;
const IMAGE_VERSION: u32 = 1;
/// Functions of an image.
const MAX_FUNCTIONS: u32 = 65_536;
/// Bytes of all arguments of a function (as CUDA 12 on compute capability 7.0 and later).
const MAX_ARGUMENT_BYTES: u64 = 32_764;

/// `softcudaFunction`
#[derive(Clone, Copy)]
#[repr(C)]
struct ImageFunction {
    name: In<c_char>,
    entry: *const c_void,
    shared_bytes: u32,
    max_threads: u32,
    arguments: u32,
    reserved: u32,
    argument_sizes: In<u32>,
}

/// `softcudaImage`
#[derive(Clone, Copy)]
#[repr(C)]
struct Image {
    magic: u32,
    version: u32,
    functions: u32,
    reserved: u32,
    table: In<ImageFunction>,
}

fn describe(function: &ImageFunction) -> Outcome<Description> {
    let sizes = (0..function.arguments as usize).map(|index| function.argument_sizes.get_at(index));
    let arguments = sizes.collect::<Outcome<Vec<u32>>>()?;
    let bytes: u64 = arguments.iter().map(|size| u64::from(*size)).sum();
    let sane = (1..=MAX_BLOCK_THREADS).contains(&function.max_threads)
        && function.shared_bytes <= SHARED_PER_BLOCK_OPTIN
        && bytes <= MAX_ARGUMENT_BYTES
        && arguments.iter().all(|size| *size > 0);
    // SAFETY: an image's entries are what its contract says, and stay loaded while launches run.
    let entry = unsafe { Entry::from_raw(function.entry) };
    match entry {
        Some(entry) if sane => Ok(Description {
            name: function.name.text()?.to_owned(),
            entry,
            shared_bytes: function.shared_bytes,
            max_threads: function.max_threads,
            arguments,
        }),
        _ => Err(CudaError::INVALID_IMAGE),
    }
}

/// The handshake: loads a host image into the current context, after all work of its device, as a GPU's code is loaded.
/// `INVALID_VALUE` for null pointers, `INVALID_IMAGE` for a wrong magic number, version or table.
#[unsafe(no_mangle)]
extern "C" fn softcudaModuleLoadImage(to: Out<Handle>, image: *const c_void) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let context = context::current(driver)?;
        to.check()?;
        let image = In(image.cast::<Image>());
        // The magic number first: what follows it may not be there.
        let sane = In(image.0.cast::<u32>()).get()? == IMAGE_MAGIC && image.get()?.version == IMAGE_VERSION;
        if !sane || image.get()?.functions > MAX_FUNCTIONS {
            return Err(CudaError::INVALID_IMAGE);
        }
        let Image { functions, table, .. } = image.get()?;
        let descriptions = (0..functions as usize).map(|index| describe(&table.get_at(index)?));
        let descriptions = descriptions.collect::<Outcome<Vec<_>>>()?;
        driver.synchronize_device(context.device())?;
        to.set(module::load(driver, context.owner(), descriptions)?)
    })
}

/// A cubin, fatbin or PTX: never for this device.
fn load_binary(to: Out<Handle>, image: In<c_void>) -> Outcome {
    context::current(Driver::get()?)?;
    to.check()?;
    Err(if image.is_null() { CudaError::INVALID_VALUE } else { CudaError::NO_BINARY_FOR_GPU })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(to: Out<Handle>, image: In<c_void>) -> CuResult {
    boundary(|| load_binary(to, image))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    to: Out<Handle>,
    image: In<c_void>,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> CuResult {
    boundary(|| load_binary(to, image))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadFatBinary(to: Out<Handle>, image: In<c_void>) -> CuResult {
    boundary(|| load_binary(to, image))
}

fn load_file(to: Out<Handle>, name: In<c_char>) -> Outcome {
    context::current(Driver::get()?)?;
    to.check()?;
    let name = name.text()?.to_string_lossy();
    let there = Path::new(&*name).exists();
    Err(if there { CudaError::NO_BINARY_FOR_GPU } else { CudaError::FILE_NOT_FOUND })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoad(to: Out<Handle>, name: In<c_char>) -> CuResult {
    boundary(|| load_file(to, name))
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryLoadFromFile(
    to: Out<Handle>,
    name: In<c_char>,
    _jit: *mut c_void,
    _jit_values: *mut c_void,
    _jit_count: c_uint,
    _options: *mut c_void,
    _values: *mut c_void,
    _count: c_uint,
) -> CuResult {
    boundary(|| load_file(to, name))
}

#[unsafe(no_mangle)]
extern "C" fn cuLibraryLoadData(
    to: Out<Handle>,
    code: In<c_void>,
    _jit: *mut c_void,
    _jit_values: *mut c_void,
    _jit_count: c_uint,
    _options: *mut c_void,
    _values: *mut c_void,
    _count: c_uint,
) -> CuResult {
    boundary(|| {
        Driver::get()?;
        to.check()?;
        Err(if code.is_null() { CudaError::INVALID_VALUE } else { CudaError::NO_BINARY_FOR_GPU })
    })
}

/// No library was ever loaded.
#[unsafe(no_mangle)]
extern "C" fn cuLibraryUnload(_library: Handle) -> CuResult {
    boundary(|| Err(CudaError::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(handle: Handle) -> CuResult {
    boundary(|| module::unload(Driver::get()?, handle))
}

/// `CU_MODULE_EAGER_LOADING`
#[unsafe(no_mangle)]
extern "C" fn cuModuleGetLoadingMode(mode: Out<c_int>) -> CuResult {
    boundary(|| mode.set(1))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(to: Out<Handle>, handle: Handle, name: In<c_char>) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        let name: &CStr = name.text()?;
        let named = |function: &u64| {
            let code = module::lookup(driver, *function).and_then(Function::code);
            code.is_ok_and(|code| code.description.name.as_c_str() == name)
        };
        to.set(module::functions(driver, handle)?.into_iter().find(named).ok_or(CudaError::NOT_FOUND)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunctionCount(count: Out<c_uint>, handle: Handle) -> CuResult {
    boundary(|| count.set(module::functions(Driver::get()?, handle)?.len() as c_uint))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleEnumerateFunctions(to: Out<Handle>, room: c_uint, handle: Handle) -> CuResult {
    boundary(|| {
        let functions = module::functions(Driver::get()?, handle)?;
        functions.into_iter().take(room as usize).enumerate().try_for_each(|(n, function)| to.set_at(n, function))
    })
}

/// Host images have no globals.
#[unsafe(no_mangle)]
extern "C" fn cuModuleGetGlobal_v2(
    _to: Out<DevicePointer>,
    _bytes: Out<usize>,
    handle: Handle,
    name: In<c_char>,
) -> CuResult {
    boundary(|| {
        module::functions(Driver::get()?, handle)?;
        name.text()?;
        Err(CudaError::NOT_FOUND)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(value: Out<c_int>, attribute: c_int, function: Handle) -> CuResult {
    boundary(|| value.set(module::lookup(Driver::get()?, function)?.attribute(attribute)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) -> CuResult {
    boundary(|| module::lookup(Driver::get()?, function)?.set_attribute(attribute, value))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetCacheConfig(function: Handle, config: c_int) -> CuResult {
    boundary(|| {
        module::lookup(Driver::get()?, function)?;
        if (0..=3).contains(&config) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetSharedMemConfig(function: Handle, _config: c_int) -> CuResult {
    boundary(|| module::lookup(Driver::get()?, function).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetModule(to: Out<Handle>, function: Handle) -> CuResult {
    boundary(|| to.set(module::lookup(Driver::get()?, function)?.module()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetName(to: Out<*const c_char>, function: Handle) -> CuResult {
    boundary(|| to.set(module::lookup(Driver::get()?, function)?.code()?.description.name.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, size: Out<usize>) -> CuResult {
    boundary(|| {
        let description = &module::lookup(Driver::get()?, function)?.code()?.description;
        let bytes = *description.arguments.get(index).ok_or(CudaError::INVALID_VALUE)?;
        offset.set(description.packed_offsets()[index])?;
        size.set_if_wanted(bytes as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetParamCount(function: Handle, count: Out<usize>) -> CuResult {
    boundary(|| count.set(module::lookup(Driver::get()?, function)?.code()?.description.arguments.len()))
}

/// All functions are loaded.
#[unsafe(no_mangle)]
extern "C" fn cuFuncIsLoaded(state: Out<c_int>, function: Handle) -> CuResult {
    boundary(|| {
        module::lookup(Driver::get()?, function)?;
        state.set(1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncLoad(function: Handle) -> CuResult {
    boundary(|| module::lookup(Driver::get()?, function).map(|_| ()))
}

fn occupancy(blocks: Out<c_int>, function: Handle, threads: c_int, dynamic: usize) -> Outcome {
    let function = module::lookup(Driver::get()?, function)?;
    let threads = u32::try_from(threads).map_err(|_| CudaError::INVALID_VALUE)?;
    blocks.set(function.blocks_per_sm(threads, dynamic as u64)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    dynamic: usize,
) -> CuResult {
    boundary(|| occupancy(blocks, function, threads, dynamic))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<c_int>,
    function: Handle,
    threads: c_int,
    dynamic: usize,
    _flags: c_uint,
) -> CuResult {
    boundary(|| occupancy(blocks, function, threads, dynamic))
}

/// The largest block a function takes, one for each SM.
fn largest(grid: Out<c_int>, block: Out<c_int>, function: Handle, limit: c_int) -> Outcome {
    let driver = Driver::get()?;
    let most = module::lookup(driver, function)?.code()?.description.max_threads as c_int;
    let context = context::current(driver)?;
    grid.set(driver.devices[context.device()].sms.count_of(context.group()) as c_int)?;
    block.set(if limit > 0 { most.min(limit) } else { most })
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: Handle,
    _dynamic_for: *const c_void,
    _dynamic: usize,
    limit: c_int,
) -> CuResult {
    boundary(|| largest(grid, block, function, limit))
}

#[unsafe(no_mangle)]
extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: Out<c_int>,
    block: Out<c_int>,
    function: Handle,
    _dynamic_for: *const c_void,
    _dynamic: usize,
    limit: c_int,
    _flags: c_uint,
) -> CuResult {
    boundary(|| largest(grid, block, function, limit))
}
