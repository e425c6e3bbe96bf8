//! Registered memory: calls give the same whether their buffers are registered on all ranks, on some, or on none, and
//! nothing is left of what was registered.

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::built;
use crate::case::{Case, kinds};
use crate::common::abi::INVALID_USAGE;
use crate::common::contract::Func;
use crate::common::launch;
use crate::common::oracle::{DataType, RedOp};
use crate::common::resources::Resources;
use crate::member::{Item, Member, Submission};
use crate::messages::Message;
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// Bytes of the larger buffer of a call that may go without slots, and of some that are too small.
const BYTES: std::ops::Range<usize> = 100 << 10..400 << 10;
/// Registrations that a rank can have at a time.
const MOST: usize = 256;

/// Which ranks have their memory registered.
#[derive(Clone, Copy, Debug)]
enum Who {
    Nobody,
    All,
    AllBut(usize),
}

fn register(member: &mut Member, who: Who) {
    let registered = match who {
        Who::Nobody => false,
        Who::All => true,
        Who::AllBut(rank) => rank != member.rank,
    };
    member.set_registered(registered);
}

/// A call that is large, of any kind.
fn large(plan: &mut SmallRng, func: Func, n: usize) -> Case {
    let of_func: Vec<_> = kinds().into_iter().filter(|kind| kind.0 == func).collect();
    let kind = of_func[plan.random_range(0..of_func.len())];
    let case = Case::random(plan, kind, n);
    let blocks = if matches!(func, Func::AllReduce | Func::Broadcast | Func::Bcast | Func::Reduce) { 1 } else { n };
    Case { count: plan.random_range(BYTES) / case.dtype.size() / blocks, ..case }
}

/// Rounds with the memory of some ranks registered, of one set of ranks after the other.
fn each_registration(member: &mut Member, rounds: usize, mut round: impl FnMut(&mut Member, usize)) {
    let n = member.nranks;
    for who in [Who::Nobody, Who::All, Who::AllBut(n - 1), Who::AllBut(0), Who::All, Who::Nobody] {
        register(member, who);
        (0..rounds).for_each(|number| round(member, number));
    }
}

fn every_function_body(member: &mut Member) {
    let mut plan = seeded_rng("registered");
    let mut own = seeded_rng(&format!("order of rank {}", member.rank));
    let n = member.nranks;
    each_registration(member, if long() { 8 } else { 2 }, |member, round| {
        let items: Vec<Item> = built::FUNCS.iter().map(|func| Item::Collective(large(&mut plan, *func, n))).collect();
        for part in items.chunks(3) {
            let all = [Submission::Each, Submission::Queued, Submission::Group];
            // Outside of groups, what is new is mapped from one call to the next.
            member.run(part, all[(round + plan.random_range(0..3usize)) % 3], &mut own);
        }
    });
}

#[test]
fn every_function() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, every_function_body);
    }
    let mut list = Vec::new();
    for n in [2, 3, 4, 8] {
        for transport in [Transport::P2p, Transport::Threads] {
            list.push(Setup { transport, ..Setup::plain(n) });
        }
    }
    list.push(Setup { transport: Transport::Shm, ..Setup::plain(3) });
    list.push(Setup { channels: Some(3), ..Setup::plain(3) });
    list.push(Setup { channels: Some(8), small_slots: true, ..Setup::plain(2) });
    list.push(Setup { algorithm: Some("Ring"), ..Setup::plain(3) });
    list.push(Setup { delay: Some(30), ..Setup::plain(2) });
    setup::part(list).iter().for_each(|setup| setup.run("registered::every_function"));
}

/// Messages of which some are so large that receivers read them where they are, if the sender's memory is registered.
fn messages_body(member: &mut Member) {
    let mut plan = seeded_rng("registered messages");
    let mut own = seeded_rng(&format!("order of rank {}", member.rank));
    let n = member.nranks;
    each_registration(member, if long() { 12 } else { 3 }, |member, round| {
        let pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|_| n < 4 || round % 2 == 0);
        let mut message = |(from, to)| {
            let count = if plan.random() { plan.random_range(BYTES) / 2 } else { plan.random_range(0..40_000) };
            Message { offsets: (round % 3, round % 5), ..Message::bytes((from, to), count, 7 * round) }
        };
        let mut items: Vec<Item> = pairs.map(|pair| Item::Message(message(pair))).collect();
        // Several to the same peer, large and small.
        items.extend([1, 0, 1].map(|from| Item::Message(message((from, 1 - from)))));
        member.run(&items, [Submission::Group, Submission::Nested][round % 2], &mut own);
    });
}

#[test]
fn messages() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, messages_body);
    }
    let several = |setup: Setup| Setup { message_channels: Some(3), ..setup };
    let mut list = Vec::new();
    for n in [2, 3, 5] {
        for transport in [Transport::P2p, Transport::Threads] {
            list.push(Setup { transport, ..Setup::plain(n) });
        }
    }
    list.push(several(Setup::plain(3)));
    list.push(several(Setup { transport: Transport::Threads, ..Setup::plain(2) }));
    list.push(Setup { transport: Transport::Shm, ..Setup::plain(3) });
    for transport in [Transport::P2p, Transport::Threads] {
        list.push(Setup { protocol: Some("LL,Simple"), transport, ..Setup::plain(3) });
    }
    list.push(Setup { delay: Some(30), ..Setup::plain(2) });
    list.iter().for_each(|setup| setup.run("registered::messages"));
}

/// AllReduce of bytes in place, in memory that lives as long as the caller says.
pub struct Bytes<'a> {
    pub member: &'a Member,
    pub count: usize,
}

impl Bytes<'_> {
    /// Sums the numbers of all ranks, from 1 on, `calls` times.
    pub fn run(&self, buffer: u64, calls: usize) {
        let (member, n) = (self.member, self.member.nranks);
        let (cuda, nccl) = (&member.api.cuda, &member.api.nccl);
        let mut want = member.rank as u8 + 1;
        cuda.fill(buffer, want, self.count).expect("fill");
        cuda.synchronize().expect("fill");
        for _ in 0..calls {
            // SAFETY: the buffer is as long as that, and lives until the wait.
            let called = unsafe {
                nccl.all_reduce(
                    (buffer, buffer),
                    self.count,
                    (DataType::Uint8, RedOp::Sum),
                    member.comm,
                    member.streams[0].0,
                )
            };
            called.expect("a call");
        }
        member.wait();
        // The first call sums 1 to n, each further one multiplies by n.
        want = (1..calls).fold((n * (n + 1) / 2) as u8, |sum, _| sum.wrapping_mul(n as u8));
        let mut found = vec![0; self.count];
        cuda.copy_to_host(&mut found, buffer).expect("copy");
        assert!(found.iter().all(|byte| *byte == want), "rank {} of {n}: {} is not {want}", member.rank, found[0]);
    }
}

/// One turn of a loop in which memory comes and goes. Some of it goes while it is registered.
fn come_and_go(member: &Member, turn: usize) {
    let (cuda, nccl) = (&member.api.cuda, &member.api.nccl);
    let work = Bytes { member, count: (256 << 10) - 64 * (turn % 3) };
    let bytes = 256 << 10;
    if turn % 4 == 3 {
        let buffer = nccl.mem_alloc(bytes).expect("memory");
        work.run(buffer, 3);
        // SAFETY: all calls have ended.
        return unsafe { nccl.mem_free(buffer) }.expect("free");
    }
    let buffer = cuda.alloc(bytes).expect("memory");
    let handle = nccl.register(member.comm, buffer, bytes).expect("register");
    assert_eq!(handle != 0, setup::maps_buffers());
    work.run(buffer, 3);
    if turn % 4 != 2 {
        nccl.deregister(member.comm, handle).expect("deregister");
    }
    // SAFETY: all calls have ended.
    unsafe { cuda.free(buffer) }.expect("free");
    if turn % 4 == 2 {
        // Addresses are used again: what has this one now is not what was registered.
        let again = cuda.alloc(bytes).expect("memory");
        work.run(again, 2);
        nccl.deregister(member.comm, handle).expect("a handle may outlive its memory");
        // SAFETY: all calls have ended.
        unsafe { cuda.free(again) }.expect("free");
    }
}

/// Maps what is new and unmaps what is gone: two calls, since the first one's look may come before the peers' change.
pub fn settle(member: &Member, buffer: u64) {
    for _ in 0..3 {
        Bytes { member, count: 256 << 10 }.run(buffer, 1);
    }
}

#[test]
fn memory_comes_and_goes() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let kept = member.api.cuda.alloc(256 << 10).expect("memory");
            let turns = if long() { 2000 } else { 40 };
            (0..8).for_each(|turn| come_and_go(member, turn));
            settle(member, kept);
            let before = Resources::now();
            (0..turns).for_each(|turn| come_and_go(member, turn));
            settle(member, kept);
            // With threads, others come and go at the same time.
            if member.nranks == 2 || setup::label().contains("P2p") {
                before.assert_same();
            }
            // SAFETY: all calls have ended.
            unsafe { member.api.cuda.free(kept) }.expect("free");
        });
    }
    for (n, transport) in [(2, Transport::P2p), (3, Transport::P2p), (3, Transport::Threads)] {
        Setup { transport, ..Setup::plain(n) }.run("registered::memory_comes_and_goes");
    }
}

/// Peers do map what is registered, and undo that when it is taken back.
#[test]
fn peers_map_what_is_registered() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let bytes = 1 << 20;
            let (cuda, nccl) = (&member.api.cuda, &member.api.nccl);
            let (buffer, plain) = (cuda.alloc(bytes).expect("memory"), cuda.alloc(bytes).expect("memory"));
            let maps = || Resources::now().shared_maps.values().sum::<usize>();
            settle(member, plain);
            let before = maps();
            let handle = nccl.register(member.comm, buffer, bytes).expect("register");
            settle(member, buffer);
            let mapped = if setup::maps_buffers() { member.nranks - 1 } else { 0 };
            assert_eq!(maps(), before + mapped, "peers' buffers");
            nccl.deregister(member.comm, handle).expect("deregister");
            settle(member, buffer);
            assert_eq!(maps(), before);
            // SAFETY: all calls have ended.
            [buffer, plain].into_iter().for_each(|buffer| unsafe { cuda.free(buffer) }.expect("free"));
        });
    }
    Setup::plain(3).run("registered::peers_map_what_is_registered");
}

#[test]
fn handles() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (cuda, nccl, comm) = (&member.api.cuda, &member.api.nccl, member.comm);
            let register = |at: u64, bytes: usize| nccl.register(comm, at, bytes).expect("register");
            let deregister = |handle: usize| nccl.deregister(comm, handle);
            let host = [0u8; 4096];
            assert_eq!(register(0, 16), 0);
            assert_eq!(register(host.as_ptr() as u64, host.len()), 0);
            deregister(0).expect("NULL is nothing");
            assert_eq!(deregister(0x1234_5678).expect_err("no handle").code, INVALID_USAGE);
            let buffers: Vec<u64> = (0..=MOST).map(|_| cuda.alloc(1 << 16).expect("memory")).collect();
            let works = setup::maps_buffers();
            let first = register(buffers[0], 1 << 16);
            let part = register(buffers[0] + 100, 1000);
            assert_eq!((first != 0, part != 0), (works, works));
            assert_eq!(register(buffers[0], (1 << 16) + 1), 0, "more than there is");
            assert_eq!(register(buffers[0], 0), 0);
            let handles: Vec<usize> = buffers[1..].iter().map(|buffer| register(*buffer, 1 << 16)).collect();
            assert_eq!(handles.iter().filter(|handle| **handle != 0).count(), if works { MOST - 1 } else { 0 });
            handles.into_iter().chain([first, part]).for_each(|handle| deregister(handle).expect("deregister"));
            assert_eq!(register(buffers[MOST], 1 << 16) != 0, works);
            if works {
                assert_eq!(deregister(first).expect_err("it is gone").code, INVALID_USAGE);
            }
            // SAFETY: nothing uses them; one is still registered, which is for the communicator's end to undo.
            buffers.into_iter().for_each(|buffer| unsafe { cuda.free(buffer) }.expect("free"));
        });
    }
    for transport in [Transport::P2p, Transport::Shm, Transport::Threads] {
        let setup = Setup { transport, ..Setup::plain(2) };
        setup.job("registered::handles").allow_warning("Deregister: Could not find handle").run().assert_ok();
    }
}
