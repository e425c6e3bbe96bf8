//! Modules and functions: the host image that a client hands over (`softcudaModuleLoadImage`).

use crate::callout::Entry;
use crate::config::Config;
use crate::device::{self, Owner};
use crate::error::{CudaError, Outcome};
use crate::graph;
use crate::handles::{Kind, Table};
use parking_lot::Mutex;
use std::ffi::CString;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Arguments are kept at multiples of this, enough for any alignment that a kernel may expect.
pub const ARGUMENT_ALIGN: usize = 64;

/// The driver's state, as far as modules use it.
pub struct State {
    below: graph::State,
    /// `CUmodule`
    pub modules: Table<Module>,
    /// `CUfunction`
    pub functions: Table<Function>,
}

impl Deref for State {
    type Target = graph::State;

    fn deref(&self) -> &graph::State {
        &self.below
    }
}

impl State {
    /// With these settings.
    pub fn new(config: Config) -> State {
        State {
            modules: Table::new(Kind::Module),
            functions: Table::new(Kind::Function),
            below: graph::State::new(config),
        }
    }
}

/// What an image says of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its name.
    pub name: CString,
    /// Its code.
    pub entry: Entry,
    /// Bytes of static shared memory.
    pub shared_bytes: u32,
    /// Most threads in a block.
    pub max_threads: u32,
    /// Bytes of each argument.
    pub arguments: Vec<u32>,
}

impl Description {
    /// Where each argument stands in the copy that a launch keeps, and the bytes of the whole.
    pub fn layout(&self) -> (Vec<usize>, usize) {
        let mut at = 0;
        let offset = |size: &u32| {
            let offset = at;
            at += (*size as usize).next_multiple_of(ARGUMENT_ALIGN);
            offset
        };
        let offsets = self.arguments.iter().map(offset).collect();
        (offsets, at)
    }

    /// Where each argument stands in the packed buffer of `cuLaunchKernel`'s `extra`: by natural alignment of its
    /// size, at most 16.
    pub fn packed_offsets(&self) -> Vec<usize> {
        let mut at: usize = 0;
        let offset = |size: &u32| {
            let size = *size as usize;
            let align = 1 << size.trailing_zeros().min(4);
            let offset = at.next_multiple_of(align);
            at = offset + size;
            offset
        };
        self.arguments.iter().map(offset).collect()
    }
}

/// A description with its layout; lives as long as the process, since launches refer to it.
#[derive(Debug)]
pub struct Code {
    /// What the image says.
    pub description: Description,
    /// See [`Description::layout`].
    pub offsets: Vec<usize>,
    /// Bytes of all arguments.
    pub bytes: usize,
}

/// A loaded module.
#[derive(Default)]
pub struct Module {
    context: AtomicU64,
    device: AtomicUsize,
    functions: Mutex<Vec<u64>>,
}

/// A function of a module.
#[derive(Default)]
pub struct Function {
    context: AtomicU64,
    device: AtomicUsize,
    module: AtomicU64,
    code: Mutex<Option<&'static Code>>,
    dynamic_limit: AtomicU32,
    carveout: AtomicU32,
}

impl Function {
    /// Its code.
    #[inline]
    pub fn code(&self) -> Outcome<&'static Code> {
        self.code.lock().ok_or(CudaError::INVALID_HANDLE)
    }

    /// Handle of its context.
    pub fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// Handle of its module.
    pub fn module(&self) -> u64 {
        self.module.load(Ordering::Relaxed)
    }

    /// Bytes of dynamic shared memory that a launch may ask for.
    pub fn dynamic_limit(&self) -> u32 {
        self.dynamic_limit.load(Ordering::Relaxed)
    }

    /// `cuFuncGetAttribute`
    pub fn attribute(&self, attribute: i32) -> Outcome<i32> {
        let description = &self.code()?.description;
        Ok(match attribute {
            0 => description.max_threads as i32,
            1 => description.shared_bytes as i32,
            2 | 3 | 7 | 10..=15 | 16 | 17 => 0,
            4 => 32,
            5 | 6 => device::COMPUTE_CAPABILITY.0 * 10 + device::COMPUTE_CAPABILITY.1,
            8 => self.dynamic_limit() as i32,
            9 => self.carveout.load(Ordering::Relaxed) as i32,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    }

    /// `cuFuncSetAttribute`
    pub fn set_attribute(&self, attribute: i32, value: i32) -> Outcome {
        let shared = self.code()?.description.shared_bytes;
        match attribute {
            8 => {
                let wanted = u32::try_from(value).map_err(|_| CudaError::INVALID_VALUE)?;
                if wanted.checked_add(shared).is_none_or(|sum| sum > device::SHARED_PER_BLOCK_OPTIN) {
                    return Err(CudaError::INVALID_VALUE);
                }
                self.dynamic_limit.store(wanted, Ordering::Relaxed);
                Ok(())
            }
            9 if (-1..=100).contains(&value) => {
                self.carveout.store(value as u32, Ordering::Relaxed);
                Ok(())
            }
            10..=15 => Ok(()),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Blocks of so many threads and dynamic bytes that an SM takes by a GPU's limits.
    pub fn blocks_per_sm(&self, threads: u32, dynamic: u64) -> Outcome<i32> {
        let description = &self.code()?.description;
        if threads == 0 || threads > description.max_threads {
            return Ok(0);
        }
        let shared = u64::from(description.shared_bytes) + dynamic;
        let by_shared = u64::from(device::SHARED_PER_SM).checked_div(shared).unwrap_or(32);
        let by_threads = u64::from(device::THREADS_PER_SM / threads.next_multiple_of(32));
        Ok(by_shared.min(by_threads).min(32) as i32)
    }
}

/// Codes that live for good: the same image loaded again finds its own.
static CODES: Mutex<Vec<&'static Code>> = Mutex::new(Vec::new());

fn intern(description: Description) -> &'static Code {
    let mut codes = CODES.lock();
    if let Some(known) = codes.iter().find(|code| code.description == description) {
        return known;
    }
    let (offsets, bytes) = description.layout();
    let code: &'static Code = Box::leak(Box::new(Code { description, offsets, bytes }));
    codes.push(code);
    code
}

/// Loads a checked image into a context.
pub fn load(driver: &'static State, owner: Owner, functions: Vec<Description>) -> Outcome<u64> {
    let made = driver.modules.insert(|module, _| {
        module.context.store(owner.context, Ordering::Relaxed);
        module.device.store(owner.device, Ordering::Relaxed);
        module.functions.lock().clear();
    });
    let (module, object) = made.ok_or(CudaError::OUT_OF_MEMORY)?;
    for description in functions {
        let code = intern(description);
        let dynamic = device::SHARED_PER_BLOCK.saturating_sub(code.description.shared_bytes);
        let made = driver.functions.insert(|function, _| {
            function.context.store(owner.context, Ordering::Relaxed);
            function.device.store(owner.device, Ordering::Relaxed);
            function.module.store(module, Ordering::Relaxed);
            function.dynamic_limit.store(dynamic, Ordering::Relaxed);
            function.carveout.store(u32::MAX, Ordering::Relaxed);
            *function.code.lock() = Some(code);
        });
        let Some((handle, _)) = made else {
            unload(driver, module)?;
            return Err(CudaError::OUT_OF_MEMORY);
        };
        object.functions.lock().push(handle);
    }
    Ok(module)
}

/// `cuModuleUnload`: its functions are gone, pending launches are not affected.
pub fn unload(driver: &'static State, handle: u64) -> Outcome {
    let module = driver.modules.get(handle).ok_or(CudaError::INVALID_HANDLE)?;
    driver.check(module.device.load(Ordering::Relaxed))?;
    driver.modules.remove(handle).ok_or(CudaError::INVALID_HANDLE)?;
    for function in std::mem::take(&mut *module.functions.lock()) {
        if let Some(object) = driver.functions.remove(function) {
            *object.code.lock() = None;
            driver.functions.recycle(function);
        }
    }
    driver.modules.recycle(handle);
    Ok(())
}

/// Unloads all modules of a context.
pub fn unload_all(driver: &'static State, context: u64) {
    let mut modules = Vec::new();
    driver.modules.for_each(|handle, module| {
        modules.extend((module.context.load(Ordering::Relaxed) == context).then_some(handle));
    });
    for module in modules {
        let _ = unload(driver, module);
    }
}

/// Handles of a module's functions.
pub fn functions(driver: &'static State, module: u64) -> Outcome<Vec<u64>> {
    let module = driver.modules.get(module).ok_or(CudaError::INVALID_HANDLE)?;
    driver.check(module.device.load(Ordering::Relaxed))?;
    Ok(module.functions.lock().clone())
}

/// The valid function with this handle. Error: none, or one of a device that is lost.
#[inline]
pub fn lookup(driver: &'static State, handle: u64) -> Outcome<&'static Function> {
    let function = driver.functions.get(handle).ok_or(CudaError::INVALID_HANDLE)?;
    driver.check(function.device.load(Ordering::Relaxed))?;
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_places() {
        let description = Description {
            name: CString::default(),
            entry: Entry::default(),
            shared_bytes: 0,
            max_threads: 1,
            arguments: vec![4, 8, 1, 2048, 12],
        };
        assert_eq!(description.layout(), (vec![0, 64, 128, 192, 2240], 2304));
        assert_eq!(description.packed_offsets(), [0, 8, 16, 32, 2080]);
    }
}
