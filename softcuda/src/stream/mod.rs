//! Streams: queues of operations, executed in order by whoever owns the stream at the moment: a thread that waits for
//! it ("help by the waiter"), or else its worker thread.

mod connection;
mod of_context;
mod op;
mod run;
mod scheduler;
mod worker;

use crate::config::Config;
use crate::device;
use crate::error::{CudaError, Outcome};
use crate::handles::{Kind, Table};
use crate::launch::{self, Launch};
use crate::memory::Memory;
use connection::Connections;
pub use of_context::ContextStreams;
pub use op::{Mark, Op, Recorder, Task, Transfer3d};
use parking_lot::{Condvar, Mutex};
pub use run::{synchronize, synchronize_all, synchronize_stream};
pub use scheduler::Scheduler;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use worker::Worker;

/// Operations that may be pending in a stream; who submits more waits, as for a GPU's launch queue.
const MAX_PENDING: u64 = 4096;
/// So many pending operations start the worker at once.
const MANY_PENDING: u64 = 64;
/// Launch records that a stream keeps for use again.
const MAX_SPARE: usize = 64;
/// `CU_STREAM_NON_BLOCKING`
const NON_BLOCKING: u32 = 1;
/// Lowest and highest priority (`cuCtxGetStreamPriorityRange`).
pub const PRIORITIES: (i32, i32) = (0, -5);

/// The driver's state, as far as streams use it.
pub struct State {
    below: device::State,
    /// Allocations and mappings.
    pub memory: Memory,
    /// Threads for blocks.
    threads: launch::Pool,
    /// Streams with work.
    scheduler: Scheduler,
    /// `CUstream`
    pub streams: Table<Stream>,
    /// The hardware queues of each device.
    connections: Vec<Connections>,
}

impl Deref for State {
    type Target = device::State;

    fn deref(&self) -> &device::State {
        &self.below
    }
}

impl State {
    /// With these settings.
    pub fn new(config: Config) -> State {
        let below = device::State::new(config);
        State {
            memory: Memory::default(),
            threads: launch::Pool::default(),
            scheduler: Scheduler::default(),
            streams: Table::new(Kind::Stream),
            connections: below.devices.iter().map(|_| Connections::new(below.config.connections)).collect(),
            below,
        }
    }
}

/// How a stream stands to the legacy default stream of its context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// It and the legacy stream wait for one another.
    #[default]
    Blocking = 0,
    /// They know nothing of each other.
    NonBlocking = 1,
    /// It is the legacy stream.
    Legacy = 2,
    /// A lane of a graph: no client knows it, and as much may be pending as a graph has nodes.
    Lane = 3,
}

/// A place in a stream: after its first `number` operations. Numbers never start again, so a place stays valid
/// whatever becomes of the stream.
#[derive(Clone, Copy)]
pub struct Target {
    /// The stream.
    pub stream: &'static Stream,
    /// Operations that must be done.
    pub number: u64,
}

impl Target {
    /// Whether they are, or never will be because the device is lost.
    #[inline]
    pub fn is_reached(&self) -> bool {
        self.stream.progress.completed.load(Ordering::SeqCst) >= self.number || self.stream.is_given_up()
    }
}

#[derive(Default)]
struct Queue {
    operations: VecDeque<Op>,
    #[allow(clippy::vec_box, reason = "records move between here and the queue without being copied")]
    spare: Vec<Box<Launch>>,
    /// Place in the legacy stream that this one was last made to wait for.
    legacy_waited: u64,
    /// The streams of its context; a lane belongs to none.
    siblings: Option<&'static ContextStreams>,
    /// Who gets its operations while it captures.
    recorder: Option<&'static dyn Recorder>,
}

/// What a stream is and where it belongs.
#[derive(Default)]
struct Identity {
    handle: AtomicU64,
    id: AtomicU64,
    context: AtomicU64,
    /// Handle of the context whose functions and events it takes.
    home: AtomicU64,
    role: AtomicU8,
    priority: AtomicI32,
    /// Index of its device.
    device: AtomicUsize,
    /// Its green context is gone.
    detached: AtomicBool,
}

/// How far a stream is.
#[derive(Default)]
struct Progress {
    /// Operations ever put into the queue, and those done.
    submitted: AtomicU64,
    completed: AtomicU64,
    /// Operations that have left the queue.
    started: AtomicU64,
    /// Waiters want to hear when so many operations are done, or nobody owns the stream; 0 = no waiter.
    wake_at: AtomicU64,
    gate: Mutex<()>,
    changed: Condvar,
}

/// A stream. Objects are used again after destruction; counters go on.
#[derive(Default)]
pub struct Stream {
    /// Set when the object is first used.
    driver: OnceLock<&'static State>,
    identity: Identity,
    queue: Mutex<Queue>,
    /// Captures that operations given to this stream belong to or would disturb; 0 nearly always.
    captures: AtomicU32,
    progress: Progress,
    /// The hardware queue, 0 before the first operation.
    connection: AtomicU32,
    /// Somebody is executing operations.
    owned: AtomicBool,
    /// Threads that wait for all of it and execute it themselves: the worker leaves it to them.
    takers: AtomicU32,
    /// The scheduler looks after it.
    listed: AtomicBool,
    /// Destroyed, but not drained yet.
    dying: AtomicBool,
    /// A copy is being executed, which ends soon.
    copying: AtomicBool,
    worker: Worker,
}

impl Stream {
    /// `cuStreamCreateWithPriority`, in a context; the priority is clamped.
    pub fn create(
        driver: &'static State,
        siblings: &'static ContextStreams,
        flags: u32,
        priority: i32,
    ) -> Outcome<u64> {
        if flags & !NON_BLOCKING != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let role = if flags & NON_BLOCKING != 0 { Role::NonBlocking } else { Role::Blocking };
        let made = driver.streams.insert(|stream, handle| {
            stream.prepare(driver, siblings, handle, role);
            stream.identity.priority.store(priority.clamp(PRIORITIES.1, PRIORITIES.0), Ordering::Relaxed);
            stream.queue.lock().siblings = Some(siblings);
        });
        let (handle, stream) = made.ok_or(CudaError::OUT_OF_MEMORY)?;
        siblings.add(stream);
        Ok(handle)
    }

    /// A default stream, which has no handle of its own.
    fn make_default(driver: &'static State, siblings: &'static ContextStreams, role: Role) -> &'static Stream {
        let stream: &'static Stream = Box::leak(Box::default());
        stream.prepare(driver, siblings, 0, role);
        stream.queue.lock().siblings = Some(siblings);
        siblings.add(stream);
        stream
    }

    /// A default stream of a context whose life begins anew, in which nothing is left to do: another stream.
    fn renew(&self, driver: &'static State, siblings: &ContextStreams) {
        self.prepare(driver, siblings, 0, self.role());
        self.disconnect();
    }

    /// A stream for a part of a graph. It belongs to no context and is never freed.
    pub fn make_lane(driver: &'static State) -> &'static Stream {
        let stream: &'static Stream = Box::leak(Box::default());
        stream.driver.get_or_init(|| driver);
        stream.identity.role.store(Role::Lane as u8, Ordering::Relaxed);
        stream
    }

    #[inline]
    fn driver(&self) -> &'static State {
        self.driver.get().expect("every stream that is used was prepared")
    }

    /// The streams of its context, which is valid.
    fn siblings(&self) -> Option<&'static ContextStreams> {
        self.siblings_in(&self.queue.lock())
    }

    fn siblings_in(&self, queue: &Queue) -> Option<&'static ContextStreams> {
        queue.siblings.filter(|siblings| siblings.is_of(self.context_handle()))
    }

    /// Index of its device.
    pub fn device(&self) -> usize {
        self.identity.device.load(Ordering::Relaxed)
    }

    /// The device whose work a lane does from now on.
    pub fn set_device(&self, device: usize) {
        self.identity.device.store(device, Ordering::Relaxed);
    }

    /// Error: its device is lost.
    #[inline]
    pub fn check(&self) -> Outcome {
        self.driver().check(self.device())
    }

    /// Its device is lost: nobody need wait for it, except for a copy that has begun.
    #[inline]
    fn is_given_up(&self) -> bool {
        // In this order: the executor marks a copy before it looks whether the device is lost.
        self.check().is_err() && !self.copying.load(Ordering::SeqCst)
    }

    fn prepare(&self, driver: &'static State, siblings: &ContextStreams, handle: u64, role: Role) {
        self.driver.get_or_init(|| driver);
        self.identity.handle.store(handle, Ordering::Relaxed);
        self.identity.id.store(driver.unique(), Ordering::Relaxed);
        self.identity.context.store(siblings.handle(), Ordering::Relaxed);
        self.identity.home.store(siblings.home(), Ordering::Relaxed);
        self.set_device(siblings.device());
        self.identity.detached.store(false, Ordering::Relaxed);
        self.identity.role.store(role as u8, Ordering::Relaxed);
        self.identity.priority.store(0, Ordering::Relaxed);
        self.queue.lock().legacy_waited = 0;
        self.captures.store(0, Ordering::Relaxed);
        self.dying.store(false, Ordering::SeqCst);
    }

    /// `cuStreamDestroy`: the handle is gone at once, the work goes on.
    pub fn destroy(driver: &'static State, handle: u64) -> Outcome {
        let stream = driver.streams.remove(handle).ok_or(CudaError::INVALID_HANDLE)?;
        let recorder = if stream.is_captured() { stream.queue.lock().recorder } else { None };
        recorder.into_iter().for_each(|recorder| recorder.destroyed(stream));
        stream.dying.store(true, Ordering::SeqCst);
        stream.worker.retire();
        if stream.is_idle() {
            stream.bury();
        } else {
            stream.worker.wake(stream);
        }
        Ok(())
    }

    /// Frees the slot of a destroyed and drained stream, once.
    fn bury(&'static self) {
        let drained = self.is_idle() && self.dying.load(Ordering::SeqCst);
        if !drained || self.dying.compare_exchange(true, false, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        if let Some(siblings) = self.siblings() {
            siblings.remove(self);
        }
        self.disconnect();
        self.driver().streams.recycle(self.identity.handle.load(Ordering::Relaxed));
    }

    /// `cuStreamGetId`
    pub fn id(&self) -> u64 {
        self.identity.id.load(Ordering::Relaxed)
    }

    /// Handle of its context.
    pub fn context_handle(&self) -> u64 {
        self.identity.context.load(Ordering::Relaxed)
    }

    /// Handle of the context whose functions and events it takes.
    #[inline]
    pub fn home(&self) -> u64 {
        self.identity.home.load(Ordering::Relaxed)
    }

    /// Its green context is gone: it can only be destroyed.
    pub fn detach(&self) {
        self.identity.detached.store(true, Ordering::Release);
    }

    /// Its green context is gone.
    #[inline]
    pub fn is_detached(&self) -> bool {
        self.identity.detached.load(Ordering::Relaxed)
    }

    /// How it stands to the legacy stream.
    pub fn role(&self) -> Role {
        match self.identity.role.load(Ordering::Relaxed) {
            0 => Role::Blocking,
            1 => Role::NonBlocking,
            3 => Role::Lane,
            _ => Role::Legacy,
        }
    }

    /// `cuStreamGetPriority`
    pub fn priority(&self) -> i32 {
        self.identity.priority.load(Ordering::Relaxed)
    }

    /// `cuStreamGetFlags`
    pub fn flags(&self) -> u32 {
        if self.role() == Role::NonBlocking { NON_BLOCKING } else { 0 }
    }

    /// Operations given to it go to a capture, or are refused because of one.
    #[inline]
    pub fn is_captured(&self) -> bool {
        self.captures.load(Ordering::Relaxed) != 0
    }

    /// One capture more that concerns this stream: `recorder` gets what it is given.
    pub fn begin_capture(&self, recorder: &'static dyn Recorder) {
        self.queue.lock().recorder = Some(recorder);
        self.captures.fetch_add(1, Ordering::SeqCst);
    }

    /// One less.
    pub fn end_capture(&self) {
        self.captures.fetch_sub(1, Ordering::SeqCst);
    }

    /// The legacy stream that waits for this one, if it is one of those.
    pub fn legacy(&self) -> Option<&'static Stream> {
        if self.role() == Role::Blocking { self.siblings().map(ContextStreams::legacy) } else { None }
    }

    /// Somebody is executing one of its operations.
    pub fn is_busy(&self) -> bool {
        !self.is_idle() && self.owned.load(Ordering::SeqCst)
    }

    /// Everything that it was given is done.
    pub fn is_idle(&self) -> bool {
        self.progress.completed.load(Ordering::SeqCst) >= self.progress.submitted.load(Ordering::SeqCst)
    }

    /// Has work that nobody is doing, or about to do.
    fn is_waiting(&self) -> bool {
        !self.is_idle() && !self.owned.load(Ordering::SeqCst) && !self.is_taken()
    }

    /// A thread that waits for its end will execute it.
    fn is_taken(&self) -> bool {
        self.takers.load(Ordering::SeqCst) != 0
    }

    /// The place after all that was submitted so far.
    pub fn end(&'static self) -> Target {
        Target { stream: self, number: self.progress.submitted.load(Ordering::SeqCst) }
    }

    /// Adds an operation. In a stream that captures it becomes a node of the graph, which nobody has to wait for.
    pub fn submit(&'static self, operation: Op) -> Outcome<Target> {
        self.submit_made(|_| operation)
    }

    /// Adds a launch whose record, one of the stream's spare ones, `fill` completes.
    pub fn submit_launch(&'static self, fill: impl FnOnce(&mut Launch)) -> Outcome<Target> {
        self.submit_made(|queue| {
            let mut launch = queue.spare.pop().unwrap_or_default();
            fill(&mut launch);
            Op::Launch(launch)
        })
    }

    fn submit_made(&'static self, make: impl FnOnce(&mut Queue) -> Op) -> Outcome<Target> {
        if self.is_captured() {
            return self.capture(make);
        }
        if self.pending() >= MANY_PENDING && self.role() != Role::Lane {
            self.make_room();
        }
        let number = {
            let mut connection = if self.role() == Role::Lane { None } else { self.connect() };
            let mut queue = self.queue.lock();
            self.order(&mut queue);
            if let Some(behind) = connection.as_ref().and_then(|connection| connection.ahead_of(self)) {
                self.push(&mut queue, behind);
            }
            let operation = make(&mut queue);
            let number = self.push(&mut queue, operation);
            if let Some(connection) = &mut connection {
                connection.put(Target { stream: self, number });
            }
            number
        };
        self.driver().scheduler.submitted(self);
        Ok(Target { stream: self, number })
    }

    #[cold]
    fn capture(&'static self, make: impl FnOnce(&mut Queue) -> Op) -> Outcome<Target> {
        let (operation, recorder) = {
            let mut queue = self.queue.lock();
            (make(&mut queue), queue.recorder)
        };
        recorder.ok_or(CudaError::ILLEGAL_STATE)?.submit(self, operation)?;
        Ok(Target { stream: self, number: 0 })
    }

    /// Adds a wait for work that `start` puts into other streams, meant to begin at the place that it gets and to end
    /// at the one that it returns. Nobody's operation gets in between.
    pub fn submit_around(&'static self, start: impl FnOnce(Target) -> Target) -> Target {
        if self.pending() >= MANY_PENDING {
            self.make_room();
        }
        let number = {
            let mut connection = self.connect();
            let mut queue = self.queue.lock();
            self.order(&mut queue);
            if let Some(behind) = connection.as_ref().and_then(|connection| connection.ahead_of(self)) {
                self.push(&mut queue, behind);
            }
            let begin = self.end();
            let end = start(begin);
            if let Some(connection) = &mut connection {
                // Work that runs elsewhere keeps nobody back, once it has begun.
                connection.put(begin);
            }
            self.push(&mut queue, Op::Wait(end))
        };
        self.driver().scheduler.submitted(self);
        Target { stream: self, number }
    }

    /// The place after all that was submitted, including what the legacy stream's rule makes this stream wait for.
    pub fn mark(&'static self) -> Target {
        let (number, added) = {
            let mut queue = self.queue.lock();
            let before = self.progress.submitted.load(Ordering::Relaxed);
            self.order(&mut queue);
            let number = self.progress.submitted.load(Ordering::Relaxed);
            (number, number != before)
        };
        if added {
            self.driver().scheduler.submitted(self);
        }
        Target { stream: self, number }
    }

    fn push(&self, queue: &mut Queue, operation: Op) -> u64 {
        queue.operations.push_back(operation);
        let number = self.progress.submitted.load(Ordering::Relaxed) + 1;
        // SeqCst: pairs with the scheduler, which announces its rest before it looks for work.
        self.progress.submitted.store(number, Ordering::SeqCst);
        number
    }

    #[inline]
    fn pending(&self) -> u64 {
        // Others may submit and complete between the two looks.
        self.progress.submitted.load(Ordering::Relaxed).saturating_sub(self.progress.completed.load(Ordering::Relaxed))
    }

    /// Where much is pending, starts the worker; where too much is, waits for it.
    #[cold]
    pub fn make_room(&'static self) {
        let pending = self.pending();
        if pending >= MANY_PENDING {
            self.nudge();
        }
        if pending >= MAX_PENDING {
            let number = self.progress.submitted.load(Ordering::Relaxed) - MAX_PENDING / 2;
            run::wait_for_others(Target { stream: self, number });
        }
    }

    /// The legacy stream's rule: its operations wait for all blocking streams of the context, theirs wait for it.
    fn order(&self, queue: &mut Queue) {
        match self.role() {
            Role::NonBlocking | Role::Lane => {}
            Role::Blocking => {
                let legacy = self.siblings_in(queue).and_then(ContextStreams::legacy_if_used);
                let Some(end) = legacy.map(Stream::end) else {
                    return;
                };
                if end.number > queue.legacy_waited && !end.is_reached() {
                    queue.legacy_waited = end.number;
                    self.push(queue, Op::Wait(end));
                }
            }
            Role::Legacy => {
                let Some(siblings) = self.siblings_in(queue) else { return };
                siblings.for_each_blocking(|stream| {
                    let end = stream.end();
                    if !end.is_reached() {
                        self.push(queue, Op::Wait(end));
                    }
                });
            }
        }
    }

    /// Sees to it that somebody executes what is pending.
    pub fn nudge(&'static self) {
        if self.is_waiting() {
            self.worker.wake(self);
        }
    }
}

/// What a wait for the stream waits for: the legacy stream stands for all blocking streams of its context as well.
pub fn ends(stream: &'static Stream) -> Vec<Target> {
    let mut ends = Vec::new();
    ends.push(stream.end());
    if stream.role() == Role::Legacy
        && let Some(siblings) = stream.siblings()
    {
        siblings.for_each_blocking(|other| ends.push(other.end()));
    }
    ends.retain(|end| !end.is_reached());
    ends
}
