//! Rendezvous of the ranks of a communicator, and exchange of small data between them.
//!
//! [`create_id`] makes an id and starts its root; every rank hands the id to [`Bootstrap::join`]. The
//! protocol is pure ([`protocol`]); `net` has the sockets. Nothing in this room reads the environment or
//! knows CUDA: all settings come by [`NetConfig`].
//!
//! A communicator's initialisation is `join`, some `all_gather`s, then [`Bootstrap::complete`]. Until
//! `complete`, every failure of a rank (an error that it reports by [`Bootstrap::fail`], or its death)
//! ends the waits of all others with an error that names it.

use std::time::Duration;

use crate::error::Error;
use crate::sys;

pub mod config;
pub mod id;
mod joining;
pub mod net;
mod participants;
mod presence;
pub mod protocol;

#[cfg(test)]
mod tests;

pub use config::{CommId, Family, InterfaceFilter, NetConfig};
pub use id::{Growth, UniqueId};
pub use joining::{Joining, RootHandle, create_root, dismiss, growth};
pub use net::cancel::Cancel;
pub use participants::Participants;
pub use presence::Presence;

use id::{IdParts, show_ip};
use net::driver::{Driver, Stop};
use net::interface::{self, AddressRequest, Interface};
use net::socket::{self, Buffers};
use protocol::checkin::{Entry, MAX_SETTINGS};
use protocol::member::{Member, MemberConfig, Retry};
use protocol::{MAX_FACTS, MAX_RANKS};

/// What stands for the port of a rank that does not listen: the one of the discard service.
const NO_PORT: u16 = 9;
/// How long a rank that has failed tries to tell the root, before it returns its own error.
pub const REPORT: Duration = Duration::from_secs(5);
/// How long a rank that has failed waits until the root has told all others, as a process may end as soon as it knows.
const ROOT_ANSWER: Duration = Duration::from_secs(1);
/// How long a rank that was aborted before the root knew it tries to tell the root: whoever aborts it waits meanwhile.
const ABANDON: Duration = Duration::from_millis(500);

/// What a rank brings to the rendezvous.
#[derive(Clone, Debug)]
pub struct Join {
    /// This rank.
    pub rank: u32,
    /// How many ranks there are.
    pub nranks: u32,
    /// The library's version code; it must be the same on all ranks (spec §6.1).
    pub version: u32,
    /// Settings on which the ranks should agree (name, value); a difference is a warning that names rank and values.
    pub settings: Vec<(String, String)>,
    /// Data for the other ranks, at most 64 KiB: it travels with the rendezvous and costs no exchange. See
    /// [`Bootstrap::facts`].
    pub facts: Vec<u8>,
    /// Ends this rank's waits from another thread.
    pub cancel: Option<Cancel>,
}

/// Times of a join in seconds, for the log line of spec §9.4.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Interface, listener, root where `NCCL_COMM_ID` asks for it.
    pub create: Duration,
    /// From the first connect until this rank and its neighbours in the tree are connected.
    pub join: Duration,
}

/// A rank's place among the others. Dropping it closes every connection.
pub struct Bootstrap {
    driver: Driver,
    member: Member,
    rank: u32,
    nranks: u32,
    timings: Timings,
    /// When the operations in progress must be over; none but for those of a rank that has a reason to tell.
    limit: Option<Duration>,
    /// An exchange of some ranks was given up, so that what still comes for it could be taken for another one's.
    gave_up: bool,
}

/// Makes an id, and starts the root that the ranks will meet at, unless `NCCL_COMM_ID` fixes the address:
/// then rank 0 starts it. The process must live until all ranks have joined.
///
/// # Errors
/// `InvalidUsage` if `NCCL_SOCKET_IFNAME` fits no interface, `Resource` if there is none, `System`.
pub fn create_id(config: &NetConfig) -> Result<UniqueId, Error> {
    if let Some(comm_id) = &config.comm_id {
        let root = net::root::resolve(config, comm_id)?;
        let magic = net::root::fixed_magic(config, root);
        return Ok(IdParts { magic, root, fixed: true, token: 0, grow: None }.encode());
    }
    joining::start_root(config, None, None)
}

fn log_interface(interface: &Interface) {
    log::info!(target: "BOOTSTRAP", "Bootstrap: Using {}<0>", interface.show());
}

/// `host:pid` of this process, for messages.
fn process() -> String {
    let name = rustix::system::uname();
    let host = name.nodename().to_string_lossy();
    format!("{}:{}", host.split('.').next().unwrap_or_default(), std::process::id())
}

impl Bootstrap {
    /// Meets the other ranks: returns when all have joined and this one is connected with its neighbours.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank out of range or a damaged id; `InvalidUsage` if the ranks do not fit
    /// together (the text names rank and values) or the id is of another library; `Remote` for a rank or a
    /// root that is gone; `Timeout` with the missing ranks; `Aborted` if it was cancelled; `System`.
    pub fn join(config: &NetConfig, id: &UniqueId, join: Join) -> Result<Bootstrap, Error> {
        Joining::begin(config, id, join)?.finish()
    }

    /// A rank that has begun to join.
    fn new(driver: Driver, member: Member, (rank, nranks): (u32, u32), timings: Timings) -> Bootstrap {
        Bootstrap { driver, member, rank, nranks, timings, limit: None, gave_up: false }
    }

    /// For a rank that has failed before it could join (no memory, no device): checks in only to end the
    /// initialisation of all other ranks with an error that names this one. Takes a round trip if the root
    /// is there, and [`REPORT`] at most if it is not. A rank that is out of range (a negative one as its 32
    /// bits) can be reported: the root tells all that it is.
    ///
    /// # Errors
    /// As [`Bootstrap::join`], if the root cannot be told.
    pub fn report_failure(config: &NetConfig, id: &UniqueId, join: Join, failure: &Error) -> Result<(), Error> {
        report(config, id, join, failure, (Errand::Report, REPORT))
    }

    fn log_timings(&self) {
        let Timings { create, join } = self.timings;
        let total = create + join;
        log::info!(
            target: "BOOTSTRAP,PROFILE",
            "Bootstrap timings total {:.6} (create {:.6}, send {:.6}, recv {:.6}, ring {:.6}, delay {:.6})",
            total.as_secs_f64(), create.as_secs_f64(), 0.0, join.as_secs_f64(), 0.0, 0.0
        );
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.nranks
    }

    /// How long the rendezvous took.
    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// What a rank brought as [`Join::facts`].
    pub fn facts(&self, rank: u32) -> &[u8] {
        self.member.facts(rank)
    }

    /// Where a rank listens, for messages.
    pub fn address(&self, rank: u32) -> Option<String> {
        self.member.entry(rank).map(|entry| format!("{}:{}", entry.interface, show_ip(entry.address.ip())))
    }

    /// Brings the blocks of all ranks to all ranks, in the order of ranks. Blocks may differ in size, up to 64 MiB.
    ///
    /// # Errors
    /// `InvalidArgument` for a block that is too large; the error of whichever rank failed; `Timeout`, `Aborted`.
    pub fn all_gather(&mut self, block: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.member.start_all_gather(self.driver.now(), block).or_else(|error| self.flush_failure(error))?;
        let mut blocks = None;
        let outcome = self.run(|member| {
            blocks = blocks.take().or_else(|| member.take_gathered());
            blocks.is_some()
        });
        // News of what a rank did afterwards may have come with the last block.
        match blocks.or_else(|| self.member.take_gathered()) {
            Some(blocks) => Ok(blocks),
            None => outcome.and_then(|()| Err(Error::Internal("an all-gather ended without a result".to_string()))),
        }
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.all_gather(&[]).map(drop)
    }

    /// Sends a message to a rank; returns when it is on its way. Messages of a tag keep their order.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank or a size (64 MiB) out of range; otherwise as [`Bootstrap::all_gather`].
    pub fn send(&mut self, peer: u32, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.member.send_message(self.driver.now(), peer, tag, bytes).or_else(|error| self.flush_failure(error))?;
        self.run(|member| member.sent(peer))?;
        self.member.end_send();
        Ok(())
    }

    /// Waits for the next message of a rank with this tag.
    ///
    /// # Errors
    /// As [`Bootstrap::send`]; `Remote` if the rank is gone.
    pub fn recv(&mut self, peer: u32, tag: u64) -> Result<Vec<u8>, Error> {
        self.member.start_receive(self.driver.now(), peer, tag).or_else(|error| self.flush_failure(error))?;
        let mut message = None;
        self.run(|member| {
            message = message.take().or_else(|| member.take_message());
            message.is_some()
        })?;
        message.ok_or_else(|| Error::Internal("a receive ended without a message".to_string()))
    }

    /// This rank has failed: ends the initialisation of all others with an error that names it.
    pub fn fail(&mut self, error: &Error) {
        self.member.fail(error.clone());
        self.deliver();
    }

    /// This rank's initialisation is complete: parts from the root, whose thread ends when all ranks have.
    pub fn complete(&mut self) {
        self.member.complete();
        self.deliver();
    }

    /// This rank takes no part in the next [`Bootstrap::all_gather`], for a reason of its own: that of the others
    /// fails and names this rank, and the one after it is as good as any. It waits for nobody.
    pub fn refuse(&mut self, error: &Error) {
        self.member.refuse(error);
        self.deliver();
    }

    /// Lets a second event end waits with [`Error::Aborted`], but not this rank's membership: messages are possible
    /// after it, exchanges that were under way are over for all ranks. `None` takes it away.
    ///
    /// # Errors
    /// `System` if the system refuses.
    pub fn watch(&mut self, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.driver.watch(cancel.cloned())
    }

    /// Runs the member until its result is there, or an error.
    fn run(&mut self, mut done: impl FnMut(&mut Member) -> bool) -> Result<(), Error> {
        let outcome = self.driver.run(&mut self.member, self.limit, |member| member.error().is_some() || done(member));
        match outcome {
            Ok(()) => self.member.error().cloned().map_or(Ok(()), Err),
            Err(Stop::Cancelled) => {
                if self.driver.cancelled() {
                    self.member.fail(Error::Aborted);
                } else {
                    self.member.give_up(Error::Aborted);
                }
                self.deliver();
                Err(Error::Aborted)
            }
            Err(Stop::System(error)) => {
                self.member.fail(error.clone());
                self.deliver();
                Err(error)
            }
            Err(Stop::Late) => {
                let error = Error::Timeout("the other ranks have not come in time to hear of a failure".to_string());
                self.member.give_up(error.clone());
                Err(error)
            }
        }
    }

    fn flush_failure(&mut self, error: Error) -> Result<(), Error> {
        self.deliver();
        Err(error)
    }

    /// Hands what the member has said to the system, for a short time at most.
    fn deliver(&mut self) {
        let limit = self.driver.now() + Duration::from_secs(1);
        // The news are for others; that they cannot be delivered is nothing that the caller could mend.
        let _ = self.driver.run(&mut self.member, Some(limit), |_| true);
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if self.member.awaits_root() {
            self.driver.ignore_cancel();
            let limit = self.driver.now() + ROOT_ANSWER;
            let _ = self.driver.run(&mut self.member, Some(limit), |member| !member.awaits_root());
        }
        self.member.leave();
        self.driver.goodbye(&mut self.member);
    }
}

/// What brings a rank to the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Errand {
    /// It joins, and listens for other ranks.
    Join,
    /// It has failed, and nobody will connect to it: descriptors may be what it lacks.
    Report,
    /// The same, after it had tried to join.
    ReportAgain,
}

/// See [`Bootstrap::report_failure`]; `limit` is how long it may take.
fn report(
    config: &NetConfig,
    id: &UniqueId,
    join: Join,
    failure: &Error,
    (errand, limit): (Errand, Duration),
) -> Result<(), Error> {
    let (driver, settings) = prepare(config, id, join, errand)?;
    let (rank, nranks) = (settings.rank, settings.nranks);
    let member = Member::reporting(settings, failure, driver.now());
    let mut bootstrap = Bootstrap::new(driver, member, (rank, nranks), Timings::default());
    let until = bootstrap.driver.now() + limit;
    let outcome = bootstrap.driver.run(&mut bootstrap.member, Some(until), |member| member.error().is_some());
    match (outcome, bootstrap.member.error()) {
        // The root has sent the news to all: this rank hears it too.
        (Ok(()), Some(Error::Remote { rank: Some(culprit), .. })) if *culprit == rank => Ok(()),
        (Ok(()), Some(error)) => Err(error.clone()),
        (Err(Stop::System(error)), _) => Err(error),
        _ => Err(Error::Timeout(format!("the root did not answer within {limit:?}"))),
    }
}

/// A rank was aborted before the root knew of it: the others would wait for it for good.
fn abandon(config: &NetConfig, id: &UniqueId, (rank, nranks): (u32, u32), version: u32) {
    let join = Join { rank, nranks, version, settings: Vec::new(), facts: Vec::new(), cancel: None };
    if let Err(why) = report(config, id, join, &Error::Aborted, (Errand::ReportAgain, ABANDON)) {
        log::info!(target: "BOOTSTRAP", "rank {rank} was aborted and could not tell the other ranks: {why}");
    }
}

/// Everything before the first connect: checks, the root where `NCCL_COMM_ID` asks for it, interface, listener.
fn prepare(config: &NetConfig, id: &UniqueId, join: Join, errand: Errand) -> Result<(Driver, MemberConfig), Error> {
    let listen = errand == Errand::Join;
    check(&join, listen)?;
    let parts = IdParts::decode(id)?;
    let route = interface::route_to(parts.root);
    let subnet = parts.fixed.then_some(parts.root.ip());
    let request = AddressRequest { filter: config.interfaces.as_ref(), family: config.family, route, subnet };
    let interface = interface::choose(&interface::list()?, request)?;
    log_interface(&interface);
    if parts.fixed && join.rank == 0 && errand != Errand::ReportAgain {
        let listener = net::root::listen_fixed(parts.root, join.cancel.as_ref())?;
        net::root::start(config, listener, (parts.magic, sys::random()), true, None)?;
    }
    let listener = listen.then(|| socket::listen(interface.at(0), config.ports, "other ranks")).transpose()?;
    let address = listener.as_ref().map_or(Ok(interface.at(NO_PORT)), socket::local_address)?;
    let driver = Driver::new(listener, join.cancel, Buffers::from(config))?;
    let settings = MemberConfig {
        rank: join.rank,
        nranks: join.nranks,
        magic: parts.magic,
        root: parts.root,
        fixed: parts.fixed,
        version: join.version,
        process: process(),
        settings: join.settings,
        entry: Entry { address, interface: interface.name, facts: join.facts },
        timeout: config.timeout,
        retry: Retry { count: config.retry_count, sleep: config.retry_sleep },
    };
    Ok((driver, settings))
}

/// What can be wrong with a rank's own arguments.
fn check(join: &Join, in_range: bool) -> Result<(), Error> {
    let (rank, nranks) = (join.rank, join.nranks);
    if nranks == 0 || nranks > MAX_RANKS {
        return Err(Error::InvalidArgument(format!("{nranks} ranks: there must be 1 to {MAX_RANKS}")));
    }
    if rank >= nranks && in_range {
        return Err(Error::InvalidArgument(format!("rank {rank} is out of range, there are {nranks} ranks")));
    }
    if join.facts.len() > MAX_FACTS {
        return Err(Error::InvalidArgument(format!(
            "rank {rank} brings {} bytes of facts, {MAX_FACTS} are allowed",
            join.facts.len()
        )));
    }
    if join.settings.len() > MAX_SETTINGS {
        return Err(Error::InvalidArgument(format!(
            "rank {rank} brings {} settings, {MAX_SETTINGS} are allowed",
            join.settings.len()
        )));
    }
    Ok(())
}
