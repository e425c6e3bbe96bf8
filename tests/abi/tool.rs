//! Compiling C and C++, and running what comes out of it, with a deadline.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{self, need};

/// Seconds after which a program is killed and its test fails.
const DEADLINE: &str = "120";

/// A folder of its own for a test, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("abi-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("the target folder can be written");
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("a file of the test can be written");
        path.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file of this repository.
pub fn source(path: &str) -> PathBuf {
    common::root().join(path)
}

/// The text of a file of this repository.
pub fn text(path: &str) -> String {
    std::fs::read_to_string(source(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Where NVIDIA's headers are, or a skip.
pub fn nvidia() -> Option<PathBuf> {
    need::path_in("OXCCL_NCCL_HOME", "scripts/install-nccl-header.sh DIR makes it")
}

/// Whose headers a program is compiled with.
pub enum Headers {
    Ours,
    /// Ours, with NVIDIA's CUDA headers of this folder.
    OnNvidiasCuda(PathBuf),
    /// NVIDIA's, in this folder.
    Nvidia(PathBuf),
}

impl Headers {
    fn folders(&self) -> [PathBuf; 3] {
        let device = source("tests/abi/device");
        match self {
            Headers::Ours => [source("include"), source("softcuda/include"), device],
            Headers::OnNvidiasCuda(home) => [source("include"), home.join("include"), device],
            Headers::Nvidia(home) => [home.join("include"), source("softcuda/include"), device],
        }
    }
}

/// Compiles one file with `compiler` and `flags`. `extra` follows the file: objects, libraries.
///
/// # Panics
/// If the compiler finds a fault.
pub fn compile(compiler: &str, flags: &str, headers: &Headers, file: &str, to: &Path, extra: &[&Path]) {
    let mut command = Command::new(compiler);
    command.args(flags.split_whitespace());
    for folder in headers.folders() {
        command.arg("-isystem").arg(folder);
    }
    // Our own header is held to the warnings; -isystem would hide them.
    if !matches!(headers, Headers::Nvidia(_)) {
        command.arg("-I").arg(source("include"));
    }
    command.arg(source(file)).arg("-o").arg(to).args(extra);
    let output = command.output().unwrap_or_else(|e| panic!("{compiler}: {e}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// A command that runs `program` with nothing in its environment but `variables`, the library of `libraries` and
/// no CUDA.
pub fn command(program: &Path, libraries: &Path, variables: &[(&str, &str)], args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", DEADLINE]).arg(program).args(args);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("LD_LIBRARY_PATH", libraries).env("CUDA_VISIBLE_DEVICES", "").envs(variables.iter().copied());
    command.stdin(Stdio::null());
    command
}

/// Runs a command.
pub fn output(mut command: Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Standard output of a run as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error of a run as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The C and C++ compilers, or a skip.
pub fn compilers() -> Option<()> {
    need::tool("cc")?;
    need::tool("c++").map(drop)
}

/// The same with the software CUDA device.
pub fn command_on_softcuda(program: &Path, libraries: &Path) -> Command {
    let mut command = command(program, libraries, &[], &[]);
    let folders = [libraries.join("softcuda"), libraries.to_path_buf()];
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).expect("folders without a colon"));
    command
}
