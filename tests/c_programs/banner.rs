//! `NCCL_DEBUG=VERSION` in programs that are linked with the library, and in such as get it put before another one.

use std::fs;
use std::path::Path;

use crate::common;
use crate::common::launch::Job;
use crate::{absent_first, absent_folder, build, build_with_ours};

/// The program says NCCL's line, then which file it has, and then what it says itself.
fn assert_banner(job: Job, file: &Path) {
    let outcome = job.env("NCCL_DEBUG", "VERSION").run();
    outcome.assert_ok();
    let lines: Vec<&str> = outcome.ranks[0].stdout.lines().collect();
    let loaded = format!("oxccl {} is loaded from {}", env!("CARGO_PKG_VERSION"), file.display());
    assert_eq!(lines, ["NCCL version 2.32.3+cuda13.0", &loaded, "3 devices: 0 sums are wrong"], "{outcome}");
    assert_eq!(outcome.ranks[0].stderr, "", "{outcome}");
}

#[test]
fn of_a_linked_program() {
    let Some(program) = build_with_ours("c++", "devices.cc") else { return };
    assert_banner(Job::program(program.path(), 1), &common::profile_dir().join("libnccl.so.2"));
}

#[test]
fn of_a_preloaded_library() {
    let Some(folder) = absent_folder() else { return };
    let Some(program) = build("c++", "devices.cc", folder.path()) else { return };
    let elsewhere = folder.join("else where");
    fs::create_dir_all(&elsewhere).expect("a folder");
    // The loader splits LD_PRELOAD at blanks and colons, but not what a link in it points at.
    let file = folder.join("preloaded.so");
    fs::copy(common::profile_dir().join("libnccl.so.2"), elsewhere.join("libnccl.so.2")).expect("a copy");
    std::os::unix::fs::symlink(elsewhere.join("libnccl.so.2"), &file).expect("a link");
    assert_banner(
        Job::program(program.path(), 1).env("LD_LIBRARY_PATH", absent_first(&folder)).env("LD_PRELOAD", &file),
        &file,
    );
}
