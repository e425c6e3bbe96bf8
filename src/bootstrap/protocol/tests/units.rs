//! Codecs, lists, the tree, and garbage.

use std::time::Duration;

use proptest::prelude::*;

use super::super::checkin::{Announcement, CheckIn, Entry, Roster, Welcome};
use super::super::failure::Failure;
use super::super::member::Member;
use super::super::root::Root;
use super::super::roots::{Algorithm, RootAddress, RootPlace};
use super::super::stranger::{Visitor, identify};
use super::super::wire::{Decoder, FrameKind, Preamble, Reader, Service};
use super::super::{Action, Conn, MAX_FACTS, Machine, ranks, tree};
use super::world::{MAGIC, World, frame_of, nvidia_hello};
use crate::error::Error;

#[test]
fn lists_of_ranks_are_short() {
    assert_eq!(ranks::list([]), "");
    assert_eq!(ranks::list([3]), "3");
    assert_eq!(ranks::list([0, 3, 7, 8, 9]), "0, 3, 7-9");
    assert_eq!(ranks::list([4, 5]), "4, 5");
    assert_eq!(ranks::name(&[4]), "rank 4");
    assert_eq!(ranks::list((0..100).map(|i| 2 * i)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 88 more");
}

/// Every rank is the child of exactly one other, subtrees are ranges, and the depth is small.
#[test]
fn the_tree_covers_all_ranks() {
    for nranks in (1..300).chain([1000, 10_000]) {
        for rank in 0..nranks {
            let place = tree::place(rank, nranks);
            let mut next = rank + 1;
            for child in &place.children {
                assert_eq!(child.start, next);
                next = child.end;
                let below = tree::place(child.start, nranks);
                assert_eq!((below.parent, below.span), (Some(rank), child.clone()));
            }
            assert_eq!(next, place.span.end);
            assert!(place.children.len() <= tree::ARITY as usize);
        }
    }
    let mut depth = 0;
    let mut at = 9_999;
    while let Some(parent) = tree::place(at, 10_000).parent {
        (at, depth) = (parent, depth + 1);
    }
    assert!(depth <= 5, "{depth}");
}

#[test]
fn visitors_are_told_apart() {
    let see = |bytes: &[u8]| identify(bytes, MAGIC, Service::Root);
    let ours = super::super::wire::Preamble::new(MAGIC, Service::Root).encode();
    for length in 0..16 {
        assert_eq!(see(&ours[..length]), Visitor::Unknown);
    }
    assert_eq!(see(&ours), Visitor::Expected);
    let nvidia = nvidia_hello(3, 8);
    assert_eq!(see(&nvidia[..12]), Visitor::Nvidia(None));
    assert_eq!(see(&nvidia), Visitor::Nvidia(Some((3, 8))));
    let mut newer = ours;
    newer[12] = 9;
    assert_eq!(see(&newer), Visitor::OtherProtocol(9));
    let mut old = ours;
    old[0] ^= 1;
    assert!(matches!(see(&old), Visitor::Stranger(text) if text.contains("another run")));
    assert!(matches!(see(b"GET / HTTP/1.1"), Visitor::Stranger(text) if text.contains("HTTP")));
    assert!(matches!(identify(&ours, MAGIC, Service::Peer), Visitor::Stranger(_)));
}

fn entries() -> impl Strategy<Value = Entry> {
    let address = prop_oneof![
        (any::<[u8; 4]>(), 1..u16::MAX).prop_map(|(ip, port)| std::net::SocketAddr::from((ip, port))),
        (any::<[u8; 16]>(), 1..u16::MAX).prop_map(|(ip, port)| std::net::SocketAddr::from((ip, port))),
    ];
    let address = address.prop_filter("an address", |address| !address.ip().to_canonical().is_unspecified());
    (address, "[a-z0-9.]{1,15}", prop::collection::vec(any::<u8>(), 0..100))
        .prop_map(|(address, interface, facts)| Entry { address, interface, facts })
}

/// A roster of ranks of two hosts.
fn full(list: Vec<Entry>) -> Roster {
    let entries = (0..).zip(list).map(|(rank, entry)| (entry, rank % 2)).collect();
    Roster::Full { commons: vec![vec![1; 20], Vec::new()], entries }
}

proptest! {
    #[test]
    fn records_come_back(
        rank in any::<u32>(), nranks in any::<u32>(), version in any::<u32>(), timeout_ms in any::<u64>(),
        process in "[a-z]{1,9}:[0-9]{1,5}",
        settings in prop::collection::vec(("[A-Z_]{1,20}", "[ -~]{0,30}"), 0..5),
        list in prop::collection::vec(entries(), 1..5),
        token in any::<u64>(),
        index in 0u32..3,
    ) {
        let above = (index > 0).then_some(RootAddress { address: list[0].address, magic: token, secret: [7; 32] });
        let place = RootPlace { index, count: 3, digest: token, above };
        let (entry, common, algorithm) = (list[0].clone(), vec![3; 7], Algorithm::Ring);
        let record =
            CheckIn { rank, nranks, version, timeout_ms, process, settings, entry, common, algorithm, place };
        prop_assert_eq!(CheckIn::decode(&record.encode()[8..]), Ok(record));
        let bare = Entry { facts: Vec::new(), ..list[0].clone() };
        let links = Welcome { token, roster: Roster::Links { parent: Some(bare.clone()), next: bare } };
        prop_assert_eq!(Welcome::decode(&links.encode()[8..]), Ok(links));
        let full = Welcome { token, roster: full(list) };
        prop_assert_eq!(Welcome::decode(&full.encode()[8..]), Ok(full));
    }

    /// Garbage is an error: no panic, no frame beyond the limit.
    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0u8..15) {
        let _ = CheckIn::decode(&bytes);
        let _ = Welcome::decode(&bytes);
        let _ = Failure::decode(&bytes);
        let _ = Decoder(&bytes).address();
        let mut reader = Reader::default();
        let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
        framed.extend([kind, 0, 0, 0]);
        framed.extend(&bytes);
        for piece in framed.chunks(7) {
            reader.push(piece);
            if let Ok(Some(frame)) = reader.frame(MAX_FACTS) {
                prop_assert_eq!(&frame.payload, &bytes);
            }
        }
        let mut reader = Reader::default();
        reader.push(&bytes);
        while let Ok(Some(frame)) = reader.frame(64) {
            prop_assert!(frame.payload.len() <= 64);
        }
    }

    /// One wrong byte in a record is an error or another record, never a panic.
    #[test]
    fn a_flipped_byte_is_survived(
        list in prop::collection::vec(entries(), 1..4),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = Welcome { token: 7, roster: full(list) }.encode().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = value;
        let _ = Welcome::decode(&bytes[8..]);
        let mut reader = Reader::default();
        reader.push(&bytes);
        let _ = reader.frame(1 << 20);
    }
}

#[test]
fn an_announced_length_allocates_nothing() {
    let mut reader = Reader::default();
    let mut bytes = frame_of(FrameKind::Message, &[]);
    bytes[0..4].copy_from_slice(&(60u32 << 20).to_le_bytes());
    reader.push(&bytes);
    assert_eq!(reader.frame(64 << 20), Ok(None));
    assert_eq!(reader.rest().len(), 8);
    assert!(reader.frame(1 << 20).is_err());
    // A count of a million entries in an empty welcome.
    let payload = [&7u64.to_le_bytes()[..], &[0], &(1u32 << 20).to_le_bytes()].concat();
    assert!(Welcome::decode(&payload).is_err());
}

/// Checks a rank in at a root of four.
fn check_in(root: &mut Root, rank: u32) -> Conn {
    let config = World::new(0, 4, World::root_config()).member(rank as usize, rank, 4);
    let record = CheckIn {
        rank,
        nranks: 4,
        version: config.version,
        timeout_ms: 0,
        process: config.process,
        settings: config.settings,
        entry: config.entry,
        common: config.common,
        algorithm: config.algorithm,
        place: config.place,
    };
    let conn = root.accepted(Duration::ZERO, record.entry.address);
    root.received(Duration::ZERO, conn, &Preamble::new(MAGIC, Service::Root).encode());
    root.received(Duration::ZERO, conn, &record.encode());
    conn
}

/// To whom a machine sends, in order.
fn told(machine: &mut impl Machine) -> Vec<Conn> {
    let actions = std::iter::from_fn(|| machine.action());
    actions.filter_map(|action| if let Action::Send { conn, .. } = action { Some(conn) } else { None }).collect()
}

/// A process that hears of a failure, or sees one in what it is told, may end at once, and the root with it: the root's
/// own comes last.
#[test]
fn the_roots_own_process_is_told_last() {
    let mut root = Root::new(World::root_config(), Duration::ZERO);
    let conns: Vec<Conn> = (0..3).map(|rank| check_in(&mut root, rank)).collect();
    told(&mut root);
    root.closed(Duration::ZERO, conns[2], None);
    assert_eq!(told(&mut root), [conns[1], conns[0]]);

    let mut root = Root::new(World::root_config(), Duration::ZERO);
    let conns: Vec<Conn> = (0..4).map(|rank| check_in(&mut root, rank)).collect();
    // The last one's greeting, and the welcome of all.
    assert_eq!(told(&mut root)[4..], [conns[1], conns[2], conns[3], conns[0]]);
}

/// A rank announces that it will check in, by a connection of its own.
fn announce(root: &mut Root, rank: u32) -> Conn {
    let conn = root.accepted(Duration::ZERO, "10.0.0.9:999".parse().expect("an address"));
    root.received(Duration::ZERO, conn, &Preamble::new(MAGIC, Service::Root).encode());
    let announcement = Announcement { rank, nranks: 4, process: "host:7".to_string(), root: (0, 1) };
    root.received(Duration::ZERO, conn, &announcement.encode());
    conn
}

/// The death of a rank that has called but not checked in ends the rendezvous; that of a connection whose rank has
/// checked in, or that says that all is well, does not.
#[test]
fn an_announced_rank_that_is_gone_is_named() {
    let now = Duration::ZERO;
    let mut root = Root::new(World::root_config(), now);
    let conns = [check_in(&mut root, 0), check_in(&mut root, 2)];
    let (checked_in, done, gone) = (announce(&mut root, 2), announce(&mut root, 1), announce(&mut root, 3));
    told(&mut root);
    root.closed(now, checked_in, None);
    root.received(now, done, &frame_of(FrameKind::Done, b""));
    assert!(!root.has_failed() && told(&mut root).is_empty());
    root.closed(now, gone, None);
    assert!(root.has_failed());
    assert_eq!(told(&mut root), [conns[1], conns[0]]);

    // Before anybody else has come; who comes later is told.
    let mut root = Root::new(World::root_config(), now);
    let gone = announce(&mut root, 3);
    root.closed(now, gone, None);
    assert!(root.has_failed());
    let late = check_in(&mut root, 0);
    assert!(told(&mut root).contains(&late));
}

/// A rank that has failed has the root's word that all others know, or the root is gone.
#[test]
fn a_failed_rank_waits_for_the_roots_word() {
    let now = Duration::ZERO;
    for (answered, gone) in [(true, false), (false, false), (true, true)] {
        let mut member = Member::new(World::new(0, 4, World::root_config()).member(1, 1, 4), now);
        let Some(Action::Connect { conn, .. }) = member.action() else { panic!("it does not connect") };
        member.connected(now, conn, Ok(()));
        let preamble = Preamble::new(MAGIC, Service::RootAnswer).encode();
        if answered {
            member.received(now, conn, &preamble);
        }
        assert!(!member.awaits_root());
        member.fail(Error::Aborted);
        assert!(member.awaits_root());
        if !answered {
            member.received(now, conn, &preamble);
        }
        // What it was about to be told before.
        member.received(now, conn, &frame_of(FrameKind::Progress, b""));
        assert!(member.awaits_root());
        match gone {
            true => member.closed(now, conn, None),
            false => member.received(now, conn, &Failure::remote(Some(1), "rank 1 has failed").encode()),
        }
        assert!(!member.awaits_root());
    }
}
