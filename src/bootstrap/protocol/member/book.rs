//! What a member knows about the others, in one piece of memory: a rank of ten thousand keeps ten thousand entries.

use super::super::checkin::Entry;
use super::super::wire::{Decoder, Encoder, FrameKind, HEADER, Malformed};

/// Encoded entries by rank.
pub(super) struct Book {
    bytes: Vec<u8>,
    /// Where each rank's entry is in `bytes`.
    places: Vec<Option<u32>>,
    known: usize,
}

impl Book {
    pub(super) fn new(nranks: u32) -> Book {
        Book { bytes: Vec::new(), places: vec![None; nranks as usize], known: 0 }
    }

    /// Adds or replaces an entry.
    pub(super) fn insert(&mut self, rank: u32, entry: &Entry) {
        let frame = entry.encode(Encoder::new(FrameKind::Join, entry.bytes())).finish();
        self.insert_encoded(rank, &frame[HEADER..]);
    }

    /// Adds an entry as it came.
    pub(super) fn decode(&mut self, rank: u32, bytes: &[u8]) -> Result<(), Malformed> {
        let mut decoder = Decoder(bytes);
        Entry::decode_facts(&mut decoder)?;
        decoder.end()?;
        self.insert_encoded(rank, bytes);
        Ok(())
    }

    fn insert_encoded(&mut self, rank: u32, bytes: &[u8]) {
        let Some(place) = self.places.get_mut(rank as usize) else {
            return;
        };
        self.known += usize::from(place.is_none());
        *place = u32::try_from(self.bytes.len()).ok();
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether every rank is known.
    pub(super) fn complete(&self) -> bool {
        self.known == self.places.len()
    }

    /// What is known about a rank.
    pub(super) fn get(&self, rank: u32) -> Option<Entry> {
        let place = (*self.places.get(rank as usize)?)?;
        Entry::decode(&mut Decoder(&self.bytes[place as usize..])).ok()
    }

    /// The facts of a rank without a copy.
    pub(super) fn facts(&self, rank: u32) -> &[u8] {
        let place = self.places.get(rank as usize).copied().flatten();
        let facts = place.and_then(|place| Entry::decode_facts(&mut Decoder(&self.bytes[place as usize..])).ok());
        facts.unwrap_or_default()
    }
}
