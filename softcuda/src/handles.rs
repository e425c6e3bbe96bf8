//! Tables of objects behind opaque handles.
//!
//! Objects are never freed, only used again: a handle carries the generation of its slot, so a stale, doubly destroyed
//! or invented handle is found out without touching memory that is gone, and a looked-up object is `&'static`.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// What a handle stands for; four bits of it.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Kind {
    /// `CUcontext`
    Context = 1,
    /// `CUstream`
    Stream = 2,
    /// `CUevent`
    Event = 3,
    /// `CUmodule`
    Module = 4,
    /// `CUfunction`
    Function = 5,
    /// `CUmemoryPool`
    Pool = 6,
    /// `CUgraph`
    Graph = 7,
    /// `CUgraphNode`
    Node = 8,
    /// `CUgraphExec`
    Exec = 9,
    /// `CUuserObject`
    UserObject = 10,
    /// `CUgreenCtx`
    Green = 11,
    /// `CUdevResourceDesc`
    Descriptor = 12,
}

/// Slots of the first chunk; each further one doubles.
const FIRST: usize = 64;
/// 64 × (2¹⁴ − 1) ≈ one million objects of a kind at once.
const CHUNKS: usize = 14;
const INDEX_BITS: u64 = 20;
const GENERATION_BITS: u64 = 19;
/// Handles look like aligned user-space addresses: clients keep flags in the low bits.
const INDEX_SHIFT: u64 = 4;
const GENERATION_SHIFT: u64 = INDEX_SHIFT + INDEX_BITS;
const KIND_SHIFT: u64 = GENERATION_SHIFT + GENERATION_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

struct Slot<T> {
    /// Odd while the handle is valid.
    generation: AtomicU32,
    value: T,
}

#[derive(Default)]
struct Free {
    made: usize,
    /// Oldest first, so that a slot's generations last.
    indices: VecDeque<usize>,
}

/// All objects of one kind.
pub struct Table<T> {
    kind: Kind,
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

impl<T: Default> Table<T> {
    /// An empty table.
    pub fn new(kind: Kind) -> Table<T> {
        Table { kind, chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::default() }
    }

    /// Takes a slot, lets `prepare` set up its object, and makes the handle valid. `None`: a million are in use.
    pub fn insert(&self, prepare: impl FnOnce(&T, u64)) -> Option<(u64, &T)> {
        let index = self.unused()?;
        let slot = self.slot(index)?;
        let generation = slot.generation.load(Ordering::Relaxed).wrapping_add(1) & GENERATION_MASK;
        let handle = self.handle(index, generation);
        prepare(&slot.value, handle);
        slot.generation.store(generation, Ordering::Release);
        Some((handle, &slot.value))
    }

    fn unused(&self) -> Option<usize> {
        let mut free = self.free.lock();
        if let Some(index) = free.indices.pop_front() {
            return Some(index);
        }
        let (chunk, _) = locate(free.made);
        let slots = self.chunks.get(chunk)?;
        slots.get_or_init(|| {
            (0..FIRST << chunk).map(|_| Slot { generation: AtomicU32::new(0), value: T::default() }).collect()
        });
        free.made += 1;
        Some(free.made - 1)
    }

    /// Puts a slot whose handle was invalidated by [`Table::remove`] back into use, unless it has no new handles left:
    /// a value never stands for a second object.
    pub fn recycle(&self, handle: u64) {
        let index = index_of(handle);
        if self.slot(index).is_some_and(|slot| slot.generation.load(Ordering::Relaxed) != 0) {
            self.free.lock().indices.push_back(index);
        }
    }
}

impl<T> Table<T> {
    fn handle(&self, index: usize, generation: u32) -> u64 {
        (self.kind as u64) << KIND_SHIFT | u64::from(generation) << GENERATION_SHIFT | (index as u64) << INDEX_SHIFT
    }

    fn slot(&self, index: usize) -> Option<&Slot<T>> {
        let (chunk, offset) = locate(index);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// The object, if the handle is valid.
    pub fn get(&self, handle: u64) -> Option<&T> {
        let slot = self.slot(index_of(handle))?;
        let generation = slot.generation.load(Ordering::Acquire);
        let valid = generation & 1 == 1 && handle == self.handle(index_of(handle), generation);
        valid.then_some(&slot.value)
    }

    /// Invalidates the handle and returns its object; the slot stays unused until [`Table::recycle`].
    pub fn remove(&self, handle: u64) -> Option<&T> {
        let slot = self.slot(index_of(handle))?;
        let generation = slot.generation.load(Ordering::Acquire);
        if generation & 1 == 0 || handle != self.handle(index_of(handle), generation) {
            return None;
        }
        let next = (generation + 1) & GENERATION_MASK;
        slot.generation.compare_exchange(generation, next, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(&slot.value)
    }

    /// Calls `visit` with every valid handle and its object.
    pub fn for_each(&self, mut visit: impl FnMut(u64, &T)) {
        let made = self.free.lock().made;
        for index in 0..made {
            let Some(slot) = self.slot(index) else {
                continue;
            };
            let generation = slot.generation.load(Ordering::Acquire);
            if generation & 1 == 1 {
                visit(self.handle(index, generation), &slot.value);
            }
        }
    }
}

fn index_of(handle: u64) -> usize {
    (handle >> INDEX_SHIFT) as usize & ((1 << INDEX_BITS) - 1)
}

fn locate(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2() as usize;
    (chunk, index - FIRST * ((1 << chunk) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn stale_and_invented_handles() {
        let table: Table<AtomicU64> = Table::new(Kind::Event);
        let (first, _) = table.insert(|v, _| v.store(7, Ordering::Relaxed)).expect("room");
        assert_eq!(table.get(first).expect("valid").load(Ordering::Relaxed), 7);
        for garbage in [0, 1, 2, 0xdead_beef, u64::MAX, first + 1, first ^ 1 << KIND_SHIFT] {
            assert!(table.get(garbage).is_none(), "{garbage:#x}");
        }
        assert!(table.remove(first).is_some());
        assert!(table.remove(first).is_none());
        table.recycle(first);
        let (second, _) = table.insert(|_, _| {}).expect("room");
        assert_ne!(first, second);
        assert!(table.get(first).is_none());
        assert_eq!(second & 15, 0);
        assert!(second < 1 << 47);
    }

    #[test]
    fn a_value_never_comes_back() {
        let table: Table<AtomicU64> = Table::new(Kind::Stream);
        let mut last = 0;
        for _ in 0..=GENERATION_MASK / 2 + 1 {
            let (handle, _) = table.insert(|_, _| {}).expect("room");
            assert!(index_of(handle) == 1 || handle > last, "{handle:#x} after {last:#x}");
            last = handle;
            assert!(table.remove(handle).is_some());
            table.recycle(handle);
        }
        assert_eq!(index_of(last), 1, "the first slot has no handles left");
    }

    #[test]
    fn many() {
        let table: Table<AtomicU64> = Table::new(Kind::Stream);
        let handles: Vec<u64> =
            (0..1000).map(|n| table.insert(|v, _| v.store(n, Ordering::Relaxed)).expect("room").0).collect();
        for (n, handle) in handles.iter().enumerate() {
            assert_eq!(table.get(*handle).expect("valid").load(Ordering::Relaxed), n as u64);
        }
        let mut seen = 0;
        table.for_each(|_, _| seen += 1);
        assert_eq!(seen, 1000);
    }
}
