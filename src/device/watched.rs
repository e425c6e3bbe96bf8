//! Copies that may never end, as those to a peer device that does not answer: nobody waits for them without a limit.

use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;

use super::context::{Context, STREAM_NON_BLOCKING};
use super::event::Event;
use super::image::Stream;
use crate::error::Error;

/// How often a waiting thread looks: often at first, since a copy takes microseconds.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// A copy of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCopy {
    /// The destination.
    pub to: u64,
    /// The source.
    pub from: u64,
    /// How many bytes.
    pub bytes: usize,
}

/// A stream of its own for copies that are waited for with a limit.
pub struct WatchedStream {
    context: Arc<Context>,
    raw: CUstream,
}

/// The end of copies.
pub struct WatchedEnd {
    context: Arc<Context>,
    event: Event,
}

impl WatchedStream {
    /// A stream that waits for no other.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver has none.
    pub fn create(context: &Arc<Context>) -> Result<WatchedStream, Error> {
        let _entered = context.enter()?;
        let (driver, mut raw) = (context.driver(), null_mut());
        // SAFETY: a context is current; the pointer is to a live variable.
        driver.check("cuStreamCreate", unsafe { (driver.table.stream_create)(&mut raw, STREAM_NON_BLOCKING) })?;
        Ok(WatchedStream { context: context.clone(), raw })
    }

    /// Begins copies of mapped memory, one after another.
    ///
    /// # Errors
    /// [`Error::Cuda`], also where the driver knows no such memory.
    pub fn begin(&self, copies: &[DeviceCopy]) -> Result<WatchedEnd, Error> {
        let event = Event::create(&self.context)?;
        let _entered = self.context.enter()?;
        let stream = Stream(self.raw.addr());
        copies.iter().try_for_each(|copy| self.context.copy(copy.to, copy.from, copy.bytes, stream))?;
        event.record(stream)?;
        Ok(WatchedEnd { context: self.context.clone(), event })
    }
}

impl WatchedEnd {
    /// Waits until the copies have ended; false where they have not within `limit`.
    ///
    /// # Errors
    /// [`Error::Cuda`] where a copy has failed, and its context with it.
    pub fn wait(&self, limit: Duration) -> Result<bool, Error> {
        let (until, mut nap) = (Instant::now() + limit, NAPS.0);
        while !self.is_done()? {
            if Instant::now() >= until {
                return Ok(false);
            }
            std::thread::sleep(nap);
            nap = NAPS.1.min(2 * nap);
        }
        Ok(true)
    }

    /// Asked within the context: elsewhere the question would spoil a capture of another thread.
    fn is_done(&self) -> Result<bool, Error> {
        let _entered = self.context.enter()?;
        self.event.is_done()
    }
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the stream is ours; what is still in it goes on without it.
            unsafe { (self.context.driver().table.stream_destroy)(self.raw) };
        }
    }
}

// SAFETY: a CUstream may be used from any thread.
unsafe impl Send for WatchedStream {}
