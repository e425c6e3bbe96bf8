//! Why an initialisation ended, as it travels between processes.

use std::sync::Arc;

use super::wire::{Decoder, Encoder, FrameKind, Malformed};
use crate::error::Error;

/// What kind of failure it is: which error the ranks return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Sort {
    /// The ranks do not fit together: `InvalidUsage`.
    Usage = 1,
    /// A rank failed, left or cannot be reached: `Remote`.
    Remote = 2,
    /// A time limit: `Timeout`.
    Timeout = 3,
}

/// A failure with its culprit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind.
    pub sort: Sort,
    /// The rank to blame, where one is.
    pub rank: Option<u32>,
    /// What all ranks report.
    pub text: String,
}

impl Failure {
    /// The ranks do not fit together.
    pub fn usage(rank: Option<u32>, text: impl Into<String>) -> Failure {
        Failure { sort: Sort::Usage, rank, text: text.into() }
    }

    /// A rank failed, left or cannot be reached.
    pub fn remote(rank: Option<u32>, text: impl Into<String>) -> Failure {
        Failure { sort: Sort::Remote, rank, text: text.into() }
    }

    /// A time limit has passed.
    pub fn timeout(rank: Option<u32>, text: impl Into<String>) -> Failure {
        Failure { sort: Sort::Timeout, rank, text: text.into() }
    }

    /// What the other ranks are told about an error of `rank`.
    pub fn of(rank: u32, error: &Error) -> Failure {
        match error {
            Error::Remote { rank: Some(culprit), text } => Failure::remote(Some(*culprit), text.clone()),
            Error::Timeout(text) => Failure::timeout(None, text.clone()),
            // The ranks do not fit together: all see the same, and whoever is told first must return the same.
            Error::InvalidUsage(text) => Failure::usage(Some(rank), text.clone()),
            Error::Aborted => Failure::remote(Some(rank), format!("rank {rank} aborted its initialisation")),
            other => Failure::remote(Some(rank), format!("rank {rank} failed: {other}")),
        }
    }

    /// The error that a rank returns.
    pub fn error(&self) -> Error {
        match self.sort {
            Sort::Usage => Error::InvalidUsage(self.text.clone()),
            Sort::Remote => Error::Remote { rank: self.rank, text: self.text.clone() },
            Sort::Timeout => Error::Timeout(self.text.clone()),
        }
    }

    /// The frame.
    pub fn encode(&self) -> Arc<[u8]> {
        Encoder::new(FrameKind::Fail, 16 + self.text.len())
            .u8(self.sort as u8)
            .u32(self.rank.unwrap_or(u32::MAX))
            .text(&self.text)
            .finish()
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<Failure, Malformed> {
        let mut decoder = Decoder(payload);
        let sort = match decoder.u8()? {
            1 => Sort::Usage,
            2 => Sort::Remote,
            3 => Sort::Timeout,
            other => return Err(Malformed(format!("a failure of sort {other}"))),
        };
        let rank = Some(decoder.u32()?).filter(|rank| *rank != u32::MAX);
        let text = decoder.text()?;
        decoder.end()?;
        Ok(Failure { sort, rank, text })
    }
}
