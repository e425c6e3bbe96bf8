//! What a rendezvous costs with very many ranks: rounds, messages and bytes, at a rank and at a root. The table of
//! docs/decisions/bootstrap.md is what `OXCCL_LONG=1 cargo test --release --lib scale -- --nocapture` prints.

use std::time::Duration;

use rand::RngExt;

use super::super::roots::Algorithm;
use super::world::{Id, Traffic, World};

/// The way through the network from one to another.
const STEP: Duration = Duration::from_millis(1);
/// The most ranks whose exchange round the ring is simulated: n (n - 1) messages. In short tests it is fewer.
const RING_MOST: (u32, u32) = (64, 1_000);
/// Ranks that read a result, one in so many, where all are too many.
const READERS: u32 = 5_000;

/// What one rendezvous cost.
struct Cost {
    rounds: u64,
    total: Traffic,
    /// The most of a rank, and of a root.
    rank: Traffic,
    root: Traffic,
}

fn most(all: &[Traffic]) -> Traffic {
    let of = |value: fn(&Traffic) -> u64| all.iter().map(value).max().unwrap_or(0);
    Traffic {
        connects: of(|one| one.connects),
        messages_in: of(|one| one.messages_in),
        messages_out: of(|one| one.messages_out),
        bytes_in: of(|one| one.bytes_in),
        bytes_out: of(|one| one.bytes_out),
    }
}

fn world(nranks: u32, roots: u32, algorithm: Algorithm) -> World {
    let mut world = World::with_roots(u64::from(nranks), nranks, World::root_config(), roots);
    (world.algorithm, world.rounds, world.exchange, world.leave) = (algorithm, 0, false, false);
    world.unread = (nranks > 2 * READERS && algorithm == Algorithm::Tree).then_some(READERS);
    world
}

fn start(world: &mut World, nranks: u32, at: impl Fn(&mut World, u32) -> Duration) {
    for rank in 0..nranks {
        let config = world.member(rank as usize, rank, nranks);
        let at = at(world, rank);
        world.start(rank as usize, config, at);
    }
}

#[track_caller]
fn finish(world: &mut World, nranks: u32, limit: Duration) -> Duration {
    let ids: Vec<Id> = (0..nranks as usize).collect();
    assert!(world.run(&ids, limit), "{nranks} ranks: {} have finished", world.outcomes.len());
    let failed = world.outcomes.iter().find(|(_, outcome)| outcome.is_some());
    assert!(failed.is_none(), "{nranks} ranks: {failed:?}");
    world.now
}

/// A rendezvous in which every step takes the same time: how many there are one after the other.
fn cost(nranks: u32, roots: u32, algorithm: Algorithm) -> Cost {
    let mut world = world(nranks, roots, algorithm);
    world.even_delay = Some(STEP);
    start(&mut world, nranks, |_, _| Duration::ZERO);
    let end = finish(&mut world, nranks, Duration::from_secs(3600));
    let (ranks, roots) = (&world.traffic[..nranks as usize], &world.traffic[world.root..]);
    let sum = |value: fn(&Traffic) -> u64| ranks.iter().chain(roots).map(value).sum();
    let total = Traffic {
        connects: sum(|one| one.connects),
        messages_in: sum(|one| one.messages_in),
        messages_out: sum(|one| one.messages_out),
        bytes_in: sum(|one| one.bytes_in),
        bytes_out: sum(|one| one.bytes_out),
    };
    Cost { rounds: (end.as_micros() / STEP.as_micros()) as u64, total, rank: most(ranks), root: most(roots) }
}

/// The same with delays of up to 20 ms, one connect of a hundred refused, and the last host two seconds late: how long
/// after it all are through.
fn after_the_last(nranks: u32, roots: u32) -> Duration {
    let mut world = world(nranks, roots, Algorithm::Tree);
    world.refusing = 0.01;
    let late = Duration::from_secs(2);
    start(&mut world, nranks, |world, rank| {
        let jitter = Duration::from_millis(world.rng.random_range(0..300));
        if rank + 8 >= nranks { late } else { jitter }
    });
    finish(&mut world, nranks, Duration::from_secs(60)) - late
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} KB", bytes / 1000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

fn table(sizes: &[u32], ring_most: u32) -> Vec<(u32, u32, u64)> {
    let mut found = Vec::new();
    println!(
        "| ranks | roots | way | rounds | messages | bytes | per rank: messages, in, out | root: messages, in, out | jitter |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for nranks in sizes.iter().copied() {
        for roots in [1, nranks.div_ceil(256).max(2)] {
            for algorithm in [Algorithm::Tree, Algorithm::Ring] {
                if algorithm == Algorithm::Ring && nranks > ring_most {
                    continue;
                }
                let Cost { rounds, total, rank, root } = cost(nranks, roots, algorithm);
                let jitter = match algorithm {
                    Algorithm::Tree => format!("{:.2} s", after_the_last(nranks, roots).as_secs_f64()),
                    Algorithm::Ring => "-".to_string(),
                };
                let one = |one: &Traffic| {
                    format!("{}, {}, {}", one.messages_in + one.messages_out, bytes(one.bytes_in), bytes(one.bytes_out))
                };
                let (way, sent, all) = (algorithm.name(), total.messages_out, bytes(total.bytes_out));
                println!(
                    "| {nranks} | {roots} | {way} | {rounds} | {sent} | {all} | {} | {} | {jitter} |",
                    one(&rank),
                    one(&root)
                );
                if algorithm == Algorithm::Tree {
                    found.push((nranks, roots, rounds));
                }
            }
        }
    }
    found
}

/// Rounds grow with the logarithm of the number of ranks: eight times the ranks take a few more.
#[test]
fn rounds_grow_with_the_logarithm() {
    let (sizes, ring_most): (&[u32], u32) = match std::env::var_os("OXCCL_LONG") {
        Some(_) => (&[8, 64, 1_000, 10_000, 100_000], RING_MOST.1),
        None => (&[8, 64, 1_000], RING_MOST.0),
    };
    for (nranks, roots, rounds) in table(sizes, ring_most) {
        let log = u64::from(nranks.ilog2());
        assert!(rounds <= 14 + 4 * log, "{nranks} ranks, {roots} roots: {rounds} rounds");
    }
}

/// Round the ring there are as many rounds as ranks, and each rank sends as many messages.
#[test]
fn the_ring_has_as_many_rounds_as_ranks() {
    for nranks in [8, 64, 300] {
        let Cost { rounds, total, .. } = cost(nranks, 1, Algorithm::Ring);
        let n = u64::from(nranks);
        assert!((n - 1..n + 12).contains(&rounds), "{nranks} ranks: {rounds} rounds");
        assert!((n * (n - 1)..n * (n + 8)).contains(&total.messages_out), "{nranks} ranks: {}", total.messages_out);
    }
}
