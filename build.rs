//! Makes what Rust cannot: the host image and the fatbin from `kernels/`, the name and the symbol bindings of
//! libnccl.so, and its links in `target/<profile>`.
//!
//! * The logger of plug-ins: compiled by the C compiler, linked into the library.
//! * Host image: compiled by the C++ compiler, linked into the library; `oxccl_host_image()` returns it.
//! * Kernel source: `OUT_DIR/kernels.cu`, all of `kernels/` for a GPU in one file, for NVRTC.
//! * Code for GPUs: `OUT_DIR/images.rs`, which embeds what a compiler of NVIDIA's has made, or nothing.
//!
//! Environment: `NVRTC`, a run-time compiler's file (and Python); else `NVCC` or `CUDA_HOME` (else `PATH`) for nvcc;
//! `OXCCL_GENCODE` for what they generate: a list such as `sm_80,sm_90,compute_90`.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

fn main() {
    let out = PathBuf::from(variable("OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");
    host_image();
    plugin_logger();
    one_source(&out);
    device_code(&out);
    linking(&out);
    let profile = profile_dir(&out);
    for name in ["libnccl.so", "libnccl.so.2"] {
        link("deps/libnccl.so", &profile.join(name));
    }
    println!("cargo::rustc-env=OXCCL_PROFILE_DIR={}", profile.display());
}

/// A variable that cargo sets for every build script.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|e| panic!("{name}: {e}"))
}

// --- host image ---------------------------------------------------------------------------------------

/// Compiles the kernels once per instruction set, side by side, and the function that picks a build.
fn host_image() {
    let x86 = variable("CARGO_CFG_TARGET_ARCH") == "x86_64";
    let mut pick = compiler();
    pick.file("kernels/host_image.cc");
    // Whoever refers to another library must be named before it.
    let mut libraries = vec![("oxccl_host_image", pick), ("oxccl_image_baseline", isa_build("oxccl_image_baseline"))];
    if x86 {
        libraries[0].1.define("OXCCL_IMAGE_V3", None);
        let mut wide = isa_build("oxccl_image_v3");
        wide.flag("-march=x86-64-v3");
        libraries.push(("oxccl_image_v3", wide));
    }
    thread::scope(|scope| {
        for (name, build) in &libraries {
            scope.spawn(move || build.compile(name));
        }
    });
    println!("cargo::rustc-link-search=native={}", variable("OUT_DIR"));
    for (name, _) in &libraries {
        println!("cargo::rustc-link-lib=static={name}");
    }
}

/// Compiles the function that plug-ins log by.
fn plugin_logger() {
    const SOURCE: &str = "src/plugin/logger.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    let mut cc = cc::Build::new();
    cc.std("c11").opt_level(2).pic(true).warnings(true).extra_warnings(true).flag("-fvisibility=hidden");
    cc.cargo_metadata(false).file(SOURCE).compile("oxccl_plugin_logger");
    println!("cargo::rustc-link-lib=static=oxccl_plugin_logger");
    for name in ["CC", "CFLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
}

/// One build of the kernels, for the plainest CPU of the target unless told otherwise. The name is that of
/// its table of functions.
fn isa_build(table: &str) -> cc::Build {
    let mut cc = compiler();
    cc.define("OXCCL_IMAGE", table).flag("-x").flag("c++").file("kernels/entry.cu");
    cc
}

/// The C++ compiler as the kernels need it: optimised in every profile, floats computed as written, and
/// nothing that would need the C++ library.
fn compiler() -> cc::Build {
    let mut cc = cc::Build::new();
    cc.cpp(true).std("c++17").opt_level(3).cpp_link_stdlib(None).pic(true).warnings(true).extra_warnings(true);
    for flag in ["-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden"]
    {
        cc.flag(flag);
    }
    cc.flag_if_supported("-Wno-psabi").cargo_metadata(false);
    for name in ["CXX", "CXXFLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    cc
}

// --- kernel source ------------------------------------------------------------------------------------

/// Writes OUT_DIR/kernels.cu: entry.cu with all that it includes for a GPU.
fn one_source(out: &Path) {
    let mut source = String::new();
    include(&mut source, "entry.cu", &mut Vec::new());
    let file = out.join("kernels.cu");
    fs::write(&file, source).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// Appends a file of kernels/ with what it includes, each file once. The host's half is left out.
fn include(source: &mut String, name: &str, seen: &mut Vec<String>) {
    if name == "host.cuh" || seen.iter().any(|s| s == name) {
        return;
    }
    seen.push(name.to_string());
    let path = Path::new("kernels").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    source.push_str(&format!("#line 1 \"{name}\"\n"));
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(inner) => {
                include(source, inner, seen);
                source.push_str(&format!("#line {} \"{name}\"\n", number + 2));
            }
            None if line == "#pragma once" => source.push('\n'),
            None => source.extend([line, "\n"]),
        }
    }
}

// --- device code --------------------------------------------------------------------------------------

/// Architectures of a release build, as far as the compiler knows them: each runs on newer ones of its major number,
/// too. The first is also embedded as PTX, which drivers translate for those that no code fits.
const ARCHITECTURES: [u32; 7] = [70, 75, 80, 89, 90, 100, 120];
/// The one architecture of a debug build.
const DEBUG_ARCHITECTURE: u32 = 80;

/// Writes OUT_DIR/images.rs, which embeds code for GPUs: by the run-time compiler that NVRTC names, else by nvcc where
/// it is found, else none.
fn device_code(out: &Path) {
    for name in ["NVRTC", "NVCC", "CUDA_HOME", "OXCCL_GENCODE"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=scripts/cubins.py");
    let nvrtc = env::var_os("NVRTC").filter(|name| !name.is_empty());
    let (images, codes) = match nvrtc.map(PathBuf::from) {
        Some(nvrtc) => {
            let codes = run_nvrtc(&nvrtc, out);
            (codes.iter().map(|code| (code.clone(), out.join(code))).collect(), codes)
        }
        None => nvcc_fatbin(out),
    };
    let mut text = format!("static IMAGES: [Embedded; {}] = [\n", images.len());
    for (code, file) in &images {
        text.push_str(&format!("    Embedded {{ code: {code:?}, bytes: include_bytes!({:?}) }},\n", file.display()));
    }
    text.push_str(&format!("];\npub(super) const CODES: &str = {:?};\n", codes.join(", ")));
    let file = out.join("images.rs");
    fs::write(&file, text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}

/// Images by name and file, and what they have code for.
type Images = (Vec<(String, PathBuf)>, Vec<String>);

/// The fatbin of nvcc, where it is found.
fn nvcc_fatbin(out: &Path) -> Images {
    let fatbin = out.join("device.fatbin");
    let Some((nvcc, wanted)) = find_nvcc() else { return Images::default() };
    let codes = wanted_codes(&known_architectures(&nvcc));
    match run_nvcc(&nvcc, wanted, &codes, &fatbin) {
        true => (vec![("fatbin".to_string(), fatbin)], codes),
        false => Images::default(),
    }
}

/// Has a run-time compiler make the kernels, one compressed file for each code; returns what it has made.
fn run_nvrtc(nvrtc: &Path, out: &Path) -> Vec<String> {
    let mut command = Command::new("python3");
    command.arg("scripts/cubins.py").arg(nvrtc).arg(out.join("kernels.cu")).arg(out).args(wanted_codes(&[]));
    let output = command.output();
    match &output {
        Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).lines().map(str::to_string).collect(),
        failed => panic!("{command:?}: {}", describe(failed)),
    }
}

/// nvcc, and whether somebody asked for it by name: then it must work.
fn find_nvcc() -> Option<(PathBuf, bool)> {
    let set = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(nvcc) = set("NVCC") {
        return Some((nvcc, true));
    }
    if let Some(home) = set("CUDA_HOME") {
        let nvcc = home.join("bin/nvcc");
        return nvcc.is_file().then_some((nvcc, true));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|d| d.join("nvcc")).find(|p| p.is_file()).map(|p| (p, false))
}

/// Compiles the fatbin; false where an nvcc that nobody asked for does not work.
fn run_nvcc(nvcc: &Path, wanted: bool, codes: &[String], fatbin: &Path) -> bool {
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-std=c++17", "-fmad=false", "--threads", "0", "-Xfatbin", "-compress-all"]);
    command.arg("-Wno-deprecated-gpu-targets");
    for code in codes {
        command.args(["-gencode", &gencode(code)]);
    }
    command.args(["-o".as_ref(), fatbin.as_os_str(), "kernels/entry.cu".as_ref()]);
    match command.output() {
        Ok(o) if o.status.success() => true,
        failed => {
            let text = describe(&failed);
            assert!(!wanted, "{command:?}: {text}");
            println!("cargo::warning={} does not work, so this build has no code for GPUs: {text}", nvcc.display());
            false
        }
    }
}

fn describe(failed: &std::io::Result<Output>) -> String {
    match failed {
        Ok(o) => String::from_utf8_lossy(&o.stderr).lines().take(20).collect::<Vec<_>>().join("; "),
        Err(e) => e.to_string(),
    }
}

/// What a compiler is to generate: `sm_90` is machine code, `compute_70` PTX.
fn wanted_codes(known: &[u32]) -> Vec<String> {
    if let Ok(list) = env::var("OXCCL_GENCODE") {
        return list.split(',').map(|code| code.trim().to_string()).collect();
    }
    let release = variable("PROFILE") == "release";
    let mut wanted: Vec<u32> = if release { ARCHITECTURES.to_vec() } else { vec![DEBUG_ARCHITECTURE] };
    wanted.retain(|a| known.is_empty() || known.contains(a));
    let ptx = wanted.first().map(|a| format!("compute_{a}"));
    wanted.iter().map(|a| format!("sm_{a}")).chain(ptx).collect()
}

/// `sm_90` or `compute_90` as a value of -gencode.
fn gencode(code: &str) -> String {
    let number = code.trim_start_matches("sm_").trim_start_matches("compute_");
    format!("arch=compute_{number},code={code}")
}

/// Architectures that nvcc lists; none where it cannot say.
fn known_architectures(nvcc: &Path) -> Vec<u32> {
    let Ok(output) = Command::new(nvcc).arg("--list-gpu-arch").output() else { return Vec::new() };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|l| l.trim().strip_prefix("compute_")?.parse().ok()).collect()
}

// --- linking ------------------------------------------------------------------------------------------

/// The library's name, and which of its symbols are weak.
fn linking(out: &Path) {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // For functions alone it would do, as no data is exported, but zig's linker does not know that form.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads, exit handlers of threads and fork handlers may run in it at any time: dlclose leaves it mapped.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=nccl.map");
    println!("cargo::rustc-check-cfg=cfg(weak_names)");
    // rustc's own version script hides assembler symbols such as the weak names. A second script shows
    // them, where the linker unites scripts (lld does, GNU ld refuses; zig takes the last one, so it is complete).
    let map = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("nccl.map");
    if linker_unites_scripts(out, &map) {
        println!("cargo::rustc-cfg=weak_names");
        println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={}", map.display());
    }
}

/// Links a cdylib of a few lines just as cargo will link this one.
fn linker_unites_scripts(out: &Path, map: &Path) -> bool {
    let source = out.join("probe.rs");
    let text = "#![no_std]\n#[unsafe(no_mangle)] pub extern \"C\" fn pncclProbe() {}\n\
        #[panic_handler] fn panicked(_: &core::panic::PanicInfo) -> ! { loop {} }\n";
    if fs::write(&source, text).is_err() {
        return false;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=probe", "-Cpanic=abort"]);
    rustc.args(["--target", &variable("TARGET")]);
    rustc.args(["-o".as_ref(), out.join("probe.so").as_os_str(), source.as_os_str()]);
    rustc.arg(format!("-Clink-arg=-Wl,--version-script={}", map.display()));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.args([OsStr::new("-C"), OsStr::new(&format!("linker={}", linker.display()))]);
    }
    if let Ok(flags) = env::var("CARGO_ENCODED_RUSTFLAGS") {
        rustc.args(flags.split('\x1f').filter(|f| !f.is_empty()));
    }
    rustc.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// target/<profile>: what holds the folder `build` that OUT_DIR is in, however deep.
fn profile_dir(out: &Path) -> PathBuf {
    let profile = out.ancestors().find(|p| p.ends_with("build")).and_then(Path::parent);
    profile.unwrap_or_else(|| panic!("{} is not below a folder `build`", out.display())).to_path_buf()
}

/// Makes a symbolic link, or leaves it where it is right already.
fn link(to: &str, at: &Path) {
    if fs::read_link(at).is_ok_and(|target| target == Path::new(to)) {
        return;
    }
    // By way of a name of our own, so that nobody sees the link missing.
    let fresh = at.with_extension(format!("{}.tmp", std::process::id()));
    let made = symlink(to, &fresh).and_then(|()| fs::rename(&fresh, at));
    made.unwrap_or_else(|e| panic!("{}: {e}", at.display()));
}
