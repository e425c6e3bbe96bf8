//! The choice of an interface, over tables of interfaces.

use std::net::IpAddr;

use super::interface::{AddressRequest, Interface, choose, list, route_to};
use crate::bootstrap::config::{Family, InterfaceFilter};
use crate::error::{Code, Error};

fn host(table: &[(&str, &str)]) -> Vec<Interface> {
    let one = |(name, text): &(&str, &str)| {
        let (text, running) = text.strip_prefix('-').map_or((*text, true), |rest| (rest, false));
        let (ip, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let ip: IpAddr = ip.parse().unwrap();
        Interface {
            name: (*name).to_string(),
            ip,
            scope: 0,
            prefix: prefix.parse().unwrap(),
            running,
            loopback: ip.is_loopback(),
        }
    };
    table.iter().map(one).collect()
}

fn named(table: &[(&str, &str)], text: &str) -> Result<String, Error> {
    let (filter, _) = InterfaceFilter::parse(text);
    choose(&host(table), AddressRequest { filter: filter.as_ref(), ..AddressRequest::default() }).map(|one| one.show())
}

fn default(table: &[(&str, &str)]) -> String {
    choose(&host(table), AddressRequest::default()).unwrap().show()
}

#[test]
fn without_a_filter_names_decide_among_usable_addresses() {
    // NCCL's order: ib*, then anything but docker*, lo, virbr*, then those.
    assert_eq!(
        default(&[("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("eth0", "10.0.0.1"), ("ib0", "10.1.0.1")]),
        "ib0:10.1.0.1"
    );
    assert_eq!(default(&[("lo", "127.0.0.1"), ("docker0", "172.17.0.1"), ("eth0", "10.0.0.1")]), "eth0:10.0.0.1");
    assert_eq!(
        default(&[("lo", "127.0.0.1"), ("virbr0", "192.168.122.1"), ("docker0", "172.17.0.1")]),
        "docker0:172.17.0.1"
    );
    assert_eq!(default(&[("lo", "127.0.0.1"), ("virbr0", "192.168.122.1")]), "virbr0:192.168.122.1");
    // An address that is good on its own link only does not win by its name.
    assert_eq!(default(&[("lo", "127.0.0.1"), ("ib1", "fe80::1/64"), ("eth0", "10.0.0.1")]), "eth0:10.0.0.1");
    // A dangling veth with a link-local address only; here nothing else but lo.
    assert_eq!(default(&[("veth1", "fe80::2/64"), ("lo", "127.0.0.1")]), "lo:127.0.0.1");
    // No interface at all.
    assert_eq!(default(&[("lo", "127.0.0.1")]), "lo:127.0.0.1");
    assert_eq!(default(&[("eth1", "-10.0.0.1"), ("eth2", "10.2.0.1")]), "eth2:10.2.0.1");
    assert_eq!(default(&[("eth0", "169.254.3.4/16"), ("eth1", "10.2.0.1")]), "eth1:10.2.0.1");
    assert_eq!(default(&[("eth0", "2001:db8::1/64")]), "eth0:2001:db8::1");
}

#[test]
fn the_rendezvous_guides_the_choice() {
    let all = host(&[("eth0", "10.0.0.1/24"), ("eth1", "10.9.0.1/20"), ("docker0", "172.17.0.2/16")]);
    let by = |request: AddressRequest<'_>| choose(&all, request).unwrap().name;
    assert_eq!(by(AddressRequest { subnet: Some("10.9.15.9".parse().unwrap()), ..AddressRequest::default() }), "eth1");
    assert_eq!(by(AddressRequest { subnet: Some("10.9.16.9".parse().unwrap()), ..AddressRequest::default() }), "eth0");
    // The address from which the root is reached, whatever its name.
    assert_eq!(
        by(AddressRequest { route: Some("172.17.0.2".parse().unwrap()), ..AddressRequest::default() }),
        "docker0"
    );
    assert_eq!(by(AddressRequest { route: Some("192.0.2.1".parse().unwrap()), ..AddressRequest::default() }), "eth0");
    // A name that the user gives is stronger.
    let (filter, _) = InterfaceFilter::parse("eth");
    assert_eq!(
        by(AddressRequest {
            route: Some("172.17.0.2".parse().unwrap()),
            filter: filter.as_ref(),
            ..AddressRequest::default()
        }),
        "eth0"
    );
    let (filter, _) = InterfaceFilter::parse("^eth0");
    assert_eq!(
        by(AddressRequest {
            route: Some("172.17.0.2".parse().unwrap()),
            filter: filter.as_ref(),
            ..AddressRequest::default()
        }),
        "docker0"
    );
}

/// Four syntaxes over bond0, bond0.2973, bond0.2973.1.
#[test]
fn filters_choose_by_prefix_and_exactly() {
    let bonds = [("lo", "127.0.0.1"), ("bond0.2973.1", "10.3.0.1"), ("bond0.2973", "10.2.0.1"), ("bond0", "10.1.0.1")];
    assert_eq!(named(&bonds, "bond0").unwrap(), "bond0.2973.1:10.3.0.1");
    assert_eq!(named(&bonds, "=bond0").unwrap(), "bond0:10.1.0.1");
    assert_eq!(named(&bonds, "=bond0.2973").unwrap(), "bond0.2973:10.2.0.1");
    assert_eq!(named(&bonds, "^=bond0.2973.1").unwrap(), "bond0.2973:10.2.0.1");
    assert_eq!(named(&bonds, "^=bond0.2973.1,bond0.2973").unwrap(), "bond0:10.1.0.1");
    assert_eq!(named(&bonds, "^bond0").unwrap(), "lo:127.0.0.1");
    // A list of which each host has one.
    assert_eq!(named(&bonds, "eno1, bond0.2973.1 ,").unwrap(), "bond0.2973.1:10.3.0.1");
    assert_eq!(named(&bonds, "lo").unwrap(), "lo:127.0.0.1");
    // What the user names is used, even where only its own link can reach it.
    assert_eq!(named(&[("ib1", "fe80::1/64"), ("eth0", "10.0.0.1")], "ib").unwrap(), "ib1:fe80::1");
}

#[test]
fn a_filter_that_fits_nothing_says_what_there_is() {
    let table = [("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("eth1", "-10.0.1.1")];
    let text = |filter: &str| {
        let error = named(&table, filter).unwrap_err();
        assert_eq!(error.code(), Code::InvalidUsage);
        error.to_string()
    };
    let names = "(available: lo:127.0.0.1, eth0:10.0.0.1, eth1:10.0.1.1 (down))";
    assert_eq!(text("enp"), format!("NCCL_SOCKET_IFNAME='enp' matches no interface with a usable address {names}"));
    assert_eq!(text("eth1"), format!("NCCL_SOCKET_IFNAME='eth1' matches only interfaces that are down: eth1 {names}"));
    // An address in place of a name.
    assert_eq!(
        text("10.0.0.1"),
        format!(
            "NCCL_SOCKET_IFNAME='10.0.0.1' takes interface names, and 10.0.0.1 looks like an address; the interface with it is eth0 {names}"
        )
    );
    assert!(text("10.0.0.9").contains("no interface of this host has it"));
    assert!(named(&table, "^lo,eth").unwrap_err().to_string().contains(names));
}

#[test]
fn the_family_is_obeyed() {
    let all = host(&[("eth0", "10.0.0.1"), ("eth0", "2001:db8::1/64")]);
    let family =
        |family| choose(&all, AddressRequest { family: Some(family), ..AddressRequest::default() }).unwrap().show();
    assert_eq!(family(Family::V4), "eth0:10.0.0.1");
    assert_eq!(family(Family::V6), "eth0:2001:db8::1");
    let none = choose(&all[..1], AddressRequest { family: Some(Family::V6), ..AddressRequest::default() }).unwrap_err();
    assert!(none.to_string().contains("NCCL_SOCKET_FAMILY=AF_INET6"), "{none}");
    assert_eq!(choose(&[], AddressRequest::default()).unwrap_err().code(), Code::System);
}

#[test]
fn this_host_has_interfaces() {
    let all = list().unwrap();
    let Some(loopback) = all.iter().find(|one| one.ip == IpAddr::from([127, 0, 0, 1]) && one.running) else {
        return eprintln!("skipped: the loopback interface is down");
    };
    assert!(loopback.loopback && loopback.prefix == 8);
    assert_eq!(route_to("127.0.0.1:9".parse().unwrap()), Some(loopback.ip));
}
