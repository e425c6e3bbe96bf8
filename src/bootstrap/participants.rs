//! Exchange of data among some ranks of a communicator, whatever has become of the others.
//!
//! The first of them collects what each has and answers all. It hears of every one before it answers, also when one is
//! gone, so that messages of one exchange cannot be taken for those of the next.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Bootstrap, OperationTurn};
use crate::error::Error;

/// Marks the messages of exchanges among some ranks.
const TAG: u64 = 0x6369_7263_6c65;

/// The ranks that exchange something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Participants {
    /// All ranks of the communicator.
    All,
    /// These, in ascending order, this rank among them.
    Some(Vec<u32>),
}

/// How it went at a rank, or for all.
type Word<T> = Result<T, Blame>;

/// A failure, and the rank that it is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Blame {
    rank: Option<u32>,
    usage: bool,
    text: String,
}

impl Blame {
    fn of(rank: u32, error: &Error) -> Blame {
        let (rank, usage) = match error {
            Error::Remote { rank, .. } => (*rank, false),
            Error::InvalidUsage(_) => (Some(rank), true),
            _ => (Some(rank), false),
        };
        Blame { rank, usage, text: error.to_string() }
    }

    fn error(self) -> Error {
        match self.usage {
            true => Error::InvalidUsage(self.text),
            false => Error::Remote { rank: self.rank, text: self.text },
        }
    }
}

impl Bootstrap {
    /// Brings the block of every rank of the participants to every rank of it, in the order of ranks.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`]; the end of a rank that is not in the participants is none.
    pub fn gather_in(&self, participants: &Participants, block: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match participants {
            Participants::All => self.all_gather(block),
            Participants::Some(ranks) => self.turn()?.gather_among(ranks, Ok(block)),
        }
    }

    /// This rank cannot take part in the next exchange of the participants; that of the others fails and names it.
    /// Where the other ranks must be there for that, it waits for them, for [`super::REPORT`] at most.
    pub fn refuse_in(&self, participants: &Participants, error: &Error) {
        let Participants::Some(ranks) = participants else { return self.refuse(error) };
        let told = self.turn().and_then(|mut turn| {
            turn.limit = Some(Instant::now() + super::REPORT);
            turn.gather_among(ranks, Err(error))
        });
        if let Err(why) = told {
            log::info!(target: "BOOTSTRAP", "rank {} has told some ranks of a failure: {why}", self.rank);
        }
    }
}

impl OperationTurn<'_> {
    fn gather_among(&mut self, ranks: &[u32], own: Result<&[u8], &Error>) -> Result<Vec<Vec<u8>>, Error> {
        let gave_up = Error::InvalidUsage(format!("rank {} gave up an operation like this one before", self.rank));
        let own = if self.operation.gave_up { Err(&gave_up) } else { own };
        let own: Word<Vec<u8>> = own.map(<[u8]>::to_vec).map_err(|error| Blame::of(self.rank, error));
        let result = match ranks.split_first() {
            Some((leader, others)) if *leader == self.rank => self.lead(others, own),
            Some((leader, _)) => self.follow(*leader, own),
            None => Err(Error::Internal("an exchange of no ranks".to_string())),
        };
        if let Err(Error::Aborted | Error::Timeout(_)) = &result {
            self.operation.gave_up = true;
        }
        result
    }

    /// The first rank's part.
    fn lead(&mut self, others: &[u32], own: Word<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
        let mut blocks = own.map(|block| vec![block]);
        let fail = |error: &mut Word<Vec<Vec<u8>>>, blame: Blame| {
            if error.is_ok() {
                *error = Err(blame);
            }
        };
        for other in others {
            match self.recv(*other, TAG) {
                Ok(bytes) => match (decode::<Word<Vec<u8>>>(*other, &bytes), &mut blocks) {
                    (Ok(Ok(block)), Ok(blocks)) => blocks.push(block),
                    (Ok(Ok(_)), Err(_)) => {}
                    (Ok(Err(blame)), _) => fail(&mut blocks, blame),
                    (Err(error), _) => fail(&mut blocks, Blame::of(*other, &error)),
                },
                Err(error @ (Error::Aborted | Error::Timeout(_))) => return self.leave_exchange(others, error),
                Err(error) => fail(&mut blocks, Blame::of(*other, &error)),
            }
        }
        let answer = encode(&blocks)?;
        let mut unsent = None;
        for other in others {
            match self.send(*other, TAG, &answer) {
                Err(error @ (Error::Aborted | Error::Timeout(_))) => return self.leave_exchange(others, error),
                sent => unsent = unsent.or(sent.err()),
            }
        }
        blocks.map_err(Blame::error).and_then(|blocks| unsent.map_or(Ok(blocks), Err))
    }

    /// Another rank's part.
    fn follow(&mut self, leader: u32, own: Word<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
        let block = encode(&own)?;
        let answer = self.send(leader, TAG, &block).and_then(|()| self.recv(leader, TAG));
        match answer {
            Ok(bytes) => decode::<Word<Vec<Vec<u8>>>>(leader, &bytes)?.map_err(Blame::error),
            Err(error @ (Error::Aborted | Error::Timeout(_))) => self.leave_exchange(&[leader], error),
            Err(error) => Err(error),
        }
    }

    /// Gives up in the middle; the others are told, if they are there to hear it.
    fn leave_exchange<T>(&mut self, others: &[u32], error: Error) -> Result<T, Error> {
        self.driver.watch(None);
        let text = format!("rank {} has given up: {error}", self.rank);
        let word: Word<Vec<Vec<u8>>> = Err(Blame { rank: Some(self.rank), usage: false, text });
        self.limit = Some(Instant::now() + GOODBYE);
        let bytes = encode(&word)?;
        others.iter().for_each(|other| drop(self.send(*other, TAG, &bytes)));
        Err(error)
    }
}

/// How long a rank that gives up tries to tell the others.
const GOODBYE: Duration = Duration::from_secs(1);

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Internal(format!("encoding: {error}")))
}

fn decode<'a, T: Deserialize<'a>>(rank: u32, bytes: &'a [u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes)
        .map_err(|_| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent what cannot be read") })
}
