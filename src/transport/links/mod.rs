//! The links of one rank of a communicator: made group by group, when somebody first needs them.
//!
//! A call asks for the connection groups that it needs and waits for the peers' parts; the event loops answer, whether
//! or not the users of those ranks have called anything. What a peer says is taken in as soon as it comes, and not by
//! the call that needs it: a rank that has done its share of a call may end, or die, before its peers make theirs.
//!
//! * `make` makes this rank's ends, and takes in what peers say of theirs;
//! * `message` is what ranks tell each other about links, and what comes of it;
//! * `presence` is whether ranks of other hosts are still there;
//! * `hand_over` passes other memory to a peer.

mod hand_over;
mod make;
mod message;
mod presence;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::blocks::BlockAllocator;
use super::handshake::{Handshake, Standing};
use super::net::{Engine, SocketInterface, SocketNetwork, SocketSettings};
use super::{ConnectionGroup, Connectivity, Endpoint, LinkAddresses, PeerFacts, TransportId};
use crate::bootstrap::{Cancel, HostInterface};
use crate::device::{Charge, Context, Ledger};
use crate::error::Error;
use crate::plan::wiring::{LinkNeed, Wiring};
use crate::plugin::network::Network;
use crate::proxy::{self, Address, ListenAddress, Location, Registration, Source};
use crate::sys::{self, SharedMemory};

/// How often a rank that waits for its peers looks at what else could end the wait.
const LOOK: Duration = Duration::from_millis(20);
/// After how long it says whom it waits for, and how often again.
const NOTICE: Duration = Duration::from_secs(10);

/// This rank's ends of a connection group, by transport.
type Ends = BTreeMap<TransportId, OwnEnd>;

/// An end, and what it holds.
struct OwnEnd {
    endpoint: Arc<dyn Endpoint>,
    _charge: Option<Charge>,
}

struct LinksState {
    handshake: Handshake,
    /// Grows with every [`Links::unmap`]; messages of another one are of no account.
    epoch: u32,
    ends: BTreeMap<ConnectionGroup, Ends>,
    /// Why this rank could not make its part.
    failures: BTreeMap<ConnectionGroup, Error>,
    /// Memory that came under no connection group.
    memory: Option<Result<SharedMemory, String>>,
    /// Ranks of other hosts that this one stays connected to.
    kept: BTreeSet<u32>,
    /// Those whose hosts did not answer messages for a while.
    silent: BTreeSet<u32>,
    /// Descriptors of memory that peers have made for a try, or why one did not come.
    tries: BTreeMap<(u32, TransportId), Result<OwnedFd, String>>,
}

/// What a communicator does with what a rank has told.
pub type Told = dyn Fn(u32, &[u8]) + Send + Sync;
/// The same with a descriptor.
pub type ToldOfMemory = dyn Fn(u32, &[u8], Option<OwnedFd>) + Send + Sync;

/// What a rank asks its communicator; see [`Links::set_hooks`].
pub struct Hooks {
    /// Whether nothing runs on the device, as far as this library has launched it.
    pub is_quiet: Box<dyn Fn() -> bool + Send + Sync>,
    /// Whether there are graphs whose launches this library does not see.
    pub has_graphs: Box<dyn Fn() -> bool + Send + Sync>,
    /// A rank tells something of registered memory, perhaps with a descriptor.
    pub registration: Box<ToldOfMemory>,
    /// No connection could be made with a rank, now or ever: nobody may wait for what would come by it.
    pub unconnected: Box<dyn Fn(u32) + Send + Sync>,
    /// A rank tells something that is not about links.
    pub told: Box<Told>,
    /// What a rank was to be told may not have arrived: it is gone, or cannot be reached.
    pub untold: Box<dyn Fn(u32) + Send + Sync>,
    /// No data has moved between hosts for a while. In the thread of a mover.
    pub paused: Box<dyn Fn() + Send + Sync>,
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
    connectivity: OnceLock<Arc<Connectivity>>,
    hooks: Arc<OnceLock<Hooks>>,
    /// Where memory for peers comes from.
    blocks: Arc<BlockAllocator>,
    engine: Arc<Engine>,
    start: Instant,
    own: Weak<Links>,
    /// Locked while somebody connects: the next one finds more connected.
    connecting: Mutex<()>,
    state: Mutex<LinksState>,
    news: Condvar,
}

impl Links {
    /// Links of a rank, none of which is connected. From here on messages for it arrive.
    ///
    /// # Errors
    /// As [`proxy::join`].
    pub fn open(context: &Arc<Context>, rank: u32, cancel: &Cancel, ledger: &Arc<Ledger>) -> Result<Arc<Links>, Error> {
        let (key, hooks) = (sys::random(), Arc::new(OnceLock::new()));
        let links = Arc::new_cyclic(|own| Links {
            context: context.clone(),
            rank,
            key,
            cancel: cancel.clone(),
            ledger: ledger.clone(),
            location: OnceLock::new(),
            registration: Mutex::new(None),
            connectivity: OnceLock::new(),
            blocks: Arc::default(),
            engine: Links::movers(rank, &hooks, own.clone()),
            hooks,
            start: Instant::now(),
            own: own.clone(),
            connecting: Mutex::new(()),
            state: Mutex::new(LinksState::new()),
            news: Condvar::new(),
        });
        let source: Weak<dyn Source> = links.own.clone();
        let registration = proxy::join(Address { key, rank }, source)?;
        let _ = links.location.set(registration.location());
        *links.registration.lock() = Some(registration);
        Ok(links)
    }

    /// What moves data over networks.
    fn movers(rank: u32, hooks: &Arc<OnceLock<Hooks>>, own: Weak<Links>) -> Arc<Engine> {
        let tell = move |peer, notice| own.upgrade().into_iter().for_each(|links| links.tell_of_mover(peer, &notice));
        Engine::new(rank, hooks, Box::new(tell))
    }

    /// Says by which network links go, before [`Links::listen`]; otherwise they go by sockets.
    pub fn use_network(&self, network: Arc<dyn Network>) {
        self.engine.set_network(network, 1);
    }

    /// Lets ranks of other hosts write to this one and connect to it, by addresses of this host: by the first for
    /// messages, by all for data.
    ///
    /// # Errors
    /// As [`Registration::listen`].
    pub fn listen(&self, addresses: &[(HostInterface, ListenAddress)]) -> Result<(), Error> {
        let Some((_, first)) = addresses.first() else { return Ok(()) };
        if let Some(registration) = &*self.registration.lock() {
            registration.listen(*first)?;
        }
        if self.engine.network().is_ok() {
            return Ok(());
        }
        let interfaces = addresses.iter().map(|(of, at)| SocketInterface::of_host(of, *at)).collect();
        let settings = SocketSettings::read(addresses).encrypted_by(first.encrypted_by);
        self.engine.set_network(SocketNetwork::open(self.rank, interfaces, settings)?, settings.threads as usize);
        Ok(())
    }

    /// Where peers write to.
    pub fn location(&self) -> Location {
        let now = self.registration.lock().as_ref().map(Registration::location);
        now.or(self.location.get().copied()).unwrap_or_default()
    }

    /// The number that peers' messages to this rank bear.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Says what there is to be linked. Peers may ask for it from the moment on at which all ranks have called this.
    pub fn plan(&self, facts: Vec<PeerFacts>, wiring: Wiring) {
        if let Some(own) = facts.get(self.rank as usize) {
            let here = facts.iter().filter(|peer| peer.host.same_host(&own.host)).count();
            self.engine.set_processors(own.cpus as usize, here);
        }
        let _ = self.connectivity.set(Arc::new(Connectivity::new(facts, wiring)));
    }

    /// Says what the communicator is to be asked, and told.
    pub fn set_hooks(&self, hooks: Hooks) {
        let _ = self.hooks.set(hooks);
    }

    /// Kernels that use links were launched: data may have to be moved from now on.
    pub fn launched(&self) {
        self.engine.activate();
    }

    /// No more messages: peers that write are told that there is nobody. What is connected stays so until the drop.
    /// Waits until what kernels have sent is on its way, unless this was cancelled.
    pub fn close(&self) {
        self.engine.flush(&self.cancel);
        let registration = self.registration.lock().take();
        drop(registration);
        self.news.notify_all();
    }

    fn connectivity(&self) -> Result<&Arc<Connectivity>, Error> {
        self.connectivity.get().ok_or_else(|| Error::Internal("links are used before they were planned".to_string()))
    }

    /// Time since the links were opened.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The ranks of other hosts with which data links are connected.
    pub fn moved_peers(&self) -> BTreeSet<u32> {
        self.engine.peers()
    }

    /// Why the rank `left` may have left: links that it, or this rank, could not make, or a connection that is over.
    pub fn failure(&self, left: u32) -> Option<Error> {
        let state = self.state.lock();
        if let Some((group, rank, text)) = state.handshake.failure(left) {
            return Some(state.blame(group, rank, text));
        }
        drop(state);
        let why = self.engine.trouble(left)?;
        let text = format!("rank {left} is gone: {why}");
        Some(Error::Remote { rank: Some(left), text })
    }

    /// Asks for connection groups without waiting for any: so that several communicators are connected at the same
    /// time.
    pub fn ask(&self, groups: &[ConnectionGroup]) -> Result<(), Error> {
        let connectivity = self.connectivity()?;
        for group in groups {
            let peers = || connectivity.wiring.group_peers(self.rank, *group);
            let (make, messages) = self.state.lock().handshake.want(*group, peers, self.now());
            let messages = if make { self.make(*group) } else { self.messages(*group, messages) };
            self.send(messages);
        }
        Ok(())
    }

    /// Connects connection groups, and gives the links of each, in the order of [`Wiring::links`], to `then`, which
    /// says whether all is well. Groups for which `connected` is true are left out. `look` says whether the wait is
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
        let _connecting = self.lock_connecting(look)?;
        for group in groups.iter().filter(|group| !connected(**group)) {
            self.wait_for(*group, look)?;
            self.state.lock().handshake.finish(*group);
            then(*group, &self.addresses(*group)?)?;
        }
        self.keep_in_touch();
        Ok(())
    }

    fn lock_connecting(&self, look: &dyn Fn() -> Result<(), Error>) -> Result<MutexGuard<'_, ()>, Error> {
        loop {
            if let Some(connecting) = self.connecting.try_lock_for(LOOK) {
                return Ok(connecting);
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

    /// Makes all parts of a connection group usable for kernels; its links in the order of [`Wiring::links`].
    fn addresses(&self, group: ConnectionGroup) -> Result<Vec<(LinkNeed, LinkAddresses)>, Error> {
        let mut connected = Vec::new();
        for endpoint in self.endpoints(group) {
            connected.extend(endpoint.connect()?);
        }
        let links = self.connectivity()?.wiring.group_links(self.rank, group).into_iter();
        let links = links.map(|need| {
            let addresses = connected.iter().find(|(other, _)| *other == need).copied();
            let (from, to) = (need.id.from, need.id.to);
            addresses
                .ok_or_else(|| Error::Internal(format!("the link from rank {from} to rank {to} was not connected")))
        });
        links.collect()
    }

    /// This rank's ends of a connection group.
    fn endpoints(&self, group: ConnectionGroup) -> Vec<Arc<dyn Endpoint>> {
        let state = self.state.lock();
        state.ends.get(&group).into_iter().flat_map(BTreeMap::values).map(|end| end.endpoint.clone()).collect()
    }

    /// Unmaps the peers' memory. No kernel may use it any more, and no peer may ask for anything, until all ranks have
    /// called [`Links::forget`].
    pub fn unmap(&self) {
        let _connecting = self.connecting.lock();
        let mut state = self.state.lock();
        // What was never connected, too; and messages that are still on their way are late.
        state.epoch += 1;
        state.failures.clear();
        state.handshake.restart();
        let groups: Vec<ConnectionGroup> = state.ends.keys().copied().collect();
        drop(state);
        groups.into_iter().flat_map(|group| self.endpoints(group)).for_each(|endpoint| endpoint.disconnect());
    }

    /// Frees this rank's memory, which nobody has mapped any more. All connection groups can be connected anew.
    pub fn forget(&self) {
        let ends = std::mem::take(&mut self.state.lock().ends);
        drop(ends);
    }
}

impl LinksState {
    fn new() -> LinksState {
        LinksState {
            handshake: Handshake::new(),
            epoch: 0,
            ends: BTreeMap::new(),
            failures: BTreeMap::new(),
            memory: None,
            kept: BTreeSet::new(),
            silent: BTreeSet::new(),
            tries: BTreeMap::new(),
        }
    }

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

/// "rank 1", "ranks 1, 2".
fn ranks(ranks: &[u32]) -> String {
    let list: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list.join(", "))
}
