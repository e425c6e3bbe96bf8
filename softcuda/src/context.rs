//! Contexts, the stack of current ones that each thread has, and primary contexts.

use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::stream::{Role, Stream};
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
    /// What a client sets.
    pub settings: Mutex<Settings>,
    /// Streams that are valid or not yet drained, the default ones included.
    streams: Mutex<Vec<&'static Stream>>,
    /// Those of them that the legacy default stream waits for.
    blocking: Mutex<Vec<&'static Stream>>,
    blocking_count: AtomicUsize,
    legacy: OnceLock<&'static Stream>,
}

impl Context {
    /// Makes a context on a device.
    pub fn create(driver: &'static Driver, device: usize, flags: u32, primary: bool) -> Outcome<&'static Context> {
        check_flags(flags)?;
        let made = driver.contexts.insert(|context, handle| {
            context.handle.store(handle, Ordering::Relaxed);
            context.device.store(device, Ordering::Relaxed);
            context.primary.store(primary, Ordering::Relaxed);
            context.begin(driver, flags);
        });
        Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.1)
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

    /// Waits until everything submitted so far has been done.
    pub fn synchronize(&self) -> Outcome {
        crate::stream::synchronize_all(&self.streams());
        Ok(())
    }

    /// Ends its life: nobody can use it from now on; waits for its work, then takes its streams, events, modules, memory
    /// and others' access to that away. Error: somebody else has done it.
    fn end(&'static self, driver: &'static Driver) -> Outcome {
        if !self.active.swap(false, Ordering::SeqCst) {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        self.synchronize()?;
        let handle = self.handle();
        let mut streams = Vec::new();
        driver.streams.for_each(|h, stream| streams.extend((stream.context_handle() == handle).then_some(h)));
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
        let context = driver.contexts.get(handle).filter(|context| !context.is_primary());
        context.ok_or(CudaError::INVALID_CONTEXT)?.end(driver)?;
        driver.contexts.remove(handle).ok_or(CudaError::INVALID_CONTEXT)?;
        if CURRENT.get() == handle {
            let _ = pop();
        }
        driver.contexts.recycle(handle);
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
        let mut state = self.state.lock();
        let context = match state.context {
            Some(context) => context,
            None => Context::create(driver, device, state.flags, true)?,
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

/// The calling thread's current context.
#[inline]
pub fn current(driver: &'static Driver) -> Outcome<&'static Context> {
    let handle = CURRENT.get();
    if handle == 0 {
        return Err(CudaError::INVALID_CONTEXT);
    }
    driver.contexts.get(handle).filter(|c| c.is_active()).ok_or(CudaError::CONTEXT_IS_DESTROYED)
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
