//! A rank: its communicator, its streams, its memory with guards, and how it carries out calls and checks them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rngs::SmallRng;

use crate::case::Case;
use crate::common::collectives::Collectives;
use crate::common::contract::{Content, Operator, Source};
use crate::common::cuda::{Cuda, Stream};
use crate::common::graph::Graphs;
use crate::common::launch::Place;
use crate::common::nccl::{Comm, Failure, Nccl, UniqueId};
use crate::common::oracle::{DataType, Pattern};
use crate::messages::Message;

/// Bytes around every buffer that must not change.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;
/// What outputs hold before a call.
pub const POISON: u8 = 0x5a;
/// Elements after which contents repeat: a prime, and few, since they are made anew in every process.
const PERIOD: usize = 1021;
/// Device memory that is kept for the next calls, in bytes.
const KEPT: usize = 4 << 20;
/// Streams of a rank.
pub const STREAMS: usize = 3;
/// Most findings that are told.
const MAX_FINDINGS: usize = 8;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

/// The libraries.
#[derive(Clone, Copy)]
pub struct Api {
    pub nccl: Nccl,
    pub cuda: Cuda,
    pub calls: Collectives,
    pub graphs: Graphs,
}

impl Api {
    /// Loads the libraries of this build.
    pub fn load() -> Api {
        let nccl = Nccl::load("libnccl.so.2").expect("libnccl");
        nccl.encrypt_as_told();
        Api {
            nccl,
            cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
            calls: Collectives::load("libnccl.so.2").expect("libnccl"),
            graphs: Graphs::load().expect("libcuda"),
        }
    }

    /// A communicator on the current device.
    pub fn init(&self, nranks: usize, id: UniqueId, rank: usize) -> Comm {
        let mut comm = Comm::NULL;
        // SAFETY: the handle lives until the call is over.
        unsafe { self.nccl.init_rank(&mut comm, nranks, id, rank) }.expect("a communicator");
        comm
    }

    /// How processes meet: rank 0 publishes an id under a name that is used once.
    pub fn meet(&self, me: &Place, name: &str) -> UniqueId {
        if me.rank == 0 {
            me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"))
    }
}

/// Device memory that is given out and taken back as a whole.
struct Arena {
    cuda: Cuda,
    /// Address and bytes; all but the first are freed by [`Arena::reset`].
    chunks: Vec<(u64, usize)>,
    used: usize,
}

impl Arena {
    fn new(cuda: Cuda) -> Arena {
        Arena { cuda, chunks: vec![(cuda.alloc(KEPT).expect("memory"), KEPT)], used: 0 }
    }

    fn take(&mut self, bytes: usize) -> u64 {
        let bytes = bytes.next_multiple_of(256);
        let (base, size) = self.chunks[self.chunks.len() - 1];
        if self.used + bytes <= size {
            self.used += bytes;
            return base + (self.used - bytes) as u64;
        }
        let size = bytes.max(KEPT);
        self.chunks.push((self.cuda.alloc(size).expect("memory"), size));
        self.used = bytes;
        self.chunks[self.chunks.len() - 1].0
    }

    fn free(&self, from: usize) {
        for (base, _) in &self.chunks[from..] {
            // SAFETY: callers have waited for all streams.
            unsafe { self.cuda.free(*base) }.expect("free");
        }
    }

    fn reset(&mut self) {
        self.free(1);
        self.chunks.truncate(1);
        self.used = 0;
    }
}

/// What a buffer holds before and after a call.
pub struct Part {
    pub name: &'static str,
    /// Bytes by which it is off a cache line.
    pub offset: usize,
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// A buffer with guards on both sides, and what it must hold afterwards.
pub struct Region {
    name: &'static str,
    base: u64,
    start: usize,
    after: Vec<u8>,
}

impl Region {
    /// The address of the first element.
    pub fn address(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Writes what the buffer holds before a call, and its guards.
    fn put(&mut self, cuda: &Cuda, part: &Part) {
        self.start = GUARD + part.offset;
        let inside = self.start..self.start + part.before.len();
        let mut held = vec![GUARD_BYTE; inside.end + GUARD];
        held[inside.clone()].copy_from_slice(&part.before);
        cuda.copy_to_device(self.base, &held).expect("copy");
        held[inside].copy_from_slice(&part.after);
        self.after = held;
    }

    /// The first byte that is not as it must be, in words.
    fn wrong(&self, cuda: &Cuda, size: usize) -> Option<String> {
        let mut found = vec![0; self.after.len()];
        cuda.copy_to_host(&mut found, self.base).expect("copy");
        if found == self.after {
            return None;
        }
        let at = (0..found.len()).find(|at| found[*at] != self.after[*at])?;
        let bad = (0..found.len()).filter(|at| found[*at] != self.after[*at]).count();
        let element = (at as isize - self.start as isize).div_euclid(size as isize);
        let (got, want) = (found[at], self.after[at]);
        Some(format!("{}[{element}] (byte {at}): {got:#x}, not {want:#x}; {bad} bytes differ", self.name))
    }
}

/// What the call of a [`Prepared`] is.
pub enum Action {
    Collective(Case),
    Send { peer: i32, what: (usize, DataType), buffer: u64 },
    Recv { peer: i32, what: (usize, DataType), buffer: u64 },
}

/// A call with its buffers.
pub struct Prepared {
    pub item: Item,
    pub action: Action,
    /// Send and receive buffer of a collective.
    pub buffers: (u64, u64),
    /// The address of a scalar in device memory.
    pub scalar: u64,
    /// An operator that is destroyed after the call has run.
    pub operator: Option<i32>,
    pub regions: Vec<Region>,
    pub stream: usize,
    pub title: String,
    /// Bytes of an element.
    pub size: usize,
}

/// Patterns that were made: of a rank's input, or `None` for the reduction.
type Tiles = HashMap<(Content, Option<usize>), Rc<Pattern>>;

/// How a list of calls is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Each is waited for.
    Each,
    /// One after another, one wait at the end.
    Queued,
    /// In one group.
    Group,
    /// In one group that has others in it.
    Nested,
}

/// A call of a program: a collective, or a message between two ranks.
#[derive(Clone, Copy, Debug)]
pub enum Item {
    Collective(Case),
    Message(Message),
}

/// A rank.
pub struct Member {
    pub api: Api,
    pub rank: usize,
    pub nranks: usize,
    pub comm: Comm,
    pub streams: [Stream; STREAMS],
    arena: Arena,
    /// Of the arena's first part, where it is registered; 0 where nothing came of that.
    handle: Option<usize>,
    tiles: RefCell<Tiles>,
    findings: Vec<String>,
}

impl Member {
    /// The rank of this process, on the device of its number; `name` is that of the meeting.
    pub fn of_process(api: Api, me: &Place, name: &str) -> Member {
        api.cuda.use_device(me.rank).expect("a device");
        let comm = api.init(me.nranks, api.meet(me, name), me.rank);
        Member::new(api, comm, (me.rank, me.nranks))
    }

    /// A rank whose device is current.
    pub fn new(api: Api, comm: Comm, (rank, nranks): (usize, usize)) -> Member {
        let streams = [(); STREAMS].map(|()| api.cuda.stream().expect("a stream"));
        let (arena, tiles) = (Arena::new(api.cuda), RefCell::default());
        Member { api, rank, nranks, comm, streams, arena, handle: None, tiles, findings: Vec::new() }
    }

    /// Registers the memory in which buffers are, or takes that back. No call may be under way.
    pub fn set_registered(&mut self, registered: bool) {
        match self.handle.take() {
            Some(handle) if !registered => self.api.nccl.deregister(self.comm, handle).expect("deregister"),
            None if registered => {
                let (base, size) = self.arena.chunks[0];
                self.handle = Some(self.api.nccl.register(self.comm, base, size).expect("register"));
            }
            unchanged => self.handle = unchanged,
        }
    }

    /// A pattern of `PERIOD` elements, made once.
    pub fn tile(&self, mut content: Content, source: Source) -> Rc<Pattern> {
        if let Some(Operator::PreMulSum { device }) = &mut content.operator {
            *device = false;
        }
        let rank = if let Source::Rank(rank) = source { Some(rank) } else { None };
        let make = || Rc::new(rank.map_or_else(|| content.reduced(PERIOD), |rank| content.input(rank, PERIOD)));
        Rc::clone(self.tiles.borrow_mut().entry((content, rank)).or_insert_with(make))
    }

    /// A buffer in device memory.
    pub fn region(&mut self, part: &Part) -> Region {
        let bytes = 2 * GUARD + part.offset + part.before.len();
        let mut region = Region { name: part.name, base: self.arena.take(bytes), start: 0, after: Vec::new() };
        region.put(&self.api.cuda, part);
        region
    }

    /// Gives the buffers of a call the contents of another phase: for calls that are replayed.
    pub fn refill(&self, call: &mut Prepared, phase: usize) {
        let parts = match (&mut call.item, &call.action) {
            (Item::Collective(case), _) => {
                case.phase = phase;
                case.parts(self).0
            }
            (Item::Message(message), action) => {
                message.phase = phase;
                vec![message.part(self, matches!(action, Action::Send { .. }))]
            }
        };
        call.regions.iter_mut().zip(&parts).for_each(|(region, part)| region.put(&self.api.cuda, part));
    }

    /// Bytes of device memory that live until [`Member::check`].
    pub fn scratch(&mut self, bytes: &[u8]) -> u64 {
        let at = self.arena.take(bytes.len());
        self.api.cuda.copy_to_device(at, bytes).expect("copy");
        at
    }

    /// The calls of this rank for an item: none, one, or two.
    pub fn prepare(&mut self, item: &Item) -> Vec<Prepared> {
        match item {
            Item::Collective(case) => vec![case.prepare(self)],
            Item::Message(message) => message.prepare(self),
        }
    }

    /// Makes a call.
    pub fn issue(&self, call: &mut Prepared) -> Result<(), Failure> {
        let (calls, stream) = (&self.api.calls, self.streams[call.stream].0);
        match call.action {
            Action::Collective(case) => case.issue(call, self),
            // SAFETY: the buffer lives until it is checked, after a wait.
            Action::Send { peer, what, buffer } => unsafe { calls.send(buffer, what, peer, self.comm, stream) },
            // SAFETY: as above.
            Action::Recv { peer, what, buffer } => unsafe { calls.recv(buffer, what, peer, self.comm, stream) },
        }
    }

    /// Makes a call that must be taken.
    pub fn must_issue(&self, call: &mut Prepared) {
        self.issue(call).unwrap_or_else(|failure| panic!("rank {}: {}: {failure}", self.rank, call.title));
    }

    /// Makes a call on any stream.
    pub fn try_issue_on(&mut self, call: &mut Prepared, stream: Stream) -> Result<(), Failure> {
        let own = std::mem::replace(&mut self.streams[call.stream], stream);
        let issued = self.issue(call);
        self.streams[call.stream] = own;
        issued
    }

    /// Makes a call on any stream that must be taken.
    pub fn issue_on(&mut self, call: &mut Prepared, stream: Stream) {
        self.try_issue_on(call, stream)
            .unwrap_or_else(|failure| panic!("rank {}: {}: {failure}", self.rank, call.title));
    }

    /// Makes calls, waits, and checks. Messages must be in groups.
    pub fn run(&mut self, items: &[Item], submission: Submission, rng: &mut SmallRng) {
        let mut calls: Vec<Prepared> = items.iter().flat_map(|item| self.prepare(item)).collect();
        if matches!(submission, Submission::Group | Submission::Nested) {
            shuffle(&mut calls, rng);
        }
        self.issue_all(&mut calls, submission);
        self.check(calls);
    }

    /// Makes calls without waiting for the last.
    pub fn issue_all(&self, calls: &mut [Prepared], submission: Submission) {
        let nccl = &self.api.nccl;
        let grouped = matches!(submission, Submission::Group | Submission::Nested);
        if grouped {
            nccl.group_start().expect("group");
        }
        for (at, call) in calls.iter_mut().enumerate() {
            let inner = submission == Submission::Nested && at % 3 == 0;
            if inner {
                nccl.group_start().expect("an inner group");
            }
            self.must_issue(call);
            if inner {
                nccl.group_end().expect("an inner group");
            }
            if submission == Submission::Each {
                self.wait();
            }
        }
        if grouped {
            nccl.group_end().unwrap_or_else(|failure| panic!("rank {}: {failure}", self.rank));
        }
    }

    /// Waits for all streams.
    pub fn wait(&self) {
        self.streams.iter().for_each(|stream| self.api.cuda.wait(*stream).expect("wait"));
    }

    /// Waits for all streams, but not for long: true if they have ended, whatever became of them.
    pub fn wait_for(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while self.streams.iter().any(|stream| self.api.graphs.query(*stream) == NOT_READY) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Waits, compares all buffers with what they must hold, and takes their memory back.
    pub fn check(&mut self, calls: Vec<Prepared>) {
        self.wait();
        self.compare(&calls);
        self.release(calls);
    }

    /// Compares all buffers with what they must hold.
    pub fn compare(&mut self, calls: &[Prepared]) {
        for call in calls {
            for wrong in call.regions.iter().filter_map(|region| region.wrong(&self.api.cuda, call.size)) {
                self.findings.push(format!("rank {} of {}: {}: {wrong}", self.rank, self.nranks, call.title));
            }
        }
    }

    /// Takes the memory of calls back that have run.
    pub fn release(&mut self, calls: Vec<Prepared>) {
        for op in calls.iter().filter_map(|call| call.operator) {
            self.api.calls.destroy_op(op, self.comm).expect("destroy an operator");
        }
        self.arena.reset();
    }

    /// Destroys the communicator.
    ///
    /// # Panics
    /// If anything was not as it had to be, with the first findings.
    pub fn end(self) {
        let n = self.findings.len();
        let told = self.findings[..n.min(MAX_FINDINGS)].join("\n  ");
        self.api.nccl.destroy(self.comm).expect("destroy");
        self.leave();
        assert!(n == 0, "{n} findings ({}):\n  {told}", crate::setup::label());
    }

    /// Ends all but the communicator, which is gone.
    pub fn leave(self) {
        self.streams.iter().for_each(|stream| self.api.cuda.destroy_stream(*stream).expect("destroy a stream"));
        self.arena.free(0);
    }
}

/// Another order that a group may have: collectives stay in order among themselves, and so do the messages to a
/// peer, and those from it.
pub fn shuffle(calls: &mut Vec<Prepared>, rng: &mut SmallRng) {
    let mut queues: BTreeMap<(u8, i32), Vec<Prepared>> = BTreeMap::new();
    for call in calls.drain(..).rev() {
        let key = match call.action {
            Action::Collective(_) => (0, 0),
            Action::Send { peer, .. } => (1, peer),
            Action::Recv { peer, .. } => (2, peer),
        };
        queues.entry(key).or_default().push(call);
    }
    while !queues.is_empty() {
        let at = rng.random_range(0..queues.len());
        let key = *queues.keys().nth(at).expect("there are as many");
        let queue = queues.get_mut(&key).expect("it was listed");
        calls.extend(queue.pop());
        if queue.is_empty() {
            queues.remove(&key);
        }
    }
}
