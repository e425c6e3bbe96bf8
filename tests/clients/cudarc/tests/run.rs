//! Runs the program with this build's library and software device, which it finds by the loader's path.

#[path = "../../../common/mod.rs"]
mod common;

use common::launch::{Job, Outcome, STRICT};

fn client(arguments: &[&str]) -> Job {
    Job::program(env!("CARGO_BIN_EXE_cudarc-client"), 1).args(arguments)
}

/// At least so many values were checked, none is wrong, and the last line says so. (Lines of the library are among
/// them.)
fn assert_passes(outcome: &Outcome, at_least: usize) {
    outcome.assert_ok();
    let text = &outcome.ranks[0].stdout;
    let right = text.lines().filter(|line| line.starts_with("OK ")).count();
    assert!(right >= at_least && !text.contains("FAILED "), "{right} are right\n{outcome}");
    assert_eq!(text.lines().last(), Some(format!("{right} passed, 0 failed").as_str()), "{outcome}");
}

#[test]
fn one_thread_with_several_devices() {
    // Two refusals are part of it.
    for devices in ["2", "4"] {
        let job =
            client(&["devices", devices]).allow_warning("Invalid rank requested").allow_warning("ncclGetUniqueId");
        assert_passes(&job.run(), 12);
    }
}

#[test]
fn a_thread_for_each_device() {
    for devices in ["2", "4"] {
        assert_passes(&client(&["threads", devices]).run(), 120);
    }
}

#[test]
fn a_process_for_each_device() {
    assert_passes(&client(&["processes", "2"]).run(), 120);
}

/// The strictest device: what was not waited for is not there yet.
#[test]
fn threads_on_a_slow_device() {
    assert_passes(&client(&["threads", "2"]).with(&STRICT).run(), 120);
}
