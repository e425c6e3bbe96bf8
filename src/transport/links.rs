//! The links of one rank of a communicator: made by connection groups, when somebody first needs them.
//!
//! A call asks for the connection groups that it needs and waits for the peers' parts; the helper threads answer,
//! whether or not the users of those ranks have called anything. A part is mapped as soon as it is offered, and not by
//! the call that needs it: a rank that has done its share of a call may end, or die, before its peers make theirs.
//!
//! Making and mapping device memory may wait for what runs on the device, which may wait for a peer: the helper thread
//! does it itself only where nothing runs there, and else has a thread do that.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::handshake::{Handshake, Notice, Notices, Standing, Todo};
use super::layout::{Area, areas};
use super::{ConnectionGroup, Given, Made, Need, Offer, PeerFacts, Segment, TRANSPORTS, choose};
use crate::bootstrap::Cancel;
use crate::device::{Charge, Context, Ledger, Use, gate};
use crate::error::Error;
use crate::plan::wiring::{LinkNeed, Wiring};
use crate::proxy::{
    self, Address, Destination, Location, Message, Outbox, Progress, Registration, Source, Undeliverable,
};
use crate::sys::{self, MESSAGE_MAX, SharedFile, SharedMemory, is_open, spawn, too_many_files};

/// How often a rank that waits for its peers looks at what else could end the wait.
const LOOK: Duration = Duration::from_millis(20);
/// How long whoever makes device memory waits for a moment at which nothing runs: memory is thriftier then. And how
/// often it looks.
const QUIET_LIMIT: Duration = Duration::from_millis(20);
const QUIET_NAP: Duration = Duration::from_micros(100);
/// The most bytes of a reason that is told to a peer: the rest of its message has room beside it.
const TEXT_MAX: usize = MESSAGE_MAX / 2;
/// After how long it says whom it waits for, and how often again.
const NOTICE: Duration = Duration::from_secs(10);

/// Where the parts of a link are, for kernels of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkAddresses {
    /// The first slot.
    pub slots: u64,
    /// The sender's counter.
    pub posted: u64,
    /// The receiver's counter.
    pub consumed: u64,
    /// The size of a slot in bytes.
    pub slot_bytes: u32,
    /// The rank at the other end.
    pub peer: u32,
}

/// What a rank writes to another one of its communicator.
#[derive(Debug, Serialize, Deserialize)]
enum LinkMessage {
    /// Its part of a connection group, of so many bytes.
    Offer { epoch: u32, group: ConnectionGroup, offer: Offer, bytes: u64, wanted: bool },
    /// It has the other's part of a connection group.
    Taken { epoch: u32, group: ConnectionGroup },
    /// Something of the other is still missing in a connection group.
    Ask { epoch: u32, group: ConnectionGroup },
    /// It could not make its part of a connection group, or take the other's.
    Failed { epoch: u32, group: ConnectionGroup, text: String },
    /// Memory that is no link: the flight recorder. It comes with the message.
    Memory { bytes: u64 },
    /// It has met an error and will not take part in calls any more.
    Leaving,
}

impl LinkMessage {
    /// What says a notice about a connection group; none for an offer, which says more.
    fn of(epoch: u32, group: ConnectionGroup, notice: Notice) -> Option<LinkMessage> {
        match notice {
            Notice::Failed(mut text) => {
                // A message that is too long would not be read, and whoever waits for it wait on.
                text.truncate(text.floor_char_boundary(TEXT_MAX));
                Some(LinkMessage::Failed { epoch, group, text })
            }
            Notice::Ask => Some(LinkMessage::Ask { epoch, group }),
            Notice::Taken => Some(LinkMessage::Taken { epoch, group }),
            Notice::Offer { .. } => None,
        }
    }
}

/// A part that a peer offers.
struct Offered {
    from: u32,
    given: Result<Given, String>,
    bytes: u64,
}

/// This rank's part of a connection group, by transport.
type Parts = BTreeMap<usize, Own>;

/// This rank's memory for the peers that it reaches by one transport.
struct Own {
    area: Area,
    segment: Box<dyn Segment>,
    offer: Offer,
    /// Until all peers have it.
    fd: Option<Arc<OwnedFd>>,
    _charge: Charge,
}

/// What ranks have agreed on.
struct Plan {
    /// Every rank's facts.
    facts: Vec<PeerFacts>,
    wiring: Wiring,
}

struct State {
    handshake: Handshake<Box<dyn Segment>>,
    /// Grows with every [`Links::unmap`]; messages of another one are of no account.
    epoch: u32,
    own: BTreeMap<ConnectionGroup, Parts>,
    /// Why this rank could not make its part.
    failures: BTreeMap<ConnectionGroup, Error>,
    /// Memory that came under no connection group.
    memory: Option<Result<SharedMemory, String>>,
}

/// What a rank asks its communicator; see [`Links::set_hooks`].
pub struct Hooks {
    /// Whether nothing runs on the device, as far as this library has launched it.
    pub is_quiet: Box<dyn Fn() -> bool + Send + Sync>,
    /// A rank has met an error and takes part in nothing any more.
    pub has_left: Box<dyn Fn(u32) + Send + Sync>,
}

/// The links of one rank of a communicator.
pub struct Links {
    context: Arc<Context>,
    rank: u32,
    key: u64,
    cancel: Cancel,
    ledger: Arc<Ledger>,
    location: OnceLock<Location>,
    registration: Mutex<Option<Registration>>,
    plan: OnceLock<Plan>,
    hooks: OnceLock<Hooks>,
    start: Instant,
    own: Weak<Links>,
    /// The peers' memory that links use. Locked while somebody connects: the next one finds more connected. Unmapped
    /// before this rank's own is freed.
    mapped: Mutex<Vec<Box<dyn Segment>>>,
    state: Mutex<State>,
    news: Condvar,
}

impl Links {
    /// Links of a rank, none of which is connected. From here on messages for it arrive.
    ///
    /// # Errors
    /// As [`proxy::join`].
    pub fn open(context: &Arc<Context>, rank: u32, cancel: &Cancel, ledger: &Arc<Ledger>) -> Result<Arc<Links>, Error> {
        let state = State {
            handshake: Handshake::new(),
            epoch: 0,
            own: BTreeMap::new(),
            failures: BTreeMap::new(),
            memory: None,
        };
        let key = sys::random();
        let links = Arc::new_cyclic(|own| Links {
            context: context.clone(),
            rank,
            key,
            cancel: cancel.clone(),
            ledger: ledger.clone(),
            location: OnceLock::new(),
            registration: Mutex::new(None),
            plan: OnceLock::new(),
            hooks: OnceLock::new(),
            start: Instant::now(),
            own: own.clone(),
            mapped: Mutex::new(Vec::new()),
            state: Mutex::new(state),
            news: Condvar::new(),
        });
        let source: Weak<dyn Source> = links.own.clone();
        let registration = proxy::join(Address { key, rank }, source)?;
        let _ = links.location.set(registration.location());
        *links.registration.lock() = Some(registration);
        Ok(links)
    }

    /// Where peers write to.
    pub fn location(&self) -> Location {
        self.location.get().copied().unwrap_or_default()
    }

    /// The number that peers' messages to this rank bear.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Says what there is to be linked. Peers may ask for it from the moment on at which all ranks have called this.
    pub fn plan(&self, facts: Vec<PeerFacts>, wiring: Wiring) {
        let _ = self.plan.set(Plan { facts, wiring });
    }

    /// Says what the communicator is to be asked, and told.
    pub fn set_hooks(&self, hooks: Hooks) {
        let _ = self.hooks.set(hooks);
    }

    /// No more messages: peers that write are told that there is nobody. What is connected stays so until the drop.
    pub fn close(&self) {
        let registration = self.registration.lock().take();
        drop(registration);
        self.news.notify_all();
    }

    fn wiring(&self) -> Result<&Plan, Error> {
        self.plan.get().ok_or_else(|| Error::Internal("links are used before they were planned".to_string()))
    }

    /// Time since the links were opened.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    // --- memory that is no link -------------------------------------------------------------------------

    /// Hands memory to another rank, which takes it by [`Links::receive_memory`]: once in a communicator's life.
    pub fn send_memory(&self, to: &PeerFacts, file: &SharedFile) -> Result<(), Error> {
        let fd = file.descriptor().try_clone_to_owned();
        let fd = fd.map_err(|error| Error::system("fcntl(F_DUPFD)", "shared memory", &error))?;
        let bytes = encode(&LinkMessage::Memory { bytes: file.bytes() as u64 });
        let destination = Destination::Unix(to.location.mailbox);
        self.send([Message::new(destination, address(to), bytes, Some(Arc::new(fd)))]);
        Ok(())
    }

    /// Waits for memory that another rank hands over.
    ///
    /// # Errors
    /// [`Error::Timeout`] where none comes within `limit`, [`Error::Aborted`], [`Error::Resource`] where it came, but
    /// this process could not take it.
    pub fn receive_memory(&self, limit: Duration) -> Result<SharedMemory, Error> {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        loop {
            if let Some(memory) = state.memory.take() {
                return memory.map_err(Error::Resource);
            }
            if self.cancel.fired() {
                return Err(Error::Aborted);
            }
            if Instant::now() >= until {
                return Err(Error::Timeout("a peer did not pass its shared memory in time".to_string()));
            }
            self.news.wait_until(&mut state, until.min(Instant::now() + LOOK));
        }
    }

    // --- peers that are gone ----------------------------------------------------------------------------

    /// Whether the process of a rank of this host has ended, or at least all communicators that it had. What cannot be
    /// found out is not so.
    pub fn is_gone(&self, rank: u32) -> bool {
        let Some((me, peer)) =
            self.plan.get().and_then(|plan| plan.facts.get(self.rank as usize).zip(plan.facts.get(rank as usize)))
        else {
            return false;
        };
        me.process != peer.process && me.host.can_pass_descriptors(&peer.host) && !is_open(&peer.location.mailbox)
    }

    // --- leaving ----------------------------------------------------------------------------------------

    /// Tells all other ranks that this one has met an error: what they wait for will not come.
    pub fn tell_leaving(&self) {
        let Some(plan) = self.plan.get() else { return };
        let me = &plan.facts[self.rank as usize];
        let others =
            plan.facts.iter().filter(|peer| peer.rank != self.rank && me.host.can_pass_descriptors(&peer.host));
        let leaving =
            |peer: &PeerFacts| Message::new(me.destination(peer), address(peer), encode(&LinkMessage::Leaving), None);
        self.send(others.map(leaving));
    }

    /// Why the rank `left` may have left: links that it, or this rank, could not make.
    pub fn failure(&self, left: u32) -> Option<Error> {
        let state = self.state.lock();
        let (group, rank, text) = state.handshake.failure(left)?;
        Some(state.blame(group, rank, text))
    }

    fn send(&self, messages: impl IntoIterator<Item = Message>) {
        if let Some(registration) = &*self.registration.lock() {
            registration.send(messages);
        }
    }

    // --- connecting -------------------------------------------------------------------------------------

    /// Asks for connection groups without waiting for any: so that several communicators are connected at the same
    /// time.
    pub fn ask(&self, groups: &[ConnectionGroup]) -> Result<(), Error> {
        let plan = self.wiring()?;
        for group in groups {
            let peers = || plan.wiring.group_peers(self.rank, *group);
            let (make, messages) = self.state.lock().handshake.want(*group, peers, self.now());
            let messages = if make { self.make(*group) } else { self.messages(*group, messages) };
            self.send(messages);
        }
        Ok(())
    }

    /// Connects connection groups, and gives the links of each, in the order of [`Wiring::links`], to `then`, which
    /// says whether all is well. Units for which `connected` is true are left out. `look` says whether the wait is
    /// still for something; it is called now and then.
    ///
    /// # Errors
    /// [`Error::Remote`] where a peer is gone or could not make its part, [`Error::Aborted`], what `look` and `then`
    /// give, and what the driver gives when it cannot map memory.
    pub fn connect(
        &self,
        groups: &[ConnectionGroup],
        connected: impl Fn(ConnectionGroup) -> bool,
        look: &dyn Fn() -> Result<(), Error>,
        mut then: impl FnMut(ConnectionGroup, &[(LinkNeed, LinkAddresses)]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.ask(groups)?;
        let mut mapped = self.lock_mapped(look)?;
        for group in groups.iter().filter(|group| !connected(**group)) {
            self.wait_for(*group, look)?;
            let theirs = self.state.lock().handshake.finish(*group);
            let links = self.register(*group, theirs, &mut mapped)?;
            then(*group, &links)?;
        }
        Ok(())
    }

    fn lock_mapped(
        &self,
        look: &dyn Fn() -> Result<(), Error>,
    ) -> Result<MutexGuard<'_, Vec<Box<dyn Segment>>>, Error> {
        loop {
            if let Some(mapped) = self.mapped.try_lock_for(LOOK) {
                return Ok(mapped);
            }
            self.check_wait(look)?;
        }
    }

    fn check_wait(&self, look: &dyn Fn() -> Result<(), Error>) -> Result<(), Error> {
        if self.cancel.fired() {
            return Err(Error::Aborted);
        }
        look()
    }

    fn wait_for(&self, group: ConnectionGroup, look: &dyn Fn() -> Result<(), Error>) -> Result<(), Error> {
        let start = Instant::now();
        let mut notice = start + NOTICE;
        loop {
            let mut state = self.state.lock();
            let missing = match state.handshake.standing(group) {
                Standing::Complete => return Ok(()),
                Standing::Failed(rank, text) => return Err(state.blame(group, rank, text)),
                Standing::Missing(missing) => missing,
            };
            self.news.wait_until(&mut state, Instant::now() + LOOK);
            drop(state);
            self.check_wait(look)?;
            if Instant::now() >= notice {
                notice += NOTICE;
                let (seconds, rank) = (start.elapsed().as_secs(), self.rank);
                log::warn!("rank {rank} has waited {seconds} s for its first links with {}", ranks(&missing));
            }
        }
    }

    /// Makes all parts of a connection group usable for kernels; those of peers are kept in `mapped` from then on.
    fn register(
        &self,
        group: ConnectionGroup,
        theirs: BTreeMap<u32, Box<dyn Segment>>,
        mapped: &mut Vec<Box<dyn Segment>>,
    ) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error> {
        let plan = self.wiring()?;
        let own = self.register_own(group)?;
        let mut bases: BTreeMap<u32, (u64, Area)> = BTreeMap::new();
        for (peer, mut segment) in theirs {
            segment.register(&self.context)?;
            bases.insert(peer, (segment.address(), plan.area(peer, self.rank, group)?));
            mapped.push(segment);
        }
        let links = plan.wiring.group_links(self.rank, group).into_iter();
        let links = links.map(|need| {
            let peer = need.peer(self.rank);
            let transport = plan.transport(self.rank, peer)?;
            let addresses =
                own.get(&transport).zip(bases.get(&peer)).and_then(|(own, theirs)| self.addresses(&need, own, theirs));
            let none =
                || Error::Internal(format!("no memory for the link from rank {} to rank {}", need.id.from, need.id.to));
            Ok((need, addresses.ok_or_else(none)?))
        });
        links.collect()
    }

    /// Makes this rank's part of a connection group usable for kernels; its addresses.
    fn register_own(&self, group: ConnectionGroup) -> Result<BTreeMap<usize, (u64, Area)>, Error> {
        // Taken out meanwhile: the helper thread must not wait for the driver.
        let mut parts = self.state.lock().own.remove(&group).unwrap_or_default();
        let result = parts.iter_mut().try_for_each(|(_, own)| own.segment.register(&self.context));
        let addresses =
            parts.iter().map(|(transport, own)| (*transport, (own.segment.address(), own.area.clone()))).collect();
        self.state.lock().own.insert(group, parts);
        result.map(|()| addresses)
    }

    fn addresses(&self, need: &LinkNeed, own: &(u64, Area), theirs: &(u64, Area)) -> Option<LinkAddresses> {
        let (sender, receiver) = if need.id.from == self.rank { (own, theirs) } else { (theirs, own) };
        let (from, to) = (sender.1.part(need.id)?, receiver.1.part(need.id)?);
        Some(LinkAddresses {
            slots: receiver.0 + to.slots as u64,
            posted: receiver.0 + to.counter as u64,
            consumed: sender.0 + from.counter as u64,
            slot_bytes: need.slot_bytes,
            peer: need.peer(self.rank),
        })
    }

    // --- giving up for a while --------------------------------------------------------------------------

    /// Unmaps the peers' memory. No kernel may use it any more, and no peer may ask for anything, until all ranks have
    /// called [`Links::forget`].
    pub fn unmap(&self) {
        self.mapped.lock().clear();
        // What was never connected, too; and messages that are still on their way are late.
        let mut state = self.state.lock();
        state.epoch += 1;
        state.failures.clear();
        let theirs = state.handshake.restart();
        drop(state);
        drop(theirs);
    }

    /// Frees this rank's memory, which nobody has mapped any more. All connection groups can be connected anew.
    pub fn forget(&self) {
        let own = std::mem::take(&mut self.state.lock().own);
        drop(own);
    }

    // --- this rank's part -------------------------------------------------------------------------------

    /// Makes this rank's part of a connection group; the messages that say so.
    fn make(&self, group: ConnectionGroup) -> Vec<Message> {
        let made = self.allocate(group);
        let mut state = self.state.lock();
        let (epoch, result) = (state.epoch, made.as_ref().map(|_| ()).map_err(Error::to_string));
        let notices = state.handshake.made(group, result, self.now());
        let offer = |peer: u32| {
            let transport = self.plan.get().and_then(|plan| plan.transport(self.rank, peer).ok())?;
            let own = made.as_ref().ok()?.get(&transport)?;
            Some((own.offer.clone(), own.area.bytes as u64, own.fd.clone()))
        };
        let mut messages = Vec::new();
        for (peer, notice) in notices {
            let (message, fd) = match notice {
                Notice::Offer { wanted } => {
                    let Some((offer, bytes, fd)) = offer(peer) else { continue };
                    (Some(LinkMessage::Offer { epoch, group, offer, bytes, wanted }), fd)
                }
                other => (LinkMessage::of(epoch, group, other), None),
            };
            messages.extend(message.and_then(|message| self.message(peer, &message, fd)));
        }
        match made {
            Ok(mut parts) => {
                // The messages have it now.
                parts.values_mut().for_each(|own| own.fd = None);
                state.own.insert(group, parts);
            }
            Err(error) => drop(state.failures.insert(group, error)),
        }
        drop(state);
        self.news.notify_all();
        messages
    }

    fn allocate(&self, group: ConnectionGroup) -> Result<Parts, Error> {
        let plan = self.wiring()?;
        let mut parts = Parts::new();
        for (transport, area) in areas(self.rank, &plan.facts, &plan.wiring, group)? {
            let Made { segment, offer, fd, bytes } = self.make_memory(transport, &area)?;
            let charge = self.ledger.charge(Use::Links, bytes);
            parts.insert(transport, Own { area, segment, offer, fd: fd.map(Arc::new), _charge: charge });
        }
        Ok(parts)
    }

    fn make_memory(&self, transport: usize, area: &Area) -> Result<Made, Error> {
        let need = |quiet| Need { bytes: area.bytes, zeroed: area.zeroed, quiet };
        let make = |quiet| TRANSPORTS[transport].make(&self.context, need(quiet));
        if !TRANSPORTS[transport].is_device_memory() {
            return make(true);
        }
        let until = Instant::now() + QUIET_LIMIT;
        while !self.cancel.fired() {
            // Held until the memory is there.
            let gate = gate::allocating(self.context.device());
            if gate.is_some() && self.is_quiet() {
                return make(true);
            }
            drop(gate);
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(QUIET_NAP);
        }
        make(false)
    }

    fn is_quiet(&self) -> bool {
        self.hooks.get().is_none_or(|hooks| (hooks.is_quiet)())
    }

    fn message(&self, peer: u32, message: &LinkMessage, fd: Option<Arc<OwnedFd>>) -> Option<Message> {
        let facts = &self.plan.get()?.facts;
        let (me, peer) = (&facts[self.rank as usize], &facts[peer as usize]);
        Some(Message::new(me.destination(peer), address(peer), encode(message), fd))
    }

    /// Notices without an offer.
    fn messages(&self, group: ConnectionGroup, notices: Notices) -> Vec<Message> {
        let epoch = self.state.lock().epoch;
        let message = |notice| LinkMessage::of(epoch, group, notice);
        notices.into_iter().filter_map(|(peer, notice)| self.message(peer, &message(notice)?, None)).collect()
    }

    // --- what peers want --------------------------------------------------------------------------------

    /// A message about a connection group, perhaps with an offer. In the helper thread.
    fn receive_about(
        &self,
        from: u32,
        (epoch, group): (u32, ConnectionGroup),
        notice: Notice,
        offered: Option<Offered>,
        out: &mut Outbox,
    ) {
        let Some(plan) = self.plan.get() else { return };
        let mut state = self.state.lock();
        if state.epoch != epoch {
            return;
        }
        let peers = plan.wiring.group_peers(self.rank, group);
        if !peers.contains(&from) {
            log::info!(target: "INIT", "rank {from} wrote to rank {} about {group:?}, which they do not share", self.rank);
            return;
        }
        let (todo, answers) = state.handshake.receive(from, group, notice, || peers);
        drop(state);
        self.news.notify_all();
        self.messages(group, answers).into_iter().for_each(|message| out.add(message));
        if todo == Todo::default() {
            return;
        }
        let take = offered.filter(|_| todo.take);
        let links = self.own.upgrade().filter(|_| self.may_wait(plan, group));
        match links {
            // Without a thread for it, all others wait; but the system has one nearly always.
            Some(links) => links.serve_aside(group, take, todo.make, out),
            None => self.serve(group, take, todo.make).into_iter().for_each(|message| out.add(message)),
        }
    }

    /// Whether the driver may hold up whoever makes or maps memory of a connection group now.
    fn may_wait(&self, plan: &Plan, group: ConnectionGroup) -> bool {
        let on_device =
            |areas: BTreeMap<usize, Area>| areas.keys().any(|transport| TRANSPORTS[*transport].is_device_memory());
        areas(self.rank, &plan.facts, &plan.wiring, group).is_ok_and(on_device) && !self.is_quiet()
    }

    /// Takes what a peer offers and makes what it wants, in a thread of its own.
    fn serve_aside(self: Arc<Links>, group: ConnectionGroup, take: Option<Offered>, make: bool, out: &mut Outbox) {
        // Where the thread cannot be started the offer comes back.
        let place = Arc::new(Mutex::new(Some(take)));
        let (links, theirs) = (self.clone(), place.clone());
        let work = move || {
            if let Some(take) = theirs.lock().take() {
                let messages = links.serve(group, take, make);
                links.send(messages);
            }
        };
        if spawn("oxccl-links", work).is_err()
            && let Some(take) = place.lock().take()
        {
            self.serve(group, take, make).into_iter().for_each(|message| out.add(message));
        }
    }

    /// Takes what a peer offers and makes what it wants; the messages that say so.
    fn serve(&self, group: ConnectionGroup, take: Option<Offered>, make: bool) -> Vec<Message> {
        let mut messages = Vec::new();
        if let Some(offered) = take {
            let from = offered.from;
            let taken = self.take(group, offered).map_err(|error| error.to_string());
            let answers = self.state.lock().handshake.taken(group, from, taken);
            messages = self.messages(group, answers);
            self.news.notify_all();
        }
        if make {
            messages.extend(self.make(group));
        }
        messages
    }

    /// Maps a peer's part.
    fn take(&self, group: ConnectionGroup, offered: Offered) -> Result<Box<dyn Segment>, Error> {
        let (plan, from) = (self.wiring()?, offered.from);
        let area = plan.area(from, self.rank, group)?;
        if offered.bytes != area.bytes as u64 {
            return Err(other_layout(self.rank, from, offered.bytes, area.bytes));
        }
        let given = offered.given.map_err(Error::Resource)?;
        let transport = plan.transport(self.rank, from)?;
        TRANSPORTS[transport].open(&self.context, &plan.facts[from as usize], given, area.bytes)
    }
}

impl Plan {
    /// The transport between two ranks, as a place in [`TRANSPORTS`].
    fn transport(&self, a: u32, b: u32) -> Result<usize, Error> {
        choose(&self.facts[a as usize], &self.facts[b as usize])
    }

    /// The area that one rank has for another one in a connection group.
    fn area(&self, owner: u32, user: u32, group: ConnectionGroup) -> Result<Area, Error> {
        let transport = self.transport(owner, user)?;
        Ok(areas(owner, &self.facts, &self.wiring, group)?.remove(&transport).unwrap_or_default())
    }
}

impl State {
    fn blame(&self, group: ConnectionGroup, rank: Option<u32>, text: String) -> Error {
        match (rank, self.failures.get(&group)) {
            (Some(rank), _) => {
                Error::Remote { rank: Some(rank), text: format!("rank {rank} could not be linked with: {text}") }
            }
            (None, Some(error)) => error.clone(),
            (None, None) => Error::Internal(text),
        }
    }
}

impl Source for Links {
    fn receive(&self, mut message: Message, out: &mut Outbox) {
        let (from, lost, fd) = (message.from.rank, message.lost, message.take_fd());
        let Ok(message) = postcard::from_bytes::<LinkMessage>(message.bytes()) else {
            log::info!(target: "INIT", "rank {from} sent a message to rank {} that cannot be read", self.rank);
            return;
        };
        match message {
            LinkMessage::Offer { epoch, group, offer, bytes, wanted } => {
                let given = if lost { Err(too_many_files()) } else { Ok(Given { offer, fd }) };
                let offered = Offered { from, given, bytes };
                self.receive_about(from, (epoch, group), Notice::Offer { wanted }, Some(offered), out);
            }
            LinkMessage::Taken { epoch, group } => self.receive_about(from, (epoch, group), Notice::Taken, None, out),
            LinkMessage::Ask { epoch, group } => self.receive_about(from, (epoch, group), Notice::Ask, None, out),
            LinkMessage::Failed { epoch, group, text } => {
                self.receive_about(from, (epoch, group), Notice::Failed(text), None, out);
            }
            LinkMessage::Memory { bytes } => {
                let none = || "a message with shared memory came without it".to_string();
                let memory = attached(fd, lost, bytes).and_then(|memory| memory.ok_or_else(none));
                self.state.lock().memory = Some(memory);
                self.news.notify_all();
            }
            LinkMessage::Leaving => {
                if let Some(hooks) = self.hooks.get() {
                    (hooks.has_left)(from);
                }
            }
        }
    }

    fn undeliverable(&self, to: Address, why: Undeliverable) {
        let why = match why {
            Undeliverable::Died => "its process has died".to_string(),
            Undeliverable::NoSource => "it has ended or aborted its communicator".to_string(),
            Undeliverable::Failed(error) => error.to_string(),
        };
        self.state.lock().handshake.lose(to.rank, &why);
        self.news.notify_all();
    }

    fn progress(&self, _now: Instant, out: &mut Outbox) -> Progress {
        let (asks, next) = self.state.lock().handshake.tick(self.now());
        for (group, notices) in asks {
            self.messages(group, notices).into_iter().for_each(|message| out.add(message));
        }
        Progress::at(next.map(|next| self.start + next))
    }
}

/// Whom messages to a rank are for.
fn address(peer: &PeerFacts) -> Address {
    Address { key: peer.links, rank: peer.rank }
}

/// The memory that came with a message. It is mapped at once, so that no descriptor stays open.
fn attached(fd: Option<OwnedFd>, lost: bool, bytes: u64) -> Result<Option<SharedMemory>, String> {
    match fd {
        None if lost => Err(too_many_files()),
        None => Ok(None),
        Some(fd) => {
            let file =
                usize::try_from(bytes).map_err(|error| error.to_string()).map(|bytes| SharedFile::adopt(fd, bytes));
            let memory = file?.and_then(|file| file.map());
            memory.map(Some).map_err(|error| error.to_string())
        }
    }
}

fn other_layout(me: u32, peer: u32, theirs: u64, expected: usize) -> Error {
    let text = format!(
        "rank {peer} laid out {theirs} bytes for its links where rank {me} expects {expected}; does it run another build of oxccl?"
    );
    Error::Remote { rank: Some(peer), text }
}

/// "rank 1", "ranks 1, 2".
fn ranks(ranks: &[u32]) -> String {
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}

fn encode(message: &LinkMessage) -> Vec<u8> {
    // Nothing of it can fail: it writes to memory.
    postcard::to_stdvec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_fits_its_message_however_long_it_is() {
        for (text, bytes) in [
            ("short".to_string(), 5),
            ("x".repeat(5000), TEXT_MAX),
            (format!("x{}", "\u{e9}".repeat(5000)), TEXT_MAX - 1),
        ] {
            let message = LinkMessage::of(u32::MAX, ConnectionGroup::pair(7, 9), Notice::Failed(text.clone()))
                .expect("a message");
            // An envelope adds two addresses, a name and some lengths.
            assert!(encode(&message).len() + 128 <= MESSAGE_MAX);
            let LinkMessage::Failed { text: told, .. } = message else { panic!("{message:?}") };
            assert!(text.starts_with(&told) && told.len() == bytes, "{}", told.len());
        }
    }
}
