//! This rank's part of a link: slots and counters in host memory, which kernels and the mover share.

use std::mem::offset_of;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::trailer::{TRAILER, Trailer};
use crate::plan::SLOTS;
use crate::plan::layout::{Counter, SLOT_SIZE_UNIT, WHOLE_SLOT};
use crate::plugin::network::{NetBuffer, RegionId};
use crate::sys;

/// Bytes from the end of a slot to the begin of the next one: a trailer has room there, and slots stay aligned.
pub(super) const SLOT_GAP: u32 = 64;

/// Where this rank's part of a link is: for the host, or for the device.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct LinkMemory {
    /// [`SLOTS`] slots, each followed by a gap of [`SLOT_GAP`] bytes.
    pub slots: u64,
    /// A [`Counter`]: slots filled.
    pub posted: u64,
    /// A [`Counter`]: slots emptied.
    pub consumed: u64,
    /// Bytes of a slot.
    pub slot_bytes: u32,
}

impl LinkMemory {
    fn counter(&self, base: u64, offset: usize) -> &AtomicU64 {
        // SAFETY: the memory lives as long as the link, is aligned, and both sides take it as atomics.
        unsafe { AtomicU64::from_ptr((base as usize + offset) as *mut u64) }
    }

    fn word(&self, base: u64, offset: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr((base as usize + offset) as *mut u32) }
    }

    pub fn value(&self, base: u64) -> u64 {
        self.counter(base, offset_of!(Counter, value)).load(Ordering::Acquire)
    }

    pub fn has_left(&self, base: u64) -> bool {
        self.word(base, offset_of!(Counter, left)).load(Ordering::Acquire) != 0
    }

    /// Moves a counter, as a kernel does: who sleeps for it is woken.
    pub fn post(&self, base: u64, value: u64) {
        self.counter(base, offset_of!(Counter, value)).store(value, Ordering::Release);
        self.wake(base);
    }

    pub fn leave(&self, base: u64) {
        self.word(base, offset_of!(Counter, left)).store(1, Ordering::Release);
        self.wake(base);
    }

    fn wake(&self, base: u64) {
        if self.word(base, offset_of!(Counter, waiters)).load(Ordering::Relaxed) != 0 {
            // Little-endian: the low word of the value is what is slept on.
            sys::wake_sleeper(self.word(base, offset_of!(Counter, value)));
        }
    }

    /// The signature of the call whose data a slot has.
    pub fn signature(&self, at: u64) -> &AtomicU32 {
        self.word(self.posted, offset_of!(Counter, signatures) + 4 * (at as usize % SLOTS))
    }

    fn slot(&self, at: u64) -> u64 {
        self.slots + at % SLOTS as u64 * u64::from(self.slot_bytes + SLOT_GAP)
    }

    /// A slot with its gap, to receive into.
    pub fn whole(&self, at: u64, region: RegionId) -> NetBuffer {
        NetBuffer { address: self.slot(at), bytes: self.slot_bytes as usize + TRAILER, region }
    }

    /// How many bytes the slot of a number holds, as its kernel has noted beside the counter.
    pub fn bytes(&self, at: u64) -> u32 {
        let place = self.posted as usize + offset_of!(Counter, call) + 2 * (at as usize % SLOTS);
        // SAFETY: as above.
        let size = unsafe { AtomicU16::from_ptr(place as *mut u16) }.load(Ordering::Relaxed);
        match size {
            WHOLE_SLOT => self.slot_bytes,
            size => (u32::from(size) * SLOT_SIZE_UNIT).min(self.slot_bytes),
        }
    }

    /// Writes a trailer behind so many bytes of a slot; what is to be sent. The slot is this side's: it is posted, or
    /// no kernel will post one any more.
    pub(super) fn close_slot(&self, at: u64, bytes: u32, trailer: Trailer, region: RegionId) -> NetBuffer {
        let (address, bytes) = (self.slot(at), bytes.min(self.slot_bytes) as usize);
        // SAFETY: there is room for it behind each slot, and the slot is this side's.
        unsafe { ((address as usize + bytes) as *mut [u8; TRAILER]).write_unaligned(trailer.encode()) };
        NetBuffer { address, bytes: bytes + TRAILER, region }
    }

    /// The trailer of a message of so many bytes in a slot, which nobody writes now.
    pub(super) fn trailer(&self, at: u64, bytes: usize) -> Option<Trailer> {
        let data = bytes.checked_sub(TRAILER).filter(|data| *data <= self.slot_bytes as usize)?;
        // SAFETY: it ends within the slot and its gap.
        Trailer::decode(unsafe { ((self.slot(at) as usize + data) as *const [u8; TRAILER]).read_unaligned() })
    }
}
