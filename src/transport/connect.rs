//! Connects the links of a communicator: makes memory for the peers, tells them where it is, maps theirs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::layout::{Key, Map, Place};
use super::{Offer, PeerFacts, Segment, Setup, TRANSPORTS};
use crate::error::Error;
use crate::plan::wiring::{LinkNeed, Wiring};
use crate::plan::{LinkClass, LinkId};

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
}

/// How a rank's data reaches the next rank of a ring, for the log.
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
    /// How this rank sends along rings.
    pub routes: Vec<Route>,
    /// How many peers each transport reaches.
    peers: BTreeMap<usize, usize>,
    /// Bytes of this rank's areas.
    bytes: usize,
    segments: BTreeMap<Key, Box<dyn Segment>>,
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

    /// How many links there are, to how many peers, by which transports, in how much memory, for the log.
    pub fn summary(&self) -> String {
        let ways: Vec<String> =
            self.peers.iter().map(|(transport, count)| format!("{count} by {}", TRANSPORTS[*transport].label())).collect();
        let peers: usize = self.peers.values().sum();
        format!("{} links with {peers} peers ({}), {} KiB", self.links.len(), ways.join(", "), self.bytes >> 10)
    }
}

/// What the maker of a segment tells all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Message {
    /// A place in [`TRANSPORTS`].
    transport: u32,
    /// The size of the segment, which the others have computed too.
    bytes: u64,
    offer: Offer,
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
    wiring: &Wiring,
    exchange: &mut Exchange<'_>,
) -> Result<Connections, Unconnected> {
    let map = Map::draw(setup.me.rank, facts, wiring)?;
    let pooled = map.pooled;
    let mut site = Site { setup, facts, map, segments: BTreeMap::new(), failure: None };
    let messages = site.make();
    let all = exchange(&encode(&messages)?)?;
    site.attempt(true, |site| site.open(&all));
    // Pages belong where their owner is: it must be the first to touch them, and registration touches all.
    site.attempt(false, |site| site.segments.values().try_for_each(|segment| segment.reserve()));
    if pooled {
        let reserved = exchange(&[]);
        site.attempt(true, |_| reserved.map(drop));
    }
    site.attempt(false, |site| site.segments.values_mut().try_for_each(|segment| segment.register(site.setup)));
    site.finish()
}

/// The links of a rank while they are being connected.
struct Site<'a, 's> {
    setup: &'a mut Setup<'s>,
    facts: &'a [PeerFacts],
    map: Map,
    segments: BTreeMap<Key, Box<dyn Segment>>,
    /// The first failure, and whether it was found at a peer's memory. A rank that has failed takes part in
    /// every exchange all the same: nobody may be left waiting.
    failure: Option<(Error, bool)>,
}

impl Site<'_, '_> {
    /// Goes on unless something has failed.
    fn attempt(&mut self, at_peer: bool, step: impl FnOnce(&mut Self) -> Result<(), Error>) {
        if self.failure.is_none() {
            self.failure = step(self).err().map(|error| (error, at_peer));
        }
    }

    /// Makes the segments that are this rank's to make. A rank that has failed offers nothing, so that its peers
    /// blame it and not the memory that is gone.
    fn make(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        self.attempt(false, |site| {
            for (key, plan) in site.map.segments.iter().filter(|(key, _)| key.maker == site.setup.me.rank) {
                let (segment, offer) = TRANSPORTS[key.transport].offer(site.setup, site.facts, plan)?;
                site.segments.insert(*key, segment);
                messages.push(Message { transport: key.transport as u32, bytes: plan.bytes as u64, offer });
            }
            Ok(())
        });
        if self.failure.is_some() {
            messages.clear();
        }
        messages
    }

    /// Maps the segments that others have made.
    fn open(&mut self, all: &[Vec<u8>]) -> Result<(), Error> {
        let me = self.setup.me.rank;
        for (key, plan) in self.map.segments.iter().filter(|(key, _)| key.maker != me) {
            let maker = &self.facts[key.maker as usize];
            let message = find_message(&all[key.maker as usize], *key, me)?;
            if message.bytes != plan.bytes as u64 {
                let text = format!(
                    "rank {} laid out {} bytes for its links where rank {me} expects {}; does it run another build of oxccl?",
                    key.maker, message.bytes, plan.bytes
                );
                return Err(Error::Remote { rank: Some(key.maker), text });
            }
            let segment = TRANSPORTS[key.transport].accept(self.setup, maker, &message.offer, plan)?;
            self.segments.insert(*key, segment);
        }
        Ok(())
    }

    /// Puts the halves of all links together.
    fn finish(mut self) -> Result<Connections, Unconnected> {
        let mut connections = Connections {
            links: BTreeMap::new(),
            routes: Vec::new(),
            peers: BTreeMap::new(),
            bytes: self.map.segments.values().map(|plan| plan.own.1 - plan.own.0).sum(),
            segments: BTreeMap::new(),
        };
        self.attempt(false, |site| site.join(&mut connections));
        connections.segments = self.segments;
        match self.failure {
            None => Ok(connections),
            Some((error, at_peer)) => Err(Unconnected { error, at_peer, _memory: Some(Box::new(connections)) }),
        }
    }

    fn join(&self, connections: &mut Connections) -> Result<(), Error> {
        let me = self.setup.me.rank;
        for (need, transport) in &self.map.links {
            let addresses = self.addresses(need, *transport).ok_or_else(|| {
                Error::Internal(format!("no memory for the link from rank {} to rank {}", need.id.from, need.id.to))
            })?;
            connections.links.insert(need.id, addresses);
            if need.id.class == LinkClass::Ring && need.id.from == me {
                let (connection, label) = (TRANSPORTS[*transport].connection(), TRANSPORTS[*transport].label());
                connections.routes.push(Route { channel: need.id.channel, to: need.id.to, connection, label });
            }
        }
        for (_, transport) in self.map.places.keys().filter(|(owner, _)| *owner != me) {
            *connections.peers.entry(*transport).or_insert(0) += 1;
        }
        Ok(())
    }

    /// The address of an area.
    fn base(&self, place: &Place) -> Option<u64> {
        Some(self.segments.get(&place.key)?.address() + place.base as u64)
    }

    fn addresses(&self, need: &LinkNeed, transport: usize) -> Option<LinkAddresses> {
        let half = |rank: u32| {
            let place = self.map.places.get(&(rank, transport))?;
            Some((self.base(place)?, *place.parts.get(&need.id)?))
        };
        let ((from, sender), (to, receiver)) = (half(need.id.from)?, half(need.id.to)?);
        Some(LinkAddresses {
            slots: to + receiver.slots as u64,
            posted: to + receiver.counter as u64,
            consumed: from + sender.counter as u64,
            slot_bytes: need.slot_bytes,
            peer: need.peer(self.setup.me.rank),
        })
    }
}

fn encode(messages: &[Message]) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(messages).map_err(|error| Error::Internal(format!("encoding connect messages: {error}")))
}

/// What the maker of a segment sent about it.
fn find_message(bytes: &[u8], key: Key, me: u32) -> Result<Message, Error> {
    let from = key.maker;
    let unreadable = || Error::Remote { rank: Some(from), text: format!("rank {from} sent unreadable connect data") };
    let messages: Vec<Message> = postcard::from_bytes(bytes).map_err(|_| unreadable())?;
    let gone =
        || Error::Remote { rank: Some(from), text: format!("rank {from} could not make its end of the links to rank {me}") };
    messages.into_iter().find(|message| message.transport as usize == key.transport).ok_or_else(gone)
}
