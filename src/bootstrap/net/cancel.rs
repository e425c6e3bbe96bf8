//! A way to end waits of another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::Error;
use crate::sys::off_standard;

/// Shared between the thread that waits and the one that ends the wait. Once fired it stays so.
#[derive(Clone, Debug)]
pub struct Cancel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fired: AtomicBool,
    /// Readable once fired; nobody reads it, so that every wait sees it.
    event: OwnedFd,
}

impl Cancel {
    /// Not fired.
    ///
    /// # Errors
    /// `System` if there is no descriptor left.
    pub fn new() -> Result<Cancel, Error> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(io::Error::from)
            .and_then(off_standard)
            .map_err(|error| Error::system("eventfd", "cancel event", &error))?;
        Ok(Cancel(Arc::new(Inner { fired: AtomicBool::new(false), event })))
    }

    /// Every wait with this `Cancel`, now and later, returns [`Error::Aborted`] at once.
    pub fn fire(&self) {
        if !self.0.fired.swap(true, Ordering::AcqRel) {
            // The counter is 0 here, so that the write can neither block nor fail.
            let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Whether both end the same waits.
    pub fn is(&self, other: &Cancel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether it was fired.
    pub fn fired(&self) -> bool {
        self.0.fired.load(Ordering::Acquire)
    }
}

impl AsFd for Cancel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}
