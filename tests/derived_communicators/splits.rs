//! Split: ranks of one colour, ordered by key and then by rank; `NCCL_SPLIT_NOCOLOR` gets no communicator.

use std::time::{Duration, Instant};

use crate::api::{Api, LIMIT, members_of, without_magic, without_size};
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE, NO_COLOR, REMOTE_ERROR, SUCCESS};
use crate::common::launch::{self, Job};
use crate::common::nccl::Comm;
use crate::common::resources::Resources;

/// Colours and keys by rank.
type Rule = fn(usize) -> (i32, i32);

/// Every kind of colour and key: one for all, one each, some, none; equal, ascending, descending, negative, extreme.
const RULES: [Rule; 10] = [
    |_| (0, 0),
    |rank| (0, -(rank as i32)),
    |rank| (rank as i32, 7),
    |rank| ((rank % 2) as i32, rank as i32),
    |rank| (if rank % 3 == 1 { NO_COLOR } else { 5 }, i32::MAX),
    |_| (NO_COLOR, 0),
    |rank| (-2 - (rank % 2) as i32, (rank as i32 * 5) % 3 - 1),
    |rank| (i32::MAX, if rank % 2 == 0 { i32::MIN } else { i32::MAX }),
    |rank| (if rank < 2 { i32::MIN } else { 1 }, 3),
    |rank| ((rank / 2) as i32, -((rank % 2) as i32)),
];

#[test]
fn colours_and_keys() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let all: Vec<usize> = (0..me.nranks).collect();
        for rule in RULES {
            let (colors, keys): (Vec<i32>, Vec<i32>) = all.iter().map(|rank| rule(*rank)).unzip();
            let child = api.split(comm, colors[me.rank], keys[me.rank]);
            if colors[me.rank] == NO_COLOR {
                assert_eq!(child, Comm::NULL);
                api.check(comm, &all, me.rank);
                continue;
            }
            api.check(child, &members_of(&colors, &keys, me.rank), me.rank);
            // Both go on side by side.
            api.check(comm, &all, me.rank);
            api.check(child, &members_of(&colors, &keys, me.rank), me.rank);
            api.destroy(child);
        }
        api.check(comm, &all, me.rank);
        return api.destroy(comm);
    }
    for n in [1, 2, 3, 4, 5, 8] {
        Job::this_test("splits::colours_and_keys", n).run().assert_ok();
    }
}

/// Halves of halves, all alive at once; a parent may go before its children.
#[test]
fn splits_of_splits() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut line = vec![(api.init(&me, "id", None), (0..me.nranks).collect::<Vec<usize>>())];
        loop {
            let (comm, members) = line.last().cloned().expect("the first");
            if members.len() == 1 {
                break;
            }
            let place = members.iter().position(|member| *member == me.rank).expect("a member");
            let child = api.split(comm, (place % 2) as i32, -(place as i32));
            let mut half: Vec<usize> =
                members.iter().enumerate().filter(|(at, _)| at % 2 == place % 2).map(|(_, m)| *m).collect();
            half.reverse();
            api.check(child, &half, me.rank);
            line.push((child, half));
        }
        for (comm, members) in line.iter().rev() {
            api.check(*comm, members, me.rank);
        }
        for at in 0..line.len() {
            api.destroy(line[at].0);
            line[at + 1..].iter().for_each(|(comm, members)| api.check(*comm, members, me.rank));
        }
        return;
    }
    for n in [4, 7] {
        Job::this_test("splits::splits_of_splits", n).run().assert_ok();
    }
}

#[test]
fn many_one_after_another() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let all: Vec<usize> = (0..me.nranks).collect();
        let round = |number: usize| {
            let color = |rank: usize| ((rank + number) % 2) as i32;
            let colors: Vec<i32> = all.iter().map(|rank| color(*rank)).collect();
            let child = api.split(comm, colors[me.rank], 0);
            api.check(child, &members_of(&colors, &vec![0; all.len()], me.rank), me.rank);
            // Every other one is aborted, which is as good.
            if number.is_multiple_of(2) { api.destroy(child) } else { api.nccl.abort(child).expect("abort") }
        };
        (0..4).for_each(round);
        // A faster rank's first call has its links made here, too.
        api.check(comm, &all, me.rank);
        me.barrier("warm");
        let before = Resources::now();
        (4..24).for_each(round);
        me.barrier("done");
        before.assert_same();
        api.check(comm, &all, me.rank);
        return api.destroy(comm);
    }
    Job::this_test("splits::many_one_after_another", 4).run().assert_ok();
}

/// Several splits of one parent and of two parents in a group; the parents come in another order on every other rank.
#[test]
fn in_groups() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let parents = [api.init(&me, "first", None), api.init(&me, "second", None)];
        let all: Vec<usize> = (0..me.nranks).collect();
        let halves: Vec<i32> = all.iter().map(|rank| (rank % 2) as i32).collect();
        let reversed: Vec<i32> = all.iter().map(|rank| -(*rank as i32)).collect();
        let (same, none) = (vec![3; all.len()], vec![0; all.len()]);
        for round in 0..3 {
            // Parent, colours, keys; the order of those of one parent counts.
            let plans = [
                (0, &halves, &none),
                (0, &same, &reversed),
                (1, &same, &none),
                (0, &halves, &reversed),
                (1, &halves, &reversed),
            ];
            let order = if me.rank % 2 == 1 { [2, 4, 0, 1, 3] } else { [0, 1, 2, 3, 4] };
            let mut children = vec![Comm::NULL; plans.len()];
            api.nccl.group_start().expect("group");
            for at in order {
                let (parent, colors, keys) = plans[at];
                // SAFETY: the list stays where it is.
                let code =
                    unsafe { api.queue_split(parents[parent], colors[me.rank], keys[me.rank], &mut children[at]) };
                assert_eq!((code, children[at]), (SUCCESS, Comm::NULL), "not before the end of the group");
            }
            api.nccl.group_end().expect("the splits");
            for ((_, colors, keys), child) in plans.iter().zip(&children) {
                api.check(*child, &members_of(colors, keys, me.rank), me.rank);
            }
            parents.iter().for_each(|parent| api.check(*parent, &all, me.rank));
            if round == 1 {
                children.reverse();
            }
            children.into_iter().for_each(|child| api.destroy(child));
        }
        return parents.into_iter().for_each(|parent| api.destroy(parent));
    }
    Job::this_test("splits::in_groups", 4).run().assert_ok();
}

/// Threads that split the communicators of their own, each on its device.
#[test]
fn threads_split_at_the_same_time() {
    if launch::child().is_some() {
        let api = Api::load();
        let n = 4;
        let ids: Vec<_> = (0..2).map(|_| api.nccl.unique_id().expect("an id")).collect();
        std::thread::scope(|scope| {
            for rank in 0..n {
                let ids = &ids;
                scope.spawn(move || {
                    api.cuda.use_device(rank).expect("a device");
                    let all: Vec<usize> = (0..n).collect();
                    let comms = [0, 1].map(|which| api.init_with(ids[which], (n, rank), None));
                    for round in 0..10 {
                        let colors: Vec<i32> = all.iter().map(|rank| ((rank >> (round % 2)) % 2) as i32).collect();
                        let child = api.split(comms[round % 2], colors[rank], 0);
                        api.check(child, &members_of(&colors, &[0; 4], rank), rank);
                        api.destroy(child);
                    }
                    comms.into_iter().for_each(|comm| api.destroy(comm));
                });
            }
        });
        return;
    }
    Job::this_test("splits::threads_split_at_the_same_time", 1).run().assert_ok();
}

/// What is wrong on one rank is that rank's error and soon the others', who would wait for it for good; what
/// comes next works.
#[test]
fn wrong_arguments_are_told_to_all() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let all: Vec<usize> = (0..me.nranks).collect();
        let before = Resources::now();
        for culprit in 0..me.nranks {
            for wrong in 0..4 {
                let code = match (me.rank == culprit, wrong) {
                    (true, 0) => {
                        // SAFETY: a NULL handle is refused.
                        unsafe { api.comms.split(comm, 0, 0, std::ptr::null_mut(), None) }
                    }
                    (true, 1 | 2) => {
                        let config = if wrong == 1 { without_magic() } else { without_size() };
                        let (code, child) = api.try_split(comm, 0, 0, Some(&config));
                        assert_eq!(child, Comm::NULL);
                        code
                    }
                    (true, _) => {
                        let (code, child) = api.try_grow(comm, (me.nranks, -1), None, None);
                        assert_eq!(child, Comm::NULL);
                        code
                    }
                    (false, _) => {
                        let start = Instant::now();
                        let (code, child) = api.try_split(comm, 0, 0, None);
                        assert!(start.elapsed() < LIMIT && child == Comm::NULL);
                        let text = api.nccl.last_error();
                        assert!(text.contains(&format!("rank {culprit} takes no part")), "{text}");
                        code
                    }
                };
                assert_eq!(
                    code,
                    if me.rank == culprit { INVALID_ARGUMENT } else { REMOTE_ERROR },
                    "{}",
                    api.nccl.last_error()
                );
            }
        }
        let child = api.split(comm, 0, 0);
        api.check(child, &all, me.rank);
        api.destroy(child);
        me.barrier("done");
        before.assert_same();
        return api.destroy(comm);
    }
    Job::this_test("splits::wrong_arguments_are_told_to_all", 3).allow_any_warning().run().assert_ok();
}

/// An error in a group drops its splits on this rank; the others hear of it.
#[test]
fn a_group_that_fails_drops_its_splits() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let mut children = [Comm::NULL; 2];
        api.nccl.group_start().expect("group");
        for child in &mut children {
            // SAFETY: the list stays where it is.
            assert_eq!(unsafe { api.queue_split(comm, 0, 0, child) }, SUCCESS);
        }
        if me.rank == 1 {
            assert_eq!(api.try_split(Comm::NULL, 0, 0, None).0, INVALID_ARGUMENT);
        }
        let end = api.nccl.group_end().expect_err("a wrong call of rank 1");
        assert_eq!(end.code, if me.rank == 1 { INVALID_ARGUMENT } else { REMOTE_ERROR }, "{end}");
        assert_eq!(children, [Comm::NULL; 2]);
        let child = api.split(comm, 0, 0);
        api.check(child, &[0, 1, 2], me.rank);
        api.destroy(child);
        return api.destroy(comm);
    }
    Job::this_test("splits::a_group_that_fails_drops_its_splits", 3).allow_any_warning().run().assert_ok();
}

/// Ranks that do different things with one communicator hear what.
#[test]
fn different_calls_are_told() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let code = match me.rank {
            0 => api.try_split(comm, 0, 0, None).0,
            _ => api.try_grow(comm, (3, -1), None, None).0,
        };
        assert_eq!(code, INVALID_USAGE);
        let text = api.nccl.last_error();
        assert!(text.contains("ncclCommSplit") && text.contains("ncclCommGrow"), "{text}");
        api.check(comm, &[0, 1], me.rank);
        return api.destroy(comm);
    }
    Job::this_test("splits::different_calls_are_told", 2).allow_any_warning().run().assert_ok();
}

/// The lines that people look for.
#[test]
fn the_log_tells_the_origin() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        let children = [api.split(comm, 4, 9), api.split(comm, 4, -9)];
        println!("parent {:p} children {:p} {:p}", comm.0, children[0].0, children[1].0);
        children.into_iter().chain([comm]).for_each(|comm| api.destroy(comm));
        return;
    }
    let outcome = Job::this_test("splits::the_log_tells_the_origin", 2).env("NCCL_DEBUG", "INFO").run();
    outcome.assert_ok();
    for (rank, outcome) in outcome.ranks.iter().enumerate() {
        let text = &outcome.stdout;
        let handles: Vec<&str> =
            text.lines().find_map(|line| line.strip_prefix("parent ")).expect("handles").split(' ').collect();
        for (at, (child, key)) in [(handles[2], 9), (handles[3], -9)].into_iter().enumerate() {
            let who = format!("ncclCommSplit comm {child} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId ");
            let from = format!(" parent {} childCount {at} color 4 key {key}", handles[0]);
            for end in ["- Init START", " - Init COMPLETE"] {
                let found = text.lines().any(|line| line.contains(&who) && line.ends_with(&format!("{from}{end}")));
                assert!(found, "rank {rank} did not print {who}…{from}{end}\n{text}");
            }
        }
    }
}

/// A split is quick, and so is the one after a long pause: nobody keeps a thread or a core busy meanwhile.
#[test]
fn ranks_may_come_late() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let comm = api.init(&me, "id", None);
        std::thread::sleep(Duration::from_millis(300 * me.rank as u64));
        let child = api.split(comm, 0, 0);
        api.check(child, &[0, 1, 2], me.rank);
        api.destroy(child);
        return api.destroy(comm);
    }
    Job::this_test("splits::ranks_may_come_late", 3).run().assert_ok();
}
