//! `softcuda-stubs`: placeholder libraries that a loader takes for the real ones.

mod support;

use std::ffi::c_int;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn stubs(folder: &str, list: &str) -> (PathBuf, Output) {
    let directory = support::scratch(folder);
    let _ = fs::remove_dir_all(&directory);
    let mut command = Command::new(env!("CARGO_BIN_EXE_softcuda-stubs"));
    command.arg(&directory).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program runs");
    child.stdin.take().expect("piped").write_all(list.as_bytes()).expect("it reads");
    (directory, child.wait_with_output().expect("it ends"))
}

#[test]
fn libraries_with_versions_and_without() {
    let list = "# for a test\nlibcupti_stub.so.13 libcupti_stub.so.13 cuptiFinalize cuptiSubscribe\n\n\
        libplain_stub.so.9 - plainOne\n";
    let (directory, done) = stubs("stubs-good", list);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut files: Vec<_> = fs::read_dir(&directory).expect("made").map(|f| f.expect("readable").file_name()).collect();
    files.sort();
    assert_eq!(files, ["libcupti_stub.so.13", "libplain_stub.so.9"]);
    let names =
        |file: &str| support::output(Command::new("nm").args(["-D", "--defined-only"]).arg(directory.join(file)));
    assert!(names("libcupti_stub.so.13").contains(" cuptiFinalize@@libcupti_stub.so.13\n"));
    assert!(names("libplain_stub.so.9").contains(" plainOne\n"));
    let dynamic = support::output(Command::new("readelf").arg("-dW").arg(directory.join("libplain_stub.so.9")));
    assert!(dynamic.contains("soname: [libplain_stub.so.9]") && !dynamic.contains("NEEDED"), "{dynamic}");
    // SAFETY: a library just made, whose functions take nothing and return 1.
    unsafe {
        let library = libloading::Library::new(directory.join("libcupti_stub.so.13")).expect("loads");
        let function = *library.get::<extern "C" fn() -> c_int>(b"cuptiSubscribe\0").expect("exported");
        assert_eq!(function(), 1);
    }
}

#[test]
fn a_bad_line_is_named_and_nothing_is_left() {
    let (directory, done) = stubs("stubs-bad", "liba.so - a\nlibb.so - a b;c\n");
    assert!(!done.status.success());
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(text.contains("line 2") && text.contains("b;c"), "{text}");
    assert!(!directory.exists());
}
