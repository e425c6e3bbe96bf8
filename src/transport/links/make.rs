//! Making this rank's ends of links, and taking in what peers say of theirs.
//!
//! Making and mapping device memory may wait for what runs on the device, which may wait for a peer: the event loop
//! does it itself only where nothing runs there, and else has a thread do that.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::message::LinkMessage;
use super::{Links, OwnEnd};
use crate::device::{Use, gate};
use crate::error::Error;
use crate::proxy::{Message, Outbox};
use crate::sys::spawn;
use crate::transport::handshake::Notice;
use crate::transport::{ConnectInfo, ConnectionGroup, Connectivity, Endpoint, Site, Transport};

/// How long whoever makes device memory by `cuMemAlloc` waits for a moment at which nothing runs. And how often it
/// looks.
const QUIET_LIMIT: Duration = Duration::from_millis(20);
const QUIET_NAP: Duration = Duration::from_micros(100);

/// A part that a peer offers.
pub(super) struct Offered {
    pub from: u32,
    pub info: Vec<u8>,
    /// What came with it, or why it did not.
    pub fd: Result<Option<OwnedFd>, String>,
}

impl Links {
    /// Makes this rank's part of a connection group; the messages that say so.
    pub(super) fn make(&self, group: ConnectionGroup) -> Vec<Message> {
        let made = self.prepare(group);
        let mut state = self.state.lock();
        let (epoch, result) = (state.epoch, made.as_ref().map(|_| ()).map_err(Error::to_string));
        let notices = state.handshake.made(group, result, self.now());
        if let Err(error) = made {
            state.failures.insert(group, error);
        }
        drop(state);
        let mut messages = Vec::new();
        for (peer, notice) in notices {
            let (message, fd) = match notice {
                Notice::Offer { wanted } => {
                    let Ok(endpoint) = self.endpoint(group, peer) else { continue };
                    let ConnectInfo { bytes: info, fd } = endpoint.connect_info(peer);
                    (Some(LinkMessage::Offer { epoch, group, info, wanted }), fd)
                }
                other => (LinkMessage::of(epoch, group, other), None),
            };
            messages.extend(message.and_then(|message| self.message(peer, &message, fd)));
        }
        // The messages have what goes with them now.
        self.endpoints(group).iter().for_each(|endpoint| endpoint.offered());
        self.news.notify_all();
        messages
    }

    /// Makes this rank's ends of a connection group.
    fn prepare(&self, group: ConnectionGroup) -> Result<(), Error> {
        let connectivity = self.connectivity()?;
        for transport in connectivity.transports(self.rank, group)? {
            let endpoint = self.end(connectivity, group, transport)?;
            let bytes = self.when_quiet(endpoint.may_wait(), || endpoint.prepare())?;
            let charge = self.ledger.charge(Use::Links, bytes);
            let mut state = self.state.lock();
            let end = state.ends.get_mut(&group).and_then(|ends| ends.get_mut(&transport.id()));
            if let Some(end) = end {
                end._charge = Some(charge);
            }
        }
        Ok(())
    }

    /// This rank's end of the links with a peer.
    fn endpoint(&self, group: ConnectionGroup, peer: u32) -> Result<Arc<dyn Endpoint>, Error> {
        let connectivity = self.connectivity()?;
        self.end(connectivity, group, connectivity.transport(self.rank, peer)?)
    }

    /// This rank's end of links by a transport, which is there from the first look on.
    fn end(
        &self,
        connectivity: &Arc<Connectivity>,
        group: ConnectionGroup,
        transport: &'static dyn Transport,
    ) -> Result<Arc<dyn Endpoint>, Error> {
        let mut state = self.state.lock();
        let ends = state.ends.entry(group).or_default();
        if let Some(end) = ends.get(&transport.id()) {
            return Ok(end.endpoint.clone());
        }
        let (context, connectivity, engine) = (self.context.clone(), connectivity.clone(), self.engine.clone());
        let blocks = self.blocks.clone();
        let endpoint = transport.endpoint(Site { context, rank: self.rank, group, connectivity, blocks, engine })?;
        ends.insert(transport.id(), OwnEnd { endpoint: endpoint.clone(), _charge: None });
        Ok(endpoint)
    }

    /// Makes something that may wait for what runs on the device, if possible at a moment at which nothing does.
    fn when_quiet<T>(&self, may_wait: bool, make: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        if !may_wait {
            return make();
        }
        let until = Instant::now() + QUIET_LIMIT;
        while !self.cancel.fired() {
            // Held until it is there.
            let gate = gate::allocating(self.context.device());
            if gate.is_some() && self.is_quiet() {
                return make();
            }
            drop(gate);
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(QUIET_NAP);
        }
        make()
    }

    fn is_quiet(&self) -> bool {
        self.hooks.get().is_none_or(|hooks| (hooks.is_quiet)())
    }

    /// Whether the driver may hold up whoever makes or maps memory of a connection group now.
    pub(super) fn may_wait(&self, connectivity: &Connectivity, group: ConnectionGroup) -> bool {
        let transports = connectivity.transports(self.rank, group).unwrap_or_default();
        transports.iter().any(|transport| transport.is_device_memory()) && !self.is_quiet()
    }

    /// Takes what a peer offers and makes what it wants, in a thread of its own.
    pub(super) fn serve_aside(
        self: Arc<Links>,
        group: ConnectionGroup,
        take: Option<Offered>,
        make: bool,
        out: &mut Outbox,
    ) {
        // Where the thread cannot be started the offer comes back.
        let place = Arc::new(Mutex::new(Some(take)));
        let (links, theirs) = (self.clone(), place.clone());
        let work = move || {
            if let Some(take) = theirs.lock().take() {
                links.serve_and_send(group, take, make);
            }
        };
        if spawn("oxccl-links", work).is_err()
            && let Some(take) = place.lock().take()
        {
            self.serve(group, take, make).into_iter().for_each(|message| out.add(message));
        }
    }

    /// Takes what a peer offers and makes what it wants; the messages that say so.
    pub(super) fn serve(&self, group: ConnectionGroup, take: Option<Offered>, make: bool) -> Vec<Message> {
        let mut messages = Vec::new();
        if let Some(offered) = take {
            let from = offered.from;
            // Others hear of it, too, and are to know whose part it is about.
            let taken = self.take(group, offered);
            let taken = taken.map_err(|error| format!("{error}, with what rank {from} offers; is it gone?"));
            let answers = self.state.lock().handshake.taken(group, from, taken);
            messages = self.messages(group, answers);
            self.news.notify_all();
        }
        if make {
            messages.extend(self.make(group));
        }
        messages
    }

    /// As [`Links::serve`], where no event loop sends what is to be said before it ends: a user who waits for the part
    /// goes on only when the peer has been told, since that may end the process.
    fn serve_and_send(&self, group: ConnectionGroup, take: Option<Offered>, make: bool) {
        if let Some(offered) = take {
            let from = offered.from;
            let taken = self.take(group, offered).map_err(|error| error.to_string());
            let answers = self.state.lock().handshake.answer(group, from, &taken);
            self.send(self.messages(group, answers));
            self.state.lock().handshake.taken(group, from, taken);
            self.news.notify_all();
        }
        if make {
            self.send(self.make(group));
        }
    }

    /// Takes in a peer's part.
    fn take(&self, group: ConnectionGroup, offered: Offered) -> Result<(), Error> {
        let fd = offered.fd.map_err(Error::Resource)?;
        self.endpoint(group, offered.from)?.accept(offered.from, &offered.info, fd)
    }
}
