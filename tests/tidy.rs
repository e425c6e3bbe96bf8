//! The project's rules, checked over its source: who may import whom, where `unsafe` may stand, how long
//! functions and files may be, that no two types share a name, what must not be left in. Each rule is a test
//! of its own; a finding is a line `file:line: rule: what`.
//!
//! The lists at the top are the rules; `ARCHITECTURE.md` says why. `tests/tidy/` has the machinery, and
//! tests that each rule catches what it is for.

#[path = "tidy/cpp.rs"]
mod cpp;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/rust.rs"]
mod rust;
#[path = "tidy/selftest.rs"]
mod selftest;
#[path = "tidy/text.rs"]
mod text;
#[path = "tidy/tree.rs"]
mod tree;

use rules::{Exception, Finding, Order, Purity};
use tree::Source;

/// The rooms of each crate, top to bottom. A room may import itself and what stands below it.
const ORDERS: [Order; 2] =
    [Order { root: "src/", rooms: &OXCCL_ROOMS }, Order { root: "softcuda/src/", rooms: &SOFTCUDA_ROOMS }];
const OXCCL_ROOMS: [&str; 20] = [
    "abi",
    "group",
    "launch",
    "comm",
    "memory",
    "health",
    "transport",
    "plugin",
    "bootstrap",
    "schedules",
    "tuning",
    "plan",
    "topology",
    "proxy",
    "secure",
    "device",
    "params",
    "log",
    "sys",
    "error",
];
const SOFTCUDA_ROOMS: [&str; 19] = [
    "runtime", "nvml", "abi", "driver", "context", "module", "graph", "event", "stream", "launch", "callout", "memory",
    "device", "config", "identity", "fault", "handles", "os", "error",
];

/// Files and folders (with a slash) that may contain `unsafe`.
const UNSAFE_ALLOWED: [&str; 13] = [
    "src/abi/",
    "src/device/",
    "src/sys/",
    "src/plugin/",
    "src/transport/",
    "src/launch/",
    // Handles are addresses in an arena that is never freed; the arena alone dereferences them.
    "src/comm/arena.rs",
    // softcuda: its C boundary (driver API, runtime API, NVML, the handshake; calls out and to the system) and its
    // memory.
    "softcuda/src/abi/",
    "softcuda/src/callout.rs",
    "softcuda/src/os.rs",
    "softcuda/src/nvml/",
    "softcuda/src/runtime/",
    "softcuda/src/memory/",
];

/// Parts that get time, bytes, facts and settings as arguments: a test runs ten thousand ranks of them in
/// one process.
const PURE: [Purity; 7] = [
    Purity { path: "src/tuning/", except: &[], forbidden: &PURE_FORBIDS },
    Purity { path: "src/plan/", except: &[], forbidden: &PURE_FORBIDS },
    Purity { path: "src/topology/", except: &["src/topology/detect/"], forbidden: &PURE_FORBIDS },
    Purity { path: "src/secure/", except: &[], forbidden: &PURE_FORBIDS },
    Purity { path: "src/bootstrap/protocol/", except: &[], forbidden: &PURE_FORBIDS },
    Purity { path: "src/bootstrap/", except: &[], forbidden: &BOOTSTRAP_FORBIDS },
    Purity { path: "src/comm/lifecycle/", except: &[], forbidden: &LIFECYCLE_FORBIDS },
];

/// Sockets, clocks, threads, processes, files, the environment, CUDA, and the rooms that have them.
const PURE_FORBIDS: [&str; 21] = [
    // Addresses are values; these are sockets, or ask a resolver.
    "std::net::TcpStream",
    "std::net::TcpListener",
    "std::net::UdpSocket",
    "std::net::ToSocketAddrs",
    "std::thread",
    "std::env",
    "std::fs",
    "std::process",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "cudarc",
    "libc",
    "libloading",
    "rustix",
    "socket2",
    "rand::rng",
    "crate::proxy",
    "crate::device",
    "crate::sys",
    "crate::params",
];

/// What would write to a socket with SIGPIPE, or start a thread that takes the program's signals: there is one function
/// for each.
const BY_HAND: [Purity; 5] = [
    Purity { path: "src/bootstrap/", except: &[], forbidden: &WRITES_TO_SOCKETS },
    Purity { path: "src/proxy/", except: &["src/proxy/tests.rs", "src/proxy/tests/"], forbidden: &WRITES_TO_SOCKETS },
    Purity { path: "src/sys/tcp.rs", except: &[], forbidden: &WRITES_TO_SOCKETS },
    Purity { path: "src/", except: &["src/sys/signals.rs"], forbidden: &STARTS_THREADS },
    Purity { path: "softcuda/src/", except: &["softcuda/src/os.rs"], forbidden: &STARTS_THREADS },
];
const WRITES_TO_SOCKETS: [&str; 3] = ["std::io::Write", "io::Write", "std::net::TcpStream"];
const STARTS_THREADS: [&str; 4] = ["std::thread::Builder", "std::thread::spawn", "thread::Builder", "thread::spawn"];

/// The rendezvous knows no CUDA and reads no environment: its configuration carries every setting.
const BOOTSTRAP_FORBIDS: [&str; 4] = ["std::env", "cudarc", "crate::device", "crate::params"];

/// A communicator's life is a table: whoever keeps it has the lock, whoever carries out its effects the rest.
const LIFECYCLE_FORBIDS: [&str; 7] =
    ["std::sync", "std::thread", "std::time", "parking_lot", "crate::device", "crate::sys", "crate::params"];

/// Most lines of a function, from `fn` to its last brace.
const MAX_FUNCTION: usize = 70;
/// Four fifths of the functions of a tree have at most this many lines.
const SHORT_FUNCTION: usize = 30;
/// Most fields of a struct. One that C lays out (`repr(C)`) has what its interface says.
const MAX_FIELDS: usize = 16;
/// Structs that have more, with their number of fields. The list may only shrink: an entry is the exact number, and
/// goes when the struct has no more than the others.
const MANY_FIELDS: [Exception; 1] =
    [Exception { file: "src/bootstrap/protocol/member/mod.rs", name: "Member", fields: 21 }];
/// Most lines of a file.
const MAX_FILE: usize = 800;
/// Headers whose length others decide.
const LONG_HEADERS: [&str; 2] = ["include/nccl.h", "softcuda/include/cuda"];

/// Everything that is compiled into the product; the rules about functions and `unsafe` hold here.
const PRODUCT: [&str; 3] = ["src", "softcuda", "kernels"];
/// Everything that is written by hand; the rules about files hold here.
const EVERYTHING: [&str; 9] =
    ["src", "softcuda", "kernels", "include", "tests", "examples", "benches", "scripts", ".ci"];

/// Everything that people read; the rules about lines of text hold here.
const READ: [&str; 13] = [
    "src",
    "softcuda",
    "kernels",
    "include",
    "tests",
    "examples",
    "benches",
    "scripts",
    ".ci",
    "docs",
    "build.rs",
    "README.md",
    "ARCHITECTURE.md",
];

#[test]
fn imports_point_downwards() {
    let sources = tree::rust_sources(&ORDERS.map(|order| order.root));
    let findings = sources.iter().flat_map(|source| rules::import_order(source, &ORDERS));
    rules::report(findings.collect());
}

#[test]
fn every_room_is_in_the_order() {
    rules::report(rules::unknown_rooms(&tree::files(&ORDERS.map(|order| order.root)), &ORDERS));
}

#[test]
fn pure_parts_are_pure() {
    let sources = tree::rust_sources(&["src"]);
    rules::report(sources.iter().flat_map(|source| rules::purity(source, &PURE)).collect());
}

#[test]
fn signals_are_left_to_the_program() {
    let sources = tree::rust_sources(&["src", "softcuda/src"]);
    rules::report(sources.iter().flat_map(|source| rules::purity(source, &BY_HAND)).collect());
}

#[test]
fn cuda_has_one_user() {
    let rule = [Purity { path: "src/", except: &["src/device/"], forbidden: &["cudarc"] }];
    let sources = tree::rust_sources(&["src"]);
    rules::report(sources.iter().flat_map(|source| rules::purity(source, &rule)).collect());
}

#[test]
fn softcuda_knows_nothing_of_oxccl() {
    let rule = [Purity { path: "softcuda/", except: &[], forbidden: &["nccl", "oxccl", "crate::nccl"] }];
    let sources = tree::rust_sources(&["softcuda"]);
    rules::report(sources.iter().flat_map(|source| rules::purity(source, &rule)).collect());
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let sources = tree::rust_sources(&["src", "softcuda/src"]);
    let findings = sources.iter().flat_map(|source| rules::unsafe_rooms(source, &UNSAFE_ALLOWED));
    rules::report(findings.collect());
}

#[test]
fn unsafe_says_why_it_is_sound() {
    let sources = tree::rust_sources(&["src", "softcuda/src"]);
    rules::report(sources.iter().flat_map(rules::safety_comments).collect());
}

#[test]
fn no_function_is_too_long() {
    let findings = all_functions(&PRODUCT).into_iter().filter_map(|function| {
        let text = format!("`{}` has {} lines (at most {MAX_FUNCTION})", function.name, function.lines);
        (function.lines > MAX_FUNCTION).then(|| Finding::new(&function.file, function.line, "long function", text))
    });
    rules::report(findings.collect());
}

#[test]
fn four_fifths_of_the_functions_are_short() {
    for tree in PRODUCT {
        let functions = all_functions(&[tree]).into_iter().filter(|function| !function.test);
        rules::share_of_short(tree, functions.collect(), SHORT_FUNCTION);
    }
}

#[test]
fn no_struct_has_too_many_fields() {
    let sources = tree::rust_sources(&ORDERS.map(|order| order.root));
    rules::report(rules::many_fields(&sources, MAX_FIELDS, &MANY_FIELDS));
}

#[test]
fn no_two_types_share_a_name() {
    rules::report(rules::shared_names(&tree::rust_sources(&["src"])));
}

#[test]
fn no_file_is_too_long() {
    let files = tree::files(&EVERYTHING);
    let files = files.iter().filter(|file| !LONG_HEADERS.iter().any(|header| file.path.starts_with(header)));
    let long = files.filter(|file| file.is_code() && file.text.lines().count() > MAX_FILE).map(|file| {
        let text = format!("{} lines (at most {MAX_FILE})", file.text.lines().count());
        Finding::new(&file.path, MAX_FILE + 1, "long file", text)
    });
    rules::report(long.collect());
}

#[test]
fn no_line_is_too_long() {
    rules::report(read_files().iter().filter(|file| file.is_prose()).flat_map(text::long_lines).collect());
}

#[test]
fn nothing_outside_of_the_repository_is_cited() {
    // The rule itself and its tests have the names.
    let files = read_files().into_iter().filter(|file| !file.path.starts_with("tests/tidy/"));
    rules::report(files.flat_map(|file| text::citations(&file)).collect());
}

#[test]
fn nothing_unfinished_is_left_in() {
    let sources = tree::rust_sources(&["src", "softcuda"]);
    rules::report(sources.iter().flat_map(rules::leftovers).collect());
}

#[test]
fn no_path_of_one_machine() {
    let mut roots = EVERYTHING.to_vec();
    roots.extend(["README.md", "ARCHITECTURE.md", "Cargo.toml", "build.rs"]);
    rules::report(tree::files(&roots).iter().flat_map(rules::machine_paths).collect());
}

/// The files that the rules about lines of text hold for.
fn read_files() -> Vec<tree::File> {
    tree::files(&READ)
}

/// The functions of Rust and C++ files below some folders.
fn all_functions(roots: &[&str]) -> Vec<rules::Function> {
    let rust = tree::rust_sources(roots);
    let rust = rust.iter().flat_map(|source: &Source| source.functions.clone());
    let files = tree::files(roots);
    let cpp = files.iter().filter(|file| file.is_cpp()).flat_map(cpp::functions);
    rust.chain(cpp).collect()
}
