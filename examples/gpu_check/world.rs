//! Ranks of one device: links in its memory, and one launch with a block for each rank.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nccl::device::{Context, DeviceMemory, Event, HostFlag, Kernels, Stream};
use nccl::error::Error;
use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::{Counter, LaunchArgs, LinkEnd, Proto, SLOTS, Work};
use nccl::plan::operator::Operator;
use nccl::plan::schedule::Schedule;
use nccl::plan::work::{Geometry, Request};
use nccl::plan::{LinkId, ring};
use nccl::topology::Order;
use zerocopy::IntoBytes;

use crate::oracle::{Pattern, Reduction};

const SLOT_BYTES: u32 = 16 << 10;
/// Threads of a block on the software device and on a GPU.
const THREADS: (u32, u32) = (2, 512);
/// A launch that takes longer hangs.
const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes around buffers that must not change, and what is in them.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

/// What is computed.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub reduction: Reduction,
    pub datatype: DataType,
    pub count: usize,
    pub in_place: bool,
    /// Elements by which buffers are off a cache line.
    pub offset: usize,
}

/// What goes in and what must come out, for all counts.
pub struct Patterns {
    inputs: Vec<Pattern>,
    expected: Pattern,
}

impl Patterns {
    pub fn new(reduction: &Reduction) -> Patterns {
        Patterns {
            inputs: (0..reduction.nranks).map(|rank| reduction.input(rank)).collect(),
            expected: reduction.expected(),
        }
    }
}

/// All ranks and their links, which carry on from case to case.
pub struct World {
    context: Arc<Context>,
    proto: Proto,
    schedules: Vec<Schedule>,
    /// Offsets into the memory, by rank.
    steps: Vec<usize>,
    ends: Vec<usize>,
    memory: DeviceMemory,
    flag: HostFlag,
    done: Event,
}

/// Hands out parts of one allocation.
#[derive(Default)]
struct Layout {
    size: usize,
}

impl Layout {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.size.next_multiple_of(256);
        self.size = at + bytes;
        at
    }
}

/// Where a link's slots and its two counters lie.
#[derive(Clone, Copy)]
struct LinkPlace {
    slots: usize,
    posted: usize,
    consumed: usize,
}

impl World {
    pub fn new(context: &Arc<Context>, nranks: u32, proto: Proto) -> Result<World, Error> {
        let order = Order::of_numbers(nranks);
        let schedules: Vec<Schedule> =
            order.ranks().iter().map(|rank| ring::all_reduce(&order, *rank)).collect::<Result<_, _>>()?;
        let mut layout = Layout::default();
        let mut links: HashMap<LinkId, LinkPlace> = HashMap::new();
        for id in schedules.iter().flat_map(|schedule| &schedule.links) {
            links.entry(*id).or_insert_with(|| LinkPlace {
                slots: layout.take(SLOTS * SLOT_BYTES as usize),
                posted: layout.take(size_of::<Counter>()),
                consumed: layout.take(size_of::<Counter>()),
            });
        }
        let steps: Vec<usize> = schedules.iter().map(|schedule| layout.take(schedule.steps.as_bytes().len())).collect();
        let ends: Vec<usize> = schedules.iter().map(|s| layout.take(s.links.len() * size_of::<LinkEnd>())).collect();
        let memory = DeviceMemory::zeroed(context, layout.size)?;
        let address = |offset: usize| memory.address() + offset as u64;
        for ((schedule, steps), ends) in schedules.iter().zip(&steps).zip(&ends) {
            schedule.check(SLOTS as u32)?;
            memory.write(*steps, schedule.steps.as_bytes())?;
            let end = |id: &LinkId| LinkEnd {
                slots: address(links[id].slots),
                posted: address(links[id].posted),
                consumed: address(links[id].consumed),
                slot_bytes: SLOT_BYTES,
                ..LinkEnd::default()
            };
            let list: Vec<LinkEnd> = schedule.links.iter().map(end).collect();
            memory.write(*ends, list.as_bytes())?;
        }
        let (flag, done) = (HostFlag::create(context)?, Event::create(context)?);
        Ok(World { context: context.clone(), proto, schedules, steps, ends, memory, flag, done })
    }

    /// Runs a case; what is wrong with it, if something is.
    pub fn run(
        &self,
        kernels: &Kernels,
        kernel: usize,
        case: &Case,
        patterns: &Patterns,
    ) -> Result<Option<String>, Error> {
        let size = case.datatype.size();
        let bytes = case.count * size;
        // For each rank: guard, input, guard, output, guard.
        let room = (bytes + case.offset * size).next_multiple_of(256) + GUARD;
        let share = GUARD + 2 * room;
        let input = |rank: usize| rank * share + GUARD + case.offset * size;
        let output = |rank: usize| if case.in_place { input(rank) } else { input(rank) + room };
        let mut host = vec![GUARD_BYTE; self.schedules.len() * share];
        for rank in 0..self.schedules.len() {
            patterns.inputs[rank].fill(&mut host[input(rank)..][..bytes], 0);
        }
        let user = DeviceMemory::zeroed(&self.context, host.len())?;
        user.write(0, &host)?;
        let arguments =
            self.arguments(case, |rank| (user.address() + input(rank) as u64, user.address() + output(rank) as u64))?;
        if let Some(fault) = self.launch(kernels, kernel, &arguments)? {
            return Ok(Some(fault));
        }
        let mut got = vec![0; host.len()];
        user.read(0, &mut got)?;
        for rank in 0..self.schedules.len() {
            if let Some((at, value, want)) = patterns.expected.first_wrong(&got[output(rank)..][..bytes], 0) {
                return Ok(Some(format!("rank {rank}, element {at}: {value:02x?}, not {want:02x?}")));
            }
            host[output(rank)..][..bytes].copy_from_slice(&got[output(rank)..][..bytes]);
        }
        let outside = got.iter().zip(&host).position(|(got, want)| got != want);
        Ok(outside.map(|at| format!("byte {at} outside the outputs was changed")))
    }

    /// The launch's argument: work item b is rank b's.
    fn arguments(&self, case: &Case, buffers: impl Fn(usize) -> (u64, u64)) -> Result<LaunchArgs, Error> {
        let nranks = self.schedules.len() as u32;
        let geometry = Geometry::new(&Request {
            count: case.count as u64,
            datatype: case.datatype,
            nchunks: nranks,
            blocks: false,
            max_channels: 1,
            slot_bytes: SLOT_BYTES.into(),
            proto: self.proto,
            min_channel_bytes: 1,
        })?;
        let op =
            Op::from_c(case.reduction.op as i32).ok_or_else(|| Error::Internal("an unknown operator".to_string()))?;
        let operator = Operator::builtin(op, case.datatype, nranks);
        let mut arguments = LaunchArgs {
            nwork: nranks,
            nchannels: nranks,
            spin: 20,
            yields: 200,
            futex_ns: 1_000_000,
            abort: self.flag.address(),
            error: self.flag.address() + HostFlag::ERROR_OFFSET,
            ..LaunchArgs::default()
        };
        for (rank, schedule) in self.schedules.iter().enumerate() {
            let (input, output) = buffers(rank);
            arguments.work[rank] = Work {
                input,
                output,
                steps: self.memory.address() + self.steps[rank] as u64,
                links: self.memory.address() + self.ends[rank] as u64,
                nsteps: schedule.steps.len() as u32,
                nlinks: schedule.links.len() as u16,
                ..geometry.work(0, case.datatype, &operator)
            };
        }
        Ok(arguments)
    }

    /// Runs the launch to its end, or tells it to leave.
    fn launch(&self, kernels: &Kernels, kernel: usize, arguments: &LaunchArgs) -> Result<Option<String>, Error> {
        let _entered = self.context.enter_for_launch()?;
        let threads = if self.context.driver().is_software() { THREADS.0 } else { THREADS.1 };
        // SAFETY: the kernel takes this structure by value; steps, links and buffers live until it has ended, which
        // is waited for below.
        unsafe { kernels.launch(kernel, arguments.nwork, threads, Stream(0), arguments) }?;
        self.done.record(Stream(0))?;
        let started = Instant::now();
        while !self.done.is_done()? {
            if started.elapsed() > DEADLINE && !self.flag.is_raised() {
                self.flag.raise();
            }
            thread::sleep(Duration::from_micros(20));
        }
        let error = self.flag.error()[0];
        Ok((error != 0 || self.flag.is_raised())
            .then(|| format!("the kernel left with error {error} after {:?}", started.elapsed())))
    }
}
