//! Events. What an event was recorded after is a place in a stream, so that waiting for it, asking for it and
//! recording it again need no object that lives on.

use crate::config::Config;
use crate::device::{self, Owner};
use crate::error::{CudaError, Outcome};
use crate::handles::{Kind, Table};
use crate::memory::shared::SharedEvent;
use crate::stream::{self, ContextStreams, Mark, Op, Stream, Target};
use parking_lot::Mutex;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`
const INTERPROCESS: u32 = 4;
/// With `CU_EVENT_BLOCKING_SYNC`, all that exist.
const FLAGS: u32 = 7;

/// The driver's state, as far as events use it.
pub struct State {
    below: stream::State,
    /// `CUevent`
    pub events: Table<Event>,
}

impl Deref for State {
    type Target = stream::State;

    fn deref(&self) -> &stream::State {
        &self.below
    }
}

impl State {
    /// With these settings.
    pub fn new(config: Config) -> State {
        State { events: Table::new(Kind::Event), below: stream::State::new(config) }
    }
}

/// Where an event stands that was recorded in a capture.
#[derive(Clone)]
pub struct Captured {
    /// Number of the capture.
    pub capture: u64,
    /// Nodes that what waits for the event depends on.
    pub nodes: Vec<u64>,
}

#[derive(Default)]
struct Record {
    /// Where the last record stands.
    at: Option<Target>,
    /// The last record is of a graph: until it is reached, questions are answered from the one before.
    by_graph: bool,
    /// Where the last record stands that no graph has made, or that was reached.
    before: Option<Target>,
    /// Counts records; never starts again, so that a late time stamp finds out that it is outdated.
    number: u64,
    /// When the last record was reached, ns; 0 = not yet.
    time: u64,
    /// What other processes see, and the ticket of this process's last record in it.
    shared: Option<Arc<SharedEvent>>,
    ticket: u64,
    /// The last record was captured: where it stands in the graph.
    captured: Option<Captured>,
}

/// An event object.
#[derive(Default)]
pub struct Event {
    flags: AtomicU32,
    context: AtomicU64,
    /// Index of its context's device.
    device: AtomicUsize,
    /// The last record was captured.
    in_capture: AtomicBool,
    record: Mutex<Record>,
}

impl Event {
    /// `cuEventCreate`; `shared`: one that another process made.
    pub fn create(driver: &'static State, owner: Owner, flags: u32, shared: Option<Arc<SharedEvent>>) -> Outcome<u64> {
        let contradicts = flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0;
        if flags & !FLAGS != 0 || contradicts {
            return Err(CudaError::INVALID_VALUE);
        }
        let shared = match shared {
            None if flags & INTERPROCESS != 0 => Some(Arc::new(SharedEvent::create()?)),
            given => given,
        };
        let made = driver.events.insert(|event, _| {
            event.flags.store(flags, Ordering::Relaxed);
            event.context.store(owner.context, Ordering::Relaxed);
            event.device.store(owner.device, Ordering::Relaxed);
            event.in_capture.store(false, Ordering::Relaxed);
            let mut record = event.record.lock();
            *record = Record { number: record.number + 1, shared, ..Record::default() };
        });
        Ok(made.ok_or(CudaError::OUT_OF_MEMORY)?.0)
    }

    /// `cuEventDestroy`: pending records and waits are not affected.
    pub fn destroy(driver: &'static State, handle: u64) -> Outcome {
        let event = driver.events.remove(handle).ok_or(CudaError::INVALID_HANDLE)?;
        event.record.lock().shared = None;
        driver.events.recycle(handle);
        Ok(())
    }

    /// Records the event after all that the stream was given so far.
    pub fn record(&'static self, stream: &'static Stream) -> Outcome {
        self.check_stream(stream)?;
        self.record_in(stream)
    }

    /// An event can be recorded in streams of its own context only; those of green contexts are the primary's.
    pub fn check_stream(&self, stream: &Stream) -> Outcome {
        self.check_home(stream.home())
    }

    fn check_home(&self, home: u64) -> Outcome {
        if self.context.load(Ordering::Relaxed) == home { Ok(()) } else { Err(CudaError::INVALID_HANDLE) }
    }

    /// Records the event after all that the streams of a context were given so far.
    pub fn record_all(&'static self, streams: &ContextStreams) -> Outcome {
        self.check_home(streams.home())?;
        self.record_in(streams.gather()?)
    }

    /// Makes all streams of a context, those to come included, wait for the last record.
    pub fn hold_up_all(&self, streams: &ContextStreams) -> Outcome {
        streams.hold_up(|gate| self.hold_up(gate))
    }

    /// The event now stands for a place in a graph that is being captured.
    pub fn record_captured(&self, captured: Captured) {
        let mut record = self.record.lock();
        *record = Record {
            number: record.number + 1,
            shared: record.shared.take(),
            captured: Some(captured),
            ..Record::default()
        };
        self.in_capture.store(true, Ordering::Release);
    }

    /// Where the last record stands in a graph, if it was captured.
    pub fn captured(&self) -> Option<Captured> {
        if !self.in_capture.load(Ordering::Acquire) {
            return None;
        }
        self.record.lock().captured.clone()
    }

    /// Whether it was ever recorded.
    pub fn is_recorded(&self) -> bool {
        let record = self.record.lock();
        record.at.is_some() || record.shared.as_ref().is_some_and(|shared| shared.last_ticket() != 0)
    }

    /// As [`Event::record`], for a lane of a graph, which may be of any context.
    pub fn record_by_graph(&'static self, lane: &'static Stream) -> Outcome {
        self.record_as(lane, true)
    }

    fn record_in(&'static self, stream: &'static Stream) -> Outcome {
        self.record_as(stream, false)
    }

    fn record_as(&'static self, stream: &'static Stream, by_graph: bool) -> Outcome {
        let (number, shared) = {
            let mut record = self.record.lock();
            record.number += 1;
            record.time = 0;
            if record.captured.take().is_some() {
                self.in_capture.store(false, Ordering::Release);
            }
            (record.number, record.shared.clone())
        };
        // Not under the lock: a full stream makes us wait for its executor, which may want to store a time here.
        let ticket = shared.as_ref().map_or(0, |shared| shared.take_ticket());
        let at = match shared {
            Some(shared) => stream.submit(Op::Announce(shared, ticket))?,
            None if self.is_timed() => stream.submit(Op::Record(self, number))?,
            None => stream.mark(),
        };
        let mut record = self.record.lock();
        if record.number == number {
            if !record.by_graph || record.at.is_none_or(|at| at.is_reached()) {
                record.before = record.at;
            }
            record.by_graph = by_graph;
            record.at = Some(at);
            record.ticket = ticket;
        }
        Ok(())
    }

    fn is_timed(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & DISABLE_TIMING == 0
    }

    /// Whether the last record was reached; an event that was never recorded counts as complete. A graph's counts only
    /// once it was reached: a GPU is not asked what is queued on it. Asking sees to it that the stream gets on.
    pub fn query(&self) -> Outcome {
        let record = self.record.lock();
        if record.shared.as_ref().is_some_and(|shared| !shared.is_complete()) {
            record.at.inspect(|at| at.stream.nudge());
            return Err(CudaError::NOT_READY);
        }
        let Some(at) = record.at.filter(|at| !at.is_reached()) else { return Ok(()) };
        at.stream.nudge();
        match record.by_graph && record.before.is_none_or(|before| before.is_reached()) {
            true => Ok(()),
            false => Err(CudaError::NOT_READY),
        }
    }

    /// Error: its device is lost.
    pub fn check(&self, driver: &device::State) -> Outcome {
        driver.check(self.device.load(Ordering::Relaxed))
    }

    /// Waits until the last record is reached.
    pub fn synchronize(&self, driver: &device::State) -> Outcome {
        let (at, shared) = {
            let record = self.record.lock();
            (record.at, record.shared.clone().map(|shared| (shared.last_ticket(), shared)))
        };
        if let Some(at) = at {
            stream::synchronize(at);
        }
        if let Some((ticket, shared)) = shared {
            shared.wait(ticket, || self.check(driver).is_err());
        }
        self.check(driver)
    }

    /// Makes what the stream is given from now on wait for the last record.
    pub fn hold_up(&self, stream: &'static Stream) -> Outcome {
        let (at, own_ticket, shared) = {
            let record = self.record.lock();
            (record.at.filter(|at| !at.is_reached()), record.ticket, record.shared.clone())
        };
        match (shared, at) {
            (Some(shared), _) if shared.last_ticket() != own_ticket => {
                let ticket = shared.last_ticket();
                stream.submit(Op::Await(shared, ticket)).map(drop)
            }
            (_, Some(at)) if !std::ptr::eq(at.stream, stream) => stream.submit(Op::Wait(at)).map(drop),
            _ => Ok(()),
        }
    }

    /// Milliseconds from this event to `end`.
    pub fn elapsed(&self, end: &Event) -> Outcome<f32> {
        if self.context.load(Ordering::Relaxed) != end.context.load(Ordering::Relaxed) {
            return Err(CudaError::INVALID_HANDLE);
        }
        let (start, end) = (self.time()?, end.time()?);
        Ok((end as f64 - start as f64) as f32 / 1e6)
    }

    fn time(&self) -> Outcome<u64> {
        let record = self.record.lock();
        if record.captured.is_some() {
            return Err(CudaError::CAPTURED_EVENT);
        }
        let at = record.at.ok_or(CudaError::INVALID_HANDLE)?;
        if !self.is_timed() {
            return Err(CudaError::INVALID_HANDLE);
        }
        if record.time == 0 {
            at.stream.nudge();
            return Err(CudaError::NOT_READY);
        }
        Ok(record.time)
    }

    /// What another process needs to open the event.
    pub fn shared(&self) -> Outcome<Arc<SharedEvent>> {
        self.record.lock().shared.clone().ok_or(CudaError::INVALID_HANDLE)
    }
}

impl Mark for Event {
    /// The executor has come to record `number`.
    fn reached(&self, number: u64, time: u64) {
        let mut record = self.record.lock();
        if record.number == number {
            record.time = time;
        }
    }
}

/// The valid event with this handle. Error: none, or one of a device that is lost.
pub fn lookup(driver: &'static State, handle: u64) -> Outcome<&'static Event> {
    let event = driver.events.get(handle).ok_or(CudaError::INVALID_HANDLE)?;
    event.check(driver)?;
    Ok(event)
}

/// Destroys all events of a context.
pub fn destroy_all(driver: &'static State, context: u64) {
    let mut events = Vec::new();
    driver.events.for_each(|handle, event| {
        events.extend((event.context.load(Ordering::Relaxed) == context).then_some(handle));
    });
    for event in events {
        let _ = Event::destroy(driver, event);
    }
}
