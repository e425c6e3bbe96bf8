//! Who is at the door: tells a rank of this run from an old one, from NVIDIA's library, from a scanner.

use super::wire::{Decoder, PROTOCOL, Service};

/// NVIDIA's connection types are numbers below this; there are six.
const NVIDIA_TYPES: u32 = 32;

/// What the first bytes of a connection say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visitor {
    /// Not enough bytes yet.
    Unknown,
    /// A rank of this run.
    Expected,
    /// A rank of this run with another release's protocol.
    OtherProtocol(u32),
    /// NVIDIA's library with our id; the rank and rank count of its record, where they have come.
    Nvidia(Option<(u32, u32)>),
    /// Somebody else; what it looks like.
    Stranger(String),
}

/// Looks at what has arrived, without taking it.
pub fn identify(bytes: &[u8], magic: u64, service: Service) -> Visitor {
    let wanted = magic.to_le_bytes();
    let known = bytes.len().min(8);
    if bytes[..known] != wanted[..known] {
        // A short first read of a stranger is told apart as soon as it can be; eight bytes make a better text.
        return if bytes.len() < 8 { Visitor::Unknown } else { Visitor::Stranger(describe(bytes)) };
    }
    let Some(kind) = bytes.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])) else {
        return Visitor::Unknown;
    };
    if kind < NVIDIA_TYPES {
        return Visitor::Nvidia(nvidia_rank(bytes));
    }
    if kind != service as u32 {
        return Visitor::Stranger(format!("it has this run's magic and asks for service 0x{kind:x}"));
    }
    match Decoder(&bytes[12..]).u32() {
        Err(_) => Visitor::Unknown,
        Ok(PROTOCOL) => Visitor::Expected,
        Ok(other) => Visitor::OtherProtocol(other),
    }
}

/// The record of NVIDIA's check-in begins with rank and rank count, after a 4-byte length.
fn nvidia_rank(bytes: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (rank, nranks) = (word(16)?, word(20)?);
    (rank < nranks && nranks <= super::MAX_RANKS).then_some((rank, nranks))
}

/// What unexpected first bytes look like.
fn describe(bytes: &[u8]) -> String {
    let kind = bytes.get(8..12).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    if kind.is_some_and(|kind| kind >> 16 == Service::Root as u32 >> 16) {
        return "a rank of another run, which uses another ncclUniqueId".to_string();
    }
    let verbs: [&[u8]; 6] = [b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"HTTP"];
    if verbs.iter().any(|verb| bytes.starts_with(verb)) {
        return "an HTTP client".to_string();
    }
    if bytes.starts_with(&[0x16, 0x03]) {
        return "a TLS client".to_string();
    }
    let hex: Vec<String> = bytes.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("its first bytes are {}", hex.join(" "))
}
