//! Which transports work between the ranks: all try them, and agree.

use serde::{Deserialize, Serialize};

use super::build::encode;
use crate::bootstrap::Bootstrap;
use crate::comm::Comm;
use crate::comm::peers::without_peer_memory;
use crate::device;
use crate::error::Error;
use crate::log::lines;
use crate::plan::wiring::Wiring;
use crate::transport::{self, Links, PeerFacts, Probe, Unconnected};
use crate::tuning::Agreed;

impl Comm {
    /// Tries the transports between every rank and every other one. Where peer memory turns out not to work, all ranks
    /// take the other way. Gives the links that there shall be, and the facts by which transports are chosen.
    pub(super) fn probe(
        &self,
        bootstrap: &mut Bootstrap,
        peers: &[PeerFacts],
        links: Option<&Links>,
        agreed: &mut Agreed,
    ) -> Result<Option<(Probe, Wiring, Vec<PeerFacts>)>, Error> {
        let Some(links) = links else { return Ok(None) };
        let software = self.device.context.driver().is_software();
        let wiring = |agreed: &Agreed| agreed.wiring(self.identity.nranks, software);
        let first = self.probe_once(bootstrap, peers, links);
        let (culprit, verdict) = match judge(bootstrap, first, true)? {
            Ok(probe) => return Ok(Some((probe, wiring(agreed)?, peers.to_vec()))),
            Err(failed) => failed,
        };
        let why = &verdict.text;
        log::info!(target: "INIT,P2P", "rank {culprit} cannot use peer memory ({why}); using shared host memory");
        without_peer_memory(agreed);
        let peers: Vec<PeerFacts> = peers.iter().cloned().map(PeerFacts::without_peer_memory).collect();
        let second = self.probe_once(bootstrap, &peers, links);
        let probe = judge(bootstrap, second, false)?.map_err(|(culprit, verdict)| verdict.as_remote(culprit))?;
        Ok(Some((probe, wiring(agreed)?, peers)))
    }

    fn probe_once(&self, bootstrap: &mut Bootstrap, peers: &[PeerFacts], links: &Links) -> Result<Probe, Unconnected> {
        let (context, rank, ledger) = (&self.device.context, self.identity.rank, &self.device.ledger);
        transport::probe(context, rank, peers, ledger, links, &mut |bytes| bootstrap.all_gather(bytes))
    }

    pub(super) fn log_plan(&self, facts: &[PeerFacts], wiring: &Wiring, probe: &Probe, channels: u32) {
        if self.identity.rank == 0 {
            for channel in 0..channels {
                let ring: Vec<i32> =
                    wiring.graph().channel(channel).ring.ranks().iter().map(|rank| *rank as i32).collect();
                log::info!(target: "INIT", "{}", lines::ring(channel, channels, &ring));
            }
        }
        for route in transport::routes(self.identity.rank, facts, wiring).unwrap_or_default() {
            let to = (route.to as i32, facts[route.to as usize].device);
            let line =
                lines::channel(route.channel, route.connection, (self.rank(), self.device.number), to, route.label);
            match route.connection {
                Some(_) => log::info!(target: "INIT,P2P", "{line}"),
                None => log::info!(target: "INIT,SHM", "{line}"),
            }
        }
        log::info!(target: "INIT,P2P,SHM", "Rank {} has {}", self.identity.rank, probe.summary());
        log::info!(target: "INIT", "Connected all rings, use ring PXN 0 GDR 0");
    }
}

/// How connecting went wrong on one rank, told to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProbeVerdict {
    /// Whether another transport may succeed.
    retry: bool,
    /// Whether the rank suffers from the failure of another one.
    derived: bool,
    text: String,
}

impl ProbeVerdict {
    fn of(error: &Error) -> ProbeVerdict {
        // Where device memory has run out, another transport would only hide it.
        let retry = matches!(error, Error::Cuda { code, .. } if *code != device::OUT_OF_MEMORY);
        ProbeVerdict { retry, derived: matches!(error, Error::Remote { .. }), text: error.to_string() }
    }

    fn as_remote(&self, rank: u32) -> Error {
        Error::Remote { rank: Some(rank), text: format!("rank {rank} could not connect: {}", self.text) }
    }
}

/// A communicator-wide verdict on the transports, since a link has two ends: they work for all ranks, or all hear of
/// the rank to blame where another transport may do and is still to be tried.
///
/// # Errors
/// Where none will do: a rank's own failure if it has one, also where the others have not waited for its
/// verdict, unless it is that a peer's memory has gone with the peer; else that of the rank to blame.
fn judge(
    bootstrap: &mut Bootstrap,
    own: Result<Probe, Unconnected>,
    another: bool,
) -> Result<Result<Probe, (u32, ProbeVerdict)>, Error> {
    let verdict = own.as_ref().err().map(|unconnected| ProbeVerdict::of(&unconnected.error));
    let culprit = encode(&verdict).and_then(|bytes| bootstrap.all_gather(&bytes)).and_then(|all| first_failure(&all));
    let at_peer = own.as_ref().is_err_and(|unconnected| unconnected.at_peer);
    // From here on nobody maps anything any more.
    match (own.map_err(|unconnected| unconnected.error), culprit) {
        (Ok(probe), Ok(None)) => Ok(Ok(probe)),
        (Err(_), Err(error)) if at_peer => Err(error),
        (_, Ok(Some((rank, verdict)))) if another && verdict.retry => Ok(Err((rank, verdict))),
        (Err(error), _) if !matches!(error, Error::Remote { .. }) => Err(error),
        (_, Ok(Some((rank, verdict)))) => Err(verdict.as_remote(rank)),
        (_, Err(error)) | (Err(error), Ok(None)) => Err(error),
    }
}

/// The lowest rank that has failed by itself; else the lowest that has failed because of another one.
fn first_failure(verdicts: &[Vec<u8>]) -> Result<Option<(u32, ProbeVerdict)>, Error> {
    let mut first: Option<(u32, ProbeVerdict)> = None;
    for (rank, bytes) in verdicts.iter().enumerate() {
        let rank = rank as u32;
        let verdict: Option<ProbeVerdict> = postcard::from_bytes(bytes)
            .map_err(|_| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable verdict") })?;
        let Some(verdict) = verdict else { continue };
        if first.as_ref().is_none_or(|(_, known)| known.derived && !verdict.derived) {
            first = Some((rank, verdict));
        }
    }
    Ok(first)
}
