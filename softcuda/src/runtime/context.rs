//! Which device a thread uses, and its primary context.
//!
//! The current device is the device of the driver's current context. Only where a thread has no
//! context does the runtime's own memory of the last chosen device count.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use parking_lot::Mutex;

use super::driver::{self, Status};
use super::error::{Code, INVALID_DEVICE, check, report};
use super::{Handle, Out};
use crate::driver::Driver;

/// The primary contexts that the runtime holds, by device: one reference each, for the life of
/// the process or until `cudaDeviceReset`.
static HELD: Mutex<BTreeMap<c_int, Handle>> = Mutex::new(BTreeMap::new());

thread_local! {
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
    /// How many primary contexts had ended when the thread last looked whether its own is alive.
    static ENDS_SEEN: Cell<u64> = const { Cell::new(0) };
}

/// How many primary contexts have ended, by `cudaDeviceReset` or by the driver API.
fn ends() -> u64 {
    Driver::running().map_or(0, |driver| driver.primary_ends())
}

/// A driver call's out-parameter as a value.
pub(super) fn fetch<T: Copy + Default>(call: impl FnOnce(Out<T>) -> Status) -> Result<T, Code> {
    let mut slot = MaybeUninit::new(T::default());
    check(call(Some(&mut slot)))?;
    // SAFETY: it was initialised above, and the driver at most replaced it by another T.
    Ok(unsafe { slot.assume_init() })
}

/// Runs a call that needs no context, only a driver that is up.
pub(super) fn without_context(call: impl FnOnce() -> Result<(), Code>) -> Code {
    report(check(driver::cuInit(0)).and_then(|()| call()))
}

/// Runs a call that needs a current context; makes one if there is none.
pub(super) fn in_context(call: impl FnOnce() -> Result<(), Code>) -> Code {
    report(ensure().and_then(|()| call()))
}

/// The same for a single driver call.
pub(super) fn call(status: impl FnOnce() -> Status) -> Code {
    in_context(|| check(status()))
}

fn ensure() -> Result<(), Code> {
    let ends = ends();
    let current = fetch(|out| driver::cuCtxGetCurrent(out)).unwrap_or(0);
    if current == 0 {
        return activate(DEVICE.get());
    }
    if ENDS_SEEN.get() != ends {
        ENDS_SEEN.set(ends);
        if let Some(device) = ended_primary(current) {
            return activate(device);
        }
    }
    // A context that the program made itself and destroyed is for the driver to name.
    Ok(())
}

/// The device whose primary context this is, if nobody has retained it since its end.
fn ended_primary(context: Handle) -> Option<c_int> {
    let context = Driver::running()?.contexts.get(context as u64)?;
    (context.is_primary() && !context.is_active()).then(|| context.device() as c_int)
}

/// The flags of a device's primary context, and whether there is one at present.
pub(super) fn primary_state(device: c_int) -> Result<(c_uint, bool), Code> {
    let mut active = MaybeUninit::new(0);
    let flags = fetch(|flags| driver::cuDevicePrimaryCtxGetState(device, flags, Some(&mut active)))?;
    // SAFETY: it was initialised above, and the driver at most replaced it.
    Ok((flags, unsafe { active.assume_init() } != 0))
}

/// Makes the primary context of `device` current. Error: `cudaErrorInvalidDevice`.
pub(super) fn activate(device: c_int) -> Result<(), Code> {
    check(driver::cuCtxSetCurrent(primary(device)?))?;
    DEVICE.set(device);
    Ok(())
}

/// The primary context of `device`, retained once.
pub(super) fn primary(device: c_int) -> Result<Handle, Code> {
    check(driver::cuInit(0))?;
    let mut held = HELD.lock();
    if let Some(&context) = held.get(&device) {
        // The program may have reset it by the driver API: then a retain makes it anew.
        if primary_state(device).is_ok_and(|(_, active)| active) {
            return Ok(context);
        }
    }
    let context = fetch(|context| driver::cuDevicePrimaryCtxRetain(context, device))?;
    if held.insert(device, context).is_some() {
        // One reference is enough. The program may have released more than it had.
        let _ = driver::cuDevicePrimaryCtxRelease_v2(device);
    }
    Ok(context)
}

/// The device that this thread's calls go to.
pub(super) fn current_device() -> c_int {
    match fetch(|out| driver::cuCtxGetCurrent(out)) {
        Ok(context) if context != 0 => fetch(|out| driver::cuCtxGetDevice(out)).unwrap_or(DEVICE.get()),
        _ => DEVICE.get(),
    }
}

/// Destroys what this process has on the current device; the next call begins anew. The program's own references stay.
pub(super) fn reset() -> Result<(), Code> {
    check(driver::cuInit(0))?;
    let device = current_device();
    let mut held = HELD.lock();
    check(driver::cuDevicePrimaryCtxReset_v2(device))?;
    if held.remove(&device).is_some() {
        // The program may have released more than it had.
        let _ = driver::cuDevicePrimaryCtxRelease_v2(device);
    }
    check(driver::cuCtxSetCurrent(0))?;
    DEVICE.set(device);
    Ok(())
}

/// Whether the number is a device.
pub(super) fn check_device(device: c_int) -> Result<(), Code> {
    let count = fetch(|out| driver::cuDeviceGetCount(out))?;
    if (0..count).contains(&device) { Ok(()) } else { Err(INVALID_DEVICE) }
}
