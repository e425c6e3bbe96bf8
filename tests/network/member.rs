//! A rank that sums numbers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::abi::{Comm, SUCCESS};
use crate::common::cuda::{Cuda, Stream};
use crate::common::launch::{self, Place};
use crate::common::nccl::{Failure, Nccl, UniqueId};
use crate::common::oracle::{DataType, RedOp};

/// Numbers of a call.
const COUNT: usize = 3001;

pub struct Member {
    pub nccl: Nccl,
    cuda: Cuda,
    comm: Comm,
    rank: usize,
    nranks: usize,
    send: u64,
    recv: u64,
    stream: Stream,
}

impl Member {
    /// Joins by an id that rank 0 makes.
    pub fn join(me: &Place, name: &str) -> Result<Member, Failure> {
        Member::join_of(me, me.nranks, name)
    }

    /// The same where only the first `nranks` processes of the job are ranks.
    pub fn join_of(me: &Place, nranks: usize, name: &str) -> Result<Member, Failure> {
        Member::join_then(me, nranks, name, |_| ())
    }

    /// The same where something is done between the making of the id and the communicator's.
    pub fn join_when(me: &Place, name: &str, then: impl FnOnce(&Nccl)) -> Result<Member, Failure> {
        Member::join_then(me, me.nranks, name, then)
    }

    fn join_then(me: &Place, nranks: usize, name: &str, then: impl FnOnce(&Nccl)) -> Result<Member, Failure> {
        let nccl = Nccl::load("libnccl.so.2").expect("libnccl");
        nccl.encrypt_as_told();
        let cuda = Cuda::load("libcuda.so.1").expect("libcuda");
        cuda.use_device(me.rank).expect("a device");
        if me.rank == 0 {
            me.publish(name, &nccl.unique_id()?.0);
        }
        let id = UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"));
        then(&nccl);
        let mut comm = Comm::NULL;
        // SAFETY: the handle lives until the call is over.
        unsafe { nccl.init_rank(&mut comm, nranks, id, me.rank) }?;
        let (send, recv) = (cuda.alloc(COUNT * 4).expect("memory"), cuda.alloc(COUNT * 4).expect("memory"));
        let stream = cuda.stream().expect("a stream");
        Ok(Member { nccl, cuda, comm, rank: me.rank, nranks, send, recv, stream })
    }

    /// Sums numbers that depend on the round, and checks the sums. `extra` is one more of each rank's, whose sum comes
    /// back.
    pub fn sum(&self, round: u32, extra: u32) -> u32 {
        let value =
            |rank: usize, i: usize| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(round * 7 + rank as u32);
        let mut data: Vec<u32> = (0..COUNT).map(|i| value(self.rank, i)).collect();
        data[0] = extra;
        let got = self.add(&data);
        let expected = |i| (0..self.nranks).map(|rank| value(rank, i)).fold(0u32, u32::wrapping_add);
        assert!((1..COUNT).all(|i| got[i] == expected(i)), "rank {} round {round}: wrong sums", self.rank);
        got[0]
    }

    /// Sums the same number again and again.
    pub fn sum_pattern(&self, value: u32) {
        assert_eq!(self.add(&[value; COUNT]), vec![value.wrapping_mul(self.nranks as u32); COUNT]);
    }

    fn add(&self, data: &[u32]) -> Vec<u32> {
        let bytes: Vec<u8> = data.iter().flat_map(|number| number.to_ne_bytes()).collect();
        self.cuda.copy_to_device(self.send, &bytes).expect("a copy");
        let kind = (DataType::Uint32, RedOp::Sum);
        // SAFETY: the buffers are that large and live until the stream has been waited for.
        unsafe { self.nccl.all_reduce((self.send, self.recv), COUNT, kind, self.comm, self.stream.0) }.expect("a call");
        self.cuda.wait(self.stream).expect("the stream ends");
        let mut bytes = vec![0; COUNT * 4];
        self.cuda.copy_to_host(&mut bytes, self.recv).expect("a copy");
        bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    /// Sums until rank 0 finds that something was published.
    pub fn sum_until(&self, me: &Place, name: &str) -> u32 {
        let until = Instant::now() + launch::DEADLINE;
        for round in 0.. {
            let found = me.rank == 0 && me.dir.join(name).exists();
            if self.sum(round, found.into()) > 0 {
                return round;
            }
            assert!(Instant::now() < until, "nobody publishes {name}");
        }
        unreachable!("rounds end")
    }

    /// One more sum, or what the communicator says when there is none.
    pub fn try_sum(&self) -> Result<(), Failure> {
        let kind = (DataType::Uint32, RedOp::Sum);
        // SAFETY: the buffers are that large and live until the stream has been waited for.
        unsafe { self.nccl.all_reduce((self.send, self.recv), COUNT, kind, self.comm, self.stream.0) }?;
        self.cuda.wait(self.stream).expect("the stream ends");
        match self.nccl.async_error(self.comm)? {
            SUCCESS => Ok(()),
            code => Err(Failure { call: "ncclCommGetAsyncError", code, text: self.nccl.last_error() }),
        }
    }

    /// Does something while a thread asks for the communicator's state, as watchdogs do.
    pub fn watched<T>(&self, work: impl FnOnce() -> T) -> T {
        let (done, nccl, comm) = (AtomicBool::new(false), &self.nccl, self.comm);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(nccl.async_error(comm).expect("a state"), SUCCESS, "{}", nccl.last_error());
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            result
        })
    }

    /// Ends it whatever others do; how long that takes.
    pub fn abort(self) -> Duration {
        let start = Instant::now();
        self.nccl.abort(self.comm).expect("the communicator ends");
        start.elapsed()
    }

    pub fn end(self) {
        self.nccl.destroy(self.comm).expect("the communicator ends");
    }
}

/// What a rank does that only shows that everything works.
pub fn body(me: &Place) {
    let member = Member::join(me, "id").unwrap_or_else(|failure| panic!("{failure:?}"));
    (0..3).for_each(|round| assert_eq!(member.sum(round, 1), me.nranks as u32));
    member.end();
}

/// Waits until something holds.
pub fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + launch::DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
