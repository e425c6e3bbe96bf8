//! Streams with work that nobody asks for get their workers started, without a system call in the submitter.
//!
//! One thread per process, the kicker, looks at the streams that lately had work. It naps for [`SHORT`] as long as it
//! finds streams that need it, for longer the less it finds (a program that launches and synchronises does its work
//! itself), and rests without a time limit when no stream has had work for a while.

use super::Stream;
use crate::os;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Nap while there is work that waits for a worker: such work starts after one or two of these.
const SHORT: Duration = Duration::from_micros(25);
/// Longest nap.
const LONG: Duration = Duration::from_millis(1);
/// Looks at a stream without news before it is taken off the list.
const QUIET: u32 = 32;

/// What is known of a stream that had work lately.
struct Entry {
    stream: &'static Stream,
    submitted: u64,
    completed: u64,
    /// It had work and no owner at the last look.
    waited: bool,
    quiet: u32,
}

/// Streams that had work lately, and the thread that looks after them.
#[derive(Default)]
pub struct Scheduler {
    list: Mutex<Vec<Entry>>,
    count: AtomicUsize,
    /// The kicker sleeps without a time limit: the list is empty.
    resting: AtomicBool,
    kicker: Mutex<Option<Thread>>,
    started: AtomicBool,
}

impl Scheduler {
    /// Called after each submission.
    #[inline]
    pub(super) fn submitted(&'static self, stream: &'static Stream) {
        if !stream.listed.load(Ordering::SeqCst) {
            self.list(stream);
        }
    }

    #[cold]
    fn list(&'static self, stream: &'static Stream) {
        let mut list = self.list.lock();
        if !stream.listed.swap(true, Ordering::SeqCst) {
            list.push(Entry { stream, submitted: 0, completed: 0, waited: false, quiet: 0 });
            self.count.store(list.len(), Ordering::SeqCst);
        }
        drop(list);
        if self.started.load(Ordering::Relaxed) {
            self.rouse();
        } else {
            self.start();
        }
    }

    #[cold]
    fn start(&'static self) {
        let mut kicker = self.kicker.lock();
        if self.started.load(Ordering::Relaxed) {
            return;
        }
        match os::spawn("softcuda-kicker", move || self.kick()) {
            Ok(thread) => {
                *kicker = Some(thread);
                self.started.store(true, Ordering::Relaxed);
            }
            Err(error) => os::say_once("kicker", &format!("cannot start the scheduler thread: {error}")),
        }
    }

    /// Ends the kicker's rest, or a long nap.
    fn rouse(&self) {
        self.resting.store(false, Ordering::SeqCst);
        if let Some(kicker) = self.kicker.lock().as_ref() {
            kicker.unpark();
        }
    }

    /// Before a thread executes `busy` itself: starts the workers of all other streams that have work, since what it
    /// executes may wait for them. Not of those that the thread will come to first because `busy` waits for them.
    pub(super) fn wake_others(&self, busy: &'static Stream) {
        if self.count.load(Ordering::SeqCst) <= 1 {
            return;
        }
        let chain = busy.waits_for();
        let spared = |stream: &Stream| chain.iter().any(|own| std::ptr::eq(*own, stream));
        let waiting: Vec<&'static Stream> = {
            let list = self.list.lock();
            list.iter().map(|entry| entry.stream).filter(|s| s.is_waiting() && !spared(s)).collect()
        };
        waiting.into_iter().for_each(Stream::nudge);
    }

    fn kick(&self) {
        os::set_timer_slack(Duration::from_micros(1));
        let mut nap = SHORT;
        let mut next = SHORT;
        loop {
            std::thread::park_timeout(next);
            let (seen, stuck) = self.look();
            nap = if stuck.is_empty() { LONG.min(nap * 2) } else { SHORT };
            // What waits is looked at again soon, without giving up long naps for it: a launch whose synchronisation
            // is about to come is no reason to.
            next = if seen == Seen::Waiting { SHORT } else { nap };
            stuck.into_iter().for_each(Stream::nudge);
            if seen == Seen::None {
                self.rest();
                (nap, next) = (SHORT, SHORT);
            }
        }
    }

    /// One look at all listed streams; those that wait for a worker for the second time come back.
    fn look(&self) -> (Seen, Vec<&'static Stream>) {
        let mut stuck = Vec::new();
        let mut seen = Seen::None;
        let mut list = self.list.lock();
        list.retain_mut(|entry| {
            let (now, again) = entry.look();
            stuck.extend(again.then_some(entry.stream));
            seen = seen.max(now);
            now != Seen::None || !entry.unlist()
        });
        self.count.store(list.len(), Ordering::SeqCst);
        if !list.is_empty() {
            seen = seen.max(Seen::Nothing);
        }
        (seen, stuck)
    }

    fn rest(&self) {
        self.resting.store(true, Ordering::SeqCst);
        // Who lists a stream after this finds us resting; who listed one before is seen here.
        if self.count.load(Ordering::SeqCst) > 0 {
            self.resting.store(false, Ordering::SeqCst);
        }
        while self.resting.load(Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    /// No stream is left, or this one was quiet for long.
    None,
    /// Nothing has changed.
    Nothing,
    /// Work has come or gone.
    News,
    /// Work waits.
    Waiting,
}

impl Entry {
    /// What the stream is like, and whether it has waited since the last look.
    fn look(&mut self) -> (Seen, bool) {
        let submitted = self.stream.progress.submitted.load(Ordering::SeqCst);
        let completed = self.stream.progress.completed.load(Ordering::SeqCst);
        let waiting = self.stream.is_waiting();
        let again = waiting && self.waited && completed == self.completed;
        let news = submitted != self.submitted || completed != self.completed;
        (self.submitted, self.completed, self.waited) = (submitted, completed, waiting);
        if news || waiting || completed < submitted {
            self.quiet = 0;
        } else {
            self.quiet += 1;
        }
        let seen = match (waiting, news) {
            (true, _) => Seen::Waiting,
            (false, true) => Seen::News,
            (false, false) if self.quiet < QUIET => Seen::Nothing,
            (false, false) => Seen::None,
        };
        (seen, again)
    }

    /// Takes the stream off the list, unless work has just come.
    fn unlist(&self) -> bool {
        self.stream.listed.store(false, Ordering::SeqCst);
        let idle = self.stream.is_idle();
        if !idle {
            self.stream.listed.store(true, Ordering::SeqCst);
        }
        idle
    }
}
