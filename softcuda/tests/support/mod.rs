//! What softcuda's integration tests share: where the libraries are, a C compiler, and children with a deadline.

// Each test file compiles this module for itself and uses a part of it.
#![allow(dead_code)]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long one child may take, in seconds. Generous: the machine may be busy with other tests.
const DEADLINE_S: u64 = 120;

/// The directory with `libcuda.so.1` and `libcudart.so.13`.
pub fn library_dir() -> PathBuf {
    let exe = env::current_exe().expect("the test has a path");
    let found = exe.ancestors().map(|p| p.join("softcuda")).find(|p| p.join("libcuda.so.1").exists());
    found.unwrap_or_else(|| panic!("no softcuda/libcuda.so.1 above {}", exe.display()))
}

/// softcuda's own headers.
pub fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// A file of this test run.
pub fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The folder with NVIDIA's include/ and lib/, or `None` with a message. `OXCCL_REQUIRE=all` makes that a failure.
pub fn nvidia_home() -> Option<PathBuf> {
    let home = env::var_os("OXCCL_CUDA_HOME").map(PathBuf::from);
    let found = home.filter(|h| h.join("include/cuda.h").exists());
    if found.is_none() {
        let why = "OXCCL_CUDA_HOME does not lead to NVIDIA's headers (see scripts/install-cuda-headers.sh)";
        assert!(env::var("OXCCL_REQUIRE").as_deref() != Ok("all"), "{why}");
        eprintln!("skipped: {why}");
    }
    found
}

/// The headers to compile with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Headers {
    /// softcuda's.
    Ours,
    /// NVIDIA's, with `softcuda.h` beside them.
    Nvidia,
}

impl Headers {
    /// The compiler's arguments, or `None` if NVIDIA's are not there.
    pub fn arguments(self) -> Option<Vec<String>> {
        let strict = ["-Wall", "-Wextra", "-Werror"].map(String::from);
        let mut args = Vec::from(strict);
        match self {
            Headers::Ours => args.extend(["-pedantic".into(), format!("-I{}", include_dir().display())]),
            Headers::Nvidia => {
                let nvidia = nvidia_home()?.join("include");
                let own = scratch("softcuda-header");
                fs::create_dir_all(&own).expect("the scratch folder is writable");
                publish(&include_dir().join("softcuda.h"), &own.join("softcuda.h"));
                args.extend([format!("-I{}", own.display()), "-isystem".into(), nvidia.display().to_string()]);
            }
        }
        Some(args)
    }
}

/// Copies a file without a moment in which others see half of it.
fn publish(from: &Path, to: &Path) {
    let part = to.with_extension(format!("{:?}.part", thread::current().id()));
    fs::copy(from, &part).and_then(|_| fs::rename(&part, to)).expect("the scratch folder is writable");
}

/// The C or C++ compiler, by the file's name.
pub fn compiler(source: &Path) -> Command {
    let cpp = source.extension().is_some_and(|e| e == "cpp");
    let (variable, usual) = if cpp { ("CXX", "c++") } else { ("CC", "cc") };
    let mut command = Command::new(env::var_os(variable).unwrap_or_else(|| usual.into()));
    command.arg(if cpp { "-std=c++17" } else { "-std=gnu11" });
    command
}

/// Runs a compiler or another tool to its end and returns what it printed. Panics if it fails.
pub fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{command:?}: {}\n{out}{err}", done.status);
    out.into_owned()
}

/// Runs a program with softcuda's libraries until it ends or its time is up; `log` gets its output.
pub fn run(program: &Path, settings: &[(&str, &str)], log: &Path) -> (ExitStatus, String) {
    let sink = fs::File::create(log).expect("the scratch folder is writable");
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library_dir()).env("LD_BIND_NOW", "1").envs(settings.iter().copied());
    command.stdin(Stdio::null()).stdout(sink.try_clone().expect("descriptors are left")).stderr(sink);
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let end = Instant::now() + Duration::from_secs(DEADLINE_S);
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is our child") {
            break status;
        }
        if Instant::now() > end {
            child.kill().and_then(|()| child.wait()).expect("it is our child");
            panic!("{} hangs\n{}", program.display(), text(log));
        }
        thread::sleep(Duration::from_millis(5));
    };
    (status, text(log))
}

fn text(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}
