//! What the tests share: the library in the target folder, its functions, host images, child processes.
#![allow(dead_code, reason = "each test uses some of it")]

pub mod api;
pub mod image;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Set in child processes: what they are to do.
pub const CHILD: &str = "SOFTCUDA_TEST_CHILD";
/// A child that takes longer has failed.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Folder with `libcuda.so.1` and its siblings, of the build that this test belongs to.
pub fn library_dir() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    let found = own.ancestors().map(|dir| dir.join("softcuda")).find(|dir| dir.join("libcuda.so.1").exists());
    found.expect("target/<profile>/softcuda/libcuda.so.1: run `cargo build`")
}

/// What this process is to do as a child.
pub fn role() -> Option<String> {
    std::env::var(CHILD).ok()
}

/// The test `name` of this very program as a child process with a role and variables.
pub fn command(name: &str, role: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    let paths = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, role)
        .env("LD_LIBRARY_PATH", format!("{}:{paths}", library_dir().display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .envs(variables.iter().copied());
    command
}

/// Runs the child to its end; panics unless it succeeds in time.
pub fn run_child(name: &str, role: &str, variables: &[(&str, &str)]) {
    let mut child = command(name, role, variables).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a child");
    let status = wait(&mut child, DEADLINE);
    assert!(status.success(), "{name} as {role}: {status}");
}

/// Waits for a child, and kills it when the deadline passes.
pub fn wait(child: &mut Child, deadline: Duration) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return status;
        }
        if start.elapsed() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("child {} did not end within {deadline:?}", child.id());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Polls until `ready`, or panics after the deadline.
pub fn until(what: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < DEADLINE, "{what}: not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Entries of a folder, as for `/proc/self/fd`.
pub fn count(folder: &str) -> usize {
    std::fs::read_dir(Path::new(folder)).map_or(0, Iterator::count)
}

/// Mappings of softcuda's memory in this process.
pub fn count_maps() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own maps");
    maps.lines().filter(|line| line.contains("memfd:softcuda-")).count()
}
