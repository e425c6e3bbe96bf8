//! Calls out to the client's code: kernels of a host image, host functions, stream callbacks.
#![allow(unsafe_code)]

use crate::memory::access::Arguments;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

thread_local! {
    /// Set while a host function runs: it may not call CUDA.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a host function.
#[inline]
pub fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// Runs a client's host function: driver calls made by it are refused.
fn as_host_function(run: impl FnOnce()) {
    let before = IN_HOST_FUNCTION.replace(true);
    run();
    IN_HOST_FUNCTION.set(before);
}

/// What one thread of one block is told (`softcudaBlock` in `softcuda.h`).
#[repr(C)]
struct RawBlock {
    grid: [u32; 3],
    block: [u32; 3],
    index: [u32; 3],
    thread: [u32; 3],
    shared: *mut c_void,
    barrier: *mut c_void,
}

type RawEntry = unsafe extern "C" fn(*const RawBlock, *const *mut c_void);

/// A kernel's entry point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry(Option<RawEntry>);

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.0.map(|entry| entry as usize) == other.0.map(|entry| entry as usize)
    }
}

impl Eq for Entry {}

/// Where a thread stands.
pub struct Coordinates {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// This block.
    pub index: [u32; 3],
    /// This thread.
    pub thread: [u32; 3],
}

impl Entry {
    /// From an image's table; `None` for a null pointer.
    ///
    /// # Safety
    /// A pointer that is not null must be a `softcudaEntry` that stays loaded while launches of it run.
    pub unsafe fn from_raw(entry: *const c_void) -> Option<Entry> {
        if entry.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        Some(Entry(Some(unsafe { std::mem::transmute::<*const c_void, RawEntry>(entry) })))
    }

    /// Runs one thread.
    #[inline]
    pub fn run(self, place: &Coordinates, memory: &BlockMemory, arguments: &Arguments) {
        let Some(entry) = self.0 else { return };
        let (barrier, shared) = memory.pointers();
        let block = RawBlock {
            grid: place.grid,
            block: place.block,
            index: place.index,
            thread: place.thread,
            shared,
            barrier,
        };
        // SAFETY: an entry of a loaded image, which gets what the image's contract says.
        arguments.with_pointers(|pointers| unsafe { entry(&block, pointers.cast::<*mut c_void>()) });
    }
}

/// Bytes of the block barrier.
const BARRIER: usize = 256;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A block's barrier and shared memory, 64-byte aligned.
#[derive(Default)]
pub struct BlockMemory {
    lines: Vec<Line>,
}

impl BlockMemory {
    /// Makes room for `shared` bytes and zeroes the barrier.
    pub fn prepare(&mut self, shared: usize) {
        let lines = (BARRIER + shared).div_ceil(64);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0; 64]));
        }
        self.lines[..BARRIER / 64].fill(Line([0; 64]));
    }

    /// Barrier and shared memory.
    fn pointers(&self) -> (*mut c_void, *mut c_void) {
        let base = self.lines.as_ptr() as *mut u8;
        (base.cast(), base.wrapping_add(BARRIER).cast())
    }
}

/// A host function with its argument (`cuLaunchHostFunc`).
#[derive(Clone, Copy)]
pub struct HostCall {
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the client gave the pointer for use by a thread of the driver.
unsafe impl Send for HostCall {}
// SAFETY: as above; there is nothing to change.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// To be called once, or, as a graph's node, as often as the graph is launched.
    ///
    /// # Safety
    /// The function must be callable with that argument from any thread.
    pub unsafe fn new(function: unsafe extern "C" fn(*mut c_void), data: *mut c_void) -> HostCall {
        HostCall { function, data }
    }

    /// Function and argument as the client gave them.
    pub fn parts(self) -> (unsafe extern "C" fn(*mut c_void), *mut c_void) {
        (self.function, self.data)
    }

    /// Calls it.
    pub fn run(self) {
        // SAFETY: the promise made to `new`.
        as_host_function(|| unsafe { (self.function)(self.data) });
    }
}

/// `CUstreamCallback`
pub type RawCallback = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void);

/// A stream callback (`cuStreamAddCallback`).
pub struct Callback {
    function: RawCallback,
    stream: u64,
    data: *mut c_void,
}

// SAFETY: the client gave the pointer for use by a thread of the driver.
unsafe impl Send for Callback {}

impl Callback {
    /// To be called once, with the client's own handle of the stream.
    ///
    /// # Safety
    /// The function must be callable with that argument from any thread.
    pub unsafe fn new(function: RawCallback, stream: u64, data: *mut c_void) -> Callback {
        Callback { function, stream, data }
    }

    /// Calls it with a `CUresult`.
    pub fn run(self, status: c_int) {
        // SAFETY: the promise made to `new`; the stream's handle is an opaque value.
        as_host_function(|| unsafe { (self.function)(self.stream as *mut c_void, status, self.data) });
    }
}
