//! What the tests call, and how they check a communicator.

use std::ffi::CStr;
use std::time::Duration;

use crate::common::abi::{Comm, Config, IN_PROGRESS, MAGIC, SUCCESS, UniqueId};
use crate::common::communicators::Communicators;
use crate::common::cuda::{Cuda, Stream};
use crate::common::launch::Place;
use crate::common::nccl::Nccl;
use crate::common::oracle::{DataType, RedOp};

/// How long anything may take that must not hang, on a machine that is busy.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Elements of a check: more than a slot has, so that several are used.
const COUNT: usize = 50_000;

/// A configuration whose calls return before they are done, with all fields.
pub fn nonblocking() -> Config {
    Config { blocking: 0, ..Config::default() }
}

/// `config` with a network.
pub fn with_net(config: Config, name: &'static CStr) -> Config {
    Config { net_name: name.as_ptr(), ..config }
}

/// What is split off or shrunk shares resources.
pub fn sharing() -> Config {
    Config { split_share: 1, shrink_share: 1, ..Config::default() }
}

/// A configuration without its magic number.
pub fn without_magic() -> Config {
    Config { magic: MAGIC ^ 1, ..Config::default() }
}

/// The size is 0, as in a struct that nobody initialised.
pub fn without_size() -> Config {
    Config { size: 0, ..Config::default() }
}

/// Both libraries.
#[derive(Clone, Copy)]
pub struct Api {
    pub nccl: Nccl,
    pub cuda: Cuda,
    pub comms: Communicators,
}

impl Api {
    /// Loads the libraries of this build.
    pub fn load() -> Api {
        Api {
            nccl: Nccl::load("libnccl.so.2").expect("libnccl"),
            cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
            comms: Communicators::load(),
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
        let (code, comm) = self.comms.init((nranks, rank), id, config);
        assert!(matches!(code, SUCCESS | IN_PROGRESS), "init: {code}: {}", self.nccl.last_error());
        assert_eq!(self.nccl.settle(comm), SUCCESS, "{}", self.nccl.last_error());
        comm
    }

    pub fn init_scalable(&self, ids: &[UniqueId], place: (usize, usize)) -> Comm {
        let (code, comm) = self.comms.init_scalable(ids, place, None);
        assert_eq!(code, SUCCESS, "{}", self.nccl.last_error());
        comm
    }

    /// `ncclCommSplit`, and how it went.
    pub fn try_split(&self, comm: Comm, color: i32, key: i32, config: Option<&Config>) -> (i32, Comm) {
        let mut child = Comm(std::ptr::dangling_mut());
        // SAFETY: the handle lives until the call is over.
        let code = unsafe { self.comms.split(comm, color, key, &mut child, config) };
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
        unsafe { self.comms.split(comm, color, key, child, None) }
    }

    /// `ncclCommShrink`, and how it went.
    pub fn try_shrink(&self, comm: Comm, excluded: &mut [i32], flags: i32, config: Option<&Config>) -> (i32, Comm) {
        let mut child = Comm(std::ptr::dangling_mut());
        // SAFETY: the handle lives until the call is over.
        let code = unsafe { self.comms.shrink(comm, Ok(excluded), &mut child, config, flags) };
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
        place: (usize, i32),
        id: Option<&UniqueId>,
        config: Option<&Config>,
    ) -> (i32, Comm) {
        let mut child = Comm(std::ptr::dangling_mut());
        // SAFETY: the handle lives until the call is over.
        let code = unsafe { self.comms.grow(comm, place, id, &mut child, config) };
        (code, child)
    }

    pub fn grow(&self, comm: Comm, place: (usize, i32), id: Option<&UniqueId>) -> Comm {
        let (code, child) = self.try_grow(comm, place, id, None);
        assert_eq!(code, SUCCESS, "grow to {place:?}: {}", self.nccl.last_error());
        child
    }

    /// Checks size and rank of a communicator and its device, and that an AllReduce finds exactly `members`: numbers
    /// that the ranks have in the job, in the order of their ranks here; `me` is this one's.
    pub fn check(&self, comm: Comm, members: &[usize], me: usize) {
        let place = members.iter().position(|member| *member == me).expect("a member");
        assert_eq!(self.nccl.count(comm), Ok(members.len() as i32));
        assert_eq!(self.comms.user_rank(comm), Ok(place as i32), "rank of {me} among {members:?}");
        assert_eq!(self.comms.cu_device(comm), Ok(me as i32));
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

/// NCCL's rule for a split: who gets into one communicator with `me`, in which order.
pub fn members_of(colors: &[i32], keys: &[i32], me: usize) -> Vec<usize> {
    let mut members: Vec<usize> = (0..colors.len()).filter(|rank| colors[*rank] == colors[me]).collect();
    members.sort_by_key(|rank| (keys[*rank], *rank));
    members
}
