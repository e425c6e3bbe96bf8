//! How memory that two ranks share is made, handed over and mapped.
//!
//! A link between two ranks needs memory that both reach: slots and a `posted` counter that live with
//! the receiver, a `consumed` counter that lives with the sender. A transport decides where that
//! memory is and how the peer comes by it. Kernels cannot tell one from another.
//!
//! Links are made when a call first needs them, connection group by connection group ([`ConnectionGroup`]): each rank
//! makes one piece of memory for the peers that it reaches in the same way, and knows where in a peer's piece the parts
//! of which link are (`layout`): what ranks tell each other ([`Links`], by messages between helper threads) is no more
//! than how to map it. When a communicator is made, ranks only try ([`probe()`]) whether the transports that they have
//! chosen work.

mod handshake;
mod layout;
mod links;
mod opened;
mod p2p;
mod probe;
mod shm;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::plan::wiring::ConnectionGroup;
pub use links::{Hooks, LinkAddresses, Links};
pub use p2p::{PeerBuffer, keeps_lines_whole, maps_buffers};
pub use probe::{Exchange, Probe, Route, Unconnected, probe, routes};

use crate::device::Context;
use crate::error::Error;
use crate::proxy::{Destination, Location};
use crate::sys::HostFacts;

/// What a rank tells all others about itself, once, when a communicator is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFacts {
    /// Its rank.
    pub rank: u32,
    /// Its host and namespaces.
    pub host: HostFacts,
    /// A random number of the process: ranks that share it are threads of one process.
    pub process: u64,
    /// The ordinal of its device in its own process.
    pub device: i32,
    /// Its context's handle there: of two contexts of one device neither reaches the other's memory.
    pub context: u64,
    /// The device's uuid.
    pub uuid: [u8; 16],
    /// The device's PCI bus id as one number.
    pub bus_id: u64,
    /// The device's compute capability, major × 10 + minor.
    pub capability: i32,
    /// The uuids of the devices that its device can reach.
    pub reachable: Vec<[u8; 16]>,
    /// The uuids of those that it reaches over NVLink, and its own.
    pub linked: Vec<[u8; 16]>,
    /// Where its process receives messages.
    pub location: Location,
    /// The number of its links there.
    pub links: u64,
    /// `NCCL_P2P_DISABLE`.
    pub p2p_disabled: bool,
    /// `NCCL_SHM_DISABLE`.
    pub shm_disabled: bool,
    /// `NCCL_LOCAL_REGISTER`: whether peers may map what is registered.
    pub registers: bool,
    /// The number of channels that it would like.
    pub channels: u32,
    /// The size of a slot of its ring that it would like, in bytes.
    pub slot_bytes: u32,
    /// How often it would like the size of other slots halved, since its process has many communicators.
    pub halvings: u32,
    /// The algorithms and protocols that its filters leave to each function that has a choice of them, as bits.
    pub candidates: Vec<(u8, u8)>,
    /// The processors that it may run on.
    pub cpus: u32,
}

impl PeerFacts {
    /// Where messages from this rank to another one go.
    pub(crate) fn destination(&self, peer: &PeerFacts) -> Destination {
        peer.location.destination(self.host.can_pass_descriptors(&peer.host))
    }
}

/// How a peer comes by memory of ours: the part of a message that only the transport reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Offer {
    /// Memory of the same process, by its number in the process's register.
    SameProcess(u64),
    /// A CUDA inter-process handle, 64 bytes.
    Ipc(Vec<u8>),
    /// A memfd that comes with the message.
    Shared,
    /// Device memory of so many bytes, by a descriptor that comes with the message.
    Physical(u64),
}

/// Memory that a kernel of this rank can reach, kept alive by the object.
pub trait Segment: Send + Sync {
    /// The address for kernels of this rank; none that is good before [`Segment::register`].
    fn address(&self) -> u64;
    /// Makes the memory usable for kernels.
    ///
    /// # Errors
    /// What the driver gives.
    fn register(&mut self, _context: &Arc<Context>) -> Result<(), Error> {
        Ok(())
    }
}

/// Memory for peers.
pub struct Made {
    /// The memory.
    pub segment: Box<dyn Segment>,
    /// How peers come by it.
    pub offer: Offer,
    /// What must go with the offer.
    pub fd: Option<OwnedFd>,
    /// Bytes that it takes, which can be more than were asked for.
    pub bytes: usize,
}

/// What a peer has offered.
pub struct Given {
    /// The offer.
    pub offer: Offer,
    /// What came with it.
    pub fd: Option<OwnedFd>,
}

/// How much memory is to be made, and when.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Its size in bytes.
    pub bytes: usize,
    /// How many of its first bytes must be zero.
    pub zeroed: usize,
    /// Nothing runs on the device, and nothing is launched meanwhile: the driver will not wait for anything.
    pub quiet: bool,
}

/// One way of sharing memory.
pub trait Transport: Sync {
    /// The name in log lines, as NCCL writes it: `P2P/IPC`.
    fn label(&self) -> &'static str;
    /// The number of the connection in log lines, where they have one (spec §9.4).
    fn connection(&self) -> Option<u32> {
        Some(0)
    }
    /// Whether the memory is the device's: making it may wait for what runs there.
    fn is_device_memory(&self) -> bool {
        true
    }
    /// Whether two ranks can use it. Both ranks come to the same answer from the same facts.
    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool;
    /// Makes memory for peers.
    ///
    /// # Errors
    /// What the driver or the system gives when it has no memory.
    fn make(&self, context: &Arc<Context>, need: Need) -> Result<Made, Error>;
    /// Maps memory of some bytes that a peer made; kernels can use it when it is registered. From here on it stays,
    /// even if the peer dies.
    ///
    /// # Errors
    /// [`Error::Cuda`] where it cannot be mapped, [`Error::Remote`] where it is not what it should be.
    fn open(
        &self,
        context: &Arc<Context>,
        maker: &PeerFacts,
        given: Given,
        bytes: usize,
    ) -> Result<Box<dyn Segment>, Error>;
}

/// All transports, the preferred ones first.
static TRANSPORTS: [&dyn Transport; 3] = [&p2p::Direct, &p2p::Ipc, &shm::Shm];

/// The transport for two ranks: its place in [`TRANSPORTS`].
///
/// # Errors
/// [`Error::InvalidUsage`] when there is none: the text says what stands in the way.
fn choose(a: &PeerFacts, b: &PeerFacts) -> Result<usize, Error> {
    TRANSPORTS.iter().position(|transport| transport.can_connect(a, b)).ok_or_else(|| no_transport(a, b))
}

fn no_transport(a: &PeerFacts, b: &PeerFacts) -> Error {
    let reason = if !a.host.same_host(&b.host) {
        format!(
            "they are on different hosts ({} and {}), and this version has no network transport",
            a.host.name, b.host.name
        )
    } else if a.shm_disabled || b.shm_disabled {
        "NCCL_SHM_DISABLE is set and peer-to-peer memory cannot be used".to_string()
    } else {
        "they are in different network namespaces of one host, and this version has no network transport".to_string()
    };
    Error::InvalidUsage(format!("no transport between rank {} and rank {}: {reason}", a.rank, b.rank))
}

/// An offer that does not fit the transport that both ranks chose: a bug, or a peer of another version.
fn wrong_offer(peer: &PeerFacts, label: &str) -> Error {
    Error::Internal(format!("rank {} sent connect data that does not fit {label}", peer.rank))
}
