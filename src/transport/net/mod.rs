//! Links without common memory: slots and counters at both ends, in host memory, and a *mover* between them.
//!
//! A kernel that sends fills slots of its own rank and posts them, with their sizes beside the counter; the rank's
//! event loop (`engine`) sends what is posted over a stream to the peer's (`connection`), which puts it into slots
//! there and posts it to the kernel that receives. What is consumed there comes back as credit, so that no more is sent
//! than there is room for. The mover knows no calls: a connection forwards what is posted. So launches of graphs, which
//! the host does not see, need nothing of it.
//!
//! [`Loopback`] connects ranks of one host by a pair of sockets. It is used where `OXCCL_TRANSPORTS` asks for it: to
//! see what a network would see, without one.

mod connection;
mod engine;
mod frame;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
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
use crate::sys::{ChildCloses, SharedMemory, off_standard};
use connection::{LinkMemory, MovedConnection};
pub(super) use engine::Engine;

/// Ranks of one host, by a pair of sockets.
pub(super) struct Loopback;

const LABEL: &str = "NET/Loopback";

/// What a peer is told; a socket comes with it from the lower rank.
#[derive(Serialize, Deserialize)]
struct NetInfo {
    /// The sizes of the slots of the links between the two, in the order in which both know them.
    slot_bytes: Vec<u32>,
}

impl Transport for Loopback {
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
        a.host.can_pass_descriptors(&b.host)
    }

    fn endpoint(&self, site: Site) -> Result<Arc<dyn Endpoint>, Error> {
        let links = site.connectivity.links(site.rank, site.group, TransportId::Net);
        Ok(Arc::new(NetEnd { site, links, state: Mutex::default() }))
    }

    fn probe(&self, context: &Arc<Context>, _: bool, bytes: usize) -> Result<(Box<dyn Segment>, ConnectInfo), Error> {
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
    /// This rank's sockets, by peer.
    sockets: BTreeMap<u32, (ChildCloses, OwnedFd)>,
    /// Those for peers, until they have been told.
    offered: BTreeMap<u32, (ChildCloses, Arc<OwnedFd>)>,
    /// The connections, as the engine knows them.
    connections: Vec<u32>,
}

/// Where a link's parts are in this rank's memory, in bytes from its start: two counters, then the slots.
fn places(links: &[LinkNeed]) -> (Vec<usize>, usize) {
    let counters = 2 * size_of::<Counter>();
    let mut end = (links.len() * counters).next_multiple_of(PAGE);
    let slots = links.iter().map(|need| {
        let at = end;
        end = (end + SLOTS * need.slot_bytes as usize).next_multiple_of(PAGE);
        at
    });
    (slots.collect(), end)
}

impl NetEnd {
    /// The links with a peer, in the order in which both ends know them.
    fn shared_with(&self, peer: u32) -> Vec<LinkNeed> {
        let with = |need: &&LinkNeed| need.peer(self.site.rank) == peer;
        let mut links: Vec<LinkNeed> = self.links.iter().filter(with).copied().collect();
        links.sort_by_key(place_in_connection);
        links
    }

    fn peers(&self) -> Vec<u32> {
        let mut peers: Vec<u32> = self.links.iter().map(|need| need.peer(self.site.rank)).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    fn info(&self, peer: u32) -> NetInfo {
        NetInfo { slot_bytes: self.shared_with(peer).iter().map(|need| need.slot_bytes).collect() }
    }

    /// The memory of each link, from an address of the memory's start.
    fn parts(&self, start: u64) -> Vec<(LinkNeed, LinkMemory)> {
        let (slots, _) = places(&self.links);
        let line = size_of::<Counter>() as u64;
        let part = |((need, slots), number): ((&LinkNeed, usize), u64)| {
            let (slots, posted) = (start + slots as u64, start + 2 * line * number);
            (*need, LinkMemory { slots, posted, consumed: posted + line, slot_bytes: need.slot_bytes })
        };
        self.links.iter().zip(slots).zip(0..).map(part).collect()
    }

    /// The connection with a peer over a socket.
    fn connection(&self, peer: u32, socket: OwnedFd, memory: &Arc<Mutex<HostSegment>>) -> MovedConnection {
        let mut parts = self.parts(memory.lock().host_address());
        parts.retain(|(need, _)| need.peer(self.site.rank) == peer);
        parts.sort_by_key(|(need, _)| place_in_connection(need));
        let links = parts.into_iter().map(|(need, memory)| (need.id.from == self.site.rank, memory));
        MovedConnection::new(peer, socket, links.collect(), memory.clone())
    }
}

/// Where a link is among those of a connection: alike at both ends.
fn place_in_connection(need: &LinkNeed) -> (u32, u32, u32, u32) {
    (need.id.from, need.id.class as u32, need.id.proto as u32, need.id.channel)
}

/// A pair of connected sockets that do not wait.
fn socket_pair() -> Result<(OwnedFd, OwnedFd), Error> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let failed = |error: std::io::Error| Error::system("socketpair", "connection of two ranks", &error);
    let (mine, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|errno| failed(errno.into()))?;
    Ok((off_standard(mine).map_err(failed)?, off_standard(theirs).map_err(failed)?))
}

impl Endpoint for NetEnd {
    fn prepare(&self) -> Result<usize, Error> {
        let (_, bytes) = places(&self.links);
        let memory = HostSegment::new(SharedMemory::anonymous(bytes)?);
        let mut state = self.state.lock();
        state.memory = Some(Arc::new(Mutex::new(memory)));
        for peer in self.peers().into_iter().filter(|peer| *peer > self.site.rank) {
            let (mine, theirs) = socket_pair()?;
            state.sockets.insert(peer, (ChildCloses::of(mine.as_fd()), mine));
            state.offered.insert(peer, (ChildCloses::of(theirs.as_fd()), Arc::new(theirs)));
        }
        Ok(bytes)
    }

    fn connect_info(&self, peer: u32) -> ConnectInfo {
        let bytes = postcard::to_stdvec(&self.info(peer)).unwrap_or_default();
        ConnectInfo { bytes, fd: self.state.lock().offered.get(&peer).map(|(_, fd)| fd.clone()) }
    }

    fn offered(&self) {
        self.state.lock().offered.clear();
    }

    fn accept(&self, peer: u32, info: &[u8], fd: Option<OwnedFd>) -> Result<(), Error> {
        let facts = &self.site.connectivity.facts[peer as usize];
        let info: NetInfo = postcard::from_bytes(info).map_err(|_| wrong_info(facts, LABEL))?;
        if info.slot_bytes != self.info(peer).slot_bytes || fd.is_some() != (peer < self.site.rank) {
            return Err(wrong_info(facts, LABEL));
        }
        if let Some(fd) = fd {
            rustix::io::ioctl_fionbio(&fd, true)
                .map_err(|errno| Error::system("ioctl(FIONBIO)", "connection of two ranks", &errno.into()))?;
            self.state.lock().sockets.insert(peer, (ChildCloses::of(fd.as_fd()), fd));
        }
        Ok(())
    }

    fn connect(&self) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error> {
        let none = || Error::Internal("links are connected before they are made".to_string());
        let memory = self.state.lock().memory.clone().ok_or_else(none)?;
        memory.lock().register(&self.site.context)?;
        let mut state = self.state.lock();
        for (peer, (_child_closes, socket)) in std::mem::take(&mut state.sockets) {
            let connection = self.connection(peer, socket, &memory);
            state.connections.push(self.site.engine.add(connection)?);
        }
        let (parts, rank) = (self.parts(memory.lock().address()), self.site.rank);
        let connected = parts.into_iter().map(|(need, memory)| {
            let LinkMemory { slots, posted, consumed, slot_bytes } = memory;
            let (peer, moved) = (need.peer(rank), need.id.from == rank);
            (need, LinkAddresses { slots, posted, consumed, slot_bytes, peer, moved })
        });
        Ok(connected.collect())
    }

    fn disconnect(&self) {
        let connections = std::mem::take(&mut self.state.lock().connections);
        self.site.engine.remove(&connections);
        self.state.lock().sockets.clear();
    }
}

impl Drop for NetEnd {
    fn drop(&mut self) {
        self.disconnect();
    }
}
