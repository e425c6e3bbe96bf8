//! Every interleaving that matters, not only those that this machine happens to have: the table of handles, the
//! hand-over between a thread in the background and who ends its communicator, the helper thread with its messages, and
//! waits that it or another thread ends, run on shuttle's locks and threads. The sources are the library's own; `sys`
//! is what differs.
//!
//! `OXCCL_LONG=1` tries a hundred times as many schedules. A failure prints the schedule, and `shuttle::replay` runs it
//! again.

#[path = "../common/need.rs"]
#[allow(dead_code)]
mod need;

mod bootstrap;
mod comm;
mod proxy;
mod sys;

/// Runs a model under many schedules: at random, and with few but mean preemptions.
fn explore(model: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = if need::long() { 50_000 } else { 500 };
    shuttle::check_random(model.clone(), schedules);
    shuttle::check_pct(model, schedules, 3);
}

/// The library's.
mod secure {
    pub use nccl::secure::*;
}

/// The library's.
mod error {
    pub use nccl::error::Error;
}
