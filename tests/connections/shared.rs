//! Device memory that ranks share: whole blocks of this library's own, whichever way they are made.

use crate::common::launch::{self, Job};
use crate::member::{Api, Member};

/// The job with the traps of a GPU's IPC, by `cuMemCreate` and by `cuMemAlloc`.
fn both_ways(name: &str, nranks: usize) -> [Job; 2] {
    let job = || Job::this_test(name, nranks).env("SOFTCUDA_STRICT_IPC", "1");
    [job(), job().env("NCCL_CUMEM_ENABLE", "0")]
}

/// What `cuMemAlloc` gives below 2 MiB lies in a block of the driver's with other allocations, which nobody wants to
/// share: the user's, and this library's.
#[test]
fn nothing_of_others_is_shared() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        [10, 5_000, 200_000].into_iter().for_each(|count| member.sum(count));
        me.barrier("done");
        return;
    }
    for job in both_ways("shared::nothing_of_others_is_shared", 3) {
        let outcome = job.run();
        outcome.assert_ok();
        assert!(outcome.ranks.iter().all(|rank| !rank.stderr.contains("shares the block")), "{outcome}");
    }
}
