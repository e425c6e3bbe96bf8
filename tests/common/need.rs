//! What a test does without when a tool is missing.
//!
//! A missing tool skips the test with a message; with `OXCCL_REQUIRE=all`, which CI sets, it fails it.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The program of this name on `PATH`, or a skip.
///
/// ```ignore
/// let Some(mpiexec) = need::tool("mpiexec") else { return };
/// ```
pub fn tool(name: &str) -> Option<PathBuf> {
    need(&format!("the program `{name}` on PATH"), find_tool(name))
}

/// The existing path that an environment variable names, or a skip; `how` says how to get it.
pub fn path_in(variable: &str, how: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from).filter(|path| path.exists());
    need(&format!("{variable} (a path that exists; {how})"), path)
}

/// `found` as it is; where it is `None`, says that the calling test is skipped, or fails it under
/// `OXCCL_REQUIRE=all`.
///
/// # Panics
/// If `found` is `None` and `OXCCL_REQUIRE` is `all`.
pub fn need<T>(what: &str, found: Option<T>) -> Option<T> {
    if found.is_none() {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        assert!(!required(), "{test} needs {what}, and OXCCL_REQUIRE=all forbids to skip it");
        eprintln!("SKIPPED {test}: it needs {what}");
    }
    found
}

/// Whether a skip is a failure (`OXCCL_REQUIRE=all`).
pub fn required() -> bool {
    env::var_os("OXCCL_REQUIRE").is_some_and(|value| value == "all")
}

/// Whether the long form of the sampled tests is wanted (`OXCCL_LONG=1`, set by `.ci/run --long`).
pub fn long() -> bool {
    env::var_os("OXCCL_LONG").is_some_and(|value| value == "1")
}

/// The first executable file of this name in the folders of `PATH`.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    find_in(name, &env::var_os("PATH")?)
}

fn find_in(name: &str, path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path).map(|dir| dir.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
