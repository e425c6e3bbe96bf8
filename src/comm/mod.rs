//! A communicator's life: creation, queries, the end.

mod arena;
mod background;
pub mod config;
mod context;
mod derivations;
mod device_schedules;
pub mod family;
mod filter;
mod flight_recorder;
mod graphs;
pub mod handover;
mod init;
mod items;
pub mod jobs;
mod links;
mod ops;
mod order;
mod registration;
mod revoke;
mod schedules;
pub mod selection;
mod settings;
mod suspend;
mod teardown;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::bootstrap::{Bootstrap, Cancel, UniqueId};
use crate::device::{self, Charge, Context, DeviceFacts, HostFlag, Kernels, Ledger};
use crate::error::{Code, Error};
use crate::health::FlightRecorder;
use crate::log::lines::CommLine;
use crate::log::{FirstFailure, Place, first_failure};
use crate::plan::layout::kernel_error;
use crate::sys;
use crate::transport::{ConnectionGroup, Links, PeerFacts, Probe};

use background::Background;
use derivations::Derivations;
use family::Origin;
use graphs::Graphs;
use watch::Watch;

pub use config::Config;
pub use graphs::{Captured, settle as settle_graphs};
pub use init::report_failure;
pub use items::{ItemStore, Lent};
pub use ops::{Operators, check_destroyable};
pub use order::Order;
pub use registration::{Registrations, memory_freed};
pub use schedules::{Ask, Cut, Half, Offered, Schedules, WaitPolicy, kernel_number};
pub use settings::{check_device_list, first_devices, unique_id};
pub use suspend::{MemoryStat, check_managed};
pub use teardown::free_ended;

/// How a call of the C interface went, other than by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It goes on in the background.
    InProgress,
}

/// What a rank asks for when it creates a communicator.
pub struct InitRequest {
    /// The C function, for log lines.
    pub function: &'static str,
    /// The number of ranks.
    pub nranks: i32,
    /// This rank.
    pub rank: i32,
    /// The rendezvous; none where it is not known yet.
    pub id: Option<UniqueId>,
    /// The resolved configuration.
    pub config: Config,
    /// `ncclCommInitRank` and `ncclCommInitAll` block whatever the configuration says (spec §3.2).
    pub always_blocking: bool,
    /// The context, where it is not the one that the calling thread works in.
    pub context: Option<Arc<Context>>,
    /// What it is derived from, if that is to be told.
    pub origin: Option<Origin>,
    /// What ends its waits, if that is there already.
    pub cancel: Option<Cancel>,
}

impl InitRequest {
    /// A request of the calling thread for the context that it works in.
    pub fn new(function: &'static str, (nranks, rank): (i32, i32), id: UniqueId, config: Config) -> InitRequest {
        let id = Some(id);
        let always_blocking = false;
        InitRequest { function, nranks, rank, id, config, always_blocking, context: None, origin: None, cancel: None }
    }
}

/// Where a communicator is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Creation is under way, or a call that its caller does not wait for.
    Busy,
    /// In use.
    Ready,
    /// Something failed; only abort is left.
    Failed(Error),
    /// It was destroyed or aborted.
    Ended,
}

/// A communicator: one rank's membership in a set of ranks.
pub struct Comm {
    function: &'static str,
    rank: u32,
    nranks: u32,
    hash: OnceLock<u64>,
    device: i32,
    facts: DeviceFacts,
    config: Config,
    origin: Option<Origin>,
    handle: OnceLock<usize>,
    context: Arc<Context>,
    cancel: Cancel,
    state: Mutex<State>,
    first_failure: FirstFailure,
    calls: AtomicU64,
    collectives: AtomicU64,
    /// How many calls there were with the last collective.
    calls_by_collective: AtomicU64,
    goodbye_due: AtomicBool,
    /// Why there are no data calls any more.
    halt: AtomicU8,
    /// Its user has aborted it.
    aborted: AtomicBool,
    finalized: AtomicBool,
    /// The work that goes on in the background.
    background: Mutex<Option<Arc<Background>>>,
    /// How often the process had been forked when the communicator was made.
    forks: u32,
    parts: OnceLock<Parts>,
    operators: Operators,
    graphs: Graphs,
    /// What it has to do with communicators that are derived from it.
    derivations: Derivations,
    /// What it holds in memory.
    ledger: Arc<Ledger>,
    suspended: AtomicBool,
    watch: Mutex<Watch>,
    /// The connection groups of links that are to be connected at the end of a suspension.
    to_reconnect: Mutex<Vec<ConnectionGroup>>,
}

/// What a communicator has once its creation has succeeded. The fields drop in this order.
pub struct Parts {
    /// The kernels of the device.
    pub kernels: Arc<Kernels>,
    /// Steps and links on the device.
    pub schedules: Schedules,
    /// Work items that do not fit a launch's argument.
    pub items: ItemStore,
    /// What the ranks of the host have called lately, and registered.
    pub recorder: Option<FlightRecorder>,
    /// Memory that is registered; none where ranks cannot map it, or need not.
    pub registrations: Option<Registrations>,
    /// Order of launches among streams.
    pub order: Mutex<Order>,
    /// "Leave now", for kernels.
    pub flag: HostFlag,
    /// Memory that was shared to see whether that works; none with one rank.
    pub probe: Option<Probe>,
    /// The links, which are connected when they are needed; none with one rank.
    pub links: Option<Arc<Links>>,
    /// What all of this holds, but for what counts itself.
    _charges: Vec<Charge>,
    /// Every rank's facts.
    pub peers: Vec<PeerFacts>,
    /// The ring of sockets.
    pub bootstrap: Mutex<Option<Bootstrap>>,
}

/// Whether there is a usable CUDA driver with a device.
///
/// # Errors
/// [`Error::NoCuda`] with what was looked for, [`Error::Cuda`] when the driver fails.
pub fn check_cuda() -> Result<(), Error> {
    match device::device_count()? {
        0 => Err(Error::NoCuda("no CUDA device is visible to this process".to_string())),
        _ => Ok(()),
    }
}

/// The communicator of a handle; none for NULL, garbage, and what is destroyed.
pub fn lookup(handle: usize) -> Option<Arc<Comm>> {
    arena::get(handle)
}

impl Comm {
    /// Checks a request and makes a communicator that is not initialised yet. It has a handle.
    ///
    /// # Errors
    /// [`Error::NoCuda`] or [`Error::Cuda`] without a usable device (before anything else is looked
    /// at, spec §3.2), [`Error::InvalidArgument`] for a rank out of range.
    pub fn create(request: InitRequest) -> Result<Arc<Comm>, Error> {
        check_cuda()?;
        free_ended();
        let context = request.context.map_or_else(Context::of_thread, Ok)?;
        let device = context.device();
        crate::log::set_thread_device(device);
        let InitRequest { function, nranks, rank, config, origin, cancel, .. } = request;
        if nranks < 1 || rank < 0 || rank >= nranks {
            return Err(Error::InvalidArgument(format!("Invalid rank requested : {rank}/{nranks}")));
        }
        let comm = Arc::new(Comm {
            function,
            rank: rank as u32,
            nranks: nranks as u32,
            hash: origin
                .map(|origin| origin.hash)
                .or(request.id.map(|id| id.hash64()))
                .map_or_else(OnceLock::new, OnceLock::from),
            device,
            facts: context.facts()?,
            config,
            origin,
            handle: OnceLock::new(),
            context,
            cancel: cancel.unwrap_or_default(),
            state: Mutex::new(State::Busy),
            first_failure: FirstFailure::default(),
            calls: AtomicU64::new(0),
            collectives: AtomicU64::new(0),
            calls_by_collective: AtomicU64::new(0),
            goodbye_due: AtomicBool::new(false),
            halt: AtomicU8::new(revoke::RUNNING),
            aborted: AtomicBool::new(false),
            finalized: AtomicBool::new(false),
            background: Mutex::new(None),
            forks: sys::forks(),
            parts: OnceLock::new(),
            operators: Operators::default(),
            graphs: Graphs::default(),
            derivations: Derivations::default(),
            ledger: Arc::default(),
            suspended: AtomicBool::new(false),
            watch: Mutex::default(),
            to_reconnect: Mutex::new(Vec::new()),
        });
        let _ = comm.handle.set(arena::insert(comm.clone())?);
        Ok(comm)
    }

    /// This rank.
    pub fn rank(&self) -> i32 {
        self.rank as i32
    }

    /// The number of ranks.
    pub fn nranks(&self) -> i32 {
        self.nranks as i32
    }

    /// The ordinal of the device.
    pub fn cuda_device(&self) -> i32 {
        self.device
    }

    /// The device's number for NVML; the ordinal, where all devices are visible.
    pub fn nvml_device(&self) -> i32 {
        self.device
    }

    /// The 64-bit hash of the communicator's id that log lines show.
    pub fn hash(&self) -> u64 {
        self.hash.get().copied().unwrap_or(0)
    }

    /// The operators that users have made for it.
    pub fn operators(&self) -> &Operators {
        &self.operators
    }

    /// The resolved configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether this rank is to tell its peers that it has left; once.
    pub fn take_goodbye(&self) -> bool {
        self.goodbye_due.swap(false, Ordering::AcqRel)
    }

    /// What the C interface calls it.
    pub fn handle(&self) -> usize {
        self.handle.get().copied().unwrap_or(0)
    }

    /// The context of its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// What creation made.
    ///
    /// # Errors
    /// As [`Comm::check_ready`].
    pub fn parts(&self) -> Result<&Parts, Error> {
        match self.parts.get() {
            Some(parts) => Ok(parts),
            None => self
                .check_ready()
                .and_then(|()| Err(Error::InvalidArgument("the communicator is not initialised".to_string()))),
        }
    }

    /// Whether nothing is under way, though something may have failed: enough to stop what there is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where something is, or the communicator has ended.
    pub fn check_settled(&self) -> Result<(), Error> {
        match self.check_ready() {
            Err(_) if !self.is_inherited() && matches!(*self.state.lock(), State::Failed(_)) => Ok(()),
            checked => checked,
        }
    }

    /// The "ready" check (spec §3.0): an operation that is under way is an error, an earlier failure
    /// is returned again. The driver is asked whether the context is still there.
    pub fn check_ready(&self) -> Result<(), Error> {
        if !self.is_inherited() {
            self.notice_lost_context();
        }
        self.check_state()
    }

    /// The same without the driver, which is asked once for each call.
    ///
    /// # Errors
    /// As [`Comm::check_ready`].
    pub fn check_state(&self) -> Result<(), Error> {
        if self.is_inherited() {
            let text = "the communicator belongs to the parent of this forked process, which cannot use it";
            return Err(Error::InvalidUsage(text.to_string()));
        }
        self.notice_kernel_failure();
        match &*self.state.lock() {
            State::Ready => Ok(()),
            State::Failed(error) => Err(error.clone()),
            State::Ended => Err(Error::InvalidArgument("Error: corrupted comm object detected".to_string())),
            State::Busy => Err(Error::InvalidArgument(
                "Attempt to use communicator before the previous operation returned ncclSuccess".to_string(),
            )),
        }
    }

    /// Whether what is under way can go on: with `busy`, in the background of a communicator that is busy with it.
    ///
    /// # Errors
    /// As [`Comm::check_ready`].
    pub fn check_usable(&self, busy: bool) -> Result<(), Error> {
        if busy && *self.state.lock() == State::Busy {
            return self.kernel_failure().map_or(Ok(()), Err);
        }
        self.check_state()
    }

    /// Whether this process is a forked child of the one that made the communicator. Threads and
    /// driver are missing in a child, and what it did to shared memory it would do to its parent.
    pub fn is_inherited(&self) -> bool {
        self.forks != sys::forks()
    }

    /// What `ncclCommGetAsyncError` reports.
    pub fn async_state(&self) -> Code {
        // Who holds its locks may be missing in a child.
        if self.is_inherited() {
            return Code::InvalidUsage;
        }
        self.notice_lost_device();
        self.notice_kernel_failure();
        self.look_at_peers();
        match &*self.state.lock() {
            State::Busy => Code::InProgress,
            State::Failed(error) => error.code(),
            _ => Code::Success,
        }
    }

    /// A kernel's report makes the communicator fail, once; no call has returned that error, so that it becomes the
    /// last error here.
    fn notice_kernel_failure(&self) {
        // Kernels of ranks that are told to leave at different times have nothing to say.
        if self.is_halted() {
            return;
        }
        let Some(error) = self.kernel_failure() else { return };
        let place = Place { file: "comm/mod.rs", line: line!(), function: self.function };
        self.fail_unasked(&place, error, (kernel_error::MISMATCH, 0, 0));
    }

    /// Something is found that makes the communicator fail, while no call is made that could return it. The `report`
    /// makes this rank's own kernels leave, too.
    fn fail_unasked(&self, place: &Place<'_>, error: Error, (code, peer, serial): (u32, u32, u32)) {
        let mut state = self.state.lock();
        if *state != State::Ready {
            return;
        }
        *state = State::Failed(error.clone());
        drop(state);
        // Before kernels leave: whoever waits for them may end the process then.
        crate::log::failure(place, &error);
        self.note_failure(self.function, &error);
        if let Some(parts) = self.parts.get() {
            parts.flag.report(code, peer, serial);
        }
        self.goodbye_due.store(true, Ordering::Release);
    }

    /// Whether the communicator works without blocking its caller.
    pub fn is_blocking(&self) -> bool {
        self.config.blocking
    }

    /// Remembers a failure for good: the communicator can only be aborted after it.
    pub fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Failed(_) | State::Ended) {
            *state = State::Failed(error.clone());
        }
    }

    /// The failure of a data call: it is for good where results are polled for (spec §4.3), but not while the
    /// communicator is busy, which the call has merely come too early for, nor where there are no data calls at all any
    /// more, and others are allowed.
    pub fn fail_call(&self, error: &Error) {
        if !self.is_blocking() && !self.is_halted() && *self.state.lock() == State::Ready {
            self.fail(error);
        }
    }

    /// What was under way has ended like this; of no account where it was ended otherwise.
    pub fn end_busy(&self, result: &Result<(), Error>) {
        let mut state = self.state.lock();
        if *state == State::Ended {
            return;
        }
        if let Err(error) = result {
            // Before it can be seen.
            self.note_failure(self.function, error);
        }
        if *state == State::Busy {
            *state = result.as_ref().err().map_or(State::Ready, |error| State::Failed(error.clone()));
        }
    }

    /// Whether it was destroyed or aborted.
    pub fn has_ended(&self) -> bool {
        *self.state.lock() == State::Ended
    }

    /// Says what went wrong on stderr, once for the communicator.
    pub fn note_failure(&self, function: &'static str, error: &Error) {
        let place = Place { file: "comm/mod.rs", line: line!(), function };
        first_failure(&self.first_failure, &place, error);
    }

    /// Counts a call; returns how many there were before.
    pub fn count_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a call, which has been counted as one, as a collective; returns how many there were before. All ranks
    /// count alike.
    pub fn count_collective(&self) -> u64 {
        self.calls_by_collective.store(self.calls.load(Ordering::Relaxed), Ordering::Relaxed);
        self.collectives.fetch_add(1, Ordering::Relaxed)
    }

    /// How many collectives there were.
    fn collectives_so_far(&self) -> u64 {
        self.collectives.load(Ordering::Relaxed)
    }

    /// Whether the last call was a collective.
    fn ends_with_collective(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == self.calls_by_collective.load(Ordering::Relaxed)
    }

    /// What log lines say of the communicator.
    fn line(&self) -> CommLine<'_> {
        CommLine {
            function: self.function,
            comm: self.handle(),
            rank: self.rank(),
            nranks: self.nranks(),
            cuda_device: self.device,
            nvml_device: self.device,
            bus_id: self.facts.bus_id,
            hash: self.hash(),
            origin: self.origin.map(|origin| origin.line),
        }
    }
}
