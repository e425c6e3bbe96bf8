//! Ranks that never come, die, fail, or are aborted, while the others make a communicator.

use std::time::{Duration, Instant};

use crate::common::abi::{REMOTE_ERROR, SUCCESS, TIMEOUT, UNHANDLED_CUDA_ERROR};
use crate::common::launch::Running;
use crate::common::need;
use crate::rank::{DEADLINE, MODE, NRANKS, all_told, answers, ranks};

#[test]
fn a_missing_rank_is_named_after_the_time_limit() {
    let job = ranks(3).env(NRANKS, "4").env("OXCCL_BOOTSTRAP_TIMEOUT", "1");
    all_told(job, TIMEOUT, &["rank 3", "3 of 4"]);
    let job = ranks(2).env(NRANKS, "4").env("OXCCL_BOOTSTRAP_TIMEOUT", "1").env(MODE, "poll");
    all_told(job, TIMEOUT, &["2", "3"]);
}

#[test]
fn waiting_for_a_missing_rank_ends_by_abort() {
    all_told(ranks(3).env(NRANKS, "4").env(MODE, "abort"), SUCCESS, &[]);
}

/// One rank aborts: the others are told, and need not be aborted.
#[test]
fn an_abort_ends_the_creation_of_all() {
    let outcome = ranks(3).env(NRANKS, "4").env_of(1, MODE, "abort").env_of(2, MODE, "poll").run();
    let told = answers(&outcome);
    told[1].is(SUCCESS, &[]);
    for rank in [0, 2] {
        told[rank].is(REMOTE_ERROR, &["rank 1", "aborted"]);
    }
}

/// Waits until a rank has printed something.
#[track_caller]
fn await_text(running: &Running, rank: usize, text: &str) {
    let until = Instant::now() + DEADLINE;
    while !running.stdout(rank).contains(text) {
        assert!(Instant::now() < until, "rank {rank} has not printed `{text}`:\n{}", running.stdout(rank));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the survivors were told. The victim has no answer.
#[track_caller]
fn survivors(running: Running, victim: usize) {
    let outcome = running.wait();
    for (rank, one) in outcome.ranks.iter().enumerate() {
        if rank == victim {
            assert_eq!(one.signal(), Some(9), "{outcome}");
            continue;
        }
        assert!(one.status.success(), "rank {rank}:\n{outcome}");
        let line = one.stdout.lines().find_map(|line| line.split_once("ANSWER ")).expect("an answer").1;
        assert!(line.starts_with(&REMOTE_ERROR.to_string()), "rank {rank}: {line}");
        assert!(line.contains(&format!("rank {victim}")), "rank {rank}: {line}");
    }
}

#[test]
fn a_rank_dies_while_it_waits_for_others() {
    let mut running = ranks(3).env(NRANKS, "4").env("NCCL_DEBUG", "INFO").start();
    for rank in 0..3 {
        await_text(&running, rank, "READY");
    }
    // Long enough for a check-in, and if it should not be, the others see the same a little later.
    std::thread::sleep(Duration::from_millis(300));
    running.kill(2);
    survivors(running, 2);
}

/// Every operation of the victim's device takes long, so that it dies between rendezvous and links.
#[test]
fn a_rank_dies_while_links_are_made() {
    for victim in [0, 1] {
        let job = ranks(3).env("NCCL_DEBUG", "INFO").env_of(victim, "SOFTCUDA_DELAY_US", "800000");
        let mut running = job.start();
        await_text(&running, victim, "READY");
        await_text(&running, victim, "Bootstrap timings total");
        let before = running.stdout(victim).matches("Bootstrap timings total").count();
        // The first such line is of the communicator of one rank that warms the process up.
        if before < 2 {
            let until = Instant::now() + DEADLINE;
            while running.stdout(victim).matches("Bootstrap timings total").count() < 2 {
                assert!(Instant::now() < until, "rank {victim} does not join:\n{}", running.stdout(victim));
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        running.kill(victim);
        survivors(running, victim);
    }
}

/// At any moment: either the communicator was complete, or the others are told.
#[test]
fn a_rank_dies_at_any_moment() {
    let rounds = if need::long() { 60 } else { 5 };
    for round in 0..rounds {
        // A rank that dies before anybody knows of it is missing.
        let mut running = ranks(3).env("OXCCL_BOOTSTRAP_TIMEOUT", "3").start();
        await_text(&running, 1, "READY");
        std::thread::sleep(Duration::from_micros(700 * (round % 30)));
        running.kill(1);
        let until = Instant::now() + Duration::from_secs(20);
        let answered = |running: &Running, rank: usize| running.stdout(rank).contains("ANSWER");
        // A communicator that was complete may have to wait for the dead rank in its sum: that is no matter of
        // creation.
        let over =
            |running: &Running| answered(running, 0) && answered(running, 2) || running.stdout(0).contains("MADE");
        while !over(&running) {
            assert!(Instant::now() < until, "round {round}: the others hang:\n{}", running.stdout(0));
            std::thread::sleep(Duration::from_millis(2));
        }
        for rank in [0, 2] {
            if let Some((_, line)) = running.stdout(rank).lines().find_map(|line| line.split_once("ANSWER ")) {
                let fine = line.starts_with("0 ") || (["6 ", "8 "].contains(&&line[..2]) && line.contains("rank 1"));
                assert!(fine, "round {round}: {line}");
            }
        }
    }
}

/// The device of one rank has nothing left for what it shares with others.
#[test]
fn a_rank_without_memory_ends_the_creation_of_all() {
    for poor in [0, 2] {
        let outcome = ranks(3).env_of(poor, "SOFTCUDA_FAULT", "cuMemCreate:1").run();
        let told = answers(&outcome);
        for (rank, answer) in told.iter().enumerate() {
            match rank == poor {
                true => answer.is(UNHANDLED_CUDA_ERROR, &["cuMemCreate", "out of memory"]),
                false => answer.is(REMOTE_ERROR, &[&format!("rank {poor}"), "out of memory"]),
            };
        }
    }
}
