//! Where the parts of links lie in memory that ranks share. Pure: every rank computes it for itself and for every
//! other one from the same facts and the same wiring, so that nobody has to be told.
//!
//! A rank's *area* has the parts of its links that use one transport: first a counter for each link, then the slots
//! of the links that it receives on. A *segment* is what is made, handed over and mapped as one piece: one area, or,
//! where a transport pools, the areas of all ranks of a host.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{PeerFacts, TRANSPORTS, choose};
use crate::error::Error;
use crate::plan::layout::Proto;
use crate::plan::wiring::{LinkNeed, SLOT_UNIT, Wiring};
use crate::plan::{LinkId, SLOTS};

/// A counter has a cache line of its own.
const LINE: usize = 64;
/// Slots of a page and more start at a page, so that copies into them are aligned however wide they are; areas too.
pub(super) const PAGE: usize = 4096;

/// A segment's name: by which transport (a place in [`TRANSPORTS`]) it is shared, and who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub transport: usize,
    pub maker: u32,
}

/// What a segment has in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its size in bytes.
    pub bytes: usize,
    /// How many of its first bytes must be zero when it is made.
    pub zeroed: usize,
    /// The ranks that have an area in it, the maker first.
    pub members: Vec<u32>,
    /// Where this rank's area begins and ends; empty where it has none.
    pub own: (usize, usize),
}

/// Where the parts of a link are that live with one of its ends, in bytes from the start of the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// `posted` where the owner receives, `consumed` where it sends.
    pub counter: usize,
    /// The slots; they live with the receiver.
    pub slots: usize,
}

/// The area of one rank for one transport.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    pub bytes: usize,
    pub zeroed: usize,
    pub parts: Vec<(LinkNeed, Part)>,
}

/// An area in its segment.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub key: Key,
    /// Where the area begins in the segment, in bytes.
    pub base: usize,
    /// The parts of links with this rank.
    pub parts: BTreeMap<LinkId, Part>,
}

/// All that one rank needs to know of the memory of a communicator.
pub(super) struct Map {
    /// The segments that the rank makes or maps.
    pub segments: BTreeMap<Key, Plan>,
    /// Areas by owner and transport: the rank's own ones, and those of its peers.
    pub places: BTreeMap<(u32, usize), Place>,
    /// The rank's links, and the transport of each.
    pub links: Vec<(LinkNeed, usize)>,
    /// Whether any rank of the communicator has memory that a whole host pools.
    pub pooled: bool,
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
    Area { bytes: end, zeroed, parts }
}

impl Map {
    /// Draws the map of rank `me`.
    ///
    /// # Errors
    /// Where two ranks of the communicator that have links have no transport; all ranks get the same error.
    pub(super) fn draw(me: u32, facts: &[PeerFacts], wiring: &Wiring) -> Result<Map, Error> {
        let mut map = Map { segments: BTreeMap::new(), places: BTreeMap::new(), links: Vec::new(), pooled: false };
        for owner in 0..wiring.nranks() {
            for (transport, links) in by_transport(owner, facts, wiring)? {
                let area = lay_out(owner, &links);
                if owner == me {
                    map.links.extend(links.iter().map(|need| (*need, transport)));
                }
                map.place(me, facts, owner, transport, &area);
            }
        }
        map.pooled = map.segments.keys().any(|key| TRANSPORTS[key.transport].pools());
        let places = &map.places;
        map.segments.retain(|key, plan| plan.members.contains(&me) || places.values().any(|place| place.key == *key));
        Ok(map)
    }

    /// Gives an area its place in a segment.
    fn place(&mut self, me: u32, facts: &[PeerFacts], owner: u32, transport: usize, area: &Area) {
        let host = |rank: u32| &facts[rank as usize].host;
        let pools = TRANSPORTS[transport].pools();
        let theirs = |key: &&Key| key.transport == transport && host(key.maker).can_pass_descriptors(host(owner));
        let known = self.segments.keys().filter(|_| pools).find(theirs).copied();
        let key = known.unwrap_or(Key { transport, maker: owner });
        let plan = self.segments.entry(key).or_default();
        let base = plan.bytes;
        plan.members.push(owner);
        plan.bytes = base + area.bytes.next_multiple_of(PAGE);
        plan.zeroed = base + area.zeroed;
        if owner == me {
            plan.own = (base, plan.bytes);
        }
        let mine = |need: &LinkNeed| owner == me || need.peer(owner) == me;
        let parts: BTreeMap<LinkId, Part> =
            area.parts.iter().filter(|(need, _)| mine(need)).map(|(need, part)| (need.id, *part)).collect();
        if !parts.is_empty() {
            self.places.insert((owner, transport), Place { key, base, parts });
        }
    }
}

/// The links of a rank by the transport that it uses with their peers.
fn by_transport(owner: u32, facts: &[PeerFacts], wiring: &Wiring) -> Result<BTreeMap<usize, Vec<LinkNeed>>, Error> {
    let mut chosen = BTreeMap::new();
    let mut sorted: BTreeMap<usize, Vec<LinkNeed>> = BTreeMap::new();
    for need in wiring.links(owner) {
        let peer = need.peer(owner);
        let transport = match chosen.entry(peer) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(place) => *place.insert(choose(&facts[owner as usize], &facts[peer as usize])?),
        };
        sorted.entry(transport).or_default().push(need);
    }
    Ok(sorted)
}
