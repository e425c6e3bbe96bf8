//! What the tests call, and how they check a communicator.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::common::cuda::{Cuda, Stream};
use crate::common::launch::Place;
use crate::common::nccl::{Comm, Nccl, UniqueId, open, symbol};
use crate::common::oracle::{DataType, RedOp};

/// `ncclResult_t`.
pub const SUCCESS: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 4;
pub const INVALID_USAGE: i32 = 5;
pub const REMOTE_ERROR: i32 = 6;
pub const IN_PROGRESS: i32 = 7;

/// `NCCL_SPLIT_NOCOLOR`.
pub const NO_COLOR: i32 = -1;
/// `NCCL_SHRINK_ABORT`.
pub const ABORT: i32 = 1;

/// How long anything may take that must not hang, on a machine that is busy.
pub const LIMIT: Duration = Duration::from_secs(60);
/// `NCCL_CONFIG_UNDEF_INT` twice, as it stands in a word.
const UNDEF: u64 = 0x8000_0000_8000_0000;
/// Elements of a check: more than a slot has, so that several are used.
const COUNT: usize = 50_000;

/// An `ncclConfig_t` of this version.
#[derive(Clone)]
pub struct Config {
    words: [u64; 15],
    net: Option<std::ffi::CString>,
}

impl Config {
    /// Nothing is said.
    pub fn new() -> Config {
        let mut words = [UNDEF; 15];
        (words[0], words[1]) = (120, 0xcafe_beef | 23203 << 32);
        // netName, commName.
        (words[4], words[6]) = (0, 0);
        Config { words, net: None }
    }

    /// Calls return before they are done.
    pub fn polled() -> Config {
        let mut config = Config::new();
        config.words[2] = UNDEF << 32;
        config
    }

    pub fn net(mut self, name: &str) -> Config {
        let name = std::ffi::CString::new(name).expect("no NUL");
        self.words[4] = name.as_ptr() as u64;
        self.net = Some(name);
        self
    }

    /// `splitShare` and `shrinkShare`.
    pub fn shared(mut self) -> Config {
        self.words[5] = 1 | UNDEF << 32;
        self.words[8] = 1 | UNDEF << 32;
        self
    }

    pub fn wrong() -> Config {
        let mut config = Config::new();
        config.words[1] ^= 1;
        config
    }

    /// As [`Config::new`], but the size is 0, as in a struct that nobody initialised.
    pub fn sizeless() -> Config {
        let mut config = Config::new();
        config.words[0] = 0;
        config
    }

    fn pointer(config: Option<&Config>) -> *const c_void {
        config.map_or(std::ptr::null(), |config| config.words.as_ptr().cast())
    }
}

type Split = unsafe extern "C" fn(Comm, c_int, c_int, *mut Comm, *const c_void) -> c_int;
type Shrink = unsafe extern "C" fn(Comm, *mut c_int, c_int, *mut Comm, *const c_void, c_int) -> c_int;
type Grow = unsafe extern "C" fn(Comm, c_int, *const UniqueId, c_int, *mut Comm, *const c_void) -> c_int;

/// Both libraries.
#[derive(Clone, Copy)]
pub struct Api {
    pub nccl: Nccl,
    pub cuda: Cuda,
    init_config: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *const c_void) -> c_int,
    init_scalable: unsafe extern "C" fn(*mut Comm, c_int, c_int, c_int, *const UniqueId, *const c_void) -> c_int,
    user_rank: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    cu_device: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub split: Split,
    pub shrink: Shrink,
    pub grow: Grow,
    comm_id: unsafe extern "C" fn(Comm, *mut UniqueId) -> c_int,
    revoke: unsafe extern "C" fn(Comm, c_int) -> c_int,
}

impl Api {
    /// Loads the libraries of this build.
    pub fn load() -> Api {
        let l = open("libnccl.so.2").expect("libnccl");
        let missing = "a function of the library";
        // SAFETY: the types of the fields are the prototypes of nccl.h.
        unsafe {
            Api {
                nccl: Nccl::load("libnccl.so.2").expect("libnccl"),
                cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
                init_config: symbol(l, "ncclCommInitRankConfig").expect(missing),
                init_scalable: symbol(l, "ncclCommInitRankScalable").expect(missing),
                user_rank: symbol(l, "ncclCommUserRank").expect(missing),
                cu_device: symbol(l, "ncclCommCuDevice").expect(missing),
                split: symbol(l, "ncclCommSplit").expect(missing),
                shrink: symbol(l, "ncclCommShrink").expect(missing),
                grow: symbol(l, "ncclCommGrow").expect(missing),
                comm_id: symbol(l, "ncclCommGetUniqueId").expect(missing),
                revoke: symbol(l, "ncclCommRevoke").expect(missing),
            }
        }
    }

    /// A communicator of all processes of a job on the devices of their numbers; `name` is used once.
    pub fn init(&self, me: &Place, name: &str, config: Option<&Config>) -> Comm {
        self.cuda.use_device(me.rank).expect("a device");
        if me.rank == 0 {
            me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        let id = UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"));
        self.init_with(id, (me.nranks, me.rank), config)
    }

    /// A communicator of some ranks that have an id.
    pub fn init_with(&self, id: UniqueId, (nranks, rank): (usize, usize), config: Option<&Config>) -> Comm {
        let mut comm = Comm::NULL;
        // SAFETY: handle and configuration live until it is settled.
        let code =
            unsafe { (self.init_config)(&mut comm, nranks as c_int, id, rank as c_int, Config::pointer(config)) };
        assert!(matches!(code, SUCCESS | IN_PROGRESS), "init: {code}: {}", self.nccl.last_error());
        assert_eq!(self.nccl.settle(comm), SUCCESS, "{}", self.nccl.last_error());
        comm
    }

    pub fn init_scalable(&self, ids: &[UniqueId], place: (usize, usize)) -> Comm {
        let (code, comm) = self.try_init_scalable(ids, place, None);
        assert_eq!(code, SUCCESS, "{}", self.nccl.last_error());
        comm
    }

    /// `ncclCommInitRankScalable`, and how it went.
    pub fn try_init_scalable(&self, ids: &[UniqueId], place: (usize, usize), config: Option<&Config>) -> (i32, Comm) {
        let mut comm = Comm(std::ptr::dangling_mut());
        let (n, rank, count) = (place.0 as c_int, place.1 as c_int, ids.len() as c_int);
        // SAFETY: the list has that many ids; handle and configuration live until the call is over.
        let code = unsafe { (self.init_scalable)(&mut comm, n, rank, count, ids.as_ptr(), Config::pointer(config)) };
        (code, comm)
    }

    /// `ncclCommSplit`, and how it went.
    pub fn try_split(&self, comm: Comm, color: i32, key: i32, config: Option<&Config>) -> (i32, Comm) {
        let mut child = Comm(std::ptr::dangling_mut());
        // SAFETY: handle and configuration live until the call is over.
        let code = unsafe { (self.split)(comm, color, key, &mut child, Config::pointer(config)) };
        (code, child)
    }

    pub fn split(&self, comm: Comm, color: i32, key: i32) -> Comm {
        let (code, child) = self.try_split(comm, color, key, None);
        assert_eq!(code, SUCCESS, "split by {color}, {key}: {}", self.nccl.last_error());
        child
    }

    /// Queues a split in a group.
    ///
    /// # Safety
    /// `child` stays where it is until the group is over.
    pub unsafe fn queue_split(&self, comm: Comm, color: i32, key: i32, child: *mut Comm) -> i32 {
        // SAFETY: the caller vouches for the handle.
        unsafe { (self.split)(comm, color, key, child, std::ptr::null()) }
    }

    /// `ncclCommShrink`, and how it went.
    pub fn try_shrink(&self, comm: Comm, excluded: &mut [i32], flags: i32, config: Option<&Config>) -> (i32, Comm) {
        let mut child = Comm(std::ptr::dangling_mut());
        let (list, count) = (excluded.as_mut_ptr(), excluded.len() as c_int);
        // SAFETY: list, handle and configuration live until the call is over.
        let code = unsafe { (self.shrink)(comm, list, count, &mut child, Config::pointer(config), flags) };
        (code, child)
    }

    pub fn shrink(&self, comm: Comm, excluded: &[usize], flags: i32) -> Comm {
        let mut list: Vec<i32> = excluded.iter().map(|rank| *rank as i32).collect();
        let (code, child) = self.try_shrink(comm, &mut list, flags, None);
        assert_eq!(code, SUCCESS, "shrink by {excluded:?}: {}", self.nccl.last_error());
        child
    }

    /// `ncclCommGrow`, and how it went.
    pub fn try_grow(
        &self,
        comm: Comm,
        (nranks, rank): (usize, i32),
        id: Option<&UniqueId>,
        config: Option<&Config>,
    ) -> (i32, Comm) {
        let mut child = Comm(std::ptr::dangling_mut());
        let id = id.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: id, handle and configuration live until the call is over.
        let code = unsafe { (self.grow)(comm, nranks as c_int, id, rank, &mut child, Config::pointer(config)) };
        (code, child)
    }

    pub fn grow(&self, comm: Comm, place: (usize, i32), id: Option<&UniqueId>) -> Comm {
        let (code, child) = self.try_grow(comm, place, id, None);
        assert_eq!(code, SUCCESS, "grow to {place:?}: {}", self.nccl.last_error());
        child
    }

    /// `ncclCommGetUniqueId`.
    pub fn growth_id(&self, comm: Comm) -> Result<UniqueId, i32> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the pointer is to a live id.
        match unsafe { (self.comm_id)(comm, &mut id) } {
            SUCCESS => Ok(id),
            code => Err(code),
        }
    }

    pub fn revoke(&self, comm: Comm, flags: i32) -> i32 {
        // SAFETY: the library checks the handle.
        unsafe { (self.revoke)(comm, flags) }
    }

    /// A number that some query gives.
    fn ask(&self, comm: Comm, question: unsafe extern "C" fn(Comm, *mut c_int) -> c_int) -> i32 {
        let mut answer = -1;
        // SAFETY: the pointer is to a live int.
        assert_eq!(unsafe { question(comm, &mut answer) }, SUCCESS, "{}", self.nccl.last_error());
        answer
    }

    /// Checks size and rank of a communicator and its device, and that an AllReduce finds exactly `members`: numbers that
    /// the ranks have in the job, in the order of their ranks here; `me` is this one's.
    pub fn check(&self, comm: Comm, members: &[usize], me: usize) {
        let place = members.iter().position(|member| *member == me).expect("a member");
        assert_eq!(self.nccl.count(comm), Ok(members.len() as i32));
        assert_eq!(self.ask(comm, self.user_rank), place as i32, "rank of {me} among {members:?}");
        assert_eq!(self.ask(comm, self.cu_device), me as i32);
        let bench = Bench::new(self);
        let begun = bench.begin(self, comm, me);
        assert!(matches!(begun, Ok(()) | Err(IN_PROGRESS)), "AllReduce: {begun:?}: {}", self.nccl.last_error());
        // The first call of a communicator that is polled connects in the background.
        assert_eq!(self.nccl.settle(comm), SUCCESS, "{}", self.nccl.last_error());
        bench.expect(self, members);
    }

    pub fn destroy(&self, comm: Comm) {
        self.nccl.destroy(comm).expect("destroy");
    }
}

/// Memory and a stream for an AllReduce.
pub struct Bench {
    cuda: Cuda,
    buffer: u64,
    pub stream: Stream,
}

/// What a rank brings: its number among all processes, and a part that differs by element.
fn term(me: usize, at: usize) -> u64 {
    (1 << (7 * me)) + ((at as u64 % 13) << 58)
}

impl Bench {
    pub fn new(api: &Api) -> Bench {
        let cuda = api.cuda;
        Bench { cuda, buffer: cuda.alloc(8 * COUNT).expect("memory"), stream: cuda.stream().expect("a stream") }
    }

    /// Calls AllReduce; its code if it is refused.
    pub fn begin(&self, api: &Api, comm: Comm, me: usize) -> Result<(), i32> {
        let bytes: Vec<u8> = (0..COUNT).flat_map(|at| term(me, at).to_le_bytes()).collect();
        self.cuda.copy_to_device(self.buffer, &bytes).expect("copy");
        let what = (DataType::Uint64, RedOp::Sum);
        // SAFETY: the buffer lives until this is dropped.
        let called = unsafe { api.nccl.all_reduce((self.buffer, self.buffer), COUNT, what, comm, self.stream.0) };
        called.map_err(|failure| failure.code)
    }

    /// Waits, and compares.
    pub fn expect(&self, _api: &Api, members: &[usize]) {
        self.cuda.wait(self.stream).expect("wait");
        let mut bytes = vec![0; 8 * COUNT];
        self.cuda.copy_to_host(&mut bytes, self.buffer).expect("copy");
        for (at, found) in bytes.chunks_exact(8).enumerate() {
            let found = u64::from_le_bytes(found.try_into().expect("8 bytes"));
            let wanted = members.iter().fold(0u64, |sum, member| sum.wrapping_add(term(*member, at)));
            assert_eq!(found, wanted, "element {at} with {members:?}: {found:#x}, not {wanted:#x}");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.cuda.wait(self.stream).expect("wait");
        self.cuda.destroy_stream(self.stream).expect("destroy a stream");
        // SAFETY: the stream has done its work.
        unsafe { self.cuda.free(self.buffer) }.expect("free");
    }
}

/// The rule of spec §6.3: who gets into one communicator with `me`, in which order.
pub fn members_of(colors: &[i32], keys: &[i32], me: usize) -> Vec<usize> {
    let mut members: Vec<usize> = (0..colors.len()).filter(|rank| colors[*rank] == colors[me]).collect();
    members.sort_by_key(|rank| (keys[*rank], *rank));
    members
}
