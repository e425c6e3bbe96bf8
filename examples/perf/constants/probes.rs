//! What a GPU does when nothing of the library is in the way: loads, fences, looks at a counter and the exchange of
//! counters, each by a kernel of a few lines (`probes.ptx`) that the driver translates.
//!
//! A probe does the same thing so many times, and then three times as often: the difference says what one takes, and a
//! launch is in neither.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::time::Instant;

use super::fit;
use crate::common::cuda::{Context, Cuda, Stream};
use crate::common::nccl::{open, symbol};

/// The kernels, ended by a NUL as the driver wants it.
static PTX: &str = concat!(include_str!("probes.ptx"), "\0");

/// Threads of a block, as many as the library's kernels have.
const THREADS: c_uint = 512;
/// How often a probe is timed; the median counts.
const TIMES: usize = 7;
/// Bytes of a buffer that is beyond every cache, and of one that the L2 cache has room for, but not an SM's.
const FAR: usize = 256 << 20;
const NEAR: usize = 2 << 20;
/// Rounds of a probe; of loads.
const ROUNDS: u64 = 4000;
const LOADS: u64 = 16_000;
/// Launches that are waited for together.
const LAUNCHES: u64 = 500;
/// Bytes of a counter, with what keeps others away from its cache line.
const COUNTER: usize = 256;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY: c_int = 704;

/// What a probe found, in microseconds, or why it found nothing.
pub type Found<T> = Result<T, String>;

/// What was found, in microseconds.
#[derive(Clone, Debug)]
pub struct Probed {
    /// A launch of nothing, of many that are waited for together, and of one that is waited for.
    pub launch: Found<(f64, f64)>,
    /// A load of memory, with 512 threads that have one in flight each.
    pub load: Found<f64>,
    /// The same where the L2 cache answers.
    pub near_load: Found<f64>,
    /// Between two looks at a counter in the device's memory.
    pub look: Found<f64>,
    /// From a rank's store of a counter until the other side's answer can be stored.
    pub exchange: Found<f64>,
    /// A block's stores to the other rank's device, and a counter's behind 0, 1 and 2 fences.
    pub fenced: Found<[f64; 3]>,
}

type Module = *mut c_void;
type Function = *mut c_void;
type Launch = unsafe extern "C" fn(
    Function,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Stream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// The driver's functions for modules and peers.
#[derive(Clone, Copy)]
struct Driver {
    cuda: Cuda,
    load: unsafe extern "C" fn(*mut Module, *const c_char) -> c_int,
    unload: unsafe extern "C" fn(Module) -> c_int,
    function: unsafe extern "C" fn(*mut Function, Module, *const c_char) -> c_int,
    launch: Launch,
    reach: unsafe extern "C" fn(Context, c_uint) -> c_int,
}

fn check(call: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} returned {code}")) }
}

fn told<T>(result: Result<T, crate::common::cuda::Failure>) -> Result<T, String> {
    result.map_err(|failure| failure.to_string())
}

impl Driver {
    fn load() -> Result<Driver, String> {
        let cuda = Cuda::load("libcuda.so.1")?;
        if cuda.is_software() {
            return Err("the software device runs the library's kernels only".to_string());
        }
        let l = open("libcuda.so.1")?;
        // SAFETY: the types of the fields are the prototypes of cuda.h.
        unsafe {
            Ok(Driver {
                cuda,
                load: symbol(l, "cuModuleLoadData")?,
                unload: symbol(l, "cuModuleUnload")?,
                function: symbol(l, "cuModuleGetFunction")?,
                launch: symbol(l, "cuLaunchKernel")?,
                reach: symbol(l, "cuCtxEnablePeerAccess")?,
            })
        }
    }
}

/// A rank's place: a device's context with the kernels in it. Dropping it frees them.
struct Side {
    driver: Driver,
    device: usize,
    context: Context,
    stream: Stream,
    module: Module,
}

impl Side {
    fn new(driver: Driver, device: usize) -> Result<Side, String> {
        let context = told(driver.cuda.use_device(device))?;
        let mut side = Side { driver, device, context, stream: Stream(null_mut()), module: null_mut() };
        side.stream = told(driver.cuda.stream())?;
        // SAFETY: the text ends with a NUL, and the pointer is to a live handle.
        check("cuModuleLoadData", unsafe { (driver.load)(&mut side.module, PTX.as_ptr().cast()) })?;
        Ok(side)
    }

    fn enter(&self) -> Result<(), String> {
        told(self.driver.cuda.set_current(self.context))
    }

    /// Memory of this side that holds zeros.
    fn zeros(&self, bytes: usize) -> Result<Memory<'_>, String> {
        self.enter()?;
        let memory = Memory { side: self, at: told(self.driver.cuda.alloc(bytes))? };
        memory.clear(bytes)?;
        Ok(memory)
    }

    /// Launches one block of a kernel whose arguments are numbers of 64 bits, or the lower half of them.
    fn launch(&self, name: &CStr, threads: c_uint, mut arguments: Vec<u64>) -> Result<(), String> {
        self.enter()?;
        let mut function = null_mut();
        // SAFETY: the module lives, the name is a C string, and the pointer is to a live handle.
        let code = unsafe { (self.driver.function)(&mut function, self.module, name.as_ptr()) };
        check("cuModuleGetFunction", code)?;
        let mut pointers: Vec<*mut c_void> =
            arguments.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let pointers = pointers.as_mut_ptr();
        // SAFETY: there are as many arguments as the kernel takes, none is larger than what a pointer is to, and the
        // driver copies them before it returns.
        let code =
            unsafe { (self.driver.launch)(function, 1, 1, 1, threads, 1, 1, 0, self.stream, pointers, null_mut()) };
        check("cuLaunchKernel", code)
    }

    fn wait(&self) -> Result<(), String> {
        self.enter()?;
        told(self.driver.cuda.wait(self.stream))
    }

    /// Lets this side's kernels use memory of another one's.
    fn reach(&self, other: &Side) -> Result<(), String> {
        self.enter()?;
        // SAFETY: both contexts live.
        match unsafe { (self.driver.reach)(other.context, 0) } {
            ALREADY => Ok(()),
            code => check("cuCtxEnablePeerAccess", code),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Nothing runs any more, and what fails here has failed before.
        let _ = self.enter();
        if !self.module.is_null() {
            // SAFETY: the module is ours, and no kernel of it runs.
            let _ = unsafe { (self.driver.unload)(self.module) };
        }
        if !self.stream.0.is_null() {
            let _ = self.driver.cuda.destroy_stream(self.stream);
        }
        let _ = self.driver.cuda.release_device(self.device);
    }
}

/// Memory of a device. Dropping it frees it.
struct Memory<'a> {
    side: &'a Side,
    at: u64,
}

impl Memory<'_> {
    fn clear(&self, bytes: usize) -> Result<(), String> {
        self.side.enter()?;
        told(self.side.driver.cuda.fill(self.at, 0, bytes))?;
        told(self.side.driver.cuda.synchronize())
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.side.enter();
        // SAFETY: probes wait for their kernels; nothing else has the address.
        let _ = unsafe { self.side.driver.cuda.free(self.at) };
    }
}

/// Runs all probes, on the first device, and between the first two where there are several.
///
/// # Errors
/// Why there is nothing to run them on, or what failed.
pub fn run() -> Result<Probed, String> {
    let driver = Driver::load()?;
    let devices = told(driver.cuda.device_count())?;
    let near = Side::new(driver, 0)?;
    let far = Side::new(driver, usize::from(devices > 1))?;
    let reach = if devices > 1 { near.reach(&far).and_then(|()| far.reach(&near)) } else { Ok(()) };
    Ok(Probed {
        launch: launches(&near),
        load: loads(&near, FAR),
        near_load: loads(&near, NEAR),
        look: looks(&near),
        exchange: reach.clone().and_then(|()| exchange(&near, &far)),
        fenced: reach.and_then(|()| Ok([fenced(&near, &far, 0)?, fenced(&near, &far, 1)?, fenced(&near, &far, 2)?])),
    })
}

/// The median time of something, in microseconds. The first time does not count.
fn timed(mut work: impl FnMut() -> Result<f64, String>) -> Result<f64, String> {
    work()?;
    (0..TIMES).map(|_| work()).collect::<Result<Vec<f64>, String>>().map(fit::median)
}

/// What one round takes of something that tells how long so many took.
fn round(rounds: u64, mut work: impl FnMut(u64) -> Result<f64, String>) -> Result<f64, String> {
    let amounts = [rounds, 3 * rounds];
    let times = [timed(|| work(amounts[0]))?, timed(|| work(amounts[1]))?];
    let each = fit::slope(amounts.map(|rounds| rounds as f64), times);
    each.ok_or_else(|| format!("{rounds} rounds took {:.1} us, and three times as many {:.1}", times[0], times[1]))
}

/// Microseconds from a launch to its end.
fn once(side: &Side, name: &CStr, threads: c_uint, arguments: Vec<u64>) -> Result<f64, String> {
    let start = Instant::now();
    side.launch(name, threads, arguments)?;
    side.wait()?;
    Ok(start.elapsed().as_secs_f64() * 1e6)
}

fn launches(side: &Side) -> Result<(f64, f64), String> {
    let queued = timed(|| {
        let start = Instant::now();
        (0..LAUNCHES).try_for_each(|_| side.launch(c"nothing", THREADS, Vec::new()))?;
        side.wait()?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64)
    })?;
    Ok((queued, timed(|| once(side, c"nothing", THREADS, Vec::new()))?))
}

fn loads(side: &Side, bytes: usize) -> Result<f64, String> {
    let (from, to) = (side.zeros(bytes)?, side.zeros(bytes)?);
    round(LOADS, |rounds| once(side, c"loads", THREADS, vec![from.at, to.at, bytes as u64 - 1, rounds]))
}

fn looks(side: &Side) -> Result<f64, String> {
    let counter = side.zeros(COUNTER)?;
    round(ROUNDS, |rounds| once(side, c"looks", 1, vec![counter.at, rounds]))
}

fn fenced(near: &Side, far: &Side, fences: u64) -> Result<f64, String> {
    let data = far.zeros(THREADS as usize * 16)?;
    let counter = far.zeros(COUNTER)?;
    round(ROUNDS, |rounds| once(near, c"fences", THREADS, vec![data.at, counter.at, rounds, fences]))
}

fn exchange(near: &Side, far: &Side) -> Result<f64, String> {
    // Each has its counter where the other one looks.
    let (to_near, to_far) = (near.zeros(COUNTER)?, far.zeros(COUNTER)?);
    let (near_failed, far_failed) = (near.zeros(COUNTER)?, far.zeros(COUNTER)?);
    let run = |rounds: u64| {
        [&to_near, &to_far].into_iter().try_for_each(|counter| counter.clear(COUNTER))?;
        let start = Instant::now();
        near.launch(c"exchange", 1, vec![to_far.at, to_near.at, near_failed.at, rounds])?;
        far.launch(c"exchange", 1, vec![to_near.at, to_far.at, far_failed.at, rounds])?;
        near.wait()?;
        far.wait()?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    // The driver loads a kernel when it is first launched, and may wait for what runs: so first without a round.
    run(0)?;
    let each = round(ROUNDS, run)?;
    for failed in [&near_failed, &far_failed] {
        let mut word = [0; 4];
        failed.side.enter()?;
        told(near.driver.cuda.copy_to_host(&mut word, failed.at))?;
        if word != [0; 4] {
            return Err("two kernels did not run at the same time".to_string());
        }
    }
    Ok(each)
}
