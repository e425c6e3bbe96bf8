//! LL128, which no host can run, by a model: `tests/ll128/model.cc` compiles `kernels/ll128.cuh` with the C++ compiler
//! and runs the threads of a block one after the other.

mod common;

use std::path::PathBuf;

use common::model::{Model, run};

fn model(name: &str, options: &[String]) -> (String, Option<i32>) {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    run(&Model { program: &program, source: "tests/ll128/model.cc" }, options)
}

#[test]
fn data_goes_where_it_belongs() {
    let (printed, code) = model("ll128_model", &[]);
    println!("{printed}");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains(" cases, 0 wrong"), "{printed}");
}

/// The model notices an error in the arithmetic.
#[test]
fn a_wrong_place_is_found() {
    let kernels = common::root().join("kernels");
    let source = std::fs::read_to_string(kernels.join("ll128.cuh")).expect("the kernel");
    let broken = source.replace("half * WIDE_BYTES)", "half * WIDE_DATA)");
    assert_ne!(source, broken);
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ll128_broken.cuh");
    std::fs::write(&file, broken).expect("a file in the target folder");
    let (printed, code) = model(
        "ll128_broken",
        &[format!("-I{}", kernels.display()), format!("-DOXCCL_MODEL_OF=\"{}\"", file.display())],
    );
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("a byte has two places"), "{printed}");
}
