use std::collections::BTreeMap;

use super::layout::{Area, Key, Map, PAGE, lay_out};
use super::*;
use crate::plan::layout::Proto;
use crate::plan::wiring::{LinkNeed, LinkSet, Wiring};
use crate::plan::{LinkClass, LinkId, SLOTS};

fn facts(rank: u32) -> PeerFacts {
    let host = HostFacts { name: "a".into(), boot_id: "b".into(), network_namespace: 1, pid_namespace: 2, pid: 100 + rank };
    PeerFacts {
        rank,
        host,
        process: u64::from(rank),
        device: rank as i32,
        uuid: [rank as u8; 16],
        bus_id: u64::from(rank),
        capability: 90,
        reachable: (0..4).map(|device| [device; 16]).collect(),
        linked: Vec::new(),
        post: [rank as u8; 16],
        p2p_disabled: false,
        shm_disabled: false,
        registers: true,
        channels: 1,
        slot_bytes: 4096,
        ways: Vec::new(),
        cpus: 2,
    }
}

fn label(a: &PeerFacts, b: &PeerFacts) -> Result<&'static str, String> {
    let forth = choose(a, b).map(|transport| TRANSPORTS[transport].label()).map_err(|error| error.to_string());
    let back = choose(b, a).map(|transport| TRANSPORTS[transport].label()).map_err(|error| error.to_string());
    assert_eq!(forth.is_ok(), back.is_ok(), "both ranks must come to the same answer");
    if let (Ok(forth), Ok(back)) = (&forth, &back) {
        assert_eq!(forth, back, "both ranks must come to the same answer");
    }
    forth
}

#[test]
fn processes_of_one_host_use_peer_memory() {
    assert_eq!(label(&facts(0), &facts(1)), Ok("P2P/IPC"));
}

#[test]
fn threads_of_one_process_use_pointers() {
    let (a, mut b) = (facts(0), facts(1));
    b.process = a.process;
    b.host.pid = a.host.pid;
    assert_eq!(label(&a, &b), Ok("P2P/direct pointer"));
}

#[test]
fn one_side_without_peer_access_means_shared_memory() {
    let (a, mut b) = (facts(0), facts(1));
    b.reachable = vec![b.uuid];
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
    let (a, mut b) = (facts(0), facts(1));
    b.p2p_disabled = true;
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
}

#[test]
fn processes_that_cannot_see_each_other_do_not_use_inter_process_handles() {
    let (a, mut b) = (facts(0), facts(1));
    b.host.pid_namespace = 77;
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
}

#[test]
fn without_a_transport_the_error_says_why() {
    let (a, mut b) = (facts(0), facts(1));
    b.host.name = "other".into();
    let text = label(&a, &b).expect_err("different hosts");
    assert!(text.contains("rank 0 and rank 1") && text.contains("a and other"), "{text}");
    let (mut a, mut b) = (facts(0), facts(1));
    (a.shm_disabled, b.p2p_disabled) = (true, true);
    let text = label(&a, &b).expect_err("both ways are switched off");
    assert!(text.contains("NCCL_SHM_DISABLE"), "{text}");
    let (a, mut b) = (facts(0), facts(1));
    (b.host.network_namespace, b.host.pid_namespace) = (77, 78);
    let text = label(&a, &b).expect_err("two containers");
    assert!(text.contains("network namespaces"), "{text}");
}

#[test]
fn offers_survive_their_encoding_and_garbage_does_not_crash() {
    let offers = [Offer::SameProcess(7), Offer::Ipc(vec![1; 64]), Offer::Shared(300)];
    for offer in offers {
        let bytes = postcard::to_stdvec(&offer).expect("encode");
        assert_eq!(postcard::from_bytes::<Offer>(&bytes).expect("decode"), offer);
        for end in 0..bytes.len() {
            assert!(postcard::from_bytes::<Offer>(&bytes[..end]).is_err());
        }
    }
}

/// Where the counter and the slots of each link begin and end in an area.
fn pieces(owner: u32, area: &Area) -> BTreeMap<usize, (usize, LinkId)> {
    let mut pieces = BTreeMap::new();
    for (need, part) in &area.parts {
        assert!(pieces.insert(part.counter, (part.counter + 64, need.id)).is_none());
        if need.id.to == owner {
            assert!(pieces.insert(part.slots, (part.slots + SLOTS * need.slot_bytes as usize, need.id)).is_none());
        }
    }
    pieces
}

#[test]
fn parts_of_an_area_do_not_overlap_and_are_aligned() {
    let set = |class, proto, slot_bytes| LinkSet { class, proto, channels: 2, slot_bytes };
    let sets = vec![
        set(LinkClass::Ring, Proto::Simple, 65536),
        set(LinkClass::Mesh, Proto::Ll, 1984),
        set(LinkClass::Mesh, Proto::Simple, 4160),
        set(LinkClass::Peer, Proto::Simple, 64),
    ];
    let wiring = Wiring::new((0..5).collect(), sets).expect("wiring");
    for owner in 0..5 {
        let area = lay_out(owner, &wiring.links(owner));
        let pieces = pieces(owner, &area);
        let mut end = 0;
        for (begin, (past, id)) in &pieces {
            assert!(*begin >= end, "{id:?}");
            end = *past;
        }
        assert_eq!(end, area.bytes);
        assert_eq!(pieces.len(), area.parts.len() + area.parts.iter().filter(|(need, _)| need.id.to == owner).count());
        for (need, part) in &area.parts {
            let align = if need.slot_bytes >= 4096 { PAGE } else { 64 };
            assert!(part.counter % 64 == 0 && part.slots % align == 0, "{need:?} {part:?}");
            let flagged = need.id.to == owner && need.id.proto == Proto::Ll;
            let past = part.slots + SLOTS * need.slot_bytes as usize;
            assert!(part.counter + 64 <= area.zeroed && (!flagged || past <= area.zeroed), "{need:?} {part:?}");
        }
    }
}

#[test]
fn what_needs_no_zeroes_is_not_zeroed() {
    let need =
        |from, to, proto, slot_bytes| LinkNeed { id: LinkId { proto, ..LinkId::new(LinkClass::Peer, from, to) }, slot_bytes };
    let area = lay_out(1, &[need(0, 1, Proto::Simple, 4096), need(1, 0, Proto::Simple, 4096), need(0, 1, Proto::Ll, 128)]);
    assert_eq!((area.zeroed, area.bytes), (3 * 64 + 8 * 128, 4096 + 8 * 4096));
    assert_eq!(lay_out(1, &[]), Area::default());
}

fn map(me: u32, facts: &[PeerFacts], wiring: &Wiring) -> Map {
    Map::draw(me, facts, wiring).expect("a map")
}

/// Every rank draws the same of a segment and of a place in it, as far as it draws it at all.
fn check_maps(facts: &[PeerFacts]) -> Vec<Map> {
    let n = facts.len() as u32;
    let wiring = Wiring::of_host(n, Proto::Simple, 2, 8192).expect("wiring");
    let maps: Vec<Map> = (0..n).map(|me| map(me, facts, &wiring)).collect();
    for (me, map) in (0..n).zip(&maps) {
        assert_eq!(map.links.len(), wiring.links(me).len());
        for (key, plan) in &map.segments {
            let makers = &maps[key.maker as usize].segments[key];
            assert_eq!((plan.bytes, &plan.members, plan.zeroed), (makers.bytes, &makers.members, makers.zeroed));
            assert_eq!(plan.own.0 < plan.own.1, plan.members.contains(&me));
        }
        for (need, transport) in &map.links {
            for end in [need.id.from, need.id.to] {
                let (mine, theirs) = (&map.places[&(end, *transport)], &maps[end as usize].places[&(end, *transport)]);
                assert_eq!((mine.key, mine.base), (theirs.key, theirs.base));
                assert_eq!(mine.parts[&need.id], theirs.parts[&need.id]);
                assert!(map.segments.contains_key(&mine.key));
            }
        }
    }
    maps
}

fn many(n: u32) -> Vec<PeerFacts> {
    let reachable: Vec<[u8; 16]> = (0..n).map(|device| [device as u8; 16]).collect();
    (0..n).map(|rank| PeerFacts { reachable: reachable.clone(), ..facts(rank) }).collect()
}

#[test]
fn each_rank_makes_one_segment_of_device_memory() {
    for n in [2, 3, 8] {
        for (me, map) in (0..n).zip(check_maps(&many(n))) {
            let keys: Vec<Key> = map.segments.keys().copied().collect();
            assert_eq!(keys, (0..n).map(|maker| Key { transport: 1, maker }).collect::<Vec<_>>());
            assert!(!map.pooled && map.segments[&keys[me as usize]].members == [me]);
        }
    }
}

#[test]
fn one_rank_makes_the_shared_memory_of_a_host() {
    let mut facts = many(6);
    facts.iter_mut().for_each(|facts| facts.p2p_disabled = true);
    for map in check_maps(&facts) {
        assert_eq!(map.segments.keys().copied().collect::<Vec<_>>(), [Key { transport: 2, maker: 0 }]);
        assert!(map.pooled && map.segments.values().all(|plan| plan.members == [0, 1, 2, 3, 4, 5]));
    }
}

/// Ranks 1 and 4 are threads of one process, rank 2 cannot share device memory.
#[test]
fn mixed_ways_are_mixed_segments() {
    let mut facts = many(5);
    facts[2].p2p_disabled = true;
    (facts[4].process, facts[4].host.pid) = (facts[1].process, facts[1].host.pid);
    let maps = check_maps(&facts);
    let keys = |me: usize| maps[me].segments.keys().map(|key| (key.transport, key.maker)).collect::<Vec<_>>();
    assert_eq!(keys(0), [(1, 0), (1, 1), (1, 3), (1, 4), (2, 0)]);
    assert_eq!(keys(1), [(0, 1), (0, 4), (1, 0), (1, 1), (1, 3), (2, 0)]);
    assert_eq!(keys(2), [(2, 0)]);
    assert!(maps.iter().all(|map| map.pooled));
}

#[test]
fn all_ranks_name_the_same_pair_without_a_transport() {
    let mut facts = many(4);
    (facts[2].p2p_disabled, facts[2].shm_disabled) = (true, true);
    let wiring = Wiring::of_host(4, Proto::Simple, 1, 4096).expect("wiring");
    let error = |me| Map::draw(me, &facts, &wiring).err().expect("rank 2 is alone").to_string();
    assert!(error(3).contains("rank 0 and rank 2"), "{}", error(3));
    assert!((0..4).all(|me| error(me) == error(0)));
}
