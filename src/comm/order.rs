//! The order of a communicator's launches among streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Context, Event, Stream};
use crate::error::Error;

/// The end of the launches of one capture that are in one order.
pub struct CaptureEnd {
    /// An event within the capture.
    event: Event,
    launched: AtomicBool,
}

impl CaptureEnd {
    /// That of a capture without launches yet.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn create(context: &Arc<Context>) -> Result<CaptureEnd, Error> {
        Ok(CaptureEnd { event: Event::create(context)?, launched: AtomicBool::new(false) })
    }

    /// The end of the launches that were captured before; none before the first.
    fn before(&self) -> Option<&Event> {
        self.launched.load(Ordering::Relaxed).then_some(&self.event)
    }

    /// Marks the end of a launch that has now been captured.
    fn mark(&self, stream: Stream) -> Result<(), Error> {
        self.launched.store(true, Ordering::Relaxed);
        self.event.record(stream)
    }
}

/// Launches of one communicator run one after another, on whatever streams they are: each marks its
/// end with an event, and the next one waits for it.
///
/// The wait is also made where both are on one stream, which costs nothing: a handle can name another
/// stream than before (of another thread, or made after the first was destroyed).
///
/// In a capture the first launch waits, whenever the graph is launched, for what then is the last launch; each launch
/// marks its end then, and waits for the one captured before it. So launches of graphs are in the order with all
/// others.
pub struct LaunchOrder {
    /// The end of the last launch.
    done: Arc<Event>,
    /// For waits among streams that are no launch.
    aside: Event,
    launched: bool,
    /// Graphs and other launches are in one order (`graphUsageMode` 2).
    mixed: bool,
    /// A launch could not be marked: nobody can tell when it ends.
    lost: bool,
}

impl LaunchOrder {
    /// The order of a communicator that has launched nothing.
    /// Without `mixed`, graphs are in no order with each other and with other launches: the user sees to it.
    pub fn create(context: &Arc<Context>, mixed: bool) -> Result<LaunchOrder, Error> {
        let (done, aside) = (Arc::new(Event::create(context)?), Event::create(context)?);
        Ok(LaunchOrder { done, aside, launched: false, mixed, lost: false })
    }

    /// Makes a stream wait for the launches before; `captured` is that of the stream's capture. The device's context
    /// must be current.
    pub fn before(&self, stream: Stream, captured: Option<&CaptureEnd>) -> Result<(), Error> {
        match captured.map(CaptureEnd::before) {
            None if self.launched => self.done.hold(stream),
            Some(Some(end)) => end.hold(stream),
            Some(None) if self.mixed => self.done.hold_at_launch(stream),
            _ => Ok(()),
        }
    }

    /// Makes a stream wait for the work that another stream has now. The device's context must be current.
    pub fn join(&self, other: Stream, stream: Stream) -> Result<(), Error> {
        self.aside.record(other)?;
        self.aside.hold(stream)
    }

    /// Marks the end of a launch. The device's context must be current.
    ///
    /// # Errors
    /// What the driver gives; the end of the launch, unless captured, is then unknown for good.
    pub fn after(&mut self, stream: Stream, captured: Option<&CaptureEnd>) -> Result<(), Error> {
        let Some(captured) = captured else {
            self.launched = true;
            return self.done.record(stream).inspect_err(|_| self.lost = true);
        };
        if self.mixed {
            self.done.record_at_launch(stream)?;
            self.launched = true;
        }
        captured.mark(stream)
    }

    /// Whether all launches have ended. The device's context must be current.
    pub fn is_idle(&self) -> Result<bool, Error> {
        if self.lost {
            return Ok(false);
        }
        if self.launched { self.done.is_done() } else { Ok(true) }
    }

    /// The end of the last launch, to be waited for without holding up other users; none before the first.
    pub fn end(&self) -> Option<Arc<Event>> {
        self.launched.then(|| self.done.clone())
    }
}
