//! Device memory that ranks share: whole blocks of this library's own, whichever way they are made.

use crate::common::abi::MemStat;
use crate::common::launch::{self, Job, Place};
use crate::common::nccl::Comm;
use crate::member::{Api, Member};

/// Blocks are multiples of this, in bytes.
const BLOCK: u64 = 2 << 20;

/// The job with the traps of a GPU's IPC, by `cuMemCreate` and by `cuMemAlloc`.
fn both_ways(name: &str, nranks: usize) -> [Job; 2] {
    let job = || Job::this_test(name, nranks).env("SOFTCUDA_STRICT_IPC", "1");
    [job(), job().env("NCCL_CUMEM_ENABLE", "0")]
}

/// Runs it, and fails where the software device tells of a trap in these words.
fn without_traps(name: &str, nranks: usize, words: &str) {
    for job in both_ways(name, nranks) {
        let outcome = job.run();
        outcome.assert_ok();
        assert!(outcome.ranks.iter().all(|rank| !rank.stderr.contains(words)), "{outcome}");
    }
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
    without_traps("shared::nothing_of_others_is_shared", 3, "shares the block");
}

/// The bytes of the device that are free when nothing of ended communicators is left. Calls that make or end one see to
/// that, each for what peers have let go until then: so communicators of this rank alone come and go for a while.
fn settled_bytes(api: Api, me: &Place, name: &str) -> i64 {
    Member::of_process(api, me, name).end();
    me.barrier(name);
    let alone = Place { rank: 0, nranks: 1, ..me.clone() };
    let free = (0..10).map(|round| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let (id, mut comm) = (api.id(&alone, &format!("{name} {} {round}", me.rank)), Comm::NULL);
        // SAFETY: the handle lives until the call is over.
        unsafe { api.nccl.init_rank(&mut comm, 1, id, 0) }.expect("a communicator");
        Member::new(api, comm, 0, 1).end();
        api.free_bytes()
    });
    let free = free.max().expect("ten rounds");
    me.barrier(&format!("{name} settled"));
    free
}

/// Ranks end their communicators at different times, in every order, and in both ways. Who is first must not free what
/// the other still has mapped: the device would be lost.
#[test]
fn the_maker_frees_when_all_have_unmapped() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        Member::of_process(api, &me, "warm").end();
        let free = settled_bytes(api, &me, "before");
        for round in 0..4 {
            let member = Member::of_process(api, &me, &format!("round {round}"));
            [10, 50_000].into_iter().for_each(|count| member.sum(count));
            assert_eq!(member.stat(MemStat::Suspend) % BLOCK, 0, "it is peer memory");
            me.barrier(&format!("used {round}"));
            let first = me.rank == round % me.nranks;
            if !first {
                me.await_published(&format!("ended {round}"));
            }
            match round {
                0 | 1 => member.end(),
                _ => api.nccl.abort(member.comm).expect("abort"),
            }
            if first {
                // Memory that comes to where the other's mapping may still be.
                let at = api.cuda.alloc(4 * BLOCK as usize).expect("memory");
                api.cuda.fill(at, 0xff, 4 * BLOCK as usize).expect("fill");
                api.cuda.synchronize().expect("the device is there");
                me.publish(&format!("ended {round}"), b"");
                member.free(at);
            }
        }
        me.barrier("all");
        assert_eq!(settled_bytes(api, &me, "after"), free, "nothing is left");
        return;
    }
    without_traps("shared::the_maker_frees_when_all_have_unmapped", 2, "another process has open");
}

/// Communicators come and go without a pause: what is mapped from the last one is no reason to do without peer memory.
#[test]
fn the_next_communicator_uses_peer_memory_again() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        for round in 0..12 {
            let member = Member::of_process(api, &me, &format!("round {round}"));
            [10, 50_000].into_iter().for_each(|count| member.sum(count));
            let links = member.stat(MemStat::Suspend);
            assert!(links > 0 && links.is_multiple_of(BLOCK), "round {round}: {links} bytes");
            member.end();
        }
        return;
    }
    without_traps("shared::the_next_communicator_uses_peer_memory_again", 3, "another process has open");
}

/// A peer that dies has unmapped everything: what it had mapped is freed, at once.
#[test]
fn a_dead_peer_keeps_nothing() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let member = Member::of_process(api, &me, "id");
        [10, 50_000].into_iter().for_each(|count| member.sum(count));
        me.barrier("used");
        if me.rank == 1 {
            me.publish("process", std::process::id().to_string().as_bytes());
            std::process::exit(0);
        }
        let process = String::from_utf8(me.await_published("process")).expect("a number");
        // A process that has ended has no program any more, even before its parent has taken notice.
        while std::fs::read_link(format!("/proc/{process}/exe")).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let free = api.free_bytes();
        let links = member.stat(MemStat::Suspend);
        api.nccl.abort(member.comm).expect("abort");
        assert!(api.free_bytes() >= free + links as i64, "{links} bytes of links");
        return;
    }
    for job in both_ways("shared::a_dead_peer_keeps_nothing", 2) {
        job.allow_any_warning().run().assert_ok();
    }
}
