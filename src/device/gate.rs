//! Launches and allocations of a device that keep out of each other's way.
//!
//! `cuMemAlloc` may wait for what runs on the device, and a kernel for a peer that waits for the memory. Whoever
//! allocates while nothing runs must know that nothing is launched meanwhile.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Devices that have a gate of their own; more share them.
const DEVICES: usize = 64;

/// A device is the process's, and so is its gate: communicators of one device know nothing of each other.
static GATES: [RwLock<()>; DEVICES] = [const { RwLock::new(()) }; DEVICES];

fn gate(device: i32) -> &'static RwLock<()> {
    &GATES[device.unsigned_abs() as usize % DEVICES]
}

/// To be held while kernels are launched on a device.
pub fn launching(device: i32) -> RwLockReadGuard<'static, ()> {
    // A thread may launch from within what the driver calls.
    gate(device).read_recursive()
}

/// To be held while memory is allocated or freed on a device on which nothing runs; none where something is being
/// launched, or somebody else does so.
pub fn allocating(device: i32) -> Option<RwLockWriteGuard<'static, ()>> {
    gate(device).try_write()
}
