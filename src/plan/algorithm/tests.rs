use zerocopy::IntoBytes;

use super::super::exec::{self, DirectAccess, Setting, SimulatedCall, SimulationOutcome};
use super::super::zero_copy;
use super::*;
use crate::plan::LinkClass;
use crate::topology::MAX_PEERS;

mod crossing;
mod graphs;

const FUNCS: [Func; 8] = Func::COLLECTIVES;

/// The whole of every sweep, which takes minutes.
fn long() -> bool {
    std::env::var_os("OXCCL_LONG").is_some()
}

fn compile_on(kind: ScheduleKind, graph: &Graph, channel: u32) -> Vec<Schedule> {
    let one = |rank| compile(kind, graph, channel, rank).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    (0..graph.nranks()).map(one).collect()
}

fn compile_all(kind: ScheduleKind, nranks: u32) -> Vec<Schedule> {
    compile_on(kind, &Graph::of_host(nranks), 0)
}

/// Whether there is an algorithm for some ranks of one host.
fn exists(func: Func, algo: Algo, nranks: u32) -> bool {
    available(func, algo, &Graph::of_host(nranks))
}

fn setting(slots: u32, pieces: u32, in_place: bool) -> Setting {
    // With one piece, three calls; with three, two: a link's slots are used again in both.
    Setting { slots, pieces, in_place, calls: if pieces == 1 { 3 } else { 2 }, direct: DirectAccess::default() }
}

fn outcome(kind: ScheduleKind, schedules: &[Schedule], setting: Setting) -> SimulationOutcome {
    let call = SimulatedCall { func: kind.func, root: kind.root };
    let run = exec::execute(call, schedules, setting);
    run.unwrap_or_else(|e| panic!("{kind:?}, {} ranks, {setting:?}: {e}", schedules.len()))
}

fn prove(kind: ScheduleKind, schedules: &[Schedule], setting: Setting) {
    let proof = outcome(kind, schedules, setting).prove();
    proof.unwrap_or_else(|e| panic!("{kind:?}, {} ranks, {setting:?}: {e}", schedules.len()));
}

/// Roots to try: all with few ranks, else those at which something changes.
fn roots(func: Func, nranks: u32) -> Vec<u32> {
    if !matches!(func, Func::Broadcast | Func::Reduce | Func::Gather | Func::Scatter) {
        return vec![0];
    }
    if nranks <= 16 || long() { (0..nranks).collect() } else { few_roots(nranks) }
}

/// Some of more than 16 ranks.
fn few_roots(nranks: u32) -> Vec<u32> {
    vec![0, 1, 8, 9, nranks / 2, nranks - 9, nranks - 1]
}

/// Every setting with few ranks, else two that have all of slots, pieces and places between them.
fn settings(nranks: u32, needed: u32) -> Vec<Setting> {
    if nranks > 16 && !long() {
        return vec![setting(needed, 3, true), setting(8, 1, false)];
    }
    let places = [false, true];
    let with =
        |in_place| [(needed, 1), (needed, 3), (8, 1), (8, 3)].map(|(slots, pieces)| setting(slots, pieces, in_place));
    places.into_iter().flat_map(with).collect()
}

/// Proves a function's algorithm for all numbers of ranks that it is there for, up to 64.
fn sweep(func: Func, algo: Algo) {
    for nranks in (2..=MAX_PEERS).filter(|n| exists(func, algo, *n)) {
        for root in roots(func, nranks) {
            let kind = ScheduleKind { func, algo, root };
            let schedules = compile_all(kind, nranks);
            schedules.iter().for_each(|s| s.check(8).unwrap_or_else(|e| panic!("{kind:?}: {e}")));
            for setting in settings(nranks, schedules[0].slots) {
                prove(kind, &schedules, setting);
            }
        }
    }
}

#[test]
fn ring_is_right() {
    FUNCS.into_iter().for_each(|func| sweep(func, Algo::Ring));
}

#[test]
fn tree_is_right() {
    FUNCS.into_iter().for_each(|func| sweep(func, Algo::Tree));
}

#[test]
fn direct_is_right_where_it_reduces() {
    [Func::AllReduce, Func::Reduce, Func::ReduceScatter].into_iter().for_each(|func| sweep(func, Algo::Direct));
}

#[test]
fn direct_is_right_where_it_copies() {
    let copies = [Func::Broadcast, Func::AllGather, Func::AlltoAll, Func::Gather, Func::Scatter];
    copies.into_iter().for_each(|func| sweep(func, Algo::Direct));
}

#[test]
fn direct_in_two_steps_is_right() {
    sweep(Func::AllReduce, Algo::TwoStep);
}

#[test]
fn pat_is_right() {
    FUNCS.into_iter().for_each(|func| sweep(func, Algo::Pat));
}

/// Runs a reduction once, and says of chunks of a rank's output in which order, and whether one by one.
fn orders(func: Func, algo: Algo, root: u32, nranks: u32) -> impl Fn(u32, u32) -> (Vec<u32>, bool) {
    let kind = ScheduleKind { func, algo, root };
    let ran = outcome(kind, &compile_all(kind, nranks), setting(8, 1, true));
    move |rank, chunk| (ran.order(rank, chunk), ran.is_one_by_one(rank, chunk))
}

#[test]
fn direct_reduces_in_the_order_of_ranks() {
    for n in (2..=20).chain([25, 26, 33, 64]) {
        let one_by_one = ((0..n).collect::<Vec<_>>(), true);
        let root = n - 1;
        let reduce = orders(Func::Reduce, Algo::Direct, root, n);
        assert_eq!(reduce(root, 0), one_by_one);
        let all_reduce = orders(Func::AllReduce, Algo::Direct, 0, n);
        assert_eq!(all_reduce(0, 0), one_by_one);
        let in_two = orders(Func::AllReduce, Algo::TwoStep, 0, n);
        let scatter = orders(Func::ReduceScatter, Algo::Direct, 0, n);
        for rank in 0..n {
            assert_eq!(in_two(0, rank), one_by_one);
            assert_eq!(scatter(rank, 0), one_by_one);
        }
    }
}

/// Ranks from `first` on, around to the one before.
fn around(first: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (first + i) % n).collect()
}

#[test]
fn ring_and_pat_reduce_from_behind_the_chunk_around() {
    for n in [2, 3, 4, 7, 8, 16, 17, 40, 64] {
        let ring = orders(Func::AllReduce, Algo::Ring, 0, n);
        let scatter = orders(Func::ReduceScatter, Algo::Ring, 0, n);
        let pat = orders(Func::ReduceScatter, Algo::Pat, 0, n);
        for chunk in 0..n {
            let order = around((chunk + 1) % n, n);
            assert_eq!(ring(0, chunk), (order.clone(), true));
            assert_eq!(scatter(chunk, 0), (order.clone(), true));
            assert_eq!(pat(chunk, 0).0, order);
        }
        let reduce = orders(Func::Reduce, Algo::Ring, n / 2, n);
        assert_eq!(reduce(n / 2, 0), (around((n / 2 + 1) % n, n), true));
    }
}

#[test]
fn trees_reduce_in_the_order_of_their_seats() {
    for n in [2, 3, 4, 7, 8, 16, 17, 40, 63, 64] {
        let free = orders(Func::AllReduce, Algo::Tree, 0, n);
        assert_eq!(free(0, 0).0, around(0, n));
        let second = if n % 2 == 0 { (0..n).rev().collect() } else { around(1, n) };
        assert_eq!(free(0, 1).0, second);
        let root = n / 3;
        let rooted = orders(Func::Reduce, Algo::Tree, root, n);
        assert_eq!(rooted(root, 0).0, around(root, n));
        // Counted from the root: 0, 2, 3, …, 1, or 0, n - 1, …, 1.
        let mut second = around(root, n);
        if n % 2 == 0 {
            second[1..].rotate_left(1)
        } else {
            second[1..].reverse()
        }
        assert_eq!(rooted(root, 1).0, second);
    }
}

/// The busiest rank's steps, turns and slots.
fn size(func: Func, algo: Algo, nranks: u32) -> (usize, u32, u32) {
    let all = compile_all(ScheduleKind { func, algo, root: 0 }, nranks);
    let steps = all.iter().map(|s| s.steps.len()).max().unwrap_or_default();
    let turns = |s: &Schedule| s.steps.iter().map(|step| u32::from(step.repeat)).sum();
    (steps, all.iter().map(turns).max().unwrap_or_default(), all[0].slots)
}

/// Steps, turns and slots with 2, 4, 8 and 64 ranks: what the table at the top says, by hand.
#[test]
fn schedules_are_as_long_as_documented() {
    use Func::*;
    let table = [
        (AllReduce, Algo::Ring, [(3, 3, 2), (5, 7, 2), (5, 15, 2), (5, 127, 2)]),
        // Two ranks are neighbours in both trees.
        (AllReduce, Algo::Tree, [(4, 4, 2); 4]),
        // 8 to send to 63, 1 or 2 for echoes, 8 to receive from 64.
        (AllReduce, Algo::Direct, [(2, 2, 2), (2, 2, 2), (2, 2, 2), (18, 18, 2)]),
        (AllReduce, Algo::TwoStep, [(3, 3, 2), (7, 7, 2), (15, 15, 2), (143, 143, 2)]),
        (Broadcast, Algo::Ring, [(1, 1, 2); 4]),
        (Broadcast, Algo::Tree, [(2, 2, 2); 4]),
        (Broadcast, Algo::Direct, [(1, 1, 2), (1, 1, 2), (1, 1, 2), (8, 8, 2)]),
        (Reduce, Algo::Ring, [(1, 1, 2); 4]),
        (Reduce, Algo::Tree, [(2, 2, 2); 4]),
        (Reduce, Algo::Direct, [(1, 1, 2), (1, 1, 2), (1, 1, 2), (8, 8, 2)]),
        (AllGather, Algo::Ring, [(2, 2, 2), (3, 4, 2), (3, 8, 2), (3, 64, 2)]),
        (AllGather, Algo::Direct, [(2, 2, 2), (4, 4, 2), (8, 8, 2), (71, 71, 2)]),
        (AllGather, Algo::Pat, [(2, 2, 2), (4, 4, 2), (8, 8, 4), (64, 64, 8)]),
        (ReduceScatter, Algo::Ring, [(2, 2, 2), (3, 4, 2), (3, 8, 2), (3, 64, 2)]),
        (ReduceScatter, Algo::Direct, [(2, 2, 2), (4, 4, 2), (8, 8, 2), (73, 73, 2)]),
        (ReduceScatter, Algo::Pat, [(2, 2, 2), (4, 4, 2), (8, 8, 4), (64, 64, 8)]),
        (AlltoAll, Algo::Direct, [(3, 3, 2), (7, 7, 2), (15, 15, 2), (127, 127, 2)]),
        (Gather, Algo::Direct, [(2, 2, 2), (4, 4, 2), (8, 8, 2), (64, 64, 2)]),
        (Scatter, Algo::Direct, [(2, 2, 2), (4, 4, 2), (8, 8, 2), (64, 64, 2)]),
    ];
    for (func, algo, sizes) in table {
        for (n, expected) in [2, 4, 8, 64].into_iter().zip(sizes) {
            assert_eq!(size(func, algo, n), expected, "{func:?} {algo:?} with {n} ranks");
        }
    }
    let all = FUNCS.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo)));
    assert_eq!(all.filter(|(func, algo)| exists(*func, *algo, 2)).count(), table.len());
}

#[test]
fn what_is_not_there_is_refused() {
    let refused = |func, algo, root, rank, n| {
        compile(ScheduleKind { func, algo, root }, &Graph::of_host(n), 0, rank).unwrap_err().to_string()
    };
    assert!(refused(Func::Gather, Algo::Ring, 0, 0, 4).contains("no ring Gather from root 0 for rank 0 of 4"));
    assert!(refused(Func::AllReduce, Algo::Ring, 0, 0, 1).contains("of 1"));
    assert!(refused(Func::AllReduce, Algo::Ring, 0, 4, 4).contains("rank 4 of 4"));
    assert!(refused(Func::Broadcast, Algo::Tree, 4, 0, 4).contains("root 4"));
    assert!(!exists(Func::AllReduce, Algo::Direct, MAX_PEERS + 1) && exists(Func::AllReduce, Algo::Ring, 5000));
    assert!(Algo::ALL.into_iter().all(|algo| !exists(Func::Send, algo, 2) && !exists(Func::Recv, algo, 2)));
    assert!(Algo::ALL.into_iter().all(|algo| Algo::from_name(&algo.name().to_uppercase()) == Some(algo)));
    assert_eq!(Algo::from_name("nvls"), None);
}

/// Schedules that say that they need more than two slots do.
#[test]
fn slots_are_no_more_than_needed() {
    for n in 6..=24 {
        for func in [Func::AllGather, Func::ReduceScatter] {
            let schedules = compile_all(ScheduleKind { func, algo: Algo::Pat, root: 0 }, n);
            assert_eq!(schedules[0].slots, n.min(16) / 2);
            let short = setting(schedules[0].slots - 1, 3, false);
            let fault = exec::execute(SimulatedCall { func, root: 0 }, &schedules, short).err();
            assert!(matches!(fault, Some(exec::Fault::Deadlock { .. })), "{func:?} with {n} ranks: {fault:?}");
        }
    }
}

/// Calls of all kinds, one after the other on the same links: a rank that is done with one begins the next while
/// others are behind.
#[test]
fn sequences_of_calls_are_right() {
    for n in [2, 3, 5, 8, 11, 17] {
        let kinds = FUNCS.into_iter().flat_map(|func| Algo::ALL.map(|algo| ScheduleKind { func, algo, root: 0 }));
        let mut kinds: Vec<ScheduleKind> = kinds.filter(|kind| exists(kind.func, kind.algo, n)).collect();
        for round in 0..6 {
            // Some other order each time, and other roots.
            let count = kinds.len();
            (0..count).for_each(|i| kinds.swap(i, (i * 7 + round * 5 + 3) % count));
            let calls: Vec<(SimulatedCall, Vec<Schedule>)> = kinds
                .iter()
                .enumerate()
                .map(|(i, kind)| {
                    let root = if roots(kind.func, n).len() == 1 { 0 } else { (i + round) as u32 % n };
                    (SimulatedCall { func: kind.func, root }, compile_all(ScheduleKind { root, ..*kind }, n))
                })
                .collect();
            let slots = calls.iter().map(|(_, schedules)| schedules[0].slots).max().unwrap_or(2);
            let ran = exec::execute_calls(&calls, setting(slots, 3, round % 2 == 1));
            let proof = ran.and_then(|outcome| outcome.prove());
            proof.unwrap_or_else(|e| panic!("{n} ranks, {kinds:?}: {e}"));
        }
    }
}

/// Folds a schedule into a number (FNV-1a).
fn digest(mut sum: u64, schedule: &Schedule) -> u64 {
    let mut fold =
        |bytes: &[u8]| bytes.iter().for_each(|byte| sum = (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    // As classes were numbered at first: trees, PAT and direct algorithms had one together.
    let class = match schedule.class {
        LinkClass::Ring => 0,
        LinkClass::Tree | LinkClass::Pat | LinkClass::Direct => 1,
        LinkClass::Peer => 2,
        LinkClass::Hierarchical => 3,
    };
    fold(&[schedule.rank, class, schedule.nchunks, schedule.slots].map(u32::to_le_bytes).concat());
    fold(schedule.steps.as_bytes());
    schedule.links.iter().for_each(|link| fold(&[link.from, link.to].map(u32::to_le_bytes).concat()));
    sum
}

#[test]
fn schedules_use_links_of_their_algorithms_class() {
    for algo in Algo::ALL {
        for func in FUNCS.into_iter().filter(|func| exists(*func, algo, 5)) {
            let schedules = compile_all(ScheduleKind { func, algo, root: 0 }, 5);
            assert!(
                schedules.iter().all(|schedule| schedule.class == class(func, algo, &Graph::of_host(5))),
                "{func:?} {algo:?}"
            );
        }
    }
}

/// All ranks of one host in the order of their numbers: the steps that were there before graphs were. Whoever changes a
/// number here changes the bits of results.
#[test]
fn schedules_of_one_host_stay_as_they_are() {
    let mut sums = Vec::new();
    for algo in Algo::ALL {
        let mut sum = 0xcbf2_9ce4_8422_2325;
        for n in (2..=20).chain([33, 63, 64]) {
            for func in FUNCS.into_iter().filter(|func| exists(*func, algo, n)) {
                // The same roots in the long form of the tests.
                let all = roots(func, n);
                for root in if all.len() > 16 { few_roots(n) } else { all } {
                    sum = compile_all(ScheduleKind { func, algo, root }, n).iter().fold(sum, digest);
                }
            }
        }
        sums.push(sum);
    }
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for n in 2..=9 {
        let graph = Graph::of_host(n);
        for func in FUNCS.into_iter().filter(|func| zero_copy::can_agree(*func, zero_copy::algo(*func), &graph)) {
            for root in roots(func, n) {
                let kind = ScheduleKind { func, algo: zero_copy::algo(func), root };
                sum = (0..n)
                    .map(|rank| zero_copy::agreed(kind, &graph, 0, rank).unwrap())
                    .fold(sum, |sum, s| digest(sum, &s));
            }
        }
    }
    sums.push(sum);
    let before = [
        0x9103_7134_b4ef_4b61,
        0xb287_59f4_fbbe_e6e8,
        0xf60f_84de_7d02_e298,
        0x8f9a_b817_82ac_b58a,
        0x09ff_db2d_2d37_642f,
        0x8541_76be_daa3_db39,
    ];
    assert_eq!(sums, before);
}
