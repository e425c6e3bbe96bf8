//! Grow, and several ids for one communicator (`ncclCommInitRankScalable`).

use std::time::Duration;

use crate::api::{Api, without_magic, without_size};
use crate::common::abi::{Config, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::{Comm, UniqueId};
use crate::common::resources::Resources;

fn publish(me: &Place, name: &str, id: UniqueId) {
    me.publish(name, &id.0);
}

fn published(me: &Place, name: &str) -> UniqueId {
    UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"))
}

/// Some ranks begin, others join, in steps. The id comes from any rank that exists, and is passed by it or not.
#[test]
fn in_steps() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let sizes: Vec<usize> =
            std::env::var("OXCCL_TEST_SIZES").expect("sizes").split(',').map(|n| n.parse().expect("n")).collect();
        let mut comm = Comm::NULL;
        if me.rank < sizes[0] {
            if me.rank == 0 {
                publish(&me, "first", api.nccl.unique_id().expect("an id"));
            }
            comm = api.init_with(published(&me, "first"), (sizes[0], me.rank), None);
        }
        for (step, pair) in sizes.windows(2).enumerate() {
            let (old, new, name) = (pair[0], pair[1], format!("id{step}"));
            let coordinator = (old - 1) * (step % 2);
            let all: Vec<usize> = (0..new).collect();
            if me.rank < old {
                let made = (me.rank == coordinator).then(|| api.comms.unique_id(comm).expect("an id"));
                made.iter().for_each(|id| publish(&me, &name, *id));
                // The one who has made it may pass it, and so may somebody else.
                let id = match step % 3 {
                    0 => None,
                    1 => made,
                    _ => (me.rank == 0).then(|| published(&me, &name)),
                };
                let child = api.grow(comm, (new, -1), id.as_ref());
                api.check(child, &all, me.rank);
                api.check(comm, &all[..old], me.rank);
                api.destroy(std::mem::replace(&mut comm, child));
            } else if me.rank < new {
                comm = api.grow(Comm::NULL, (new, me.rank as i32), Some(&published(&me, &name)));
                api.check(comm, &all, me.rank);
            }
        }
        return api.destroy(comm);
    }
    for sizes in ["2,4", "1,3", "1,2,3,4", "2,3,6", "3,4,8"] {
        let n = sizes.split(',').next_back().and_then(|n| n.parse().ok()).expect("a number");
        Job::this_test("grows::in_steps", n).env("OXCCL_TEST_SIZES", sizes).run().assert_ok();
    }
}

/// The same parent grows several times; in between, ids become stale and are refused, or are missing.
#[test]
fn ids_are_for_one_grow() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let (old, all) = (2, [0, 1, 2, 3]);
        let joins = me.rank >= old;
        if me.rank == 0 {
            publish(&me, "first", api.nccl.unique_id().expect("an id"));
        }
        let comm = if joins { Comm::NULL } else { api.init_with(published(&me, "first"), (old, me.rank), None) };
        let rank = if joins { me.rank as i32 } else { -1 };
        let once = |name: &str| {
            if me.rank == 1 {
                publish(&me, name, api.comms.unique_id(comm).expect("an id"));
            }
            let id = published(&me, name);
            let child = api.grow(comm, (4, rank), joins.then_some(&id));
            api.check(child, &all, me.rank);
            api.destroy(child);
            me.barrier(&format!("{name} done"));
        };
        once("one");
        let before = Resources::now();
        once("two");
        before.assert_same();
        if !joins {
            let refused = |id: Option<&UniqueId>, code: i32, text: &str| {
                let (answer, child) = api.try_grow(comm, (4, -1), id, None);
                let told = api.nccl.last_error();
                assert_eq!((answer, child), (code, Comm::NULL), "{told}");
                assert!(told.contains(text), "{told}");
            };
            refused(None, INVALID_USAGE, "ncclCommGetUniqueId");
            let used = published(&me, "two");
            refused((me.rank == 0).then_some(&used), INVALID_ARGUMENT, "magic mismatch");
            let stale = (me.rank == 0).then(|| api.comms.unique_id(comm).expect("an id"));
            let child = api.split(comm, 0, 0);
            api.destroy(child);
            refused(stale.as_ref(), INVALID_ARGUMENT, "magic mismatch");
            // Of no communicator, and of the two ranks.
            let other = api.nccl.unique_id().expect("an id");
            refused((me.rank == 1).then_some(&other), INVALID_ARGUMENT, "magic mismatch");
            api.destroy(api.init_with(other, (1, 0), None));
            let two = api.comms.unique_id(comm).expect("an id");
            refused(Some(&two), INVALID_USAGE, "different ids");
            if me.rank == 0 {
                assert_eq!(api.try_grow(comm, (4, -1), None, None).0, INVALID_USAGE);
            } else {
                assert_eq!(api.try_grow(comm, (5, -1), None, None).0, INVALID_USAGE);
            }
            assert!(api.nccl.last_error().contains("wants"), "{}", api.nccl.last_error());
            // What a rank alone can see is told to the other one.
            let alone = if me.rank == 1 {
                api.try_grow(comm, (2, -1), None, None).0
            } else {
                api.try_grow(comm, (4, -1), None, None).0
            };
            assert_eq!(alone, if me.rank == 1 { INVALID_ARGUMENT } else { REMOTE_ERROR });
        }
        me.barrier("refused");
        before.assert_same();
        once("three");
        if !joins {
            api.destroy(comm);
        }
        return;
    }
    Job::this_test("grows::ids_are_for_one_grow", 4).allow_any_warning().run().assert_ok();
}

/// What is refused at the call, on the rank that makes it.
#[test]
fn wrong_arguments() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let comm = api.init_with(api.nccl.unique_id().expect("an id"), (1, 0), None);
        let id = api.comms.unique_id(comm).expect("an id");
        let ordinary = api.nccl.unique_id().expect("an id");
        type Grow<'a> = (Comm, (usize, i32), Option<&'a UniqueId>, Option<&'a Config>);
        let cases: [Grow<'_>; 11] = [
            (comm, (0, -1), None, None),
            (comm, (1, -1), Some(&id), None),
            (comm, (2, 0), Some(&id), None),
            (comm, (2, 1), Some(&id), None),
            (comm, (2, -1), Some(&id), Some(&without_magic())),
            (comm, (2, -1), Some(&id), Some(&without_size())),
            (Comm::NULL, (2, 1), Some(&id), Some(&without_size())),
            (Comm::NULL, (2, -1), Some(&id), None),
            (Comm::NULL, (2, 2), Some(&id), None),
            (Comm::NULL, (2, 1), None, None),
            (Comm::NULL, (2, 1), Some(&ordinary), None),
        ];
        for (parent, place, id, config) in cases {
            let (code, child) = api.try_grow(parent, place, id, config);
            assert_eq!((code, child), (INVALID_ARGUMENT, Comm::NULL), "{place:?}: {}", api.nccl.last_error());
        }
        // SAFETY: a NULL handle is refused.
        let code = unsafe { api.comms.grow(comm, (2, -1), Some(&id), std::ptr::null_mut(), None) };
        assert_eq!(code, INVALID_ARGUMENT);
        assert_eq!(api.comms.unique_id(Comm::NULL).err(), Some(INVALID_ARGUMENT));
        let refused = api.comms.init_scalable(&[ordinary], (1, 0), Some(&without_size()));
        assert_eq!(refused, (INVALID_ARGUMENT, Comm::NULL), "{}", api.nccl.last_error());
        api.destroy(api.init_with(ordinary, (1, 0), None));
        return api.destroy(comm);
    }
    Job::this_test("grows::wrong_arguments", 1).allow_any_warning().run().assert_ok();
}

/// An id of a grow that is never called keeps nothing alive beyond its communicator.
#[test]
fn an_unused_id_ends_with_its_communicator() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let once = || {
            let comm = api.init_with(api.nccl.unique_id().expect("an id"), (1, 0), None);
            for _ in 0..5 {
                api.comms.unique_id(comm).expect("an id");
            }
            api.destroy(comm);
        };
        once();
        let before = Resources::now();
        (0..3).for_each(|_| once());
        return before.assert_same();
    }
    Job::this_test("grows::an_unused_id_ends_with_its_communicator", 1).run().assert_ok();
}

/// New ranks come much later than the old ones.
#[test]
fn new_ranks_may_come_late() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        if me.rank == 0 {
            let comm = api.init_with(api.nccl.unique_id().expect("an id"), (1, 0), None);
            publish(&me, "id", api.comms.unique_id(comm).expect("an id"));
            let child = api.grow(comm, (2, -1), None);
            api.check(child, &[0, 1], 0);
            api.destroy(comm);
            return api.destroy(child);
        }
        let id = published(&me, "id");
        std::thread::sleep(Duration::from_millis(700));
        let child = api.grow(Comm::NULL, (2, 1), Some(&id));
        api.check(child, &[0, 1], 1);
        return api.destroy(child);
    }
    Job::this_test("grows::new_ranks_may_come_late", 2).run().assert_ok();
}

/// Several ids, made by several processes: they make one communicator, and no root of them stays.
#[test]
fn several_ids() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let all: Vec<usize> = (0..me.nranks).collect();
        let once = |round: usize, count: usize| {
            let name = |at: usize| format!("id{round}.{at}");
            if me.rank < count {
                publish(&me, &name(me.rank), api.nccl.unique_id().expect("an id"));
            }
            let ids: Vec<UniqueId> = (0..count).map(|at| published(&me, &name(at))).collect();
            let comm = api.init_scalable(&ids, (me.nranks, me.rank));
            api.check(comm, &all, me.rank);
            api.destroy(comm);
        };
        once(0, 1);
        me.barrier("warm");
        let before = Resources::now();
        (1..=me.nranks).for_each(|count| once(count, count));
        me.barrier("done");
        return before.assert_same();
    }
    Job::this_test("grows::several_ids", 4).run().assert_ok();
}
