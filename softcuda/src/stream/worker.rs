//! The worker thread of a stream: made when it is first needed, gone when its stream is destroyed or long idle.

use super::run::{Halt, advance, wait_for_others};
use super::{Stream, Target};
use crate::os;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// No thread.
const NONE: u32 = 0;
/// Asleep; must be unparked.
const ASLEEP: u32 = 1;
/// Awake, or about to be.
const AWAKE: u32 = 2;

/// Looks for new work after the queue has run empty, before the thread sleeps.
const SPINS: u32 = 20;
/// Looks with a yield between them.
const YIELDS: u32 = 20;
/// An idle worker ends after this long.
const IDLE: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct Worker {
    state: AtomicU32,
    /// The stream was destroyed: end as soon as there is nothing to do.
    retiring: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Worker {
    /// Makes sure that the worker looks at its stream from now on.
    pub(super) fn wake(&self, stream: &'static Stream) {
        match self.state.load(Ordering::SeqCst) {
            AWAKE => {}
            ASLEEP => self.unpark(),
            _ => self.start(stream),
        }
    }

    fn unpark(&self) {
        let woken = self.state.compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::SeqCst);
        if woken.is_ok()
            && let Some(thread) = self.thread.lock().as_ref()
        {
            thread.unpark();
        }
    }

    fn start(&self, stream: &'static Stream) {
        // The lock is held until the handle is stored: who finds the worker asleep must be able to wake it.
        let mut thread = self.thread.lock();
        if self.state.compare_exchange(NONE, AWAKE, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        match os::spawn("softcuda-stream", move || work(stream)) {
            Ok(handle) => *thread = Some(handle),
            // Waiters execute the stream meanwhile, and the scheduler tries again.
            Err(error) => {
                os::say_once("worker", &format!("cannot start a stream's worker thread: {error}"));
                self.state.store(NONE, Ordering::SeqCst);
            }
        }
    }

    /// The stream was destroyed.
    pub(super) fn retire(&self) {
        match self.state.load(Ordering::SeqCst) {
            NONE => {}
            state => {
                self.retiring.store(true, Ordering::SeqCst);
                if state == ASLEEP {
                    self.unpark();
                }
            }
        }
    }

    /// Announces sleep and sleeps. False: idle for long, or retiring.
    fn sleep(&self, stream: &Stream) -> bool {
        self.state.store(ASLEEP, Ordering::SeqCst);
        if stream.is_waiting() || self.retiring.load(Ordering::SeqCst) {
            self.state.store(AWAKE, Ordering::SeqCst);
            return stream.is_waiting();
        }
        let start = Instant::now();
        while self.state.load(Ordering::SeqCst) == ASLEEP {
            let left = IDLE.saturating_sub(start.elapsed());
            if left.is_zero() {
                return self.state.compare_exchange(ASLEEP, AWAKE, Ordering::SeqCst, Ordering::SeqCst).is_err();
            }
            std::thread::park_timeout(left);
        }
        true
    }

    /// Ends the thread's service; who finds no worker afterwards starts a new one.
    fn end(&self) {
        let mut thread = self.thread.lock();
        *thread = None;
        self.retiring.store(false, Ordering::SeqCst);
        self.state.store(NONE, Ordering::SeqCst);
    }
}

fn work(stream: &'static Stream) {
    loop {
        drain(stream);
        stream.bury();
        if linger(stream) {
            continue;
        }
        if !stream.worker.sleep(stream) && !stream.is_waiting() {
            break;
        }
    }
    stream.worker.end();
    // Work that came at the last moment found the worker still awake.
    stream.nudge();
}

/// Executes until the queue is empty, or while somebody else does.
fn drain(stream: &'static Stream) {
    while let Some(mut owned) = stream.try_own(true) {
        let halt = owned.run_to(u64::MAX);
        drop(owned);
        match halt {
            Halt::Blocked(next) => wait_for(next),
            Halt::Behind(next) => next.wait_started(),
            Halt::Reached | Halt::Empty | Halt::Taken if stream.is_waiting() => {}
            Halt::Reached | Halt::Empty | Halt::Taken => return,
        }
    }
}

fn wait_for(target: Target) {
    if target.stream.driver().may_lose {
        // What others' devices do, their own workers do: it may never end.
        return wait_for_others(target);
    }
    while !target.is_reached() {
        advance(target);
    }
}

/// Whether work has come while the thread looked on for a while.
fn linger(stream: &Stream) -> bool {
    for look in 0..SPINS + YIELDS {
        if stream.is_waiting() {
            return true;
        }
        if look < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    false
}
