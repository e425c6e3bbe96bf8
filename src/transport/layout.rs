//! Where the parts of links lie in memory that ranks share. Pure: every rank computes it for itself and for its peers
//! from the same facts and the same wiring, so that nobody has to be told.
//!
//! A rank's *area* has the parts of its links of one connection group that use one transport: first a counter for each
//! link, then the slots of the links that it receives on.

use crate::plan::layout::Proto;
use crate::plan::wiring::{LinkNeed, SLOT_UNIT};
use crate::plan::{LinkId, SLOTS};

/// A counter has a cache line of its own.
const LINE: usize = 64;
/// Slots of a page and more start at a page, so that copies into them are aligned however wide they are; areas too.
pub(super) const PAGE: usize = 4096;

/// Where the parts of a link are that live with one of its ends, in bytes from the start of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// `posted` where the owner receives, `consumed` where it sends.
    pub counter: usize,
    /// The slots; they live with the receiver.
    pub slots: usize,
}

/// The area of one rank for one connection group and transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    /// Its size in bytes: whole pages.
    pub bytes: usize,
    /// How many of its first bytes must be zero when it is made.
    pub zeroed: usize,
    /// The owner's links, and where their parts are.
    pub parts: Vec<(LinkNeed, Part)>,
}

impl Area {
    /// Where a link's parts are.
    pub fn part(&self, id: LinkId) -> Option<Part> {
        self.parts.iter().find(|(need, _)| need.id == id).map(|(_, part)| *part)
    }
}

/// Lays the parts of a rank's links out: counters, slots that must be zero at first, other slots.
pub(super) fn lay_out(owner: u32, links: &[LinkNeed]) -> Area {
    let counters = links.len() * LINE;
    let mut parts: Vec<(LinkNeed, Part)> =
        links.iter().enumerate().map(|(number, need)| (*need, Part { counter: number * LINE, slots: 0 })).collect();
    let mut end = counters;
    let mut zeroed = counters;
    // A flag that was there before any data would be taken for data; Simple has no flags.
    for flags in [true, false] {
        let here = |need: &LinkNeed| need.id.to == owner && (need.id.proto != Proto::Simple) == flags;
        for (need, part) in parts.iter_mut().filter(|(need, _)| here(need)) {
            let align = if need.slot_bytes as usize >= PAGE { PAGE } else { SLOT_UNIT as usize };
            part.slots = end.next_multiple_of(align);
            end = part.slots + SLOTS * need.slot_bytes as usize;
        }
        if flags {
            zeroed = end;
        }
    }
    Area { bytes: end.next_multiple_of(PAGE), zeroed, parts }
}
