//! Communicators that do not block: handles are valid at once, and `ncclCommGetAsyncError` has the result.

use std::time::{Duration, Instant};

use crate::bind::Api;
use crate::common::abi::{Config, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS};
use crate::common::launch::{self, Job};
use crate::common::nccl::{Comm, UniqueId};
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::Resources;
use crate::data::{Case, Member, seeded_rng};

fn begin(api: &Api, (nranks, rank): (usize, usize), id: UniqueId) -> Comm {
    let mut comm = Comm::NULL;
    assert_eq!(api.init_config(&mut comm, (nranks, rank), id, Some(&Config::nonblocking())), IN_PROGRESS);
    assert_ne!(comm, Comm::NULL, "the handle is valid at once");
    comm
}

#[test]
fn a_handle_is_valid_at_once_and_ready_later() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let id = api.meet(&me, "id");
        if me.rank == 1 {
            me.await_published("go");
        }
        let comm = begin(&api, (me.nranks, me.rank), id);
        if me.rank == 0 {
            // The other rank is not there: this one cannot be ready.
            assert_eq!(api.nccl.async_error(comm), Ok(IN_PROGRESS));
            assert_eq!(api.nccl.count(comm).expect_err("too early").code, INVALID_ARGUMENT);
            assert_eq!(api.nccl.destroy(comm).expect_err("too early").code, INVALID_ARGUMENT);
            me.publish("go", b"");
        }
        assert_eq!(api.nccl.settle(comm), SUCCESS);
        let member = Member::new(&api, comm, me.rank, me.nranks);
        member.run(&Case::of_all(&mut seeded_rng("polled"), 1)[..10]);
        let code = api.nccl.finalize(comm).map_or_else(|failure| failure.code, |()| SUCCESS);
        assert_eq!(code, IN_PROGRESS);
        assert_eq!(api.nccl.settle(comm), SUCCESS);
        assert_eq!(api.nccl.finalize(comm).expect_err("the second one").code, INVALID_ARGUMENT);
        return member.end();
    }
    let job = Job::this_test("nonblocking::a_handle_is_valid_at_once_and_ready_later", 2);
    job.allow_any_warning().run().assert_ok();
}

/// NCCL_COMM_BLOCKING beats the configuration, but ncclCommInitRank blocks whatever it says.
#[test]
fn the_variable_decides() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let mut comm = Comm::NULL;
        let code = api.init_config(&mut comm, (1, 0), api.nccl.unique_id().expect("an id"), None);
        assert_eq!(code, IN_PROGRESS);
        assert_eq!(api.nccl.settle(comm), SUCCESS);
        api.nccl.destroy(comm).expect("destroy");
        let comm = api.init(1, api.nccl.unique_id().expect("an id"), 0);
        assert_eq!(api.nccl.async_error(comm), Ok(SUCCESS));
        return api.nccl.destroy(comm).expect("destroy");
    }
    Job::this_test("nonblocking::the_variable_decides", 1).env("NCCL_COMM_BLOCKING", "0").run().assert_ok();
}

/// A creation that waits in vain is aborted; nothing is left of it, its thread neither.
#[test]
fn a_creation_can_be_aborted() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let once = |id| {
            let comm = begin(&api, (2, 0), id);
            std::thread::sleep(Duration::from_millis(20));
            let start = Instant::now();
            api.nccl.abort(comm).expect("abort");
            assert!(start.elapsed() < Duration::from_secs(5), "an abort took {:?}", start.elapsed());
            assert_eq!(api.nccl.async_error(comm).expect_err("gone").code, INVALID_ARGUMENT);
        };
        let id = api.nccl.unique_id().expect("an id");
        once(id);
        let before = Resources::now();
        (0..5).for_each(|_| once(id));
        before.assert_same();
        return;
    }
    Job::this_test("nonblocking::a_creation_can_be_aborted", 1).allow_any_warning().run().assert_ok();
}

/// A creation that fails leaves a handle that tells the error, and that only an abort frees.
#[test]
fn a_failed_creation_is_polled_and_aborted() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        // Both on one device, which is refused.
        api.cuda.use_device(0).expect("a device");
        let comm = begin(&api, (me.nranks, me.rank), api.meet(&me, "id"));
        let state = api.nccl.settle(comm);
        // Its own finding, or that of the other rank.
        assert!(matches!(state, INVALID_USAGE | REMOTE_ERROR), "{state}");
        assert_eq!(api.nccl.count(comm).expect_err("failed").code, state);
        assert_eq!(api.nccl.destroy(comm).expect_err("failed").code, state);
        assert_eq!(api.nccl.async_error(comm), Ok(state), "nothing was freed");
        return api.nccl.abort(comm).expect("abort");
    }
    Job::this_test("nonblocking::a_failed_creation_is_polled_and_aborted", 2).allow_any_warning().run().assert_ok();
}

/// The creations of a group go on in the background, and its end says so.
#[test]
fn a_group_of_creations_is_polled() {
    if launch::child().is_some() {
        let (api, n) = (Api::load(), 3);
        let id = api.nccl.unique_id().expect("an id");
        let mut comms = vec![Comm::NULL; n];
        api.nccl.group_start().expect("group");
        for (rank, comm) in comms.iter_mut().enumerate() {
            api.cuda.use_device(rank).expect("a device");
            api.init_config(comm, (n, rank), id, Some(&Config::nonblocking()));
            assert_eq!(api.nccl.async_error(*comm), Ok(IN_PROGRESS), "valid at once");
        }
        assert_eq!(api.nccl.group_end().expect_err("not done").code, IN_PROGRESS);
        comms.iter().for_each(|comm| assert_eq!(api.nccl.settle(*comm), SUCCESS));
        api.nccl.group_start().expect("group");
        comms.iter().for_each(|comm| api.nccl.destroy(*comm).expect("queued"));
        return api.nccl.group_end().expect("destroying is waited for");
    }
    Job::this_test("nonblocking::a_group_of_creations_is_polled", 1).run().assert_ok();
}

/// Blocking and non-blocking creations do not go together; the one that is polled tells it.
#[test]
fn a_mixed_group_is_refused() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let id = api.nccl.unique_id().expect("an id");
        let (mut polled, mut blocking) = (Comm::NULL, Comm::NULL);
        api.nccl.group_start().expect("group");
        api.init_config(&mut polled, (2, 0), id, Some(&Config::nonblocking()));
        // SAFETY: the handle outlives the group.
        unsafe { api.nccl.init_rank(&mut blocking, 2, id, 1) }.expect("queued");
        let end = api.nccl.group_end().expect_err("mixed");
        assert_eq!(end.code, INVALID_ARGUMENT);
        assert!(end.text.contains("not allowed in the same group"), "{end}");
        assert_eq!((api.nccl.settle(polled), blocking), (INVALID_ARGUMENT, Comm::NULL));
        return api.nccl.abort(polled).expect("abort");
    }
    Job::this_test("nonblocking::a_mixed_group_is_refused", 1).allow_any_warning().run().assert_ok();
}

/// A call with a wrong argument is the end of a non-blocking communicator, and of no blocking one.
#[test]
fn a_failing_call_is_remembered_where_it_is_polled() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let polled = begin(&api, (1, 0), api.nccl.unique_id().expect("an id"));
        assert_eq!(api.nccl.settle(polled), SUCCESS);
        let blocking = api.init(1, api.nccl.unique_id().expect("an id"), 0);
        for (comm, state) in [(polled, INVALID_ARGUMENT), (blocking, SUCCESS)] {
            // SAFETY: NULL buffers are refused.
            let call =
                unsafe { api.nccl.all_reduce((0, 0), 5, (DataType::Int8, RedOp::Sum), comm, std::ptr::null_mut()) };
            assert_eq!(call.expect_err("no buffers").code, INVALID_ARGUMENT);
            assert_eq!(api.nccl.async_error(comm), Ok(state));
        }
        api.nccl.abort(polled).expect("abort");
        return api.nccl.destroy(blocking).expect("destroy");
    }
    Job::this_test("nonblocking::a_failing_call_is_remembered_where_it_is_polled", 1)
        .allow_any_warning()
        .run()
        .assert_ok();
}
