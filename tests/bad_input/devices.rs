//! No device, no driver, and devices that ranks share.

use crate::common::abi::{INVALID_USAGE, REMOTE_ERROR, SUCCESS, UNHANDLED_CUDA_ERROR};
use crate::common::launch::{self, Job};
use crate::common::profile_dir;
use crate::library::{Bench, Lib};
use crate::rank::{DEADLINE, DEVICE, ID, all_told, answers, from_hex, ranks, say, settled, warm_up};

/// A process without a device: everything that needs none works, the rest says what is missing.
#[test]
fn no_device() {
    const NAME: &str = "devices::no_device";
    if launch::child().is_none() {
        let job = || Job::this_test(NAME, 1).deadline(DEADLINE).allow_any_warning();
        all_told(job().env("CUDA_VISIBLE_DEVICES", ""), UNHANDLED_CUDA_ERROR, &["device"]);
        all_told(job().env("SOFTCUDA_DEVICES", "0"), UNHANDLED_CUDA_ERROR, &["device"]);
        // The folder of the library alone: no driver is found there.
        all_told(job().env("LD_LIBRARY_PATH", profile_dir()), UNHANDLED_CUDA_ERROR, &["libcuda.so.1"]);
        return;
    }
    let lib = Lib::load();
    let _ = lib.init(1, lib.id(), 0);
    let before = settled();
    for _ in 0..5 {
        let id = lib.id();
        let (answer, comm) = lib.init(1, id, 0);
        answer.is(UNHANDLED_CUDA_ERROR, &[]);
        assert_eq!(comm, usize::MAX, "untouched, as by NCCL: the driver is looked for first");
        lib.init_all(2, None).0.is(UNHANDLED_CUDA_ERROR, &[]);
        let (answer, comm) = lib.init(2, id, 1);
        answer.is(UNHANDLED_CUDA_ERROR, &[]);
        assert_eq!(comm, usize::MAX);
    }
    say(&lib.init(1, lib.id(), 0).0);
    assert!(settled().grown(&before).iter().all(|line| root_of_an_unused_id(line)), "{:?}", settled().grown(&before));
}

/// The root of an id that nobody uses waits for a day, as NCCL's does.
fn root_of_an_unused_id(line: &str) -> bool {
    line.contains("oxccl-helper") || line.contains("fds")
}

/// One rank has no device: the others, who have, need not wait for it.
#[test]
fn one_rank_without_a_device() {
    const NAME: &str = "devices::one_rank_without_a_device";
    if let Some(me) = launch::child() {
        let lib = Lib::load();
        let id = from_hex(&std::env::var(ID).expect("an id"));
        return say(&lib.init(me.nranks as i32, id, me.rank as i32).0);
    }
    let id = crate::rank::hex(&Lib::load().id());
    let job = Job::this_test(NAME, 3).deadline(DEADLINE).allow_any_warning();
    let outcome = job.env(ID, id).env_of(1, "CUDA_VISIBLE_DEVICES", "").run();
    let told = answers(&outcome);
    told[1].is(UNHANDLED_CUDA_ERROR, &["device"]);
    for rank in [0, 2] {
        told[rank].is(REMOTE_ERROR, &["rank 1", "device"]);
    }
}

#[test]
fn two_ranks_on_one_device_are_refused() {
    let told = all_told(
        ranks(2).env(DEVICE, "0"),
        INVALID_USAGE,
        &["Duplicate GPU", "rank 0", "rank 1", "NCCL_MULTI_RANK_GPU_ENABLE"],
    );
    assert_eq!(told.len(), 2);
    all_told(ranks(4).env_of(3, DEVICE, "1"), INVALID_USAGE, &["Duplicate GPU", "rank 1", "rank 3"]);
}

#[test]
fn two_ranks_on_one_device_work_where_allowed() {
    let allowed = |n| ranks(n).env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    all_told(allowed(2).env(DEVICE, "0").env("SOFTCUDA_DEVICES", "1"), SUCCESS, &[]);
    all_told(
        allowed(4).env_of(0, DEVICE, "0").env_of(1, DEVICE, "0").env_of(2, DEVICE, "1").env_of(3, DEVICE, "1"),
        SUCCESS,
        &[],
    );
    all_told(allowed(2).env(DEVICE, "0").env("NCCL_P2P_DISABLE", "1"), SUCCESS, &[]);
}

/// The same in one process: three ranks as threads, each with a stream of its own.
#[test]
fn threads_on_one_device_work_where_allowed() {
    const NAME: &str = "devices::threads_on_one_device_work_where_allowed";
    if launch::child().is_none() {
        let job = Job::this_test(NAME, 1).deadline(DEADLINE).env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
        return job.env("SOFTCUDA_DEVICES", "1").run().assert_ok();
    }
    let lib = Lib::load();
    let cuda = warm_up(lib);
    let before = settled();
    let (answer, comms) = lib.init_all(3, Some(&[0, 0, 0]));
    answer.ok();
    // An allocation may wait for what runs on the device, which waits for the ranks that have not begun.
    let allocated = std::sync::Barrier::new(comms.len());
    std::thread::scope(|scope| {
        for (rank, comm) in comms.iter().enumerate() {
            let allocated = &allocated;
            scope.spawn(move || {
                let bench = Bench::new(cuda, 0);
                allocated.wait();
                for _ in 0..50 {
                    bench.begin(lib, *comm, rank);
                    bench.check(3);
                }
            });
        }
    });
    comms.iter().for_each(|comm| lib.destroy(*comm).ok());
    before.assert_same();
}
