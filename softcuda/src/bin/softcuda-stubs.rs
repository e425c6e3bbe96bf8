//! Placeholder libraries: `softcuda-stubs DIR < list`.
//!
//! A program like PyTorch names a dozen CUDA libraries that it needs only for some of its functions. Where those
//! functions are not used, a library of the right name with the right symbols is enough for the dynamic linker. Each
//! line of the list makes one in DIR:
//!
//! ```text
//! SONAME VERSION-NODE SYMBOL...
//! ```
//!
//! `-` for the version node: symbols without version. Every function returns 1, which is an error in all of these
//! libraries. Empty lines and those that begin with `#` are skipped. It takes a C compiler (`CC`, else `cc`).

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// One library to make.
#[derive(Debug, PartialEq, Eq)]
struct Stub<'a> {
    soname: &'a str,
    node: Option<&'a str>,
    symbols: BTreeSet<&'a str>,
}

/// Letters, digits and what else file names and symbols of libraries have.
fn is_plain(word: &str, more: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || more.contains(c))
}

impl<'a> Stub<'a> {
    /// `None` for a line without a library.
    fn parse(line: &'a str) -> Result<Option<Stub<'a>>, String> {
        let mut words = line.split_whitespace();
        let Some(soname) = words.next().filter(|word| !word.starts_with('#')) else {
            return Ok(None);
        };
        if !is_plain(soname, ".-+") || soname.starts_with(['.', '-']) {
            return Err(format!("{soname} is not the file name of a library"));
        }
        let node = words.next().ok_or(format!("{soname}: a version node is missing (- for none)"))?;
        if node != "-" && !is_plain(node, ".") {
            return Err(format!("{soname}: {node} is not a version node"));
        }
        let symbols: BTreeSet<_> = words.collect();
        match symbols.iter().find(|symbol| !is_plain(symbol, "$.") || symbol.starts_with(|c: char| c.is_ascii_digit()))
        {
            Some(symbol) => Err(format!("{soname}: {symbol} is not a symbol")),
            None => Ok(Some(Stub { soname, node: (node != "-").then_some(node), symbols })),
        }
    }

    /// All functions are one: `return 1`.
    fn assembly(&self) -> String {
        let mut text = String::from("\t.text\n");
        for symbol in &self.symbols {
            let _ = writeln!(text, "\t.globl {symbol}\n\t.type {symbol},%function\n{symbol}:");
        }
        let answer = if cfg!(target_arch = "aarch64") { "mov w0, #1\n\tret" } else { "movl $1, %eax\n\tret" };
        let _ = writeln!(text, "\t{answer}\n\t.section .note.GNU-stack,\"\",%progbits");
        text
    }

    /// The linker's version script.
    fn script(&self) -> String {
        let names: String = self.symbols.iter().map(|symbol| format!("  {symbol};\n")).collect();
        let exported = if names.is_empty() { names } else { format!("global:\n{names}") };
        format!("{}{{\n{exported}local: *; }};\n", self.node.map_or(String::new(), |node| format!("{node} ")))
    }

    fn build(&self, directory: &Path, scratch: &Path) -> Result<(), String> {
        let (source, script, made) = (scratch.join("stub.s"), scratch.join("stub.map"), scratch.join("stub.so"));
        write(&source, &self.assembly())?;
        write(&script, &self.script())?;
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-nostdlib", "-Wl,-z,noexecstack"]).arg(format!("-Wl,-soname,{}", self.soname));
        command.arg(format!("-Wl,--version-script={}", script.display())).arg("-o").arg(&made).arg(&source);
        let status = command.status().map_err(|e| format!("{}: {e}", compiler.display()))?;
        if !status.success() {
            return Err(format!("{}: {} ended with {status}", self.soname, compiler.display()));
        }
        // Whole or not at all: another process may be loading it.
        let to = directory.join(self.soname);
        fs::rename(&made, &to).map_err(|e| format!("{}: {e}", to.display()))
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// A folder that goes when this does.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run() -> Result<usize, String> {
    let mut arguments = env::args_os().skip(1);
    let (Some(directory), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        return Err("usage: softcuda-stubs DIR < list (a line: SONAME VERSION-NODE|- SYMBOL...)".into());
    };
    let list = io::read_to_string(io::stdin()).map_err(|e| format!("the list: {e}"))?;
    let mut stubs = Vec::new();
    for (number, line) in list.lines().enumerate() {
        stubs.extend(Stub::parse(line).map_err(|e| format!("line {}: {e}", number + 1))?);
    }
    let scratch = Scratch(directory.join(format!(".stubs-{}", std::process::id())));
    fs::create_dir_all(&scratch.0).map_err(|e| format!("{}: {e}", scratch.0.display()))?;
    stubs.iter().try_for_each(|stub| stub.build(&directory, &scratch.0))?;
    Ok(stubs.len())
}

fn main() -> ExitCode {
    match run() {
        Ok(made) => {
            println!("{made} libraries");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("softcuda-stubs: {text}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert_eq!(Stub::parse("  # nothing"), Ok(None));
        assert_eq!(Stub::parse(""), Ok(None));
        let stub = Stub::parse("libx.so.1 libx.so.1 b a b").expect("sound").expect("a library");
        assert_eq!((stub.soname, stub.node), ("libx.so.1", Some("libx.so.1")));
        assert_eq!(stub.symbols.iter().copied().collect::<Vec<_>>(), ["a", "b"]);
        for bad in ["libx.so.1", "../libx.so - a", "libx.so {a} a", "libx.so - a;b", "libx.so - 1a"] {
            assert!(Stub::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn scripts() {
        let of = |line: &str| Stub::parse(line).expect("sound").expect("a library").script();
        assert_eq!(of("l.so n a"), "n {\nglobal:\n  a;\nlocal: *; };\n");
        assert_eq!(of("l.so -"), "{\nlocal: *; };\n");
    }
}
