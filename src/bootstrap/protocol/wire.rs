//! What stands on the wire: a preamble of 16 bytes in each direction, then frames.
//!
//! The preamble begins with the run's magic and a 32-bit type, as NVIDIA's does, so that
//! each library recognises the other. A frame is a 4-byte length, a kind, three zero bytes, the payload.
//! Everything is little-endian. A reader never allocates by an announced length, only by bytes that came.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

/// Version of everything in this file; ranks of different versions refuse each other by name.
pub const PROTOCOL: u32 = 3;
/// Bytes of a preamble.
pub const PREAMBLE: usize = 16;
/// Bytes before a frame's payload.
pub const HEADER: usize = 8;
/// Bytes of an encoded address.
pub const ADDRESS: usize = 23;
/// The longest text in a frame, in bytes.
pub const MAX_TEXT: usize = 4096;

/// What a connection is for: the 32 bits after the magic. NVIDIA's types are small numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Service {
    /// A member to its root.
    Root = 0x4f58_0001,
    /// The root's answer.
    RootAnswer = 0x4f58_0002,
    /// A member to a member.
    Peer = 0x4f58_0003,
    /// A member's answer.
    PeerAnswer = 0x4f58_0004,
}

/// The first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The run's magic.
    pub magic: u64,
    /// A [`Service`], or what a stranger has there.
    pub service: u32,
    /// [`PROTOCOL`] of the sender.
    pub protocol: u32,
}

impl Preamble {
    /// The preamble of this release.
    pub fn new(magic: u64, service: Service) -> Preamble {
        Preamble { magic, service: service as u32, protocol: PROTOCOL }
    }

    /// The bytes.
    pub fn encode(self) -> [u8; PREAMBLE] {
        let mut out = [0; PREAMBLE];
        out[0..8].copy_from_slice(&self.magic.to_le_bytes());
        out[8..12].copy_from_slice(&self.service.to_le_bytes());
        out[12..16].copy_from_slice(&self.protocol.to_le_bytes());
        out
    }
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Member to root: check-in.
    Join = 1,
    /// Root to member: everybody is in.
    Welcome = 2,
    /// Either way: the initialisation has failed.
    Fail = 3,
    /// Root to member: who is missing.
    Progress = 4,
    /// Member to root: this rank's initialisation is complete.
    Done = 5,
    /// Member to member: who connects, and what for.
    Hello = 6,
    /// Child to parent: the blocks of a subtree.
    Up = 7,
    /// Parent to child: all blocks, or all sizes.
    Down = 8,
    /// To the next rank of the ring: a piece of a block.
    Ring = 9,
    /// A message from rank to rank.
    Message = 10,
    /// The sender leaves in peace.
    Bye = 11,
    /// Over the tree: a rank takes no part in an exchange.
    Refuse = 12,
    /// To a root: nobody will come.
    Dismiss = 13,
    /// To a root: a rank is about to check in, by another connection; this one says how long its process lives.
    Announce = 14,
    /// Root to the root above: who it is.
    RootHello = 15,
    /// The same: all ranks of its block are in, and those of the roots below it.
    RootUp = 16,
    /// Root to a root below: everybody is in.
    RootDown = 17,
    /// To the next rank of the ring, where all exchanges go round it: a piece of a block.
    Round = 18,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::*;
        let of_members = [Join, Welcome, Fail, Progress, Done, Hello, Up, Down, Ring, Message, Bye, Refuse, Round];
        let of_roots = [Dismiss, Announce, RootHello, RootUp, RootDown];
        of_members.into_iter().chain(of_roots).find(|kind| *kind as u8 == byte)
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn malformed<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(what.into()))
}

/// Builds one frame.
pub struct Encoder(Vec<u8>);

impl Encoder {
    /// A frame of this kind, with room for a payload.
    pub fn new(kind: FrameKind, payload: usize) -> Encoder {
        let mut bytes = Vec::with_capacity(HEADER + payload);
        bytes.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
        Encoder(bytes)
    }

    /// Appends bytes as they are.
    pub fn raw(mut self, bytes: &[u8]) -> Encoder {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a byte.
    pub fn u8(self, value: u8) -> Encoder {
        self.raw(&[value])
    }

    /// Appends a number.
    pub fn u32(self, value: u32) -> Encoder {
        self.raw(&value.to_le_bytes())
    }

    /// Appends a number.
    pub fn u64(self, value: u64) -> Encoder {
        self.raw(&value.to_le_bytes())
    }

    /// Appends a length and bytes.
    pub fn bytes(self, bytes: &[u8]) -> Encoder {
        let length = u32::try_from(bytes.len()).expect("every block is bounded far below 4 GiB");
        self.u32(length).raw(bytes)
    }

    /// Appends a number of strings of bytes.
    pub fn list<B: AsRef<[u8]>>(self, list: &[B]) -> Encoder {
        let encoder = self.u32(list.len() as u32);
        list.iter().fold(encoder, |encoder, bytes| encoder.bytes(bytes.as_ref()))
    }

    /// Appends a text, cut at [`MAX_TEXT`].
    pub fn text(self, text: &str) -> Encoder {
        let end = (0..=text.len().min(MAX_TEXT)).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        self.bytes(&text.as_bytes()[..end])
    }

    /// Appends an address, always [`ADDRESS`] bytes.
    pub fn address(self, address: SocketAddr) -> Encoder {
        let (family, octets, scope) = match address {
            SocketAddr::V4(v4) => (4, v4.ip().to_ipv6_mapped().octets(), 0),
            SocketAddr::V6(v6) => (6, v6.ip().octets(), v6.scope_id()),
        };
        self.u8(family).raw(&octets).raw(&address.port().to_le_bytes()).u32(scope)
    }

    /// The finished frame.
    pub fn finish(mut self) -> Arc<[u8]> {
        let length = u32::try_from(self.0.len() - HEADER).expect("every frame is bounded far below 4 GiB");
        self.0[0..4].copy_from_slice(&length.to_le_bytes());
        self.0.into()
    }
}

/// Reads a payload. Every method fails on bytes that are too short, and none allocates beyond them.
pub struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    /// The next `n` bytes.
    pub fn raw(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        if self.0.len() < n {
            return malformed(format!("a field of {n} bytes has only {}", self.0.len()));
        }
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(N)?);
        Ok(out)
    }

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// A number.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A length and bytes.
    pub fn bytes(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        if length > most {
            return malformed(format!("a field of {length} bytes may have {most}"));
        }
        self.raw(length)
    }

    /// A number of strings of bytes, each of which may have `most`.
    pub fn list(&mut self, most: usize) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut list = Vec::new();
        for _ in 0..self.u32()? {
            list.push(self.bytes(most)?.to_vec());
        }
        Ok(list)
    }

    /// A text; what is not UTF-8 or a control character is replaced, since it ends up in logs.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let text = String::from_utf8_lossy(self.bytes(MAX_TEXT)?).into_owned();
        Ok(text.replace(|c: char| c.is_control() && c != '\n', "?"))
    }

    /// An address.
    pub fn address(&mut self) -> Result<SocketAddr, Malformed> {
        let family = self.u8()?;
        let ip = Ipv6Addr::from(self.array::<16>()?);
        let port = u16::from_le_bytes(self.array()?);
        let scope = self.u32()?;
        let address = match (family, ip.to_ipv4_mapped()) {
            (4, Some(v4)) => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(v4.octets())), port),
            (6, _) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
            _ => return malformed(format!("an address of family {family}")),
        };
        if port == 0 || ip.is_unspecified() || address.ip().is_unspecified() {
            return malformed(format!("{address} is no address to connect to"));
        }
        Ok(address)
    }

    /// Nothing may be left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { malformed(format!("{} bytes too many", self.0.len())) }
    }
}

/// A frame as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// Its content.
    pub payload: Vec<u8>,
}

/// Cuts the bytes of one connection into a preamble and frames.
#[derive(Default)]
pub struct Reader {
    bytes: Vec<u8>,
    taken: usize,
}

impl Reader {
    /// Adds bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 && (self.taken == self.bytes.len() || self.taken > 1 << 20) {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// What has arrived and is not taken yet.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    /// The preamble, once it is complete.
    pub fn preamble(&mut self) -> Option<Preamble> {
        let mut decoder = Decoder(self.rest());
        let preamble =
            Preamble { magic: decoder.u64().ok()?, service: decoder.u32().ok()?, protocol: decoder.u32().ok()? };
        self.taken += PREAMBLE;
        Some(preamble)
    }

    /// The next frame, once it is complete; its payload may have at most `most` bytes.
    ///
    /// # Errors
    /// A kind that does not exist, a length beyond `most`: the connection is of no more use.
    pub fn frame(&mut self, most: usize) -> Result<Option<Frame>, Malformed> {
        let mut decoder = Decoder(self.rest());
        let (Ok(length), Ok(kind)) = (decoder.u32(), decoder.u32()) else {
            return Ok(None);
        };
        let length = length as usize;
        let Some(kind) = u8::try_from(kind).ok().and_then(FrameKind::from_byte) else {
            return malformed(format!("a frame of kind 0x{kind:x}"));
        };
        if length > most {
            return malformed(format!("a frame of {length} bytes may have {most}"));
        }
        if decoder.0.len() < length {
            return Ok(None);
        }
        let payload = decoder.0[..length].to_vec();
        self.taken += HEADER + length;
        self.release();
        Ok(Some(Frame { kind, payload }))
    }

    /// Gives back the memory of a large frame.
    fn release(&mut self) {
        if self.taken == self.bytes.len() {
            self.taken = 0;
            if self.bytes.capacity() > 1 << 20 { self.bytes = Vec::new() } else { self.bytes.clear() }
        }
    }
}
