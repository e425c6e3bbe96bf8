//! Programs in C++ that compile a part of `kernels/` for the host and try it, where no host image has it.

use std::path::Path;
use std::process::Command;

/// One such program.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Where it is built.
    pub program: &'a Path,
    /// The file, from the repository's root.
    pub source: &'a str,
}

/// Compiles a model with more options and runs it; what it prints and its exit code.
pub fn run(model: &Model<'_>, options: &[String]) -> (String, Option<i32>) {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command = Command::new(&compiler);
    command.args([
        "-std=c++17",
        "-O1",
        "-fno-exceptions",
        "-Wall",
        "-Wextra",
        "-Wno-psabi",
        "-Wno-unused-function",
        "-o",
    ]);
    command.arg(model.program).args(options).arg(super::root().join(model.source));
    let built = command.output().unwrap_or_else(|error| panic!("{compiler}, which the build needed too: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new("timeout").arg("120").arg(model.program).output().expect("timeout");
    (String::from_utf8_lossy(&ran.stdout).into_owned(), ran.status.code())
}
