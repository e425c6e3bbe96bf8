//! `examples/perf` as people run it: it measures, and above all it notices what is wrong.

mod common;

// The parts of it that have tests of their own.
#[allow(dead_code)]
#[path = "../examples/perf/args.rs"]
mod args;
#[allow(dead_code)]
#[path = "../examples/perf/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../examples/perf/orders.rs"]
mod orders;
#[allow(dead_code)]
#[path = "../examples/perf/subject.rs"]
mod subject;
#[allow(dead_code)]
#[path = "../examples/perf/table.rs"]
mod table;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::c_program::Compilation;
use common::launch::{Job, Outcome};
use common::need;
use serde_json::Value;

/// perf's own exit codes.
const WRONG: i32 = 1;
const USAGE: i32 = 2;
const FAILED: i32 = 3;

/// The program; `cargo test` builds it, `cargo test --test perf` alone does not.
fn perf() -> Option<PathBuf> {
    let path = common::profile_dir().join("examples/perf");
    need::need("examples/perf (cargo test builds it)", path.exists().then_some(path))
}

/// Runs perf with arguments as on a command line.
fn run(arguments: &str) -> Option<Outcome> {
    Some(Job::program(perf()?, 1).args(arguments.split_whitespace()).run())
}

/// Runs perf with `--json` and gives the object.
fn report(arguments: &str) -> Option<Value> {
    let outcome = run(&format!("{arguments} --json --device soft"))?;
    outcome.assert_ok();
    Some(serde_json::from_str(&outcome.ranks[0].stdout).expect("stdout is one JSON object"))
}

/// The broken library, made once: tests of this program run side by side.
fn broken() -> Option<PathBuf> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(build_broken).clone()
}

fn build_broken() -> Option<PathBuf> {
    let cc = need::tool("cc")?;
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libbroken-nccl.so");
    Compilation::new(&cc, "tests/perf/broken_nccl.c", &out).shared().run();
    Some(out)
}

fn run_broken(how: &str, arguments: &str) -> Option<Outcome> {
    let job = Job::program(perf()?, 1).args(["all_reduce", "--device", "soft", "-e", "1K", "-f", "8", "--nccl"]);
    Some(job.args([broken()?]).args(arguments.split_whitespace()).env("BROKEN", how).run())
}

#[test]
fn every_type_and_operator_is_right() {
    let Some(report) = report("all_reduce -n 3 -d all -o all -b 1000 -e 1000 -i 1 -w 1") else { return };
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(60));
    assert_eq!(report["wrong"], 0);
    assert_eq!(report["nranks"], 3);
}

#[test]
fn threads_and_groups_are_right() {
    for how in ["-n 3 -t", "-n 4 -g 2", "-n 4 -g 2 -t", "-n 3 -g 3", "-n 1"] {
        let Some(report) = report(&format!("all_reduce {how} -b 8 -e 64K -f 16 -i 2 -w 1")) else { return };
        assert_eq!(report["wrong"], 0, "{how}");
    }
}

#[test]
fn every_collective_is_right() {
    for how in [
        "all -n 3 -r 2 -b 8 -e 512K -f 256",
        "all -n 4 -t -b 4K -e 4K",
        "sendrecv -n 4 -g 2 -b 1K -e 1K",
        "alltoall -n 1",
    ] {
        let Some(report) = report(&format!("{how} -i 2 -w 1 -d half")) else { return };
        assert_eq!(report["wrong"], 0, "{how}");
    }
    let Some(outcome) = run("all -n 2 -b 64 -e 64 -i 2 --device soft") else { return };
    outcome.assert_ok();
    for subject in subject::Subject::ALL {
        assert!(
            outcome.ranks[0].stdout.contains(&format!("\n{:<14}", subject.word())),
            "{}: {outcome}",
            subject.word()
        );
    }
}

#[test]
fn the_table_looks_like_that_of_nccl_tests() {
    let Some(outcome) = run("all_reduce -n 2 -b 8 -e 64 -f 8 -i 1 --device soft") else { return };
    outcome.assert_ok();
    let out = &outcome.ranks[0].stdout;
    for part in
        ["size         count      type   redop    root     time   algbw   busbw", "# Out of bounds values : 0 OK"]
    {
        assert!(out.contains(part), "`{part}` is missing\n{out}");
    }
    assert!(out.contains("using softcuda, 2 software devices on host memory"), "{out}");
    let rows =
        out.lines().filter(|line| line.split_whitespace().next().is_some_and(|size| size.parse::<u64>().is_ok()));
    assert_eq!(rows.count(), 2, "{out}");
}

#[test]
fn many_calls_and_initialisation_are_timed() {
    let Some(calls) = report("all_reduce -n 2 --calls 100") else { return };
    assert_eq!(calls["calls"]["n"], 100);
    assert_eq!(calls["calls"]["wrong"], 0);
    let Some(init) = report("init -n 3 --rounds 2") else { return };
    assert_eq!(init["rounds"].as_array().map(Vec::len), Some(2));
    assert!(init["from_call_s"].as_f64().is_some_and(|seconds| seconds > 0.0));
}

#[test]
fn wrong_values_are_an_error() {
    let Some(outcome) = run_broken("", "-n 2") else { return };
    assert_eq!(outcome.ranks[0].status.code(), Some(WRONG), "{outcome}");
    assert!(outcome.ranks[0].stdout.contains("FAILED"), "{outcome}");
    assert!(outcome.ranks[0].stderr.contains("wrong value: rank 0 output[0] is"), "{outcome}");
}

#[test]
fn a_hang_is_ended_and_shown() {
    let start = Instant::now();
    let Some(outcome) = run_broken("hang", "-n 2 --timeout 3") else { return };
    assert_eq!(outcome.ranks[0].status.code(), Some(FAILED), "{outcome}");
    for part in ["no answer within 3s to: Run", "workers [0]", "workers [1]", "thread "] {
        assert!(outcome.ranks[0].stderr.contains(part), "`{part}` is missing\n{outcome}");
    }
    assert!(start.elapsed() < Duration::from_secs(100));
}

#[test]
fn a_death_is_told_at_once() {
    for how in ["-n 2", "-n 2 -t"] {
        let Some(outcome) = run_broken("die", how) else { return };
        assert_eq!(outcome.ranks[0].status.code(), Some(FAILED), "{outcome}");
        assert!(outcome.ranks[0].stderr.contains("worker 0 died (exit status: 7)"), "{outcome}");
    }
}

#[test]
fn bad_usage_is_told() {
    for (arguments, part) in [("", "all or init"), ("all_reduce -n 0", "-n 0"), ("all_reduce -e", "-e")] {
        let Some(outcome) = run(arguments) else { return };
        assert_eq!(outcome.ranks[0].status.code(), Some(USAGE), "{outcome}");
        assert!(outcome.ranks[0].stderr.contains(part), "{outcome}");
    }
}

#[test]
fn a_missing_library_is_named() {
    let Some(outcome) = run("all_reduce --device soft --nccl libno-such-nccl.so") else { return };
    assert_eq!(outcome.ranks[0].status.code(), Some(FAILED), "{outcome}");
    assert!(outcome.ranks[0].stderr.contains("libno-such-nccl.so"), "{outcome}");
}

#[test]
fn a_job_launcher_gets_a_hint() {
    let Some(perf) = perf() else { return };
    let job = Job::program(perf, 1).args("all_reduce -n 1 -e 8 -i 1 --device soft".split(' '));
    let outcome = job.env("OMPI_COMM_WORLD_SIZE", "4").run();
    outcome.assert_ok();
    assert!(outcome.ranks[0].stderr.contains("4 separate jobs of 1 rank"), "{outcome}");
}

/// What a described machine would take; what cannot be understood is named.
#[test]
fn a_machine_is_predicted_for() {
    let Some(known) = run("predict all_gather --machine 4xA100-pcie -b 1K -e 16M -f 16") else { return };
    known.assert_ok();
    let text = &known.ranks[0].stdout;
    let lines = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(lines == 4 && text.contains("AllGather of 4 ranks") && text.contains("ring/Simple"), "{text}");
    let file = std::env::temp_dir().join(format!("oxccl-machine-{}", std::process::id()));
    let machine = |text: &str| std::fs::write(&file, text).expect("a file");
    machine("base = 8xH100\nname = slow\nranks = 4\nbandwidth = 1\n");
    let ways = run(&format!("predict all_reduce --machine {} -b 1M -e 1M --ways", file.display())).expect("perf");
    ways.assert_ok();
    let text = &ways.ranks[0].stdout;
    assert!(text.contains("on slow") && text.contains("direct2/LL128"), "{text}");
    let direct = run("predict scatter --zero-copy -b 1M -e 1M").expect("perf");
    direct.assert_ok();
    let text = &direct.ranks[0].stdout;
    assert!(text.contains("zero-copy") && text.lines().any(|line| line.ends_with("yes")), "{text}");
    machine("bandwith = 1\n");
    for (arguments, word) in [
        ("predict all_reduce --machine nowhere".to_string(), "nowhere"),
        (format!("predict all_reduce --machine {}", file.display()), "bandwith"),
        ("predict sendrecv".to_string(), "sendrecv"),
        ("predict all_reduce --kernel best".to_string(), "best"),
    ] {
        let refused = run(&arguments).expect("perf");
        assert_eq!(refused.ranks[0].status.code(), Some(USAGE), "{refused}");
        let text = &refused.ranks[0].stderr;
        assert!(text.contains(word) && text.contains("predict -h"), "{arguments}: {text}");
    }
    let _ = std::fs::remove_file(&file);
}
