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
    ["cuda.h", "softcuda_graph.h", "softcuda_green.h"].iter().flat_map(|header| declared(header, "cu")).collect()
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
    let own = |name: &str| name.trim_end_matches("_ptsz").trim_end_matches("_ptds").to_owned();
    let base = |name: &str| own(name).split("_v").next().unwrap_or(name).to_owned();
    let declared: BTreeSet<_> = declared_by_the_driver().iter().map(|n| base(n)).collect();
    let refused = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi/refused.rs");
    let refused = fs::read_to_string(refused).unwrap_or_default();
    let refused: BTreeSet<_> = refused.split_whitespace().filter(|w| w.starts_with("cu")).collect();
    let known = |n: &str| {
        declared.contains(&base(n)) || refused.contains(own(n).as_str()) || UNDECLARED.contains(&own(n).as_str())
    };
    let exported = defined("libcuda.so.1");
    let extra: Vec<_> = exported.iter().filter(|n| n.starts_with("cu") && !known(n)).collect();
    assert!(extra.is_empty(), "exported but not declared: {extra:?}");
}

/// Every name of a list is in the library, at this version.
fn check_names(library: &str, list: &str, more: BTreeSet<String>) {
    let defined = defined(library);
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(list);
    let text = fs::read_to_string(list).expect("the list of names is there");
    let names = text.lines().filter(|l| !l.starts_with('#')).map(str::to_owned);
    let node = if library.starts_with("libcudart") { format!("@@{library}") } else { String::new() };
    let missing: Vec<_> = names.chain(more).filter(|n| !defined.contains(&format!("{n}{node}"))).collect();
    assert!(missing.is_empty(), "not in {library}: {missing:?}");
}

#[test]
fn the_runtimes_have_every_name_at_nvidias_version() {
    check_names("libcudart.so.13", "runtime/names-13.txt", declared("cuda_runtime_api.h", "cuda"));
    check_names("libcudart.so.12", "runtime/names-12.txt", BTreeSet::new());
    check_names("libnvidia-ml.so.1", "nvml/names.txt", BTreeSet::new());
}

/// What is written for one of the libraries is in its list of names, or it would be exported by none.
#[test]
fn every_built_function_is_in_a_list() {
    let defined = defined("libcuda.so.1");
    let of = |prefix: &'static str| defined.iter().filter_map(move |n| n.strip_prefix(prefix));
    let listed = |name: &str, lists: &[&str]| {
        let text = |list: &&str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(list));
        lists.iter().any(|list| text(list).is_ok_and(|text| text.lines().any(|line| line == name)))
    };
    let (old, new) = ("runtime/names-12.txt", "runtime/names-13.txt");
    let cases = [
        ("softcudart_", &[old, new][..]),
        ("softcudart12_", &[old]),
        ("softcudart13_", &[new]),
        ("softnvml_", &["nvml/names.txt"]),
    ];
    for (prefix, lists) in cases {
        let lost: Vec<_> = of(prefix).filter(|name| !listed(name, lists)).collect();
        assert!(lost.is_empty(), "{prefix}: {lost:?} are in none of {lists:?}");
    }
}

/// Functions that CUDA 13 has under the name of CUDA 12, with other arguments.
const TWO_FORMS: [&str; 13] = [
    "cudaGetDeviceProperties",
    "cudaGetDriverEntryPoint",
    "cudaGraphAddDependencies",
    "cudaGraphAddNode",
    "cudaGraphGetEdges",
    "cudaGraphNodeGetDependencies",
    "cudaGraphNodeGetDependentNodes",
    "cudaGraphRemoveDependencies",
    "cudaMemAdvise",
    "cudaMemPrefetchAsync",
    "cudaRuntimeGetVersion",
    "cudaStreamGetCaptureInfo",
    "cudaStreamUpdateCaptureDependencies",
];

#[test]
fn what_differs_between_the_runtimes_is_not_shared() {
    let defined = defined("libcuda.so.1");
    let shared: Vec<_> = TWO_FORMS.iter().filter(|n| defined.contains(&format!("softcudart_{n}"))).collect();
    assert!(shared.is_empty(), "these need forms of their own, softcudart12_ and softcudart13_: {shared:?}");
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
    for library in ["libcudart.so.13", "libcudart.so.12", "libnvidia-ml.so.1"] {
        let text = dynamic(library);
        for part in [&format!("soname: [{library}]"), "Shared library: [libcuda.so.1]", "runpath: [$ORIGIN]"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
    // A plain libcuda.so would be found by programs that look for a GPU's.
    assert!(!support::library_dir().join("libcuda.so").exists());
}
