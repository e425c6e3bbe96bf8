//! Devices: identity, memory budget, multiprocessors.

pub mod attributes;
mod sms;

use crate::config::{Config, Link};
use crate::error::{CudaError, Outcome};
use crate::{fault, os};
use parking_lot::Mutex;
pub use sms::{ALL as ALL_SMS, Sms, Span};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Instant;

/// Major and minor.
pub const COMPUTE_CAPABILITY: (i32, i32) = (9, 0);
/// Threads in a block.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// Threads on a multiprocessor.
pub const THREADS_PER_SM: u32 = 2048;
/// Bytes of shared memory that a block may use without asking.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Bytes of shared memory that a block may use after `cuFuncSetAttribute`.
pub const SHARED_PER_BLOCK_OPTIN: u32 = 227 << 10;
/// Bytes of shared memory of a multiprocessor.
pub const SHARED_PER_SM: u32 = 228 << 10;

/// A visible device.
pub struct Device {
    /// Number in this process (`CUdevice`).
    pub index: usize,
    /// Number on the machine; identity follows from it.
    pub ordinal: u32,
    /// Bytes of memory.
    pub total: u64,
    used: AtomicU64,
    /// The code of whatever is tried with it since it was lost, 0 before.
    pub lost: AtomicI32,
    /// Its multiprocessors.
    pub sms: Sms,
    /// Handle of the default memory pool and of the current one.
    pub pools: Mutex<(u64, u64)>,
}

impl Device {
    /// Device number `index` of the process, `ordinal` of the machine.
    pub fn new(index: usize, ordinal: u32, config: &Config) -> Device {
        Device {
            index,
            ordinal,
            total: config.memory,
            used: AtomicU64::new(0),
            lost: AtomicI32::new(0),
            sms: Sms::new(config.sms),
            pools: Mutex::new((0, 0)),
        }
    }

    /// Takes `bytes` from the budget, or fails with `OUT_OF_MEMORY`.
    pub fn take_memory(&self, bytes: u64) -> Outcome {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.total);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map(|_| ()).map_err(|_| CudaError::OUT_OF_MEMORY)
    }

    /// Gives `bytes` back.
    pub fn give_memory(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes not allocated by this process.
    pub fn free_memory(&self) -> u64 {
        self.total - self.used.load(Ordering::Relaxed).min(self.total)
    }
}

/// Whose an object is: a context by its handle, and the index of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The context.
    pub context: u64,
    /// The device.
    pub device: usize,
}

/// What the driver's state begins with, and every room above may use: settings, devices, numbers, the clock. Each room
/// that adds to it has a `State` of its own, which holds that of the room below: a function takes what it may see.
pub struct State {
    /// Settings.
    pub config: Config,
    /// Visible devices.
    pub devices: Vec<Device>,
    /// Zero of event times.
    epoch: Instant,
    /// Some device is lost.
    any_lost: AtomicBool,
    /// A device may get lost: so waiting threads do not execute the work that they wait for, and copies are marked.
    pub may_lose: bool,
    ids: AtomicU64,
}

impl State {
    /// With these settings.
    pub fn new(config: Config) -> State {
        let devices = config.visible.iter().enumerate();
        State {
            devices: devices.map(|(index, ordinal)| Device::new(index, *ordinal, &config)).collect(),
            epoch: Instant::now(),
            any_lost: AtomicBool::new(false),
            may_lose: fault::may_lose(),
            ids: AtomicU64::new(1),
            config,
        }
    }

    /// Takes a device away: whatever has to do with it fails with `code` from now on, and nothing more is done on it.
    /// Error: there is none.
    pub fn lose(&self, device: usize, code: i32) -> Outcome {
        if self.take_away(self.devices.get(device).ok_or(CudaError::INVALID_DEVICE)?, code) {
            os::say_once(&format!("loss {device}"), &format!("device {device} is lost ({code})"));
        }
        Ok(())
    }

    /// The same without a word. Whether it was there until now.
    pub fn take_away(&self, device: &Device, code: i32) -> bool {
        let taken = device.lost.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.any_lost.store(true, Ordering::SeqCst);
        taken
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

    /// A number that no other object of this process has.
    pub fn unique(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The device with this number in the process.
    pub fn device(&self, index: i32) -> Outcome<&Device> {
        usize::try_from(index).ok().and_then(|i| self.devices.get(i)).ok_or(CudaError::INVALID_DEVICE)
    }

    /// What lies between a device of this process and one of the machine.
    pub fn link(&self, device: usize, ordinal: u32) -> Link {
        let own = self.devices.get(device).map_or(ordinal, |device| device.ordinal);
        self.config.links.between(own, ordinal)
    }

    /// Nanoseconds since `cuInit`, at least 1.
    pub fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }
}
