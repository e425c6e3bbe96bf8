//! Calls that go without slots where all ranks agree: what they agree on, and what becomes of the call either way.

use std::sync::atomic::Ordering;
use std::time::Duration;

use nccl::plan::algorithm::ScheduleKind;
use nccl::plan::call::{DataType, Func, Op};
use nccl::plan::layout::{PLACE_UNIT, Proto, REGISTRATIONS, Work, abort, kernel_error, launch_flag, work_flag};
use nccl::plan::offer::{MISSING, Tag, UNUSED};
use nccl::plan::operator::Operator;
use nccl::plan::schedule::Schedule;
use nccl::plan::shape::{self, Shape};
use nccl::plan::work::{Geometry, Request};
use nccl::plan::zero_copy;
use nccl::topology::Graph;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::collectives::{self, Expected, elements};
use crate::items::{User, value};
use crate::world::{self, Buffers, Config, Launch, World};
use crate::{SLOT_BYTES, get};

const TYPE: DataType = DataType::Int32;

/// What keeps ranks from agreeing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// Nothing.
    Free,
    /// A rank has not registered its buffers.
    Missing(u32),
    /// A rank has not mapped those of another one.
    Unmapped(u32, u32),
    /// A rank has mapped what another one had registered before.
    Stale(u32, u32),
    /// A rank has mapped nothing at all.
    NoTable(u32),
}

/// The functions with a variant, roots being the first and the last rank.
fn kinds(n: u32) -> Vec<ScheduleKind> {
    let kind = |kind: &ScheduleKind| zero_copy::can_agree(kind.func, kind.algo, &Graph::of_host(n));
    collectives::all(n).into_iter().filter(kind).collect()
}

/// Two collectives for each kind: one that is agreed on, and the one by slots.
fn world(config: Config, kinds: &[ScheduleKind]) -> World {
    let mut all: Vec<Box<dyn Fn(u32) -> Schedule>> = Vec::new();
    for kind in kinds.iter().copied() {
        all.push(Box::new(move |rank| {
            zero_copy::agreed(kind, &Graph::of_host(config.n), 0, rank).expect("a schedule")
        }));
        all.push(Box::new(move |rank| collectives::schedule(kind, rank, config.n)));
    }
    World::with(config, &all.iter().map(|f| &**f).collect::<Vec<_>>())
}

fn geometry(world: &World, number: usize, kind: ScheduleKind, count: u64) -> Geometry {
    let config = &world.config;
    let request = Request {
        count,
        datatype: TYPE,
        nchunks: world.nchunks(number),
        blocks: shape::shape(kind.func, config.n) != Shape::Divided,
        max_channels: config.channels,
        slot_bytes: config.slot_bytes.into(),
        proto: Proto::Simple,
        min_channel_bytes: 256,
    };
    Geometry::new(&request).expect("a call that fits memory")
}

/// One call.
struct Call {
    kind: ScheduleKind,
    /// Of the kind.
    number: usize,
    count: u64,
    serial: u32,
    obstacle: Obstacle,
    users: Vec<User>,
    /// Of each rank: what it has mapped.
    tables: Vec<Vec<u64>>,
}

impl Call {
    fn new(random: &mut SmallRng, kinds: &[ScheduleKind], n: u32, serial: u32) -> Call {
        let number = random.random_range(0..kinds.len());
        let (kind, count) = (kinds[number], [1, 7, 300, 1500, 5000][random.random_range(0..5)]);
        let in_place = random.random();
        let users = (0..n).map(|rank| User::new(kind, rank, n, count, TYPE, in_place)).collect();
        let (a, b) = (random.random_range(0..n), random.random_range(1..n));
        let b = (a + b) % n;
        let obstacles = [
            Obstacle::Free,
            Obstacle::Free,
            Obstacle::Missing(a),
            Obstacle::Unmapped(a, b),
            Obstacle::Stale(a, b),
            Obstacle::NoTable(a),
        ];
        let mut call = Call {
            kind,
            number,
            count,
            serial,
            obstacle: obstacles[random.random_range(0..6)],
            users,
            tables: Vec::new(),
        };
        call.tables = (0..n).map(|rank| call.table(rank, n)).collect();
        call
    }

    fn tag(&self, of: u32, output: bool) -> Tag {
        Tag::new(if output { 63 } else { of as usize }, self.serial)
    }

    /// Input and output of a rank as addresses.
    fn buffers(&self, rank: u32) -> (u64, u64) {
        let user = &self.users[rank as usize];
        let output = user.memory[user.output.0].address() + user.output.1 * TYPE.size() as u64;
        (user.input, if shape::has_output(self.kind.func, self.kind.root, rank) { output } else { 0 })
    }

    fn offers(&self, rank: u32) -> [u64; 2] {
        let uses = zero_copy::offers(self.kind.func, self.kind.root, rank);
        let (input, output) = self.buffers(rank);
        [(uses.input, input, false), (uses.output, output, true)].map(|(used, address, is_output)| {
            match self.obstacle {
                _ if !used => UNUSED,
                Obstacle::Missing(missing) if missing == rank => MISSING,
                _ => self.tag(rank, is_output).offer(address % PLACE_UNIT),
            }
        })
    }

    /// What a rank has mapped of the others' memory.
    fn table(&self, rank: u32, n: u32) -> Vec<u64> {
        let mut table = vec![0; n as usize * REGISTRATIONS];
        for peer in (0..n).filter(|peer| *peer != rank && self.obstacle != Obstacle::Unmapped(rank, *peer)) {
            let (input, output) = self.buffers(peer);
            for (address, is_output) in [(input, false), (output, true)] {
                let mut tag = self.tag(peer, is_output);
                if self.obstacle == Obstacle::Stale(rank, peer) {
                    tag = Tag::new(tag.number(), self.serial + 1);
                }
                let place = tag.place(address / PLACE_UNIT * PLACE_UNIT);
                table[peer as usize * REGISTRATIONS + tag.number()] = place.unwrap_or(0);
            }
        }
        table
    }

    /// Whether nobody keeps the others from agreeing: who cannot give or reach what nobody uses does not.
    fn is_free(&self) -> bool {
        let gives = |rank| {
            let uses = zero_copy::offers(self.kind.func, self.kind.root, rank);
            uses.input || uses.output
        };
        match self.obstacle {
            Obstacle::Free => true,
            Obstacle::Missing(rank) => !gives(rank),
            Obstacle::Unmapped(_, peer) | Obstacle::Stale(_, peer) => !gives(peer),
            Obstacle::NoTable(rank) => !(0..self.users.len() as u32).any(|peer| peer != rank && gives(peer)),
        }
    }

    /// Calls that are to be agreed on are not in a class with others, for they shall ask.
    fn signature(&self) -> u32 {
        let classes = 4 * 2 * (self.users.len() as u32 - 1);
        1 + 2 * (classes * (1 + self.serial) + if self.is_free() { 0 } else { 1 + self.serial % 7 })
    }

    /// The items of a rank: each channel's two, one of which cannot run.
    fn items(&self, world: &World, rank: u32) -> (Vec<Work>, u32) {
        let (input, output) = self.buffers(rank);
        let (first, second) = (2 * self.number, 2 * self.number + 1);
        let mut direct = geometry(world, first, self.kind, self.count);
        let slots = geometry(world, second, self.kind, self.count);
        assert_eq!((direct.nchannels, direct.part), (slots.nchannels, slots.part));
        direct.piece = direct.part;
        let operator = Operator::builtin(Op::Sum, TYPE, world.config.n);
        let work = |collective, channel, geometry: &Geometry, buffers| {
            let work = world.work(rank, collective, channel, geometry, TYPE, &operator, buffers);
            Work { signature: self.signature(), serial: self.serial, ..work }
        };
        let (mut offered, mut plain) = (Vec::new(), Vec::new());
        for channel in 0..direct.nchannels {
            let buffers = if self.is_free() { Buffers { input, output } } else { Buffers { input: 8, output: 8 } };
            let item = work(first, channel, &direct, buffers);
            offered.push(Work { flags: work_flag::OFFER, offers: self.offers(rank), ..item });
            let item = work(second, channel, &slots, Buffers { input, output });
            plain.push(if self.is_free() { Work { op: 99, ..item } } else { item });
        }
        offered.append(&mut plain);
        (offered, direct.nchannels)
    }

    fn launch(&self, world: &World, rank: u32) -> Launch {
        let images = world::images();
        let (items, channels) = self.items(world, rank);
        let mut launch = world.launch_items(images[rank as usize % images.len()], rank, TYPE, items, channels);
        launch.args().peers =
            if self.obstacle == Obstacle::NoTable(rank) { 0 } else { self.tables[rank as usize].as_ptr() as u64 };
        launch
    }

    fn check(&self, n: u32) {
        let input = |rank, i| value(TYPE, rank, i);
        let expected = Expected { kind: self.kind, n, count: self.count, datatype: TYPE, input: &input };
        for (rank, user) in
            (0..).zip(&self.users).filter(|&(rank, _)| shape::has_output(self.kind.func, self.kind.root, rank))
        {
            for i in 0..elements(self.kind.func, n, self.count).1 {
                let got = get(user.memory[user.output.0].bytes(), (user.output.1 + i) as usize, TYPE.size());
                let want = expected.output(rank, i);
                assert_eq!(
                    got, want,
                    "element {i}, rank {rank} of {n}: {:?}, {}, {:?}",
                    self.kind, self.count, self.obstacle
                );
            }
        }
    }
}

fn config(n: u32, threads: u32, channels: u32) -> Config {
    Config { n, channels, slot_bytes: SLOT_BYTES, proto: Proto::Simple, threads, start: u64::from(u32::MAX) - 50 }
}

/// Call after call on the same links, some agreed on and some not. What is not to run could not.
#[test]
fn ranks_agree() {
    let rounds = if std::env::var_os("OXCCL_LONG").is_some() { 2000 } else { 60 };
    for (n, threads, channels) in [(2, 1, 1), (2, 3, 3), (3, 1, 2), (4, 2, 1), (9, 1, 1)] {
        let kinds = kinds(n);
        let mut world = world(config(n, threads, channels), &kinds);
        world.flags = if threads > 1 { launch_flag::NO_WAKE } else { 0 };
        let mut random = SmallRng::seed_from_u64(n.into());
        for serial in 1..rounds / n {
            let call = Call::new(&mut random, &kinds, n, serial);
            let launches: Vec<_> = (0..n).map(|rank| call.launch(&world, rank)).collect();
            world.run(&launches);
            for rank in 0..n {
                assert_eq!(
                    world.report(rank),
                    [0; 8],
                    "rank {rank} of {n}: {:?}, {:?}, {}",
                    call.kind,
                    call.obstacle,
                    call.count
                );
            }
            call.check(n);
        }
    }
}

/// After some refusals ranks seldom ask, all at the same calls; what is registered later is used all the same.
#[test]
fn ranks_that_are_refused_ask_seldom() {
    for n in [2, 3] {
        let kinds = kinds(n);
        let world = world(config(n, 1, 1), &kinds);
        let mut asked = Vec::new();
        for turn in 0..100u32 {
            // Not free, so that the items by slots are sound; but what is mapped is right from the 60th call on.
            let mut call = all_reduce(n, Obstacle::Missing(1), 5);
            let launches: Vec<_> = (0..n)
                .map(|rank| {
                    let (mut items, channels) = call.items(&world, rank);
                    if turn >= 60 {
                        call.obstacle = Obstacle::Free;
                        let (input, output) = call.buffers(rank);
                        (items[0].offers, items[0].input, items[0].output) = (call.offers(rank), input, output);
                        call.obstacle = Obstacle::Missing(1);
                    }
                    let mut launch = world.launch_items(world::images()[0], rank, TYPE, items, channels);
                    launch.args().peers = call.tables[rank as usize].as_ptr() as u64;
                    launch
                })
                .collect();
            let before = world.mesh_turns();
            world.run(&launches);
            assert_eq!(world.error(), 0);
            call.check(n);
            asked.push(world.mesh_turns() - before);
        }
        // Refused, not asked, agreed.
        let kinds = [asked[0], asked[7], asked[99]];
        let want = |turn: usize| match turn {
            0..7 | 22 | 38 | 54 => kinds[0],
            0..70 => kinds[1],
            _ => kinds[2],
        };
        assert!(kinds[0] > kinds[1] && kinds[1] > kinds[2], "{asked:?}");
        assert_eq!(asked, (0..100).map(want).collect::<Vec<_>>(), "{n} ranks");
    }
}

/// Many calls in one launch: ranks run ahead of each other between them, and the tables are those of the last call.
#[test]
fn ranks_agree_in_long_lists() {
    for n in [2, 3, 4] {
        let kinds = kinds(n);
        let world = world(config(n, 1, 1), &kinds);
        let mut random = SmallRng::seed_from_u64(u64::from(n) + 10);
        let mut calls: Vec<Call> = (0..60).map(|serial| Call::new(&mut random, &kinds, n, serial)).collect();
        calls.retain(|call| !call.is_free());
        calls.push(all_reduce(n, Obstacle::Free, 60));
        let launch = |rank: u32| {
            let items: Vec<Work> = calls.iter().flat_map(|call| call.items(&world, rank).0).collect();
            let mut launch = world.launch_items(world::images()[0], rank, TYPE, items, 1);
            launch.args().peers = calls[calls.len() - 1].tables[rank as usize].as_ptr() as u64;
            launch
        };
        world.run(&(0..n).map(launch).collect::<Vec<_>>());
        assert_eq!(world.error(), 0);
        calls.iter().for_each(|call| call.check(n));
    }
}

fn all_reduce(n: u32, obstacle: Obstacle, serial: u32) -> Call {
    let kind = ScheduleKind { func: Func::AllReduce, algo: zero_copy::algo(Func::AllReduce), root: 0 };
    let users = (0..n).map(|rank| User::new(kind, rank, n, 3000, TYPE, true)).collect();
    let number = kinds(n).iter().position(|known| *known == kind).expect("a kind");
    let mut call = Call { kind, number, count: 3000, serial, obstacle, users, tables: Vec::new() };
    call.tables = (0..n).map(|rank| call.table(rank, n)).collect();
    call
}

/// Calls that do not match are noticed before anybody touches a peer's buffer.
#[test]
fn signs_are_compared_first() {
    for n in [2, 4] {
        let world = world(config(n, 1, 1), &kinds(n));
        let (call, other) = (all_reduce(n, Obstacle::Free, 5), all_reduce(n, Obstacle::Free, 6));
        let launches: Vec<_> = (0..n).map(|rank| if rank == 1 { &other } else { &call }.launch(&world, rank)).collect();
        let before: Vec<Vec<u8>> = call.users.iter().map(|user| user.memory[0].bytes().to_vec()).collect();
        world.run(&launches);
        for rank in 0..n {
            assert!(
                matches!(world.report(rank)[0], kernel_error::MISMATCH | kernel_error::PEER_LEFT),
                "rank {rank} of {n}"
            );
        }
        assert_eq!(call.users.iter().map(|user| user.memory[0].bytes().to_vec()).collect::<Vec<_>>(), before);
    }
}

/// One rank never comes: the others leave when they are told to.
#[test]
fn ranks_that_wait_for_offers_leave() {
    for (n, threads) in [(2, 1), (3, 3)] {
        let world = world(config(n, threads, 1), &kinds(n));
        let call = all_reduce(n, Obstacle::Free, 5);
        let launches: Vec<_> = (1..n).map(|rank| call.launch(&world, rank)).collect();
        std::thread::scope(|scope| {
            for launch in &launches {
                scope.spawn(|| launch.block(0));
            }
            std::thread::sleep(Duration::from_millis(30));
            world.abort.store(abort::REPORT, Ordering::Relaxed);
        });
        assert!((1..n).all(|rank| world.report(rank)[0] == kernel_error::ABORTED));
    }
}

/// What is agreed on happens once: an item of several pieces is refused, and so are offers by other protocols.
#[test]
fn items_that_cannot_be_offered_are_refused() {
    let n = 2;
    let world = world(config(n, 1, 1), &kinds(n));
    let call = all_reduce(n, Obstacle::Free, 5);
    let launch = |rank: u32| {
        let (mut items, channels) = call.items(&world, rank);
        items.iter_mut().for_each(|work| work.piece = 64);
        world.launch_items(world::images()[0], rank, TYPE, items, channels)
    };
    world.run(&[launch(0), launch(1)]);
    assert!((0..n).all(|rank| world.report(rank)[0] == kernel_error::BAD_WORK));
}
