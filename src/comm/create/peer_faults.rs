//! Between which ranks peer memory does not work, for the log.

use std::collections::BTreeMap;

use crate::transport::{self, COPY_LIMIT, PeerFacts, PeerFault};

/// Pairs of ranks that a line names one by one.
const NAMED_MAX: usize = 4;

/// What a rank has found about a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PairFault {
    /// The rank that has found it.
    pub by: u32,
    pub peer: u32,
    pub fault: PeerFault,
}

impl PairFault {
    /// The two ranks, the lower one first.
    pub fn pair(&self) -> (u32, u32) {
        (self.by.min(self.peer), self.by.max(self.peer))
    }

    /// What is wrong, in words; faults of one kind between other ranks have the same.
    fn words(&self) -> String {
        match &self.fault {
            PeerFault::Refused(why) => why.clone(),
            PeerFault::Stuck => format!("copies do not end within {} s", COPY_LIMIT.as_secs()),
            PeerFault::WriteLost => "what one writes does not arrive at the other".to_string(),
            PeerFault::ReadWrong => "one reads something else than what the other has".to_string(),
        }
    }
}

/// Tells of the pairs of which this rank is the lower one: a line for each thing that is wrong.
pub(super) fn tell(me: u32, faults: &[PairFault], facts: &[PeerFacts]) {
    for line in lines(me, faults, facts) {
        match line {
            (true, text) => log::warn!("{text}"),
            (false, text) => log::info!(target: "INIT,P2P", "{text}"),
        }
    }
}

/// Tells of the pairs of which this rank is the lower one and whose devices are too far from each other.
pub(super) fn tell_too_far(me: u32, facts: &[PeerFacts]) {
    let own = &facts[me as usize];
    let far = facts.iter().filter(|peer| peer.rank > me).filter_map(|peer| {
        transport::too_far(own, peer).map(|distance| format!("rank {} ({})", peer.rank, distance.name()))
    });
    let far: Vec<String> = far.collect();
    if !far.is_empty() {
        let (peers, level) = (far.join(", "), own.reach.level.name());
        log::info!(
            target: "INIT,P2P",
            "P2P is not used between rank {me} and {peers}: farther than {level} (NCCL_P2P_LEVEL)"
        );
    }
}

/// The lines, and whether each is a warning: a driver that says that peer memory works, and it does not.
fn lines(me: u32, faults: &[PairFault], facts: &[PeerFacts]) -> Vec<(bool, String)> {
    let mut peers: BTreeMap<u32, (bool, String)> = BTreeMap::new();
    for fault in faults.iter().filter(|fault| fault.pair().0 == me) {
        let wrong = !matches!(fault.fault, PeerFault::Refused(_));
        peers.entry(fault.pair().1).or_insert_with(|| (wrong, fault.words()));
    }
    let mut kinds: BTreeMap<(bool, String), Vec<u32>> = BTreeMap::new();
    peers.into_iter().for_each(|(peer, kind)| kinds.entry(kind).or_default().push(peer));
    let line = |((wrong, words), peers): ((bool, String), Vec<u32>)| (wrong, line(me, &peers, (wrong, &words), facts));
    kinds.into_iter().map(line).collect()
}

fn line(me: u32, peers: &[u32], (wrong, words): (bool, &str), facts: &[PeerFacts]) -> String {
    let name = |rank: u32| {
        let PeerFacts { nvml_device: device, bus_id, .. } = &facts[rank as usize];
        format!("rank {rank} (device {device}, busId {bus_id:x})")
    };
    let mut named: Vec<String> = peers.iter().take(NAMED_MAX).map(|peer| name(*peer)).collect();
    if peers.len() > NAMED_MAX {
        named.push(format!("{} more", peers.len() - NAMED_MAX));
    }
    let mut instead: Vec<&str> =
        peers.iter().filter_map(|peer| transport::label(&facts[me as usize], &facts[*peer as usize])).collect();
    instead.dedup();
    let instead = if instead.is_empty() { "nothing" } else { &instead.join(", ") };
    let text = format!("P2P does not work between {} and {}: {words}; using {instead}", name(me), named.join(", "));
    match wrong {
        true => format!(
            "{text}. The driver says that the devices reach each other: PCI Access Control Services (ACS) or an IOMMU \
             (VT-d, AMD-Vi) often redirect what goes between them; disable them, or set NCCL_P2P_DISABLE=1"
        ),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::peers::tests::peers;

    #[test]
    fn the_lower_rank_tells_once_of_each_kind() {
        let facts = peers(1);
        let fault = |by, peer, fault| PairFault { by, peer, fault };
        let faults = [fault(1, 0, PeerFault::WriteLost), fault(0, 1, PeerFault::ReadWrong)];
        let said = lines(0, &faults, &facts);
        assert_eq!(said.len(), 1);
        let (warns, text) = &said[0];
        let start = "P2P does not work between rank 0 (device 0, busId 0) and rank 1 (device 1, busId 1): \
                     what one writes does not arrive at the other; using P2P/IPC. ";
        assert!(*warns && text.starts_with(start) && text.contains("ACS"), "{text}");
        assert_eq!(lines(1, &faults, &facts), []);
        let refused = [fault(0, 1, PeerFault::Refused("no".into()))];
        assert!(matches!(&lines(0, &refused, &facts)[..], [(false, text)] if text.ends_with("no; using P2P/IPC")));
    }
}
