//! Ranks in one process: links on the heap, schedules from `plan`, and the host image's entry points called
//! by plain threads, as a device would call them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nccl::plan::LinkId;
use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::{Counter, ERROR_WORDS, LaunchArgs, LinkEnd, MAX_WORK, Proto, SLOTS, Step, Work, abort};
use nccl::plan::operator::Operator;
use nccl::plan::ring;
use nccl::plan::schedule::{LinkClass, Schedule};
use nccl::plan::work::{Geometry, Request};
use nccl::topology::Order;

/// `softcudaBlock` of kernels/image.h.
#[repr(C)]
struct Block {
    grid: [u32; 3],
    threads: [u32; 3],
    block: [u32; 3],
    thread: [u32; 3],
    shared: *mut c_void,
    barrier: *mut c_void,
}

type Entry = unsafe extern "C" fn(*const Block, *const *mut c_void);

/// `softcudaFunction` of kernels/image.h.
#[repr(C)]
struct Function {
    name: *const c_char,
    entry: Entry,
    shared_bytes: u32,
    max_threads: u32,
    nparams: u32,
    reserved: u32,
    param_sizes: *const u32,
}

/// `softcudaImage` of kernels/image.h.
#[repr(C)]
pub struct Image {
    magic: u32,
    version: u32,
    nfunctions: u32,
    reserved: u32,
    functions: *const Function,
}

// SAFETY: both return a pointer to constant data, or null.
unsafe extern "C" {
    safe fn oxccl_host_image() -> *const Image;
    safe fn oxccl_host_image_at(index: u32) -> *const Image;
}

/// One entry point.
#[derive(Clone, Copy)]
pub struct Kernel {
    entry: Entry,
    shared_bytes: u32,
}

impl Image {
    fn functions(&self) -> &[Function] {
        // SAFETY: the image says how many functions its constant table has.
        unsafe { std::slice::from_raw_parts(self.functions, self.nfunctions as usize) }
    }

    pub fn kernel(&self, proto: Proto, datatype: DataType) -> Kernel {
        self.named(&proto.kernel_name(datatype))
    }

    pub fn named(&self, name: &str) -> Kernel {
        let found = self.functions().iter().find(|f| name_of(f) == name);
        let f = found.unwrap_or_else(|| panic!("the image has no {name}"));
        Kernel { entry: f.entry, shared_bytes: f.shared_bytes }
    }

    pub fn check(&self) {
        assert_eq!((self.magic, self.version, self.reserved), (0x5343_4944, 1, 0));
        assert_eq!(self.nfunctions, 25);
        for f in self.functions() {
            // SAFETY: `nparams` is 1, and the table of sizes has as many.
            let size = unsafe { *f.param_sizes };
            assert_eq!((f.nparams, size as usize, f.reserved), (1, size_of::<LaunchArgs>(), 0));
            assert!(f.max_threads >= 4 && f.shared_bytes > 0, "{}", name_of(f));
        }
    }
}

fn name_of(f: &Function) -> String {
    // SAFETY: names are constant C strings.
    unsafe { CStr::from_ptr(f.name) }.to_string_lossy().into_owned()
}

/// The images that this CPU runs: the plain one, and perhaps the wide one.
pub fn images() -> Vec<&'static Image> {
    // SAFETY: a non-null image is constant data.
    let images: Vec<&Image> = (0..).map_while(|i| unsafe { oxccl_host_image_at(i).as_ref() }).collect();
    let best: *const Image = *images.last().expect("there is always an image");
    assert!(std::ptr::eq(best, oxccl_host_image()), "the image in use is not the best one");
    images
}

/// Memory for kernels, aligned to a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

pub struct Memory(Box<[Line]>);

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        Memory(vec![Line([0; 64]); bytes.div_ceil(64)].into_boxed_slice())
    }

    pub fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 64) }
    }

    /// The 32-bit words as they are now, while kernels change them.
    pub fn words(&self) -> impl Iterator<Item = u32> {
        (0..self.0.len() * 16).map(|at| {
            // SAFETY: in bounds and aligned; kernels write these words by atomic stores of 4 or 8 bytes.
            unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast::<u32>().cast_mut().add(at)) }.load(Ordering::SeqCst)
        })
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 64) }
    }
}

/// How a call is run.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub n: u32,
    pub channels: u32,
    pub slot_bytes: u32,
    pub proto: Proto,
    /// Threads of a block.
    pub threads: u32,
    /// Where the links' counters start.
    pub start: u64,
}

/// A rank's schedule with its links numbered as in [`Rank::ends`].
struct Plan {
    nchunks: u32,
    steps: Vec<Step>,
}

struct Rank {
    plans: Vec<Plan>,
    /// The links of all plans.
    links: Vec<LinkId>,
    /// By channel.
    ends: Vec<Vec<LinkEnd>>,
    error: [AtomicU32; ERROR_WORDS],
}

/// All ranks of a communicator and their links, which carry on from call to call.
pub struct World {
    pub config: Config,
    pub abort: AtomicU32,
    /// [`LaunchArgs::flags`] of all launches.
    pub flags: u32,
    ranks: Vec<Rank>,
    _slots: Vec<Memory>,
    counters: Vec<Memory>,
}

/// One rank's buffers, as addresses.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    pub input: u64,
    pub output: u64,
}

/// What is reduced.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub datatype: DataType,
    pub op: Op,
    pub count: u64,
}

/// Bytes of a block's barrier.
pub const BARRIER_BYTES: usize = 256;

/// A launch on one rank, ready to run: argument and memory of its blocks.
pub struct Launch {
    args: Box<LaunchArgs>,
    /// What `args.items` points to, where it does.
    _items: Vec<Work>,
    kernel: Kernel,
    threads: u32,
}

// SAFETY: the addresses in it are of memory that outlives the test's threads and that kernels share.
unsafe impl Sync for Launch {}

/// How long a launch may take, on a machine that does much else. Then all ranks are told to leave.
const DEADLINE: Duration = Duration::from_secs(60);

impl World {
    /// A world of ring AllReduce.
    pub fn new(config: Config) -> World {
        let order = Order::of_numbers(config.n);
        World::with(config, &[&|rank| ring::all_reduce(&order, rank).expect("a ring")])
    }

    /// A world that knows several collectives: what each does on a rank. They share the links of one name.
    pub fn with(config: Config, collectives: &[&dyn Fn(u32) -> Schedule]) -> World {
        let mut world = World {
            config,
            abort: AtomicU32::new(0),
            flags: 0,
            ranks: Vec::new(),
            _slots: Vec::new(),
            counters: Vec::new(),
        };
        let mut made: HashMap<(u32, LinkId), LinkEnd> = HashMap::new();
        for rank in 0..config.n {
            let mut links = Vec::new();
            let plans = collectives.iter().map(|collective| Plan::new(&collective(rank), &mut links)).collect();
            let mut end = |channel: u32, id: &LinkId| LinkEnd {
                peer: if id.from == rank { id.to } else { id.from },
                ..*made.entry((channel, *id)).or_insert_with(|| world.link())
            };
            let ends = (0..config.channels).map(|channel| links.iter().map(|id| end(channel, id)).collect()).collect();
            world.ranks.push(Rank { plans, links, ends, error: Default::default() });
        }
        world
    }

    /// Gives one end of the first channel's link the peer's buffer in place of slots.
    pub fn set_direct(&mut self, rank: u32, class: LinkClass, (from, to): (u32, u32), address: u64) {
        let r = &mut self.ranks[rank as usize];
        let index = r.links.iter().position(|&l| l == LinkId::new(class, from, to)).expect("a link of this rank");
        r.ends[0][index].direct = address;
    }

    /// A link in its first state, as either end sees it.
    fn link(&mut self) -> LinkEnd {
        let mut slots = Memory::new(SLOTS * self.config.slot_bytes as usize);
        if self.config.start != 0 {
            // As links are that have come so far: no flag of old is near the first ones.
            slots.bytes_mut().fill(0x55);
        }
        let value = self.config.start;
        let mut counters = Memory::new(2 * size_of::<Counter>());
        for counter in counters.bytes_mut().chunks_mut(size_of::<Counter>()) {
            counter[..8].copy_from_slice(&value.to_le_bytes());
        }
        let end = LinkEnd {
            slots: slots.address(),
            posted: counters.address(),
            consumed: counters.address() + size_of::<Counter>() as u64,
            pos: value,
            seen: value,
            slot_bytes: self.config.slot_bytes,
            ..LinkEnd::default()
        };
        self._slots.push(slots);
        self.counters.push(counters);
        end
    }

    pub fn geometry(&self, call: &Call) -> Geometry {
        let request = Request {
            count: call.count,
            datatype: call.datatype,
            nchunks: self.config.n,
            blocks: false,
            max_channels: self.config.channels,
            slot_bytes: self.config.slot_bytes.into(),
            proto: self.config.proto,
            min_channel_bytes: 256,
        };
        Geometry::new(&request).expect("a call that fits memory")
    }

    /// Prepares a rank's launch of a call.
    pub fn launch(&self, image: &Image, rank: u32, call: &Call, buffers: Buffers) -> Launch {
        let g = self.geometry(call);
        let operator = Operator::builtin(call.op, call.datatype, self.config.n);
        let item = |channel| self.work(rank, 0, channel, &g, call.datatype, &operator, buffers);
        self.launch_items(image, rank, call.datatype, (0..g.nchannels).map(item).collect(), g.nchannels)
    }

    /// The address of a rank's links of a channel.
    pub fn links(&self, rank: u32, channel: u32) -> u64 {
        self.ranks[rank as usize].ends[channel as usize].as_ptr() as u64
    }

    /// Chunks of a collective.
    pub fn nchunks(&self, collective: usize) -> u32 {
        self.ranks[0].plans[collective].nchunks
    }

    /// The work item of a channel of a rank's collective.
    #[allow(clippy::too_many_arguments)]
    pub fn work(
        &self,
        rank: u32,
        collective: usize,
        channel: u32,
        geometry: &Geometry,
        datatype: DataType,
        operator: &Operator,
        buffers: Buffers,
    ) -> Work {
        let r = &self.ranks[rank as usize];
        let (plan, ends) = (&r.plans[collective], &r.ends[channel as usize]);
        assert_eq!(geometry.nchunks, plan.nchunks, "a split for another collective");
        Work {
            input: buffers.input,
            output: buffers.output,
            steps: plan.steps.as_ptr() as u64,
            links: ends.as_ptr() as u64,
            nsteps: plan.steps.len() as u32,
            nlinks: ends.len() as u16,
            ..geometry.work(channel, datatype, operator)
        }
    }

    /// Prepares a launch of any work items; in the argument if they fit there, else beside it.
    pub fn launch_items(
        &self,
        image: &Image,
        rank: u32,
        datatype: DataType,
        items: Vec<Work>,
        nchannels: u32,
    ) -> Launch {
        self.launch_kernel(image.kernel(self.config.proto, datatype), rank, items, nchannels)
    }

    /// The same of a kernel.
    pub fn launch_kernel(&self, kernel: Kernel, rank: u32, items: Vec<Work>, nchannels: u32) -> Launch {
        let mut args = Box::new(LaunchArgs {
            nwork: items.len() as u32,
            nchannels,
            spin: 20,
            // Few: in a test there are many more threads than processors.
            yields: 20,
            futex_ns: 1_000_000,
            abort: self.abort.as_ptr() as u64,
            error: self.ranks[rank as usize].error.as_ptr() as u64,
            flags: self.flags,
            ..LaunchArgs::default()
        });
        if items.len() <= MAX_WORK {
            args.work[..items.len()].copy_from_slice(&items);
        } else {
            args.items = items.as_ptr() as u64;
        }
        Launch { args, _items: items, kernel, threads: self.config.threads }
    }

    /// Moves all counters on, as if the ranks had done so many turns without data.
    pub fn skip(&mut self, turns: u64) {
        for end in self.ranks.iter_mut().flat_map(|rank| rank.ends.iter_mut().flatten()) {
            end.pos += turns;
            end.seen += turns;
        }
        for counter in
            self.counters.iter_mut().flat_map(|counters| counters.bytes_mut().chunks_mut(size_of::<Counter>()))
        {
            let value = u64::from_le_bytes(counter[..8].try_into().expect("8 bytes"));
            counter[..8].copy_from_slice(&(value + turns).to_le_bytes());
        }
    }

    /// Whether a kernel has announced, for any of the counters, that it sleeps until it is woken.
    pub fn has_waiters(&self) -> bool {
        self.counters
            .iter()
            .any(|counters| counters.words().skip(2).step_by(size_of::<Counter>() / 4).any(|word| word != 0))
    }

    /// Turns of all links between rank 0 and others so far.
    pub fn mesh_turns(&self) -> u64 {
        self.ranks[0].ends[0].iter().map(|end| end.pos).sum()
    }

    /// Where a rank's first link stands.
    pub fn position(&self, rank: usize) -> u64 {
        self.ranks[rank].ends[0][0].pos
    }

    /// Runs launches, all at the same time. Fails if they do not end.
    pub fn run(&self, launches: &[Launch]) {
        std::thread::scope(|scope| {
            let blocks =
                launches.iter().flat_map(|launch| (0..launch.args.nchannels).map(move |block| (launch, block)));
            let running: Vec<_> = blocks.map(|(launch, block)| scope.spawn(move || launch.block(block))).collect();
            let start = Instant::now();
            let mut pause = Duration::from_micros(50);
            while running.iter().any(|thread| !thread.is_finished()) {
                if start.elapsed() > DEADLINE {
                    self.abort.store(abort::REPORT, Ordering::Relaxed);
                    drop(running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>());
                    panic!("not all ranks ended within {DEADLINE:?}");
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
        });
    }

    /// What a rank's kernels reported.
    pub fn report(&self, rank: u32) -> [u32; ERROR_WORDS] {
        let words = &self.ranks[rank as usize].error;
        // The first: behind it, the others are complete.
        let first = words[0].load(Ordering::Acquire);
        std::array::from_fn(|i| if i == 0 { first } else { words[i].load(Ordering::Relaxed) })
    }

    /// The first error of any rank.
    pub fn error(&self) -> u32 {
        (0..self.config.n).map(|rank| self.report(rank)[0]).find(|&error| error != 0).unwrap_or_default()
    }
}

impl Plan {
    /// Takes a schedule's steps, and adds its links to a rank's where they are new.
    fn new(schedule: &Schedule, links: &mut Vec<LinkId>) -> Plan {
        schedule.check(SLOTS as u32).expect("a sound schedule");
        let mut number = |i: &u8| {
            let id = schedule.links[usize::from(*i)];
            let known = links.iter().position(|&l| l == id);
            known.unwrap_or_else(|| {
                links.push(id);
                links.len() - 1
            }) as u8
        };
        let mut steps = schedule.steps.clone();
        for step in &mut steps {
            let (recv, send) = (usize::from(step.nrecv), usize::from(step.nsend));
            step.recv[..recv].iter_mut().chain(&mut step.send[..send]).for_each(|i| *i = number(i));
        }
        Plan { nchunks: schedule.nchunks, steps }
    }
}

impl Launch {
    /// Changes the argument, for tests of bad ones.
    pub fn args(&mut self) -> &mut LaunchArgs {
        &mut self.args
    }

    /// Runs one block of the launch to its end.
    pub fn block(&self, block: u32) {
        self.block_with(block, &Memory::new(BARRIER_BYTES));
    }

    /// The same with a barrier that the caller can watch.
    pub fn block_with(&self, block: u32, barrier: &Memory) {
        let shared = Memory::new(self.kernel.shared_bytes as usize);
        let memory = (shared.address(), barrier.address());
        std::thread::scope(|scope| {
            for thread in 1..self.threads {
                scope.spawn(move || self.thread(block, thread, memory));
            }
            self.thread(block, 0, memory);
        });
    }

    fn thread(&self, block: u32, thread: u32, (shared, barrier): (u64, u64)) {
        let told = Block {
            grid: [self.args.nchannels, 1, 1],
            threads: [self.threads, 1, 1],
            block: [block, 0, 0],
            thread: [thread, 0, 0],
            shared: shared as *mut c_void,
            barrier: barrier as *mut c_void,
        };
        let argument = (&raw const *self.args).cast_mut().cast::<c_void>();
        // SAFETY: the argument is what the kernel takes; all that it points to outlives the call, and what
        // several threads write is written by the kernels' own rules.
        unsafe { (self.kernel.entry)(&told, [argument].as_ptr()) };
    }
}
