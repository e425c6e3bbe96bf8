//! What goes over a connection: frames. Pure.

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 16;

/// What a frame says about a link of the connection. Data follows its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoverFrame {
    /// A slot's data of so many bytes, and the signature of the call.
    Data { link: u16, bytes: u32, signature: u32 },
    /// How many slots the receiver has emptied.
    Credit { link: u16, consumed: u64 },
    /// The end that is told has left for good: the sender's, or the receiver's.
    Left { link: u16, sender: bool },
}

impl MoverFrame {
    /// The head as bytes: kind, 0, link, bytes, value; little-endian.
    pub fn encode(self) -> [u8; HEAD] {
        let (kind, link, bytes, value) = match self {
            MoverFrame::Data { link, bytes, signature } => (1, link, bytes, u64::from(signature)),
            MoverFrame::Credit { link, consumed } => (2, link, 0, consumed),
            MoverFrame::Left { link, sender } => (3, link, 0, u64::from(sender)),
        };
        let mut head = [0; HEAD];
        head[0] = kind;
        head[2..4].copy_from_slice(&u16::to_le_bytes(link));
        head[4..8].copy_from_slice(&u32::to_le_bytes(bytes));
        head[8..16].copy_from_slice(&u64::to_le_bytes(value));
        head
    }

    /// The frame of a head; none where it is none.
    pub fn decode(head: &[u8; HEAD]) -> Option<MoverFrame> {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let link = u16::from_le_bytes([head[2], head[3]]);
        let (bytes, low, high) = (word(4), word(8), word(12));
        match head[0] {
            1 if high == 0 => Some(MoverFrame::Data { link, bytes, signature: low }),
            2 if bytes == 0 => Some(MoverFrame::Credit { link, consumed: u64::from(high) << 32 | u64::from(low) }),
            3 if bytes == 0 && high == 0 && low < 2 => Some(MoverFrame::Left { link, sender: low == 1 }),
            _ => None,
        }
    }
}
