//! The two records of the rendezvous: what a rank brings, and what it is told when everybody is in.

use std::net::SocketAddr;
use std::sync::Arc;

use super::roots::{Algorithm, RootPlace};
use super::wire::{self, Decoder, Encoder, FrameKind, Malformed};
use super::{MAX_FACTS, MAX_RANKS};

/// The most settings that a rank may send.
pub const MAX_SETTINGS: usize = 256;
/// The most bytes of a check-in.
pub const MAX_CHECKIN: usize = 2 * MAX_FACTS + MAX_SETTINGS * 256;

/// Names and values of the settings on which ranks should agree, in ascending order of names; unset ones are absent.
pub type CheckInSettings = Vec<(String, String)>;

/// A rank as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it listens for other ranks.
    pub address: SocketAddr,
    /// The interface that has this address, for messages.
    pub interface: String,
    /// Its facts, for whoever uses the bootstrap.
    pub facts: Vec<u8>,
}

impl Entry {
    /// Bytes of the encoded entry.
    pub fn bytes(&self) -> usize {
        wire::ADDRESS + 8 + self.interface.len() + self.facts.len()
    }

    /// The same without facts.
    pub fn bare(&self) -> Entry {
        Entry { facts: Vec::new(), ..self.clone() }
    }

    /// The entry alone, encoded.
    pub fn block(&self) -> Vec<u8> {
        self.encode(Encoder::new(FrameKind::Join, self.bytes())).finish()[wire::HEADER..].to_vec()
    }

    /// Appends the entry to a frame.
    pub fn encode(&self, encoder: Encoder) -> Encoder {
        encoder.address(self.address).text(&self.interface).bytes(&self.facts)
    }

    /// Reads only the facts of an entry.
    pub fn decode_facts<'a>(decoder: &mut Decoder<'a>) -> Result<&'a [u8], Malformed> {
        decoder.address()?;
        decoder.bytes(wire::MAX_TEXT)?;
        decoder.bytes(MAX_FACTS)
    }

    /// Reads an entry.
    pub fn decode(decoder: &mut Decoder<'_>) -> Result<Entry, Malformed> {
        Ok(Entry { address: decoder.address()?, interface: decoder.text()?, facts: decoder.bytes(MAX_FACTS)?.to_vec() })
    }
}

/// What a rank brings to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckIn {
    /// Its rank.
    pub rank: u32,
    /// How many ranks it expects.
    pub nranks: u32,
    /// The library's version code, which must be the same everywhere.
    pub version: u32,
    /// Its time limit for the rendezvous in milliseconds; 0 = none.
    pub timeout_ms: u64,
    /// `host:pid`, for messages.
    pub process: String,
    /// Settings that are compared.
    pub settings: CheckInSettings,
    /// Address and facts.
    pub entry: Entry,
    /// Facts that it shares with other ranks.
    pub common: Vec<u8>,
    /// How it meets the others.
    pub algorithm: Algorithm,
    /// The root that it checks in at.
    pub place: RootPlace,
}

/// What a rank tells the root when it is only about to check in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Its rank.
    pub rank: u32,
    /// How many ranks it expects.
    pub nranks: u32,
    /// `host:pid`, for messages.
    pub process: String,
    /// The number of its root, and how many there are.
    pub root: (u32, u32),
}

impl Announcement {
    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        let encoder = Encoder::new(FrameKind::Announce, 64).u32(self.rank).u32(self.nranks).text(&self.process);
        encoder.u32(self.root.0).u32(self.root.1).finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<Announcement, Malformed> {
        let mut decoder = Decoder(payload);
        let (rank, nranks, process) = (decoder.u32()?, decoder.u32()?, decoder.text()?);
        let root = (decoder.u32()?, decoder.u32()?);
        decoder.end()?;
        if root.0 >= root.1 || root.1 > nranks {
            return Err(Malformed(format!("root {} of {} for {nranks} ranks", root.0, root.1)));
        }
        Ok(Announcement { rank, nranks, process, root })
    }
}

impl CheckIn {
    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        let mut encoder = Encoder::new(FrameKind::Join, 256 + self.entry.facts.len() + self.common.len())
            .u32(self.rank)
            .u32(self.nranks)
            .u32(self.version)
            .u64(self.timeout_ms)
            .text(&self.process)
            .u32(self.settings.len() as u32);
        for (name, value) in &self.settings {
            encoder = encoder.text(name).text(value);
        }
        let encoder = self.entry.encode(encoder).bytes(&self.common).u8(self.algorithm as u8);
        self.place.encode(encoder).finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<CheckIn, Malformed> {
        let mut decoder = Decoder(payload);
        let (rank, nranks, version) = (decoder.u32()?, decoder.u32()?, decoder.u32()?);
        let timeout_ms = decoder.u64()?;
        let process = decoder.text()?;
        let count = decoder.u32()? as usize;
        if count > MAX_SETTINGS {
            return Err(Malformed(format!("{count} settings, {MAX_SETTINGS} are allowed")));
        }
        let mut settings = Vec::new();
        for _ in 0..count {
            settings.push((decoder.text()?, decoder.text()?));
        }
        let (entry, common) = (Entry::decode(&mut decoder)?, decoder.bytes(MAX_FACTS)?.to_vec());
        let algorithm = Algorithm::from_byte(decoder.u8()?)?;
        let place = RootPlace::decode(&mut decoder)?;
        decoder.end()?;
        Ok(CheckIn { rank, nranks, version, timeout_ms, process, settings, entry, common, algorithm, place })
    }
}

/// What a rank is told when everybody is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The magic of the members' connections among themselves: new for every run, also of a fixed rendezvous.
    pub token: u64,
    /// How much the root tells.
    pub roster: Roster,
}

/// How much the root tells a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roster {
    /// Everything: few ranks, or small facts.
    Full {
        /// The facts that ranks share, each once.
        commons: Vec<Vec<u8>>,
        /// By rank: its entry, and which of the shared facts are its own.
        entries: Vec<(Entry, u32)>,
    },
    /// Only the rank's own links; the members exchange the rest.
    Links {
        /// The parent in the tree; absent at rank 0, and where there is no tree.
        parent: Option<Entry>,
        /// The next rank in the ring.
        next: Entry,
    },
}

impl Welcome {
    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        match &self.roster {
            Roster::Full { commons, entries } => {
                let commons: Vec<&[u8]> = commons.iter().map(Vec::as_slice).collect();
                Welcome::encode_full(self.token, &commons, entries.iter().map(|(entry, common)| (entry, *common)))
            }
            Roster::Links { parent, next } => Welcome::encode_links(self.token, parent.as_ref(), next),
        }
    }

    /// The frame that tells everything.
    pub fn encode_full<'a>(
        token: u64,
        commons: &[&[u8]],
        entries: impl ExactSizeIterator<Item = (&'a Entry, u32)> + Clone,
    ) -> Arc<[u8]> {
        let bytes: usize = entries.clone().map(|(entry, _)| entry.bytes() + 4).sum();
        let shared: usize = commons.iter().map(|common| common.len() + 4).sum();
        let head = Encoder::new(FrameKind::Welcome, 32 + bytes + shared).u64(token).u8(0);
        let head = head.list(commons).u32(entries.len() as u32);
        entries.fold(head, |encoder, (entry, common)| entry.encode(encoder.u32(common))).finish()
    }

    /// The frame for one rank's links; facts are left out.
    pub fn encode_links(token: u64, parent: Option<&Entry>, next: &Entry) -> Arc<[u8]> {
        let mut encoder = Encoder::new(FrameKind::Welcome, 128).u64(token).u8(1).u8(u8::from(parent.is_some()));
        if let Some(parent) = parent {
            encoder = parent.bare().encode(encoder);
        }
        next.bare().encode(encoder).finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<Welcome, Malformed> {
        let mut decoder = Decoder(payload);
        let token = decoder.u64()?;
        let roster = match decoder.u8()? {
            0 => Welcome::decode_full(&mut decoder)?,
            1 => {
                let parent = if decoder.u8()? != 0 { Some(Entry::decode(&mut decoder)?) } else { None };
                Roster::Links { parent, next: Entry::decode(&mut decoder)? }
            }
            other => return Err(Malformed(format!("a welcome of form {other}"))),
        };
        decoder.end()?;
        Ok(Welcome { token, roster })
    }

    fn decode_full(decoder: &mut Decoder<'_>) -> Result<Roster, Malformed> {
        let commons = decoder.list(MAX_FACTS)?;
        let count = decoder.u32()?;
        if count > MAX_RANKS {
            return Err(Malformed(format!("{count} ranks")));
        }
        let mut entries = Vec::new();
        for _ in 0..count {
            let common = decoder.u32()?;
            if common as usize >= commons.len() {
                return Err(Malformed(format!("shared facts {common} of {}", commons.len())));
            }
            entries.push((Entry::decode(decoder)?, common));
        }
        Ok(Roster::Full { commons, entries })
    }
}
