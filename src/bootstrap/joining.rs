//! A rank on its way into a communicator, and roots that their maker can stop.

use std::io::Read;
use std::time::{Duration, Instant};

use super::id::{Growth, IdParts, UniqueId};
use super::net::cancel::Cancel;
use super::net::interface::{self, AddressRequest};
use super::net::{root, socket};
use super::protocol::member::Member;
use super::protocol::wire::{Encoder, FrameKind, Preamble, Service};
use super::{Bootstrap, Errand, Join, NetConfig, Timings, abandon, log_interface, prepare, told_address};
use crate::error::Error;
use crate::sys;

/// How long it may take to tell a root that it is not needed, for each step.
const DISMISSAL: Duration = Duration::from_secs(2);

/// A rank that the root knows, so that its death ends the initialisation of all. One that does not go on must say so
/// ([`Joining::fail`]).
pub struct Joining {
    bootstrap: Bootstrap,
    begun: Instant,
}

impl Joining {
    /// Checks in at the root; does not wait for other ranks.
    ///
    /// # Errors
    /// As [`Bootstrap::join`], as far as they show by then.
    pub fn begin(config: &NetConfig, id: &UniqueId, join: Join) -> Result<Joining, Error> {
        let clock = Instant::now();
        let prepared = prepare(config, id, join, Errand::Join)?;
        let create = clock.elapsed();
        let (place, version) = ((prepared.settings.rank, prepared.settings.nranks), prepared.settings.version);
        let begun = Instant::now();
        let driver = prepared.start(Member::new)?;
        let bootstrap = Bootstrap::new(driver, place, Timings { create, join: Duration::ZERO });
        if let Err(error) = bootstrap.await_state(Member::checked_in) {
            if error == Error::Aborted && place.1 > 1 && !bootstrap.driver.with(|member, _| member.checked_in()) {
                drop(bootstrap);
                abandon(config, id, place, version);
            }
            return Err(error);
        }
        Ok(Joining { bootstrap, begun })
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
        let Joining { mut bootstrap, begun } = self;
        bootstrap.await_state(Member::joined)?;
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
    let parts = IdParts { magic: sys::random(), root: address, fixed: false, token: sys::random(), grow };
    root::start(config, listener, (parts.magic, parts.token), false, stop)?;
    Ok(parts.encode())
}

/// The grow that an id is for, if it is for one.
///
/// # Errors
/// As for an id that was not made by this library, or damaged.
pub fn growth(id: &UniqueId) -> Result<Option<Growth>, Error> {
    IdParts::decode(id).map(|parts| parts.grow)
}

/// Tells the root of an id that nobody will come, since the ranks meet elsewhere. A root that is gone, or that a rank
/// has come to, is left alone.
pub fn dismiss(id: &UniqueId) {
    let Ok(IdParts { magic, root, fixed: false, token, .. }) = IdParts::decode(id) else { return };
    let frame = Encoder::new(FrameKind::Dismiss, 8).u64(token).finish();
    let message = [Preamble::new(magic, Service::Root).encode().as_slice(), &frame].concat();
    let told = socket::connect_and_wait(root, DISMISSAL).and_then(|mut socket| {
        socket::send_all(&socket, &message)?;
        // Until the root closes: one that is asked to end must not do so on a connection that was reset.
        let mut answer = [0; 64];
        while socket.read(&mut answer)? > 0 {}
        Ok(())
    });
    if let Err(why) = told {
        log::info!(target: "BOOTSTRAP", "Bootstrap: could not tell the root of an unused ncclUniqueId to end: {why}");
    }
}
