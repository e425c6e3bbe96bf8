//! The README's table of what is built, made from the code.
//!
//! `SOFTCUDA_WRITE_COVERAGE=1 cargo test -p softcuda --test coverage` writes it anew.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- coverage: written by tests/coverage.rs -->\n";
const END: &str = "<!-- end of coverage -->\n";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The Rust files of a folder and those below it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of ours") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A name without what tells its versions and its per-thread form.
fn base(name: &str) -> &str {
    let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match name.rsplit_once("_v") {
        Some((head, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => head,
        _ => name,
    }
}

/// The exported functions of the driver's interface in a file.
fn driver_functions(text: &str) -> BTreeSet<String> {
    let after = text.split("extern \"C\" fn ").skip(1);
    let names = after.filter_map(|rest| rest.split(['(', '<']).next());
    names
        .filter(|name| name.starts_with("cu") || name.starts_with("softcuda"))
        .map(|name| base(name).to_owned())
        .collect()
}

/// The names that a file exports for one of the libraries with these prefixes.
fn layer_functions(text: &str, prefixes: &[&str]) -> BTreeSet<String> {
    let marked = text.split("export_name = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let names = marked.filter_map(|name| prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)));
    names.map(|name| base(name).to_owned()).collect()
}

/// The names of a list, all forms of one counted once.
fn listed(list: &str) -> BTreeSet<String> {
    let text = read(&package().join("src").join(list));
    let names = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    names.map(|name| base(name).to_owned()).collect()
}

/// `cuMemAlloc cuMemFree` as Markdown, shortened by what all of them begin with.
fn write_names(names: &BTreeSet<String>, prefix: &str) -> String {
    let short = names.iter().map(|name| name.strip_prefix(prefix).unwrap_or(name));
    short.map(|name| name.trim_end_matches('_')).collect::<Vec<_>>().join(" ")
}

/// What the driver builds, by source file.
fn driver_table() -> String {
    let (mut areas, mut refused) = (BTreeMap::new(), BTreeSet::new());
    for file in sources(&package().join("src/abi")) {
        let text = read(&file);
        let area = file.file_stem().expect("it has a name").to_string_lossy().into_owned();
        if area == "refused" {
            refused = text
                .split_whitespace()
                .filter(|word| word.starts_with("cu"))
                .map(|name| base(name).to_owned())
                .collect();
        } else {
            areas.insert(area, driver_functions(&text));
        }
    }
    let built: BTreeSet<_> = areas.values().flatten().cloned().collect();
    let refused: BTreeSet<_> = refused.difference(&built).cloned().collect();
    let mut text =
        format!("`libcuda.so.1`: {} functions are built, {} refused by name.\n\n", built.len(), refused.len());
    text += "| Area | Functions (`cu…`, all versions) |\n|---|---|\n";
    for (area, names) in areas.iter().filter(|(_, names)| !names.is_empty()) {
        let _ = writeln!(text, "| {} | {} |", area.replace('_', " "), write_names(names, "cu"));
    }
    let _ = writeln!(text, "| refused | {} |\n", write_names(&refused, "cu"));
    text
}

fn layer_line(library: &str, folder: &str, prefixes: &[&str], list: &str) -> String {
    let files = sources(&package().join("src").join(folder));
    let built: BTreeSet<_> = files.iter().flat_map(|file| layer_functions(&read(file), prefixes)).collect();
    let listed = listed(list);
    let built: BTreeSet<_> = built.intersection(&listed).cloned().collect();
    format!("| `{library}` | {} | {} |\n", built.len(), listed.len() - built.len())
}

fn layers_table() -> String {
    let mut text = String::from("| Library | Built | \"Not supported\" |\n|---|---|---|\n");
    text += &layer_line("libcudart.so.13", "runtime", &["softcudart_", "softcudart13_"], "runtime/names-13.txt");
    text += &layer_line("libcudart.so.12", "runtime", &["softcudart_", "softcudart12_"], "runtime/names-12.txt");
    text += &layer_line("libnvidia-ml.so.1", "nvml", &["softnvml_"], "nvml/names.txt");
    text
}

#[test]
fn the_readme_tells_what_is_built() {
    let path = package().join("README.md");
    let readme = read(&path);
    let (head, rest) = readme.split_once(BEGIN).expect("the README has the mark");
    let (table, tail) = rest.split_once(END).expect("the README has the second mark");
    let wanted = format!("\n{}{}\n", driver_table(), layers_table());
    if env::var_os("SOFTCUDA_WRITE_COVERAGE").is_some() {
        fs::write(&path, format!("{head}{BEGIN}{wanted}{END}{tail}")).expect("the README is writable");
        return;
    }
    let hint = "the README's table is not up to date: SOFTCUDA_WRITE_COVERAGE=1 cargo test -p softcuda --test coverage";
    assert!(table == wanted, "{hint}\n{wanted}");
}

/// What the table says is built is exported, and nothing else is.
#[test]
fn the_table_is_what_is_exported() {
    let library = support::library_dir().join("libcuda.so.1");
    let text = support::output(std::process::Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let symbols = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    let driver = |name: &&str| {
        name.starts_with("cu")
            || (name.starts_with("softcuda") && !name.starts_with("softcuda_") && !name.starts_with("softcudart"))
    };
    let exported: BTreeSet<_> = symbols.filter(driver).map(|name| base(name).to_owned()).collect();
    let mut told = BTreeSet::new();
    for file in sources(&package().join("src/abi")) {
        let text = read(&file);
        told.extend(driver_functions(&text));
        if file.ends_with("refused.rs") {
            told.extend(
                text.split_whitespace().filter(|word| word.starts_with("cu")).map(|name| base(name).to_owned()),
            );
        }
    }
    assert_eq!(told.symmetric_difference(&exported).collect::<Vec<_>>(), Vec::<&String>::new());
}
