//! Creation: rendezvous, exchange of facts, plan, links, and the proof that every rank has succeeded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::config::VERSION;
use super::links::comms_on;
use super::schedules::{self, Schedules};
use super::settings::{self, Settings};
use super::{Comm, ItemStore, Order, Parts, Registrations, State, arena, flight_recorder};
use crate::bootstrap::{Bootstrap, Join, Joining, NetConfig, UniqueId};
use crate::device::{self, HostFlag, Kernels, Use};
use crate::error::Error;
use crate::health::flight_recorder::PART_BYTES;
use crate::log::{Place, lines};
use crate::plan::wiring::Wiring;
use crate::sys::{self, HostFacts};
use crate::transport::{self, Links, PeerFacts, Probe, Unconnected};

/// The `graphUsageMode` for several graphs of a communicator, and for calls besides.
pub(super) const MIXED_GRAPHS: i32 = 2;

/// How long each phase took, for the log.
struct Timings {
    start: Instant,
    last: Instant,
    kernels: Duration,
    bootstrap: Duration,
    allgathers: Duration,
    connections: Duration,
}

/// What a rank needs before it can join. One rank alone has no links.
type Prepared = (Arc<Kernels>, Option<Arc<Links>>, Join);

/// A rank that the root knows.
struct Entered {
    settings: Settings,
    kernels: Arc<Kernels>,
    links: Option<Arc<Links>>,
    joining: Joining,
}

impl Timings {
    fn begin() -> Timings {
        let now = Instant::now();
        let zero = Duration::ZERO;
        Timings { start: now, last: now, kernels: zero, bootstrap: zero, allgathers: zero, connections: zero }
    }

    /// The time since the last call.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }
}

impl Comm {
    /// Joins the other ranks and builds everything that operations need. Blocks until all ranks are
    /// there; on failure the others are told. The handle is taken back then, unless it is `published`: one
    /// that the user has already is polled, and no call returns the error.
    pub fn init(self: &Arc<Comm>, id: &UniqueId, published: bool) -> Result<(), Error> {
        self.come_to_life(published, || self.build(id, |outcome| self.tell_root(id, outcome)))
    }

    /// The same by whatever `build` does.
    pub(super) fn come_to_life(
        self: &Arc<Comm>,
        published: bool,
        build: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let result = build();
        self.begin_life(&result, published);
        if result.is_err() && !published {
            arena::remove(self.handle());
        }
        result
    }

    /// What a creation has come to; of no account if the communicator was aborted meanwhile. One that is polled stays
    /// busy until its whole group has been carried out. An error that no call returns becomes the last error here,
    /// before it can be seen.
    fn begin_life(&self, result: &Result<(), Error>, published: bool) {
        if let (Err(error), true) = (result, published)
            && *self.state.lock() == State::Busy
        {
            crate::log::failure(&Place { file: "comm/init.rs", line: line!(), function: self.function }, error);
        }
        if result.is_err() || !published {
            self.end_busy(result);
        }
    }

    /// Makes a creation that waits for other ranks give up.
    pub fn cancel_init(&self) {
        self.cancel.fire();
    }

    /// Builds what operations need. `arrived` is called once the root knows this rank, or with the reason why not; its
    /// error ends it.
    pub(super) fn build(
        self: &Arc<Comm>,
        id: &UniqueId,
        arrived: impl FnOnce(Result<(), &Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A job of a group or of a non-blocking creation runs on a thread of its own.
        crate::log::set_thread_device(self.device);
        log::info!(target: "INIT", "{}", self.line().init_start());
        let mut timings = Timings::begin();
        let entered = self.check_in(id, &mut timings);
        if let Err(error) = arrived(entered.as_ref().map(drop)) {
            if let Ok(Entered { links, joining, .. }) = entered {
                links.iter().for_each(|links| links.close());
                joining.fail(&error);
            }
            return Err(error);
        }
        let entered = entered?;
        let links = entered.links.clone();
        let result = self.build_entered(entered, id, &mut timings);
        if result.is_err() {
            links.iter().for_each(|links| links.close());
        }
        result
    }

    fn build_entered(self: &Arc<Comm>, entered: Entered, id: &UniqueId, timings: &mut Timings) -> Result<(), Error> {
        let Entered { settings, kernels, links, joining } = entered;
        let mut bootstrap = joining.finish().inspect_err(|error| self.report_lack(&settings.net, id, error))?;
        timings.bootstrap = timings.lap();
        match self.build_joined(&settings, &mut bootstrap, &links, kernels, timings) {
            Ok(mut parts) => {
                bootstrap.complete();
                self.log_complete(timings);
                parts.bootstrap = Mutex::new(Some(bootstrap));
                self.parts.set(parts).map_err(|_| Error::Internal("a communicator was initialised twice".to_string()))
            }
            Err(error) => {
                bootstrap.fail(&error);
                Err(error)
            }
        }
    }

    /// Everything until the root knows this rank.
    fn check_in(&self, id: &UniqueId, timings: &mut Timings) -> Result<Entered, Error> {
        let settings = Settings::read()?;
        let (kernels, links, join) = self.prepare(&settings)?;
        timings.kernels = timings.lap();
        let close = |_: &Error| links.iter().for_each(|links| links.close());
        let joining = Joining::begin(&settings.net, id, join).inspect_err(close)?;
        Ok(Entered { settings, kernels, links, joining })
    }

    /// A rank that the root does not know, because of something that others cannot see, tells it.
    fn tell_root(&self, id: &UniqueId, outcome: Result<(), &Error>) -> Result<(), Error> {
        let Err(error) = outcome else { return Ok(()) };
        use Error::{Aborted, InvalidArgument, InvalidUsage, Remote, Timeout};
        if !matches!(error, InvalidArgument(_) | InvalidUsage(_) | Remote { .. } | Timeout(_) | Aborted) {
            report_failure(id, self.nranks(), self.rank(), error);
        }
        Err(error.clone())
    }

    /// Where the system has refused something, the root may not know of this rank.
    fn report_lack(&self, net: &NetConfig, id: &UniqueId, error: &Error) {
        if matches!(error, Error::System { .. } | Error::Resource(_)) {
            tell(net, id, self.nranks, self.rank, error);
        }
    }

    /// What a rank needs before it can join. One rank alone writes to nobody.
    fn prepare(&self, settings: &Settings) -> Result<Prepared, Error> {
        let kernels = Kernels::get(&self.context, &schedules::kernel_names(self.context.driver().is_software()))?;
        let open = || Links::open(&self.context, self.rank, &self.cancel, &self.ledger);
        let links = (self.nranks > 1).then(open).transpose()?;
        let join = Join {
            rank: self.rank,
            nranks: self.nranks,
            version: VERSION,
            settings: settings.agreement.clone(),
            facts: encode(&self.facts(settings, links.as_deref())?)?,
            cancel: Some(self.cancel.clone()),
        };
        Ok((kernels, links, join))
    }

    /// Gives a communicator up whose creation was never begun, because a group has failed: the other ranks
    /// are told, and the handle is taken back where nobody has it.
    pub fn give_up(&self, id: &UniqueId, published: bool, error: &Error) {
        self.drop_unmade(!published, error);
        report_failure(id, self.nranks(), self.rank(), error);
    }

    /// The same where the other ranks are told otherwise.
    pub(super) fn drop_unmade(&self, unpublished: bool, error: &Error) {
        self.fail(error);
        if unpublished {
            arena::remove(self.handle());
        }
    }

    fn build_joined(
        self: &Arc<Comm>,
        settings: &Settings,
        bootstrap: &mut Bootstrap,
        links: &Option<Arc<Links>>,
        kernels: Arc<Kernels>,
        timings: &mut Timings,
    ) -> Result<Parts, Error> {
        let peers = read_facts(bootstrap)?;
        settings::check_devices(&peers, self.rank, settings.multi_rank_device)?;
        let mut agreed = settings::agree(&peers);
        let wired = self.probe(bootstrap, &peers, &mut agreed)?;
        let me = &peers[self.rank as usize];
        let wiring = wired.as_ref().map(|(_, wiring, _)| wiring);
        let schedules = Schedules::upload(&self.context, me, &peers, agreed, wiring, &self.ledger)?;
        let recorder = links.as_ref().and_then(|links| flight_recorder::share(me, &peers, links));
        let mappable = recorder.as_ref().filter(|_| schedules.offers());
        let registrations = mappable.map(|recorder| Registrations::new(&self.context, &peers, recorder)).transpose()?;
        let bytes = [
            HostFlag::BYTES,
            recorder.as_ref().map_or(0, |_| PART_BYTES),
            registrations.as_ref().map_or(0, Registrations::bytes),
        ];
        let probe = wired.map(|(probe, wiring, facts)| {
            self.log_plan(&facts, &wiring, &probe, agreed.channels);
            links.iter().for_each(|links| links.plan(facts.clone(), wiring.clone()));
            probe
        });
        links.iter().for_each(|links| self.hook(links));
        let parts = Parts {
            kernels,
            schedules,
            items: ItemStore::new(&self.context, &self.ledger),
            recorder,
            registrations,
            order: Mutex::new(Order::create(&self.context, self.config.graph_usage_mode == MIXED_GRAPHS)?),
            flag: HostFlag::create(&self.context)?,
            probe,
            links: links.clone(),
            _charges: bytes.into_iter().map(|bytes| self.ledger.charge(Use::Persist, bytes)).collect(),
            peers,
            bootstrap: Mutex::new(None),
        };
        timings.connections = timings.lap();
        // Nobody returns success before everybody has it.
        bootstrap.barrier()?;
        timings.allgathers = timings.lap();
        log::info!(target: "INIT", "{}", self.memory_line());
        Ok(parts)
    }

    fn facts(&self, settings: &Settings, links: Option<&Links>) -> Result<PeerFacts, Error> {
        let halvings = settings::halvings(comms_on(self.device));
        Ok(PeerFacts {
            rank: self.rank,
            host: HostFacts::read(settings.host_id.as_deref()),
            process: settings::process_number(),
            device: self.device,
            context: self.context.key().0 as u64,
            uuid: self.facts.uuid,
            bus_id: self.facts.bus_id,
            capability: self.facts.capability,
            reachable: self.context.reachable()?,
            linked: self.context.linked()?,
            mailbox: links.map(Links::mailbox).unwrap_or_default(),
            links: links.map_or(0, Links::key),
            p2p_disabled: settings.p2p_disabled,
            shm_disabled: settings.shm_disabled,
            registers: settings.registers,
            channels: settings.channels(&self.config, self.context.driver().is_software()),
            slot_bytes: settings.slot_bytes(halvings),
            halvings,
            candidates: settings.usable_candidates(self.facts.capability, self.context.driver().is_software()),
            cpus: sys::allowed_cpus() as u32,
        })
    }

    /// Tries the transports between every rank and every other one. Where peer memory turns out not to work, all ranks
    /// take the other way. Gives the links that there shall be, and the facts by which transports are chosen.
    fn probe(
        &self,
        bootstrap: &mut Bootstrap,
        peers: &[PeerFacts],
        agreed: &mut settings::Agreed,
    ) -> Result<Option<(Probe, Wiring, Vec<PeerFacts>)>, Error> {
        if self.nranks == 1 {
            return Ok(None);
        }
        let wiring =
            |agreed: &settings::Agreed| schedules::wiring(self.nranks, agreed, self.context.driver().is_software());
        let first = self.probe_once(bootstrap, peers);
        let (culprit, verdict) = match judge(bootstrap, first, true)? {
            Ok(probe) => return Ok(Some((probe, wiring(agreed)?, peers.to_vec()))),
            Err(failed) => failed,
        };
        log::info!(target: "INIT,P2P", "rank {culprit} cannot use peer memory ({}); using shared host memory", verdict.text);
        settings::without_peer_memory(agreed);
        let peers: Vec<PeerFacts> =
            peers.iter().map(|facts| PeerFacts { p2p_disabled: true, ..facts.clone() }).collect();
        let second = self.probe_once(bootstrap, &peers);
        let probe = judge(bootstrap, second, false)?.map_err(|(culprit, verdict)| verdict.as_remote(culprit))?;
        Ok(Some((probe, wiring(agreed)?, peers)))
    }

    fn probe_once(&self, bootstrap: &mut Bootstrap, peers: &[PeerFacts]) -> Result<Probe, Unconnected> {
        transport::probe(&self.context, self.rank, peers, &self.ledger, &mut |bytes| bootstrap.all_gather(bytes))
    }

    fn log_plan(&self, facts: &[PeerFacts], wiring: &Wiring, probe: &Probe, channels: u32) {
        if self.rank == 0 {
            for channel in 0..channels {
                let ring: Vec<i32> =
                    wiring.graph().channel(channel).ring.ranks().iter().map(|rank| *rank as i32).collect();
                log::info!(target: "INIT", "{}", lines::ring(channel, channels, &ring));
            }
        }
        for route in transport::routes(self.rank, facts, wiring).unwrap_or_default() {
            let to = (route.to as i32, facts[route.to as usize].device);
            let line = lines::channel(route.channel, route.connection, (self.rank(), self.device), to, route.label);
            match route.connection {
                Some(_) => log::info!(target: "INIT,P2P", "{line}"),
                None => log::info!(target: "INIT,SHM", "{line}"),
            }
        }
        log::info!(target: "INIT,P2P,SHM", "Rank {} has {}", self.rank, probe.summary());
        log::info!(target: "INIT", "Connected all rings, use ring PXN 0 GDR 0");
    }

    fn log_complete(&self, timings: &Timings) {
        log::info!(target: "INIT", "{}", self.line().init_complete());
        let total = timings.start.elapsed();
        let rest = total.saturating_sub(timings.kernels + timings.bootstrap + timings.allgathers + timings.connections);
        log::info!(
            target: "INIT,PROFILE",
            "Init timings - {}: rank {} nranks {} total {:.2} (kernels {:.2}, alloc 0.00, bootstrap {:.2}, allgathers {:.2}, topo 0.00, graphs 0.00, connections {:.2}, rest {:.2})",
            self.function,
            self.rank,
            self.nranks,
            total.as_secs_f64(),
            timings.kernels.as_secs_f64(),
            timings.bootstrap.as_secs_f64(),
            timings.allgathers.as_secs_f64(),
            timings.connections.as_secs_f64(),
            rest.as_secs_f64()
        );
    }
}

/// Ends the creation of a communicator on all ranks because this one cannot take part, for a wrong argument
/// or a lack: they may be waiting for it already. The numbers are as C gave them. A rank that is out of range
/// is told of, too; alone, a rank has nobody to tell, and its id is good for another try.
pub fn report_failure(id: &UniqueId, nranks: i32, rank: i32, error: &Error) {
    if nranks < 2 {
        return;
    }
    if let Ok(settings) = Settings::read() {
        tell(&settings.net, id, nranks.cast_unsigned(), rank.cast_unsigned(), error);
    }
}

/// Tells the root that a rank has failed before it could join.
fn tell(net: &NetConfig, id: &UniqueId, nranks: u32, rank: u32, error: &Error) {
    let join = Join { rank, nranks, version: VERSION, settings: Vec::new(), facts: Vec::new(), cancel: None };
    if let Err(why) = Bootstrap::report_failure(net, id, join, error) {
        log::info!(target: "INIT", "rank {rank} has failed and could not tell the other ranks: {why}");
    }
}

/// How connecting went wrong on one rank, told to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    /// Whether another transport may succeed.
    retry: bool,
    /// Whether the rank suffers from the failure of another one.
    derived: bool,
    text: String,
}

impl Verdict {
    fn of(error: &Error) -> Verdict {
        // Where device memory has run out, another transport would only hide it.
        let retry = matches!(error, Error::Cuda { code, .. } if *code != device::OUT_OF_MEMORY);
        Verdict { retry, derived: matches!(error, Error::Remote { .. }), text: error.to_string() }
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
) -> Result<Result<Probe, (u32, Verdict)>, Error> {
    let verdict = own.as_ref().err().map(|unconnected| Verdict::of(&unconnected.error));
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
fn first_failure(verdicts: &[Vec<u8>]) -> Result<Option<(u32, Verdict)>, Error> {
    let mut first: Option<(u32, Verdict)> = None;
    for (rank, bytes) in verdicts.iter().enumerate() {
        let rank = rank as u32;
        let verdict: Option<Verdict> = postcard::from_bytes(bytes)
            .map_err(|_| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable verdict") })?;
        let Some(verdict) = verdict else { continue };
        if first.as_ref().is_none_or(|(_, known)| known.derived && !verdict.derived) {
            first = Some((rank, verdict));
        }
    }
    Ok(first)
}

/// Every rank's facts, in the order of the ranks: they came with the rendezvous.
fn read_facts(bootstrap: &mut Bootstrap) -> Result<Vec<PeerFacts>, Error> {
    if (0..bootstrap.nranks()).any(|rank| bootstrap.facts(rank).is_empty()) {
        // That rank came only to say that it has failed (`tell`): its reason is on the way.
        bootstrap.barrier()?;
    }
    let read = |rank| {
        let facts: Result<PeerFacts, _> = postcard::from_bytes(&bootstrap.facts(rank));
        facts.ok().filter(|facts| facts.rank == rank).ok_or_else(|| Error::Remote {
            rank: Some(rank),
            text: format!("rank {rank} sent facts that cannot be read; does it run another build of oxccl?"),
        })
    };
    (0..bootstrap.nranks()).map(read).collect()
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Internal(format!("encoding: {error}")))
}
