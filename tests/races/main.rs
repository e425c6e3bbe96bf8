//! Every interleaving that matters, not only those that this machine happens to have: the table of handles, and the hand-over
//! between a thread in the background and who ends its communicator, run on shuttle's locks and threads. The sources
//! are the library's own; `sys::sync` is what differs.
//!
//! `OXCCL_LONG=1` tries a hundred times as many schedules. A failure prints the schedule, and `shuttle::replay` runs it again.

#[path = "../common/need.rs"]
#[allow(dead_code)]
mod need;

mod comm;
mod sys;

/// The library's.
mod error {
    pub use nccl::error::Error;
}
