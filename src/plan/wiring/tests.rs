use std::collections::BTreeSet;

use super::*;
use crate::topology::{Channel, Order};

fn group(class: LinkClass) -> ConnectionGroup {
    ConnectionGroup::Channel { class, proto: Proto::Simple, channel: 0 }
}

fn ids(wiring: &Wiring, rank: u32) -> BTreeSet<LinkId> {
    let links = wiring.links(rank);
    let ids: BTreeSet<LinkId> = links.iter().map(|need| need.id).collect();
    assert_eq!(ids.len(), links.len(), "rank {rank} has a link twice");
    ids
}

/// Every link is known to both its ends and to nobody else, and both see the same slots.
#[test]
fn both_ends_know_a_link_and_nobody_else() {
    for nranks in [2, 3, 5, 8, 64] {
        let wiring = Wiring::of_host(nranks, Proto::Simple, 2, 65536).expect("wiring");
        let mut ends = std::collections::BTreeMap::new();
        for rank in 0..nranks {
            ids(&wiring, rank);
            for need in wiring.links(rank) {
                assert!(need.id.from == rank || need.id.to == rank);
                assert_eq!(need.peer(rank) + rank, need.id.from + need.id.to);
                ends.entry(need.id).or_insert_with(Vec::new).push(need.slot_bytes);
            }
        }
        assert!(ends.values().all(|slots| slots.len() == 2 && slots[0] == slots[1]));
        let (n, pairs) = (nranks as usize, (nranks * (nranks - 1)) as usize);
        let count = |class: LinkClass| ends.keys().filter(|link| link.class == class).count();
        assert_eq!(
            (count(LinkClass::Ring), count(LinkClass::Direct), count(LinkClass::Peer)),
            (2 * n, 2 * pairs, pairs)
        );
        assert!([LinkClass::Tree, LinkClass::Pat].iter().all(|class| (2 * n..=2 * pairs).contains(&count(*class))));
    }
}

#[test]
fn a_ring_follows_its_order() {
    let set = LinkSet { class: LinkClass::Ring, proto: Proto::Ll, channels: 1, slot_bytes: 4096 };
    let channel =
        Channel { ring: Order::new(vec![2, 0, 3, 1]).expect("an order"), tree: Order::of_numbers(4), peers: None };
    let graph = Graph::new(vec![0; 4], vec![channel]).expect("a graph");
    let wiring = Wiring::new(graph, vec![set]).expect("wiring");
    let link = |from, to| LinkId { proto: Proto::Ll, ..LinkId::new(LinkClass::Ring, from, to) };
    assert_eq!(ids(&wiring, 0), BTreeSet::from([link(0, 3), link(2, 0)]));
    assert_eq!(ids(&wiring, 1), BTreeSet::from([link(1, 2), link(3, 1)]));
}

#[test]
fn one_rank_has_no_links_and_two_have_both_directions() {
    let one = Wiring::of_host(1, Proto::Simple, 3, 4096).expect("wiring");
    assert_eq!(one.links(0), []);
    let two = Wiring::of_host(2, Proto::Simple, 1, 4096).expect("wiring");
    let classes = LinkClass::ALL.into_iter().filter(|class| *class != LinkClass::Hierarchical);
    let both = classes.flat_map(|class| [LinkId::new(class, 0, 1), LinkId::new(class, 1, 0)]);
    assert_eq!(ids(&two, 0), both.collect());
    assert_eq!(ids(&two, 0), ids(&two, 1));
}

#[test]
fn many_ranks_have_few_links_each() {
    let peers = |class, nranks: u32| {
        let wiring = Wiring::of_host(nranks, Proto::Simple, 1, 4096).expect("wiring");
        wiring.group_peers(5, group(class)).len()
    };
    assert_eq!([64, 65].map(|n| peers(LinkClass::Direct, n)), [63, 0]);
    // PAT: at distances 1, 2, 4, … 64 in both directions; 128 is -2.
    assert_eq!([64, 130].map(|n| peers(LinkClass::Pat, n)), [11, 7 * 2]);
    // Trees: 1, 2, 4, … 512, and 513 between a root and its child in the second tree.
    assert_eq!(peers(LinkClass::Tree, 1000), 11 * 2);
    for nranks in [65, 66, 1000, 1001, 100_000] {
        let wiring = Wiring::new(
            Graph::shuffled(nranks, 5, 1, u64::from(nranks)),
            [LinkClass::Tree, LinkClass::Pat]
                .map(|class| LinkSet { class, proto: Proto::Simple, channels: 1, slot_bytes: 64 })
                .to_vec(),
        )
        .expect("wiring");
        for class in [LinkClass::Tree, LinkClass::Pat] {
            let links = wiring.group_links(nranks / 3, group(class)).len() as u32;
            // Two directions, two links; steps number links in a byte.
            assert!(links <= (2 * nranks.ilog2() + 4) * 2 && links <= 256, "{nranks} ranks: {links} of {class:?}");
        }
    }
}

/// The links of a channel are those that schedules name, no more and no fewer, and they are alike at both ends.
#[test]
fn links_are_those_that_schedules_name() {
    use super::super::algorithm::{Algo, ScheduleKind, available, compile};
    use super::super::call::Func;
    for (n, graph) in [3, 8, 13, 65, 66, 97, 128, 129]
        .into_iter()
        .flat_map(|n| [(n, Graph::of_host(n)), (n, Graph::shuffled(n, 3, 2, 7))])
    {
        let set = |class| LinkSet { class, proto: Proto::Simple, channels: 2, slot_bytes: 64 };
        let wiring = Wiring::new(graph.clone(), LinkClass::COLLECTIVE.map(set).to_vec()).expect("wiring");
        let kinds = Func::COLLECTIVES.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo)));
        let kinds: Vec<_> = kinds.filter(|(func, algo)| available(*func, *algo, &graph)).collect();
        for (channel, rank) in [(0, 0), (1, n / 2), (1, n - 1)] {
            let mut named = BTreeSet::new();
            for &(func, algo) in &kinds {
                for root in 0..if func.has_root() { n } else { 1 } {
                    let schedule =
                        compile(ScheduleKind { func, algo, root }, &graph, channel, rank).expect("a schedule");
                    named.extend(schedule.links.into_iter().map(|link| LinkId { channel, ..link }));
                }
            }
            let wired =
                |rank| ids(&wiring, rank).into_iter().filter(|link| link.channel == channel).collect::<BTreeSet<_>>();
            assert_eq!(wired(rank), named, "rank {rank} of {n}");
            for link in named {
                assert!(wired(link.from).contains(&link) && wired(link.to).contains(&link), "{link:?}");
            }
        }
    }
}

#[test]
fn slots_shrink_with_the_number_of_links() {
    assert_eq!(pair_slot_bytes(2), 64 << 10);
    // 4 MiB / (8 slots * 10 links) = 52428.8
    assert_eq!(pair_slot_bytes(11), 48 << 10);
    assert_eq!((pair_slot_bytes(64), pair_slot_bytes(u32::MAX), pair_slot_bytes(1)), (8 << 10, 8 << 10, 64 << 10));
    assert_eq!([2, 3, 4, 8, 64].map(|nranks| mesh_slot_bytes(nranks) >> 10), [64, 56, 36, 16, 8]);
    for nranks in 2..16 {
        assert!((nranks - 1) * SLOTS as u32 * mesh_slot_bytes(nranks) < 900 << 10, "{nranks} ranks");
    }
}

/// All connection groups of a wiring.
fn groups(wiring: &Wiring) -> Vec<ConnectionGroup> {
    let channels = |set: &LinkSet| {
        let (class, proto) = (set.class, set.proto);
        (0..set.channels).map(move |channel| ConnectionGroup::Channel { class, proto, channel })
    };
    let of_channels = wiring.sets().iter().filter(|set| set.class != LinkClass::Peer).flat_map(channels);
    let n = wiring.nranks();
    of_channels.chain((0..n).flat_map(|a| (a + 1..n).map(move |b| ConnectionGroup::pair(b, a)))).collect()
}

/// Each link is in one connection group, on both of its ends, and those of a connection group keep their order.
#[test]
fn groups_are_the_links_in_parts() {
    for nranks in [1, 2, 3, 8] {
        let wiring = Wiring::of_host(nranks, Proto::Simple, 2, 65536).expect("wiring");
        for rank in 0..nranks {
            let all = wiring.links(rank);
            let mut seen = BTreeSet::new();
            for group in groups(&wiring) {
                let links = wiring.group_links(rank, group);
                assert!(links.iter().all(|need| seen.insert(need.id)), "{group:?}");
                let first = links.first().and_then(|first| all.iter().position(|need| need == first));
                assert!(first.is_none_or(|first| all[first..first + links.len()] == links[..]), "{group:?}");
                for peer in wiring.group_peers(rank, group) {
                    assert!(peer != rank && wiring.group_peers(peer, group).contains(&rank), "{group:?}");
                }
            }
            assert_eq!(seen.len(), all.len());
        }
    }
}

#[test]
fn groups_that_are_not_there_have_no_links() {
    let wiring = Wiring::of_host(3, Proto::Simple, 2, 65536).expect("wiring");
    let channel = |class, proto, channel| ConnectionGroup::Channel { class, proto, channel };
    for group in [
        channel(LinkClass::Ring, Proto::Simple, 2),
        channel(LinkClass::Tree, Proto::Ll, 0),
        channel(LinkClass::Peer, Proto::Simple, 0),
        ConnectionGroup::pair(1, 2),
        ConnectionGroup::pair(0, 7),
        ConnectionGroup::Pair { low: 0, high: 0 },
    ] {
        assert!(wiring.group_peers(0, group).is_empty(), "{group:?}");
    }
    assert!(wiring.group_links(3, channel(LinkClass::Ring, Proto::Simple, 0)).is_empty());
}

#[test]
fn nonsense_is_refused() {
    let set = LinkSet { class: LinkClass::Ring, proto: Proto::Simple, channels: 1, slot_bytes: 64 };
    let of = |sets| Wiring::new(Graph::of_host(2), sets);
    for bad in [LinkSet { channels: 0, ..set }, LinkSet { slot_bytes: 0, ..set }, LinkSet { slot_bytes: 100, ..set }] {
        assert!(of(vec![bad]).is_err(), "{bad:?}");
    }
    assert!(of(vec![set, set]).is_err());
    assert!(of(vec![set, LinkSet { proto: Proto::Ll, ..set }]).is_ok());
}
