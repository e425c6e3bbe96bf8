//! Who belongs together, and where a grow meets.

use super::*;
use crate::error::Code;

fn split(requests: &[(Option<i32>, i32)]) -> Vec<(u32, DeriveOffer)> {
    (0..)
        .zip(requests)
        .map(|(rank, (color, key))| (rank, (0, DeriveRequest::Split { color: *color, key: *key })))
        .collect()
}

/// By key, ties by rank; every number but that of no colour is a colour.
#[test]
fn a_split_sorts_by_key_and_rank() {
    let offers = split(&[
        (Some(1), 5),
        (Some(1), -5),
        (None, 0),
        (Some(1), 5),
        (Some(-2), 0),
        (Some(-2), i32::MIN),
        (Some(1), -5),
    ]);
    for me in [0, 1, 3, 6] {
        assert_eq!(members(&offers, me), Ok(vec![1, 6, 0, 3]), "rank {me}");
    }
    for me in [4, 5] {
        assert_eq!(members(&offers, me), Ok(vec![5, 4]), "rank {me}");
    }
    assert_eq!(members(&offers, 2), Ok(Vec::new()));
}

#[test]
fn ranks_that_stay_must_agree_who_stays() {
    let shrink = |lists: &[&[u32]]| -> Vec<(u32, DeriveOffer)> {
        (0..).zip(lists).map(|(rank, ranks)| (rank, (0, DeriveRequest::Shrink { ranks: ranks.to_vec() }))).collect()
    };
    assert_eq!(members(&shrink(&[&[0, 1, 5], &[0, 1, 5]]), 1), Ok(vec![0, 1, 5]));
    let error = members(&shrink(&[&[0, 1, 5], &[0, 1, 4, 5]]), 0).expect_err("they differ");
    assert_eq!(error.to_string(), "ncclCommShrink : rank 0 keeps ranks 0, 1, 5 and rank 1 keeps ranks 0, 1, 4, 5");
}

type GrowRequest<'a> = (i32, Option<(&'a [u8], bool)>);

fn grow(requests: &[GrowRequest<'_>]) -> Result<UniqueId, Error> {
    let request = |(nranks, id): &GrowRequest<'_>| DeriveRequest::Grow {
        nranks: *nranks,
        id: id.map(|(id, fresh)| (id.to_vec(), fresh)),
    };
    let offers: Vec<(u32, DeriveOffer)> =
        (0..).zip(requests).map(|(rank, given)| (rank, (0, request(given)))).collect();
    meeting_place(&offers)
}

/// One id, from any rank, for this grow.
#[test]
fn a_grow_meets_where_its_id_says() {
    let (id, other) = ([7u8; 128], [8u8; 128]);
    let (fresh, stale) = (Some((&id[..], true)), Some((&id[..], false)));
    assert_eq!(grow(&[(4, None), (4, fresh)]), Ok(UniqueId(id)));
    assert_eq!(grow(&[(4, fresh), (4, fresh)]), Ok(UniqueId(id)));
    let fails = |requests: &[GrowRequest<'_>], code: Code, text: &str| {
        let error = grow(requests).expect_err("not allowed");
        assert!(error.code() == code && error.to_string().contains(text), "{error}");
    };
    fails(&[(4, None), (4, None)], Code::InvalidUsage, "must call ncclCommGetUniqueId");
    fails(&[(4, None), (4, stale)], Code::InvalidArgument, "the id that rank 1 was given");
    fails(&[(4, fresh), (4, Some((&other, true)))], Code::InvalidUsage, "ranks 0 and 1 have different ids");
    fails(&[(4, fresh), (5, None)], Code::InvalidUsage, "rank 0 wants 4 ranks and rank 1 wants 5");
    fails(&[(4, Some((&id[..9], true)))], Code::InvalidUsage, "rank 0 does something else");
}

#[test]
fn a_failure_of_the_first_rank_is_told_before_its_id_is_missed() {
    let words = |word: Result<Option<Vec<u8>>, Error>| vec![(0, Ok(None)), (3, word)];
    assert_eq!(read_id(&[3, 0], words(Ok(Some(vec![9; 128]))), None), Ok(UniqueId([9; 128])));
    let failed = Error::Remote { rank: Some(3), text: "no descriptors".to_string() };
    assert_eq!(read_id(&[3, 0], words(Err(failed.clone())), None), Err(failed));
    let own = Error::Resource("no descriptors".to_string());
    assert_eq!(read_id(&[3, 0], words(Ok(None)), Some(own.clone())), Err(own));
    assert_eq!(read_id(&[3, 0], words(Ok(None)), None).map_err(|error| error.code()), Err(Code::Remote));
}
