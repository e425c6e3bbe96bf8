//! Messages: each pair of ranks is linked when it first needs it, in whatever pattern that is.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::common::abi::MemStat;
use crate::common::launch::{self, Job, Place};
use crate::member::{Api, Member};

/// A message: from, to, elements.
type Message = (usize, usize, usize);

/// Carries out messages of which this rank is an end, in a group; all ranks are given the same ones, in any order.
fn exchange(member: &Member, messages: &[Message]) {
    let (me, api) = (member.rank, member.api);
    let mut inputs = Vec::new();
    let mut outputs = Vec::new();
    api.nccl.group_start().expect("group");
    for (from, to, count) in messages {
        if *from == me {
            let at = member.input(*count);
            member.send(at, *count, *to);
            inputs.push(at);
        }
        if *to == me {
            let at = api.cuda.alloc(*count * 4).expect("memory");
            member.recv(at, *count, *from);
            outputs.push((at, *count, *from));
        }
    }
    api.nccl.group_end().expect("group");
    api.cuda.wait(member.stream).expect("wait");
    outputs.iter().for_each(|(at, count, from)| member.check_from(*at, *count, *from));
    inputs.into_iter().chain(outputs.into_iter().map(|(at, ..)| at)).for_each(|at| member.free(at));
}

fn patterns(place: &Place, member: &Member) {
    let (me, n) = (member.rank, member.nranks);
    // One direction, alone: the peer has not called anything else.
    exchange(member, &[(0, n - 1, 1000)]);
    let pair = member.stat(MemStat::Suspend);
    assert_eq!(pair > 0, me == 0 || me == n - 1, "only who has something to do has links");
    place.barrier("looked");
    // From each to the next, one distance after another.
    for distance in 1..n {
        let all: Vec<Message> = (0..n).map(|from| (from, (from + distance) % n, 3000)).collect();
        exchange(member, &all);
    }
    let all = member.stat(MemStat::Suspend);
    assert!(all >= (n as u64 - 1) * 8 * 4096, "{all} bytes");
    // Anything goes, but what is sent from one rank to another keeps its order.
    let mut rng = SmallRng::seed_from_u64(5);
    let mut own = SmallRng::seed_from_u64(me as u64);
    for _ in 0..10 {
        let some: Vec<Message> = (0..n * n).map(|pair| (pair / n, pair % n, rng.random_range(0..50_000))).collect();
        let mut some: Vec<Message> = some.into_iter().filter(|_| rng.random_bool(0.6)).collect();
        some.shuffle(&mut own);
        exchange(member, &some);
    }
    member.sum(1000);
    // On the device there may be room in a block that is there.
    let shm = std::env::var_os("NCCL_P2P_DISABLE").is_some();
    assert!(member.stat(MemStat::Suspend) >= all + u64::from(shm));
}

#[test]
fn pairs_are_linked_as_they_come() {
    if let Some(me) = launch::child() {
        let member = Member::of_process(Api::load(), &me, "id");
        patterns(&me, &member);
        return member.end();
    }
    for shm in [false, true] {
        let job = Job::this_test("messages::pairs_are_linked_as_they_come", 4);
        if shm { job.env("NCCL_P2P_DISABLE", "1") } else { job }.run().assert_ok();
    }
}

/// All at once, as the first thing: every rank with every other one, in threads of one process.
#[test]
fn everybody_with_everybody() {
    if launch::child().is_some() {
        let (api, n) = (Api::load(), 6);
        let id = api.nccl.unique_id().expect("an id");
        std::thread::scope(|scope| {
            for rank in 0..n {
                scope.spawn(move || {
                    api.cuda.use_device(rank).expect("a device");
                    let mut comm = crate::common::nccl::Comm::NULL;
                    // SAFETY: the handle lives until the call is over.
                    unsafe { api.nccl.init_rank(&mut comm, n, id, rank) }.expect("a communicator");
                    let member = Member::new(api, comm, rank, n);
                    let all: Vec<Message> = (0..n * n).map(|pair| (pair / n, pair % n, 100 + pair)).collect();
                    (0..3).for_each(|_| exchange(&member, &all));
                    member.end();
                });
            }
        });
        return;
    }
    for shm in [false, true] {
        let job = Job::this_test("messages::everybody_with_everybody", 1);
        if shm { job.env("NCCL_P2P_DISABLE", "1") } else { job }.run().assert_ok();
    }
}
