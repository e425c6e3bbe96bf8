//! Raw access to memory: copies, fills, words, arguments. Made by `abi/` from what the client hands over, run by
//! whoever executes the stream.

use crate::error::{CudaError, Outcome};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Looks at a word before the waiting thread yields.
const SPINS: u32 = 20;
/// Looks with a yield between them.
const YIELDS: u32 = 20;
/// Shortest and longest sleep between looks after that: nobody wakes us, a peer only stores.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// Waits until `ready`: spins, yields, then sleeps longer and longer.
pub fn poll(ready: impl Fn() -> bool) {
    for look in 0..SPINS + YIELDS {
        if ready() {
            return;
        }
        if look < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    let mut nap = NAPS.0;
    while !ready() {
        std::thread::sleep(nap);
        nap = NAPS.1.min(nap * 2);
    }
}

/// A copy of `height` rows of `width` bytes.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    to: usize,
    from: usize,
    width: usize,
    height: usize,
    to_pitch: usize,
    from_pitch: usize,
}

impl Transfer {
    /// A copy of `bytes` bytes.
    ///
    /// # Safety
    /// Both ranges must stay valid until the copy has run.
    pub unsafe fn linear(to: usize, from: usize, bytes: usize) -> Transfer {
        Transfer { to, from, width: bytes, height: 1, to_pitch: bytes, from_pitch: bytes }
    }

    /// A copy of rows that lie `to_pitch` and `from_pitch` bytes apart.
    ///
    /// # Safety
    /// All rows must stay valid until the copy has run.
    pub unsafe fn rows(to: (usize, usize), from: (usize, usize), width: usize, height: usize) -> Transfer {
        Transfer { to: to.0, from: from.0, width, height, to_pitch: to.1, from_pitch: from.1 }
    }

    /// Copies; source and destination may overlap.
    pub fn run(&self) {
        for row in 0..self.height {
            let to = (self.to + row * self.to_pitch) as *mut u8;
            let from = (self.from + row * self.from_pitch) as *const u8;
            // SAFETY: the constructor's caller promised that the rows are valid now.
            unsafe { ptr::copy(from, to, self.width) };
        }
    }

    /// Writes ones, as who reads from a device that does not answer gets them.
    pub fn spoil(&self) {
        let (to, pitch) = (self.to, self.to_pitch);
        Fill { to, pitch, value: 0xff, element: 1, width: self.width, height: self.height }.run();
    }

    /// Reads the source now; what is left is to write it.
    pub fn stage(&self) -> Staged {
        let mut data = vec![0; self.width * self.height];
        let staging = Transfer { to: data.as_mut_ptr() as usize, to_pitch: self.width, ..*self };
        staging.run();
        Staged { data: data.into_boxed_slice(), transfer: *self }
    }

    /// Address and pitch of destination and source; width and height.
    pub fn parts(&self) -> ((usize, usize), (usize, usize), (usize, usize)) {
        ((self.to, self.to_pitch), (self.from, self.from_pitch), (self.width, self.height))
    }

    /// Bytes that it copies.
    pub fn bytes(&self) -> usize {
        self.width.saturating_mul(self.height)
    }

    /// First and last address plus one of the destination.
    pub fn destination(&self) -> (usize, usize) {
        (self.to, extent(self.width, self.height, self.to_pitch))
    }

    /// First address and extent of the source.
    pub fn source(&self) -> (usize, usize) {
        (self.from, extent(self.width, self.height, self.from_pitch))
    }
}

/// Bytes from the first to the last of so many rows.
pub fn extent(width: usize, height: usize, pitch: usize) -> usize {
    if height == 0 || width == 0 { 0 } else { (height - 1).saturating_mul(pitch).saturating_add(width) }
}

/// A copy whose source was read already.
pub struct Staged {
    data: Box<[u8]>,
    transfer: Transfer,
}

impl Staged {
    /// The copy as it would be without the early read.
    pub fn transfer(&self) -> Transfer {
        self.transfer
    }

    /// Writes it.
    pub fn run(&self) {
        let from_pitch = self.transfer.width;
        Transfer { from: self.data.as_ptr() as usize, from_pitch, ..self.transfer }.run();
    }
}

/// A memset of `height` rows of `width` elements of 1, 2 or 4 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    to: usize,
    pitch: usize,
    value: u32,
    element: usize,
    width: usize,
    height: usize,
}

impl Fill {
    /// Rows `pitch` bytes apart, of `width` elements of `element` bytes that become `value`.
    ///
    /// # Safety
    /// All rows must stay valid until the fill has run, and be aligned to the element.
    pub unsafe fn rows(to: (usize, usize), value: u32, element: usize, width: usize, height: usize) -> Fill {
        Fill { to: to.0, pitch: to.1, value, element, width, height }
    }

    /// Address and pitch; value and bytes of an element; width in elements and height.
    pub fn parts(&self) -> ((usize, usize), (u32, usize), (usize, usize)) {
        ((self.to, self.pitch), (self.value, self.element), (self.width, self.height))
    }

    /// Writes.
    pub fn run(&self) {
        for row in 0..self.height {
            let at = self.to + row * self.pitch;
            let bytes = self.value.to_ne_bytes();
            let uniform = bytes[..self.element].iter().all(|b| *b == bytes[0]);
            // SAFETY: the constructor's caller promised that the rows are valid now, and aligned.
            unsafe {
                match self.element {
                    _ if uniform => ptr::write_bytes(at as *mut u8, bytes[0], self.width * self.element),
                    2 => std::slice::from_raw_parts_mut(at as *mut u16, self.width).fill(self.value as u16),
                    _ => std::slice::from_raw_parts_mut(at as *mut u32, self.width).fill(self.value),
                }
            }
        }
    }
}

/// A word of 32 or 64 bits in memory that the device, the host and other processes store to.
#[derive(Clone, Copy, Debug)]
struct Word {
    address: usize,
    wide: bool,
}

impl Word {
    fn load(self) -> u64 {
        // SAFETY: the constructor's caller promised that the word is valid now, and aligned.
        unsafe {
            if self.wide {
                (*(self.address as *const AtomicU64)).load(Ordering::Acquire)
            } else {
                u64::from((*(self.address as *const AtomicU32)).load(Ordering::Acquire))
            }
        }
    }

    fn store(self, value: u64) {
        // SAFETY: as for `load`.
        unsafe {
            if self.wide {
                (*(self.address as *const AtomicU64)).store(value, Ordering::Release);
            } else {
                (*(self.address as *const AtomicU32)).store(value as u32, Ordering::Release);
            }
        }
    }
}

/// `cuStreamWriteValue32`, `64`
#[derive(Clone, Copy, Debug)]
pub struct ValueWrite {
    word: Word,
    value: u64,
}

impl ValueWrite {
    /// Stores `value` at `address`.
    ///
    /// # Safety
    /// The word must be aligned and stay valid until the write has run.
    pub unsafe fn new(address: usize, value: u64, wide: bool) -> ValueWrite {
        ValueWrite { word: Word { address, wide }, value }
    }

    /// Stores.
    pub fn run(&self) {
        self.word.store(self.value);
    }
}

/// When a waited-for word is right (`CUstreamWaitValue_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// At or past the value, by signed difference.
    AtLeast,
    /// The value.
    Equal,
    /// Has a bit of the value.
    AnyBit,
    /// Lacks a bit of the value.
    Nor,
}

impl Condition {
    /// From the flags; `INVALID_VALUE` for others.
    pub fn from_flags(flags: u32) -> Outcome<Condition> {
        match flags {
            0 => Ok(Condition::AtLeast),
            1 => Ok(Condition::Equal),
            2 => Ok(Condition::AnyBit),
            3 => Ok(Condition::Nor),
            _ => Err(CudaError::INVALID_VALUE),
        }
    }
}

/// `cuStreamWaitValue32`, `64`
#[derive(Clone, Copy, Debug)]
pub struct ValueWait {
    word: Word,
    value: u64,
    condition: Condition,
}

impl ValueWait {
    /// Waits until the word at `address` is right.
    ///
    /// # Safety
    /// The word must be aligned and stay valid until the wait is over.
    pub unsafe fn new(address: usize, value: u64, wide: bool, condition: Condition) -> ValueWait {
        ValueWait { word: Word { address, wide }, value, condition }
    }

    /// Waits, unless `stop`: then the word is not looked at any more.
    pub fn run(&self, stop: impl Fn() -> bool) {
        poll(|| stop() || self.holds(self.word.load()));
    }

    fn holds(&self, word: u64) -> bool {
        let all = if self.word.wide { u64::MAX } else { u64::from(u32::MAX) };
        match self.condition {
            Condition::AtLeast if self.word.wide => word.wrapping_sub(self.value) as i64 >= 0,
            Condition::AtLeast => (word as u32).wrapping_sub(self.value as u32) as i32 >= 0,
            Condition::Equal => word == self.value,
            Condition::AnyBit => word & self.value != 0,
            Condition::Nor => !(word | self.value) & all != 0,
        }
    }
}

/// One line of argument memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A launch's arguments, copied; each at a multiple of 64 bytes.
#[derive(Default)]
pub struct Arguments {
    lines: Vec<Line>,
    offsets: &'static [usize],
}

impl Arguments {
    /// Makes room for `bytes` bytes of arguments that stand at `offsets`.
    pub fn prepare(&mut self, bytes: usize, offsets: &'static [usize]) {
        self.lines.resize(bytes.div_ceil(64), Line([0; 64]));
        self.offsets = offsets;
    }

    /// Makes these equal to others.
    pub fn copy_from(&mut self, other: &Arguments) {
        self.lines.clone_from(&other.lines);
        self.offsets = other.offsets;
    }

    /// The address of each argument; valid until they are prepared anew.
    pub fn addresses(&self) -> Vec<usize> {
        let base = self.lines.as_ptr() as usize;
        self.offsets.iter().map(|offset| base + offset).collect()
    }

    /// Copies the next argument in; `index` counts them.
    ///
    /// # Safety
    /// `from` must be readable for `bytes` bytes.
    pub unsafe fn set(&mut self, index: usize, from: *const u8, bytes: usize) {
        let offset = self.offsets[index];
        assert!(offset + bytes <= self.lines.len() * 64, "argument beyond the prepared room");
        // SAFETY: the destination was checked, the source is the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, self.lines.as_mut_ptr().cast::<u8>().add(offset), bytes) };
    }

    /// The address of each argument, as a kernel gets them.
    pub fn with_pointers(&self, mut call: impl FnMut(*const *mut u8)) {
        /// Enough for nearly all kernels; more take an allocation.
        const FEW: usize = 16;
        let base = self.lines.as_ptr() as *mut u8;
        let pointers = self.offsets.iter().map(|offset| base.wrapping_add(*offset));
        if self.offsets.len() <= FEW {
            let mut few = [ptr::null_mut(); FEW];
            few.iter_mut().zip(pointers).for_each(|(slot, pointer)| *slot = pointer);
            call(few.as_ptr());
        } else {
            let many: Vec<*mut u8> = pointers.collect();
            call(many.as_ptr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_fills() {
        let from: Vec<u8> = (0..24).collect();
        let mut to = [0u8; 12];
        let (f, t) = (from.as_ptr() as usize, to.as_mut_ptr() as usize);
        // SAFETY: rows within the two buffers.
        let transfer = unsafe { Transfer::rows((t, 4), (f + 1, 8), 3, 3) };
        transfer.run();
        assert_eq!(to, [1, 2, 3, 0, 9, 10, 11, 0, 17, 18, 19, 0]);
        assert_eq!(transfer.source(), (f + 1, 19));
        let staged = transfer.stage();
        to.fill(0);
        staged.run();
        assert_eq!(to, [1, 2, 3, 0, 9, 10, 11, 0, 17, 18, 19, 0]);
        // SAFETY: within `to`.
        unsafe { Fill::rows((t, 6), 0x0102, 1, 2, 2) }.run();
        assert_eq!(to[..8], [2, 2, 3, 0, 9, 10, 2, 2]);
    }

    #[test]
    fn conditions() {
        let holds =
            |condition, wide, word, value| ValueWait { word: Word { address: 0, wide }, value, condition }.holds(word);
        assert!(holds(Condition::AtLeast, false, 3, 0xffff_fff0));
        assert!(!holds(Condition::AtLeast, true, 3, 4));
        assert!(holds(Condition::Equal, true, 4, 4));
        assert!(holds(Condition::AnyBit, false, 6, 2));
        assert!(!holds(Condition::AnyBit, false, 5, 2));
        assert!(!holds(Condition::Nor, false, 0xffff_0000, 0xffff));
        assert!(holds(Condition::Nor, false, 0xfffe_0000, 0xffff));
    }
}
