//! How memory is shared, chosen by variables, and told in the log; slots and channels.

use crate::bind::Api;
use crate::common::launch::{self, Job, Outcome, Place};
use crate::common::oracle::{DataType, RedOp};
use crate::data::{Case, Member, long, seeded_rng};
use crate::rank_placement::as_threads;

/// Calls of all types, and some that are large.
fn cases(of: &str) -> Vec<Case> {
    let all = Case::of_all(&mut seeded_rng(of), 1);
    let large =
        [Case::plain(DataType::Float32, RedOp::Sum, 300_001), Case::plain(DataType::Uint8, RedOp::Max, 1 << 20)];
    let step = if long() { 1 } else { 3 };
    all.into_iter().step_by(step).chain(large).collect()
}

fn body(me: &Place, of: &str) {
    let member = Member::of_process(&Api::load(), me);
    member.run(&cases(of));
    member.end();
}

/// The lines of a rank that end so, without what stands before `Channel`.
fn routes(outcome: &Outcome, rank: usize, via: &str) -> Vec<String> {
    let lines = outcome.ranks[rank].stdout.lines().filter(|line| line.contains(" via "));
    let lines: Vec<&str> = lines.filter_map(|line| line.find("Channel").map(|at| &line[at..])).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with(via)), "rank {rank}: {lines:?}");
    lines.into_iter().map(str::to_string).collect()
}

fn logged(name: &str, n: usize) -> Job {
    Job::this_test(name, n).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM")
}

#[test]
fn inter_process_handles() {
    if let Some(me) = launch::child() {
        return body(&me, "ipc");
    }
    let outcome = logged("transports::inter_process_handles", 3).run();
    outcome.assert_ok();
    assert_eq!(routes(&outcome, 0, "via P2P/IPC"), ["Channel 00/0 : 0[0] -> 1[1] via P2P/IPC"]);
    assert_eq!(routes(&outcome, 2, "via P2P/IPC"), ["Channel 00/0 : 2[2] -> 0[0] via P2P/IPC"]);
}

#[test]
fn shared_host_memory() {
    if let Some(me) = launch::child() {
        return body(&me, "shm");
    }
    let outcome = logged("transports::shared_host_memory", 3).env("NCCL_P2P_DISABLE", "1").run();
    outcome.assert_ok();
    assert_eq!(routes(&outcome, 1, "via SHM/direct"), ["Channel 00 : 1[1] -> 2[2] via SHM/direct"]);
}

fn in_threads(of: &str) {
    let (n, id, cases) = (3, Api::load().nccl.unique_id().expect("an id"), cases(of));
    as_threads(n, |api, rank| {
        let member = Member::new(api, api.init(n, id, rank), rank, n);
        member.run(&cases);
        member.end();
    });
}

#[test]
fn pointers_of_one_process() {
    if launch::child().is_some() {
        return in_threads("pointers");
    }
    let outcome = logged("transports::pointers_of_one_process", 1).run();
    outcome.assert_ok();
    assert_eq!(routes(&outcome, 0, "via P2P/direct pointer").len(), 3);
}

#[test]
fn shared_host_memory_of_one_process() {
    if launch::child().is_some() {
        return in_threads("shm of one process");
    }
    for off in ["NCCL_P2P_DISABLE", "NCCL_P2P_DIRECT_DISABLE"] {
        let outcome = logged("transports::shared_host_memory_of_one_process", 1).env(off, "1").run();
        outcome.assert_ok();
        assert_eq!(routes(&outcome, 0, "via SHM/direct").len(), 3, "{off}");
    }
}

/// The smallest slots there are, and some larger than any call here.
#[test]
fn small_and_large_slots() {
    if let Some(me) = launch::child() {
        return body(&me, "slots");
    }
    for bytes in ["1", "40000", "16777216"] {
        Job::this_test("transports::small_and_large_slots", 2).env("NCCL_BUFFSIZE", bytes).run().assert_ok();
    }
}

/// Several channels are several blocks of a kernel.
#[test]
fn several_channels() {
    if let Some(me) = launch::child() {
        return body(&me, "channels");
    }
    for (variables, channels) in [
        (&[("NCCL_MIN_NCHANNELS", "4")][..], 4),
        (&[("NCCL_MIN_NCHANNELS", "8"), ("NCCL_MAX_NCHANNELS", "2")], 2),
        (&[("NCCL_MIN_CTAS", "3"), ("NCCL_P2P_DISABLE", "1")], 3),
    ] {
        let mut job = logged("transports::several_channels", 2);
        for (name, value) in variables {
            job = job.env(name, value);
        }
        let outcome = job.run();
        outcome.assert_ok();
        assert_eq!(routes(&outcome, 0, "").len(), channels, "{variables:?}");
        let ring = format!("Channel 00/{channels:02} : 0 1");
        assert!(outcome.ranks[0].stdout.contains(&ring), "{ring}\n{outcome}");
    }
}
