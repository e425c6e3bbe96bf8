//! Builds what softcuda consists of besides its cdylib, and puts all of it into `target/<profile>/softcuda/`.
//!
//! * `libcuda.so.1` is a link to the Rust cdylib (the CUDA driver API and all state).
//! * `libcudart.so.13` is made here: every exported name is one jump into `libcuda.so.1`, where the runtime functions
//!   are written in Rust (`src/runtime/`). A cdylib cannot have symbol versions, and programs linked to NVIDIA's
//!   runtime ask for `cudaMalloc@libcudart.so.13`; this library is linked with a version script that gives them.
//!
//! `libcudart.so.12` and `libnvidia-ml.so.1` are made in the same way: rows of [`LAYERS`].

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// A library to make, whose functions are in `libcuda.so.1` under longer names.
struct Layer {
    /// File name and SONAME.
    soname: &'static str,
    /// The linker's version script: which names are exported, at which version.
    script: &'static str,
    /// The name that programs are linked against, if this is the library for new programs.
    link_name: Option<&'static str>,
    /// The folder of the functions' sources: each function is marked `export_name = "<prefix><name>"`.
    sources: &'static str,
    /// What stands before a function's name in `libcuda.so.1`. Later prefixes win, so that a function whose ABI differs
    /// between versions of a library can have a form of its own.
    prefixes: &'static [&'static str],
    /// A file with the names of this library's ABI. Those that are not built are exported too and answer
    /// "not supported".
    names: &'static str,
    /// The function in `libcuda.so.1` that a call of one of those ends up in, with the name as its argument.
    unbuilt: &'static str,
}

const LAYERS: &[Layer] = &[
    Layer {
        soname: "libcudart.so.13",
        script: "libcudart.so.13 { global: cuda*; __cuda*; local: *; };\n",
        link_name: Some("libcudart.so"),
        sources: "src/runtime",
        prefixes: &["softcudart_", "softcudart13_"],
        names: "src/runtime/names-13.txt",
        unbuilt: "softcuda_runtime_unbuilt",
    },
    Layer {
        soname: "libcudart.so.12",
        script: "libcudart.so.12 { global: cuda*; __cuda*; local: *; };\n",
        link_name: None,
        sources: "src/runtime",
        prefixes: &["softcudart_", "softcudart12_"],
        names: "src/runtime/names-12.txt",
        unbuilt: "softcuda_runtime_unbuilt",
    },
    Layer {
        soname: "libnvidia-ml.so.1",
        script: "{ global: nvml*; local: *; };\n",
        link_name: None,
        sources: "src/nvml",
        prefixes: &["softnvml_"],
        names: "src/nvml/names.txt",
        unbuilt: "softcuda_nvml_unbuilt",
    },
];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let profile = profile_dir(&out);
    let dir = profile.join("softcuda");
    fs::create_dir_all(&dir)?;

    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Worker threads and thread-local destructors outlive any dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    link(Path::new("../deps/libsoftcuda.so"), &dir.join("libcuda.so.1"))?;

    let stub = driver_stub(&out)?;
    for layer in LAYERS {
        build_layer(layer, &stub, &out)?;
        let file = out.join(layer.soname);
        let from_profile = file.strip_prefix(profile).expect("OUT_DIR is below the profile's directory");
        link(&Path::new("..").join(from_profile), &dir.join(layer.soname))?;
        if let Some(name) = layer.link_name {
            link(Path::new(layer.soname), &dir.join(name))?;
        }
    }
    mark_made(&dir)
}

/// `target/<profile>`: the parent of the first ancestor of `OUT_DIR` named `build`.
fn profile_dir(out: &Path) -> &Path {
    out.ancestors().find(|p| p.ends_with("build")).and_then(Path::parent).expect("OUT_DIR is below a directory `build`")
}

/// Makes cargo run this again when somebody deleted the directory. The old date keeps cargo from running it every time.
fn mark_made(dir: &Path) -> io::Result<()> {
    let made = dir.join(".made");
    fs::File::create(&made)?.set_modified(UNIX_EPOCH + Duration::from_secs(86_400))?;
    println!("cargo::rerun-if-changed={}", made.display());
    Ok(())
}

/// Every name in an `export_name = "…"` of a folder's Rust files.
fn exported_names(sources: &str) -> io::Result<BTreeSet<String>> {
    println!("cargo::rerun-if-changed={sources}");
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(sources)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path)?;
            let marked = text.split("export_name = \"").skip(1).filter_map(|rest| rest.split('"').next());
            names.extend(marked.map(str::to_owned));
        }
    }
    assert!(!names.is_empty(), "{sources} exports no function");
    Ok(names)
}

/// An empty `libcuda.so.1` to link against: the real one is linked after this script has run. Nothing is resolved from
/// it; the runtime only gets its DT_NEEDED.
fn driver_stub(out: &Path) -> io::Result<PathBuf> {
    let dir = out.join("stub");
    fs::create_dir_all(&dir)?;
    let source = dir.join("empty.c");
    fs::write(&source, "")?;
    let library = dir.join("libcuda.so.1");
    shared_library(&library, "libcuda.so.1", &[&source], &["-nostdlib".into()]);
    Ok(dir)
}

fn build_layer(layer: &Layer, stub: &Path, out: &Path) -> io::Result<()> {
    let soname = layer.soname;
    println!("cargo::rerun-if-changed={}", layer.names);
    let source = out.join(format!("{soname}.s"));
    fs::write(&source, assembly(layer, &exported_names(layer.sources)?)?)?;
    let script = out.join(format!("{soname}.map"));
    fs::write(&script, layer.script)?;
    let flags = [
        "-nostdlib".into(),
        format!("-Wl,--version-script={}", script.display()),
        format!("-L{}", stub.display()),
        // The stub defines nothing, so that the linker would drop it.
        "-Wl,--no-as-needed".into(),
        "-l:libcuda.so.1".into(),
        "-Wl,--as-needed".into(),
        "-Wl,-rpath,$ORIGIN".into(),
        "-Wl,--enable-new-dtags".into(),
        "-Wl,-z,now".into(),
    ];
    shared_library(&out.join(soname), soname, &[&source], &flags);
    Ok(())
}

/// The whole library: one jump for each built function, and for each unbuilt one a call that names it.
fn assembly(layer: &Layer, exports: &BTreeSet<String>) -> io::Result<String> {
    let mut text = String::from("\t.text\n");
    for name in fs::read_to_string(layer.names)?.lines().map(str::trim) {
        if name.is_empty() || name.starts_with('#') {
            continue;
        }
        let symbols = layer.prefixes.iter().rev().map(|prefix| format!("{prefix}{name}"));
        match symbols.into_iter().find(|symbol| exports.contains(symbol)) {
            Some(symbol) => text += &function(name, &jump(&symbol)),
            None => {
                text += &function(name, &format!("{}\n\t{}", load_name(name), jump(layer.unbuilt)));
                text += &string(name);
            }
        }
    }
    text += "\t.section .note.GNU-stack,\"\",%progbits\n";
    Ok(text)
}

/// A function whose body is `code`.
fn function(name: &str, code: &str) -> String {
    format!("\t.globl {name}\n\t.type {name},%function\n\t.balign 16\n{name}:\n\t{code}\n\t.size {name},.-{name}\n")
}

/// The name itself, as a string.
fn string(name: &str) -> String {
    format!("\t.section .rodata.str1.1,\"aMS\",%progbits,1\n.Lname_{name}:\n\t.string \"{name}\"\n\t.text\n")
}

/// A jump that leaves every argument register as it is.
fn jump(symbol: &str) -> String {
    match target_arch().as_str() {
        "x86_64" => format!("jmp *{symbol}@GOTPCREL(%rip)"),
        "aarch64" => format!("b {symbol}"),
        arch => panic!("softcuda's runtime does not know how to jump on {arch}"),
    }
}

/// Puts the address of the string `.Lname_<name>` into the first argument register.
fn load_name(name: &str) -> String {
    match target_arch().as_str() {
        "x86_64" => format!("leaq .Lname_{name}(%rip), %rdi"),
        "aarch64" => format!("adrp x0, .Lname_{name}\n\tadd x0, x0, :lo12:.Lname_{name}"),
        arch => panic!("softcuda's runtime does not know how to load an address on {arch}"),
    }
}

fn target_arch() -> String {
    env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH")
}

/// Links `sources` into a shared library with the compiler that the `cc` crate finds for the target.
fn shared_library(to: &Path, soname: &str, sources: &[&Path], flags: &[String]) {
    let compiler = cc::Build::new().pic(true).get_compiler();
    let mut command: Command = compiler.to_command();
    command.args(["-shared", "-Wl,-z,noexecstack"]).arg(format!("-Wl,-soname,{soname}"));
    command.arg("-o").arg(to).args(sources).args(flags);
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// Makes `at` a link to `target` without a moment in which there is none.
fn link(target: &Path, at: &Path) -> io::Result<()> {
    if fs::read_link(at).is_ok_and(|t| t == target) {
        return Ok(());
    }
    let mut temporary = at.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    symlink(target, &temporary)?;
    fs::rename(&temporary, at)
}
