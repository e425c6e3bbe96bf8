//! `NCCL_HOSTID`: it can keep ranks of a host apart, and cannot make one host of two.

use crate::common::hosts::Hosts;
use crate::common::launch::{self, Outcome};
use crate::logged::{job, texts};
use crate::member;

/// By what two ranks are connected.
fn via(outcome: &Outcome) -> String {
    outcome.assert_ok();
    let lines = texts(outcome, 0);
    let line = lines.iter().find(|line| line.contains(" 0[0] -> 1[1] ")).unwrap_or_else(|| panic!("{outcome}"));
    line.rsplit_once(" via ").expect("a transport").1.to_string()
}

#[test]
fn on_one_host() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let run = |ids: [&str; 2]| {
        let job = job("host_ids::on_one_host", 2);
        via(&job.env_of(0, "NCCL_HOSTID", ids[0]).env_of(1, "NCCL_HOSTID", ids[1]).run())
    };
    assert_eq!(run(["a", "a"]), "P2P/IPC");
    assert_eq!(run(["a", "b"]), "NET/Socket/0");
    // A name does not end at its dot.
    assert_eq!(run(["n1.east", "n1.west"]), "NET/Socket/0");
}

#[test]
fn on_hosts_that_do_not_reach_each_other() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let name = "host_ids::on_hosts_that_do_not_reach_each_other";
    assert_eq!(via(&hosts.place(job(name, 2).env("NCCL_HOSTID", "a"), &[0, 1], false).run()), "NET/Socket/0");
    // Nothing tells the namespaces apart: only trying does.
    let blind = ["sh", "-c", "mount -t tmpfs none /proc/$$/ns && exec \"$0\" \"$@\""];
    let outcome = hosts.place_under(job(name, 2).env("NCCL_HOSTID", "a"), &[0, 1], false, &blind).run();
    assert_eq!(via(&outcome), "NET/Socket/0");
    assert!(texts(&outcome, 0).iter().any(|line| line.contains("cannot open the other's socket")), "{outcome}");
    // And it does not keep apart who can reach each other.
    let outcome = hosts.place_under(job(name, 2).env("NCCL_HOSTID", "a"), &[0, 0], false, &blind).run();
    assert_ne!(via(&outcome), "NET/Socket/0");
}
