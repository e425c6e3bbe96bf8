//! Memory that a communicator gives up for a while (`ncclCommSuspend`), and how much it has
//! (`ncclCommMemStats`).

use super::lifecycle::{CallKind, CommEvent};
use super::{Comm, Parts};
use crate::device::Use;
use crate::error::Error;
use crate::params;

/// What `ncclCommMemStats` is asked for; the numbers are those of `ncclCommMemStat_t`.
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
            MemoryStat::Suspend => self.device.ledger.bytes(Use::Links),
            MemoryStat::Suspended => u64::from(self.state().is_suspended()),
            MemoryStat::Persist => self.device.ledger.bytes(Use::Persist),
            MemoryStat::Total => self.device.ledger.bytes(Use::Links) + self.device.ledger.bytes(Use::Persist),
        }
    }

    /// What the communicator holds, for the log.
    pub(super) fn memory_line(&self) -> String {
        let (links, persist) = (self.memory(MemoryStat::Suspend), self.memory(MemoryStat::Persist));
        format!(
            "comm {:#x} rank {} holds {persist} bytes of memory, and {links} bytes of links",
            self.handle(),
            self.identity.rank
        )
    }

    /// Gives the memory of all links up, and the mappings of registered memory, when all ranks have called this and
    /// their operations have ended. Messages that were sent and not received are lost.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] where the communicator is suspended already; what the launched operations give; what
    /// ends the wait for other ranks, and then the communicator has failed.
    pub fn suspend(&self) -> Result<(), Error> {
        self.claim(CallKind::Suspend, CommEvent::Suspended)?;
        self.wait_for_launches()?;
        let parts = self.parts.get();
        if let Some((parts, links)) = parts.and_then(|parts| Some((parts, parts.links.as_ref()?))) {
            // From here on no kernel of any rank uses a link.
            self.meet(parts)?;
            super::settle_graphs();
            *parts.to_reconnect.lock() =
                if self.has_graphs() { parts.schedules.connected_groups() } else { Vec::new() };
            parts.schedules.disconnect();
            links.unmap();
            parts.registrations.iter().for_each(|registrations| registrations.unmap());
            // From here on nobody has anything of this rank mapped.
            self.meet(parts)?;
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
        self.permits(CallKind::Resume)?;
        if let Some(parts) = self.parts.get().filter(|parts| parts.links.is_some()) {
            self.meet(parts)?;
            let groups = std::mem::take(&mut *parts.to_reconnect.lock());
            if !groups.is_empty() {
                self.connect(&groups, true)?;
            }
        }
        self.happen(CommEvent::Resumed);
        Ok(())
    }

    /// Waits until all ranks have come here.
    fn meet(&self, parts: &Parts) -> Result<(), Error> {
        let mut bootstrap = parts.bootstrap.lock();
        let bootstrap = bootstrap.as_mut().ok_or(Error::Aborted)?;
        bootstrap.barrier().inspect_err(|error| self.fail(error))
    }
}
