//! Host images written in Rust.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[repr(C)]
pub struct Block {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub index: [u32; 3],
    pub thread: [u32; 3],
    pub shared: *mut c_void,
    pub barrier: *mut c_void,
}

pub type Entry = extern "C" fn(*const Block, *const *const c_void);

#[repr(C)]
pub struct Function {
    pub name: *const c_char,
    pub entry: Entry,
    pub shared_bytes: u32,
    pub max_threads: u32,
    pub arguments: u32,
    pub reserved: u32,
    pub argument_sizes: *const u32,
}

#[repr(C)]
pub struct Image {
    pub magic: u32,
    pub version: u32,
    pub functions: u32,
    pub reserved: u32,
    pub table: *const Function,
}

// SAFETY: pointers to static tables that nobody changes.
unsafe impl Sync for Image {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The argument with this number.
fn argument<T: Copy>(arguments: *const *const c_void, index: usize) -> T {
    // SAFETY: called by kernels of this file alone, for arguments that their table entry declares.
    unsafe { (*arguments.add(index)).cast::<T>().read() }
}

extern "C" fn nothing(_: *const Block, _: *const *const c_void) {}

/// `*to += value`, not atomically: whoever runs in order gets the right sum.
extern "C" fn add(_: *const Block, arguments: *const *const c_void) {
    // SAFETY: the test passes pointers to memory that lives until it has synchronised.
    unsafe {
        let (to, value): (*mut u64, u64) = (argument(arguments, 0), argument(arguments, 1));
        to.write(to.read() + value);
    }
}

/// Waits until the word is `value`.
extern "C" fn wait_for(_: *const Block, arguments: *const *const c_void) {
    // SAFETY: the test passes pointers to memory that lives until it has synchronised.
    unsafe {
        let word: *const AtomicU32 = argument(arguments, 0);
        let value: u32 = argument(arguments, 1);
        while (*word).load(Ordering::Acquire) != value {
            std::thread::yield_now();
        }
    }
}

extern "C" fn set(_: *const Block, arguments: *const *const c_void) {
    // SAFETY: the test passes pointers to memory that lives until it has synchronised.
    unsafe {
        let word: *const AtomicU32 = argument(arguments, 0);
        (*word).store(argument(arguments, 1), Ordering::Release);
    }
}

/// Keeps a processor busy for so many steps of arithmetic, each a few nanoseconds.
extern "C" fn compute(_: *const Block, arguments: *const *const c_void) {
    let steps: u64 = argument(arguments, 0);
    let mut value = steps;
    for step in 0..steps {
        value = std::hint::black_box(value.rotate_left(7) ^ step);
    }
}

/// Counts the threads that run at once, and the most there were; each stays for a while.
/// `words[0]` now, `[1]` most, `[2]` all.
extern "C" fn count_running(_: *const Block, arguments: *const *const c_void) {
    // SAFETY: the test passes pointers to memory that lives until it has synchronised.
    unsafe {
        let words: *const AtomicU32 = argument(arguments, 0);
        let now = (*words).fetch_add(1, Ordering::SeqCst) + 1;
        (*words.add(1)).fetch_max(now, Ordering::SeqCst);
        (*words.add(2)).fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(2));
        (*words).fetch_sub(1, Ordering::SeqCst);
    }
}

/// All threads of the block add into shared memory, meet, and the first adds the sum to `*to`: `3 * threads` per block.
extern "C" fn meet(block: *const Block, arguments: *const *const c_void) {
    // SAFETY: the test passes pointers to memory that lives until it has synchronised.
    unsafe {
        let block = &*block;
        let to: *const AtomicU64 = argument(arguments, 0);
        let threads = block.block.iter().product::<u32>();
        let barrier = &*block.barrier.cast::<AtomicU32>();
        let sum = &*block.barrier.cast::<AtomicU32>().add(16);
        sum.fetch_add(3, Ordering::SeqCst);
        barrier.fetch_add(1, Ordering::SeqCst);
        while barrier.load(Ordering::SeqCst) < threads {
            std::thread::yield_now();
        }
        if block.thread == [0, 0, 0] {
            (*to).fetch_add(sum.load(Ordering::SeqCst).into(), Ordering::SeqCst);
        }
    }
}

/// Takes 2048 bytes by value and adds its 32-bit words into `*to`.
extern "C" fn sum_large(_: *const Block, arguments: *const *const c_void) {
    // SAFETY: the test passes pointers to memory that lives until it has synchronised.
    unsafe {
        let words: [u32; 512] = argument(arguments, 0);
        let to: *mut u64 = argument(arguments, 1);
        to.write(to.read() + words.iter().map(|w| u64::from(*w)).sum::<u64>());
    }
}

static SIZES: [&[u32]; 4] = [&[], &[8], &[8, 8], &[8, 4]];
static LARGE: [u32; 2] = [2048, 8];

const fn function(name: &'static std::ffi::CStr, entry: Entry, max_threads: u32, sizes: &'static [u32]) -> Function {
    let arguments = sizes.len() as u32;
    Function {
        name: name.as_ptr(),
        entry,
        shared_bytes: 64,
        max_threads,
        arguments,
        reserved: 0,
        argument_sizes: sizes.as_ptr(),
    }
}

static FUNCTIONS: [Function; 8] = [
    function(c"nothing", nothing, 1024, SIZES[0]),
    function(c"add", add, 1, SIZES[2]),
    function(c"wait_for", wait_for, 1, SIZES[3]),
    function(c"set", set, 1, SIZES[3]),
    function(c"count_running", count_running, 64, SIZES[1]),
    function(c"meet", meet, 64, SIZES[1]),
    function(c"sum_large", sum_large, 1, &LARGE),
    function(c"compute", compute, 1, SIZES[1]),
];

pub static IMAGE: Image =
    Image { magic: 0x5343_4944, version: 1, functions: FUNCTIONS.len() as u32, reserved: 0, table: FUNCTIONS.as_ptr() };
