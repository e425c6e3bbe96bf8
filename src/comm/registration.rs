//! `ncclCommRegister` and its end.

use std::os::fd::OwnedFd;

use super::{Comm, arena};
use crate::error::Error;

impl Comm {
    /// Registers memory of the user; 0 where nothing comes of it, which is no error.
    pub fn register(&self, address: u64, bytes: u64) -> usize {
        let parts = self.parts.get().filter(|_| !self.is_inherited());
        let registered = parts.and_then(|parts| {
            let (registrations, recorder) = parts.registered()?;
            registrations.register(recorder, address, bytes)
        });
        registered.unwrap_or(0)
    }

    /// Another rank wants memory that is registered here, or sends what was wanted. In the event loop.
    pub(super) fn told_of_registration(&self, from: u32, bytes: &[u8], fd: Option<OwnedFd>) {
        let Some(parts) = self.parts.get() else { return };
        let (Some(registrations), Some(links)) = (&parts.registrations, &parts.links) else { return };
        let answers = registrations.receive(from, bytes, fd);
        answers.into_iter().for_each(|(bytes, fd)| links.send_registration(from, bytes, fd));
    }

    /// Takes a registration back.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] for a handle that is not of this communicator.
    pub fn deregister(&self, handle: usize) -> Result<(), Error> {
        if self.is_inherited() {
            return Ok(());
        }
        let registered = self.parts.get().and_then(|parts| parts.registered());
        if registered.is_some_and(|(registrations, recorder)| registrations.deregister(recorder, handle)) {
            return Ok(());
        }
        Err(Error::InvalidUsage(format!("Deregister: Could not find handle {handle:#x}")))
    }
}

/// Memory of `ncclMemAlloc` has been given back: no communicator offers it any more. `kept`: it is still there, so that
/// nothing else is.
pub(super) fn memory_freed(base: u64, kept: bool) {
    for comm in arena::all().iter().filter(|comm| !comm.is_inherited()) {
        if let Some((registrations, recorder)) = comm.parts.get().and_then(|parts| parts.registered()) {
            registrations.freed(recorder, base, kept);
        }
    }
}
