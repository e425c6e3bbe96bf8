//! What ranks know of each other when they choose transports.

use serde::{Deserialize, Serialize};

use super::{DeviceSet, Distance, Transport, TransportId};
use crate::error::Error;
use crate::plan::wiring::{ConnectionGroup, LinkNeed, Wiring};
use crate::proxy::{Destination, Location};
use crate::sys::{HostFacts, PciPlace};
use crate::tuning::Preferences;

/// What a rank tells all others about itself, once, when a communicator is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// Its rank.
    pub rank: u32,
    /// Its host and namespaces.
    pub host: HostFacts,
    /// A random number of the process: ranks that share it are threads of one process.
    pub process: u64,
    /// The ordinal of its device in its own process.
    pub device: i32,
    /// The number of its device among all of the host, for the log.
    pub nvml_device: i32,
    /// Its context's handle there: of two contexts of one device neither reaches the other's memory.
    pub context: u64,
    /// The device's uuid.
    pub uuid: [u8; 16],
    /// The device's PCI bus id as one number.
    pub bus_id: u64,
    /// The device's compute capability, major × 10 + minor.
    pub capability: i32,
    /// How others can be reached.
    pub reach: PeerReach,
    /// Where its process receives messages.
    pub location: Location,
    /// The number of its links there.
    pub links: u64,
    /// The transports that it may use, the preferred ones first.
    pub transports: Vec<TransportId>,
    /// `NCCL_LOCAL_REGISTER`: whether peers may map what is registered.
    pub registers: bool,
    /// What it would like of what all ranks do alike.
    pub tuning: Preferences,
    /// The processors that it may run on.
    pub cpus: u32,
}

/// What a rank knows of how others can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerReach {
    /// The uuids of the devices that its process sees and its device cannot reach.
    pub unreachable: DeviceSet,
    /// The uuids of those that it reaches over NVLink, and its own.
    pub linked: DeviceSet,
    /// Where its device is in PCI.
    pub place: PciPlace,
    /// As far as it uses peer memory.
    pub level: Distance,
    /// The ranks with which peer memory has turned out not to work.
    pub excluded: Vec<u32>,
    /// The network that it has chosen, or why it has none.
    pub network: Option<Result<String, String>>,
}

/// What the facts of ranks of a host have in common, mostly: alike for many ranks, it travels once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommonFacts {
    host: HostFacts,
    unreachable: DeviceSet,
    linked: DeviceSet,
    level: Distance,
    network: Option<Result<String, String>>,
    transports: Vec<TransportId>,
    registers: bool,
    tuning: Preferences,
    cpus: u32,
}

/// The rest.
#[derive(Serialize, Deserialize)]
struct OwnFacts {
    rank: u32,
    pid: u32,
    process: u64,
    devices: (i32, i32),
    context: u64,
    uuid: [u8; 16],
    bus_id: u64,
    capability: i32,
    place: PciPlace,
    location: Location,
    links: u64,
}

impl PeerFacts {
    /// What is this rank's own, and what it has in common with others, as bytes.
    ///
    /// # Errors
    /// [`Error::Internal`], which cannot be.
    pub fn encode(&self) -> Result<(Vec<u8>, Vec<u8>), Error> {
        let own = OwnFacts {
            rank: self.rank,
            pid: self.host.pid,
            process: self.process,
            devices: (self.device, self.nvml_device),
            context: self.context,
            uuid: self.uuid,
            bus_id: self.bus_id,
            capability: self.capability,
            place: self.reach.place.clone(),
            location: self.location,
            links: self.links,
        };
        let common = CommonFacts {
            host: HostFacts { pid: 0, ..self.host.clone() },
            unreachable: self.reach.unreachable.clone(),
            linked: self.reach.linked.clone(),
            level: self.reach.level,
            network: self.reach.network.clone(),
            transports: self.transports.clone(),
            registers: self.registers,
            tuning: self.tuning.clone(),
            cpus: self.cpus,
        };
        let wrong = |error| Error::Internal(format!("encoding a rank's facts: {error}"));
        Ok((postcard::to_stdvec(&own).map_err(wrong)?, postcard::to_stdvec(&common).map_err(wrong)?))
    }

    /// Puts the two parts together; none where they cannot be read.
    pub fn decode(own: &[u8], common: &CommonFacts) -> Option<PeerFacts> {
        let own: OwnFacts = postcard::from_bytes(own).ok()?;
        let common = common.clone();
        Some(PeerFacts {
            rank: own.rank,
            host: HostFacts { pid: own.pid, ..common.host },
            process: own.process,
            device: own.devices.0,
            nvml_device: own.devices.1,
            context: own.context,
            uuid: own.uuid,
            bus_id: own.bus_id,
            capability: own.capability,
            reach: PeerReach {
                unreachable: common.unreachable,
                linked: common.linked,
                place: own.place,
                level: common.level,
                excluded: Vec::new(),
                network: common.network,
            },
            location: own.location,
            transports: common.transports,
            links: own.links,
            registers: common.registers,
            tuning: common.tuning,
            cpus: common.cpus,
        })
    }

    /// Where messages from this rank to another one go.
    pub(super) fn destination(&self, peer: &PeerFacts) -> Destination {
        peer.location.destination(self.host.can_pass_descriptors(&peer.host))
    }
}

/// Two ranks will not use peer memory, which has turned out not to work between them.
pub fn exclude_peer_memory(facts: &mut [PeerFacts], (a, b): (u32, u32)) {
    for (rank, other) in [(a, b), (b, a)] {
        if let Some(peer) = facts.get_mut(rank as usize)
            && !peer.reach.excluded.contains(&other)
        {
            peer.reach.excluded.push(other);
        }
    }
}

/// What the ranks of a communicator have agreed on: who they are, and which links there are among them.
pub struct Connectivity {
    /// Every rank's facts.
    pub(super) facts: Vec<PeerFacts>,
    pub(super) wiring: Wiring,
}

impl Connectivity {
    /// What all ranks know alike.
    pub fn new(facts: Vec<PeerFacts>, wiring: Wiring) -> Connectivity {
        Connectivity { facts, wiring }
    }

    /// The transport between two ranks.
    pub(super) fn transport(&self, a: u32, b: u32) -> Result<&'static dyn Transport, Error> {
        super::choose(&self.facts[a as usize], &self.facts[b as usize])
    }

    /// A rank's links of a connection group by one transport, in the order of [`Wiring::links`].
    pub(super) fn links(&self, rank: u32, group: ConnectionGroup, by: TransportId) -> Vec<LinkNeed> {
        let uses = |need: &LinkNeed| self.transport(rank, need.peer(rank)).is_ok_and(|transport| transport.id() == by);
        self.wiring.group_links(rank, group).into_iter().filter(uses).collect()
    }

    /// The transports that a rank has links of a connection group by, each once.
    ///
    /// # Errors
    /// Where two ranks have none.
    pub(super) fn transports(&self, rank: u32, group: ConnectionGroup) -> Result<Vec<&'static dyn Transport>, Error> {
        let mut found: Vec<&'static dyn Transport> = Vec::new();
        for peer in self.wiring.group_peers(rank, group) {
            let transport = self.transport(rank, peer)?;
            if !found.iter().any(|other| other.id() == transport.id()) {
                found.push(transport);
            }
        }
        Ok(found)
    }
}
