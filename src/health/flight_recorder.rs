//! The flight recorder: a piece of memory of a host in which each rank writes down its last calls, and which memory of
//! its peers may map.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::record::{Record, WORDS, disagreement};
use super::registered::{self, Registered};
use super::reports::PeerReports;
use crate::plan::layout::REGISTRATIONS;
use crate::sys::SharedMemory;

/// Calls that are kept for each rank.
const CALLS: usize = 32;
/// Bytes of a rank's part of a flight recorder: whole pages, so that ranks do not share cache lines.
pub const PART_BYTES: usize = 32 << 10;
/// Words of a rank's part.
const PART: usize = PART_BYTES / size_of::<u64>();
/// The word of a part that counts the changes of the records of memory, which follow it; on a cache line of its own.
const CHANGES: usize = (CALLS * WORDS).next_multiple_of(8);
/// The word of the first part that says that ranks do not agree on a call.
const TROUBLE: usize = CHANGES + 1;
/// The word of a part that says that its rank has ended its communicator as it should.
const ENDED: usize = CHANGES + 2;
/// The first word of the records of memory.
const MEMORY: usize = CHANGES + 8;
const _: () = assert!(MEMORY + REGISTRATIONS * registered::WORDS <= PART);

/// The flight recorder of a communicator on one host, as one rank sees it.
pub struct FlightRecorder {
    memory: SharedMemory,
    /// The ranks of the host, in the order of their parts.
    ranks: Vec<u32>,
    /// The place of this rank's part.
    mine: usize,
    /// What other ranks have told.
    reports: PeerReports,
}

impl FlightRecorder {
    /// The flight recorder in some memory of [`PART_BYTES`] bytes for each of `ranks`; none where there is too little
    /// of it or `rank` is not among them.
    pub fn new(memory: SharedMemory, ranks: Vec<u32>, rank: u32) -> Option<FlightRecorder> {
        let mine = ranks.iter().position(|other| *other == rank)?;
        let recorder = FlightRecorder { memory, ranks, mine, reports: PeerReports::default() };
        (recorder.memory.words().len() >= recorder.ranks.len() * PART).then_some(recorder)
    }

    fn part(&self, place: usize) -> &[AtomicU64] {
        &self.memory.words()[place * PART..(place + 1) * PART]
    }

    /// Writes a call down, and says whether it is what the others have called, as far as they have. Of ranks that do
    /// not agree at least one learns of it here; the others by [`FlightRecorder::trouble`]. A rank does so from one
    /// thread at a time.
    pub fn note(&self, record: Record) -> bool {
        let place = (record.serial % CALLS as u64) as usize * WORDS;
        write(&self.part(self.mine)[place..place + WORDS], &record.to_words());
        // Each rank writes, then reads: whoever is later sees the other's.
        fence(Ordering::SeqCst);
        let differs = |other: usize| {
            let theirs = Record::from_words(read(&self.part(other)[place..place + WORDS]));
            theirs.is_some_and(|theirs| theirs.serial == record.serial && !theirs.matches(&record))
        };
        let agree = !(0..self.ranks.len()).any(differs) && !self.reports.differs_from(&record);
        if !agree {
            self.raise_trouble();
        }
        agree
    }

    /// Says to all ranks of the host that ranks do not agree.
    pub fn raise_trouble(&self) {
        self.part(0)[TROUBLE].store(1, Ordering::Release);
    }

    /// Whether any rank has found that ranks do not agree.
    pub fn trouble(&self) -> bool {
        self.part(0)[TROUBLE].load(Ordering::Acquire) != 0
    }

    /// Says which memory has a number among this rank's registrations, if any. A rank does so from one thread at a
    /// time.
    pub fn publish(&self, number: usize, memory: Option<Registered>) {
        let (part, place) = (self.part(self.mine), MEMORY + number * registered::WORDS);
        write(&part[place..place + registered::WORDS], &Registered::to_words(memory));
        part[CHANGES].fetch_add(1, Ordering::Release);
    }

    /// The place of this rank's part.
    pub fn mine(&self) -> usize {
        self.mine
    }

    /// The ranks that write on the flight recorder, in the order of their parts.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// How often the registrations of the rank at `place` have changed: as long as it is the same, they are the same.
    pub fn changes(&self, place: usize) -> u64 {
        self.part(place)[CHANGES].load(Ordering::Acquire)
    }

    /// The registrations of the rank at `place`, by number. One that is just changing is none.
    pub fn registered(&self, place: usize) -> impl Iterator<Item = Option<Registered>> {
        let records = self.part(place)[MEMORY..].chunks_exact(registered::WORDS).take(REGISTRATIONS);
        records.map(|words| Registered::from_words(read(words)))
    }

    /// The last calls of the rank at `place`, in no order.
    fn records(&self, place: usize) -> Vec<Record> {
        self.part(place).chunks_exact(WORDS).take(CALLS).filter_map(|words| Record::from_words(read(words))).collect()
    }

    /// The last call of the rank at `place`; none before the first.
    pub fn last(&self, place: usize) -> Option<Record> {
        self.records(place).into_iter().max_by_key(|record| record.serial)
    }

    /// Says that this rank has ended its communicator: that it is gone afterwards harms nobody.
    pub fn end(&self) {
        self.part(self.mine)[ENDED].store(1, Ordering::Release);
    }

    /// Whether the rank at `place` has ended its communicator.
    pub fn has_ended(&self, place: usize) -> bool {
        self.part(place)[ENDED].load(Ordering::Acquire) != 0
    }

    /// This rank's last calls, in no order.
    pub fn own_calls(&self) -> Vec<Record> {
        self.records(self.mine)
    }

    /// What other ranks have told.
    pub fn reports(&self) -> &PeerReports {
        &self.reports
    }

    /// A rank elsewhere has told its last calls: the number of the first one that this rank has made otherwise.
    pub fn learn(&self, rank: u32, calls: Vec<Record>) -> Option<u64> {
        self.reports.learn(rank, calls.clone());
        // As in `note`: whoever is later sees the other's.
        fence(Ordering::SeqCst);
        let own = self.own_calls();
        let differs = |call: &&Record| own.iter().any(|own| own.serial == call.serial && !own.matches(call));
        calls.iter().filter(differs).map(|call| call.serial).min()
    }

    /// What the ranks' last calls say about the first one on which they do not agree.
    pub fn disagreement(&self) -> Option<String> {
        let here = self.ranks.iter().enumerate().map(|(place, rank)| (*rank, self.records(place)));
        let ranks: BTreeMap<u32, Vec<Record>> = self.reports.all().into_iter().chain(here).collect();
        disagreement(&ranks.into_iter().collect::<Vec<_>>())
    }
}

/// Writes a record whose last word is its first one turned around. What was there becomes invalid first, then what is
/// new; readers look at both ends.
fn write(to: &[AtomicU64], words: &[u64]) {
    to[words.len() - 1].store(words[0], Ordering::Relaxed);
    fence(Ordering::Release);
    for (to, word) in to.iter().zip(words) {
        to.store(*word, Ordering::Release);
    }
}

/// Reads a record from the end: the writer goes from the begin.
fn read<const N: usize>(from: &[AtomicU64]) -> [u64; N] {
    let mut words = [0; N];
    for (word, from) in words.iter_mut().zip(from).rev() {
        *word = from.load(Ordering::Acquire);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::offer::Tag;
    use crate::sys::SharedFile;

    fn record(serial: u64, count: u64) -> Record {
        Record { serial, func: 4, datatype: 7, op: 0, root: 0, count }
    }

    fn memory(parts: usize) -> SharedMemory {
        SharedFile::create("oxccl-flight-recorder", parts * PART_BYTES).and_then(|file| file.map()).expect("memory")
    }

    fn recorder(ranks: u32) -> FlightRecorder {
        FlightRecorder::new(memory(ranks as usize), (0..ranks).collect(), 0).expect("a recorder")
    }

    #[test]
    fn an_empty_recorder_says_nothing() {
        assert_eq!(recorder(2).disagreement(), None);
        assert!(FlightRecorder::new(memory(1), vec![0, 1], 0).is_none());
        assert!(FlightRecorder::new(memory(1), vec![0], 1).is_none());
    }

    #[test]
    fn memory_is_found_until_it_is_taken_back() {
        let recorder = recorder(2);
        let of = |number, before| Registered {
            tag: Tag::new(number, before),
            base: 512,
            bytes: 9,
            segments: 0,
            handle: [7; 64],
        };
        let found = |recorder: &FlightRecorder| recorder.registered(0).collect::<Vec<_>>();
        assert_eq!(found(&recorder), [None; REGISTRATIONS]);
        let before = recorder.changes(0);
        (0..REGISTRATIONS).for_each(|number| recorder.publish(number, Some(of(number, 5))));
        assert!(found(&recorder).iter().enumerate().all(|(number, found)| *found == Some(of(number, 5))));
        assert_eq!(recorder.registered(1).flatten().count(), 0);
        recorder.publish(3, Some(of(3, 6)));
        recorder.publish(REGISTRATIONS - 1, None);
        assert_eq!((found(&recorder)[3], found(&recorder)[REGISTRATIONS - 1]), (Some(of(3, 6)), None));
        assert_ne!(recorder.changes(0), before);
        assert!(recorder.note(record(31, 1)));
        assert_eq!(found(&recorder)[0], Some(of(0, 5)));
    }

    #[test]
    fn the_last_calls_are_kept() {
        let mut recorder = recorder(2);
        assert!((0..100).all(|serial| recorder.note(record(serial, 1))));
        recorder.mine = 1;
        assert!(!recorder.trouble());
        let agree: Vec<bool> =
            (0..100).map(|serial| recorder.note(record(serial, if serial == 90 { 2 } else { 1 }))).collect();
        assert!(recorder.trouble());
        assert!(agree.iter().enumerate().all(|(serial, agree)| *agree == (serial != 90)));
        let text = recorder.disagreement().expect("a difference");
        assert!(text.contains("collective 90 ") && text.contains("rank 1 called AllReduce of 2"), "{text}");
        assert_eq!(recorder.records(0).len(), CALLS);
        assert_eq!((recorder.last(0), recorder.last(1)), (Some(record(99, 1)), Some(record(99, 1))));
    }

    #[test]
    fn calls_of_ranks_elsewhere_count() {
        let recorder = recorder(1);
        assert!(recorder.note(record(3, 8)));
        assert_eq!(recorder.learn(5, vec![record(2, 1), record(3, 8)]), None);
        assert!(!recorder.trouble() && recorder.disagreement().is_none());
        assert_eq!(recorder.learn(7, vec![record(4, 1), record(3, 9)]), Some(3));
        let text = recorder.disagreement().expect("a difference");
        assert!(text.contains("ranks 0, 5 called AllReduce of 8") && text.contains("rank 7 called"), "{text}");
        // Who calls later than others have told finds it at the call.
        assert!(!recorder.note(record(4, 2)) && recorder.trouble());
        assert!(recorder.note(record(5, 2)));
    }

    #[test]
    fn a_rank_says_that_it_has_ended() {
        let recorder = recorder(2);
        assert_eq!(recorder.last(1), None);
        assert!(!recorder.has_ended(0));
        recorder.end();
        assert!(recorder.has_ended(0) && !recorder.has_ended(1));
        assert_eq!(recorder.records(0).len(), 0);
    }
}
