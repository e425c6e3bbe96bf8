//! Virtual memory management: physical memory by handle, reserved addresses, and mappings of the one at the other.
//!
//! A mapping is a [`Range`] like any other, so that whatever asks about pointers knows it. Rights are kept per device;
//! the host's page tables, which kernels of a host image use, grant what any of the devices may.

use super::map::memfd;
use super::physical::{GRANULARITY, Location, Physical, Properties};
use super::space::{self, Rights};
use super::{Kind, Memory, PAGE, Range, Wait};
use crate::config::{Link, MAX_DEVICES};
use crate::device::State;
use crate::error::{CudaError, Outcome};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Handles look like those of other objects (see `handles`), of a kind of their own.
const HANDLE_KIND: u64 = 7 << 44;
const HANDLE_SHIFT: u64 = 4;
/// Devices of a word of [`DeviceSet`].
const WORD: usize = 64;

struct Counted {
    physical: Arc<Physical>,
    references: u64,
}

/// What there is beside the map of ranges.
#[derive(Default)]
pub struct Virtual {
    handles: Mutex<BTreeMap<u64, Counted>>,
    /// Size of each reservation, by its first address. Held while anything about mappings changes.
    reservations: Mutex<BTreeMap<usize, usize>>,
}

/// What stands behind a mapped range.
pub struct Backing {
    /// The memory.
    pub physical: Arc<Physical>,
    /// The devices that may read, or write.
    read: DeviceSet,
    write: DeviceSet,
    /// [`Rights`] of the host.
    host: AtomicU64,
}

/// Some of the devices: a bit for each.
#[derive(Default)]
struct DeviceSet([AtomicU64; MAX_DEVICES / WORD]);

impl DeviceSet {
    fn set(&self, device: usize, granted: bool) {
        let Some(word) = self.0.get(device / WORD) else { return };
        match granted {
            true => word.fetch_or(1 << (device % WORD), Ordering::AcqRel),
            false => word.fetch_and(!(1 << (device % WORD)), Ordering::AcqRel),
        };
    }

    fn has(&self, device: usize) -> bool {
        self.0.get(device / WORD).is_some_and(|word| word.load(Ordering::Acquire) >> (device % WORD) & 1 == 1)
    }

    fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }
}

impl Backing {
    fn of(physical: Arc<Physical>) -> Backing {
        Backing { physical, read: DeviceSet::default(), write: DeviceSet::default(), host: AtomicU64::new(0) }
    }

    fn set(&self, device: Option<usize>, rights: Rights) {
        let Some(device) = device else {
            return self.host.store(rights as u64, Ordering::Release);
        };
        self.read.set(device, rights >= Rights::Read);
        self.write.set(device, rights >= Rights::Write);
    }

    /// What this device, or the host, may do.
    pub fn rights(&self, device: Option<usize>) -> Rights {
        let bit = |set: &DeviceSet| device.is_some_and(|device| set.has(device));
        let host = if device.is_none() { self.host.load(Ordering::Acquire) } else { 0 };
        match (bit(&self.read) || host >= Rights::Read as u64, bit(&self.write) || host >= Rights::Write as u64) {
            (_, true) => Rights::Write,
            (true, false) => Rights::Read,
            (false, false) => Rights::None,
        }
    }

    /// What any of them may do.
    pub fn union(&self) -> Rights {
        let host = self.rights(None);
        match (self.read.any(), self.write.any()) {
            (_, true) => Rights::Write,
            (true, false) => host.max(Rights::Read),
            (false, false) => host,
        }
    }

    /// Puts other memory there, in which nobody looks: once, before anybody may use it.
    fn lose(&self, range: &Range) -> Outcome {
        if self.union() != Rights::None {
            return Ok(());
        }
        let file = memfd(c"softcuda-lost")?;
        let bytes = libc::off_t::try_from(range.size).map_err(|_| CudaError::OUT_OF_MEMORY)?;
        // SAFETY: the descriptor is ours, the rest is a number.
        let placed = unsafe { libc::ftruncate(file.as_raw_fd(), bytes) } == 0;
        if placed && space::place(range.base, range.size, &file) { Ok(()) } else { Err(CudaError::OUT_OF_MEMORY) }
    }

    fn devices(&self) -> impl Iterator<Item = usize> {
        let devices: Vec<usize> = (0..MAX_DEVICES).filter(|device| self.read.has(*device)).collect();
        devices.into_iter()
    }
}

/// Who wants to do what with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The current context's device reads. Without a context there is nobody to ask about: what any device may do is
    /// allowed.
    Read(Option<usize>),
    /// It writes.
    Write(Option<usize>),
    /// A copy between contexts reads or writes: it goes by whichever device can.
    Peer(Rights),
}

impl Range {
    /// Whether this may be done here. Memory that is not mapped by `cuMemMap` is open to all.
    pub fn permits(&self, reach: Reach) -> bool {
        let Some(backing) = &self.backing else {
            return true;
        };
        let granted = |device: Option<usize>| match device {
            Some(device) => backing.rights(Some(device)),
            None => backing.union(),
        };
        match reach {
            Reach::Read(device) => granted(device) >= Rights::Read,
            Reach::Write(device) => granted(device) >= Rights::Write,
            Reach::Peer(needed) => backing.union() >= needed,
        }
    }
}

fn check_aligned(numbers: &[usize]) -> Outcome {
    let sound = numbers.iter().all(|n| *n != 0 && n.is_multiple_of(GRANULARITY));
    if sound { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

fn new_handle(driver: &State) -> u64 {
    HANDLE_KIND | driver.unique() << HANDLE_SHIFT
}

impl Memory {
    /// `cuMemCreate`
    pub fn create(&self, driver: &'static State, size: usize, properties: Properties) -> Outcome<u64> {
        check_aligned(&[size])?;
        Ok(self.keep(Physical::create(driver, new_handle(driver), size, properties)?))
    }

    /// `cuMemImportFromShareableHandle`
    pub fn import(&self, driver: &'static State, fd: RawFd) -> Outcome<u64> {
        Ok(self.keep(Physical::import(driver, new_handle(driver), fd)?))
    }

    fn keep(&self, physical: Physical) -> u64 {
        let handle = physical.handle;
        let counted = Counted { physical: Arc::new(physical), references: 1 };
        self.space.handles.lock().insert(handle, counted);
        handle
    }

    /// The memory of a handle.
    pub fn physical(&self, handle: u64) -> Outcome<Arc<Physical>> {
        let handles = self.space.handles.lock();
        handles.get(&handle).map(|counted| counted.physical.clone()).ok_or(CudaError::INVALID_VALUE)
    }

    /// `cuMemRelease`: mappings keep the memory.
    pub fn release(&self, handle: u64) -> Outcome {
        let mut handles = self.space.handles.lock();
        let counted = handles.get_mut(&handle).ok_or(CudaError::INVALID_VALUE)?;
        counted.references -= 1;
        if counted.references == 0 {
            handles.remove(&handle);
        }
        Ok(())
    }

    /// `cuMemRetainAllocationHandle`: one more reference to the memory that is mapped there.
    pub fn retain(&self, address: usize) -> Outcome<u64> {
        let range = self.find(address).ok_or(CudaError::INVALID_VALUE)?;
        let physical = &range.backing.as_ref().ok_or(CudaError::INVALID_VALUE)?.physical;
        let mut handles = self.space.handles.lock();
        let fresh = || Counted { physical: physical.clone(), references: 0 };
        handles.entry(physical.handle).or_insert_with(fresh).references += 1;
        Ok(physical.handle)
    }

    /// `cuMemExportToShareableHandle` as a descriptor; only what was created for it.
    pub fn export(&self, handle: u64, handle_type: u32) -> Outcome<OwnedFd> {
        let physical = self.physical(handle)?;
        if physical.properties.handle_types & handle_type == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        physical.export()
    }

    /// `cuMemAddressReserve`; an alignment of 0 is the default, the hint may be 0.
    pub fn reserve(&self, size: usize, align: usize, hint: usize) -> Outcome<usize> {
        let sound = size > 0 && size.is_multiple_of(PAGE) && hint.is_multiple_of(PAGE);
        if !sound || !(align == 0 || align.is_power_of_two()) {
            return Err(CudaError::INVALID_VALUE);
        }
        let base = space::reserve(size, align.max(GRANULARITY), hint).ok_or(CudaError::OUT_OF_MEMORY)?;
        self.space.reservations.lock().insert(base, size);
        Ok(base)
    }

    /// `cuMemAddressFree`: the whole reservation, with nothing mapped in it.
    pub fn unreserve(&self, base: usize, size: usize) -> Outcome {
        let mut reservations = self.space.reservations.lock();
        if reservations.get(&base) != Some(&size) || self.ranges.read().range(base..base + size).next().is_some() {
            return Err(CudaError::INVALID_VALUE);
        }
        reservations.remove(&base);
        space::release(base, size);
        Ok(())
    }

    /// `cuMemMap`: the beginning of the memory, at reserved addresses where nothing is mapped.
    pub fn map(&self, driver: &State, base: usize, size: usize, handle: u64) -> Outcome {
        check_aligned(&[base, size])?;
        let physical = self.physical(handle)?;
        let end = base.checked_add(size).filter(|_| size <= physical.size).ok_or(CudaError::INVALID_VALUE)?;
        let reservations = self.space.reservations.lock();
        let (at, room) = reservations.range(..=base).next_back().ok_or(CudaError::INVALID_VALUE)?;
        let mut ranges = self.ranges.write();
        if end > at + room || ranges.range(base..end).next().is_some() || overlaps_below(&ranges, base) {
            return Err(CudaError::INVALID_VALUE);
        }
        if !space::place(base, size, physical.file()) {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        ranges.insert(base, Arc::new(range_of(driver, base, size, physical)));
        Ok(())
    }

    /// `cuMemUnmap` of one or more whole mappings, after all work of the devices that had access: `wait` waits for it.
    pub fn unmap(&self, base: usize, size: usize, wait: Wait<'_>) -> Outcome {
        check_aligned(&[base, size])?;
        let before = self.mappings(base, size)?;
        for device in before.iter().filter_map(|range| range.backing.as_ref()).flat_map(Backing::devices) {
            wait(device)?;
        }
        let _changing = self.space.reservations.lock();
        // Another thread may have done the same meanwhile.
        let same = self.mappings(base, size)?.iter().map(|range| range.id).eq(before.iter().map(|range| range.id));
        if !same {
            return Err(CudaError::INVALID_VALUE);
        }
        let mut ranges = self.ranges.write();
        if !space::clear(base, size) {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        before.iter().for_each(|range| drop(ranges.remove(&range.base)));
        Ok(())
    }

    /// The mappings that make up these addresses from end to end.
    fn mappings(&self, base: usize, size: usize) -> Outcome<Vec<Arc<Range>>> {
        let end = base.checked_add(size).ok_or(CudaError::INVALID_VALUE)?;
        let ranges = self.ranges.read();
        let mut found = Vec::new();
        let mut next = base;
        while next < end {
            let range = ranges.get(&next).filter(|range| range.backing.is_some()).ok_or(CudaError::INVALID_VALUE)?;
            next = range.base + range.size;
            found.push(range.clone());
        }
        if next == end { Ok(found) } else { Err(CudaError::INVALID_VALUE) }
    }

    /// `cuMemSetAccess`: each device (or the host, `None`) gets these rights; others keep theirs.
    pub fn set_access(&self, driver: &State, base: usize, size: usize, wanted: &[(Option<usize>, Rights)]) -> Outcome {
        check_aligned(&[base, size])?;
        let _changing = self.space.reservations.lock();
        let mappings = self.mappings(base, size)?;
        let backings = || mappings.iter().filter_map(|range| Some((range, range.backing.as_ref()?)));
        let for_host = wanted.iter().any(|(device, _)| device.is_none());
        if for_host && backings().any(|(_, backing)| !backing.physical.properties.location.is_host()) {
            return Err(CudaError::INVALID_VALUE);
        }
        let links = |range: &Range| wanted.iter().filter_map(|(device, _)| link(driver, *device, range)).collect();
        let links: Vec<Vec<Link>> = backings().map(|(range, _)| links(range)).collect();
        if links.iter().flatten().any(|link| !link.has_access()) {
            return Err(CudaError::PEER_ACCESS_UNSUPPORTED);
        }
        for ((range, backing), links) in backings().zip(&links) {
            if backing.physical.imported && links.iter().any(|link| link.is_lost()) {
                backing.lose(range)?;
            }
            wanted.iter().for_each(|(device, rights)| backing.set(*device, *rights));
            if !space::protect(range.base, range.size, backing.union()) {
                return Err(CudaError::OUT_OF_MEMORY);
            }
        }
        Ok(())
    }

    /// `cuMemGetAccess`
    pub fn access(&self, address: usize, device: Option<usize>) -> Outcome<Rights> {
        let range = self.find(address).ok_or(CudaError::INVALID_VALUE)?;
        Ok(range.backing.as_ref().ok_or(CudaError::INVALID_VALUE)?.rights(device))
    }
}

/// What lies between a device and memory of another one.
fn link(driver: &State, device: Option<usize>, range: &Range) -> Option<Link> {
    device.filter(|_| range.kind.is_device()).map(|device| driver.link(device, range.home))
}

fn overlaps_below(ranges: &BTreeMap<usize, Arc<Range>>, base: usize) -> bool {
    ranges.range(..base).next_back().is_some_and(|(_, range)| range.base + range.size > base)
}

/// Mappings belong to the process, not to a context.
fn range_of(driver: &State, base: usize, size: usize, physical: Arc<Physical>) -> Range {
    let location = physical.properties.location;
    Range {
        base,
        size,
        id: driver.unique(),
        context: 0,
        device: if let Location::Device(index) = location { index } else { 0 },
        home: location.home(driver).unwrap_or(0),
        kind: Kind::Mapped { host: location.is_host() },
        tag: 0,
        sync_operations: Default::default(),
        mapping: None,
        piece: None,
        exported: Default::default(),
        backing: Some(Backing::of(physical)),
    }
}
