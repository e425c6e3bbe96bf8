//! A rank, and what these tests call besides the common bindings.

use crate::common::abi::{Comm, Config, IN_PROGRESS, MemStat, SUCCESS, UniqueId};
use crate::common::collectives::Collectives;
use crate::common::communicators::Communicators;
use crate::common::cuda::{Cuda, Stream};
use crate::common::launch::Place;
use crate::common::nccl::{Failure, Nccl};
use crate::common::oracle::{DataType, RedOp};

/// Values of inputs come round after so many elements: all sums are exact.
const PERIOD: usize = 7;

#[derive(Clone, Copy)]
pub struct Api {
    pub nccl: Nccl,
    pub cuda: Cuda,
    pub collectives: Collectives,
    pub comms: Communicators,
}

impl Api {
    pub fn load() -> Api {
        Api {
            nccl: Nccl::load("libnccl.so.2").expect("libnccl"),
            cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
            collectives: Collectives::load("libnccl.so.2").expect("libnccl"),
            comms: Communicators::load(),
        }
    }

    /// Free bytes of the current device.
    pub fn free_bytes(&self) -> i64 {
        self.cuda.memory().expect("the numbers").0 as i64
    }

    pub fn id(&self, me: &Place, name: &str) -> UniqueId {
        if me.rank == 0 {
            me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"))
    }
}

/// A rank of a communicator, with a stream of its own.
#[derive(Clone, Copy)]
pub struct Member {
    pub api: Api,
    pub comm: Comm,
    pub rank: usize,
    pub nranks: usize,
    pub stream: Stream,
}

impl Member {
    /// The rank of this process; `name` is that of the rendezvous.
    pub fn of_process(api: Api, me: &Place, name: &str) -> Member {
        api.cuda.use_device(me.rank).expect("a device");
        let (id, mut comm) = (api.id(me, name), Comm::NULL);
        // SAFETY: the handle lives until the call is over.
        unsafe { api.nccl.init_rank(&mut comm, me.nranks, id, me.rank) }.expect("a communicator");
        Member::new(api, comm, me.rank, me.nranks)
    }

    /// The same with `blocking = 0`, when it is ready.
    pub fn polled(api: Api, me: &Place) -> Member {
        api.cuda.use_device(me.rank).expect("a device");
        let (code, comm) = api.comms.init((me.nranks, me.rank), api.id(me, "id"), Some(&Config::nonblocking()));
        assert_eq!(code, IN_PROGRESS);
        let member = Member::new(api, comm, me.rank, me.nranks);
        assert_eq!(member.settle(), SUCCESS);
        member
    }

    /// A rank whose device is current.
    pub fn new(api: Api, comm: Comm, rank: usize, nranks: usize) -> Member {
        Member { api, comm, rank, nranks, stream: api.cuda.stream().expect("a stream") }
    }

    pub fn stat(&self, stat: MemStat) -> u64 {
        self.api.comms.mem_stat(self.comm, stat).expect("a number")
    }

    /// Polls until nothing is under way; returns the state.
    pub fn settle(&self) -> i32 {
        self.api.nccl.settle(self.comm)
    }

    fn element(rank: usize, at: usize) -> f32 {
        (rank + 1) as f32 + (at % PERIOD) as f32
    }

    /// A buffer with this rank's numbers.
    pub fn input(&self, count: usize) -> u64 {
        let bytes: Vec<u8> = (0..count).flat_map(|at| Member::element(self.rank, at).to_le_bytes()).collect();
        let at = self.api.cuda.alloc(bytes.len()).expect("memory");
        self.api.cuda.copy_to_device(at, &bytes).expect("copy");
        at
    }

    /// Calls AllReduce in place.
    pub fn all_reduce(&self, at: u64, count: usize) -> Result<(), Failure> {
        let what = (DataType::Float32, RedOp::Sum);
        // SAFETY: the buffers of tests live to the end of the process, or until the stream was waited for.
        unsafe { self.api.nccl.all_reduce((at, at), count, what, self.comm, self.stream.0) }
    }

    fn expect(&self, at: u64, count: usize, value: impl Fn(usize) -> f32) {
        let mut bytes = vec![0; count * 4];
        self.api.cuda.copy_to_host(&mut bytes, at).expect("copy");
        for (place, word) in bytes.chunks_exact(4).enumerate() {
            let found = f32::from_le_bytes(word.try_into().expect("four bytes"));
            assert_eq!(found, value(place), "rank {} of {}, element {place} of {count}", self.rank, self.nranks);
        }
    }

    /// Checks the sum of all ranks' inputs.
    pub fn check_sum(&self, at: u64, count: usize) {
        let n = self.nranks;
        self.expect(at, count, |place| (n * (n + 1) / 2) as f32 + (n * (place % PERIOD)) as f32);
    }

    /// Checks what `from` has sent.
    pub fn check_from(&self, at: u64, count: usize, from: usize) {
        self.expect(at, count, |place| Member::element(from, place));
    }

    /// An AllReduce from begin to end.
    pub fn sum(&self, count: usize) {
        let at = self.input(count);
        match self.all_reduce(at, count) {
            Err(failure) if failure.code == IN_PROGRESS => assert_eq!(self.settle(), SUCCESS),
            result => result.expect("a call"),
        }
        self.api.cuda.wait(self.stream).expect("wait");
        self.check_sum(at, count);
        self.free(at);
    }

    pub fn free(&self, at: u64) {
        // SAFETY: whoever calls this has waited for what used the memory.
        unsafe { self.api.cuda.free(at) }.expect("free");
    }

    /// Queues a send.
    pub fn send(&self, at: u64, count: usize, to: usize) {
        let (what, stream) = ((count, DataType::Float32), self.stream.0);
        // SAFETY: as for AllReduce.
        unsafe { self.api.collectives.send(at, what, to as i32, self.comm, stream) }.expect("a send");
    }

    /// Queues a receive.
    pub fn recv(&self, at: u64, count: usize, from: usize) {
        let (what, stream) = ((count, DataType::Float32), self.stream.0);
        // SAFETY: as for AllReduce.
        unsafe { self.api.collectives.recv(at, what, from as i32, self.comm, stream) }.expect("a receive");
    }

    pub fn end(self) {
        self.api.nccl.destroy(self.comm).expect("destroy");
        self.api.cuda.destroy_stream(self.stream).expect("destroy a stream");
    }
}
