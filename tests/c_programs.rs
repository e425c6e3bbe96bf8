//! Programs that people wrote by hand, in C and C++, compiled here and run as they would be: linked with another
//! library of the same name, under a profiler that interposes, with two copies of the library, compiled against
//! headers of older versions, jobs of MPICH and Open MPI with threads, devices and overlapping communicators, and
//! programs that fail at their first call.

mod common;

#[path = "c_programs/banner.rs"]
mod banner;
#[path = "c_programs/first_failure.rs"]
mod first_failure;
#[path = "c_programs/mpi.rs"]
mod mpi;
#[path = "c_programs/signals.rs"]
mod signals;
#[path = "c_programs/survivors.rs"]
mod survivors;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::c_program::{Compilation, Folder, Program};
use common::launch::{Job, Outcome};
use common::{need, profile_dir};

/// A program of this folder that is linked with the `libnccl.so.2` in `nccl` and the software device's runtime.
fn build(compiler: impl AsRef<Path>, name: &str, nccl: &Path) -> Option<Program> {
    Program::build_by(compiler, &format!("tests/c_programs/{name}"), |compilation| compilation.nccl(nccl).runtime())
}

/// The same with this build's library.
fn build_with_ours(compiler: impl AsRef<Path>, name: &str) -> Option<Program> {
    build(compiler, name, &profile_dir())
}

/// Compiles a library of this folder.
fn build_library(name: &str, to: &Path, args: &[&str]) -> Option<()> {
    Compilation::new(&need::tool("cc")?, &format!("tests/c_programs/{name}"), to).shared().args(args).run();
    Some(())
}

/// Makes a library of the same name in which nothing works, in a folder.
fn absent_library(folder: &Path) -> Option<()> {
    fs::create_dir_all(folder).expect("the test's folder can be written");
    build_library("absent.c", &folder.join("libnccl.so.2"), &["-Wl,-soname,libnccl.so.2"])
}

/// A folder with that library.
fn absent_folder() -> Option<Folder> {
    let folder = Folder::new("absent");
    absent_library(folder.path())?;
    Some(folder)
}

/// `LD_LIBRARY_PATH` that begins with a folder in which the library that does nothing lies.
fn absent_first(folder: &Folder) -> OsString {
    common::join_library_path(&[folder.path().to_path_buf(), profile_dir().join("softcuda")])
}

fn assert_says(outcome: &Outcome, line: &str) {
    outcome.assert_ok();
    let found = outcome.ranks.iter().flat_map(|rank| rank.stdout.lines()).any(|said| said == line);
    assert!(found, "`{line}` is missing\n{outcome}");
}

#[test]
fn a_program_that_was_linked_with_another_library() {
    let Some(absent) = absent_folder() else { return };
    let Some(program) = build("c++", "devices.cc", absent.path()) else { return };
    // As it was built, it gets nowhere; with the file replaced it works.
    let before = Job::program(program.path(), 1).env("LD_LIBRARY_PATH", absent_first(&absent)).run();
    assert_ne!(before.ranks[0].status.code(), Some(0), "{before}");
    assert_says(&Job::program(program.path(), 1).run(), "3 devices: 0 sums are wrong");
}

#[test]
fn a_profiler_sees_what_the_program_calls_and_nothing_else() {
    let folder = Folder::new("profiler");
    let profiler = folder.join("libprofiler.so");
    let Some(()) = build_library("profiler.c", &profiler, &[]) else { return };
    let Some(program) = build_with_ours("c++", "devices.cc") else { return };
    let outcome = Job::program(program.path(), 1).env("LD_PRELOAD", &profiler).run();
    assert_says(&outcome, "3 devices: 0 sums are wrong");
    let counts = "profiler: AllReduce 3 Broadcast 0 CommInitRank 0 CommInitAll 1 GetUniqueId 0 GroupStart 2 GroupEnd 2 \
                  CommDestroy 3 GetErrorString 0";
    assert_says(&outcome, counts);
}

#[test]
fn two_copies_of_the_library_in_one_process() {
    let source = "tests/c_programs/two_copies.cc";
    let Some(program) = Program::build_by("c++", source, |compilation| compilation.runtime().args(["-ldl"])) else {
        return;
    };
    let folder = program.folder();
    let copies = ["a", "b"].map(|name| {
        let copy = folder.join(name).join("libnccl.so.2");
        fs::create_dir_all(folder.join(name)).expect("a folder");
        fs::copy(profile_dir().join("libnccl.so.2"), &copy).expect("the library can be copied");
        copy
    });
    assert_says(
        &Job::program(program.path(), 1).args(copies).allow_warning("corrupted comm object").run(),
        "two copies: 0 sums are wrong",
    );
}

/// Two ranks of a program that was compiled against the headers of a version.
fn old_client(version: &str, code: u32, config_bytes: usize) {
    let how = "scripts/install-client-headers.sh DIR makes it";
    let Some(headers) = need::path_in("OXCCL_CLIENT_HEADERS", how) else { return };
    let Some(cuda) = need::path_in("OXCCL_CUDA_HOME", "scripts/install-cuda-headers.sh DIR makes it") else { return };
    let folder = Folder::new(version);
    let Some(cxx) = need::tool("c++") else { return };
    let program = folder.join("program");
    let headers = [headers.join(version).join("include"), cuda.join("include")];
    let compilation = Compilation::bare(&cxx, "tests/c_programs/old_client.cc", &program);
    let compilation = headers.iter().fold(compilation, |compilation, folder| compilation.system_include(folder));
    compilation.nccl(&profile_dir()).runtime().run();
    let mut job = Job::program(&program, 2);
    for rank in 0..2 {
        job = job.args_of(rank, [rank.to_string(), "2".to_string(), folder.join("id").display().to_string()]);
    }
    let outcome = job.run();
    for rank in 0..2 {
        let line = format!(
            "rank {rank}: header {code}, {config_bytes} bytes of configuration, library 23203: 0 sums are wrong"
        );
        assert_says(&outcome, &line);
    }
}

// The sizes are those of the versions' own headers: what each added to the structure is in NVIDIA's release notes.

#[test]
fn a_client_of_2_18() {
    old_client("2.18.3", 21803, 48);
}

#[test]
fn a_client_of_2_27() {
    old_client("2.27.7", 22707, 72);
}

#[test]
fn a_client_of_2_32() {
    old_client("2.32.3", 23203, 120);
}

/// What `ldd` says that a program needs, as files.
fn needed_by(program: &Path, library_path: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", library_path).output().expect("ldd starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// Copies a file to a place below another root.
fn put(root: &Path, file: &Path, at: &str) {
    let to = root.join(at.trim_start_matches('/'));
    fs::create_dir_all(to.parent().expect("a folder")).expect("a folder of the root");
    fs::copy(file, &to).unwrap_or_else(|e| panic!("{} to {}: {e}", file.display(), to.display()));
}

#[test]
fn in_a_root_of_its_own_with_the_file_replaced() {
    let Some(unshare) = need::tool("unshare") else { return };
    let text = fs::read_to_string(common::root().join("examples/container/Dockerfile")).expect("the Dockerfile");
    let target =
        text.lines().find_map(|line| line.strip_prefix("ARG TARGET=")).expect("where the Dockerfile puts the file");
    let folder = Folder::new("container");
    let Some(program) = build_with_ours("c++", "devices.cc") else { return };
    let softcuda = profile_dir().join("softcuda");
    let root = folder.join("root");
    // An image with a program, what it needs, and a library that does nothing.
    put(&root, program.path(), "/program");
    let place = root.join(target.trim_start_matches('/'));
    absent_library(place.parent().expect("a folder")).expect("a C compiler");
    let needed = needed_by(program.path(), &softcuda)
        .into_iter()
        .chain(needed_by(&profile_dir().join("libnccl.so.2"), &softcuda));
    for file in needed.filter(|file| !file.to_string_lossy().contains("libnccl")) {
        put(&root, &file, &file.display().to_string());
    }
    for name in ["libcudart.so.13", "libcuda.so.1"] {
        put(&root, &softcuda.join(name), &format!("/cuda/{name}"));
    }
    let start = || {
        let at = Path::new(target).parent().expect("a folder").display().to_string();
        // As root of a user namespace, so that anybody can run this.
        let args = ["--user", "--map-root-user", "--root", &root.display().to_string(), "/program"].map(str::to_string);
        Job::program(&unshare, 1).args(args).env("LD_LIBRARY_PATH", format!("/cuda:{at}")).allow_any_warning().run()
    };
    assert_ne!(start().ranks[0].status.code(), Some(0));
    put(&root, &profile_dir().join("libnccl.so.2"), target);
    assert_says(&start(), "3 devices: 0 sums are wrong");
}
