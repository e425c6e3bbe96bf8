//! The bootstrap over real sockets, with a process per rank.

mod faults;
mod hosts;
mod leaks;
mod ranks;
mod roots;

use nccl::bootstrap::{Bootstrap, NetConfig, create_id};

use ranks::{Plan, join_of, start_all};

/// Not a test of its own: what a rank's process does.
#[test]
fn child() {
    ranks::child();
}

#[test]
fn ranks_exchange_everything() {
    for (nranks, settings) in [(1, ""), (2, "buffers=65536"), (3, "buffers=65536"), (8, ""), (16, "")] {
        let id = create_id(&NetConfig::default()).unwrap();
        for rank in &start_all(&id, nranks, "gather", settings) {
            rank.succeeds();
        }
    }
}

#[test]
fn nothing_is_leaked() {
    let id = create_id(&NetConfig::default()).unwrap();
    ranks::start(&[Plan::new(&id, 0, 1, "leaks")])[0].succeeds();
}

#[test]
fn idle_communicators_cost_nothing() {
    let id = create_id(&NetConfig::default()).unwrap();
    ranks::start(&[Plan::new(&id, 0, 1, "idle")])[0].succeeds();
}

/// Several threads make several communicators at once, each thread in another order.
#[test]
fn communicators_are_made_concurrently() {
    const RANKS: u32 = 4;
    let ids: Vec<_> = (0..8).map(|_| create_id(&NetConfig::default()).unwrap()).collect();
    let config = &NetConfig::default();
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            for (k, id) in ids.iter().enumerate() {
                scope.spawn(move || {
                    let bootstrap = Bootstrap::join(config, id, join_of(rank, RANKS)).unwrap();
                    let blocks = bootstrap.all_gather(&[k as u8, rank as u8]).unwrap();
                    assert!((0..RANKS as u8).all(|other| blocks[other as usize] == [k as u8, other]));
                    bootstrap.complete();
                });
            }
        }
    });
}

/// Prints a table; run it alone: `cargo test --release --test bootstrap -- --ignored --nocapture times`.
#[test]
#[ignore = "a measurement"]
fn times() {
    println!("ranks   all of it ms   slowest join ms   (median of 5)");
    for nranks in [2, 8, 16, 32, 64, 128] {
        let mut runs: Vec<(f64, f64)> = (0..5).map(|_| time(nranks)).collect();
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        println!("{nranks:5} {:14.1} {:17.1}", runs[2].0, runs[2].1);
    }
}

/// Milliseconds of the slowest rank: for everything, and for the join alone.
fn time(nranks: u32) -> (f64, f64) {
    let id = create_id(&NetConfig::default()).unwrap();
    let ranks = start_all(&id, nranks, "time", "");
    let mut slowest = (0f64, 0f64);
    for rank in &ranks {
        let line = rank.line();
        let mut words = line.split(' ');
        assert_eq!(words.next(), Some("ok"), "{line}");
        let mut next = || words.next().unwrap().parse::<f64>().unwrap() / 1000.0;
        let (join, total) = (next(), next());
        slowest = (slowest.0.max(total), slowest.1.max(join));
    }
    slowest
}
