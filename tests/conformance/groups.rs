//! Groups of collectives: nesting, many calls, several communicators and streams, errors, mixtures with
//! messages, threads that come in any order.

use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::built;
use crate::case::{Case, kinds};
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE};
use crate::common::collectives::Call;
use crate::common::launch;
use crate::common::nccl::Comm;
use crate::member::{Api, Item, Member, POISON, Prepared, Submission};
use crate::messages::Message;
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// Random calls of random kinds.
fn random_cases(rng: &mut SmallRng, n: usize, calls: usize) -> Vec<Item> {
    let kinds = kinds();
    let kind = |rng: &mut SmallRng| kinds[rng.random_range(0..kinds.len())];
    let case = |rng: &mut SmallRng| {
        let kind = kind(rng);
        Item::Collective(Case::random(rng, kind, n))
    };
    (0..calls).map(|_| case(rng)).collect()
}

#[test]
fn a_hundred_kinds_in_a_group() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let mut rng = seeded_rng("hundred");
            for submission in [Submission::Group, Submission::Nested] {
                let items = random_cases(&mut rng, member.nranks, 100);
                member.run(&items, submission, &mut rng.clone());
            }
        });
    }
    let setups = [
        Setup::plain(2),
        Setup { channels: Some(4), ..Setup::plain(3) },
        Setup { small_slots: true, ..Setup::plain(5) },
    ];
    setups.iter().for_each(|setup| setup.run("groups::a_hundred_kinds_in_a_group"));
}

/// More than any launch has room for; the group's end returns before all have run.
#[test]
fn a_thousand_small_calls_in_a_group() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let mut rng = seeded_rng("thousand");
            let funcs = built::FUNCS;
            let case = |at: usize| Case { phase: at, stream: at % 3, ..Case::of(funcs[at % funcs.len()], at % 50) };
            let items: Vec<Item> = (0..1000).map(|at| Item::Collective(case(at))).collect();
            member.run(&items, Submission::Group, &mut rng);
        });
    }
    for n in [2, 3] {
        Setup::plain(n).run("groups::a_thousand_small_calls_in_a_group");
    }
}

#[test]
fn nested_deeply_and_empty() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (nccl, mut rng) = (member.api.nccl, seeded_rng("nested"));
            for depth in [1, 2, 50] {
                let items = random_cases(&mut rng, member.nranks, 5);
                (0..depth).for_each(|_| nccl.group_start().expect("group"));
                let mut calls: Vec<Prepared> = items.iter().flat_map(|item| member.prepare(item)).collect();
                member.issue_all(&mut calls, Submission::Nested);
                (0..depth).for_each(|_| nccl.group_end().expect("group"));
                member.check(calls);
                (0..depth).for_each(|_| nccl.group_start().expect("group"));
                (0..depth).for_each(|_| nccl.group_end().expect("an empty group"));
            }
            assert_eq!(nccl.group_end().expect_err("there is no group").code, INVALID_USAGE);
        });
    }
    Setup::plain(2).job("groups::nested_deeply_and_empty").allow_any_warning().run().assert_ok();
}

/// Calls of several communicators of a process in one group, each on several streams. `any_order`: each rank makes the
/// calls of different communicators in an order of its own.
fn communicators(test: &str, any_order: bool) {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut members: Vec<Member> = (0..3).map(|k| Member::of_process(api, &me, &format!("id{k}"))).collect();
        let (mut plan, mut own) = (seeded_rng("communicators"), seeded_rng(&format!("rank {}", me.rank)));
        for _ in 0..if long() { 100 } else { 8 } {
            let items: Vec<Vec<Item>> = (0..3).map(|_| random_cases(&mut plan, me.nranks, 4)).collect();
            let mut calls: Vec<Vec<Prepared>> = members
                .iter_mut()
                .zip(&items)
                .map(|(member, items)| items.iter().flat_map(|i| member.prepare(i)).collect())
                .collect();
            let mut order: Vec<usize> = [0, 1, 2].repeat(4);
            order.shuffle(if any_order { &mut own } else { &mut plan });
            let mut next = [0; 3];
            api.nccl.group_start().expect("group");
            for k in order {
                members[k].must_issue(&mut calls[k][next[k]]);
                next[k] += 1;
            }
            api.nccl.group_end().expect("group");
            members.iter_mut().zip(calls).for_each(|(member, calls)| member.check(calls));
        }
        return members.into_iter().for_each(Member::end);
    }
    Setup::plain(3).run(test);
}

#[test]
fn several_communicators() {
    communicators("groups::several_communicators", false);
}

/// More streams than hardware queues: what one rank launches first must not stand behind what it launches second.
#[test]
fn several_communicators_in_any_order() {
    communicators("groups::several_communicators_in_any_order", true);
}

/// Calls in a group on several streams are a barrier between them: what one stream did before is there
/// for the other's call, and after the group both wait.
#[test]
fn a_group_is_a_barrier_between_its_streams() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let graphs = member.api.graphs;
            for round in 0..10 {
                let case = |stream| Case { stream, phase: round, ..Case::of(built::FUNCS[0], 3000) };
                let mut calls: Vec<Prepared> = [0, 1].map(|stream| case(stream).prepare(member)).into();
                let bytes = 3000 * 4;
                let staged = member.scratch(&case(1).input(member));
                let (input, output) = calls[1].buffers;
                // The second call's input is written late, on the first call's stream.
                graphs.fill(input, 0, bytes, member.streams[0]);
                graphs.copy(input, staged, bytes, member.streams[0]);
                member.issue_all(&mut calls, Submission::Group);
                // What it gives is read on the first call's stream, too.
                let copy = member.scratch(&vec![POISON; bytes]);
                graphs.copy(copy, output, bytes, member.streams[0]);
                member.api.cuda.wait(member.streams[0]).expect("wait");
                let (mut read, wanted) = (vec![0; bytes], case(1).output(member));
                member.api.cuda.copy_to_host(&mut read, copy).expect("copy");
                assert!(read == wanted, "the first stream did not wait for the second's call");
                member.check(calls);
            }
        });
    }
    for delay in [None, Some(300)] {
        Setup { delay, ..Setup::plain(2) }.run("groups::a_group_is_a_barrier_between_its_streams");
    }
}

/// The first error is not the last word of a group: the last one is, all calls are dropped, and the next group is a
/// clean one.
#[test]
fn errors_drop_the_group() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (nccl, calls) = (member.api.nccl, member.api.calls);
            let stream = member.streams[0].0;
            for func in built::FUNCS {
                let good = Case::of(*func, 100);
                let mut dropped = good.prepare(member);
                let wrong = |dtype, op, root| Call { func: *func, count: 10, dtype, op, root };
                let mut list =
                    vec![(wrong(12, 0, 0), member.comm), (wrong(-1, 0, 0), member.comm), (wrong(2, 0, 0), Comm::NULL)];
                if func.reduces() {
                    list.extend([(wrong(2, -1, 0), member.comm), (wrong(2, 5, 0), member.comm)]);
                }
                if func.rooted() {
                    list.extend([(wrong(2, 0, -1), member.comm), (wrong(2, 0, member.nranks as i32), member.comm)]);
                }
                for (call, comm) in list {
                    nccl.group_start().expect("group");
                    member.must_issue(&mut dropped);
                    // SAFETY: refused.
                    let failure =
                        unsafe { calls.call(call, dropped.buffers, comm, stream) }.expect_err("a wrong argument");
                    assert_eq!(failure.code, INVALID_ARGUMENT, "{call:?}: {failure}");
                    nccl.group_start().expect("an inner group");
                    nccl.group_end().expect("an inner end is no failure");
                    assert_eq!(nccl.group_end().expect_err("a failed group").code, INVALID_ARGUMENT, "{call:?}");
                }
                // Had one of them been carried out, the ranks would be out of step, or the output written twice.
                member.must_issue(&mut dropped);
                member.check(vec![dropped]);
            }
        });
    }
    Setup::plain(2).job("groups::errors_drop_the_group").allow_any_warning().run().assert_ok();
}

/// Collectives and messages in one group, in any order of the calls that rules allow.
#[test]
fn collectives_and_messages() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (mut plan, mut own) = (seeded_rng("mixed"), seeded_rng(&format!("rank {}", member.rank)));
            for _ in 0..if long() { 100 } else { 10 } {
                let calls = plan.random_range(1..8);
                let mut items = random_cases(&mut plan, member.nranks, calls);
                let messages = plan.random_range(0..12);
                items.extend((0..messages).map(|_| Item::Message(Message::random(&mut plan, member.nranks, 20_000))));
                member.run(&items, Submission::Group, &mut own);
            }
        });
    }
    if built::has("Send and Recv", built::POINT_TO_POINT) {
        for transport in [Transport::P2p, Transport::Threads] {
            Setup { transport, ..Setup::plain(4) }.run("groups::collectives_and_messages");
        }
    }
}

/// Threads that come in any order, some late, in groups and without.
#[test]
fn in_any_order_of_arrival() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (mut plan, mut own) = (seeded_rng("plan"), seeded_rng(&format!("rank {}", member.rank)));
            for round in 0..if long() { 200 } else { 20 } {
                let items = random_cases(&mut plan, member.nranks, 5);
                let mut calls: Vec<Prepared> = items.iter().flat_map(|item| member.prepare(item)).collect();
                thread::sleep(Duration::from_micros(own.random_range(0..3000)));
                member.issue_all(&mut calls, if round % 2 == 0 { Submission::Queued } else { Submission::Group });
                member.check(calls);
            }
        });
    }
    for n in [3, 8] {
        Setup { transport: Transport::Threads, ..Setup::plain(n) }.run("groups::in_any_order_of_arrival");
    }
}
