//! Creation: rendezvous, exchange of facts, plan, links, and the proof that every rank has succeeded.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::config::VERSION;
use super::schedules::{self, Schedules};
use super::settings::{self, Settings};
use super::{Comm, Order, Parts, State, arena};
use crate::bootstrap::{Bootstrap, Join, UniqueId};
use crate::device::{Event, HostFlag, Kernels};
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::layout::Proto;
use crate::sys::{FdPost, HostFacts};
use crate::transport::{self, Connections, PeerFacts, Setup};

/// Names of the kernels; the place in the list is the datatype's number.
fn kernel_names() -> Vec<String> {
    DataType::ALL.iter().map(|datatype| Proto::Simple.kernel_name(*datatype)).collect()
}

/// How long each phase took, for the log.
struct Timings {
    start: Instant,
    last: Instant,
    kernels: Duration,
    bootstrap: Duration,
    allgathers: Duration,
    connections: Duration,
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
    /// there; on failure the handle is taken back and the others are told.
    pub fn init(self: &Arc<Comm>, id: &UniqueId) -> Result<(), Error> {
        let result = self.build(id);
        let mut state = self.state.lock();
        match &result {
            Ok(()) => *state = State::Ready,
            Err(error) => {
                *state = State::Failed(error.clone());
                self.report(error);
                arena::remove(self.handle());
            }
        }
        result
    }

    /// As [`Comm::init`], on a thread of its own. The handle stays, so that the failure can be read.
    pub fn init_in_background(self: &Arc<Comm>, id: UniqueId) -> Result<(), Error> {
        let comm = self.clone();
        let work = move || match comm.build(&id) {
            Ok(()) => *comm.state.lock() = State::Ready,
            Err(error) => {
                comm.report(&error);
                comm.fail(&error);
            }
        };
        let spawned = std::thread::Builder::new().name("oxccl-init".to_string()).spawn(work);
        spawned.map(|_| ()).map_err(|error| Error::system("pthread_create", "a thread for ncclCommInitRankConfig", &error))
    }

    /// Makes a creation that waits for other ranks give up.
    pub fn cancel_init(&self) {
        self.cancel.fire();
    }

    fn build(self: &Arc<Comm>, id: &UniqueId) -> Result<(), Error> {
        // A job of a group or of a non-blocking creation runs on a thread of its own.
        crate::log::set_thread_device(self.device);
        log::info!(target: "INIT", "{}", self.line().init_start());
        let mut timings = Timings::begin();
        let settings = Settings::read()?;
        let kernels = Kernels::get(&self.context, &kernel_names())?;
        let mut post = FdPost::open()?;
        let me = self.facts(&settings, &post)?;
        timings.kernels = timings.lap();
        let mut bootstrap = Bootstrap::join(&settings.net, id, self.join_request(&settings, &me)?)?;
        timings.bootstrap = timings.lap();
        match self.build_joined(&settings, &mut bootstrap, &mut post, kernels, &mut timings) {
            Ok(mut parts) => {
                bootstrap.complete();
                self.log_complete(&timings);
                parts.bootstrap = Mutex::new(Some(bootstrap));
                self.parts.set(parts).map_err(|_| Error::Internal("a communicator was initialised twice".to_string()))
            }
            Err(error) => {
                bootstrap.fail(&error);
                Err(error)
            }
        }
    }

    fn join_request(&self, settings: &Settings, me: &PeerFacts) -> Result<Join, Error> {
        Ok(Join {
            rank: self.rank,
            nranks: self.nranks,
            version: VERSION,
            settings: settings.agreement.clone(),
            facts: encode(me)?,
            cancel: Some(self.cancel.clone()),
        })
    }

    fn build_joined(
        &self,
        settings: &Settings,
        bootstrap: &mut Bootstrap,
        post: &mut FdPost,
        kernels: Arc<Kernels>,
        timings: &mut Timings,
    ) -> Result<Parts, Error> {
        let peers = read_facts(bootstrap)?;
        settings::check_devices(&peers, self.rank, settings.multi_rank_device)?;
        let agreed = settings::agree(&peers);
        let connections = self.connect(bootstrap, post, &peers, agreed)?;
        let me = &peers[self.rank as usize];
        let schedules = match &connections {
            Some(connections) => Some(Schedules::upload(&self.context, me, &peers, agreed, connections)?),
            None => None,
        };
        let parts = Parts {
            kernels,
            schedules,
            order: Mutex::new(Order::new(Event::create(&self.context)?)),
            flag: HostFlag::create(&self.context)?,
            connections,
            peers,
            bootstrap: Mutex::new(None),
        };
        timings.connections = timings.lap();
        // Nobody returns success before everybody has it.
        bootstrap.barrier()?;
        timings.allgathers = timings.lap();
        self.log_plan(&parts, agreed.channels);
        Ok(parts)
    }

    fn facts(&self, settings: &Settings, post: &FdPost) -> Result<PeerFacts, Error> {
        let device = self.context.facts()?;
        Ok(PeerFacts {
            rank: self.rank,
            host: HostFacts::read(settings.host_id.as_deref()),
            process: settings::process_number(),
            device: self.device,
            uuid: device.uuid,
            bus_id: device.bus_id,
            capability: device.capability,
            reachable: self.context.reachable()?,
            post: post.name(),
            p2p_disabled: settings.p2p_disabled,
            shm_disabled: settings.shm_disabled,
            channels: settings.channels(&self.config, self.driver().is_software()),
            slot_bytes: settings.slot_bytes,
        })
    }

    /// Connects the ring's links. Where peer memory turns out not to work, all ranks take the other way.
    fn connect(
        &self,
        bootstrap: &mut Bootstrap,
        post: &mut FdPost,
        peers: &[PeerFacts],
        agreed: settings::Agreed,
    ) -> Result<Option<Connections>, Error> {
        if self.nranks == 1 {
            return Ok(None);
        }
        let needs = schedules::needs(self.rank, self.nranks, agreed)?;
        let first = self.connect_once(bootstrap, post, peers, &needs);
        // A communicator-wide verdict: a link has two ends.
        let verdicts = bootstrap.all_gather(&encode(&first.as_ref().err().map(Verdict::of))?)?;
        let failed = first_failure(&verdicts)?;
        let Some((culprit, verdict)) = failed else { return first.map(Some) };
        if !verdict.retry {
            return Err(first.err().unwrap_or_else(|| verdict.as_remote(culprit)));
        }
        drop(first);
        log::info!(target: "INIT,P2P", "rank {culprit} cannot use peer memory ({}); using shared host memory", verdict.text);
        let peers: Vec<PeerFacts> = peers.iter().map(|facts| PeerFacts { p2p_disabled: true, ..facts.clone() }).collect();
        let second = self.connect_once(bootstrap, post, &peers, &needs);
        let verdicts = bootstrap.all_gather(&encode(&second.as_ref().err().map(Verdict::of))?)?;
        match first_failure(&verdicts)? {
            Some((culprit, verdict)) => Err(second.err().unwrap_or_else(|| verdict.as_remote(culprit))),
            None => second.map(Some),
        }
    }

    fn connect_once(
        &self,
        bootstrap: &mut Bootstrap,
        post: &mut FdPost,
        peers: &[PeerFacts],
        needs: &[transport::LinkNeed],
    ) -> Result<Connections, Error> {
        let mut setup = Setup { context: &self.context, me: &peers[self.rank as usize], post, cancel: self.cancel.as_fd() };
        transport::connect(&mut setup, peers, needs, &mut |bytes| bootstrap.all_gather(bytes))
    }

    fn log_plan(&self, parts: &Parts, channels: u32) {
        if self.rank == 0 {
            let ring: Vec<String> = (0..self.nranks).map(|rank| rank.to_string()).collect();
            for channel in 0..channels {
                log::info!(target: "INIT", "Channel {channel:02}/{channels:02} : {}", ring.join(" "));
            }
        }
        let Some(connections) = &parts.connections else { return };
        for (peer, label) in &connections.routes {
            let device = parts.peers[*peer as usize].device;
            for channel in 0..channels {
                log::info!(target: "INIT,P2P", "Channel {channel:02}/0 : {}[{}] -> {peer}[{device}] via {label}", self.rank, self.device);
            }
        }
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

/// How connecting went wrong on one rank, told to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    /// Whether another transport may succeed.
    retry: bool,
    text: String,
}

impl Verdict {
    fn of(error: &Error) -> Verdict {
        Verdict { retry: matches!(error, Error::Cuda { .. }), text: error.to_string() }
    }

    fn as_remote(&self, rank: u32) -> Error {
        Error::Remote { rank: Some(rank), text: format!("rank {rank} could not connect: {}", self.text) }
    }
}

/// The lowest rank whose verdict is a failure.
fn first_failure(verdicts: &[Vec<u8>]) -> Result<Option<(u32, Verdict)>, Error> {
    for (rank, bytes) in verdicts.iter().enumerate() {
        let rank = rank as u32;
        let verdict: Option<Verdict> = postcard::from_bytes(bytes)
            .map_err(|_| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable verdict") })?;
        if let Some(verdict) = verdict {
            return Ok(Some((rank, verdict)));
        }
    }
    Ok(None)
}

/// Every rank's facts, in the order of the ranks: they came with the rendezvous.
fn read_facts(bootstrap: &Bootstrap) -> Result<Vec<PeerFacts>, Error> {
    let read = |rank| {
        let facts: Result<PeerFacts, _> = postcard::from_bytes(bootstrap.facts(rank));
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
