//! How far two devices are from each other, and how far peer memory may reach (`NCCL_P2P_LEVEL`).

use serde::{Deserialize, Serialize};

use super::PeerFacts;
use crate::sys::PciPlace;

/// What lies between two devices, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Distance {
    /// Nothing: it is one device.
    Loc,
    /// NVLink.
    Nvl,
    /// One PCI switch.
    Pix,
    /// Several PCI switches, but no CPU.
    Pxb,
    /// A CPU, or its PCI host bridges.
    Phb,
    /// Several CPUs.
    Sys,
}

/// The names of distances. Some of NCCL's are of distances that are told apart for networks alone: they mean here what
/// they are nearest to.
const NAMES: [(&str, Distance); 10] = [
    ("LOC", Distance::Loc),
    ("NVL", Distance::Nvl),
    ("PIX", Distance::Pix),
    ("PXB", Distance::Pxb),
    ("PHB", Distance::Phb),
    ("SYS", Distance::Sys),
    ("NVB", Distance::Nvl),
    ("C2C", Distance::Nvl),
    ("P2C", Distance::Pxb),
    ("PXN", Distance::Pxb),
];

/// What numbers have meant before there were names; those above mean the last one.
const NUMBERS: [Distance; 5] = [Distance::Loc, Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Sys];

impl Distance {
    /// As far as peer memory reaches where nobody says otherwise.
    pub const USUAL: Distance = Distance::Pxb;

    /// The distance of a name or number; none for other text.
    pub fn parse(text: &str) -> Option<Distance> {
        if let Some((_, distance)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Some(*distance);
        }
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number = (digits > 0).then(|| text[..digits].parse().unwrap_or(usize::MAX))?;
        Some(NUMBERS[number.min(NUMBERS.len() - 1)])
    }

    /// As log lines have it.
    pub fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// What lies between two devices in PCI.
    pub fn in_pci(a: &PciPlace, b: &PciPlace) -> Distance {
        if a.path.is_empty() || b.path.is_empty() {
            return Distance::Phb;
        }
        if a.root != b.root {
            return if a.node == b.node { Distance::Phb } else { Distance::Sys };
        }
        let common = a.path.iter().zip(&b.path).take_while(|(one, other)| one == other).count();
        // A switch has a port above, and one below for each device: those of one switch are two steps down from there.
        let below = a.path.len().max(b.path.len()) - common;
        match (common, below) {
            (0, _) => Distance::Phb,
            (_, ..=2) => Distance::Pix,
            _ => Distance::Pxb,
        }
    }

    /// What lies between the devices of two ranks of a host. All that is known of it is in their facts, so both ranks
    /// come to the same.
    pub fn between(a: &PeerFacts, b: &PeerFacts) -> Distance {
        if a.uuid == b.uuid {
            Distance::Loc
        } else if a.reach.linked.contains(&b.uuid) || b.reach.linked.contains(&a.uuid) {
            Distance::Nvl
        } else {
            Distance::in_pci(&a.reach.place, &b.reach.place)
        }
    }
}

impl Default for Distance {
    fn default() -> Distance {
        Distance::USUAL
    }
}

/// Whether two ranks may use peer memory, as far as it is: `LOC` means never, as in NCCL.
pub(super) fn is_near(a: &PeerFacts, b: &PeerFacts) -> bool {
    let level = a.reach.level.min(b.reach.level);
    level > Distance::Loc && Distance::between(a, b) <= level
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn place(path: &str, node: i32) -> PciPlace {
        PciPlace::of_path(&Path::new("/sys/devices").join(path), node)
    }

    #[test]
    fn in_a_pci_tree() {
        // A switch at bus 1, and below it another one at bus 5.
        let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
        let [a, b, c] = [
            "0000:02:00.0/0000:03:00.0",
            "0000:02:01.0/0000:04:00.0",
            "0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0",
        ]
        .map(|end| place(&format!("{switch}/{end}"), 0));
        let below = place(&format!("{switch}/0000:02:02.0/0000:05:00.0/0000:06:01.0/0000:08:00.0"), 0);
        let port = place("pci0000:00/0000:00:02.0/0000:09:00.0", 0);
        let bare = place("pci0000:00/0000:00:05.0", 0);
        let (near, far) = (place("pci0000:40/0000:40:01.0/0000:41:00.0", 0), place("pci0000:80/0000:80:01.0", 1));
        for (one, other, expected) in [
            (&a, &b, Distance::Pix),
            (&a, &c, Distance::Pxb),
            (&c, &below, Distance::Pix),
            (&a, &port, Distance::Phb),
            (&bare, &port, Distance::Phb),
            (&a, &near, Distance::Phb),
            (&a, &far, Distance::Sys),
            (&a, &PciPlace::default(), Distance::Phb),
        ] {
            assert_eq!(Distance::in_pci(one, other), expected, "{one:?} {other:?}");
            assert_eq!(Distance::in_pci(other, one), expected, "{other:?} {one:?}");
        }
    }

    #[test]
    fn levels_are_names_or_old_numbers() {
        for (text, expected) in [
            ("LOC", Some(Distance::Loc)),
            ("NVL", Some(Distance::Nvl)),
            ("SYS", Some(Distance::Sys)),
            ("NVB", Some(Distance::Nvl)),
            ("PXN", Some(Distance::Pxb)),
            ("0", Some(Distance::Loc)),
            ("1", Some(Distance::Pix)),
            ("2", Some(Distance::Pxb)),
            ("3", Some(Distance::Phb)),
            ("4", Some(Distance::Sys)),
            ("5", Some(Distance::Sys)),
            ("99999999999999999999999", Some(Distance::Sys)),
            ("sys", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(Distance::parse(text), expected, "{text}");
        }
        let all = [Distance::Loc, Distance::Nvl, Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Sys];
        assert!(all.iter().all(|distance| Distance::parse(distance.name()) == Some(*distance)));
    }
}
