//! Executing and waiting.

use super::{MAX_SPARE, Op, Role, State, Stream, Target};
use crate::error::Outcome;
use crate::launch::Launch;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Looks at a stream that somebody else executes, before the thread sleeps.
const SPINS: u32 = 20;
/// Looks with a yield between them.
const YIELDS: u32 = 20;
/// A sleeper looks by itself after this long, in case a wake-up was lost.
const RECHECK: Duration = Duration::from_millis(20);

/// Streams that wait for one another and are looked through before a wait.
const MAX_CHAIN: usize = 64;

/// Why an owner stopped.
pub(super) enum Halt {
    /// As many operations are done as it wanted.
    Reached,
    /// There are none left.
    Empty,
    /// The next operation waits for another stream.
    Blocked(Target),
    /// The next operation stands behind another stream's in a shared queue.
    Behind(Target),
    /// It is the worker, and a thread that waits for the end wants to go on itself.
    Taken,
}

/// The right to execute a stream's operations; given up when dropped.
pub(super) struct Owned {
    stream: &'static Stream,
    /// It is the stream's worker.
    worker: bool,
    /// Goes back to the stream's spare ones when its queue is locked next.
    spare: Option<Box<Launch>>,
}

impl Stream {
    pub(super) fn try_own(&'static self, worker: bool) -> Option<Owned> {
        let taken = self.owned.compare_exchange(false, true, Ordering::SeqCst, Ordering::Relaxed);
        // Made only if taken: its drop gives the stream up.
        taken.is_ok().then(|| Owned { stream: self, worker, spare: None })
    }

    /// Sleeps until `number` operations are done or nobody owns the stream.
    fn wait_progress(&self, number: u64) {
        let settled = || self.progress.completed.load(Ordering::SeqCst) >= number || !self.owned.load(Ordering::SeqCst);
        for _ in 0..SPINS {
            if settled() {
                return;
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            if settled() {
                return;
            }
            std::thread::yield_now();
        }
        let mut gate = self.progress.gate.lock();
        let wanted = match self.progress.wake_at.load(Ordering::SeqCst) {
            0 => number,
            other => other.min(number),
        };
        self.progress.wake_at.store(wanted, Ordering::SeqCst);
        if !settled() {
            self.progress.changed.wait_for(&mut gate, RECHECK);
        }
    }

    /// This stream, the one that its next operation waits for, the one that that one's waits for, and so on.
    pub(super) fn waits_for(&'static self) -> Vec<&'static Stream> {
        let mut chain = vec![self];
        let mut current = self;
        while let Some(Op::Wait(target)) = current.queue.lock().operations.front()
            && !target.is_reached()
            && chain.len() < MAX_CHAIN
        {
            current = target.stream;
            chain.push(current);
        }
        chain
    }

    fn tell_waiters(&self) {
        let _gate = self.progress.gate.lock();
        self.progress.wake_at.store(0, Ordering::SeqCst);
        self.progress.changed.notify_all();
    }
}

impl Owned {
    /// Executes until `number` operations of the stream's life are done.
    pub(super) fn run_to(&mut self, number: u64) -> Halt {
        let stream = self.stream;
        let driver = stream.driver();
        loop {
            let done = stream.progress.completed.load(Ordering::Relaxed);
            if done >= number {
                return Halt::Reached;
            }
            if self.worker && stream.is_taken() {
                return Halt::Taken;
            }
            let operation = match self.next() {
                Ok(operation) => operation,
                Err(halt) => return halt,
            };
            // SeqCst as for `completed`: streams that stand behind this operation look at it without a lock.
            stream.progress.started.store(done + 1, Ordering::SeqCst);
            self.spare = self.execute(driver, operation);
            stream.progress.completed.store(done + 1, Ordering::SeqCst);
            let wanted = stream.progress.wake_at.load(Ordering::SeqCst);
            if wanted != 0 && done + 1 >= wanted {
                stream.tell_waiters();
            }
        }
    }

    fn execute(&self, driver: &'static State, operation: Op) -> Option<Box<Launch>> {
        delay(driver, &operation);
        let stream = self.stream;
        let copy = driver.may_lose && operation.is_copy();
        if copy {
            stream.copying.store(true, Ordering::SeqCst);
        }
        let spare = match driver.check(stream.device()) {
            Ok(()) => operation.execute(driver, stream),
            Err(error) => {
                operation.abandon(error);
                None
            }
        };
        if copy {
            stream.copying.store(false, Ordering::SeqCst);
        }
        spare
    }

    fn next(&mut self) -> Result<Op, Halt> {
        let mut queue = self.stream.queue.lock();
        if let Some(launch) = self.spare.take().filter(|_| queue.spare.len() < MAX_SPARE) {
            queue.spare.push(launch);
        }
        match queue.operations.front() {
            Some(Op::Wait(target)) if !target.is_reached() => return Err(Halt::Blocked(*target)),
            Some(Op::Behind(target)) if !target.is_started() => return Err(Halt::Behind(*target)),
            _ => {}
        }
        queue.operations.pop_front().ok_or(Halt::Empty)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let stream = self.stream;
        if let Some(launch) = self.spare.take() {
            let mut queue = stream.queue.lock();
            if queue.spare.len() < MAX_SPARE {
                queue.spare.push(launch);
            }
        }
        stream.owned.store(false, Ordering::SeqCst);
        if stream.progress.wake_at.load(Ordering::SeqCst) != 0 {
            stream.tell_waiters();
        }
    }
}

fn delay(driver: &State, operation: &Op) {
    if let Some(time) =
        driver.config.delay.filter(|_| !matches!(operation, Op::Wait(_) | Op::Behind(_) | Op::Retire(_)))
    {
        std::thread::sleep(time);
    }
}

/// Brings `target` closer: executes its stream, or the one that it waits for (and so on), or waits for whoever does.
pub(super) fn advance(target: Target) {
    let mut current = target;
    loop {
        let Some(mut owned) = current.stream.try_own(false) else {
            return current.stream.wait_progress(current.number);
        };
        match owned.run_to(current.number) {
            Halt::Blocked(next) => {
                drop(owned);
                current = next;
            }
            Halt::Behind(next) => {
                drop(owned);
                return next.wait_started();
            }
            Halt::Reached | Halt::Empty | Halt::Taken => {
                drop(owned);
                // What was submitted meanwhile, or lies beyond the target, is the worker's.
                current.stream.nudge();
                return;
            }
        }
    }
}

/// Makes the worker leave a stream to the calling thread, until dropped.
///
/// Workers are woken while the threads that submit keep all cores busy, so two of them, whose kernels wait for one
/// another, may come to share a core. They hand it over by yielding, a switch for each step, and stay there for many
/// milliseconds, though the other core is idle by then: who yields never sleeps, so it is not placed anew, and the
/// system's balancing spares who has just run. The threads that wait had cores of their own until now.
struct TakeOver(&'static Stream);

impl TakeOver {
    /// None where work lies beyond `target`: the worker would have to be woken for it.
    fn of(target: Target) -> Option<TakeOver> {
        let all = target.number >= target.stream.progress.submitted.load(Ordering::SeqCst);
        all.then(|| {
            target.stream.takers.fetch_add(1, Ordering::SeqCst);
            TakeOver(target.stream)
        })
    }
}

impl Drop for TakeOver {
    fn drop(&mut self) {
        self.0.takers.fetch_sub(1, Ordering::SeqCst);
        // For what was submitted meanwhile.
        self.0.nudge();
    }
}

/// Waits for a place in a stream; the calling thread executes what leads there.
pub fn synchronize(target: Target) {
    if target.is_reached() {
        return;
    }
    let driver = target.stream.driver();
    if driver.may_lose {
        return wait_for_others(target);
    }
    driver.scheduler.wake_others(target.stream);
    let take_over = TakeOver::of(target);
    while !target.is_reached() {
        advance(target);
    }
    drop(take_over);
    target.stream.bury();
}

/// Waits for all that a stream was given; for the legacy stream, all blocking streams of its context as well. Error:
/// the device is lost.
pub fn synchronize_stream(stream: &'static Stream) -> Outcome {
    if stream.role() == Role::Legacy {
        super::ends(stream).into_iter().for_each(synchronize);
    } else {
        synchronize(stream.end());
    }
    stream.check()
}

/// Waits for everything that the streams were given so far.
pub fn synchronize_all(streams: &[&'static Stream]) {
    let ends: Vec<Target> = streams.iter().map(|stream| stream.end()).filter(|end| !end.is_reached()).collect();
    ends.into_iter().for_each(synchronize);
}

/// Waits without executing anything.
pub(super) fn wait_for_others(target: Target) {
    while !target.is_reached() {
        target.stream.nudge();
        target.stream.wait_progress(target.number);
        if !target.is_reached() && !target.stream.owned.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
}
