use super::super::algorithm::{Algo, ScheduleKind, compile};
use super::super::layout::step_flag::{FROM_OUT, IN, NO_DATA, OUT, POST};
use super::super::ring;
use super::super::schedule::{Draft, LinkClass, Schedule};
use super::*;
use crate::error::Error;
use crate::topology::{Graph, Order};

fn ring_of(order: &[u32]) -> Vec<Schedule> {
    let order = Order::new(order.to_vec()).expect("an order");
    (0..order.nranks()).map(|rank| ring::all_reduce(&order, rank).expect("a ring")).collect()
}

fn simple(n: u32) -> Vec<Schedule> {
    ring_of(&(0..n).collect::<Vec<_>>())
}

const TYPICAL: Setting =
    Setting { slots: 8, pieces: 3, in_place: false, calls: 2, direct: DirectAccess { read: false, write: false } };
const ALL_REDUCE: SimulatedCall = SimulatedCall { func: Func::AllReduce, root: 0 };

fn prove(schedules: &[Schedule], setting: Setting) {
    run(ALL_REDUCE, schedules, setting).unwrap_or_else(|e| panic!("{setting:?}: {e}"));
}

fn run(call: SimulatedCall, schedules: &[Schedule], setting: Setting) -> Result<(), Fault> {
    execute(call, schedules, setting).and_then(|outcome| outcome.prove())
}

#[test]
fn rings_of_any_order_are_right() {
    for n in (2..=24).chain([64]) {
        // Some other order of the ranks: n is coprime to one of these steps.
        let step = [7, 5, 3, 2, 1].into_iter().find(|s| n % s != 0).unwrap_or(1);
        let order: Vec<u32> = (0..n).map(|i| i * step % n).collect();
        let mut shuffled: Vec<u32> = (0..n).collect();
        shuffled.sort_by_key(|rank| rank * 37 % 17);
        for ring in [order, shuffled] {
            prove_on(&Order::new(ring).expect("an order"));
        }
    }
}

fn prove_on(ring: &Order) {
    let setting = Setting { pieces: 2, ..TYPICAL };
    let all = |of: &dyn Fn(u32) -> Result<Schedule, Error>| {
        (0..ring.nranks()).map(|rank| of(rank).expect("a ring")).collect::<Vec<_>>()
    };
    let root = ring.nranks() / 2;
    let cases = [
        (Func::AllReduce, all(&|rank| ring::all_reduce(ring, rank))),
        (Func::AllGather, all(&|rank| ring::all_gather(ring, rank))),
        (Func::ReduceScatter, all(&|rank| ring::reduce_scatter(ring, rank))),
        (Func::Broadcast, all(&|rank| ring::broadcast(ring, root, rank))),
        (Func::Reduce, all(&|rank| ring::reduce(ring, root, rank))),
    ];
    for (func, schedules) in cases {
        run(SimulatedCall { func, root }, &schedules, setting).unwrap_or_else(|e| panic!("{func:?} {ring:?}: {e}"));
    }
}

#[test]
fn large_rings_are_right() {
    let long = std::env::var_os("OXCCL_LONG").is_some();
    let sizes: &[u32] = if long { &[65, 96, 127, 200, 255, 256, 257, 512, 777, 1000, 1023, 1024] } else { &[65, 128] };
    for &n in sizes {
        let setting = Setting { pieces: 2, calls: if long { 2 } else { 1 }, in_place: true, ..TYPICAL };
        for func in [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce] {
            let kind = ScheduleKind { func, algo: Algo::Ring, root: 0 };
            let schedules: Vec<Schedule> =
                (0..n).map(|rank| compile(kind, &Graph::of_host(n), 0, rank).unwrap()).collect();
            run(SimulatedCall { func, root: 0 }, &schedules, setting).unwrap_or_else(|e| panic!("{func:?} {n}: {e}"));
        }
    }
}

#[test]
fn ring_needs_two_slots_and_no_more() {
    for n in 2..=12 {
        for slots in 2..=8 {
            prove(&simple(n), Setting { slots, ..TYPICAL });
        }
        let one = execute(ALL_REDUCE, &simple(n), Setting { slots: 1, ..TYPICAL });
        assert!(matches!(one, Err(Fault::Deadlock { blocked, .. }) if blocked == n as usize), "n = {n}");
    }
}

#[test]
fn too_few_slots_are_refused() {
    let s = &simple(3)[0];
    assert_eq!(s.check(2), Ok(()));
    let text = s.check(1).unwrap_err().to_string();
    assert!(text.contains("needs links of 2 slots, there are 1"), "{text}");
}

#[test]
fn order_of_reduction_follows_the_ring() {
    let outcome = execute(ALL_REDUCE, &ring_of(&[3, 0, 2, 1]), TYPICAL).expect("runs");
    // Chunk 1 belongs to position 1 (rank 0) and starts at the position after it.
    assert_eq!(outcome.order(0, 1), [2, 1, 3, 0]);
    assert_eq!(outcome.order(2, 3), [3, 0, 2, 1]);
}

#[test]
fn ring_steps_are_few() {
    assert_eq!(simple(2)[0].steps.len(), 3);
    for n in [3, 4, 64] {
        let s = &simple(n)[1];
        assert_eq!((s.steps.len(), s.links.len()), (5, 2));
    }
    assert!(ring::all_reduce(&Order::of_numbers(1), 0).is_err());
    assert!(ring::all_reduce(&Order::of_numbers(2), 2).is_err());
}

/// Every fault that the executor is there to find, by breaking a good schedule.
#[test]
fn faults_are_found() {
    let broken = |f: &dyn Fn(&mut Vec<Schedule>)| {
        let mut s = simple(4);
        f(&mut s);
        run(ALL_REDUCE, &s, TYPICAL)
    };
    assert_eq!(broken(&|_| ()), Ok(()));
    let wrong =
        |r: Result<(), Fault>, text: &str| assert!(r.as_ref().is_err_and(|e| e.to_string().contains(text)), "{r:?}");
    wrong(broken(&|s| s[1].steps[2].flags &= !IN), "contribution");
    wrong(broken(&|s| s[1].steps[1].in_chunk = 0), "moves chunk 3 as if it were chunk 0");
    wrong(broken(&|s| s[1].steps[2].flags &= !POST), "post");
    wrong(broken(&|s| s[1].steps[3].flags |= POST), "");
    wrong(broken(&|s| s[1].steps[4].flags &= !OUT), "");
    wrong(broken(&|s| s[2].steps[1].repeat = 1), "moves chunk 3 as if it were chunk 2");
    wrong(broken(&|s| s[2].steps[4].nrecv = 0), "no source");
    wrong(broken(&|s| s[2].steps[0].flags |= FROM_OUT), "before it is written");
    wrong(broken(&|s| s[2].steps[0].flags |= NO_DATA), "signal");
    wrong(broken(&|s| s[3].links.swap(0, 1)), "does not begin here");
    wrong(broken(&|s| s[3].nchunks = 5), "5 chunks");
}

#[test]
fn early_overwrite_is_found_in_place_only() {
    // Writes its own output before the last read of the input chunk.
    let schedule = |rank: u32| {
        let peer = [1 - rank];
        let mut s = Schedule::new(rank, LinkClass::Ring, 1, 2);
        let once = Draft { repeat: 1, ..Draft::default() };
        s.push(Draft { flags: IN, send: &peer, ..once }).unwrap();
        s.push(Draft { flags: OUT, recv: &peer, ..once }).unwrap();
        s.push(Draft { flags: IN, send: &peer, ..once }).unwrap();
        s.push(Draft { flags: IN | OUT | POST, recv: &peer, place: rank as u8, ..once }).unwrap();
        s
    };
    let both = [schedule(0), schedule(1)];
    let order = Setting { slots: 2, pieces: 2, ..TYPICAL };
    run(ALL_REDUCE, &both, order).expect("right out of place");
    let fault = execute(ALL_REDUCE, &both, Setting { in_place: true, ..order }).err();
    assert!(matches!(fault, Some(Fault::Overwritten { chunk: 0, .. })), "{fault:?}");
}

#[test]
fn orders_that_differ_between_ranks_are_found() {
    // Every rank reduces by itself, its own contribution first.
    let schedule = |rank: u32| {
        let peer = [1 - rank];
        let mut s = Schedule::new(rank, LinkClass::Ring, 1, 2);
        s.push(Draft { flags: IN, send: &peer, repeat: 1, ..Draft::default() }).unwrap();
        s.push(Draft { flags: IN | OUT | POST, recv: &peer, repeat: 1, ..Draft::default() }).unwrap();
        s
    };
    let fault = run(ALL_REDUCE, &[schedule(0), schedule(1)], TYPICAL);
    assert!(matches!(fault, Err(Fault::Wrong { rank: 1, .. })), "{fault:?}");
}

#[test]
fn slots_left_filled_are_found() {
    let mut s = [Schedule::new(0, LinkClass::Ring, 1, 1), Schedule::new(1, LinkClass::Ring, 1, 1)];
    s[0].push(Draft { flags: IN, send: &[1], repeat: 1, ..Draft::default() }).unwrap();
    s[1].push(Draft { flags: IN | OUT, ..Draft::ONCE }).unwrap();
    let fault = execute(ALL_REDUCE, &s, Setting { slots: 2, pieces: 1, calls: 1, ..TYPICAL }).err();
    assert!(matches!(fault, Some(Fault::NotDrained { left: 1, .. })), "{fault:?}");
}

/// What a call's buffers have to do with it: a root's alone, one chunk or many, sizes, signals.
#[test]
fn misuse_of_buffers_is_found() {
    let of = |func, algo, f: &dyn Fn(&mut Vec<Schedule>)| {
        let kind = ScheduleKind { func, algo, root: 1 };
        let mut s: Vec<Schedule> = (0..4).map(|rank| compile(kind, &Graph::of_host(4), 0, rank).unwrap()).collect();
        f(&mut s);
        run(SimulatedCall { func, root: 1 }, &s, TYPICAL)
    };
    let wrong =
        |r: Result<(), Fault>, text: &str| assert!(r.as_ref().is_err_and(|e| e.to_string().contains(text)), "{r:?}");
    let direct = Algo::Direct;
    // NULL at ranks that are not the root.
    wrong(of(Func::Broadcast, direct, &|s| s[0].steps[0].flags |= IN), "rank 0 has no chunk 0 of its input");
    wrong(of(Func::Scatter, direct, &|s| s[2].steps[0].flags |= IN), "rank 2 has no chunk 0 of its input");
    wrong(of(Func::Reduce, direct, &|s| s[0].steps[0].flags |= OUT), "rank 0 has no chunk 0 of its output");
    wrong(of(Func::Gather, direct, &|s| s[3].steps[0].flags |= OUT), "rank 3 has no chunk 0 of its output");
    // One chunk where there could be many.
    wrong(of(Func::AllGather, direct, &|s| s[2].steps[0].in_chunk = 2), "rank 2 has no chunk 2 of its input");
    wrong(of(Func::ReduceScatter, direct, &|s| s[2].steps[3].out_chunk = 1), "rank 2 has no chunk 1 of its output");
    // Results in the wrong place, scaled, of somebody else.
    wrong(of(Func::AllGather, Algo::Ring, &|s| s[2].steps[0].out_chunk = 1), "rank 2, chunk 2: never written");
    wrong(of(Func::AllGather, direct, &|s| s[2].steps[1].flags |= POST), "not an input unchanged");
    wrong(of(Func::AlltoAll, direct, &|s| s[2].steps[1].in_chunk = 2), "another rank, chunk, piece or call");
    wrong(of(Func::ReduceScatter, direct, &|s| s[2].steps[3].flags &= !IN), "a contribution is missing");
    // A signal where data is expected, and the other way around.
    wrong(of(Func::Broadcast, direct, &|s| s[1].steps[0].flags |= NO_DATA), "for data, but it carries a signal");
    wrong(of(Func::Broadcast, direct, &|s| s[2].steps[0].flags |= NO_DATA), "for a signal, but it carries data");
    // A step that passes data on says how much by its chunk.
    let tree = |func| {
        of(func, Algo::Tree, &|s| s.iter_mut().for_each(|s| s.steps.iter_mut().for_each(|step| step.in_chunk = 0)))
    };
    wrong(tree(Func::Reduce), "as if it were chunk");
}
