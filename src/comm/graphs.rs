//! CUDA graphs that calls of a communicator were captured into.
//!
//! A graph can be launched for as long as it lives, so that what its kernels use must live as long: the communicator
//! itself and the memory of work items. The driver says when a graph is gone, from where nothing can be freed; what it
//! names is put on a list, and the next call takes it from there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Comm;
use super::order::CaptureEnd;
use crate::device::{Capture, Kept};
use crate::error::Error;
use crate::memory::Lent;

/// The `graphUsageMode` for several graphs of a communicator, and for calls besides.
pub(super) const MIXED_GRAPHS: i32 = 2;

/// After how long somebody who waits for graphs says so, and how often again.
const NOTICE: Duration = Duration::from_secs(10);

/// What is left of graphs that are gone.
struct Gone {
    captured: Vec<Arc<Captured>>,
    /// Grows whenever somebody who waits should look again.
    news: u64,
}

/// A communicator may be gone but for its graphs, so that none could have the list. Locked for moments only: never
/// while CUDA is called or anything is dropped.
static GONE: Mutex<Gone> = Mutex::new(Gone { captured: Vec::new(), news: 0 });
/// There is something in the list.
static ANY_GONE: AtomicBool = AtomicBool::new(false);
static NEWS: Condvar = Condvar::new();

/// The captures of a communicator whose graphs are alive, by number.
#[derive(Default)]
pub struct Graphs(Mutex<HashMap<u64, Arc<Captured>>>);

/// What calls of a communicator in one capture have in common; lives as long as the graph.
pub struct Captured {
    comm: Arc<Comm>,
    capture: u64,
    /// The end of the capture's last launch of the communicator.
    end: CaptureEnd,
    /// The same of all communicators of the context that are in one order; none where this one is not.
    end_of_all: Option<Arc<CaptureEnd>>,
    items: Mutex<Vec<Lent>>,
}

impl Captured {
    /// The number of the capture.
    pub fn capture(&self) -> u64 {
        self.capture
    }

    /// The end of the communicator's launches in this capture.
    pub fn end(&self) -> &CaptureEnd {
        &self.end
    }

    /// The end of the launches in this capture of all communicators that are in one order with this one.
    pub fn end_of_all(&self) -> Option<&CaptureEnd> {
        self.end_of_all.as_deref()
    }

    /// Keeps work items for as long as the graph lives.
    pub fn keep(&self, items: Lent) {
        self.items.lock().push(items);
    }

    /// Gives back what the graph had.
    fn settle(self: Arc<Captured>) {
        let comm = self.comm.clone();
        let items = std::mem::take(&mut *self.items.lock());
        if let Some(parts) = comm.parts.get() {
            items.into_iter().for_each(|lent| parts.items.put_back(lent));
        }
        comm.forget_graph(&self);
    }
}

impl Kept for Captured {
    fn graph_gone(self: Arc<Captured>) {
        let mut gone = GONE.lock();
        gone.captured.push(self);
        ANY_GONE.store(true, Ordering::Release);
        gone.news += 1;
        NEWS.notify_all();
    }
}

/// Gives back what graphs had that are gone. No context needs to be current.
pub fn settle() {
    if !ANY_GONE.load(Ordering::Acquire) {
        return;
    }
    let captured = {
        let mut gone = GONE.lock();
        ANY_GONE.store(false, Ordering::Release);
        std::mem::take(&mut gone.captured)
    };
    captured.into_iter().for_each(Captured::settle);
    tell_waiters();
}

/// Makes those who wait for graphs look again.
fn tell_waiters() {
    GONE.lock().news += 1;
    NEWS.notify_all();
}

/// Waits until there is news since a number, or for [`NOTICE`].
fn wait_for_news(since: u64) {
    let mut gone = GONE.lock();
    let until = Instant::now() + NOTICE;
    while gone.news == since && !NEWS.wait_until(&mut gone, until).timed_out() {}
}

impl Comm {
    /// What is kept for calls in a capture, made for the first of them. A capture that comes to nothing ends it as a
    /// graph's end does.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn captured(self: &Arc<Comm>, capture: &Capture) -> Result<Arc<Captured>, Error> {
        if let Some(known) = self.graphs.0.lock().get(&capture.id()) {
            return Ok(known.clone());
        }
        let _entered = self.device.context.enter()?;
        let of_all = self.parts.get().and_then(|parts| parts.orders.of_all.as_ref());
        let made = Arc::new(Captured {
            comm: self.clone(),
            capture: capture.id(),
            end: CaptureEnd::create(&self.device.context)?,
            end_of_all: of_all.map(|order| order.captured(capture.id())).transpose()?,
            items: Mutex::new(Vec::new()),
        });
        self.graphs.0.lock().insert(capture.id(), made.clone());
        capture.keep(made.clone()).inspect_err(|_| self.forget_graph(&made))?;
        Ok(made)
    }

    fn forget_graph(&self, captured: &Arc<Captured>) {
        let mut graphs = self.graphs.0.lock();
        if graphs.get(&captured.capture).is_some_and(|known| Arc::ptr_eq(known, captured)) {
            graphs.remove(&captured.capture);
        }
    }

    /// Whether a graph is alive that has calls of this communicator.
    pub(super) fn has_graphs(&self) -> bool {
        !self.graphs.0.lock().is_empty()
    }

    /// Makes who waits for this communicator's graphs see that it was aborted.
    pub(super) fn leave_graphs(&self) {
        tell_waiters();
    }

    /// Waits until every graph that has calls of this communicator is gone, or until an abort.
    pub(super) fn wait_for_graphs(&self, function: &'static str) {
        let start = Instant::now();
        let mut notice = start + NOTICE;
        loop {
            let since = GONE.lock().news;
            settle();
            let alive = self.graphs.0.lock().len();
            if alive == 0 || self.state().is_aborted() {
                return;
            }
            if Instant::now() >= notice {
                notice += NOTICE;
                let seconds = start.elapsed().as_secs();
                let comm = self.handle();
                log::warn!(
                    "{function}: comm {comm:#x} has waited {seconds} s for {alive} CUDA graphs to be destroyed that \
                     captured its calls"
                );
            }
            wait_for_news(since);
        }
    }
}
