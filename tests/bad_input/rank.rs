//! One rank of a job: makes a communicator, sums with it where that works, says what it was told, and counts
//! what it holds before and after.

use std::time::{Duration, Instant};

use crate::common::abi::{Config, IN_PROGRESS, INVALID_ARGUMENT, REMOTE_ERROR, SUCCESS};
use crate::common::cuda::Cuda;
use crate::common::launch::{self, Job, Outcome};
use crate::common::nccl::UniqueId;
use crate::common::resources::Resources;
use crate::library::{Answer, Bench, Lib};

/// Longer than any case may take on a busy machine; shorter than NCCL's own 60 s of retries, and than for ever.
pub const DEADLINE: Duration = Duration::from_secs(50);
/// Memory that one creation may leave in the allocator, in KiB.
const SLACK_KIB: u64 = 16 << 10;
/// How long a communicator must be seen waiting before it is aborted.
const WAITING: Duration = Duration::from_millis(300);

/// What a rank's process is told. Each can be set for one rank alone by [`Job::env_of`].
pub const ID: &str = "BAD_ID";
pub const RANK: &str = "BAD_RANK";
pub const NRANKS: &str = "BAD_NRANKS";
pub const DEVICE: &str = "BAD_DEVICE";
/// How many more descriptors the process may open.
pub const FILES: &str = "BAD_FILES";
/// `blocking`, `poll`, `abort`.
pub const MODE: &str = "BAD_MODE";

/// Ranks that use one id, with a device each. The id's root lives in the calling process.
pub fn ranks(n: usize) -> Job {
    with_id(n, &Lib::load().id())
}

/// Ranks that use this id.
pub fn with_id(n: usize, id: &UniqueId) -> Job {
    Job::this_test("rank::one_rank", n).env(ID, hex(id)).deadline(DEADLINE).allow_any_warning()
}

pub fn hex(id: &UniqueId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn from_hex(text: &str) -> UniqueId {
    let mut id = UniqueId([0; 128]);
    for (i, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("an id in hex");
    }
    id
}

/// What a child process found out, for its parent.
pub fn say(answer: &Answer) {
    println!("ANSWER {} {}", answer.code, answer.text.replace('\n', " "));
}

/// What the ranks said, in their order. Every one must have ended well.
#[track_caller]
pub fn answers(outcome: &Outcome) -> Vec<Answer> {
    outcome.assert_ok();
    let all = outcome.ranks.iter().map(|rank| {
        let line = rank.stdout.lines().find_map(|line| line.split_once("ANSWER "));
        let (code, text) = line.expect("an answer").1.split_once(' ').expect("a code and a text");
        Answer { code: code.parse().expect("a code"), text: text.to_string() }
    });
    all.collect()
}

/// Runs a job in which every rank must be told `code` and all of `parts`.
#[track_caller]
pub fn all_told(job: Job, code: i32, parts: &[&str]) -> Vec<Answer> {
    let outcome = job.run();
    let answers = answers(&outcome);
    for answer in &answers {
        answer.is(code, parts);
    }
    answers
}

fn number(name: &str) -> Option<i32> {
    std::env::var(name).ok()?.parse().ok()
}

/// Loads everything that stays for the life of the process: driver, device, log.
pub fn warm_up(lib: Lib) -> Cuda {
    let cuda = Cuda::load("libcuda.so.1").expect("the software device");
    cuda.use_device(0).expect("a device");
    let (answer, comm) = lib.init(1, lib.id(), 0);
    answer.ok();
    let bench = Bench::new(cuda, 0);
    bench.begin(lib, comm, 0);
    bench.check(1);
    lib.destroy(comm).ok();
    cuda
}

/// What this process holds, once what is on its way out has gone, and what is on its way in has its name.
pub fn settled() -> Resources {
    let until = Instant::now() + Duration::from_secs(3);
    let mut resources = Resources::now();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let next = Resources::now();
        // A thread that has not run yet is called like the one that started it.
        let unnamed = next.threads.get(own_name().trim()).is_some_and(|count| *count > 1);
        let same = next.grown(&resources).is_empty() && resources.grown(&next).is_empty();
        if same && !unnamed || Instant::now() > until {
            return next;
        }
        resources = next;
    }
}

fn own_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap_or_default()
}

/// Not a test of its own: a rank's process.
#[test]
fn one_rank() {
    let Some(me) = launch::child() else { return };
    let lib = Lib::load();
    let rank = number(RANK).unwrap_or(me.rank as i32);
    let nranks = number(NRANKS).unwrap_or(me.nranks as i32);
    let device = number(DEVICE).unwrap_or(me.rank as i32) as usize;
    let id = from_hex(&std::env::var(ID).expect("an id"));
    let cuda = warm_up(lib);
    cuda.use_device(device).expect("a device");
    // Before descriptors are few: what the test itself needs is not at stake.
    let bench = Bench::new(cuda, device);
    let before = settled();
    if let Some(more) = number(FILES) {
        allow_files(more as u64);
    }
    println!("READY");
    let answer = match std::env::var(MODE).as_deref() {
        Ok("abort") => start_and_abort(lib, nranks, id, rank),
        Ok("poll") => start_and_poll(lib, nranks, id, rank),
        _ => blocking(lib, &bench, nranks, id, rank),
    };
    say(&answer);
    before.assert_same();
    before.assert_memory_within(SLACK_KIB);
}

/// Limits the process to the descriptors that it has and `more`.
fn allow_files(more: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let open = std::fs::read_dir("/proc/self/fd").expect("the open files");
    let open: Vec<u64> = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The device keeps its own at high numbers; new ones take the lowest. One is the listing's.
    let free = (0..).filter(|number| !open.contains(number)).nth(more as usize);
    let limit = free.map(|number| number - 1);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("a lower limit");
}

/// A creation that blocks; where it succeeds, its communicator must work.
fn blocking(lib: Lib, bench: &Bench, nranks: i32, id: UniqueId, rank: i32) -> Answer {
    let (answer, comm) = lib.init(nranks, id, rank);
    if answer.code != SUCCESS {
        assert_eq!(comm, 0, "a failed creation leaves NULL: {answer:?}");
        return answer;
    }
    println!("MADE");
    first_call(lib, bench, comm, (nranks, rank)).unwrap_or(answer)
}

/// Makes a call and ends the communicator. What the call says where it lacks something for its links, or the state of a
/// rank that has waited for such a one. None where all is well.
fn first_call(lib: Lib, bench: &Bench, comm: usize, (nranks, rank): (i32, i32)) -> Option<Answer> {
    let mut answer = bench.try_begin(lib, comm, rank as usize);
    if answer.code == SUCCESS {
        bench.cuda.wait(bench.stream).expect("the kernel ends, or leaves");
        answer = lib.answer(lib.state(comm));
    }
    if answer.code == SUCCESS {
        bench.check(nranks as usize);
        lib.destroy(comm).ok();
        return None;
    }
    lib.abort(comm).ok();
    Some(answer)
}

/// A creation in the background that another thread aborts while it waits for ranks.
fn start_and_abort(lib: Lib, nranks: i32, id: UniqueId, rank: i32) -> Answer {
    let (answer, comm) = lib.init_config(nranks, id, rank, Config::oldest(0));
    answer.is(IN_PROGRESS, &[]);
    let since = Instant::now();
    while lib.state(comm) == IN_PROGRESS && since.elapsed() < WAITING {
        std::thread::sleep(Duration::from_millis(10));
    }
    // Or another rank was faster with its abort.
    let state = lib.state(comm);
    assert!([IN_PROGRESS, REMOTE_ERROR].contains(&state), "{:?}", lib.answer(state));
    let aborted = std::thread::spawn(move || lib.abort(comm)).join().expect("the aborting thread");
    lib.count(comm).is(INVALID_ARGUMENT, &["comm"]);
    aborted
}

/// A creation in the background whose state is asked for until it ends.
fn start_and_poll(lib: Lib, nranks: i32, id: UniqueId, rank: i32) -> Answer {
    let (answer, comm) = lib.init_config(nranks, id, rank, Config::oldest(0));
    answer.is(IN_PROGRESS, &[]);
    let state = loop {
        match lib.state(comm) {
            IN_PROGRESS => std::thread::sleep(Duration::from_millis(2)),
            state => break state,
        }
    };
    let answer = lib.answer(state);
    if state != SUCCESS {
        // An error stays: every use returns it again, and destroy frees nothing.
        assert_eq!(lib.count(comm).code, state);
        assert_eq!(lib.destroy(comm).code, state);
    }
    lib.abort(comm).ok();
    answer
}
