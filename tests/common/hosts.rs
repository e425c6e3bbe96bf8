//! Hosts of a test's own: network namespaces on a bridge, where the system permits them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::launch::Job;
use super::{need, procfs};

/// How long [`Hosts::assert_empty`] waits for programs that are on their way out.
const SETTLE: Duration = Duration::from_secs(5);

/// What makes a host of a namespace: libraries know hosts by their names, or by when they were started.
fn identity(host: &str) -> String {
    format!("hostname {host}; mount --bind /run/boot_id.{host} /proc/sys/kernel/random/boot_id")
}

/// The words that go before a program that is to see that.
fn named(host: usize) -> [String; 5] {
    let script = format!("{}; exec \"$0\" \"$@\"", identity(&format!("h{}", host + 1)));
    ["unshare", "-u", "sh", "-c", &script].map(String::from)
}

/// Hosts h1, h2, ..., with addresses 10.9.0.1, 10.9.0.2, ... on eth0, by which they know each other's names. They go
/// when this is dropped.
pub struct Hosts {
    holder: Child,
    count: usize,
}

impl Hosts {
    /// Some hosts; none where the system does not permit namespaces, which is a failure where everything is required.
    ///
    /// # Panics
    /// If `unshare` cannot be started.
    pub fn new(count: usize) -> Option<Hosts> {
        let address = |host| {
            format!("ip -n h{host} addr add 10.9.0.{host}/24 dev eth0; echo 10.9.0.{host} h{host} >> /run/hosts; ")
        };
        let setup = "echo 127.0.0.1 localhost > /run/hosts; mount --bind /run/hosts /etc/hosts; ".to_string();
        Hosts::with(count, &(setup + &(1..=count).map(address).collect::<String>()))
    }

    /// Hosts whose eth0 are on one bridge, br0, by their other ends v1, v2, ...; `setup` gives them their addresses: a
    /// shell script whose failure fails the test.
    ///
    /// # Panics
    /// If `unshare` cannot be started, or the script fails.
    pub fn with(count: usize, setup: &str) -> Option<Hosts> {
        let mut probe = Command::new("unshare");
        probe.args(["-Urnm", "sh", "-c", "ip link set lo up && command -v nsenter"]);
        let permitted = probe.output().is_ok_and(|output| output.status.success());
        let needed = |there: bool| {
            need::need("network namespaces on a bridge (unshare -Urnm, nsenter, ip)", there.then_some(()))
        };
        needed(permitted)?;
        let mut script = "mount -t tmpfs none /run; ip link add br0 type bridge; ip link set br0 up; ".to_string();
        for host in 1..=count {
            script += &format!(
                "ip netns add h{host}; ip link add v{host} type veth peer name eth0 netns h{host}; \
                 ip link set v{host} master br0 up; ip -n h{host} link set eth0 up; ip -n h{host} link set lo up; \
                 echo 00000000-0000-4000-8000-{host:012} > /run/boot_id.h{host}; "
            );
        }
        script += &format!("echo made; {setup} echo ready; exec sleep 3600");
        let mut command = Command::new("unshare");
        command.args(["-Urnm", "sh", "-ec", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        let mut holder = command.spawn().expect("unshare starts");
        let mut lines = BufReader::new(holder.stdout.take().expect("stdout is piped")).lines();
        let hosts = Hosts { holder, count };
        let mut says = |word: &str| matches!(lines.next(), Some(Ok(line)) if line == word);
        needed(says("made"))?;
        assert!(says("ready"), "the hosts cannot be set up: {setup}");
        Some(hosts)
    }

    /// A program on a host, from 0.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let enter = self.enter(host);
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg(program);
        command
    }

    /// Changes what is between the hosts: a shell script that runs where the bridges are.
    ///
    /// # Panics
    /// If it fails.
    pub fn change(&self, script: &str) {
        let holder = self.holder.id().to_string();
        let enter = ["--preserve-credentials", "-U", "-m", "-n", "-t", &holder, "sh", "-ec", script];
        let status = Command::new("nsenter").args(enter).status().expect("nsenter starts");
        assert!(status.success(), "what is between the hosts cannot be changed: {script}");
    }

    /// What goes before a command so that it runs on a host.
    fn enter(&self, host: usize) -> Vec<String> {
        assert!(host < self.count, "there is no host {host}");
        let (holder, name) = (self.holder.id().to_string(), format!("h{}", host + 1));
        let words =
            ["nsenter", "--preserve-credentials", "-U", "-m", "-n", "-t", &holder, "ip", "netns", "exec", &name];
        words.map(String::from).to_vec()
    }

    /// Puts a job's ranks on hosts: the host of each rank, from 0. Each host has an identity of its own if `apart`;
    /// else they are containers of one host.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn place(&self, job: Job, places: &[usize], apart: bool) -> Job {
        self.place_under(job, places, apart, &[])
    }

    /// The same where each rank is started on its host by another program with the rank's as argument.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn place_under(&self, job: Job, places: &[usize], apart: bool, under: &[&str]) -> Job {
        places.iter().enumerate().fold(job, |job, (rank, host)| {
            let (enter, name) = (self.enter(*host), format!("h{}", host + 1));
            let job = job.under(rank, enter.iter().map(String::as_str).chain(under.iter().copied()));
            if apart { job.env_of(rank, "NCCL_HOSTID", &name) } else { job }
        })
    }

    /// Puts each rank on a host that differs from the others by its name and its boot id, as machines do: what a rank
    /// starts is there, too.
    ///
    /// # Panics
    /// If there is no such host.
    pub fn place_named(&self, job: Job, places: &[usize]) -> Job {
        places
            .iter()
            .enumerate()
            .fold(job, |job, (rank, host)| job.under(rank, self.enter(*host).into_iter().chain(named(*host))))
    }

    /// Puts the cable of a host back, or pulls it.
    ///
    /// # Panics
    /// If the system does not do so.
    pub fn plug(&self, host: usize, plugged: bool) {
        assert!(host < self.count, "there is no host {host}");
        let (holder, cable) = (self.holder.id().to_string(), format!("v{}", host + 1));
        let mut command = Command::new("nsenter");
        command.args(["--preserve-credentials", "-U", "-m", "-n", "-t", &holder, "ip", "link", "set", &cable]);
        let status = command.arg(if plugged { "up" } else { "down" }).status().expect("nsenter starts");
        assert!(status.success(), "the cable of host {host} stays as it is");
    }

    /// Writes a program that does for launchers on a host what ssh does: `enter [-x] HOST COMMAND...`.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn agent(&self, folder: &Path) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let file = folder.join("enter");
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = -x ] && shift\nhost=$1\nshift\n\
             exec ip netns exec $host unshare -u sh -c \"{}; $*\"\n",
            identity("$host")
        );
        fs::write(&file, text).expect("the folder can be written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a file's mode can be set");
        file
    }

    /// Fails unless all programs on the hosts end within five seconds.
    ///
    /// # Panics
    /// With what is left.
    pub fn assert_empty(&self) {
        let until = Instant::now() + SETTLE;
        loop {
            let left = self.programs();
            if left.is_empty() {
                return;
            }
            let told = || left.iter().map(|pid| procfs::describe(*pid)).collect::<String>();
            assert!(Instant::now() < until, "left behind on the hosts:\n{}", told());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The processes on all hosts.
    pub fn programs(&self) -> Vec<u32> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        let own = namespace(self.holder.id());
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        processes.filter(|pid| *pid != self.holder.id() && namespace(*pid) == own).collect()
    }
}

/// Spreads a job over as many hosts as `OXCCL_TEST_HOSTS` says, one rank after the other: so that any test can be run
/// among hosts. Jobs that are placed otherwise stay where they are.
///
/// # Panics
/// If the variable is no number.
pub fn spread(job: Job) -> (Job, Option<Hosts>) {
    let Some(count) = std::env::var_os("OXCCL_TEST_HOSTS") else { return (job, None) };
    let count: usize =
        count.to_str().and_then(|text| text.parse().ok()).expect("OXCCL_TEST_HOSTS is a number of hosts");
    let (nranks, placed) = job.shape();
    let Some(hosts) = (nranks > 1 && count > 1 && !placed).then(|| Hosts::new(count)).flatten() else {
        return (job, None);
    };
    let places: Vec<usize> = (0..nranks).map(|rank| rank % count).collect();
    (hosts.place(job, &places, true), Some(hosts))
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
