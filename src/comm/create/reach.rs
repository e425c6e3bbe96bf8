//! Which ranks that look like ranks of one host really reach each other.
//!
//! Names, boot ids and numbers of namespaces can be alike by chance, by `NCCL_HOSTID`, in copies of a virtual machine,
//! or where `/proc` does not tell. A mailbox that can be opened is the proof: it is in the same network namespace of
//! the same kernel, so that descriptors can be passed.

use std::collections::HashMap;

use super::build::encode;
use crate::bootstrap::Bootstrap;
use crate::error::Error;
use crate::sys::can_reach;
use crate::transport::PeerFacts;

/// What a namespace is called that was told apart from another one of the same number; the kernel has none there.
const PARTED: u64 = 1 << 63;

/// All ranks try the mailboxes of those with which they seem to share a host, and tell each other. Those that do not
/// reach each other count as ranks in different network namespaces from here on.
///
/// # Errors
/// As [`Bootstrap::all_gather`].
pub(super) fn confirm(bootstrap: &Bootstrap, me: u32, peers: &mut [PeerFacts]) -> Result<(), Error> {
    // All ranks know alike whether there is anything to find out.
    if !has_neighbours(peers) {
        return Ok(());
    }
    let seem_near = |a: &PeerFacts, b: &PeerFacts| a.process != b.process && a.host.can_pass_descriptors(&b.host);
    let own = &peers[me as usize];
    let out_of_reach = |peer: &&PeerFacts| seem_near(own, peer) && !can_reach(&peer.location.mailbox);
    let missing: Vec<u32> = peers.iter().filter(out_of_reach).map(|peer| peer.rank).collect();
    let said = bootstrap.all_gather(&encode(&missing)?)?;
    let unreadable = |rank| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable list") };
    let read = |(rank, bytes): (u32, &Vec<u8>)| postcard::from_bytes(bytes).map_err(|_| unreadable(rank));
    let missing = (0..).zip(&said).map(read).collect::<Result<Vec<Vec<u32>>, Error>>()?;
    part(peers, &missing);
    if let Some(peer) = missing[me as usize].first() {
        log::info!(
            target: "INIT,NET",
            "rank {me} and rank {peer} seem to be on one host ({}), but one cannot open the other's socket: no memory \
             is shared between them",
            peers[*peer as usize].host.name
        );
    }
    Ok(())
}

/// Whether two processes seem to share a host.
fn has_neighbours(peers: &[PeerFacts]) -> bool {
    let mut processes = HashMap::new();
    peers.iter().any(|peer| {
        let place = (&peer.host.name, &peer.host.boot_id, peer.host.network_namespace);
        *processes.entry(place).or_insert(peer.process) != peer.process
    })
}

/// `missing`: by rank, whom it does not reach.
fn part(peers: &mut [PeerFacts], missing: &[Vec<u32>]) {
    if missing.iter().all(Vec::is_empty) {
        return;
    }
    let reach = |a: usize, b: usize| {
        let hosts = [&peers[a].host, &peers[b].host];
        hosts[0].can_pass_descriptors(hosts[1])
            && ![(a, b), (b, a)].iter().any(|(a, b)| missing[*a].contains(&(*b as u32)))
    };
    // Who reaches the first of some ranks reaches all of them.
    let mut firsts: Vec<usize> = Vec::new();
    let mut places = Vec::new();
    for rank in 0..peers.len() {
        let first = firsts.iter().copied().find(|first| reach(*first, rank)).unwrap_or(rank);
        if first == rank {
            firsts.push(rank);
        }
        places.push(PARTED | first as u64);
    }
    peers.iter_mut().zip(places).for_each(|(peer, place)| peer.host.network_namespace = place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::peers::tests::peers;

    #[test]
    fn who_does_not_reach_a_rank_is_elsewhere() {
        let near = |missing: &[&[u32]]| {
            let mut all = peers(7);
            let second = all[0].clone();
            all = (0..missing.len() as u32).map(|rank| PeerFacts { rank, ..second.clone() }).collect();
            part(&mut all, &missing.iter().map(|list| list.to_vec()).collect::<Vec<_>>());
            let near = |a: usize, b: usize| all[a].host.can_pass_descriptors(&all[b].host);
            [near(0, 1), near(0, 2), near(1, 2)]
        };
        assert_eq!(near(&[&[], &[], &[]]), [true; 3]);
        assert_eq!(near(&[&[], &[0], &[0]]), [false, false, true]);
        assert_eq!(near(&[&[1, 2], &[], &[]]), [false, false, true]);
        assert_eq!(near(&[&[1], &[], &[1]]), [false, true, false]);
        assert_eq!(near(&[&[1, 2], &[2], &[]]), [false; 3]);
    }
}
