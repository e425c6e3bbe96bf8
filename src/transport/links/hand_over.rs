//! Memory that is no link and that a rank passes to another one of its host: its flight recorder, and what transports
//! are tried by.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{LinkMessage, to_peer};
use super::{LOOK, Links, LinksState};
use crate::error::Error;
use crate::proxy::Destination;
use crate::sys::{SharedFile, SharedMemory, too_many_files};
use crate::transport::{PeerFacts, TransportId};

/// How long a rank waits for what its peers have sent before they told it so.
const TRY_LIMIT: Duration = Duration::from_secs(10);

impl Links {
    /// Hands memory to another rank, which takes it by [`Links::receive_memory`]: once in a communicator's life.
    ///
    /// # Errors
    /// [`Error::System`] where the process may open no more files.
    pub fn send_memory(&self, to: &PeerFacts, file: &SharedFile) -> Result<(), Error> {
        let fd = file.descriptor().try_clone_to_owned();
        let fd = fd.map_err(|error| Error::system("fcntl(F_DUPFD)", "shared memory", &error))?;
        let (destination, message) =
            (Destination::Unix(to.location.mailbox), LinkMessage::Memory { bytes: file.bytes() as u64 });
        self.send([to_peer(destination, to, &message, Some(Arc::new(fd)))]);
        Ok(())
    }

    /// Hands a peer the descriptor of memory by which a transport is tried; it takes it by [`Links::receive_try`].
    pub(in crate::transport) fn send_try<'a>(
        &self,
        me: &PeerFacts,
        to: impl Iterator<Item = &'a PeerFacts>,
        transport: TransportId,
        fd: &Arc<OwnedFd>,
    ) {
        let message = |to| to_peer(me.destination(to), to, &LinkMessage::Try { transport }, Some(fd.clone()));
        self.send(to.map(message));
    }

    /// Waits for the descriptor of memory by which a transport is tried.
    ///
    /// # Errors
    /// [`Error::Remote`] where none comes within [`TRY_LIMIT`], [`Error::Aborted`], [`Error::Resource`] where it came,
    /// but this process could not take it.
    pub(in crate::transport) fn receive_try(&self, from: u32, transport: TransportId) -> Result<OwnedFd, Error> {
        let missing =
            || Error::Remote { rank: Some(from), text: format!("rank {from} did not pass its memory in time") };
        let take = |state: &mut LinksState| state.tries.remove(&(from, transport));
        self.receive(Instant::now() + TRY_LIMIT, take, missing)?.map_err(Error::Resource)
    }

    /// A descriptor has come, or should have.
    pub(super) fn take_try(&self, from: u32, transport: TransportId, fd: Option<OwnedFd>) {
        self.state.lock().tries.insert((from, transport), fd.ok_or_else(too_many_files));
        self.news.notify_all();
    }

    /// Waits for memory that another rank hands over.
    ///
    /// # Errors
    /// [`Error::Timeout`] where none comes within `limit`, [`Error::Aborted`], [`Error::Resource`] where it came, but
    /// this process could not take it.
    pub fn receive_memory(&self, limit: Duration) -> Result<SharedMemory, Error> {
        let late = || Error::Timeout("a peer did not pass its shared memory in time".to_string());
        self.receive(Instant::now() + limit, |state| state.memory.take(), late)?.map_err(Error::Resource)
    }

    /// Waits until there is something to take, but not past a moment.
    fn receive<T>(
        &self,
        until: Instant,
        take: impl Fn(&mut LinksState) -> Option<T>,
        late: impl FnOnce() -> Error,
    ) -> Result<T, Error> {
        let mut state = self.state.lock();
        loop {
            if let Some(taken) = take(&mut state) {
                return Ok(taken);
            }
            if self.cancel.fired() {
                return Err(Error::Aborted);
            }
            if Instant::now() >= until {
                return Err(late());
            }
            self.news.wait_until(&mut state, until.min(Instant::now() + LOOK));
        }
    }

    /// Memory of some bytes has come, or should have.
    pub(super) fn take_memory(&self, fd: Option<OwnedFd>, lost: bool, bytes: u64) {
        self.state.lock().memory = Some(attached(fd, lost, bytes));
        self.news.notify_all();
    }
}

/// The memory that came with a message. It is mapped at once, so that no descriptor stays open.
fn attached(fd: Option<OwnedFd>, lost: bool, bytes: u64) -> Result<SharedMemory, String> {
    let fd = match fd {
        None if lost => return Err(too_many_files()),
        None => return Err("a message with shared memory came without it".to_string()),
        Some(fd) => fd,
    };
    let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
    SharedFile::adopt(fd, bytes).and_then(|file| file.map()).map_err(|error| error.to_string())
}
