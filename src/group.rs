//! Placeholder until the room is filled: the signatures that `abi` calls, with the thread's group state.

use crate::comm::{
    Comm, Outcome,
    config::CollConfig,

};
use crate::error::Error;
use crate::plan::call::{DataType, Func, Op};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static GROUP: RefCell<(u32, Option<Error>)> = const { RefCell::new((0, None)) };
}

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

#[allow(missing_docs)]
mod calls {
    use super::*;
    pub fn start() {
        GROUP.with_borrow_mut(|g| g.0 += 1);
    }
    pub fn end() -> Result<Outcome, Error> {
        GROUP.with_borrow_mut(|g| match g.0 {
            0 => Err(Error::InvalidUsage(
                "ncclGroupEnd: not in a group call.".to_string(),
            )),
            1 => {
                g.0 = 0;
                g.1.take().map_or(Ok(Outcome::Done), Err)
            }
            _ => {
                g.0 -= 1;
                Ok(Outcome::Done)
            }
        })
    }
    pub fn note_error(error: &Error) {
        GROUP.with_borrow_mut(|g| g.1 = Some(error.clone()).filter(|_| g.0 > 0));
    }
    pub fn submit(_comm: Arc<Comm>, _call: Collective) -> Result<Outcome, Error> {
        Err(Error::Internal("placeholder".to_string()))
    }
}
pub use calls::*;
