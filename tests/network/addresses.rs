//! The address of every host that the ranks use, over networks of many shapes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Place};
use crate::gateway;
use crate::logged::{assert_says, job, texts};
use crate::member::{self, Member};

/// What stands on every host beside its eth0: a bridge for containers, with the same address everywhere, and a pair of
/// which one end has a link-local address only.
fn container_bridges(hosts: usize) -> String {
    let one = |host| {
        format!(
            "ip -n h{host} link add docker0 type bridge; ip -n h{host} link add veth1 type veth peer name c1; \
             ip -n h{host} link set veth1 master docker0 up; ip -n h{host} link set c1 up; \
             ip -n h{host} link add veth2 type veth peer name c2; ip -n h{host} link set veth2 up; \
             ip -n h{host} link set c2 up; ip -n h{host} addr add 172.17.0.1/16 dev docker0; \
             ip -n h{host} link set docker0 up; "
        )
    };
    (1..=hosts).map(one).collect()
}

fn v4(hosts: usize) -> String {
    (1..=hosts).map(|host| format!("ip -n h{host} addr add 10.9.0.{host}/24 dev eth0; ")).collect()
}

/// Two ranks on two hosts, and the addresses at which they must have met.
fn meet(hosts: &Hosts, job: Job, at: [&str; 2]) {
    let outcome = hosts.place(job, &[0, 1], true).run();
    outcome.assert_ok();
    for (rank, at) in at.into_iter().enumerate() {
        assert_says(&outcome, rank, &format!("Bootstrap: Using {at}<0>"));
        let lines = texts(&outcome, rank);
        let used = lines.iter().find(|line| line.starts_with("NET/Socket : Using")).expect("a line");
        assert!(used.starts_with(&format!("NET/Socket : Using [0]{at}<0>")), "{used}");
        assert!(!["172.17.0.1", "fe80", "127.0.0.1"].iter().any(|other| used.contains(other)), "{used}");
    }
    assert_says(&outcome, 0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0");
}

#[test]
fn two_subnets() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let setup = "ip -n h1 addr add 10.1.0.1/24 dev eth0; ip -n h2 addr add 10.2.0.1/24 dev eth0; \
         ip -n h3 addr add 10.1.0.254/24 dev eth0; ip -n h3 addr add 10.2.0.254/24 dev eth0; \
         ip -n h1 route add default via 10.1.0.254; ip -n h2 route add default via 10.2.0.254; \
         ip netns exec h3 sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'; ";
    let Some(hosts) = Hosts::with(3, setup) else { return };
    meet(&hosts, job("addresses::two_subnets", 2), ["eth0:10.1.0.1", "eth0:10.2.0.1"]);
}

#[test]
fn ipv6_alone() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    for network in ["2001:db8:9::", "fd00:9::"] {
        let one = |host| format!("ip -n h{host} addr add {network}{host}/64 dev eth0 nodad; ");
        let Some(hosts) = Hosts::with(2, &(1..=2).map(one).collect::<String>()) else { return };
        let at = [1, 2].map(|host| format!("eth0:{network}{host}"));
        meet(&hosts, job("addresses::ipv6_alone", 2), [&at[0], &at[1]]);
    }
}

#[test]
fn ipv6_where_ipv4_is_there_too() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let one = |host| format!("ip -n h{host} addr add 2001:db8:9::{host}/64 dev eth0 nodad; ");
    let setup = v4(2) + &(1..=2).map(one).collect::<String>();
    let Some(hosts) = Hosts::with(2, &setup) else { return };
    let test = || job("addresses::ipv6_where_ipv4_is_there_too", 2);
    meet(&hosts, test(), ["eth0:10.9.0.1", "eth0:10.9.0.2"]);
    let v6 = test().env("NCCL_SOCKET_FAMILY", "AF_INET6");
    meet(&hosts, v6, ["eth0:2001:db8:9::1", "eth0:2001:db8:9::2"]);
}

#[test]
fn small_and_large_packets() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    for mtu in [1400, 9000] {
        let one = |host| format!("ip link set v{host} mtu {mtu}; ip -n h{host} link set eth0 mtu {mtu}; ");
        let setup = v4(2) + &(1..=2).map(one).collect::<String>();
        let Some(hosts) = Hosts::with(2, &setup) else { return };
        meet(&hosts, job("addresses::small_and_large_packets", 2), ["eth0:10.9.0.1", "eth0:10.9.0.2"]);
    }
}

#[test]
fn bridges_for_containers_are_not_for_ranks() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let Some(hosts) = Hosts::with(2, &(container_bridges(2) + &v4(2))) else { return };
    let test = || job("addresses::bridges_for_containers_are_not_for_ranks", 2);
    let expected = ["eth0:10.9.0.1", "eth0:10.9.0.2"];
    for filter in ["", "^docker0", "^docker,lo", "=eth0", "eth"] {
        let test = if filter.is_empty() { test() } else { test().env("NCCL_SOCKET_IFNAME", filter) };
        meet(&hosts, test, expected);
    }
}

/// All but docker0, where the only other address is one of IPv6.
#[test]
fn all_but_docker0_over_ipv6() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let one = |host| format!("ip -n h{host} addr add fd00:9::{host}/64 dev eth0 nodad; ");
    let setup = container_bridges(2) + &(1..=2).map(one).collect::<String>();
    let Some(hosts) = Hosts::with(2, &setup) else { return };
    for filter in ["^docker0", "eth0"] {
        let test = job("addresses::all_but_docker0_over_ipv6", 2).env("NCCL_SOCKET_IFNAME", filter);
        meet(&hosts, test, ["eth0:fd00:9::1", "eth0:fd00:9::2"]);
    }
}

/// The interfaces have different names; on the second host the first name is that of a network of its own.
#[test]
fn names_that_differ_between_hosts() {
    if let Some(me) = launch::child() {
        return member::body(&me);
    }
    let setup = "ip -n h1 addr add 10.9.0.1/24 dev eth0; ip -n h2 link set eth0 down; \
         ip -n h2 link set eth0 name ens5; ip -n h2 link set ens5 up; ip -n h2 addr add 10.9.0.2/24 dev ens5; \
         ip -n h2 link add eth0 type veth peer name other; ip -n h2 link set other up; ip -n h2 link set eth0 up; \
         ip -n h2 addr add 192.168.77.1/24 dev eth0; ";
    let Some(hosts) = Hosts::with(2, setup) else { return };
    for filter in ["eth0,ens5", "ens5,eth0", "=eth0,ens5", "^docker0"] {
        let test = job("addresses::names_that_differ_between_hosts", 2).env("NCCL_SOCKET_IFNAME", filter);
        meet(&hosts, test, ["eth0:10.9.0.1", "ens5:10.9.0.2"]);
    }
}

/// A rank that others cannot reach is named in seconds, with the interfaces that there are.
#[test]
fn an_address_that_others_cannot_reach_is_told() {
    if let Some(me) = launch::child() {
        let failure = Member::join(&me, "id").err().expect("one of two cannot be reached");
        return println!("FAILED {}", failure.text.replace('\n', " "));
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let test = job("addresses::an_address_that_others_cannot_reach_is_told", 2).allow_any_warning();
    let outcome = hosts.place(test.env_of(1, "NCCL_SOCKET_IFNAME", "lo"), &[0, 1], true).run();
    outcome.assert_ok();
    for rank in &outcome.ranks {
        let told = rank.stdout.lines().find(|line| line.contains("FAILED ")).expect("an error");
        let parts = ["rank 1 (", "advertises 127.0.0.1<", "NCCL_SOCKET_IFNAME"];
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
        assert!(rank.elapsed < Duration::from_secs(20), "{outcome}");
    }
    let warnings = outcome.ranks[1].warnings().join("\n");
    assert!(warnings.contains("lo:127.0.0.1") && warnings.contains("eth0:10.9.0.2"), "{warnings}");
}

/// Two hosts with the same address behind a bridge, as containers have that Docker does not publish.
#[test]
fn two_hosts_with_one_address_are_told() {
    if let Some(me) = launch::child() {
        let failure = Member::join(&me, "id").err().expect("they cannot meet");
        return println!("FAILED {}", failure.text.replace('\n', " "));
    }
    let setup = "ip -n h1 addr add 172.17.0.2/16 dev eth0; ip -n h2 addr add 172.17.0.2/16 dev eth0; ";
    let Some(hosts) = Hosts::with(2, setup) else { return };
    let test = job("addresses::two_hosts_with_one_address_are_told", 2).allow_any_warning();
    let outcome = hosts.place(test.env("OXCCL_BOOTSTRAP_TIMEOUT", "3"), &[0, 1], true).run();
    outcome.assert_ok();
    let told = outcome.ranks[1].stdout.lines().find(|line| line.contains("FAILED ")).expect("an error");
    let parts = ["rank 1 (eth0:172.17.0.2", "172.17.0.2<"];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    assert!(outcome.ranks.iter().all(|rank| rank.elapsed < Duration::from_secs(60)), "{outcome}");
}

/// Who listens in this network namespace, by TCP: addresses as the kernel writes them, and ports.
fn listeners() -> BTreeSet<(String, u16)> {
    let text: String =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|file| std::fs::read_to_string(file).unwrap_or_default()).concat();
    let listener = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (address, port) = words.get(1)?.split_once(':')?;
        (*words.get(3)? == "0A").then(|| (address.to_string(), u16::from_str_radix(port, 16).unwrap_or(0)))
    };
    text.lines().filter_map(listener).collect()
}

/// What a rank does while somebody looks at all listeners of its host. The other ranks join when those of rank 0 have
/// been seen: its root's, that of its rendezvous, that for messages.
fn watched(me: &Place) -> BTreeSet<(String, u16)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let (mut seen, mut published) = (BTreeSet::new(), me.rank > 0);
            loop {
                let last = over.load(Ordering::Relaxed);
                seen.extend(listeners());
                if !published && seen.len() >= 3 {
                    me.publish("seen", b"");
                    published = true;
                }
                if last {
                    return seen;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        if me.rank > 0 {
            me.await_published("seen");
        }
        let member = Member::join(me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(member.sum(0, 1), me.nranks as u32);
        over.store(true, Ordering::Relaxed);
        let seen = watch.join().expect("the watch ends");
        member.end();
        seen
    })
}

/// As a firewall would see it: all listeners of a host, from beginning to end, are at the chosen address, and have
/// ports of the range.
#[test]
fn listeners_keep_to_address_and_ports() {
    if let Some(me) = launch::child() {
        let seen = watched(&me);
        println!("rank {} saw {seen:?}", me.rank);
        let address = format!("{:08X}", u32::from_ne_bytes([10, 9, 0, me.rank as u8 + 1]));
        assert!(!seen.is_empty(), "{seen:?}");
        assert!(seen.iter().all(|(at, port)| *at == address && (41_999..=42_007).contains(port)), "{seen:?}");
        return;
    }
    let Some(hosts) = Hosts::with(2, &(container_bridges(2) + &v4(2))) else { return };
    let test = || job("addresses::listeners_keep_to_address_and_ports", 2).env("OXCCL_PORT_RANGE", "42000-42007");
    meet(&hosts, test(), ["eth0:10.9.0.1", "eth0:10.9.0.2"]);
    meet(&hosts, test().env("NCCL_COMM_ID", "10.9.0.1:41999"), ["eth0:10.9.0.1", "eth0:10.9.0.2"]);
}

#[test]
fn a_range_without_a_free_port_and_nonsense_are_told() {
    if let Some(me) = launch::child() {
        let failure = Member::join(&me, "id").err().expect("no port is left");
        return println!("FAILED {}", failure.text.replace('\n', " "));
    }
    for (variable, value, text) in [
        ("OXCCL_PORT_RANGE", "47150-47150", "OXCCL_PORT_RANGE=47150-47150"),
        ("OXCCL_PORT_RANGE", "47150:47160", "OXCCL_PORT_RANGE='47150:47160'"),
        ("OXCCL_ADVERTISE", "some.host", "OXCCL_ADVERTISE='some.host'"),
        ("NCCL_SOCKET_IFNAME", "none7", "NCCL_SOCKET_IFNAME='none7'"),
        ("NCCL_SOCKET_IFNAME", "10.0.0.5", "looks like an address"),
    ] {
        let test = job("addresses::a_range_without_a_free_port_and_nonsense_are_told", 1).allow_any_warning();
        let outcome = test.env(variable, value).run();
        let told = outcome.ranks[0].stdout.lines().find(|line| line.contains("FAILED ")).expect("an error");
        assert!(told.contains(text), "{told}");
    }
}

/// Hosts behind a gateway that do not reach each other but by its addresses.
#[test]
fn an_address_of_a_gateway_is_advertised() {
    if let Some(me) = launch::child() {
        if me.rank == 2 {
            gateway::publish_ports(&me);
            return;
        }
        me.await_published("gateway");
        let member = Member::join_of(&me, 2, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
        (0..3).for_each(|round| assert_eq!(member.sum(round, 1), 2));
        member.end();
        return me.publish(&format!("over.{}", me.rank), b"");
    }
    let Some(hosts) = gateway::hosts() else { return };
    for fixed in [None, Some("10.77.0.1:42999")] {
        let test = job("addresses::an_address_of_a_gateway_is_advertised", 3);
        let test = fixed.into_iter().fold(test, |test, at| test.env("NCCL_COMM_ID", at));
        let outcome = gateway::place(&hosts, test).run();
        outcome.assert_ok();
        assert!(texts(&outcome, 0).iter().any(|line| line.contains("others are told 10.77.0.1<")), "{outcome}");
        assert_says(&outcome, 0, "Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0");
    }
}
