//! Calls that do not match, and ranks that leave after an error: every rank ends, with the right report.

use std::time::Duration;

use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::{ERROR_WORDS, Proto, Work, kernel_error, launch_flag};
use nccl::plan::operator::Operator;
use nccl::plan::ring;
use nccl::plan::schedule::Schedule;
use nccl::plan::work::Geometry;
use nccl::topology::Order;

use crate::SLOT_BYTES;
use crate::collectives;
use crate::world::{self, Buffers, Config, Launch, Memory, World};

/// Of a world's collectives.
const RING: usize = 0;
const MESH: usize = 1;

fn config(proto: Proto, n: u32, threads: u32) -> Config {
    // From where 32 bits of a position are 0, as is what a fresh counter says.
    Config { n, channels: 2, slot_bytes: SLOT_BYTES, proto, threads, start: 0 }
}

fn world(config: Config) -> World {
    let order = Order::of_numbers(config.n);
    let ring = |rank| ring::all_reduce(&order, rank).expect("a ring");
    World::with(config, &[&ring as &dyn Fn(u32) -> Schedule, &|rank| collectives::direct(rank, config.n)])
}

/// What a rank calls.
#[derive(Clone, Copy, Debug)]
struct Called {
    count: u64,
    signature: u32,
    serial: u32,
}

fn items(world: &World, collective: usize, rank: u32, called: Called, user: &Memory) -> Vec<Work> {
    let config = world.config;
    let nchunks = if collective == RING { config.n } else { 1 };
    let piece = config.proto.slot_data(SLOT_BYTES.into()) / 4;
    let block = called.count.div_ceil(u64::from(nchunks));
    let part = block.div_ceil(2);
    let geometry = Geometry { count: called.count, nchunks, nchannels: 2, block, part, piece, proto: config.proto };
    let operator = Operator::builtin(Op::Sum, DataType::Int32, config.n);
    let buffers = Buffers { input: user.address(), output: user.address() };
    let item = |channel| {
        let work = world.work(rank, collective, channel, &geometry, DataType::Int32, &operator, buffers);
        Work { signature: called.signature, serial: called.serial, ..work }
    };
    (0..2).map(item).collect()
}

fn launch(world: &World, rank: u32, items: Vec<Work>) -> Launch {
    let images = world::images();
    world.launch_items(images[rank as usize % images.len()], rank, DataType::Int32, items, 2)
}

fn users(n: u32) -> Vec<Memory> {
    (0..n).map(|_| Memory::new(4 * 20_000)).collect()
}

/// Runs one call on each rank.
fn call(world: &World, collective: usize, called: &[Called], users: &[Memory]) {
    let of =
        |rank: u32| launch(world, rank, items(world, collective, rank, called[rank as usize], &users[rank as usize]));
    let launches: Vec<_> = (0..world.config.n).map(of).collect();
    world.run(&launches);
}

/// All reports are right: a mismatch names a peer that called something else, and both signatures; who left because of
/// a peer names one.
fn check_reports(world: &World, called: &[Called]) {
    let n = world.config.n;
    let mut mismatches = 0;
    for rank in 0..n {
        let [error, peer, serial, own, theirs, ..] = world.report(rank);
        let what = format!("rank {rank} reports {:?}, {:?}, {called:?}", world.report(rank), world.config);
        assert!(peer < n && peer != rank && serial == called[rank as usize].serial, "{what}");
        match error {
            kernel_error::MISMATCH => {
                let signatures = (called[rank as usize].signature, called[peer as usize].signature);
                assert!((own, theirs) == signatures && own != theirs, "{what}");
                mismatches += 1;
            }
            kernel_error::PEER_LEFT => assert!(world.report(peer)[0] != 0, "{what}"),
            _ => panic!("{what}"),
        }
    }
    assert!(mismatches > 0, "nobody noticed: {called:?}");
}

/// One rank calls something else than the others. The calls that come later, which match, end too.
fn differs(proto: Proto, n: u32, threads: u32, collective: usize, odd: u32, other: Called) {
    let mut world = world(config(proto, n, threads));
    world.flags = if odd.is_multiple_of(2) { launch_flag::NO_WAKE } else { 0 };
    let users = users(n);
    let good = |serial| Called { count: 5000, signature: 1000 + serial, serial };
    let all = |serial| vec![good(serial); n as usize];
    for serial in 1..4 {
        call(&world, collective, &all(serial), &users);
        assert_eq!(world.error(), 0);
    }
    let mut called = all(4);
    called[odd as usize] = other;
    call(&world, collective, &called, &users);
    check_reports(&world, &called);
    let reports: Vec<[u32; ERROR_WORDS]> = (0..n).map(|rank| world.report(rank)).collect();
    // Was queued already.
    for serial in 5..7 {
        call(&world, collective, &all(serial), &users);
    }
    assert_eq!(reports, (0..n).map(|rank| world.report(rank)).collect::<Vec<_>>(), "a first report was overwritten");
}

#[test]
fn calls_that_do_not_match_end_everywhere() {
    for (proto, n) in Proto::HOST.into_iter().flat_map(|proto| [2, 3, 4].map(|n| (proto, n))) {
        for collective in [RING, MESH] {
            // Another operator, fewer elements, more of them, and a call left out.
            for other in [(5000, 77, 4), (10, 77, 4), (20_000, 77, 4), (5000, 1005, 5)] {
                let (count, signature, serial) = other;
                let threads = if signature == 77 { 1 } else { 3 };
                differs(proto, n, threads, collective, n - 1, Called { count, signature, serial });
            }
        }
    }
}

#[test]
fn a_sign_of_zero_is_not_compared() {
    for proto in Proto::HOST {
        let world = world(config(proto, 2, 1));
        let users = users(2);
        let called = |signature| Called { count: 5000, signature, serial: 1 };
        call(&world, RING, &[called(0), called(0)], &users);
        if proto == Proto::Simple {
            assert_eq!(world.error(), 0);
            continue;
        }
        // LL cannot tell a signature of zero from none.
        call(&world, RING, &[called(0), called(9)], &users);
        assert_eq!(world.error(), 0);
    }
}

/// A rank that cannot run its work leaves, and so do the others, whether they wait for data or for room.
#[test]
fn peers_leave_after_an_error() {
    for (proto, threads) in Proto::HOST.into_iter().flat_map(|proto| [(proto, 1), (proto, 3)]) {
        for (n, collective) in [(2, RING), (3, RING), (4, RING), (4, MESH)] {
            let world = world(config(proto, n, threads));
            let users = users(n);
            let called = Called { count: 20_000, signature: 5, serial: 8 };
            let of = |rank: u32| {
                let mut items = items(&world, collective, rank, called, &users[rank as usize]);
                if rank == 1 {
                    items[0].op = 99;
                }
                launch(&world, rank, items)
            };
            let launches: Vec<_> = (0..n).map(of).collect();
            world.run(&launches);
            assert_eq!(world.report(1), [kernel_error::BAD_WORK, 0, 0, 0, 0, 0, 0, kernel_error::BAD_WORK]);
            for rank in (0..n).filter(|&r| r != 1) {
                let [error, peer, serial, ..] = world.report(rank);
                assert_eq!((error, serial), (kernel_error::PEER_LEFT, 8), "rank {rank} of {n}, {proto:?}");
                assert!(peer != rank && world.report(peer)[0] != 0);
            }
        }
    }
}

/// Who leaves gives up the items that it had still to run as well, on other links.
#[test]
fn items_that_will_not_run_are_given_up() {
    for proto in Proto::HOST {
        let world = world(config(proto, 2, 1));
        let users = users(2);
        let called = Called { count: 100, signature: 5, serial: 8 };
        let of = |rank: u32| {
            let mut list = items(&world, RING, rank, called, &users[rank as usize]);
            if rank == 0 {
                list.iter_mut().for_each(|work| work.piece = 0);
            } else {
                list.clear();
            }
            list.extend(items(&world, MESH, rank, called, &users[rank as usize]));
            launch(&world, rank, list)
        };
        world.run(&[of(0), of(1)]);
        assert_eq!(world.report(0)[0], kernel_error::BAD_WORK);
        assert_eq!(world.report(1)[..3], [kernel_error::PEER_LEFT, 0, 8]);
    }
}

/// What was sent before the sender left is used: the receiver's call ends well, the next one does not.
#[test]
fn data_that_is_there_is_used() {
    for proto in Proto::HOST {
        let world = world(config(proto, 2, 1));
        let users = users(2);
        let called = Called { count: 100, signature: 5, serial: 8 };
        // One block each: others of a rank would leave with the first.
        let launch = |rank: u32, bad: bool| {
            let work = items(&world, MESH, rank, called, &users[rank as usize])[0];
            let mut list = vec![work];
            list.extend(bad.then_some(Work { piece: 0, ..work }));
            world.launch_items(world::images()[0], rank, DataType::Int32, list, 1)
        };
        world.run(&[launch(0, false), launch(1, true)]);
        assert_eq!(world.report(0), [0; ERROR_WORDS], "{proto:?}");
        assert_eq!(world.report(1)[0], kernel_error::BAD_WORK);
        world.run(&[launch(0, false)]);
        assert_eq!(world.report(0)[..3], [kernel_error::PEER_LEFT, 1, 8]);
    }
}

/// The sender was early, so the receiver never waits: it finds the difference all the same.
#[test]
fn data_of_another_call_that_is_there_is_noticed() {
    for proto in Proto::HOST {
        let world = world(config(proto, 2, 1));
        let users = users(2);
        let called = |rank: u32| Called { count: 100, signature: 50 + rank, serial: 8 };
        let launch = |rank: u32| {
            let work = items(&world, MESH, rank, called(rank), &users[rank as usize])[0];
            world.launch_items(world::images()[0], rank, DataType::Int32, vec![work], 1)
        };
        let launches = [launch(0), launch(1)];
        std::thread::scope(|scope| {
            scope.spawn(|| launches[1].block(0));
            std::thread::sleep(Duration::from_millis(50));
            scope.spawn(|| launches[0].block(0));
        });
        assert_eq!(world.report(0)[..5], [kernel_error::MISMATCH, 1, 8, 50, 51], "{proto:?}");
        assert!(matches!(world.report(1)[0], kernel_error::MISMATCH | kernel_error::PEER_LEFT));
    }
}
