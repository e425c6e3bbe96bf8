//! A communicator's life: creation, queries, the end. `lifecycle` has it as two tables.

mod arena;
mod background;
mod checks;
pub mod config;
mod context;
mod context_order;
mod create;
pub mod derive;
mod devices;
mod graphs;
pub mod handover;
mod identity;
pub mod jobs;
mod lifecycle;
mod links;
mod ops;
mod order;
mod parts;
mod peers;
mod registration;
mod revoke;
mod settings;
mod shared_lifecycle;
mod suspend;
mod teardown;
mod watch;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::bootstrap::Cancel;
use crate::device::{self, Context};
use crate::error::Error;
use crate::log::FirstFailure;
use crate::log::lines::CommLine;

use background::Background;
use derive::Derivations;
use graphs::Graphs;
use identity::{Counters, Identity, OwnDevice};
use shared_lifecycle::SharedLifecycle;

pub use config::Config;
pub use create::{InitRequest, report_failure};
pub use devices::{check_device_list, first_devices};
pub use graphs::{Captured, settle as settle_graphs};
pub use lifecycle::CallKind;
pub use ops::{Operators, check_destroyable};
pub use order::LaunchOrder;
pub use parts::{Parts, RegisteredBuffers};
pub use settings::unique_id;
pub use suspend::{MemoryStat, check_managed};
pub use teardown::{free_ended, free_memory};

/// How a call of the C interface went, other than by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It goes on in the background.
    InProgress,
}

/// A communicator: one rank's membership in a set of ranks.
pub struct Comm {
    identity: Identity,
    device: OwnDevice,
    config: Config,
    lifecycle: SharedLifecycle,
    first_failure: FirstFailure,
    cancel: Cancel,
    counters: Counters,
    /// The work that goes on in the background.
    background: Mutex<Option<Arc<Background>>>,
    parts: OnceLock<Parts>,
    operators: Operators,
    graphs: Graphs,
    /// What it has to do with communicators that are derived from it.
    derivations: Derivations,
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
    /// This rank.
    pub fn rank(&self) -> i32 {
        self.identity.rank as i32
    }

    /// The number of ranks.
    pub fn nranks(&self) -> i32 {
        self.identity.nranks as i32
    }

    /// The ordinal of the device.
    pub fn cuda_device(&self) -> i32 {
        self.device.number
    }

    /// The device's number for NVML; the ordinal, where all devices are visible.
    pub fn nvml_device(&self) -> i32 {
        self.device.facts.nvml_device
    }

    /// The 64-bit hash of the communicator's id that log lines show.
    pub fn hash(&self) -> u64 {
        self.identity.hash()
    }

    /// The operators that users have made for it.
    pub fn operators(&self) -> &Operators {
        &self.operators
    }

    /// The resolved configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether the communicator works without blocking its caller.
    pub fn is_blocking(&self) -> bool {
        self.config.blocking
    }

    /// What the C interface calls it.
    pub fn handle(&self) -> usize {
        self.identity.handle()
    }

    /// The context of its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.device.context
    }

    /// How many calls it has had.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What creation made.
    ///
    /// # Errors
    /// As [`Comm::check`].
    pub fn parts(&self) -> Result<&Parts, Error> {
        match self.parts.get() {
            Some(parts) => Ok(parts),
            None => self
                .check(CallKind::Use)
                .and_then(|()| Err(Error::InvalidArgument("the communicator is not initialised".to_string()))),
        }
    }

    /// What log lines say of the communicator.
    fn line(&self) -> CommLine<'_> {
        CommLine {
            function: self.identity.function,
            comm: self.handle(),
            rank: self.rank(),
            nranks: self.nranks(),
            cuda_device: self.cuda_device(),
            nvml_device: self.nvml_device(),
            bus_id: self.device.facts.bus_id,
            hash: self.hash(),
            origin: self.identity.origin.map(|origin| origin.line),
        }
    }
}
