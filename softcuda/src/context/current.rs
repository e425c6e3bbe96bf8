//! The stack of current contexts that each thread has.

use super::{Context, State};
use crate::error::{CudaError, Outcome};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

/// Contexts that one thread's stack may hold.
const MAX_STACK: usize = 1024;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// Below the current one. Never dropped, since programs call CUDA in exit handlers too, when what is
    /// dropped is gone; it owns memory only while there is something in it.
    static BELOW: ManuallyDrop<RefCell<Vec<u64>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// The calling thread's current context. Error: none, a dead one, or one of a device that is lost.
#[inline]
pub fn current(driver: &'static State) -> Outcome<&'static Context> {
    let context = present(driver)?;
    driver.check(context.device())?;
    Ok(context)
}

/// The same, whether or not its device is lost.
#[inline]
pub fn present(driver: &'static State) -> Outcome<&'static Context> {
    let handle = CURRENT.get();
    if handle == 0 {
        return Err(CudaError::INVALID_CONTEXT);
    }
    driver.contexts.get(handle).filter(|c| c.is_active()).ok_or(CudaError::CONTEXT_IS_DESTROYED)
}

/// The context whose memory, modules, events and settings the calling thread's current one shares.
pub fn current_home(driver: &'static State) -> Outcome<&'static Context> {
    current(driver)?.home_context(driver)
}

/// Index of the device of the calling thread's current context.
pub fn current_device(driver: &State) -> Option<usize> {
    driver.contexts.get(CURRENT.get()).map(Context::device)
}

/// Handle of the calling thread's current context, 0 for none.
pub fn current_handle() -> u64 {
    CURRENT.get()
}

/// Makes a context current on top of the present one.
pub fn push(handle: u64) -> Outcome {
    let before = CURRENT.get();
    BELOW.with(|below| {
        let mut below = below.borrow_mut();
        if below.len() >= MAX_STACK {
            return Err(CudaError::INVALID_VALUE);
        }
        if before != 0 {
            below.push(before);
        }
        Ok(())
    })?;
    CURRENT.set(handle);
    Ok(())
}

/// Takes the current context away and returns it.
pub fn pop() -> Outcome<u64> {
    let top = CURRENT.get();
    if top == 0 {
        return Err(CudaError::INVALID_CONTEXT);
    }
    CURRENT.set(BELOW.with(|below| {
        let mut below = below.borrow_mut();
        let next = below.pop().unwrap_or(0);
        if below.is_empty() {
            *below = Vec::new();
        }
        next
    }));
    Ok(top)
}

/// Replaces the current context; 0 takes it away.
pub fn set(handle: u64) {
    if handle != 0 {
        CURRENT.set(handle);
    } else if CURRENT.get() != 0 {
        let _ = pop();
    }
}
