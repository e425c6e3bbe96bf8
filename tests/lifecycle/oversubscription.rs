//! Eight threads of each rank, each with communicators of its own on a device that they share: made, used and destroyed
//! side by side, in an order that differs from rank to rank.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rand::RngExt;
use rand::seq::SliceRandom;

use crate::api::{Api, Holdings, Member, seeded_rng};
use crate::common::abi::SUCCESS;
use crate::common::launch::{self, Job, Place};
use crate::common::need;

const THREADS: usize = 8;
const DEADLINE: Duration = Duration::from_secs(1800);

/// How a communicator of a round ends; ranks need not agree on it.
fn end(member: Member, how: usize) {
    match how {
        0 => member.api.nccl.abort(member.comm).expect("abort"),
        1 => {
            // In progress where it does not block.
            let _ = member.api.nccl.finalize(member.comm);
            assert_eq!(member.api.nccl.settle(member.comm), SUCCESS);
            member.api.nccl.destroy(member.comm).expect("destroy");
        }
        _ => member.api.nccl.destroy(member.comm).expect("destroy"),
    }
}

/// A round: eight communicators, of which each thread makes, uses and ends one. Which one differs between ranks.
fn round(me: &Place, number: usize, mine: &[usize; THREADS], start: &Barrier) {
    let api = Api::load();
    let ids: Vec<_> = (0..THREADS).map(|k| api.meet(me, &format!("{number} {k}"))).collect();
    thread::scope(|scope| {
        for (thread, which) in mine.iter().copied().enumerate() {
            let ids = &ids;
            scope.spawn(move || {
                api.cuda.use_device(me.rank).expect("a device");
                let mut rng = seeded_rng(&format!("{number} {} {thread}", me.rank));
                let place = (me.nranks, me.rank);
                start.wait();
                thread::sleep(Duration::from_micros(rng.random_range(0..2000)));
                // Ranks agree on this one: it is the number of the communicator that tells.
                let comm = if which % 2 == 0 { api.init(place, ids[which]) } else { api.begin(place, ids[which]) };
                assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
                let member = Member::new(comm, place);
                (0..1 + which % 3).for_each(|_| member.sum());
                end(member, rng.random_range(0..6));
                member.free();
                api.cuda.release_device(me.rank).expect("the device");
            });
        }
    });
}

#[test]
fn eight_threads_a_rank() {
    const NAME: &str = "oversubscription::eight_threads_a_rank";
    let Some(me) = launch::child() else {
        let mut job = Job::this_test(NAME, 2).allow_any_warning();
        if need::long() {
            job = job.deadline(DEADLINE);
        }
        return job.run().assert_ok();
    };
    Api::load().cuda.use_device(me.rank).expect("a device");
    let mut rng = seeded_rng(&format!("{NAME} {}", me.rank));
    let start = Barrier::new(THREADS);
    let mut go = |number| {
        let mut mine: [usize; THREADS] = std::array::from_fn(|k| k);
        mine.shuffle(&mut rng);
        round(&me, number, &mine, &start);
    };
    go(0);
    let before = Holdings::now();
    (1..if need::long() { 100 } else { 8 }).for_each(go);
    me.barrier("end");
    before.assert_same();
}

/// One process is all ranks: eight threads, each rank of eight communicators, which it makes in an order of its own,
/// without blocking, and uses as they become ready.
#[test]
fn every_thread_in_its_own_order() {
    const NAME: &str = "oversubscription::every_thread_in_its_own_order";
    if launch::child().is_none() {
        return Job::this_test(NAME, 1).allow_any_warning().run().assert_ok();
    }
    let api = Api::load();
    let rounds = if need::long() { 30 } else { 3 };
    for round in 0..rounds {
        let ids: Vec<_> = (0..4).map(|_| api.nccl.unique_id().expect("an id")).collect();
        let (ids, ready) = (&ids, &Barrier::new(THREADS));
        thread::scope(|scope| {
            for rank in 0..THREADS {
                scope.spawn(move || {
                    api.cuda.use_device(rank).expect("a device");
                    let (place, mut rng) = ((THREADS, rank), seeded_rng(&format!("{round} {rank}")));
                    let mut order: Vec<usize> = (0..ids.len()).collect();
                    order.shuffle(&mut rng);
                    let mut members: Vec<Option<Member>> = ids.iter().map(|_| None).collect();
                    for which in order {
                        members[which] = Some(Member::new(api.begin(place, ids[which]), place));
                    }
                    let members: Vec<Member> = members.into_iter().flatten().collect();
                    members.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
                    // Calls are in one order on all ranks: they share a device, and its queues.
                    members.iter().for_each(Member::fill);
                    members.iter().for_each(|member| member.call().expect("a call"));
                    members.iter().for_each(Member::check);
                    ready.wait();
                    // Ends are in any order.
                    let mut order = members;
                    order.shuffle(&mut rng);
                    order.into_iter().for_each(Member::end);
                });
            }
        });
    }
}
