//! Several roots: which ranks check in where, and what roots tell each other.
//!
//! Ranks are cut into as many contiguous blocks as there are roots; the first ones have one rank more where that does
//! not go up. Roots are a tree as ranks are. A root whose block is there, and who has heard that those below it have
//! theirs, tells the one above; the first root then tells all. What one block must know of another is little: where
//! ranks listen that others connect to. Everything else the members exchange among themselves.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use super::MAX_RANKS;
use super::checkin::{CheckInSettings, Entry, MAX_SETTINGS};
use super::wire::{Decoder, Encoder, FrameKind, Malformed};

/// The most roots of a communicator.
pub const MAX_ROOTS: u32 = 1 << 16;
/// The most bytes of a frame between roots.
pub const MAX_SUMMARY: usize = 64 << 20;

/// How the ranks meet and exchange blocks: all must do alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Algorithm {
    /// Over a tree: few messages, and every rank is woken twice.
    #[default]
    Tree = 0,
    /// Round a ring of all ranks, as NCCL does.
    Ring = 1,
}

impl Algorithm {
    /// The word of `OXCCL_BOOTSTRAP_ALGO`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Tree => "tree",
            Algorithm::Ring => "ring",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Algorithm> {
        [Algorithm::Tree, Algorithm::Ring].into_iter().find(|known| known.name().eq_ignore_ascii_case(text.trim()))
    }

    pub(super) fn from_byte(byte: u8) -> Result<Algorithm, Malformed> {
        let known = [Algorithm::Tree, Algorithm::Ring].into_iter().find(|known| *known as u8 == byte);
        known.ok_or_else(|| Malformed(format!("a way {byte} to meet")))
    }
}

/// How a root is connected to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RootAddress {
    /// Where it listens.
    pub address: SocketAddr,
    /// What connections to it begin with.
    pub magic: u64,
    /// The secret of its id.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for RootAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.address)
    }
}

/// The root of a rank among all roots, as every rank of its block says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootPlace {
    /// Its number, in the order of the ids.
    pub index: u32,
    /// How many roots there are.
    pub count: u32,
    /// A hash of all ids: all ranks must have the same, in the same order.
    pub digest: u64,
    /// The root above it; none for the first.
    pub above: Option<RootAddress>,
}

impl RootPlace {
    /// The only root.
    pub const ALONE: RootPlace = RootPlace { index: 0, count: 1, digest: 0, above: None };

    /// The ranks that check in there.
    pub fn block(&self, nranks: u32) -> Range<u32> {
        block(self.index, self.count, nranks)
    }

    /// Appends it to a frame.
    pub fn encode(&self, encoder: Encoder) -> Encoder {
        let encoder = encoder.u32(self.index).u32(self.count).u64(self.digest).u8(u8::from(self.above.is_some()));
        match self.above {
            Some(above) => encoder.address(above.address).u64(above.magic).raw(&above.secret),
            None => encoder,
        }
    }

    /// Reads it.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<RootPlace, Malformed> {
        let (index, count, digest) = (decoder.u32()?, decoder.u32()?, decoder.u64()?);
        let above = match decoder.u8()? {
            0 => None,
            _ => Some(RootAddress {
                address: decoder.address()?,
                magic: decoder.u64()?,
                secret: decoder.raw(32)?.try_into().unwrap_or_default(),
            }),
        };
        if index >= count || count > MAX_ROOTS || above.is_some() != (index > 0) {
            return Err(Malformed(format!("root {index} of {count}")));
        }
        Ok(RootPlace { index, count, digest, above })
    }
}

/// The ranks that check in at a root.
pub fn block(index: u32, count: u32, nranks: u32) -> Range<u32> {
    let (size, more) = (nranks / count, nranks % count);
    let start = |index: u32| index * size + index.min(more);
    start(index)..start(index + 1)
}

/// The root of a rank.
pub fn root_of(rank: u32, count: u32, nranks: u32) -> u32 {
    let (size, more) = (nranks / count, nranks % count);
    let longer = more * (size + 1);
    if rank < longer { rank / (size + 1) } else { more + (rank - longer) / size }
}

/// What a root says to the one above it when the first rank has come to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootHello {
    /// Its place; the address above is that of the root that it says this to.
    pub place: RootPlace,
    /// How many ranks there are by that rank's word.
    pub nranks: u32,
    /// The library's version code there.
    pub version: u32,
    /// How they meet.
    pub algorithm: Algorithm,
    /// That rank, with what is known of it.
    pub witness: String,
}

impl RootHello {
    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        let encoder = self.place.encode(Encoder::new(FrameKind::RootHello, 128)).u32(self.nranks).u32(self.version);
        encoder.u8(self.algorithm as u8).text(&self.witness).finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<RootHello, Malformed> {
        let mut decoder = Decoder(payload);
        let place = RootPlace::decode(&mut decoder)?;
        let (nranks, version) = (decoder.u32()?, decoder.u32()?);
        let algorithm = Algorithm::from_byte(decoder.u8()?)?;
        let hello = RootHello { place, nranks, version, algorithm, witness: decoder.text()? };
        decoder.end()?;
        if hello.nranks < place.count || hello.nranks > MAX_RANKS {
            return Err(Malformed(format!("{} roots of {} ranks", place.count, hello.nranks)));
        }
        Ok(hello)
    }
}

/// Where a rank listens, without its facts.
pub type Listening = (u32, Entry);

/// What the blocks of a root and of those below it have in common with others, once all their ranks are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The ranks that ranks of other blocks connect to.
    pub listening: Vec<Listening>,
    /// Ranges of ranks by their settings.
    pub settings: Vec<(CheckInSettings, Vec<Range<u32>>)>,
    /// A rank that listens on its host's loopback address alone, if there is one: its name, entry, and host.
    pub local: Option<(String, Listening, String)>,
    /// A rank that does not: its name and host.
    pub remote: Option<(String, String)>,
}

impl Summary {
    /// Takes in what another root says.
    pub fn merge(&mut self, other: Summary) {
        self.listening.extend(other.listening);
        for (settings, ranges) in other.settings {
            match self.settings.iter_mut().find(|(known, _)| *known == settings) {
                Some((_, known)) => known.extend(ranges),
                None => self.settings.push((settings, ranges)),
            }
        }
        self.local = self.local.take().or(other.local);
        self.remote = self.remote.take().or(other.remote);
    }

    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        let encoder = encode_listening(Encoder::new(FrameKind::RootUp, 256), &self.listening);
        let mut encoder = encoder.u32(self.settings.len() as u32);
        for (settings, ranges) in &self.settings {
            encoder = encoder.u32(settings.len() as u32);
            encoder = settings.iter().fold(encoder, |encoder, (name, value)| encoder.text(name).text(value));
            encoder = encoder.u32(ranges.len() as u32);
            encoder = ranges.iter().fold(encoder, |encoder, range| encoder.u32(range.start).u32(range.end));
        }
        encoder = encoder.u8(u8::from(self.local.is_some()));
        if let Some((name, listening, host)) = &self.local {
            encoder = encode_listening(encoder.text(name).text(host), std::slice::from_ref(listening));
        }
        encoder = encoder.u8(u8::from(self.remote.is_some()));
        if let Some((name, host)) = &self.remote {
            encoder = encoder.text(name).text(host);
        }
        encoder.finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<Summary, Malformed> {
        let mut decoder = Decoder(payload);
        let listening = decode_listening(&mut decoder)?;
        let mut settings = Vec::new();
        for _ in 0..decoder.u32()? {
            settings.push(decode_group(&mut decoder)?);
        }
        let mut local = None;
        if decoder.u8()? != 0 {
            let (name, host) = (decoder.text()?, decoder.text()?);
            let one = decode_listening(&mut decoder)?.pop().ok_or_else(|| Malformed("no rank that listens".into()))?;
            local = Some((name, one, host));
        }
        let remote = if decoder.u8()? != 0 { Some((decoder.text()?, decoder.text()?)) } else { None };
        decoder.end()?;
        Ok(Summary { listening, settings, local, remote })
    }
}

fn decode_group(decoder: &mut Decoder<'_>) -> Result<(CheckInSettings, Vec<Range<u32>>), Malformed> {
    let count = decoder.u32()? as usize;
    if count > MAX_SETTINGS {
        return Err(Malformed(format!("{count} settings, {MAX_SETTINGS} are allowed")));
    }
    let mut settings = CheckInSettings::new();
    for _ in 0..count {
        settings.push((decoder.text()?, decoder.text()?));
    }
    let mut ranges = Vec::new();
    for _ in 0..decoder.u32()? {
        let range = decoder.u32()?..decoder.u32()?;
        if range.end > MAX_RANKS {
            return Err(Malformed(format!("ranks up to {}", range.end)));
        }
        ranges.push(range);
    }
    Ok((settings, ranges))
}

/// What the first root tells all others when everybody is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Everyone {
    /// The magic of the members' connections among themselves.
    pub token: u64,
    /// The ranks that ranks of other blocks connect to.
    pub listening: Vec<Listening>,
}

impl Everyone {
    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        encode_listening(Encoder::new(FrameKind::RootDown, 256).u64(self.token), &self.listening).finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<Everyone, Malformed> {
        let mut decoder = Decoder(payload);
        let (token, listening) = (decoder.u64()?, decode_listening(&mut decoder)?);
        decoder.end()?;
        Ok(Everyone { token, listening })
    }
}

fn encode_listening(encoder: Encoder, listening: &[Listening]) -> Encoder {
    let encoder = encoder.u32(listening.len() as u32);
    listening.iter().fold(encoder, |encoder, (rank, entry)| entry.bare().encode(encoder.u32(*rank)))
}

fn decode_listening(decoder: &mut Decoder<'_>) -> Result<Vec<Listening>, Malformed> {
    let mut listening = Vec::new();
    for _ in 0..decoder.u32()? {
        listening.push((decoder.u32()?, Entry::decode(decoder)?));
    }
    Ok(listening)
}
