//! Why a rank leaves, as it tells the others: they have met no more than its leaving.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The most bytes of its text: the rest of a message has room beside it.
const TEXT_MAX: usize = 512;

/// What a rank has failed of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureCause {
    /// The rank to blame; none where ranks have made calls that do not match.
    rank: Option<u32>,
    /// What all ranks are to say of it.
    text: String,
}

impl FailureCause {
    /// That of rank `me`, which has failed with an error; none where only its user has ended something.
    pub fn of(me: u32, error: &Error) -> Option<FailureCause> {
        let (rank, mut text) = match error {
            Error::Aborted => return None,
            Error::InvalidUsage(text) => (None, text.clone()),
            Error::Remote { rank: Some(rank), text } => (Some(*rank), text.clone()),
            other => (Some(me), format!("rank {me} left after an error of its own: {other}")),
        };
        text.truncate(text.floor_char_boundary(TEXT_MAX));
        Some(FailureCause { rank, text })
    }

    /// The rank to blame.
    pub fn rank(&self) -> Option<u32> {
        self.rank
    }

    /// The error of a rank that was told of it.
    pub fn error(self) -> Error {
        match self.rank {
            None => Error::InvalidUsage(self.text),
            rank => Error::Remote { rank, text: self.text },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_blames_the_same_rank() {
        let remote = Error::Remote { rank: Some(7), text: "rank 7 is gone".to_string() };
        let usage = Error::InvalidUsage("collective 3 does not match".to_string());
        for error in [remote, usage] {
            assert_eq!(FailureCause::of(1, &error).map(FailureCause::error), Some(error));
        }
    }

    #[test]
    fn an_error_of_its_own_is_that_of_the_rank() {
        let cause = FailureCause::of(4, &Error::Internal("x".repeat(5000))).expect("a cause");
        assert_eq!((cause.rank(), cause.text.len()), (Some(4), TEXT_MAX));
        assert!(cause.text.starts_with("rank 4 left after an error of its own: internal error: x"), "{}", cause.text);
        assert_eq!(FailureCause::of(4, &Error::Aborted), None);
    }
}
