//! What ranks agree on: each rank tells what it would like, and all compute the same answer from it.

use serde::{Deserialize, Serialize};

use super::candidates::{Filters, SimpleInstead};
use super::slots::SLOT_BYTES;
use crate::plan::layout::Proto;

/// What one rank would like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preferences {
    /// The number of channels.
    pub channels: u32,
    /// The size of a slot of a ring in bytes.
    pub slot_bytes: u32,
    /// The number of channels for messages between two ranks.
    pub message_channels: u32,
    /// The largest message between two ranks that goes by LL, in bytes.
    pub message_line_bytes: u64,
    /// How often the size of other slots is halved.
    pub halvings: u32,
    /// What its filters leave, as [`Filters::as_bits`].
    pub candidates: Vec<(u8, u8)>,
}

/// What all ranks do alike, computed by each from the same facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The number of channels.
    pub channels: u32,
    /// The size of a slot of a ring in bytes.
    pub slot_bytes: u32,
    /// The number of channels for messages between two ranks.
    pub message_channels: u32,
    /// The largest message between two ranks that goes by LL, in bytes, where LL may be used.
    pub message_line_bytes: u64,
    /// How often the size of other slots is halved.
    pub halvings: u32,
    /// What the filters leave.
    pub filters: Filters,
    /// The most ranks for each processor on any host.
    pub oversubscription: u32,
    /// Every rank can map the registered buffers of every other one, and may.
    pub maps_buffers: bool,
}

impl Agreed {
    /// What all ranks will do: nobody gets more channels or larger slots than it asked for, and a way is open where
    /// all leave it open. Oversubscription and the mapping of buffers are for others to tell.
    pub fn of<'a>(ranks: impl Iterator<Item = &'a Preferences> + Clone) -> Agreed {
        let mut filters = Filters::ALL;
        ranks.clone().for_each(|rank| filters.and(&rank.candidates));
        filters.or_simple();
        Agreed {
            channels: ranks.clone().map(|rank| rank.channels).min().unwrap_or(1),
            slot_bytes: ranks.clone().map(|rank| rank.slot_bytes).min().unwrap_or(SLOT_BYTES),
            message_channels: ranks.clone().map(|rank| rank.message_channels).min().unwrap_or(1).max(1),
            message_line_bytes: ranks.clone().map(|rank| rank.message_line_bytes).min().unwrap_or(0),
            halvings: ranks.map(|rank| rank.halvings).max().unwrap_or(0),
            filters,
            oversubscription: 1,
            maps_buffers: false,
        }
    }

    /// Whether a protocol may be used.
    pub fn may_use(&self, protocol: Proto) -> bool {
        self.filters.protocols() & 1 << protocol as u8 != 0
    }

    /// The protocol of a message of some bytes between two ranks.
    pub fn message_protocol(&self, bytes: u64) -> Proto {
        if bytes <= self.message_line_bytes && self.may_use(Proto::Ll) { Proto::Ll } else { Proto::Simple }
    }

    /// Takes LL128 away: links are not peer memory that is reached over NVLink.
    #[must_use = "the user is to be warned"]
    pub fn without_whole_lines(&mut self) -> SimpleInstead {
        self.filters.without(Proto::Ll128, "only LL128, which needs NVLink between all devices")
    }

    /// Takes LL away: some links do not carry its lines.
    #[must_use = "the user is to be warned"]
    pub fn without_lines(&mut self) -> SimpleInstead {
        self.filters.without(Proto::Ll, "only LL, which not all transports between the ranks carry")
    }
}

#[cfg(test)]
impl Agreed {
    /// Two channels with small slots, and what filters leave: for tests.
    pub(crate) fn with_filters(filters: Filters) -> Agreed {
        Agreed {
            channels: 2,
            slot_bytes: 4096,
            message_channels: 1,
            message_line_bytes: 0,
            halvings: 0,
            filters,
            oversubscription: 1,
            maps_buffers: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::FUNCTIONS;
    use super::*;

    const SIMPLE: u8 = 1 << Proto::Simple as u8;
    const LL: u8 = 1 << Proto::Ll as u8;
    const LL128: u8 = 1 << Proto::Ll128 as u8;

    fn preferences(rank: u32) -> Preferences {
        Preferences {
            channels: 2 + rank,
            slot_bytes: 8192 >> rank,
            message_channels: 4 - rank,
            message_line_bytes: 100 * (u64::from(rank) + 1),
            halvings: rank,
            candidates: Vec::new(),
        }
    }

    fn agree(protocols: [u8; 2]) -> Agreed {
        let candidates = protocols.map(|protocols| vec![(!0, protocols); FUNCTIONS.len()]);
        let ranks = (0..).zip(candidates).map(|(rank, candidates)| Preferences { candidates, ..preferences(rank) });
        let ranks: Vec<Preferences> = ranks.collect();
        Agreed::of(ranks.iter())
    }

    #[test]
    fn a_way_is_open_where_all_leave_it_open() {
        for protocols in [SIMPLE, LL, SIMPLE | LL, LL128, SIMPLE | LL | LL128] {
            let agreed = agree([protocols; 2]);
            assert_eq!((agreed.channels, agreed.slot_bytes, agreed.halvings), (2, 4096, 1));
            assert_eq!(agreed.message_channels, 3);
            let small = if protocols & LL != 0 { Proto::Ll } else { Proto::Simple };
            assert_eq!([0, 100, 101].map(|bytes| agreed.message_protocol(bytes)), [small, small, Proto::Simple]);
            assert_eq!(agreed.filters.protocols(), protocols);
        }
        assert_eq!(agree([LL, SIMPLE]).filters.protocols(), SIMPLE);
        assert_eq!(Agreed::of([preferences(1)].iter()).filters.protocols(), SIMPLE);
    }

    #[test]
    fn simple_takes_the_place_of_what_is_taken_away() {
        let mut agreed = agree([LL | LL128; 2]);
        assert!(agreed.may_use(Proto::Ll128));
        assert_eq!(agreed.without_whole_lines(), None);
        assert_eq!(agreed.filters.protocols(), LL);
        let mut alone = agree([LL128; 2]);
        assert_eq!(alone.without_whole_lines(), Some("only LL128, which needs NVLink between all devices"));
        assert_eq!(alone.filters.protocols(), SIMPLE);
    }
}
