//! Jobs of two MPIs: threads and devices of each process, overlapping communicators, the library linked and preloaded.

use std::path::{Path, PathBuf};

use crate::common::launch::{Job, Outcome};
use crate::common::{self, need};
use crate::{Folder, absent_first, assert_says, build_at, build_with_absent};

/// One of the two.
#[derive(Clone, Copy)]
struct Mpi {
    name: &'static str,
    variable: &'static str,
    how: &'static str,
    /// What lets more processes start than there are cores, and hands them `LD_LIBRARY_PATH`.
    options: &'static [&'static str],
    /// What sets a variable for the processes alone.
    set: fn(&str, &Path) -> Vec<String>,
}

const MPICH: Mpi = Mpi {
    name: "mpich",
    variable: "OXCCL_MPI_HOME",
    how: "scripts/install-mpich.sh DIR installs MPICH there",
    options: &[],
    set: |name, value| vec!["-genv".into(), name.into(), value.display().to_string()],
};
const OPEN_MPI: Mpi = Mpi {
    name: "open-mpi",
    variable: "OXCCL_OPENMPI_HOME",
    how: "scripts/install-openmpi.sh DIR installs Open MPI there",
    options: &["--oversubscribe", "-x", "LD_LIBRARY_PATH"],
    set: |name, value| vec!["-x".into(), format!("{name}={}", value.display())],
};

impl Mpi {
    fn home(self) -> Option<PathBuf> {
        need::path_in(self.variable, self.how)
    }

    /// `mpiexec -n N`, with more options before the program.
    fn job(self, home: &Path, processes: usize, more: &[String], program: &Path) -> Job {
        let job = Job::program(home.join("bin/mpiexec"), 1).args(["-n", &processes.to_string()]);
        let job = job.args(self.options).args(more).args([program]);
        // Open MPI does not start as root otherwise; the other one does not know them.
        job.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    }
}

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
