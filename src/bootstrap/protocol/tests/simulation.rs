//! Whole rendezvous over a seeded network, with every fault that is promised to end well.
//!
//! A failing run prints its seed; `OXCCL_LONG=1` runs many more.

use std::time::Duration;

use rand::RngExt;

use super::world::{Id, MAGIC, World, nvidia_hello};
use crate::error::{Code, Error};

/// "What is known is never waited for": the bound for all others, beside the network's own delays.
const BOUND: Duration = Duration::from_secs(2);
/// A late rank that finds no root tries for two seconds.
const REFUSED: Duration = Duration::from_secs(2);
/// Network delays of a few dozen hops.
const SLACK: Duration = Duration::from_millis(1500);

fn long() -> bool {
    std::env::var_os("OXCCL_LONG").is_some()
}

pub(super) fn seeds(short: u64, many: u64) -> std::ops::Range<u64> {
    0..if long() { many } else { short }
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Starts `nranks` ordinary members at random moments within `spread` ms; the last start.
pub(super) fn start_all(world: &mut World, nranks: u32, spread: u64) -> Duration {
    let mut last = Duration::ZERO;
    for rank in 0..nranks {
        let at = ms(world.rng.random_range(0..=spread));
        last = last.max(at);
        let config = world.member(rank as usize, rank, nranks);
        world.start(rank as usize, config, at);
    }
    last
}

pub(super) fn ids(nranks: u32) -> Vec<Id> {
    (0..nranks as usize).collect()
}

#[track_caller]
pub(super) fn outcomes(world: &mut World, seed: u64, wanted: &[Id], limit: Duration) -> Vec<(Id, Option<Error>)> {
    let done = world.run(wanted, limit);
    let missing: Vec<&Id> = wanted.iter().filter(|id| !world.outcomes.contains_key(id)).collect();
    assert!(
        done,
        "seed {seed}: {missing:?} wait in silence at {:?}; so far {:?}, {:?}",
        world.now, world.outcomes, world.infos
    );
    wanted.iter().map(|id| (*id, world.outcomes[id].clone())).collect()
}

#[test]
fn all_ranks_meet_among_strangers() {
    for seed in seeds(300, 10_000) {
        let mut world = World::new(seed, 8, World::root_config());
        let nranks = world.rng.random_range(1..=8);
        let last = start_all(&mut world, nranks, 300);
        for _ in 0..world.rng.random_range(0..6) {
            stranger(&mut world, nranks);
        }
        world.block = [0, 50, 3000][world.rng.random_range(0..3)];
        let all = outcomes(&mut world, seed, &ids(nranks), last + SLACK);
        for (id, outcome) in all {
            assert_eq!(outcome, None, "seed {seed} member {id}");
        }
        assert!(world.warnings.is_empty(), "seed {seed}: {:?}", world.warnings);
        let now = world.now;
        world.run_until(now + ms(500));
        assert!(world.root_finished(), "seed {seed}: the root stays");
    }
}

/// A port scan, an HTTP probe, an old run, random bytes, silence: at the root or at a member.
fn stranger(world: &mut World, nranks: u32) {
    let target = if world.rng.random_bool(0.6) { world.root } else { world.rng.random_range(0..nranks as usize) };
    let at = ms(world.rng.random_range(0..400));
    let stay = world.rng.random_bool(0.5);
    let length = world.rng.random_range(0..200);
    let noise: Vec<u8> = (0..length).map(|_| world.rng.random()).collect();
    let old = [&(MAGIC ^ 1).to_le_bytes()[..], &0x4f58_0001u32.to_le_bytes(), &1u32.to_le_bytes()].concat();
    let bytes = match world.rng.random_range(0..5) {
        0 => Vec::new(),
        1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        2 => old,
        3 => MAGIC.to_le_bytes()[..4].to_vec(),
        _ => noise,
    };
    world.visit(target, at, bytes, stay);
}

#[test]
fn a_dead_rank_is_named() {
    for seed in seeds(300, 10_000) {
        let mut world = World::new(seed, 8, World::root_config());
        let nranks = world.rng.random_range(2..=8);
        let last = start_all(&mut world, nranks, 300);
        let victim = world.rng.random_range(0..nranks as usize);
        let death = ms(world.rng.random_range(0..700));
        world.kill(victim, death);
        world.run_until(death);
        let over_before = world.outcomes.contains_key(&victim);
        let others: Vec<Id> = ids(nranks).into_iter().filter(|id| *id != victim).collect();
        // A rank that dies before it has joined is one that is missing: nobody can know.
        let limit = last.max(death) + BOUND + REFUSED + SLACK;
        world.run(&others, limit);
        let started = world.outcomes.len() - usize::from(over_before);
        if started == 0 {
            assert!(!over_before, "seed {seed}");
            continue;
        }
        for (id, outcome) in outcomes(&mut world, seed, &others, limit) {
            match outcome {
                None => {}
                Some(Error::Remote { rank, text }) => {
                    assert_eq!(rank, Some(victim as u32), "seed {seed} member {id}: {text}")
                }
                Some(other) => panic!("seed {seed} member {id}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_failing_rank_is_named() {
    for seed in seeds(300, 5_000) {
        let mut world = World::new(seed, 8, World::root_config());
        let nranks = world.rng.random_range(2..=8);
        let last = start_all(&mut world, nranks, 100);
        let culprit = world.rng.random_range(0..nranks as usize);
        let at = ms(world.rng.random_range(0..500));
        world.fail(culprit, at);
        for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last.max(at) + BOUND + SLACK) {
            match outcome {
                None => {}
                Some(Error::Resource(text)) if id == culprit => assert_eq!(text, "no memory left"),
                Some(Error::Remote { rank: Some(rank), text }) => {
                    assert!(
                        rank as usize == culprit && text.contains("no memory left"),
                        "seed {seed} member {id}: {text}"
                    );
                }
                Some(other) => panic!("seed {seed} member {id}: {other:?}"),
            }
        }
    }
}

/// Runs a world in which one member does not fit; every member must say so.
#[track_caller]
fn misfit(seed: u64, code: Code, words: &[&str], change: impl Fn(&mut World, u32)) {
    let mut world = World::new(seed, 8, World::root_config());
    let nranks = world.rng.random_range(2..=8);
    let last = start_all(&mut world, nranks, 300);
    change(&mut world, nranks);
    for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last + BOUND + REFUSED + SLACK) {
        let error = outcome.unwrap_or_else(|| panic!("seed {seed}: member {id} succeeds"));
        assert_eq!(error.code(), code, "seed {seed} member {id}: {error}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "seed {seed} member {id}: {text}");
    }
    let end = world.now + Duration::from_secs(25);
    world.run_until(end);
    assert!(world.root_finished(), "seed {seed}: the root stays");
}

#[test]
fn ranks_that_do_not_fit_are_named() {
    for seed in seeds(100, 3_000) {
        misfit(
            seed,
            Code::InvalidUsage,
            &["Mismatched NCCL version detected", "rank 1 version 23000", "version 23203"],
            |world, nranks| {
                let mut config = world.member(1, 1, nranks);
                config.version = 23000;
                world.restart(1, config);
            },
        );
        misfit(seed, Code::InvalidUsage, &["do not agree how many they are", "rank 1 (", "expects 99"], |world, _| {
            let config = world.member(1, 1, 99);
            world.restart(1, config);
        });
        misfit(seed, Code::InvalidUsage, &["rank 0 has joined twice", "host0:0", "host0:1"], |world, nranks| {
            let config = world.member(1, 0, nranks);
            world.restart(1, config);
        });
    }
}

/// A rank that expects another number of ranks takes nobody's place: the one whose place it claims comes later, and is
/// told as well. Nor does one that comes a second time.
#[test]
fn a_failed_root_stays_for_the_ranks_that_fit() {
    for (seed, (rank, nranks)) in seeds(50, 500).zip([(1, 3), (0, 2), (2, 3)].into_iter().cycle()) {
        let mut world = World::new(seed, 8, World::root_config());
        for (id, (rank, nranks), at) in [(0, (0, 2), 0), (1, (rank, nranks), 100), (2, (1, 2), 2_000)] {
            let config = world.member(id, rank, nranks);
            world.start(id, config, ms(at));
        }
        for (id, outcome) in outcomes(&mut world, seed, &[0, 1, 2], ms(2_000) + BOUND + SLACK) {
            let error = outcome.unwrap_or_else(|| panic!("seed {seed}: member {id} succeeds"));
            assert_eq!(error.code(), Code::InvalidUsage, "seed {seed} member {id}: {error}");
        }
        let end = world.now + Duration::from_secs(25);
        world.run_until(end);
        assert!(world.root_finished(), "seed {seed}: the root stays");
    }
}

#[test]
fn nvidias_library_is_recognised() {
    for seed in seeds(100, 2_000) {
        let mut world = World::new(seed, 8, World::root_config());
        let nranks = world.rng.random_range(2..=8);
        for rank in 1..nranks {
            let config = world.member(rank as usize, rank, nranks);
            let at = ms(world.rng.random_range(0..300));
            world.start(rank as usize, config, at);
        }
        let root = world.root;
        world.visit(root, ms(150), nvidia_hello(0, nranks), true);
        for (id, outcome) in outcomes(&mut world, seed, &ids(nranks)[1..], ms(300) + BOUND + SLACK) {
            let text = outcome.expect("nobody can succeed").to_string();
            assert!(
                text.contains("LD_PRELOAD") && text.contains(&format!("rank 0 of {nranks}")),
                "seed {seed} member {id}: {text}"
            );
        }
    }
}

#[test]
fn missing_ranks_are_named_in_time() {
    for seed in seeds(100, 2_000) {
        let mut config = World::root_config();
        config.timeout = Some(Duration::from_secs(70));
        let mut world = World::new(seed, 8, config);
        for rank in [0, 1, 2, 4, 5] {
            let config = world.member(rank as usize, rank, 8);
            let at = ms(world.rng.random_range(0..300));
            world.start(rank as usize, config, at);
        }
        for (id, outcome) in outcomes(&mut world, seed, &[0, 1, 2, 4, 5], Duration::from_secs(71)) {
            let error = outcome.expect("nobody can succeed");
            assert_eq!(error.code(), Code::Timeout, "seed {seed}");
            assert!(
                error.to_string().contains("5 of 8 ranks have joined, missing: ranks 3, 6, 7"),
                "seed {seed} member {id}: {error}"
            );
        }
        let progress: Vec<&String> =
            world.warnings.iter().filter(|text| text.contains("missing: ranks 3, 6, 7")).collect();
        assert_eq!(progress.len(), 3, "seed {seed}: two progress lines and the failure: {:?}", world.warnings);
    }
}

#[test]
fn a_cut_connection_ends_in_an_error_or_not_at_all() {
    for seed in seeds(300, 10_000) {
        let mut world = World::new(seed, 8, World::root_config());
        let nranks = world.rng.random_range(2..=8);
        let last = start_all(&mut world, nranks, 200);
        let victim = world.rng.random_range(0..nranks as usize);
        let at = ms(world.rng.random_range(0..400));
        world.cut(victim, at);
        for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last.max(at) + BOUND + REFUSED + SLACK) {
            match outcome {
                None => {}
                Some(Error::Remote { text, .. }) => {
                    assert!(text.contains("rank"), "seed {seed} member {id}: {text}")
                }
                Some(other) => panic!("seed {seed} member {id}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_dead_root_is_an_error() {
    for seed in seeds(100, 2_000) {
        let mut world = World::new(seed, 8, World::root_config());
        let last = start_all(&mut world, 8, 300);
        let root = world.root;
        world.kill(root, ms(150));
        for (id, outcome) in outcomes(&mut world, seed, &ids(8), last + BOUND + REFUSED + SLACK) {
            if let Some(error) = outcome {
                assert!(
                    error.code() == Code::Remote && error.to_string().contains("root"),
                    "seed {seed} member {id}: {error}"
                );
            }
        }
    }
}

#[test]
fn different_settings_are_told_once() {
    let mut world = World::new(1, 8, World::root_config());
    start_all(&mut world, 8, 100);
    let mut config = world.member(3, 3, 8);
    config.settings = vec![("NCCL_ALGO".to_string(), "Tree".to_string()), ("NCCL_PROTO".to_string(), "LL".to_string())];
    world.restart(3, config);
    for (_, outcome) in outcomes(&mut world, 1, &ids(8), ms(3000)) {
        assert_eq!(outcome, None);
    }
    assert_eq!(
        world.warnings,
        [
            "Bootstrap: NCCL_ALGO is not the same on all ranks: 'Ring' on ranks 0-2, 4-7, 'Tree' on rank 3",
            "Bootstrap: NCCL_PROTO is not the same on all ranks: unset on ranks 0-2, 4-7, 'LL' on rank 3"
        ]
    );
}

#[test]
fn many_ranks_meet() {
    for (nranks, count) in [(128, 5), (500, 1)] {
        for seed in 0..if long() { 20 * count } else { count } {
            meet(seed, nranks, 40);
        }
    }
}

#[test]
fn two_thousand_ranks_meet() {
    for seed in seeds(1, 10) {
        meet(seed, 2000, 4);
    }
}

fn meet(seed: u64, nranks: u32, block: usize) {
    let mut world = World::new(seed, nranks, World::root_config());
    world.block = block;
    let last = start_all(&mut world, nranks, 300);
    for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last + SLACK) {
        assert_eq!(outcome, None, "seed {seed} member {id}");
    }
}

/// Blocks beyond what the tree takes go round the ring.
#[test]
fn large_blocks_go_round() {
    for seed in seeds(2, 20) {
        meet(seed, 5, 2 << 20);
        meet(seed, 2, 5 << 20);
    }
}

#[test]
fn one_of_two_thousand_dies() {
    for seed in seeds(1, 10) {
        let nranks = 2000;
        let mut world = World::new(seed, nranks, World::root_config());
        world.block = 4;
        let last = start_all(&mut world, nranks, 300);
        let victim = world.rng.random_range(0..nranks as usize);
        let moment = world.rng.random_range(20..250);
        world.kill(victim, last + ms(moment));
        let others: Vec<Id> = ids(nranks).into_iter().filter(|id| *id != victim).collect();
        for (id, outcome) in outcomes(&mut world, seed, &others, last + BOUND + SLACK) {
            if let Some(error) = outcome {
                assert!(
                    matches!(error, Error::Remote { rank: Some(rank), .. } if rank as usize == victim),
                    "seed {seed} member {id}: {error}"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_dies_in_the_ring_is_named() {
    for seed in seeds(8, 60) {
        let nranks = 2 + (seed % 4) as u32;
        let mut world = World::new(seed, nranks, World::root_config());
        world.block = (9 << 20) / nranks as usize;
        world.rounds = 1;
        let last = start_all(&mut world, nranks, 50);
        let victim = world.rng.random_range(0..nranks as usize);
        let death = last + ms(world.rng.random_range(40..400));
        world.kill(victim, death);
        let others: Vec<Id> = ids(nranks).into_iter().filter(|id| *id != victim).collect();
        for (id, outcome) in outcomes(&mut world, seed, &others, death + BOUND + REFUSED + SLACK) {
            if let Some(error) = outcome {
                assert!(
                    matches!(error, Error::Remote { rank: Some(rank), .. } if rank as usize == victim),
                    "seed {seed} member {id}: {error}"
                );
            }
        }
    }
}

/// A rank that needs nothing more leaves while others are still connecting their neighbours.
#[test]
fn ranks_that_only_join_may_leave_at_once() {
    for seed in seeds(200, 3_000) {
        let mut world = World::new(seed, 8, World::root_config());
        world.rounds = 0;
        world.exchange = false;
        let nranks = world.rng.random_range(2..=8);
        let last = start_all(&mut world, nranks, 100);
        for (id, outcome) in outcomes(&mut world, seed, &ids(nranks), last + SLACK) {
            assert_eq!(outcome, None, "seed {seed} member {id}");
        }
    }
}
