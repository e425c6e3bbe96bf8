//! What the libraries export: as a loader, a linker and a program built for NVIDIA's see it.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The names that a library defines, with their versions as `nm` writes them.
fn defined(library: &str) -> BTreeSet<String> {
    let path = support::library_dir().join(library);
    let text = support::output(Command::new("nm").args(["-D", "--defined-only"]).arg(path));
    text.lines().filter_map(|l| l.split_whitespace().nth(2)).map(str::to_owned).collect()
}

/// The functions that a header declares.
fn declared(header: &str, prefix: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(support::include_dir().join(header)).expect("our header is there");
    let words = text.lines().filter(|l| l.starts_with("CUresult ") || l.starts_with("cudaError_t "));
    let names = words.filter_map(|l| l.split(['(', ' ']).nth(1));
    names.filter(|n| n.starts_with(prefix)).map(str::to_owned).collect()
}

fn declared_by_the_driver() -> BTreeSet<String> {
    ["cuda.h", "softcuda_graph.h"].iter().flat_map(|header| declared(header, "cu")).collect()
}

#[test]
fn the_driver_has_what_its_header_declares() {
    let defined = defined("libcuda.so.1");
    let missing: Vec<_> = declared_by_the_driver().into_iter().filter(|n| !defined.contains(n)).collect();
    assert!(missing.is_empty(), "declared but not there: {missing:?}");
    assert!(defined.contains("softcudaModuleLoadImage"));
}

/// Exported for programs that look for them, with an answer that needs no declaration.
const UNDECLARED: [&str; 17] = [
    "cuProfilerStart",
    "cuProfilerStop",
    "cuGetExportTable",
    "cuLogsRegisterCallback",
    "cuLogsUnregisterCallback",
    "cuDeviceGetLuid",
    "cuDeviceGetExecAffinitySupport",
    "cuCtxGetSharedMemConfig",
    "cuCtxSetSharedMemConfig",
    "cuFuncSetSharedMemConfig",
    "cuFuncSetSharedSize",
    "cuLibraryLoadData",
    "cuLibraryLoadFromFile",
    "cuLibraryUnload",
    "cuStreamCopyAttributes",
    // Of a form before CUDA 12; the name stands for another function now.
    "cuGraphInstantiate",
    "cuGraphInstantiate_v2",
];

/// What the driver builds is declared, but for older forms of a declared function (`cuCtxCreate_v2` beside
/// `cuCtxCreate_v4`), the list above, and what it only refuses.
#[test]
fn the_header_declares_what_the_driver_has() {
    let base = |name: &str| name.split("_v").next().unwrap_or(name).to_owned();
    let declared: BTreeSet<_> = declared_by_the_driver().iter().map(|n| base(n)).collect();
    let refused = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi/refused.rs");
    let refused = fs::read_to_string(refused).unwrap_or_default();
    let refused: BTreeSet<_> = refused.split_whitespace().filter(|w| w.starts_with("cu")).collect();
    let known = |n: &str| declared.contains(&base(n)) || refused.contains(n) || UNDECLARED.contains(&n);
    let exported = defined("libcuda.so.1");
    let extra: Vec<_> = exported.iter().filter(|n| n.starts_with("cu") && !known(n)).collect();
    assert!(extra.is_empty(), "exported but not declared: {extra:?}");
}

#[test]
fn the_runtime_has_every_name_at_nvidias_version() {
    let defined = defined("libcudart.so.13");
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/runtime/names-13.txt");
    let text = fs::read_to_string(list).expect("the list of names is there");
    let names = text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned);
    let wanted = names.chain(declared("cuda_runtime_api.h", "cuda"));
    let missing: Vec<_> = wanted.filter(|n| !defined.contains(&format!("{n}@@libcudart.so.13"))).collect();
    assert!(missing.is_empty(), "not there: {missing:?}");
}

/// Every function that the header declares is built, not only exported: the driver has it under its own name.
#[test]
fn the_runtimes_header_declares_only_what_is_built() {
    let defined = defined("libcuda.so.1");
    let built = |n: &String| ["softcudart_", "softcudart13_"].iter().any(|p| defined.contains(&format!("{p}{n}")));
    let unbuilt: Vec<_> = declared("cuda_runtime_api.h", "cuda").into_iter().filter(|n| !built(n)).collect();
    assert!(unbuilt.is_empty(), "declared but not built: {unbuilt:?}");
}

#[test]
fn the_libraries_find_each_other() {
    let dynamic = |library: &str| {
        let path = support::library_dir().join(library);
        support::output(Command::new("readelf").args(["-d", "-W"]).arg(path))
    };
    let driver = dynamic("libcuda.so.1");
    assert!(driver.contains("soname: [libcuda.so.1]") && driver.contains("NODELETE"), "{driver}");
    assert!(!driver.contains("libstdc++"), "{driver}");
    let runtime = dynamic("libcudart.so.13");
    for part in ["soname: [libcudart.so.13]", "Shared library: [libcuda.so.1]", "runpath: [$ORIGIN]"] {
        assert!(runtime.contains(part), "{part} is not in\n{runtime}");
    }
    // A plain libcuda.so would be found by programs that look for a GPU's.
    assert!(!support::library_dir().join("libcuda.so").exists());
}
