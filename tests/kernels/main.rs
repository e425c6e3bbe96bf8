//! The host image, called directly: ranks are threads, links are heap memory. Every result is compared bit
//! for bit with an oracle that knows only the specification.
//!
//! A seeded sample runs by default, everything with `OXCCL_LONG=1`; `OXCCL_SEED` picks another sample.

mod collectives;
mod errors;
mod items;
mod messages;
mod offers;
mod oracle;
mod sweep;
mod world;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::{Proto, abort, kernel_error, launch_flag};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use world::{Buffers, Call, Config, Image, Memory, World};

const OPS: [Op; 5] = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg];
const RANKS: [u32; 4] = [2, 3, 4, 8];
const SLOT_BYTES: u32 = 1024;
/// Bytes around every buffer that must not change.
const GUARD: usize = 128;
const GUARD_BYTE: u8 = 0xa5;

/// One case.
#[derive(Clone, Copy, Debug)]
struct Case {
    proto: Proto,
    datatype: DataType,
    op: Op,
    n: u32,
    count: u64,
    in_place: bool,
    /// Elements by which input and output are off a cache line.
    offset: (usize, usize),
    threads: u32,
    channels: u32,
    /// Which build of the image.
    isa: usize,
    seed: u64,
}

fn get(bytes: &[u8], index: usize, size: usize) -> u64 {
    let mut word = [0; 8];
    word[..size].copy_from_slice(&bytes[index * size..][..size]);
    u64::from_le_bytes(word)
}

fn put(bytes: &mut [u8], index: usize, size: usize, value: u64) {
    bytes[index * size..][..size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// An element: any bits (NaN, infinities, subnormals and all), an edge of the type, or a small number.
fn element(random: &mut SmallRng, datatype: DataType) -> u64 {
    let bits: u64 = random.random();
    let float = |v: f64| match datatype {
        DataType::Float32 => u64::from((v as f32).to_bits()),
        DataType::Float64 => v.to_bits(),
        _ => oracle::format(datatype).map_or(v as i64 as u64, |f| f.round(v).into()),
    };
    let value = match random.random_range(0..10) {
        0..4 => bits,
        4 => [0, 1, u64::MAX, u64::MAX >> 1, 1 << 63, 1 << (8 * datatype.size() - 1)][bits as usize % 6],
        5 => float([0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MAX][bits as usize % 6]),
        // The lowest exponents: subnormals and their neighbours.
        6 => bits & ((1 << (datatype.size() * 4)) - 1),
        _ => float(random.random_range(-8..=8) as f64 / 4.0),
    };
    value & (u64::MAX >> (64 - 8 * datatype.size()))
}

/// A rank's memory for a call: guards around input and output.
struct User {
    memory: Memory,
    input: usize,
    output: usize,
    len: usize,
}

impl User {
    fn new(case: &Case, random: &mut SmallRng) -> User {
        let size = case.datatype.size();
        let len = case.count as usize * size;
        let room = (len + 8 * size).next_multiple_of(64) + GUARD;
        let input = GUARD + case.offset.0 * size;
        let output = if case.in_place { input } else { GUARD + room + case.offset.1 * size };
        let mut memory = Memory::new(GUARD + 2 * room);
        memory.bytes_mut().fill(GUARD_BYTE);
        for i in 0..case.count as usize {
            put(&mut memory.bytes_mut()[input..], i, size, element(random, case.datatype));
        }
        User { memory, input, output, len }
    }

    fn buffers(&self) -> Buffers {
        Buffers { input: self.memory.address() + self.input as u64, output: self.memory.address() + self.output as u64 }
    }

    /// What must be there after the call: all as before, but for the output.
    fn check_rest(&self, before: &[u8], case: &Case, rank: usize) {
        let mut want = before.to_vec();
        want[self.output..][..self.len].copy_from_slice(&self.memory.bytes()[self.output..][..self.len]);
        let differs = self.memory.bytes().iter().zip(&want).position(|(a, b)| a != b);
        assert_eq!(differs, None, "rank {rank} wrote outside its output: {case:?}");
    }
}

fn run(world: &World, image: &Image, case: &Case) {
    let mut random = SmallRng::seed_from_u64(case.seed);
    let users: Vec<User> = (0..case.n).map(|_| User::new(case, &mut random)).collect();
    let before: Vec<Vec<u8>> = users.iter().map(|u| u.memory.bytes().to_vec()).collect();
    let call = Call { datatype: case.datatype, op: case.op, count: case.count };
    let launches: Vec<_> =
        users.iter().zip(0..).map(|(u, rank)| world.launch(image, rank, &call, u.buffers())).collect();
    world.run(&launches);
    assert_eq!(world.error(), kernel_error::NONE, "{case:?}");

    let (size, block) = (case.datatype.size(), world.geometry(&call).block);
    for (rank, (user, before)) in users.iter().zip(&before).enumerate() {
        user.check_rest(before, case, rank);
    }
    for i in 0..case.count as usize {
        let inputs: Vec<u64> = users.iter().zip(&before).map(|(u, b)| get(&b[u.input..], i, size)).collect();
        let want = oracle::all_reduce(case.datatype, case.op, &inputs, i / block as usize);
        let first = get(&users[0].memory.bytes()[users[0].output..], i, size);
        for (rank, user) in users.iter().enumerate() {
            let got = get(&user.memory.bytes()[user.output..], i, size);
            let right = oracle::same(case.datatype, case.op, got, want) && got == first;
            assert!(right, "element {i} on rank {rank}: {got:#x}, not {want:#x}, of {inputs:x?} in {case:?}");
        }
    }
}

/// Counts that matter: none, fewer than ranks, odd ones, a slot and its neighbours, many slots.
fn counts(datatype: DataType, n: u32) -> Vec<u64> {
    let slot = u64::from(SLOT_BYTES) / datatype.size() as u64;
    let slots = slot * u64::from(n);
    vec![0, 1, 2, 3, 101, slots - 1, slots, slots + 1, 9 * slots + 17]
}

/// All cases of a type with a protocol.
fn every_case(proto: Proto, datatype: DataType, images: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for op in OPS {
        for n in RANKS {
            for count in counts(datatype, n) {
                // Half of all combinations, chosen so that any three of the four properties meet in every way.
                for bits in 0..8 * images {
                    let offset = if bits & 1 == 0 { (0, 0) } else { (1 + bits % 3, bits % 5) };
                    let (in_place, threads) = (bits & 2 != 0, if bits & 4 == 0 { 1 } else { 4 });
                    let channels = if (bits & 7).count_ones() % 2 == 0 { 1 } else { 3 };
                    let (isa, seed) = (bits / 8, cases.len() as u64);
                    cases.push(Case { proto, datatype, op, n, count, in_place, offset, threads, channels, isa, seed });
                }
            }
        }
    }
    cases
}

/// Runs cases on worlds that are used over and over, as communicators are.
fn run_all(cases: &[Case]) {
    let images = world::images();
    let mut worlds = HashMap::new();
    for case in cases {
        let config = Config {
            n: case.n,
            channels: case.channels,
            slot_bytes: SLOT_BYTES,
            proto: case.proto,
            threads: case.threads,
            // Not far from where 32 bits end, on which waiting threads sleep.
            start: u64::from(u32::MAX) - 100,
        };
        let world =
            worlds.entry((case.proto, case.n, case.channels, case.threads)).or_insert_with(|| World::new(config));
        world.flags = if case.seed % 3 == 0 { launch_flag::NO_WAKE } else { 0 };
        run(world, images[case.isa], case);
    }
}

/// Runs a sample of the cases of a type with a protocol, or all (see `sweep`).
fn results_are_right(proto: Proto, datatype: DataType) {
    let all = every_case(proto, datatype, world::images().len());
    let long = std::env::var_os("OXCCL_LONG").is_some();
    let seed = std::env::var("OXCCL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut random = SmallRng::seed_from_u64(seed ^ (datatype as u64) << 32 ^ (proto as u64) << 48);
    println!("{} cases, {}", all.len(), if long { "all".into() } else { format!("a sample with seed {seed}") });
    if long {
        return run_all(&all);
    }
    // From each operator and number of ranks some cases.
    let group = all.len() / (OPS.len() * RANKS.len());
    let mut sample = Vec::new();
    for cases in all.chunks(group) {
        sample.extend((0..3).map(|_| cases[random.random_range(0..group)]));
    }
    run_all(&sample);
}

/// Slots as large as in use, and more data than all of them hold.
#[test]
fn large_calls_are_right() {
    let images = world::images();
    let config = |proto| Config { n: 2, channels: 2, slot_bytes: 1 << 16, proto, threads: 1, start: 0 };
    for (isa, proto) in (0..images.len()).flat_map(|isa| Proto::HOST.map(|proto| (isa, proto))) {
        let world = World::new(config(proto));
        let case = Case {
            proto,
            datatype: DataType::Bfloat16,
            op: Op::Sum,
            n: 2,
            count: (1 << 20) + 7,
            in_place: isa == 0,
            offset: (0, 1),
            threads: 1,
            channels: 2,
            isa,
            seed: 9,
        };
        run(&world, images[isa], &case);
    }
}

#[test]
fn images_are_sound() {
    let images = world::images();
    for image in &images {
        image.check();
    }
    #[cfg(target_arch = "x86_64")]
    assert_eq!(images.len(), if is_x86_feature_detected!("avx2") { 2 } else { 1 });
}

/// Ranks 0 and 1 of three wait for the third, which never comes, until they are told to leave.
fn abort_in_flight(proto: Proto, threads: u32, reason: u32, flags: u32) -> u32 {
    let config = Config { n: 3, channels: 2, slot_bytes: SLOT_BYTES, proto, threads, start: 0 };
    let mut world = World::new(config);
    world.flags = flags;
    let call = Call { datatype: DataType::Float32, op: Op::Sum, count: 1 << 16 };
    let users: Vec<Memory> = (0..2).map(|_| Memory::new(4 << 16)).collect();
    let images = world::images();
    let launch = |(rank, user): (usize, &Memory)| {
        let buffers = Buffers { input: user.address(), output: user.address() };
        world.launch(images[rank % images.len()], rank as u32, &call, buffers)
    };
    let launches: Vec<_> = users.iter().enumerate().map(launch).collect();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| world.run(&launches));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!running.is_finished(), "ended without the third rank");
        world.abort.store(reason, Ordering::Relaxed);
    });
    world.error()
}

#[test]
fn kernels_leave_when_told() {
    for (proto, threads) in Proto::HOST.into_iter().flat_map(|proto| [(proto, 1), (proto, 4)]) {
        for flags in [0, launch_flag::NO_WAKE] {
            assert_eq!(abort_in_flight(proto, threads, abort::REPORT, flags), kernel_error::ABORTED);
        }
        // Another reason is for the host alone.
        assert_eq!(abort_in_flight(proto, threads, 7, 0), kernel_error::NONE);
    }
}

#[test]
fn late_ranks_are_waited_for() {
    Proto::HOST.into_iter().for_each(waits_for_a_late_rank);
}

fn waits_for_a_late_rank(proto: Proto) {
    let config = Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto, threads: 4, start: 0 };
    let world = World::new(config);
    let call = Call { datatype: DataType::Int32, op: Op::Sum, count: 1000 };
    let mut users: Vec<Memory> = (0..2).map(|_| Memory::new(4000)).collect();
    for user in &mut users {
        (0..1000).for_each(|i| put(user.bytes_mut(), i, 4, i as u64));
    }
    let image = world::images()[0];
    let launch = |rank: usize| {
        let address = users[rank].address();
        world.launch(image, rank as u32, &call, Buffers { input: address, output: address })
    };
    let launches = [launch(0), launch(1)];
    std::thread::scope(|scope| {
        scope.spawn(|| launches[0].block(0));
        // Long enough that the first rank's threads sleep.
        std::thread::sleep(Duration::from_millis(50));
        scope.spawn(|| launches[1].block(0));
    });
    for user in &users {
        assert!((0..1000).all(|i| get(user.bytes(), i, 4) == 2 * i as u64));
    }
}

/// Two ranks, the second one late, with these flags. Whether a kernel announced meanwhile, at a counter and at the
/// barrier of its block, that it sleeps until it is woken.
fn announced_sleep(proto: Proto, flags: u32) -> (bool, bool) {
    const COUNT: usize = 1000;
    let mut world = World::new(Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto, threads: 4, start: 0 });
    world.flags = flags;
    let call = Call { datatype: DataType::Int32, op: Op::Sum, count: COUNT as u64 };
    let mut users: Vec<Memory> = (0..2).map(|_| Memory::new(4 * COUNT)).collect();
    for user in &mut users {
        (0..COUNT).for_each(|i| put(user.bytes_mut(), i, 4, i as u64));
    }
    let launches: Vec<_> = (0..2)
        .map(|rank| {
            let address = users[rank].address();
            let image = world::images()[rank % world::images().len()];
            world.launch(image, rank as u32, &call, Buffers { input: address, output: address })
        })
        .collect();
    let barriers = [Memory::new(world::BARRIER_BYTES), Memory::new(world::BARRIER_BYTES)];
    let mut announced = (false, false);
    std::thread::scope(|scope| {
        scope.spawn(|| launches[0].block_with(0, &barriers[0]));
        // Sleeps are announced one at a time and for a millisecond each, so some of so many looks see one.
        for _ in 0..200 {
            announced.0 |= world.has_waiters();
            // `Barrier::sleepers` of kernels/host.cuh.
            announced.1 |= barriers[0].words().nth(17).expect("a word") != 0;
            std::thread::sleep(Duration::from_micros(300));
        }
        scope.spawn(|| launches[1].block_with(0, &barriers[1]));
    });
    assert_eq!(world.error(), kernel_error::NONE);
    for user in &users {
        assert!((0..COUNT).all(|i| get(user.bytes(), i, 4) == 2 * i as u64), "{proto:?} with flags {flags}");
    }
    announced
}

/// A GPU's store wakes nobody, so kernels that are told so ask nobody to wake them; the others do.
#[test]
fn who_is_not_woken_does_not_ask_for_it() {
    assert_eq!(announced_sleep(Proto::Simple, 0), (true, true), "a sleep would be noticed");
    for proto in Proto::HOST {
        assert_eq!(announced_sleep(proto, launch_flag::NO_WAKE), (false, false), "{proto:?}");
    }
}

/// Runs a call on two ranks of which the second, which sends the data, comes late. Every element is `value`
/// on each rank; the sums that rank 0 got.
fn sums_with_a_late_sender(world: &World, count: u64, value: i64) -> Vec<i64> {
    let call = Call { datatype: DataType::Int64, op: Op::Sum, count };
    let mut users: Vec<Memory> = (0..2).map(|_| Memory::new(count as usize * 8)).collect();
    for user in &mut users {
        (0..count as usize).for_each(|i| put(user.bytes_mut(), i, 8, value as u64));
    }
    let image = world::images()[0];
    let launches: Vec<_> = users
        .iter()
        .zip(0..)
        .map(|(user, rank)| world.launch(image, rank, &call, Buffers { input: user.address(), output: user.address() }))
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| launches[0].block(0));
        std::thread::sleep(Duration::from_millis(20));
        scope.spawn(|| launches[1].block(0));
    });
    (0..count as usize).map(|i| get(users[0].bytes(), i, 8) as i64).collect()
}

/// A call fills all slots to the end with the flags of their time. 2^32 turns later these flags come again, and
/// short turns in between have left the tails as they were. Where `cleaned`, the turns in between include the
/// ones that clean.
fn flags_come_round(cleaned: bool, threads: u32) -> Vec<i64> {
    const ROUND: u64 = 1 << 32;
    // A call of two ranks is two turns of each link: as many of these as fill all slots, from a position at
    // which nothing is cleaned.
    let slot = u64::from(SLOT_BYTES) / 2 / 8;
    let start = 5 * ROUND + 64;
    let mut world = World::new(Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto: Proto::Ll, threads, start });
    let full = |world: &World, value| sums_with_a_late_sender(world, 2 * slot, value);
    for _ in 0..4 {
        assert!(full(&world, 1).iter().all(|&sum| sum == 2));
    }
    if cleaned {
        world.skip((1 << 30) - 8 - 64 - 8);
        for _ in 0..4 {
            assert_eq!(sums_with_a_late_sender(&world, 2, 3), [6, 6]);
        }
    }
    world.skip(start + ROUND - world.position(0));
    full(&world, 10)
}

#[test]
fn flags_of_ll_survive_their_wrap() {
    for threads in [1, 4] {
        assert!(flags_come_round(true, threads).iter().all(|&sum| sum == 20));
    }
    // Without the cleaning turns, the receiver takes what is 2^32 turns old: the test would notice.
    assert!(flags_come_round(false, 1).iter().any(|&sum| sum != 20));
}

#[test]
fn work_that_does_not_fit_is_refused() {
    let config = Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto: Proto::Simple, threads: 4, start: 0 };
    let call = Call { datatype: DataType::Float32, op: Op::Sum, count: 10 };
    let user = Memory::new(64);
    let buffers = Buffers { input: user.address(), output: user.address() };
    type Break = fn(&mut nccl::plan::layout::Work);
    let breaks: [Break; 4] = [|w| w.datatype = 0, |w| w.proto = 9, |w| w.op = 4, |w| w.piece = 0];
    for breaks in breaks {
        let world = World::new(config);
        let mut launch = world.launch(world::images()[0], 0, &call, buffers);
        breaks(&mut launch.args().work[0]);
        launch.block(0);
        assert_eq!(world.error(), kernel_error::BAD_WORK);
    }
}

/// Applications run threads that flush subnormals to zero. Sums keep them, and the mode stays theirs.
#[cfg(target_arch = "x86_64")]
#[test]
#[allow(deprecated)]
fn float_modes_of_the_caller_do_not_matter() {
    use std::arch::x86_64::{_mm_getcsr, _mm_setcsr};
    const FLUSH_AND_ROUND_UP: u32 = 0x8040 | 0x1f80 | 0x4000;
    let config = Config { n: 2, channels: 1, slot_bytes: SLOT_BYTES, proto: Proto::Simple, threads: 1, start: 0 };
    let world = World::new(config);
    let call = Call { datatype: DataType::Float32, op: Op::Sum, count: 16 };
    let mut users: Vec<Memory> = (0..2).map(|_| Memory::new(64)).collect();
    for user in &mut users {
        (0..16).for_each(|i| put(user.bytes_mut(), i, 4, 3));
    }
    let launch = |rank: usize| {
        let address = users[rank].address();
        world.launch(world::images()[0], rank as u32, &call, Buffers { input: address, output: address })
    };
    let launches = [launch(0), launch(1)];
    std::thread::scope(|scope| {
        for launch in &launches {
            scope.spawn(|| {
                // SAFETY: the thread does no other float arithmetic, and puts the old mode back.
                unsafe {
                    let old = _mm_getcsr();
                    _mm_setcsr(FLUSH_AND_ROUND_UP);
                    launch.block(0);
                    let kept = _mm_getcsr();
                    _mm_setcsr(old);
                    assert_eq!(kept & 0xffc0, FLUSH_AND_ROUND_UP);
                }
            });
        }
    });
    assert_eq!(get(users[1].bytes(), 5, 4), 6, "a subnormal sum was flushed");
}
