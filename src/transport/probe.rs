//! Whether the chosen transports work: tried when a communicator is made, so that all ranks can still take another one.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::layout::PAGE;
use super::memory::{Segment, passes_descriptors};
use super::{Links, PeerFacts, Transport, TransportId, by_id, choose};
use crate::device::{Charge, Context, Ledger, Use};
use crate::error::Error;
use crate::plan::LinkClass;
use crate::plan::wiring::Wiring;

/// How a rank's data reaches the next rank of a ring, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The channel.
    pub channel: u32,
    /// The receiving rank.
    pub to: u32,
    /// The number of the connection, where log lines of the transport have one.
    pub connection: Option<u32>,
    /// The transport's label.
    pub label: &'static str,
}

/// Small pieces of memory that were shared for a try. They stay until the communicator ends, since unmapping waits for
/// the device.
pub struct Probe {
    /// How many peers each transport reaches.
    peers: BTreeMap<TransportId, usize>,
    /// Unmapped before this rank's own are freed.
    theirs: Vec<Box<dyn Segment>>,
    own: BTreeMap<TransportId, Box<dyn Segment>>,
    charges: Vec<Charge>,
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
}

/// What a rank tells all others: by transport, how its piece is reached, and whether a descriptor comes by message.
type Offers = Vec<(TransportId, Vec<u8>, bool)>;

/// An allgather over all ranks of a communicator.
pub type Exchange<'a> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, Error> + 'a;

/// Tries the transports between this rank and all others. Every rank of the communicator calls this at the same time;
/// `exchange` is an allgather over all of them. Device memory is made, handed over and mapped; of host memory, which
/// the flight recorder of the host shows can be passed on, only whether the device takes it.
///
/// # Errors
/// Whatever stands in the way on this rank; the other ranks must then be told, since they may have
/// succeeded. Where two ranks have no transport, all ranks get the same error.
pub fn probe(
    context: &Arc<Context>,
    me: u32,
    facts: &[PeerFacts],
    ledger: &Arc<Ledger>,
    links: &Links,
    exchange: &mut Exchange<'_>,
) -> Result<Probe, Unconnected> {
    let chosen = choices(me, facts)?;
    let mut peers = BTreeMap::new();
    chosen.values().for_each(|transport| *peers.entry(transport.id()).or_insert(0) += 1);
    let mut probe = Probe { peers, theirs: Vec::new(), own: BTreeMap::new(), charges: Vec::new() };
    // A rank that has failed offers nothing, so that its peers blame it and not the memory that is gone.
    let made = probe.make(context, ledger, &Passing { me: &facts[me as usize], facts, chosen: &chosen, links });
    let bytes = postcard::to_stdvec(made.as_ref().unwrap_or(&Vec::new()))
        .map_err(|error| Error::Internal(format!("encoding offers: {error}")))?;
    let all = exchange(&bytes)?;
    let opened = made.map_err(|error| (error, false)).and_then(|_| {
        let open = |(peer, transport): (&u32, &&dyn Transport)| {
            probe.open(context, &facts[*peer as usize], *transport, &all, links)
        };
        chosen.iter().try_for_each(open).map_err(|error| (error, true))
    });
    match opened {
        Ok(()) => Ok(probe),
        Err((error, at_peer)) => Err(Unconnected { error, at_peer, _memory: Some(Box::new(probe)) }),
    }
}

/// The transport for each peer of a rank. All pairs are looked at, so that all ranks find the same one without.
fn choices(me: u32, facts: &[PeerFacts]) -> Result<BTreeMap<u32, &'static dyn Transport>, Error> {
    let mut chosen = BTreeMap::new();
    for (at, a) in facts.iter().enumerate() {
        for b in &facts[at + 1..] {
            let transport = choose(a, b)?;
            if a.rank == me || b.rank == me {
                chosen.insert(a.rank + b.rank - me, transport);
            }
        }
    }
    Ok(chosen)
}

/// To whom descriptors go.
struct Passing<'a> {
    me: &'a PeerFacts,
    facts: &'a [PeerFacts],
    chosen: &'a BTreeMap<u32, &'static dyn Transport>,
    links: &'a Links,
}

impl Passing<'_> {
    /// Passes a descriptor to all peers by a transport.
    fn pass(&self, by: TransportId, fd: &Arc<OwnedFd>) {
        let peers = self.chosen.iter().filter(|(_, transport)| transport.id() == by);
        peers.for_each(|(peer, _)| self.links.send_try(self.me, &self.facts[*peer as usize], by, fd));
    }
}

impl Probe {
    fn make(&mut self, context: &Arc<Context>, ledger: &Arc<Ledger>, to: &Passing<'_>) -> Result<Offers, Error> {
        let mut offers = Offers::new();
        for transport in self.peers.keys() {
            let (segment, info) = by_id(*transport).probe(context, passes_descriptors(to.me, to.facts))?;
            info.fd.iter().for_each(|fd| to.pass(*transport, fd));
            offers.push((*transport, info.bytes, info.fd.is_some()));
            self.charges.push(ledger.charge(Use::Persist, PAGE));
            self.own.insert(*transport, segment);
        }
        Ok(offers)
    }

    fn open(
        &mut self,
        context: &Arc<Context>,
        peer: &PeerFacts,
        transport: &dyn Transport,
        all: &[Vec<u8>],
        links: &Links,
    ) -> Result<(), Error> {
        let from = peer.rank;
        let unreadable =
            || Error::Remote { rank: Some(from), text: format!("rank {from} sent unreadable connect data") };
        let offers: Offers = postcard::from_bytes(&all[from as usize]).map_err(|_| unreadable())?;
        let gone =
            || Error::Remote { rank: Some(from), text: format!("rank {from} could not make its end of the links") };
        let (_, info, fd) = offers.into_iter().find(|(id, ..)| *id == transport.id()).ok_or_else(gone)?;
        let fd = fd.then(|| links.receive_try(from, transport.id())).transpose()?;
        self.theirs.extend(transport.probe_peer(context, peer, &info, fd)?);
        Ok(())
    }
}

/// How a rank sends along wakeups.
///
/// # Errors
/// Where there is no transport.
pub fn routes(me: u32, facts: &[PeerFacts], wiring: &Wiring) -> Result<Vec<Route>, Error> {
    let mut routes: Vec<Route> = Vec::new();
    for need in wiring.links(me).iter().filter(|need| need.id.class == LinkClass::Ring && need.id.from == me) {
        let transport = choose(&facts[me as usize], &facts[need.id.to as usize])?;
        let (channel, to) = (need.id.channel, need.id.to);
        routes.push(Route { channel, to, connection: transport.connection(), label: transport.label() });
    }
    Ok(routes)
}
