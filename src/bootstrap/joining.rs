//! A rank on its way into a communicator, and roots that their maker can stop.

use std::time::{Duration, Instant};

use super::id::{Growth, IdParts, UniqueId};
use super::net::cancel::Cancel;
use super::net::interface::{self, AddressRequest};
use super::net::root::{self, RootIdentity};
use super::net::secure_layer::ConnectionSecurity;
use super::net::socket::{self, SecureSocket};
use super::protocol::failure::Failure;
use super::protocol::member::Member;
use super::protocol::roots::RootAddress;
use super::protocol::wire::{Preamble, Service};
use super::{Bootstrap, Errand, Join, NetConfig, Timings, abandon, log_interface, prepare, told_address};
use crate::error::Error;
use crate::secure::{self, Secret};
use crate::sys;

/// How long it may take to tell the first root that another one is not there, for each step.
const FAREWELL: Duration = Duration::from_secs(2);

/// A rank that the root knows, so that its death ends the initialisation of all. One that does not go on must say so
/// ([`Joining::fail`]).
pub struct Joining {
    bootstrap: Bootstrap,
    begun: Instant,
    /// See [`Meeting::first`](super::meeting::Meeting::first).
    first_root: Option<RootAddress>,
}

impl Joining {
    /// Checks in at the root; does not wait for other ranks.
    ///
    /// # Errors
    /// As [`Bootstrap::join`], as far as they show by then.
    pub fn begin(config: &NetConfig, ids: &[UniqueId], join: Join) -> Result<Joining, Error> {
        let clock = Instant::now();
        let prepared = prepare(config, ids, join, Errand::Join)?;
        let create = clock.elapsed();
        let (place, version) = ((prepared.settings.rank, prepared.settings.nranks), prepared.settings.version);
        let (begun, first_root) = (Instant::now(), prepared.first_root);
        let driver = prepared.start(Member::new)?;
        let bootstrap = Bootstrap::new(driver, place, Timings { create, join: Duration::ZERO });
        if let Err(error) = bootstrap.await_state(Member::checked_in) {
            tell_first_root(first_root, &bootstrap, &error);
            if error == Error::Aborted && place.1 > 1 && !bootstrap.driver.with(|member, _| member.checked_in()) {
                drop(bootstrap);
                abandon(config, ids, place, version);
            }
            return Err(error);
        }
        Ok(Joining { bootstrap, begun, first_root })
    }

    /// This rank does not go on: the others' initialisation ends with an error that names it.
    pub fn fail(self, error: &Error) {
        self.bootstrap.fail(error);
    }

    /// Waits until all ranks have joined and this one is connected with its neighbours.
    ///
    /// # Errors
    /// As [`Bootstrap::join`].
    pub fn finish(self) -> Result<Bootstrap, Error> {
        let Joining { mut bootstrap, begun, first_root } = self;
        let joined = bootstrap.await_state(Member::joined);
        joined.inspect_err(|error| tell_first_root(first_root, &bootstrap, error))?;
        bootstrap.timings.join = begun.elapsed();
        bootstrap.log_timings();
        Ok(bootstrap)
    }
}

/// A root of which this process knows when it is not needed: dropping this stops it, unless it was released.
pub struct RootHandle {
    id: UniqueId,
    stop: Option<Cancel>,
}

impl RootHandle {
    /// The id that leads to it.
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// Lets the root end by itself, when all ranks are through.
    pub fn release(mut self) {
        self.stop = None;
    }
}

impl Drop for RootHandle {
    fn drop(&mut self) {
        self.stop.iter().for_each(Cancel::fire);
    }
}

/// Makes an id for a communicator that is derived from another one: as [`super::create_id`], whatever `NCCL_COMM_ID`
/// says.
///
/// # Errors
/// As [`super::create_id`].
pub fn create_root(config: &NetConfig, grow: Option<Growth>) -> Result<RootHandle, Error> {
    let stop = Cancel::new();
    let id = start_root(config, grow, Some(stop.clone()))?;
    Ok(RootHandle { id, stop: Some(stop) })
}

/// Starts a root on the first usable interface.
pub(super) fn start_root(config: &NetConfig, grow: Option<Growth>, stop: Option<Cancel>) -> Result<UniqueId, Error> {
    let interface = interface::choose(
        &interface::list()?,
        AddressRequest { filter: config.interfaces.as_ref(), family: config.family, ..AddressRequest::default() },
    )?;
    log_interface(&interface);
    let listener = socket::listen(interface.at(0), config.ports, "the ranks (root)")?;
    let address = told_address(config, &listener)?;
    let (magic, token, secret) = (sys::random(), sys::random(), Secret::new(sys::random()));
    let identity = RootIdentity { magic, token, secret: secret.clone() };
    root::start(config, listener, identity, false, stop)?;
    Ok(IdParts { magic, root: address, fixed: false, token, grow, secret }.encode())
}

/// The grow that an id is for, if it is for one.
///
/// # Errors
/// As for an id that was not made by this library, or damaged.
pub fn growth(id: &UniqueId) -> Result<Option<Growth>, Error> {
    IdParts::decode(id).map(|parts| parts.grow)
}

/// A rank of several roots whose own root is not there, or has gone: the other ranks hear of it by the first root.
fn tell_first_root(first: Option<RootAddress>, bootstrap: &Bootstrap, error: &Error) {
    let lost = |_: &RootAddress| bootstrap.driver.with(|member, _| member.has_lost_root());
    let Some(RootAddress { address, magic, secret }) = first.filter(lost) else { return };
    let security = ConnectionSecurity::new(Secret::new(secret), secure::user_key());
    let (preamble, frame) = (Preamble::new(magic, Service::Root), Failure::of(bootstrap.rank(), error).encode());
    let told = SecureSocket::connect(address, FAREWELL, preamble, &security).and_then(|mut socket| {
        socket.send(&frame)?;
        // Until the root closes: to close what has something to read would take back what was sent.
        while socket.read_some()? > 0 {}
        Ok(())
    });
    if let Err(why) = told {
        log::info!(target: "BOOTSTRAP", "Bootstrap: could not tell the first root of another one: {why}");
    }
}
