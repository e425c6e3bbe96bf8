//! What the machine may lack: `/dev/shm`, transports, descriptors.

use crate::common::abi::{INVALID_USAGE, REMOTE_ERROR, SUCCESS, SYSTEM_ERROR, TIMEOUT, UNHANDLED_CUDA_ERROR};
use crate::common::launch::Job;
use crate::common::need;
use crate::library::{Answer, Lib};
use crate::rank::{DEADLINE, FILES, ID, all_told, answers, hex, ranks};

/// Ranks that run `script` before they become `rank::one_rank`; the id's root lives here.
fn ranks_behind(program: &str, arguments: &[&str], n: usize) -> Job {
    let exe = std::env::current_exe().expect("the path of the running test");
    let test = ["rank::one_rank", "--exact", "--nocapture", "--test-threads=1"];
    let job = Job::program(program, n).args(arguments).args([exe.as_os_str()]).args(test);
    job.env(ID, hex(&Lib::load().id())).deadline(DEADLINE).allow_any_warning()
}

/// Ranks in mount namespaces of their own, in which `script` has prepared `/dev/shm`.
fn with_mounts(script: &str, n: usize) -> Job {
    let script = format!("{script} && exec \"$0\" \"$@\"");
    ranks_behind("unshare", &["-Urm", "sh", "-c", &script], n)
}

fn may_unshare() -> bool {
    let probe = std::process::Command::new("unshare").args(["-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    let works = probe.is_ok_and(|output| output.status.success()).then_some(());
    need::need("user namespaces with mounts (unshare -Urm)", works).is_some()
}

#[test]
fn the_state_of_dev_shm_does_not_matter() {
    if !may_unshare() {
        return;
    }
    let full = "mount -t tmpfs -o size=64k tmpfs /dev/shm && dd if=/dev/zero of=/dev/shm/x bs=64k count=1 2>/dev/null";
    let states = [
        ("full", full),
        ("tiny", "mount -t tmpfs -o size=16k tmpfs /dev/shm"),
        ("read-only", "mount -t tmpfs -o ro tmpfs /dev/shm"),
        ("missing", "mount -t tmpfs tmpfs /dev && test ! -e /dev/shm"),
    ];
    for (name, script) in states {
        println!("{name}");
        all_told(with_mounts(script, 2).env("NCCL_P2P_DISABLE", "1"), SUCCESS, &[]);
    }
}

#[test]
fn no_transport_at_all() {
    // Without memory there are sockets, on one host, too.
    let off = |job: Job| job.env("NCCL_P2P_DISABLE", "1").env("NCCL_SHM_DISABLE", "1");
    all_told(off(ranks(2)), SUCCESS, &[]);
    let job = off(ranks(2)).env("OXCCL_TRANSPORTS", "p2p,shm");
    all_told(job, INVALID_USAGE, &["no transport between rank", "NCCL_SHM_DISABLE"]);
    // On one rank alone: its neighbours cannot do without, either.
    let job = ranks(3).env_of(1, "NCCL_P2P_DISABLE", "1").env_of(1, "NCCL_SHM_DISABLE", "1");
    let job = job.env("OXCCL_TRANSPORTS", "p2p,shm");
    all_told(job, INVALID_USAGE, &["no transport between rank", "NCCL_SHM_DISABLE"]);
}

/// Ranks that may open only so many more descriptors than they have before the creation.
#[test]
fn few_descriptors() {
    for files in numbers() {
        for answer in limited(ranks(2).env(FILES, files.to_string()), files) {
            assert!(
                [SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, REMOTE_ERROR].contains(&answer.code),
                "{files} files: {answer:?}"
            );
            // The software device says that memory is out, since it is made of files.
            let named = ["open files", "Cuda failure", "left collective"].iter().any(|text| answer.text.contains(text));
            assert!(answer.code == SUCCESS || named, "{files} files: {answer:?}");
        }
    }
}

/// One such rank: the other is told, but for the case that the poor one cannot open a single connection.
#[test]
fn few_descriptors_on_one_rank() {
    for files in numbers() {
        let job = ranks(2).env_of(1, FILES, files.to_string()).env("OXCCL_BOOTSTRAP_TIMEOUT", "3");
        let told = limited(job, files);
        if told[1].code != SUCCESS {
            assert!([REMOTE_ERROR, TIMEOUT].contains(&told[0].code), "{files} files: {told:?}");
            assert!(told[0].text.contains("rank 1"), "{files} files: {told:?}");
        }
    }
}

/// Numbers of descriptors, from none for a single socket to enough for all.
fn numbers() -> impl Iterator<Item = u32> {
    (1..if need::long() { 24 } else { 10 }).step_by(if need::long() { 1 } else { 2 })
}

/// What the ranks of such a job say; none may crash.
fn limited(job: Job, files: u32) -> Vec<Answer> {
    let outcome = job.run();
    for (rank, one) in outcome.ranks.iter().enumerate() {
        assert_eq!(one.signal(), None, "{files} files, rank {rank}:\n{outcome}");
    }
    let told = answers(&outcome);
    println!("{files} more files: {told:?}");
    told
}
