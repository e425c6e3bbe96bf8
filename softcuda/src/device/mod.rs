//! Devices: identity, memory budget, multiprocessors.

pub mod attributes;
pub mod identity;
mod sms;

use crate::config::Config;
use crate::context::Primary;
use crate::error::{CudaError, Outcome};
use crate::stream::Connections;
use parking_lot::Mutex;
pub use sms::{ALL as ALL_SMS, Sms, Span};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

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
    /// Its hardware queues.
    pub connections: Connections,
    /// Its primary context.
    pub primary: Primary,
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
            connections: Connections::new(config.connections),
            primary: Primary::default(),
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
