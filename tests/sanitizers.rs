//! Sanitizers over the host image: `tests/tsan/run.sh` (ThreadSanitizer) and `tests/asan/run.sh` (AddressSanitizer and
//! UndefinedBehaviorSanitizer).

use std::path::Path;
use std::process::Command;

fn run(folder: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder).join("run.sh");
    let builds = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    // Each part of the script has its own limit; this one is for all of it.
    let output = Command::new("timeout").arg("580").arg(&script).arg(&builds).output();
    let output = output.unwrap_or_else(|e| panic!("timeout {}: {e}", script.display()));
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    match output.status.code() {
        Some(0) => {}
        Some(77) if std::env::var("OXCCL_REQUIRE").as_deref() != Ok("all") => {}
        code => panic!("{}: {code:?}\n{text}", script.display()),
    }
}

#[test]
fn host_image_has_no_races() {
    run("tsan");
}

#[test]
fn host_image_stays_in_bounds() {
    run("asan");
}
