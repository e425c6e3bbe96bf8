//! `examples/perf` as people run it: it measures, and above all it notices what is wrong.

mod common;

// The parts of it that have tests of their own.
#[allow(dead_code)]
#[path = "../examples/perf/args.rs"]
mod args;
#[allow(dead_code)]
#[path = "../examples/perf/constants/description.rs"]
mod description;
#[allow(dead_code)]
#[path = "../examples/perf/constants/fit.rs"]
mod fit;
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
#[allow(dead_code)]
#[path = "../examples/perf/ways.rs"]
mod ways;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::c_program::{Compilation, Folder};
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
    for (arguments, part) in [
        ("", "all or init"),
        ("all_reduce -n 0", "-n 0"),
        ("all_reduce -e", "-e"),
        ("constants -n 1", "-n 1"),
        ("constants --base nowhere", "no such machine"),
        ("constants all_reduce", "all_reduce is not understood"),
        ("predict all_reduce --device none", "auto, soft or gpu"),
    ] {
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
    let messages = run("predict sendrecv --machine 8xH100 -n 2 -b 64 -e 1M -f 128").expect("perf");
    messages.assert_ok();
    let text = &messages.ranks[0].stdout;
    assert!(text.contains("sendrecv of 2 ranks") && rows(text).len() == 3, "{text}");
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
        ("predict everything".to_string(), "everything"),
        ("predict all_reduce --kernel best".to_string(), "best"),
    ] {
        let refused = run(&arguments).expect("perf");
        assert_eq!(refused.ranks[0].status.code(), Some(USAGE), "{refused}");
        let text = &refused.ranks[0].stderr;
        assert!(text.contains(word) && text.contains("predict -h"), "{arguments}: {text}");
    }
    let _ = std::fs::remove_file(&file);
}

/// The lines that are no comments.
fn rows(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with('#')).collect()
}

/// Which keys a description has.
fn keys(text: &str) -> Vec<&str> {
    rows(text).into_iter().filter_map(|line| line.split_once(" = ").map(|(key, _)| key)).collect()
}

/// What `perf constants` writes is read by `perf predict`, and beside that stands what is measured.
#[test]
fn constants_are_measured_and_predicted_with() {
    let folder = Folder::new("constants");
    let file = folder.join("here.txt");
    let Some(constants) = run(&format!("constants --device soft -n 3 --out {}", file.display())) else { return };
    constants.assert_ok();
    let text = std::fs::read_to_string(&file).expect("a description");
    for key in ["ranks", "threads", "processors", "launch", "poll", "bandwidth"] {
        assert!(keys(&text).contains(&key), "no {key}\n{text}");
    }
    for word in ["not measured here: this device has none", "of 3 ranks", "slot of 16 KiB", "slot of 256 KiB"] {
        assert!(text.contains(word), "no {word}\n{text}");
    }
    for (call, way) in [("all_reduce", "/"), ("all_gather", "/"), ("sendrecv", "direct/Simple")] {
        let machine = format!("--machine {} -e 64K -f 32", file.display());
        let predicted = run(&format!("predict {call} {machine}")).expect("perf");
        predicted.assert_ok();
        let beside = run(&format!("predict {call} {machine} --measured --device soft")).expect("perf");
        beside.assert_ok();
        let text = &beside.ranks[0].stdout;
        assert_eq!(rows(&predicted.ranks[0].stdout).len(), rows(text).len(), "{text}");
        assert!(text.contains(&format!("{call} of 3 ranks, predicted for software, and measured here")), "{text}");
        for row in rows(text) {
            let columns: Vec<&str> = row.split_whitespace().collect();
            let numbers = columns[4..].iter().map(|column| column.parse::<f64>().expect("a number"));
            assert!(columns[1].contains(way) && numbers.clone().count() == 3, "{row}");
            assert!(numbers.clone().all(|number| number >= 0.0 && number.is_finite()), "{row}");
        }
    }
}

/// A driver that runs the probes of `perf constants`, and checks what it is told; the ranks run on softcuda.
#[test]
fn probes_of_a_gpu_are_run() {
    let (Some(perf), Some(cc)) = (perf(), need::tool("cc")) else { return };
    let folder = Folder::new("fake-gpu");
    let profile = common::profile_dir();
    let made = |path: &str| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        path
    };
    // Where perf is, ranks find their libraries; its own driver is another one.
    std::fs::copy(perf, made("examples/perf")).expect("a copy");
    for (name, from) in [
        ("libnccl.so.2", "libnccl.so.2"),
        ("libcuda.so.1", "softcuda/libcuda.so.1"),
        ("softcuda/libcuda.so.1", "softcuda/libcuda.so.1"),
    ] {
        std::os::unix::fs::symlink(profile.join(from), made(name)).expect("a link");
    }
    Compilation::bare(&cc, "tests/perf/fake_gpu.c", &made("driver/libcuda.so.1")).shared().run();
    let job = |arguments: &str| {
        let job = Job::program(folder.join("examples/perf"), 1).args(arguments.split_whitespace());
        job.env("LD_LIBRARY_PATH", folder.join("driver")).env("SOFTCUDA_DEVICES", "1").run()
    };
    let file = folder.join("gpu.txt");
    let constants = job(&format!("constants --device gpu --base 4xA100-pcie --out {}", file.display()));
    constants.assert_ok();
    let text = std::fs::read_to_string(&file).expect("a description");
    for key in ["base", "load", "receive_load", "poll", "latency", "fence", "bandwidth", "block_bandwidth", "launch"] {
        assert!(keys(&text).contains(&key), "no {key}\n{text}");
    }
    assert!(text.contains("name = Fake 0\n") && text.contains("NVLink, PCIe) are NOT measured here"), "{text}");
    let beside = job(&format!("predict all_reduce --device gpu --machine {} --measured -e 4K -f 8", file.display()));
    beside.assert_ok();
    let text = &beside.ranks[0].stdout;
    assert!(text.contains("predicted for Fake 0") && rows(text).len() == 3, "{text}");
}

/// NVIDIA's assembler takes the probes; drivers have the same one.
#[test]
fn probes_are_valid_for_gpus() {
    let Some(home) = need::path_in("CUDA_HOME", "scripts/install-nvcc.sh FOLDER") else { return };
    let folder = Folder::new("probes");
    for architecture in ["sm_80", "sm_90", "sm_120"] {
        let mut ptxas = std::process::Command::new(home.join("bin/ptxas"));
        ptxas.args(["-arch", architecture, "-o"]).arg(folder.join("probes.cubin"));
        let output = ptxas.arg(common::root().join("examples/perf/constants/probes.ptx")).output().expect("ptxas");
        assert!(output.status.success(), "{architecture}: {output:?}");
    }
}
