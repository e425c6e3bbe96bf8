//! Shrink: ranks that are left out need not call; with `NCCL_SHRINK_ABORT` calls of the parent end first.

use std::time::{Duration, Instant};

use crate::api::{Api, Bench, without_magic, without_size};
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SHRINK_ABORT, SUCCESS};
use crate::common::launch::{self, Job};
use crate::common::nccl::Comm;
use crate::common::resources::Resources;

/// What `OXCCL_TEST_EXCLUDED` says.
fn excluded() -> Vec<usize> {
    let text = std::env::var("OXCCL_TEST_EXCLUDED").expect("the ranks to leave out");
    text.split(',').map(|rank| rank.parse().expect("a rank")).collect()
}

fn job(test: &str, n: usize, excluded: &[usize]) -> Job {
    let list: Vec<String> = excluded.iter().map(usize::to_string).collect();
    Job::this_test(test, n).env("OXCCL_TEST_EXCLUDED", list.join(","))
}

fn rest(n: usize, excluded: &[usize]) -> Vec<usize> {
    (0..n).filter(|rank| !excluded.contains(rank)).collect()
}

/// The ranks left out live on, and the parent is good for all.
#[test]
fn some_leave_in_peace() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let all: Vec<usize> = (0..me.nranks).collect();
        let (first, second) = (excluded(), vec![(excluded()[0] + 1) % me.nranks]);
        // Those left out of one shrink are in the next one; counters of ranks differ then.
        let round = || {
            for out in [&first, &second, &first] {
                if !out.contains(&me.rank) {
                    let child = api.shrink(comm, out, 0);
                    api.check(child, &rest(me.nranks, out), me.rank);
                    api.destroy(child);
                }
            }
            let child = api.split(comm, (me.rank % 2) as i32, 0);
            api.destroy(child);
            api.check(comm, &all, me.rank);
        };
        // The first time, ranks that have not talked to each other make connections, and keep them.
        round();
        me.barrier("warm");
        let before = Resources::now();
        round();
        me.barrier("done");
        before.assert_same();
        return api.destroy(comm);
    }
    for (n, out) in [(4, &[0usize] as &[usize]), (4, &[3]), (5, &[1, 2]), (3, &[2, 0]), (2, &[0])] {
        job("shrinks::some_leave_in_peace", n, out).run().assert_ok();
    }
}

/// Ranks are killed while all others wait for them in an AllReduce; the rest goes on without them.
#[test]
fn some_die() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let out = excluded();
        if out.contains(&me.rank) {
            me.publish(&format!("ready.{}", me.rank), b"");
            std::thread::sleep(Duration::from_secs(600));
        }
        let rest = rest(me.nranks, &out);
        let bench = Bench::new(&api);
        bench.begin(&api, comm, me.rank).expect("a call");
        me.publish(&format!("ready.{}", me.rank), b"");
        me.await_published("dead");
        let child = api.shrink(comm, &out, SHRINK_ABORT);
        api.check(child, &rest, me.rank);
        // What waited has left, and nothing new is begun.
        api.cuda.wait(bench.stream).expect("the kernel has left");
        assert_eq!(bench.begin(&api, comm, me.rank), Err(INVALID_USAGE));
        // Once more, of the child.
        if rest.len() > 2 {
            let (last, others) = rest.split_last().expect("there are some");
            if me.rank != *last {
                let second = api.shrink(child, &[rest.len() - 1], 0);
                api.check(second, others, me.rank);
                api.destroy(second);
            }
        }
        // Every mix of destroy and abort, in both orders.
        let end = |comm: Comm, which: usize| {
            if (me.rank + which).is_multiple_of(2) { api.destroy(comm) } else { api.nccl.abort(comm).expect("abort") }
        };
        let start = Instant::now();
        if me.rank % 3 == 0 {
            end(child, 0);
            end(comm, me.rank / 3);
        } else {
            end(comm, me.rank / 2);
            end(child, 1);
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the ends took {:?}", start.elapsed());
        return;
    }
    for (n, out) in [(4, &[0usize] as &[usize]), (4, &[3]), (4, &[1, 2]), (6, &[0, 1]), (5, &[0, 4]), (2, &[0])] {
        let mut running = job("shrinks::some_die", n, out).allow_any_warning().start();
        let dir = running.dir().to_path_buf();
        while (0..n).any(|rank| !dir.join(format!("ready.{rank}")).exists()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        out.iter().for_each(|rank| running.kill(*rank));
        std::fs::write(dir.join("dead"), b"").expect("the job's folder");
        let outcome = running.wait();
        rest(n, out).iter().for_each(|rank| assert!(outcome.ranks[*rank].status.success(), "rank {rank}\n{outcome}"));
    }
}

/// What is no list of other ranks is an invalid argument; also what NCCL does not check.
#[test]
fn wrong_arguments() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let mine = me.rank as i32;
        let other = 1 - mine;
        let refused = |list: &mut [i32], text: &str| {
            let (code, child) = api.try_shrink(comm, list, 0, None);
            let told = api.nccl.last_error();
            assert_eq!((code, child), (INVALID_ARGUMENT, Comm::NULL), "{told}");
            assert!(told.contains(text), "{told}");
        };
        refused(&mut [], "excludeRanksCount 0");
        refused(&mut [mine], "its own excludeRanksList");
        refused(&mut [other, 2], "names rank 2 ");
        refused(&mut [other, -1], "names rank -1 ");
        refused(&mut [other, other], "twice");
        let mut list = [7, 5, 9, -3];
        refused(&mut list, "names rank -3");
        assert_eq!(list, [-3, 5, 7, 9], "sorted in place");
        // SAFETY: NULL is refused.
        let code = unsafe { api.comms.shrink(comm, Err(1), &mut Comm::NULL.clone(), None, 0) };
        assert_eq!(code, INVALID_ARGUMENT);
        // SAFETY: as above; nobody else stays who could be told.
        let code = unsafe { api.comms.shrink(comm, Ok(&mut [other]), std::ptr::null_mut(), None, 0) };
        assert_eq!(code, INVALID_ARGUMENT);
        assert_eq!(api.try_shrink(Comm::NULL, &mut [other], SHRINK_ABORT, None).0, INVALID_ARGUMENT);
        api.check(comm, &[0, 1], me.rank);
        return api.destroy(comm);
    }
    Job::this_test("shrinks::wrong_arguments", 2).allow_any_warning().run().assert_ok();
}

/// Ranks that stay do not agree who stays, or one has a wrong configuration: all of them hear it, and the next one
/// works.
#[test]
fn disagreement_is_told() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        for culprit in [0, 1, 2] {
            if me.rank != 3 {
                let wrong = if culprit == 0 { without_size() } else { without_magic() };
                let config = (me.rank == culprit).then_some(&wrong);
                let code = api.try_shrink(comm, &mut [3], 0, config).0;
                let text = api.nccl.last_error();
                assert_eq!(code, if config.is_some() { INVALID_ARGUMENT } else { REMOTE_ERROR }, "{text}");
                assert!(config.is_some() || text.contains(&format!("rank {culprit} takes no part")), "{text}");
            }
        }
        if me.rank != 2 {
            let mut list = if me.rank == 0 { vec![2] } else { vec![2, 4] };
            if me.rank != 4 {
                let (code, child) = api.try_shrink(comm, &mut list, 0, None);
                let text = api.nccl.last_error();
                assert!(matches!(code, INVALID_USAGE | REMOTE_ERROR) && child == Comm::NULL, "{code}: {text}");
            } else {
                assert_eq!(api.try_shrink(comm, &mut [2], 0, None).0, INVALID_USAGE);
            }
        }
        if me.rank != 4 {
            let child = api.shrink(comm, &[4], 0);
            api.check(child, &[0, 1, 2, 3], me.rank);
            api.destroy(child);
        }
        return api.destroy(comm);
    }
    Job::this_test("shrinks::disagreement_is_told", 5).allow_any_warning().run().assert_ok();
}

/// A rank that should stay dies before it comes: the others hear of it, and leave it out next time.
#[test]
fn one_of_the_rest_dies() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let out = excluded();
        if me.rank == 3 {
            std::thread::sleep(Duration::from_secs(600));
        }
        if me.rank == out[0] {
            std::thread::sleep(Duration::from_millis(500));
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
        let (code, _) = api.try_shrink(comm, &mut [3], SHRINK_ABORT, None);
        let text = api.nccl.last_error();
        assert!(code == REMOTE_ERROR && text.contains(&format!("rank {}", out[0])), "{code}: {text}");
        let child = api.shrink(comm, &[3, out[0]], SHRINK_ABORT);
        api.check(child, &rest(me.nranks, &[3, out[0]]), me.rank);
        api.destroy(child);
        api.nccl.abort(comm).expect("abort");
        return me.publish(&format!("done.{}", me.rank), b"");
    }
    for victim in [0, 1, 4] {
        let mut running = job("shrinks::one_of_the_rest_dies", 5, &[victim]).allow_any_warning().start();
        let dir = running.dir().to_path_buf();
        let end = Instant::now() + Duration::from_secs(100);
        let others = rest(5, &[3, victim]);
        while others.iter().any(|rank| !dir.join(format!("done.{rank}")).exists()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        running.kill(3);
        let outcome = running.wait();
        others.iter().for_each(|rank| assert!(outcome.ranks[*rank].status.success(), "rank {rank}\n{outcome}"));
    }
}

/// The child of a parent whose kernels nobody has stopped: they go on, and end when the rest comes.
#[test]
fn the_default_leaves_the_parent_alone() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let all: Vec<usize> = (0..me.nranks).collect();
        api.check(comm, &all, me.rank);
        if me.rank < 2 {
            let child = api.shrink(comm, &[2], 0);
            api.check(child, &[0, 1], me.rank);
            api.check(child, &[0, 1], me.rank);
            api.destroy(child);
        }
        api.check(comm, &all, me.rank);
        assert_eq!(api.nccl.async_error(comm), Ok(SUCCESS));
        return api.destroy(comm);
    }
    Job::this_test("shrinks::the_default_leaves_the_parent_alone", 3).run().assert_ok();
}
