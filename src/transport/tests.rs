use std::collections::BTreeMap;

use super::layout::{Area, PAGE, lay_out};
use super::memory::Offer;
use super::*;
use crate::plan::layout::Proto;
use crate::plan::wiring::{LinkNeed, LinkSet, Wiring};
use crate::plan::{LinkClass, LinkId, SLOTS};
use crate::sys::HostFacts;
use crate::topology::Graph;
use crate::tuning::Preferences;

fn facts(rank: u32) -> PeerFacts {
    let host =
        HostFacts { name: "a".into(), boot_id: "b".into(), network_namespace: 1, pid_namespace: 2, pid: 100 + rank };
    PeerFacts {
        rank,
        host,
        process: u64::from(rank),
        device: rank as i32,
        nvml_device: rank as i32,
        context: 0,
        uuid: [rank as u8; 16],
        bus_id: u64::from(rank),
        capability: 90,
        reach: PeerReach {
            linked: (0..64).map(|device| [device; 16]).collect::<Vec<_>>().into(),
            ..PeerReach::default()
        },
        location: crate::proxy::Location { mailbox: [rank as u8; 16], tcp: None },
        transports: usual(),
        links: u64::from(rank),
        registers: true,
        tuning: Preferences {
            channels: 1,
            slot_bytes: 4096,
            message_channels: 1,
            message_line_bytes: 0,
            halvings: 0,
            candidates: Vec::new(),
        },
        cpus: 2,
    }
}

fn label(a: &PeerFacts, b: &PeerFacts) -> Result<&'static str, String> {
    let forth = choose(a, b).map(|transport| transport.label()).map_err(|error| error.to_string());
    let back = choose(b, a).map(|transport| transport.label()).map_err(|error| error.to_string());
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
    b.reach.unreachable = vec![a.uuid].into();
    assert_eq!(label(&a, &b), Ok("SHM/direct"));
    let (a, mut b) = (facts(0), facts(1));
    b.transports = vec![TransportId::Shm];
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
    (a.transports, b.transports) = (vec![TransportId::Ipc], vec![TransportId::Shm]);
    let text = label(&a, &b).expect_err("both ways are switched off");
    assert!(text.contains("NCCL_SHM_DISABLE"), "{text}");
    let (a, mut b) = (facts(0), facts(1));
    (b.host.network_namespace, b.host.pid_namespace) = (77, 78);
    let text = label(&a, &b).expect_err("two containers");
    assert!(text.contains("network namespaces"), "{text}");
}

#[test]
fn offers_survive_their_encoding_and_garbage_does_not_crash() {
    let block = |handle| Offer::Block { number: u64::MAX, bytes: 1 << 21, offset: 4096, handle };
    let offers = [Offer::SameProcess(300), Offer::Shared, block(None), block(Some(vec![1; 64]))];
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
    let set = |class, proto, slot_bytes| LinkSet {
        class,
        proto,
        channels: if class == LinkClass::Peer { 1 } else { 2 },
        slot_bytes,
    };
    let sets = vec![
        set(LinkClass::Ring, Proto::Simple, 65536),
        set(LinkClass::Direct, Proto::Ll, 1984),
        set(LinkClass::Direct, Proto::Simple, 4160),
        set(LinkClass::Peer, Proto::Simple, 64),
    ];
    let wiring = Wiring::new(Graph::of_host(5), sets).expect("wiring");
    for owner in 0..5 {
        let area = lay_out(owner, &wiring.links(owner));
        let pieces = pieces(owner, &area);
        let mut end = 0;
        for (begin, (past, id)) in &pieces {
            assert!(*begin >= end, "{id:?}");
            end = *past;
        }
        assert_eq!(end.next_multiple_of(PAGE), area.bytes);
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
    let need = |from, to, proto, slot_bytes| LinkNeed {
        id: LinkId { proto, ..LinkId::new(LinkClass::Peer, from, to) },
        slot_bytes,
    };
    let area =
        lay_out(1, &[need(0, 1, Proto::Simple, 4096), need(1, 0, Proto::Simple, 4096), need(0, 1, Proto::Ll, 128)]);
    assert_eq!((area.zeroed, area.bytes), (3 * 64 + 8 * 128, 4096 + 8 * 4096));
    assert_eq!(lay_out(1, &[]), Area::default());
}

fn many(n: u32) -> Vec<PeerFacts> {
    (0..n).map(facts).collect()
}

/// The transports of a rank's links of a connection group, and how many links each has.
fn sorted(rank: u32, connectivity: &Connectivity, group: ConnectionGroup) -> Vec<(TransportId, usize)> {
    let transports = connectivity.transports(rank, group).expect("transports");
    let counted =
        transports.iter().map(|transport| (transport.id(), connectivity.links(rank, group, transport.id()).len()));
    let mut counted: Vec<_> = counted.collect();
    counted.sort_unstable();
    counted
}

/// Ranks 1 and 4 are threads of one process, rank 2 cannot share device memory.
#[test]
fn an_end_has_the_links_of_one_transport() {
    use TransportId::{Direct, Ipc, Shm};
    let mut facts = many(5);
    facts[2].transports = vec![Shm];
    (facts[4].process, facts[4].host.pid) = (facts[1].process, facts[1].host.pid);
    let connectivity = Connectivity::new(facts, Wiring::of_host(5, Proto::Simple, 1, 8192).expect("wiring"));
    let channel = |class| ConnectionGroup::Channel { class, proto: Proto::Simple, channel: 0 };
    let of = |rank, group| sorted(rank, &connectivity, group);
    assert_eq!(of(1, channel(LinkClass::Direct)), [(Direct, 2), (Ipc, 4), (Shm, 2)]);
    assert_eq!(of(2, channel(LinkClass::Direct)), [(Shm, 8)]);
    assert_eq!(of(3, channel(LinkClass::Ring)), [(Ipc, 1), (Shm, 1)]);
    assert_eq!(of(4, ConnectionGroup::pair(4, 1)), [(Direct, 2)]);
    assert_eq!(of(0, ConnectionGroup::pair(1, 0)), [(Ipc, 2)]);
    assert_eq!(of(2, ConnectionGroup::pair(0, 1)), []);
    // Both ends of a link look for it in the same area.
    for need in connectivity.wiring.group_links(1, channel(LinkClass::Direct)) {
        let peer = need.peer(1);
        let transport = connectivity.transport(1, peer).expect("a transport").id();
        let theirs = lay_out(peer, &connectivity.links(peer, channel(LinkClass::Direct), transport));
        assert!(theirs.part(need.id).is_some(), "{need:?}");
    }
}

#[test]
fn without_a_transport_there_is_no_end() {
    let mut facts = many(4);
    facts[2].transports.clear();
    let connectivity = Connectivity::new(facts, Wiring::of_host(4, Proto::Simple, 1, 4096).expect("wiring"));
    let transports =
        |pair| connectivity.transports(3, pair).map(|found| found.len()).map_err(|error| error.to_string());
    let error = transports(ConnectionGroup::pair(3, 2)).expect_err("rank 2 is alone");
    assert!(error.contains("rank 3 and rank 2"), "{error}");
    assert_eq!(transports(ConnectionGroup::pair(3, 1)), Ok(1));
}

#[test]
fn the_order_of_transports_is_the_lower_ranks_and_both_must_allow_them() {
    use TransportId::{Direct, Ipc, Net, Shm};
    let with = |rank, transports: &[TransportId]| PeerFacts { transports: transports.to_vec(), ..facts(rank) };
    assert_eq!(label(&with(0, &[Shm, Ipc]), &with(1, &[Ipc, Shm])), Ok("SHM/direct"));
    assert_eq!(label(&with(1, &[Shm, Ipc]), &with(0, &[Ipc, Shm])), Ok("P2P/IPC"));
    let without = label(&with(0, &[Direct, Net]), &with(1, &[Net])).expect_err("nobody listens");
    assert!(without.contains("OXCCL_TRANSPORTS"), "{without}");
    let none = label(&with(0, &[Net]), &with(1, &[Shm])).expect_err("nothing in common");
    assert!(none.contains("OXCCL_TRANSPORTS"), "{none}");
}

#[test]
fn transports_stand_at_their_numbers() {
    assert!(TRANSPORTS.iter().enumerate().all(|(number, transport)| transport.id() as usize == number));
}

#[test]
fn transports_are_named() {
    use TransportId::{Direct, Ipc, Net, Shm};
    assert_eq!(named("net"), Ok(vec![Net]));
    assert_eq!(named(" SHM,p2p, shm"), Ok(vec![Shm, Direct, Ipc]));
    for (list, word) in [("ib", "'ib'"), ("", "no transport"), (",", "no transport"), ("shm;net", "'shm;net'")] {
        let error = named(list).expect_err(list);
        assert!(error.contains(word) && error.contains("p2p, shm and net"), "{error}");
    }
}

/// What holds for the pairs that stand for all holds for all: whichever ranks differ in whatever decides.
#[test]
fn some_pairs_stand_for_all() {
    let changes: [fn(&mut PeerFacts); 8] = [
        |peer| peer.host.boot_id = "other".into(),
        |peer| peer.host.pid_namespace = 77,
        |peer| peer.transports = vec![TransportId::Shm],
        |peer| peer.reach.linked = vec![peer.uuid].into(),
        |peer| peer.reach.unreachable = vec![[2; 16]].into(),
        |peer| peer.uuid = [3; 16],
        |peer| peer.process = 0,
        |peer| peer.reach.excluded = vec![1],
    ];
    for (at, change) in changes.iter().enumerate() {
        for other in &changes[at..] {
            for changed in 0..6usize {
                let mut all: Vec<PeerFacts> = (0..6).map(facts).collect();
                change(&mut all[changed]);
                other(&mut all[(changed * 2 + at) % 6]);
                let pairs = distinct_pairs(&all);
                let hold = |pairs: &mut dyn Iterator<Item = (usize, usize)>| {
                    let told: std::collections::BTreeSet<String> = pairs
                        .map(|(a, b)| {
                            format!("{:?}{}", label(&all[a], &all[b]).ok(), keeps_lines_whole(&all[a], &all[b]))
                        })
                        .collect();
                    told
                };
                let every = hold(&mut (0..6).flat_map(|b| (0..b).map(move |a| (a, b))));
                assert_eq!(hold(&mut pairs.into_iter()), every, "changes {at} of rank {changed}");
            }
        }
    }
    let all: Vec<PeerFacts> = (0..60).map(facts).collect();
    assert_eq!(distinct_pairs(&all).len(), 1);
}
