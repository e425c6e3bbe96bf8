//! The streams of one context.

use super::{Op, Role, State, Stream};
use crate::error::Outcome;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The streams of a context, and what they know of it.
#[derive(Default)]
pub struct ContextStreams {
    /// Set when the object is first used.
    driver: OnceLock<&'static State>,
    handle: AtomicU64,
    /// The handle while it is valid, else 0.
    valid: AtomicU64,
    /// Handle of the context whose functions and events its streams take.
    home: AtomicU64,
    device: AtomicUsize,
    /// Streams that are valid or not yet drained, the default ones included.
    all: Mutex<Vec<&'static Stream>>,
    /// Those of them that the legacy default stream waits for.
    blocking: Mutex<Vec<&'static Stream>>,
    blocking_count: AtomicUsize,
    legacy: OnceLock<&'static Stream>,
    /// Goes on when all streams have got so far, and what all streams wait for: for records and waits of the whole
    /// context.
    gather: OnceLock<&'static Stream>,
    gate: OnceLock<&'static Stream>,
}

impl ContextStreams {
    /// Sets it up for a new context.
    pub fn prepare(&self, driver: &'static State, handle: u64, home: u64, device: usize) {
        self.driver.get_or_init(|| driver);
        self.handle.store(handle, Ordering::Relaxed);
        self.home.store(home, Ordering::Relaxed);
        self.device.store(device, Ordering::Relaxed);
        self.valid.store(handle, Ordering::Release);
    }

    /// A life of the context begins: its legacy stream, if there is one, is another from now on.
    pub fn begin(&self, driver: &'static State) {
        if let Some(legacy) = self.legacy.get() {
            legacy.renew(driver, self);
        }
    }

    /// The context's handle is valid no longer: streams that are left have no context.
    pub fn invalidate(&self) {
        self.valid.store(0, Ordering::Release);
    }

    /// Handle of the context.
    #[inline]
    pub fn handle(&self) -> u64 {
        self.handle.load(Ordering::Relaxed)
    }

    /// Whether this is the valid context with that handle.
    #[inline]
    pub(super) fn is_of(&self, handle: u64) -> bool {
        handle != 0 && self.valid.load(Ordering::Acquire) == handle
    }

    /// Handle of the context whose functions and events its streams take.
    #[inline]
    pub fn home(&self) -> u64 {
        self.home.load(Ordering::Relaxed)
    }

    /// Index of the context's device.
    #[inline]
    pub fn device(&self) -> usize {
        self.device.load(Ordering::Relaxed)
    }

    fn driver(&self) -> &'static State {
        self.driver.get().expect("a context's streams are prepared with it")
    }

    /// The legacy default stream.
    pub fn legacy(&'static self) -> &'static Stream {
        self.legacy.get_or_init(|| Stream::make_default(self.driver(), self, Role::Legacy))
    }

    /// The legacy default stream, if anything used it yet.
    pub fn legacy_if_used(&self) -> Option<&'static Stream> {
        self.legacy.get().copied()
    }

    /// All of them.
    pub fn all(&self) -> Vec<&'static Stream> {
        self.all.lock().clone()
    }

    /// Counts a stream among them.
    pub(super) fn add(&self, stream: &'static Stream) {
        self.all.lock().push(stream);
        if stream.role() == Role::Blocking {
            self.blocking.lock().push(stream);
            self.blocking_count.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(gate) = self.gate.get().filter(|gate| !gate.is_idle()) {
            // A new stream captures nothing, so that it takes everything.
            let _ = stream.submit(Op::Wait(gate.end()));
        }
    }

    /// Undoes [`ContextStreams::add`].
    pub(super) fn remove(&self, stream: &'static Stream) {
        self.all.lock().retain(|s| !std::ptr::eq(*s, stream));
        let mut blocking = self.blocking.lock();
        let before = blocking.len();
        blocking.retain(|s| !std::ptr::eq(*s, stream));
        self.blocking_count.fetch_sub(before - blocking.len(), Ordering::SeqCst);
    }

    /// Forgets all but the legacy default stream.
    pub fn clear(&self) {
        let legacy = self.legacy_if_used();
        self.all.lock().retain(|stream| legacy.is_some_and(|legacy| std::ptr::eq(*stream, legacy)));
        self.blocking.lock().clear();
        self.blocking_count.store(0, Ordering::SeqCst);
    }

    /// Calls `visit` with every stream that the legacy default stream waits for.
    pub(super) fn for_each_blocking(&self, mut visit: impl FnMut(&'static Stream)) {
        if self.blocking_count.load(Ordering::SeqCst) > 0 {
            self.blocking.lock().iter().for_each(|stream| visit(stream));
        }
    }

    fn lane(&self, slot: &OnceLock<&'static Stream>) -> &'static Stream {
        let lane = slot.get_or_init(|| Stream::make_lane(self.driver()));
        lane.set_device(self.device());
        lane
    }

    /// A stream that has only to wait for what all streams were given so far.
    pub fn gather(&self) -> Outcome<&'static Stream> {
        let gather = self.lane(&self.gather);
        for end in self.all().into_iter().map(Stream::end).filter(|end| !end.is_reached()) {
            gather.submit(Op::Wait(end))?;
        }
        Ok(gather)
    }

    /// Makes what all streams, those to come included, are given from now on wait for what `wait` puts into a stream.
    pub fn hold_up(&self, wait: impl FnOnce(&'static Stream) -> Outcome) -> Outcome {
        let gate = self.lane(&self.gate);
        wait(gate)?;
        let end = gate.end();
        self.all().into_iter().try_for_each(|stream| stream.submit(Op::Wait(end)).map(drop))
    }
}
