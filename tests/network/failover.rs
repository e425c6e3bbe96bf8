//! An interface that fails while data go by it: its streams go another way, and nothing is lost.

use std::process::Command;
use std::time::Duration;

use crate::common::hosts::Hosts;
use crate::common::launch::{self, Place};
use crate::common::nccl::TEST_KEY;
use crate::interfaces::{second_interfaces, sent, start};
use crate::member::Member;

/// What both ranks may say, once for each way, and where messages went by it.
const STILL: &str = "messages do not get there, but data do";
const WARNING: &str = "does not lead there any more";

/// Sums until it is told to end; `left`: the interface that goes on. `fail`: what rank 1 does when sums go on.
fn body(me: &Place, left: &str, fail: impl FnOnce()) {
    let member = Member::join(me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
    (0..10).for_each(|round| assert_eq!(member.sum(round, 1), me.nranks as u32));
    me.barrier("sums");
    if me.rank == 1 {
        fail();
    }
    let before = sent(left).expect("an interface");
    member.sum_until(me, "end");
    assert!(sent(left).is_some_and(|after| after > before + 100_000), "{left} carries everything now");
    member.end();
}

/// Two hosts with two interfaces each; `fail` happens while ranks sum.
fn goes_on(name: &str, envs: &[(&str, &str)], fail: impl FnOnce(&Hosts)) {
    let Some(hosts) = Hosts::with(2, &second_interfaces(&[(1, 1), (2, 1)])) else { return };
    let running = start(name, &hosts).with(envs).allow_warning(WARNING).allow_warning(STILL).start();
    let place = Place { dir: running.dir().to_path_buf(), rank: 2, nranks: 2 };
    (0..2).for_each(|rank| drop(place.await_published(&format!("sums.{rank}"))));
    fail(&hosts);
    // Longer than it takes to notice that nobody answers.
    std::thread::sleep(Duration::from_secs(6));
    place.publish("end", b"");
    let outcome = running.wait();
    outcome.assert_ok();
    let warnings: Vec<usize> = outcome.ranks.iter().map(|rank| rank.warnings().len()).collect();
    assert!(warnings.iter().all(|count| (1..=3).contains(count)), "{warnings:?}\n{outcome}");
}

#[test]
fn an_interface_that_is_taken_down() {
    if let Some(me) = launch::child() {
        return body(&me, "eth0", || {
            assert!(Command::new("ip").args(["link", "set", "eth1", "down"]).status().is_ok_and(|down| down.success()));
        });
    }
    goes_on("failover::an_interface_that_is_taken_down", &[], |_| {});
}

/// Both interfaces have a carrier, and nothing arrives.
#[test]
fn a_network_that_swallows_everything() {
    if let Some(me) = launch::child() {
        return body(&me, "eth0", || {});
    }
    goes_on("failover::a_network_that_swallows_everything", &[], |hosts| hosts.change("ip link set br1 down"));
}

/// The same where data are encrypted, and the network comes back.
#[test]
fn a_network_that_comes_back() {
    if let Some(me) = launch::child() {
        return body(&me, "eth0", || {});
    }
    let key = "k".repeat(40);
    goes_on("failover::a_network_that_comes_back", &[(TEST_KEY, &key)], |hosts| {
        for state in ["down", "up", "down"] {
            hosts.change(&format!("ip link set br1 {state}"));
            std::thread::sleep(Duration::from_secs(3));
        }
    });
}

/// Messages go by the first interface alone: whoever is watched by them is not gone as long as its data come.
#[test]
fn a_first_interface_that_fails() {
    if let Some(me) = launch::child() {
        return body(&me, "eth1", || {});
    }
    let heartbeat = ("OXCCL_HEARTBEAT", "3");
    goes_on("failover::a_first_interface_that_fails", &[heartbeat], |hosts| hosts.change("ip link set br0 down"));
}
