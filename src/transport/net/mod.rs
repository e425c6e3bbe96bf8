//! Links without common memory: slots and counters at both ends, in host memory, and a *mover* between them.
//!
//! A kernel that sends fills slots of its own rank and posts them, with their sizes beside the counter; the rank's
//! event loop (`engine`) sends what is posted over a stream to the peer's (`connection`), which puts it into slots
//! there and posts it to the kernel that receives. What is consumed there comes back as credit, so that no more is sent
//! than there is room for. The mover knows no calls: a connection forwards what is posted. So launches of graphs, which
//! the host does not see, need nothing of it.
//!
//! [`SOCKETS`] connects ranks by TCP: the lower of the two tells the other a token, and that one connects to the lower
//! one's event loop and shows it. [`LOOPBACK`] connects ranks of one host by a pair of sockets. It is used where
//! `OXCCL_TRANSPORTS` asks for it: to see what a network would see, without one.

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
use crate::proxy::Address;
use crate::sys::{self, ChildCloses, SharedMemory, TcpStream, off_standard};
use connection::{LinkMemory, MovedConnection, MoverStream};
pub(super) use engine::Engine;

/// Ranks of one host, by a pair of sockets.
pub(super) const LOOPBACK: ByStream = ByStream(StreamKind::SocketPair);
/// Ranks anywhere, by TCP.
pub(super) const SOCKETS: ByStream = ByStream(StreamKind::Tcp);

/// Links over a stream of bytes.
pub(super) struct ByStream(StreamKind);

/// What joins the two ranks of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamKind {
    /// The lower rank makes a pair of sockets.
    SocketPair,
    /// The higher rank connects to the lower one.
    Tcp,
}

impl StreamKind {
    fn id(self) -> TransportId {
        match self {
            StreamKind::SocketPair => TransportId::Net,
            StreamKind::Tcp => TransportId::Socket,
        }
    }

    fn label(self) -> &'static str {
        match self {
            StreamKind::SocketPair => "NET/Loopback",
            StreamKind::Tcp => "NET/Socket",
        }
    }
}

/// What a peer is told; from the lower rank a socket comes with it, or a token.
#[derive(Serialize, Deserialize)]
struct NetInfo {
    /// The sizes of the slots of the links between the two, in the order in which both know them.
    slot_bytes: Vec<u32>,
    /// What the higher rank is to show when it connects.
    token: u64,
}

impl Transport for ByStream {
    fn id(&self) -> TransportId {
        self.0.id()
    }

    fn label(&self) -> &'static str {
        self.0.label()
    }

    fn is_device_memory(&self) -> bool {
        false
    }

    /// The mover takes whole slots, and only counters tell it when.
    fn carries_lines(&self) -> bool {
        false
    }

    fn can_connect(&self, a: &PeerFacts, b: &PeerFacts) -> bool {
        match self.0 {
            StreamKind::SocketPair => a.host.can_pass_descriptors(&b.host),
            StreamKind::Tcp => a.location.tcp.is_some() && b.location.tcp.is_some(),
        }
    }

    fn endpoint(&self, site: Site) -> Result<Arc<dyn Endpoint>, Error> {
        Ok(NetEnd::new(site, self.0))
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
    kind: StreamKind,
    links: Vec<LinkNeed>,
    state: Mutex<EndState>,
}

#[derive(Default)]
struct EndState {
    memory: Option<Arc<Mutex<HostSegment>>>,
    /// This rank's streams, by peer.
    streams: BTreeMap<u32, MoverStream>,
    /// What higher ranks are to show when they connect.
    tokens: BTreeMap<u32, u64>,
    /// What lower ranks have told, which this one connects to when all is ready: who connects must go on at once.
    told: BTreeMap<u32, u64>,
    /// Sockets for peers, until they have been told.
    offered: BTreeMap<u32, (ChildCloses, Arc<OwnedFd>)>,
    /// The connections, as the engine knows them, and the tokens that some of them wait for.
    connections: Vec<u32>,
    awaited: Vec<u64>,
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

    fn new(site: Site, kind: StreamKind) -> Arc<NetEnd> {
        let links = site.connectivity.links(site.rank, site.group, kind.id());
        Arc::new(NetEnd { site, kind, links, state: Mutex::default() })
    }

    fn info(&self, peer: u32) -> NetInfo {
        let slot_bytes = self.shared_with(peer).iter().map(|need| need.slot_bytes).collect();
        NetInfo { slot_bytes, token: self.state.lock().tokens.get(&peer).copied().unwrap_or_default() }
    }

    /// Begins to connect to a lower rank, which has told a token.
    fn connect_to(&self, peer: &PeerFacts, token: u64) -> Result<MoverStream, Error> {
        let none = || Error::Internal(format!("rank {} does not listen", peer.rank));
        let address = peer.location.tcp.ok_or_else(none)?;
        let to = Address { key: peer.links, rank: peer.rank };
        let stream = TcpStream::connect(address.socket())
            .map_err(|error| Error::system("connect", format!("rank {} at {}", peer.rank, address.socket()), &error))?;
        Ok(MoverStream::new(stream.into_fd(), address.stream_hello(to, token)))
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

    /// The connection with a peer over a stream, which may come later.
    fn connection(&self, peer: u32, stream: Option<MoverStream>, memory: &Arc<Mutex<HostSegment>>) -> MovedConnection {
        let mut parts = self.parts(memory.lock().host_address());
        parts.retain(|(need, _)| need.peer(self.site.rank) == peer);
        parts.sort_by_key(|(need, _)| place_in_connection(need));
        let links = parts.into_iter().map(|(need, memory)| (need.id.from == self.site.rank, memory));
        MovedConnection::new((peer, self.kind == StreamKind::Tcp), stream, links.collect(), memory.clone())
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
            if self.kind == StreamKind::Tcp {
                let token = sys::random();
                self.site.engine.announce(token);
                state.tokens.insert(peer, token);
                continue;
            }
            let (mine, theirs) = socket_pair()?;
            state.streams.insert(peer, MoverStream::new(mine, Vec::new()));
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
        let (label, lower) = (self.kind.label(), peer < self.site.rank);
        let info: NetInfo = postcard::from_bytes(info).map_err(|_| wrong_info(facts, label))?;
        let has_fd = self.kind == StreamKind::SocketPair && lower;
        if info.slot_bytes != self.info(peer).slot_bytes || fd.is_some() != has_fd {
            return Err(wrong_info(facts, label));
        }
        let stream = match fd {
            Some(fd) => {
                rustix::io::ioctl_fionbio(&fd, true)
                    .map_err(|errno| Error::system("ioctl(FIONBIO)", "connection of two ranks", &errno.into()))?;
                MoverStream::new(fd, Vec::new())
            }
            None => {
                let told = lower.then_some((peer, info.token));
                self.state.lock().told.extend(told);
                return Ok(());
            }
        };
        self.state.lock().streams.insert(peer, stream);
        Ok(())
    }

    fn connect(&self) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error> {
        let none = || Error::Internal("links are connected before they are made".to_string());
        let memory = self.state.lock().memory.clone().ok_or_else(none)?;
        memory.lock().register(&self.site.context)?;
        let mut state = self.state.lock();
        for (peer, token) in std::mem::take(&mut state.told) {
            let stream = self.connect_to(&self.site.connectivity.facts[peer as usize], token)?;
            state.streams.insert(peer, stream);
        }
        for (peer, stream) in std::mem::take(&mut state.streams) {
            let connection = self.connection(peer, Some(stream), &memory);
            state.connections.push(self.site.engine.add(connection)?);
        }
        for (peer, token) in std::mem::take(&mut state.tokens) {
            let number = self.site.engine.add(self.connection(peer, None, &memory))?;
            state.connections.push(number);
            state.awaited.push(token);
            self.site.engine.await_stream(number, token)?;
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
        let mut state = self.state.lock();
        let EndState { connections, tokens, awaited, streams, .. } = &mut *state;
        awaited.extend(std::mem::take(tokens).into_values());
        let (connections, tokens) = (std::mem::take(connections), std::mem::take(awaited));
        streams.clear();
        drop(state);
        self.site.engine.forget(&tokens);
        self.site.engine.remove(&connections);
    }
}

impl Drop for NetEnd {
    fn drop(&mut self) {
        self.disconnect();
    }
}
