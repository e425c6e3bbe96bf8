//! Unmodified C programs, one for each area, compiled against softcuda's headers and against NVIDIA's, and run with
//! softcuda's libraries in the way of a user: `LD_LIBRARY_PATH`.
//!
//! Each runs as it is and with every stream operation delayed, which shows whether order is kept or only happens.

mod support;

use std::path::{Path, PathBuf};

use support::Headers;

/// Long enough that work which is not waited for is not done.
const DELAY_US: &str = "2000";

/// Compiles a program of tests/c, or `None` if NVIDIA's headers are wanted and absent.
fn compile(source: &str, headers: Headers) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let name = source.file_stem().expect("a program has a name").to_string_lossy();
    let program = support::scratch(&format!("{name}-{headers:?}"));
    let mut command = support::compiler(&source);
    command.args(headers.arguments()?).args(["-D_GNU_SOURCE", "-O1", "-g", "-pthread"]);
    if headers == Headers::Nvidia {
        // Linked to NVIDIA's runtime, as a program from elsewhere is: it asks for versioned symbols.
        command.arg(format!("-L{}", support::nvidia_home()?.join("lib").display()));
    }
    command.arg("-o").arg(&program).arg(&source).arg(format!("-L{}", support::library_dir().display()));
    support::output(command.args(["-l:libcudart.so.13", "-l:libcuda.so.1"]));
    Some(program)
}

/// Runs a program with both headers, with and without delay. Returns what each run printed.
fn check(source: &str) -> Vec<String> {
    check_with(source, &[])
}

/// The same with more settings.
fn check_with(source: &str, more: &[(&str, &str)]) -> Vec<String> {
    let mut printed = Vec::new();
    for headers in [Headers::Ours, Headers::Nvidia] {
        let Some(program) = compile(source, headers) else {
            continue;
        };
        for delay in ["0", DELAY_US] {
            let settings = [&[("SOFTCUDA_DEVICES", "4"), ("SOFTCUDA_DELAY_US", delay)], more].concat();
            let log = program.with_extension(format!("{delay}.log"));
            let (status, text) = support::run(&program, &settings, &log);
            assert!(status.success(), "{source}, {headers:?} headers, delay {delay} us: {status}\n{text}");
            printed.push(text);
        }
    }
    printed
}

/// The same for a program that has nothing to say.
fn check_silent(source: &str) {
    for text in check(source) {
        assert_eq!(text, "", "{source} printed something");
    }
}

#[test]
fn devices() {
    check_silent("devices.c");
}

#[test]
fn contexts() {
    check_silent("contexts.c");
}

#[test]
fn resets() {
    check_silent("resets.c");
}

#[test]
fn foreign() {
    check_silent("foreign.c");
}

#[test]
fn green() {
    check_silent("green.c");
}

#[test]
fn memory() {
    check_silent("memory.c");
}

#[test]
fn streams() {
    check_silent("streams.c");
}

#[test]
fn captures() {
    check_silent("captures.c");
}

#[test]
fn graphs() {
    for text in check("graphs.c") {
        assert!(text.lines().count() == 1 && text.contains("memory nodes"), "what is not built is named: {text}");
    }
}

#[test]
fn host_functions() {
    check_silent("host_functions.c");
}

#[test]
fn ipc() {
    check_silent("ipc.c");
}

/// A shared block is told twice, the free of what is open elsewhere once.
#[test]
fn strict_ipc() {
    for text in check_with("strict_ipc.c", &[("SOFTCUDA_STRICT_IPC", "1")]) {
        let told = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((told("shares the block of 4096 bytes, with 1 other"), text.lines().count()), (2, 3), "{text}");
        assert_eq!(told("2097152 bytes, which another process has open"), 1, "{text}");
    }
}

/// All that the driver does with memory works in this way, too.
#[test]
fn strict_memory() {
    let strict = [("SOFTCUDA_STRICT_IPC", "1")];
    ["memory.c", "pointers.c", "resets.c", "peers.c"].iter().for_each(|source| {
        check_with(source, &strict).iter().for_each(|text| assert_eq!(text, "", "{source} printed something"));
    });
}

#[test]
fn peers() {
    check_silent("peers.c");
}

#[test]
fn pointers() {
    check_silent("pointers.c");
}

#[test]
fn virtual_memory() {
    for text in check("virtual_memory.c") {
        let multicast =
            text.lines().filter(|line| line.contains("cuMulticast") && line.contains("not supported")).count();
        assert_eq!((multicast, text.lines().count()), (4, 4), "{text}");
    }
}

#[test]
fn registered() {
    check_silent("registered.c");
}

#[test]
fn kernels() {
    check("kernels.c");
}

#[test]
fn properties() {
    check_silent("properties.c");
}

#[test]
fn runtime() {
    for text in check("runtime.c") {
        assert_eq!(text.matches("lonely").count(), 1, "the kernel is named once: {text}");
    }
}

#[test]
fn runtime_graphs() {
    check_silent("runtime_graphs.c");
}

#[test]
fn typed() {
    check_silent("typed.cpp");
}

#[test]
fn unbuilt() {
    for text in check("unbuilt.c") {
        assert_eq!(text.lines().count(), 1, "one line: {text}");
        assert!(text.contains("cudaMallocArray"), "{text}");
    }
}
