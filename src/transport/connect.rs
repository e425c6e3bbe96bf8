//! Connects the links of a communicator: makes memory for every peer, exchanges where it is, maps it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Offer, PeerFacts, Segment, Setup, Transport, choose};
use crate::error::Error;
use crate::plan::{LinkId, SLOTS};

/// A counter has a cache line of its own.
const LINE: usize = 64;
/// Slots start at a page, so that copies into them are aligned however wide they are.
const PAGE: usize = 4096;

/// A link that a rank takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkNeed {
    /// Which link.
    pub id: LinkId,
    /// The size of one of its slots in bytes.
    pub slot_bytes: u32,
}

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
}

/// How a rank's data reaches a peer, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The channel.
    pub channel: u32,
    /// The receiving rank.
    pub to: u32,
    /// The number of the connection, where log lines of the transport have one (spec §9.4).
    pub connection: Option<u32>,
    /// The transport's label.
    pub label: &'static str,
}

/// The memory of a communicator's links. Dropping it frees and unmaps all of it.
pub struct Connections {
    links: BTreeMap<LinkId, LinkAddresses>,
    /// How this rank sends, for each link.
    pub routes: Vec<Route>,
    segments: Vec<Box<dyn Segment>>,
}

/// Links that could not be connected. Memory that peers may be about to map lives until this is dropped:
/// to be kept until all have said whether they are connected, or they fail for no fault of theirs.
pub struct Unconnected {
    /// What stood in the way.
    pub error: Error,
    /// It was found at a peer's memory, which may be gone because the peer is.
    pub at_peer: bool,
    _memory: Option<Box<Connections>>,
}

impl From<Error> for Unconnected {
    fn from(error: Error) -> Unconnected {
        Unconnected { error, at_peer: false, _memory: None }
    }
}

impl Connections {
    /// Where a link's parts are.
    pub fn link(&self, id: LinkId) -> Option<LinkAddresses> {
        self.links.get(&id).copied()
    }
}

/// Where a link's parts lie in the memory that one rank made, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Part {
    /// The rank receives: its `posted` counter and its slots.
    Receive { posted: u64, slots: u64, slot_bytes: u32 },
    /// The rank sends: its `consumed` counter.
    Send { consumed: u64 },
}

/// What one rank tells one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Message {
    to: u32,
    offer: Offer,
    parts: Vec<(LinkId, Part)>,
}

/// Lays the parts of a rank's links with one peer out in one piece of memory.
fn lay_out(me: u32, links: &[LinkNeed]) -> (Vec<(LinkId, Part)>, usize) {
    let mut slots = (links.len() * LINE).next_multiple_of(PAGE);
    let mut parts = Vec::with_capacity(links.len());
    for (number, link) in links.iter().enumerate() {
        let line = (number * LINE) as u64;
        if link.id.to == me {
            parts.push((link.id, Part::Receive { posted: line, slots: slots as u64, slot_bytes: link.slot_bytes }));
            slots += (SLOTS * link.slot_bytes as usize).next_multiple_of(PAGE);
        } else {
            parts.push((link.id, Part::Send { consumed: line }));
        }
    }
    (parts, slots)
}

/// A peer while its links are being connected.
struct Pending {
    transport: &'static dyn Transport,
    own: Box<dyn Segment>,
    parts: Vec<(LinkId, Part)>,
}

/// This rank's part of the links with one peer, whose memory is kept elsewhere.
struct Half {
    transport: &'static dyn Transport,
    address: u64,
    parts: Vec<(LinkId, Part)>,
}

/// An allgather over all ranks of a communicator.
pub type Exchange<'a> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Error> + 'a;

/// Connects links. Every rank of the communicator calls this at the same time; `exchange` is an
/// allgather over all of them.
///
/// # Errors
/// Whatever stands in the way on this rank; the other ranks must then be told, since they may have
/// succeeded.
pub fn connect(
    setup: &mut Setup<'_>,
    facts: &[PeerFacts],
    needs: &[LinkNeed],
    exchange: &mut Exchange<'_>,
) -> Result<Connections, Unconnected> {
    let me = setup.me.rank;
    let mut connections = Connections { links: BTreeMap::new(), routes: Vec::new(), segments: Vec::new() };
    let (mut pending, mut messages) = (BTreeMap::new(), Vec::new());
    let mut failure = None;
    for (peer, links) in by_peer(me, needs) {
        match offer(setup, &facts[peer as usize], &links) {
            Ok((one, message)) => {
                pending.insert(peer, one);
                messages.push(message);
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let at_peer = failure.is_none();
    // A rank that failed takes part in the exchange all the same: nobody may be left waiting. It offers
    // nothing, so that its neighbours blame it and not the memory that is gone.
    if failure.is_some() {
        messages.clear();
    }
    let all = exchange(&encode(&messages)?)?;
    for (peer, Pending { transport, own, parts }) in pending {
        let half = Half { transport, address: own.address(), parts };
        connections.segments.push(own);
        if failure.is_none() {
            let joined = find_message(&all[peer as usize], peer, me)
                .and_then(|message| connections.join(setup, &facts[peer as usize], half, &message));
            failure = joined.err();
        }
    }
    match failure {
        None => Ok(connections),
        Some(error) => Err(Unconnected { error, at_peer, _memory: Some(Box::new(connections)) }),
    }
}

/// The links of each peer, in the order of the peers.
fn by_peer(me: u32, needs: &[LinkNeed]) -> BTreeMap<u32, Vec<LinkNeed>> {
    let mut peers: BTreeMap<u32, Vec<LinkNeed>> = BTreeMap::new();
    for need in needs {
        let peer = if need.id.from == me { need.id.to } else { need.id.from };
        peers.entry(peer).or_default().push(*need);
    }
    peers
}

/// Makes the memory for one peer, and the message that tells of it.
fn offer(setup: &mut Setup<'_>, peer: &PeerFacts, links: &[LinkNeed]) -> Result<(Pending, Message), Error> {
    let transport = choose(setup.me, peer)?;
    let (parts, size) = lay_out(setup.me.rank, links);
    let (own, offer) = transport.offer(setup, peer, size)?;
    let message = Message { to: peer.rank, offer, parts: parts.clone() };
    Ok((Pending { transport, own, parts }, message))
}

impl Connections {
    /// Maps a peer's memory and puts the halves of each link together.
    fn join(&mut self, setup: &mut Setup<'_>, peer: &PeerFacts, own: Half, message: &Message) -> Result<(), Error> {
        let theirs = own.transport.accept(setup, peer, &message.offer)?;
        let (mine, other) = (own.address, theirs.address());
        self.segments.push(theirs);
        for (id, part) in own.parts {
            let remote = message.parts.iter().find(|(remote, _)| *remote == id).map(|(_, part)| *part);
            let link = match (part, remote) {
                (Part::Receive { posted, slots, slot_bytes }, Some(Part::Send { consumed })) => {
                    LinkAddresses { slots: mine + slots, posted: mine + posted, consumed: other + consumed, slot_bytes }
                }
                (Part::Send { consumed }, Some(Part::Receive { posted, slots, slot_bytes })) => {
                    LinkAddresses { slots: other + slots, posted: other + posted, consumed: mine + consumed, slot_bytes }
                }
                _ => return Err(disagreement(peer.rank, id)),
            };
            self.links.insert(id, link);
            if id.from == setup.me.rank {
                let (connection, label) = (own.transport.connection(), own.transport.label());
                self.routes.push(Route { channel: id.channel, to: id.to, connection, label });
            }
        }
        Ok(())
    }
}

fn disagreement(peer: u32, id: LinkId) -> Error {
    Error::Internal(format!("rank {peer} did not offer its end of the link from rank {} to rank {}", id.from, id.to))
}

fn encode(messages: &[Message]) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(messages).map_err(|error| Error::Internal(format!("encoding connect messages: {error}")))
}

/// The message from one rank to another among all that the first rank sent.
fn find_message(bytes: &[u8], from: u32, to: u32) -> Result<Message, Error> {
    let unreadable = || Error::Remote { rank: Some(from), text: format!("rank {from} sent unreadable connect data") };
    let messages: Vec<Message> = postcard::from_bytes(bytes).map_err(|_| unreadable())?;
    let gone =
        || Error::Remote { rank: Some(from), text: format!("rank {from} could not make its end of the links to rank {to}") };
    messages.into_iter().find(|message| message.to == to).ok_or_else(gone)
}
