//! The files of the repository, and which of them are test code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub use crate::rust::Source;
use crate::rust::scan;

/// One text file.
#[derive(Clone, Debug)]
pub struct File {
    /// Relative to the repository's root, with slashes.
    pub path: String,
    pub text: String,
}

impl File {
    fn has_extension(&self, extensions: &[&str]) -> bool {
        Path::new(&self.path)
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| extensions.contains(&extension))
    }

    /// C, C++ or CUDA.
    pub fn is_cpp(&self) -> bool {
        self.has_extension(&["c", "cc", "cpp", "cu", "cuh", "h", "hpp"])
    }

    pub fn is_rust(&self) -> bool {
        self.has_extension(&["rs"])
    }

    /// Written by hand to be run.
    pub fn is_code(&self) -> bool {
        self.is_cpp() || self.is_rust() || self.has_extension(&["sh", "py"]) || self.path == ".ci/run"
    }

    /// Code, or text for people.
    pub fn is_prose(&self) -> bool {
        self.is_code() || self.has_extension(&["md", "toml"]) || self.path.ends_with("/Dockerfile")
    }
}

/// The text files below some folders (or the named files themselves), in the order of their paths.
pub fn files(roots: &[&str]) -> Vec<File> {
    // Cargo sets it for the running test too, so the program can be pointed at another tree.
    let top = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let top = top.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    let mut paths = BTreeSet::new();
    for root in roots {
        collect(&top.join(root), &mut paths);
    }
    let read = |path: PathBuf| {
        // A file that is not UTF-8 is data, not text.
        let text = fs::read_to_string(&path).ok()?;
        let path = path.strip_prefix(&top).ok()?.to_str()?.to_string();
        Some(File { path, text })
    };
    paths.into_iter().filter_map(read).collect()
}

fn collect(path: &Path, into: &mut BTreeSet<PathBuf>) {
    if path.is_file() {
        into.insert(path.to_path_buf());
    }
    let built = path.file_name().is_some_and(|name| name == "target" || name == "__pycache__");
    if built || !path.is_dir() {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        collect(&entry.path(), into);
    }
}

/// The Rust files below some folders, scanned; files that only `#[cfg(test)]` declares are marked.
pub fn rust_sources(roots: &[&str]) -> Vec<Source> {
    let mut sources: Vec<Source> =
        files(roots).iter().filter(|file| file.is_rust()).map(|file| scan(&file.path, &file.text)).collect();
    mark_tests(&mut sources);
    sources
}

/// Marks as test code what is declared by `#[cfg(test)] mod x;`, what lies below such a module, and
/// files in a `tests`, `benches` or `examples` folder of a package.
pub fn mark_tests(sources: &mut [Source]) {
    let mut prefixes: Vec<String> = Vec::new();
    for source in sources.iter() {
        for module in &source.test_modules {
            prefixes.push(format!("{module}.rs"));
            prefixes.push(format!("{module}/"));
        }
    }
    for source in sources.iter_mut() {
        let folder = ["tests/", "benches/", "examples/"]
            .iter()
            .any(|dir| source.path.starts_with(dir) || source.path.starts_with(&format!("softcuda/{dir}")));
        if folder || prefixes.iter().any(|prefix| source.path.starts_with(prefix.as_str())) {
            source.mark_all_test();
        }
    }
}
