//! How two ranks are connected: transports.
//!
//! A *link* carries data from one rank to another: slots, a `posted` counter that says how many are filled, and a
//! `consumed` counter that says how many are empty again. A kernel at either end knows no more than where its slots and
//! counters are ([`LinkAddresses`]). Where that is, and how what one end writes comes to the other, is the transport's
//! affair: memory that both ends reach (P2P, SHM), or memory at each end and a *mover* between them (networks).
//!
//! Links are connected when a call first needs them, group by group ([`ConnectionGroup`]). For each transport that a
//! rank uses in a group it has an [`Endpoint`]: it makes its own end, tells each peer how to connect with it
//! ([`ConnectInfo`], which nobody but the transport reads), takes in what the peers say, and then gives the addresses.
//! Who tells whom when is [`Links`]' business (`handshake`), by messages between event loops. When a communicator is
//! made, ranks only try ([`probe()`]) whether the transports that they have chosen work.
//!
//! A new transport is a file here that implements [`Transport`] and [`Endpoint`], a number in [`TransportId`] and a
//! line in `TRANSPORTS`.

mod blocks;
mod device_set;
mod distance;
mod facts;
mod handshake;
mod kinds;
mod layout;
mod links;
mod memory;
mod net;
mod opened;
mod p2p;
mod probe;
mod shm;
#[cfg(test)]
mod tests;
mod validation;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::plan::wiring::ConnectionGroup;
pub use blocks::{devices_of_released, free_released};
pub use device_set::DeviceSet;
pub use distance::Distance;
pub use facts::{CommonFacts, Connectivity, PeerFacts, PeerReach, exclude_peer_memory};
pub use kinds::distinct_pairs;
pub use links::{Hooks, Links, Told};
pub use net::{SocketInterface, SocketNetwork, SocketSettings};
pub use p2p::PeerBuffer;
pub use probe::{Exchange, Probe, Route, Unconnected, probe, routes};
pub use validation::{LIMIT as COPY_LIMIT, PeerFault};

use crate::device::Context;
use crate::error::Error;
use crate::params;
use crate::plan::wiring::LinkNeed;
use blocks::BlockAllocator;
use memory::{ByMemory, Segment};
use net::Engine;

/// Where the parts of a link are, for kernels of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddresses {
    /// The first slot.
    pub slots: u64,
    /// The sender's counter.
    pub posted: u64,
    /// The receiver's counter.
    pub consumed: u64,
    /// The size of a slot in bytes.
    pub slot_bytes: u32,
    /// The rank at the other end.
    pub peer: u32,
    /// A mover takes what is posted to the other end: it must be told how many bytes a slot holds.
    pub moved: bool,
}

/// A transport, whatever version or build of the library speaks of it. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TransportId {
    /// Memory of a device, by its address: the ranks are threads of one process.
    Direct = 0,
    /// Memory of a device that another process maps.
    Ipc = 1,
    /// Memory of the host that both processes map.
    Shm = 2,
    /// A network, between memory of the host at both ends.
    Net = 3,
}

/// The names of transports in `OXCCL_TRANSPORTS`, and what they stand for.
const NAMES: [(&str, &[TransportId]); 3] =
    [("p2p", &[TransportId::Direct, TransportId::Ipc]), ("shm", &[TransportId::Shm]), ("net", &[TransportId::Net])];

/// All transports, the preferred ones first.
static TRANSPORTS: [&dyn Transport; 4] =
    [&ByMemory(p2p::Direct), &ByMemory(p2p::Ipc), &ByMemory(shm::Shm), &net::ByNetwork];

/// What a peer must know to connect with an end of this rank's. Only the transport reads it.
#[derive(Debug, Default)]
pub struct ConnectInfo {
    /// Some hundred bytes at most.
    pub bytes: Vec<u8>,
    /// What goes with it, between ranks of one host.
    pub fd: Option<Arc<OwnedFd>>,
}

/// What an endpoint is for.
#[derive(Clone)]
pub struct Site {
    /// Where its kernels run.
    pub context: Arc<Context>,
    /// This rank.
    pub rank: u32,
    /// The connection group.
    pub group: ConnectionGroup,
    /// All ranks.
    pub connectivity: Arc<Connectivity>,
    /// Where memory for peers comes from.
    blocks: Arc<BlockAllocator>,
    /// What moves data for transports that have no common memory.
    engine: Arc<Engine>,
}

/// A kind of connection between two ranks.
pub trait Transport: Sync {
    /// Which one it is.
    fn id(&self) -> TransportId;
    /// The name in log lines, as NCCL writes it: `P2P/IPC`.
    fn label(&self) -> &'static str;
    /// The number of the connection in log lines, where they have one.
    fn connection(&self) -> Option<u32> {
        Some(0)
    }
    /// Whether making or mapping an end may wait for what runs on the device.
    fn is_device_memory(&self) -> bool;
    /// Whether peers can map each other's buffers where they have links of this transport.
    fn maps_buffers(&self) -> bool {
        false
    }
    /// Whether lines of LL can be used: each is written whole, by the other end's kernel.
    fn carries_lines(&self) -> bool {
        true
    }
    /// Whether two ranks can use it. Both ranks come to the same answer from the same facts.
    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool;
    /// An end for the links by this transport, which does not hold anything yet.
    fn endpoint(&self, site: Site) -> Result<Arc<dyn Endpoint>, Error>;
    /// Makes a small piece of what links would use, `bytes` bytes, to see whether that works; and what peers must know
    /// of it.
    ///
    /// # Errors
    /// What the driver or the system gives.
    fn probe(&self, context: &Arc<Context>, bytes: usize) -> Result<(Box<dyn Segment>, ConnectInfo), Error>;
    /// Connects with such a piece of a peer's, as far as that can be tried.
    ///
    /// # Errors
    /// As [`Endpoint::accept`].
    fn probe_peer(
        &self,
        context: &Arc<Context>,
        peer: &PeerFacts,
        info: &[u8],
        fd: Option<OwnedFd>,
    ) -> Result<Option<Box<dyn Segment>>, Error>;
}

/// This rank's end of the links of a connection group by one transport. Dropping it frees what is this rank's.
pub trait Endpoint: Send + Sync {
    /// Whether making this rank's end may wait for what runs on the device.
    fn may_wait(&self) -> bool {
        false
    }
    /// Makes this rank's end, once. Gives the bytes of memory that were allocated for it.
    ///
    /// # Errors
    /// What the driver or the system gives when it has no memory.
    fn prepare(&self) -> Result<usize, Error>;
    /// What a peer must know, after [`Endpoint::prepare`]; given to each peer once.
    fn connect_info(&self, peer: u32) -> ConnectInfo;
    /// All peers have been told: what went with that is not needed any more.
    fn offered(&self);
    /// Takes in what a peer has said. From here on that stays, even if the peer dies.
    ///
    /// # Errors
    /// [`Error::Cuda`] where memory cannot be mapped, [`Error::Remote`] where it is not what it should be.
    fn accept(&self, peer: u32, info: &[u8], fd: Option<OwnedFd>) -> Result<(), Error>;
    /// Makes everything usable for kernels, when all peers have been accepted and have accepted this end.
    ///
    /// # Errors
    /// What the driver gives.
    fn connect(&self) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error>;
    /// Gives up what is the peers'. No kernel may use it any more.
    fn disconnect(&self);
}

/// The transport of a number.
fn by_id(id: TransportId) -> &'static dyn Transport {
    TRANSPORTS[id as usize]
}

/// The transports that this process may use, the preferred ones first: those of `OXCCL_TRANSPORTS`, without those that
/// `NCCL_P2P_DISABLE`, `NCCL_P2P_DIRECT_DISABLE` and `NCCL_SHM_DISABLE` switch off.
///
/// # Errors
/// [`Error::InvalidUsage`] where `OXCCL_TRANSPORTS` names what is none.
pub fn allowed() -> Result<Vec<TransportId>, Error> {
    let params = params::snapshot();
    let named = params.text(params::TRANSPORTS).map(named).transpose();
    let mut ids = named.map_err(|why| Error::InvalidUsage(format!("OXCCL_TRANSPORTS: {why}")))?.unwrap_or_else(usual);
    ids.retain(|id| match id {
        TransportId::Direct => !params.flag(params::P2P_DISABLE) && !params.flag(params::P2P_DIRECT_DISABLE),
        TransportId::Ipc => !params.flag(params::P2P_DISABLE),
        TransportId::Shm => !params.flag(params::SHM_DISABLE),
        TransportId::Net => true,
    });
    Ok(ids)
}

/// As far as peer memory of this process reaches: `NCCL_P2P_LEVEL`.
pub fn peer_level() -> Distance {
    let params = params::snapshot();
    let Some(text) = params.text(params::P2P_LEVEL) else { return Distance::USUAL };
    Distance::parse(text).unwrap_or_else(|| {
        log::info!(target: "INIT,ENV", "NCCL_P2P_LEVEL={text} is no level; using {}", Distance::USUAL.name());
        Distance::USUAL
    })
}

/// The transports that ranks may use where nobody asks for others, the preferred ones first.
fn usual() -> Vec<TransportId> {
    vec![TransportId::Direct, TransportId::Ipc, TransportId::Shm, TransportId::Net]
}

/// The transports of a list of names, `OXCCL_TRANSPORTS`, in its order.
///
/// # Errors
/// The name that is none, with those that there are.
fn named(list: &str) -> Result<Vec<TransportId>, String> {
    let mut ids = Vec::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let known = NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let (_, found) = known.ok_or_else(|| format!("'{name}' is no transport: there are p2p, shm and net"))?;
        ids.extend(found.iter().filter(|id| !ids.contains(*id)).copied().collect::<Vec<_>>());
    }
    match ids.is_empty() {
        true => Err("no transport is named: there are p2p, shm and net".to_string()),
        false => Ok(ids),
    }
}

/// The transport for two ranks: the first in the order of the lower rank that both may use and that can connect them.
/// Peer memory is not for devices that are far from each other, or where it has turned out not to work.
///
/// # Errors
/// [`Error::InvalidUsage`] when there is none: the text says what stands in the way.
fn choose(a: &PeerFacts, b: &PeerFacts) -> Result<&'static dyn Transport, Error> {
    let (low, high) = if a.rank < b.rank { (a, b) } else { (b, a) };
    let allowed = low.transports.iter().filter(|id| high.transports.contains(id)).map(|id| by_id(*id));
    let peer_memory = distance::is_near(low, high) && !low.reach.excluded.contains(&high.rank);
    let works = |transport: &&dyn Transport| peer_memory || !transport.is_device_memory();
    allowed
        .into_iter()
        .filter(works)
        .find(|transport| transport.can_connect(low, high))
        .ok_or_else(|| no_transport(a, b))
}

/// What lies between the devices of two ranks, where that alone keeps them from using peer memory.
pub fn too_far(a: &PeerFacts, b: &PeerFacts) -> Option<Distance> {
    let mut both = a.transports.iter().filter(|id| b.transports.contains(id)).map(|id| by_id(*id));
    let possible = both.any(|transport| transport.is_device_memory() && transport.can_connect(a, b));
    (possible && !distance::is_near(a, b)).then(|| Distance::between(a, b))
}

/// The name of the transport between two ranks, if there is one.
pub fn label(a: &PeerFacts, b: &PeerFacts) -> Option<&'static str> {
    choose(a, b).ok().map(|transport| transport.label())
}

/// Whether links between two ranks are peer memory, so that one can also map the other's buffers.
pub fn maps_buffers(a: &PeerFacts, b: &PeerFacts) -> bool {
    choose(a, b).is_ok_and(|transport| transport.maps_buffers())
}

/// Whether links between two ranks go over a network.
pub fn over_network(a: &PeerFacts, b: &PeerFacts) -> bool {
    choose(a, b).is_ok_and(|transport| transport.id() >= TransportId::Net)
}

/// Whether links between two ranks can carry lines with flags (LL), if there are any.
pub fn carries_lines(a: &PeerFacts, b: &PeerFacts) -> bool {
    choose(a, b).map_or(true, |transport| transport.carries_lines())
}

/// Whether links between two ranks are peer memory in which a line of 128 bytes that a warp stores with one instruction
/// arrives whole: that of one device, or over NVLink. Over PCIe it may come in parts.
pub fn keeps_lines_whole(a: &PeerFacts, b: &PeerFacts) -> bool {
    a.reach.linked.contains(&b.uuid) && b.reach.linked.contains(&a.uuid) && maps_buffers(a, b)
}

fn no_transport(a: &PeerFacts, b: &PeerFacts) -> Error {
    let silent = [a, b].into_iter().find(|peer| peer.location.tcp.is_none());
    let reason = if !a.host.same_host(&b.host) {
        let why = match silent {
            Some(peer) => format!("rank {} does not listen on any network", peer.rank),
            None => "OXCCL_TRANSPORTS excludes networks".to_string(),
        };
        format!("they are on different hosts ({} and {}), and {why}", a.host.name, b.host.name)
    } else if !a.transports.iter().any(|id| b.transports.contains(id)) {
        "NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and OXCCL_TRANSPORTS leave none that both may use".to_string()
    } else if !distance::is_near(a, b) {
        format!(
            "{} is between their devices, too far for peer-to-peer memory (NCCL_P2P_LEVEL), and NCCL_SHM_DISABLE or \
             OXCCL_TRANSPORTS excludes shared memory",
            Distance::between(a, b).name()
        )
    } else if [a, b].iter().any(|peer| !peer.transports.contains(&TransportId::Shm)) {
        "NCCL_SHM_DISABLE or OXCCL_TRANSPORTS excludes shared memory, and peer-to-peer memory cannot be used"
            .to_string()
    } else {
        "they are in different network namespaces of one host, and OXCCL_TRANSPORTS excludes networks, or one of them \
         does not listen on any network"
            .to_string()
    };
    Error::InvalidUsage(format!("no transport between rank {} and rank {}: {reason}", a.rank, b.rank))
}

/// What a peer has said does not fit the transport that both ranks chose: a bug, or a peer of another version.
fn wrong_info(peer: &PeerFacts, label: &str) -> Error {
    Error::Internal(format!("rank {} sent connect data that does not fit {label}", peer.rank))
}
