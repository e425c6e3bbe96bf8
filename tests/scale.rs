//! Communicators of many ranks, and what ranks cost while they wait or are idle. `OXCCL_LONG=1` goes up to 256 ranks.

mod common;

use std::time::Duration;

use common::cuda::Cuda;
use common::launch::{self, Job, Place};
use common::nccl::{Comm, Nccl, UniqueId};
use common::oracle::{DataType, RedOp};
use common::resources::{Resources, rss_kib};
use rustix::time::{ClockId, clock_gettime};

/// By how much the last rank is late.
const LATE: Duration = Duration::from_secs(3);
/// Communicators that are idle.
const IDLE: usize = 8;

fn is_long() -> bool {
    std::env::var_os("OXCCL_LONG").is_some()
}

/// Processor time of this process, in seconds.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct Rank {
    me: Place,
    nccl: Nccl,
    cuda: Cuda,
}

impl Rank {
    fn new(me: Place) -> Rank {
        let cuda = Cuda::load("libcuda.so.1").expect("libcuda");
        cuda.use_device(me.rank).expect("a device");
        Rank { me, nccl: Nccl::load("libnccl.so.2").expect("libnccl"), cuda }
    }

    fn id(&self, name: &str) -> UniqueId {
        if self.me.rank == 0 {
            self.me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        UniqueId(self.me.await_published(name).try_into().expect("an id has 128 bytes"))
    }

    fn init(&self, id: UniqueId) -> Comm {
        let mut comm = Comm::NULL;
        // SAFETY: the handle lives until the call is over.
        unsafe { self.nccl.init_rank(&mut comm, self.me.nranks, id, self.me.rank) }.expect("a communicator");
        comm
    }
}

/// Many ranks make a communicator, and each needs few descriptors and little memory for it.
#[test]
fn many_ranks_meet() {
    if let Some(me) = launch::child() {
        let rank = Rank::new(me);
        let nranks = rank.me.nranks;
        let comm = rank.init(rank.id("id"));
        let (fds, memory) = (Resources::now().fds.values().sum::<usize>(), rss_kib());
        // What peers share comes with descriptors.
        assert!(fds <= 64 + 3 * nranks, "{fds} descriptors");
        assert!(memory <= (48 << 10) + 256 * nranks as u64, "{memory} KiB");
        rank.me.barrier("measured");
        return rank.nccl.destroy(comm).expect("destroy");
    }
    for nranks in if is_long() { vec![16, 64, 256] } else { vec![16, 64] } {
        let job = Job::this_test("many_ranks_meet", nranks).env("SOFTCUDA_DEVICES", nranks.to_string());
        job.deadline(Duration::from_secs(180)).run().assert_ok();
    }
}

/// Ranks that wait for one that is late need next to no processor time.
#[test]
fn waiting_ranks_sleep() {
    if let Some(me) = launch::child() {
        let rank = Rank::new(me);
        let (warm, id) = (rank.id("warm"), rank.id("id"));
        let first = rank.init(warm);
        let before = cpu();
        rank.nccl.destroy(rank.init(rank.id("again"))).expect("destroy");
        let usual = cpu() - before;
        rank.me.barrier("ready");
        if rank.me.rank + 1 == rank.me.nranks {
            std::thread::sleep(LATE);
        }
        let before = cpu();
        let comm = rank.init(id);
        let used = cpu() - before;
        // As much as a creation takes in which nobody is late, which can vary, and a hundredth of the wait.
        let most = 4.0 * usual + 0.03 + 0.01 * LATE.as_secs_f64();
        assert!(used <= most, "{used} s of processor time, {usual} s without a wait");
        rank.nccl.destroy(comm).expect("destroy");
        return rank.nccl.destroy(first).expect("destroy");
    }
    Job::this_test("waiting_ranks_sleep", 8).run().assert_ok();
}

/// Communicators between two hosts that nobody uses need next to no processor time.
#[test]
fn idle_communicators_between_hosts_sleep() {
    if let Some(me) = launch::child() {
        let rank = Rank::new(me);
        let (stream, buffer) = (rank.cuda.stream().expect("a stream"), rank.cuda.alloc(4096).expect("memory"));
        let comms: Vec<Comm> = (0..IDLE).map(|at| rank.init(rank.id(&format!("id {at}")))).collect();
        for comm in &comms {
            let what = (DataType::Float32, RedOp::Sum);
            // SAFETY: the buffer lives to the end of the process.
            unsafe { rank.nccl.all_reduce((buffer, buffer), 1024, what, *comm, stream.0) }.expect("a call");
            rank.cuda.wait(stream).expect("the work");
        }
        rank.me.barrier("connected");
        std::thread::sleep(Duration::from_millis(500));
        let (idle, before) = (Duration::from_secs(if is_long() { 10 } else { 4 }), cpu());
        std::thread::sleep(idle);
        let used = cpu() - before;
        assert!(used <= 0.01 * idle.as_secs_f64(), "{used} s of processor time in {idle:?}");
        println!("idle {:.4} %", 100.0 * used / idle.as_secs_f64());
        rank.me.barrier("measured");
        return comms.into_iter().for_each(|comm| rank.nccl.destroy(comm).expect("destroy"));
    }
    let job = Job::this_test("idle_communicators_between_hosts_sleep", 2);
    let outcome = job.env_of(0, "NCCL_HOSTID", "one").env_of(1, "NCCL_HOSTID", "two").run();
    outcome.assert_ok();
}
