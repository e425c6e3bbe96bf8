//! `SOFTCUDA_FAULT`: every entry point fails when it is told to, and only then.

mod common;

use common::api::{Api, ok};
use common::{command, library_dir, role, run_child, wait};
use std::ffi::{CString, c_int};
use std::io::Read;
use std::process::{Command, Stdio};

/// A code that no function gives by itself.
const CODE: c_int = 777;
const OUT_OF_MEMORY: c_int = 2;
const UNKNOWN: c_int = 999;

/// The symbols that the driver exports, and the built functions of NVML, with the names that faults have.
fn entry_points() -> Vec<(String, String)> {
    let library = library_dir().join("libcuda.so.1");
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().expect("nm runs");
    let text = String::from_utf8(listed.stdout).expect("names are ascii");
    let mut found = Vec::new();
    for symbol in text.lines().filter_map(|line| line.split_whitespace().nth(2)) {
        let name = symbol.strip_prefix("softnvml_").unwrap_or(symbol);
        // The forms for per-thread default streams are the functions themselves.
        if name.ends_with("_ptsz") || name.ends_with("_ptds") {
            continue;
        }
        if name.starts_with("cu") || name == "softcudaModuleLoadImage" || name.starts_with("nvml") {
            found.push((symbol.to_owned(), name.to_owned()));
        }
    }
    found
}

type AnyFunction = extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize) -> c_int;

/// Answers that are not a code: the text of one.
const NO_CODE: [&str; 1] = ["nvmlErrorString"];

#[test]
fn every_entry_point_can_fail() {
    let points: Vec<_> = entry_points().into_iter().filter(|(_, name)| !NO_CODE.contains(&name.as_str())).collect();
    assert!(points.len() > 280, "{}", points.len());
    if role().is_none() {
        let faults: Vec<_> = points.iter().map(|(_, name)| format!("{name}:1:{CODE}")).collect();
        return run_child("every_entry_point_can_fail", "run", &[("SOFTCUDA_FAULT", &faults.join(","))]);
    }
    // SAFETY: softcuda's own library.
    let library = unsafe { libloading::Library::new(library_dir().join("libcuda.so.1")) }.expect("softcuda's driver");
    let mut wrong = Vec::new();
    for (symbol, name) in &points {
        let symbol = CString::new(symbol.as_str()).expect("no zero");
        // SAFETY: a function that takes its arguments in registers or on the stack; this call is to fail before it
        // looks at them.
        let function = unsafe { *library.get::<AnyFunction>(symbol.to_bytes_with_nul()).expect("listed by nm") };
        let answer = function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        if answer != CODE {
            wrong.push((name, answer));
        }
    }
    assert!(wrong.is_empty(), "did not fail with {CODE}: {wrong:?}");
}

#[test]
fn the_kth_use_and_no_other() {
    const FAULT: &str = "cuMemAlloc:2,cuStreamCreate:1,cuMemcpyHtoD_v2:3:719";
    if role().is_none() {
        return run_child("the_kth_use_and_no_other", "run", &[("SOFTCUDA_FAULT", FAULT)]);
    }
    let api = Api::open();
    ok((api.init)(0));
    api.use_device(0);
    let (mut first, mut second, mut stream) = (0, 0, 0);
    ok((api.alloc)(&mut first, 8));
    assert_eq!((api.alloc)(&mut second, 8), OUT_OF_MEMORY);
    ok((api.alloc)(&mut second, 8));
    assert_eq!((api.stream_create)(&mut stream, 0), UNKNOWN);
    ok((api.stream_create)(&mut stream, 0));
    let word = 5u64;
    let copies: Vec<_> = (0..4).map(|_| (api.copy_to)(first, std::ptr::from_ref(&word).cast(), 8)).collect();
    assert_eq!(copies, [0, 0, 719, 0]);
    assert_eq!(api.read_u64(first), 5);
}

/// The runtime calls the driver's entry points, so their faults are its own.
#[test]
fn the_runtime_fails_as_its_driver_does() {
    if role().is_none() {
        return run_child("the_runtime_fails_as_its_driver_does", "run", &[("SOFTCUDA_FAULT", "cuMemAlloc:1")]);
    }
    // SAFETY: softcuda's own library.
    let library = unsafe { libloading::Library::new(library_dir().join("libcudart.so.13")) }.expect("the runtime");
    // SAFETY: the prototype of cudaMalloc.
    let malloc =
        unsafe { *library.get::<extern "C" fn(*mut u64, usize) -> c_int>(b"cudaMalloc\0").expect("cudaMalloc") };
    let mut pointer = 0;
    assert_eq!(malloc(&mut pointer, 8), OUT_OF_MEMORY);
    ok(malloc(&mut pointer, 8));
}

#[test]
fn nonsense_is_named_and_ignored() {
    if role().is_some() {
        let api = Api::open();
        return ok((api.init)(0));
    }
    let mut child = command("nonsense_is_named_and_ignored", "run", &[("SOFTCUDA_FAULT", "cuInit,cuInit:x,:1")]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a child");
    let mut text = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut text).expect("it ends");
    assert!(wait(&mut child, common::DEADLINE).success(), "{text}");
    assert_eq!(text.matches("SOFTCUDA_FAULT").count(), 3, "{text}");
}
