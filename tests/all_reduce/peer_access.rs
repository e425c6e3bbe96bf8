//! Which ranks write to each other's devices: what processes see of the machine, and what lies between devices.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::bind::Api;
use crate::common::launch::{self, Job, Outcome, Place};
use crate::common::oracle::{DataType, RedOp};
use crate::data::{Case, Member};

/// Where a process sees one device only, that is its own.
fn body(me: &Place) {
    let api = Api::load();
    let seen = api.cuda.device_count().expect("devices");
    api.cuda.use_device(me.rank % seen).expect("a device");
    let member = Member::new(&api, api.init(me.nranks, api.meet(me, "id"), me.rank), me.rank, me.nranks);
    let cases = [(DataType::Float32, 1000), (DataType::Uint8, 1), (DataType::Float64, 100_003)];
    member.run(&cases.map(|(data, count)| Case::plain(data, RedOp::Sum, count)));
    member.end();
}

fn logged(name: &str, n: usize) -> Job {
    Job::this_test(name, n).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM")
}

/// The same where each process sees its own device only, as under Slurm and Ray.
fn each_sees_its_own(job: Job, n: usize) -> Job {
    (0..n).fold(job, |job, rank| job.env_of(rank, "CUDA_VISIBLE_DEVICES", rank.to_string()))
}

/// By which transports a rank has links, as it says: "1 by P2P/IPC, 1 by SHM/direct".
fn links(outcome: &Outcome, rank: usize) -> String {
    let said = &outcome.ranks[rank].stdout;
    let line = said.lines().find_map(|line| line.split_once(" has links with ")).unwrap_or_else(|| panic!("{outcome}"));
    let (_, list) = line.1.split_once('(').unwrap_or_else(|| panic!("{outcome}"));
    list.trim_end_matches(')').to_string()
}

#[test]
fn devices_that_the_other_processes_do_not_see() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let outcome = each_sees_its_own(logged("peer_access::devices_that_the_other_processes_do_not_see", 3), 3).run();
    outcome.assert_ok();
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), ["2 by P2P/IPC"; 3]);
    // Devices by their numbers on the machine: each process has its own as its first.
    assert!(outcome.ranks[1].stdout.contains("Channel 00/0 : 1[1] -> 2[2] via P2P/IPC"), "{outcome}");
}

/// The pair that cannot use peer memory takes host memory, the others do not.
#[test]
fn two_devices_without_access() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let job = || logged("peer_access::two_devices_without_access", 3).env("SOFTCUDA_LINKS", "1-2:none");
    // The driver says so; where each process sees its own device only, mapping fails.
    let unseen = each_sees_its_own(job(), 3).env("NCCL_P2P_LEVEL", "SYS");
    for (outcome, told) in [(job().run(), false), (unseen.run(), true)] {
        outcome.assert_ok();
        let mixed = "1 by P2P/IPC, 1 by SHM/direct";
        assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), ["2 by P2P/IPC", mixed, mixed]);
        let line = "P2P does not work between rank 1 (device ";
        assert_eq!([0, 1, 2].map(|rank| outcome.ranks[rank].stdout.contains(line)), [false, told, false], "{outcome}");
    }
}

/// Runs with links between devices that do not do what the driver says; the lower rank of such a pair warns, once.
fn lying(name: &str, links: &str, words: &str) -> Outcome {
    let job = logged(name, 3).env("SOFTCUDA_LINKS", links).allow_warning("P2P does not work between rank ");
    let outcome = job.run();
    outcome.assert_ok();
    let of = |rank: usize| {
        let said = outcome.ranks[rank].stdout.lines();
        said.filter(|line| line.contains("WARN") && line.contains(words) && line.contains("ACS")).count()
    };
    assert_eq!([0, 1, 2].map(of), [1, 0, 0], "{outcome}");
    outcome
}

#[test]
fn a_device_whose_writes_are_lost() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let words = "rank 0 (device 0, busId 10000) and rank 2 (device 2, busId 12000): what one writes does not arrive at";
    let outcome = lying("peer_access::a_device_whose_writes_are_lost", "0-2:lost", words);
    let mixed = "1 by P2P/IPC, 1 by SHM/direct";
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), [mixed, "2 by P2P/IPC", mixed]);
}

#[test]
fn a_device_whose_writes_are_lost_for_all() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let words = "rank 1 (device 1, busId 11000), rank 2 (device 2, busId 12000): what one writes does not arrive at";
    let outcome = lying("peer_access::a_device_whose_writes_are_lost_for_all", "0-*:lost", words);
    let mixed = "1 by P2P/IPC, 1 by SHM/direct";
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), ["2 by SHM/direct", mixed, mixed]);
}

/// Copies that take longer than anybody waits.
#[test]
fn a_device_that_does_not_answer() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let words = "rank 0 (device 0, busId 10000) and rank 1 (device 1, busId 11000): copies do not end within 5 s";
    let outcome = lying("peer_access::a_device_that_does_not_answer", "0-1:stall@9000ms", words);
    let mixed = "1 by P2P/IPC, 1 by SHM/direct";
    assert_eq!([0, 1, 2].map(|rank| links(&outcome, rank)), [mixed, mixed, "2 by P2P/IPC"]);
}

/// Where the software devices are in the PCI tree of [`Sysfs`]: 0 and 1 at one switch, 2 at another one below the same
/// root port, 3 at another host bridge, 4 at another CPU.
const PLACES: [(&str, &str); 5] = [
    ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:10:00.0", "0"),
    ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:11:00.0", "0"),
    ("pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:12:00.0", "0"),
    ("pci0000:40/0000:40:01.0/0000:13:00.0", "0"),
    ("pci0000:80/0000:80:01.0/0000:14:00.0", "1"),
];

/// A sysfs that says so; the folder goes when this is dropped.
struct Sysfs(PathBuf);

impl Sysfs {
    fn new(name: &str) -> Sysfs {
        let sysfs = Sysfs(std::env::temp_dir().join(format!("oxccl-sysfs-{}-{name}", std::process::id())));
        let links = sysfs.0.join("bus/pci/devices");
        fs::create_dir_all(&links).expect("a folder");
        for (path, node) in PLACES {
            let device = sysfs.0.join("devices").join(path);
            fs::create_dir_all(&device).expect("a folder");
            fs::write(device.join("numa_node"), node).expect("a file");
            symlink(&device, links.join(Path::new(path).file_name().expect("a name"))).expect("a link");
        }
        sysfs
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How many peers each rank reaches by peer memory.
fn by_peer_memory(outcome: &Outcome) -> Vec<u32> {
    let count = |rank| {
        let list = links(outcome, rank);
        list.split(", ").find_map(|part| part.strip_suffix(" by P2P/IPC")?.parse().ok()).unwrap_or(0)
    };
    (0..outcome.ranks.len()).map(count).collect()
}

#[test]
fn devices_that_are_far_from_each_other() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let sysfs = Sysfs::new("far");
    for (level, expected) in [
        (None, [2, 2, 2, 0, 0]),
        (Some("LOC"), [0; 5]),
        (Some("NVL"), [0; 5]),
        (Some("PIX"), [1, 1, 0, 0, 0]),
        (Some("1"), [1, 1, 0, 0, 0]),
        (Some("PXB"), [2, 2, 2, 0, 0]),
        (Some("PHB"), [3, 3, 3, 3, 0]),
        (Some("SYS"), [4; 5]),
        (Some("near"), [2, 2, 2, 0, 0]),
    ] {
        let job = logged("peer_access::devices_that_are_far_from_each_other", 5).env("OXCCL_SYSFS", &sysfs.0);
        let job = job.env("SOFTCUDA_LINKS", "*-*:pcie");
        let outcome = level.into_iter().fold(job, |job, level| job.env("NCCL_P2P_LEVEL", level)).run();
        outcome.assert_ok();
        assert_eq!(by_peer_memory(&outcome), expected, "{level:?} {outcome}");
        let told = "P2P is not used between rank 0 and rank 3 (PHB), rank 4 (SYS): farther than PXB (NCCL_P2P_LEVEL)";
        assert_eq!(outcome.ranks[0].stdout.contains(told), level.is_none_or(|level| ["PXB", "near"].contains(&level)));
    }
}

/// NVLink counts wherever the devices are, also where no process sees two of them: NVML does.
#[test]
fn devices_on_nvlink() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let sysfs = Sysfs::new("nvlink");
    let job = || {
        let job = logged("peer_access::devices_on_nvlink", 5).env("OXCCL_SYSFS", &sysfs.0);
        job.env("SOFTCUDA_LINKS", "*-*:pcie,0-4:nvlink").env("NCCL_P2P_LEVEL", "NVL")
    };
    for job in [job(), each_sees_its_own(job(), 5)] {
        let outcome = job.run();
        outcome.assert_ok();
        assert_eq!(by_peer_memory(&outcome), [1, 0, 0, 0, 1], "{outcome}");
    }
}

/// Where sysfs does not know a device, it is as far as a CPU.
#[test]
fn devices_that_sysfs_does_not_know() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    for (level, expected) in [("PXB", [0; 2]), ("PHB", [1; 2])] {
        let job = logged("peer_access::devices_that_sysfs_does_not_know", 2).env("OXCCL_SYSFS", "/proc/self/no-such");
        let outcome = job.env("SOFTCUDA_LINKS", "0-1:pcie").env("NCCL_P2P_LEVEL", level).run();
        outcome.assert_ok();
        assert_eq!(by_peer_memory(&outcome), expected, "{outcome}");
    }
}
