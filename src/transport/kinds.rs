//! Which ranks are alike, so that what holds between two of them is found once and not for every pair: a host of many
//! ranks has many pairs, and all of its ranks look at all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{DeviceSet, Distance, PeerFacts, TransportId};
use crate::sys::PciPlace;

/// What decides how a rank is connected with others, but for its process and its device.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Traits<'a> {
    host: (&'a str, &'a str, u64, u64),
    transports: &'a [TransportId],
    listens: bool,
    level: Distance,
    network: Option<&'a Result<String, String>>,
    place: &'a PciPlace,
    /// Numbers of its lists of devices among those that there are: reached over NVLink, not reached.
    lists: (usize, usize),
    /// The numbers of the lists that its device is in.
    is_in: (BTreeSet<usize>, BTreeSet<usize>),
    /// A rank with which something does not work is like no other.
    alone: Option<u32>,
}

/// The different lists of devices among those of all ranks.
struct Lists<'a>(Vec<&'a DeviceSet>);

impl<'a> Lists<'a> {
    fn of(all: impl Iterator<Item = &'a DeviceSet>) -> Lists<'a> {
        let mut lists = Lists(Vec::new());
        for list in all {
            if lists.number(list) == lists.0.len() {
                lists.0.push(list);
            }
        }
        lists
    }

    fn number(&self, list: &DeviceSet) -> usize {
        self.0.iter().position(|known| *known == list).unwrap_or(self.0.len())
    }

    fn that_have(&self, uuid: &[u8; 16]) -> BTreeSet<usize> {
        (0..self.0.len()).filter(|number| self.0[*number].contains(uuid)).collect()
    }
}

/// Pairs of ranks that stand for all pairs: for any other pair there is one of these that differs from it in nothing
/// that decides how the two are connected. Places in `facts`, the lower first.
pub fn distinct_pairs(facts: &[PeerFacts]) -> Vec<(usize, usize)> {
    let kinds = kinds(facts);
    let count = kinds.iter().max().map_or(0, |most| most + 1);
    let mut seen = vec![false; count * count];
    let mut pairs = Vec::new();
    for (b, high) in facts.iter().enumerate() {
        for (a, low) in facts[..b].iter().enumerate() {
            // Threads of a process, and ranks on one device, are a matter of their own.
            let apart = low.process != high.process && low.uuid != high.uuid;
            if !apart || !std::mem::replace(&mut seen[kinds[a] * count + kinds[b]], true) {
                pairs.push((a, b));
            }
        }
    }
    pairs
}

/// A number for each rank, which those that are alike share.
fn kinds(facts: &[PeerFacts]) -> Vec<usize> {
    let linked = Lists::of(facts.iter().map(|peer| &peer.reach.linked));
    let unreachable = Lists::of(facts.iter().map(|peer| &peer.reach.unreachable));
    let mut known = BTreeMap::new();
    let mut kinds = Vec::with_capacity(facts.len());
    for traits in facts.iter().map(|peer| Traits::of(peer, &linked, &unreachable)) {
        let next = known.len();
        kinds.push(*known.entry(traits).or_insert(next));
    }
    kinds
}

impl<'a> Traits<'a> {
    fn of(peer: &'a PeerFacts, linked: &Lists<'_>, unreachable: &Lists<'_>) -> Traits<'a> {
        let (host, reach) = (&peer.host, &peer.reach);
        Traits {
            host: (&host.name, &host.boot_id, host.network_namespace, host.pid_namespace),
            transports: &peer.transports,
            listens: peer.location.tcp.is_some(),
            level: reach.level,
            network: reach.network.as_ref(),
            place: &reach.place,
            lists: (linked.number(&reach.linked), unreachable.number(&reach.unreachable)),
            is_in: (linked.that_have(&peer.uuid), unreachable.that_have(&peer.uuid)),
            alone: (!reach.excluded.is_empty()).then_some(peer.rank),
        }
    }
}
