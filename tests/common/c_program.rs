//! Programs in C that are compiled against the public headers and linked with this build's libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{need, profile_dir, root};

/// A program, removed when dropped.
pub struct Program(PathBuf);

impl Program {
    /// Compiles `source`, a path from the package's root, with macros defined; a skip where there is no C compiler.
    ///
    /// # Panics
    /// With the compiler's words where it does not compile.
    pub fn build(source: &str, macros: &[&str]) -> Option<Program> {
        let cc = need::tool("cc")?;
        let name = Path::new(source).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let program = Program(unique(&[&[name.as_str()], macros].concat().join("-")));
        let (profile, softcuda) = (profile_dir(), profile_dir().join("softcuda"));
        let mut command = Command::new(cc);
        command.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        command.args(macros.iter().map(|name| format!("-D{name}")));
        command.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("softcuda/include"));
        command.arg(root().join(source)).arg("-o").arg(&program.0);
        command.arg("-L").arg(&profile).arg("-L").arg(&softcuda);
        command.args(["-l:libnccl.so.2", "-l:libcudart.so.13", "-l:libcuda.so.1"]);
        let output = command.output().expect("the compiler starts");
        assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
        Some(program)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A path in the temporary folder that no other test uses.
fn unique(name: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("{name}-{}-{number}", std::process::id()))
}
