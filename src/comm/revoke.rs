//! Revoke: what runs is told to leave, and the communicator stays for what needs no kernels (spec §6.7). A shrink of a
//! communicator whose ranks have died does the same first.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Comm;
use super::teardown::ABORT_LIMIT;
use crate::error::{Code, Error};

/// Data calls are carried out.
pub(super) const RUNNING: u8 = 0;
/// `ncclCommShrink` with the flag ABORT has stopped what ran.
const SHRUNK: u8 = 1;
/// `ncclCommRevoke` has.
const REVOKED: u8 = 2;

impl Comm {
    /// Whether `ncclCommRevoke` was called.
    pub fn is_revoked(&self) -> bool {
        self.halt.load(Ordering::Acquire) == REVOKED
    }

    /// Whether kernels were told to leave for good, but for an abort.
    pub(super) fn is_halted(&self) -> bool {
        self.halt.load(Ordering::Acquire) != RUNNING
    }

    /// Refuses data calls where the counters of links are in disorder because kernels have left.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`].
    pub fn check_running(&self, name: &str) -> Result<(), Error> {
        let why = match self.halt.load(Ordering::Acquire) {
            RUNNING => return Ok(()),
            REVOKED => "communicator was revoked",
            _ => "communicator was stopped by ncclCommShrink with NCCL_SHRINK_ABORT",
        };
        Err(Error::InvalidUsage(format!("{name}: {why}")))
    }

    /// Tells kernels and data calls to leave; never waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a second call, and after `ncclCommFinalize`; as [`Comm::check_ready`] for one
    /// that is busy or has ended.
    pub fn begin_revoke(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        if self.finalized.load(Ordering::Acquire) {
            return Err(Error::InvalidArgument("ncclCommRevoke: the communicator is finalized already".to_string()));
        }
        self.check_settled()?;
        if self.halt.swap(REVOKED, Ordering::AcqRel) == REVOKED {
            return Err(Error::InvalidArgument("ncclCommRevoke: the communicator is revoked already".to_string()));
        }
        log::info!(target: "DESTROY", "{}", self.line().revoke("START"));
        self.parts.get().iter().for_each(|parts| parts.flag.raise());
        Ok(())
    }

    /// Waits until kernels have left that were told so.
    ///
    /// # Errors
    /// [`Error::Timeout`] where one does not; it leaves when it comes to run.
    pub fn revoke(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        let result = self.wait_until_quiet("ncclCommRevoke");
        let code = result.as_ref().map_or_else(Error::code, |()| Code::Success);
        log::info!(target: "DESTROY", "{}", self.line().revoke(&format!("COMPLETE, result {}", code as i32)));
        result
    }

    /// Stops everything for a shrink with the flag ABORT; there are no data calls after it.
    ///
    /// # Errors
    /// As [`Comm::revoke`].
    pub(super) fn halt(&self) -> Result<(), Error> {
        let _ = self.halt.compare_exchange(RUNNING, SHRUNK, Ordering::AcqRel, Ordering::Acquire);
        self.wait_until_quiet("ncclCommShrink")
    }

    /// The flag stays up: the links are in disorder, so that whatever comes later, by the replay of a graph, must leave
    /// too.
    fn wait_until_quiet(&self, function: &str) -> Result<(), Error> {
        if self.leave_kernels(Instant::now() + ABORT_LIMIT) {
            return Ok(());
        }
        Err(Error::Timeout(format!(
            "{function}: a kernel did not leave within {ABORT_LIMIT:?}, since it waits for other work"
        )))
    }
}
