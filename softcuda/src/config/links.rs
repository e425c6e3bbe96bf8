//! `SOFTCUDA_LINKS=A-B:WORD[+WORD][,…]`: what lies between devices, by their numbers on the machine; `*` is any.

use crate::os;
use std::time::Duration;

/// By what two devices reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// NVLink: peer access, and atomics work.
    NvLink,
    /// PCIe: peer access without atomics.
    Pcie,
    /// No peer access.
    None,
}

/// What is wrong with it, whatever it says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Writes do not arrive, and reads give something else.
    Lost,
    /// Each copy takes so long.
    Stall(Duration),
}

/// What lies between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// By what they reach each other.
    pub path: Path,
    /// What is wrong with it.
    pub defect: Option<Defect>,
}

impl Link {
    /// What lies between devices that nothing is said of.
    pub const SOUND: Link = Link { path: Path::NvLink, defect: None };

    fn parse(text: &str) -> Option<Link> {
        let mut link = Link::SOUND;
        for word in text.split('+').map(str::trim) {
            match word {
                "nvlink" => link.path = Path::NvLink,
                "pcie" => link.path = Path::Pcie,
                "none" => link.path = Path::None,
                "lost" => link.defect = Some(Defect::Lost),
                _ => link.defect = Some(Defect::Stall(stall(word)?)),
            }
        }
        Some(link)
    }

    /// Peer access is said to work.
    pub fn has_access(self) -> bool {
        self.path != Path::None
    }

    /// What goes over it does not arrive.
    pub fn is_lost(self) -> bool {
        self.defect == Some(Defect::Lost)
    }
}

/// From `stall@Nms`.
fn stall(word: &str) -> Option<Duration> {
    Some(Duration::from_millis(word.strip_prefix("stall@")?.strip_suffix("ms")?.parse().ok()?))
}

/// A device, or any.
type End = Option<u32>;

/// All that is said of links; what is said last holds.
#[derive(Clone, Debug, Default)]
pub struct Links(Vec<(End, End, Link)>);

impl Links {
    /// From the variable's text; what cannot be read is left out with a line on stderr.
    pub(super) fn read(text: &str) -> Links {
        let mut links = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match entry(part) {
                Some(entry) => links.push(entry),
                None => os::say(&format!(
                    "SOFTCUDA_LINKS: {part} is not A-B: and nvlink, pcie, none, lost, stall@Nms or some with + between"
                )),
            }
        }
        Links(links)
    }

    /// What lies between two devices of the machine.
    pub fn between(&self, a: u32, b: u32) -> Link {
        if a == b {
            return Link::SOUND;
        }
        let is = |end: End, ordinal| end.is_none_or(|end| end == ordinal);
        let of_both = |(from, to, _): &&(End, End, Link)| is(*from, a) && is(*to, b) || is(*from, b) && is(*to, a);
        self.0.iter().rev().find(of_both).map_or(Link::SOUND, |(_, _, link)| *link)
    }

    /// Nothing is wrong with any.
    pub fn are_sound(&self) -> bool {
        self.0.iter().all(|(_, _, link)| link.defect.is_none())
    }
}

fn entry(text: &str) -> Option<(End, End, Link)> {
    let (ends, link) = text.split_once(':')?;
    let (a, b) = ends.split_once('-')?;
    let end = |text: &str| match text.trim() {
        "*" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some((end(a)?, end(b)?, Link::parse(link)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_holds_in_both_directions() {
        let links = Links::read("*-*:pcie, 0-1:nvlink, 2-*:none,3-0:pcie+lost,1-3:stall@250ms");
        let of = |a, b| (links.between(a, b), links.between(b, a));
        let twice = |path, defect| (Link { path, defect }, Link { path, defect });
        assert_eq!(of(0, 1), twice(Path::NvLink, None));
        assert_eq!(of(1, 4), twice(Path::Pcie, None));
        assert_eq!(of(2, 0), twice(Path::None, None));
        assert_eq!(of(0, 3), twice(Path::Pcie, Some(Defect::Lost)));
        assert_eq!(of(1, 3), twice(Path::NvLink, Some(Defect::Stall(Duration::from_millis(250)))));
        assert_eq!(of(2, 2), twice(Path::NvLink, None));
        assert!(!links.are_sound() && Links::read("0-1:none").are_sound());
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        for text in ["0:pcie", "0-1", "0-1:", "0-1:slow", "0-1:stall@5", "a-1:pcie", "0-1:pcie+"] {
            assert_eq!(Links::read(text).0.len(), 0, "{text}");
        }
    }
}
