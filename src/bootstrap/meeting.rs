//! Where a rank meets the others, by the ids that it was given: one root serves all, or each its block of ranks.

use std::collections::HashMap;

use super::id::{IdParts, UniqueId, fnv1a};
use super::protocol::roots::{MAX_ROOTS, RootAddress, RootPlace, root_of};
use super::protocol::tree;
use crate::error::Error;
use crate::secure::Secret;

/// A rank's root among all roots.
pub(super) struct Meeting {
    /// What the id of its own root says.
    pub own: IdParts,
    /// That root's place among all.
    pub place: RootPlace,
    /// The first root, where that is another one.
    pub first: Option<RootAddress>,
    /// What all ranks know, and nobody else: it comes from all ids.
    pub members: Secret,
}

impl Meeting {
    /// Where a rank of some meets the others.
    ///
    /// # Errors
    /// `InvalidArgument` for no ids, more than ranks, the same twice, or a damaged one; `InvalidUsage` for one of
    /// another library.
    pub(super) fn of(ids: &[UniqueId], rank: u32, nranks: u32) -> Result<Meeting, Error> {
        let invalid = |text: String| Err(Error::InvalidArgument(text));
        let Some((first, others)) = ids.split_first() else { return invalid("no ncclUniqueId".to_string()) };
        let parts = IdParts::decode(first).map_err(|error| named(error, 0, ids.len()))?;
        // By NCCL_COMM_ID all ids are the same, and rank 0 has the only root.
        if others.is_empty() || (parts.fixed && others.iter().all(|other| other == first)) {
            let members = parts.secret.clone();
            return Ok(Meeting { own: parts, place: RootPlace::ALONE, first: None, members });
        }
        let count = ids.len() as u32;
        if count > nranks || count > MAX_ROOTS {
            return invalid(format!(
                "{count} ncclUniqueIds for {nranks} ranks: there must be one for each rank at most"
            ));
        }
        let mut seen = HashMap::new();
        let mut all = Vec::with_capacity(ids.len());
        for (at, id) in ids.iter().enumerate() {
            if let Some(earlier) = seen.insert(id, at) {
                return invalid(format!(
                    "ncclUniqueIds {earlier} and {at} of {count} are the same: each must come from a call of ncclGetUniqueId of its own"
                ));
            }
            all.push(IdParts::decode(id).map_err(|error| named(error, at, ids.len()))?);
        }
        let index = root_of(rank.min(nranks - 1), count, nranks);
        let of = |index: u32| {
            let IdParts { root: address, magic, secret, .. } = &all[index as usize];
            RootAddress { address: *address, magic: *magic, secret: *secret.bytes() }
        };
        let secrets: Vec<u8> = all.iter().flat_map(|parts| *parts.secret.bytes()).collect();
        let members = Secret::of(&secrets, b"members");
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.0).collect();
        let place = RootPlace { index, count, digest: fnv1a(&bytes), above: tree::place(index, count).parent.map(of) };
        let first = (index > 0).then(|| of(0));
        Ok(Meeting { own: all.swap_remove(index as usize), place, first, members })
    }
}

/// An error of one of several ids says which.
fn named(error: Error, at: usize, count: usize) -> Error {
    let name = |text: String| format!("ncclUniqueId {at} of {count}: {text}");
    match error {
        error if count == 1 => error,
        Error::InvalidUsage(text) => Error::InvalidUsage(name(text)),
        Error::InvalidArgument(text) => Error::InvalidArgument(name(text)),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8, fixed: bool) -> UniqueId {
        let (root, secret) = (([10, 0, 0, number], 4000).into(), Secret::new([number; 32]));
        IdParts { magic: u64::from(number), root, fixed, token: 7, grow: None, secret }.encode()
    }

    #[test]
    fn every_rank_has_a_root() {
        let ids: Vec<UniqueId> = (1..=4).map(|number| id(number, false)).collect();
        let roots: Vec<u32> = (0..10)
            .map(|rank| Meeting::of(&ids, rank, 10).map(|meeting| meeting.place.index))
            .map(Result::unwrap)
            .collect();
        assert_eq!(roots, [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]);
        let meeting = Meeting::of(&ids, 9, 10).expect("a place");
        assert_eq!((meeting.own.magic, meeting.first.map(|first| first.magic)), (4, Some(1)));
        assert_eq!(meeting.place.above.map(|above| (above.magic, above.secret)), Some((1, [1; 32])));
        // All ranks have the same secret for each other, whatever their root's.
        assert_eq!(meeting.members, Meeting::of(&ids, 0, 10).expect("a place").members);
        assert_ne!(meeting.members, Meeting::of(&ids[..3], 0, 10).expect("a place").members);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let (one, two) = (id(1, false), id(2, false));
        let wrong =
            |ids: &[UniqueId], nranks| Meeting::of(ids, 0, nranks).map(drop).expect_err("it cannot be").to_string();
        assert!(wrong(&[], 3).contains("no ncclUniqueId"));
        assert!(wrong(&[one, two], 1).contains("2 ncclUniqueIds for 1 ranks"));
        assert!(wrong(&[one, two, one], 3).contains("0 and 2 of 3 are the same"));
        assert!(wrong(&[one, UniqueId([9; 128])], 3).contains("ncclUniqueId 1 of 2"));
        // NCCL_COMM_ID makes them all the same.
        let fixed = Meeting::of(&[id(1, true); 3], 2, 3).expect("a place");
        assert_eq!(fixed.place, RootPlace::ALONE);
    }
}
