//! What comes from the network and is not what it should be: every decoder, and machines on connections that corrupt.
//!
//! Decoders of the bootstrap: preamble and visitor (`stranger`), frames (`Reader`), check-in, announcement, welcome,
//! failure, hello of a member, blocks over the tree with what they share, pieces of a block (both rings), refusals,
//! messages, and what roots tell each other. All are here or in `units`.

use std::time::Duration;

use proptest::prelude::*;
use rand::RngExt;

use super::super::checkin::{Announcement, CheckIn, Entry, Welcome};
use super::super::failure::Failure;
use super::super::member;
use super::super::roots::{Algorithm, Everyone, RootAddress, RootHello, RootPlace, Summary};
use super::super::stranger;
use super::super::wire::{Decoder, HEADER, Service};
use super::simulation::seeds;
use super::world::{MAGIC, World};

fn decode_as_anything(bytes: &[u8]) {
    let _ = (CheckIn::decode(bytes), Announcement::decode(bytes), Welcome::decode(bytes), Failure::decode(bytes));
    let _ = (RootHello::decode(bytes), Summary::decode(bytes), Everyone::decode(bytes));
    let _ = RootPlace::decode(&mut Decoder(bytes));
    let _ = (stranger::identify(bytes, MAGIC, Service::Root), stranger::identify(bytes, MAGIC, Service::Peer));
    for nranks in [1, 3, 1000] {
        member::decode_as_anything(bytes, nranks);
    }
}

fn place() -> impl Strategy<Value = RootPlace> {
    (1u32..40, any::<u32>(), any::<u64>(), any::<[u8; 4]>(), 1..u16::MAX).prop_map(
        |(count, index, digest, ip, port)| {
            let index = index % count;
            let address = std::net::SocketAddr::from(([10, ip[1], ip[2], ip[3]], port));
            let above = RootAddress { address, magic: digest, secret: [ip[0]; 32] };
            RootPlace { index, count, digest, above: (index > 0).then_some(above) }
        },
    )
}

fn summary() -> impl Strategy<Value = Summary> {
    let settings = prop::collection::vec(("[A-Z_]{1,9}", "[ -~]{0,9}"), 0..4);
    let ranges = prop::collection::vec((0u32..99).prop_map(|start| start..start + 3), 0..4);
    (prop::collection::vec((settings, ranges), 0..4), 0usize..4, any::<bool>()).prop_map(
        |(settings, listening, both)| {
            let entry = |rank: u32| Entry {
                address: std::net::SocketAddr::from(([10, 0, 0, 1], 1 + rank as u16)),
                interface: "eth0".to_string(),
                facts: Vec::new(),
            };
            Summary {
                listening: (0..listening as u32).map(|rank| (rank, entry(rank))).collect(),
                settings,
                local: both.then(|| ("rank 1".to_string(), (1, entry(1)), "10.0.0.9".to_string())),
                remote: both.then(|| ("rank 2".to_string(), "10.0.0.8".to_string())),
            }
        },
    )
}

proptest! {
    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        decode_as_anything(&bytes);
    }

    /// What roots say comes back; with a wrong byte, or cut short, it is an error or something else, never a panic.
    #[test]
    fn what_roots_say_comes_back(
        place in place(), summary in summary(), nranks in 40u32..9999, version in any::<u32>(), ring in any::<bool>(),
        at in any::<prop::sample::Index>(), value in any::<u8>(),
    ) {
        let algorithm = if ring { Algorithm::Ring } else { Algorithm::Tree };
        let hello = RootHello { place, nranks, version, algorithm, witness: "rank 3 (host:7, 10.0.0.1)".to_string() };
        prop_assert_eq!(RootHello::decode(&hello.encode()[HEADER..]), Ok(hello.clone()));
        prop_assert_eq!(Summary::decode(&summary.encode()[HEADER..]), Ok(summary.clone()));
        let everyone = Everyone { token: u64::from(version), listening: summary.listening.clone() };
        prop_assert_eq!(Everyone::decode(&everyone.encode()[HEADER..]), Ok(everyone.clone()));
        for frame in [hello.encode(), summary.encode(), everyone.encode()] {
            let mut bytes = frame[HEADER..].to_vec();
            let at = at.index(bytes.len());
            decode_as_anything(&bytes[..at]);
            bytes[at] = value;
            decode_as_anything(&bytes);
        }
    }
}

/// Bytes that change on their way, on any connection and at any moment: nobody panics, whatever becomes of the ranks.
#[test]
fn corrupting_networks_are_survived() {
    for seed in seeds(2_000, 20_000) {
        let nranks = 2 + (seed % 11) as u32;
        let roots = 1 + (seed / 11) as u32 % nranks.min(4);
        let mut config = World::root_config();
        config.timeout = Some(Duration::from_secs(5));
        let mut world = World::with_roots(seed, nranks, config, roots);
        (world.rounds, world.exchange) = (0, false);
        world.corrupting = [0.001, 0.01, 0.1, 0.5][seed as usize % 4];
        world.algorithm = if seed.is_multiple_of(3) { Algorithm::Ring } else { Algorithm::Tree };
        for rank in 0..nranks {
            let at = Duration::from_millis(world.rng.random_range(0..100));
            let config = world.member(rank as usize, rank, nranks);
            world.start(rank as usize, config, at);
        }
        world.run_until(Duration::from_secs(30));
    }
}
