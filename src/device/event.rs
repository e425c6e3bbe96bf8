//! Events: marks in a stream that other streams and threads wait for.

use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUevent_record_flags, CUevent_wait_flags};

use super::capture;
use super::context::Context;
use super::driver::NOT_READY;
use super::image::Stream;
use crate::error::Error;

/// The cheap kind.
const DISABLE_TIMING: c_uint = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
/// Makes a node of the graph that is captured, which records at each launch.
const RECORD_EXTERNAL: c_uint = CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as c_uint;
/// Makes a node of the graph that is captured, which waits at each launch.
const WAIT_EXTERNAL: c_uint = CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL as c_uint;

/// A CUDA event without timing. Dropping it destroys it; work that waits for it is not affected.
pub struct Event {
    context: Arc<Context>,
    raw: CUevent,
}

// SAFETY: a CUevent may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver serialises access.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event that counts as complete until it is recorded.
    pub fn create(context: &Arc<Context>) -> Result<Event, Error> {
        let _entered = context.enter()?;
        let mut raw = null_mut();
        let driver = context.driver();
        // SAFETY: a context is current; the pointer is to a live variable.
        driver.check("cuEventCreate", unsafe { (driver.table.event_create)(&mut raw, DISABLE_TIMING) })?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Marks the present end of a stream. The stream's context must be current.
    pub fn record(&self, stream: Stream) -> Result<(), Error> {
        let driver = self.context.driver();
        // SAFETY: the event is alive; the driver checks the stream.
        driver.check("cuEventRecord", unsafe { (driver.table.event_record)(self.raw, stream.raw()) })
    }

    /// Makes later work of a stream wait for the event.
    pub fn hold(&self, stream: Stream) -> Result<(), Error> {
        let driver = self.context.driver();
        // SAFETY: the event is alive; the driver checks the stream; the flags must be 0.
        driver.check("cuStreamWaitEvent", unsafe { (driver.table.stream_wait)(stream.raw(), self.raw, 0) })
    }

    /// Adds to the capture of a stream that every launch of the graph records the event here. The stream's context must
    /// be current.
    pub fn record_at_launch(&self, stream: Stream) -> Result<(), Error> {
        let driver = self.context.driver();
        let table = capture::table(driver)?;
        // SAFETY: the event is alive; the driver checks the stream and that it captures.
        let code = unsafe { (table.record_with)(self.raw, stream.raw(), RECORD_EXTERNAL) };
        driver.check("cuEventRecordWithFlags", code)
    }

    /// Adds to the capture of a stream that every launch of the graph waits here for what the event then stands for.
    pub fn hold_at_launch(&self, stream: Stream) -> Result<(), Error> {
        let driver = self.context.driver();
        // SAFETY: the event is alive; the driver checks the stream and that it captures.
        driver.check("cuStreamWaitEvent", unsafe { (driver.table.stream_wait)(stream.raw(), self.raw, WAIT_EXTERNAL) })
    }

    /// Whether the work before the last record has ended.
    pub fn is_done(&self) -> Result<bool, Error> {
        let driver = self.context.driver();
        // SAFETY: the event is alive.
        match unsafe { (driver.table.event_query)(self.raw) } {
            NOT_READY => Ok(false),
            code => driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits for the work before the last record.
    pub fn wait(&self) -> Result<(), Error> {
        let driver = self.context.driver();
        // SAFETY: the event is alive.
        driver.check("cuEventSynchronize", unsafe { (driver.table.event_sync)(self.raw) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.check_alive().is_ok() {
            // SAFETY: the event is ours and is not used again.
            unsafe { (self.context.driver().table.event_destroy)(self.raw) };
        }
    }
}
