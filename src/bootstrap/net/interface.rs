//! Which interfaces sockets use: NCCL's rules as a pure choice, and the list of the host's interfaces.
//!
//! What decides is, in this order: whether others can use the address at all, the address from which the root is
//! reached, the place in `NCCL_SOCKET_IFNAME`, and then the name, as in NCCL. So a container bridge that leads nowhere
//! is never chosen by a rank that must talk to another host. The process that makes the id has no root to reach; it
//! goes by the rest.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use crate::bootstrap::config::{Advertise, Family, InterfaceFilter};
use crate::bootstrap::id::show_ip;
use crate::error::Error;
use crate::sys::{self, NicFacts};

/// The most interfaces that sockets use.
pub const INTERFACES_MAX: usize = 16;

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// `eth0`.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// The scope that a link-local IPv6 address needs.
    pub scope: u32,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// Switched on, with a carrier, and the address is one that no other host has.
    pub running: bool,
    /// The loopback interface.
    pub loopback: bool,
    /// It wraps packets: tun, tap, WireGuard, ipip, sit and the like.
    pub tunnel: bool,
}

/// An interface that sockets may use, for whoever spreads data over several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// `eth0`.
    pub name: String,
    /// The address, with port 0.
    pub address: SocketAddr,
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// In Mbit/s; none where the system does not know.
    pub speed: Option<u32>,
    /// The directory of its PCI device in sysfs; none where it has none.
    pub pci_path: Option<String>,
    /// The number of that device's maker.
    pub vendor: Option<u16>,
}

impl HostInterface {
    /// How NCCL prints it: `eth0:10.0.0.1<0>`.
    pub fn show(&self) -> String {
        format!("{}:{}<0>", self.name, show_ip(self.address.ip()))
    }
}

impl Interface {
    /// The address with a port.
    pub fn at(&self, port: u16) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, self.scope)),
        }
    }

    /// How NCCL prints it: `eth0:10.0.0.1`.
    pub fn show(&self) -> String {
        format!("{}:{}", self.name, show_ip(self.ip))
    }

    /// Whether ranks of other hosts may find this one here, as far as the address and the interface tell.
    pub fn is_for_others(&self) -> bool {
        self.reach() == AddressReach::Others
    }

    fn reach(&self) -> AddressReach {
        match self.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => AddressReach::LinkV6,
            _ if self.tunnel => AddressReach::Tunnel,
            _ if self.loopback || self.ip.is_loopback() => AddressReach::Host,
            IpAddr::V4(ip) if ip.is_link_local() => AddressReach::LinkV4,
            _ => AddressReach::Others,
        }
    }

    fn is_unique_local(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unique_local())
    }

    /// A bridge, or one end of a pair, by which a host reaches its own containers: by name, as they cannot be told from
    /// those that lead outside.
    fn is_container_bridge(&self) -> bool {
        let docker_network = self
            .name
            .strip_prefix("br-")
            .is_some_and(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        docker_network || CONTAINER_BRIDGES.iter().any(|bridge| self.name.starts_with(bridge))
    }

    /// Whether another address is in the same network.
    fn contains(&self, other: IpAddr) -> bool {
        same_network(self.ip, other, self.prefix)
    }
}

const CONTAINER_BRIDGES: [&str; 9] = ["docker", "podman", "veth", "cni", "cali", "flannel", "lxcbr", "lxdbr", "virbr"];

/// Who can use an address; the best come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressReach {
    /// Other hosts, as far as can be known.
    Others,
    /// Hosts on the same wire, where nobody gave addresses.
    LinkV4,
    /// This host alone.
    Host,
    /// Who is at the other end of a tunnel: slow, and mostly of another purpose.
    Tunnel,
    /// Hosts on the same wire, each with a number of its own for the interface: an id cannot say it.
    LinkV6,
}

/// Whether two addresses are in one network of so many bits of prefix.
pub fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same_prefix(&a.octets(), &b.octets(), prefix),
        (IpAddr::V6(a), IpAddr::V6(b)) => same_prefix(&a.octets(), &b.octets(), prefix),
        _ => false,
    }
}

fn same_prefix(a: &[u8], b: &[u8], bits: u8) -> bool {
    let whole = usize::from(bits / 8).min(a.len());
    let rest = bits % 8;
    a[..whole] == b[..whole] && (rest == 0 || whole == a.len() || (a[whole] ^ b[whole]) >> (8 - rest) == 0)
}

/// What guides the choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct AddressRequest<'a> {
    /// `NCCL_SOCKET_IFNAME`.
    pub filter: Option<&'a InterfaceFilter>,
    /// `NCCL_SOCKET_FAMILY`.
    pub family: Option<Family>,
    /// The local address from which the root is reached.
    pub route: Option<IpAddr>,
    /// The root's address, where the user has given it.
    pub subnet: Option<IpAddr>,
}

impl AddressRequest<'_> {
    fn usable<'i>(&self, all: &'i [Interface]) -> Vec<&'i Interface> {
        let fits = |one: &&Interface| {
            one.running
                && self.family.is_none_or(|family| family.contains(one.ip))
                && self.filter.is_none_or(|filter| filter.allows(&one.name))
        };
        let mut usable: Vec<&Interface> = all.iter().filter(fits).collect();
        // Stable: the rest is the system's order.
        usable.sort_by_key(|one| self.key(one));
        usable
    }

    /// Whether the user has named an interface: then it may be what is else the last resort.
    fn names(&self, name: &str) -> bool {
        self.filter.is_some_and(|filter| !filter.exclude && filter.position(name).is_some())
    }

    fn reach(&self, one: &Interface) -> AddressReach {
        let named = self.names(&one.name);
        match one.reach() {
            AddressReach::Tunnel if named => AddressReach::Others,
            AddressReach::Tunnel => AddressReach::Tunnel,
            // Where the root is, the others are.
            _ if self.route == Some(one.ip) => AddressReach::Others,
            reach => reach,
        }
    }

    /// The order of addresses.
    fn key(&self, one: &Interface) -> (AddressReach, bool, usize, bool, bool, u8) {
        let listed = self.filter.filter(|filter| !filter.exclude);
        (
            self.reach(one),
            self.route != Some(one.ip),
            listed.and_then(|filter| filter.position(&one.name)).unwrap_or(0),
            !self.names(&one.name) && one.is_container_bridge(),
            one.is_unique_local(),
            self.class(one),
        )
    }

    /// NCCL's order of names.
    fn class(&self, one: &Interface) -> u8 {
        match one.name.as_str() {
            name if name.starts_with("ib") => 0,
            _ if self.subnet.is_some_and(|subnet| one.contains(subnet)) => 1,
            name if name.starts_with("docker") => 3,
            name if name.starts_with("lo") => 4,
            name if name.starts_with("virbr") => 5,
            _ => 2,
        }
    }
}

/// Chooses among the host's addresses.
///
/// # Errors
/// `InvalidUsage` if `NCCL_SOCKET_IFNAME` names nothing usable: the text has the names that exist, and if
/// the variable holds an address, the interface that has it. `Resource` if the host has no address at all.
pub fn choose(all: &[Interface], request: AddressRequest<'_>) -> Result<Interface, Error> {
    let first = request.usable(all).into_iter().next().cloned();
    first.ok_or_else(|| match request.filter {
        Some(filter) => nothing_named(all, filter),
        None => no_address(all, request.family),
    })
}

/// All interfaces that sockets may use, by the same rules, each with its best address; the first is the one that
/// [`choose`] gives. What others cannot use is left out where there is something better and nobody has named it, and so
/// is an interface of a network that an earlier one is in: the system sends by one of them anyway. That both are
/// devices of their own makes an exception. [`INTERFACES_MAX`] at most.
///
/// # Errors
/// As [`choose`].
pub fn choose_all(
    all: &[Interface],
    request: AddressRequest<'_>,
    facts: impl Fn(&Interface) -> NicFacts,
) -> Result<Vec<HostInterface>, Error> {
    let best = choose(all, request)?;
    let standing = |one: &Interface| (request.reach(one), !request.names(&one.name) && one.is_container_bridge());
    let mut taken: Vec<(&Interface, NicFacts)> = Vec::new();
    for one in request.usable(all).into_iter().filter(|one| standing(one) <= standing(&best)) {
        let known = taken.iter().any(|(other, _)| other.name == one.name || other.ip == one.ip);
        if known || taken.len() == INTERFACES_MAX {
            continue;
        }
        let facts = facts(one);
        let apart = |other: &NicFacts| facts.pci.is_some() && other.pci.is_some() && facts.pci != other.pci;
        if !taken.iter().any(|(other, nic)| other.contains(one.ip) && !apart(nic)) {
            taken.push((one, facts));
        }
    }
    let plain = |(one, facts): (&Interface, NicFacts)| HostInterface {
        name: one.name.clone(),
        address: one.at(0),
        prefix: one.prefix,
        speed: facts.speed,
        vendor: facts.vendor,
        pci_path: facts.pci.map(|path| path.display().to_string()),
    };
    Ok(taken.into_iter().map(plain).collect())
}

/// What the system knows of an interface of [`list`].
pub fn facts(one: &Interface) -> NicFacts {
    if_nametoindex(one.name.as_str()).map(|index| NicFacts::read(&one.name, index)).unwrap_or_default()
}

/// What to say where a rank has an address that ranks of other hosts cannot use, and the root is on another host;
/// none where that is not so.
pub fn out_of_reach(all: &[Interface], chosen: &Interface, root: IpAddr) -> Option<String> {
    let here = root.is_loopback() || all.iter().any(|one| one.ip == root);
    let unseen = matches!(chosen.reach(), AddressReach::Host | AddressReach::LinkV6);
    (!here && unseen).then(|| {
        format!(
            "the ranks meet at {}, on another host, and all that may be used here is {}, which other hosts cannot \
             reach: set NCCL_SOCKET_IFNAME to an interface that all hosts share (available: {})",
            show_ip(root),
            chosen.show(),
            available(all)
        )
    })
}

/// The address that others are told.
///
/// # Errors
/// `InvalidArgument` where the interface of a link-local address is none of this host's.
pub fn advertised(advertise: &Advertise, port: u16) -> Result<SocketAddr, Error> {
    let scope = match &advertise.scope {
        None => 0,
        Some(scope) => scope.parse().or_else(|_| if_nametoindex(scope.as_str())).map_err(|_| {
            let names = list().map_or(String::new(), |all| available(&all));
            Error::InvalidArgument(format!(
                "OXCCL_ADVERTISE='{}': this host has no interface '{scope}' (available: {names})",
                advertise.text
            ))
        })?,
    };
    Ok(match advertise.ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    })
}

fn nothing_named(all: &[Interface], filter: &InterfaceFilter) -> Error {
    let text = &filter.text;
    let names = available(all);
    if let Some(address) = filter.address() {
        let owner = all.iter().find(|one| one.ip == address);
        let hint = owner.map_or("no interface of this host has it".to_string(), |one| {
            format!("the interface with it is {}", one.name)
        });
        return Error::InvalidUsage(format!(
            "NCCL_SOCKET_IFNAME='{text}' takes interface names, and {address} looks like an address; {hint} \
             (available: {names})"
        ));
    }
    let down: Vec<String> =
        all.iter().filter(|one| filter.allows(&one.name) && !one.running).map(|one| one.name.clone()).collect();
    let why = if down.is_empty() {
        "matches no interface with a usable address".to_string()
    } else {
        format!("matches only interfaces that are down: {}", down.join(", "))
    };
    Error::InvalidUsage(format!("NCCL_SOCKET_IFNAME='{text}' {why} (available: {names})"))
}

fn no_address(all: &[Interface], family: Option<Family>) -> Error {
    let family = match family {
        Some(Family::V4) => "IPv4 address (NCCL_SOCKET_FAMILY=AF_INET)",
        Some(Family::V6) => "IPv6 address (NCCL_SOCKET_FAMILY=AF_INET6)",
        None => "IP address",
    };
    Error::Resource(format!(
        "no network interface of this host is up and has an {family}, not even the loopback interface (available: {})",
        available(all)
    ))
}

/// `eth0:10.0.0.1, lo:127.0.0.1`: what there is.
fn available(all: &[Interface]) -> String {
    let texts = all.iter().map(|one| match (one.running, one.tunnel) {
        (false, _) => format!("{} (down)", one.show()),
        (true, true) => format!("{} (tunnel)", one.show()),
        (true, false) => one.show(),
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { "none".to_string() } else { texts.join(", ") }
}

/// All addresses of the host, in the system's order.
///
/// # Errors
/// `System` if the list cannot be read.
pub fn list() -> Result<Vec<Interface>, Error> {
    let read = || getifaddrs().map(Vec::from_iter);
    let addresses: Vec<InterfaceAddress> = read().map_err(|errno| Error::System {
        call: "getifaddrs",
        what: "interfaces of this host".to_string(),
        errno: errno as i32,
    })?;
    let unready = sys::unready_addresses();
    let mut all: Vec<Interface> = Vec::new();
    for one in &addresses {
        let Some((ip, scope, prefix)) = address_of(one) else { continue };
        let up = one.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
        let known = all.iter().find(|known| known.name == one.interface_name).map(|known| known.tunnel);
        all.push(Interface {
            name: one.interface_name.clone(),
            ip,
            scope,
            prefix,
            running: up && !matches!(ip, IpAddr::V6(ip) if unready.contains(&ip)),
            loopback: one.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            tunnel: known.unwrap_or_else(|| is_tunnel(&addresses, &one.interface_name)),
        });
    }
    Ok(all)
}

/// The address, with its scope and the bits of its prefix; none where it is something else.
fn address_of(one: &InterfaceAddress) -> Option<(IpAddr, u32, u8)> {
    let address = one.address.as_ref()?;
    let mask = one.netmask.as_ref();
    if let Some(v4) = address.as_sockaddr_in() {
        let prefix = mask.and_then(|mask| mask.as_sockaddr_in()).map_or(32, |mask| bits_v4(mask.ip()));
        return Some((IpAddr::V4(v4.ip()), 0, prefix));
    }
    let v6 = address.as_sockaddr_in6()?;
    let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
    let prefix = mask.and_then(|mask| mask.as_sockaddr_in6()).map_or(128, |mask| bits_v6(mask.ip()));
    Some((IpAddr::V6(v6.ip()), scope, prefix))
}

/// Every interface has an entry that tells its kind.
fn is_tunnel(addresses: &[InterfaceAddress], name: &str) -> bool {
    let link = addresses.iter().filter(|one| one.interface_name == name).find_map(|one| {
        one.address.as_ref().and_then(|address| address.as_link_addr()).map(|link| (link.hatype(), link.ifindex()))
    });
    let (kind, index) = link.unwrap_or_default();
    sys::is_tunnel(name, kind, index as u32)
}

fn bits_v4(mask: Ipv4Addr) -> u8 {
    u32::from(mask).leading_ones() as u8
}

fn bits_v6(mask: Ipv6Addr) -> u8 {
    u128::from(mask).leading_ones() as u8
}

/// The local address from which a remote one is reached: asks the system's routes, sends nothing.
pub fn route_to(remote: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr =
        if remote.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let probe = std::net::UdpSocket::bind(any).ok()?;
    probe.connect(remote).ok()?;
    Some(probe.local_addr().ok()?.ip())
}
