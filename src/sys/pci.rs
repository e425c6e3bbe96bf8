//! Where a device is in the host's PCI tree, as sysfs tells.

use std::fs;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// A device's place; an empty one where sysfs does not know the device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PciPlace {
    /// The root complex, with all that is above it.
    pub root: String,
    /// From the root port down to the device itself: `0000:3b:00.0`.
    pub path: Vec<String>,
    /// The NUMA node; −1 where there is none.
    pub node: i32,
}

impl PciPlace {
    /// The place of the device with a bus id: domain, bus, device and function, 4 bits per hexadecimal digit. `sysfs`
    /// is where that is mounted.
    pub fn read(sysfs: &Path, bus_id: u64) -> PciPlace {
        let [domain, bus, device, function] =
            [bus_id >> 20, bus_id >> 12 & 0xff, bus_id >> 4 & 0xff, bus_id & 0xf].map(|part| part as u32);
        let name = format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}");
        let Ok(real) = fs::canonicalize(sysfs.join("bus/pci/devices").join(name)) else { return PciPlace::default() };
        let node = fs::read_to_string(real.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
        PciPlace::of_path(&real, node.unwrap_or(-1))
    }

    /// The place of a device with a directory in sysfs: `/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0`.
    pub fn of_path(real: &Path, node: i32) -> PciPlace {
        let parts = real.components().filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let parts: Vec<&str> = parts.collect();
        let Some(root) = parts.iter().rposition(|part| is_root(part)) else { return PciPlace::default() };
        let path = parts[root + 1..].iter().map(|part| (*part).to_string()).collect();
        PciPlace { root: parts[..=root].join("/"), path, node }
    }

    /// The NUMA node that the device is near, where that is known.
    pub fn numa_node(&self) -> Option<u32> {
        u32::try_from(self.node).ok().filter(|_| !self.path.is_empty())
    }
}

/// `pci0000:3a`
fn is_root(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let parts = name.strip_prefix("pci").and_then(|rest| rest.split_once(':'));
    parts.is_some_and(|(domain, bus)| number(domain) && number(bus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_by_its_bus_id() {
        let root = std::env::temp_dir().join(format!("oxccl-pci-{}", std::process::id()));
        let device = root.join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
        fs::create_dir_all(&device).expect("a folder");
        fs::create_dir_all(root.join("bus/pci/devices")).expect("a folder");
        fs::write(device.join("numa_node"), "1\n").expect("a file");
        std::os::unix::fs::symlink(&device, root.join("bus/pci/devices/0000:3b:00.0")).expect("a link");
        let place = PciPlace::read(&root, 0x3_b000);
        assert!(place.root.ends_with("devices/pci0000:3a"), "{place:?}");
        assert_eq!((place.numa_node(), PciPlace::default().numa_node()), (Some(1), None));
        assert_eq!(PciPlace { node: -1, ..place.clone() }.numa_node(), None);
        assert_eq!((place.path, place.node), (vec!["0000:3a:00.0".to_string(), "0000:3b:00.0".to_string()], 1));
        assert_eq!(PciPlace::read(&root, 0x3_b001), PciPlace::default());
        fs::remove_dir_all(&root).expect("our folder");
    }

    #[test]
    fn the_root_is_the_last_one() {
        let of = |path: &str| PciPlace::of_path(Path::new(path), -1);
        let behind = of("/sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:06.0/10000:e1:00.0");
        assert_eq!((behind.root.as_str(), behind.path.len()), ("sys/devices/pci0000:00/0000:00:0e.0/pci10000:e0", 2));
        assert_eq!(of("/sys/devices/platform/gpu"), PciPlace::default());
        assert_eq!(of("/sys/devices/pci/0000:00:0e.0"), PciPlace::default());
    }
}
