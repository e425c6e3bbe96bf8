//! Jobs that an MPI's launcher starts.

use std::path::{Path, PathBuf};

use super::hosts::Hosts;
use super::launch::Job;
use super::need;

/// An MPI that a script in `scripts/` installs.
#[derive(Clone, Copy)]
pub struct Mpi {
    /// For folders and messages.
    pub name: &'static str,
    variable: &'static str,
    how: &'static str,
    /// What lets more processes start than there are cores, and hands them `LD_LIBRARY_PATH`.
    options: &'static [&'static str],
    /// What sets a variable for the processes alone.
    pub set: fn(&str, &Path) -> Vec<String>,
    /// What starts so many processes on each of these hosts by a program in place of ssh, over eth0.
    over: fn(&Path, &str, usize) -> Vec<String>,
}

/// MPICH.
pub const MPICH: Mpi = Mpi {
    name: "mpich",
    variable: "OXCCL_MPI_HOME",
    how: "scripts/install-mpich.sh DIR installs MPICH there",
    options: &[],
    set: |name, value| vec!["-genv".into(), name.into(), value.display().to_string()],
    over: |agent, hosts, each| {
        let (agent, each) = (agent.display().to_string(), each.to_string());
        let options = ["-iface", "eth0", "-launcher", "ssh", "-launcher-exec", &agent, "-hosts", hosts, "-ppn", &each];
        options.map(String::from).into()
    },
};
/// Open MPI.
pub const OPEN_MPI: Mpi = Mpi {
    name: "open-mpi",
    variable: "OXCCL_OPENMPI_HOME",
    how: "scripts/install-openmpi.sh DIR installs Open MPI there",
    options: &["--oversubscribe", "-x", "LD_LIBRARY_PATH"],
    set: |name, value| vec!["-x".into(), format!("{name}={}", value.display())],
    over: |agent, hosts, each| {
        let hosts = hosts.split(',').map(|host| format!("{host}:{each}")).collect::<Vec<_>>().join(",");
        let (agent, map) = (agent.display().to_string(), format!("ppr:{each}:node"));
        let launcher = ["--prtemca", "plm_ssh_agent", &agent, "--prtemca", "prte_if_include", "eth0"];
        let program = ["--mca", "btl_tcp_if_include", "eth0", "--host", &hosts, "--map-by", &map];
        launcher.into_iter().chain(program).map(String::from).collect()
    },
};

impl Mpi {
    /// Where it is installed, or a skip.
    pub fn home(self) -> Option<PathBuf> {
        need::path_in(self.variable, self.how)
    }

    /// `mpiexec -n N`, with more options before the program.
    pub fn job(self, home: &Path, processes: usize, more: &[String], program: &Path) -> Job {
        let job = Job::program(home.join("bin/mpiexec"), 1).args(["-n", &processes.to_string()]);
        let job = job.args(self.options).args(more).args([program]);
        // Open MPI does not start as root otherwise; the other one does not know them.
        job.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    }
    /// The same with as many processes on each of two hosts; it starts them from the first one, by `agent` (see
    /// [`Hosts::agent`]).
    pub fn job_over(self, home: &Path, hosts: &Hosts, agent: &Path, each: usize, program: &Path) -> Job {
        let more = (self.over)(agent, "h1,h2", each);
        hosts.place_named(self.job(home, 2 * each, &more, program), &[0])
    }
}
