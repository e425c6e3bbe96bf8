//! Rendezvous, exchange of facts, plan, links, and the proof that every rank has succeeded.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

use super::network::told;
use super::report::tell;
use super::timings::InitTimings;
use super::{flight_recorder, reach, report_failure};
use crate::bootstrap::{Bootstrap, Join, Joining, NetConfig, UniqueId};
use crate::comm::config::VERSION;
use crate::comm::context_order::{ContextOrder, Orders};
use crate::comm::graphs::MIXED_GRAPHS;
use crate::comm::links::comms_on;
use crate::comm::settings::Settings;
use crate::comm::{Comm, LaunchOrder, Parts, peers};
use crate::device::{HostFlag, Kernels, Use};
use crate::error::Error;
use crate::health::flight_recorder::PART_BYTES;
use crate::memory::{ItemStore, Registrations};
use crate::params;
use crate::plan::wiring::Wiring;
use crate::schedules::{self, LaunchParameters, Schedules};
use crate::sys::{self, HostFacts, PciPlace};
use crate::topology::Graph;
use crate::transport::{self, CommonFacts, Links, PeerFacts, PeerReach};
use crate::tuning::{self, Agreed, LinkKind, MachineConstants, Preferences, Tuning};

/// Where sysfs is.
const SYSFS: &str = "/sys";

/// What a rank needs before it can join. One rank alone has no links.
type RankParts = (Arc<Kernels>, Option<Arc<Links>>, Join);

/// A rank that the root knows.
struct CheckedIn {
    settings: Settings,
    kernels: Arc<Kernels>,
    links: Option<Arc<Links>>,
    joining: Joining,
}

impl Comm {
    /// Builds what operations need. `arrived` is called once the root knows this rank, or with the reason why not; its
    /// error ends it.
    pub(in crate::comm) fn build(
        self: &Arc<Comm>,
        ids: &[UniqueId],
        arrived: impl FnOnce(Result<(), &Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A job of a group or of a non-blocking creation runs on a thread of its own.
        crate::log::set_thread_device(self.device.number);
        log::info!(target: "INIT", "{}", self.line().init_start());
        let mut timings = InitTimings::begin();
        let entered = self.check_in(ids, &mut timings);
        if let Err(error) = arrived(entered.as_ref().map(drop)) {
            if let Ok(CheckedIn { links, joining, .. }) = entered {
                links.iter().for_each(|links| links.close());
                joining.fail(&error);
            }
            return Err(error);
        }
        let entered = entered?;
        let links = entered.links.clone();
        let result = self.build_entered(entered, ids, &mut timings);
        if result.is_err() {
            links.iter().for_each(|links| links.close());
        }
        result
    }

    fn build_entered(
        self: &Arc<Comm>,
        entered: CheckedIn,
        ids: &[UniqueId],
        timings: &mut InitTimings,
    ) -> Result<(), Error> {
        let CheckedIn { settings, kernels, links, joining } = entered;
        let mut bootstrap = joining.finish().inspect_err(|error| self.report_lack(&settings.net, ids, error))?;
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
    fn check_in(&self, ids: &[UniqueId], timings: &mut InitTimings) -> Result<CheckedIn, Error> {
        let settings = Settings::read()?;
        let (kernels, links, join) = self.prepare(&settings, ids)?;
        timings.kernels = timings.lap();
        let close = |_: &Error| links.iter().for_each(|links| links.close());
        let joining = Joining::begin(&settings.net, ids, join).inspect_err(close)?;
        Ok(CheckedIn { settings, kernels, links, joining })
    }

    /// A rank that the root does not know, because of something that others cannot see, tells it.
    pub(super) fn tell_root(&self, ids: &[UniqueId], outcome: Result<(), &Error>) -> Result<(), Error> {
        let Err(error) = outcome else { return Ok(()) };
        use Error::{Aborted, InvalidArgument, InvalidUsage, Remote, Timeout};
        if !matches!(error, InvalidArgument(_) | InvalidUsage(_) | Remote { .. } | Timeout(_) | Aborted) {
            report_failure(ids, self.nranks(), self.rank(), error);
        }
        Err(error.clone())
    }

    /// Where the system has refused something, the root may not know of this rank.
    fn report_lack(&self, net: &NetConfig, ids: &[UniqueId], error: &Error) {
        if matches!(error, Error::System { .. } | Error::Resource(_)) {
            tell(net, ids, self.identity.nranks, self.identity.rank, error);
        }
    }

    /// What a rank needs before it can join. One rank alone writes to nobody.
    fn prepare(&self, settings: &Settings, ids: &[UniqueId]) -> Result<RankParts, Error> {
        let kernels =
            Kernels::get(&self.device.context, &schedules::kernel_names(self.device.context.driver().is_software()))?;
        let open = || Links::open(&self.device.context, self.identity.rank, &self.cancel, &self.device.ledger);
        let links = (self.identity.nranks > 1).then(open).transpose()?;
        let network = self.choose_network();
        self.listen(links.as_deref(), &network, &settings.net, ids);
        let (facts, common) = self.facts(settings, links.as_deref(), told(&network))?.encode()?;
        let join = Join {
            rank: self.identity.rank,
            nranks: self.identity.nranks,
            version: VERSION,
            settings: settings.agreement.clone(),
            facts,
            common,
            cancel: Some(self.cancel.clone()),
        };
        Ok((kernels, links, join))
    }

    fn build_joined(
        self: &Arc<Comm>,
        settings: &Settings,
        bootstrap: &mut Bootstrap,
        links: &Option<Arc<Links>>,
        kernels: Arc<Kernels>,
        timings: &mut InitTimings,
    ) -> Result<Parts, Error> {
        let mut peers = read_facts(bootstrap)?;
        reach::confirm(bootstrap, self.identity.rank, &mut peers)?;
        peers::check_devices(&peers, self.identity.rank, settings.multi_rank_device)?;
        peers::check_networks(&peers)?;
        let mut agreed = peers::agree(&peers);
        let wired = self.probe(bootstrap, &peers, links.as_deref(), &mut agreed)?;
        let me = &peers[self.identity.rank as usize];
        let wiring = wired.as_ref().map(|(_, wiring, _)| wiring);
        let (channels, slot_bytes, ledger) = (agreed.channels, agreed.slot_bytes, &self.device.ledger);
        let (context, rank) = (&self.device.context, self.identity.rank);
        let schedules = Schedules::upload(context, rank, channels, slot_bytes, wiring, ledger)?;
        let facts = wired.as_ref().map_or(&peers[..], |(.., facts)| facts);
        let tuning = self.tuning(agreed, wiring, peers::link_kind(facts, &peers::hosts(facts)));
        let local = peers.iter().filter(|peer| peer.host.same_host(&me.host)).count();
        let recorder = links.as_ref().and_then(|links| flight_recorder::share(me, &peers, links));
        let mappable = recorder.as_ref().filter(|recorder| recorder.ranks().len() > 1 && tuning.offers_buffers());
        let registrations =
            mappable.map(|recorder| Registrations::new(&self.device.context, &peers, recorder)).transpose()?;
        let bytes = [
            HostFlag::BYTES,
            recorder.as_ref().map_or(0, |_| PART_BYTES),
            registrations.as_ref().map_or(0, Registrations::bytes),
        ];
        let probe = wired.map(|(probe, wiring, facts)| {
            self.log_plan(&facts, &wiring, &probe, channels);
            links.iter().for_each(|links| links.plan(facts.clone(), wiring.clone()));
            probe
        });
        links.iter().for_each(|links| self.hook(links));
        let parts = Parts {
            kernels,
            tuning,
            launch: LaunchParameters::choose(context.driver(), local, settings.block_threads),
            schedules,
            items: ItemStore::new(&self.device.context, &self.device.ledger),
            recorder,
            registrations,
            orders: self.orders()?,
            flag: HostFlag::create(&self.device.context)?,
            _probe: probe,
            links: links.clone(),
            _charges: bytes.into_iter().map(|bytes| self.device.ledger.charge(Use::Persist, bytes)).collect(),
            peers,
            bootstrap: Mutex::new(None),
            watch: Mutex::default(),
            to_reconnect: Mutex::new(Vec::new()),
        };
        timings.connections = timings.lap();
        // Nobody returns success before everybody has it.
        bootstrap.barrier()?;
        timings.allgathers = timings.lap();
        log::info!(target: "INIT", "{}", self.memory_line());
        Ok(parts)
    }

    /// The orders that its launches are in.
    fn orders(&self) -> Result<Orders, Error> {
        let context = &self.device.context;
        Ok(Orders {
            own: Mutex::new(LaunchOrder::create(context, self.config.graph_usage_mode == MIXED_GRAPHS)?),
            of_all: self.config.launch_order_implicit.then(|| ContextOrder::of(context)).transpose()?,
        })
    }

    /// How collectives over some links are carried out.
    fn tuning(&self, agreed: Agreed, wiring: Option<&Wiring>, links: LinkKind) -> Tuning {
        let software = self.device.context.driver().is_software();
        let machine = MachineConstants::assumed(software, agreed.oversubscription, links);
        let alone = || Arc::new(Graph::of_host(self.identity.nranks));
        Tuning::new(machine, wiring.map_or_else(alone, |wiring| wiring.graph().clone()), agreed)
    }

    fn facts(
        &self,
        settings: &Settings,
        links: Option<&Links>,
        network: Result<String, String>,
    ) -> Result<PeerFacts, Error> {
        Ok(PeerFacts {
            rank: self.identity.rank,
            host: HostFacts::read(settings.host_id.as_deref()),
            process: peers::process_number(),
            device: self.device.number,
            nvml_device: self.nvml_device(),
            context: self.device.context.key().0 as u64,
            uuid: self.device.facts.uuid,
            bus_id: self.device.facts.bus_id,
            capability: self.device.facts.capability,
            reach: PeerReach { network: Some(network), ..self.reach()? },
            location: links.map(Links::location).unwrap_or_default(),
            links: links.map_or(0, Links::key),
            transports: transport::allowed()?,
            registers: settings.registers,
            tuning: self.preferences(settings),
            cpus: sys::allowed_cpus() as u32,
        })
    }

    /// What is between this rank's device and others.
    fn reach(&self) -> Result<PeerReach, Error> {
        let context = &self.device.context;
        let sysfs = params::snapshot().text(params::SYSFS).unwrap_or(SYSFS).to_string();
        Ok(PeerReach {
            unreachable: context.unreachable()?.into(),
            linked: context.linked()?.into(),
            place: PciPlace::read(Path::new(&sysfs), self.device.facts.bus_id),
            level: transport::peer_level(),
            ..PeerReach::default()
        })
    }

    /// What this rank would like of what all ranks do alike.
    fn preferences(&self, settings: &Settings) -> Preferences {
        let software = self.device.context.driver().is_software();
        // Memory of a host is scarcer than that of GPUs, and many ranks share it.
        let halvings = if software { tuning::halvings(comms_on(self.device.number)) } else { 0 };
        Preferences {
            channels: settings.channels(&self.config, software),
            slot_bytes: settings.slot_bytes(halvings),
            message_channels: settings.message_channels(software, self.identity.nranks),
            message_line_bytes: settings.message_line_bytes,
            halvings,
            candidates: settings.usable_candidates(self.device.facts.capability, software),
        }
    }

    fn log_complete(&self, timings: &InitTimings) {
        log::info!(target: "INIT", "{}", self.line().init_complete());
        log::info!(target: "INIT,PROFILE", "{}", timings.line(self.identity.function, (self.rank(), self.nranks())));
    }
}

/// Every rank's facts, in the order of the ranks: they came with the rendezvous.
fn read_facts(bootstrap: &mut Bootstrap) -> Result<Vec<PeerFacts>, Error> {
    if (0..bootstrap.nranks()).any(|rank| bootstrap.facts(rank).is_empty()) {
        // That rank came only to say that it has failed (`tell`): its reason is on the way.
        bootstrap.barrier()?;
    }
    let unreadable = |rank| Error::Remote {
        rank: Some(rank),
        text: format!("rank {rank} sent facts that cannot be read; does it run another build of oxccl?"),
    };
    let mut commons: HashMap<u32, CommonFacts> = HashMap::new();
    let mut read = |rank| {
        let common = match commons.entry(bootstrap.common_number(rank)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                new.insert(postcard::from_bytes(&bootstrap.common(rank)).map_err(|_| unreadable(rank))?)
            }
        };
        let facts = PeerFacts::decode(&bootstrap.facts(rank), common);
        facts.filter(|facts| facts.rank == rank).ok_or_else(|| unreadable(rank))
    };
    (0..bootstrap.nranks()).map(&mut read).collect()
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(value).map_err(|error| Error::Internal(format!("encoding: {error}")))
}
