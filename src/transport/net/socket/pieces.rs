//! How a message goes over the streams of a connection: a head on the first one, and a piece of the data on each. Pure.

use std::ops::Range;

/// Bytes of a message's head.
pub(super) const HEAD: usize = 8;
/// What it begins with.
const MAGIC: u32 = 0x6f78_736d;
/// MessagePieces are a multiple of this long, but for the last one.
const PIECE_UNIT: usize = 64;

/// How messages are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePieces {
    pub streams: usize,
    /// The least bytes of a piece.
    pub least: usize,
}

impl MessagePieces {
    /// The part of a message of so many bytes that a stream carries.
    pub fn of(self, stream: usize, bytes: usize) -> Range<usize> {
        let count = (bytes / self.least.max(1)).clamp(1, self.streams);
        let size = bytes.div_ceil(count).next_multiple_of(PIECE_UNIT);
        (stream * size).min(bytes)..((stream + 1) * size).min(bytes)
    }
}

/// The head of a message of so many bytes: little-endian.
pub(super) fn head(bytes: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..].copy_from_slice(&bytes.to_le_bytes());
    head
}

/// The bytes of a head's message; none where it is none.
pub(super) fn length(head: [u8; HEAD]) -> Option<u32> {
    let head = u64::from_le_bytes(head);
    (head as u32 == MAGIC).then_some((head >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_all_of_a_message_once(streams in 1usize..65, least in 0usize..200_000, bytes in 0usize..9_000_000
        ) {
            let pieces = MessagePieces { streams, least };
            let all: Vec<Range<usize>> = (0..streams).map(|stream| pieces.of(stream, bytes)).collect();
            prop_assert_eq!(all[0].start, 0);
            prop_assert_eq!(all[streams - 1].end, bytes);
            prop_assert!(all.windows(2).all(|two| two[0].end == two[1].start));
            // None but the last is short.
            let used = all.iter().filter(|piece| !piece.is_empty()).count();
            prop_assert!(used <= 1 || all[0].len() >= least);
        }

        #[test]
        fn heads_survive_their_encoding(bytes: u32, any: [u8; HEAD]) {
            prop_assert_eq!(length(head(bytes)), Some(bytes));
            if let Some(bytes) = length(any) {
                prop_assert_eq!(head(bytes), any);
            }
        }
    }
}
