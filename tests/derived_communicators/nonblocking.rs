//! All of it without blocking: what the calls return, which handle is polled, and when the new handle
//! is there.

use std::time::{Duration, Instant};

use crate::api::{Api, Bench, LIMIT, nonblocking, without_magic};
use crate::common::abi::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SHRINK_ABORT, SUCCESS};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::{Comm, UniqueId};
use crate::common::resources::Resources;

/// How long a call that waits for nobody may take, on a machine that is busy.
const PROMPT: Duration = Duration::from_secs(5);

fn parent(api: &Api, me: &Place, name: &str) -> Comm {
    api.init(me, name, Some(&nonblocking()))
}

/// Waits until a handle has been written, though its communicator is not known yet.
fn settle_child(api: &Api, parent: Comm, child: &Comm) {
    assert_eq!(api.nccl.settle(parent), SUCCESS, "{}", api.nccl.last_error());
    // SAFETY: the library writes it before it says that it is done.
    let child = unsafe { std::ptr::read_volatile(child) };
    assert_ne!(child, Comm::NULL);
    assert_eq!(api.nccl.async_error(child), Ok(SUCCESS));
}

#[test]
fn a_split_is_polled_at_its_parent() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = parent(&api, &me, "id");
        let all: Vec<usize> = (0..me.nranks).collect();
        for round in 0..6 {
            if me.rank == 1 {
                me.await_published(&format!("go{round}"));
            }
            let mut child = Comm::NULL;
            let start = Instant::now();
            // SAFETY: the handle lives until the split is over.
            let code = unsafe { api.queue_split(comm, 0, 0, &mut child) };
            assert!(
                start.elapsed() < PROMPT && matches!(code, SUCCESS | IN_PROGRESS),
                "{code} after {:?}",
                start.elapsed()
            );
            if me.rank == 0 {
                // The other rank is not there yet.
                std::thread::sleep(Duration::from_millis(30));
                assert_eq!((api.nccl.async_error(comm), child), (Ok(IN_PROGRESS), Comm::NULL));
                assert_eq!(api.nccl.count(comm).expect_err("busy").code, INVALID_ARGUMENT);
                me.publish(&format!("go{round}"), b"");
            }
            settle_child(&api, comm, &child);
            api.check(child, &all, me.rank);
            api.destroy(child);
        }
        // Without a colour there is no handle.
        let (code, child) = api.try_split(comm, -1, 0, None);
        assert!(matches!(code, SUCCESS | IN_PROGRESS));
        assert_eq!((api.nccl.settle(comm), child), (SUCCESS, Comm::NULL));
        api.check(comm, &all, me.rank);
        return api.destroy(comm);
    }
    Job::this_test("nonblocking::a_split_is_polled_at_its_parent", 2).allow_any_warning().run().assert_ok();
}

#[test]
fn a_group_of_splits_is_polled_at_the_parents() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comms = ["first", "second"].map(|name| parent(&api, &me, name));
        let all: Vec<usize> = (0..me.nranks).collect();
        let mut children = [Comm::NULL; 4];
        api.nccl.group_start().expect("group");
        for (at, child) in children.iter_mut().enumerate() {
            // SAFETY: the list stays where it is until all is over.
            assert_eq!(unsafe { api.queue_split(comms[at % 2], 0, -(me.rank as i32), child) }, SUCCESS);
        }
        assert_eq!(api.nccl.group_end().expect_err("not done").code, IN_PROGRESS);
        comms.iter().for_each(|comm| assert_eq!(api.nccl.settle(*comm), SUCCESS));
        children.iter().for_each(|child| settle_child(&api, comms[0], child));
        let reversed: Vec<usize> = all.iter().rev().copied().collect();
        children.iter().for_each(|child| api.check(*child, &reversed, me.rank));
        return children.into_iter().chain(comms).for_each(|comm| api.destroy(comm));
    }
    Job::this_test("nonblocking::a_group_of_splits_is_polled_at_the_parents", 3).run().assert_ok();
}

/// The parent is aborted while the split waits for a rank that does not come: nothing is left.
#[test]
fn an_abort_ends_a_split() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let round = |number: usize| {
            let comm = parent(&api, &me, &format!("id{number}"));
            if me.rank == 1 {
                me.await_published(&format!("aborted{number}"));
                return api.nccl.abort(comm).expect("abort");
            }
            let mut child = Comm::NULL;
            // SAFETY: the handle lives until the abort is over.
            let code = unsafe { api.queue_split(comm, 0, 0, &mut child) };
            assert!(matches!(code, SUCCESS | IN_PROGRESS));
            std::thread::sleep(Duration::from_millis(10 * number as u64));
            let start = Instant::now();
            api.nccl.abort(comm).expect("abort");
            assert!(start.elapsed() < PROMPT, "an abort took {:?}", start.elapsed());
            assert_eq!(child, Comm::NULL);
            me.publish(&format!("aborted{number}"), b"");
        };
        round(0);
        me.barrier("warm");
        let before = Resources::now();
        (1..5).for_each(round);
        me.barrier("done");
        return before.assert_same();
    }
    Job::this_test("nonblocking::an_abort_ends_a_split", 2).allow_any_warning().run().assert_ok();
}

/// A rank that takes no part makes the parent of the others fail, which they see when they poll it.
#[test]
fn a_failed_split_is_seen_at_the_parent() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = parent(&api, &me, "id");
        if me.rank == 1 {
            let (code, _) = api.try_split(comm, 0, 0, Some(&without_magic()));
            assert_eq!(code, INVALID_ARGUMENT);
        } else {
            let mut child = Comm::NULL;
            // SAFETY: the handle lives until the split is over.
            let code = unsafe { api.queue_split(comm, 0, 0, &mut child) };
            assert!(matches!(code, SUCCESS | IN_PROGRESS | REMOTE_ERROR));
            assert_eq!((api.nccl.settle(comm), child), (REMOTE_ERROR, Comm::NULL));
            assert!(api.nccl.last_error().contains("rank 1 takes no part"), "{}", api.nccl.last_error());
            assert_eq!(api.nccl.count(comm).expect_err("failed").code, REMOTE_ERROR);
        }
        return api.nccl.abort(comm).expect("abort");
    }
    Job::this_test("nonblocking::a_failed_split_is_seen_at_the_parent", 3).allow_any_warning().run().assert_ok();
}

/// Nothing of a group is done where part of it fails: the communicator of a call in it is in progress until that is
/// known, and fails too.
#[test]
fn a_failed_split_is_seen_at_a_call_of_its_group() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let [comm, called] = ["first", "second"].map(|name| parent(&api, &me, name));
        let bench = Bench::new(&api);
        if me.rank == 1 {
            me.await_published("called");
            let (code, _) = api.try_split(comm, 0, 0, Some(&without_magic()));
            assert_eq!(code, INVALID_ARGUMENT);
        } else {
            let mut child = Comm::NULL;
            api.nccl.group_start().expect("group");
            // SAFETY: the handle lives until the split is over.
            assert_eq!(unsafe { api.queue_split(comm, 0, 0, &mut child) }, SUCCESS);
            assert_eq!(bench.begin(&api, called, me.rank), Ok(()));
            assert_eq!(api.nccl.group_end().expect_err("not done").code, IN_PROGRESS);
            assert_eq!(api.nccl.async_error(called), Ok(IN_PROGRESS), "the split waits for rank 1");
            me.publish("called", b"");
            assert_eq!((api.nccl.settle(called), api.nccl.settle(comm)), (REMOTE_ERROR, REMOTE_ERROR));
            assert!(api.nccl.last_error().contains("rank 1 takes no part"), "{}", api.nccl.last_error());
        }
        return [comm, called].into_iter().for_each(|comm| api.nccl.abort(comm).expect("abort"));
    }
    Job::this_test("nonblocking::a_failed_split_is_seen_at_a_call_of_its_group", 2)
        .allow_any_warning()
        .run()
        .assert_ok();
}

#[test]
fn a_shrink_is_polled_at_its_parent() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = parent(&api, &me, "id");
        if me.rank == 2 {
            me.await_published("shrunk");
            return api.nccl.abort(comm).expect("abort");
        }
        let bench = Bench::new(&api);
        assert!(matches!(bench.begin(&api, comm, me.rank), Ok(()) | Err(IN_PROGRESS)));
        assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
        let (mut child, mut out) = (Comm::NULL, [2]);
        // SAFETY: the handle lives until the shrink is over.
        let code = unsafe { api.comms.shrink(comm, Ok(&mut out), &mut child, None, SHRINK_ABORT) };
        assert!(matches!(code, SUCCESS | IN_PROGRESS), "{}", api.nccl.last_error());
        settle_child(&api, comm, &child);
        api.check(child, &[0, 1], me.rank);
        me.publish("shrunk", b"");
        api.nccl.abort(comm).expect("abort");
        return api.destroy(child);
    }
    Job::this_test("nonblocking::a_shrink_is_polled_at_its_parent", 3).allow_any_warning().run().assert_ok();
}

/// The handle of a communicator that grows is valid at once, and is the one that is polled.
#[test]
fn a_grow_is_polled_at_the_new_communicator() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let config = nonblocking();
        let (comm, id, rank) = if me.rank < 2 {
            if me.rank == 0 {
                me.publish("id", &api.nccl.unique_id().expect("an id").0);
            }
            let id = UniqueId(me.await_published("id").try_into().expect("an id"));
            let comm = api.init_with(id, (2, me.rank), Some(&config));
            if me.rank == 1 {
                me.publish("grow", &api.comms.unique_id(comm).expect("an id").0);
            }
            (comm, None, -1)
        } else {
            let id = me.await_published("grow");
            std::thread::sleep(Duration::from_millis(100));
            (Comm::NULL, Some(UniqueId(id.try_into().expect("an id"))), 2)
        };
        let start = Instant::now();
        let (code, child) = api.try_grow(comm, (3, rank), id.as_ref(), Some(&config));
        assert!(start.elapsed() < PROMPT && code == SUCCESS, "{code}: {}", api.nccl.last_error());
        assert_ne!(child, Comm::NULL);
        assert_eq!(api.nccl.settle(child), SUCCESS);
        api.check(child, &[0, 1, 2], me.rank);
        if me.rank < 2 {
            api.check(comm, &[0, 1], me.rank);
            // New ranks never come: the abort of what waits for them does not hurt the parent.
            let id = (me.rank == 0).then(|| api.comms.unique_id(comm).expect("an id"));
            let (code, waits) = api.try_grow(comm, (4, -1), id.as_ref(), None);
            assert_eq!(code, SUCCESS);
            std::thread::sleep(Duration::from_millis(50));
            assert!(matches!(api.nccl.async_error(waits), Ok(IN_PROGRESS)));
            me.publish(&format!("waits{}", me.rank), b"");
            (0..2).for_each(|rank| drop(me.await_published(&format!("waits{rank}"))));
            let start = Instant::now();
            api.nccl.abort(waits).expect("abort");
            assert!(start.elapsed() < PROMPT, "an abort took {:?}", start.elapsed());
            api.check(comm, &[0, 1], me.rank);
            api.destroy(comm);
        }
        return api.destroy(child);
    }
    Job::this_test("nonblocking::a_grow_is_polled_at_the_new_communicator", 3).allow_any_warning().run().assert_ok();
}

#[test]
fn a_revoke_is_polled() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = parent(&api, &me, "id");
        let bench = Bench::new(&api);
        if me.rank == 0 {
            assert!(matches!(bench.begin(&api, comm, 0), Ok(()) | Err(IN_PROGRESS)));
            assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
        }
        me.barrier("called");
        let code = api.comms.revoke(comm, 0);
        assert!(matches!(code, SUCCESS | IN_PROGRESS));
        // Before the ready check.
        assert_eq!(bench.begin(&api, comm, me.rank), Err(INVALID_USAGE));
        let until = Instant::now() + LIMIT;
        while api.nccl.async_error(comm) == Ok(IN_PROGRESS) {
            assert!(Instant::now() < until, "still in progress");
            std::thread::sleep(Duration::from_millis(1));
        }
        api.cuda.wait(bench.stream).expect("the kernel has left");
        let mut child = Comm::NULL;
        // SAFETY: the handle lives until the split is over.
        let code = unsafe { api.queue_split(comm, 0, 0, &mut child) };
        assert!(matches!(code, SUCCESS | IN_PROGRESS), "{}", api.nccl.last_error());
        settle_child(&api, comm, &child);
        api.check(child, &[0, 1], me.rank);
        api.destroy(comm);
        return api.destroy(child);
    }
    Job::this_test("nonblocking::a_revoke_is_polled", 2).allow_any_warning().run().assert_ok();
}
