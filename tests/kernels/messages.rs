//! Messages between two ranks: small ones by LL among others by Simple in one launch, and large ones that the receiver
//! reads from the sender's buffer.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nccl::plan::call::DataType;
use nccl::plan::layout::{PLACE_UNIT, Proto, REGISTRATIONS, Work, abort, kernel_error, launch_flag, work_flag};
use nccl::plan::offer::Tag;
use nccl::plan::operator::Operator;
use nccl::plan::point_to_point;
use nccl::plan::schedule::Schedule;
use nccl::plan::work::{Geometry, Request};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::SLOT_BYTES;
use crate::world::{self, Buffers, Config, Launch, Memory, World};

const MESSAGES: &str = "oxccl_messages";
/// Numbers of the halves in a world: by slots, and without.
const SLOTS: usize = 0;
const WITHOUT: usize = 1;
/// Channels of a world: the links of Simple, and those of LL.
const SIMPLE: u32 = 0;
const LINES: u32 = 1;

/// Rank 0 sends to rank 1.
fn world(threads: u32) -> World {
    let config = Config {
        n: 2,
        channels: 2,
        slot_bytes: SLOT_BYTES,
        proto: Proto::Simple,
        threads,
        start: u64::from(u32::MAX) - 50,
    };
    let slots = |rank| match rank {
        0 => point_to_point::send(0, 1).expect("a schedule"),
        _ => point_to_point::receive(1, 0).expect("a schedule"),
    };
    let without = |rank| match rank {
        0 => point_to_point::offer(0, 1).expect("a schedule"),
        _ => point_to_point::pull(1, 0).expect("a schedule"),
    };
    let all: [&dyn Fn(u32) -> Schedule; 2] = [&slots, &without];
    World::with(config, &all)
}

/// How a message is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lines,
    Slots,
    /// The receiver could read it, but the sender offers nothing.
    NotOffered,
    /// The sender offers it, but the receiver has not mapped it.
    NotMapped,
    /// The receiver has mapped what was there before.
    Stale,
    Read,
}

impl Way {
    const ALL: [Way; 6] = [Way::Lines, Way::Slots, Way::NotOffered, Way::NotMapped, Way::Stale, Way::Read];
}

/// A message with its buffers, which begin at any byte.
struct Message {
    way: Way,
    number: u32,
    bytes: usize,
    offset: usize,
    input: Memory,
    output: Memory,
}

impl Message {
    fn new(way: Way, number: u32, bytes: usize) -> Message {
        let offset = (number % 5) as usize;
        let mut input = Memory::new(bytes + 64);
        let data = (0..).map(|at| (at * 7 + number as usize * 31) as u8);
        input.bytes_mut().iter_mut().zip(data).for_each(|(byte, value)| *byte = value);
        Message { way, number, bytes, offset, input, output: Memory::new(bytes + 64) }
    }

    fn random(random: &mut SmallRng, ways: &[Way], number: u32) -> Message {
        let way = ways[random.random_range(0..ways.len())];
        Message::new(way, number, [1, 8, 300, 1500, 5000, 20_000][random.random_range(0..6)])
    }

    fn buffers(&self) -> Buffers {
        let offset = self.offset as u64;
        Buffers { input: self.input.address() + offset, output: self.output.address() + offset }
    }

    /// What is mapped and offered: registration 7, with a tag of this message.
    fn tag(&self, stale: bool) -> Tag {
        Tag::new(7, self.number * 2 + u32::from(stale))
    }

    fn geometry(&self, proto: Proto) -> Geometry {
        let request = Request {
            count: self.bytes as u64,
            datatype: DataType::Int8,
            nchunks: 1,
            blocks: false,
            max_channels: 1,
            slot_bytes: SLOT_BYTES.into(),
            proto,
            min_channel_bytes: 1,
        };
        Geometry::new(&request).expect("a message that fits memory")
    }

    /// A rank's items.
    fn items(&self, world: &World, rank: u32) -> Vec<Work> {
        let work = |half, channel, geometry: &Geometry| {
            let work = world.work(rank, half, 0, geometry, DataType::Int8, &Operator::COPY, self.buffers());
            Work { serial: self.number, links: world.links(rank, channel), ..work }
        };
        if self.way == Way::Lines {
            return vec![work(SLOTS, LINES, &self.geometry(Proto::Ll))];
        }
        let geometry = self.geometry(Proto::Simple);
        let slots = work(SLOTS, SIMPLE, &geometry);
        let without = Work {
            flags: work_flag::OFFER | work_flag::PULL,
            offers: [self.tag(false).offer(self.buffers().input % PLACE_UNIT), 0],
            ..work(WITHOUT, SIMPLE, &Geometry { piece: geometry.part, ..geometry })
        };
        match self.way {
            Way::Slots => vec![slots],
            Way::NotOffered if rank == 0 => vec![slots],
            // The item behind cannot be run.
            Way::Read => vec![without, Work { op: 99, ..slots }],
            _ => vec![without, slots],
        }
    }

    /// What the receiver has mapped.
    fn table(&self) -> Vec<u64> {
        self.table_if(matches!(self.way, Way::Read | Way::Stale), self.way == Way::Stale)
    }

    fn table_if(&self, mapped: bool, stale: bool) -> Vec<u64> {
        let mut table = vec![0; 2 * REGISTRATIONS];
        if mapped {
            let address = self.buffers().input / PLACE_UNIT * PLACE_UNIT;
            table[7] = self.tag(stale).place(address).expect("an address");
        }
        table
    }

    fn check(&self) {
        let range: Range<usize> = self.offset..self.offset + self.bytes;
        let (sent, came) = (&self.input.bytes()[range.clone()], &self.output.bytes()[range.clone()]);
        assert!(sent == came, "message {} of {} bytes, {:?}", self.number, self.bytes, self.way);
        let rest = self.output.bytes().iter().enumerate().filter(|(at, _)| !range.contains(at));
        assert!(rest.into_iter().all(|(_, byte)| *byte == 0), "message {}: something beside it", self.number);
    }
}

fn launch(world: &World, rank: u32, messages: &[&Message], table: &[u64]) -> Launch {
    let images = world::images();
    let items = messages.iter().flat_map(|message| message.items(world, rank)).collect();
    let image = images[rank as usize % images.len()];
    let mut launch = world.launch_kernel(image.named(MESSAGES), rank, items, 1);
    launch.args().peers = if rank == 1 { table.as_ptr() as u64 } else { 0 };
    launch
}

fn run(world: &World, message: &Message) {
    run_with(world, &[message], &message.table());
}

fn run_with(world: &World, messages: &[&Message], table: &[u64]) {
    world.run(&[0, 1].map(|rank| launch(world, rank, messages, table)));
    assert_eq!([world.report(0), world.report(1)], [[0; 8]; 2]);
    messages.iter().for_each(|message| message.check());
}

fn rounds() -> u32 {
    if std::env::var_os("OXCCL_LONG").is_some() { 2000 } else { 100 }
}

/// Message after message on the same links, each in a way of its own.
#[test]
fn messages_come_in_every_way() {
    for threads in [1, 3] {
        let mut world = world(threads);
        world.flags = if threads > 1 { launch_flag::NO_WAKE } else { 0 };
        let mut random = SmallRng::seed_from_u64(threads.into());
        let mut refused = 0;
        for number in 1..rounds() {
            // Before the sender has been refused so often that it does not offer any more.
            let ways = if refused < 6 { &Way::ALL[..] } else { &[Way::Read] };
            let message = Message::random(&mut random, ways, number);
            run(&world, &message);
            refused = match message.way {
                Way::NotMapped | Way::Stale => refused + 1,
                Way::Read => 0,
                _ => refused,
            };
        }
    }
}

/// Many messages in one launch: protocols take turns, and the sender runs ahead.
#[test]
fn protocols_take_turns_in_a_launch() {
    let ways = [Way::Lines, Way::Lines, Way::Slots, Way::NotOffered, Way::NotMapped];
    for threads in [1, 2] {
        let world = world(threads);
        let mut random = SmallRng::seed_from_u64(10 + u64::from(threads));
        for round in 0..rounds() / 20 {
            let count = random.random_range(1..30);
            let numbers = 100 * round + 1..100 * round + 1 + count;
            let mut all: Vec<Message> = numbers.map(|number| Message::random(&mut random, &ways, number)).collect();
            // The table is the last one's: it is read, or not asked for any more.
            all.push(Message::new(Way::NotMapped, 100 * round + 99, 3000));
            let table = all[all.len() - 1].table_if(true, false);
            run_with(&world, &all.iter().collect::<Vec<_>>(), &table);
        }
    }
}

/// A sender that is refused again and again offers seldom, and the receiver follows; what is mapped later is read.
#[test]
fn a_sender_that_is_refused_offers_seldom() {
    let world = world(1);
    let mut passed = Vec::new();
    for number in 1..100 {
        let before = world.position(0);
        // Not `Read`, so that the items by slots are sound; but what is mapped is right from the 60th on.
        let message = Message::new(Way::NotMapped, number, 3000);
        let table = message.table_if(number >= 60, false);
        run_with(&world, &[&message], &table);
        passed.push(world.position(0) - before);
    }
    // Three slots, one more where an offer is refused, and one where it is read.
    assert_eq!(passed[..7], [4; 7]);
    let refused = passed[7..59].iter().filter(|slots| **slots == 4).count();
    assert!(refused == 3 && passed[7..59].iter().all(|slots| *slots >= 3), "{passed:?}");
    let first = passed.iter().position(|slots| *slots == 1).expect("a message that was read");
    assert!(first < 59 + 16 && passed[first..].iter().all(|slots| *slots == 1), "{passed:?}");
}

/// One of the two never comes: the other leaves when it is told to.
#[test]
fn who_waits_for_the_other_leaves() {
    for (rank, way) in [(0, Way::Read), (1, Way::Read), (1, Way::Lines)] {
        let world = world(1);
        let message = Message::new(way, 1, 3000);
        let table = message.table();
        let launch = launch(&world, rank, &[&message], &table);
        std::thread::scope(|scope| {
            scope.spawn(|| launch.block(0));
            std::thread::sleep(Duration::from_millis(30));
            world.abort.store(abort::REPORT, Ordering::Relaxed);
        });
        assert_eq!(world.report(rank)[0], kernel_error::ABORTED, "{rank}, {way:?}");
    }
}

/// A protocol that the kernel does not have.
#[test]
fn other_protocols_are_refused() {
    let world = world(1);
    let message = Message::new(Way::Slots, 1, 8);
    let items = message.items(&world, 0).into_iter().map(|work| Work { proto: Proto::Ll128 as u8, ..work }).collect();
    let launch = world.launch_kernel(world::images()[0].named(MESSAGES), 0, items, 1);
    launch.block(0);
    assert_eq!(world.report(0)[0], kernel_error::BAD_WORK);
}
