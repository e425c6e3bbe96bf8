//! Children that share their parent's resources, and what a child inherits.

use crate::api::{Api, Bench, nonblocking, sharing, with_net};
use crate::common::abi::{Config, IN_PROGRESS, INVALID_USAGE, SUCCESS};
use crate::common::launch::{self, Job};
use crate::common::nccl::Comm;
use crate::common::resources::Resources;

/// Four that share resources: parent, two children, a grandchild. Destroyed in every order, all others work.
#[test]
fn destroyed_in_every_order() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let all: Vec<usize> = (0..me.nranks).collect();
        let config = sharing();
        let round = |number: usize| {
            let parent = api.init(&me, &format!("id{number}"), Some(&config));
            let child = api.split(parent, 0, 0);
            let mut comms = vec![parent, child, api.split(parent, 0, 0), api.split(child, 0, 0)];
            let mut order = number;
            while !comms.is_empty() {
                comms.iter().for_each(|comm| api.check(*comm, &all, me.rank));
                api.destroy(comms.remove(order % comms.len()));
                order /= comms.len().max(1) + 1;
            }
        };
        round(0);
        me.barrier("warm");
        let before = Resources::now();
        // Every third order: 24 in all.
        (1..24).step_by(3).for_each(round);
        me.barrier("done");
        return before.assert_same();
    }
    Job::this_test("shares::destroyed_in_every_order", 2).run().assert_ok();
}

/// An abort of one stops all that share; the others can only be aborted, too. Without sharing it stops nobody else.
#[test]
fn an_abort_stops_all_that_share() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let all: Vec<usize> = (0..me.nranks).collect();
        for (number, shared) in [true, true, false].into_iter().enumerate() {
            let config = if shared { sharing() } else { Config::default() };
            let parent = api.init(&me, &format!("id{number}"), Some(&config));
            let child = api.split(parent, 0, 0);
            let (first, second) = if number == 0 { (parent, child) } else { (child, parent) };
            if !shared {
                api.nccl.abort(first).expect("abort");
                api.check(second, &all, me.rank);
                api.destroy(second);
                continue;
            }
            // The second one waits for the other rank, which does not come.
            let bench = Bench::new(&api);
            if me.rank == 0 {
                bench.begin(&api, second, 0).expect("a call");
            }
            me.barrier(&format!("called{number}"));
            api.nccl.abort(first).expect("abort");
            api.cuda.wait(bench.stream).expect("the kernel has left");
            assert_eq!(bench.begin(&api, second, me.rank), Err(INVALID_USAGE));
            assert_eq!(api.nccl.destroy(second).expect_err("it was stopped").code, INVALID_USAGE);
            api.nccl.abort(second).expect("abort");
        }
        return;
    }
    Job::this_test("shares::an_abort_stops_all_that_share", 2).allow_any_warning().run().assert_ok();
}

/// Another network than the parent's is refused where resources are shared, and only there: elsewhere it is looked for.
#[test]
fn another_network_is_refused() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let socket = with_net(Config::default(), c"Socket");
        for (number, shared) in [true, false].into_iter().enumerate() {
            let config = if shared { with_net(sharing(), c"Socket") } else { with_net(Config::default(), c"Socket") };
            let parent = api.init(&me, &format!("id{number}"), Some(&config));
            let (code, child) = api.try_split(parent, 0, 0, Some(&with_net(Config::default(), c"other")));
            let why =
                if shared { "differs from 'Socket' of the parent" } else { "Failed to initialize any NET plugin" };
            assert_eq!((code, child), (INVALID_USAGE, Comm::NULL), "{}", api.nccl.last_error());
            assert!(api.nccl.last_error().contains(why), "{}", api.nccl.last_error());
            let (code, child) = api.try_split(parent, 0, 0, Some(&socket));
            assert_eq!(code, SUCCESS);
            api.destroy(child);
            // Sharing is off for a parent that was revoked.
            assert_eq!(api.comms.revoke(parent, 0), SUCCESS);
            let (code, _) = api.try_split(parent, 0, 0, Some(&with_net(Config::default(), c"other")));
            assert_eq!(code, INVALID_USAGE);
            assert!(api.nccl.last_error().contains("Failed to initialize any NET"), "{}", api.nccl.last_error());
            api.destroy(parent);
        }
        return;
    }
    Job::this_test("shares::another_network_is_refused", 2).allow_any_warning().run().assert_ok();
}

/// NULL stands for the parent's configuration, a configuration for itself.
#[test]
fn configurations_are_inherited() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let parent = api.init(&me, "id", None);
        let (code, polled) = api.try_split(parent, 0, 0, Some(&nonblocking()));
        assert_eq!(code, SUCCESS);
        assert_eq!(api.nccl.async_error(polled), Ok(SUCCESS), "the parent is one that blocks");
        // The parent of this one is polled.
        let mut child = Comm::NULL;
        // SAFETY: the handle lives until the split is over.
        let code = unsafe { api.comms.split(polled, 0, 0, &mut child, None) };
        assert!(matches!(code, SUCCESS | IN_PROGRESS));
        assert_eq!(api.nccl.settle(polled), SUCCESS);
        let blocks = |comm: Comm| api.nccl.finalize(comm).map_or_else(|failure| failure.code, |()| SUCCESS) == SUCCESS;
        assert!(!blocks(child) && blocks(parent));
        assert_eq!(api.nccl.settle(child), SUCCESS);
        return [child, polled, parent].into_iter().for_each(|comm| api.destroy(comm));
    }
    Job::this_test("shares::configurations_are_inherited", 2).allow_any_warning().run().assert_ok();
}
