//! The rules for interfaces on hosts of our own making: network namespaces, where the system permits them.

use std::process::Command;

use nccl::bootstrap::{NetConfig, UniqueId, create_id};

use crate::ranks::{Plan, Rank, start};

/// Two hosts, h1 and h2, whose interfaces eno1 and eth0 are joined.
const TWO_HOSTS: &str = "mount -t tmpfs none /run; ip netns add h1; ip netns add h2; \
     ip link add eno1 type veth peer name eth0; ip link set eno1 netns h1; ip link set eth0 netns h2; \
     ip -n h1 link set lo up; ip -n h2 link set lo up; ip -n h1 addr add 10.9.0.1/24 dev eno1; ip -n h2 addr add 10.9.0.2/24 dev eth0; \
     ip -n h1 link set eno1 up; ip -n h2 link set eth0 up";

/// A word list that runs a program on a host whose network `setup` makes; `None` where that is not permitted.
fn host(setup: &str) -> Option<Vec<String>> {
    let probe = Command::new("unshare").args(["-Urnm", "sh", "-c", "ip link set lo up"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        let required = std::env::var("OXCCL_REQUIRE").is_ok_and(|value| value == "all");
        assert!(!required, "network namespaces are needed (unshare -Urnm, ip)");
        eprintln!("skipped: no network namespaces here (unshare -Urnm, ip)");
        return None;
    }
    let script = format!("{setup}\nexec \"$0\" \"$@\"");
    Some(["unshare", "-Urnm", "sh", "-ec", &script].map(String::from).to_vec())
}

/// A process that makes an id, and whose process carries on as all ranks: prints what `alone` says.
fn alone(setup: &str, settings: &str) -> Option<Rank> {
    alone_as("alone", setup, settings)
}

fn alone_as(task: &str, setup: &str, settings: &str) -> Option<Rank> {
    let mut plan = Plan::new(&UniqueId([0; 128]), 0, 2, task).set(settings);
    plan.wrapper = host(setup)?;
    let mut ranks = start(&[plan]);
    ranks.pop()
}

/// The address that two ranks of one host have met at.
fn met_at(setup: &str, settings: &str) -> Option<String> {
    let rank = alone(setup, settings)?;
    let line = rank.line();
    assert!(line.starts_with("met "), "{line}");
    rank.succeeds();
    Some(line["met ".len()..].to_string())
}

/// An interface with a carrier: one end of a pair, of which the other end has no address.
fn interface(name: &str, address: &str) -> String {
    let nodad = if address.contains(':') { "nodad" } else { "" };
    format!(
        "ip link add {name} type veth peer name {name}p; ip link set {name}p up; ip link set {name} up; ip addr add {address} dev {name} {nodad}; "
    )
}

fn eth0() -> String {
    format!("ip link set lo up; {}", interface("eth0", "10.7.0.1/24"))
}

#[test]
fn a_host_without_network_uses_loopback() {
    let Some(place) = met_at("ip link set lo up", "") else {
        return;
    };
    assert_eq!(place, "lo:127.0.0.1");
}

/// Not even loopback.
#[test]
fn a_host_without_any_address_says_so() {
    let Some(rank) = alone("true", "") else {
        return;
    };
    let (code, _, text) = rank.error();
    assert_eq!(code, "System");
    assert!(text.contains("not even the loopback interface"), "{text}");
}

/// An address that is good on its own link only.
#[test]
fn a_link_local_ib_interface_does_not_win() {
    let setup = eth0() + &interface("ib1", "fe80::7/64");
    let Some(place) = met_at(&setup, "") else {
        return;
    };
    assert_eq!(place, "eth0:10.7.0.1");
}

#[test]
fn interfaces_that_are_down_are_not_used() {
    let down = interface("eno1", "10.8.0.1/24");
    let setup = format!("{down} ip link set eno1 down; {}", eth0());
    let Some(place) = met_at(&setup, "") else {
        return;
    };
    assert_eq!(place, "eth0:10.7.0.1");
}

#[test]
fn a_list_of_names_works() {
    let setup = eth0() + &interface("eno7", "10.8.0.1/24");
    let Some(place) = met_at(&setup, "ifname=enp1,eno7") else {
        return;
    };
    assert_eq!(place, "eno7:10.8.0.1");
    assert_eq!(met_at(&setup, "ifname=^eno").unwrap(), "eth0:10.7.0.1");
    let (code, _, text) = alone(&setup, "ifname=10.8.0.1").unwrap().error();
    assert_eq!(code, "InvalidUsage");
    assert!(text.contains("the interface with it is eno7"), "{text}");
}

#[test]
fn ipv6_works() {
    let setup = format!("ip link set lo up; {}", interface("eth0", "2001:db8:7::1/64"));
    let Some(place) = met_at(&setup, "") else {
        return;
    };
    if place == "lo:127.0.0.1" {
        return eprintln!("skipped: no IPv6 here");
    }
    assert_eq!(place, "eth0:2001:db8:7::1");
}

/// An id whose root cannot be reached from another host: an error in bounded time that says what to look at.
#[test]
fn another_hosts_loopback_is_told() {
    let config = crate::ranks::config("ifname=lo");
    let Ok(id) = create_id(&config) else {
        return eprintln!("skipped: no loopback interface");
    };
    let Some(wrapper) = host(&eth0()) else {
        return;
    };
    let mut plan = Plan::new(&id, 1, 2, "join");
    plan.wrapper = wrapper;
    let (code, time, text) = start(&[plan])[0].error();
    assert!(code == "Remote" && text.contains("NCCL_SOCKET_IFNAME") && text.contains("loopback"), "{code} {text}");
    assert!(time < 10_000, "{time}");
}

/// No route to the root: tried for as long as the retries say, and the text has both addresses.
#[test]
fn a_root_out_of_reach_is_told() {
    let Some(wrapper) = host(&eth0()) else {
        return;
    };
    let maker = create_id(&NetConfig::default()).unwrap();
    let mut id = maker;
    id.0[12..16].copy_from_slice(&[203, 0, 113, 9]);
    let mut plan = Plan::new(&id, 1, 2, "join").set("retries=5");
    plan.wrapper = wrapper;
    let (code, time, text) = start(&[plan])[0].error();
    assert!(
        code == "Remote" && text.contains("rank 1 (eth0:10.7.0.1") && text.contains("203.0.113.9<"),
        "{code} {text}"
    );
    assert!(text.contains("Network is unreachable") && time < 20_000, "{time} {text}");
}

/// The interfaces of two hosts have different names.
#[test]
fn ranks_of_two_hosts_meet() {
    let Some(rank) = alone_as("two hosts", TWO_HOSTS, "ifname=eno1,eth0 comm_id=10.9.0.1:4000") else {
        return;
    };
    assert_eq!(rank.line(), "h1 eno1:10.9.0.1 h2 eth0:10.9.0.2");
    rank.succeeds();
    // Without a list, each takes the address from which it reaches the other.
    let rank = alone_as("two hosts", TWO_HOSTS, "comm_id=10.9.0.1:4000").unwrap();
    assert_eq!(rank.line(), "h1 eno1:10.9.0.1 h2 eth0:10.9.0.2");
    rank.succeeds();
}

/// Loopback with peers on other hosts is an error in seconds that names the rank.
#[test]
fn loopback_among_two_hosts_is_told() {
    let Some(rank) = alone_as("two hosts", TWO_HOSTS, "second_ifname=lo comm_id=10.9.0.1:4000") else {
        return;
    };
    let (code, time, text) = rank.error();
    assert_eq!(code, "InvalidUsage");
    assert!(
        text.contains("rank 1 (") && text.contains("advertises 127.0.0.1<") && text.contains("NCCL_SOCKET_IFNAME"),
        "{text}"
    );
    assert!(time < 10_000, "{time}");
}
