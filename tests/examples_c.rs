//! The C examples, compiled by the system's compiler from their Makefile and run as a user would.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use common::launch::{Job, Outcome};
use common::mpi::{MPICH, Mpi, OPEN_MPI};
use common::need;

/// Ranks of a job; more than one, few enough for any machine.
const RANKS: usize = 2;

/// A folder of this test program below `target/`.
fn folder(name: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{name}"));
    fs::create_dir_all(&out).expect("the target folder can be written");
    out
}

/// Builds one target of `examples/c/Makefile` in a folder.
fn build(target: &str, out: &Path, extra: &[String]) -> PathBuf {
    let mut make = Command::new("make");
    make.current_dir(common::root().join("examples/c"))
        .arg("-B")
        .arg(if target == "all_reduce" { "all" } else { target })
        .arg(format!("OUT={}", out.display()))
        .arg(format!("NCCL_LIB={}", common::profile_dir().display()))
        .args(extra);
    let output = make.output().expect("make starts");
    assert!(output.status.success(), "{make:?}\n{}", String::from_utf8_lossy(&output.stderr));
    out.join(target)
}

/// The program of two processes, made once: tests of this program run side by side.
fn all_reduce() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| build("all_reduce", &folder("all_reduce"), &[]))
}

fn tools() -> Option<()> {
    need::tool("make")?;
    need::tool("cc").map(drop)
}

/// One line from each rank says that no sum is wrong.
fn assert_right(outcome: &Outcome, ranks: usize) {
    outcome.assert_ok();
    let lines: Vec<&str> = outcome.ranks.iter().flat_map(|rank| rank.stdout.lines()).collect();
    for rank in 0..ranks {
        let line = format!("rank {rank} of {ranks}: 0 of 1048576 sums are wrong");
        assert!(lines.contains(&line.as_str()), "`{line}` is missing\n{outcome}");
    }
}

#[test]
fn all_reduce_by_two_processes() {
    let Some(()) = tools() else { return };
    let mut job = Job::program(all_reduce(), RANKS);
    let id = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-id-{}", std::process::id()));
    for rank in 0..RANKS {
        job = job.args_of(rank, [rank.to_string(), RANKS.to_string(), id.display().to_string()]);
    }
    let outcome = job.run();
    let _ = fs::remove_file(&id);
    assert_right(&outcome, RANKS);
}

#[test]
fn bad_usage_is_told() {
    let Some(()) = tools() else { return };
    let outcome = Job::program(all_reduce(), 1).run();
    assert_eq!(outcome.ranks[0].status.code(), Some(2));
    assert!(outcome.ranks[0].stderr.contains("usage:"), "{outcome}");
}

/// The MPI example under an MPI.
fn mpi_job(mpi: Mpi) {
    let Some(()) = tools() else { return };
    let Some(home) = mpi.home() else { return };
    let mpicc = home.join("bin/mpicc");
    let program = build("all_reduce_mpi", &folder(mpi.name), &[format!("MPICC={}", mpicc.display())]);
    assert_right(&mpi.job(&home, RANKS, &[], &program).run(), RANKS);
}

#[test]
fn all_reduce_by_a_job_of_mpich() {
    mpi_job(MPICH);
}

#[test]
fn all_reduce_by_a_job_of_open_mpi() {
    mpi_job(OPEN_MPI);
}
