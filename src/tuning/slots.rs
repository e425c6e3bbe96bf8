//! How many channels a communicator has, which links, and how large their slots are.

use super::agreement::Agreed;
use crate::error::Error;
use crate::plan::layout::Proto;
use crate::plan::wiring::{self, LinkSet, Wiring};
use crate::plan::{LinkClass, SLOTS};
use crate::topology::{Graph, MAX_PEERS};

/// Channels on a software device: its kernels share the processors with the ranks themselves.
const CHANNELS_SOFTWARE: u32 = 1;
/// Channels on a GPU.
const CHANNELS_GPU: u32 = 32;
/// The most channels.
pub const CHANNELS_MAX: u32 = 64;
/// Slot bytes by default: 256 KiB measured best on host memory (`NCCL_BUFFSIZE` is 8 slots).
pub(super) const SLOT_BYTES: u32 = 256 << 10;
/// The smallest and the largest slot in bytes.
const SLOT_RANGE: (i64, i64) = (4 << 10, 64 << 20);
/// Slots are whole pages.
const PAGE: u32 = 4096;
/// Communicators of a device and process that have slots of full size; twice as many have half.
const FULL_SIZE_COMMS: usize = 8;
/// The least size of a slot that the number of communicators leads to, in bytes: of a ring, and of other links.
const SMALL_SLOT: (u32, u32) = (16 << 10, 4 << 10);
/// Bytes of slots on a GPU with lines of LL or LL128: so many that a loop over one is unrolled.
const LINE_SLOT_BYTES: u32 = 64 << 10;
/// Channels for messages between two ranks on GPUs: so many that a pair fills NVLink. Fewer where a rank has many
/// peers.
const MESSAGE_CHANNELS: u32 = 16;
/// Channels for messages of a rank with all others, beyond which pairs have fewer.
const MESSAGE_CHANNELS_ALL: u32 = 128;
/// Bytes of slots of a rank on a GPU for one channel of messages.
const GPU_PAIRS_BYTES: u64 = 8 << 20;
/// Bytes of slots of a rank on a GPU for one channel of trees, of PAT, or of direct algorithms.
const GPU_MESH_BYTES: u64 = 4 << 20;

/// Bytes of slots that a rank on a software device receives in, for hierarchical algorithms.
const HIERARCHICAL_BYTES: u32 = 8 << 20;

/// The sizes of slots in bytes, by class of links and protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSizes([[u32; Proto::ALL.len()]; LinkClass::ALL.len()]);

impl SlotSizes {
    /// The size of a slot in bytes.
    pub fn of(&self, class: LinkClass, protocol: Proto) -> u32 {
        self.0[class as usize][protocol as usize]
    }
}

/// The number of channels that a rank would like, where it is to have at least `low` and at most `high`.
pub fn preferred_channels(software: bool, low: u32, high: u32) -> u32 {
    let preferred = if software { CHANNELS_SOFTWARE } else { CHANNELS_GPU };
    preferred.max(low).min(high).clamp(1, CHANNELS_MAX)
}

/// The size of a ring's slot, in bytes, that a rank would like whose process has many communicators.
pub fn preferred_slot_bytes(halvings: u32) -> u32 {
    halved(SLOT_BYTES, halvings, SMALL_SLOT.0)
}

/// The size of a slot in bytes that comes next to what a user wants.
pub fn valid_slot_bytes(wanted: i64) -> u32 {
    (wanted.clamp(SLOT_RANGE.0, SLOT_RANGE.1) as u32).next_multiple_of(PAGE)
}

/// How often slots are halved where a process has so many communicators on a device.
pub fn halvings(comms: usize) -> u32 {
    comms.div_ceil(FULL_SIZE_COMMS).max(1).next_power_of_two().ilog2()
}

/// A slot's size in bytes halved some times, in whole pages, and not below `least` unless it was before.
fn halved(bytes: u32, halvings: u32, least: u32) -> u32 {
    let bytes_halved = bytes.checked_shr(halvings).unwrap_or(0);
    (bytes_halved - bytes_halved % PAGE).max(least.min(bytes))
}

impl Agreed {
    /// The links of a communicator whose ranks are on the hosts that `hosts` numbers: a ring with large slots, and
    /// small slots between others.
    ///
    /// # Errors
    /// As [`Wiring::new`].
    pub fn wiring(&self, hosts: Vec<u32>, software: bool) -> Result<Wiring, Error> {
        let graph = Graph::of_hosts(hosts);
        let sizes = self.slot_sizes(&graph, software);
        let mut sets = Vec::new();
        for proto in Proto::ALL.into_iter().filter(|proto| self.filters.protocols() & 1 << *proto as u8 != 0) {
            let set = |class| LinkSet { class, proto, channels: self.channels, slot_bytes: sizes.of(class, proto) };
            sets.extend(LinkClass::COLLECTIVE.map(set));
        }
        let peers = |proto, channels| LinkSet {
            class: LinkClass::Peer,
            proto,
            channels,
            slot_bytes: sizes.of(LinkClass::Peer, proto),
        };
        sets.push(peers(Proto::Simple, self.message_channels));
        if self.message_protocol(0) == Proto::Ll && self.message_line_bytes > 0 {
            sets.push(peers(Proto::Ll, 1));
        }
        Wiring::new(graph, sets)
    }

    /// The sizes of the slots of a communicator's links.
    pub fn slot_sizes(&self, graph: &Graph, software: bool) -> SlotSizes {
        let nranks = graph.nranks();
        let (mesh, pair) = match software {
            true => (wiring::mesh_slot_bytes(nranks), wiring::pair_slot_bytes(nranks)),
            false => [GPU_MESH_BYTES, GPU_PAIRS_BYTES].map(|all| wiring::even_slot_bytes(all, nranks)).into(),
        };
        let hierarchical = hierarchical_slot_bytes(graph, software);
        let of = |class, proto| {
            let most = if proto == Proto::Simple || software { u32::MAX } else { LINE_SLOT_BYTES };
            let bytes = match class {
                LinkClass::Ring => self.slot_bytes,
                LinkClass::Peer if proto == Proto::Simple => self.small_slot(pair),
                // Small messages: half of them, which is lines enough for most.
                LinkClass::Peer => self.small_slot(halved(pair, 1, SMALL_SLOT.1)),
                LinkClass::Hierarchical => self.small_slot(hierarchical),
                _ => self.small_slot(mesh),
            };
            bytes.min(most)
        };
        SlotSizes(LinkClass::ALL.map(|class| Proto::ALL.map(|proto| of(class, proto))))
    }

    /// The size of a slot that is no ring's, where it would be `bytes`: less in processes with many communicators, and
    /// not more than a ring's.
    fn small_slot(&self, bytes: u32) -> u32 {
        halved(bytes, self.halvings, SMALL_SLOT.1).min(self.slot_bytes)
    }
}

/// The size of a slot, in bytes, of a link of hierarchical algorithms. On the software device there is but one channel,
/// whose hops between hosts are waited for with each slot: these are as large as a ring's, within limits.
fn hierarchical_slot_bytes(graph: &Graph, software: bool) -> u32 {
    // Ranks of the own host, and one of each other one.
    let near = graph.ring_rows(0).most() + graph.nhosts().min(MAX_PEERS) - 1;
    if !software {
        return wiring::even_slot_bytes(GPU_MESH_BYTES, near);
    }
    let bytes = HIERARCHICAL_BYTES / SLOTS as u32 / near.saturating_sub(1).max(1);
    (bytes - bytes % PAGE).clamp(SMALL_SLOT.0, SLOT_BYTES)
}

/// The number of channels for messages between two ranks that a rank would like, of `nranks`.
pub fn preferred_message_channels(software: bool, nranks: u32) -> u32 {
    if software { 1 } else { (MESSAGE_CHANNELS_ALL / nranks.max(1)).clamp(1, MESSAGE_CHANNELS) }
}

#[cfg(test)]
mod tests {
    use super::super::Filters;
    use super::*;

    fn agreed(protocols: &str) -> Agreed {
        let filters = Filters::parse("", protocols).expect("protocols");
        Agreed { slot_bytes: 32 << 10, halvings: 1, ..Agreed::with_filters(filters) }
    }

    #[test]
    fn slots_shrink_with_the_number_of_communicators() {
        assert_eq!([0, 1, 8, 9, 16, 17, 32, 1000].map(halvings), [0, 0, 0, 1, 1, 2, 2, 7]);
        let ring = |comms| preferred_slot_bytes(halvings(comms));
        assert_eq!([8, 9, 40, 100, 1 << 30].map(|comms| ring(comms) >> 10), [256, 128, 32, 16, 16]);
        assert_eq!([0, 1, 2, 9].map(|halvings| halved(20 << 10, halvings, 4 << 10) >> 10), [20, 8, 4, 4]);
        let small = Agreed { slot_bytes: 4096, ..agreed("") };
        assert_eq!((small.small_slot(16 << 10), small.small_slot(4 << 10)), (4096, 4096));
        assert_eq!([-1, 4097, 1 << 40].map(valid_slot_bytes), [4096, 8192, 64 << 20]);
    }

    #[test]
    fn hops_between_hosts_carry_large_slots() {
        let of = |hosts: &[u32], software| hierarchical_slot_bytes(&Graph::of_hosts(hosts.to_vec()), software) >> 10;
        assert_eq!((of(&[0, 1], true), of(&[0, 0, 1, 1], true), of(&[0, 0, 1, 1], false)), (256, 256, 64));
        let eight: Vec<u32> = (0..64).map(|rank| rank / 8).collect();
        assert_eq!((of(&eight, true), of(&eight, false)), (72, 36));
        let wide: Vec<u32> = (0..128).map(|rank| rank % 64).collect();
        assert_eq!(of(&wide, true), 16);
    }

    #[test]
    fn channels_are_within_the_limits() {
        assert_eq!(
            [(1, 8), (4, 8), (4, 2), (0, 0), (20, 30)].map(|(low, high)| preferred_channels(true, low, high)),
            [1, 4, 2, 1, 20]
        );
        assert_eq!(
            [(1, 3), (1, 64), (40, 64), (90, 99)].map(|(low, high)| preferred_channels(false, low, high)),
            [3, 32, 40, 64]
        );
    }

    #[test]
    fn there_are_links_for_every_protocol_that_is_left() {
        let large = Agreed { slot_bytes: 256 << 10, halvings: 0, ..agreed("LL,Simple") };
        let wiring = large.wiring(vec![0; 3], false).expect("a wiring");
        let sizes =
            |proto| [LinkClass::Ring, LinkClass::Tree].map(|class| wiring.set(class, proto).map(|s| s.slot_bytes));
        assert_eq!(sizes(Proto::Simple), [Some(256 << 10), Some(64 << 10)]);
        assert_eq!(sizes(Proto::Ll), [Some(64 << 10); 2]);
        assert_eq!(sizes(Proto::Ll128), [None, None]);
        assert_eq!(wiring.set(LinkClass::Peer, Proto::Simple).map(|set| set.channels), Some(1));
        assert_eq!([2, 8, 16, 64, 1000].map(|n| preferred_message_channels(false, n)), [16, 16, 8, 2, 1]);
        assert_eq!(preferred_message_channels(true, 2), 1);
    }
}
