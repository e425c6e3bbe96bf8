//! The whole state behind the C interface: made by `cuInit`, never unmade.

use crate::callout::in_host_function;
use crate::config::Config;
use crate::context;
use crate::error::{CudaError, Outcome};
use crate::handles::{Kind, Table};
use crate::memory::pool::MemoryPool;
use crate::{fault, os};
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Everything there is: the rooms' states, one in the other.
pub struct Driver {
    below: context::State,
    /// `CUmemoryPool`
    pub pools: Table<MemoryPool>,
}

impl Deref for Driver {
    type Target = context::State;

    fn deref(&self) -> &context::State {
        &self.below
    }
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// The process exits, and the driver has shut down.
static UNLOADED: AtomicBool = AtomicBool::new(false);
/// At exit, kernels have this long to end before their memory is taken away. If they do not, it stays.
const LAST_WORK: Duration = Duration::from_millis(500);

impl Driver {
    /// `cuInit`.
    pub fn init() -> Outcome {
        check_end()?;
        let mut first = false;
        let driver = DRIVER.get_or_init(|| {
            first = true;
            os::watch_forks();
            Driver { below: context::State::new(Config::from_environment()), pools: Table::new(Kind::Pool) }
        });
        if first {
            fault::start_timers(lose);
            if driver.config.unload {
                os::on_exit(unload);
            }
        }
        if driver.devices.is_empty() { Err(CudaError::NO_DEVICE) } else { Ok(()) }
    }

    /// The driver, for a call that the client may make now.
    #[inline]
    pub fn get() -> Outcome<&'static Driver> {
        if in_host_function() {
            return Err(CudaError::NOT_PERMITTED);
        }
        check_end()?;
        DRIVER.get().ok_or(CudaError::NOT_INITIALIZED)
    }

    /// The driver, if it is initialised and this is not a forked child.
    #[inline]
    pub fn running() -> Option<&'static Driver> {
        if os::is_forked() { None } else { DRIVER.get() }
    }

    /// Whether anything is still being executed.
    fn is_busy(&self) -> bool {
        let mut busy = self.graphs.is_busy();
        self.contexts.for_each(|_, context| busy |= context.streams.all().iter().any(|stream| stream.is_busy()));
        busy
    }

    /// The end: nothing more is done, and pinned memory is out of reach. Where a kernel runs that does not end, it
    /// stays, or that would be a crash.
    fn shut_down(&self) {
        for device in &self.devices {
            self.take_away(device, CudaError::DEINITIALIZED.0);
        }
        let end = Instant::now() + LAST_WORK;
        while self.is_busy() {
            if Instant::now() > end {
                return os::say_once("unload", "a kernel runs at exit; its memory stays");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.memory.hide();
    }
}

/// Takes a device away, if there is a driver. Error: there is no such device.
pub fn lose(device: usize, code: i32) -> Outcome {
    Driver::running().map_or(Ok(()), |driver| driver.lose(device, code))
}

extern "C" fn unload() {
    if let Some(driver) = Driver::running() {
        UNLOADED.store(true, Ordering::SeqCst);
        driver.shut_down();
    }
}

/// Whether CUDA's time is over in this process. In a child of `fork` whose parent had initialised, CUDA forbids its
/// use.
#[inline]
fn check_end() -> Outcome {
    if os::is_forked() {
        return Err(CudaError::NOT_INITIALIZED);
    }
    if UNLOADED.load(Ordering::Relaxed) { Err(CudaError::DEINITIALIZED) } else { Ok(()) }
}
