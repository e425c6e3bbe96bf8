//! Ranks that die or are aborted while communicators are derived: the others hear of it and can go on without them.

use std::time::{Duration, Instant};

use crate::api::{Api, LIMIT};
use crate::common::abi::{REMOTE_ERROR, SHRINK_ABORT, SUCCESS};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::Comm;
use crate::common::resources::Resources;

/// Ends the process as a crash does.
fn die() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("killed");
}

/// Splits until it fails; the failure must name the victim.
fn split_until_failure(api: &Api, comm: Comm, victim: usize) {
    let start = Instant::now();
    loop {
        let (code, child) = api.try_split(comm, 0, 0, None);
        if code == SUCCESS {
            assert!(start.elapsed() < LIMIT, "splits go on without rank {victim}");
            api.nccl.abort(child).expect("abort");
            continue;
        }
        let text = api.nccl.last_error();
        assert_eq!((code, child), (REMOTE_ERROR, Comm::NULL), "{text}");
        assert!(text.contains(&format!("rank {victim}")), "{text}");
        return;
    }
}

/// The rest of the ranks makes a communicator of its own, and ends everything.
fn go_on_without(api: &Api, me: &Place, comm: Comm, victim: usize) {
    let rest: Vec<usize> = (0..me.nranks).filter(|rank| *rank != victim).collect();
    let child = api.shrink(comm, &[victim], SHRINK_ABORT);
    api.check(child, &rest, me.rank);
    api.destroy(child);
    let start = Instant::now();
    api.nccl.abort(comm).expect("abort");
    assert!(start.elapsed() < Duration::from_secs(6));
}

fn job(test: &str, n: usize, victim: usize) -> Job {
    Job::this_test(test, n).env("OXCCL_TEST_VICTIM", victim.to_string()).allow_any_warning()
}

fn victim() -> usize {
    std::env::var("OXCCL_TEST_VICTIM").ok().and_then(|text| text.parse().ok()).expect("the victim")
}

/// Everybody but the victim is alive and well.
fn assert_others_ok(outcome: &launch::Outcome, victim: usize) {
    for (rank, of) in outcome.ranks.iter().enumerate() {
        assert!(of.status.success() || rank == victim, "rank {rank} failed\n{outcome}");
    }
}

/// The victim never comes to the split that the others wait in.
#[test]
fn a_rank_that_dies_before_it_comes() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        api.check(comm, &(0..me.nranks).collect::<Vec<_>>(), me.rank);
        let before = Resources::now();
        if me.rank == victim() {
            std::thread::sleep(Duration::from_millis(300));
            die();
        }
        split_until_failure(&api, comm, victim());
        // Who goes on makes connections.
        let others = (0..me.nranks).filter(|rank| *rank != victim());
        me.publish(&format!("told.{}", me.rank), b"");
        others.for_each(|rank| drop(me.await_published(&format!("told.{rank}"))));
        before.assert_same();
        me.publish(&format!("counted.{}", me.rank), b"");
        let others = (0..me.nranks).filter(|rank| *rank != victim());
        others.for_each(|rank| drop(me.await_published(&format!("counted.{rank}"))));
        return go_on_without(&api, &me, comm, victim());
    }
    for (n, victim) in [(4, 0), (4, 1), (4, 3), (2, 1)] {
        assert_others_ok(&job("deaths::a_rank_that_dies_before_it_comes", n, victim).run(), victim);
    }
}

/// The victim dies at any moment of some split.
#[test]
fn a_rank_that_dies_in_the_middle() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        if me.rank == victim() {
            let delay = std::process::id() % 89;
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(40 + u64::from(delay)));
                die();
            });
            loop {
                let (_, child) = api.try_split(comm, 0, 0, None);
                let _ = api.nccl.abort(child);
            }
        }
        split_until_failure(&api, comm, victim());
        return go_on_without(&api, &me, comm, victim());
    }
    for round in 0..if crate::common::need::long() { 100 } else { 5 } {
        let victim = round % 4;
        assert_others_ok(&job("deaths::a_rank_that_dies_in_the_middle", 4, victim).run(), victim);
    }
}

/// The victim aborts the parent instead of splitting it, or while it splits it.
#[test]
fn a_rank_that_aborts() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        for round in 0..6 {
            let victim = (victim() + round) % me.nranks;
            let comm = api.init(&me, &format!("id{round}"), None);
            if me.rank != victim {
                split_until_failure(&api, comm, victim);
                go_on_without(&api, &me, comm, victim);
                continue;
            }
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(100));
                api.nccl.abort(comm).expect("abort");
                continue;
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20 * round as u64));
                    let start = Instant::now();
                    api.nccl.abort(comm).expect("abort");
                    assert!(start.elapsed() < Duration::from_secs(6), "an abort took {:?}", start.elapsed());
                });
                while let (SUCCESS, child) = api.try_split(comm, 0, 0, None) {
                    api.nccl.abort(child).expect("abort");
                }
            });
        }
        return;
    }
    job("deaths::a_rank_that_aborts", 3, 0).run().assert_ok();
}
