//! The order of a communicator's launches among streams.

use crate::device::{Event, Stream};
use crate::error::Error;

/// Launches of one communicator run one after another, on whatever streams they are: each marks its
/// end with an event, and a launch on another stream waits for it.
pub struct Order {
    done: Event,
    last: Option<Stream>,
}

impl Order {
    /// The order of a communicator that has launched nothing.
    pub fn new(done: Event) -> Order {
        Order { done, last: None }
    }

    /// Makes a stream wait for the launches before. The device's context must be current.
    pub fn before(&mut self, stream: Stream) -> Result<(), Error> {
        match self.last {
            Some(last) if last != stream => self.done.hold(stream),
            _ => Ok(()),
        }
    }

    /// Makes a stream wait for the work that another stream has now. The device's context must be current.
    pub fn join(&mut self, other: Stream, stream: Stream) -> Result<(), Error> {
        // The event is free for another use: what it marked, `stream` waits for already.
        self.done.record(other)?;
        self.done.hold(stream)
    }

    /// Marks the end of a launch. The device's context must be current.
    pub fn after(&mut self, stream: Stream) -> Result<(), Error> {
        self.done.record(stream)?;
        self.last = Some(stream);
        Ok(())
    }

    /// Whether all launches have ended.
    pub fn is_idle(&self) -> Result<bool, Error> {
        if self.last.is_none() { Ok(true) } else { self.done.is_done() }
    }

    /// Waits for the end of all launches.
    pub fn wait(&self) -> Result<(), Error> {
        if self.last.is_none() { Ok(()) } else { self.done.wait() }
    }
}
