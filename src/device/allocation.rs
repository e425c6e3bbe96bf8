//! What the driver knows of device memory that somebody else has allocated, and the memory that users have from here.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cudarc::driver::sys::{CUipcMemHandle, CUmemorytype, CUpointer_attribute};
use parking_lot::Mutex;

use super::context::Context;
use super::driver::{Driver, IpcMemHandle};
use super::physical::{PhysicalMemory, descriptor_of, has_descriptor};
use crate::error::Error;

const MEMORY_TYPE: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
/// The memory type of memory on a device.
const DEVICE_MEMORY: c_uint = CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
/// No two allocations of a process ever have the same.
const BUFFER_ID: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
const DEVICE_ORDINAL: CUpointer_attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;

/// The most allocations that a registered range may consist of.
const SEGMENTS_MAX: usize = 1024;

/// A device allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Its first address.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// A number that no other allocation of the process has, before or after.
    pub id: u64,
}

/// An integer attribute of an address; none where the driver does not know the address.
fn attribute<T: Default>(driver: &Driver, which: CUpointer_attribute, address: u64) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the callers name attributes of the size of their type; the pointer is to a live value of it.
    let code = unsafe { (driver.table.pointer_attribute)((&raw mut value).cast::<c_void>(), which, address) };
    driver.check("cuPointerGetAttribute", code).is_ok().then_some(value)
}

/// The number of the allocation that an address is in; none where it is in none.
pub fn buffer_id(context: &Context, address: u64) -> Option<u64> {
    attribute(context.driver(), BUFFER_ID, address)
}

impl Allocation {
    /// The allocation on the context's device that an address is in; none where there is none.
    ///
    /// # Errors
    /// What the driver gives where it has lost the context.
    pub fn at(context: &Context, address: u64) -> Result<Option<Allocation>, Error> {
        let driver = context.driver();
        let here = attribute(driver, MEMORY_TYPE, address) == Some(DEVICE_MEMORY)
            && attribute(driver, DEVICE_ORDINAL, address) == Some(context.device());
        let Some(id) = buffer_id(context, address).filter(|_| here) else { return Ok(None) };
        let _entered = context.enter()?;
        let (mut base, mut bytes) = (0u64, 0usize);
        // SAFETY: a context is current; the pointers are to live variables.
        let code = unsafe { (driver.table.address_range)(&mut base, &mut bytes, address) };
        let known = driver.check("cuMemGetAddressRange", code).is_ok();
        Ok(known.then_some(Allocation { base, bytes: bytes as u64, id }))
    }

    /// Whether other processes can map the allocation by descriptors.
    pub fn has_descriptor(&self, context: &Context) -> bool {
        has_descriptor(context, self.base)
    }

    /// A descriptor by which other processes can map the allocation.
    ///
    /// # Errors
    /// [`Error::Cuda`] where it is not there any more.
    pub fn descriptor(&self, context: &Context) -> Result<OwnedFd, Error> {
        let fd = descriptor_of(context, self.base)?;
        // What is there now may be something else.
        let gone = || Error::Internal(format!("memory at {:#x} is gone", self.base));
        (buffer_id(context, self.base) == Some(self.id)).then_some(fd).ok_or_else(gone)
    }

    /// The allocations that lie side by side and hold a range: one, or mappings of memory of `cuMemCreate`, as
    /// allocators make them that let memory grow. None where there is a gap, or too many of them.
    pub fn of_range(context: &Context, from: u64, to: u64) -> Option<Vec<Allocation>> {
        let mut found = vec![Allocation::at(context, from).ok()??];
        while found.last()?.end() < to {
            let next = Allocation::at(context, found.last()?.end()).ok()??;
            if next.base != found.last()?.end() || found.len() == SEGMENTS_MAX {
                return None;
            }
            found.push(next);
        }
        Some(found)
    }

    /// The address behind it.
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// A handle by which another process of this host can map the allocation.
    ///
    /// # Errors
    /// [`Error::Cuda`] for memory that has no such handle: of a pool, managed, or mapped by the user.
    pub fn export(&self, context: &Context) -> Result<IpcMemHandle, Error> {
        let _entered = context.enter()?;
        let driver = context.driver();
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a live handle; the driver checks the address.
        driver.check("cuIpcGetMemHandle", unsafe { (driver.table.ipc_get)(&mut handle, self.base) })?;
        Ok(handle.into())
    }
}

/// Memory that users have from [`allocate`]. It has no owner in this library, so its context is kept with it.
struct GivenAllocation {
    end: u64,
    context: Arc<Context>,
    /// None for what `cuMemAlloc` has given.
    memory: Option<PhysicalMemory>,
}

/// The memory of [`allocate`], by where each piece begins.
static GIVEN: Mutex<BTreeMap<u64, GivenAllocation>> = Mutex::new(BTreeMap::new());

/// The calling thread's context: one that is held for other memory already, where there is one.
fn context_of_thread() -> Result<Arc<Context>, Error> {
    let held = GIVEN.lock().values().map(|piece| piece.context.clone()).find(|context| context.is_current());
    match held.filter(|context| context.check_alive().is_ok()) {
        Some(context) => Ok(context),
        None => Context::of_thread(),
    }
}

/// Allocates memory in the calling thread's current context, for the user (`ncclMemAlloc`). No bytes give address 0.
/// Where that is possible, other processes can map it by descriptors, and all devices of this process that reach its
/// device may use it.
///
/// # Errors
/// [`Error::NoCuda`] or [`Error::Cuda`] where there is no usable device, or it has no memory.
pub fn allocate(bytes: usize) -> Result<u64, Error> {
    let context = context_of_thread()?;
    if bytes == 0 {
        return Ok(0);
    }
    let memory = match PhysicalMemory::is_wanted(&context) {
        true => Some(PhysicalMemory::allocate(&context, bytes)?),
        false => None,
    };
    let address = match &memory {
        Some(memory) => {
            // Who cannot use it after all has other ways.
            context.devices_that_reach()?.into_iter().for_each(|device| drop(memory.let_reach(device)));
            memory.address()
        }
        None => allocate_plain(&context, bytes)?,
    };
    let mut given = GIVEN.lock();
    // What went with its context was never freed, and its addresses may be used again.
    given.retain(|_, piece| !piece.context.is_gone());
    given.insert(address, GivenAllocation { end: address + bytes as u64, context, memory });
    Ok(address)
}

fn allocate_plain(context: &Context, bytes: usize) -> Result<u64, Error> {
    let (driver, _entered) = (context.driver(), context.enter()?);
    let mut address = 0;
    // SAFETY: a context is current; the pointer is to a live variable.
    driver.check("cuMemAlloc", unsafe { (driver.table.mem_alloc)(&mut address, bytes) })?;
    Ok(address)
}

/// Whether an address is in memory of [`allocate`].
pub fn is_given(address: u64) -> bool {
    GIVEN.lock().range(..=address).next_back().is_some_and(|(_, piece)| address < piece.end)
}

/// Memory of [`allocate`] that its user has given back. Dropping it frees it, and may wait for whatever runs on the
/// devices that could use it.
pub struct FreedMemory {
    _memory: PhysicalMemory,
    devices: Vec<i32>,
}

impl FreedMemory {
    /// The devices that could use it.
    pub fn devices(&self) -> &[i32] {
        &self.devices
    }
}

/// Frees memory of [`allocate`], from whatever context is current. Address 0 is nothing. What it gives is still there:
/// it is to be dropped where nothing runs.
///
/// # Errors
/// [`Error::Cuda`] for an address that is no allocation's, or whose context is gone.
pub fn free(address: u64) -> Result<Option<FreedMemory>, Error> {
    let driver = Driver::get()?;
    if address == 0 {
        return Ok(None);
    }
    // Before the memory is free: somebody else may get the address at once.
    let given = GIVEN.lock().remove(&address);
    let context = match given {
        Some(GivenAllocation { context, memory: Some(memory), .. }) => {
            let mut devices = context.devices_that_reach()?;
            devices.push(context.device());
            return context.check_alive().map(|()| Some(FreedMemory { _memory: memory, devices }));
        }
        Some(piece) => piece.context,
        None => {
            let mut device: c_int = 0;
            // SAFETY: the pointer is to a live integer, which is what this attribute takes.
            let code = unsafe { (driver.table.pointer_attribute)((&raw mut device).cast(), DEVICE_ORDINAL, address) };
            driver.check("cuPointerGetAttribute", code)?;
            Context::retain(device)?
        }
    };
    let _entered = context.enter()?;
    // SAFETY: the driver checks the address.
    driver.check("cuMemFree", unsafe { (driver.table.mem_free)(address) }).map(|()| None)
}
