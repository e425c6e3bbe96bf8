//! Whether the chosen transports work: tried when a communicator is made, so that all ranks can still take another one.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::layout::PAGE;
use super::memory::Segment;
use super::validation::{self, Lines, MappedPeer, PeerFault};
use super::{Links, PeerFacts, Transport, TransportId, by_id, choose, distinct_pairs};
use crate::device::{Charge, Context, Ledger, OUT_OF_MEMORY, Use};
use crate::error::Error;
use crate::plan::wiring::Wiring;
use crate::plan::{LinkClass, LinkId};
use crate::sys;

/// How data reaches the next rank of a ring, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The channel.
    pub channel: u32,
    /// The sending rank.
    pub from: u32,
    /// The receiving rank.
    pub to: u32,
    /// Data go over a network: both ends have a line.
    pub network: bool,
    /// The number of the connection, where log lines of the transport have one.
    pub connection: Option<u32>,
    /// The transport's label.
    pub label: &'static str,
}

/// Small pieces of memory that were shared for a try. They stay until the communicator ends, since unmapping waits for
/// the device; for good where a copy may still be going on there.
pub struct Probe {
    /// How many peers each transport reaches.
    peers: BTreeMap<TransportId, usize>,
    /// By peer. Unmapped before this rank's own are freed.
    theirs: BTreeMap<u32, Box<dyn Segment>>,
    own: BTreeMap<TransportId, Box<dyn Segment>>,
    charges: Vec<Charge>,
    /// The peers with which peer memory does not work, as this rank has found.
    faults: Vec<(u32, PeerFault)>,
    /// A copy may still be going on.
    stuck: bool,
    /// Earlier tries.
    earlier: Option<Box<Probe>>,
}

/// A try that has failed. Memory that peers may be about to map lives until this is dropped: to be kept until all have
/// said how it went, or they fail for no fault of theirs.
pub struct Unconnected {
    /// What stood in the way.
    pub error: Error,
    /// It was found at a peer's memory, which may be gone because the peer is.
    pub at_peer: bool,
    _memory: Option<Box<Probe>>,
}

impl From<Error> for Unconnected {
    fn from(error: Error) -> Unconnected {
        Unconnected { error, at_peer: false, _memory: None }
    }
}

impl Probe {
    /// How many peers there are, and by which transports they are reached, for the log.
    pub fn summary(&self) -> String {
        let by = |(transport, count): (&TransportId, &usize)| format!("{count} by {}", by_id(*transport).label());
        let counts: Vec<String> = self.peers.iter().map(by).collect();
        format!("links with {} peers ({})", self.peers.values().sum::<usize>(), counts.join(", "))
    }

    /// The peers with which peer memory does not work, as this rank has found: another transport is to be tried.
    pub fn faults(&self) -> &[(u32, PeerFault)] {
        &self.faults
    }

    /// Keeps an earlier try as long as this one.
    pub fn keep(&mut self, earlier: Option<Probe>) {
        self.earlier = earlier.map(Box::new);
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.stuck {
            std::mem::forget((std::mem::take(&mut self.theirs), std::mem::take(&mut self.own)));
        }
    }
}

/// What a rank tells all others.
#[derive(Default, Serialize, Deserialize)]
struct Offers {
    /// A random number, from which its lines are made.
    salt: u64,
    /// By transport.
    pieces: Vec<(TransportId, Option<Piece>)>,
}

/// How a rank's piece is reached; none where it could not be made, which the rank itself tells later.
#[derive(Serialize, Deserialize)]
struct Piece {
    info: Vec<u8>,
    /// A descriptor comes by message.
    descriptor: bool,
}

/// An allgather over all ranks of a communicator.
pub type Exchange<'a> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Error> + 'a;

/// Tries the transports between this rank and all others. Every rank of the communicator calls this at the same time;
/// `exchange` is an allgather over all of them. Device memory is made, handed over and mapped, and data are moved in
/// both directions; of host memory, which the flight recorder of the host shows can be passed on, only whether the
/// device takes it.
///
/// # Errors
/// Whatever stands in the way on this rank, apart from [`Probe::faults`]; the other ranks must then be told, since they
/// may have succeeded. Where two ranks have no transport, all ranks get the same error.
pub fn probe(
    context: &Arc<Context>,
    me: u32,
    facts: &[PeerFacts],
    ledger: &Arc<Ledger>,
    links: &Links,
    exchange: &mut Exchange<'_>,
) -> Result<Probe, Unconnected> {
    let Choices { mine, peer_memory } = Choices::of(me, facts)?;
    let mut probing = Probing::new(context, me, facts, links, &mine);
    // A rank that has failed offers nothing, so that its peers blame it and not the memory that is gone.
    let made = probing.make(ledger);
    let all = exchange(&encode(made.as_ref().unwrap_or(&Offers::default()))?)?;
    let mut opened = made.map_err(|error| (error, false)).and_then(|offers| {
        mine.iter()
            .try_for_each(|(peer, transport)| probing.open(*peer, *transport, &all))
            .and_then(|()| probing.copy())
            .map(|()| offers.salt)
            .map_err(|error| (error, true))
    });
    if peer_memory {
        // From here on all copies have ended, or their ranks have said that they have not.
        let said = exchange(&encode(&probing.probe.faults)?)?;
        opened = opened.and_then(|salt| probing.check(&said).map(|()| salt).map_err(|error| (error, false)));
    }
    match opened {
        Ok(_) => Ok(probing.probe),
        Err((error, at_peer)) => Err(Unconnected { error, at_peer, _memory: Some(Box::new(probing.probe)) }),
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Internal(format!("encoding what is tried: {error}")))
}

/// Which transports are to be tried.
struct Choices {
    /// The transport for each peer of this rank.
    mine: BTreeMap<u32, &'static dyn Transport>,
    /// Some two ranks are to use peer memory.
    peer_memory: bool,
}

impl Choices {
    /// All pairs are looked at, so that all ranks find the same one without a transport.
    fn of(me: u32, facts: &[PeerFacts]) -> Result<Choices, Error> {
        let mut choices = Choices { mine: BTreeMap::new(), peer_memory: false };
        for (a, b) in distinct_pairs(facts) {
            choices.peer_memory |= choose(&facts[a], &facts[b])?.is_device_memory();
        }
        for peer in facts.iter().filter(|peer| peer.rank != me) {
            choices.mine.insert(peer.rank, choose(&facts[me as usize], peer)?);
        }
        Ok(choices)
    }
}

/// A try that is going on.
struct Probing<'a> {
    context: &'a Arc<Context>,
    me: u32,
    facts: &'a [PeerFacts],
    links: &'a Links,
    mine: &'a BTreeMap<u32, &'static dyn Transport>,
    lines: Lines,
    probe: Probe,
    /// Peers whose memory is mapped, with their transport and their salt.
    mapped: BTreeMap<u32, (TransportId, u64)>,
    /// What this rank could not make, and why.
    unmade: BTreeMap<TransportId, String>,
}

impl<'a> Probing<'a> {
    fn new(
        context: &'a Arc<Context>,
        me: u32,
        facts: &'a [PeerFacts],
        links: &'a Links,
        mine: &'a BTreeMap<u32, &'static dyn Transport>,
    ) -> Probing<'a> {
        let mut peers = BTreeMap::new();
        mine.values().for_each(|transport| *peers.entry(transport.id()).or_insert(0) += 1);
        let probe = Probe {
            peers,
            theirs: BTreeMap::new(),
            own: BTreeMap::new(),
            charges: Vec::new(),
            faults: Vec::new(),
            stuck: false,
            earlier: None,
        };
        let lines = Lines::of_host(facts, me);
        Probing { context, me, facts, links, mine, lines, probe, mapped: BTreeMap::new(), unmade: BTreeMap::new() }
    }

    /// Makes a piece for each transport.
    fn make(&mut self, ledger: &Arc<Ledger>) -> Result<Offers, Error> {
        let mut offers = Offers { salt: sys::random(), pieces: Vec::new() };
        let ids: Vec<TransportId> = self.probe.peers.keys().copied().collect();
        for id in ids {
            let piece = match self.make_one(by_id(id), offers.salt, ledger) {
                Ok(piece) => Some(piece),
                Err(error) if by_id(id).is_device_memory() && is_of_peer_memory(&error) => {
                    self.unmade.insert(id, error.to_string());
                    None
                }
                Err(error) => return Err(error),
            };
            offers.pieces.push((id, piece));
        }
        Ok(offers)
    }

    fn make_one(&mut self, transport: &dyn Transport, salt: u64, ledger: &Arc<Ledger>) -> Result<Piece, Error> {
        let bytes = if transport.is_device_memory() { self.lines.bytes() } else { PAGE };
        let (segment, info) = transport.probe(self.context, bytes)?;
        if transport.is_device_memory() {
            self.context.upload(segment.address(), &self.lines.outgoing(self.me, salt))?;
        }
        self.probe.charges.push(ledger.charge(Use::Persist, bytes));
        self.probe.own.insert(transport.id(), segment);
        info.fd.iter().for_each(|fd| self.pass(transport.id(), fd));
        Ok(Piece { info: info.bytes, descriptor: info.fd.is_some() })
    }

    /// Passes a descriptor to all peers by a transport. Every rank begins with the next one, as mailboxes have room for
    /// few.
    fn pass(&self, by: TransportId, fd: &Arc<OwnedFd>) {
        let me = &self.facts[self.me as usize];
        let (before, after) = (self.mine.range(..self.me), self.mine.range(self.me..));
        let peers = after.chain(before).filter(|(_, transport)| transport.id() == by);
        self.links.send_try(me, peers.map(|(peer, _)| &self.facts[*peer as usize]), by, fd);
    }

    /// Takes in what a peer has offered.
    fn open(&mut self, peer: u32, transport: &dyn Transport, all: &[Vec<u8>]) -> Result<(), Error> {
        let unreadable =
            || Error::Remote { rank: Some(peer), text: format!("rank {peer} sent unreadable connect data") };
        let Offers { salt, pieces } = postcard::from_bytes(&all[peer as usize]).map_err(|_| unreadable())?;
        let gone =
            || Error::Remote { rank: Some(peer), text: format!("rank {peer} could not make its end of the links") };
        let (_, piece) = pieces.into_iter().find(|(id, _)| *id == transport.id()).ok_or_else(gone)?;
        if let Some(why) = self.unmade.get(&transport.id()) {
            self.probe.faults.push((peer, PeerFault::Refused(why.clone())));
            return Ok(());
        }
        // The peer says itself why there is none.
        let Some(Piece { info, descriptor }) = piece else { return Ok(()) };
        let fd = descriptor.then(|| self.links.receive_try(peer, transport.id())).transpose()?;
        match transport.probe_peer(self.context, &self.facts[peer as usize], &info, fd) {
            Ok(Some(segment)) => {
                self.probe.theirs.insert(peer, segment);
                self.mapped.insert(peer, (transport.id(), salt));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) if transport.is_device_memory() && is_of_peer_memory(&error) => {
                self.probe.faults.push((peer, PeerFault::Refused(error.to_string())));
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Moves data to and from the peers whose memory is mapped.
    fn copy(&mut self) -> Result<(), Error> {
        let mapped = |(rank, (id, _)): (&u32, &(TransportId, u64))| {
            let (theirs, own) = (self.probe.theirs.get(rank)?.address(), self.probe.own.get(id)?.address());
            Some(MappedPeer { rank: *rank, theirs, own })
        };
        let peers: Vec<MappedPeer> = self.mapped.iter().filter_map(mapped).collect();
        let copied = validation::copy(self.context, &self.lines, self.me, &peers)?;
        self.probe.faults.extend(copied.faults);
        self.probe.stuck = copied.stuck;
        Ok(())
    }

    /// Looks what has arrived here, but for peers with which it is known not to work: all have said what they have
    /// found so far.
    fn check(&mut self, said: &[Vec<u8>]) -> Result<(), Error> {
        let mut known: BTreeSet<u32> = self.probe.faults.iter().map(|(peer, _)| *peer).collect();
        for (rank, bytes) in (0..).zip(said) {
            let unreadable =
                || Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable list of faults") };
            let faults: Vec<(u32, PeerFault)> = postcard::from_bytes(bytes).map_err(|_| unreadable())?;
            if faults.iter().any(|(peer, _)| *peer == self.me) {
                known.insert(rank);
            }
        }
        for (id, segment) in &self.probe.own {
            let of_transport = self.mapped.iter().filter(|(_, (by, _))| by == id);
            let peers: BTreeMap<u32, u64> = of_transport.map(|(peer, (_, salt))| (*peer, *salt)).collect();
            if peers.is_empty() {
                continue;
            }
            let mut memory = vec![0; self.lines.bytes()];
            self.context.download(&mut memory, segment.address())?;
            self.probe.faults.extend(validation::check(&memory, &self.lines, self.me, &peers, &known));
        }
        Ok(())
    }
}

/// Whether what the driver says is about peer memory: where device memory has run out, another transport would only
/// hide it.
fn is_of_peer_memory(error: &Error) -> bool {
    matches!(error, Error::Cuda { code, .. } if *code != OUT_OF_MEMORY)
}

/// How a rank sends along rings, and how it receives over a network.
///
/// # Errors
/// Where there is no transport.
pub fn routes(me: u32, facts: &[PeerFacts], wiring: &Wiring) -> Result<Vec<Route>, Error> {
    let mut routes: Vec<Route> = Vec::new();
    for need in wiring.links(me).iter().filter(|need| need.id.class == LinkClass::Ring) {
        let LinkId { channel, from, to, .. } = need.id;
        let transport = choose(&facts[from as usize], &facts[to as usize])?;
        let network = transport.id() == TransportId::Net;
        if from == me || network {
            let (connection, label) = (transport.connection(), transport.label());
            routes.push(Route { channel, from, to, network, connection, label });
        }
    }
    Ok(routes)
}
