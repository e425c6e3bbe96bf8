//! Communicators of all kinds, made and ended one after another by the hundred: what a process holds stays the same,
//! and so does its memory.

use std::thread;
use std::time::{Duration, Instant};

use crate::api::{Api, Holdings, Member};
use crate::common::abi::{IN_PROGRESS, REMOTE_ERROR, SUCCESS};
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::{Comm, UniqueId};
use crate::common::need;
use crate::common::resources::rss_kib;

/// Cycles of each kind, by default and with `OXCCL_LONG`.
const FEW: usize = 300;
const MANY: usize = 10_000;
/// A job's time with all of them.
const LONG: Duration = Duration::from_secs(3600);
/// How much more memory the last quarter may have than the second, in KiB: allocators keep what they have had for a
/// while.
const GROWTH: u64 = 2 << 10;

/// A process that makes and ends many communicators.
struct Cycles<'a> {
    me: &'a Place,
    api: &'static Api,
    /// A stream and memory, for all of its communicators.
    bench: Member,
    /// What communicators are derived from: all ranks, and this rank alone.
    parents: [Comm; 2],
}

impl Cycles<'_> {
    fn place(&self) -> (usize, usize) {
        (self.me.nranks, self.me.rank)
    }

    /// An id that all ranks have.
    fn id(&self, name: &str, number: usize) -> UniqueId {
        match self.me.nranks {
            1 => self.api.nccl.unique_id().expect("an id"),
            _ => self.api.meet(self.me, &format!("{name} {number}")),
        }
    }
}

/// A kind of cycle: what is done `number` by `number`.
struct Kind {
    name: &'static str,
    ranks: usize,
    /// Cycles of this kind for each of the others: some take long by their nature.
    share: usize,
    live: fn(&Cycles, usize),
}

const KINDS: [Kind; 11] = [
    Kind { name: "destroy", ranks: 2, share: 1, live: destroy },
    Kind { name: "finalize", ranks: 2, share: 2, live: finalize },
    Kind { name: "abort", ranks: 2, share: 1, live: abort },
    Kind { name: "abort_stuck", ranks: 2, share: 2, live: abort_stuck },
    Kind { name: "polled", ranks: 2, share: 2, live: polled },
    Kind { name: "bad_rank", ranks: 1, share: 1, live: bad_rank },
    Kind { name: "missing_peer", ranks: 1, share: 1, live: missing_peer },
    Kind { name: "init_all", ranks: 1, share: 2, live: init_all },
    Kind { name: "split", ranks: 2, share: 1, live: split },
    Kind { name: "shrink", ranks: 3, share: 2, live: shrink },
    Kind { name: "grow", ranks: 2, share: 1, live: grow },
];

fn member(cycles: &Cycles, comm: Comm) -> Member {
    cycles.bench.with(comm)
}

fn destroy(cycles: &Cycles, number: usize) {
    let comm = cycles.api.init(cycles.place(), cycles.id("destroy", number));
    member(cycles, comm).sum();
    cycles.api.nccl.destroy(comm).expect("destroy");
}

fn finalize(cycles: &Cycles, number: usize) {
    let comm = cycles.api.init(cycles.place(), cycles.id("finalize", number));
    member(cycles, comm).sum();
    cycles.api.nccl.finalize(comm).expect("finalize");
    cycles.api.nccl.destroy(comm).expect("destroy");
}

fn abort(cycles: &Cycles, number: usize) {
    let comm = cycles.api.init(cycles.place(), cycles.id("abort", number));
    member(cycles, comm).sum();
    cycles.api.nccl.abort(comm).expect("abort");
}

/// Every other rank calls; its kernel waits when it is aborted.
fn abort_stuck(cycles: &Cycles, number: usize) {
    let comm = cycles.api.init(cycles.place(), cycles.id("stuck", number));
    let member = member(cycles, comm);
    if cycles.me.rank == number % 2 {
        member.fill();
        // The other one may have aborted already: then there is nobody to be linked with.
        assert!(matches!(member.call().map_err(|failure| failure.code), Ok(()) | Err(REMOTE_ERROR)));
    }
    cycles.api.nccl.abort(comm).expect("abort");
    cycles.api.cuda.wait(member.stream).expect("the kernel leaves");
}

fn polled(cycles: &Cycles, number: usize) {
    let api = cycles.api;
    let comm = api.begin(cycles.place(), cycles.id("polled", number));
    assert_eq!(api.nccl.settle(comm), SUCCESS);
    member(cycles, comm).sum();
    assert_eq!(api.nccl.finalize(comm).expect_err("under way").code, IN_PROGRESS);
    assert_eq!(api.nccl.settle(comm), SUCCESS);
    api.nccl.destroy(comm).expect("destroy");
}

fn bad_rank(cycles: &Cycles, number: usize) {
    let id = cycles.id("bad", number);
    cycles.api.try_init((2, 2 + number % 3), id).expect_err("no such rank");
}

fn missing_peer(cycles: &Cycles, number: usize) {
    let comm = cycles.api.begin((2, 0), cycles.id("missing", number));
    // Before it has begun, and when it waits.
    thread::sleep(Duration::from_micros(100 * (number as u64 % 30)));
    cycles.api.nccl.abort(comm).expect("abort");
}

fn init_all(cycles: &Cycles, _: usize) {
    let api = cycles.api;
    let comms = api.nccl.init_all(2).expect("communicators");
    comms.into_iter().for_each(|comm| api.nccl.destroy(comm).expect("destroy"));
    api.cuda.use_device(0).expect("a device");
    api.cuda.release_device(0).expect("the device");
}

fn split(cycles: &Cycles, number: usize) {
    let api = cycles.api;
    // In the order of ranks, and the other way round.
    let (n, rank) = cycles.place();
    let place = if number.is_multiple_of(2) { rank } else { n - 1 - rank };
    let (code, made) = api.split(cycles.parents[0], place as i32);
    assert_eq!(code, SUCCESS, "{}", api.nccl.last_error());
    member(cycles, *made).at((n, place)).sum();
    api.nccl.destroy(*made).expect("destroy");
}

fn shrink(cycles: &Cycles, number: usize) {
    let (api, (n, rank)) = (cycles.api, cycles.place());
    let without = number % n;
    if rank == without {
        return;
    }
    let (code, made) = api.shrink(cycles.parents[0], without);
    assert_eq!(code, SUCCESS, "{}", api.nccl.last_error());
    member(cycles, made).at((n - 1, rank - usize::from(rank > without))).sum();
    api.nccl.destroy(made).expect("destroy");
}

/// One rank alone takes another one in.
fn grow(cycles: &Cycles, number: usize) {
    let (api, me, name) = (cycles.api, cycles.me, format!("grow {number}"));
    let (code, made) = if me.rank == 0 {
        let id = api.growth_id(cycles.parents[1]);
        me.publish(&name, &id.0);
        api.grow(cycles.parents[1], (2, -1), &id)
    } else {
        let id = UniqueId(me.await_published(&name).try_into().expect("an id has 128 bytes"));
        api.grow(Comm::NULL, (2, 1), &id)
    };
    assert_eq!(code, SUCCESS, "{}", api.nccl.last_error());
    member(cycles, made).sum();
    api.nccl.destroy(made).expect("destroy");
}

/// Many cycles of a kind.
fn run(me: &Place, kind: &Kind) {
    let api = Api::load();
    api.cuda.use_device(me.rank).expect("a device");
    let place = (me.nranks, me.rank);
    let alone = api.init((1, 0), api.nccl.unique_id().expect("an id"));
    let parents = [api.init(place, api.meet(me, "parents")), alone];
    let cycles = Cycles { me, api, bench: Member::new(Comm::NULL, place), parents };
    let count = if need::long() { MANY } else { FEW } / kind.share;
    let warm = 10.min(count / 10);
    (0..warm).for_each(|number| (kind.live)(&cycles, number));
    me.barrier("warm");
    let (before, start) = (Holdings::now(), Instant::now());
    let mut memory = Vec::with_capacity(count);
    for number in 0..count {
        (kind.live)(&cycles, warm + number);
        memory.push(rss_kib());
    }
    let took = start.elapsed();
    me.barrier("end");
    before.assert_same();
    parents.into_iter().for_each(|comm| api.nccl.destroy(comm).expect("destroy"));
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    let (early, late) = (mean(&memory[count / 4..count / 2]), mean(&memory[count * 3 / 4..]));
    println!(
        "cycles of {}: {count} in {:.1} s, {:.0}/s; memory {early} KiB, then {late} KiB",
        kind.name,
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64()
    );
    assert!(late <= early + GROWTH, "resident memory: {early} KiB in the second quarter, {late} in the last");
}

fn test(name: &'static str) {
    let kind = KINDS.iter().find(|kind| kind.name == name).expect("a kind");
    if let Some(me) = launch::child() {
        return run(&me, kind);
    }
    let mut job = Job::this_test(&format!("cycles::{name}_cycles"), kind.ranks).allow_any_warning();
    if need::long() {
        job = job.deadline(LONG);
    }
    let outcome = job.run();
    outcome.assert_ok();
    outcome.ranks.iter().take(1).flat_map(|rank| rank.stdout.lines()).for_each(|line| {
        if let Some(at) = line.find("cycles of") {
            println!("{}", &line[at..]);
        }
    });
}

#[test]
fn destroy_cycles() {
    test("destroy");
}

#[test]
fn finalize_cycles() {
    test("finalize");
}

#[test]
fn abort_cycles() {
    test("abort");
}

#[test]
fn abort_stuck_cycles() {
    test("abort_stuck");
}

#[test]
fn polled_cycles() {
    test("polled");
}

#[test]
fn bad_rank_cycles() {
    test("bad_rank");
}

#[test]
fn missing_peer_cycles() {
    test("missing_peer");
}

#[test]
fn init_all_cycles() {
    test("init_all");
}

#[test]
fn split_cycles() {
    test("split");
}

#[test]
fn shrink_cycles() {
    test("shrink");
}

#[test]
fn grow_cycles() {
    test("grow");
}
