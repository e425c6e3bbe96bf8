//! Placeholder until the room is filled: the signatures that `abi` calls.

pub mod config;
pub mod selection;
pub mod types;

use crate::error::{Code, Error};
use std::sync::Arc;

/// Placeholder.
pub struct Comm;

/// Placeholder.
pub enum Outcome {
    /// The result is final.
    Done,
    /// The operation goes on in the background.
    InProgress,
}

/// Where a new handle is written.
pub struct Slot(*mut usize);

impl Slot {
    /// # Safety
    /// `to` is valid for writing until the call (in a group: the group) is over.
    pub unsafe fn new(to: *mut usize) -> Slot {
        Slot(to)
    }
}

/// Placeholder.
pub struct InitRequest {
    /// The C function.
    pub function: &'static str,
    /// Ranks.
    pub nranks: i32,
    /// This rank.
    pub rank: i32,
    /// The id.
    pub id: [u8; 128],
    /// The configuration.
    pub config: config::Config,
}

fn missing() -> Error {
    Error::NoCuda("no usable CUDA driver (libcuda.so.1)".to_string())
}

#[allow(missing_docs)]
impl Comm {
    pub fn rank(&self) -> i32 {
        0
    }
    pub fn nranks(&self) -> i32 {
        1
    }
    pub fn cuda_device(&self) -> i32 {
        0
    }
    pub fn nvml_device(&self) -> i32 {
        0
    }
    pub fn hash(&self) -> u64 {
        0
    }
    pub fn check_ready(&self) -> Result<(), Error> {
        Ok(())
    }
    pub fn async_state(&self) -> (Code,) {
        (Code::Success,)
    }
    pub fn is_revoked(&self) -> bool {
        false
    }
    pub fn config(&self) -> &config::Config {
        unreachable!("no communicator exists yet")
    }
    pub fn note_failure(&self, _function: &'static str, _error: &Error) {}
}

#[allow(missing_docs)]
mod calls {
    use super::*;
    pub fn check_cuda() -> Result<(), Error> {
        Err(missing())
    }
    pub fn lookup(_handle: usize) -> Option<Arc<Comm>> {
        None
    }
    pub fn init_rank(slot: Slot, _request: InitRequest) -> Result<Outcome, Error> {
        let _ = slot.0;
        Err(missing())
    }
    pub fn init_all(_devices: &[i32]) -> Result<Vec<usize>, Error> {
        Err(missing())
    }
    pub fn finalize(_comm: Arc<Comm>) -> Result<Outcome, Error> {
        Ok(Outcome::Done)
    }
    pub fn destroy(_handle: usize) -> Result<Outcome, Error> {
        Err(Error::InvalidArgument(
            "Error: corrupted comm object detected".to_string(),
        ))
    }
    pub fn abort(handle: usize) -> Result<Outcome, Error> {
        destroy(handle)
    }
    pub fn unique_id() -> Result<[u8; 128], Error> {
        Err(Error::Internal("placeholder".to_string()))
    }
    pub fn mem_alloc(_size: usize) -> Result<usize, Error> {
        Err(missing())
    }
    pub fn mem_free(_ptr: usize) -> Result<(), Error> {
        Err(missing())
    }
}
pub use calls::*;
