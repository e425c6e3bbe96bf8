//! User objects: a pointer of the client with a destructor, which runs when the last reference goes.

use super::State;
use crate::callout::HostCall;
use crate::error::{CudaError, Outcome};
use parking_lot::Mutex;

/// Most references that one call may name (`INT_MAX`).
const MOST: u32 = i32::MAX as u32;

#[derive(Default)]
struct Count {
    references: u64,
    destructor: Option<HostCall>,
}

/// `CUuserObject`
#[derive(Default)]
pub struct UserObject {
    state: Mutex<Count>,
}

fn check_count(count: u32) -> Outcome {
    if (1..=MOST).contains(&count) { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

fn lookup(driver: &'static State, handle: u64) -> Outcome<&'static UserObject> {
    driver.graphs.objects.get(handle).ok_or(CudaError::INVALID_VALUE)
}

/// `cuUserObjectCreate`
pub fn create(driver: &'static State, destructor: HostCall, references: u32) -> Outcome<u64> {
    check_count(references)?;
    let made = driver.graphs.objects.insert(|object, _| {
        *object.state.lock() = Count { references: references.into(), destructor: Some(destructor) };
    });
    Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.0)
}

/// `cuUserObjectRetain`
pub fn retain(driver: &'static State, handle: u64, count: u32) -> Outcome {
    check_count(count)?;
    lookup(driver, handle)?.state.lock().references += u64::from(count);
    Ok(())
}

/// `cuUserObjectRelease`
pub fn release(driver: &'static State, handle: u64, count: u32) -> Outcome {
    check_count(count)?;
    let object = lookup(driver, handle)?;
    let destructor = {
        let mut state = object.state.lock();
        let left = state.references.checked_sub(count.into()).ok_or(CudaError::INVALID_VALUE)?;
        state.references = left;
        if left > 0 {
            return Ok(());
        }
        state.destructor.take()
    };
    driver.graphs.objects.remove(handle).ok_or(CudaError::INVALID_VALUE)?;
    driver.graphs.objects.recycle(handle);
    // As CUDA says, it may not call CUDA.
    destructor.into_iter().for_each(HostCall::run);
    Ok(())
}

/// References that a graph has; given back when dropped.
pub struct Held {
    driver: &'static State,
    handle: u64,
    count: u32,
}

impl Held {
    /// Takes over references that somebody has.
    pub fn adopt(driver: &'static State, handle: u64, count: u32) -> Outcome<Held> {
        check_count(count)?;
        lookup(driver, handle)?;
        Ok(Held { driver, handle, count })
    }

    /// New references.
    pub fn retain(driver: &'static State, handle: u64, count: u32) -> Outcome<Held> {
        retain(driver, handle, count)?;
        Ok(Held { driver, handle, count })
    }

    /// The object.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Lets go of some of them, not of all.
    pub fn split(&mut self, count: u32) -> Held {
        self.count -= count;
        Held { driver: self.driver, handle: self.handle, count }
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        // The references that we have keep the object valid.
        let _ = retain(self.driver, self.handle, self.count);
        Held { driver: self.driver, handle: self.handle, count: self.count }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = release(self.driver, self.handle, self.count);
    }
}
