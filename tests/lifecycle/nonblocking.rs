//! Communicators that do not block: no call waits for a peer, however late it is, or stopped.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::api::{Api, Member, abort};
use crate::common::abi::{IN_PROGRESS, INVALID_ARGUMENT, SUCCESS};
use crate::common::launch::{self, Job, Place, Running};
use crate::common::nccl::{Comm, Failure};
use crate::common::need;
use crate::times::{self, Times};

/// What the library says to a call that comes too early.
const TOO_EARLY: &str = "Attempt to use communicator before the previous operation returned ncclSuccess";
/// How late a late rank is.
const LATE: Duration = Duration::from_millis(1500);
/// How long a call may take that must not wait.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long a call may take that waits by its nature, for work that is under way.
const FINAL: Duration = Duration::from_secs(30);
/// Communicators in a row.
const ROUNDS: usize = 3;

fn code(result: Result<(), Failure>) -> i32 {
    result.map_or_else(|failure| failure.code, |()| SUCCESS)
}

/// All that cannot be done with a communicator that is busy.
fn too_early(times: &Times, member: &Member, may_end: bool) {
    let (api, comm) = (member.api, member.comm);
    assert_eq!(times.of("ncclCommGetAsyncError", || api.nccl.async_error(comm)), Ok(IN_PROGRESS));
    for (name, code) in api.questions(comm) {
        assert_eq!(code, INVALID_ARGUMENT, "{name} on a busy communicator");
    }
    let mut refusals = vec![
        ("ncclAllReduce", times.of("ncclAllReduce:busy", || member.begin_call())),
        ("ncclCommFinalize", times.of("ncclCommFinalize:busy", || api.nccl.finalize(comm))),
    ];
    if !may_end {
        refusals.push(("ncclCommDestroy", times.of("ncclCommDestroy:busy", || api.nccl.destroy(comm))));
    }
    for (name, result) in refusals {
        let failure = result.expect_err("it is busy");
        assert_eq!(failure.code, INVALID_ARGUMENT, "{name}: {failure}");
        assert!(failure.text.contains(TOO_EARLY), "{name}: {failure}");
    }
    assert_eq!(api.nccl.async_error(comm), Ok(IN_PROGRESS), "what comes too early is not remembered");
}

/// The last rank comes late to everything. `how` it waits is its affair: it may be stopped meanwhile.
fn life_of_a_rank(me: &Place, times: &Times, how: &dyn Fn(&str)) {
    let api = Api::load();
    api.cuda.use_device(me.rank).expect("a device");
    let place = (me.nranks, me.rank);
    let late = me.rank + 1 == me.nranks;
    let wait_if_late = |what: &str| {
        if late {
            how(what)
        }
    };
    let empty = Member::new(Comm::NULL, place);
    empty.fill();
    for round in 0..ROUNDS {
        let id = api.meet(me, &format!("id {round}"));
        wait_if_late(&format!("init {round}"));
        let comm = times.of("ncclCommInitRankConfig", || api.begin(place, id));
        let member = empty.with(comm);
        if me.rank == 0 {
            too_early(times, &member, false);
        }
        assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
        wait_if_late(&format!("call {round}"));
        member.fill();
        // Several, of which only the first is checked: they pile up behind the late rank.
        let first = times.of("ncclAllReduce", || member.begin_call());
        assert!(matches!(code(first), SUCCESS | IN_PROGRESS), "{}", api.nccl.last_error());
        assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
        let end = times.of("ncclCommFinalize", || api.nccl.finalize(comm));
        assert_eq!(code(end), IN_PROGRESS);
        if !late && me.rank == 0 && api.nccl.async_error(comm) == Ok(IN_PROGRESS) {
            // The work cannot end before the last rank comes.
            times.of("ncclCommGetAsyncError", || api.nccl.async_error(comm)).expect("a live handle");
        }
        assert_eq!(api.nccl.settle(comm), SUCCESS);
        member.check();
        times.of("ncclCommDestroy:final", || api.nccl.destroy(comm)).expect("destroy");
    }
    empty.free();
}

fn limit(name: &str) -> Duration {
    if name.ends_with(":final") { FINAL } else { AT_ONCE }
}

/// A rank that is late to each call by seconds.
#[test]
fn late_peers() {
    if let Some(me) = launch::child() {
        let times = Times::default();
        life_of_a_rank(&me, &times, &|_| thread::sleep(LATE));
        return times.print();
    }
    let outcome = Job::this_test("nonblocking::late_peers", 3).allow_any_warning().run();
    outcome.assert_ok();
    times::report(&times::collect(&outcome), limit);
}

/// Stops a rank for a while whenever it asks for it by a file.
fn stop_on_demand(job: &Running, rank: usize) {
    let deadline = Instant::now() + launch::DEADLINE;
    let requests = (0..ROUNDS).flat_map(|round| ["init", "call"].map(|what| format!("stop at {what} {round}")));
    for request in requests {
        let request = job.dir().join(request);
        while !request.exists() {
            if Instant::now() > deadline {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        job.signal(rank, Signal::STOP);
        thread::sleep(LATE);
        job.signal(rank, Signal::CONT);
        fs::write(request.with_extension("over"), b"").expect("the job's folder can be written");
    }
}

/// A rank that is stopped, as a debugger or a full machine would do it, while the others call.
#[test]
fn stopped_peers() {
    if let Some(me) = launch::child() {
        let times = Times::default();
        life_of_a_rank(&me, &times, &|what| {
            me.publish(&format!("stop at {what}"), b"");
            me.await_published(&format!("stop at {what}.over"));
        });
        return times.print();
    }
    let job = Job::this_test("nonblocking::stopped_peers", 3).allow_any_warning().start();
    stop_on_demand(&job, 2);
    let outcome = job.wait();
    outcome.assert_ok();
    times::report(&times::collect(&outcome), limit);
}

/// A group that begins several communicators, and one that finalizes them; each is polled. An error of a call in a
/// group becomes the state of the communicators of the group.
#[test]
fn groups_are_polled() {
    if let Some(me) = launch::child() {
        let (api, times) = (Api::load(), Times::default());
        api.cuda.use_device(me.rank).expect("a device");
        let place = (me.nranks, me.rank);
        let ids = [0, 1].map(|k| api.meet(&me, &format!("id {k}")));
        if me.rank == 1 {
            thread::sleep(LATE);
        }
        let mut comms = [Comm::NULL; 2];
        api.nccl.group_start().expect("group");
        for (comm, id) in comms.iter_mut().zip(ids) {
            let code = times.of("ncclCommInitRankConfig", || api.begin_at(comm, place, id));
            assert!(matches!(code, SUCCESS | IN_PROGRESS), "{code}");
            assert_eq!(api.nccl.async_error(*comm), Ok(IN_PROGRESS), "valid at once");
        }
        assert_eq!(code(times.of("ncclGroupEnd", || api.nccl.group_end())), IN_PROGRESS);
        let members = comms.map(|comm| Member::new(comm, place));
        if me.rank == 0 {
            members.iter().for_each(|member| too_early(&times, member, false));
        }
        members.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
        // All at once, and once more with one of them late.
        for late in [false, true] {
            members.iter().for_each(Member::fill);
            if late && me.rank == 1 {
                thread::sleep(LATE);
            }
            api.nccl.group_start().expect("group");
            members.iter().for_each(|member| assert!(matches!(code(member.begin_call()), SUCCESS | IN_PROGRESS)));
            assert!(matches!(code(times.of("ncclGroupEnd", || api.nccl.group_end())), SUCCESS | IN_PROGRESS));
            members.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
            members.iter().for_each(Member::check);
        }
        api.nccl.group_start().expect("group");
        members
            .iter()
            .for_each(|member| assert!(matches!(code(api.nccl.finalize(member.comm)), SUCCESS | IN_PROGRESS)));
        assert_eq!(code(times.of("ncclGroupEnd", || api.nccl.group_end())), IN_PROGRESS);
        members.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
        members.into_iter().for_each(Member::end);
        return times.print();
    }
    let outcome = Job::this_test("nonblocking::groups_are_polled", 2).allow_any_warning().run();
    outcome.assert_ok();
    times::report(&times::collect(&outcome), limit);
}

/// What goes wrong in a group is the end of all communicators in it that are polled, and of no other.
#[test]
fn errors_in_groups() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let make = || Member::new(api.begin((1, 0), api.nccl.unique_id().expect("an id")), (1, 0));
        let polled: Vec<Member> = (0..3).map(|_| make()).collect();
        polled.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
        let blocking = Member::new(api.init((1, 0), api.nccl.unique_id().expect("an id")), (1, 0));
        let broken = blocking.with(Comm::NULL);
        for partner in [polled[0], blocking] {
            api.nccl.group_start().expect("group");
            assert!(matches!(code(partner.call()), SUCCESS | IN_PROGRESS));
            assert_eq!(code(broken.call()), INVALID_ARGUMENT, "no communicator");
            assert_eq!(code(api.nccl.group_end()), INVALID_ARGUMENT, "again");
            assert_eq!(code(api.nccl.group_start().and_then(|()| api.nccl.group_end())), SUCCESS, "a clean start");
        }
        assert_eq!(api.nccl.async_error(polled[0].comm), Ok(INVALID_ARGUMENT));
        assert_eq!(code(polled[0].call()), INVALID_ARGUMENT, "for good");
        assert_eq!(code(api.nccl.destroy(polled[0].comm)), INVALID_ARGUMENT, "only an abort ends it");
        abort(api, polled[0].comm);
        polled[0].free();
        // A finalize and a wrong call: nothing is carried out.
        api.nccl.group_start().expect("group");
        assert!(matches!(code(api.nccl.finalize(polled[1].comm)), SUCCESS | IN_PROGRESS));
        assert_eq!(code(broken.call()), INVALID_ARGUMENT);
        assert_eq!(code(api.nccl.group_end()), INVALID_ARGUMENT);
        assert_eq!(api.nccl.async_error(polled[1].comm), Ok(INVALID_ARGUMENT));
        abort(api, polled[1].comm);
        polled[1].free();
        [polled[2], blocking].iter().for_each(Member::sum);
        [polled[2], blocking].into_iter().for_each(Member::end);
        return;
    }
    Job::this_test("nonblocking::errors_in_groups", 1).allow_any_warning().run().assert_ok();
}

/// A group that ends a communicator waits for all of it, whatever they are.
#[test]
fn groups_that_end_are_final() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let place = (me.nranks, me.rank);
        for round in 0..if need::long() { 50 } else { 5 } {
            let make = |what: &str| Member::new(api.begin(place, api.meet(&me, &format!("{what} {round}"))), place);
            let members = ["a", "b", "c"].map(make);
            members.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
            members.iter().for_each(Member::fill);
            members.iter().for_each(|member| assert!(matches!(code(member.begin_call()), SUCCESS | IN_PROGRESS)));
            members.iter().for_each(|member| assert_eq!(api.nccl.settle(member.comm), SUCCESS));
            members.iter().for_each(Member::check);
            api.nccl.group_start().expect("group");
            assert!(matches!(code(api.nccl.finalize(members[0].comm)), SUCCESS | IN_PROGRESS));
            api.nccl.destroy(members[1].comm).expect("queued");
            api.nccl.abort(members[2].comm).expect("queued");
            api.nccl.group_end().expect("all of it is waited for");
            assert_eq!(api.nccl.async_error(members[0].comm), Ok(SUCCESS), "finalized, not under way");
            members[1..].iter().for_each(|member| {
                api.nccl.async_error(member.comm).expect_err("gone");
            });
            api.nccl.destroy(members[0].comm).expect("destroy");
            members.into_iter().for_each(Member::free);
        }
        return;
    }
    Job::this_test("nonblocking::groups_that_end_are_final", 2).allow_any_warning().run().assert_ok();
}
