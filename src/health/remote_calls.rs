//! What ranks of other hosts have called, as far as they have told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::record::Record;

/// How long a rank that cannot be reached any more is waited for: what it has told before it went may be on its way.
const GONE_LIMIT: Duration = Duration::from_millis(200);

/// The last calls of ranks of other hosts, and what was said to them of this rank's.
#[derive(Debug, Default)]
pub struct RemoteCalls {
    known: Mutex<KnownCalls>,
    news: Condvar,
    /// One past the newest call that somebody has told.
    newest: AtomicU64,
    /// One past this rank's newest call that was told.
    told: AtomicU64,
    /// All were asked for theirs.
    asked: AtomicBool,
}

#[derive(Debug, Default)]
struct KnownCalls {
    /// Of each rank that has told.
    calls: BTreeMap<u32, Vec<Record>>,
    /// Ranks that cannot be reached, and since when.
    gone: BTreeMap<u32, Instant>,
    /// How often something has changed.
    changes: u64,
}

impl KnownCalls {
    /// Until when there is something to wait for of some ranks; none where there is nothing.
    fn wait_for(&self, ranks: &[u32], until: Instant) -> Option<Instant> {
        let now = Instant::now();
        let missing = ranks.iter().filter(|rank| !self.calls.contains_key(rank));
        let limits = missing.map(|rank| self.gone.get(rank).map_or(until, |since| until.min(*since + GONE_LIMIT)));
        limits.max().filter(|until| *until > now)
    }
}

impl RemoteCalls {
    /// A rank has told its last calls.
    pub(super) fn learn(&self, rank: u32, calls: Vec<Record>) {
        let newest = calls.iter().map(|call| call.serial.saturating_add(1)).max().unwrap_or(0);
        self.change(|known| _ = known.calls.insert(rank, calls));
        self.newest.fetch_max(newest, Ordering::SeqCst);
    }

    /// A rank will answer nothing.
    pub fn give_up(&self, rank: u32) {
        self.change(|known| _ = known.gone.entry(rank).or_insert_with(Instant::now));
    }

    fn change(&self, change: impl FnOnce(&mut KnownCalls)) {
        let mut known = self.known.lock();
        change(&mut known);
        known.changes += 1;
        drop(known);
        self.news.notify_all();
    }

    /// Whether a rank has told that it has made this call otherwise. Nearly always a call is newer than what others
    /// have told, and nothing is to be compared.
    pub(super) fn differs_from(&self, record: &Record) -> bool {
        let differs = |call: &Record| call.serial == record.serial && !call.matches(record);
        record.serial < self.newest.load(Ordering::SeqCst) && self.known.lock().calls.values().flatten().any(differs)
    }

    /// All that is known.
    pub(super) fn all(&self) -> BTreeMap<u32, Vec<Record>> {
        self.known.lock().calls.clone()
    }

    /// Whether this rank's newest call is still to be told to others; once for each.
    pub fn is_to_tell(&self, newest: &Record) -> bool {
        let newest = newest.serial.saturating_add(1);
        self.told.fetch_max(newest, Ordering::AcqRel) < newest
    }

    /// Whether all ranks are to be asked for their calls; once.
    pub fn is_to_ask(&self) -> bool {
        !self.asked.swap(true, Ordering::AcqRel)
    }

    /// Waits until some ranks have told their calls, or `enough` is true, or for so long.
    pub fn wait_for(&self, ranks: &[u32], enough: impl Fn() -> bool, limit: Duration) {
        let limit = Instant::now() + limit;
        loop {
            let changes = self.known.lock().changes;
            // Not under the lock: it looks at what is known, too.
            if enough() {
                return;
            }
            let mut known = self.known.lock();
            let Some(until) = known.wait_for(ranks, limit) else { return };
            while known.changes == changes && !self.news.wait_until(&mut known, until).timed_out() {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(serial: u64, count: u64) -> Record {
        Record { serial, func: 4, datatype: 7, op: 0, root: 0, count }
    }

    #[test]
    fn calls_that_nobody_has_told_are_alike() {
        let remote = RemoteCalls::default();
        assert!(!remote.differs_from(&record(0, 1)));
        remote.learn(3, vec![record(0, 1), record(1, 5)]);
        let differ = [record(0, 1), record(0, 2), record(1, 5), record(1, 1), record(2, 9)];
        assert_eq!(differ.map(|call| remote.differs_from(&call)), [false, true, false, true, false]);
    }

    #[test]
    fn each_call_is_told_once_and_all_are_asked_once() {
        let remote = RemoteCalls::default();
        assert!(remote.is_to_tell(&record(0, 1)) && !remote.is_to_tell(&record(0, 1)));
        assert!(remote.is_to_tell(&record(7, 1)) && !remote.is_to_tell(&record(6, 1)));
        assert!(remote.is_to_ask() && !remote.is_to_ask());
    }

    #[test]
    fn a_wait_ends_with_the_last_answer_or_when_enough_is_known() {
        let remote = RemoteCalls::default();
        remote.wait_for(&[1, 2], || false, Duration::from_millis(1));
        remote.learn(1, Vec::new());
        remote.wait_for(&[1, 2], || true, Duration::from_secs(600));
        remote.give_up(2);
        remote.wait_for(&[1, 2], || false, Duration::from_secs(600));
        assert_eq!(remote.all().len(), 2);
    }
}
