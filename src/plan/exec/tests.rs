use super::super::layout::step_flag::{FROM_OUT, IN, NO_DATA, OUT, POST};
use super::super::ring;
use super::super::schedule::{Draft, LinkClass, Schedule};
use super::*;

fn ring_of(order: &[u32]) -> Vec<Schedule> {
    order.iter().map(|&r| ring::all_reduce(order, r).expect("a ring")).collect()
}

fn simple(n: u32) -> Vec<Schedule> {
    ring_of(&(0..n).collect::<Vec<_>>())
}

const TYPICAL: Setting = Setting { slots: 8, pieces: 3, in_place: false };

fn prove(schedules: &[Schedule], setting: Setting) {
    let outcome = execute(schedules, setting).unwrap_or_else(|e| panic!("{setting:?}: {e}"));
    outcome.prove_all_reduce().unwrap_or_else(|e| panic!("{setting:?}: {e}"));
}

#[test]
fn ring_all_reduce_is_right_for_every_n() {
    for n in 2..=64 {
        for in_place in [false, true] {
            prove(&simple(n), Setting { in_place, ..TYPICAL });
        }
        // Some other order of the ranks: n is coprime to one of these steps.
        let step = [7, 5, 3, 2, 1].into_iter().find(|s| n % s != 0).unwrap_or(1);
        let order: Vec<u32> = (0..n).map(|i| i * step % n).collect();
        prove(&ring_of(&order), TYPICAL);
    }
}

#[test]
fn ring_all_reduce_is_right_for_large_n() {
    let long = std::env::var_os("OXCCL_LONG").is_some();
    let sizes: &[u32] = if long { &[65, 96, 127, 200, 255, 256, 257, 512, 777, 1000, 1023, 1024] } else { &[127, 256] };
    for &n in sizes {
        prove(&simple(n), Setting { pieces: 2, in_place: true, ..TYPICAL });
    }
}

#[test]
fn ring_needs_two_slots_and_no_more() {
    for n in 2..=12 {
        for slots in 2..=8 {
            prove(&simple(n), Setting { slots, ..TYPICAL });
        }
        let one = execute(&simple(n), Setting { slots: 1, ..TYPICAL });
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
    let outcome = execute(&ring_of(&[3, 0, 2, 1]), TYPICAL).expect("runs");
    // Chunk 1 belongs to position 1 (rank 0) and starts at the position after it.
    assert_eq!(outcome.order(1), [2, 1, 3, 0]);
    assert_eq!(outcome.order(3), [3, 0, 2, 1]);
}

#[test]
fn ring_steps_are_few() {
    assert_eq!(simple(2)[0].steps.len(), 3);
    for n in [3, 4, 64] {
        let s = &simple(n)[1];
        assert_eq!((s.steps.len(), s.links.len()), (5, 2));
    }
    assert!(ring::all_reduce(&[0], 0).is_err());
    assert!(ring::all_reduce(&[0, 1], 2).is_err());
}

/// Every fault that the executor is there to find, by breaking a good schedule.
#[test]
fn faults_are_found() {
    let broken = |f: &dyn Fn(&mut Vec<Schedule>)| {
        let mut s = simple(4);
        f(&mut s);
        execute(&s, TYPICAL).and_then(|o| o.prove_all_reduce())
    };
    assert_eq!(broken(&|_| ()), Ok(()));
    let wrong = |r: Result<(), Fault>, text: &str| assert!(r.as_ref().is_err_and(|e| e.to_string().contains(text)), "{r:?}");
    wrong(broken(&|s| s[1].steps[2].flags &= !IN), "contribution");
    wrong(broken(&|s| s[1].steps[1].in_chunk = 0), "another chunk");
    wrong(broken(&|s| s[1].steps[2].flags &= !POST), "post");
    wrong(broken(&|s| s[1].steps[3].flags |= POST), "");
    wrong(broken(&|s| s[1].steps[4].flags &= !OUT), "");
    wrong(broken(&|s| s[2].steps[1].repeat = 1), "deadlock");
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
    let order = Setting { slots: 2, pieces: 2, in_place: false };
    execute(&both, order).and_then(|o| o.prove_all_reduce()).expect("right out of place");
    let fault = execute(&both, Setting { in_place: true, ..order }).err();
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
    let fault = execute(&[schedule(0), schedule(1)], TYPICAL).and_then(|o| o.prove_all_reduce());
    assert!(matches!(fault, Err(Fault::Wrong { rank: 1, .. })), "{fault:?}");
}

#[test]
fn slots_left_filled_are_found() {
    let mut s = [Schedule::new(0, LinkClass::Ring, 1, 1), Schedule::new(1, LinkClass::Ring, 1, 1)];
    s[0].push(Draft { flags: IN, send: &[1], repeat: 1, ..Draft::default() }).unwrap();
    let fault = execute(&s, Setting { slots: 2, pieces: 1, in_place: false }).err();
    assert!(matches!(fault, Some(Fault::NotDrained { left: 1, .. })), "{fault:?}");
}
