//! Two layers, and what strangers make of one.

use proptest::prelude::*;

use super::*;
use crate::bootstrap::protocol::wire::Service;

const MAGIC: u64 = 0x1122_3344_5566_7788;

fn preamble() -> Preamble {
    Preamble::new(MAGIC, Service::Root)
}

fn security(secret: u8, key: Option<u8>) -> ConnectionSecurity {
    ConnectionSecurity::new(Secret::new([secret; 32]), key.map(|key| UserKey::new(&[key; 32])))
}

/// A layer with what it is secured by, and what its machine sees.
struct LayerSide {
    layer: SecureLayer,
    security: ConnectionSecurity,
    seen: Vec<u8>,
    end: Option<LayerEnd>,
    seed: u8,
}

impl LayerSide {
    fn new(layer: SecureLayer, security: ConnectionSecurity, seed: u8) -> LayerSide {
        LayerSide { layer, security, seen: Vec::new(), end: None, seed }
    }

    fn connecting(security: ConnectionSecurity) -> LayerSide {
        let mut end = LayerSide::new(SecureLayer::connecting(), security, 1);
        end.layer.begin(&end.security, preamble().encode(), [1; RANDOM_BYTES]);
        end
    }

    fn accepted(security: ConnectionSecurity) -> LayerSide {
        LayerSide::new(SecureLayer::accepted(), security, 2)
    }

    fn take(&mut self, bytes: &[u8], expected: Option<Preamble>) {
        let seed = self.seed;
        let outcome = self.layer.receive(bytes, (&self.security, expected), || [seed; RANDOM_BYTES], &mut self.seen);
        self.end = self.end.take().or(outcome.err());
    }

    fn broken(&self) -> bool {
        matches!(self.end, Some(LayerEnd::Broken(_)))
    }
}

/// Carries bytes between two ends, in pieces, until nobody says anything.
fn carry(here: &mut LayerSide, there: &mut LayerSide, piece: usize) {
    loop {
        let (out, back) = (here.layer.output(), there.layer.output());
        if out.is_empty() && back.is_empty() {
            return;
        }
        out.chunks(piece).for_each(|bytes| there.take(bytes, Some(preamble())));
        back.chunks(piece).for_each(|bytes| here.take(bytes, None));
    }
}

#[test]
fn ends_meet_and_the_machine_sees_what_was_said() {
    for key in [None, Some(3)] {
        for piece in [1, 7, 1000] {
            let mut here = LayerSide::connecting(security(1, key));
            let mut there = LayerSide::accepted(security(1, key));
            carry(&mut here, &mut there, piece);
            assert!(here.layer.is_open() && there.layer.is_open());
            assert_eq!((&there.seen[..], &here.seen[..]), (&preamble().encode()[..], &[][..]));
            let mut records = Vec::new();
            assert!(here.layer.seal(b"a frame", &mut records) && here.layer.seal(b" and another", &mut records));
            assert!(!records.windows(7).any(|window| window == b"a frame"));
            records.chunks(piece).for_each(|bytes| there.take(bytes, Some(preamble())));
            assert!(there.seen.ends_with(b"a frame and another") && there.end.is_none());
        }
    }
}

#[test]
fn ends_that_are_set_otherwise_know_it_and_nothing_is_seen() {
    for (here, there) in [(None, Some(3)), (Some(3), None), (Some(3), Some(4))] {
        let (mut here, mut there) = (LayerSide::connecting(security(1, here)), LayerSide::accepted(security(1, there)));
        carry(&mut here, &mut there, 1000);
        assert!(matches!((&here.end, &there.end), (Some(LayerEnd::Mismatch(_)), Some(LayerEnd::Mismatch(_)))));
        assert!(here.seen.is_empty() && there.seen.is_empty());
    }
}

#[test]
fn who_has_the_magic_and_not_the_secret_is_not_seen() {
    let (mut here, mut there) = (LayerSide::connecting(security(1, None)), LayerSide::accepted(security(2, None)));
    carry(&mut here, &mut there, 1000);
    assert!(there.broken() && there.seen.is_empty() && !here.layer.is_open());
    // It answers, and does not know it either.
    let mut here = LayerSide::connecting(security(1, None));
    here.take(&[&answer_to(preamble().encode())[..], &[7; 300]].concat(), None);
    assert!(here.broken() && here.seen.is_empty());
    // It speaks the protocol as it was without a handshake.
    let mut there = LayerSide::accepted(security(1, None));
    there.take(&[&preamble().encode()[..], &[7; 300]].concat(), Some(preamble()));
    assert!(there.broken() && there.seen.is_empty());
}

#[test]
fn who_comes_before_it_is_known_whom_to_expect_waits() {
    let (mut here, mut there) = (LayerSide::connecting(security(1, None)), LayerSide::accepted(security(1, None)));
    let hello = here.layer.output();
    there.take(&hello, None);
    assert!(there.end.is_none() && there.layer.output().is_empty());
    there.take(&[], Some(preamble()));
    carry(&mut here, &mut there, 1000);
    assert!(here.layer.is_open() && there.layer.is_open());
    let mut there = LayerSide::accepted(security(1, None));
    there.take(&[0; 1000], None);
    assert!(there.broken());
}

#[test]
fn the_machine_sees_who_strangers_are() {
    for words in [&b"GET / HTTP/1.0\r\n"[..], &[0x16, 3, 1], &MAGIC.to_le_bytes()[..7]] {
        let mut there = LayerSide::accepted(security(1, None));
        there.take(words, Some(preamble()));
        there.take(b" and more", Some(preamble()));
        // What may still become a preamble is kept.
        let mut expected = [words, b" and more"].concat();
        expected.truncate(there.seen.len());
        assert!(there.layer.is_foreign() && there.seen == expected && there.layer.output().is_empty());
    }
    let mut here = LayerSide::connecting(security(1, None));
    here.take(b"HTTP/1.0 400 Bad Request", None);
    assert!(here.layer.is_foreign() && here.seen == b"HTTP/1.0 400 Bad Request");
}

proptest! {
    /// Whatever comes, in whatever pieces: what begins as the run's own connections do is not seen unproven.
    #[test]
    fn no_bytes_are_let_through(
        begins: bool,
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..6),
        known: bool,
    ) {
        let mut there = LayerSide::accepted(security(1, None));
        if begins {
            there.take(&preamble().encode(), known.then(preamble));
        }
        for piece in &pieces {
            there.take(piece, known.then(preamble));
            if there.end.is_some() {
                break;
            }
        }
        prop_assert!(!there.layer.is_open());
        prop_assert!(!there.seen.starts_with(&preamble().encode()));
        prop_assert!(!begins || there.seen.is_empty());
    }

    #[test]
    fn no_answer_is_taken_from_strangers(
        begins: bool,
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..6),
    ) {
        let mut here = LayerSide::connecting(security(1, Some(1)));
        if begins {
            here.take(&answer_to(preamble().encode()), None);
        }
        for piece in &pieces {
            here.take(piece, None);
            if here.end.is_some() {
                break;
            }
        }
        prop_assert!(!here.layer.is_open() && (!begins || here.seen.is_empty()));
    }
}

/// The connection is there before anything was said, and nothing has come: that is no word of the other side.
#[test]
fn nothing_that_comes_ends_nothing() {
    for mut layer in [SecureLayer::connecting(), SecureLayer::accepted()] {
        let (security, mut seen) = (security(1, None), Vec::new());
        let received = layer.receive(&[], (&security, Some(preamble())), || [1; RANDOM_BYTES], &mut seen);
        assert!(received.is_ok() && seen.is_empty() && !layer.is_foreign());
    }
}
