//! Rendezvous at several roots, and exchanges round the ring: whole, and with faults.

use std::time::Duration;

use rand::RngExt;

use super::super::roots::{Algorithm, block};
use super::simulation::{ids, ms, outcomes, seeds, start_all};
use super::world::{Id, World};
use crate::error::{Code, Error};

const SLACK: Duration = Duration::from_secs(4);

/// A world of up to 20 ranks, and up to as many roots.
fn world(seed: u64, algorithm: Algorithm) -> (World, u32) {
    let nranks = 1 + (seed % 20) as u32;
    let count = 1 + (seed / 20) as u32 % nranks;
    let mut world = World::with_roots(seed, nranks, World::root_config(), count);
    world.algorithm = algorithm;
    (world, nranks)
}

#[test]
fn ranks_meet_at_several_roots() {
    for algorithm in [Algorithm::Tree, Algorithm::Ring] {
        for seed in seeds(400, 5_000) {
            let (mut world, nranks) = world(seed, algorithm);
            world.block = [0, 50, 3000][world.rng.random_range(0..3)];
            let last = start_all(&mut world, nranks, 300);
            for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last + SLACK) {
                assert_eq!(outcome, None, "seed {seed} {algorithm:?} member {id}");
            }
            assert!(world.warnings.is_empty(), "seed {seed}: {:?}", world.warnings);
            let now = world.now;
            world.run_until(now + ms(1000));
            assert!(world.root_finished(), "seed {seed}: a root stays");
        }
    }
}

#[test]
fn large_blocks_go_round_in_pieces() {
    for seed in seeds(4, 40) {
        let (mut world, _) = world(3, Algorithm::Ring);
        (world.block, world.rounds) = (700 << 10, 2);
        let last = start_all(&mut world, 4, 100);
        for (id, outcome) in outcomes(&mut world, seed, &ids(4), last + SLACK) {
            assert_eq!(outcome, None, "seed {seed} member {id}");
        }
    }
}

/// Whoever dies, whenever: the others succeed, or name it.
#[test]
fn a_dead_rank_is_named_by_ranks_of_all_roots() {
    for algorithm in [Algorithm::Tree, Algorithm::Ring] {
        for seed in seeds(300, 5_000) {
            let (mut world, nranks) = world(seed, algorithm);
            let last = start_all(&mut world, nranks, 200);
            let victim = world.rng.random_range(0..nranks as usize);
            let death = last + ms(world.rng.random_range(60..400));
            world.kill(victim, death);
            let others: Vec<Id> = ids(nranks).into_iter().filter(|id| *id != victim).collect();
            for (id, outcome) in outcomes(&mut world, seed, &others, death + SLACK) {
                match outcome {
                    None => {}
                    Some(Error::Remote { rank, text }) => {
                        assert_eq!(rank, Some(victim as u32), "seed {seed} {algorithm:?} member {id}: {text}")
                    }
                    Some(other) => panic!("seed {seed} {algorithm:?} member {id}: {other:?}"),
                }
            }
        }
    }
}

/// A rank that fails by itself ends the initialisation of all, whichever root it is at; its reason is told.
#[test]
fn a_failing_rank_is_named_by_ranks_of_all_roots() {
    for seed in seeds(300, 3_000) {
        let (mut world, nranks) = world(seed, Algorithm::Tree);
        let last = start_all(&mut world, nranks, 100);
        let culprit = world.rng.random_range(0..nranks as usize);
        let at = ms(world.rng.random_range(0..300));
        world.fail(culprit, at);
        for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last.max(at) + SLACK) {
            match outcome {
                None | Some(Error::Resource(_)) => {}
                Some(Error::Remote { rank: Some(rank), text }) => {
                    assert!(
                        rank as usize == culprit && text.contains("no memory left"),
                        "seed {seed} member {id}: {text}"
                    )
                }
                Some(other) => panic!("seed {seed} member {id}: {other:?}"),
            }
        }
    }
}

/// A root that dies is named, by its number or its ranks, wherever it is in the tree of roots.
#[test]
fn a_dead_root_is_named() {
    for seed in seeds(200, 2_000) {
        let (nranks, count) = (20, 2 + (seed % 9) as u32);
        let mut world = World::with_roots(seed, nranks, World::root_config(), count);
        let last = start_all(&mut world, nranks, 100);
        // Some come after the death.
        let root = world.root + world.rng.random_range(0..count as usize);
        let death = ms(world.rng.random_range(0..90));
        world.kill(root, death);
        // A rank of the dead root tells the first one; the simulation's ranks do not.
        let index = (root - world.root) as u32;
        let ranks: Vec<Id> = block(index, count, nranks).map(|rank| rank as Id).collect();
        for (id, outcome) in outcomes(&mut world, seed, &ranks, last + SLACK) {
            let error = outcome.unwrap_or_else(|| panic!("seed {seed}: member {id} succeeds"));
            let text = error.to_string();
            let named = format!("ncclUniqueId {index} of {count}");
            assert!(text.contains(&named) || text.contains(&format!("root {index} of {count}")), "seed {seed}: {text}");
        }
    }
}

/// Differences between ranks of different roots end in an error that says what differs.
#[test]
fn ranks_of_different_roots_that_do_not_fit_are_named() {
    type Change = fn(&mut super::super::member::MemberConfig);
    let changes: [(Change, &str); 5] = [
        (|config| config.place.digest = 8, "the same list of ncclUniqueIds"),
        (|config| config.version = 23000, "Mismatched NCCL version detected"),
        (|config| config.algorithm = Algorithm::Ring, "OXCCL_BOOTSTRAP_ALGO is '"),
        (|config| config.algorithm = Algorithm::Ring, "'ring' on rank"),
        (|config| config.nranks = 99, "which is not its own"),
    ];
    for seed in seeds(100, 1_000) {
        let (nranks, count) = (6 + (seed % 15) as u32, 2 + (seed % 5) as u32);
        let (change, words) = changes[seed as usize % changes.len()];
        let mut world = World::with_roots(seed, nranks, World::root_config(), count);
        let last = start_all(&mut world, nranks, 200);
        // All ranks of a root differ, or one of them.
        let ranks = block(1, count, nranks);
        // Where no rank of a root knows how many there are, nobody there knows of the other roots.
        let whole = seed.is_multiple_of(2) && !words.contains("not its own");
        let changed = if whole { ranks } else { ranks.start..ranks.start + 1 };
        for rank in changed {
            let mut config = world.member(rank as usize, rank, nranks);
            change(&mut config);
            world.restart(rank as usize, config);
        }
        for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last + SLACK) {
            let error = outcome.unwrap_or_else(|| panic!("seed {seed}: member {id} succeeds"));
            assert_eq!(error.code(), Code::InvalidUsage, "seed {seed} member {id}: {error}");
            assert!(error.to_string().contains(words), "seed {seed} member {id}: {error}");
        }
    }
}

/// Ranks that never come are named, also where no rank of their root comes.
#[test]
fn missing_ranks_of_several_roots_are_named() {
    for (seed, missing, words) in [(1, 3..4, "missing: rank 3"), (2, 4..6, "heard of ranks 4, 5"), (3, 5..9, "rank")] {
        let mut config = World::root_config();
        config.timeout = Some(Duration::from_secs(70));
        let (nranks, count) = (10, 5);
        let mut world = World::with_roots(seed, nranks, config, count);
        let there: Vec<Id> = ids(nranks).into_iter().filter(|id| !missing.contains(id)).collect();
        for id in &there {
            let config = world.member(*id, *id as u32, nranks);
            world.start(*id, config, ms(10));
        }
        for (id, outcome) in outcomes(&mut world, seed, &there, Duration::from_secs(80)) {
            let error = outcome.expect("nobody can succeed");
            assert_eq!(error.code(), Code::Timeout, "member {id}: {error}");
            assert!(error.to_string().contains(words), "member {id}: {error}");
        }
        assert!(world.warnings.iter().any(|text| text.contains(words)), "{:?}", world.warnings);
    }
}

#[test]
fn settings_are_compared_over_all_roots() {
    let mut world = World::with_roots(1, 8, World::root_config(), 3);
    start_all(&mut world, 8, 100);
    let mut config = world.member(3, 3, 8);
    config.settings = vec![("NCCL_ALGO".to_string(), "Tree".to_string())];
    world.restart(3, config);
    for (_, outcome) in outcomes(&mut world, 1, &ids(8), ms(3000)) {
        assert_eq!(outcome, None);
    }
    assert_eq!(
        world.warnings,
        ["Bootstrap: NCCL_ALGO is not the same on all ranks: 'Ring' on ranks 0-2, 4-7, 'Tree' on rank 3"]
    );
}
