//! What a rank makes of the facts of all ranks: whether they can form a communicator, and what they agree on.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Once, OnceLock};

use crate::error::Error;
use crate::plan::layout::Proto;
use crate::sys;
use crate::transport::{self, PeerFacts};
use crate::tuning::{Agreed, LinkKind, SimpleInstead};

/// A random number of this process, by which ranks know that they are threads of one process.
pub(super) fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(sys::random)
}

/// Refuses two ranks on one device, as NCCL does, unless the user allows it.
pub(super) fn check_devices(peers: &[PeerFacts], me: u32, allowed: bool) -> Result<(), Error> {
    if allowed {
        return Ok(());
    }
    let mut seen = HashMap::new();
    for peer in peers {
        let device = (&peer.host.name, &peer.host.boot_id, peer.uuid);
        if let Some(first) = seen.insert(device, peer.rank) {
            return Err(Error::InvalidUsage(format!(
                "Duplicate GPU detected : rank {first} and rank {} both on CUDA device {:x} of {} (seen by rank {me}); \
                 give each rank its own device, or set NCCL_MULTI_RANK_GPU_ENABLE=1",
                peer.rank, peer.bus_id, peer.host.name
            )));
        }
    }
    Ok(())
}

/// Refuses ranks of which one has no network, and ranks with different ones that would have to use them.
pub(super) fn check_networks(peers: &[PeerFacts]) -> Result<(), Error> {
    let mut by_network: BTreeMap<&Result<String, String>, Vec<&PeerFacts>> = BTreeMap::new();
    for peer in peers {
        if let Some(network) = &peer.reach.network {
            by_network.entry(network).or_default().push(peer);
        }
    }
    if let Some((why, peers)) = by_network.iter().find_map(|(network, peers)| Some((network.as_ref().err()?, peers))) {
        return Err(Error::InvalidUsage(format!("{why} ({})", named(peers))));
    }
    let used = |a: &PeerFacts, b: &PeerFacts| a.reach.network != b.reach.network && transport::over_network(a, b);
    if by_network.len() < 2 || !transport::distinct_pairs(peers).iter().any(|(a, b)| used(&peers[*a], &peers[*b])) {
        return Ok(());
    }
    let one = |(network, peers): (&&Result<String, String>, &Vec<&PeerFacts>)| {
        format!("{} on {}", network.as_deref().unwrap_or_default(), named(peers))
    };
    let networks: Vec<String> = by_network.iter().map(one).collect();
    Err(Error::InvalidUsage(format!(
        "ranks use different networks: {}; all need the same plug-in and NCCL_NET (NCCL_DEBUG=INFO says why a rank has \
         not taken one)",
        networks.join(", ")
    )))
}

/// Some ranks with their hosts, for a message.
fn named(peers: &[&PeerFacts]) -> String {
    const NAMED_MAX: usize = 8;
    let names = peers.iter().take(NAMED_MAX).map(|peer| format!("rank {} of {}", peer.rank, peer.host.name));
    let more = peers.len().checked_sub(NAMED_MAX).filter(|more| *more > 0).map(|more| format!("{more} more"));
    names.chain(more).collect::<Vec<_>>().join(", ")
}

/// What all ranks will do (a difference between their variables has been warned of).
pub(super) fn agree(peers: &[PeerFacts]) -> Agreed {
    let pairs = transport::distinct_pairs(peers);
    let mut agreed = Agreed {
        oversubscription: oversubscription(peers),
        // Over PCIe, loads from a peer's memory are slow.
        maps_buffers: peers.iter().all(|peer| peer.registers) && all_pairs(peers, &pairs, transport::keeps_lines_whole),
        ..Agreed::of(peers.iter().map(|peer| &peer.tuning))
    };
    if agreed.may_use(Proto::Ll128) && !all_pairs(peers, &pairs, transport::keeps_lines_whole) {
        warn_of_simple(agreed.without_whole_lines());
    }
    if agreed.may_use(Proto::Ll) && !all_pairs(peers, &pairs, transport::carries_lines) {
        warn_of_simple(agreed.without_lines());
    }
    agreed
}

/// What joins the devices of ranks that share a host: the slowest kind of link between any two.
pub(super) fn link_kind(peers: &[PeerFacts], hosts: &[u32]) -> LinkKind {
    let mut pairs = transport::distinct_pairs(peers);
    pairs.retain(|(a, b)| hosts[*a] == hosts[*b]);
    if all_pairs(peers, &pairs, transport::keeps_lines_whole) {
        LinkKind::NvLink
    } else if all_pairs(peers, &pairs, transport::maps_buffers) {
        LinkKind::Pcie
    } else {
        LinkKind::HostMemory
    }
}

/// By rank, the number of its host, as far as schedules go: ranks that reach common memory share one. Containers of one
/// host that are connected by sockets are hosts of their own.
pub(super) fn hosts(peers: &[PeerFacts]) -> Vec<u32> {
    // The first rank of each host, by what must be alike at least.
    let mut first: HashMap<(&str, &str), Vec<&PeerFacts>> = HashMap::new();
    let mut numbers = Vec::with_capacity(peers.len());
    for peer in peers {
        let known = first.entry((&peer.host.name, &peer.host.boot_id)).or_default();
        let shares = known.iter().find(|other| transport::carries_lines(other, peer));
        numbers.push(shares.map_or(peer.rank, |other| other.rank));
        if shares.is_none() {
            known.push(peer);
        }
    }
    numbers
}

/// Tells, once in a process, that Simple is used in place of what `NCCL_PROTO` leaves.
pub(super) fn warn_of_simple(instead_of: SimpleInstead) {
    static WARNED: Once = Once::new();
    if let Some(left) = instead_of {
        WARNED.call_once(|| log::warn!("NCCL_PROTO leaves {left}; using Simple"));
    }
}

fn all_pairs(peers: &[PeerFacts], pairs: &[(usize, usize)], hold: fn(&PeerFacts, &PeerFacts) -> bool) -> bool {
    pairs.iter().all(|(a, b)| hold(&peers[*a], &peers[*b]))
}

/// The most ranks for each processor of a host.
fn oversubscription(peers: &[PeerFacts]) -> u32 {
    let mut hosts = HashMap::new();
    for peer in peers {
        let (ranks, cpus) = hosts.entry((&peer.host.name, &peer.host.boot_id)).or_insert((0u32, u32::MAX));
        (*ranks, *cpus) = (*ranks + 1, peer.cpus.min(*cpus));
    }
    hosts.values().map(|(ranks, cpus)| ranks.div_ceil((*cpus).max(1))).max().unwrap_or(1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sys::HostFacts;
    use crate::transport::{PeerReach, TransportId};
    use crate::tuning::{FUNCTIONS, Preferences};

    const SIMPLE: u8 = 1 << Proto::Simple as u8;
    const LL: u8 = 1 << Proto::Ll as u8;
    const LL128: u8 = 1 << Proto::Ll128 as u8;

    /// Two processes of one host with a device each.
    pub fn peers(protos: u8) -> Vec<PeerFacts> {
        let one = |rank: u32| PeerFacts {
            rank,
            host: HostFacts {
                name: "a".into(),
                boot_id: "b".into(),
                network_namespace: 1,
                pid_namespace: 2,
                pid: rank,
            },
            process: u64::from(rank),
            device: rank as i32,
            nvml_device: rank as i32,
            context: 0,
            uuid: [rank as u8; 16],
            bus_id: u64::from(rank),
            capability: 90,
            reach: PeerReach { linked: vec![[0; 16], [1; 16]].into(), ..PeerReach::default() },
            location: crate::proxy::Location { mailbox: [rank as u8; 16], tcp: None },
            transports: vec![TransportId::Direct, TransportId::Ipc, TransportId::Shm],
            links: u64::from(rank),
            registers: true,
            tuning: Preferences {
                channels: 2 + rank,
                slot_bytes: 8192 >> rank,
                message_channels: 1,
                message_line_bytes: 0,
                halvings: rank,
                candidates: vec![(!0, protos); FUNCTIONS.len()],
            },
            cpus: 2 - rank,
        };
        (0..2).map(one).collect()
    }

    /// Whether ranks that have chosen these networks, and use them or not, may go on.
    fn networks(chosen: [Result<&str, &str>; 2], over_network: bool) -> Result<(), String> {
        let mut all = peers(SIMPLE);
        for (peer, network) in all.iter_mut().zip(chosen) {
            peer.reach.network = Some(network.map(str::to_string).map_err(str::to_string));
            if over_network {
                peer.transports = vec![TransportId::Net];
                let listens = Some((std::net::IpAddr::from([10, 0, 0, 1]), 1u16, 0u32, 1u128, false));
                let listens = postcard::to_stdvec(&listens).unwrap();
                peer.location.tcp = postcard::from_bytes(&listens).unwrap();
            }
        }
        check_networks(&all).map_err(|error| {
            assert_eq!(error.code(), crate::error::Code::InvalidUsage);
            error.to_string()
        })
    }

    #[test]
    fn ranks_that_use_a_network_need_the_same() {
        for over_network in [false, true] {
            assert_eq!(networks([Ok("A"), Ok("A")], over_network), Ok(()));
            let text = networks([Ok("A"), Err("Failed to initialize any NET plugin: so")], over_network).unwrap_err();
            assert_eq!(text, "Failed to initialize any NET plugin: so (rank 1 of a)");
        }
        // Within one host nobody uses them.
        assert_eq!(networks([Ok("A"), Ok("B")], false), Ok(()));
        let text = networks([Ok("Test"), Ok("Socket")], true).unwrap_err();
        assert!(
            text.starts_with("ranks use different networks: Socket on rank 1 of a, Test on rank 0 of a; "),
            "{text}"
        );
    }

    #[test]
    fn a_way_is_open_where_all_leave_it_open() {
        for protos in [SIMPLE, LL, SIMPLE | LL, LL128, SIMPLE | LL | LL128] {
            let agreed = agree(&peers(protos));
            assert_eq!(
                (agreed.channels, agreed.slot_bytes, agreed.oversubscription, agreed.filters.protocols()),
                (2, 4096, 2, protos)
            );
        }
        let mut mixed = peers(LL);
        mixed[1].tuning.candidates = vec![(!0, SIMPLE); FUNCTIONS.len()];
        assert_eq!(agree(&mixed).filters.protocols(), SIMPLE);
        mixed[1].tuning.candidates = Vec::new();
        assert_eq!(agree(&mixed).filters.protocols(), SIMPLE);
    }

    #[test]
    fn ranks_with_common_memory_share_a_host() {
        let mut all = peers(SIMPLE);
        assert_eq!((hosts(&all), link_kind(&all, &[0, 0])), (vec![0, 0], LinkKind::NvLink));
        all.iter_mut().for_each(|peer| peer.transports.push(TransportId::Net));
        all[1].host.boot_id = "c".into();
        assert_eq!((hosts(&all), link_kind(&all, &[0, 1])), (vec![0, 1], LinkKind::NvLink));
        // Nothing but a network between ranks of one host, who listen.
        let mut all = peers(SIMPLE);
        let address = postcard::to_stdvec(&(std::net::IpAddr::from([127, 0, 0, 1]), 1u16, 0u32, 0u128, false));
        let tcp = postcard::from_bytes(&address.expect("bytes")).expect("an address");
        all.iter_mut().for_each(|peer| (peer.transports, peer.location.tcp) = (vec![TransportId::Net], Some(tcp)));
        assert_eq!(hosts(&all), [0, 1]);
    }

    #[test]
    fn buffers_are_mapped_where_all_may() {
        let agreed = |change: fn(&mut PeerFacts)| {
            let mut all = peers(SIMPLE);
            change(&mut all[1]);
            agree(&all).maps_buffers
        };
        // Over PCIe it would be slow.
        assert!(!agreed(|peer| peer.reach.linked = Default::default()));
        assert!(!agreed(|peer| peer.registers = false));
        assert!(!agreed(|peer| peer.transports = vec![TransportId::Shm]));
        assert!(!agreed(|peer| peer.host.boot_id = "c".into()));
    }

    #[test]
    fn ll128_needs_lines_that_arrive_whole() {
        let agreed = |protos: u8, change: fn(&mut PeerFacts)| {
            let mut all = peers(protos);
            change(&mut all[1]);
            agree(&all).filters.protocols()
        };
        assert_eq!(agreed(LL128, |_| {}), LL128);
        // Over PCIe, in shared memory, and on two hosts.
        assert_eq!(agreed(LL128, |peer| peer.reach.linked = vec![peer.uuid].into()), SIMPLE);
        assert_eq!(agreed(LL128, |peer| peer.transports = vec![TransportId::Shm]), SIMPLE);
        assert_eq!(agreed(LL128 | LL, |peer| peer.host.boot_id = "c".into()), LL);
        // Two ranks on one device.
        assert_eq!(agreed(LL128, |peer| (peer.uuid, peer.reach.linked) = ([0; 16], vec![[0; 16]].into())), LL128);
    }
}
