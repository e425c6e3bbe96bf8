//! Where the ends of a rank's links are on its device.

use super::Half;
use crate::error::Error;
use crate::plan::LinkClass;
use crate::plan::layout::{LinkEnd, Proto};
use crate::plan::point_to_point::send_distance;
use crate::plan::wiring::{ConnectionGroup, LinkNeed, LinkSet};

/// The ends of a set of links on the device, channel after channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkTable {
    /// The address of the first one.
    pub at: u64,
    /// Ends of one channel: of the one that has most.
    pub links: u32,
    pub channels: u32,
    pub slot_bytes: u32,
}

impl LinkTable {
    /// The address of a channel's first end.
    pub(super) fn channel(&self, channel: u32) -> u64 {
        self.end(channel * self.links)
    }

    /// The address of an end.
    fn end(&self, place: u32) -> u64 {
        self.at + u64::from(place) * size_of::<LinkEnd>() as u64
    }
}

/// A rank's link tables.
pub(super) struct LinkTables {
    rank: u32,
    nranks: u32,
    /// By class and protocol; none where there is no such set.
    by_set: [[Option<LinkTable>; Proto::ALL.len()]; LinkClass::ALL.len()],
    /// Ends of the links for messages with one peer, of all protocols: they are neighbours.
    pair_ends: u32,
    /// Of a rank that has no links.
    alone: LinkTable,
}

impl LinkTables {
    /// Lays the tables of a rank out, one after the other from address 0; with them the bytes of all. A rank alone
    /// copies in pieces of `slot_bytes`.
    pub(super) fn lay_out(
        (rank, nranks): (u32, u32),
        sets: &[LinkSet],
        all: &[LinkNeed],
        slot_bytes: u32,
    ) -> (LinkTables, u64) {
        let alone = LinkTable { at: 0, links: 0, channels: 1, slot_bytes };
        let pair_ends = 2 * peer_sets(sets).map(|set| set.channels).sum::<u32>();
        let mut tables = LinkTables { rank, nranks, by_set: Default::default(), pair_ends, alone };
        let mut at = 0;
        for set in sets.iter().filter(|set| set.class != LinkClass::Peer) {
            let of_set = all.iter().filter(|need| (need.id.class, need.id.proto) == (set.class, set.proto));
            let mut counts = vec![0; set.channels as usize];
            of_set.for_each(|need| counts[need.id.channel as usize] += 1);
            // Channels can have different numbers of links; there is room for the most in each.
            let links = counts.into_iter().max().unwrap_or(0);
            tables.by_set[set.class as usize][set.proto as usize] =
                Some(LinkTable { at, links, channels: set.channels, slot_bytes: set.slot_bytes });
            at += u64::from(set.channels) * u64::from(links) * size_of::<LinkEnd>() as u64;
        }
        let mut pair = at;
        for LinkSet { proto, channels, slot_bytes, .. } in peer_sets(sets).copied() {
            let table = LinkTable { at: pair, links: pair_ends, channels, slot_bytes };
            tables.by_set[LinkClass::Peer as usize][proto as usize] = Some(table);
            pair = table.end(2 * channels);
        }
        (tables, at + u64::from(nranks.saturating_sub(1)) * u64::from(pair_ends) * size_of::<LinkEnd>() as u64)
    }

    /// Moves all tables to where they are in memory.
    pub(super) fn move_by(&mut self, address: u64) {
        self.by_set.iter_mut().flatten().flatten().for_each(|table| table.at += address);
    }

    /// The table of a class and protocol.
    pub(super) fn get(&self, class: LinkClass, proto: Proto) -> Option<LinkTable> {
        self.by_set[class as usize][proto as usize]
    }

    /// The same, or one without links.
    pub(super) fn get_or_alone(&self, class: LinkClass, proto: Proto) -> LinkTable {
        self.get(class, proto).unwrap_or(self.alone)
    }

    /// The links of half a message, one for each channel: to the peer, or from it. A copy has none.
    pub(super) fn half(&self, half: Half, proto: Proto) -> LinkTable {
        let all = self.get_or_alone(LinkClass::Peer, proto);
        LinkTable { at: all.end(self.link_place(half, all.channels)), links: u32::from(half != Half::Copy), ..all }
    }

    /// The address for `ends` ends of a connection group's links.
    ///
    /// # Errors
    /// [`Error::Internal`] where there is no room for so many.
    pub(super) fn place(&self, group: ConnectionGroup, ends: usize) -> Result<u64, Error> {
        let no_room = || Error::Internal(format!("no room for links of {group:?}"));
        let (at, room, fits) = match group {
            ConnectionGroup::Channel { class, proto, channel } => {
                let table = self.get(class, proto).ok_or_else(no_room)?;
                (table.channel(channel), table.links, ends <= table.links as usize)
            }
            ConnectionGroup::Pair { low, high } => {
                let table = self.get(LinkClass::Peer, Proto::Simple).ok_or_else(no_room)?;
                let first = self.link_place(Half::Send(low + high - self.rank), table.channels);
                (table.end(first), self.pair_ends, ends == self.pair_ends as usize)
            }
        };
        match fits {
            true => Ok(at),
            false => Err(Error::Internal(format!("{ends} links of {group:?}, where there is room for {room}"))),
        }
    }

    /// The place of a half's first link among this rank's links for messages: peer by peer from the next one on, those
    /// to it before those from it (see [`crate::plan::wiring::Wiring::links`]).
    fn link_place(&self, half: Half, channels: u32) -> u32 {
        let after = |peer: u32| send_distance(self.rank, peer, self.nranks) - 1;
        match half {
            Half::Send(peer) => after(peer) * self.pair_ends,
            Half::Receive(peer) => after(peer) * self.pair_ends + channels,
            Half::Copy => 0,
        }
    }
}

/// The sets of links for messages.
fn peer_sets(sets: &[LinkSet]) -> impl Iterator<Item = &LinkSet> {
    sets.iter().filter(|set| set.class == LinkClass::Peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wiring::Wiring;

    const END: u64 = size_of::<LinkEnd>() as u64;

    #[test]
    fn every_link_has_a_place_of_its_own() {
        let wiring = Wiring::of_host(4, Proto::Simple, 2, 4096).expect("a wiring");
        let links = wiring.links(1);
        let (mut tables, bytes) = LinkTables::lay_out((1, 4), wiring.sets(), &links, 4096);
        assert_eq!(bytes, links.len() as u64 * END);
        tables.move_by(1 << 20);
        let channel = |class, channel| ConnectionGroup::Channel { class, proto: Proto::Simple, channel };
        let mut groups: Vec<ConnectionGroup> =
            LinkClass::COLLECTIVE.into_iter().flat_map(|class| [0, 1].map(|n| channel(class, n))).collect();
        groups.extend([0, 2, 3].map(|peer| ConnectionGroup::pair(1, peer)));
        let mut places: Vec<u64> = Vec::new();
        for group in groups {
            let ends = wiring.group_links(1, group).len();
            let at = tables.place(group, ends).expect("room");
            places.extend((0..ends as u64).map(|place| at + place * END));
            assert!(tables.place(group, ends + 1).is_err());
        }
        places.sort_unstable();
        assert_eq!(places, (0..links.len() as u64).map(|place| (1 << 20) + place * END).collect::<Vec<_>>());
        assert!(tables.place(ConnectionGroup::pair(1, 2), 1).is_err());
    }

    #[test]
    fn a_half_has_the_link_of_its_peer() {
        let wiring = Wiring::of_host(3, Proto::Simple, 1, 4096).expect("a wiring");
        let (tables, _) = LinkTables::lay_out((2, 3), wiring.sets(), &wiring.links(2), 4096);
        let pair = tables.place(ConnectionGroup::pair(2, 1), 2).expect("room");
        let half = |half| tables.half(half, Proto::Simple);
        assert_eq!((half(Half::Send(1)).at, half(Half::Receive(1)).at), (pair, pair + END));
        assert_eq!([half(Half::Send(0)), half(Half::Copy)].map(|table| table.links), [1, 0]);
    }

    #[test]
    fn links_of_all_protocols_with_a_peer_are_neighbours() {
        let set = |proto, channels| LinkSet { class: LinkClass::Peer, proto, channels, slot_bytes: 4096 };
        let sets = vec![set(Proto::Simple, 2), set(Proto::Ll, 1)];
        let wiring = Wiring::new(crate::topology::Graph::of_host(3), sets).expect("a wiring");
        let links = wiring.links(1);
        let (tables, bytes) = LinkTables::lay_out((1, 3), wiring.sets(), &links, 4096);
        assert_eq!((links.len(), bytes), (12, 12 * END));
        for peer in [2, 0] {
            let pair = ConnectionGroup::pair(1, peer);
            let needs = wiring.group_links(1, pair);
            let first = tables.place(pair, needs.len()).expect("room");
            let place = links.iter().position(|need| *need == needs[0]).expect("the link") as u64;
            assert_eq!(first, place * END);
            for (at, need) in (0..).zip(&needs) {
                let half = if need.id.from == 1 { Half::Send(peer) } else { Half::Receive(peer) };
                assert_eq!(tables.half(half, need.id.proto).channel(need.id.channel), first + at * END);
            }
        }
    }
}
