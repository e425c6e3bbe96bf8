//! Aborts of what is being made, or ended: at any moment, from any thread. Nothing is left, and the next one works.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::api::{Api, Holdings, Member, abort, seeded_rng};
use crate::common::abi::{IN_PROGRESS, INVALID_ARGUMENT, SUCCESS};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::{Comm, UniqueId};
use crate::common::need;

fn rounds(few: usize, many: usize) -> usize {
    if need::long() { many } else { few }
}

/// How long a creation takes here, by one that succeeds.
fn typical(api: &Api, place: (usize, usize), id: UniqueId) -> Duration {
    let start = Instant::now();
    let comm = api.begin(place, id);
    assert_eq!(api.nccl.settle(comm), SUCCESS, "{}", api.nccl.last_error());
    let took = start.elapsed();
    api.nccl.destroy(comm).expect("destroy");
    took.min(Duration::from_secs(1))
}

/// What a rank does in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// It aborts so many microseconds after its creation has begun.
    Abort(u64),
    /// It never comes.
    Absent,
    /// It waits for what becomes of it, and ends it as that demands.
    Wait,
}

/// All draw alike. At least one aborts: who waits for a rank that never comes would wait for good.
fn parts(rng: &mut SmallRng, n: usize, whole: Duration) -> Vec<Part> {
    loop {
        let mut draw = || match rng.random_range(0..5u32) {
            0 => Part::Absent,
            1 => Part::Wait,
            _ => Part::Abort(rng.random_range(0..=whole.as_micros() as u64 * 5 / 4)),
        };
        let parts: Vec<Part> = (0..n).map(|_| draw()).collect();
        if parts.iter().any(|part| matches!(part, Part::Abort(_))) {
            return parts;
        }
    }
}

/// One rank's part in a creation of which some part comes to nothing.
fn play(api: &Api, part: Part, place: (usize, usize), id: UniqueId) {
    if part == Part::Absent {
        return;
    }
    let comm = api.begin(place, id);
    if let Part::Abort(after) = part {
        thread::sleep(Duration::from_micros(after));
        return abort(api, comm);
    }
    // It fails when the others have left, or has succeeded before they did.
    match api.nccl.settle(comm) {
        SUCCESS if place.1.is_multiple_of(2) => api.nccl.destroy(comm).expect("destroy"),
        _ => abort(api, comm),
    }
}

/// At random moments of a creation, by processes; some do not come at all.
#[test]
fn during_a_creation() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        let (place, mut rng) = ((me.nranks, me.rank), seeded_rng("creation"));
        let _ = typical(api, place, api.meet(&me, "first"));
        let whole = typical(api, place, api.meet(&me, "second"));
        // All draw the same numbers.
        if me.rank == 0 {
            me.publish("whole", &whole.as_micros().to_string().into_bytes());
        }
        let text = String::from_utf8(me.await_published("whole")).expect("digits");
        let whole = Duration::from_micros(text.parse().expect("digits"));
        let before = Holdings::now();
        for round in 0..rounds(25, 400) {
            let parts = parts(&mut rng, me.nranks, whole);
            let id = api.meet(&me, &format!("id {round}"));
            play(api, parts[me.rank], place, id);
        }
        let member = Member::of_process(&me, "last");
        member.sum();
        member.end();
        me.barrier("end");
        before.assert_same();
        return println!("a creation takes {whole:?}");
    }
    Job::this_test("abort::during_a_creation", 3).allow_any_warning().run().assert_ok();
}

/// The same by eight threads of a process.
#[test]
fn during_a_creation_by_threads() {
    if launch::child().is_some() {
        let (api, n) = (Api::load(), 8);
        let each = |work: &(dyn Fn(usize) + Sync)| {
            thread::scope(|scope| {
                (0..n).for_each(|rank| {
                    scope.spawn(move || {
                        api.cuda.use_device(rank).expect("a device");
                        work(rank);
                    });
                });
            });
        };
        let id = api.nccl.unique_id().expect("an id");
        let whole = thread::scope(|scope| {
            let one = |rank| {
                scope.spawn(move || {
                    api.cuda.use_device(rank).expect("a device");
                    typical(api, (n, rank), id)
                })
            };
            let all: Vec<_> = (0..n).map(one).collect();
            all.into_iter().map(|one| one.join().expect("no panic")).max().expect("some")
        });
        api.cuda.use_device(0).expect("a device");
        let (before, mut rng) = (Holdings::now(), seeded_rng("threads"));
        for _ in 0..rounds(10, 200) {
            let (parts, id) = (parts(&mut rng, n, whole), api.nccl.unique_id().expect("an id"));
            each(&|rank| play(api, parts[rank], (n, rank), id));
        }
        let id = api.nccl.unique_id().expect("an id");
        each(&|rank| {
            let member = Member::new(api.init((n, rank), id), (n, rank));
            member.sum();
            member.end();
        });
        return before.assert_same();
    }
    Job::this_test("abort::during_a_creation_by_threads", 1).allow_any_warning().run().assert_ok();
}

/// The group's end waits for peers that never come; another thread aborts what it makes. (Without blocking, the end
/// waits for nothing: a blocking creation has no handle before it succeeds.)
#[test]
fn of_a_group_of_creations() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        let round = |number: u64| {
            let mut comms = [Comm::NULL; 3];
            api.nccl.group_start().expect("group");
            for comm in &mut comms {
                api.begin_at(comm, (2, 0), api.nccl.unique_id().expect("an id"));
            }
            assert_eq!(api.nccl.group_end().expect_err("under way").code, IN_PROGRESS);
            thread::sleep(Duration::from_millis(number));
            // All of a group are made by one thread: the abort of one ends the others, too.
            thread::scope(|scope| comms.iter().for_each(|comm| drop(scope.spawn(|| abort(api, *comm)))));
        };
        round(20);
        let before = Holdings::now();
        (0..5).for_each(round);
        return before.assert_same();
    }
    Job::this_test("abort::of_a_group_of_creations", 1).allow_any_warning().run().assert_ok();
}

/// One rank alone, whose work takes a while and then ends by itself: an abort meets a destroy before, while and after
/// it waits. One of them ends the communicator, the other says that it is gone.
fn race(api: &Api, finalize: bool, delay: Duration) {
    let member = Member::new(api.init((1, 0), api.nccl.unique_id().expect("an id")), (1, 0));
    member.fill();
    let ended = AtomicUsize::new(0);
    (0..3).for_each(|_| member.call().expect("a call"));
    let note = |code: i32| {
        assert!(matches!(code, SUCCESS | INVALID_ARGUMENT), "{code}");
        ended.fetch_add(usize::from(code == SUCCESS), Ordering::Relaxed);
    };
    let code =
        |result: Result<(), crate::common::nccl::Failure>| result.map_or_else(|failure| failure.code, |()| SUCCESS);
    thread::scope(|scope| {
        scope.spawn(|| {
            if finalize {
                let _ = api.nccl.finalize(member.comm);
            }
            note(code(api.nccl.destroy(member.comm)));
        });
        thread::sleep(delay);
        let start = Instant::now();
        note(code(api.nccl.abort(member.comm)));
        assert!(start.elapsed() < Duration::from_secs(4), "an abort took {:?}", start.elapsed());
    });
    assert_eq!(ended.into_inner(), 1, "one of them ends it");
    member.free();
}

#[test]
fn while_a_destroy_waits_for_work() {
    if launch::child().is_some() {
        let api = Api::load();
        api.cuda.use_device(0).expect("a device");
        race(api, false, Duration::ZERO);
        let (before, mut rng) = (Holdings::now(), seeded_rng("race"));
        for round in 0..rounds(40, 600) {
            race(api, round % 2 == 0, Duration::from_micros(rng.random_range(0..8000)));
        }
        return before.assert_same();
    }
    let job = Job::this_test("abort::while_a_destroy_waits_for_work", 1).env("SOFTCUDA_DELAY_US", "1000");
    job.allow_any_warning().run().assert_ok();
}

/// Finalize of a communicator that does not block waits in the background; the abort gets it out.
#[test]
fn while_a_finalize_waits_for_a_peer() {
    if let Some(me) = launch::child() {
        return finalize_in_vain(&me);
    }
    Job::this_test("abort::while_a_finalize_waits_for_a_peer", 2).allow_any_warning().run().assert_ok();
}

fn finalize_in_vain(me: &Place) {
    let api = Api::load();
    api.cuda.use_device(me.rank).expect("a device");
    let mut before = None;
    for round in 0..rounds(6, 50) {
        let comm = api.begin((me.nranks, me.rank), api.meet(me, &format!("id {round}")));
        let member = Member::new(comm, (me.nranks, me.rank));
        assert_eq!(api.nccl.settle(comm), SUCCESS);
        if me.rank == 0 {
            member.fill();
            member.call().expect("a call");
            assert_eq!(api.nccl.finalize(comm).expect_err("under way").code, IN_PROGRESS);
            thread::sleep(Duration::from_millis(10 * (round as u64 % 3)));
            assert_eq!(api.nccl.async_error(comm), Ok(IN_PROGRESS), "the peer has not called");
            abort(api, comm);
        } else {
            me.await_published(&format!("aborted {round}"));
            abort(api, comm);
        }
        me.publish(&format!("aborted {round}"), b"");
        member.free();
        before.get_or_insert_with(Holdings::now);
    }
    before.expect("there were rounds").assert_same();
}
