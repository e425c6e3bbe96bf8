//! What the driver knows of device memory that somebody else has allocated, and the memory that users have from here.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use parking_lot::Mutex;

use super::context::{Context, current_device};
use super::driver::{Driver, IpcMemHandle};
use crate::error::Error;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, and its value `CU_MEMORYTYPE_DEVICE`.
const ATTRIBUTE_MEMORY_TYPE: (c_int, c_uint) = (2, 2);
/// `CU_POINTER_ATTRIBUTE_BUFFER_ID`: no two allocations of a process ever have the same.
const ATTRIBUTE_BUFFER_ID: c_int = 7;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const ATTRIBUTE_DEVICE: c_int = 9;

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
fn attribute<T: Default>(driver: &Driver, number: c_int, address: u64) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the callers name attributes of the size of their type; the pointer is to a live value of it.
    let code = unsafe { (driver.table.pointer_attribute)((&raw mut value).cast::<c_void>(), number, address) };
    driver.check("cuPointerGetAttribute", code).is_ok().then_some(value)
}

/// The number of the allocation that an address is in; none where it is in none.
pub fn buffer_id(context: &Context, address: u64) -> Option<u64> {
    attribute(context.driver(), ATTRIBUTE_BUFFER_ID, address)
}

impl Allocation {
    /// The allocation on the context's device that an address is in; none where there is none.
    ///
    /// # Errors
    /// What the driver gives where it has lost the context.
    pub fn at(context: &Context, address: u64) -> Result<Option<Allocation>, Error> {
        let driver = context.driver();
        let here = attribute(driver, ATTRIBUTE_MEMORY_TYPE.0, address) == Some(ATTRIBUTE_MEMORY_TYPE.1)
            && attribute(driver, ATTRIBUTE_DEVICE, address) == Some(context.device());
        let Some(id) = buffer_id(context, address).filter(|_| here) else { return Ok(None) };
        let _entered = context.enter()?;
        let (mut base, mut bytes) = (0u64, 0usize);
        // SAFETY: a context is current; the pointers are to live variables.
        let code = unsafe { (driver.table.address_range)(&mut base, &mut bytes, address) };
        let known = driver.check("cuMemGetAddressRange", code).is_ok();
        Ok(known.then_some(Allocation { base, bytes: bytes as u64, id }))
    }

    /// A handle by which another process of this host can map the allocation.
    ///
    /// # Errors
    /// [`Error::Cuda`] for memory that has no such handle: of a pool, managed, or mapped by the user.
    pub fn export(&self, context: &Context) -> Result<IpcMemHandle, Error> {
        let _entered = context.enter()?;
        let driver = context.driver();
        let mut handle = IpcMemHandle([0; 64]);
        // SAFETY: the pointer is to a live handle; the driver checks the address.
        driver.check("cuIpcGetMemHandle", unsafe { (driver.table.ipc_get)(&mut handle, self.base) })?;
        Ok(handle)
    }
}

/// The contexts that memory of [`allocate`] lives in: such memory has no owner in this library, so its
/// context must outlive everything.
static HELD: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());

/// The memory of [`allocate`]: where each piece begins, and where it ends.
static GIVEN: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn hold(device: i32) -> Result<Arc<Context>, Error> {
    let mut held = HELD.lock();
    if let Some(context) = held.iter().find(|context| context.device() == device) {
        return Ok(context.clone());
    }
    held.push(Context::retain(device)?);
    Ok(held[held.len() - 1].clone())
}

/// Allocates memory on the calling thread's current device, for the user (`ncclMemAlloc`). No bytes
/// give address 0.
pub fn allocate(bytes: usize) -> Result<u64, Error> {
    let context = hold(current_device()?)?;
    if bytes == 0 {
        return Ok(0);
    }
    let _entered = context.enter()?;
    let driver = context.driver();
    let mut address = 0;
    // SAFETY: a context is current; the pointer is to a live variable.
    driver.check("cuMemAlloc", unsafe { (driver.table.mem_alloc)(&mut address, bytes) })?;
    GIVEN.lock().insert(address, address + bytes as u64);
    Ok(address)
}

/// Whether an address is in memory of [`allocate`].
pub fn is_given(address: u64) -> bool {
    GIVEN.lock().range(..=address).next_back().is_some_and(|(_, end)| address < *end)
}

/// Frees memory of [`allocate`], from whatever device is current. Address 0 is nothing.
pub fn free(address: u64) -> Result<(), Error> {
    let driver = Driver::get()?;
    if address == 0 {
        return Ok(());
    }
    let mut device: c_int = 0;
    // SAFETY: the pointer is to a live integer, which is what this attribute takes.
    let code = unsafe { (driver.table.pointer_attribute)((&raw mut device).cast(), ATTRIBUTE_DEVICE, address) };
    driver.check("cuPointerGetAttribute", code)?;
    let context = hold(device)?;
    let _entered = context.enter()?;
    // Before the memory is free: somebody else may get the address at once.
    GIVEN.lock().remove(&address);
    // SAFETY: the driver checks the address.
    driver.check("cuMemFree", unsafe { (driver.table.mem_free)(address) })
}
