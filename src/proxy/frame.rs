//! The bytes of a connection: first, in plain, what it is for; then a handshake ([`crate::secure`]); then frames, each
//! with its length in front. Pure.

use std::collections::VecDeque;

use super::message::Address;
use crate::sys::MESSAGE_MAX;

/// What a connection begins with: one for messages, and a stream that a source takes over.
const MAGIC: u32 = 0x6f78_7464;
const STREAM_MAGIC: u32 = 0x6f78_7374;
/// Bytes of a magic.
const HELLO: usize = 4;
/// The same of a stream: behind it the source's key and rank, and the stream's token.
const STREAM_HELLO: usize = HELLO + 8 + 4 + 8;
/// Bytes of a frame's length.
const LENGTH: usize = 4;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Messages.
    Messages,
    /// A stream for a source, with its token.
    Stream(Address, u64),
}

impl Hello {
    /// The bytes.
    pub fn encode(self) -> Vec<u8> {
        match self {
            Hello::Messages => MAGIC.to_le_bytes().to_vec(),
            Hello::Stream(to, token) => {
                let parts: [&[u8]; 4] =
                    [&STREAM_MAGIC.to_le_bytes(), &to.key.to_le_bytes(), &to.rank.to_le_bytes(), &token.to_le_bytes()];
                parts.concat()
            }
        }
    }
}

/// A part of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpFrame {
    /// The other side has taken one more message. An empty frame.
    Taken,
    /// An encoded message.
    Message(Vec<u8>),
}

impl TcpFrame {
    /// Adds the bytes of a message, at most [`MESSAGE_MAX`].
    pub fn write(bytes: &[u8], output: &mut VecDeque<u8>) {
        output.extend((bytes.len() as u32).to_le_bytes());
        output.extend(bytes);
    }
}

/// These bytes are nothing of this library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Garbage;

/// Bytes that have come, in whatever pieces.
#[derive(Default)]
pub struct TcpDecoder {
    bytes: Vec<u8>,
    /// So many of them have been read.
    read: usize,
}

impl TcpDecoder {
    /// Adds bytes that have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.read));
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes that are still missing of what the connection begins with. Of a stream nothing more may be read.
    pub fn missing(&self) -> usize {
        let whole = if self.bytes.starts_with(&STREAM_MAGIC.to_le_bytes()) { STREAM_HELLO } else { HELLO };
        whole.saturating_sub(self.bytes.len())
    }

    /// What the connection begins with, once it is there.
    pub fn hello(&mut self) -> Result<Option<Hello>, Garbage> {
        let begins = |magic: u32| {
            let magic = magic.to_le_bytes();
            let seen = self.bytes.len().min(magic.len());
            self.bytes[..seen] == magic[..seen]
        };
        if !begins(MAGIC) && !begins(STREAM_MAGIC) {
            return Err(Garbage);
        }
        if self.bytes.len() < HELLO || self.missing() > 0 {
            return Ok(None);
        }
        if begins(MAGIC) {
            self.read = HELLO;
            return Ok(Some(Hello::Messages));
        }
        self.read = STREAM_HELLO;
        let to = Address { key: u64::from_le_bytes(self.field(4)), rank: u32::from_le_bytes(self.field(12)) };
        Ok(Some(Hello::Stream(to, u64::from_le_bytes(self.field(16)))))
    }

    /// Bytes from a place on that are there.
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    /// The next frame, once it is there.
    pub fn next(&mut self) -> Result<Option<TcpFrame>, Garbage> {
        let rest = &self.bytes[self.read..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MESSAGE_MAX {
            return Err(Garbage);
        }
        let Some(bytes) = rest.get(..length) else { return Ok(None) };
        self.read += LENGTH + length;
        Ok(Some(if bytes.is_empty() { TcpFrame::Taken } else { TcpFrame::Message(bytes.to_vec()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(decoder: &mut TcpDecoder) -> Result<Vec<TcpFrame>, Garbage> {
        std::iter::from_fn(|| decoder.next().transpose()).collect()
    }

    proptest! {
        #[test]
        fn frames_survive_however_they_are_split(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            splits in prop::collection::vec(1usize..300, 1..20),
        ) {
            let mut stream: VecDeque<u8> = Hello::Messages.encode().into();
            messages.iter().for_each(|bytes| TcpFrame::write(bytes, &mut stream));
            let (stream, mut at) = (Vec::from(stream), 0);
            let (mut decoder, mut found, mut frames) = (TcpDecoder::default(), None, Vec::new());
            for split in splits.iter().cycle() {
                let end = (at + split).min(stream.len());
                decoder.push(&stream[at..end]);
                at = end;
                found = if found.is_none() { decoder.hello().expect("a hello") } else { found };
                if found.is_some() {
                    frames.extend(all(&mut decoder).expect("frames"));
                }
                if at == stream.len() {
                    break;
                }
            }
            prop_assert_eq!(found, Some(Hello::Messages));
            let expected = messages.iter().map(|bytes| match bytes.is_empty() {
                true => TcpFrame::Taken,
                false => TcpFrame::Message(bytes.clone()),
            });
            prop_assert!(frames.into_iter().eq(expected));
        }

        #[test]
        fn of_a_stream_nothing_is_read_but_its_begin(to: (u64, u32), token: u64, read in 1usize..50) {
            let to = Address { key: to.0, rank: to.1 };
            let bytes = [Hello::Stream(to, token).encode(), vec![7; 20]].concat();
            let (mut decoder, mut at) = (TcpDecoder::default(), 0);
            let found = loop {
                let some = read.min(decoder.missing());
                decoder.push(&bytes[at..at + some]);
                at += some;
                if let Some(hello) = decoder.hello().expect("a hello") {
                    break hello;
                }
            };
            prop_assert_eq!((found, at), (Hello::Stream(to, token), STREAM_HELLO));
        }

        #[test]
        fn any_bytes_are_read_without_harm(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..99), 0..9),
        ) {
            let (mut greeted, mut framed) = (TcpDecoder::default(), TcpDecoder::default());
            for piece in &pieces {
                greeted.push(piece);
                if greeted.hello().is_err() {
                    break;
                }
            }
            for piece in &pieces {
                framed.push(piece);
                if all(&mut framed).is_err() {
                    break;
                }
                // What is kept is less than a frame.
                prop_assert!(framed.bytes.len() - framed.read < LENGTH + MESSAGE_MAX);
            }
        }
    }

    #[test]
    fn what_is_too_long_is_garbage_at_once() {
        let mut decoder = TcpDecoder::default();
        decoder.push(&(MESSAGE_MAX as u32 + 1).to_le_bytes());
        assert_eq!(decoder.next(), Err(Garbage));
        let mut decoder = TcpDecoder::default();
        decoder.push(b"GET ");
        assert_eq!(decoder.hello(), Err(Garbage));
    }
}
