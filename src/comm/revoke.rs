//! Revoke: what runs is told to leave, and the communicator stays for what needs no kernels. A shrink of a
//! communicator whose ranks have died does the same first.

use std::time::Instant;

use super::Comm;
use super::lifecycle::{CallKind, CommEvent};
use super::teardown::ABORT_LIMIT;
use crate::error::{Code, Error};

impl Comm {
    /// Tells kernels and data calls to leave; never waits.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a second call, and after `ncclCommFinalize`; as [`Comm::check`] for one that is
    /// in progress or has ended.
    pub fn begin_revoke(&self) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        self.check(CallKind::Revoke)?;
        self.claim(CallKind::Revoke, CommEvent::Revoked)
    }

    /// See [`Comm::begin_revoke`].
    pub(super) fn leave_for_revoke(&self) {
        log::info!(target: "DESTROY", "{}", self.line().revoke("START"));
        self.parts.get().iter().for_each(|parts| parts.flag.raise());
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
    pub(super) fn stop_for_shrink(&self) -> Result<(), Error> {
        self.happen(CommEvent::Shrunk);
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
