//! Kernel launches.

use super::{CuResult, Handle, In, boundary};
use crate::context::{self, Context};
use crate::device::{MAX_BLOCK_THREADS, SHARED_PER_BLOCK_OPTIN};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::launch::Launch;
use crate::memory::access::Arguments;
use crate::module::{self, Code};
use std::ffi::{c_int, c_uint, c_void};

/// Blocks in y and z.
const MAX_GRID_YZ: u32 = 65_535;
/// Threads of a block in z.
const MAX_BLOCK_Z: u32 = 64;
/// Entries of `extra`.
const MAX_EXTRA: usize = 8;
/// Launch attributes that are looked at.
const MAX_ATTRIBUTES: c_uint = 32;

/// Where the arguments of a launch come from.
#[derive(Clone, Copy)]
enum Source {
    /// One pointer per argument.
    Pointers(In<In<u8>>),
    /// A packed buffer of so many bytes.
    Packed(In<u8>, usize),
    /// Nowhere: there are none.
    None,
}

/// `CU_LAUNCH_PARAM_END`, `_BUFFER_POINTER`, `_BUFFER_SIZE`
const END: usize = 0;
const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;

impl Source {
    fn of(pointers: In<In<u8>>, extra: In<*const c_void>) -> Outcome<Source> {
        match (pointers.is_null(), extra.is_null()) {
            (false, false) => Err(CudaError::INVALID_VALUE),
            (false, true) => Ok(Source::Pointers(pointers)),
            (true, true) => Ok(Source::None),
            (true, false) => Source::packed(extra),
        }
    }

    fn packed(extra: In<*const c_void>) -> Outcome<Source> {
        let (mut buffer, mut size) = (std::ptr::null(), None);
        for index in (0..MAX_EXTRA).step_by(2) {
            match extra.get_at(index)? as usize {
                END => break,
                BUFFER_POINTER => buffer = extra.get_at(index + 1)?.cast::<u8>(),
                BUFFER_SIZE => size = Some(In(extra.get_at(index + 1)?.cast::<usize>()).get()?),
                _ => return Err(CudaError::INVALID_VALUE),
            }
        }
        Ok(Source::Packed(In(buffer), size.filter(|_| !buffer.is_null()).ok_or(CudaError::INVALID_VALUE)?))
    }

    /// All arguments are there.
    fn check(self, code: &Code) -> Outcome {
        let sizes = &code.description.arguments;
        match self {
            Source::Pointers(pointers) => {
                for index in 0..sizes.len() {
                    if pointers.get_at(index)?.is_null() {
                        return Err(CudaError::INVALID_VALUE);
                    }
                }
                Ok(())
            }
            Source::Packed(_, bytes) => {
                let last = code.description.packed_offsets().last().copied().unwrap_or(0);
                let needed = last + sizes.last().map_or(0, |size| *size as usize);
                if needed <= bytes { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
            }
            Source::None if sizes.is_empty() => Ok(()),
            Source::None => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Copies checked arguments.
    fn copy(self, code: &'static Code, to: &mut Arguments) {
        to.prepare(code.bytes, &code.offsets);
        let sizes = code.description.arguments.iter().map(|size| *size as usize).enumerate();
        match self {
            Source::Pointers(pointers) => {
                for (index, size) in sizes {
                    if let Ok(from) = pointers.get_at(index) {
                        // SAFETY: the client points at arguments of the sizes that the function declares.
                        unsafe { to.set(index, from.0, size) };
                    }
                }
            }
            Source::Packed(buffer, _) => {
                for ((index, size), offset) in sizes.zip(code.description.packed_offsets()) {
                    // SAFETY: `check` saw that the buffer is large enough.
                    unsafe { to.set(index, buffer.0.add(offset), size) };
                }
            }
            Source::None => {}
        }
    }
}

/// What a launch asks for.
struct Request {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: u32,
    stream: Handle,
    cooperative: bool,
}

impl Request {
    fn check(&self, code: &Code, dynamic_limit: u32, driver: &Driver, context: &Context) -> Outcome {
        let (grid, block) = (self.grid, self.block);
        let threads = block.iter().try_fold(1u32, |product, n| product.checked_mul(*n));
        let threads = threads.filter(|n| *n > 0 && *n <= MAX_BLOCK_THREADS).ok_or(CudaError::INVALID_VALUE)?;
        let sane = grid.iter().all(|n| *n > 0)
            && grid[0] <= i32::MAX as u32
            && grid[1].max(grid[2]) <= MAX_GRID_YZ
            && block[2] <= MAX_BLOCK_Z;
        if !sane || threads > code.description.max_threads || self.dynamic > dynamic_limit {
            return Err(CudaError::INVALID_VALUE);
        }
        if code.description.shared_bytes + self.dynamic > SHARED_PER_BLOCK_OPTIN {
            return Err(CudaError::LAUNCH_OUT_OF_RESOURCES);
        }
        let blocks: u64 = grid.iter().map(|n| u64::from(*n)).product();
        let room = || u64::from(driver.devices[context.device()].sms.count_of(context.group()));
        if self.cooperative && blocks > room() {
            return Err(CudaError::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        Ok(())
    }

    fn submit(&self, source: Source) -> Outcome {
        let driver = Driver::get()?;
        let function = module::lookup(driver, self.function)?;
        let stream = context::stream(driver, self.stream)?;
        let context = context::of(driver, stream)?;
        if function.context() != context.home() {
            return Err(CudaError::INVALID_HANDLE);
        }
        let code = function.code()?;
        self.check(code, function.dynamic_limit(), driver, context)?;
        source.check(code)?;
        stream.submit_launch(|launch| self.fill(launch, context, code, source)).map(drop)
    }

    /// Completes a launch that was checked.
    fn fill(&self, launch: &mut Launch, context: &Context, code: &'static Code, source: Source) {
        (launch.device, launch.sms, launch.context) = (context.device(), context.group(), context.identity());
        launch.entry = code.description.entry;
        launch.grid = self.grid;
        launch.block = self.block;
        launch.shared = (code.description.shared_bytes + self.dynamic) as usize;
        (launch.function, launch.dynamic) = (self.function, self.dynamic);
        source.copy(code, &mut launch.arguments);
    }
}

/// The launch of a graph's kernel node, checked.
pub(super) fn of_node(
    function: Handle,
    (grid, block): ([u32; 3], [u32; 3]),
    dynamic: u32,
    (parameters, extra): (*const *const c_void, *const *const c_void),
) -> Outcome<Launch> {
    let driver = Driver::get()?;
    let source = Source::of(In(parameters.cast()), In(extra))?;
    let request = Request { function, grid, block, dynamic, stream: 0, cooperative: false };
    let function = module::lookup(driver, function)?;
    // A green context that is current lends its SMs.
    let current = context::current(driver).ok().filter(|current| current.home() == function.context());
    let context = current.map_or_else(|| context::lookup(driver, function.context()), Ok)?;
    let code = function.code()?;
    request.check(code, function.dynamic_limit(), driver, context)?;
    source.check(code)?;
    let mut launch = Launch::default();
    request.fill(&mut launch, context, code, source);
    Ok(launch)
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    dynamic: c_uint,
    stream: Handle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> CuResult {
    boundary(|| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let request = Request { function, grid, block, dynamic, stream, cooperative: false };
        request.submit(Source::of(In(parameters.cast()), In(extra))?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    dynamic: c_uint,
    stream: Handle,
    parameters: *const *const c_void,
) -> CuResult {
    boundary(|| {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let request = Request { function, grid, block, dynamic, stream, cooperative: true };
        request.submit(Source::of(In(parameters.cast()), In(std::ptr::null()))?)
    })
}

/// `CUlaunchAttribute`
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Attribute {
    id: c_uint,
    padding: u32,
    value: [u32; 16],
}

/// `CUlaunchConfig`
#[derive(Clone, Copy)]
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic: c_uint,
    stream: Handle,
    attributes: In<Attribute>,
    count: c_uint,
}

/// Whether the launch is cooperative. Clusters of one block and scheduling hints are accepted.
fn read_attributes(config: &Config) -> Outcome<bool> {
    let mut cooperative = false;
    for index in 0..config.count.min(MAX_ATTRIBUTES) {
        let attribute = config.attributes.get_at(index as usize)?;
        match attribute.id {
            2 => cooperative = attribute.value[0] != 0,
            4 if attribute.value[..3] != [1, 1, 1] => return Err(CudaError::INVALID_CLUSTER_SIZE),
            // Events in the midst of a kernel, and device-side graph updates.
            7 | 12 | 13 => return Err(CudaError::NOT_SUPPORTED),
            // Of the memory synchronisation domains there are two.
            10 if attribute.value[0] > 1 => return Err(CudaError::INVALID_VALUE),
            _ => {}
        }
    }
    Ok(cooperative)
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernelEx(
    config: *const c_void,
    function: Handle,
    parameters: *const *const c_void,
    extra: *const *const c_void,
) -> CuResult {
    boundary(|| {
        let config = In(config.cast::<Config>()).get()?;
        let cooperative = read_attributes(&config)?;
        let Config { grid, block, dynamic, stream, .. } = config;
        let request = Request { function, grid, block, dynamic, stream, cooperative };
        request.submit(Source::of(In(parameters.cast()), In(extra))?)
    })
}

/// Kept for `cuFuncSetAttribute`'s callers of old: sizes are given at launch.
#[unsafe(no_mangle)]
extern "C" fn cuFuncSetSharedSize(function: Handle, _bytes: c_uint) -> c_int {
    boundary(|| module::lookup(Driver::get()?, function).map(|_| ()))
}
