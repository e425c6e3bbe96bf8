//! Hosts with several interfaces: all that are fast and lead to the other host share the data, and one that does not
//! lead there is left out.

use std::fs;

use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Outcome, Place};
use crate::logged::{assert_says, job, texts};
use crate::member::Member;

/// Calls of a rank, and the least bytes that each interface carries of them where two share the data.
const ROUNDS: u32 = 40;
const SHARE: u64 = ROUNDS as u64 * 4000;

/// eth0 of all hosts on one bridge, and eth1 of some, each on the bridge of a number.
pub fn second_interfaces(bridges: &[(usize, usize)]) -> String {
    let mut script =
        (1..=2).map(|host| format!("ip -n h{host} addr add 10.9.0.{host}/24 dev eth0; ")).collect::<String>();
    let mut made: Vec<usize> = Vec::new();
    for (host, bridge) in bridges {
        if !made.contains(bridge) {
            script += &format!("ip link add br{bridge} type bridge; ip link set br{bridge} up; ");
            made.push(*bridge);
        }
        script += &format!(
            "ip link add w{host} type veth peer name eth1 netns h{host}; ip link set w{host} master br{bridge} up; \
             ip -n h{host} link set eth1 up; ip -n h{host} addr add 10.10.0.{host}/24 dev eth1; "
        );
    }
    script
}

/// Bytes that an interface of this host has sent; none where there is no such interface.
pub fn sent(name: &str) -> Option<u64> {
    let table = fs::read_to_string("/proc/net/dev").expect("the table of interfaces");
    let line = table.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().nth(8)?.parse().ok()
}

/// Sums, and says how much each interface has sent meanwhile.
fn body(me: &Place) {
    let member = Member::join(me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
    member.sum(0, 1);
    let before = ["eth0", "eth1"].map(sent);
    (1..ROUNDS).for_each(|round| assert_eq!(member.sum(round, 1), me.nranks as u32));
    me.barrier("summed");
    for (name, before) in ["eth0", "eth1"].into_iter().zip(before) {
        let after = sent(name);
        println!("{name} {}", after.zip(before).map_or(0, |(after, before)| after - before));
    }
    member.end();
}

pub fn start(name: &str, hosts: &Hosts) -> Job {
    // Messages of a few kilobytes are shared, too.
    hosts.place(job(name, 2).env("NCCL_SOCKET_MIN_TASKSIZE", "1024"), &[0, 1], true)
}

/// How much a rank has sent by each interface.
fn bytes(outcome: &Outcome, rank: usize) -> [u64; 2] {
    ["eth0", "eth1"].map(|name| {
        let lines = outcome.ranks[rank].stdout.lines();
        let mut said = lines.filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        said.next().unwrap_or_else(|| panic!("rank {rank} says nothing of {name}\n{outcome}"))
    })
}

#[test]
fn two_interfaces_share_the_data() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let Some(hosts) = Hosts::with(2, &second_interfaces(&[(1, 1), (2, 1)])) else { return };
    let outcome = start("interfaces::two_interfaces_share_the_data", &hosts).run();
    outcome.assert_ok();
    assert_says(&outcome, 0, "NET/Socket : Using [0]eth0:10.9.0.1<0> [1]eth1:10.10.0.1<0>");
    for rank in 0..2 {
        let sent = bytes(&outcome, rank);
        assert!(sent.iter().all(|bytes| *bytes > SHARE), "rank {rank}: {sent:?}\n{outcome}");
    }
}

#[test]
fn a_host_with_one_interface_and_one_with_two() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let Some(hosts) = Hosts::with(2, &second_interfaces(&[(2, 1)])) else { return };
    let outcome = start("interfaces::a_host_with_one_interface_and_one_with_two", &hosts).run();
    outcome.assert_ok();
    assert_says(&outcome, 0, "NET/Socket : Using [0]eth0:10.9.0.1<0>");
    assert_says(&outcome, 1, "NET/Socket : Using [0]eth0:10.9.0.2<0> [1]eth1:10.10.0.2<0>");
    assert!((0..2).all(|rank| bytes(&outcome, rank)[0] > SHARE), "{outcome}");
}

/// Both hosts have a network of the same addresses, but it is not the same one.
#[test]
fn an_interface_that_leads_nowhere_is_left_out() {
    if let Some(me) = launch::child() {
        return body(&me);
    }
    let Some(hosts) = Hosts::with(2, &second_interfaces(&[(1, 1), (2, 2)])) else { return };
    let warning = "cannot be reached";
    let outcome = start("interfaces::an_interface_that_leads_nowhere_is_left_out", &hosts).allow_warning(warning).run();
    outcome.assert_ok();
    for (rank, (other, own)) in [("10.10.0.2", "10.10.0.1"), ("10.10.0.1", "10.10.0.2")].into_iter().enumerate() {
        let warnings: Vec<&str> = outcome.ranks[rank].warnings();
        let about =
            |line: &&&str| line.contains(other) && line.contains(&format!("from {own}")) && line.contains(warning);
        assert_eq!((warnings.len(), warnings.iter().filter(about).count()), (1, 1), "rank {rank}\n{outcome}");
        assert!(texts(&outcome, rank).iter().any(|line| line.contains("[1]eth1")), "{outcome}");
        assert!(bytes(&outcome, rank)[0] > 2 * SHARE, "{outcome}");
    }
}
