//! The kernels under NVIDIA's run-time compilers of CUDA 12 and 13, which need no GPU. `scripts/install-nvrtc.sh` gets
//! them; `OXCCL_NVRTC_HOME` names its folder.

mod common;

use std::path::{Path, PathBuf};
use std::thread;

use common::need;
use nccl::device::nvrtc::Nvrtc;
use object::{Object, ObjectSymbol};

/// Not every system can compare and swap in the host's memory over PCIe: at system scope kernels only load and store.
#[test]
fn no_atomic_access_is_at_system_scope() {
    let folder = common::root().join("kernels");
    for file in ["gpu.cuh", "interp.cuh", "links.cuh", "offers.cuh", "reduce.cuh", "ll.cuh", "ll128.cuh"] {
        let text = std::fs::read_to_string(folder.join(file)).expect("a file of the kernels");
        let atomic = |line: &&str| ["atom.", "red.", "_system("].iter().any(|word| line.contains(word));
        let at_system = text.lines().filter(atomic).find(|line| line.contains(".sys") || line.contains("_system("));
        assert_eq!(at_system, None, "{file}");
    }
}

/// The compiler of a CUDA major version.
fn compiler(major: u32) -> Option<Nvrtc> {
    let home = need::path_in("OXCCL_NVRTC_HOME", "scripts/install-nvrtc.sh FOLDER")?;
    let name = format!("libnvrtc.so.{major}");
    let path =
        find(&home.join(major.to_string()), &name).unwrap_or_else(|| panic!("no {name} below {}", home.display()));
    Some(Nvrtc::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
    files.into_iter().find(|file| file.ends_with(name)).or_else(|| folders.iter().find_map(|folder| find(folder, name)))
}

/// Machine code for an architecture has all kernels in it.
fn check(nvrtc: &Nvrtc, architecture: i32) {
    let cubin = nvrtc.kernels(architecture).unwrap_or_else(|error| panic!("sm_{architecture}: {error}"));
    let file = object::File::parse(&*cubin).unwrap_or_else(|error| panic!("sm_{architecture}: {error}"));
    let names: Vec<&str> = file.symbols().filter_map(|symbol| symbol.name().ok()).collect();
    for proto in nccl::plan::layout::Proto::ALL {
        for datatype in nccl::plan::call::DataType::ALL {
            let name = proto.kernel_name(datatype);
            assert!(names.contains(&name.as_str()), "sm_{architecture} has no {name}");
        }
    }
    println!("libnvrtc {:?}: sm_{architecture}: {} bytes", nvrtc.version(), cubin.len());
}

/// Some architectures, side by side; all with `OXCCL_LONG`.
fn compiles(major: u32, architectures: &[i32]) {
    let Some(nvrtc) = compiler(major) else { return };
    assert_eq!(nvrtc.version().0 as u32, major);
    let known = nvrtc.architectures();
    assert!(architectures.iter().all(|architecture| known.contains(architecture)), "{known:?}");
    let wanted = if std::env::var_os("OXCCL_LONG").is_some() {
        known.into_iter().filter(|architecture| *architecture >= 75).collect()
    } else {
        architectures.to_vec()
    };
    thread::scope(|scope| {
        let (first, second) = wanted.split_at(wanted.len() / 2);
        for share in [first, second] {
            let nvrtc = &nvrtc;
            scope.spawn(move || share.iter().for_each(|architecture| check(nvrtc, *architecture)));
        }
    });
}

#[test]
fn cuda_12_compiles_the_kernels() {
    compiles(12, &[90]);
}

#[test]
fn cuda_13_compiles_the_kernels() {
    compiles(13, &[75, 120]);
}

/// A GPU newer than the compiler gets code that its driver translates.
#[test]
fn unknown_architectures_get_ptx() {
    let Some(nvrtc) = compiler(12) else { return };
    let ptx = nvrtc.kernels(999).unwrap_or_else(|error| panic!("{error}"));
    let text = String::from_utf8_lossy(&ptx);
    assert!(
        text.contains(".visible .entry oxccl_ll128_bf16") && text.contains(".target sm_"),
        "{}",
        &text[..text.len().min(400)]
    );
    assert!(nvrtc.kernels(10).is_err());
}
