//! Every collective, type and operator, for every number of ranks, algorithm, protocol and transport. One job runs
//! many calls in one set of processes; the plan of calls is drawn from the seed in each rank alike.

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::built;
use crate::case::{Case, kinds};
use crate::common::launch;
use crate::member::{Item, Member, Submission};
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// Calls of each kind with everything run.
const ROUNDS: usize = 4;
/// Kinds that a job runs otherwise, over the number of ranks.
const SAMPLE: usize = 600;
/// Jobs of a number of ranks in the sample, besides the plain one.
const SAMPLED_JOBS: usize = 2;

/// The calls of a job.
fn body(member: &mut Member) {
    let mut plan = seeded_rng("collectives");
    let mut own = seeded_rng(&format!("order of rank {}", member.rank));
    let mut list: Vec<_> = kinds().repeat(if long() { ROUNDS } else { 2 });
    list.shuffle(&mut plan);
    if !long() {
        list.truncate(SAMPLE / member.nranks);
    }
    let mut rest = &list[..];
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(plan.random_range(1..10)));
        rest = later;
        let submission =
            [Submission::Each, Submission::Queued, Submission::Group, Submission::Nested][plan.random_range(0..4usize)];
        let mut items: Vec<Item> = Vec::new();
        for kind in now {
            items.push(Item::Collective(Case::random(&mut plan, *kind, member.nranks)));
        }
        member.run(&items, submission, &mut own);
    }
}

/// Every combination of algorithm, protocol, transport and slots, the plain one first.
fn matrix(n: usize) -> Vec<Setup> {
    let words = |list: &'static [&'static str]| [None].into_iter().chain(list.iter().map(|word| Some(*word)));
    let mut list = Vec::new();
    for transport in [Transport::P2p, Transport::Shm, Transport::Threads, Transport::Net] {
        for algorithm in words(built::ALGORITHMS) {
            for protocol in words(built::PROTOCOLS) {
                for small_slots in [false, true] {
                    list.push(Setup { transport, algorithm, protocol, small_slots, ..Setup::plain(n) });
                }
            }
        }
    }
    list
}

/// Runs the jobs of a number of ranks, or a sample of them.
fn with_ranks(test: &str, n: usize) {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    let mut list = matrix(n);
    if !long() {
        let mut rng = seeded_rng(test);
        list[1..].shuffle(&mut rng);
        list.truncate(1 + SAMPLED_JOBS);
        if n == 3 {
            list.push(Setup { transport: Transport::Net, ..Setup::plain(n) });
        }
        let at = rng.random_range(1..list.len());
        list[at].channels = Some(rng.random_range(2..6));
    }
    setup::part(list).iter().for_each(|setup| setup.run(test));
}

#[test]
fn with_1_rank() {
    with_ranks("collectives::with_1_rank", 1);
}

#[test]
fn with_2_ranks() {
    with_ranks("collectives::with_2_ranks", 2);
}

#[test]
fn with_3_ranks() {
    with_ranks("collectives::with_3_ranks", 3);
}

#[test]
fn with_4_ranks() {
    with_ranks("collectives::with_4_ranks", 4);
}

#[test]
fn with_5_ranks() {
    with_ranks("collectives::with_5_ranks", 5);
}

#[test]
fn with_7_ranks() {
    with_ranks("collectives::with_7_ranks", 7);
}

#[test]
fn with_8_ranks() {
    with_ranks("collectives::with_8_ranks", 8);
}

/// More ranks than are linked with one another: trees and PAT have links of their own then, and the rest of the
/// functions rings or messages.
const MANY: usize = 66;
/// Most elements of their calls: what is expected takes every rank's time.
const MANY_COUNT: usize = 3000;

/// Some calls of every function.
fn every_function(member: &mut Member) {
    let mut plan = seeded_rng("many ranks");
    let mut own = seeded_rng(&format!("order of rank {}", member.rank));
    for _ in 0..if long() { 20 } else { 1 } {
        let mut kinds = kinds();
        kinds.shuffle(&mut plan);
        for func in built::FUNCS {
            let kind = kinds.iter().find(|(of, ..)| of == func).expect("a kind");
            let case = Case::random(&mut plan, *kind, member.nranks);
            let case = Case { count: case.count.clamp(100, MANY_COUNT), ..case };
            member.run(&[Item::Collective(case)], Submission::Each, &mut own);
        }
    }
}

#[test]
fn with_66_ranks() {
    const TEST: &str = "collectives::with_66_ranks";
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, every_function);
    }
    for algorithm in [None, Some("Tree"), Some("PAT")] {
        let setup = Setup { transport: Transport::Threads, algorithm, small_slots: true, ..Setup::plain(MANY) };
        // There are 64 devices at most, and the streams of two ranks of one must not wait for each other.
        let job = setup.job(TEST).env("NCCL_MULTI_RANK_GPU_ENABLE", "1").env("SOFTCUDA_DEVICES", "64");
        job.env("SOFTCUDA_CONNECTIONS", "32").run().assert_ok();
    }
}
