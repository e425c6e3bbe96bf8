//! Creation: a communicator comes to life. [`build`] makes what it needs, with the other ranks.

mod build;
mod flight_recorder;
mod network;
mod peer_faults;
mod probe;
mod reach;
mod report;
mod timings;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::derive::{Derivations, Origin};
use super::graphs::Graphs;
use super::identity::{Counters, Identity, OwnDevice};
use super::lifecycle::CommEvent;
use super::shared_lifecycle::SharedLifecycle;
use super::{Comm, Config, Operators, arena, check_cuda, free_ended};
use crate::bootstrap::{Cancel, UniqueId};
use crate::device::Context;
use crate::error::Error;
use crate::log::FirstFailure;

pub use report::report_failure;

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
    /// `ncclCommInitRank` and `ncclCommInitAll` block whatever the configuration says.
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

impl Comm {
    /// Checks a request and makes a communicator that is not initialised yet. It has a handle.
    ///
    /// # Errors
    /// [`Error::NoCuda`] or [`Error::Cuda`] without a usable device (before anything else is looked at),
    /// [`Error::InvalidArgument`] for a rank out of range.
    pub fn create(request: InitRequest) -> Result<Arc<Comm>, Error> {
        check_cuda()?;
        free_ended();
        let context = request.context.map_or_else(Context::of_thread, Ok)?;
        crate::log::set_thread_device(context.device());
        let InitRequest { function, nranks, rank, config, origin, cancel, .. } = request;
        if nranks < 1 || rank < 0 || rank >= nranks {
            return Err(Error::InvalidArgument(format!("Invalid rank requested : {rank}/{nranks}")));
        }
        let hash = origin.map(|origin| origin.hash).or(request.id.map(|id| id.hash64()));
        let comm = Arc::new(Comm {
            identity: Identity::new(function, (nranks as u32, rank as u32), origin, hash),
            device: OwnDevice::new(context)?,
            config,
            lifecycle: SharedLifecycle::new(),
            first_failure: FirstFailure::default(),
            cancel: cancel.unwrap_or_default(),
            counters: Counters::default(),
            background: Mutex::new(None),
            parts: OnceLock::new(),
            operators: Operators::default(),
            graphs: Graphs::default(),
            derivations: Derivations::default(),
        });
        comm.identity.set_handle(arena::insert(comm.clone())?);
        Ok(comm)
    }

    /// Joins the other ranks and builds everything that operations need. Blocks until all ranks are
    /// there; on failure the others are told. The handle is taken back then, unless it is `published`: one
    /// that the user has already is polled, and no call returns the error.
    pub fn init(self: &Arc<Comm>, ids: &[UniqueId], published: bool) -> Result<(), Error> {
        self.come_to_life(published, || self.build(ids, |outcome| self.tell_root(ids, outcome)))
    }

    /// The same by whatever `build` does.
    pub(in crate::comm) fn come_to_life(
        self: &Arc<Comm>,
        published: bool,
        build: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let result = build();
        self.begin_life(&result, published);
        if result.is_err() && !published {
            arena::remove(self.handle());
        }
        result
    }

    /// What a creation has come to; of no account if the communicator was aborted meanwhile. One that is polled stays
    /// busy until its whole group has been carried out. An error that no call returns becomes the last error here,
    /// before it can be seen.
    fn begin_life(&self, result: &Result<(), Error>, published: bool) {
        match (result, published) {
            (Err(error), true) => self.happen(CommEvent::PolledInitFailed(error)),
            (Ok(()), true) => {}
            (_, false) => self.end_busy(result),
        }
    }

    /// Makes a creation that waits for other ranks give up.
    pub fn cancel_init(&self) {
        self.cancel.fire();
    }

    /// Gives a communicator up whose creation was never begun, because a group has failed: the other ranks
    /// are told, and the handle is taken back where nobody has it.
    pub fn give_up(&self, ids: &[UniqueId], published: bool, error: &Error) {
        self.drop_unmade(!published, error);
        report_failure(ids, self.nranks(), self.rank(), error);
    }

    /// The same where the other ranks are told otherwise.
    pub(in crate::comm) fn drop_unmade(&self, unpublished: bool, error: &Error) {
        self.fail(error);
        if unpublished {
            arena::remove(self.handle());
        }
    }
}
