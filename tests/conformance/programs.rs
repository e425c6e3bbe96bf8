//! Random programs: sequences of groups of collectives and messages, drawn from a seed, the same on all ranks.

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::built;
use crate::case::{Case, kinds};
use crate::common::launch;
use crate::member::{Item, Member, Submission};
use crate::messages::Message;
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// Programs in all: with everything run, and otherwise.
const PROGRAMS: (usize, usize) = (1000, 50);
/// Programs that share the processes of one job.
const PER_JOB: usize = 10;
/// Steps of a program.
const STEPS: std::ops::Range<usize> = 3..12;

/// One group, or calls in a row.
fn step(plan: &mut SmallRng, n: usize) -> (Vec<Item>, Submission) {
    let kinds = kinds();
    let submission = [Submission::Each, Submission::Queued, Submission::Group, Submission::Group, Submission::Nested]
        [plan.random_range(0..5usize)];
    let mut items = Vec::new();
    for _ in 0..plan.random_range(0..6) {
        let kind = kinds[plan.random_range(0..kinds.len())];
        items.push(Item::Collective(Case::random(plan, kind, n)));
    }
    if built::POINT_TO_POINT && matches!(submission, Submission::Group | Submission::Nested) {
        // A few pairs many times, or many pairs.
        let repeat = plan.random_range(1..5);
        for _ in 0..plan.random_range(0..6) {
            let message = Message::random(plan, n, 20_000);
            items.extend((0..repeat).map(|at| Item::Message(Message { phase: message.phase + at, ..message })));
        }
    }
    (items, submission)
}

fn body(member: &mut Member) {
    let mut own = seeded_rng(&format!("rank {}", member.rank));
    for program in 0..PER_JOB {
        let mut plan = seeded_rng(&format!("program {program}"));
        for _ in 0..plan.random_range(STEPS) {
            member.set_registered(own.random_range(0..3u32) > 0);
            let (items, submission) = step(&mut plan, member.nranks);
            member.run(&items, submission, &mut own);
        }
    }
}

/// The jobs: ranks, transports and delays in turn; `channels` makes those differ that are otherwise alike.
fn setups(jobs: usize) -> Vec<Setup> {
    let transports = [Transport::P2p, Transport::Threads, Transport::Shm];
    let make = |at: usize| Setup {
        transport: transports[at % 3],
        small_slots: at % 4 == 1,
        channels: (at >= 5).then_some(1 + at / 5 % 8),
        delay: (at % 5 == 2).then_some(20 + at),
        algorithm: built::ALGORITHMS.get(at % 7).copied().filter(|_| at % 2 == 1),
        ..Setup::plain([2, 4, 3, 5, 8][at % 5])
    };
    (0..jobs).map(make).collect()
}

#[test]
fn random_programs() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    let programs = if long() { PROGRAMS.0 } else { PROGRAMS.1 };
    setup::part(setups(programs / PER_JOB)).iter().for_each(|setup| setup.run("programs::random_programs"));
}
