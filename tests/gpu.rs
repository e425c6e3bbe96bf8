//! The GPU check on the software device, by `tests/gpu/run.sh --soft`: the programs and the script work, so that time
//! on a GPU is not lost with them.

mod common;

use std::process::Command;

use common::need;

#[test]
fn the_gpu_check_passes_on_the_software_device() {
    let profile = common::profile_dir();
    let built = ["gpu_check", "perf"].iter().all(|name| profile.join("examples").join(name).exists());
    if need::need("examples/gpu_check and examples/perf (cargo test builds them)", built.then_some(())).is_none() {
        return;
    }
    let script = common::root().join("tests/gpu/check.sh");
    let mut command = Command::new("timeout");
    command.arg("540").arg(&script).arg("--soft");
    command.arg("--bin").arg(profile.join("examples"));
    command.arg("--lib").arg(common::library_path());
    let output = command.output().unwrap_or_else(|error| panic!("timeout {}: {error}", script.display()));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success(), "{:?}\n{text}", output.status);
    let table = text.split("== the GPU check on").nth(1).expect("a table");
    for line in [
        "kernels, blocks of one launch      ok",
        "1800 cases, 0 wrong",
        "4 ranks as threads, LL",
        "2 processes, 20 operations",
        "constants of the timing model      ok",
        "predicted and measured, all_reduce ok",
        "predicted and measured, sendrecv   ok",
    ] {
        assert!(table.contains(line), "no \"{line}\" in\n{table}");
    }
}
