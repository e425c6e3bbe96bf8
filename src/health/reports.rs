//! What other ranks have told: those of other hosts their last calls, and any why it leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::cause::FailureCause;
use super::record::Record;

/// How long a rank that cannot be reached any more is waited for: what it has told before it went may be on its way.
const GONE_LIMIT: Duration = Duration::from_millis(200);

/// What other ranks have told, and what was said to them.
#[derive(Debug, Default)]
pub struct PeerReports {
    known: Mutex<Reported>,
    news: Condvar,
    /// One past the newest call that somebody has told.
    newest: AtomicU64,
    /// One past this rank's newest call that was told.
    told: AtomicU64,
    /// Until when answers are waited for of all that were asked for theirs.
    asked: Mutex<Option<Instant>>,
    /// This rank has said who is to blame.
    accused: AtomicBool,
}

#[derive(Debug, Default)]
struct Reported {
    /// Of each rank that has told.
    calls: BTreeMap<u32, Vec<Record>>,
    /// Who has told since it was asked last.
    answered: BTreeSet<u32>,
    /// Why ranks leave, in the order in which they have told.
    causes: Vec<(u32, FailureCause)>,
    /// Ranks that cannot be reached, and since when.
    gone: BTreeMap<u32, Instant>,
    /// How often something has changed.
    changes: u64,
}

impl Reported {
    /// Until when there is something to wait for of some ranks; none where there is nothing.
    fn wait_for(&self, ranks: &[u32], until: Instant) -> Option<Instant> {
        let now = Instant::now();
        let missing = ranks.iter().filter(|rank| !self.calls.contains_key(rank));
        let limits = missing.map(|rank| self.gone.get(rank).map_or(until, |since| until.min(*since + GONE_LIMIT)));
        limits.max().filter(|until| *until > now)
    }
}

impl PeerReports {
    /// A rank has told its last calls.
    pub(super) fn learn(&self, rank: u32, calls: Vec<Record>) {
        let newest = calls.iter().map(|call| call.serial.saturating_add(1)).max().unwrap_or(0);
        self.change(|known| {
            known.calls.insert(rank, calls);
            known.answered.insert(rank);
        });
        self.newest.fetch_max(newest, Ordering::SeqCst);
    }

    /// A rank has told why it leaves.
    pub fn learn_cause(&self, rank: u32, cause: FailureCause) {
        self.change(|known| known.causes.push((rank, cause)));
    }

    /// Why `left` has left, as far as ranks have told: as it says itself, or else for what others have left. A rank
    /// that still tells something is not the first one.
    pub fn cause(&self, left: u32) -> Option<FailureCause> {
        let known = self.known.lock();
        let tells = |rank: u32| known.causes.iter().any(|(teller, _)| *teller == rank);
        let of = |wanted: &dyn Fn(&(u32, FailureCause)) -> bool| known.causes.iter().find(|one| wanted(one));
        let own = of(&|(teller, _)| *teller == left);
        let first = || of(&|(_, cause)| cause.rank().is_none_or(|rank| !tells(rank)));
        own.or_else(first).or(known.causes.first()).map(|(_, cause)| cause.clone())
    }

    /// Whether this rank is to say who is to blame; once.
    pub fn is_to_accuse(&self) -> bool {
        !self.accused.swap(true, Ordering::AcqRel)
    }

    /// A rank will answer nothing.
    pub fn give_up(&self, rank: u32) {
        self.change(|known| _ = known.gone.entry(rank).or_insert_with(Instant::now));
    }

    fn change(&self, change: impl FnOnce(&mut Reported)) {
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

    /// From here on answers are new.
    pub fn ask_again(&self) {
        self.known.lock().answered.clear();
    }

    /// The last call of a rank that has answered since then, if it has made one; none of one that has not answered.
    pub fn answer(&self, rank: u32) -> Option<Option<Record>> {
        let known = self.known.lock();
        let last = known.calls.get(&rank).filter(|_| known.answered.contains(&rank));
        last.map(|calls| calls.iter().max_by_key(|call| call.serial).copied())
    }

    /// Whether this rank's newest call is still to be told to others; once for each.
    pub fn is_to_tell(&self, newest: &Record) -> bool {
        let newest = newest.serial.saturating_add(1);
        self.told.fetch_max(newest, Ordering::AcqRel) < newest
    }

    /// Whether all ranks are to be asked for their calls, once; and until when the answers are waited for.
    pub fn ask(&self, limit: Duration) -> (bool, Instant) {
        let mut asked = self.asked.lock();
        let first = asked.is_none();
        (first, *asked.get_or_insert_with(|| Instant::now() + limit))
    }

    /// Waits until some ranks have told their calls, or `enough` is true, or until then.
    pub fn wait_for(&self, ranks: &[u32], enough: impl Fn() -> bool, limit: Instant) {
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
        let reports = PeerReports::default();
        assert!(!reports.differs_from(&record(0, 1)));
        reports.learn(3, vec![record(0, 1), record(1, 5)]);
        let differ = [record(0, 1), record(0, 2), record(1, 5), record(1, 1), record(2, 9)];
        assert_eq!(differ.map(|call| reports.differs_from(&call)), [false, true, false, true, false]);
    }

    #[test]
    fn answers_are_those_since_the_question() {
        let reports = PeerReports::default();
        reports.learn(3, vec![record(4, 1), record(6, 1), record(5, 1)]);
        assert_eq!((reports.answer(3), reports.answer(4)), (Some(Some(record(6, 1))), None));
        reports.ask_again();
        assert_eq!(reports.answer(3), None);
        reports.learn(3, Vec::new());
        assert_eq!(reports.answer(3), Some(None));
    }

    #[test]
    fn each_call_is_told_once_and_all_are_asked_once() {
        let reports = PeerReports::default();
        assert!(reports.is_to_tell(&record(0, 1)) && !reports.is_to_tell(&record(0, 1)));
        assert!(reports.is_to_tell(&record(7, 1)) && !reports.is_to_tell(&record(6, 1)));
        let (first, until) = reports.ask(Duration::from_secs(9));
        assert!(first && reports.ask(Duration::from_secs(99)) == (false, until));
        assert!(reports.is_to_accuse() && !reports.is_to_accuse());
    }

    #[test]
    fn a_wait_ends_with_the_last_answer_or_when_enough_is_known() {
        let reports = PeerReports::default();
        let (soon, late) = (Instant::now() + Duration::from_millis(1), Instant::now() + Duration::from_secs(600));
        reports.wait_for(&[1, 2], || false, soon);
        reports.learn(1, Vec::new());
        reports.wait_for(&[1, 2], || true, late);
        reports.give_up(2);
        reports.wait_for(&[1, 2], || false, late);
        assert_eq!(reports.all().len(), 1);
    }

    #[test]
    fn the_rank_that_tells_nothing_is_to_blame() {
        let cause = |rank: u32| {
            let error = crate::error::Error::Remote { rank: Some(rank), text: format!("rank {rank} is gone") };
            FailureCause::of(9, &error).expect("a cause")
        };
        let reports = PeerReports::default();
        assert_eq!(reports.cause(2), None);
        // Rank 3 has noticed that rank 2 is gone, which says that rank 0 was the first.
        reports.learn_cause(3, cause(2));
        assert_eq!(reports.cause(3), Some(cause(2)));
        reports.learn_cause(2, cause(0));
        assert_eq!([1, 2, 3, 4].map(|left| reports.cause(left)), [0, 0, 2, 0].map(|rank| Some(cause(rank))));
    }
}
