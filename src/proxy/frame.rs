//! The bytes of a connection: first the key, then frames, each with its length in front. Pure.

use std::collections::VecDeque;

use crate::sys::MESSAGE_MAX;

/// What a connection begins with, before the key.
const MAGIC: u32 = 0x6f78_7463;
/// Bytes of magic and key.
const HELLO: usize = 4 + 16;
/// Bytes of a frame's length.
const LENGTH: usize = 4;

/// What a connection begins with.
pub fn hello(key: u128) -> Vec<u8> {
    [&MAGIC.to_le_bytes()[..], &key.to_le_bytes()].concat()
}

/// A part of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpFrame {
    /// The other side has taken the key, or one more message. An empty frame.
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

    /// The key that the connection begins with, once it is there.
    pub fn hello(&mut self) -> Result<Option<u128>, Garbage> {
        let magic = MAGIC.to_le_bytes();
        let seen = self.bytes.len().min(magic.len());
        if self.bytes[..seen] != magic[..seen] {
            return Err(Garbage);
        }
        let key = self.bytes.get(magic.len()..HELLO).and_then(|key| key.try_into().ok());
        self.read = key.map_or(0, |_: [u8; 16]| HELLO);
        Ok(key.map(u128::from_le_bytes))
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
            key: u128,
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
            splits in prop::collection::vec(1usize..300, 1..20),
        ) {
            let mut stream: VecDeque<u8> = hello(key).into();
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
            prop_assert_eq!(found, Some(key));
            let expected = messages.iter().map(|bytes| match bytes.is_empty() {
                true => TcpFrame::Taken,
                false => TcpFrame::Message(bytes.clone()),
            });
            prop_assert!(frames.into_iter().eq(expected));
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
