//! What the bootstrap must be told, and the pure functions that read it from text.
//!
//! Nothing here looks at the environment: the caller (params) hands over the values.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::protocol::roots::Algorithm;
use crate::error::Error;
use crate::secure::UserKey;
use crate::sys::PortRange;

/// The most bytes that a variable of the interface filter may have; the rest is ignored with a warning.
const FILTER_BYTES_MAX: usize = 1024;

/// All settings of sockets and waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetConfig {
    /// `NCCL_SOCKET_IFNAME`; `None` = choose.
    pub interfaces: Option<InterfaceFilter>,
    /// `NCCL_SOCKET_FAMILY`; `None` = any.
    pub family: Option<Family>,
    /// `NCCL_COMM_ID`: a fixed rendezvous address.
    pub comm_id: Option<CommId>,
    /// `NCCL_SOCKET_MAGIC`: goes into the magic of a fixed rendezvous.
    pub magic: Option<u64>,
    /// `NCCL_SOCKET_RETRY_CNT`: how often a connect is tried again.
    pub retry_count: u32,
    /// `NCCL_SOCKET_RETRY_SLEEP_MSEC`: the pause before try k is k times this.
    pub retry_sleep: Duration,
    /// `NCCL_SOCKET_SNDBUF` and `NCCL_SOCKET_RCVBUF` in bytes; `None` = the system's choice.
    pub buffers: (Option<usize>, Option<usize>),
    /// `OXCCL_PORT_RANGE`: first and last port that a listener may take; `None` = any. For hosts with a firewall.
    pub ports: Option<PortRange>,
    /// `OXCCL_ADVERTISE`: what others are told in place of the address that this process listens at.
    pub advertise: Option<Advertise>,
    /// `ncclSetEncryption`: the key that connections are encrypted with; `None` = without one of the user's.
    pub user_key: Option<UserKey>,
    /// `OXCCL_BOOTSTRAP_TIMEOUT`: from the first check-in until all ranks are there, and for every exchange after that;
    /// `None` = never.
    pub timeout: Option<Duration>,
    /// `OXCCL_BOOTSTRAP_ALGO`: how ranks meet and exchange blocks.
    pub algorithm: Algorithm,
    /// `NCCL_UID_STAGGER_THRESHOLD`, `NCCL_UID_STAGGER_RATE`: where a root has more ranks than the first says, no more
    /// of them connect in a second than the second says. `None`: all at once, which the root's queue takes.
    pub stagger: Option<(u32, u32)>,
    /// How often a waiting root says who is missing.
    pub progress: Duration,
    /// How long a root waits for the first rank before it gives up.
    pub root_idle: Duration,
    /// How long the root of a failed rendezvous stays to tell late ranks why.
    pub failed_linger: Duration,
}

impl Default for NetConfig {
    fn default() -> NetConfig {
        NetConfig {
            interfaces: None,
            family: None,
            comm_id: None,
            magic: None,
            retry_count: 34,
            retry_sleep: Duration::from_millis(100),
            buffers: (None, None),
            ports: None,
            advertise: None,
            user_key: None,
            timeout: None,
            algorithm: Algorithm::Tree,
            stagger: None,
            progress: Duration::from_secs(30),
            root_idle: Duration::from_secs(24 * 3600),
            failed_linger: Duration::from_secs(20),
        }
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// `AF_INET` or `AF_INET6`; anything else is `None` (NCCL then takes any family).
    pub fn parse(text: &str) -> Option<Family> {
        match text.trim() {
            "AF_INET" => Some(Family::V4),
            "AF_INET6" => Some(Family::V6),
            _ => None,
        }
    }

    /// Whether an address belongs to the family.
    pub fn contains(self, ip: IpAddr) -> bool {
        matches!((self, ip), (Family::V4, IpAddr::V4(_)) | (Family::V6, IpAddr::V6(_)))
    }
}

/// Reads `OXCCL_PORT_RANGE`: `first-last`, or one port.
///
/// # Errors
/// `InvalidArgument` that shows the text.
pub fn parse_ports(text: &str) -> Result<PortRange, Error> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port != 0);
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err(Error::InvalidArgument(format!(
            "OXCCL_PORT_RANGE='{text}' is no range of ports: write first-last, both from 1 to 65535, as in 40000-40100"
        ))),
    }
}

/// `OXCCL_ADVERTISE`: an address by which others reach this process, which it may not have itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertise {
    /// The text as the user wrote it, for messages.
    pub text: String,
    /// The address.
    pub ip: IpAddr,
    /// Name or number of the interface of a link-local IPv6 address.
    pub scope: Option<String>,
}

impl Advertise {
    /// Reads the variable.
    ///
    /// # Errors
    /// `InvalidArgument` that shows the text.
    pub fn parse(text: &str) -> Result<Advertise, Error> {
        let wrong = |why: &str| Error::InvalidArgument(format!("OXCCL_ADVERTISE='{text}': {why}"));
        let (address, scope) = match text.trim().split_once('%') {
            Some((address, scope)) => (address, Some(scope.to_string())),
            None => (text.trim(), None),
        };
        let ip: IpAddr = address
            .trim_matches(['[', ']'])
            .parse()
            .map_err(|_| wrong("write an IP address, without a port; an interface may follow after %"))?;
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        match (&scope, link_local) {
            _ if ip.is_unspecified() || ip.is_multicast() => Err(wrong("nobody can connect to this address")),
            (None, true) => {
                Err(wrong("a link-local address needs its interface: write it behind the address, as %eth0"))
            }
            (Some(scope), _) if scope.is_empty() => Err(wrong("the interface after % is missing")),
            (Some(_), false) => Err(wrong("only a link-local IPv6 address has an interface")),
            _ => Ok(Advertise { text: text.trim().to_string(), ip, scope }),
        }
    }
}

/// `NCCL_SOCKET_IFNAME`: a list of name prefixes; `=` in front means exact names, `^` all others, `^=` both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceFilter {
    /// The text as the user wrote it, for messages.
    pub text: String,
    /// Names must be equal, not only begin alike.
    pub exact: bool,
    /// The listed ones are excluded.
    pub exclude: bool,
    /// Names or prefixes, never empty strings.
    pub names: Vec<String>,
}

impl InterfaceFilter {
    /// Reads the variable. The second value has one warning per element that can never match.
    /// An empty list is no filter: `None`.
    pub fn parse(text: &str) -> (Option<InterfaceFilter>, Vec<String>) {
        let mut warnings = Vec::new();
        let mut text = text.trim();
        if text.len() > FILTER_BYTES_MAX {
            let end = (0..=FILTER_BYTES_MAX).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            text = &text[..end];
            warnings.push(format!("the interface list is longer than {FILTER_BYTES_MAX} bytes; the rest is ignored"));
        }
        let rest = text.strip_prefix('^').unwrap_or(text);
        let list = rest.strip_prefix('=').unwrap_or(rest);
        let names: Vec<String> =
            list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(String::from).collect();
        for name in names.iter().filter(|name| name.starts_with(['^', '='])) {
            let right = name.trim_start_matches(['^', '=']);
            warnings.push(format!("element '{name}' of '{text}' begins with a modifier and matches nothing; write the modifier once, in front of the list, and here '{right}'"));
        }
        if names.is_empty() {
            return (None, warnings);
        }
        let filter = InterfaceFilter {
            text: text.to_string(),
            exact: list.len() < rest.len(),
            exclude: rest.len() < text.len(),
            names,
        };
        (Some(filter), warnings)
    }

    /// Whether an interface of this name may be used.
    pub fn allows(&self, name: &str) -> bool {
        self.position(name).is_some() != self.exclude
    }

    /// The first element that the name matches.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|wanted| if self.exact { name == wanted } else { name.starts_with(wanted.as_str()) })
    }

    /// The first element that is an address, where the variable takes names.
    pub fn address(&self) -> Option<IpAddr> {
        self.names.iter().find_map(|name| name.trim_matches(['[', ']']).parse().ok())
    }
}

/// `NCCL_COMM_ID`: where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommId {
    /// `<ipv4>:<port>` or `[<ipv6>]:<port>`.
    Address(SocketAddr),
    /// `<host>:<port>` or `<interface>:<port>`; resolved when it is used.
    Name(String, u16),
}

impl CommId {
    /// Reads the variable.
    ///
    /// # Errors
    /// `InvalidArgument` that shows the text and the three forms.
    pub fn parse(text: &str) -> Result<CommId, Error> {
        let text = text.trim();
        let wrong = |why: &str| {
            Error::InvalidArgument(format!(
                "NCCL_COMM_ID='{text}': {why}; write <ipv4>:<port>, [<ipv6>]:<port> or <host>:<port>"
            ))
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("there is no port"))?;
        let port: u16 = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| wrong("the port is not a number from 1 to 65535"))?;
        if let Some(inner) = host.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(|| wrong("']' is missing"))?;
            return match text.parse::<SocketAddr>() {
                Ok(address) => Ok(CommId::Address(address)),
                Err(_) if inner.contains('%') => Ok(CommId::Name(inner.to_string(), port)),
                Err(_) => Err(wrong("what stands between the brackets is not an IPv6 address")),
            };
        }
        if let Ok(ip) = host.parse::<std::net::Ipv4Addr>() {
            return Ok(CommId::Address(SocketAddr::new(IpAddr::V4(ip), port)));
        }
        if host.is_empty() {
            return Err(wrong("there is no host"));
        }
        if host.contains([':', '[', ']']) {
            return Err(wrong("an IPv6 address must stand in brackets"));
        }
        Ok(CommId::Name(host.to_string(), port))
    }
}
