//! Streams: queues of operations, executed in order by whoever owns the stream at the moment: a thread that waits for
//! it ("help by the waiter"), or else its worker thread.

mod connection;
mod op;
mod run;
mod scheduler;
mod worker;

use crate::context::{self, Context};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::launch::Launch;
pub use connection::{Connections, MAX_CONNECTIONS};
pub use op::{Op, Transfer3d};
use parking_lot::{Condvar, Mutex};
pub use run::{synchronize, synchronize_all, synchronize_stream};
pub use scheduler::Scheduler;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
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
/// Handle that means the legacy default stream, as NULL does.
pub const LEGACY_HANDLE: u64 = 1;
/// Handle that means the per-thread default stream.
pub const PER_THREAD_HANDLE: u64 = 2;
/// Lowest and highest priority (`cuCtxGetStreamPriorityRange`).
pub const PRIORITIES: (i32, i32) = (0, -5);

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
        self.stream.completed.load(Ordering::SeqCst) >= self.number || self.stream.is_given_up()
    }
}

#[derive(Default)]
struct Queue {
    operations: VecDeque<Op>,
    #[allow(clippy::vec_box, reason = "records move between here and the queue without being copied")]
    spare: Vec<Box<Launch>>,
    /// Place in the legacy stream that this one was last made to wait for.
    legacy_waited: u64,
}

/// A stream. Objects are used again after destruction; counters go on.
#[derive(Default)]
pub struct Stream {
    handle: AtomicU64,
    id: AtomicU64,
    context: AtomicU64,
    /// [`Context::home`] of its context.
    home: AtomicU64,
    role: AtomicU8,
    priority: AtomicI32,
    queue: Mutex<Queue>,
    /// Captures that operations given to this stream belong to or would disturb; 0 nearly always.
    captures: AtomicU32,
    /// Operations ever put into the queue, and those done.
    submitted: AtomicU64,
    completed: AtomicU64,
    /// Operations that have left the queue.
    started: AtomicU64,
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
    /// Its green context is gone.
    detached: AtomicBool,
    /// Index of its device.
    device: AtomicUsize,
    /// A copy is being executed, which ends soon.
    copying: AtomicBool,
    /// Waiters want to hear when so many operations are done, or nobody owns the stream; 0 = no waiter.
    wake_at: AtomicU64,
    gate: Mutex<()>,
    progress: Condvar,
    worker: Worker,
}

impl Stream {
    /// `cuStreamCreateWithPriority`; the priority is clamped.
    pub fn create(driver: &'static Driver, context: &'static Context, flags: u32, priority: i32) -> Outcome<u64> {
        if flags & !NON_BLOCKING != 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let role = if flags & NON_BLOCKING != 0 { Role::NonBlocking } else { Role::Blocking };
        let made = driver.streams.insert(|stream, handle| {
            stream.prepare(driver, context, handle, role);
            stream.priority.store(priority.clamp(PRIORITIES.1, PRIORITIES.0), Ordering::Relaxed);
        });
        let (handle, stream) = made.ok_or(CudaError::OUT_OF_MEMORY)?;
        context.add_stream(stream);
        Ok(handle)
    }

    /// A default stream, which has no handle of its own.
    pub fn make_default(context: &'static Context, role: Role) -> &'static Stream {
        let stream: &'static Stream = Box::leak(Box::default());
        stream.prepare(driver(), context, 0, role);
        context.add_stream(stream);
        stream
    }

    /// A default stream of a context whose life begins anew, in which nothing is left to do: another stream.
    pub fn renew(&self, driver: &Driver, context: &Context) {
        self.prepare(driver, context, 0, self.role());
        self.disconnect();
    }

    /// A stream for a part of a graph. It belongs to no context and is never freed.
    pub fn make_lane() -> &'static Stream {
        let stream: &'static Stream = Box::leak(Box::default());
        stream.role.store(Role::Lane as u8, Ordering::Relaxed);
        stream
    }

    /// Index of its device.
    pub fn device(&self) -> usize {
        self.device.load(Ordering::Relaxed)
    }

    /// The device whose work a lane does from now on.
    pub fn set_device(&self, device: usize) {
        self.device.store(device, Ordering::Relaxed);
    }

    /// Error: its device is lost.
    #[inline]
    pub fn check(&self) -> Outcome {
        driver().check(self.device())
    }

    /// Its device is lost: nobody need wait for it, except for a copy that has begun.
    #[inline]
    fn is_given_up(&self) -> bool {
        // In this order: the executor marks a copy before it looks whether the device is lost.
        self.check().is_err() && !self.copying.load(Ordering::SeqCst)
    }

    fn prepare(&self, driver: &Driver, context: &Context, handle: u64, role: Role) {
        self.handle.store(handle, Ordering::Relaxed);
        self.id.store(driver.unique(), Ordering::Relaxed);
        self.context.store(context.handle(), Ordering::Relaxed);
        self.home.store(context.home(), Ordering::Relaxed);
        self.set_device(context.device());
        self.detached.store(false, Ordering::Relaxed);
        self.role.store(role as u8, Ordering::Relaxed);
        self.priority.store(0, Ordering::Relaxed);
        self.queue.lock().legacy_waited = 0;
        self.captures.store(0, Ordering::Relaxed);
        self.dying.store(false, Ordering::SeqCst);
    }

    /// `cuStreamDestroy`: the handle is gone at once, the work goes on.
    pub fn destroy(driver: &'static Driver, handle: u64) -> Outcome {
        let stream = driver.streams.remove(handle).ok_or(CudaError::INVALID_HANDLE)?;
        if stream.is_captured() {
            driver.graphs.captures.stream_destroyed(stream);
        }
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
        let driver = driver();
        if let Some(context) = driver.contexts.get(self.context_handle()) {
            context.remove_stream(self);
        }
        self.disconnect();
        driver.streams.recycle(self.handle.load(Ordering::Relaxed));
    }

    /// `cuStreamGetId`
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Handle of its context.
    pub fn context_handle(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    /// Handle of the context whose functions and events it takes.
    #[inline]
    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Relaxed)
    }

    /// Its green context is gone: it can only be destroyed.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Release);
    }

    /// Its context.
    pub fn context(&self) -> Outcome<&'static Context> {
        driver().contexts.get(self.context_handle()).ok_or(CudaError::CONTEXT_IS_DESTROYED)
    }

    /// How it stands to the legacy stream.
    pub fn role(&self) -> Role {
        match self.role.load(Ordering::Relaxed) {
            0 => Role::Blocking,
            1 => Role::NonBlocking,
            3 => Role::Lane,
            _ => Role::Legacy,
        }
    }

    /// `cuStreamGetPriority`
    pub fn priority(&self) -> i32 {
        self.priority.load(Ordering::Relaxed)
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

    /// One capture more or less that concerns this stream.
    pub fn count_capture(&self, more: bool) {
        if more {
            self.captures.fetch_add(1, Ordering::SeqCst)
        } else {
            self.captures.fetch_sub(1, Ordering::SeqCst)
        };
    }

    /// Somebody is executing one of its operations.
    pub fn is_busy(&self) -> bool {
        !self.is_idle() && self.owned.load(Ordering::SeqCst)
    }

    /// Everything that it was given is done.
    pub fn is_idle(&self) -> bool {
        self.completed.load(Ordering::SeqCst) >= self.submitted.load(Ordering::SeqCst)
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
        Target { stream: self, number: self.submitted.load(Ordering::SeqCst) }
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
        driver().scheduler.submitted(self);
        Ok(Target { stream: self, number })
    }

    #[cold]
    fn capture(&'static self, make: impl FnOnce(&mut Queue) -> Op) -> Outcome<Target> {
        let operation = make(&mut self.queue.lock());
        driver().graphs.captures.submit(self, operation)?;
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
        driver().scheduler.submitted(self);
        Target { stream: self, number }
    }

    /// The place after all that was submitted, including what the legacy stream's rule makes this stream wait for.
    pub fn mark(&'static self) -> Target {
        let (number, added) = {
            let mut queue = self.queue.lock();
            let before = self.submitted.load(Ordering::Relaxed);
            self.order(&mut queue);
            let number = self.submitted.load(Ordering::Relaxed);
            (number, number != before)
        };
        if added {
            driver().scheduler.submitted(self);
        }
        Target { stream: self, number }
    }

    fn push(&self, queue: &mut Queue, operation: Op) -> u64 {
        queue.operations.push_back(operation);
        let number = self.submitted.load(Ordering::Relaxed) + 1;
        // SeqCst: pairs with the scheduler, which announces its rest before it looks for work.
        self.submitted.store(number, Ordering::SeqCst);
        number
    }

    #[inline]
    fn pending(&self) -> u64 {
        // Others may submit and complete between the two looks.
        self.submitted.load(Ordering::Relaxed).saturating_sub(self.completed.load(Ordering::Relaxed))
    }

    /// Where much is pending, starts the worker; where too much is, waits for it.
    #[cold]
    pub fn make_room(&'static self) {
        let pending = self.pending();
        if pending >= MANY_PENDING {
            self.nudge();
        }
        if pending >= MAX_PENDING {
            let number = self.submitted.load(Ordering::Relaxed) - MAX_PENDING / 2;
            run::wait_for_others(Target { stream: self, number });
        }
    }

    /// The legacy stream's rule: its operations wait for all blocking streams of the context, theirs wait for it.
    fn order(&self, queue: &mut Queue) {
        match self.role() {
            Role::NonBlocking | Role::Lane => {}
            Role::Blocking => {
                let legacy = self.context().ok().and_then(Context::legacy_if_used);
                let Some(end) = legacy.map(Stream::end) else {
                    return;
                };
                if end.number > queue.legacy_waited && !end.is_reached() {
                    queue.legacy_waited = end.number;
                    self.push(queue, Op::Wait(end));
                }
            }
            Role::Legacy => {
                let Ok(context) = self.context() else { return };
                context.for_each_blocking(|stream| {
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

fn driver() -> &'static Driver {
    Driver::running().expect("streams exist only after cuInit")
}

/// Per-thread default streams of this thread, by context id.
#[derive(Default)]
struct ThreadStreams(Vec<(u64, u64)>);

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        let Some(driver) = Driver::running() else {
            return;
        };
        for (_, handle) in &self.0 {
            let _ = Stream::destroy(driver, *handle);
        }
    }
}

thread_local! {
    static THREAD_STREAMS: RefCell<ThreadStreams> = RefCell::default();
    /// Set during a call that means the per-thread default stream by 0.
    static OWN_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call for which stream 0 is the per-thread default stream.
pub fn with_own_default<T>(call: impl FnOnce() -> T) -> T {
    let before = OWN_DEFAULT.replace(true);
    let answer = call();
    OWN_DEFAULT.set(before);
    answer
}

/// A green context has none.
fn per_thread(driver: &'static Driver, context: &'static Context) -> Outcome<&'static Stream> {
    if context.green() != 0 {
        return Err(CudaError::INVALID_HANDLE);
    }
    THREAD_STREAMS.with_borrow_mut(|streams| {
        let known = streams.0.iter().find(|(id, _)| *id == context.id());
        let handle = match known.filter(|(_, handle)| driver.streams.get(*handle).is_some()) {
            Some((_, handle)) => *handle,
            None => {
                let handle = Stream::create(driver, context, 0, 0)?;
                // Those of contexts that are gone went with them.
                streams.0.retain(|(_, handle)| driver.streams.get(*handle).is_some());
                streams.0.push((context.id(), handle));
                handle
            }
        };
        driver.streams.get(handle).ok_or(CudaError::INVALID_HANDLE)
    })
}

/// Whether this means the legacy default stream.
pub fn is_legacy(handle: u64) -> bool {
    handle == LEGACY_HANDLE || handle == 0 && !OWN_DEFAULT.get()
}

/// The stream that a client means: a handle, or one of the default streams of its current context. Error: none, or one of
/// a device that is lost.
#[inline]
pub fn lookup(driver: &'static Driver, handle: u64) -> Outcome<&'static Stream> {
    match handle {
        0 if OWN_DEFAULT.get() => per_thread(driver, context::current(driver)?),
        0 | LEGACY_HANDLE => Ok(context::current(driver)?.legacy()),
        PER_THREAD_HANDLE => per_thread(driver, context::current(driver)?),
        _ => match driver.streams.get(handle) {
            Some(stream) if !stream.detached.load(Ordering::Relaxed) => driver.check(stream.device()).map(|()| stream),
            Some(_) => Err(CudaError::STREAM_DETACHED),
            None => Err(CudaError::INVALID_HANDLE),
        },
    }
}

/// What a wait for the stream waits for: the legacy stream stands for all blocking streams of its context as well.
pub fn ends(stream: &'static Stream) -> Vec<Target> {
    let mut ends = Vec::new();
    ends.push(stream.end());
    if stream.role() == Role::Legacy
        && let Ok(context) = stream.context()
    {
        context.for_each_blocking(|other| ends.push(other.end()));
    }
    ends.retain(|end| !end.is_reached());
    ends
}
