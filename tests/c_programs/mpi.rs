//! Jobs of two MPIs: threads and devices of each process, overlapping communicators, processes of two hosts, the
//! library linked and preloaded.

use std::time::Duration;

use crate::common;
use crate::common::c_program::Folder;
use crate::common::hosts::Hosts;
use crate::common::launch::Outcome;
use crate::common::mpi::{MPICH, Mpi, OPEN_MPI};
use crate::{absent_first, absent_folder, assert_says, build, build_with_ours};

/// Threads that are ranks of three overlapping communicators each.
fn grid(mpi: Mpi) {
    let Some(home) = mpi.home() else { return };
    let Some(program) = build_with_ours(home.join("bin/mpicc"), "mpi_grid.c") else { return };
    let outcome = mpi.job(&home, 2, &[], program.path()).run();
    for (process, thread) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        assert_says(&outcome, &format!("thread {thread} of process {process}: 0 sums are wrong"));
    }
}

#[test]
fn a_grid_under_mpich() {
    grid(MPICH);
}

#[test]
fn a_grid_under_open_mpi() {
    grid(OPEN_MPI);
}

fn assert_devices_say(outcome: &Outcome) {
    for (process, communicators) in [(0, 2), (1, 3), (2, 2)] {
        let line = format!("process {process} with 2 devices and {communicators} communicators: 0 sums are wrong");
        assert_says(outcome, &line);
    }
}

/// One thread with several devices in each process, which belong to up to three communicators.
fn devices(mpi: Mpi) {
    let Some(home) = mpi.home() else { return };
    let Some(program) = build_with_ours(home.join("bin/mpicc"), "mpi_devices.c") else { return };
    assert_devices_say(&mpi.job(&home, 3, &[], program.path()).run());
}

#[test]
fn devices_of_processes_under_mpich() {
    devices(MPICH);
}

#[test]
fn devices_of_processes_under_open_mpi() {
    devices(OPEN_MPI);
}

/// How long a job on two hosts may take.
const HOSTS_DEADLINE: Duration = Duration::from_secs(60);

/// Two processes on each of two hosts, with two devices each: rows are the devices of a process, columns and the world
/// are over both hosts.
fn grid_on_two_hosts(mpi: Mpi) {
    let Some(home) = mpi.home() else { return };
    let Some(hosts) = Hosts::new(2) else { return };
    let Some(program) = build_with_ours(home.join("bin/mpicc"), "mpi_grid.c") else { return };
    let folder = Folder::new("agent");
    let job = mpi.job_over(&home, &hosts, &hosts.agent(folder.path()), 2, program.path());
    let outcome = job.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P").deadline(HOSTS_DEADLINE).run();
    hosts.assert_empty();
    for (process, thread) in (0..4).flat_map(|process| [(process, 0), (process, 1)]) {
        assert_says(&outcome, &format!("thread {thread} of process {process}: 0 sums are wrong"));
    }
    let stdout = &outcome.ranks[0].stdout;
    for text in ["eth0:10.9.0.1<", "eth0:10.9.0.2<", "via NET/Socket/0", "via P2P/"] {
        assert!(stdout.contains(text), "nothing says '{text}'\n{outcome}");
    }
}

#[test]
fn a_grid_on_two_hosts_under_mpich() {
    grid_on_two_hosts(MPICH);
}

#[test]
fn a_grid_on_two_hosts_under_open_mpi() {
    grid_on_two_hosts(OPEN_MPI);
}

/// A program that was linked with another library, and a launcher that is told to preload this one.
fn preloaded(mpi: Mpi) {
    let Some(home) = mpi.home() else { return };
    let Some(absent) = absent_folder() else { return };
    let Some(program) = build(home.join("bin/mpicc"), "mpi_devices.c", absent.path()) else { return };
    let preload = (mpi.set)("LD_PRELOAD", &common::profile_dir().join("libnccl.so.2"));
    let job = |more: &[String]| mpi.job(&home, 3, more, program.path()).env("LD_LIBRARY_PATH", absent_first(&absent));
    let without = job(&[]).run();
    assert!(!without.ranks[0].status.success(), "{without}");
    assert_devices_say(&job(&preload).run());
}

#[test]
fn preloaded_by_mpich() {
    preloaded(MPICH);
}

#[test]
fn preloaded_by_open_mpi() {
    preloaded(OPEN_MPI);
}
