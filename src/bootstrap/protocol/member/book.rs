//! What a member knows about the others, in one piece of memory: a rank of ten thousand keeps ten thousand entries.

use std::collections::BTreeMap;

use super::super::checkin::Entry;
use super::super::wire::{Decoder, Malformed};

/// Entries by rank.
pub(super) struct Book {
    nranks: u32,
    /// Before all are known: those of this rank's links.
    few: BTreeMap<u32, Entry>,
    all: Option<Everybody>,
}

/// The entries of all ranks.
struct Everybody {
    /// Encoded, one after the other.
    bytes: Vec<u8>,
    /// By rank: where its entry is in `bytes`, and which of `commons` is its own.
    places: Vec<(u32, u32)>,
    /// What ranks have in common, each once.
    commons: Vec<Vec<u8>>,
}

impl Book {
    pub(super) fn new(nranks: u32) -> Book {
        Book { nranks, few: BTreeMap::new(), all: None }
    }

    /// Adds the entry of a rank that this one is to connect to.
    pub(super) fn insert(&mut self, rank: u32, entry: Entry) {
        self.few.insert(rank, entry);
    }

    /// Takes in all entries as they came, in the order of ranks.
    ///
    /// # Errors
    /// The rank whose entry cannot be read, and why.
    pub(super) fn fill<B: AsRef<[u8]>>(
        &mut self,
        commons: Vec<Vec<u8>>,
        entries: impl Iterator<Item = (B, u32)>,
    ) -> Result<(), (u32, Malformed)> {
        let mut all = Everybody { bytes: Vec::new(), places: Vec::with_capacity(self.nranks as usize), commons };
        for (rank, (entry, common)) in (0..self.nranks).zip(entries) {
            let entry = entry.as_ref();
            let mut decoder = Decoder(entry);
            Entry::decode_facts(&mut decoder).and_then(|_| decoder.end()).map_err(|bad| (rank, bad))?;
            let place = u32::try_from(all.bytes.len()).map_err(|_| (rank, Malformed("entries of 4 GiB".into())))?;
            all.places.push((place, common));
            all.bytes.extend_from_slice(entry);
        }
        all.bytes.shrink_to_fit();
        self.few.clear();
        self.all = Some(all);
        Ok(())
    }

    /// Whether every rank is known.
    pub(super) fn complete(&self) -> bool {
        self.all.as_ref().is_some_and(|all| all.places.len() == self.nranks as usize)
    }

    fn encoded(&self, rank: u32) -> Option<&[u8]> {
        let all = self.all.as_ref()?;
        let (place, _) = all.places.get(rank as usize)?;
        all.bytes.get(*place as usize..)
    }

    /// What is known about a rank.
    pub(super) fn get(&self, rank: u32) -> Option<Entry> {
        let known = self.encoded(rank).and_then(|bytes| Entry::decode(&mut Decoder(bytes)).ok());
        known.or_else(|| self.few.get(&rank).cloned())
    }

    /// The facts of a rank without a copy.
    pub(super) fn facts(&self, rank: u32) -> &[u8] {
        let facts = self.encoded(rank).and_then(|bytes| Entry::decode_facts(&mut Decoder(bytes)).ok());
        facts.unwrap_or_default()
    }

    /// Which of the shared facts are a rank's, and all of them.
    pub(super) fn common(&self, rank: u32) -> (u32, &[u8]) {
        let Some(all) = &self.all else { return (0, &[]) };
        let number = all.places.get(rank as usize).map_or(0, |(_, common)| *common);
        (number, all.commons.get(number as usize).map_or(&[], Vec::as_slice))
    }
}
