//! A rank whose process dies, or whose host goes without a word, while the others are in a collective or idle: each of
//! them names that rank, and not a neighbour of its own that has only given up before it; and can be aborted at once.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::common::abi::REMOTE_ERROR;
use crate::common::hosts::Hosts;
use crate::common::launch::{self, Job, Place, Running};
use crate::member::{Member, await_that};

/// Seconds without an answer until a host counts as gone.
const HEARTBEAT: u64 = 2;
/// Generous: until everybody knows, and until an abort is done.
const NAMED_LIMIT: Duration = Duration::from_secs(30);
const ABORT_LIMIT: Duration = Duration::from_secs(10);

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis()
}

/// Sums until that fails, which names rank 0, unless this is it. An idle rank sums no more until it is told to.
fn body(me: &Place, idle: bool) {
    let member = Member::join(me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
    (0..10).for_each(|round| assert_eq!(member.sum(round, 1), me.nranks as u32));
    me.barrier("sums");
    if idle {
        me.await_published("go");
    }
    let failure = loop {
        if let Err(failure) = member.try_sum() {
            break failure;
        }
    };
    let named = now_ms();
    assert_eq!(failure.code, REMOTE_ERROR, "rank {}: {}", me.rank, failure.text);
    let took = member.abort();
    assert!(took < ABORT_LIMIT, "rank {}: the abort takes {took:?}", me.rank);
    if me.rank > 0 {
        let since: u128 = String::from_utf8(me.await_published("since")).expect("text").parse().expect("a time");
        let (after, text) = (named.saturating_sub(since), &failure.text);
        println!("rank {} named it after {after} ms, the abort took {took:?}: {text}", me.rank);
        assert!(text.contains("rank 0 is gone"), "rank {}: {text}", me.rank);
        assert!(after < NAMED_LIMIT.as_millis(), "rank {}: only after {after} ms", me.rank);
    }
}

/// A job whose ranks are on so many hosts, once all of them sum, or are idle.
fn start(name: &str, hosts: &Hosts, (nhosts, nranks): (usize, usize), envs: &[(&str, &str)]) -> (Running, Place) {
    let places: Vec<usize> = (0..nranks).map(|rank| rank % nhosts).collect();
    let job = Job::this_test(name, nranks).env("OXCCL_HEARTBEAT", HEARTBEAT.to_string()).allow_any_warning();
    let running = hosts.place(job.with(envs), &places, true).start();
    let place = Place { dir: running.dir().to_path_buf(), rank: nranks, nranks };
    (0..nranks).for_each(|rank| drop(place.await_published(&format!("sums.{rank}"))));
    std::thread::sleep(Duration::from_millis(300));
    (running, place)
}

/// `happens` to rank 0; what survivors print.
fn goes(name: &str, (nhosts, nranks): (usize, usize), idle: bool, happens: impl FnOnce(&Hosts, &mut Running)) {
    let Some(hosts) = Hosts::new(nhosts) else { return };
    let (mut running, place) = start(name, &hosts, (nhosts, nranks), &[]);
    place.publish("since", now_ms().to_string().as_bytes());
    happens(&hosts, &mut running);
    if idle {
        place.publish("go", b"");
    }
    let outcome = running.wait();
    for rank in 1..nranks {
        assert!(outcome.ranks[rank].status.success(), "rank {rank} of {nranks} on {nhosts} hosts\n{outcome}");
        let stdout = &outcome.ranks[rank].stdout;
        stdout.lines().filter(|line| line.contains("named it")).for_each(|line| println!("{nhosts} hosts: {line}"));
    }
}

#[test]
fn a_rank_that_is_killed_in_a_collective() {
    if let Some(me) = launch::child() {
        return body(&me, false);
    }
    for shape in [(2, 2), (3, 3), (4, 4), (2, 4)] {
        goes("deaths::a_rank_that_is_killed_in_a_collective", shape, false, |_, running| running.kill(0));
    }
}

#[test]
fn a_rank_that_is_killed_while_all_are_idle() {
    if let Some(me) = launch::child() {
        return body(&me, true);
    }
    for shape in [(2, 2), (4, 4)] {
        goes("deaths::a_rank_that_is_killed_while_all_are_idle", shape, true, |_, running| running.kill(0));
    }
}

#[test]
fn a_host_that_goes_silently_in_a_collective() {
    if let Some(me) = launch::child() {
        return body(&me, false);
    }
    for shape in [(2, 2), (3, 3), (4, 4)] {
        goes("deaths::a_host_that_goes_silently_in_a_collective", shape, false, |hosts, _| {
            hosts.change("ip link set v1 down");
        });
    }
}

/// Whoever has links with it warns, though nobody asks.
#[test]
fn a_host_that_goes_silently_while_all_are_idle() {
    if let Some(me) = launch::child() {
        return body(&me, true);
    }
    for shape in [(2, 2), (3, 3)] {
        goes("deaths::a_host_that_goes_silently_while_all_are_idle", shape, true, |hosts, running| {
            hosts.change("ip link set v1 down");
            let warns = || running.stdout(1).contains("rank 0 is gone: its host h1 has not answered");
            await_that("a warning", warns);
        });
    }
}

/// A process that is stopped for longer than its host could be silent is not gone: it is late, and named as such.
#[test]
fn a_process_that_is_stopped_goes_on() {
    if let Some(me) = launch::child() {
        let member = Member::join(&me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
        (0..10).for_each(|round| assert_eq!(member.sum(round, 1), me.nranks as u32));
        me.barrier("sums");
        member.watched(|| member.sum_until(&me, "end"));
        return member.end();
    }
    let Some(hosts) = Hosts::new(3) else { return };
    let late = [("OXCCL_LATE_WARN", "2")];
    let (running, place) = start("deaths::a_process_that_is_stopped_goes_on", &hosts, (3, 3), &late);
    running.signal(0, Signal::STOP);
    let stopped = Instant::now();
    await_that("time", || stopped.elapsed() > Duration::from_secs(3 * HEARTBEAT));
    running.signal(0, Signal::CONT);
    place.publish("end", b"");
    let outcome = running.wait();
    outcome.assert_ok();
    for rank in 1..3 {
        let warnings = outcome.ranks[rank].warnings();
        let names = |line: &&str| line.contains("rank 0 has not called it") && line.contains("stopped");
        assert!(warnings.iter().any(names), "rank {rank}\n{outcome}");
    }
}

/// A rank that does not call is late, though its process answers.
#[test]
fn a_rank_that_does_not_call_is_named() {
    if let Some(me) = launch::child() {
        let member = Member::join(&me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(member.sum(0, 1), 3);
        me.barrier("sums");
        if me.rank == 0 {
            me.await_published("end");
        }
        assert_eq!(member.watched(|| member.sum(1, 1)), 3);
        return member.end();
    }
    let Some(hosts) = Hosts::new(3) else { return };
    let late = [("OXCCL_LATE_WARN", "2")];
    let (running, place) = start("deaths::a_rank_that_does_not_call_is_named", &hosts, (3, 3), &late);
    let named = |rank: usize| running.stdout(rank).contains("rank 0 has not called it; its last one was collective 0");
    await_that("warnings", || (1..3).all(named));
    place.publish("end", b"");
    running.wait().assert_ok();
}
