//! Memory that is no link and that a rank passes to another one of its host: its flight recorder.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::message::{LinkMessage, to_peer};
use super::{LOOK, Links};
use crate::error::Error;
use crate::proxy::Destination;
use crate::sys::{SharedFile, SharedMemory, too_many_files};
use crate::transport::PeerFacts;

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

    /// Waits for memory that another rank hands over.
    ///
    /// # Errors
    /// [`Error::Timeout`] where none comes within `limit`, [`Error::Aborted`], [`Error::Resource`] where it came, but
    /// this process could not take it.
    pub fn receive_memory(&self, limit: Duration) -> Result<SharedMemory, Error> {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            if let Some(memory) = state.memory.take() {
                return memory.map_err(Error::Resource);
            }
            if self.cancel.fired() {
                return Err(Error::Aborted);
            }
            if Instant::now() >= until {
                return Err(Error::Timeout("a peer did not pass its shared memory in time".to_string()));
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
