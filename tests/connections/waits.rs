//! No call waits for a peer's call: peers answer for themselves. What does not answer is told, and can be left.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::abi::{IN_PROGRESS, MemStat, REMOTE_ERROR, SUCCESS};
use crate::common::launch::{self, Job, Place, Running};
use crate::common::need;
use crate::member::{Api, Member};

/// An abort, and a call that does not block, may take so long on a busy machine.
const PROMPT: Duration = Duration::from_secs(2);

/// One thread drives both ranks, call by call: rank 0's first call of every kind returns before rank 1 has called.
#[test]
fn a_first_call_waits_for_no_call() {
    if launch::child().is_some() {
        let api = Api::load();
        let comms = api.nccl.init_all(2).expect("communicators");
        let members: Vec<Member> = comms
            .iter()
            .enumerate()
            .map(|(rank, comm)| {
                api.cuda.use_device(rank).expect("a device");
                Member::new(api, *comm, rank, 2)
            })
            .collect();
        for count in [10, 5_000, 300_000, 3_000_000] {
            let inputs: Vec<u64> = members
                .iter()
                .map(|member| {
                    api.cuda.use_device(member.rank).expect("a device");
                    let at = member.input(count);
                    member.all_reduce(at, count).expect("a call");
                    at
                })
                .collect();
            for (member, at) in members.iter().zip(inputs) {
                api.cuda.use_device(member.rank).expect("a device");
                api.cuda.wait(member.stream).expect("wait");
                member.check_sum(at, count);
                member.free(at);
            }
        }
        return members.into_iter().for_each(Member::end);
    }
    for shm in [false, true] {
        let job = Job::this_test("waits::a_first_call_waits_for_no_call", 1);
        if shm { job.env("NCCL_P2P_DISABLE", "1") } else { job }.run().assert_ok();
    }
}

/// Two communicators that ranks use in different orders, for the first time, on streams of their own: the links of the
/// one are made while a kernel of the other waits for a peer, on a device whose allocations wait for what runs. (So
/// does the registration of host memory, for which there is no other way.)
#[test]
fn links_are_made_while_a_kernel_waits() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let members = ["a", "b"].map(|name| Member::of_process(api, &me, name));
        let inputs = members.map(|member| member.input(1000));
        me.barrier("made");
        let call = |number: usize| members[number].all_reduce(inputs[number], 1000).expect("a call");
        // Kernels of all ranks but rank 1 wait for it.
        if me.rank != 1 {
            call(0);
        }
        me.barrier("waiting");
        call(1);
        if me.rank == 1 {
            call(0);
        }
        for (member, at) in members.iter().zip(inputs) {
            api.cuda.wait(member.stream).expect("wait");
            member.check_sum(at, 1000);
            member.sum(2000);
        }
        let bytes: u64 = members.iter().map(|member| member.stat(MemStat::Suspend)).sum();
        println!("rank {}: {bytes} bytes of links", me.rank);
        me.barrier("done");
        return members.into_iter().for_each(Member::end);
    }
    let outcome =
        Job::this_test("waits::links_are_made_while_a_kernel_waits", 3).env("SOFTCUDA_ALLOC_WAITS", "1").run();
    outcome.assert_ok();
    // There is no less than 2 MiB of such memory.
    let large = |text: &str| {
        let bytes =
            text.lines().find_map(|line| line.split_once(" bytes of links")?.0.rsplit_once(' ')?.1.parse::<u64>().ok());
        bytes.expect("a number") > 2 << 20
    };
    assert!(outcome.ranks.iter().any(|rank| large(&rank.stdout)), "{outcome}");
}

/// Rank 0 tells `text`; then rank 1 is to be stopped, and rank 0 to hear of it.
fn stop(running: &Running, text: &str) {
    await_text(running, text);
    running.signal(1, Signal::STOP);
    thread::sleep(Duration::from_millis(100));
    fs::write(running.dir().join("stopped"), b"").expect("the job's folder");
}

fn await_text(running: &Running, text: &str) {
    let until = Instant::now() + launch::DEADLINE;
    while !running.stdout(0).contains(text) {
        assert!(Instant::now() < until, "rank 0 does not say {text}:\n{}", running.stderr(0));
        thread::sleep(Duration::from_millis(2));
    }
}

/// A rank that has its communicator, whose peer is then stopped. Rank 1 gives none: it does `rest` first.
fn before_the_stop(me: &Place, member: Member, rest: impl FnOnce(Member)) -> Option<Member> {
    me.barrier("made");
    if me.rank == 1 {
        rest(member);
        return None;
    }
    println!("READY");
    me.await_published("stopped");
    Some(member)
}

/// A call that waits for a stopped peer's answer is ended by an abort.
#[test]
fn an_abort_ends_the_wait_for_a_stopped_peer() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        let leave = |member: Member| {
            me.await_published("aborted");
            member.api.nccl.abort(member.comm).expect("abort");
        };
        let Some(member) = before_the_stop(&me, member, leave) else { return };
        let (at, context) = (member.input(100), member.api.cuda.use_device(0).expect("a device"));
        thread::scope(|scope| {
            let call = scope.spawn(move || {
                member.api.cuda.set_current(context).expect("current");
                member.all_reduce(at, 100)
            });
            thread::sleep(Duration::from_millis(300));
            assert!(!call.is_finished(), "the peer is stopped");
            let start = Instant::now();
            member.api.nccl.abort(member.comm).expect("abort");
            assert!(start.elapsed() < PROMPT, "an abort took {:?}", start.elapsed());
            call.join().expect("no panic").expect_err("it was aborted");
            assert!(start.elapsed() < PROMPT, "the call took {:?}", start.elapsed());
        });
        return me.publish("aborted", b"");
    }
    for shm in [false, true] {
        let job = Job::this_test("waits::an_abort_ends_the_wait_for_a_stopped_peer", 2).allow_any_warning();
        let running = if shm { job.env("NCCL_P2P_DISABLE", "1") } else { job }.start();
        stop(&running, "READY");
        let until = Instant::now() + launch::DEADLINE;
        while !running.dir().join("aborted").exists() {
            assert!(Instant::now() < until, "rank 0 does not abort:\n{}", running.stderr(0));
            thread::sleep(Duration::from_millis(2));
        }
        running.signal(1, Signal::CONT);
        running.wait().assert_ok();
    }
}

/// A peer that has died before it could answer is named.
#[test]
fn a_dead_peer_is_named() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        let sleep = |_| thread::sleep(launch::DEADLINE);
        let Some(member) = before_the_stop(&me, member, sleep) else { return };
        let failure = member.all_reduce(member.input(100), 100).expect_err("rank 1 is dead");
        assert_eq!(failure.code, REMOTE_ERROR, "{failure}");
        assert!(failure.text.contains("rank 1") && failure.text.contains("died"), "{failure}");
        member.api.nccl.abort(member.comm).expect("abort");
        return println!("NAMED");
    }
    let mut running = Job::this_test("waits::a_dead_peer_is_named", 2).allow_any_warning().start();
    await_text(&running, "READY");
    running.kill(1);
    fs::write(running.dir().join("stopped"), b"").expect("the job's folder");
    let outcome = running.wait();
    assert!(outcome.ranks[0].status.success() && outcome.ranks[0].stdout.contains("NAMED"), "{outcome}");
}

/// A peer that has aborted its communicator is named, and does not come back.
#[test]
fn a_peer_that_has_left_is_named() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        me.barrier("made");
        if me.rank == 1 {
            member.api.nccl.abort(member.comm).expect("abort");
            me.publish("left", b"");
            return me.barrier("ended");
        }
        me.await_published("left");
        let failure = member.all_reduce(member.input(100), 100).expect_err("rank 1 has left");
        assert_eq!(failure.code, REMOTE_ERROR, "{failure}");
        assert!(failure.text.contains("rank 1"), "{failure}");
        member.api.nccl.abort(member.comm).expect("abort");
        return me.barrier("ended");
    }
    Job::this_test("waits::a_peer_that_has_left_is_named", 2).allow_any_warning().run().assert_ok();
}

/// A communicator that does not block: its first call returns although the peer is stopped, and follows when it goes
/// on.
#[test]
fn a_polled_first_call_returns_at_once() {
    if let Some(me) = launch::child() {
        let member = Member::polled(Api::load(), &me);
        let sum = |member: Member| {
            // Its calls ask for the links, too.
            me.await_published("stopped");
            [100, 1000].into_iter().for_each(|count| member.sum(count));
            me.barrier("summed");
            member.end();
        };
        let Some(member) = before_the_stop(&me, member, sum) else { return };
        let (at, start) = (member.input(100), Instant::now());
        let code = member.all_reduce(at, 100).map_or_else(|failure| failure.code, |()| SUCCESS);
        assert!(start.elapsed() < PROMPT, "a call took {:?}", start.elapsed());
        assert!([SUCCESS, IN_PROGRESS].contains(&code), "{code}");
        println!("CALLED");
        assert_eq!(member.settle(), SUCCESS);
        member.api.cuda.wait(member.stream).expect("wait");
        member.check_sum(at, 100);
        member.sum(1000);
        me.barrier("summed");
        return member.end();
    }
    let running = Job::this_test("waits::a_polled_first_call_returns_at_once", 2).allow_any_warning().start();
    stop(&running, "READY");
    await_text(&running, "CALLED");
    running.signal(1, Signal::CONT);
    running.wait().assert_ok();
}

/// A polled call whose peer never answers is aborted.
#[test]
fn a_polled_call_can_be_aborted() {
    if let Some(me) = launch::child() {
        let member = Member::polled(Api::load(), &me);
        let leave = |member: Member| {
            me.await_published("aborted");
            member.api.nccl.abort(member.comm).expect("abort");
        };
        let Some(member) = before_the_stop(&me, member, leave) else { return };
        let called = member.all_reduce(member.input(100), 100);
        assert_eq!(called.expect_err("the peer is stopped").code, IN_PROGRESS);
        assert_eq!(member.api.nccl.async_error(member.comm), Ok(IN_PROGRESS));
        let start = Instant::now();
        member.api.nccl.abort(member.comm).expect("abort");
        assert!(start.elapsed() < PROMPT, "an abort took {:?}", start.elapsed());
        println!("ABORTED");
        return me.publish("aborted", b"");
    }
    let running = Job::this_test("waits::a_polled_call_can_be_aborted", 2).allow_any_warning().start();
    stop(&running, "READY");
    await_text(&running, "ABORTED");
    running.signal(1, Signal::CONT);
    running.wait().assert_ok();
}

/// Who waits long says for whom.
#[test]
fn a_long_wait_is_told() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        let late = |member: Member| {
            // Its call asks for the links, too.
            me.await_published("stopped");
            member.sum(100);
        };
        let Some(member) = before_the_stop(&me, member, late) else { return };
        return member.sum(100);
    }
    if !need::long() {
        return;
    }
    let job = Job::this_test("waits::a_long_wait_is_told", 2).allow_warning("has waited");
    let running = job.start();
    stop(&running, "READY");
    thread::sleep(Duration::from_secs(12));
    running.signal(1, Signal::CONT);
    let outcome = running.wait();
    outcome.assert_ok();
    assert!(
        outcome.ranks[0].warnings().iter().any(|line| line.contains("for its first links with rank 1")),
        "{outcome}"
    );
}

/// One rank has no memory for its links: it says so, and the other hears of it instead of waiting.
#[test]
fn a_rank_without_memory_is_named() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        let at = member.api.cuda.alloc(4096).expect("memory");
        if me.rank == 1 {
            // All that is left.
            let free = member.api.free_bytes() as usize;
            member.api.cuda.alloc(free / 4096 * 4096).expect("memory");
        }
        me.barrier("full");
        let called = member.all_reduce(at, 1000);
        let failure = match called {
            Err(failure) => failure,
            Ok(()) => {
                // The peer had made its part for us before it was full; now it cannot come.
                let _ = member.api.cuda.wait(member.stream);
                assert_ne!(member.settle(), SUCCESS);
                member.all_reduce(at, 1000).expect_err("the peer has left")
            }
        };
        match me.rank {
            1 => assert!(failure.code == 1 && failure.text.contains("out of memory"), "{failure}"),
            _ => assert!(failure.code == REMOTE_ERROR && failure.text.contains("rank 1"), "{failure}"),
        }
        me.barrier("told");
        return member.api.nccl.abort(member.comm).expect("abort");
    }
    let job = Job::this_test("waits::a_rank_without_memory_is_named", 2).env_of(1, "SOFTCUDA_MEMORY", "3M");
    job.allow_any_warning().run().assert_ok();
}
