//! Both sides of handshakes, and somebody between them.

use proptest::prelude::*;

use super::*;

const CONTEXT: &[u8] = b"a connection for tests";

fn secret(number: u8) -> Secret {
    Secret::new([number; 32])
}

fn key(number: u8) -> UserKey {
    UserKey::new(&[number; 40])
}

fn connect(protection: &Protection, seed: u8) -> SecureHandshake {
    SecureHandshake::connect(CONTEXT, &secret(1), protection.clone(), [seed; RANDOM_BYTES])
}

fn accept(protection: &Protection, seed: u8) -> SecureHandshake {
    SecureHandshake::accept(CONTEXT, &secret(1), protection.clone(), [seed; RANDOM_BYTES])
}

/// What a side makes of some bytes: its end of the connection, once it is there.
fn give(side: &mut SecureHandshake, bytes: &[u8]) -> Result<Option<Option<Box<Session>>>, Refused> {
    let mut rest = bytes;
    let progress = side.receive(&mut rest)?;
    assert!(rest.is_empty() || matches!(progress, HandshakeProgress::Met(_)) || side.missing() > 0);
    Ok(match progress {
        HandshakeProgress::More => None,
        HandshakeProgress::Met(session) => Some(session),
    })
}

type HandshakeEnd = Result<Option<Box<Session>>, Refused>;

/// Lets two sides talk to their ends; somebody may change each of the three messages.
fn talk(
    mut here: SecureHandshake,
    mut there: SecureHandshake,
    mut between: impl FnMut(usize, &mut Vec<u8>),
) -> (Option<HandshakeEnd>, Option<HandshakeEnd>) {
    let (mut ends, mut message) = ((None, None), here.output());
    for number in 0..3 {
        between(number, &mut message);
        let (side, end) = if number == 1 { (&mut here, &mut ends.0) } else { (&mut there, &mut ends.1) };
        match give(side, &message) {
            Ok(None) => {}
            Ok(Some(session)) => *end = Some(Ok(session)),
            Err(refused) => *end = Some(Err(refused)),
        }
        message = side.output();
    }
    ends
}

fn why(end: Option<HandshakeEnd>) -> Option<Refused> {
    end.and_then(Result::err)
}

fn all() -> [Protection; 3] {
    [Protection::Plain, Protection::Sealed, Protection::Encrypted(key(7))]
}

#[test]
fn who_knows_the_secret_meets_and_what_is_sealed_opens() {
    for protection in all() {
        let (here, there) = talk(connect(&protection, 1), accept(&protection, 2), |_, _| {});
        let (here, there) = (here.expect("an end").expect("met"), there.expect("an end").expect("met"));
        assert_eq!(
            (here.is_some(), there.is_some()),
            (protection != Protection::Plain, protection != Protection::Plain)
        );
        let (Some(mut here), Some(mut there)) = (here, there) else { continue };
        let plain: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
        let mut records = Vec::new();
        here.seal_all(&plain, &mut records).expect("sealed");
        assert_eq!(records.len(), plain.len() + 4 * (SEAL_MAX - RECORD_MAX));
        let mut opened = Vec::new();
        there.open_all(&mut records, &mut opened).expect("opened");
        assert!(records.is_empty() && opened == plain);
        // The other way has keys of its own: what comes back from who has sent it is not opened.
        let mut back = Vec::new();
        there.seal_all(b"back", &mut back).expect("sealed");
        assert_eq!(there.open_all(&mut back.clone(), &mut opened), Err(BrokenSeal));
        here.open_all(&mut back, &mut opened).expect("opened");
        assert!(opened.ends_with(b"back"));
    }
}

#[test]
fn records_open_once_and_in_order_alone() {
    let sealed = &Protection::Sealed;
    let (here, there) = talk(connect(sealed, 1), accept(sealed, 2), |_, _| {});
    let (mut here, mut there) = (here.unwrap().unwrap().unwrap(), there.unwrap().unwrap().unwrap());
    let mut record = |bytes: &[u8]| {
        let mut record = Vec::new();
        here.seal_all(bytes, &mut record).expect("sealed");
        record
    };
    let (first, second, third) = (record(b"1"), record(b"2"), record(b"3"));
    let mut open = |record: &[u8]| {
        let mut plain = Vec::new();
        there.open_all(&mut record.to_vec(), &mut plain).map(|()| plain)
    };
    assert_eq!(open(&first), Ok(b"1".to_vec()));
    assert_eq!(open(&first), Err(BrokenSeal), "it came twice");
    assert_eq!(open(&third), Err(BrokenSeal), "one was left out");
    let mut changed = second.clone();
    changed[3] ^= 1;
    assert_eq!(open(&changed), Err(BrokenSeal));
    assert_eq!(open(&[0, 0]), Err(BrokenSeal), "a record without a tag");
}

#[test]
fn who_does_not_know_the_secret_is_a_stranger_on_both_sides() {
    for protection in all() {
        let wrong = |connects: bool| {
            let make = if connects { SecureHandshake::connect } else { SecureHandshake::accept };
            make(CONTEXT, &secret(2), protection.clone(), [9; RANDOM_BYTES])
        };
        // An impostor who accepts: the proof is wrong, or Noise's first message could not be read.
        let (here, there) = talk(connect(&protection, 1), wrong(false), |_, _| {});
        assert!(matches!(why(here), None | Some(Refused::Stranger)));
        assert!(matches!(why(there), None | Some(Refused::Stranger)));
        // An impostor who connects.
        let (here, there) = talk(wrong(true), accept(&protection, 1), |_, _| {});
        assert!(!matches!(here, Some(Ok(_))) && !matches!(there, Some(Ok(_))));
        // The right secret for something else.
        let other = SecureHandshake::accept(b"another", &secret(1), protection.clone(), [9; RANDOM_BYTES]);
        let (here, there) = talk(connect(&protection, 1), other, |_, _| {});
        assert!(!matches!(here, Some(Ok(_))) && !matches!(there, Some(Ok(_))));
    }
}

#[test]
fn ends_that_are_set_otherwise_both_know_it() {
    use Refused::{OtherKey, PeerEncrypts, PeerIsPlain};
    let [plain, sealed, encrypted] = all();
    let other = Protection::Encrypted(key(8));
    for (here, there, expected) in [
        (&encrypted, &sealed, (PeerIsPlain, PeerEncrypts)),
        (&sealed, &encrypted, (PeerEncrypts, PeerIsPlain)),
        (&plain, &sealed, (PeerEncrypts, PeerIsPlain)),
        (&encrypted, &plain, (PeerIsPlain, PeerEncrypts)),
        (&encrypted, &other, (OtherKey, OtherKey)),
    ] {
        let (here, there) = talk(connect(here, 1), accept(there, 2), |_, _| {});
        assert_eq!((why(here), why(there)), (Some(expected.0), Some(expected.1)));
    }
}

/// Whoever changes what the two say of protection has changed the transcript.
#[test]
fn nobody_between_talks_two_ends_into_less_protection() {
    let encrypted = &all()[2];
    for number in 0..3 {
        for place in [0, 1] {
            for value in 0..4 {
                let mut changed = false;
                let (here, there) = talk(connect(encrypted, 1), accept(encrypted, 2), |message, bytes| {
                    if message == number && !bytes.is_empty() {
                        changed |= bytes[place] != value;
                        bytes[place] = value;
                    }
                });
                if changed {
                    // Of the last message who has connected knows nothing; its end is sealed all the same.
                    assert!(number == 2 || !matches!(here, Some(Ok(_))), "{number} {place} {value}");
                    assert!(!matches!(there, Some(Ok(_))), "{number} {place} {value}");
                    // Nor does it make either believe that the other is set otherwise.
                    assert!(matches!(why(here), None | Some(Refused::Stranger)), "{number} {place} {value}");
                    assert!(matches!(why(there), None | Some(Refused::Stranger)), "{number} {place} {value}");
                }
            }
        }
    }
}

#[test]
fn what_was_recorded_is_of_no_use() {
    for protection in all() {
        let mut recorded = Vec::new();
        talk(connect(&protection, 1), accept(&protection, 2), |_, bytes| recorded.push(bytes.clone()));
        // To who accepts: its nonce is another one.
        let mut there = accept(&protection, 3);
        assert!(matches!(give(&mut there, &recorded[0]), Ok(None)));
        assert!(matches!(give(&mut there, &recorded[2]), Err(Refused::Stranger)));
        // To who connects.
        assert!(matches!(give(&mut connect(&protection, 4), &recorded[1]), Err(Refused::Stranger)));
    }
}

#[test]
fn what_is_sent_back_is_of_no_use() {
    for protection in all() {
        // To who connects: its own words, with all lengths.
        let mut here = connect(&protection, 1);
        let own = here.output();
        assert!(!matches!(give(&mut here, &[own.clone(), own].concat()), Ok(Some(_))));
        // By way of another connection to the same listener.
        let (mut here, mut first, mut second) =
            (connect(&protection, 1), accept(&protection, 2), accept(&protection, 3));
        let hello = here.output();
        give(&mut first, &hello).expect("a first message");
        give(&mut second, &hello).expect("a first message");
        let (answer, other) = (first.output(), second.output());
        assert!(matches!(give(&mut here, &answer), Ok(Some(_))));
        assert!(matches!(give(&mut second, &here.output()), Err(Refused::Stranger)));
        // An answer is no proof.
        let wanted = first.missing();
        assert!(matches!(give(&mut first, &other[..wanted]), Err(Refused::Stranger)));
    }
}

#[test]
fn secrets_are_told_apart_and_not_shown() {
    let one = secret(1);
    assert_ne!(one.derive(b"a"), one.derive(b"b"));
    assert_ne!(one.derive(b"a"), secret(2).derive(b"a"));
    assert_ne!(key(1).fingerprint(), key(2).fingerprint());
    assert_eq!(key(1), UserKey::new(&[1; 40]));
    assert_eq!(format!("{:?} {:?}", one, key(1)), "Secret UserKey");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// However what goes over the connection is split.
    #[test]
    fn handshakes_survive_any_split(kind in 0usize..3, splits in prop::collection::vec(1usize..60, 1..20)) {
        let protection = &all()[kind];
        let (mut here, mut there) = (connect(protection, 1), accept(protection, 2));
        let mut ends = [None, None];
        let mut splits = splits.iter().cycle();
        let mut message = here.output();
        for number in 0..3 {
            let side = if number == 1 { &mut here } else { &mut there };
            let mut bytes = &message[..];
            while !bytes.is_empty() {
                let some = (*splits.next().expect("more")).min(bytes.len());
                let met = give(side, &bytes[..some]).expect("no stranger");
                ends[usize::from(number != 1)] = met.map(|session| session.is_some());
                bytes = &bytes[some..];
            }
            message = side.output();
        }
        prop_assert_eq!(ends, [Some(kind > 0), Some(kind > 0)]);
    }

    /// One bit of one message: never do both ends meet, and who accepts never does.
    #[test]
    fn a_changed_transcript_never_authenticates(kind in 0usize..3, number in 0usize..3, place: usize, bit in 0u8..8) {
        let protection = &all()[kind];
        let (here, there) = talk(connect(protection, 1), accept(protection, 2), |message, bytes| {
            if message == number && !bytes.is_empty() {
                let place = place % bytes.len();
                bytes[place] ^= 1 << bit;
            }
        });
        prop_assert!(!matches!(there, Some(Ok(_))));
        prop_assert!(number == 2 || !matches!(here, Some(Ok(_))));
        prop_assert!(matches!(why(there), None | Some(Refused::Stranger)));
    }

    #[test]
    fn any_bytes_are_read_without_harm(
        kind in 0usize..3,
        connects: bool,
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
    ) {
        let mut side = if connects { connect(&all()[kind], 1) } else { accept(&all()[kind], 2) };
        for piece in &pieces {
            let before = side.missing();
            let mut rest = &piece[..];
            match side.receive(&mut rest) {
                Ok(HandshakeProgress::More) => prop_assert!(piece.len() - rest.len() <= before),
                Ok(HandshakeProgress::Met(_)) => prop_assert!(false, "a stranger was let in"),
                Err(refused) => {
                    prop_assert_eq!(refused, Refused::Stranger);
                    prop_assert!(side.output().is_empty());
                }
            }
        }
    }

    #[test]
    fn any_records_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let (_, there) = talk(connect(&Protection::Sealed, 1), accept(&Protection::Sealed, 2), |_, _| {});
        let (mut there, mut plain) = (there.unwrap().unwrap().unwrap(), Vec::new());
        let mut rest = bytes.clone();
        prop_assert!(there.open_all(&mut rest, &mut plain).is_err() || Session::record(&bytes).is_none());
        prop_assert!(plain.is_empty());
    }
}
