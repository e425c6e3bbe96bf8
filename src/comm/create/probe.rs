//! Which transports work between the ranks: all try them, and agree.

use serde::{Deserialize, Serialize};

use super::build::encode;
use super::peer_faults::{self, PairFault};
use crate::bootstrap::Bootstrap;
use crate::comm::Comm;
use crate::comm::peers::{agree, hosts};
use crate::error::Error;
use crate::log::lines;
use crate::plan::wiring::Wiring;
use crate::transport::{self, Links, PeerFacts, PeerFault, Probe, Unconnected, exclude_peer_memory};
use crate::tuning::Agreed;

/// How often transports are tried, each time without the pairs of ranks whose peer memory has turned out not to work.
/// The last time none is used.
const TRIES: usize = 4;

impl Comm {
    /// Tries the transports between every rank and every other one. Two ranks whose peer memory turns out not to work
    /// take another way. Gives the links that there shall be, and the facts by which transports are chosen.
    pub(super) fn probe(
        &self,
        bootstrap: &mut Bootstrap,
        peers: &[PeerFacts],
        links: Option<&Links>,
        agreed: &mut Agreed,
    ) -> Result<Option<(Probe, Wiring, Vec<PeerFacts>)>, Error> {
        let Some(links) = links else { return Ok(None) };
        let software = self.device.context.driver().is_software();
        let (mut peers, mut earlier) = (peers.to_vec(), None);
        peer_faults::tell_too_far(self.identity.rank, &peers);
        for tries in 1..=TRIES {
            let own = self.probe_once(bootstrap, &peers, links);
            let (mut probe, faults) = judge(bootstrap, own)?;
            probe.keep(earlier.take());
            if faults.is_empty() {
                return Ok(Some((probe, agreed.wiring(hosts(&peers), software)?, peers)));
            }
            let all = |a| (a + 1..self.nranks() as u32).map(move |b| (a, b));
            match tries + 1 == TRIES {
                true => (0..self.nranks() as u32).flat_map(all).for_each(|pair| exclude_peer_memory(&mut peers, pair)),
                false => faults.iter().for_each(|fault| exclude_peer_memory(&mut peers, fault.pair())),
            }
            peer_faults::tell(self.identity.rank, &faults, &peers);
            *agreed = agree(&peers);
            earlier = Some(probe);
        }
        Err(Error::Internal("peer memory does not work where none is used".to_string()))
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
            let [from, to] = [route.from, route.to].map(|rank| (rank as i32, facts[rank as usize].nvml_device));
            if route.network {
                let sends = route.from == self.identity.rank;
                let network =
                    facts[self.identity.rank as usize].reach.network.as_ref().and_then(|name| name.as_ref().ok());
                let label = network.map_or(route.label.to_string(), |name| format!("NET/{name}"));
                let line = lines::net_channel(route.channel, sends, from, to, &label);
                log::info!(target: "INIT,NET", "{line}");
                continue;
            }
            let line = lines::channel(route.channel, route.connection, from, to, route.label);
            match route.connection {
                Some(_) => log::info!(target: "INIT,P2P", "{line}"),
                None => log::info!(target: "INIT,SHM", "{line}"),
            }
        }
        log::info!(target: "INIT,P2P,SHM", "Rank {} has {}", self.identity.rank, probe.summary());
        log::info!(target: "INIT", "Connected all rings, use ring PXN 0 GDR 0");
    }
}

/// How connecting went on one rank, told to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProbeVerdict {
    failure: Option<ProbeFailure>,
    /// The ranks with which peer memory does not work.
    faults: Vec<(u32, PeerFault)>,
}

/// Why a rank cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ProbeFailure {
    /// Whether the rank suffers from the failure of another one.
    derived: bool,
    text: String,
}

impl ProbeVerdict {
    fn of(own: &Result<Probe, Unconnected>) -> ProbeVerdict {
        let failure = |Unconnected { error, .. }: &Unconnected| ProbeFailure {
            derived: matches!(error, Error::Remote { .. }),
            text: error.to_string(),
        };
        let faults = own.as_ref().map_or_else(|_| Vec::new(), |probe| probe.faults().to_vec());
        ProbeVerdict { failure: own.as_ref().err().map(failure), faults }
    }
}

/// A communicator-wide verdict on the transports, since a link has two ends: what does not work between which ranks.
///
/// # Errors
/// Where a rank cannot go on: its own failure if it has one, also where the others have not waited for its verdict,
/// unless it is that a peer's memory has gone with the peer; else that of the rank to blame.
fn judge(bootstrap: &mut Bootstrap, own: Result<Probe, Unconnected>) -> Result<(Probe, Vec<PairFault>), Error> {
    let verdict = encode(&ProbeVerdict::of(&own));
    let all = verdict.and_then(|bytes| bootstrap.all_gather(&bytes)).and_then(|all| read_verdicts(&all));
    let at_peer = own.as_ref().is_err_and(|unconnected| unconnected.at_peer);
    // From here on nobody maps anything of this try any more.
    match (own.map_err(|unconnected| unconnected.error), all.map(|all| (first_failure(&all), faults_of(all)))) {
        (Ok(probe), Ok((None, faults))) => Ok((probe, faults)),
        (Err(_), Err(error)) if at_peer => Err(error),
        (Err(error), _) if !matches!(error, Error::Remote { .. }) => Err(error),
        (_, Ok((Some(error), _))) | (_, Err(error)) | (Err(error), Ok((None, _))) => Err(error),
    }
}

fn read_verdicts(all: &[Vec<u8>]) -> Result<Vec<ProbeVerdict>, Error> {
    let unreadable = |rank| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable verdict") };
    (0..).zip(all).map(|(rank, bytes)| postcard::from_bytes(bytes).map_err(|_| unreadable(rank))).collect()
}

/// What the lowest rank that has failed by itself gives; else the lowest that has failed because of another one.
fn first_failure(verdicts: &[ProbeVerdict]) -> Option<Error> {
    let failed = (0u32..).zip(verdicts).filter_map(|(rank, verdict)| Some((rank, verdict.failure.as_ref()?)));
    let (rank, first) = failed.min_by_key(|(rank, failure)| (failure.derived, *rank))?;
    Some(Error::Remote { rank: Some(rank), text: format!("rank {rank} could not connect: {}", first.text) })
}

fn faults_of(verdicts: Vec<ProbeVerdict>) -> Vec<PairFault> {
    let of_rank = |(by, verdict): (u32, ProbeVerdict)| {
        verdict.faults.into_iter().map(move |(peer, fault)| PairFault { by, peer, fault })
    };
    (0..).zip(verdicts).flat_map(of_rank).collect()
}
