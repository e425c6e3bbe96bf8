//! Contexts, the stack of current ones that each thread has, and primary contexts.

use crate::device::ALL_SMS;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::stream::{Op, Role, Stream};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Contexts that one thread's stack may hold.
const MAX_STACK: usize = 1024;
/// Kinds of limit (`CUlimit`).
pub const LIMITS: usize = 11;
/// Bytes of stack, printf fifo and heap; launch depth and count; fetch granularity; …: what a GPU starts with.
const FIRST_LIMITS: [usize; LIMITS] = [1024, 7 << 20, 8 << 20, 2, 2048, 64, 0, 0, 0, 0, 0];
/// `CU_CTX_FLAGS_MASK`.
pub const FLAGS_MASK: u32 = 0xff;
/// The scheduling flags, of which at most one may be given.
const SCHEDULES: [u32; 4] = [0, 1, 2, 4];
/// `CU_CTX_SCHED_MASK`.
const SCHEDULE_MASK: u32 = 7;
/// Version that `cuCtxGetApiVersion` tells.
pub const API_VERSION: u32 = 3020;

/// What a client sets on a context.
#[derive(Clone)]
pub struct Settings {
    /// `CU_CTX_*`.
    pub flags: u32,
    /// By `CUlimit`.
    pub limits: [usize; LIMITS],
    /// Handles of contexts to whose memory access was enabled.
    pub peers: Vec<u64>,
    /// `CUfunc_cache`.
    pub cache: i32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { flags: 0, limits: FIRST_LIMITS, peers: Vec::new(), cache: 0 }
    }
}

/// A context. Objects are used again after destruction; the handle tells them apart.
#[derive(Default)]
pub struct Context {
    handle: AtomicU64,
    id: AtomicU64,
    device: AtomicUsize,
    active: AtomicBool,
    primary: AtomicBool,
    /// Handle of the context whose memory, modules, events and settings it shares: its own, or a green one's primary's.
    home: AtomicU64,
    /// Handle of the green context that it stands for, 0 for none.
    green: AtomicU64,
    /// The group of the device's SMs that its launches may use.
    group: AtomicUsize,
    /// Green contexts that are part of it.
    greens: AtomicUsize,
    /// What a client sets.
    pub settings: Mutex<Settings>,
    /// Streams that are valid or not yet drained, the default ones included.
    streams: Mutex<Vec<&'static Stream>>,
    /// Those of them that the legacy default stream waits for.
    blocking: Mutex<Vec<&'static Stream>>,
    blocking_count: AtomicUsize,
    legacy: OnceLock<&'static Stream>,
    /// Goes on when all streams have got so far, and what all streams wait for: for records and waits of the whole
    /// context.
    gather: OnceLock<&'static Stream>,
    gate: OnceLock<&'static Stream>,
}

/// What a new context is.
#[derive(Clone, Copy)]
pub enum Nature {
    /// A client's own.
    Own,
    /// A device's primary one.
    Primary,
    /// It stands for a green context with a group of SMs, over a primary one.
    Green {
        /// Handle of the primary one.
        home: u64,
        /// Handle of the green one.
        green: u64,
        /// The group.
        group: usize,
    },
}

impl Context {
    /// Makes a context on a device.
    pub fn create(driver: &'static Driver, device: usize, flags: u32, nature: Nature) -> Outcome<&'static Context> {
        check_flags(flags)?;
        let made = driver.contexts.insert(|context, handle| {
            context.handle.store(handle, Ordering::Relaxed);
            context.device.store(device, Ordering::Relaxed);
            context.primary.store(matches!(nature, Nature::Primary), Ordering::Relaxed);
            let (home, green, group) = match nature {
                Nature::Own | Nature::Primary => (handle, 0, ALL_SMS),
                Nature::Green { home, green, group } => (home, green, group),
            };
            context.home.store(home, Ordering::Relaxed);
            context.green.store(green, Ordering::Relaxed);
            context.group.store(group, Ordering::Relaxed);
            context.begin(driver, flags);
        });
        Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.1)
    }

    /// Makes the context that stands for a green one.
    pub fn create_green(driver: &'static Driver, home: &Context, green: u64, group: usize) -> Outcome<&'static Context> {
        let nature = Nature::Green { home: home.handle(), green, group };
        let made = Context::create(driver, home.device(), 0, nature)?;
        home.greens.fetch_add(1, Ordering::SeqCst);
        Ok(made)
    }

    /// Its life begins: a new one, or a primary context once more. Nothing in it is what it was before, but for the
    /// handle of a primary context.
    fn begin(&self, driver: &'static Driver, flags: u32) {
        self.id.store(driver.unique(), Ordering::Relaxed);
        *self.settings.lock() = Settings { flags, ..Settings::default() };
        if let Some(legacy) = self.legacy.get() {
            legacy.renew(driver, self);
        }
        self.active.store(true, Ordering::Release);
    }

    /// The client's `CUcontext`.
    pub fn handle(&self) -> u64 {
        self.handle.load(Ordering::Relaxed)
    }

    /// Unique in the process and never used again.
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Index of its device.
    pub fn device(&self) -> usize {
        self.device.load(Ordering::Relaxed)
    }

    /// Whether it is a device's primary context.
    pub fn is_primary(&self) -> bool {
        self.primary.load(Ordering::Relaxed)
    }

    /// False for a primary context that nobody has retained since it was reset or given up by all.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// What tells this life of it from others: its handle and its id.
    pub fn identity(&self) -> (u64, u64) {
        (self.handle(), self.id())
    }

    /// Handle of the context whose memory, modules and events it shares, mostly its own.
    #[inline]
    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Relaxed)
    }

    /// The context of [`Context::home`].
    pub fn home_context(&'static self, driver: &'static Driver) -> Outcome<&'static Context> {
        if self.home() == self.handle() { Ok(self) } else { lookup(driver, self.home()) }
    }

    /// Handle of the green context that it stands for, 0 for none.
    pub fn green(&self) -> u64 {
        self.green.load(Ordering::Relaxed)
    }

    /// Itself, if it stands for a green context.
    pub fn as_green(&'static self) -> Option<&'static Context> {
        (self.green() != 0).then_some(self)
    }

    /// The group of its device's SMs that its launches may use.
    pub fn group(&self) -> usize {
        self.group.load(Ordering::Relaxed)
    }

    /// The legacy default stream.
    pub fn legacy(&'static self) -> &'static Stream {
        self.legacy.get_or_init(|| Stream::make_default(self, Role::Legacy))
    }

    /// The legacy default stream, if anything used it yet.
    pub fn legacy_if_used(&self) -> Option<&'static Stream> {
        self.legacy.get().copied()
    }

    /// Counts a stream among those of this context.
    pub fn add_stream(&self, stream: &'static Stream) {
        self.streams.lock().push(stream);
        if stream.role() == Role::Blocking {
            self.blocking.lock().push(stream);
            self.blocking_count.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(gate) = self.gate.get().filter(|gate| !gate.is_idle()) {
            // A new stream captures nothing, so that it takes everything.
            let _ = stream.submit(Op::Wait(gate.end()));
        }
    }

    /// A stream that has only to wait for what all streams were given so far.
    pub fn gather(&self) -> Outcome<&'static Stream> {
        let gather = self.gather.get_or_init(Stream::make_lane);
        gather.set_device(self.device());
        for end in self.streams().into_iter().map(Stream::end).filter(|end| !end.is_reached()) {
            gather.submit(Op::Wait(end))?;
        }
        Ok(gather)
    }

    /// Makes what all streams, those to come included, are given from now on wait for what `wait` puts into a stream.
    pub fn hold_up(&self, wait: impl FnOnce(&'static Stream) -> Outcome) -> Outcome {
        let gate = self.gate.get_or_init(Stream::make_lane);
        gate.set_device(self.device());
        wait(gate)?;
        let end = gate.end();
        self.streams().into_iter().try_for_each(|stream| stream.submit(Op::Wait(end)).map(drop))
    }

    /// Undoes [`Context::add_stream`].
    pub fn remove_stream(&self, stream: &'static Stream) {
        self.streams.lock().retain(|s| !std::ptr::eq(*s, stream));
        let mut blocking = self.blocking.lock();
        let before = blocking.len();
        blocking.retain(|s| !std::ptr::eq(*s, stream));
        self.blocking_count.fetch_sub(before - blocking.len(), Ordering::SeqCst);
    }

    /// Calls `visit` with every stream that the legacy default stream waits for.
    pub fn for_each_blocking(&self, mut visit: impl FnMut(&'static Stream)) {
        if self.blocking_count.load(Ordering::SeqCst) > 0 {
            self.blocking.lock().iter().for_each(|stream| visit(stream));
        }
    }

    /// All its streams.
    pub fn streams(&self) -> Vec<&'static Stream> {
        self.streams.lock().clone()
    }

    /// Waits until everything submitted so far has been done, by its green contexts as well. Error: its device is lost.
    pub fn synchronize(&self) -> Outcome {
        let mut streams = self.streams();
        if self.greens.load(Ordering::SeqCst) > 0
            && let Some(driver) = Driver::running()
        {
            self.for_each_green(driver, |green| streams.extend(green.streams()));
        }
        crate::stream::synchronize_all(&streams);
        Driver::running().map_or(Ok(()), |driver| driver.check(self.device()))
    }

    /// Calls `visit` with each context that stands for a green one over this.
    fn for_each_green(&self, driver: &'static Driver, mut visit: impl FnMut(&Context)) {
        let handle = self.handle();
        driver.contexts.for_each(|_, context| {
            if context.green() != 0 && context.home() == handle && context.is_active() {
                visit(context);
            }
        });
    }

    /// Ends its life: nobody can use it from now on; waits for its work, then takes its streams, events, modules, memory
    /// and others' access to that away. Error: somebody else has done it.
    fn end(&'static self, driver: &'static Driver) -> Outcome {
        driver.check(self.device())?;
        if !self.active.swap(false, Ordering::SeqCst) {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        self.synchronize()?;
        let handle = self.handle();
        self.for_each_green(driver, |green| green.active.store(false, Ordering::SeqCst));
        self.greens.store(0, Ordering::SeqCst);
        let mut streams = Vec::new();
        driver.streams.for_each(|h, stream| streams.extend((stream.home() == handle).then_some(h)));
        for stream in streams {
            let _ = Stream::destroy(driver, stream);
        }
        crate::event::destroy_all(driver, handle);
        crate::module::unload_all(driver, handle);
        driver.memory.free_context(driver, handle);
        driver.contexts.for_each(|_, other| other.settings.lock().peers.retain(|peer| *peer != handle));
        Ok(())
    }

    /// `cuCtxDestroy`: a primary context cannot be destroyed this way.
    pub fn destroy(driver: &'static Driver, handle: u64) -> Outcome {
        let context = driver.contexts.get(handle).filter(|context| !context.is_primary() && context.green() == 0);
        context.ok_or(CudaError::INVALID_CONTEXT)?.end(driver)?;
        driver.contexts.remove(handle).ok_or(CudaError::INVALID_CONTEXT)?;
        if CURRENT.get() == handle {
            let _ = pop();
        }
        driver.contexts.recycle(handle);
        Ok(())
    }
}

impl Context {
    /// The end of a green context: after its work, its streams can do nothing more, and captures in them are spoilt.
    pub fn destroy_green(driver: &'static Driver, handle: u64) -> Outcome {
        let Some(context) = driver.contexts.get(handle) else {
            return Ok(());
        };
        driver.check(context.device())?;
        if context.active.swap(false, Ordering::SeqCst)
            && let Some(home) = driver.contexts.get(context.home())
        {
            home.greens.fetch_sub(1, Ordering::SeqCst);
        }
        let _ = driver.graphs.captures.check_context(context);
        crate::stream::synchronize_all(&context.streams());
        driver.check(context.device())?;
        driver.streams.for_each(|_, stream| {
            if stream.context_handle() == handle {
                stream.detach();
            }
        });
        let legacy = context.legacy_if_used();
        context.streams.lock().retain(|stream| legacy.is_some_and(|legacy| std::ptr::eq(*stream, legacy)));
        context.blocking.lock().clear();
        context.blocking_count.store(0, Ordering::SeqCst);
        if driver.contexts.remove(handle).is_some() {
            driver.contexts.recycle(handle);
        }
        Ok(())
    }
}

/// Refuses unknown flags and contradicting schedules.
pub fn check_flags(flags: u32) -> Outcome {
    let known = flags & !FLAGS_MASK == 0 && SCHEDULES.contains(&(flags & SCHEDULE_MASK));
    if known { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}

/// The valid context with this handle. `INVALID_CONTEXT`: there is none. `CONTEXT_IS_DESTROYED`: a primary context that
/// nobody has retained since its end.
pub fn lookup(driver: &'static Driver, handle: u64) -> Outcome<&'static Context> {
    let context = driver.contexts.get(handle).ok_or(CudaError::INVALID_CONTEXT)?;
    if context.is_active() { Ok(context) } else { Err(CudaError::CONTEXT_IS_DESTROYED) }
}

/// Whether the context that had this [`Context::identity`] lives.
pub fn is_alive(driver: &'static Driver, (handle, id): (u64, u64)) -> bool {
    lookup(driver, handle).is_ok_and(|context| context.id() == id)
}

#[derive(Default)]
struct PrimaryState {
    context: Option<&'static Context>,
    references: u64,
    flags: u32,
}

/// A device's primary context: made at the first retain, its handle stays for good. It lives from a retain to a reset, or
/// to the release that nobody is left after; a retain after that gives it a new life, with another id and nothing in it.
#[derive(Default)]
pub struct Primary {
    state: Mutex<PrimaryState>,
}

impl Primary {
    /// `cuDevicePrimaryCtxRetain`
    pub fn retain(&self, driver: &'static Driver, device: usize) -> Outcome<&'static Context> {
        driver.check(device)?;
        let mut state = self.state.lock();
        let context = match state.context {
            Some(context) => context,
            None => Context::create(driver, device, state.flags, Nature::Primary)?,
        };
        if !context.is_active() {
            context.begin(driver, state.flags);
        }
        state.context = Some(context);
        state.references += 1;
        Ok(context)
    }

    /// `cuDevicePrimaryCtxRelease`
    pub fn release(&self, driver: &'static Driver) -> Outcome {
        let mut state = self.state.lock();
        let Some(context) = state.context.filter(|_| state.references > 0) else {
            return Err(CudaError::INVALID_CONTEXT);
        };
        driver.check(context.device())?;
        state.references -= 1;
        if state.references == 0 { end_primary(driver, context) } else { Ok(()) }
    }

    /// `cuDevicePrimaryCtxReset`: everything goes, whoever retains it. Who does so has still to release it.
    pub fn reset(&self, driver: &'static Driver) -> Outcome {
        let mut state = self.state.lock();
        state.flags = 0;
        state.context.map_or(Ok(()), |context| end_primary(driver, context))
    }

    /// Flags, and whether the context is active.
    pub fn state(&self) -> (u32, bool) {
        let state = self.state.lock();
        (state.flags, state.context.is_some_and(Context::is_active))
    }

    /// `cuDevicePrimaryCtxSetFlags`
    pub fn set_flags(&self, flags: u32) -> Outcome {
        check_flags(flags)?;
        let mut state = self.state.lock();
        state.flags = flags;
        if let Some(context) = state.context {
            context.settings.lock().flags = flags;
        }
        Ok(())
    }
}

/// Ends a primary context's life, unless it has ended already.
fn end_primary(driver: &'static Driver, context: &'static Context) -> Outcome {
    if context.is_active() {
        context.end(driver)?;
        driver.count_primary_end();
    }
    Ok(())
}

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
    /// Below the current one. Never dropped, since programs call CUDA in exit handlers too, when what is
    /// dropped is gone; it owns memory only while there is something in it.
    static BELOW: ManuallyDrop<RefCell<Vec<u64>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// The calling thread's current context. Error: none, a dead one, or one of a device that is lost.
#[inline]
pub fn current(driver: &'static Driver) -> Outcome<&'static Context> {
    let context = present(driver)?;
    driver.check(context.device())?;
    Ok(context)
}

/// The same, whether or not its device is lost.
#[inline]
pub fn present(driver: &'static Driver) -> Outcome<&'static Context> {
    let handle = CURRENT.get();
    if handle == 0 {
        return Err(CudaError::INVALID_CONTEXT);
    }
    driver.contexts.get(handle).filter(|c| c.is_active()).ok_or(CudaError::CONTEXT_IS_DESTROYED)
}

/// The context whose memory, modules, events and settings the calling thread's current one shares.
pub fn current_home(driver: &'static Driver) -> Outcome<&'static Context> {
    current(driver)?.home_context(driver)
}

/// Index of the device of the calling thread's current context.
pub fn current_device() -> Option<usize> {
    let driver = Driver::running()?;
    driver.contexts.get(CURRENT.get()).map(Context::device)
}

/// Handle of the calling thread's current context, 0 for none.
pub fn current_handle() -> u64 {
    CURRENT.get()
}

/// Makes a context current on top of the present one.
pub fn push(handle: u64) -> Outcome {
    let before = CURRENT.get();
    BELOW.with(|below| {
        let mut below = below.borrow_mut();
        if below.len() >= MAX_STACK {
            return Err(CudaError::INVALID_VALUE);
        }
        if before != 0 {
            below.push(before);
        }
        Ok(())
    })?;
    CURRENT.set(handle);
    Ok(())
}

/// Takes the current context away and returns it.
pub fn pop() -> Outcome<u64> {
    let top = CURRENT.get();
    if top == 0 {
        return Err(CudaError::INVALID_CONTEXT);
    }
    CURRENT.set(BELOW.with(|below| {
        let mut below = below.borrow_mut();
        let next = below.pop().unwrap_or(0);
        if below.is_empty() {
            *below = Vec::new();
        }
        next
    }));
    Ok(top)
}

/// Replaces the current context; 0 takes it away.
pub fn set(handle: u64) {
    if handle != 0 {
        CURRENT.set(handle);
    } else if CURRENT.get() != 0 {
        let _ = pop();
    }
}
