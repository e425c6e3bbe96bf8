//! A rank: makes communicators, and prints what they cost it.

use std::fs;
use std::time::Instant;

use crate::common::cuda::Cuda;
use crate::common::launch::Place;
use crate::common::nccl::{Comm, Nccl, UniqueId};
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::{Resources, rss_kib};

/// Communicators that are measured together.
pub const AT_ONCE: usize = 4;
/// Creations that are timed, after one that is not.
pub const CREATIONS: usize = 5;
/// When it is measured.
pub const STATES: [&str; 2] = ["idle", "after_AllReduce"];
/// What is measured, and how it is called.
pub const COLUMNS: [(&str, &str); 6] = [
    ("fds", "fds"),
    ("threads", "threads"),
    ("shm_mapped", "shm map KiB"),
    ("shm_used", "touched KiB"),
    ("device", "device KiB"),
    ("rss", "RSS KiB"),
];
/// Elements of the small AllReduce.
const COUNT: usize = 256;

struct Libraries {
    nccl: Nccl,
    cuda: Cuda,
}

/// What the process holds, in the order of [`COLUMNS`].
fn holdings(libraries: &Libraries) -> [f64; 6] {
    let resources = Resources::now();
    let (free, total) = libraries.cuda.memory().expect("the numbers");
    let (mapped, used) = shared_memory();
    [
        resources.fds.values().sum::<usize>() as f64,
        resources.threads.values().sum::<usize>() as f64,
        mapped,
        used,
        (total - free) as f64 / 1024.0,
        rss_kib() as f64,
    ]
}

/// KiB of host memory that the library has mapped and shares with others: their size, of which each rank reserves its
/// part, and this process's part of the pages that somebody has touched.
fn shared_memory() -> (f64, f64) {
    let (mut ours, mut mapped, mut used) = (false, 0.0, 0.0);
    let number = |rest: &str| rest.split_whitespace().next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    for line in fs::read_to_string("/proc/self/smaps").unwrap_or_default().lines() {
        if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            ours = line.contains("/memfd:") && !line.contains("softcuda");
        } else if let Some(rest) = line.strip_prefix("Size:").filter(|_| ours) {
            mapped += number(rest);
        } else if let Some(rest) = line.strip_prefix("Pss:").filter(|_| ours) {
            used += number(rest);
        }
    }
    (mapped, used)
}

fn meet(me: &Place, nccl: &Nccl, name: &str) -> UniqueId {
    if me.rank == 0 {
        me.publish(name, &nccl.unique_id().expect("an id").0);
    }
    UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"))
}

fn init(me: &Place, nccl: &Nccl, name: &str) -> Comm {
    let id = meet(me, nccl, name);
    let mut comm = Comm::NULL;
    // SAFETY: the handle lives until the call is over.
    unsafe { nccl.init_rank(&mut comm, me.nranks, id, me.rank) }.expect("a communicator");
    comm
}

/// The work of this process.
pub fn run(me: &Place) {
    let cuda = Cuda::load("libcuda.so.1").expect("libcuda");
    let libraries = Libraries { nccl: Nccl::load("libnccl.so.2").expect("libnccl"), cuda };
    cuda.use_device(me.rank).expect("a device");
    // What processes and devices have once, whatever the number of communicators: kernels above all.
    let first = init(me, &libraries.nccl, "first");
    match std::env::args().nth(1).as_deref() {
        Some("costs") => costs(me, &libraries),
        _ => creations(me, &libraries),
    }
    me.barrier("end");
    libraries.nccl.destroy(first).expect("destroy");
}

fn costs(me: &Place, libraries: &Libraries) {
    let Libraries { nccl, cuda, .. } = libraries;
    let (stream, buffer) = (cuda.stream().expect("a stream"), cuda.alloc(4 * COUNT).expect("memory"));
    me.barrier("before");
    let before = holdings(libraries);
    let comms: Vec<Comm> = (0..AT_ONCE).map(|k| init(me, nccl, &format!("id {k}"))).collect();
    me.barrier("idle");
    let tell = |state: &str| {
        // Roots of rank 0 end by themselves.
        std::thread::sleep(std::time::Duration::from_millis(100));
        for ((name, _), (now, before)) in COLUMNS.iter().zip(holdings(libraries).iter().zip(before)) {
            println!("{state}.{name} {}", (now - before) / AT_ONCE as f64);
        }
    };
    tell(STATES[0]);
    me.barrier("measured");
    for comm in &comms {
        let what = (DataType::Float32, RedOp::Sum);
        // SAFETY: the buffer lives to the end of the process.
        unsafe { nccl.all_reduce((buffer, buffer), COUNT, what, *comm, stream.0) }.expect("a call");
        cuda.wait(stream).expect("the work");
    }
    me.barrier("summed");
    tell(STATES[1]);
    me.barrier("measured again");
    comms.into_iter().for_each(|comm| nccl.destroy(comm).expect("destroy"));
}

fn creations(me: &Place, libraries: &Libraries) {
    for k in 0..CREATIONS {
        let id = meet(me, &libraries.nccl, &format!("id {k}"));
        me.barrier(&format!("start {k}"));
        let (start, mut comm) = (Instant::now(), Comm::NULL);
        // SAFETY: the handle lives until the call is over.
        unsafe { libraries.nccl.init_rank(&mut comm, me.nranks, id, me.rank) }.expect("a communicator");
        println!("creation.{k} {}", start.elapsed().as_secs_f64() * 1e3);
        me.barrier(&format!("made {k}"));
        libraries.nccl.destroy(comm).expect("destroy");
    }
}
