//! Memory: allocations on memfds, host memory, the map of what is where, and raw access to it.
//!
//! It has `unsafe`, but what leaves it is safe to call under the client's promise to the CUDA
//! interface, that a buffer lives until the operations on it are done.
#![allow(unsafe_code)]

pub mod access;
mod address;
mod block;
pub mod ipc;
mod map;
pub mod physical;
pub mod pool;
pub mod shared;
pub mod space;
mod vmm;

use crate::device::{Owner, State};
use crate::error::{CudaError, Outcome};
use crate::os;
pub use address::{Kind, Range};
pub use map::Mapping;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
pub use vmm::{Backing, Reach};

/// Alignment of allocations and of IPC mappings.
pub const PAGE: usize = 4096;
/// From this size on, huge pages.
pub const HUGE: usize = 2 << 20;

/// Waits for all work of a device, as a GPU does before it frees memory. Error: the device is lost, and its work may
/// never end.
pub type Wait<'a> = &'a dyn Fn(usize) -> Outcome;

/// An allocation of another process, mapped here: how often it was opened, and where it is.
struct Import {
    opens: u64,
    base: usize,
}

/// What is where.
#[derive(Default)]
pub struct Memory {
    ranges: RwLock<BTreeMap<usize, Arc<Range>>>,
    /// By tag of the allocation and handle of the context that opened it.
    imports: Mutex<HashMap<(u128, u64), Import>>,
    blocks: block::Blocks,
    space: vmm::Virtual,
}

impl Memory {
    /// The range that holds this address.
    pub fn find(&self, address: usize) -> Option<Arc<Range>> {
        let ranges = self.ranges.read();
        let (_, range) = ranges.range(..=address).next_back()?;
        (address - range.base < range.size).then(|| range.clone())
    }

    /// Whether all of the bytes are known and may be read or written, and whether that is device memory; `None`:
    /// pageable memory. They lie in one allocation, or in adjacent mappings. Error: `INVALID_VALUE`, or that of a lost
    /// device whose memory it is.
    pub fn classify(&self, driver: &State, address: usize, bytes: usize, reach: Reach) -> Outcome<Option<bool>> {
        let ranges = self.ranges.read();
        let Some((_, range)) = ranges.range(..=address).next_back() else {
            return Ok(None);
        };
        let (mut offset, mut left) = (address - range.base, bytes);
        if offset >= range.size {
            return Ok(None);
        }
        let on_device = range.kind.is_device();
        let mut range = range;
        while range.permits(reach) {
            if on_device {
                range.check(driver)?;
            }
            if left <= range.size - offset {
                return Ok(Some(on_device));
            }
            left -= range.size - offset;
            offset = 0;
            let next = ranges.get(&(range.base + range.size));
            let both = next.filter(|next| next.backing.is_some() && range.backing.is_some() && next.kind == range.kind);
            range = both.ok_or(CudaError::INVALID_VALUE)?;
        }
        Err(CudaError::INVALID_VALUE)
    }

    fn add(&self, range: Range) -> usize {
        let base = range.base;
        self.ranges.write().insert(base, Arc::new(range));
        base
    }

    fn take(&self, base: usize, matches: impl Fn(&Range) -> bool) -> Option<Arc<Range>> {
        let mut ranges = self.ranges.write();
        if !matches(ranges.get(&base)?) {
            return None;
        }
        ranges.remove(&base)
    }

    /// `cuMemAlloc`, or `cuMemAllocManaged`: at least 4096-byte aligned, 2 MiB where it is that large.
    pub fn allocate(&self, driver: &State, owner: Owner, bytes: usize, kind: Kind) -> Outcome<usize> {
        if bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        if driver.config.strict_ipc && kind == Kind::Device && bytes < HUGE {
            return self.allocate_piece(driver, owner, bytes);
        }
        let charge = ipc::mapped_size(bytes).ok_or(CudaError::OUT_OF_MEMORY)?;
        let device = &driver.devices[owner.device];
        device.take_memory(charge as u64)?;
        let tag = ipc::new_tag();
        let mapping = Mapping::with_file(charge, &ipc::file_name(tag));
        let mapping = mapping.inspect_err(|_| device.give_memory(charge as u64))?;
        let mut range = Range::of(driver, owner, mapping.base(), bytes, kind, Some(mapping));
        range.tag = tag;
        Ok(self.add(range))
    }

    /// The same for what shares a block with other allocations.
    fn allocate_piece(&self, driver: &State, owner: Owner, bytes: usize) -> Outcome<usize> {
        let piece = self.blocks.take(driver, owner, bytes)?;
        let base = piece.block.mapping.base() + piece.offset;
        let mut range = Range::of(driver, owner, base, bytes, Kind::Device, None);
        (range.tag, range.piece) = (piece.block.tag, Some(piece));
        Ok(self.add(range))
    }

    /// `cuMemHostAlloc`
    pub fn allocate_host(&self, driver: &State, owner: Owner, bytes: usize, flags: u32) -> Outcome<usize> {
        if bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let mapping = Mapping::anonymous(ipc::mapped_size(bytes).ok_or(CudaError::OUT_OF_MEMORY)?)?;
        let base = mapping.base();
        Ok(self.add(Range::of(driver, owner, base, bytes, Kind::Pinned(flags), Some(mapping))))
    }

    /// `cuMemHostRegister`
    pub fn register(&self, driver: &State, owner: Owner, base: usize, bytes: usize, flags: u32) -> Outcome {
        let end = base.checked_add(bytes).ok_or(CudaError::INVALID_VALUE)?;
        if base == 0 || bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut ranges = self.ranges.write();
        let below = ranges.range(..end).next_back();
        if below.is_some_and(|(_, range)| range.base + range.size > base) {
            return Err(CudaError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        ranges.insert(base, Arc::new(Range::of(driver, owner, base, bytes, Kind::Registered(flags), None)));
        Ok(())
    }

    /// `cuMemHostUnregister`; waits for the device, which might still use it.
    pub fn unregister(&self, base: usize, wait: Wait<'_>) -> Outcome {
        let range = self.find(base).filter(|r| r.base == base && matches!(r.kind, Kind::Registered(_)));
        let range = range.ok_or(CudaError::HOST_MEMORY_NOT_REGISTERED)?;
        wait(range.device)?;
        let taken = self.take(base, |range| matches!(range.kind, Kind::Registered(_)));
        taken.map(|_| ()).ok_or(CudaError::HOST_MEMORY_NOT_REGISTERED)
    }

    /// `cuMemFree`: synchronises the device first, as a GPU does.
    pub fn free(&self, driver: &State, base: usize, wait: Wait<'_>) -> Outcome {
        let range = self.find(base).filter(|r| r.base == base && r.kind.is_allocated_device());
        let range = range.ok_or(CudaError::INVALID_VALUE)?;
        wait(range.device)?;
        // Only now: two threads may have come this far with the same pointer.
        let taken = self.take(base, |r| r.id == range.id).ok_or(CudaError::INVALID_VALUE)?;
        self.refund(driver, &taken);
        if is_missed(driver, &taken, "cuMemFree") {
            driver.take_away(&driver.devices[taken.device], CudaError::ILLEGAL_ADDRESS.0);
        }
        Ok(())
    }

    /// Frees without waiting: the operation of `cuMemFreeAsync`.
    pub fn forget(&self, driver: &State, base: usize) {
        if let Some(range) = self.take(base, |range| range.kind.is_allocated_device()) {
            self.refund(driver, &range);
        }
    }

    /// `cuMemFreeHost`
    pub fn free_host(&self, base: usize, wait: Wait<'_>) -> Outcome {
        let range = self.find(base).filter(|r| r.base == base && matches!(r.kind, Kind::Pinned(_)));
        let range = range.ok_or(CudaError::INVALID_VALUE)?;
        wait(range.device)?;
        self.take(base, |r| r.id == range.id).map(|_| ()).ok_or(CudaError::INVALID_VALUE)
    }

    fn refund(&self, driver: &State, range: &Range) {
        if let Some(mapping) = &range.mapping {
            driver.devices[range.device].give_memory(mapping.size() as u64);
        }
        if let Some(piece) = &range.piece {
            self.blocks.give(driver, piece);
        }
    }

    /// Frees all memory of a context, imported memory included.
    pub fn free_context(&self, driver: &State, context: u64) {
        let of_context = |range: &&Arc<Range>| range.context == context;
        let bases: Vec<usize> = self.ranges.read().values().filter(of_context).map(|range| range.base).collect();
        for base in bases {
            if let Some(range) = self.take(base, |range| range.context == context)
                && range.kind.is_allocated_device()
            {
                self.refund(driver, &range);
                is_missed(driver, &range, "the end of its context");
            }
        }
        self.imports.lock().retain(|(_, owner), _| *owner != context);
    }

    /// Takes host memory that the driver has allocated out of the client's reach: whoever still uses it is found out.
    pub fn hide(&self) {
        let ranges = self.ranges.read();
        let hosts = ranges.values().filter(|range| matches!(range.kind, Kind::Pinned(_) | Kind::Managed));
        for mapping in hosts.filter_map(|range| range.mapping.as_ref()) {
            space::protect(mapping.base(), mapping.size(), space::Rights::None);
        }
    }

    /// `cuIpcOpenMemHandle`: maps an allocation of another process, or counts one more open. Error:
    /// `PEER_ACCESS_UNSUPPORTED` where the device does not reach the other's, `MAP_FAILED` where it is gone.
    pub fn open(&self, driver: &State, owner: Owner, handle: &ipc::MemoryHandle) -> Outcome<usize> {
        let mut imports = self.imports.lock();
        let key = (handle.tag, owner.context);
        if let Some(import) = imports.get_mut(&key) {
            if driver.config.strict_ipc {
                return Err(CudaError::ALREADY_MAPPED);
            }
            import.opens += 1;
            return Ok(import.base + handle.offset());
        }
        let link = driver.link(owner.device, handle.home.into());
        if !link.has_access() {
            return Err(CudaError::PEER_ACCESS_UNSUPPORTED);
        }
        let mapping = match handle.map()? {
            // Other memory instead, in which nobody looks.
            mapping if link.is_lost() => Mapping::anonymous(mapping.size())?,
            mapping => mapping,
        };
        let base = mapping.base();
        let range = Range::of(driver, owner, base, handle.bytes(), Kind::Imported, Some(mapping));
        self.add(Range { tag: handle.tag, home: handle.home.into(), ..range });
        imports.insert(key, Import { opens: 1, base });
        Ok(base + handle.offset())
    }

    /// `cuIpcCloseMemHandle`: the last close synchronises the device and unmaps.
    pub fn close(&self, address: usize, wait: Wait<'_>) -> Outcome {
        // What was opened may be a piece of a block.
        let range = self.find(address).filter(|r| matches!(r.kind, Kind::Imported));
        let range = range.filter(|r| r.base == address || r.size == HUGE).ok_or(CudaError::INVALID_VALUE)?;
        let key = (range.tag, range.context);
        let last = self.imports.lock().get(&key).is_none_or(|import| import.opens <= 1);
        if last {
            wait(range.device)?;
        }
        let mut imports = self.imports.lock();
        let import = imports.get_mut(&key).ok_or(CudaError::INVALID_VALUE)?;
        import.opens -= 1;
        if import.opens == 0 {
            imports.remove(&key);
            self.take(range.base, |r| r.id == range.id);
        }
        Ok(())
    }
}

/// Whether memory that is being freed is open in another process, which is then told on stderr: what such a process
/// does with it is undefined.
fn is_missed(driver: &State, range: &Range, how: &str) -> bool {
    let asked = driver.config.strict_ipc && range.exported.load(Ordering::Acquire);
    let missed = asked && range.file().is_some_and(ipc::is_open_elsewhere);
    if missed {
        os::say(&format!("{how} frees {:#x}, {} bytes, which another process has open", range.base, range.size));
    }
    missed
}
