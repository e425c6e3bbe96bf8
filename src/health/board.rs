//! The board: a piece of memory of a host in which each rank writes down its last calls.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::record::{Record, WORDS, disagreement};
use crate::sys::SharedMemory;

/// Calls that are kept for each rank.
const CALLS: usize = 32;
/// Bytes of a rank's part of a board: a page, so that ranks do not share cache lines.
pub const PART_BYTES: usize = 4096;
/// Words of a rank's part.
const PART: usize = PART_BYTES / size_of::<u64>();
const _: () = assert!(CALLS * WORDS < PART);

/// The board of a communicator on one host, as one rank sees it.
pub struct Board {
    memory: SharedMemory,
    /// The ranks of the host, in the order of their parts.
    ranks: Vec<u32>,
    /// The place of this rank's part.
    mine: usize,
}

impl Board {
    /// The board in some memory of [`PART_BYTES`] bytes for each of `ranks`; none where there is too little of it or
    /// `rank` is not among them.
    pub fn new(memory: SharedMemory, ranks: Vec<u32>, rank: u32) -> Option<Board> {
        let mine = ranks.iter().position(|other| *other == rank)?;
        (memory.words().len() >= ranks.len() * PART).then_some(Board { memory, ranks, mine })
    }

    fn part(&self, place: usize) -> &[AtomicU64] {
        &self.memory.words()[place * PART..(place + 1) * PART]
    }

    /// Writes a call down. A rank does so from one thread at a time.
    pub fn note(&self, record: Record) {
        let place = (record.serial % CALLS as u64) as usize * WORDS;
        let words = &self.part(self.mine)[place..place + WORDS];
        // What was there becomes invalid first, then what is new; readers look at both ends.
        words[WORDS - 1].store(record.serial, Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in words.iter().zip(record.to_words()) {
            to.store(word, Ordering::Release);
        }
    }

    /// The last calls of the rank at `place`, in no order.
    fn records(&self, place: usize) -> Vec<Record> {
        let part = self.part(place);
        let read = |call: usize| {
            let mut words = [0; WORDS];
            // From the end: the writer goes from the begin.
            for word in (0..WORDS).rev() {
                words[word] = part[call * WORDS + word].load(Ordering::Acquire);
            }
            Record::from_words(words)
        };
        (0..CALLS).filter_map(read).collect()
    }

    /// What the ranks' last calls say about the first one on which they do not agree.
    pub fn disagreement(&self) -> Option<String> {
        let ranks: Vec<(u32, Vec<Record>)> =
            self.ranks.iter().enumerate().map(|(place, rank)| (*rank, self.records(place))).collect();
        disagreement(&ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SharedFile;

    fn record(serial: u64, count: u64) -> Record {
        Record { serial, func: 4, datatype: 7, op: 0, root: 0, count }
    }

    fn memory(parts: usize) -> SharedMemory {
        SharedFile::create("oxccl-board", parts * PART_BYTES).and_then(|file| file.map()).expect("memory")
    }

    fn board(ranks: u32) -> Board {
        Board::new(memory(ranks as usize), (0..ranks).collect(), 0).expect("a board")
    }

    #[test]
    fn an_empty_board_says_nothing() {
        assert_eq!(board(2).disagreement(), None);
        assert!(Board::new(memory(1), vec![0, 1], 0).is_none());
        assert!(Board::new(memory(1), vec![0], 1).is_none());
    }

    #[test]
    fn the_last_calls_are_kept() {
        let mut board = board(2);
        (0..100).for_each(|serial| board.note(record(serial, 1)));
        board.mine = 1;
        (0..100).for_each(|serial| board.note(record(serial, if serial == 90 { 2 } else { 1 })));
        let text = board.disagreement().expect("a difference");
        assert!(text.contains("collective 90 ") && text.contains("rank 1 called AllReduce of 2"), "{text}");
        assert_eq!(board.records(0).len(), CALLS);
    }
}
