//! Send and Recv: many, few, empty, large, unequal, to oneself.

use rand::RngExt;

use crate::built;
use crate::common::abi::{INVALID_ARGUMENT, INVALID_USAGE};
use crate::common::collectives::Call;
use crate::common::contract::Func;
use crate::common::launch;
use crate::common::oracle::DataType;
use crate::member::{Item, Member, Submission, shuffle};
use crate::messages::Message;
use crate::setup::{self, Setup, Transport, long, seeded_rng};

/// Sends, and receives, of each rank in the largest group.
const MANY: usize = 5000;

fn built() -> bool {
    built::has("Send and Recv", built::POINT_TO_POINT)
}

/// The usual frame of a test: its ranks, or the jobs that run them.
fn under(test: &str, setups: &[Setup], body: impl Fn(&mut Member) + Sync) {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, body);
    }
    if built() {
        setups.iter().for_each(|setup| setup.run(test));
    }
}

fn everywhere(n: usize) -> [Setup; 3] {
    [Transport::P2p, Transport::Shm, Transport::Threads].map(|transport| Setup { transport, ..Setup::plain(n) })
}

fn group(member: &mut Member, messages: &[Message]) {
    let items: Vec<Item> = messages.iter().map(|message| Item::Message(*message)).collect();
    let mut own = seeded_rng(&format!("order of rank {}", member.rank));
    member.run(&items, Submission::Group, &mut own);
}

/// Random groups: any type, size and peer, oneself among them; each rank in an order of its own.
#[test]
fn random_groups() {
    let setups = [everywhere(2), everywhere(3), everywhere(5), everywhere(8)].concat();
    let sampled = setups.into_iter().enumerate().filter(|(at, _)| long() || at % 2 == 0).map(|(_, setup)| setup);
    // Small messages go by LL where they may.
    let lines = |setup: Setup| Setup { protocol: Some("LL,Simple"), ..setup };
    let lines = [everywhere(2)[1], Setup { small_slots: true, ..Setup::plain(3) }, everywhere(8)[2]].map(lines);
    let setups: Vec<Setup> = sampled.chain(lines).collect();
    under("point_to_point::random_groups", &setups, |member| {
        let mut rng = seeded_rng("groups");
        for _ in 0..if long() { 100 } else { 12 } {
            let n = rng.random_range(1..40);
            let messages: Vec<Message> = (0..n).map(|_| Message::random(&mut rng, member.nranks, 30_000)).collect();
            group(member, &messages);
        }
    });
}

/// Every rank sends 5,000 messages and gets as many, in one group.
#[test]
fn ten_thousand_in_a_group() {
    let net = Setup { transport: Transport::Net, ..Setup::plain(3) };
    let setups = [Setup::plain(2), Setup::plain(3), Setup::plain(4), net];
    under("point_to_point::ten_thousand_in_a_group", &setups, |member| {
        let (n, mut rng) = (member.nranks, seeded_rng("many"));
        let many = if long() || n == 2 { MANY } else { MANY / 2 };
        let mut messages = Vec::new();
        for round in 0..many {
            // Everybody sends to the one at the same distance, so that all have as many.
            let distance = rng.random_range(1..n);
            let count = rng.random_range(0..100);
            messages.extend((0..n).map(|from| Message::bytes((from, (from + distance) % n), count, round * n + from)));
        }
        group(member, &messages);
    });
}

/// What rank 0 sends to rank 1 arrives in the order of the calls, whatever the sizes; other peers in between.
#[test]
fn messages_to_a_peer_keep_their_order() {
    under("point_to_point::messages_to_a_peer_keep_their_order", &everywhere(3), |member| {
        let slot = setup::slot();
        let sizes = [1, 5 * slot + 3, 0, 2, slot, 7, slot + 1, 0, 1000, 3 * slot, 4, 4];
        let mut messages = Vec::new();
        for (at, size) in sizes.into_iter().enumerate() {
            messages.push(Message::bytes((0, 1), size, 100 * at));
            messages.push(Message::bytes((2, 1), sizes[(at + 3) % sizes.len()], 100 * at + 50));
            messages.push(Message::bytes((1, 0), at, 31 * at));
        }
        group(member, &messages);
    });
}

/// An empty message is a message: it meets the other side's.
#[test]
fn empty_messages() {
    under("point_to_point::empty_messages", &everywhere(2), |member| {
        let pair = |count| [Message::bytes((0, 1), count, 1), Message::bytes((1, 0), count, 2)];
        group(member, &pair(0));
        group(member, &[pair(0), pair(3), pair(0)].concat());
        for _ in 0..20 {
            group(member, &pair(0));
        }
        group(member, &pair(10));
    });
}

/// An exchange of all with all, each pair another size, far more than the slots hold: what goes out and what comes
/// in must not wait for each other.
#[test]
fn large_exchanges_with_unequal_sizes() {
    let setups = [everywhere(2), everywhere(4), everywhere(7)].concat();
    under("point_to_point::large_exchanges_with_unequal_sizes", &setups, |member| {
        let (n, slot) = (member.nranks, setup::slot());
        for round in 0..3 {
            let size = |from: usize, to: usize| match (from + 2 * to + round) % 4 {
                0 => 10 * slot + 17 * from + to,
                1 => 2 * slot + to,
                2 => 3,
                _ => 40 * slot / n + 1,
            };
            let pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to)));
            let messages: Vec<Message> =
                pairs.map(|(from, to)| Message::bytes((from, to), size(from, to), round)).collect();
            group(member, &messages);
        }
    });
}

/// Large messages go on several channels, small ones between them on the first: each peer's keep their order.
#[test]
fn messages_on_several_channels() {
    let several = |setup: Setup| Setup { message_channels: Some(3), ..setup };
    let net = Setup { transport: Transport::Net, ..Setup::plain(3) };
    let lines = Setup { protocol: Some("LL,Simple"), ..Setup::plain(3) };
    let setups: Vec<Setup> = everywhere(3).into_iter().chain([net, lines]).map(several).collect();
    under("point_to_point::messages_on_several_channels", &setups, |member| {
        let sizes = [200_003, 1, 65_536, 2_000_001, 131_072, 0, 64, 262_145];
        for round in 0..3 {
            let mut messages = Vec::new();
            for (at, size) in sizes.into_iter().enumerate() {
                let pairs = [(0, 1), (1, 2), (2, 0), (1, 0), (at % 3, at % 3)];
                messages.extend(pairs.map(|pair| Message::bytes(pair, size + round, 100 * at + pair.0)));
            }
            group(member, &messages);
        }
    });
}

/// A ring without a group would wait for itself; pairs that are in step need none.
#[test]
fn calls_outside_of_groups() {
    under("point_to_point::calls_outside_of_groups", &everywhere(2), |member| {
        let mut own = seeded_rng("own");
        for round in 0..20 {
            let size = [1, 0, 5000, 3 * setup::slot()][round % 4];
            let (from, to) = (round / 2 % 2, 1 - round / 2 % 2);
            member.run(&[Item::Message(Message::bytes((from, to), size, round))], Submission::Queued, &mut own);
        }
    });
}

/// To oneself: with its other half in the group it is a copy.
#[test]
fn messages_to_oneself() {
    let setups = [Setup::plain(1), Setup::plain(2), Setup { transport: Transport::Threads, ..Setup::plain(3) }];
    under("point_to_point::messages_to_oneself", &setups, |member| {
        let n = member.nranks;
        let own = |count, phase| (0..n).map(move |rank| Message::bytes((rank, rank), count, phase));
        for count in [0, 1, 1000, 3 * setup::slot() + 1] {
            let messages: Vec<Message> = own(count, 5).collect();
            group(member, &messages);
        }
        let mut several: Vec<Message> = (0..10).flat_map(|at| own(at * 100, at)).collect();
        several.extend((0..n).map(|rank| Message::bytes((rank, (rank + 1) % n), 777, rank)));
        group(member, &several);
    });
}

/// Half of a message to oneself is refused by the group's end, and nothing of the group is carried out; the same
/// buffer for both halves is nothing to do.
#[test]
fn half_a_message_to_oneself() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (nccl, calls, rank) = (member.api.nccl, member.api.calls, member.rank as i32);
            let (what, comm, stream) = ((10, DataType::Uint8), member.comm, member.streams[0].0);
            let buffer = member.scratch(&[7; 64]);
            for (sends, text) in [
                (true, "Trying to send to self without a matching recv"),
                (false, "Trying to recv to self without a matching send"),
            ] {
                for grouped in [true, false] {
                    if grouped {
                        nccl.group_start().expect("group");
                    }
                    // SAFETY: the buffer is larger than the message and lives as long as the member.
                    let now = unsafe {
                        if sends {
                            calls.send(buffer, what, rank, comm, stream)
                        } else {
                            calls.recv(buffer, what, rank, comm, stream)
                        }
                    };
                    let failure = if grouped { nccl.group_end() } else { now }.expect_err("half a message");
                    assert_eq!(failure.code, INVALID_USAGE, "{failure}");
                    assert!(failure.text.contains(text), "{failure}");
                }
            }
            nccl.group_start().expect("group");
            // SAFETY: as above.
            unsafe { calls.send(buffer, what, rank, comm, stream) }.expect("a half");
            // SAFETY: as above.
            unsafe { calls.recv(buffer, what, rank, comm, stream) }.expect("the other half");
            nccl.group_end().expect("the same buffer");
            member.wait();
            let mut bytes = [0; 64];
            member.api.cuda.copy_to_host(&mut bytes, buffer).expect("copy");
            assert_eq!(bytes, [7; 64]);
        });
    }
    if built() {
        for n in [1, 2] {
            let job = Setup::plain(n).job("point_to_point::half_a_message_to_oneself");
            job.allow_any_warning().run().assert_ok();
        }
    }
}

/// Ranks that do not exist, types that do not exist: found at the call, remembered by the group.
#[test]
fn wrong_arguments() {
    if let Some(me) = launch::child() {
        return setup::each_rank(&me, |member| {
            let (nccl, calls) = (member.api.nccl, member.api.calls);
            let (what, comm, stream) = ((10, DataType::Uint8), member.comm, member.streams[0].0);
            let buffer = member.scratch(&[7; 64]);
            for peer in [-1, member.nranks as i32, i32::MAX] {
                nccl.group_start().expect("group");
                // SAFETY: refused.
                let failure = unsafe { calls.send(buffer, what, peer, comm, stream) }.expect_err("no such rank");
                assert_eq!(failure.code, INVALID_ARGUMENT, "{failure}");
                assert!(failure.text.contains("Send : invalid root"), "{failure}");
                // SAFETY: refused.
                unsafe { calls.recv(buffer, what, peer, comm, stream) }.expect_err("no such rank");
                assert_eq!(nccl.group_end().expect_err("a failed group").code, INVALID_ARGUMENT);
            }
            // A group that fails drops its messages: the next one is in step with the other rank's.
            nccl.group_start().expect("group");
            let other = 1 - member.rank as i32;
            // SAFETY: dropped.
            unsafe { calls.send(buffer, what, other, comm, stream) }.expect("queued");
            let bad = Call { func: Func::Broadcast, count: 1, dtype: 12, op: 0, root: 0 };
            // SAFETY: refused.
            unsafe { calls.call(bad, (buffer, buffer), comm, stream) }.expect_err("no such type");
            assert_eq!(nccl.group_end().expect_err("a failed group").code, INVALID_ARGUMENT);
            group(member, &[Message::bytes((0, 1), 33, 3), Message::bytes((1, 0), 44, 4)]);
        });
    }
    if built() {
        Setup::plain(2).job("point_to_point::wrong_arguments").allow_any_warning().run().assert_ok();
    }
}

/// Threads that come in any order, some of them late.
#[test]
fn in_any_order_of_arrival() {
    let setups = [3, 8].map(|n| Setup { transport: Transport::Threads, ..Setup::plain(n) });
    under("point_to_point::in_any_order_of_arrival", &setups, |member| {
        let mut plan = seeded_rng("plan");
        let mut own = seeded_rng(&format!("rank {}", member.rank));
        for _ in 0..if long() { 200 } else { 20 } {
            let messages: Vec<Message> = (0..15).map(|_| Message::random(&mut plan, member.nranks, 2000)).collect();
            let mut calls: Vec<_> = messages.iter().flat_map(|message| message.prepare(member)).collect();
            shuffle(&mut calls, &mut own);
            std::thread::sleep(std::time::Duration::from_micros(own.random_range(0..3000)));
            member.issue_all(&mut calls, Submission::Nested);
            member.check(calls);
        }
    });
}
