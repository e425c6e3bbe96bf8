//! Many creations, many failures, many calls: what a process holds stays what it was.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::abi::{Comm, Config, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE};
use crate::common::cuda::Cuda;
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::UniqueId;
use crate::common::need;
use crate::common::resources::{Resources, rss_kib};
use crate::library::{Bench, Lib};
use crate::rank::{settled, warm_up};

/// A busy machine needs a while for all of them.
const PATIENCE: Duration = Duration::from_secs(100);
/// The root of a failed rendezvous stays this long to tell ranks that come late, and then some.
const LINGER: Duration = Duration::from_secs(40);

fn count(normal: usize) -> usize {
    if need::long() { 10 * normal } else { normal }
}

/// What a process has now that may only grow by a little.
struct Size {
    rss_kib: u64,
    maps: usize,
}

impl Size {
    fn now() -> Size {
        let maps = fs::read_to_string("/proc/self/maps").expect("the mappings").lines().count();
        Size { rss_kib: rss_kib(), maps }
    }

    /// Fails if memory has grown by more than `kib`, or mappings by more than the allocator's few.
    fn assert_flat(&self, kib: u64, maps: usize) {
        let now = Size::now();
        println!("memory {} -> {} KiB, mappings {} -> {}", self.rss_kib, now.rss_kib, self.maps, now.maps);
        assert!(now.rss_kib <= self.rss_kib + kib, "memory grew from {} to {} KiB", self.rss_kib, now.rss_kib);
        assert!(now.maps <= self.maps + maps, "mappings grew from {} to {}", self.maps, now.maps);
    }
}

/// Runs a round again and again; after the first tenth nothing may grow.
fn repeat(rounds: usize, kib: u64, mut round: impl FnMut(usize)) {
    let before = settled();
    let warm = rounds / 10 + 1;
    (0..warm).for_each(&mut round);
    let size = Size::now();
    (warm..rounds).for_each(&mut round);
    size.assert_flat(kib, 24);
    before.assert_same();
}

fn child_of(test: &str, n: usize) -> Option<(Place, Lib, Cuda)> {
    let Some(me) = launch::child() else {
        let job = Job::this_test(test, n).deadline(PATIENCE * if need::long() { 10 } else { 1 }).allow_any_warning();
        // The allocator shall give back what is freed, so that resident memory tells what is not.
        let job = job
            .env("MALLOC_ARENA_MAX", "1")
            .env("MALLOC_MMAP_THRESHOLD_", "65536")
            .env("MALLOC_TRIM_THRESHOLD_", "65536");
        job.run().assert_ok();
        return None;
    };
    let lib = Lib::load();
    let cuda = warm_up(lib);
    Some((me, lib, cuda))
}

#[test]
fn communicators_of_threads() {
    let Some((_, lib, cuda)) = child_of("leaks::communicators_of_threads", 1) else { return };
    let benches = [1, 0].map(|device| Bench::new(cuda, device));
    repeat(count(200), 4 << 10, |round| {
        let (answer, comms) = lib.init_all(2, None);
        answer.ok();
        lib.group_start();
        cuda.use_device(0).expect("a device");
        benches[1].begin(lib, comms[0], 0);
        cuda.use_device(1).expect("a device");
        benches[0].begin(lib, comms[1], 1);
        lib.group_end().ok();
        benches.iter().for_each(|bench| bench.check(2));
        let end = if round % 3 == 0 { Lib::abort } else { Lib::destroy };
        comms.iter().for_each(|comm| end(&lib, *comm).ok());
        for device in [0, 1] {
            cuda.release_device(device).expect("a retained context");
        }
    });
}

#[test]
fn communicators_of_processes() {
    let Some((me, lib, cuda)) = child_of("leaks::communicators_of_processes", 2) else { return };
    let bench = Bench::new(cuda, me.rank);
    repeat(count(200), 4 << 10, |round| {
        let name = format!("id.{round}");
        if me.rank == 0 {
            me.publish(&name, &lib.id().0);
        }
        let id = UniqueId(me.await_published(&name).try_into().expect("128 bytes"));
        let (answer, comm) = lib.init(2, id, me.rank as i32);
        answer.ok();
        bench.begin(lib, comm, me.rank);
        bench.check(2);
        lib.destroy(comm).ok();
    });
}

/// Two threads create a communicator for which `change` has made the second one unfit.
fn unfit(lib: Lib, cuda: Cuda, second: (i32, i32, usize)) -> [i32; 2] {
    let id = lib.id();
    let create = move |nranks, rank, device| {
        cuda.use_device(device).expect("a device");
        let code = lib.init(nranks, id, rank).0.code;
        cuda.release_device(device).expect("a retained context");
        code
    };
    let other = std::thread::spawn(move || create(second.0, second.1, second.2));
    [create(2, 0, 0), other.join().expect("a thread")]
}

#[test]
fn failures() {
    let Some((_, lib, cuda)) = child_of("leaks::failures", 1) else { return };
    let before = settled();
    let round = |round: usize| match round % 5 {
        0 => assert_eq!(lib.init(2, UniqueId([7; 128]), 0).0.code, INVALID_ARGUMENT),
        1 => {
            let (answer, comm) = lib.init_config(2, lib.id(), 0, Config::oldest(0));
            answer.is(IN_PROGRESS, &[]);
            // Until the root knows of the rank: else it waits on, as for an id that nobody has used yet.
            std::thread::sleep(Duration::from_millis(50));
            lib.abort(comm).ok();
        }
        2 => assert_eq!(unfit(lib, cuda, (2, 1, 0)), [INVALID_USAGE; 2]),
        3 => assert_eq!(unfit(lib, cuda, (3, 1, 1)), [INVALID_USAGE; 2]),
        _ => {
            let (mut comm, id) = (Comm::from_number(usize::MAX), lib.id());
            lib.group_start();
            // SAFETY: the handle outlives the group.
            unsafe { lib.init_in_group(&mut comm, 2, id, 0) }.ok();
            assert_eq!(lib.init(2, id, -1).0.code, INVALID_ARGUMENT);
            assert_eq!(lib.group_end().code, INVALID_ARGUMENT);
        }
    };
    (0..10).for_each(round);
    if need::long() {
        // A thousand roots at a time leave a mark of their own in the allocator, once.
        (0..count(100)).for_each(round);
        await_same(&before);
    }
    let size = Size::now();
    (0..count(100)).for_each(round);
    await_same(&before);
    // The C library keeps some stacks of the many roots that lived at the same time.
    size.assert_flat(4 << 10, 120);
}

/// Waits for the roots of failed rendezvous to end, too.
fn await_same(before: &Resources) {
    let until = Instant::now() + LINGER;
    loop {
        let left = Resources::now().grown(before);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < until, "left behind:\n  {}", left.join("\n  "));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn calls() {
    let Some((_, lib, cuda)) = child_of("leaks::calls", 1) else { return };
    let (answer, comms) = lib.init_all(2, None);
    answer.ok();
    let (answer, single) = lib.init(1, lib.id(), 0);
    answer.ok();
    let benches = [1, 0].map(|device| Bench::new(cuda, device));
    lib.group_start();
    benches[1].begin(lib, comms[0], 0);
    cuda.use_device(1).expect("a device");
    benches[0].begin(lib, comms[1], 1);
    lib.group_end().ok();
    // 50 at a time, so that queues stay short.
    repeat(count(20_000) / 50, 2 << 10, |_| {
        for _ in 0..50 {
            lib.group_start();
            benches[1].again(lib, comms[0]);
            benches[0].again(lib, comms[1]);
            lib.group_end().ok();
            benches[1].again(lib, single);
        }
        benches.iter().for_each(|bench| cuda.wait(bench.stream).expect("the work"));
    });
    lib.group_start();
    cuda.use_device(0).expect("a device");
    benches[1].begin(lib, comms[0], 0);
    cuda.use_device(1).expect("a device");
    benches[0].begin(lib, comms[1], 1);
    lib.group_end().ok();
    benches.iter().for_each(|bench| bench.check(2));
    [comms[0], comms[1], single].into_iter().for_each(|comm| lib.destroy(comm).ok());
}
