//! Creation: rendezvous, exchange of facts, plan, links, and the proof that every rank has succeeded.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::config::VERSION;
use super::schedules::{self, Schedules};
use super::settings::{self, Settings};
use super::{Comm, Order, Parts};
use crate::bootstrap::{Bootstrap, Join, UniqueId};
use crate::device::{HostFlag, Kernels};
use crate::error::Error;
use crate::log::lines;
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
    /// there; on failure the others are told, and the handle is taken back where the user does not have it.
    pub fn init(self: &Arc<Comm>, id: &UniqueId, published: bool) -> Result<(), Error> {
        let result = self.build(id);
        match &result {
            Ok(()) => self.leave_busy(),
            Err(error) => {
                self.report(error);
                match published {
                    true => self.fail(error),
                    false => self.forget(error),
                }
            }
        }
        result
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
        let ready = self.prepare(&settings).inspect_err(|error| self.tell_failure(&settings, id, error));
        let (kernels, mut post, me) = ready?;
        timings.kernels = timings.lap();
        let mut bootstrap = Bootstrap::join(&settings.net, id, self.join_request(&settings, encode(&me)?))?;
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

    /// What a rank needs before it meets the others.
    fn prepare(&self, settings: &Settings) -> Result<(Arc<Kernels>, FdPost, PeerFacts), Error> {
        let kernels = Kernels::get(&self.context, &kernel_names())?;
        let post = FdPost::open()?;
        let me = self.facts(settings, &post)?;
        Ok((kernels, post, me))
    }

    /// Ends the wait of the other ranks for this one, which has failed before it could meet them.
    fn tell_failure(&self, settings: &Settings, id: &UniqueId, error: &Error) {
        let told = Bootstrap::report_failure(&settings.net, id, self.join_request(settings, Vec::new()), error);
        if let Err(why) = told {
            log::info!(target: "INIT", "the other ranks could not be told of the failure: {why}");
        }
    }

    fn join_request(&self, settings: &Settings, facts: Vec<u8>) -> Join {
        Join {
            rank: self.rank,
            nranks: self.nranks,
            version: VERSION,
            settings: settings.agreement.clone(),
            facts,
            cancel: Some(self.cancel.clone()),
        }
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
            order: Mutex::new(Order::create(&self.context)?),
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
        let Some((culprit, verdict)) = worst(&verdicts)? else { return first.map(Some) };
        if verdict.blame != Blame::Transport {
            return Err(first.err().unwrap_or_else(|| verdict.as_remote(culprit)));
        }
        drop(first);
        log::info!(target: "INIT,P2P", "rank {culprit} cannot use peer memory ({}); using shared host memory", verdict.text);
        let peers: Vec<PeerFacts> = peers.iter().map(|facts| PeerFacts { p2p_disabled: true, ..facts.clone() }).collect();
        let second = self.connect_once(bootstrap, post, &peers, &needs);
        let verdicts = bootstrap.all_gather(&encode(&second.as_ref().err().map(Verdict::of))?)?;
        match worst(&verdicts)? {
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
            let ring: Vec<i32> = (0..self.nranks()).collect();
            (0..channels).for_each(|channel| log::info!(target: "INIT", "{}", lines::ring(channel, channels, &ring)));
        }
        let Some(connections) = &parts.connections else { return };
        for route in &connections.routes {
            let to = (route.to as i32, parts.peers[route.to as usize].device);
            let line = lines::channel(route.channel, route.connection, (self.rank(), self.device), to, route.label);
            match route.connection {
                Some(_) => log::info!(target: "INIT,P2P", "{line}"),
                None => log::info!(target: "INIT,SHM", "{line}"),
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
    blame: Blame,
    text: String,
}

/// What a failure to connect means for the others. A greater one counts more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Blame {
    /// A peer is to blame.
    Peer,
    /// Another transport may succeed.
    Transport,
    /// Nothing helps.
    Fatal,
}

impl Verdict {
    fn of(error: &Error) -> Verdict {
        let blame = match error {
            Error::Cuda { .. } => Blame::Transport,
            Error::Remote { .. } => Blame::Peer,
            _ => Blame::Fatal,
        };
        Verdict { blame, text: error.to_string() }
    }

    fn as_remote(&self, rank: u32) -> Error {
        Error::Remote { rank: Some(rank), text: format!("rank {rank} could not connect: {}", self.text) }
    }
}

/// The failure that counts, of the lowest rank that has it: one that has a reason of its own before those
/// that follow from it.
fn worst(verdicts: &[Vec<u8>]) -> Result<Option<(u32, Verdict)>, Error> {
    let mut worst: Option<(u32, Verdict)> = None;
    for (rank, bytes) in verdicts.iter().enumerate() {
        let rank = rank as u32;
        let verdict: Option<Verdict> = postcard::from_bytes(bytes)
            .map_err(|_| Error::Remote { rank: Some(rank), text: format!("rank {rank} sent an unreadable verdict") })?;
        let Some(verdict) = verdict else { continue };
        if worst.as_ref().is_none_or(|(_, known)| known.blame < verdict.blame) {
            worst = Some((rank, verdict));
        }
    }
    Ok(worst)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn told(errors: &[Option<Error>]) -> Option<(u32, Blame)> {
        let verdicts: Vec<_> = errors.iter().map(|error| encode(&error.as_ref().map(Verdict::of)).expect("encode")).collect();
        worst(&verdicts).expect("readable").map(|(rank, verdict)| (rank, verdict.blame))
    }

    #[test]
    fn the_rank_with_a_reason_of_its_own_decides() {
        let victim = || Some(Error::Remote { rank: Some(1), text: "rank 1 did not offer".into() });
        let cuda = || Some(Error::Cuda { call: "cuIpcGetMemHandle", code: 801, text: "not supported".into() });
        let full = || Some(Error::Resource("no memory".into()));
        assert_eq!(told(&[None, None]), None);
        assert_eq!(told(&[victim(), cuda(), cuda()]), Some((1, Blame::Transport)), "another transport is tried");
        assert_eq!(told(&[victim(), cuda(), full()]), Some((2, Blame::Fatal)), "what no transport helps with");
        assert_eq!(told(&[None, victim(), victim()]), Some((1, Blame::Peer)));
    }

    #[test]
    fn a_verdict_that_cannot_be_read_names_its_rank() {
        let none = encode(&None::<Verdict>).expect("encode");
        let error = worst(&[none, vec![9]]).expect_err("garbage");
        assert!(matches!(error, Error::Remote { rank: Some(1), .. }), "{error}");
    }
}
