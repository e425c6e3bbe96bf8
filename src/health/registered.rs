//! Records of memory that a rank has registered, for the peers of its host that want to map it.

use crate::plan::offer::Tag;

/// Bytes of a CUDA inter-process handle.
const HANDLE: usize = 64;
/// Words of 64 bits that a record takes on a flight recorder.
pub const WORDS: usize = 5 + HANDLE / size_of::<u64>();

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Its name among those of the rank.
    pub tag: Tag,
    /// Its address in the rank's process.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The number of pieces that other processes must ask for descriptors of, to map it; 0: it is mapped by its handle.
    pub segments: u32,
    /// By which other processes map it.
    pub handle: [u8; HANDLE],
}

impl Registered {
    /// The record as words, or what stands where there is none. The last word is the first one turned around, so that
    /// a record that is just being overwritten is not taken for one.
    pub fn to_words(record: Option<Registered>) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        if let Some(record) = record {
            [words[0], words[1], words[2], words[3]] =
                [record.tag.bits().into(), record.base, record.bytes, record.segments.into()];
            for (word, bytes) in words[4..WORDS - 1].iter_mut().zip(record.handle.as_chunks().0) {
                *word = u64::from_le_bytes(*bytes);
            }
        }
        words[WORDS - 1] = !words[0];
        words
    }

    /// The record in some words, unless they are not one.
    pub fn from_words(words: [u64; WORDS]) -> Option<Registered> {
        let tag = Tag::from_bits(words[0]).filter(|_| words[WORDS - 1] == !words[0])?;
        let mut handle = [0; HANDLE];
        for (bytes, word) in handle.as_chunks_mut().0.iter_mut().zip(&words[4..WORDS - 1]) {
            *bytes = word.to_le_bytes();
        }
        Some(Registered { tag, base: words[1], bytes: words[2], segments: words[3].try_into().ok()?, handle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_the_recorder() {
        let handle = std::array::from_fn(|i| i as u8);
        let record = Registered { tag: Tag::new(9, 77), base: 0x7f00_0000_0000, bytes: 1 << 33, segments: 3, handle };
        assert_eq!(Registered::from_words(Registered::to_words(Some(record))), Some(record));
        assert_eq!(Registered::from_words(Registered::to_words(None)), None);
        let mut torn = Registered::to_words(Some(record));
        torn[0] += 64;
        assert_eq!(Registered::from_words(torn), None);
        assert_eq!(Registered::from_words([0; WORDS]), None);
    }
}
