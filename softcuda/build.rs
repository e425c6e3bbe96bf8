//! Makes `target/<profile>/softcuda/libcuda.so.1` and gives the library its name.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads and thread-local destructors outlive any dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let profile = out
        .ancestors()
        .find(|p| p.ends_with("build"))
        .and_then(Path::parent);
    let Some(profile) = profile else {
        return Ok(());
    };
    let dir = profile.join("softcuda");
    fs::create_dir_all(&dir)?;
    link(
        Path::new("../deps/libsoftcuda.so"),
        &dir.join("libcuda.so.1"),
    )
}

fn link(to: &Path, at: &Path) -> io::Result<()> {
    if fs::read_link(at).is_ok_and(|old| old == to) {
        return Ok(());
    }
    let temporary = at.with_extension(format!("{}.tmp", std::process::id()));
    let _ = fs::remove_file(&temporary);
    symlink(to, &temporary)?;
    fs::rename(&temporary, at)
}
