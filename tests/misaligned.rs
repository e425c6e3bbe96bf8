//! Turns whose data is not aligned, as code for GPUs moves them: `tests/misaligned/model.cc` compiles that code with
//! the C++ compiler, for loads and stores that are as strict as a GPU's.

mod common;

use std::path::PathBuf;

use common::model::{Model, run};

fn model(name: &str, options: &[String]) -> (String, Option<i32>) {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    run(&Model { program: &program, source: "tests/misaligned/model.cc" }, options)
}

/// Options that make `kernels/` what is compiled.
fn kernels() -> Vec<String> {
    vec![
        format!("-I{}", common::root().join("kernels").display()),
        "-DOXCCL_LIKE_GPU".to_string(),
        "-pthread".to_string(),
        // It is compiled for much longer than it runs.
        "-O0".to_string(),
    ]
}

#[test]
fn data_goes_where_it_belongs() {
    let (printed, code) = model("misaligned_model", &kernels());
    println!("{printed}");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains(" cases, 0 wrong"), "{printed}");
}

/// The model notices a shift by a wrong number of bits.
#[test]
fn a_wrong_shift_is_found() {
    let source = std::fs::read_to_string(common::root().join("kernels/misaligned.cuh")).expect("the kernel");
    let broken = source.replace("by % 4 * 8)", "by % 4 * 4)");
    assert_ne!(source, broken);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("misaligned_broken");
    std::fs::create_dir_all(&folder).expect("a folder in the target folder");
    for file in std::fs::read_dir(common::root().join("kernels")).expect("kernels").map(|file| file.expect("a file")) {
        std::fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
    }
    std::fs::write(folder.join("misaligned.cuh"), broken).expect("a file in the target folder");
    let mut options = kernels();
    options[0] = format!("-I{}", folder.display());
    options.push("-DOXCCL_FEW".to_string());
    let (printed, code) = model("misaligned_wrong", &options);
    assert_eq!(code, Some(1), "{printed}");
}
