//! Many ranks, by the C interface: descriptors, mappings, and what happens where peer memory does not work.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::common::cuda::Cuda;
use crate::common::launch::{self, Job};
use crate::common::nccl::{Comm, Nccl, UniqueId};
use crate::common::resources::Resources;

/// Ranks of one process.
const MANY: usize = 64;
/// The soft limit of descriptors on most systems.
const FILES: u64 = 1024;
/// An initialisation that takes longer does not end: generous, since a machine can be busy.
const LIMIT: Duration = Duration::from_secs(60);

/// Threads as ranks of one communicator; `look` runs once all have it.
fn threads(nranks: usize, look: impl Fn() + Sync) {
    let (nccl, cuda) = (Nccl::load("libnccl.so.2").expect("nccl"), Cuda::load("libcuda.so.1").expect("cuda"));
    let (id, meeting, devices) =
        (nccl.unique_id().expect("an id"), Barrier::new(nranks), cuda.device_count().expect("devices"));
    thread::scope(|scope| {
        for rank in 0..nranks {
            let (nccl, meeting, look) = (&nccl, &meeting, &look);
            scope.spawn(move || {
                cuda.use_device(rank % devices).expect("a device");
                let mut comm = Comm::NULL;
                // SAFETY: the variable lives until the call returns.
                unsafe { nccl.init_rank(&mut comm, nranks, id, rank) }
                    .unwrap_or_else(|failure| panic!("rank {rank}: {failure}"));
                if meeting.wait().is_leader() {
                    look();
                }
                meeting.wait();
                nccl.destroy(comm).expect("destroy");
            });
        }
    });
}

/// Threads as ranks, with few descriptors to be had.
fn many_threads() {
    let limit = Rlimit { current: Some(FILES), maximum: Some(FILES) };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    for nranks in [2, 8, MANY] {
        let (start, before) = (Instant::now(), Resources::now());
        threads(nranks, || {
            let (took, now) = (start.elapsed(), Resources::now());
            let (fds, maps) =
                (total(&now.fds) - total(&before.fds), total(&now.shared_maps) - total(&before.shared_maps));
            let mib = now.rss_kib.saturating_sub(before.rss_kib) >> 10;
            println!("{nranks} ranks as threads: {took:?}, {fds} more descriptors, {maps} shared mappings, {mib} MiB");
            let links = now.fds.keys().filter(|name| name.contains("oxccl-link")).count();
            assert_eq!(links, 0, "a mapping needs no descriptor");
            assert!(took < LIMIT, "{took:?}");
        });
    }
}

fn total(counts: &BTreeMap<String, usize>) -> usize {
    counts.values().sum()
}

#[test]
fn sixty_four_threads_share_device_memory() {
    if launch::child().is_some() {
        return many_threads();
    }
    let job = Job::this_test("scale::sixty_four_threads_share_device_memory", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    let outcome = job.run();
    outcome.assert_ok();
    println!("{}", outcome.ranks[0].stdout);
}

#[test]
fn sixty_four_threads_share_host_memory() {
    if launch::child().is_some() {
        return many_threads();
    }
    let job = Job::this_test("scale::sixty_four_threads_share_host_memory", 1).env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    let outcome = job.env("NCCL_P2P_DISABLE", "1").run();
    outcome.assert_ok();
    println!("{}", outcome.ranks[0].stdout);
}

/// One rank cannot map the memory of a peer: the two take host memory, and one of them says why.
#[test]
fn where_peer_memory_does_not_work_two_take_host_memory() {
    if let Some(me) = launch::child() {
        let (nccl, cuda) = (Nccl::load("libnccl.so.2").expect("nccl"), Cuda::load("libcuda.so.1").expect("cuda"));
        cuda.use_device(me.rank).expect("a device");
        if me.rank == 0 {
            me.publish("id", &nccl.unique_id().expect("an id").0);
        }
        let id = UniqueId(me.await_published("id").try_into().expect("128 bytes"));
        let mut comm = Comm::NULL;
        // SAFETY: the variable lives until the call returns.
        unsafe { nccl.init_rank(&mut comm, me.nranks, id, me.rank) }.expect("init");
        assert_eq!(nccl.count(comm), Ok(me.nranks as i32));
        me.barrier("counted");
        return nccl.destroy(comm).expect("destroy");
    }
    let job = Job::this_test("scale::where_peer_memory_does_not_work_two_take_host_memory", 3);
    let job = job.env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_SUBSYS", "INIT,P2P,SHM");
    let outcome = job.env_of(1, "SOFTCUDA_FAULT", "cuMemImportFromShareableHandle:2").run();
    outcome.assert_ok();
    for (rank, said) in outcome.ranks.iter().enumerate() {
        let why = "P2P does not work between rank 1 (device 1, busId 11000) and rank 2 (device 2, busId 12000): Cuda";
        assert_eq!(said.stdout.contains(why), rank == 1, "rank {rank}: {outcome}");
        let links = if rank == 0 { "(2 by P2P/IPC)" } else { "(1 by P2P/IPC, 1 by SHM/direct)" };
        assert!(said.stdout.contains(links), "rank {rank}: {outcome}");
    }
}
