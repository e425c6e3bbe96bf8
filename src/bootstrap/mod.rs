//! Rendezvous of the ranks of a communicator, and exchange of small data between them.
//!
//! [`create_id`] makes an id and starts its root; every rank hands the id to [`Bootstrap::join`]. The
//! protocol is pure ([`protocol`]); `net` has the sockets. Nothing in this room reads the environment or
//! knows CUDA: all settings come by [`NetConfig`].
//!
//! Roots and ranks are sources of the process's event loop (`crate::proxy`), which takes in what comes at any time.
//! Calls wait for it; they must not be made in its thread, which would wait for itself.
//!
//! A communicator's initialisation is `join`, some `all_gather`s, then [`Bootstrap::complete`]. Until
//! `complete`, every failure of a rank (an error that it reports by [`Bootstrap::fail`], or its death)
//! ends the waits of all others with an error that names it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use socket2::Socket;

use crate::error::Error;
use crate::proxy::ListenAddress;
use crate::secure::UserKey;
use crate::sys;

pub mod config;
pub mod id;
mod joining;
mod meeting;
pub mod net;
mod participants;
mod presence;
pub mod protocol;

#[cfg(test)]
mod tests;

pub use config::{Advertise, CommId, Family, InterfaceFilter, NetConfig, parse_ports};
pub use id::{Growth, UniqueId};
pub use joining::{Joining, RootHandle, create_root, growth};
pub use net::cancel::Cancel;
pub use participants::Participants;
pub use presence::Presence;

use id::{IdParts, show, show_ip};
use meeting::Meeting;
use net::connections::WireSettings;
use net::driver::{MachineDriver, Parting, Stop};
use net::interface::{self, AddressRequest, Interface};
pub use net::interface::{HostInterface, INTERFACES_MAX, same_network};
use net::root::RootIdentity;
use net::secure_layer::ConnectionSecurity;
use net::socket::{self, Buffers};
use protocol::checkin::{Entry, MAX_SETTINGS};
use protocol::member::{Member, MemberConfig, Retry};
use protocol::roots::{RootAddress, RootPlace};
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
    /// The library's version code; it must be the same on all ranks.
    pub version: u32,
    /// Settings on which the ranks should agree (name, value); a difference is a warning that names rank and values.
    pub settings: Vec<(String, String)>,
    /// Data for the other ranks, at most 64 KiB: it travels with the rendezvous and costs no exchange. See
    /// [`Bootstrap::facts`].
    pub facts: Vec<u8>,
    /// The same for what ranks may have in common, such as the facts of a host: what is alike travels once.
    pub common: Vec<u8>,
    /// Ends this rank's waits from another thread.
    pub cancel: Option<Cancel>,
}

impl Join {
    /// For a rank that comes only to say that it has failed.
    pub fn without_facts((rank, nranks): (u32, u32), version: u32) -> Join {
        let (settings, facts, common) = (Vec::new(), Vec::new(), Vec::new());
        Join { rank, nranks, version, settings, facts, common, cancel: None }
    }
}

/// Times of a join, for the log line of the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Interface, listener, root where `NCCL_COMM_ID` asks for it.
    pub create: Duration,
    /// From the first connect until this rank and its neighbours in the tree are connected.
    pub join: Duration,
}

/// How long what is said last may take to be with the system.
const DELIVERY: Duration = Duration::from_secs(1);

/// A rank's place among the others. Dropping it closes every connection: it says goodbye first, which takes two seconds
/// at most, and is left to the event loop where that is what drops it.
pub struct Bootstrap {
    driver: MachineDriver<Member>,
    rank: u32,
    nranks: u32,
    timings: Timings,
    /// Held while there is an operation: one at a time.
    operation: Mutex<Operation>,
}

/// What operations leave for the next one.
#[derive(Default)]
struct Operation {
    /// An exchange of some ranks was given up, so that what still comes for it could be taken for another one's.
    gave_up: bool,
}

/// An operation in progress.
struct OperationTurn<'a> {
    driver: &'a MachineDriver<Member>,
    rank: u32,
    operation: MutexGuard<'a, Operation>,
    /// When it must be over; none but for those of a rank that has a reason to tell.
    limit: Option<Instant>,
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
        let secret = net::root::fixed_secret(config, root);
        return Ok(IdParts { magic, root, fixed: true, token: 0, grow: None, secret }.encode());
    }
    joining::start_root(config, None, None)
}

/// Where a rank that joins by an id listens for the others: at all interfaces by which it can exchange data with them,
/// the best first. Where the user says what others are told, there is the first alone.
///
/// # Errors
/// As [`Bootstrap::join`], of the id and of interfaces.
pub fn listen_addresses(
    config: &NetConfig,
    ids: &[UniqueId],
    (rank, nranks): (u32, u32),
) -> Result<Vec<(HostInterface, ListenAddress)>, Error> {
    let request = address_request(config, &Meeting::of(ids, rank, nranks)?.own);
    let mut interfaces = interface::choose_all(&interface::list()?, request, interface::facts)?;
    let advertise = config.advertise.as_ref().map(|advertise| interface::advertised(advertise, 0)).transpose()?;
    interfaces.truncate(if advertise.is_some() { 1 } else { INTERFACES_MAX });
    let encrypted_by = config.user_key.as_ref().map(UserKey::fingerprint);
    let address = |one: &HostInterface| ListenAddress { at: one.address, ports: config.ports, advertise, encrypted_by };
    Ok(interfaces.into_iter().map(|one| (one.clone(), address(&one))).collect())
}

fn address_request<'a>(config: &'a NetConfig, parts: &IdParts) -> AddressRequest<'a> {
    AddressRequest {
        filter: config.interfaces.as_ref(),
        family: config.family,
        route: interface::route_to(parts.root),
        subnet: Some(parts.root.ip()),
    }
}

fn choose_interface(config: &NetConfig, parts: &IdParts) -> Result<Interface, Error> {
    interface::choose(&interface::list()?, address_request(config, parts))
}

/// Says so where the others cannot reach this rank: the root tells all of it, but does not know what there is here.
fn warn_out_of_reach(config: &NetConfig, chosen: &Interface, root: SocketAddr) {
    if config.advertise.is_some() {
        return;
    }
    if let Some(text) = interface::list().ok().and_then(|all| interface::out_of_reach(&all, chosen, root.ip())) {
        log::warn!(target: "BOOTSTRAP", "Bootstrap: {text}");
    }
}

/// The address of a listener as others are told.
fn told_address(config: &NetConfig, listener: &Socket) -> Result<SocketAddr, Error> {
    let own = socket::local_address(listener)?;
    let Some(advertise) = &config.advertise else { return Ok(own) };
    let told = interface::advertised(advertise, own.port())?;
    log::info!(target: "BOOTSTRAP", "Bootstrap: others are told {} for {}", show(told), show(own));
    Ok(told)
}

/// Where the root of a fixed rendezvous listens: at the address of `NCCL_COMM_ID`, unless that is what this process has
/// been told to advertise.
fn fixed_address(config: &NetConfig, interface: &Interface, root: SocketAddr) -> SocketAddr {
    let behind = config.advertise.as_ref().is_some_and(|advertise| advertise.ip == root.ip());
    if behind { interface.at(root.port()) } else { root }
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
    /// Meets the other ranks, by one id or several: returns when all have joined and this one is connected with its
    /// neighbours.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank out of range or a damaged id; `InvalidUsage` if the ranks do not fit
    /// together (the text names rank and values) or the id is of another library; `Remote` for a rank or a
    /// root that is gone; `Timeout` with the missing ranks; `Aborted` if it was cancelled; `System`.
    pub fn join(config: &NetConfig, ids: &(impl AsRef<[UniqueId]> + ?Sized), join: Join) -> Result<Bootstrap, Error> {
        Joining::begin(config, ids.as_ref(), join)?.finish()
    }

    /// A rank that has begun to join.
    fn new(driver: MachineDriver<Member>, (rank, nranks): (u32, u32), timings: Timings) -> Bootstrap {
        Bootstrap { driver, rank, nranks, timings, operation: Mutex::default() }
    }

    /// For a rank that has failed before it could join (no memory, no device): checks in only to end the
    /// initialisation of all other ranks with an error that names this one. Takes a round trip if the root
    /// is there, and [`REPORT`] at most if it is not. A rank that is out of range (a negative one as its 32
    /// bits) can be reported: the root tells all that it is.
    ///
    /// # Errors
    /// As [`Bootstrap::join`], if the root cannot be told.
    pub fn report_failure(
        config: &NetConfig,
        ids: &(impl AsRef<[UniqueId]> + ?Sized),
        join: Join,
        failure: &Error,
    ) -> Result<(), Error> {
        report(config, ids.as_ref(), join, failure, (Errand::Report, REPORT))
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
    pub fn facts(&self, rank: u32) -> Vec<u8> {
        self.ask(|member| Some(member.facts(rank).to_vec())).unwrap_or_default()
    }

    /// What a rank brought as [`Join::common`]: its number, which ranks that brought the same share.
    pub fn common_number(&self, rank: u32) -> u32 {
        self.ask(|member| Some(member.common(rank).0)).unwrap_or_default()
    }

    /// The same: the facts.
    pub fn common(&self, rank: u32) -> Vec<u8> {
        self.ask(|member| Some(member.common(rank).1.to_vec())).unwrap_or_default()
    }

    /// Where a rank listens, for messages.
    pub fn address(&self, rank: u32) -> Option<String> {
        let entry = self.ask(|member| member.entry(rank));
        entry.map(|entry| format!("{}:{}", entry.interface, show_ip(entry.address.ip())))
    }

    /// Why a rank that this one is connected with is gone, by what has been heard of it until now: it has left, its
    /// process has died, or its host cannot be reached. It costs no exchange.
    pub fn why_gone(&self, rank: u32) -> Option<Error> {
        self.ask(|member| member.why_gone(rank))
    }

    /// Brings the blocks of all ranks to all ranks, in the order of ranks. Blocks may differ in size, up to 64 MiB.
    ///
    /// # Errors
    /// `InvalidArgument` for a block that is too large; the error of whichever rank failed; `Timeout`, `Aborted`;
    /// `InvalidUsage` in a forked child.
    pub fn all_gather(&self, block: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.turn()?.all_gather(block)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// As [`Bootstrap::all_gather`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.all_gather(&[]).map(drop)
    }

    /// Sends a message to a rank; returns when it is on its way. Messages of a tag keep their order.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank or a size (64 MiB) out of range; otherwise as [`Bootstrap::all_gather`].
    pub fn send(&self, peer: u32, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.turn()?.send(peer, tag, bytes)
    }

    /// Waits for the next message of a rank with this tag.
    ///
    /// # Errors
    /// As [`Bootstrap::send`]; `Remote` if the rank is gone.
    pub fn recv(&self, peer: u32, tag: u64) -> Result<Vec<u8>, Error> {
        self.turn()?.recv(peer, tag)
    }

    /// This rank has failed: ends the initialisation of all others with an error that names it.
    pub fn fail(&self, error: &Error) {
        self.tell(|member| member.fail(error.clone()));
    }

    /// This rank's initialisation is complete: parts from the root, which ends when all ranks have.
    pub fn complete(&self) {
        self.tell(Member::complete);
        if self.nranks == 1 && !self.driver.is_inherited() {
            // Nobody will ever come.
            self.driver.retire();
        }
    }

    /// This rank takes no part in the next [`Bootstrap::all_gather`], for a reason of its own: that of the others
    /// fails and names this rank, and the one after it is as good as any. It waits for nobody.
    pub fn refuse(&self, error: &Error) {
        self.tell(|member| member.refuse(error));
    }

    /// Lets a second event end waits with [`Error::Aborted`], but not this rank's membership: messages are possible
    /// after it, exchanges that were under way are over for all ranks. `None` takes it away.
    ///
    /// # Errors
    /// `InvalidUsage` in a forked child.
    pub fn watch(&self, cancel: Option<&Cancel>) -> Result<(), Error> {
        self.turn()?.driver.watch(cancel.cloned());
        Ok(())
    }

    /// What the member knows; a forked child does not ask it.
    fn ask<T>(&self, question: impl FnOnce(&Member) -> Option<T>) -> Option<T> {
        if self.driver.is_inherited() { None } else { self.driver.with(|member, _| question(member)) }
    }

    /// Begins an operation, when there is no other one.
    fn turn(&self) -> Result<OperationTurn<'_>, Error> {
        if self.driver.is_inherited() {
            return Err(Error::InvalidUsage("a forked process has no connections of its parent's".to_string()));
        }
        Ok(OperationTurn { driver: &self.driver, rank: self.rank, operation: self.operation.lock(), limit: None })
    }

    /// What the member says to others is with the system afterwards, if that can be.
    fn tell(&self, say: impl FnOnce(&mut Member)) {
        if let Ok(turn) = self.turn() {
            turn.driver.with(|member, _| say(member));
            turn.deliver();
        }
    }

    /// Waits until the member says that it has come so far.
    fn await_state(&self, reached: fn(&Member) -> bool) -> Result<(), Error> {
        self.turn()?.run(move |member| or_error(member, |member| reached(member).then_some(())))
    }
}

impl OperationTurn<'_> {
    fn all_gather(&self, block: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.begin(|member, now| member.start_all_gather(now, block))?;
        // News of what a rank did afterwards may have come with the last block.
        self.run(|member| member.take_gathered().map(Ok).or_else(|| member.error().cloned().map(Err)))
    }

    fn send(&self, peer: u32, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        self.begin(|member, now| member.send_message(now, peer, tag, bytes))?;
        self.run(move |member| or_error(member, |member| member.sent(peer).then_some(())))?;
        self.driver.with(|member, _| member.end_send());
        Ok(())
    }

    fn recv(&self, peer: u32, tag: u64) -> Result<Vec<u8>, Error> {
        self.begin(|member, now| member.start_receive(now, peer, tag))?;
        self.run(|member| or_error(member, Member::take_message))
    }

    /// Gives the member its operation. Where that cannot be, the others hear of it.
    fn begin(&self, start: impl FnOnce(&mut Member, Duration) -> Result<(), Error>) -> Result<(), Error> {
        self.driver.with(start).inspect_err(|_| self.deliver())
    }

    /// Waits until there is a result, or an error.
    fn run<T: Send + 'static>(
        &self,
        done: impl FnMut(&mut Member) -> Option<Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let error = match self.driver.run(self.limit, done) {
            Ok(result) => return result,
            Err(Stop::Cancelled) => {
                let cancelled = self.driver.cancelled();
                self.driver.with(|member, _| match cancelled {
                    true => member.fail(Error::Aborted),
                    false => member.give_up(Error::Aborted),
                });
                Error::Aborted
            }
            Err(Stop::System(error)) => {
                self.driver.with(|member, _| member.fail(error.clone()));
                error
            }
            Err(Stop::Late) => {
                let error = Error::Timeout("the other ranks have not come in time to hear of a failure".to_string());
                self.driver.with(|member, _| member.give_up(error.clone()));
                return Err(error);
            }
        };
        self.deliver();
        Err(error)
    }

    /// Waits until what the member has said is with the system, for a short time at most.
    fn deliver(&self) {
        // The news are for others; that they cannot be delivered is nothing that the caller could mend.
        let _ = self.driver.run(Some(Instant::now() + DELIVERY), |_| Some(()));
    }
}

/// The error that the member has, or a result.
fn or_error<T>(member: &mut Member, result: impl FnOnce(&mut Member) -> Option<T>) -> Option<Result<T, Error>> {
    member.error().cloned().map(Err).or_else(|| result(member).map(Ok))
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if !self.driver.is_inherited() {
            self.driver.finish(Parting { awaits: Member::awaits_root, within: ROOT_ANSWER, leave: Member::leave });
        }
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
    ids: &[UniqueId],
    join: Join,
    failure: &Error,
    (errand, limit): (Errand, Duration),
) -> Result<(), Error> {
    let prepared = prepare(config, ids, join, errand)?;
    let (rank, nranks) = (prepared.settings.rank, prepared.settings.nranks);
    let driver = prepared.start(|settings, now| Member::reporting(settings, failure, now))?;
    let bootstrap = Bootstrap::new(driver, (rank, nranks), Timings::default());
    match bootstrap.driver.run(Some(Instant::now() + limit), |member| member.error().cloned()) {
        // The root has sent the news to all: this rank hears it too.
        Ok(Error::Remote { rank: Some(culprit), .. }) if culprit == rank => Ok(()),
        Ok(error) | Err(Stop::System(error)) => Err(error),
        Err(_) => Err(Error::Timeout(format!("the root did not answer within {limit:?}"))),
    }
}

/// A rank was aborted before the root knew of it: the others would wait for it for good.
fn abandon(config: &NetConfig, ids: &[UniqueId], (rank, nranks): (u32, u32), version: u32) {
    let join = Join::without_facts((rank, nranks), version);
    if let Err(why) = report(config, ids, join, &Error::Aborted, (Errand::ReportAgain, ABANDON)) {
        log::info!(target: "BOOTSTRAP", "rank {rank} was aborted and could not tell the other ranks: {why}");
    }
}

/// What a member is made of.
struct PreparedRank {
    /// See [`Meeting::first`].
    first_root: Option<RootAddress>,
    settings: MemberConfig,
    listener: Option<Socket>,
    cancel: Option<Cancel>,
    wire: WireSettings,
}

impl PreparedRank {
    fn start(self, member: impl FnOnce(MemberConfig, Duration) -> Member) -> Result<MachineDriver<Member>, Error> {
        let PreparedRank { settings, listener, cancel, wire, .. } = self;
        MachineDriver::new(|now| member(settings, now), listener, cancel, wire)
    }
}

/// Everything before the first connect: checks, the root where `NCCL_COMM_ID` asks for it, interface, listener.
fn prepare(config: &NetConfig, ids: &[UniqueId], join: Join, errand: Errand) -> Result<PreparedRank, Error> {
    let listen = errand == Errand::Join;
    check(&join, listen)?;
    let Meeting { own: parts, place, first, members } = Meeting::of(ids, join.rank, join.nranks)?;
    let interface = choose_interface(config, &parts)?;
    log_interface(&interface);
    warn_out_of_reach(config, &interface, parts.root);
    if parts.fixed && join.rank == 0 && errand != Errand::ReportAgain {
        let at = fixed_address(config, &interface, parts.root);
        let listener = net::root::listen_fixed(at, join.cancel.as_ref())?;
        let identity = RootIdentity { magic: parts.magic, token: sys::random(), secret: parts.secret.clone() };
        net::root::start(config, listener, identity, true, None)?;
    }
    let listener = listen.then(|| socket::listen(interface.at(0), config.ports, "other ranks")).transpose()?;
    let address = listener.as_ref().map_or(Ok(interface.at(NO_PORT)), |own| told_address(config, own))?;
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
        common: join.common,
        algorithm: config.algorithm,
        delay: stagger(config.stagger, &place, (join.rank, join.nranks)),
        place,
        timeout: config.timeout,
        retry: Retry { count: config.retry_count, sleep: config.retry_sleep },
    };
    let security = ConnectionSecurity::new(parts.secret, config.user_key.clone()).with_members(members);
    let wire = WireSettings { buffers: Buffers::from(config), security };
    Ok(PreparedRank { first_root: first, settings, listener, cancel: join.cancel, wire })
}

/// How long a rank waits before it connects to its root: nothing, unless it is told to (`NCCL_UID_STAGGER_RATE`).
fn stagger(stagger: Option<(u32, u32)>, place: &RootPlace, (rank, nranks): (u32, u32)) -> Duration {
    let block = place.block(nranks);
    match stagger {
        Some((threshold, rate)) if block.len() as u64 > u64::from(threshold) && rate > 0 => {
            let delay = Duration::from_secs(u64::from(rank.saturating_sub(block.start))) / rate;
            log::info!(
                target: "BOOTSTRAP",
                "Bootstrap: rank {rank} waits {:.3} s before it joins (NCCL_UID_STAGGER_RATE)",
                delay.as_secs_f64()
            );
            delay
        }
        _ => Duration::ZERO,
    }
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
    let facts = join.facts.len().max(join.common.len());
    if facts > MAX_FACTS {
        let text = format!("rank {rank} brings {facts} bytes of facts, {MAX_FACTS} are allowed");
        return Err(Error::InvalidArgument(text));
    }
    if join.settings.len() > MAX_SETTINGS {
        return Err(Error::InvalidArgument(format!(
            "rank {rank} brings {} settings, {MAX_SETTINGS} are allowed",
            join.settings.len()
        )));
    }
    Ok(())
}
