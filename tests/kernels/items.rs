//! Work items: long lists with padding, scalars by address, copies in place, direct links, and calls of all kinds one
//! after the other on the same links.

use nccl::plan::algorithm::ScheduleKind;
use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::step_flag::{IN, NO_DATA, OUT};
use nccl::plan::layout::{LaunchArgs, Proto, Work, work_flag};
use nccl::plan::operator::Operator;
use nccl::plan::schedule::{Draft, LinkClass, Schedule};
use nccl::plan::shape::{self, InPlace, Shape};
use nccl::plan::work::{Geometry, Request};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::collectives::{self, Expected, elements};
use crate::world::{self, Buffers, Config, Memory, World};
use crate::{SLOT_BYTES, get, put};

/// One call in a list: all of it on one channel.
struct Entry {
    /// The number of the collective in the world; `None`: a barrier.
    number: usize,
    kind: Option<ScheduleKind>,
    count: u64,
    in_place: bool,
    users: Vec<User>,
}

/// A rank's memory: what a call reads and writes, or both in place.
pub struct User {
    pub memory: [Memory; 2],
    pub input: u64,
    pub output: (usize, u64),
}

pub fn value(datatype: DataType, rank: u32, i: u64) -> u64 {
    let mixed = (u64::from(rank) << 32 | i).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed >> (64 - 8 * datatype.size())
}

impl User {
    pub fn new(kind: ScheduleKind, rank: u32, n: u32, count: u64, datatype: DataType, in_place: bool) -> User {
        let (ins, outs) = elements(kind.func, n, count);
        let reads = shape::has_input(kind.func, kind.root, rank);
        let writes = shape::has_output(kind.func, kind.root, rank);
        let mut memory = [bytes(ins, datatype.size()), bytes(outs, datatype.size())];
        // Which memory, and where in it in elements.
        let (input, output) = match shape::in_place(kind.func, rank) {
            _ if !in_place || !reads || !writes => ((0, 0), (1, 0)),
            InPlace::Never => ((0, 0), (1, 0)),
            InPlace::Whole => ((0, 0), (0, 0)),
            InPlace::InputIs(chunk) => ((1, u64::from(chunk) * count), (1, 0)),
            InPlace::OutputIs(chunk) => ((0, 0), (0, u64::from(chunk) * count)),
        };
        if reads {
            let target = memory[input.0].bytes_mut();
            (0..ins).for_each(|i| put(target, (input.1 + i) as usize, datatype.size(), value(datatype, rank, i)));
        }
        let input = if reads { memory[input.0].address() + input.1 * datatype.size() as u64 } else { 0 };
        User { memory, input, output }
    }
}

impl Entry {
    fn new(random: &mut SmallRng, datatype: DataType, config: &Config, kinds: &[ScheduleKind]) -> Entry {
        let number = random.random_range(0..=kinds.len());
        let slot = config.proto.slot_data(config.slot_bytes.into()) / datatype.size() as u64;
        let count = [0, 1, 2, 7, slot - 1, slot, slot + 1, 3 * slot + 5][random.random_range(0..8)];
        let in_place = random.random_bool(0.5);
        let kind = kinds.get(number).copied();
        let user = |rank| kind.map(|kind| User::new(kind, rank, config.n, count, datatype, in_place));
        Entry { number, kind, count, in_place, users: (0..config.n).filter_map(user).collect() }
    }

    fn work(&self, world: &World, rank: u32, channel: u32, datatype: DataType) -> Work {
        let config = &world.config;
        let request = Request {
            count: self.count,
            datatype,
            nchunks: world.nchunks(self.number),
            blocks: self.kind.is_some_and(|kind| shape::shape(kind.func, config.n) != Shape::Divided),
            max_channels: 1,
            slot_bytes: config.slot_bytes.into(),
            proto: config.proto,
            min_channel_bytes: 1,
        };
        let geometry = Geometry::new(&request).expect("a call that fits memory");
        let operator = Operator::builtin(Op::Sum, datatype, config.n);
        let mut buffers = Buffers { input: 0, output: 0 };
        if let (Some(kind), Some(user)) = (self.kind, self.users.get(rank as usize)) {
            buffers.input = user.input;
            if shape::has_output(kind.func, kind.root, rank) {
                buffers.output = user.memory[user.output.0].address() + user.output.1 * datatype.size() as u64;
            }
        }
        let work = world.work(rank, self.number, channel, &geometry, datatype, &operator, buffers);
        // One channel's links, but all of the call.
        Work { lo: 0, hi: geometry.block, ..work }
    }

    fn check(&self, datatype: DataType, n: u32) {
        let Some(kind) = self.kind else { return };
        let expected = Expected { kind, n, count: self.count, datatype, input: &|rank, i| value(datatype, rank, i) };
        for (rank, user) in (0..).zip(&self.users).filter(|&(rank, _)| shape::has_output(kind.func, kind.root, rank)) {
            for i in 0..elements(kind.func, n, self.count).1 {
                let got = get(user.memory[user.output.0].bytes(), (user.output.1 + i) as usize, datatype.size());
                let call = (kind, self.count, self.in_place, datatype);
                assert_eq!(got, expected.output(rank, i), "element {i} on rank {rank} of {n}: {call:?}");
            }
        }
    }
}

fn bytes(elements: u64, size: usize) -> Memory {
    Memory::new(elements as usize * size + 1)
}

/// A world of all collectives; the last one is a barrier.
fn world_of_all(config: Config, kinds: &[ScheduleKind]) -> World {
    let made = |&kind: &ScheduleKind| {
        Box::new(move |rank| collectives::schedule(kind, rank, config.n)) as Box<dyn Fn(u32) -> Schedule>
    };
    let mut all: Vec<_> = kinds.iter().map(made).collect();
    all.push(Box::new(move |rank| collectives::barrier(rank, config.n)));
    World::with(config, &all.iter().map(|f| &**f).collect::<Vec<_>>())
}

fn direct_world(config: Config) -> World {
    World::with(config, &[&|rank| collectives::direct(rank, config.n)])
}

/// A split of a call with one chunk on one channel.
fn one_chunk(count: u64, piece: u64, proto: Proto) -> Geometry {
    Geometry { count, nchunks: 1, nchannels: 1, block: count, part: count, piece, proto }
}

/// A launch of calls in random order, the same on all ranks, with items between them that do nothing. Calls are
/// numbered from `serial` on.
fn mixed_launch(world: &World, kinds: &[ScheduleKind], random: &mut SmallRng, serial: &mut u32) {
    let config = world.config;
    let datatype = [DataType::Uint8, DataType::Int32, DataType::Uint64][random.random_range(0..3)];
    let entries: Vec<Option<Entry>> = (0..random.random_range(1..50))
        .map(|_| random.random_bool(0.9).then(|| Entry::new(random, datatype, &config, kinds)))
        .collect();
    let images = world::images();
    let first = *serial;
    *serial += entries.len() as u32;
    let item = |rank: u32, (at, entry): (usize, &Option<Entry>)| {
        let Some(entry) = entry else {
            // Padding: nothing else in it counts.
            return Work {
                datatype: 200,
                proto: 9,
                lo: at as u64 % 2,
                nsteps: at as u32 % 2,
                hi: 1,
                ..Work::default()
            };
        };
        let serial = first + at as u32;
        let work = entry.work(world, rank, at as u32 % config.channels, datatype);
        Work { signature: serial.wrapping_mul(0x9e37_79b1) | 1, serial, ..work }
    };
    let launch = |rank: u32| {
        let items: Vec<Work> = entries.iter().enumerate().map(|entry| item(rank, entry)).collect();
        world.launch_items(images[rank as usize % images.len()], rank, datatype, items, config.channels)
    };
    let launches: Vec<_> = (0..config.n).map(launch).collect();
    world.run(&launches);
    for rank in 0..config.n {
        assert_eq!(world.report(rank), [0; 8], "rank {rank} of {config:?}");
    }
    entries.iter().flatten().for_each(|entry| entry.check(datatype, config.n));
}

/// Thousands of items, most lists too long for the argument, over links that go through the end of 32 bits.
#[test]
fn lists_of_mixed_calls_are_right() {
    let launches = if std::env::var_os("OXCCL_LONG").is_some() { 500 } else { 15 };
    let mut random = SmallRng::seed_from_u64(4);
    for (proto, n) in Proto::HOST.into_iter().flat_map(|proto| [2, 3, 4, 5].map(|n| (proto, n))) {
        let threads = if n == 3 { 3 } else { 1 };
        let config =
            Config { n, channels: 2, slot_bytes: SLOT_BYTES, proto, threads, start: u64::from(u32::MAX) - 300 };
        let kinds = collectives::all(n);
        let world = world_of_all(config, &kinds);
        let mut serial = 1;
        for _ in 0..launches {
            mixed_launch(&world, &kinds, &mut random, &mut serial);
        }
    }
}

/// A sum of scaled inputs whose scalar lies somewhere in memory, aligned to nothing.
#[test]
fn scalars_are_read_by_address() {
    for (proto, datatype) in
        Proto::HOST.into_iter().flat_map(|p| [DataType::Float32, DataType::Float64, DataType::Uint8].map(|t| (p, t)))
    {
        let config = Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto, threads: 1, start: 0 };
        let world = direct_world(config);
        let (size, count) = (datatype.size(), 700u64);
        let float = |v: u32| match datatype {
            DataType::Float32 => u64::from((v as f32).to_bits()),
            DataType::Float64 => f64::from(v).to_bits(),
            _ => u64::from(v),
        };
        let mut scalars = Memory::new(64);
        let mut users: Vec<Memory> = (0..2).map(|_| bytes(count, size)).collect();
        let mut launches = Vec::new();
        for rank in 0..2u32 {
            let at = 1 + 17 * rank as usize;
            scalars.bytes_mut()[at..at + size].copy_from_slice(&float(3 + rank).to_le_bytes()[..size]);
            (0..count as usize).for_each(|i| put(users[rank as usize].bytes_mut(), i, size, float(i as u32 % 9)));
            let address = users[rank as usize].address();
            let geometry = one_chunk(count, 50, proto);
            let operator = Operator::builtin(Op::Sum, datatype, 2);
            let work =
                world.work(rank, 0, 0, &geometry, datatype, &operator, Buffers { input: address, output: address });
            let flags = work_flag::PRE | work_flag::PRE_AT;
            let work = Work { flags, pre: scalars.address() + at as u64, ..work };
            launches.push(world.launch_items(world::images()[0], rank, datatype, vec![work], 1));
        }
        world.run(&launches);
        assert_eq!(world.error(), 0);
        for user in &users {
            (0..count as usize)
                .for_each(|i| assert_eq!(get(user.bytes(), i, size), float(7 * (i as u32 % 9)), "{datatype:?}"));
        }
    }
}

/// Memory that cannot be written.
static CONSTANT: [u8; 4096] = [77; 4096];

/// A copy of data to where it is writes nothing, neither alone nor where it is sent as well.
#[test]
fn copies_in_place_write_nothing() {
    let give = |rank: u32| {
        let mut s = Schedule::new(rank, LinkClass::Direct, 2, 2);
        let (to, from) = ([1], [0]);
        let own = Draft { flags: IN | OUT, out_chunk: 1, ..Draft::ONCE };
        let steps = if rank == 0 {
            vec![own, Draft { send: &to, ..own }]
        } else {
            vec![Draft { flags: OUT, recv: &from, out_chunk: 1, ..Draft::ONCE }]
        };
        steps.into_iter().for_each(|step| s.push(step).expect("a sound step"));
        s
    };
    for proto in Proto::HOST {
        let config = Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto, threads: 2, start: 0 };
        let world = World::with(config, &[&give]);
        let target = Memory::new(4096);
        let geometry = Geometry { count: 2000, nchunks: 2, nchannels: 1, block: 1000, part: 1000, piece: 100, proto };
        let operator = Operator::builtin(Op::Sum, DataType::Uint8, 2);
        let constant = CONSTANT.as_ptr() as u64 + 1000;
        let buffers = [
            // Chunk 1 of the output is chunk 0 of the input.
            Buffers { input: constant, output: constant - 1000 },
            Buffers { input: 0, output: target.address() },
        ];
        let launch = |rank: u32| {
            let work = world.work(rank, 0, 0, &geometry, DataType::Uint8, &operator, buffers[rank as usize]);
            world.launch_items(world::images()[0], rank, DataType::Uint8, vec![work], 1)
        };
        world.run(&[launch(0), launch(1)]);
        assert_eq!(world.error(), 0);
        assert!(target.bytes()[1000..2000].iter().all(|&b| b == 77) && target.bytes()[..1000].iter().all(|&b| b == 0));
    }
}

/// Two ranks, one of which gives its data to the other through a direct link: `pull` is the receiver that reads the
/// sender's input, else the sender writes the receiver's output. Signals say when buffers are ready and done with.
fn direct(rank: u32, pull: bool) -> Schedule {
    let peer = [1 - rank];
    let once = Draft::ONCE;
    let (signal, signalled) =
        (Draft { flags: NO_DATA, send: &peer, ..once }, Draft { flags: NO_DATA, recv: &peer, ..once });
    let steps = match (rank, pull) {
        (0, true) => [signal, signalled],
        (_, true) => [Draft { flags: OUT, recv: &peer, ..once }, signal],
        (0, false) => [signalled, Draft { flags: IN, send: &peer, ..once }],
        (_, false) => [signal, signalled],
    };
    let mut s = Schedule::new(rank, LinkClass::Direct, 1, 2);
    steps.into_iter().for_each(|step| s.push(step).expect("a sound step"));
    s
}

#[test]
fn direct_links_carry_the_users_data() {
    for (pull, threads) in [(true, 1), (false, 1), (true, 4), (false, 4)] {
        let config = Config { n: 2, channels: 1, slot_bytes: 64, proto: Proto::Simple, threads, start: 0 };
        let mut world = World::with(config, &[&|rank| direct(rank, pull)]);
        let (mut input, output) = (Memory::new(8000), Memory::new(8000));
        // Pieces may be larger than slots, which are not used.
        let geometry = one_chunk(1000, 96, Proto::Simple);
        let (end, address) = if pull { (1, input.address()) } else { (0, output.address()) };
        world.set_direct(end, LinkClass::Direct, (0, 1), address);
        let operator = Operator::builtin(Op::Sum, DataType::Uint64, 2);
        for call in 1..20u64 {
            (0..1000).for_each(|i| put(input.bytes_mut(), i, 8, call * 1000 + i as u64));
            let launch = |rank: u32| {
                let buffers = Buffers { input: input.address(), output: output.address() };
                let work = world.work(rank, 0, 0, &geometry, DataType::Uint64, &operator, buffers);
                let work = Work { signature: call as u32, serial: call as u32, ..work };
                world.launch_items(world::images()[0], rank, DataType::Uint64, vec![work], 1)
            };
            world.run(&[launch(0), launch(1)]);
            assert_eq!(world.error(), 0);
            (0..1000).for_each(|i| assert_eq!(get(output.bytes(), i, 8), call * 1000 + i as u64, "pull {pull}"));
        }
    }
}

/// Items beyond the argument's room are run only where they have an address.
#[test]
fn lists_in_the_argument_are_bounded() {
    let config = Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto: Proto::Simple, threads: 1, start: 0 };
    let world = direct_world(config);
    let args = |launch: &mut world::Launch| -> LaunchArgs { *launch.args() };
    let mut short = world.launch_items(world::images()[0], 0, DataType::Uint8, vec![Work::default(); 15], 1);
    assert_eq!(args(&mut short).items, 0);
    short.args().nwork = 1000;
    short.block(0);
    let mut long = world.launch_items(world::images()[0], 0, DataType::Uint8, vec![Work::default(); 16], 3);
    assert_ne!(args(&mut long).items, 0);
    (0..3).for_each(|block| long.block(block));
    assert_eq!(world.error(), 0);
}
