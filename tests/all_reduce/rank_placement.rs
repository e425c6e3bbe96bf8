//! Who the ranks are: processes, threads, communicators of one thread, and mixtures.

use std::sync::Barrier;
use std::thread;

use crate::bind::Api;
use crate::common::cuda::Context;
use crate::common::launch::{self, Job};
use crate::common::nccl::Comm;
use crate::common::oracle::{DataType, RedOp};
use crate::data::{Buffers, Case, Member, long, seeded_rng};

/// Runs a thread for each of `n` ranks, each with its device current.
pub fn as_threads(n: usize, work: impl Fn(&Api, usize) + Sync) {
    let api = Api::load();
    thread::scope(|scope| {
        for rank in 0..n {
            let work = &work;
            scope.spawn(move || {
                api.cuda.use_device(rank).expect("a device");
                work(&api, rank);
            });
        }
    });
}

#[test]
fn processes() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        assert_eq!(member.api.nccl.count(member.comm), Ok(me.nranks as i32));
        assert_eq!(member.api.place_of(member.comm), (me.rank as i32, me.rank as i32));
        let all = Case::of_all(&mut seeded_rng("processes"), if long() { 20 } else { 2 });
        // Two ranks run everything, more of them a part, another one for each number of ranks.
        let step = if long() || me.nranks <= 2 { 1 } else { me.nranks };
        let cases: Vec<Case> = all.into_iter().skip(me.nranks % step).step_by(step).collect();
        member.run(&cases);
        return member.end();
    }
    for n in [1, 2, 3, 4, 5, 7, 8] {
        Job::this_test("rank_placement::processes", n).run().assert_ok();
    }
}

#[test]
fn threads() {
    if launch::child().is_some() {
        let cases = Case::of_all(&mut seeded_rng("threads"), if long() { 10 } else { 1 });
        for n in [2, 4, 7] {
            let id = Api::load().nccl.unique_id().expect("an id");
            as_threads(n, |api, rank| {
                let member = Member::new(api, api.init(n, id, rank), rank, n);
                member.run(&cases[..if n == 2 || long() { cases.len() } else { 20 }]);
                member.end();
            });
        }
        return;
    }
    Job::this_test("rank_placement::threads", 1).run().assert_ok();
}

/// The communicators of one thread, each with its device's context.
struct Devices {
    api: Api,
    members: Vec<(Context, Member)>,
}

impl Devices {
    fn init_all(api: &Api, n: usize) -> Devices {
        let before = api.current();
        let comms = api.nccl.init_all(n).expect("communicators");
        assert_eq!(api.current(), before, "the current context is restored");
        Devices::of(api, comms)
    }

    fn of(api: &Api, comms: Vec<Comm>) -> Devices {
        let n = comms.len();
        let member = |(rank, comm)| (api.cuda.use_device(rank).expect("a device"), Member::new(api, comm, rank, n));
        Devices { api: *api, members: comms.into_iter().enumerate().map(member).collect() }
    }

    /// One group: every rank makes the same calls.
    fn run(&self, cases: &[Case]) {
        let buffers: Vec<Vec<Buffers>> = self
            .members
            .iter()
            .map(|(context, member)| {
                self.api.cuda.set_current(*context).expect("current");
                cases.iter().map(|case| Buffers::new(member, *case)).collect()
            })
            .collect();
        let before = self.api.current();
        self.api.nccl.group_start().expect("group");
        for call in 0..cases.len() {
            for (buffers, (_, member)) in buffers.iter().zip(&self.members) {
                buffers[call].call(member, member.stream).expect("a call");
            }
        }
        self.api.nccl.group_end().expect("group");
        assert_eq!(self.api.current(), before, "the current context is restored");
        for (buffers, (context, member)) in buffers.into_iter().zip(&self.members) {
            self.api.cuda.set_current(*context).expect("current");
            self.api.cuda.wait(member.stream).expect("wait");
            buffers.into_iter().for_each(|buffers| buffers.check(member).unwrap_or_else(|wrong| panic!("{wrong}")));
        }
    }

    fn end(self) {
        self.members.into_iter().for_each(|(_, member)| member.end());
    }
}

#[test]
fn one_thread_with_several_devices() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        for n in [1, 3, 8] {
            let devices = Devices::init_all(&api, n);
            let cases = Case::of_all(&mut seeded_rng("one thread"), 1);
            cases.chunks(if n == 3 { 7 } else { 30 }).for_each(|cases| devices.run(cases));
            devices.end();
        }
        return;
    }
    Job::this_test("rank_placement::one_thread_with_several_devices", 1).run().assert_ok();
}

#[test]
fn one_thread_creates_ranks_in_a_group() {
    if launch::child().is_some() {
        let api = Api::load();
        let (n, id) = (4, api.nccl.unique_id().expect("an id"));
        let mut comms = vec![Comm::NULL; n];
        api.nccl.group_start().expect("group");
        for (rank, comm) in comms.iter_mut().enumerate() {
            api.cuda.use_device(rank).expect("a device");
            // SAFETY: the handles stay where they are until the group has ended.
            unsafe { api.nccl.init_rank(comm, n, id, rank) }.expect("queued");
        }
        api.nccl.group_end().expect("group");
        let devices = Devices::of(&api, comms);
        devices.run(&Case::of_all(&mut seeded_rng("created in a group"), 1)[..20]);
        // Destroyed in a group as well.
        api.nccl.group_start().expect("group");
        devices.end();
        return api.nccl.group_end().expect("group");
    }
    Job::this_test("rank_placement::one_thread_creates_ranks_in_a_group", 1).run().assert_ok();
}

/// Threads with three communicators each, which they use in different orders: streams are their own, so
/// that nobody waits for the wrong one. Communicators that share a device are created in one order.
#[test]
fn threads_with_several_communicators() {
    if launch::child().is_some() {
        let (n, k) = (3, 3);
        let api = Api::load();
        let ids: Vec<_> = (0..k).map(|_| api.nccl.unique_id().expect("an id")).collect();
        let ready = Barrier::new(n);
        as_threads(n, |api, rank| {
            let members: Vec<Member> = ids.iter().map(|id| Member::new(api, api.init(n, *id, rank), rank, n)).collect();
            ready.wait();
            let rounds = if long() { 100 } else { 15 };
            for round in 0..rounds {
                let case = |number| Case {
                    phase: round * k + number,
                    ..Case::plain(DataType::Int32, RedOp::Sum, 1000 + number)
                };
                let buffers: Vec<Buffers> = (0..k).map(|number| Buffers::new(&members[number], case(number))).collect();
                for step in 0..k {
                    let number = (step + rank) % k;
                    buffers[number].call(&members[number], members[number].stream).expect("a call");
                }
                for (buffers, member) in buffers.into_iter().zip(&members) {
                    api.cuda.wait(member.stream).expect("wait");
                    buffers.check(member).unwrap_or_else(|wrong| panic!("{wrong}"));
                }
            }
            members.into_iter().for_each(Member::end);
        });
        return;
    }
    Job::this_test("rank_placement::threads_with_several_communicators", 1).run().assert_ok();
}

/// A communicator goes from thread to thread.
#[test]
fn a_communicator_is_handed_over_between_threads() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let cases = Case::of_all(&mut seeded_rng("handed over"), 1);
        for cases in cases[..12].chunks(3) {
            // The thread uses its own default stream, under the name that every thread's has.
            let context = member.api.current();
            thread::scope(|scope| {
                scope.spawn(move || {
                    member.api.cuda.set_current(context).expect("current");
                    Member { stream: crate::bind::PER_THREAD, ..member }.run(cases);
                });
            });
        }
        return member.end();
    }
    Job::this_test("rank_placement::a_communicator_is_handed_over_between_threads", 2).run().assert_ok();
}
