//! Revoke: calls in progress end, new ones are refused, and communicators can still be derived from it.

use std::time::{Duration, Instant};

use crate::api::{Api, Bench};
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE, SUCCESS};
use crate::common::launch::{self, Job};
use crate::common::nccl::Comm;
use crate::common::resources::Resources;

/// How long a revoke may take, on a machine that is busy.
const PROMPT: Duration = Duration::from_secs(6);

/// All ranks wait for one that does not come; all revoke, and go on with children: by a split, and without the one.
#[test]
fn what_waits_leaves_and_children_work() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let all: Vec<usize> = (0..me.nranks).collect();
        let bench = Bench::new(&api);
        let waits = me.rank != 1;
        if waits {
            bench.begin(&api, comm, me.rank).expect("a call");
            std::thread::sleep(Duration::from_millis(100));
        }
        let start = Instant::now();
        assert_eq!(api.comms.revoke(comm, 1), INVALID_ARGUMENT);
        assert_eq!(api.comms.revoke(comm, 0), SUCCESS, "{}", api.nccl.last_error());
        assert!(start.elapsed() < PROMPT, "a revoke took {:?}", start.elapsed());
        api.cuda.wait(bench.stream).expect("the kernel has left");
        assert_eq!(api.comms.revoke(comm, 0), INVALID_ARGUMENT);
        assert_eq!(bench.begin(&api, comm, me.rank), Err(INVALID_USAGE));
        assert_eq!(api.nccl.finalize(comm).expect_err("revoked").code, INVALID_ARGUMENT);
        assert_eq!(api.nccl.async_error(comm), Ok(SUCCESS));
        assert_eq!(api.nccl.count(comm), Ok(me.nranks as i32));
        let child = api.split(comm, 0, -(me.rank as i32));
        api.check(child, &all.iter().rev().copied().collect::<Vec<_>>(), me.rank);
        if waits {
            let smaller = api.shrink(comm, &[1], 0);
            let rest: Vec<usize> = all.iter().copied().filter(|rank| *rank != 1).collect();
            api.check(smaller, &rest, me.rank);
            api.destroy(smaller);
        }
        // A child can be revoked, too, and either goes first.
        assert_eq!(api.comms.revoke(child, 0), SUCCESS);
        let (first, second) = if me.rank % 2 == 0 { (comm, child) } else { (child, comm) };
        api.destroy(first);
        return if waits { api.destroy(second) } else { api.nccl.abort(second).expect("abort") };
    }
    Job::this_test("revokes::what_waits_leaves_and_children_work", 4).allow_any_warning().run().assert_ok();
}

/// Nothing runs, or a call is only just over; then a group that revokes two; nothing is left.
#[test]
fn in_quiet_times() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let round = |number: usize| {
            let comms = [0, 1].map(|which| api.init(&me, &format!("id{number}.{which}"), None));
            comms.iter().for_each(|comm| api.check(*comm, &[0, 1], me.rank));
            api.nccl.group_start().expect("group");
            comms.iter().for_each(|comm| assert_eq!(api.comms.revoke(*comm, 0), SUCCESS));
            api.nccl.group_end().expect("quiet");
            comms.into_iter().for_each(|comm| api.destroy(comm));
        };
        round(0);
        me.barrier("warm");
        let before = Resources::now();
        (1..4).for_each(round);
        me.barrier("done");
        before.assert_same();
        assert_eq!(api.comms.revoke(Comm::NULL, 77), SUCCESS);
        let comm = api.init(&me, "last", None);
        api.nccl.finalize(comm).expect("finalize");
        assert_eq!(api.comms.revoke(comm, 0), INVALID_ARGUMENT, "after finalize");
        return api.destroy(comm);
    }
    Job::this_test("revokes::in_quiet_times", 2).allow_any_warning().run().assert_ok();
}
