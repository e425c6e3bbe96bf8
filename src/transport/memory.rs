//! Transports by memory that both ends reach: P2P and SHM. They differ in how that memory is made and mapped; where the
//! parts of links lie in it is the same (`layout`): counters and slots with whoever reads them.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::blocks::BlockAllocator;
use super::layout::{Area, PAGE, lay_out};
use super::p2p::PROBES;
use super::{ConnectInfo, Endpoint, LinkAddresses, PeerFacts, Site, Transport, TransportId, wrong_info};
use crate::device::{Context, PhysicalMemory};
use crate::error::Error;
use crate::plan::wiring::LinkNeed;

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

/// How a peer comes by memory of ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Offer {
    /// Memory of the same process, by its number in the process's register.
    SameProcess(u64),
    /// A memfd that comes with the message.
    Shared,
    /// What begins at an offset of a block of device memory of so many bytes.
    Block {
        /// Of the block. Whoever has mapped it need not do so again.
        number: u64,
        /// Bytes of the block.
        bytes: u64,
        /// Where the memory begins.
        offset: u64,
        /// The block's CUDA inter-process handle, 64 bytes. Without one a descriptor comes with the message.
        handle: Option<Vec<u8>>,
    },
}

/// What a peer is told: the size of the area, by which builds that differ show, and how it is mapped.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AreaInfo {
    bytes: u64,
    offer: Offer,
}

/// Memory for peers.
pub(super) struct Made {
    /// The memory.
    pub segment: Box<dyn Segment>,
    /// How peers come by it.
    pub offer: Offer,
    /// What must go with the offer.
    pub fd: Option<OwnedFd>,
    /// Bytes that were allocated for it: more than were asked for, or none where there was room.
    pub bytes: usize,
}

/// Where memory is made.
#[derive(Clone, Copy)]
pub(super) struct Maker<'a> {
    pub context: &'a Arc<Context>,
    pub blocks: &'a BlockAllocator,
    /// The NUMA node of the device, where that is known.
    pub node: Option<u32>,
}

/// How much memory is to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Its size in bytes.
    pub bytes: usize,
    /// How many of its first bytes must be zero.
    pub zeroed: usize,
}

/// What the transports by memory differ in. See [`Transport`] for what has the same name there.
pub(super) trait Sharing: Copy + Send + Sync + 'static {
    const ID: TransportId;
    const LABEL: &'static str;
    const CONNECTION: Option<u32> = Some(0);
    const DEVICE_MEMORY: bool = true;

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool;
    /// Makes memory for peers.
    ///
    /// # Errors
    /// What the driver or the system gives when it has no memory.
    fn make(&self, maker: Maker<'_>, need: Need) -> Result<Made, Error>;
    /// Maps memory of some bytes that a peer made; kernels can use it when it is registered.
    ///
    /// # Errors
    /// As [`Endpoint::accept`].
    fn open(
        &self,
        context: &Arc<Context>,
        maker: &PeerFacts,
        offer: Offer,
        fd: Option<OwnedFd>,
        bytes: usize,
    ) -> Result<Box<dyn Segment>, Error>;
}

/// A transport by memory.
pub(super) struct ByMemory<S>(pub S);

impl<S: Sharing> Transport for ByMemory<S> {
    fn id(&self) -> TransportId {
        S::ID
    }

    fn label(&self) -> &'static str {
        S::LABEL
    }

    fn connection(&self) -> Option<u32> {
        S::CONNECTION
    }

    fn is_device_memory(&self) -> bool {
        S::DEVICE_MEMORY
    }

    fn maps_buffers(&self) -> bool {
        S::DEVICE_MEMORY
    }

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        self.0.can_connect(a, b)
    }

    fn endpoint(&self, site: Site) -> Result<Arc<dyn Endpoint>, Error> {
        let area = lay_out(site.rank, &site.connectivity.links(site.rank, site.group, S::ID));
        Ok(Arc::new(SharedEnd { sharing: self.0, site, area, theirs: Mutex::default(), own: Mutex::default() }))
    }

    fn probe(&self, context: &Arc<Context>, bytes: usize) -> Result<(Box<dyn Segment>, ConnectInfo), Error> {
        let maker = Maker { context, blocks: &PROBES, node: None };
        let mut made = self.0.make(maker, Need { bytes, zeroed: bytes })?;
        made.segment.register(context)?;
        let fd = made.fd.filter(|_| S::DEVICE_MEMORY).map(Arc::new);
        Ok((made.segment, ConnectInfo { bytes: encode(&made.offer), fd }))
    }

    /// Device memory is mapped; of host memory, which the flight recorder of the host shows can be passed on, only
    /// whether the device takes it is of interest.
    fn probe_peer(
        &self,
        context: &Arc<Context>,
        peer: &PeerFacts,
        info: &[u8],
        fd: Option<OwnedFd>,
    ) -> Result<Option<Box<dyn Segment>>, Error> {
        let offer = postcard::from_bytes(info).map_err(|_| wrong_info(peer, S::LABEL))?;
        S::DEVICE_MEMORY.then(|| self.0.open(context, peer, offer, fd, PAGE)).transpose()
    }
}

/// This rank's memory for its peers.
struct OwnMemory {
    segment: Box<dyn Segment>,
    offer: Offer,
    /// Until all peers have been told.
    fd: Option<Arc<OwnedFd>>,
}

/// An end by memory. The peers' is unmapped before this rank's own is freed.
struct SharedEnd<S> {
    sharing: S,
    site: Site,
    area: Area,
    theirs: Mutex<BTreeMap<u32, Box<dyn Segment>>>,
    own: Mutex<Option<OwnMemory>>,
}

impl<S: Sharing> SharedEnd<S> {
    /// The area that a peer has for this rank.
    fn area_of(&self, peer: u32) -> Area {
        lay_out(peer, &self.site.connectivity.links(peer, self.site.group, S::ID))
    }

    /// Makes this rank's memory usable for kernels; its address. Taken out meanwhile: the driver may take its time, and
    /// the event loop must not wait for it.
    fn register_own(&self) -> Result<u64, Error> {
        let none = || Error::Internal("links are connected before they are made".to_string());
        let mut own = self.own.lock().take().ok_or_else(none)?;
        let registered = own.segment.register(&self.site.context);
        let address = own.segment.address();
        *self.own.lock() = Some(own);
        registered.map(|()| address)
    }

    fn addresses(&self, need: &LinkNeed, own: (u64, &Area), theirs: (u64, &Area)) -> Option<LinkAddresses> {
        let rank = self.site.rank;
        let (sender, receiver) = if need.id.from == rank { (own, theirs) } else { (theirs, own) };
        let (from, to) = (sender.1.part(need.id)?, receiver.1.part(need.id)?);
        Some(LinkAddresses {
            slots: receiver.0 + to.slots as u64,
            posted: receiver.0 + to.counter as u64,
            consumed: sender.0 + from.counter as u64,
            slot_bytes: need.slot_bytes,
            peer: need.peer(rank),
            moved: false,
        })
    }
}

impl<S: Sharing> Endpoint for SharedEnd<S> {
    fn may_wait(&self) -> bool {
        // `cuMemCreate` does not wait for what runs on the device.
        S::DEVICE_MEMORY && !PhysicalMemory::is_wanted(&self.site.context)
    }

    fn prepare(&self) -> Result<usize, Error> {
        let need = Need { bytes: self.area.bytes, zeroed: self.area.zeroed };
        let (context, blocks) = (&self.site.context, &*self.site.blocks);
        let place = &self.site.connectivity.facts[self.site.rank as usize].reach.place;
        let maker = Maker { context, blocks, node: place.numa_node() };
        let Made { segment, offer, fd, bytes } = self.sharing.make(maker, need)?;
        *self.own.lock() = Some(OwnMemory { segment, offer, fd: fd.map(Arc::new) });
        Ok(bytes)
    }

    fn connect_info(&self, _peer: u32) -> ConnectInfo {
        let own = self.own.lock();
        let Some(own) = own.as_ref() else { return ConnectInfo::default() };
        let info = AreaInfo { bytes: self.area.bytes as u64, offer: own.offer.clone() };
        ConnectInfo { bytes: encode(&info), fd: own.fd.clone() }
    }

    fn offered(&self) {
        self.own.lock().iter_mut().for_each(|own| own.fd = None);
    }

    fn accept(&self, peer: u32, info: &[u8], fd: Option<OwnedFd>) -> Result<(), Error> {
        let maker = &self.site.connectivity.facts[peer as usize];
        let info: AreaInfo = postcard::from_bytes(info).map_err(|_| wrong_info(maker, S::LABEL))?;
        let area = self.area_of(peer);
        if info.bytes != area.bytes as u64 {
            return Err(other_layout(self.site.rank, peer, info.bytes, area.bytes));
        }
        let segment = self.sharing.open(&self.site.context, maker, info.offer, fd, area.bytes)?;
        let before = self.theirs.lock().insert(peer, segment);
        drop(before);
        Ok(())
    }

    fn connect(&self) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error> {
        let own = self.register_own()?;
        let mut theirs = self.theirs.lock();
        theirs.values_mut().try_for_each(|segment| segment.register(&self.site.context))?;
        let areas: BTreeMap<u32, Area> = theirs.keys().map(|peer| (*peer, self.area_of(*peer))).collect();
        let connected = self.area.parts.iter().map(|(need, _)| {
            let peer = need.peer(self.site.rank);
            let reached = theirs.get(&peer).map(|segment| segment.address()).zip(areas.get(&peer));
            let addresses = reached.and_then(|reached| self.addresses(need, (own, &self.area), reached));
            let (from, to) = (need.id.from, need.id.to);
            let none = || Error::Internal(format!("no memory for the link from rank {from} to rank {to}"));
            addresses.map(|addresses| (*need, addresses)).ok_or_else(none)
        });
        connected.collect()
    }

    fn disconnect(&self) {
        let theirs = std::mem::take(&mut *self.theirs.lock());
        drop(theirs);
    }
}

fn other_layout(me: u32, peer: u32, theirs: u64, expected: usize) -> Error {
    let text = format!(
        "rank {peer} laid out {theirs} bytes for its links where rank {me} expects {expected}; does it run another build of \
         oxccl?"
    );
    Error::Remote { rank: Some(peer), text }
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Nothing of it can fail: it writes to memory.
    postcard::to_stdvec(value).unwrap_or_default()
}
