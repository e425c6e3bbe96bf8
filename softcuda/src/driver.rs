//! The state behind the C interface: made by `cuInit`, never unmade.

use crate::config::Config;
use crate::context::Context;
use crate::device::Device;
use crate::error::{CudaError, Outcome};
use crate::event::Event;
use crate::fault;
use crate::graph::Graphs;
use crate::green::{Descriptor, Green};
use crate::handles::{Kind, Table};
use crate::launch::Pool as ThreadPool;
use crate::memory::Memory;
use crate::memory::pool::MemoryPool;
use crate::module::{Function, Module};
use crate::stream::{Scheduler, Stream};
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Everything there is.
pub struct Driver {
    /// Settings.
    pub config: Config,
    /// Visible devices.
    pub devices: Vec<Device>,
    /// `CUcontext`
    pub contexts: Table<Context>,
    /// `CUstream`
    pub streams: Table<Stream>,
    /// `CUevent`
    pub events: Table<Event>,
    /// `CUmodule`
    pub modules: Table<Module>,
    /// `CUfunction`
    pub functions: Table<Function>,
    /// `CUmemoryPool`
    pub pools: Table<MemoryPool>,
    /// `CUgreenCtx`
    pub greens: Table<Green>,
    /// `CUdevResourceDesc`
    pub descriptors: Table<Descriptor>,
    /// Captures, graphs and user objects.
    pub graphs: Graphs,
    /// Allocations and mappings.
    pub memory: Memory,
    /// Streams with work.
    pub scheduler: Scheduler,
    /// Threads for blocks.
    pub threads: ThreadPool,
    /// Zero of event times.
    pub epoch: Instant,
    /// Some device is lost.
    any_lost: AtomicBool,
    /// A device may get lost: so waiting threads do not execute the work that they wait for, and copies are marked.
    pub may_lose: bool,
    ids: AtomicU64,
    primary_ends: AtomicU64,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Whether CUDA's time is over in this process.
static END: AtomicU8 = AtomicU8::new(NOT_YET);
const NOT_YET: u8 = 0;
/// In a child of `fork` whose parent had initialised: CUDA forbids its use there, and our threads are gone.
const FORKED: u8 = 1;
/// The process exits, and the driver has shut down.
const UNLOADED: u8 = 2;
/// At exit, kernels have this long to end before their memory is taken away. If they do not, it stays.
const LAST_WORK: Duration = Duration::from_millis(500);

thread_local! {
    /// Set while a host function runs: it may not call CUDA.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

impl Driver {
    fn new(config: Config) -> Driver {
        let devices = config.visible.iter().enumerate();
        let devices = devices.map(|(index, ordinal)| Device::new(index, *ordinal, &config)).collect();
        Driver {
            devices,
            contexts: Table::new(Kind::Context),
            streams: Table::new(Kind::Stream),
            events: Table::new(Kind::Event),
            modules: Table::new(Kind::Module),
            functions: Table::new(Kind::Function),
            pools: Table::new(Kind::Pool),
            greens: Table::new(Kind::Green),
            descriptors: Table::new(Kind::Descriptor),
            graphs: Graphs::new(),
            memory: Memory::default(),
            scheduler: Scheduler::default(),
            threads: ThreadPool::default(),
            epoch: Instant::now(),
            any_lost: AtomicBool::new(false),
            may_lose: fault::may_lose(),
            ids: AtomicU64::new(1),
            primary_ends: AtomicU64::new(0),
            config,
        }
    }

    /// `cuInit`.
    pub fn init() -> Outcome {
        check_end()?;
        let mut first = false;
        let driver = DRIVER.get_or_init(|| {
            first = true;
            crate::abi::os::on_fork_child(after_fork);
            Driver::new(Config::from_environment())
        });
        if first {
            fault::start_timers();
            if driver.config.unload {
                crate::abi::os::on_exit(unload);
            }
        }
        if driver.devices.is_empty() { Err(CudaError::NO_DEVICE) } else { Ok(()) }
    }

    /// The driver, for a call that the client may make now.
    #[inline]
    pub fn get() -> Outcome<&'static Driver> {
        if IN_HOST_FUNCTION.get() {
            return Err(CudaError::NOT_PERMITTED);
        }
        check_end()?;
        Driver::running().ok_or(CudaError::NOT_INITIALIZED)
    }

    /// The driver, if it is initialised and this is not a forked child.
    #[inline]
    pub fn running() -> Option<&'static Driver> {
        if END.load(Ordering::Relaxed) == FORKED {
            return None;
        }
        DRIVER.get()
    }

    /// Takes a device away: whatever has to do with it fails with `code` from now on, and nothing more is done on it.
    pub fn lose(&self, device: usize, code: i32) -> Outcome {
        if self.take_away(self.devices.get(device).ok_or(CudaError::INVALID_DEVICE)?, code) {
            crate::abi::os::say_once(&format!("loss {device}"), &format!("device {device} is lost ({code})"));
        }
        Ok(())
    }

    /// Whether it was there until now.
    fn take_away(&self, device: &Device, code: i32) -> bool {
        let taken = device.lost.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.any_lost.store(true, Ordering::SeqCst);
        taken
    }

    /// Whether anything is still being executed.
    fn is_busy(&self) -> bool {
        let mut busy = self.graphs.is_busy();
        self.contexts.for_each(|_, context| busy |= context.streams().iter().any(|stream| stream.is_busy()));
        busy
    }

    /// The end: nothing more is done, and pinned memory is out of reach. Where a kernel runs that does not end, it stays,
    /// or that would be a crash.
    fn shut_down(&self) {
        for device in &self.devices {
            self.take_away(device, CudaError::DEINITIALIZED.0);
        }
        let end = Instant::now() + LAST_WORK;
        while self.is_busy() {
            if Instant::now() > end {
                return crate::abi::os::say_once("unload", "a kernel runs at exit; its memory stays");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.memory.hide();
    }

    /// The code of a device that is lost.
    #[inline]
    pub fn check(&self, device: usize) -> Outcome {
        if self.any_lost.load(Ordering::SeqCst) { self.check_slowly(device) } else { Ok(()) }
    }

    #[cold]
    fn check_slowly(&self, device: usize) -> Outcome {
        match self.devices.get(device).map_or(0, |device| device.lost.load(Ordering::SeqCst)) {
            0 => Ok(()),
            code => Err(CudaError(code)),
        }
    }

    /// The same for the device of a context.
    #[inline]
    pub fn check_context(&self, handle: u64) -> Outcome {
        if !self.any_lost.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.contexts.get(handle).map_or(Ok(()), |context| self.check_slowly(context.device()))
    }

    /// A number that no other object of this process has.
    pub fn unique(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// How often a primary context's life has ended: the runtime looks again whether a thread's context is alive.
    pub fn primary_ends(&self) -> u64 {
        self.primary_ends.load(Ordering::Acquire)
    }

    /// One more.
    pub fn count_primary_end(&self) {
        self.primary_ends.fetch_add(1, Ordering::AcqRel);
    }

    /// The device with this number in the process.
    pub fn device(&self, index: i32) -> Outcome<&Device> {
        usize::try_from(index).ok().and_then(|i| self.devices.get(i)).ok_or(CudaError::INVALID_DEVICE)
    }

    /// Nanoseconds since `cuInit`, at least 1.
    pub fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }
}

extern "C" fn after_fork() {
    END.store(FORKED, Ordering::Relaxed);
}

extern "C" fn unload() {
    if let Some(driver) = Driver::running() {
        END.store(UNLOADED, Ordering::SeqCst);
        driver.shut_down();
    }
}

#[inline]
fn check_end() -> Outcome {
    match END.load(Ordering::Relaxed) {
        NOT_YET => Ok(()),
        FORKED => Err(CudaError::NOT_INITIALIZED),
        _ => Err(CudaError::DEINITIALIZED),
    }
}

/// Runs a client's host function: driver calls made by it are refused.
pub fn as_host_function(run: impl FnOnce()) {
    let before = IN_HOST_FUNCTION.replace(true);
    run();
    IN_HOST_FUNCTION.set(before);
}
