//! What a slot's message ends with. Pure.

/// Bytes of a trailer.
pub(super) const TRAILER: usize = 16;

/// What a message is: it stands behind the slot's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trailer {
    /// The data of the slot of a number, with the signature of the call.
    Slot { number: u64, signature: u32 },
    /// The sender has left the link for good. So many slots were sent before.
    Left { number: u64 },
}

impl Trailer {
    /// As bytes: kind, signature, number; little-endian.
    pub fn encode(self) -> [u8; TRAILER] {
        let (kind, signature, number) = match self {
            Trailer::Slot { number, signature } => (SLOT, signature, number),
            Trailer::Left { number } => (LEFT, 0, number),
        };
        let mut bytes = [0; TRAILER];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&signature.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    /// The trailer of some bytes; none where they are none.
    pub fn decode(bytes: [u8; TRAILER]) -> Option<Trailer> {
        let all = u128::from_le_bytes(bytes);
        let (kind, signature, number) = (all as u32, (all >> 32) as u32, (all >> 64) as u64);
        match kind {
            SLOT => Some(Trailer::Slot { number, signature }),
            LEFT if signature == 0 => Some(Trailer::Left { number }),
            _ => None,
        }
    }
}

const SLOT: u32 = 0x6f78_0001;
const LEFT: u32 = 0x6f78_0002;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn trailers_survive_their_encoding(number: u64, signature: u32, any: [u8; TRAILER]) {
            for trailer in [Trailer::Slot { number, signature }, Trailer::Left { number }] {
                prop_assert_eq!(Trailer::decode(trailer.encode()), Some(trailer));
            }
            if let Some(trailer) = Trailer::decode(any) {
                prop_assert_eq!(trailer.encode(), any);
            }
        }
    }
}
