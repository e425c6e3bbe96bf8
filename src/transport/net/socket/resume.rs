//! What the two ends of a connection say to each other so that a stream can be made anew by another way.
//!
//! Who receives confirms messages that have come whole, by the first stream: their number so far, 8 bytes. Where a
//! stream that was lost comes anew, the first that it says there is where that stands: 16 bytes. So nothing is lost and
//! nothing comes twice, whatever became of what was sent the other way. All numbers are little-endian.

use super::connect::StreamMaker;
use super::send::{StreamEnd, failed, over};
use super::ways::Way;
use crate::proxy::SecureStream;

/// Bytes of a confirmation, and of a position.
pub(super) const ACK: usize = 8;
const POSITION: usize = 16;

/// Where a stream stands: so many bytes of its part of a message, the head included, have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamPosition {
    pub message: u64,
    pub sent: u64,
}

impl StreamPosition {
    pub fn encode(self) -> [u8; POSITION] {
        (u128::from(self.sent) << 64 | u128::from(self.message)).to_le_bytes()
    }

    fn decode(bytes: [u8; POSITION]) -> StreamPosition {
        let all = u128::from_le_bytes(bytes);
        StreamPosition { message: all as u64, sent: (all >> 64) as u64 }
    }
}

/// Confirmations, as they come.
#[derive(Default)]
pub(super) struct AckReader {
    bytes: [u8; ACK],
    filled: usize,
    count: u64,
}

impl AckReader {
    /// How many messages the other side has.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The stream that they come by is another one.
    pub fn begin_anew(&mut self) {
        self.filled = 0;
    }

    /// Takes bytes that have come; false where they confirm more than the `sent` messages that there are, or fewer than
    /// before.
    pub fn take(&mut self, bytes: &[u8], sent: u64) -> bool {
        for byte in bytes {
            self.bytes[self.filled] = *byte;
            self.filled += 1;
            if self.filled == ACK {
                let count = u64::from_le_bytes(self.bytes);
                if !(self.count..=sent).contains(&count) {
                    return false;
                }
                (self.filled, self.count) = (0, count);
            }
        }
        true
    }
}

/// A stream of the sender's that is made anew.
pub(super) struct AnewStream {
    maker: StreamMaker,
    met: Option<(SecureStream, Way)>,
    bytes: [u8; POSITION],
    filled: usize,
}

impl AnewStream {
    pub fn new(maker: StreamMaker) -> AnewStream {
        AnewStream { maker, met: None, bytes: [0; POSITION], filled: 0 }
    }

    /// Gets on: the stream, once the other side has said where it stands.
    ///
    /// # Errors
    /// This one was lost, too; or no way leads there.
    pub fn progress(&mut self) -> Result<Option<(SecureStream, Way, StreamPosition)>, StreamEnd> {
        if self.met.is_none() {
            self.met = self.maker.progress().map_err(StreamEnd::Over)?;
        }
        let Some((stream, _)) = &mut self.met else { return Ok(None) };
        while self.filled < POSITION {
            match stream.receive(&mut self.bytes[self.filled..]) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => return Err(over(stream, "the other side has closed the connection")),
                Ok(Some(bytes)) => self.filled += bytes,
                Err(error) => return Err(failed(stream, error)),
            }
        }
        Ok(self.met.take().map(|(stream, way)| (stream, way, StreamPosition::decode(self.bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_survive_their_encoding(message: u64, sent: u64) {
            let position = StreamPosition { message, sent };
            prop_assert_eq!(StreamPosition::decode(position.encode()), position);
        }

        #[test]
        fn confirmations_are_read_however_they_are_split(
            steps in prop::collection::vec(0u64..1000, 0..20),
            splits in prop::collection::vec(1usize..20, 1..10),
        ) {
            let mut count = 0;
            let bytes: Vec<u8> = steps.iter().flat_map(|step| { count += step; count.to_le_bytes() }).collect();
            let (mut reader, mut rest, mut splits) = (AckReader::default(), &bytes[..], splits.iter().cycle());
            while !rest.is_empty() {
                let (some, more) = rest.split_at((*splits.next().expect("more")).min(rest.len()));
                prop_assert!(reader.take(some, count));
                rest = more;
            }
            prop_assert_eq!(reader.count(), count);
            // More than was sent, or fewer than before.
            prop_assert!(!reader.take(&(count + 1).to_le_bytes(), count));
        }
    }

    #[test]
    fn confirmations_never_go_back() {
        let mut reader = AckReader::default();
        assert!(reader.take(&5u64.to_le_bytes(), 9) && !reader.take(&4u64.to_le_bytes(), 9));
    }
}
