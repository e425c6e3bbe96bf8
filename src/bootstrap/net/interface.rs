//! Which interface the bootstrap listens on: NCCL's rules as a pure choice, and the list of the
//! host's interfaces.
//!
//! Without `NCCL_SOCKET_IFNAME`, a rank takes the address from which it reaches the root: a container
//! bridge that leads nowhere is never chosen by a rank that must talk to another host. The process that
//! makes the id has no such hint; it goes by names, as NCCL does, but only among addresses that others can use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use crate::bootstrap::config::{Family, InterfaceFilter};
use crate::bootstrap::id::show_ip;
use crate::error::Error;

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
    /// Switched on, and with a carrier.
    pub running: bool,
    /// The loopback interface.
    pub loopback: bool,
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

    /// An IPv6 address that is good on its own link only.
    fn link_local_v6(&self) -> bool {
        matches!(self.ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }

    /// Whether another address is in the same network.
    fn contains(&self, other: IpAddr) -> bool {
        match (self.ip, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same_prefix(&a.octets(), &b.octets(), self.prefix),
            (IpAddr::V6(a), IpAddr::V6(b)) => same_prefix(&a.octets(), &b.octets(), self.prefix),
            _ => false,
        }
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
    /// The address of `NCCL_COMM_ID`.
    pub subnet: Option<IpAddr>,
}

/// Chooses among the host's addresses.
///
/// # Errors
/// `InvalidUsage` if `NCCL_SOCKET_IFNAME` names nothing usable: the text has the names that exist, and if
/// the variable holds an address, the interface that has it. `Resource` if the host has no address at all.
pub fn choose(all: &[Interface], request: AddressRequest<'_>) -> Result<Interface, Error> {
    let usable: Vec<&Interface> =
        all.iter().filter(|one| one.running && request.family.is_none_or(|family| family.contains(one.ip))).collect();
    if let Some(filter) = request.filter {
        return choose_named(&usable, all, filter, request.route);
    }
    let routed = request.route.and_then(|route| usable.iter().find(|one| one.ip == route));
    let found = routed.or_else(|| usable.iter().min_by_key(|one| class(one, request.subnet)));
    found.map(|one| (*one).clone()).ok_or_else(|| no_address(all, request.family))
}

/// The user's list decides, in its order; within an element the route to the root, then addresses that others can use.
fn choose_named(
    usable: &[&Interface],
    all: &[Interface],
    filter: &InterfaceFilter,
    route: Option<IpAddr>,
) -> Result<Interface, Error> {
    let allowed = usable.iter().filter(|one| filter.allows(&one.name));
    let best = allowed.min_by_key(|one| {
        let position = if filter.exclude { 0 } else { filter.position(&one.name).unwrap_or(usize::MAX) };
        (
            one.link_local_v6(),
            filter.exclude && one.loopback,
            route != Some(one.ip) && filter.exclude,
            position,
            class(one, None),
        )
    });
    best.map(|one| (*one).clone()).ok_or_else(|| nothing_named(all, filter))
}

/// NCCL's order, behind the question whether others can use the address at all.
fn class(one: &Interface, subnet: Option<IpAddr>) -> (u8, u8) {
    let reach = match one.ip {
        _ if one.link_local_v6() => 3,
        _ if one.loopback => 2,
        IpAddr::V4(ip) if ip.is_link_local() => 1,
        _ => 0,
    };
    let name = match one.name.as_str() {
        name if name.starts_with("ib") => 0,
        _ if subnet.is_some_and(|subnet| one.contains(subnet)) => 1,
        name if name.starts_with("docker") => 3,
        name if name.starts_with("lo") => 4,
        name if name.starts_with("virbr") => 5,
        _ => 2,
    };
    (reach, name)
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
            "NCCL_SOCKET_IFNAME='{text}' takes interface names, and {address} looks like an address; {hint} (available: {names})"
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
    let texts: Vec<String> =
        all.iter().map(|one| if one.running { one.show() } else { format!("{} (down)", one.show()) }).collect();
    if texts.is_empty() { "none".to_string() } else { texts.join(", ") }
}

/// All addresses of the host, in the system's order.
///
/// # Errors
/// `System` if the list cannot be read.
pub fn list() -> Result<Vec<Interface>, Error> {
    let addresses = getifaddrs().map_err(|errno| Error::System {
        call: "getifaddrs",
        what: "interfaces of this host".to_string(),
        errno: errno as i32,
    })?;
    let mut all = Vec::new();
    for one in addresses {
        let Some(address) = one.address else { continue };
        let (ip, scope) = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => (IpAddr::V4(v4.ip()), 0),
            (_, Some(v6)) => (IpAddr::V6(v6.ip()), if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 }),
            _ => continue,
        };
        let mask = one.netmask.as_ref();
        let prefix = match ip {
            IpAddr::V4(_) => mask.and_then(|mask| mask.as_sockaddr_in()).map_or(32, |mask| bits_v4(mask.ip())),
            IpAddr::V6(_) => mask.and_then(|mask| mask.as_sockaddr_in6()).map_or(128, |mask| bits_v6(mask.ip())),
        };
        let running = one.flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
        let loopback = one.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        all.push(Interface { name: one.interface_name, ip, scope, prefix, running, loopback });
    }
    Ok(all)
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
