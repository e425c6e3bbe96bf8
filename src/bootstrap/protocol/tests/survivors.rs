//! What ranks can still do when others are gone, or take no part, after the initialisation.

use std::time::Duration;

use rand::RngExt;
use rand::seq::SliceRandom;

use super::simulation::seeds;
use super::world::{Id, MemberOp, World};
use crate::error::Error;

/// Time for anything to come to its end, with what a connect to a dead process takes.
const SETTLED: Duration = Duration::from_secs(20);

/// `nranks` members that are through.
fn world(seed: u64, nranks: u32) -> World {
    let mut world = World::new(seed, nranks, World::root_config());
    world.leave = false;
    // Half of the worlds have no message connections yet.
    world.exchange = seed.is_multiple_of(2);
    for rank in 0..nranks {
        let config = world.member(rank as usize, rank, nranks);
        world.start(rank as usize, config, Duration::ZERO);
    }
    let all: Vec<Id> = (0..nranks as usize).collect();
    assert!(world.run(&all, SETTLED), "seed {seed}");
    world
}

fn soon(world: &mut World) -> Duration {
    world.now + Duration::from_millis(world.rng.random_range(0..300))
}

/// Runs until all scripts are over.
#[track_caller]
fn finish(world: &mut World, seed: u64, ids: &[Id]) {
    let end = world.now + SETTLED;
    world.run_until(end);
    for id in ids {
        assert!(world.script_over(*id), "seed {seed}: rank {id} waits in silence: {:?}", world.done);
    }
}

/// The first of some ranks collects from all and answers all.
fn exchange(world: &mut World, ranks: &[Id]) {
    let (leader, others) = ranks.split_first().expect("there are ranks");
    let at = soon(world);
    let collect = others.iter().map(|other| MemberOp::Receive(*other as u32));
    let answer = others.iter().map(|other| MemberOp::Send(*other as u32));
    world.script(*leader, at, &collect.chain(answer).collect::<Vec<_>>());
    for other in others {
        let at = soon(world);
        world.script(*other, at, &[MemberOp::Send(*leader as u32), MemberOp::Receive(*leader as u32)]);
    }
}

/// Dead ranks, whichever they are and whenever they died, do not keep the others from talking; and an exchange of all
/// ranks ends with the name of a dead one, before and after.
#[test]
fn survivors_talk() {
    for seed in seeds(300, 10_000) {
        let nranks = 2 + (seed % 11) as u32;
        let mut world = world(seed, nranks);
        let mut ranks: Vec<Id> = (0..nranks as usize).collect();
        ranks.shuffle(&mut world.rng);
        let dead = ranks.split_off(world.rng.random_range(1..nranks as usize));
        ranks.sort_unstable();
        for id in &dead {
            let at = soon(&mut world);
            world.kill(*id, at);
        }
        if world.rng.random_bool(0.5) {
            let at = world.now + Duration::from_millis(400);
            world.run_until(at);
        }
        let gathers = world.rng.random_range(0..3);
        for id in &ranks {
            let at = world.now + Duration::from_millis(300);
            world.script(*id, at, &vec![MemberOp::Gather; gathers]);
        }
        finish(&mut world, seed, &ranks);
        exchange(&mut world, &ranks);
        exchange(&mut world, &ranks);
        finish(&mut world, seed, &ranks);
        for id in &ranks {
            let done = &world.done.get(id).cloned().unwrap_or_default();
            for outcome in &done[..gathers] {
                let culprit = match outcome {
                    Err(Error::Remote { rank: Some(rank), .. }) => *rank as usize,
                    other => panic!("seed {seed} rank {id}: {other:?}"),
                };
                assert!(dead.contains(&culprit), "seed {seed} rank {id}: {culprit} of {dead:?}");
            }
            assert!(done[gathers..].iter().all(Result::is_ok), "seed {seed} rank {id}: {:?}", &done[gathers..]);
        }
    }
}

/// A rank that dies while survivors talk ends what needs it, and nothing else hangs.
#[test]
fn a_survivor_that_dies_is_named() {
    for seed in seeds(300, 5_000) {
        let nranks = 3 + (seed % 6) as u32;
        let mut world = world(seed, nranks);
        let victim = world.rng.random_range(0..nranks as usize);
        let ranks: Vec<Id> = (0..nranks as usize).collect();
        exchange(&mut world, &ranks);
        let at = soon(&mut world);
        world.kill(victim, at);
        let others: Vec<Id> = ranks.into_iter().filter(|id| *id != victim).collect();
        let limit = world.now + SETTLED;
        world.run_until(limit);
        for id in &others {
            // The others wait for the leader, which goes on to answer.
            assert!(
                world.script_over(*id),
                "seed {seed}: rank {id} of {nranks} waits: victim {victim}, {:?}",
                world.done
            );
            for outcome in &world.done[id] {
                assert!(
                    matches!(outcome, Ok(()) | Err(Error::Remote { .. })),
                    "seed {seed} rank {id}, victim {victim}: {outcome:?}"
                );
                if let Err(Error::Remote { rank, text }) = outcome {
                    assert_eq!(*rank, Some(victim as u32), "seed {seed} rank {id}: {text}");
                }
            }
        }
    }
}

/// Exchanges that some ranks refuse fail on every rank, and all others succeed on every rank, in whatever order the
/// ranks come to them.
#[test]
fn a_refused_exchange_fails_alone() {
    for seed in seeds(400, 10_000) {
        let nranks = 2 + (seed % 12) as u32;
        let mut world = world(seed, nranks);
        let rounds = world.rng.random_range(1..8);
        // By round: who refuses it.
        let plan: Vec<Vec<bool>> = (0..rounds)
            .map(|_| {
                let refused = world.rng.random_bool(0.5);
                (0..nranks).map(|_| refused && world.rng.random_bool(0.3)).collect()
            })
            .collect();
        let ids: Vec<Id> = (0..nranks as usize).collect();
        for id in &ids {
            let ops: Vec<MemberOp> =
                plan.iter().map(|round| if round[*id] { MemberOp::Refuse } else { MemberOp::Gather }).collect();
            let at = soon(&mut world);
            world.script(*id, at, &ops);
        }
        finish(&mut world, seed, &ids);
        for id in &ids {
            for (round, outcome) in plan.iter().zip(&world.done[id]) {
                let refusers: Vec<u32> = (0..nranks).filter(|rank| round[*rank as usize]).collect();
                match outcome {
                    Ok(()) => assert!(refusers.is_empty() || round[*id], "seed {seed} rank {id}: {:?}", world.done),
                    Err(Error::Remote { rank: Some(rank), text }) => {
                        assert!(refusers.contains(rank), "seed {seed} rank {id}: {rank} of {refusers:?}");
                        assert!(text.contains("does not want to"), "{text}");
                    }
                    Err(other) => panic!("seed {seed} rank {id}: {other:?}"),
                }
            }
            assert_eq!(world.done[id].len(), rounds, "seed {seed}");
        }
    }
}

/// A rank that gives up in the middle of an exchange ends the exchanges of all, and messages go on.
#[test]
fn giving_up_ends_exchanges_only() {
    for seed in seeds(200, 5_000) {
        let nranks = 2 + (seed % 9) as u32;
        let mut world = world(seed, nranks);
        let quitter = world.rng.random_range(0..nranks as usize);
        let ids: Vec<Id> = (0..nranks as usize).collect();
        for id in &ids {
            let at = soon(&mut world);
            let ops: &[MemberOp] = if *id == quitter {
                &[MemberOp::Gather, MemberOp::GiveUp, MemberOp::Gather]
            } else {
                &[MemberOp::Gather, MemberOp::Gather]
            };
            world.script(*id, at, ops);
        }
        finish(&mut world, seed, &ids);
        exchange(&mut world, &ids);
        finish(&mut world, seed, &ids);
        for id in &ids {
            let done = &world.done[id];
            // The first one may have been through elsewhere.
            assert!(done[1].is_err(), "seed {seed} rank {id}: {done:?}");
            if *id == quitter {
                assert_eq!(done[0], Err(Error::Aborted), "seed {seed}");
            }
            assert!(done[2..].iter().all(Result::is_ok), "seed {seed} rank {id}: {done:?}");
        }
    }
}
