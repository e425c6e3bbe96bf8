//! Groups: many calls, nesting, errors.

use rand::seq::SliceRandom;

use crate::bind::Api;
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE};
use crate::common::launch::{self, Job};
use crate::common::nccl::Comm;
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::Resources;
use crate::data::{Buffers, Case, Member, long, seeded_rng};

/// Makes all calls in one group, `nested` levels deep, then checks them.
fn run_grouped(member: &Member, cases: &[Case], nested: usize) {
    let buffers: Vec<Buffers> = cases.iter().map(|case| Buffers::new(member, *case)).collect();
    let nccl = &member.api.nccl;
    (0..nested).for_each(|_| nccl.group_start().expect("group"));
    for (at, buffers) in buffers.iter().enumerate() {
        // Inner groups open and close in between.
        if at % 3 == 0 {
            nccl.group_start().expect("group");
        }
        buffers.call(member, member.stream).expect("a call");
        if at % 3 == 0 {
            nccl.group_end().expect("group");
        }
    }
    (0..nested).for_each(|_| nccl.group_end().expect("group"));
    member.api.cuda.wait(member.stream).expect("wait");
    buffers.into_iter().for_each(|buffers| buffers.check(member).unwrap_or_else(|wrong| panic!("{wrong}")));
}

/// More calls than one launch has room for; types, operators and sizes in any order.
#[test]
fn many_calls_in_a_group() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let mut rng = seeded_rng("groups");
        let mut cases = Case::of_all(&mut rng, 1);
        cases.shuffle(&mut rng);
        run_grouped(&member, &cases, 1);
        run_grouped(&member, &cases[..16], 3);
        let alike: Vec<Case> =
            (0..if long() { 400 } else { 50 }).map(|n| Case::plain(DataType::Float32, RedOp::Sum, n)).collect();
        run_grouped(&member, &alike, 2);
        run_grouped(&member, &[], 2);
        return member.end();
    }
    Job::this_test("groups::many_calls_in_a_group", 2).run().assert_ok();
    Job::this_test("groups::many_calls_in_a_group", 3).env("NCCL_MIN_NCHANNELS", "5").run().assert_ok();
}

/// Calls of several communicators of one process in one group, in another order on each rank.
#[test]
fn several_communicators_in_a_group() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let comm = |number: usize| api.init(me.nranks, api.meet(&me, &format!("id{number}")), me.rank);
        let members: Vec<Member> = (0..4).map(|number| Member::new(&api, comm(number), me.rank, me.nranks)).collect();
        for round in 0..5 {
            let case =
                |number: usize| Case { phase: round, ..Case::plain(DataType::Int64, RedOp::Sum, 500 * number + 1) };
            let buffers: Vec<Buffers> = (0..4).map(|number| Buffers::new(&members[number], case(number))).collect();
            api.nccl.group_start().expect("group");
            for step in 0..4 {
                let number = (step + me.rank) % 4;
                buffers[number].call(&members[number], members[number].stream).expect("a call");
            }
            api.nccl.group_end().expect("group");
            for (buffers, member) in buffers.into_iter().zip(&members) {
                api.cuda.wait(member.stream).expect("wait");
                buffers.check(member).unwrap_or_else(|wrong| panic!("{wrong}"));
            }
        }
        return members.into_iter().for_each(Member::end);
    }
    Job::this_test("groups::several_communicators_in_a_group", 3).run().assert_ok();
}

/// An error in a group is returned by its end, nothing of the group is carried out, and the next group
/// is a clean one.
#[test]
fn an_error_drops_the_group() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let nccl = &member.api.nccl;
        let untouched = Buffers::new(&member, Case::plain(DataType::Int32, RedOp::Sum, 0));
        let good = Buffers::new(&member, Case::plain(DataType::Int32, RedOp::Sum, 100));
        let what = (DataType::Int32, RedOp::Sum);
        nccl.group_start().expect("group");
        good.call(&member, member.stream).expect("queued");
        // SAFETY: no communicator, so that nothing is done with the buffers.
        let failure = unsafe { nccl.all_reduce(good.addresses(), 1, what, Comm::NULL, member.stream.0) };
        assert_eq!(failure.expect_err("no communicator").code, INVALID_ARGUMENT);
        nccl.group_start().expect("group");
        nccl.group_end().expect("an inner end is no failure");
        assert_eq!(nccl.group_end().expect_err("the end of a failed group").code, INVALID_ARGUMENT);
        assert_eq!(nccl.group_end().expect_err("there is no group").code, INVALID_USAGE);
        untouched.check(&member).expect("nothing happens");
        // Had the first call been carried out, the ranks would be out of step or the output written.
        member.run(&[Case::plain(DataType::Float32, RedOp::Max, 77)]);
        let mut byte = [0];
        member.api.cuda.copy_to_host(&mut byte, good.addresses().1).expect("copy");
        assert_eq!(byte, [0x5a], "the call of the failed group was carried out");
        return member.end();
    }
    Job::this_test("groups::an_error_drops_the_group", 2).allow_any_warning().run().assert_ok();
}

/// What is wrong with one call is found before any other of the group is launched.
#[test]
fn nothing_of_a_group_is_launched_if_one_call_is_wrong() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let nccl = &member.api.nccl;
        let good = Buffers::new(&member, Case::plain(DataType::Int32, RedOp::Sum, 100));
        let what = (DataType::Int32, RedOp::Sum);
        for (address, count) in [(0, 10), (good.addresses().0 + 1, 10), (good.addresses().0, usize::MAX / 4)] {
            nccl.group_start().expect("group");
            good.call(&member, member.stream).expect("queued");
            // SAFETY: the call is refused, now or at the end.
            let now = unsafe { nccl.all_reduce((address, address), count, what, member.comm, member.stream.0) };
            let end = nccl.group_end().expect_err("a wrong call");
            assert_eq!(end.code, INVALID_ARGUMENT, "{now:?} {end}");
        }
        good.call(&member, member.stream).expect("a call");
        member.api.cuda.wait(member.stream).expect("wait");
        good.check(&member).expect("the first call that is carried out");
        return member.end();
    }
    Job::this_test("groups::nothing_of_a_group_is_launched_if_one_call_is_wrong", 2)
        .allow_any_warning()
        .run()
        .assert_ok();
}

/// Creations that a failed group drops leave nothing.
#[test]
fn dropped_creations_leave_nothing() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let failing = || {
            // All ranks of the id: its root waits until all have heard of the failure.
            let id = api.nccl.unique_id().expect("an id");
            let mut comms = [Comm::NULL; 2];
            api.nccl.group_start().expect("group");
            for (rank, comm) in comms.iter_mut().enumerate() {
                // SAFETY: the handles outlive the group.
                unsafe { api.nccl.init_rank(comm, 2, id, rank) }.expect("queued");
            }
            // SAFETY: refused at once.
            unsafe { api.nccl.init_rank(&mut Comm::NULL.clone(), 2, id, 5) }.expect_err("no such rank");
            assert_eq!(api.nccl.group_end().expect_err("a failed group").code, INVALID_ARGUMENT);
            assert_eq!(comms, [Comm::NULL; 2]);
        };
        failing();
        let before = Resources::now();
        (0..20).for_each(|_| failing());
        before.assert_same();
        return;
    }
    Job::this_test("groups::dropped_creations_leave_nothing", 1).allow_any_warning().run().assert_ok();
}

/// A call that was collected before its communicator is destroyed in the same group is an error, not a
/// launch into freed memory.
#[test]
fn a_group_may_destroy_what_it_has_calls_of() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(&Api::load(), &me);
        let nccl = &member.api.nccl;
        let buffers = Buffers::new(&member, Case::plain(DataType::Int32, RedOp::Sum, 100));
        nccl.group_start().expect("group");
        buffers.call(&member, member.stream).expect("queued");
        nccl.destroy(member.comm).expect("queued");
        assert_eq!(nccl.group_end().expect_err("the communicator is gone").code, INVALID_ARGUMENT);
        return member.api.cuda.wait(member.stream).expect("nothing runs");
    }
    Job::this_test("groups::a_group_may_destroy_what_it_has_calls_of", 2).allow_any_warning().run().assert_ok();
}
