//! From what all ranks have said: who belongs together, and where they meet. Pure.

use serde::{Deserialize, Serialize};

use super::rounds::{Said, other_call};
use crate::bootstrap::UniqueId;
use crate::bootstrap::protocol::ranks;
use crate::error::Error;

#[cfg(test)]
mod tests;

/// What each rank says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DeriveRequest {
    Split { color: Option<i32>, key: i32 },
    Shrink { ranks: Vec<u32> },
    Grow { nranks: i32, id: Option<(Vec<u8>, bool)> },
}

impl DeriveRequest {
    /// The C function.
    pub(super) fn name(&self) -> &'static str {
        match self {
            DeriveRequest::Split { .. } => "ncclCommSplit",
            DeriveRequest::Shrink { .. } => "ncclCommShrink",
            DeriveRequest::Grow { .. } => "ncclCommGrow",
        }
    }
}

/// The same with the number of communicators that the rank has derived before.
pub(super) type DeriveOffer = (u32, DeriveRequest);

/// The ranks of this rank's new communicator, in their new order; none where it gets none.
pub(super) fn members(offers: &[(u32, DeriveOffer)], me: u32) -> Result<Vec<u32>, Error> {
    let own = offers.iter().find(|(rank, _)| *rank == me).map(|(_, (_, request))| request);
    match own {
        Some(DeriveRequest::Split { color: Some(color), .. }) => {
            let same = offers.iter().filter_map(|(rank, (_, request))| match request {
                DeriveRequest::Split { color: Some(other), key } if other == color => Some((*key, *rank)),
                _ => None,
            });
            let mut same: Vec<(i32, u32)> = same.collect();
            same.sort_unstable();
            Ok(same.into_iter().map(|(_, rank)| rank).collect())
        }
        Some(DeriveRequest::Shrink { ranks }) => {
            let differs = offers.iter().find_map(|(rank, (_, request))| match request {
                DeriveRequest::Shrink { ranks: theirs } if theirs != ranks => Some((*rank, theirs)),
                _ => None,
            });
            match differs {
                None => Ok(ranks.clone()),
                Some((rank, theirs)) => Err(Error::InvalidUsage(format!(
                    "ncclCommShrink : rank {me} keeps {} and rank {rank} keeps {}",
                    ranks::name(ranks),
                    ranks::name(theirs)
                ))),
            }
        }
        _ => Ok(Vec::new()),
    }
}

/// The id that the first of the members has made; `own` is why this rank, being the first, has not.
pub(super) fn read_id(
    members: &[u32],
    words: Vec<Said<Option<Vec<u8>>>>,
    own: Option<Error>,
) -> Result<UniqueId, Error> {
    if let Some(error) = own {
        return Err(error);
    }
    let first = members.first().copied();
    let word = words.into_iter().find(|(rank, _)| Some(*rank) == first).map(|(_, word)| word);
    let bytes = word.unwrap_or(Ok(None))?;
    let id = bytes.and_then(|bytes| bytes.try_into().ok()).map(UniqueId);
    id.ok_or_else(|| Error::Remote { rank: first, text: format!("rank {first:?} has sent no id") })
}

/// Where the ranks of a grow meet.
///
/// # Errors
/// The same on all ranks: `InvalidUsage` where they do not agree or none has an id, `InvalidArgument` for an id that is
/// not for this grow.
pub(super) fn meeting_place(offers: &[(u32, DeriveOffer)]) -> Result<UniqueId, Error> {
    const NAME: &str = "ncclCommGrow";
    let requests = offers.iter().filter_map(|(rank, (_, request))| match request {
        DeriveRequest::Grow { nranks, id } => Some((*rank, *nranks, id.as_ref())),
        _ => None,
    });
    let requests: Vec<_> = requests.collect();
    if let Some(pair) = requests.windows(2).find(|pair| pair[0].1 != pair[1].1) {
        let ((a, few, _), (b, many, _)) = (pair[0], pair[1]);
        return Err(Error::InvalidUsage(format!("{NAME} : rank {a} wants {few} ranks and rank {b} wants {many}")));
    }
    let ids: Vec<_> = requests.iter().filter_map(|(rank, _, id)| id.map(|(id, fresh)| (*rank, id, *fresh))).collect();
    if let Some((rank, ..)) = ids.iter().find(|(.., fresh)| !fresh) {
        return Err(Error::InvalidArgument(format!(
            "{NAME} : magic mismatch: the id that rank {rank} was given is not for this grow; it was made for another \
             communicator, or one was derived since ncclCommGetUniqueId"
        )));
    }
    let Some((first, id, _)) = ids.first() else {
        return Err(Error::InvalidUsage(format!(
            "{NAME} : no rank has an id: one of them must call ncclCommGetUniqueId before"
        )));
    };
    if let Some((other, ..)) = ids.iter().find(|(_, theirs, _)| theirs != id) {
        return Err(Error::InvalidUsage(format!("{NAME} : ranks {first} and {other} have different ids")));
    }
    let id = id.as_slice().try_into().map_err(|_| other_call(*first, NAME))?;
    Ok(UniqueId(id))
}
