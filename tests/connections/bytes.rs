//! What a communicator holds: by its own account, and by that of the device and the system.

use crate::common::abi::MemStat;
use crate::common::launch::{self, Job};
use crate::common::resources::Resources;
use crate::member::{Api, Member};

/// The promise for a communicator that has done nothing yet, and after one small AllReduce, in bytes of a rank.
const IDLE: u64 = 96 << 10;
const USED: u64 = (1 << 20) + BLOCK;
/// Memory that peers map comes in blocks; the communicators of a process share one for what they try at first.
const BLOCK: u64 = 2 << 20;
/// What the device may count more: it gives whole pages.
const PAGES: i64 = 32 << 10;

fn total(counts: &std::collections::BTreeMap<String, usize>) -> usize {
    counts.values().sum()
}

/// What came since `before`, in words.
fn grown(before: &Resources) -> String {
    let now = Resources::now();
    let count = |now, before| total(now) as i64 - total(before) as i64;
    format!(
        "{} threads, {} fds, {} shared mappings more",
        count(&now.threads, &before.threads),
        count(&now.fds, &before.fds),
        count(&now.shared_maps, &before.shared_maps)
    )
}

/// What the device and the communicator say, in bytes.
fn held(member: &Member, free: i64) -> (i64, u64, u64) {
    (free - member.api.free_bytes(), member.stat(MemStat::Persist), member.stat(MemStat::Suspend))
}

fn one_rank(me: &launch::Place) {
    let api = Api::load();
    api.cuda.use_device(me.rank).expect("a device");
    // What the software device starts with its first use stays for the life of the process.
    let warm = Member::of_process(api, me, "warm");
    warm.sum(100);
    warm.end();
    let shm = std::env::var_os("NCCL_P2P_DISABLE").is_some();
    let at = api.cuda.alloc(400).expect("memory");
    me.barrier("warm");
    let (free, before) = (api.free_bytes(), Resources::now());
    let member = Member::of_process(api, me, "id");
    me.barrier("made");
    let (device, persist, links) = held(&member, free);
    println!(
        "rank {} of {}: idle {persist} + {links} bytes, {device} of the device, {}",
        me.rank,
        me.nranks,
        grown(&before)
    );
    assert_eq!(links, 0);
    let tried = if shm { 0 } else { BLOCK as i64 };
    assert!(persist < IDLE && device < IDLE as i64 + PAGES + tried, "{persist} bytes, {device} of the device");
    // The table of steps and the piece for the try are on the device; words that the host writes are not.
    assert!(device > 0 && device <= persist as i64 + PAGES + tried, "{persist} bytes, {device} of the device");
    me.barrier("looked");
    let input = member.input(100);
    member.all_reduce(input, 100).expect("a call");
    api.cuda.wait(member.stream).expect("wait");
    member.check_sum(input, 100);
    member.free(input);
    me.barrier("used");
    let (device, persist, links) = held(&member, free);
    println!(
        "rank {} of {}: used {persist} + {links} bytes, {device} of the device, {}",
        me.rank,
        me.nranks,
        grown(&before)
    );
    assert!(
        persist + links < USED && device < USED as i64 + tried,
        "{persist} + {links} bytes, {device} of the device"
    );
    assert_eq!(member.stat(MemStat::Total), persist + links);
    if shm {
        assert!(device < IDLE as i64 + PAGES, "links are in host memory: {device}");
        // Its own part, those of the others, and what it has tried at first.
        let links = Resources::now().shared_maps.into_iter().filter(|(name, _)| name.contains("oxccl-link"));
        assert_eq!(links.map(|(_, count)| count).sum::<usize>(), me.nranks + 1);
    } else {
        assert_eq!(links % BLOCK, 0, "whole blocks");
        assert!(device >= links as i64, "{links} bytes of links, {device} of the device");
    }
    let links = Resources::now().fds.keys().filter(|name| name.contains("oxccl-link")).count();
    assert_eq!(links, 0, "a mapping needs no descriptor");
    assert_eq!(
        Resources::now().threads.iter().find(|(name, _)| name.contains("oxccl")),
        Some((&"oxccl-helper".to_string(), &1))
    );
    me.barrier("counted");
    member.end();
    me.barrier("ended");
    assert_eq!(api.free_bytes(), free);
    before.assert_same();
    let _ = at;
}

fn of_ranks(name: &str, nranks: usize) {
    if let Some(me) = launch::child() {
        return one_rank(&me);
    }
    for shm in [false, true] {
        let job = Job::this_test(name, nranks);
        let outcome = if shm { job.env("NCCL_P2P_DISABLE", "1") } else { job }.run();
        outcome.assert_ok();
        println!("{}\n{}", if shm { "host memory" } else { "device memory" }, outcome.ranks[0].stdout);
    }
}

#[test]
fn two_ranks_cost_little() {
    of_ranks("bytes::two_ranks_cost_little", 2);
}

#[test]
fn four_ranks_cost_little() {
    of_ranks("bytes::four_ranks_cost_little", 4);
}

#[test]
fn eight_ranks_cost_little() {
    of_ranks("bytes::eight_ranks_cost_little", 8);
}

/// Slots of a ring are as large as the variable says, and smaller where a process has many communicators.
#[test]
fn slots_follow_the_variable_and_the_number_of_communicators() {
    if let Some(me) = launch::child() {
        let api = Api::load();
        let mut members: Vec<Member> = Vec::new();
        let mut sizes = Vec::new();
        for number in 0..18 {
            let member = Member::of_process(api, &me, &format!("id{number}"));
            // Of use is only what the first call needs: one channel of the ring.
            member.sum(1000);
            sizes.push(member.stat(MemStat::Suspend));
            members.push(member);
        }
        let bytes = |slot_kib: u64| 8 * (slot_kib << 10) + 4096;
        match std::env::var("NCCL_BUFFSIZE") {
            Ok(_) => assert!(sizes.iter().all(|size| *size == bytes(64)), "{sizes:?}"),
            Err(_) => {
                assert!(sizes[..8].iter().all(|size| *size == bytes(256)), "{sizes:?}");
                assert!(sizes[8..16].iter().all(|size| *size == bytes(128)), "{sizes:?}");
                assert!(sizes[16..].iter().all(|size| *size == bytes(64)), "{sizes:?}");
            }
        }
        members.iter().for_each(|member| member.sum(50_000));
        return members.into_iter().for_each(Member::end);
    }
    let job = || {
        let job = Job::this_test("bytes::slots_follow_the_variable_and_the_number_of_communicators", 2);
        // On the device there are only whole blocks.
        job.env("NCCL_ALGO", "ring").env("NCCL_P2P_DISABLE", "1")
    };
    job().run().assert_ok();
    job().env("NCCL_BUFFSIZE", (8 * 64 * 1024).to_string()).run().assert_ok();
}

/// Communicators of one device, used for small and large calls: the memory of each stays bounded, since groups of links
/// share blocks. Nothing is left when they have ended.
#[test]
fn many_communicators_share_a_device() {
    const COMMS: usize = 30;
    if let Some(me) = launch::child() {
        let api = Api::load();
        let warm = Member::of_process(api, &me, "warm");
        warm.sum(100);
        warm.end();
        me.barrier("warm");
        let free = api.free_bytes();
        let members: Vec<Member> =
            (0..COMMS).map(|number| Member::of_process(api, &me, &format!("id{number}"))).collect();
        members.iter().for_each(|member| [10, 5_000, 100_000].into_iter().for_each(|count| member.sum(count)));
        let sizes: Vec<u64> = members.iter().map(|member| member.stat(MemStat::Suspend)).collect();
        let (links, used) = (sizes.iter().sum::<u64>(), free - api.free_bytes());
        println!("rank {}: {links} bytes of links, {used} of the device, {sizes:?}", me.rank);
        // The block of all tries, and each communicator's table.
        assert!(used as u64 <= links + BLOCK + COMMS as u64 * IDLE, "{used} of the device, {links} bytes of links");
        assert!(sizes.iter().all(|size| size % BLOCK == 0 && *size <= 8 * BLOCK), "{sizes:?}");
        me.barrier("counted");
        members.into_iter().for_each(Member::end);
        me.barrier("ended");
        assert_eq!(api.free_bytes(), free);
        return;
    }
    let outcome = Job::this_test("bytes::many_communicators_share_a_device", 2).run();
    outcome.assert_ok();
    println!("{}", outcome.ranks[0].stdout);
}
