//! What the system tells of a network interface beside its addresses: the kind, the speed, the PCI device.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// Where the interfaces of the network namespace are that sysfs was mounted in.
const SYSFS: &str = "/sys/class/net";
/// The IPv6 addresses of this network namespace, with their flags.
const ADDRESSES: &str = "/proc/net/if_inet6";
/// Flags of an IPv6 address (`IFA_F_*`): a duplicate was found; it is not known yet whether there is one.
const DUPLICATE: u8 = 0x08;
const TENTATIVE: u8 = 0x40;

/// Link types (`ARPHRD_*`) of interfaces that only wrap packets: PPP, ipip, ip6tnl, sit, GRE, GRE over IPv6, and what
/// has no type of its own, as tun and WireGuard.
const TUNNELS: [u16; 7] = [512, 768, 769, 776, 778, 823, 0xfffe];
/// How tunnels are called, where the type does not tell: a tap looks like Ethernet.
const TUNNEL_NAMES: [&str; 13] =
    ["tun", "tap", "wg", "ipip", "sit", "tunl", "gre", "erspan", "ip6tnl", "ip6gre", "ppp", "utun", "tailscale"];

/// Facts of an interface that sysfs has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NicFacts {
    /// In Mbit/s; none where the driver does not know.
    pub speed: Option<u32>,
    /// The directory of its PCI device: `/sys/devices/pci0000:3a/0000:3a:00.0`.
    pub pci: Option<PathBuf>,
    /// The number of that device's maker.
    pub vendor: Option<u16>,
}

impl NicFacts {
    /// The facts of an interface with a name and a number: none where sysfs is of another network namespace, and has
    /// no such interface or another one of that name.
    pub fn read(name: &str, index: u32) -> NicFacts {
        NicFacts::read_from(Path::new(SYSFS), name, index)
    }

    fn read_from(sysfs: &Path, name: &str, index: u32) -> NicFacts {
        let Some(place) = own(sysfs, name, index) else { return NicFacts::default() };
        // An error where there is no carrier, -1 where nobody knows.
        let speed = number(&place.join("speed")).and_then(|speed| u32::try_from(speed).ok()).filter(|speed| *speed > 0);
        let device = fs::canonicalize(place.join("device")).ok();
        let is_pci =
            |path: &PathBuf| path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("pci"));
        let pci = device.filter(is_pci);
        let vendor = pci.as_ref().and_then(|pci| fs::read_to_string(pci.join("vendor")).ok());
        let vendor = vendor.and_then(|text| u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok());
        NicFacts { speed, pci, vendor }
    }
}

/// Whether an interface is a tunnel, by its link type, its name, or what sysfs says of it.
pub fn is_tunnel(name: &str, link_type: u16, index: u32) -> bool {
    let named = TUNNEL_NAMES.iter().any(|kind| {
        let rest = name.strip_prefix(kind);
        rest.is_some_and(|rest| {
            rest.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '_') || rest.is_empty()
        })
    });
    let by_driver = || {
        own(Path::new(SYSFS), name, index).is_some_and(|place| {
            let uevent = fs::read_to_string(place.join("uevent")).unwrap_or_default();
            place.join("tun_flags").exists() || uevent.lines().any(|line| line == "DEVTYPE=wireguard")
        })
    };
    TUNNELS.contains(&link_type) || named || by_driver()
}

/// The IPv6 addresses of this host that cannot be used: it is not known yet whether another host has them, or one has.
pub fn unready_addresses() -> Vec<Ipv6Addr> {
    fs::read_to_string(ADDRESSES).map(|text| text.lines().filter_map(unready).collect()).unwrap_or_default()
}

/// A line: address, number, prefix, scope, flags, all hexadecimal, and the name.
fn unready(line: &str) -> Option<Ipv6Addr> {
    let mut words = line.split_ascii_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u8::from_str_radix(words.nth(3)?, 16).ok()?;
    (flags & (DUPLICATE | TENTATIVE) != 0).then(|| Ipv6Addr::from(address))
}

/// The place of an interface in sysfs, if that is the interface.
fn own(sysfs: &Path, name: &str, index: u32) -> Option<PathBuf> {
    let place = sysfs.join(name);
    (number(&place.join("ifindex")) == Some(i64::from(index))).then_some(place)
}

fn number(file: &Path) -> Option<i64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_are_known_by_kind_and_name() {
        for name in ["tun0", "tap1", "wg0", "wg-home", "ipip0", "sit0", "tunl0", "gre1", "ppp0", "tailscale0", "wg"] {
            assert!(is_tunnel(name, 1, 0), "{name}");
        }
        for name in ["eth0", "ib0", "ens5", "bond0", "tunnelling0", "grey0", "tapestry", "wge", "br0", "vlan5"] {
            assert!(!is_tunnel(name, 1, 0), "{name}");
        }
        // Whatever it is called: tun, ipip, sit.
        assert!([0xfffe, 768, 776].into_iter().all(|kind| is_tunnel("net0", kind, 0)));
        assert!([1, 32, 772].into_iter().all(|kind| !is_tunnel("net0", kind, 0)));
    }

    #[test]
    fn addresses_that_are_not_ready_are_known_by_their_flags() {
        let line = |flags| format!("20010db8000000000000000000000001 02 40 00 {flags}     eth0");
        let address = Some("2001:db8::1".parse().expect("an address"));
        assert_eq!([line("40"), line("48"), line("08")].map(|line| unready(&line)), [address; 3]);
        assert_eq!(
            [line("80"), line("01"), line("00"), "x".into(), String::new()].map(|line| unready(&line)),
            [None; 5]
        );
    }

    #[test]
    fn sysfs_tells_speed_and_device_of_the_right_interface() {
        let folder = std::env::temp_dir().join(format!("oxccl-nic-{}", std::process::id()));
        let (eth0, device) = (folder.join("net/eth0"), folder.join("pci0000:00/0000:00:03.0"));
        for path in [&eth0, &device] {
            fs::create_dir_all(path).expect("a folder");
        }
        fs::write(eth0.join("ifindex"), "7\n").expect("a file");
        std::os::unix::fs::symlink(&device, eth0.join("device")).expect("a link");
        fs::write(device.join("vendor"), "0x1d0f\n").expect("a file");
        let of = |speed: &str, index| {
            fs::write(eth0.join("speed"), speed).expect("a file");
            NicFacts::read_from(&folder.join("net"), "eth0", index)
        };
        let (fast, other, unknown) = (of("25000\n", 7), of("25000\n", 8), of("-1\n", 7));
        let device = fs::canonicalize(&device).expect("a folder");
        fs::remove_dir_all(&folder).expect("the folder goes");
        assert_eq!(fast, NicFacts { speed: Some(25_000), pci: Some(device.clone()), vendor: Some(0x1d0f) });
        assert_eq!(unknown, NicFacts { speed: None, pci: Some(device), vendor: Some(0x1d0f) });
        assert_eq!(other, NicFacts::default());
    }
}
