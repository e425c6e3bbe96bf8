//! Helpers for tests (and for `examples/perf`) that start ranks as processes.
//!
//! * [`profile_dir`], [`library_path`]: where the libraries are that this build made.
//! * [`launch`]: start ranks with a deadline, capture what they print, fail on an unexpected WARN,
//!   and say what each rank was doing when the deadline passed.
//! * [`mpi`]: the same by a launcher of MPI's.
//! * [`procfs`]: what the kernel knows about a process.
//! * [`resources`]: count what a process holds (fds, threads, memfds, memory, `/dev/shm`), before and after.
//! * [`need`]: a missing tool skips a test with a message, or fails it under `OXCCL_REQUIRE=all`.
//! * [`c_program`]: programs in C, compiled and linked here.
//! * [`model`]: programs in C++ that try a part of `kernels/`.
//! * [`abi`]: NCCL's C interface: codes, structures, prototypes.
//! * [`nccl`], [`cuda`]: typed bindings to `libnccl.so.2` and `libcuda.so.1`, loaded at run time.
//! * [`communicators`], [`collectives`], [`graph`]: the other calls of NCCL, and CUDA graphs.
//! * [`oracle`]: inputs and the values that a reduction of them must give, bit for bit; [`contract`]: what
//!   every collective reads and writes, and where.
//!
//! A test that runs ranks looks like this:
//!
//! ```ignore
//! mod common;
//!
//! #[test]
//! fn two_ranks_agree() {
//!     if let Some(me) = common::launch::child() {
//!         return work_of_one_rank(me);        // runs in the re-executed test binary; a panic is a failure
//!     }
//!     common::launch::Job::this_test("two_ranks_agree", 2).run().assert_ok();
//! }
//! ```
#![allow(dead_code)] // every test uses its part of this

pub mod abi;
pub mod c_program;
pub mod collectives;
pub mod communicators;
pub mod contract;
pub mod cuda;
pub mod graph;
pub mod hosts;
pub mod launch;
pub mod model;
pub mod mpi;
pub mod nccl;
pub mod need;
pub mod oracle;
pub mod procfs;
pub mod resources;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `target/<profile>`: the folder of this build that holds `libnccl.so.2` and `softcuda/`.
///
/// It is the first ancestor of the running program with `softcuda/libcuda.so.1` in it, else the folder
/// that the root `build.rs` recorded (that differs where `build.build-dir` is set apart from the target
/// directory).
///
/// # Panics
/// If neither exists: the software device was not built.
pub fn profile_dir() -> PathBuf {
    find_profile_dir().unwrap_or_else(|| {
        let exe = env::current_exe().unwrap_or_default();
        panic!("no softcuda/libcuda.so.1 above {}: run `cargo build` first", exe.display())
    })
}

/// [`profile_dir`], or `None` where the software device was not built.
pub fn find_profile_dir() -> Option<PathBuf> {
    let exe = env::current_exe().ok()?;
    let recorded = option_env!("OXCCL_PROFILE_DIR").map(Path::new);
    exe.ancestors()
        .skip(1)
        .chain(recorded)
        .find(|dir| dir.join("softcuda/libcuda.so.1").exists())
        .map(Path::to_path_buf)
}

/// `LD_LIBRARY_PATH` for a child that shall use this build: the software device first, then the
/// library, then what was set before (cargo's own entries).
pub fn library_path() -> OsString {
    let profile = profile_dir();
    join_library_path(&[profile.join("softcuda"), profile])
}

/// Puts `first` before what `LD_LIBRARY_PATH` says now.
///
/// # Panics
/// If a folder has a colon in its name, which the variable cannot express.
pub fn join_library_path(first: &[PathBuf]) -> OsString {
    let old = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let old = env::split_paths(&old).filter(|path| !path.as_os_str().is_empty());
    env::join_paths(first.iter().cloned().chain(old)).expect("a library folder has a colon in its name")
}

/// The package's root: where `include/`, `examples/` and `scripts/` are.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
