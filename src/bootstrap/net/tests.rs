//! The choice of an interface, over tables of interfaces.

use std::net::IpAddr;

use super::interface::{AddressRequest, Interface, advertised, choose, choose_all, list, out_of_reach, route_to};
use crate::bootstrap::config::{Advertise, Family, InterfaceFilter, parse_ports};
use crate::error::{Code, Error};
use crate::sys::NicFacts;

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
            tunnel: ["tun", "wg"].iter().any(|kind| name.starts_with(kind)),
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

/// What others cannot use comes last, whatever its name, and better addresses come first.
#[test]
fn an_address_that_others_can_use_comes_first() {
    let lo = ("lo", "127.0.0.1/8");
    assert_eq!(default(&[lo, ("eth0", "fd00::1/64"), ("eth1", "2001:db8::1/64")]), "eth1:2001:db8::1");
    assert_eq!(default(&[lo, ("eth0", "fe80::1/64"), ("eth0", "fd00::1/64")]), "eth0:fd00::1");
    assert_eq!(default(&[lo, ("eth0", "169.254.1.1/16"), ("eth0", "fd00::1/64")]), "eth0:fd00::1");
    assert_eq!(default(&[lo, ("eth0", "169.254.1.1/16")]), "eth0:169.254.1.1");
    // Tunnels, and bridges for containers; a bridge that has the host's own address is none of these.
    assert_eq!(default(&[lo, ("tun0", "10.8.0.2"), ("wg0", "10.9.0.2")]), "lo:127.0.0.1");
    assert_eq!(default(&[("tun0", "10.8.0.2"), lo, ("docker0", "172.17.0.1/16")]), "docker0:172.17.0.1");
    let docker_network = ("br-0123456789ab", "172.18.0.1/16");
    assert_eq!(default(&[docker_network, ("eth0", "fd00::1/64"), lo]), "eth0:fd00::1");
    assert_eq!(default(&[docker_network, ("br-ex", "10.0.0.1")]), "br-ex:10.0.0.1");
    // All but docker0: neither the loopback interface nor a tunnel, while there is anything else.
    let cloud = [lo, ("docker0", "172.17.0.1/16"), ("wg0", "10.9.0.2"), ("eth0", "fd00::1/64"), ("eth0", "fe80::2/64")];
    assert_eq!(named(&cloud, "^docker0").unwrap(), "eth0:fd00::1");
    assert_eq!(named(&cloud, "^=docker0,eth0").unwrap(), "lo:127.0.0.1");
    // What is named is used.
    assert_eq!(named(&cloud, "wg").unwrap(), "wg0:10.9.0.2");
    assert_eq!(named(&cloud, "docker0").unwrap(), "docker0:172.17.0.1");
    assert_eq!(named(&cloud, "lo,eth0").unwrap(), "eth0:fd00::1");
}

/// A host has both names of a list, and only one of them leads to the root.
#[test]
fn of_a_list_the_interface_that_leads_to_the_root_is_used() {
    let all = host(&[("eth0", "10.0.0.1"), ("ens5", "10.9.0.1"), ("tun0", "10.8.0.1"), ("eth0", "fe80::1/64")]);
    let (filter, _) = InterfaceFilter::parse("eth0,ens5");
    let by = |filter, route: &str| {
        let route = Some(route.parse().unwrap());
        choose(&all, AddressRequest { filter, route, ..AddressRequest::default() }).unwrap().show()
    };
    assert_eq!(by(filter.as_ref(), "10.9.0.1"), "ens5:10.9.0.1");
    assert_eq!(by(filter.as_ref(), "10.0.0.1"), "eth0:10.0.0.1");
    assert_eq!(by(filter.as_ref(), "fe80::1"), "eth0:fe80::1");
    // Through a tunnel that nobody has named.
    assert_eq!(by(filter.as_ref(), "10.8.0.1"), "eth0:10.0.0.1");
    assert_eq!(by(None, "10.8.0.1"), "eth0:10.0.0.1");
    let (filter, _) = InterfaceFilter::parse("eth0,tun");
    assert_eq!(by(filter.as_ref(), "10.8.0.1"), "tun0:10.8.0.1");
}

#[test]
fn all_interfaces_come_in_order_each_once() {
    let lo = ("lo", "127.0.0.1/8");
    let table = [
        lo,
        ("eth0", "10.0.0.1"),
        ("eth0", "2001:db8::1/64"),
        ("docker0", "172.17.0.1/16"),
        ("ib0", "10.1.0.1"),
        ("eth1", "10.0.0.2"),
        ("eth2", "10.2.0.1"),
        ("tun0", "10.8.0.1"),
        ("veth7", "fe80::7/64"),
        ("eth3", "-10.3.0.1"),
    ];
    let facts = |pci: &'static [(&str, &str)]| {
        move |one: &Interface| NicFacts {
            speed: (one.name == "ib0").then_some(100_000),
            pci: pci.iter().find(|(name, _)| *name == one.name).map(|(_, path)| (*path).into()),
            vendor: None,
        }
    };
    let all = |table: &[(&str, &str)], text: &str, pci| {
        let (filter, _) = InterfaceFilter::parse(text);
        let request = AddressRequest { filter: filter.as_ref(), ..AddressRequest::default() };
        choose_all(&host(table), request, facts(pci)).unwrap()
    };
    let shown = |table: &[(&str, &str)], text, pci| {
        all(table, text, pci).iter().map(|one| one.show()).collect::<Vec<_>>().join(" ")
    };
    // eth1 is in eth0's network, by which the system would send all the same.
    assert_eq!(shown(&table, "", &[]), "ib0:10.1.0.1<0> eth0:10.0.0.1<0> eth2:10.2.0.1<0>");
    let devices = &[("eth0", "/sys/devices/pci0000:00/0000:00:03.0"), ("eth1", "/sys/devices/pci0000:00/0000:00:04.0")];
    assert_eq!(shown(&table, "eth1,eth", devices), "eth1:10.0.0.2<0> eth0:10.0.0.1<0> eth2:10.2.0.1<0>");
    assert_eq!(shown(&table, "docker0,tun", &[]), "docker0:172.17.0.1<0> tun0:10.8.0.1<0>");
    assert_eq!(shown(&table, "^ib,eth", &[]), "docker0:172.17.0.1<0>");
    assert_eq!(shown(&[lo, ("lo", "::1/128")], "", &[]), "lo:127.0.0.1<0>");
    let first = &all(&table, "", &[])[0];
    assert_eq!((first.speed, first.address, &first.pci_path), (Some(100_000), "10.1.0.1:0".parse().unwrap(), &None));
    let many: Vec<(String, String)> = (0..20).map(|i| (format!("eth{i}"), format!("10.{i}.0.1"))).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, ip)| (name.as_str(), ip.as_str())).collect();
    assert_eq!(all(&many, "", &[]).len(), 16);
    assert!(choose_all(&host(&table), AddressRequest::default(), facts(&[])).unwrap().len() > 1);
}

/// The ranks meet on another host, and nothing here can be reached from there.
#[test]
fn an_address_out_of_reach_is_told_with_what_there_is() {
    let all = host(&[("lo", "127.0.0.1/8"), ("wg0", "10.8.0.2"), ("eth0", "fe80::1/64")]);
    let text = |chosen: usize, root: &str| out_of_reach(&all, &all[chosen], root.parse().unwrap());
    let told = text(0, "10.9.0.1").unwrap();
    for part in ["10.9.0.1", "lo:127.0.0.1", "NCCL_SOCKET_IFNAME", "wg0:10.8.0.2 (tunnel)", "eth0:fe80::1"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(text(2, "10.9.0.1").is_some());
    assert_eq!([text(0, "127.0.0.1"), text(0, "10.8.0.2"), text(1, "10.9.0.1")], [None, None, None]);
}

#[test]
fn ports_and_the_address_to_advertise_are_read() {
    assert_eq!(parse_ports("40000-40100"), Ok((40_000, 40_100)));
    assert_eq!(parse_ports(" 1 - 65535 "), Ok((1, 65_535)));
    assert_eq!(parse_ports("5000"), Ok((5000, 5000)));
    for text in ["", "0-10", "10-5", "a-b", "40000:40100", "1-65536", "-", "1-2-3", "-5"] {
        let error = parse_ports(text).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(&format!("OXCCL_PORT_RANGE='{text}'")), "{error}");
    }
    let at =
        |text: &str| Advertise::parse(text).and_then(|advertise| advertised(&advertise, 7)).map(|at| at.to_string());
    assert_eq!(at("203.0.113.5").unwrap(), "203.0.113.5:7");
    assert_eq!(at("2001:db8::5").unwrap(), "[2001:db8::5]:7");
    assert_eq!(at("[2001:db8::5]").unwrap(), "[2001:db8::5]:7");
    assert_eq!(at("fe80::5%3").unwrap(), "[fe80::5%3]:7");
    for text in
        ["host", "203.0.113.5:80", "0.0.0.0", "::", "224.0.0.1", "fe80::5", "fe80::5%", "10.0.0.1%eth0", "fe80::5%none"]
    {
        let error = at(text).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.to_string().contains(&format!("OXCCL_ADVERTISE='{text}'")), "{error}");
    }
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
