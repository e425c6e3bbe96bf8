use super::super::exec::{self, Call, Direct, Outcome, Setting};
use super::*;

const FUNCS: [Func; 8] = [
    Func::AllReduce,
    Func::Broadcast,
    Func::Reduce,
    Func::AllGather,
    Func::ReduceScatter,
    Func::AlltoAll,
    Func::Gather,
    Func::Scatter,
];

/// The whole of every sweep, which takes minutes.
fn long() -> bool {
    std::env::var_os("OXCCL_LONG").is_some()
}

fn compile_all(kind: Kind, nranks: u32) -> Vec<Schedule> {
    (0..nranks).map(|rank| compile(kind, rank, nranks).unwrap_or_else(|e| panic!("{kind:?}: {e}"))).collect()
}

fn setting(slots: u32, pieces: u32, in_place: bool) -> Setting {
    // With one piece, three calls; with three, two: a link's slots are used again in both.
    Setting { slots, pieces, in_place, calls: if pieces == 1 { 3 } else { 2 }, direct: Direct::default() }
}

fn outcome(kind: Kind, schedules: &[Schedule], setting: Setting) -> Outcome {
    let call = Call { func: kind.func, root: kind.root };
    let run = exec::execute(call, schedules, setting);
    run.unwrap_or_else(|e| panic!("{kind:?}, {} ranks, {setting:?}: {e}", schedules.len()))
}

fn prove(kind: Kind, schedules: &[Schedule], setting: Setting) {
    let proof = outcome(kind, schedules, setting).prove();
    proof.unwrap_or_else(|e| panic!("{kind:?}, {} ranks, {setting:?}: {e}", schedules.len()));
}

/// Roots to try: all with few ranks, else those at which something changes.
fn roots(func: Func, nranks: u32) -> Vec<u32> {
    if !matches!(func, Func::Broadcast | Func::Reduce | Func::Gather | Func::Scatter) {
        return vec![0];
    }
    if nranks <= 16 || long() {
        return (0..nranks).collect();
    }
    vec![0, 1, 8, 9, nranks / 2, nranks - 9, nranks - 1]
}

/// Every setting with few ranks, else two that have all of slots, pieces and places between them.
fn settings(nranks: u32, needed: u32) -> Vec<Setting> {
    if nranks > 16 && !long() {
        return vec![setting(needed, 3, true), setting(8, 1, false)];
    }
    let places = [false, true];
    let with = |in_place| [(needed, 1), (needed, 3), (8, 1), (8, 3)].map(|(slots, pieces)| setting(slots, pieces, in_place));
    places.into_iter().flat_map(with).collect()
}

/// Proves a function's algorithm for all numbers of ranks that it is there for, up to 64.
fn sweep(func: Func, algo: Algo) {
    for nranks in (2..=MAX_MESH).filter(|n| available(func, algo, *n)) {
        for root in roots(func, nranks) {
            let kind = Kind { func, algo, root };
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

#[test]
fn print_steps() {
    for func in FUNCS {
        for algo in Algo::ALL {
            let mut line = format!("{} {}:", func.name(), algo.name());
            for n in [2, 4, 8, 64].into_iter().filter(|n| available(func, algo, *n)) {
                let all = compile_all(Kind { func, algo, root: 0 }, n);
                let steps = all.iter().map(|s| s.steps.len()).max().unwrap();
                let turns = all.iter().map(|s| s.steps.iter().map(|s| u32::from(s.repeat)).sum::<u32>()).max().unwrap();
                line += &format!(" n={n}: {steps} steps {turns} turns {} slots;", all[0].slots);
            }
            println!("{line}");
        }
    }
}
