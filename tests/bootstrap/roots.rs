//! Several roots, and exchanges round the ring, with ranks and roots as processes.

use std::net::TcpListener;
use std::time::Duration;

use nccl::bootstrap::id::IdParts;
use nccl::bootstrap::{NetConfig, UniqueId, create_id};

use crate::ranks::{Plan, Rank, read_ids, start, start_all};

/// "What is known is never waited for", and what a process takes to start and end under load.
const SOON_MS: u64 = 20_000;

fn ids(count: usize) -> Vec<UniqueId> {
    (0..count).map(|_| create_id(&NetConfig::default()).expect("an id")).collect()
}

/// A root as a process, and its id.
fn root() -> (Rank, UniqueId) {
    let root = start(&[Plan::new(&[], 0, 1, "root")]).remove(0);
    let id = read_ids(&root.line())[0];
    (root, id)
}

/// The errors of some ranks, which come soon; each contains one of the words.
#[track_caller]
fn fail_with(ranks: &[Rank], words: &[&str]) {
    for (number, rank) in ranks.iter().enumerate() {
        let (_, took, text) = rank.error();
        assert!(words.iter().any(|word| text.contains(word)), "{number}: {text}");
        assert!(took < SOON_MS, "{number}: {took} ms, {text}");
    }
}

#[test]
fn ranks_meet_at_one_root_and_at_many() {
    for (nranks, count) in [(1, 1), (2, 2), (5, 2), (9, 4), (9, 9)] {
        start_all(&ids(count), nranks, "gather", "").iter().for_each(Rank::succeeds);
    }
}

#[test]
fn ranks_meet_round_the_ring() {
    for (nranks, count) in [(1, 1), (2, 1), (6, 1), (7, 3)] {
        start_all(&ids(count), nranks, "gather", "algo=ring").iter().for_each(Rank::succeeds);
    }
}

#[test]
fn a_rank_that_goes_another_way_is_named() {
    for count in [1, 3] {
        let ids = ids(count);
        let way = |rank| if rank == 4 { "algo=ring" } else { "algo=tree" };
        let plans: Vec<Plan> = (0..6).map(|rank| Plan::new(&ids, rank, 6, "join").set(way(rank))).collect();
        for rank in &start(&plans) {
            let (code, _, text) = rank.error();
            assert_eq!(code, "InvalidUsage", "{text}");
            let words = ["OXCCL_BOOTSTRAP_ALGO", "'tree' on rank", "'ring' on rank 4"];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
}

/// A root whose process has ended before the ranks come, at any place in the tree of roots.
#[test]
fn a_dead_root_is_named() {
    for dead in 0..3 {
        let mut ids = ids(3);
        let (mut process, id) = root();
        ids[dead] = id;
        process.kill();
        let words = [format!("ncclUniqueId {dead} of 3"), format!("root {dead} of 3")];
        fail_with(&start_all(&ids, 6, "join", ""), &[&words[0], &words[1]]);
    }
}

/// The same while ranks wait for one that does not come.
#[test]
fn a_root_that_dies_is_named() {
    for dead in 0..3 {
        let mut ids = ids(3);
        let (mut process, id) = root();
        ids[dead] = id;
        let plans: Vec<Plan> = (0..5).map(|rank| Plan::new(&ids, rank, 6, "join")).collect();
        let ranks = start(&plans);
        std::thread::sleep(Duration::from_millis(300));
        process.kill();
        let words = [format!("ncclUniqueId {dead} of 3"), format!("root {dead} of 3")];
        fail_with(&ranks, &[&words[0], &words[1]]);
    }
}

#[test]
fn a_rank_that_dies_is_named_by_ranks_of_all_roots() {
    let ids = ids(4);
    let plans: Vec<Plan> =
        (0..8).map(|rank| Plan::new(&ids, rank, 8, if rank == 3 { "exit" } else { "receive" })).collect();
    // It stays in the list, since dropping it would end it before it has joined.
    let (before, from) = (start(&plans), 4);
    fail_with(&before[..3], &["rank 3"]);
    fail_with(&before[from..], &["rank 3"]);
}

#[test]
fn missing_ranks_are_named_whichever_their_root() {
    let ids = ids(3);
    let plans: Vec<Plan> = (0..5).map(|rank| Plan::new(&ids, rank, 6, "join").set("timeout_ms=700")).collect();
    fail_with(&start(&plans), &["missing: rank 5"]);
}

/// Another program listens where a root should.
#[test]
fn a_foreign_root_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut ids = ids(2);
    let parts = IdParts::decode(&ids[1]).expect("an id");
    ids[1] = IdParts { root: listener.local_addr().expect("an address"), ..parts }.encode();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            let _ = std::io::Write::write_all(&mut (&connection), answer);
            std::mem::forget(connection);
        }
    });
    fail_with(&start_all(&ids, 4, "join", ""), &["ncclUniqueId 1 of 2 should listen", "root 1 of 2"]);
}

#[test]
fn lists_of_ids_that_cannot_be_are_refused() {
    let (one, two) = (ids(1)[0], ids(1)[0]);
    let mut garbage = one;
    garbage.0[40] ^= 1;
    let cases: [(&[UniqueId], &str); 3] = [
        (&[one, two, one], "0 and 2 of 3 are the same"),
        (&[one, two, two, one, garbage], "5 ncclUniqueIds for 4 ranks"),
        (&[one, garbage], "ncclUniqueId 1 of 2"),
    ];
    for (ids, words) in cases {
        fail_with(&start_all(ids, 4, "join", ""), &[words]);
    }
    // Ranks with different lists.
    let (ours, theirs) = (vec![one, two], vec![two, one]);
    let plans: Vec<Plan> =
        (0..4).map(|rank| Plan::new(if rank < 2 { &ours } else { &theirs }, rank, 4, "join")).collect();
    fail_with(&start(&plans), &["the same list of ncclUniqueIds", "is gone", "which is not its own"]);
}
