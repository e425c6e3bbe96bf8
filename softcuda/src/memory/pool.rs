//! Memory pools: attributes are kept, memory comes from the device's common budget.

use crate::error::{CudaError, Outcome};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Attributes whose values are 32-bit integers; the others have 64 bits.
const NARROW: [i32; 3] = [1, 2, 3];
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`
const RELEASE_THRESHOLD: i32 = 4;
/// Reserved and used bytes, now and at most.
const STATISTICS: std::ops::RangeInclusive<i32> = 5..=8;

/// A pool.
#[derive(Default)]
pub struct MemoryPool {
    device: AtomicUsize,
    /// Follow event dependencies, opportunistic reuse, internal dependencies; release threshold.
    values: Mutex<[u64; 4]>,
}

impl MemoryPool {
    /// Sets a new one up.
    pub fn prepare(&self, device: usize) {
        self.device.store(device, Ordering::Relaxed);
        *self.values.lock() = [1, 1, 1, 0];
    }

    /// Index of its device.
    pub fn device(&self) -> usize {
        self.device.load(Ordering::Relaxed)
    }

    /// The value, and whether it has 64 bits. Nothing is kept in reserve, and use is not counted.
    pub fn attribute(&self, attribute: i32) -> Outcome<(u64, bool)> {
        match attribute {
            1..=RELEASE_THRESHOLD => Ok((self.values.lock()[attribute as usize - 1], !NARROW.contains(&attribute))),
            _ if STATISTICS.contains(&attribute) => Ok((0, true)),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }

    /// Whether an attribute has 64 bits.
    pub fn is_wide(attribute: i32) -> bool {
        !NARROW.contains(&attribute)
    }

    /// Sets an attribute; high-water marks can only be reset to 0.
    pub fn set_attribute(&self, attribute: i32, value: u64) -> Outcome {
        match attribute {
            1..=RELEASE_THRESHOLD => {
                self.values.lock()[attribute as usize - 1] = value;
                Ok(())
            }
            6 | 8 if value == 0 => Ok(()),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }
}
