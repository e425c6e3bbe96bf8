//! What a communicator is called, by whom it was made, where it works, and how many calls it has had.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::derive::Origin;
use crate::device::{Context, DeviceFacts, Ledger};
use crate::error::Error;

/// What a communicator is called.
pub(super) struct Identity {
    /// The C function that has made it.
    pub function: &'static str,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub nranks: u32,
    /// What it is derived from, if that is to be told.
    pub origin: Option<Origin>,
    hash: OnceLock<u64>,
    handle: OnceLock<usize>,
}

impl Identity {
    /// The identity of rank `rank` of `nranks`, made by `function`; its handle comes later, and its hash where it is
    /// not known yet.
    pub fn new(
        function: &'static str,
        (nranks, rank): (u32, u32),
        origin: Option<Origin>,
        hash: Option<u64>,
    ) -> Identity {
        let hash = hash.map_or_else(OnceLock::new, OnceLock::from);
        Identity { function, rank, nranks, origin, hash, handle: OnceLock::new() }
    }

    /// The 64-bit hash of the id; 0 where it is not known yet.
    pub fn hash(&self) -> u64 {
        self.hash.get().copied().unwrap_or(0)
    }

    /// The hash is known now.
    pub fn set_hash(&self, hash: u64) {
        let _ = self.hash.set(hash);
    }

    /// What the C interface calls it; 0 before it has a handle.
    pub fn handle(&self) -> usize {
        self.handle.get().copied().unwrap_or(0)
    }

    /// It has its handle now.
    pub fn set_handle(&self, handle: usize) {
        let _ = self.handle.set(handle);
    }
}

/// The device that a communicator works on.
pub(super) struct OwnDevice {
    /// Its ordinal.
    pub number: i32,
    /// What is known of it.
    pub facts: DeviceFacts,
    /// The context that the communicator works in.
    pub context: Arc<Context>,
    /// What the communicator holds in memory.
    pub ledger: Arc<Ledger>,
}

impl OwnDevice {
    /// The device of a context, of which the communicator holds nothing yet.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn new(context: Arc<Context>) -> Result<OwnDevice, Error> {
        Ok(OwnDevice { number: context.device(), facts: context.facts()?, context, ledger: Arc::default() })
    }
}

/// How many calls a communicator has had.
#[derive(Default)]
pub struct Counters {
    calls: AtomicU64,
    collectives: AtomicU64,
    /// How many calls there were with the last collective.
    calls_by_collective: AtomicU64,
}

impl Counters {
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
    pub(super) fn collectives(&self) -> u64 {
        self.collectives.load(Ordering::Relaxed)
    }

    /// Whether the last call was a collective.
    pub(super) fn end_with_collective(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == self.calls_by_collective.load(Ordering::Relaxed)
    }
}
