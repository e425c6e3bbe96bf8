//! Jobs of two MPIs: threads and devices of each process, overlapping communicators, the library linked and preloaded.

use crate::common;
use crate::common::launch::Outcome;
use crate::common::mpi::{MPICH, Mpi, OPEN_MPI};
use crate::{Folder, absent_first, assert_says, build_at, build_with_absent};

/// Threads that are ranks of three overlapping communicators each.
fn grid(mpi: Mpi) {
    let Some(home) = mpi.home() else { return };
    let folder = Folder::new(&format!("grid-{}", mpi.name));
    let program = build_at(&home.join("bin/mpicc"), "mpi_grid.c", &folder);
    let outcome = mpi.job(&home, 2, &[], &program).run();
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
    let folder = Folder::new(&format!("devices-{}", mpi.name));
    let program = build_at(&home.join("bin/mpicc"), "mpi_devices.c", &folder);
    assert_devices_say(&mpi.job(&home, 3, &[], &program).run());
}

#[test]
fn devices_of_processes_under_mpich() {
    devices(MPICH);
}

#[test]
fn devices_of_processes_under_open_mpi() {
    devices(OPEN_MPI);
}

/// A program that was linked with another library, and a launcher that is told to preload this one.
fn preloaded(mpi: Mpi) {
    let Some(home) = mpi.home() else { return };
    let folder = Folder::new(&format!("preloaded-{}", mpi.name));
    let Some(program) = build_with_absent(home.join("bin/mpicc"), "mpi_devices.c", &folder) else { return };
    let preload = (mpi.set)("LD_PRELOAD", &common::profile_dir().join("libnccl.so.2"));
    let job = |more: &[String]| mpi.job(&home, 3, more, &program).env("LD_LIBRARY_PATH", absent_first(&folder));
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
