//! Programs and libraries in C and C++ that are compiled against the public headers and linked with this build's
//! libraries.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{need, profile_dir, root};

/// A folder that no other test uses, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// A new one below `target/`.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(name: &str) -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Cargo sets it for tests, not for examples.
        let parent = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = parent.join(format!("{name}-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("the target folder can be written");
        Folder(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Something in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A run of a compiler that is being put together. A warning is an error.
pub struct Compilation(Command);

impl Compilation {
    /// Of `source`, a path from the package's root, to the file `to`, with no headers but the system's.
    pub fn bare(compiler: &Path, source: &str, to: &Path) -> Compilation {
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]).arg(root().join(source)).arg("-o").arg(to);
        Compilation(command)
    }

    /// With this repository's headers: the library's and the software device's.
    pub fn new(compiler: &Path, source: &str, to: &Path) -> Compilation {
        let compilation = Compilation::bare(compiler, source, to);
        compilation.include(&root().join("include")).include(&root().join("softcuda/include"))
    }

    /// More arguments.
    pub fn args(mut self, args: impl IntoIterator<Item: AsRef<OsStr>>) -> Compilation {
        self.0.args(args);
        self
    }

    /// Looks for headers in a folder.
    pub fn include(mut self, folder: &Path) -> Compilation {
        self.0.arg("-I").arg(folder);
        self
    }

    /// Looks for headers in a folder of somebody else's, whose warnings do not matter.
    pub fn system_include(mut self, folder: &Path) -> Compilation {
        self.0.arg("-isystem").arg(folder);
        self
    }

    /// Makes a shared library.
    pub fn shared(self) -> Compilation {
        self.args(["-shared", "-fPIC"])
    }

    /// Links with the `libnccl.so.2` of a folder.
    pub fn nccl(mut self, folder: &Path) -> Compilation {
        self.0.arg("-L").arg(folder).arg("-l:libnccl.so.2");
        self
    }

    /// Links with the software device's runtime, and its driver behind it.
    pub fn runtime(mut self) -> Compilation {
        let softcuda = profile_dir().join("softcuda");
        self.0.arg("-L").arg(&softcuda).arg("-l:libcudart.so.13");
        self.0.arg(format!("-Wl,-rpath-link,{}", softcuda.display()));
        self
    }

    /// Runs the compiler.
    ///
    /// # Panics
    /// With the compiler's words where it fails.
    pub fn run(mut self) {
        let output = self.0.output().expect("the compiler starts");
        assert!(output.status.success(), "{:?}\n{}", self.0, String::from_utf8_lossy(&output.stderr));
    }
}

/// A program in a folder of its own, removed when dropped.
pub struct Program {
    folder: Folder,
    file: PathBuf,
}

impl Program {
    /// Compiles a C source, a path from the package's root, with macros defined, and links it with the library, the
    /// runtime and the driver; a skip where there is no C compiler.
    ///
    /// # Panics
    /// With the compiler's words where it does not compile.
    pub fn build(source: &str, macros: &[&str]) -> Option<Program> {
        let args = ["-std=c11", "-D_GNU_SOURCE"].map(str::to_string);
        let macros = macros.iter().map(|name| format!("-D{name}"));
        let args = args.into_iter().chain(macros).chain(["-l:libcuda.so.1".to_string()]);
        let args: Vec<String> = args.collect();
        Program::build_by("cc", source, |compilation| compilation.nccl(&profile_dir()).runtime().args(args))
    }

    /// Compiles a source with a compiler by its name or its path; `more` says what it is linked with.
    ///
    /// # Panics
    /// With the compiler's words where it does not compile.
    pub fn build_by(
        compiler: impl AsRef<Path>,
        source: &str,
        more: impl FnOnce(Compilation) -> Compilation,
    ) -> Option<Program> {
        let compiler = find(compiler.as_ref())?;
        let name = Path::new(source).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let folder = Folder::new(&name);
        let file = folder.join(&name);
        more(Compilation::new(&compiler, source, &file)).run();
        Some(Program { folder, file })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Its folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

/// A compiler by its path, or the tool of that name, or a skip.
fn find(compiler: &Path) -> Option<PathBuf> {
    if compiler.is_absolute() { Some(compiler.to_path_buf()) } else { need::tool(compiler.to_str()?) }
}
