//! Memory that a communicator gives up for a while (`ncclCommSuspend`, spec §3.4), and how much it has
//! (`ncclCommMemStats`).

use std::sync::atomic::Ordering;

use super::Comm;
use crate::device::Use;
use crate::error::Error;
use crate::params;

/// What `ncclCommMemStats` is asked for; the numbers are those of `ncclCommMemStat_t` (spec §3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryStat {
    /// Bytes that a suspension would free.
    Suspend = 0,
    /// Whether the communicator is suspended: 0 or 1.
    Suspended = 1,
    /// Bytes that stay.
    Persist = 2,
    /// Both together.
    Total = 3,
}

impl MemoryStat {
    /// The statistic of a number.
    pub fn from_c(number: i32) -> Option<MemoryStat> {
        [MemoryStat::Suspend, MemoryStat::Suspended, MemoryStat::Persist, MemoryStat::Total]
            .into_iter()
            .find(|stat| *stat as i32 == number)
    }
}

/// Refuses where the user has switched the management of memory off.
///
/// # Errors
/// [`Error::InvalidUsage`] where `NCCL_DISABLE_MEM_MANAGER` is set.
pub fn check_managed(function: &str) -> Result<(), Error> {
    match params::snapshot().flag(params::DISABLE_MEM_MANAGER) {
        false => Ok(()),
        true => Err(Error::InvalidUsage(format!("{function}: not possible while NCCL_DISABLE_MEM_MANAGER is set"))),
    }
}

impl Comm {
    /// Bytes, on the device and shared on the host, that this rank has allocated for the communicator.
    pub fn memory(&self, stat: MemoryStat) -> u64 {
        match stat {
            MemoryStat::Suspend => self.ledger.bytes(Use::Links),
            MemoryStat::Suspended => u64::from(self.suspended.load(Ordering::Acquire)),
            MemoryStat::Persist => self.ledger.bytes(Use::Persist),
            MemoryStat::Total => self.ledger.bytes(Use::Links) + self.ledger.bytes(Use::Persist),
        }
    }

    /// What the communicator holds, for the log.
    pub(super) fn memory_line(&self) -> String {
        let (links, persist) = (self.memory(MemoryStat::Suspend), self.memory(MemoryStat::Persist));
        format!(
            "comm {:#x} rank {} holds {persist} bytes of memory, and {links} bytes of links",
            self.handle(),
            self.rank
        )
    }

    /// Refuses a data call while the communicator is suspended.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`].
    pub fn check_awake(&self) -> Result<(), Error> {
        match self.suspended.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::InvalidUsage(
                "the communicator is suspended (ncclCommSuspend); it can be used again after ncclCommResume"
                    .to_string(),
            )),
        }
    }

    /// Gives the memory of all links up, and the mappings of registered memory, when all ranks have called this and
    /// their operations have ended. Messages that were sent and not received are lost.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] where the communicator is suspended already; what the launched operations give; what
    /// ends the wait for other ranks, and then the communicator has failed.
    pub fn suspend(&self) -> Result<(), Error> {
        if self.suspended.swap(true, Ordering::AcqRel) {
            return Err(Error::InvalidUsage("ncclCommSuspend: the communicator is suspended already".to_string()));
        }
        self.wait_for_launches()?;
        let parts = self.parts.get();
        if let Some((parts, links)) = parts.and_then(|parts| Some((parts, parts.links.as_ref()?))) {
            // From here on no kernel of any rank uses a link.
            self.meet()?;
            super::settle_graphs();
            *self.to_reconnect.lock() = if self.has_graphs() { parts.schedules.connected_groups() } else { Vec::new() };
            parts.schedules.disconnect();
            links.unmap();
            parts.registrations.iter().for_each(|registrations| registrations.unmap());
            // From here on nobody has anything of this rank mapped.
            self.meet()?;
            links.forget();
        }
        log::info!(target: "INIT", "suspended: {}", self.memory_line());
        Ok(())
    }

    /// Makes a suspended communicator usable again, when all ranks have called this. Links are connected when they are
    /// next needed; those of graphs that were captured before at once.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] where the communicator is not suspended; what ends the wait for other ranks, and then
    /// the communicator has failed.
    pub fn resume(&self) -> Result<(), Error> {
        if !self.suspended.load(Ordering::Acquire) {
            return Err(Error::InvalidUsage("ncclCommResume: the communicator is not suspended".to_string()));
        }
        if self.parts.get().is_some_and(|parts| parts.links.is_some()) {
            self.meet()?;
            let groups = std::mem::take(&mut *self.to_reconnect.lock());
            if !groups.is_empty() {
                self.connect(&groups, true)?;
            }
        }
        self.suspended.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits until all ranks have come here.
    fn meet(&self) -> Result<(), Error> {
        let parts = self.parts()?;
        let mut bootstrap = parts.bootstrap.lock();
        let bootstrap = bootstrap.as_mut().ok_or(Error::Aborted)?;
        bootstrap.barrier().inspect_err(|error| self.fail(error))
    }
}
