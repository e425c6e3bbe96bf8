//! Placeholder until the room is filled: what `group` calls.

use crate::comm::{Comm, config::CollConfig};
use crate::error::Error;
use crate::plan::call::{DataType, Func, Op};
use std::sync::Arc;

/// A collected call.
#[allow(missing_docs)]
pub struct Collective {
    pub func: Func,
    pub send: u64,
    pub recv: u64,
    pub count: usize,
    pub datatype: DataType,
    pub op: Op,
    pub root: i32,
    pub stream: usize,
    pub config: Option<CollConfig>,
}

/// Placeholder.
pub fn run_group(_calls: &[(Arc<Comm>, Collective)]) -> Result<(), Error> {
    Ok(())
}

/// Placeholder.
pub fn run_one(_comm: &Arc<Comm>, _call: &Collective) -> Result<(), Error> {
    Err(Error::Internal("placeholder".to_string()))
}
