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

use common::launch::{Job, Outcome};
use common::need;

/// A folder of a test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-programs-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the target folder can be written");
        Folder(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A compiler's command for one of this test's programs.
fn compile(compiler: &Path, source: &str, to: &Path) -> Command {
    let mut command = Command::new(compiler);
    let root = common::root();
    command
        .args(["-O1", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(root.join("include"))
        .arg("-I")
        .arg(root.join("softcuda/include"));
    command.arg(root.join("tests/c_programs").join(source)).arg("-o").arg(to);
    command
}

fn run_compiler(command: &mut Command) {
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// `-L` and `-l` for the library in `nccl`, and the software device's runtime.
fn link(command: &mut Command, nccl: &Path) {
    let softcuda = common::profile_dir().join("softcuda");
    command.arg("-L").arg(nccl).arg("-L").arg(&softcuda).args(["-l:libnccl.so.2", "-l:libcudart.so.13"]);
    command.arg(format!("-Wl,-rpath-link,{}", softcuda.display()));
}

/// Compiles and links a program with this build's library.
fn build(compiler: &str, source: &str, folder: &Folder) -> Option<PathBuf> {
    Some(build_at(&need::tool(compiler)?, source, folder))
}

fn build_at(compiler: &Path, source: &str, folder: &Folder) -> PathBuf {
    let program = folder.join("program");
    let mut command = compile(compiler, source, &program);
    // The grid's threads; the others do not mind.
    command.arg("-pthread");
    link(&mut command, &common::profile_dir());
    run_compiler(&mut command);
    program
}

/// Makes a library of the same name in which nothing works, in a folder.
fn absent(cc: &Path, folder: &Path) {
    fs::create_dir_all(folder).expect("the test's folder can be written");
    let mut command = compile(cc, "absent.c", &folder.join("libnccl.so.2"));
    run_compiler(command.args(["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"]));
}

/// Compiles and links a program with the library that does nothing, which lies in the same folder.
fn build_with_absent(compiler: impl AsRef<Path>, source: &str, folder: &Folder) -> Option<PathBuf> {
    absent(&need::tool("cc")?, &folder.0);
    let compiler = compiler.as_ref();
    let compiler = if compiler.is_absolute() { compiler.to_path_buf() } else { need::tool(compiler.to_str()?)? };
    let program = folder.join("program");
    let mut command = compile(&compiler, source, &program);
    link(&mut command, &folder.0);
    run_compiler(&mut command);
    Some(program)
}

/// `LD_LIBRARY_PATH` that begins with a folder in which the library that does nothing lies.
fn absent_first(folder: &Folder) -> OsString {
    common::join_library_path(&[folder.0.clone(), common::profile_dir().join("softcuda")])
}

fn assert_says(outcome: &Outcome, line: &str) {
    outcome.assert_ok();
    let found = outcome.ranks.iter().flat_map(|rank| rank.stdout.lines()).any(|said| said == line);
    assert!(found, "`{line}` is missing\n{outcome}");
}

#[test]
fn a_program_that_was_linked_with_another_library() {
    let folder = Folder::new("replaced");
    let Some(program) = build_with_absent("c++", "devices.cc", &folder) else { return };
    // As it was built, it gets nowhere; with the file replaced it works.
    let before = Job::program(&program, 1).env("LD_LIBRARY_PATH", absent_first(&folder)).run();
    assert_ne!(before.ranks[0].status.code(), Some(0), "{before}");
    assert_says(&Job::program(&program, 1).run(), "3 devices: 0 sums are wrong");
}

#[test]
fn a_profiler_sees_what_the_program_calls_and_nothing_else() {
    let folder = Folder::new("profiler");
    let Some(cc) = need::tool("cc") else { return };
    let profiler = folder.join("libprofiler.so");
    let mut command = compile(&cc, "profiler.c", &profiler);
    command.args(["-shared", "-fPIC"]);
    run_compiler(&mut command);
    let Some(program) = build("c++", "devices.cc", &folder) else { return };
    let outcome = Job::program(&program, 1).env("LD_PRELOAD", &profiler).run();
    assert_says(&outcome, "3 devices: 0 sums are wrong");
    let counts = "profiler: AllReduce 3 Broadcast 0 CommInitRank 0 CommInitAll 1 GetUniqueId 0 GroupStart 2 GroupEnd 2 \
                  CommDestroy 3 GetErrorString 0";
    assert_says(&outcome, counts);
}

#[test]
fn two_copies_of_the_library_in_one_process() {
    let folder = Folder::new("copies");
    let program = folder.join("program");
    let Some(cxx) = need::tool("c++") else { return };
    let mut command = compile(&cxx, "two_copies.cc", &program);
    let softcuda = common::profile_dir().join("softcuda");
    command.arg("-L").arg(&softcuda).arg("-l:libcudart.so.13").arg("-ldl");
    command.arg(format!("-Wl,-rpath-link,{}", softcuda.display()));
    run_compiler(&mut command);
    let copies = ["a", "b"].map(|name| {
        let copy = folder.join(name).join("libnccl.so.2");
        fs::create_dir_all(folder.join(name)).expect("a folder");
        fs::copy(common::profile_dir().join("libnccl.so.2"), &copy).expect("the library can be copied");
        copy
    });
    assert_says(
        &Job::program(&program, 1).args(copies).allow_warning("corrupted comm object").run(),
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
    let mut command = Command::new(cxx);
    command.args(["-O1", "-I"]).arg(headers.join(version).join("include")).arg("-I").arg(cuda.join("include"));
    command.arg(common::root().join("tests/c_programs/old_client.cc")).arg("-o").arg(&program);
    link(&mut command, &common::profile_dir());
    run_compiler(&mut command);
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
    let Some(program) = build("c++", "devices.cc", &folder) else { return };
    let softcuda = common::profile_dir().join("softcuda");
    let root = folder.join("root");
    // An image with a program, what it needs, and a library that does nothing.
    put(&root, &program, "/program");
    let place = root.join(target.trim_start_matches('/'));
    absent(&need::tool("cc").expect("a C compiler"), place.parent().expect("a folder"));
    let needed = needed_by(&program, &softcuda)
        .into_iter()
        .chain(needed_by(&common::profile_dir().join("libnccl.so.2"), &softcuda));
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
    put(&root, &common::profile_dir().join("libnccl.so.2"), target);
    assert_says(&start(), "3 devices: 0 sums are wrong");
}
