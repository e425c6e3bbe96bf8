//! A rank: makes two communicators, one after the other, and prints what they took.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::time::{ClockId, clock_gettime};

use crate::common::communicators::Communicators;
use crate::common::cuda::Cuda;
use crate::common::launch::Place;
use crate::common::nccl::{Comm, Nccl, UniqueId};
use crate::common::resources::{Resources, rss_kib};

/// The process that holds the locks.
pub const LOCK: &str = "OXCCL_INIT_LOCK";
/// Seconds by which the last rank is late.
pub const LATE: &str = "OXCCL_INIT_LATE";

/// Which communicator of a process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    First,
    Second,
}

impl Turn {
    pub const ALL: [Turn; 2] = [Turn::First, Turn::Second];

    /// The file whose lock all ranks wait for.
    pub fn path(self) -> PathBuf {
        let holder = std::env::var(LOCK).unwrap_or_else(|_| std::process::id().to_string());
        std::env::temp_dir().join(format!("oxccl-init-{holder}-{self:?}"))
    }

    /// What a rank publishes when it is at the lock.
    pub fn ready(self, rank: usize) -> String {
        format!("{self:?}.ready.{rank}")
    }
}

/// Processor time of this process.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The work of this process.
pub fn run(me: &Place) {
    let cuda = Cuda::load("libcuda.so.1").expect("libcuda");
    let nccl = Nccl::load("libnccl.so.2").expect("libnccl");
    let comms = Communicators::load();
    cuda.use_device(me.rank).expect("a device");
    let count: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).expect("the number of ids");
    let late: f64 = std::env::var(LATE).ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let mut made = Vec::new();
    for turn in Turn::ALL {
        if me.rank < count {
            me.publish(&format!("{turn:?}.id.{}", me.rank), &nccl.unique_id().expect("an id").0);
        }
        let id = |at| UniqueId(me.await_published(&format!("{turn:?}.id.{at}")).try_into().expect("128 bytes"));
        let ids: Vec<UniqueId> = (0..count).map(id).collect();
        let lock = File::open(turn.path()).expect("the lock");
        me.publish(&turn.ready(me.rank), b"");
        flock(&lock, FlockOperation::LockShared).expect("the lock");
        if me.rank + 1 == me.nranks && late > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(late));
        }
        let (begun, used) = (Instant::now(), cpu());
        made.push(create(me, &nccl, &comms, &ids));
        let (wall, used) = (begun.elapsed().as_secs_f64(), cpu() - used);
        println!("{turn:?}.wall {wall}\n{turn:?}.cpu {used}\n{turn:?}.rss {}", rss_kib());
    }
    let resources = Resources::now();
    println!("fds {}\nthreads {}", resources.fds.values().sum::<usize>(), resources.threads.values().sum::<usize>());
    made.into_iter().for_each(|comm| nccl.destroy(comm).expect("destroy"));
}

fn create(me: &Place, nccl: &Nccl, comms: &Communicators, ids: &[UniqueId]) -> Comm {
    if let [id] = ids {
        let mut comm = Comm::NULL;
        // SAFETY: the handle lives until the call is over.
        unsafe { nccl.init_rank(&mut comm, me.nranks, *id, me.rank) }.expect("a communicator");
        return comm;
    }
    let (code, comm) = comms.init_scalable(ids, (me.nranks, me.rank), None);
    assert_eq!(code, 0, "{}", nccl.last_error());
    comm
}
