//! The log of a job, and the lines that people look for in it.

use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Outcome};
use crate::member;

/// A job that logs all that has to do with networks.
pub fn job(name: &str, nranks: usize) -> Job {
    Job::this_test(name, nranks).env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,NET,BOOTSTRAP,P2P,SHM")
}

/// What a rank has logged, without what stands before the text.
pub fn texts(outcome: &Outcome, rank: usize) -> Vec<String> {
    let lines = outcome.ranks[rank].stdout.lines();
    lines.filter_map(|line| line.split_once(" NCCL INFO ")).map(|(_, text)| text.to_string()).collect()
}

/// Fails unless a rank has logged a line.
#[track_caller]
pub fn assert_says(outcome: &Outcome, rank: usize, text: &str) {
    assert!(texts(outcome, rank).iter().any(|line| line == text), "rank {rank} does not say '{text}'\n{outcome}");
}

#[test]
fn what_people_look_for() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let outcome = hosts.place(job("logged::what_people_look_for", 3), &[0, 1, 1], true).run();
    outcome.assert_ok();
    let infiniband = std::path::Path::new("/sys/class/infiniband").exists();
    for (rank, host) in [(0, 1), (1, 2), (2, 2)] {
        assert_says(&outcome, rank, &format!("Bootstrap: Using eth0:10.9.0.{host}<0>"));
        assert_says(&outcome, rank, &format!("NET/Socket : Using [0]eth0:10.9.0.{host}<0>"));
        assert_says(&outcome, rank, "NET/Plugin: Could not find: libnccl-net.so");
        if !infiniband {
            assert_says(&outcome, rank, "NET/IB : No device found.");
        }
        assert_says(&outcome, rank, "Using network Socket");
    }
    assert_says(&outcome, 0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0");
    assert_says(&outcome, 0, "Channel 00/0 : 2[2] -> 0[0] [receive] via NET/Socket/0");
    assert_says(&outcome, 1, "Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0");
    assert_says(&outcome, 1, "Channel 00/0 : 1[1] -> 2[2] via P2P/IPC");
    assert_says(&outcome, 2, "Channel 00/0 : 2[2] -> 0[0] [send] via NET/Socket/0");
}
