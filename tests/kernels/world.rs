//! Ranks in one process: links on the heap, schedules from `plan`, and the host image's entry points called
//! by plain threads, as a device would call them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use nccl::plan::LinkId;
use nccl::plan::call::{DataType, Op};
use nccl::plan::layout::{Counter, LaunchArgs, LinkEnd, Proto, SLOTS};
use nccl::plan::operator::Operator;
use nccl::plan::ring;
use nccl::plan::schedule::Schedule;
use nccl::plan::work::{Geometry, Request};

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
        let name = proto.kernel_name(datatype);
        let found = self.functions().iter().find(|f| name_of(f) == name);
        let f = found.unwrap_or_else(|| panic!("the image has no {name}"));
        Kernel { entry: f.entry, shared_bytes: f.shared_bytes }
    }

    pub fn check(&self) {
        assert_eq!((self.magic, self.version, self.reserved), (0x5343_4944, 1, 0));
        assert_eq!(self.nfunctions, 24);
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

struct Rank {
    schedules: Vec<Schedule>,
    /// By channel.
    ends: Vec<Vec<LinkEnd>>,
}

/// All ranks of a communicator and their links, which carry on from call to call.
pub struct World {
    pub config: Config,
    pub abort: AtomicU32,
    pub error: AtomicU32,
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
    kernel: Kernel,
    threads: u32,
}

// SAFETY: the addresses in it are of memory that outlives the test's threads and that kernels share.
unsafe impl Sync for Launch {}

impl World {
    pub fn new(config: Config) -> World {
        let order: Vec<u32> = (0..config.n).collect();
        let mut world = World {
            config,
            abort: AtomicU32::new(0),
            error: AtomicU32::new(0),
            flags: 0,
            ranks: Vec::new(),
            _slots: Vec::new(),
            counters: Vec::new(),
        };
        let mut links: HashMap<(u32, LinkId), LinkEnd> = HashMap::new();
        for &rank in &order {
            let (mut schedules, mut ends) = (Vec::new(), Vec::new());
            for channel in 0..config.channels {
                let schedule = ring::all_reduce(&order, rank).expect("a ring");
                schedule.check(SLOTS as u32).expect("a sound schedule");
                let link = |id: &LinkId| *links.entry((channel, *id)).or_insert_with(|| world.link());
                ends.push(schedule.links.iter().map(link).collect());
                schedules.push(schedule);
            }
            world.ranks.push(Rank { schedules, ends });
        }
        world
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
        let mut args = Box::new(LaunchArgs {
            nwork: g.nchannels,
            nchannels: g.nchannels,
            spin: 20,
            // Few: in a test there are many more threads than processors.
            yields: 20,
            futex_ns: 1_000_000,
            abort: self.abort.as_ptr() as u64,
            error: self.error.as_ptr() as u64,
            flags: self.flags,
            ..LaunchArgs::default()
        });
        let r = &self.ranks[rank as usize];
        for channel in 0..g.nchannels {
            let (schedule, ends) = (&r.schedules[channel as usize], &r.ends[channel as usize]);
            args.work[channel as usize] = nccl::plan::layout::Work {
                input: buffers.input,
                output: buffers.output,
                steps: schedule.steps.as_ptr() as u64,
                links: ends.as_ptr() as u64,
                ..g.work(channel, schedule, call.datatype, &operator)
            };
        }
        Launch { args, kernel: image.kernel(self.config.proto, call.datatype), threads: self.config.threads }
    }

    /// Moves all counters on, as if the ranks had done so many turns without data.
    pub fn skip(&mut self, turns: u64) {
        for end in self.ranks.iter_mut().flat_map(|rank| rank.ends.iter_mut().flatten()) {
            end.pos += turns;
            end.seen += turns;
        }
        for counter in self.counters.iter_mut().flat_map(|counters| counters.bytes_mut().chunks_mut(size_of::<Counter>())) {
            let value = u64::from_le_bytes(counter[..8].try_into().expect("8 bytes"));
            counter[..8].copy_from_slice(&(value + turns).to_le_bytes());
        }
    }

    /// Whether a kernel has announced, for any of the counters, that it sleeps until it is woken.
    pub fn has_waiters(&self) -> bool {
        self.counters.iter().any(|counters| counters.words().skip(2).step_by(size_of::<Counter>() / 4).any(|word| word != 0))
    }

    /// Where a rank's first link stands.
    pub fn position(&self, rank: usize) -> u64 {
        self.ranks[rank].ends[0][0].pos
    }

    /// Runs launches, all at the same time.
    pub fn run(&self, launches: &[Launch]) {
        std::thread::scope(|scope| {
            for launch in launches {
                for block in 0..launch.args.nchannels {
                    scope.spawn(move || launch.block(block));
                }
            }
        });
    }

    pub fn error(&self) -> u32 {
        self.error.load(Ordering::Relaxed)
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
