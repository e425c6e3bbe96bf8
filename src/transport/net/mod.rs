//! Links without common memory: slots and counters at both ends, in host memory, and *movers* between them.
//!
//! A kernel that sends fills slots of its own rank and posts them, with their sizes beside the counter; a mover of the
//! rank (`engine`) gives each to a network as a message (`link`), and the peer's mover, which has given the network
//! memory for it ahead, posts it to the kernel that receives. How a network carries messages is its own affair
//! ([`Network`]): sockets (`socket`), or a plug-in. No more can be sent than there is room for, since messages need
//! memory that was given. The mover knows no calls: it forwards what is posted. So launches of graphs, which the host
//! does not see, need nothing of it.

mod engine;
mod link;
mod slots;
mod socket;
#[cfg(test)]
mod tests;
mod trailer;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::layout::PAGE;
use super::memory::Segment;
use super::shm::HostSegment;
use super::{ConnectInfo, Endpoint, LinkAddresses, PeerFacts, Site, Transport, TransportId, wrong_info};
use crate::device::Context;
use crate::error::Error;
use crate::plan::SLOTS;
use crate::plan::layout::Counter;
use crate::plan::wiring::LinkNeed;
use crate::plugin::network::{NetListener, Network};
use crate::sys::SharedMemory;
use engine::MovedLinkId;
pub(super) use engine::{Engine, MoverNotice};
use link::{LinkSide, MovedLink};
use slots::{LinkMemory, SLOT_GAP};
pub use socket::{SocketInterface, SocketNetwork, SocketSettings};

/// Ranks anywhere, by a network.
pub(super) struct ByNetwork;

const LABEL: &str = "NET/Socket";

/// What a peer is told.
#[derive(Serialize, Deserialize)]
struct NetInfo {
    /// The sizes of the slots of the links between the two, in the order in which both know them.
    slot_bytes: Vec<u32>,
    /// What the peer connects with, for each of the links that it sends on.
    handles: Vec<Vec<u8>>,
}

impl Transport for ByNetwork {
    fn id(&self) -> TransportId {
        TransportId::Net
    }

    fn label(&self) -> &'static str {
        LABEL
    }

    fn is_device_memory(&self) -> bool {
        false
    }

    /// The mover takes whole slots, and only counters tell it when.
    fn carries_lines(&self) -> bool {
        false
    }

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        a.location.tcp.is_some() && b.location.tcp.is_some()
    }

    fn endpoint(&self, site: Site) -> Result<Arc<dyn Endpoint>, Error> {
        let links = site.connectivity.links(site.rank, site.group, self.id());
        Ok(Arc::new(NetEnd { site, links, state: Mutex::default() }))
    }

    /// Only whether the device takes host memory.
    fn probe(&self, context: &Arc<Context>, bytes: usize) -> Result<(Box<dyn Segment>, ConnectInfo), Error> {
        let mut segment = HostSegment::new(SharedMemory::anonymous(bytes)?);
        segment.register(context)?;
        Ok((Box::new(segment), ConnectInfo::default()))
    }

    fn probe_peer(
        &self,
        _: &Arc<Context>,
        _: &PeerFacts,
        _: &[u8],
        _: Option<OwnedFd>,
    ) -> Result<Option<Box<dyn Segment>>, Error> {
        Ok(None)
    }
}

/// An end of links without common memory.
struct NetEnd {
    site: Site,
    links: Vec<LinkNeed>,
    state: Mutex<EndState>,
}

#[derive(Default)]
struct EndState {
    memory: Option<Arc<Mutex<HostSegment>>>,
    /// Of the links that this rank receives on, by their places in `links`.
    listeners: BTreeMap<usize, Box<dyn NetListener>>,
    /// What it connects with where it sends.
    handles: BTreeMap<usize, Vec<u8>>,
    /// The links, as movers know them.
    moved: Vec<MovedLinkId>,
}

/// Where a link's parts are in this rank's memory, in bytes from its start: two counters, then the slots.
fn places(links: &[LinkNeed]) -> (Vec<usize>, usize) {
    let counters = 2 * size_of::<Counter>();
    let mut end = (links.len() * counters).next_multiple_of(PAGE);
    let slots = links.iter().map(|need| {
        let at = end;
        end = (end + SLOTS * (need.slot_bytes + SLOT_GAP) as usize).next_multiple_of(PAGE);
        at
    });
    (slots.collect(), end)
}

impl NetEnd {
    /// The links with a peer, as places in `links`, in the order in which both ends know them.
    fn shared_with(&self, peer: u32) -> Vec<usize> {
        let with = |place: &usize| self.links[*place].peer(self.site.rank) == peer;
        let mut places: Vec<usize> = (0..self.links.len()).filter(with).collect();
        places.sort_by_key(|place| self.links[*place].id);
        places
    }

    fn sends(&self, place: usize) -> bool {
        self.links[place].id.from == self.site.rank
    }

    /// The device of the network that a link goes by: channels take turns.
    fn device(&self, place: usize, network: &Arc<dyn Network>) -> usize {
        self.links[place].id.channel as usize % network.devices().len().max(1)
    }

    fn info(&self, peer: u32) -> NetInfo {
        let (places, state) = (self.shared_with(peer), self.state.lock());
        let slot_bytes = places.iter().map(|place| self.links[*place].slot_bytes).collect();
        let handles = places.iter().filter_map(|place| state.listeners.get(place));
        NetInfo { slot_bytes, handles: handles.map(|listener| listener.handle().to_vec()).collect() }
    }

    /// The memory of each link, from an address of the memory's start.
    fn parts(&self, start: u64) -> Vec<LinkMemory> {
        let (slots, _) = places(&self.links);
        let line = size_of::<Counter>() as u64;
        let part = |((need, slots), number): ((&LinkNeed, usize), u64)| {
            let (slots, posted) = (start + slots as u64, start + 2 * line * number);
            LinkMemory { slots, posted, consumed: posted + line, slot_bytes: need.slot_bytes }
        };
        self.links.iter().zip(slots).zip(0..).map(part).collect()
    }

    /// Gives all links to movers.
    fn begin(&self, memory: &Arc<Mutex<HostSegment>>) -> Result<(), Error> {
        let (engine, mut state) = (&self.site.engine, self.state.lock());
        let (network, (_, bytes)) = (engine.network()?, places(&self.links));
        let address = memory.lock().host_address();
        for (place, part) in self.parts(address).into_iter().enumerate() {
            let need = &self.links[place];
            let side = match (state.listeners.remove(&place), state.handles.remove(&place)) {
                (Some(listener), _) => LinkSide::Listening(listener),
                (None, Some(handle)) => LinkSide::Connecting(network.connect(self.device(place, network), &handle)?),
                (None, None) => {
                    return Err(Error::Internal("links are connected before they are accepted".to_string()));
                }
            };
            let link = MovedLink::new((need.id, need.peer(self.site.rank)), side, part, (memory.clone(), bytes));
            state.moved.push(engine.add(need.id.channel as usize, link)?);
        }
        Ok(())
    }
}

impl Endpoint for NetEnd {
    fn prepare(&self) -> Result<usize, Error> {
        let (_, bytes) = places(&self.links);
        let memory = HostSegment::new(SharedMemory::anonymous(bytes)?);
        let (network, mut state) = (self.site.engine.network()?, self.state.lock());
        state.memory = Some(Arc::new(Mutex::new(memory)));
        for place in (0..self.links.len()).filter(|place| !self.sends(*place)) {
            let listener = network.listen(self.device(place, network))?;
            state.listeners.insert(place, listener);
        }
        Ok(bytes)
    }

    fn connect_info(&self, peer: u32) -> ConnectInfo {
        ConnectInfo { bytes: postcard::to_stdvec(&self.info(peer)).unwrap_or_default(), fd: None }
    }

    fn offered(&self) {}

    fn accept(&self, peer: u32, info: &[u8], fd: Option<OwnedFd>) -> Result<(), Error> {
        let wrong = || wrong_info(&self.site.connectivity.facts[peer as usize], LABEL);
        let info: NetInfo = postcard::from_bytes(info).map_err(|_| wrong())?;
        let (places, mut state) = (self.shared_with(peer), self.state.lock());
        let slot_bytes = places.iter().map(|place| self.links[*place].slot_bytes);
        let sending: Vec<usize> = places.iter().copied().filter(|place| self.sends(*place)).collect();
        if !slot_bytes.eq(info.slot_bytes) || sending.len() != info.handles.len() || fd.is_some() {
            return Err(wrong());
        }
        state.handles.extend(sending.into_iter().zip(info.handles));
        Ok(())
    }

    fn connect(&self) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error> {
        let none = || Error::Internal("links are connected before they are made".to_string());
        let memory = self.state.lock().memory.clone().ok_or_else(none)?;
        memory.lock().register(&self.site.context)?;
        self.begin(&memory)?;
        let (parts, rank) = (self.parts(memory.lock().address()), self.site.rank);
        let connected = self.links.iter().zip(parts).map(|(need, memory)| {
            let LinkMemory { slots, posted, consumed, slot_bytes } = memory;
            let (peer, moved) = (need.peer(rank), need.id.from == rank);
            let slot_bytes = slot_bytes + SLOT_GAP;
            (*need, LinkAddresses { slots, posted, consumed, slot_bytes, peer, moved })
        });
        Ok(connected.collect())
    }

    fn disconnect(&self) {
        let mut state = self.state.lock();
        let EndState { moved, listeners, handles, .. } = &mut *state;
        let gone = (std::mem::take(listeners), std::mem::take(handles));
        let moved = std::mem::take(moved);
        drop(state);
        drop(gone);
        self.site.engine.remove(&moved);
    }
}

impl Drop for NetEnd {
    fn drop(&mut self) {
        self.disconnect();
    }
}
