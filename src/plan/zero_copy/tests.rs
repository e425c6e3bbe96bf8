use super::super::direct;
use super::super::exec::{self, Fault, Setting, SimulatedCall};
use super::*;
use crate::plan::layout::Step;
use crate::plan::schedule::LinkId;
use crate::topology::Order;

const FUNCS: [Func; 8] = Func::COLLECTIVES;

fn setting(func: Func, slots: u32, in_place: bool) -> Setting {
    let Reach { input, output } = reach(func);
    Setting { slots, pieces: 2, in_place, calls: 3, direct: exec::DirectAccess { read: input, write: output } }
}

fn compile_all(func: Func, root: u32, nranks: u32) -> Vec<Schedule> {
    let kind = ScheduleKind { func, algo: algo(func), root };
    let graph = Graph::of_host(nranks);
    (0..nranks).map(|rank| compile(kind, &graph, 0, rank).unwrap()).collect()
}

fn run(func: Func, root: u32, schedules: &[Schedule], setting: Setting) -> Result<(), Fault> {
    exec::execute(SimulatedCall { func, root }, schedules, setting).and_then(|outcome| outcome.prove())
}

#[test]
fn every_function_is_right_without_slots() {
    for func in FUNCS {
        for n in (2..=12).chain([17, 33]).filter(|n| available(func, algo(func), &Graph::of_host(*n))) {
            for root in [0, n / 2, n - 1] {
                let schedules = compile_all(func, root, n);
                for (slots, in_place) in
                    [(schedules[0].slots, false), (schedules[0].slots, true), (8, false), (8, true)]
                {
                    let proof = run(func, root, &schedules, setting(func, slots, in_place));
                    proof
                        .unwrap_or_else(|e| panic!("{func:?}, {n} ranks, root {root}, {slots} slots, {in_place}: {e}"));
                }
            }
        }
    }
}

#[test]
fn what_is_agreed_on_is_right() {
    for func in FUNCS {
        for n in (2..=12).filter(|n| can_agree(func, algo(func), &Graph::of_host(*n))) {
            for root in [0, n - 1] {
                let kind = ScheduleKind { func, algo: algo(func), root };
                let schedules: Vec<Schedule> =
                    (0..n).map(|rank| agreed(kind, &Graph::of_host(n), 0, rank).unwrap()).collect();
                for (slots, in_place) in [(2, false), (2, true), (8, true)] {
                    run(func, root, &schedules, setting(func, slots, in_place))
                        .unwrap_or_else(|e| panic!("{kind:?}, {n}: {e}"));
                }
                // The kernel finds the link to a peer at the place of the link from it.
                let (to, from) = (&schedules[1].steps[0], &schedules[1].steps[1]);
                let peers = |indices: &[u8], end: fn(&LinkId) -> u32| -> Vec<u32> {
                    indices[..n as usize - 1].iter().map(|i| end(&schedules[1].links[usize::from(*i)])).collect()
                };
                assert_eq!(peers(&to.send, |link| link.to), peers(&from.recv, |link| link.from));
            }
        }
    }
    assert!(
        agreed(
            ScheduleKind { func: Func::AllGather, algo: Algo::Direct, root: 0 },
            &Graph::of_host(MAX_REDUCE + 1),
            0,
            0
        )
        .is_err()
    );
}

#[test]
fn every_order_of_peers_is_right_without_slots() {
    for func in FUNCS {
        for n in 2..=MAX_REDUCE {
            let graph = Graph::shuffled(n, 1, 2, u64::from(n));
            for (root, channel) in [(0, 0), (n - 1, 1)] {
                let kind = ScheduleKind { func, algo: algo(func), root };
                let schedules: Vec<Schedule> =
                    (0..n).map(|rank| agreed(kind, &graph, channel, rank).unwrap()).collect();
                for in_place in [false, true] {
                    let proof = run(func, root, &schedules, setting(func, 2, in_place));
                    proof.unwrap_or_else(|e| panic!("{kind:?}, {n} ranks, channel {channel}: {e}"));
                }
            }
        }
    }
}

/// What a rank offers is what the schedules of the others use, and no more.
#[test]
fn what_is_offered_is_used() {
    for func in FUNCS {
        for n in 2..=4 {
            for root in 0..n {
                let all = compile_all(func, root, n);
                for rank in 0..n {
                    let uses = |end: fn(&LinkId) -> u32, links: fn(&Step) -> &[u8]| {
                        let data = |s: &Schedule, step: &Step| {
                            step.flags & NO_DATA == 0
                                && links(step).iter().any(|i| end(&s.links[usize::from(*i)]) == rank)
                        };
                        all.iter().filter(|s| s.rank != rank).any(|s| s.steps.iter().any(|step| data(s, step)))
                    };
                    let input = reach(func).input && uses(|link| link.from, |step| &step.recv[..step.nrecv.into()]);
                    let output = reach(func).output && uses(|link| link.to, |step| &step.send[..step.nsend.into()]);
                    assert_eq!(
                        offers(func, root, rank),
                        Reach { input, output },
                        "{func:?}, rank {rank} of {n}, root {root}"
                    );
                }
            }
        }
    }
}

#[test]
fn order_of_reduction_is_that_of_ranks() {
    for n in 2..=MAX_REDUCE {
        let call = SimulatedCall { func: Func::AllReduce, root: 0 };
        let outcome = exec::execute(call, &compile_all(call.func, 0, n), setting(call.func, 8, true)).unwrap();
        for chunk in 0..n {
            assert_eq!(outcome.order(0, chunk), (0..n).collect::<Vec<_>>());
            assert!(outcome.is_one_by_one(0, chunk));
        }
    }
    assert!(!available(Func::Reduce, Algo::Direct, &Graph::of_host(MAX_REDUCE + 1)));
    assert!(!available(Func::AllReduce, Algo::Direct, &Graph::of_host(2)));
}

/// What is for slots is not right without: the root's input may have changed by the time that it is read.
#[test]
fn ordinary_schedules_need_one_more_signal() {
    let with = setting(Func::Broadcast, 8, false);
    let mut schedules: Vec<Schedule> =
        (0..4).map(|rank| direct::broadcast(&Order::of_numbers(4), 1, rank).unwrap()).collect();
    let fault = run(Func::Broadcast, 1, &schedules, with);
    assert!(matches!(fault, Err(Fault::Race { owner: 1, .. })), "{fault:?}");
    for s in &mut schedules {
        if s.rank == 1 { wait(s, &[0, 2, 3]) } else { signal(s, &[1]) }.unwrap();
    }
    assert_eq!(run(Func::Broadcast, 1, &schedules, with), Ok(()));
}

/// Every signal is there for a reason: without it, two ranks meet.
#[test]
fn no_signal_can_be_left_out() {
    for func in FUNCS {
        let good = compile_all(func, 1, 3);
        for kind in 0..good[0].steps.len().max(good[1].steps.len()) {
            // The same signal on all ranks: both its halves go.
            let mut bad = good.clone();
            for s in &mut bad {
                let steps = s.steps.clone();
                s.steps.retain(|step| step.flags & NO_DATA == 0 || steps[..kind].contains(step));
            }
            let removed: usize = good.iter().zip(&bad).map(|(good, bad)| good.steps.len() - bad.steps.len()).sum();
            let proof = run(func, 1, &bad, setting(func, 8, false));
            assert!(removed == 0 || proof.is_err(), "{func:?} without signals from {kind} on");
        }
    }
}

/// In one step, in place: everybody overwrites what others still read.
#[test]
fn one_step_in_place_is_refused() {
    let three = Order::of_numbers(3);
    let all = |rank: u32| -> Result<Schedule, Error> {
        let me = ZeroCopy { all: DirectRank::new(&three, rank)?, root: 0 };
        let mut s = me.all.schedule(1);
        signal(&mut s, &me.others())?;
        me.sum(&mut s, &[], 0, 0)?;
        signal(&mut s, &me.others())?;
        wait(&mut s, &me.others())?;
        Ok(s)
    };
    let schedules: Vec<Schedule> = (0..3).map(|rank| all(rank).unwrap()).collect();
    let with = |in_place| setting(Func::ReduceScatter, 8, in_place);
    assert_eq!(run(Func::AllReduce, 0, &schedules, with(false)), Ok(()));
    let fault = run(Func::AllReduce, 0, &schedules, with(true));
    assert!(matches!(fault, Err(Fault::Race { .. })), "{fault:?}");
}
