//! Contexts, and what lives and dies with them.
//!
//! * `current`: the stack of current contexts that each thread has
//! * `streams`: the stream that a client means in its current context
//! * `primary`: the context that a device has by itself
//! * `green`: contexts that have a part of a device

mod current;
pub mod green;
mod primary;
mod streams;

use crate::config::Config;
use crate::device::{ALL_SMS, Device, Owner};
use crate::error::{CudaError, Outcome};
use crate::handles::{Kind, Table};
use crate::stream::{ContextStreams, Stream, synchronize_all};
use crate::{event, module};
pub use current::{current, current_device, current_handle, current_home, pop, present, push, set};
use green::{Descriptor, Green};
use parking_lot::Mutex;
use primary::Primary;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use streams::{is_legacy, stream, with_own_default};

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

/// The driver's state, as far as contexts use it.
pub struct State {
    below: module::State,
    /// `CUcontext`
    pub contexts: Table<Context>,
    /// `CUgreenCtx`
    greens: Table<Green>,
    /// `CUdevResourceDesc`
    descriptors: Table<Descriptor>,
    /// Of each device.
    primaries: Vec<Primary>,
    primary_ends: AtomicU64,
}

impl Deref for State {
    type Target = module::State;

    fn deref(&self) -> &module::State {
        &self.below
    }
}

impl State {
    /// With these settings.
    pub fn new(config: Config) -> State {
        let below = module::State::new(config);
        State {
            contexts: Table::new(Kind::Context),
            greens: Table::new(Kind::Green),
            descriptors: Table::new(Kind::Descriptor),
            primaries: below.devices.iter().map(|_| Primary::default()).collect(),
            primary_ends: AtomicU64::new(0),
            below,
        }
    }

    /// The primary context of a device.
    pub fn primary(&self, device: &Device) -> &Primary {
        &self.primaries[device.index]
    }

    /// How often a primary context's life has ended: the runtime looks again whether a thread's context is alive.
    pub fn primary_ends(&self) -> u64 {
        self.primary_ends.load(Ordering::Acquire)
    }

    /// One more.
    fn count_primary_end(&self) {
        self.primary_ends.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits for all work of a device, as a GPU does before it frees memory, loads code or changes who reaches whom.
    /// Error: it is lost, and its work may never end.
    pub fn synchronize_device(&self, device: usize) -> Outcome {
        let mut streams = Vec::new();
        self.contexts.for_each(|_, context| {
            if context.device() == device {
                streams.extend(context.streams.all());
            }
        });
        synchronize_all(&streams);
        self.check(device)
    }
}

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
    id: AtomicU64,
    active: AtomicBool,
    primary: AtomicBool,
    /// Handle of the green context that it stands for, 0 for none.
    green: AtomicU64,
    /// The group of the device's SMs that its launches may use.
    group: AtomicUsize,
    /// Green contexts that are part of it.
    greens: AtomicUsize,
    /// What a client sets.
    pub settings: Mutex<Settings>,
    /// Its streams, and what they know of it: handle, device, and the handle of the context whose memory, modules,
    /// events and settings it shares, which is its own, or a green one's primary's.
    pub streams: ContextStreams,
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
    pub fn create(driver: &'static State, device: usize, flags: u32, nature: Nature) -> Outcome<&'static Context> {
        check_flags(flags)?;
        let made = driver.contexts.insert(|context, handle| {
            context.primary.store(matches!(nature, Nature::Primary), Ordering::Relaxed);
            let (home, green, group) = match nature {
                Nature::Own | Nature::Primary => (handle, 0, ALL_SMS),
                Nature::Green { home, green, group } => (home, green, group),
            };
            context.streams.prepare(driver, handle, home, device);
            context.green.store(green, Ordering::Relaxed);
            context.group.store(group, Ordering::Relaxed);
            context.begin(driver, flags);
        });
        Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.1)
    }

    /// Makes the context that stands for a green one.
    pub fn create_green(driver: &'static State, home: &Context, green: u64, group: usize) -> Outcome<&'static Context> {
        let nature = Nature::Green { home: home.handle(), green, group };
        let made = Context::create(driver, home.device(), 0, nature)?;
        home.greens.fetch_add(1, Ordering::SeqCst);
        Ok(made)
    }

    /// Its life begins: a new one, or a primary context once more. Nothing in it is what it was before, but for the
    /// handle of a primary context.
    fn begin(&self, driver: &'static State, flags: u32) {
        self.id.store(driver.unique(), Ordering::Relaxed);
        *self.settings.lock() = Settings { flags, ..Settings::default() };
        self.streams.begin(driver);
        self.active.store(true, Ordering::Release);
    }

    /// The client's `CUcontext`.
    pub fn handle(&self) -> u64 {
        self.streams.handle()
    }

    /// Unique in the process and never used again.
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Index of its device.
    pub fn device(&self) -> usize {
        self.streams.device()
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
        self.streams.home()
    }

    /// The context of [`Context::home`].
    pub fn home_context(&'static self, driver: &'static State) -> Outcome<&'static Context> {
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

    /// Whose what is made in it is.
    pub fn owner(&self) -> Owner {
        Owner { context: self.home(), device: self.device() }
    }

    /// Waits until everything submitted so far has been done, by its green contexts as well. Error: its device is lost.
    pub fn synchronize(&self, driver: &State) -> Outcome {
        let mut streams = self.streams.all();
        if self.greens.load(Ordering::SeqCst) > 0 {
            self.for_each_green(driver, |green| streams.extend(green.streams.all()));
        }
        synchronize_all(&streams);
        driver.check(self.device())
    }

    /// Calls `visit` with each context that stands for a green one over this.
    fn for_each_green(&self, driver: &State, mut visit: impl FnMut(&Context)) {
        let handle = self.handle();
        driver.contexts.for_each(|_, context| {
            if context.green() != 0 && context.home() == handle && context.is_active() {
                visit(context);
            }
        });
    }

    /// Ends its life: nobody can use it from now on; waits for its work, then takes its streams, events, modules,
    /// memory and others' access to that away. Error: somebody else has done it.
    fn end(&'static self, driver: &'static State) -> Outcome {
        driver.check(self.device())?;
        if !self.active.swap(false, Ordering::SeqCst) {
            return Err(CudaError::CONTEXT_IS_DESTROYED);
        }
        self.synchronize(driver)?;
        let handle = self.handle();
        self.for_each_green(driver, |green| green.active.store(false, Ordering::SeqCst));
        self.greens.store(0, Ordering::SeqCst);
        let mut streams = Vec::new();
        driver.streams.for_each(|h, stream| streams.extend((stream.home() == handle).then_some(h)));
        for stream in streams {
            let _ = Stream::destroy(driver, stream);
        }
        event::destroy_all(driver, handle);
        module::unload_all(driver, handle);
        driver.memory.free_context(driver, handle);
        driver.contexts.for_each(|_, other| other.settings.lock().peers.retain(|peer| *peer != handle));
        Ok(())
    }

    /// `cuCtxDestroy`: a primary context cannot be destroyed this way.
    pub fn destroy(driver: &'static State, handle: u64) -> Outcome {
        let context = driver.contexts.get(handle).filter(|context| !context.is_primary() && context.green() == 0);
        context.ok_or(CudaError::INVALID_CONTEXT)?.end(driver)?;
        driver.contexts.remove(handle).ok_or(CudaError::INVALID_CONTEXT)?.streams.invalidate();
        if current_handle() == handle {
            let _ = pop();
        }
        driver.contexts.recycle(handle);
        Ok(())
    }
}

impl Context {
    /// The end of a green context: after its work, its streams can do nothing more, and captures in them are spoilt.
    pub fn destroy_green(driver: &'static State, handle: u64) -> Outcome {
        let Some(context) = driver.contexts.get(handle) else {
            return Ok(());
        };
        driver.check(context.device())?;
        if context.active.swap(false, Ordering::SeqCst)
            && let Some(home) = driver.contexts.get(context.home())
        {
            home.greens.fetch_sub(1, Ordering::SeqCst);
        }
        let _ = driver.graphs.captures.check_context(context.handle());
        synchronize_all(&context.streams.all());
        driver.check(context.device())?;
        driver.streams.for_each(|_, stream| {
            if stream.context_handle() == handle {
                stream.detach();
            }
        });
        context.streams.clear();
        if driver.contexts.remove(handle).is_some() {
            context.streams.invalidate();
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
pub fn lookup(driver: &'static State, handle: u64) -> Outcome<&'static Context> {
    let context = driver.contexts.get(handle).ok_or(CudaError::INVALID_CONTEXT)?;
    if context.is_active() { Ok(context) } else { Err(CudaError::CONTEXT_IS_DESTROYED) }
}

/// Whether the context that had this [`Context::identity`] lives.
pub fn is_alive(driver: &'static State, (handle, id): (u64, u64)) -> bool {
    lookup(driver, handle).is_ok_and(|context| context.id() == id)
}

/// The context of a stream. `CONTEXT_IS_DESTROYED`: it has none any more.
#[inline]
pub fn of(driver: &'static State, stream: &Stream) -> Outcome<&'static Context> {
    driver.contexts.get(stream.context_handle()).ok_or(CudaError::CONTEXT_IS_DESTROYED)
}

/// The context of the stream that a client means.
pub fn of_stream(driver: &'static State, handle: u64) -> Outcome<&'static Context> {
    of(driver, stream(driver, handle)?)
}
