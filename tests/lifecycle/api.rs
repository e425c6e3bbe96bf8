//! The libraries, and what these tests need of them: communicators that are polled, sums, counts of what is held.

use std::env;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::common::abi::{Comm, Config, IN_PROGRESS, ResetDebugInit, SUCCESS, UniqueId};
use crate::common::communicators::Communicators;
use crate::common::cuda::{Cuda, Stream};
use crate::common::graph::Graphs;
use crate::common::launch::Place;
use crate::common::nccl::{Failure, Nccl, open, symbol};
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::Resources;

/// How long an abort may take, and what a busy machine may add.
pub const ABORT: Duration = Duration::from_secs(2);
pub const SLACK: Duration = Duration::from_secs(2);
/// How long what ends by itself may take to be gone.
const GONE: Duration = Duration::from_secs(5);
/// Most roots that stay for a while after their creation has failed.
const ROOTS: usize = 8;
/// Elements of a sum, and its element type.
pub const COUNT: usize = 1000;
const BYTES: usize = COUNT * 4;

/// The libraries of this build.
#[derive(Clone, Copy)]
pub struct Api {
    pub nccl: Nccl,
    pub cuda: Cuda,
    pub graphs: Graphs,
    comms: Communicators,
    reset_debug: ResetDebugInit,
}

impl Api {
    /// Loads the libraries, once for the process.
    pub fn load() -> &'static Api {
        static LOADED: OnceLock<Api> = OnceLock::new();
        LOADED.get_or_init(|| {
            let nccl = open("libnccl.so.2").expect("libnccl");
            Api {
                nccl: Nccl::load("libnccl.so.2").expect("libnccl"),
                cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
                graphs: Graphs::load().expect("libcuda"),
                comms: Communicators::load(),
                // SAFETY: the type is the prototype of nccl.h.
                reset_debug: unsafe { symbol(nccl, "ncclResetDebugInit") }.expect("the library has the function"),
            }
        })
    }

    /// Begins to make a communicator that is polled.
    pub fn begin(&self, (nranks, rank): (usize, usize), id: UniqueId) -> Comm {
        let mut comm = Comm::NULL;
        assert_eq!(self.begin_at(&mut comm, (nranks, rank), id), IN_PROGRESS, "{}", self.nccl.last_error());
        assert_ne!(comm, Comm::NULL, "the handle is valid at once");
        comm
    }

    /// `ncclCommInitRankConfig` with `blocking = 0`; the code as it is.
    pub fn begin_at(&self, comm: &mut Comm, (nranks, rank): (usize, usize), id: UniqueId) -> i32 {
        // SAFETY: without blocking the handle is written before the return.
        unsafe { self.comms.init_config(comm, (nranks, rank), id, &Config::nonblocking()) }
    }

    /// A blocking communicator on the current device.
    pub fn init(&self, (nranks, rank): (usize, usize), id: UniqueId) -> Comm {
        self.try_init((nranks, rank), id).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// The same, where it may fail.
    pub fn try_init(&self, (nranks, rank): (usize, usize), id: UniqueId) -> Result<Comm, Failure> {
        let mut comm = Comm::NULL;
        // SAFETY: the handle lives until the call is over.
        unsafe { self.nccl.init_rank(&mut comm, nranks, id, rank) }.map(|()| comm)
    }

    /// A communicator of this process alone, made and destroyed: what is left over from before goes with it.
    pub fn sweep(&self) {
        let comm = self.init((1, 0), self.nccl.unique_id().expect("an id"));
        self.nccl.destroy(comm).expect("destroy");
    }

    /// The codes of the three questions about a communicator.
    pub fn questions(&self, comm: Comm) -> [(&'static str, i32); 3] {
        self.comms.questions(comm)
    }

    /// `ncclResetDebugInit`.
    pub fn reset_log(&self) {
        // SAFETY: no arguments.
        unsafe { (self.reset_debug)() };
    }

    /// `ncclCommSplit` with one colour, into a place that outlives it: without blocking, the handle comes later.
    pub fn split(&self, comm: Comm, key: i32) -> (i32, &'static mut Comm) {
        let made = Box::leak(Box::new(Comm::NULL));
        // SAFETY: the place is never freed; NULL stands for the parent's configuration.
        (unsafe { self.comms.split(comm, 0, key, made, None) }, made)
    }

    /// `ncclCommShrink` without a rank.
    pub fn shrink(&self, comm: Comm, without: usize) -> (i32, Comm) {
        let (mut list, mut made) = ([without as c_int], Comm::NULL);
        // SAFETY: the communicator blocks, so that the handle is written before the return.
        (unsafe { self.comms.shrink(comm, Ok(&mut list), &mut made, None, 0) }, made)
    }

    /// `ncclCommGrow`: without a communicator for a rank that is new.
    pub fn grow(&self, comm: Comm, place: (usize, i32), id: &UniqueId) -> (i32, Comm) {
        let mut made = Comm::NULL;
        // SAFETY: it blocks, so that the handle is written before the return.
        (unsafe { self.comms.grow(comm, place, Some(id), &mut made, None) }, made)
    }

    /// `ncclCommGetUniqueId`.
    pub fn growth_id(&self, comm: Comm) -> UniqueId {
        self.comms.unique_id(comm).unwrap_or_else(|code| panic!("{code}: {}", self.nccl.last_error()))
    }

    /// How processes meet: rank 0 publishes an id under a name that is used once.
    pub fn meet(&self, me: &Place, name: &str) -> UniqueId {
        if me.rank == 0 {
            me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"))
    }

    /// Bytes of the current device that this process has.
    pub fn device_bytes(&self) -> usize {
        let (free, total) = self.cuda.memory().expect("the numbers");
        total - free
    }
}

/// A communicator, and a stream and memory for sums in place.
#[derive(Clone, Copy)]
pub struct Member {
    pub api: &'static Api,
    pub comm: Comm,
    pub stream: Stream,
    buffer: u64,
    nranks: usize,
    rank: usize,
}

impl Member {
    /// On the current device.
    pub fn new(comm: Comm, (nranks, rank): (usize, usize)) -> Member {
        let api = Api::load();
        let (stream, buffer) = (api.cuda.stream().expect("a stream"), api.cuda.alloc(BYTES).expect("memory"));
        Member { api, comm, stream, buffer, nranks, rank }
    }

    /// The process's rank on the device of its number.
    pub fn of_process(me: &Place, id: &str) -> Member {
        let api = Api::load();
        api.cuda.use_device(me.rank).expect("a device");
        Member::new(api.init((me.nranks, me.rank), api.meet(me, id)), (me.nranks, me.rank))
    }

    /// The same stream and memory with another communicator.
    pub fn with(self, comm: Comm) -> Member {
        Member { comm, ..self }
    }

    /// The same as another rank.
    pub fn at(self, (nranks, rank): (usize, usize)) -> Member {
        Member { nranks, rank, ..self }
    }

    /// Fills the input: element `i` of rank `r` is `(r + 1) * (i + 1)`.
    pub fn fill(&self) {
        let input: Vec<u8> = (0..COUNT).flat_map(|i| (((self.rank + 1) * (i + 1)) as i32).to_ne_bytes()).collect();
        self.api.cuda.copy_to_device(self.buffer, &input).expect("a copy");
    }

    /// Calls AllReduce on what is there. The first call of a communicator that is polled connects in the background.
    pub fn call(&self) -> Result<(), Failure> {
        match self.begin_call() {
            Err(failure) if failure.code == IN_PROGRESS => match self.api.nccl.settle(self.comm) {
                SUCCESS => Ok(()),
                code => Err(Failure { code, ..failure }),
            },
            result => result,
        }
    }

    /// The same without waiting for that.
    pub fn begin_call(&self) -> Result<(), Failure> {
        let what = (DataType::Int32, RedOp::Sum);
        // SAFETY: the buffer is freed when the stream's work has ended, or at the end of the process.
        unsafe { self.api.nccl.all_reduce((self.buffer, self.buffer), COUNT, what, self.comm, self.stream.0) }
    }

    /// Waits for the stream, and checks the sum.
    pub fn check(&self) {
        self.api.cuda.wait(self.stream).expect("the work");
        let mut output = vec![0; BYTES];
        self.api.cuda.copy_to_host(&mut output, self.buffer).expect("a copy");
        let ranks = (self.nranks * (self.nranks + 1) / 2) as i32;
        for (i, got) in output.chunks(4).enumerate() {
            let want = ranks * (i as i32 + 1);
            assert_eq!(got, want.to_ne_bytes(), "element {i} should be {want}");
        }
    }

    /// Sums, and checks the sum.
    pub fn sum(&self) {
        self.fill();
        self.call().unwrap_or_else(|failure| panic!("{failure}"));
        self.check();
    }

    /// Frees what is not the communicator.
    pub fn free(self) {
        self.api.cuda.wait(self.stream).expect("the work");
        self.api.cuda.destroy_stream(self.stream).expect("destroy a stream");
        // SAFETY: the stream's work has ended, and nothing else uses the memory.
        unsafe { self.api.cuda.free(self.buffer) }.expect("free");
    }

    /// Destroys the communicator, and frees the rest.
    pub fn end(self) {
        self.api.nccl.destroy(self.comm).expect("destroy");
        self.free();
    }
}

/// Aborts, within the time that an abort has.
#[track_caller]
pub fn abort(api: &Api, comm: Comm) {
    let start = Instant::now();
    api.nccl.abort(comm).expect("abort");
    assert!(start.elapsed() < ABORT + SLACK, "an abort took {:?}", start.elapsed());
}

/// What a process and its share of the current device hold.
pub struct Holdings {
    resources: Resources,
    device: usize,
}

impl Holdings {
    /// Counts now, when what is left over from before is gone.
    pub fn now() -> Holdings {
        let api = Api::load();
        api.sweep();
        Holdings { resources: Resources::now(), device: api.device_bytes() }
    }

    /// Fails unless everything that came since is gone again within some seconds, but for roots of creations that
    /// failed: a few stay for ranks that come late.
    #[track_caller]
    pub fn assert_same(&self) {
        let api = Api::load();
        api.sweep();
        let until = Instant::now() + GONE;
        loop {
            let (left, now) = (left_behind(&self.resources), api.device_bytes());
            if left.is_empty() && now <= self.device {
                return;
            }
            if Instant::now() > until {
                panic!("bytes of the device: {} before, {now} now; left behind:\n{}", self.device, left.join("\n"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What there is more of than before, without what roots have that may stay: they are in the helper thread.
fn left_behind(before: &Resources) -> Vec<String> {
    let now = Resources::now();
    let grown = now.grown(before);
    let more = |line: &str| line.split(' ').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(usize::MAX);
    let helpers = now.threads.get("oxccl-helper").copied().unwrap_or(0);
    let allowed = |line: &String| match line.split_once(" more ").map_or("", |(_, what)| what) {
        "threads: oxccl-helper" => helpers == 1,
        // A root listens, as does the thread, which has a mailbox, an epoll set and an event, too.
        "fds: socket" => helpers == 1 && more(line) <= ROOTS + 2,
        "fds: anon_inode" => more(line) <= 2 * helpers,
        // The driver's own, which comes and goes as it is needed.
        "threads: softcuda-kicker" => true,
        _ => false,
    };
    grown.iter().filter(|line| !allowed(line)).cloned().collect()
}

/// The random numbers of a test; `OXCCL_SEED` picks others.
pub fn seeded_rng(of: &str) -> SmallRng {
    let seed = env::var("OXCCL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    println!("seed {seed} ({of})");
    SmallRng::seed_from_u64(of.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
}
