//! Moves data for the links of a communicator, in the process's event loop and in those of more movers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::link::MovedLink;
use crate::bootstrap::Cancel;
use crate::error::Error;
use crate::plan::schedule::LinkId;
use crate::plugin::network::{Network, Watched};
use crate::proxy::{self, Address, MOVERS_MAX, Message, Outbox, Progress, Registration, Source, Undeliverable};
use crate::sys::{self, Interest, Ready};
use crate::transport::Hooks;

/// Turns in which nothing was moved before a mover naps between them.
const HOT_TURNS: u32 = 32;
/// The same in time, where each rank of the host has so many processors that one can be spent on that. Kernels of a GPU
/// post every few microseconds, and a nap would hold up each post.
const HOT_TIME: Duration = Duration::from_millis(1);
const HOT_PROCESSORS: usize = 4;
/// The first nap and the longest one: a kernel's post wakes nobody, so that it may have to wait as long.
const NAP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// The same while no kernel runs, of a network that has no descriptors: peers' messages may need this side's turns.
const IDLE_NAP: Duration = Duration::from_millis(20);
/// Naps between looks at whether kernels still run.
const LOOKS: u32 = 16;
/// How often whoever waits for data to be on its way looks at what else could end the wait.
const LOOK: Duration = Duration::from_millis(2);
/// How long an abort waits for that.
const CANCELLED_LIMIT: Duration = Duration::from_millis(400);
/// How long the end of a communicator waits for peers to have room for what was sent to them.
const FLUSH_LIMIT: Duration = Duration::from_secs(60);
/// After how long it says so.
const FLUSH_NOTICE: Duration = Duration::from_secs(10);
/// After so long without data to move the communicator is told, once.
const PAUSE: Duration = Duration::from_millis(500);
/// The same after a link is over: by then kernels that wait for it have left.
const LEFT_PAUSE: Duration = Duration::from_millis(20);
/// Descriptors of a link have numbers of so many bits.
const WATCHED_BITS: u32 = 7;

/// What a mover has a rank told.
pub(in crate::transport) enum MoverNotice {
    /// This rank's end of a link, which that one sends on, has left for good.
    Left(LinkId),
    /// Nothing: only whether it is still there matters.
    Ping,
}

/// Tells a rank something.
pub(in crate::transport) type TellPeer = dyn Fn(u32, MoverNotice) + Send + Sync;

/// The movers of a communicator. While kernels may post something they look at its links' counters turn after turn, or,
/// after a while in which nothing was posted, at naps; while none runs, only what peers send gives them a turn.
pub(in crate::transport) struct Engine {
    rank: u32,
    /// The network, and how many movers serve it.
    network: OnceLock<(Arc<dyn Network>, usize)>,
    movers: Vec<Arc<LinkMover>>,
    shared: Arc<MoverShared>,
    forks: u32,
}

/// What a communicator's movers have in common.
struct MoverShared {
    rank: u32,
    tell: Box<TellPeer>,
    /// Somebody may wait for what was moved.
    moved: Condvar,
    waiting: Mutex<()>,
    /// Ranks elsewhere that a link is over with, and why.
    lost: Mutex<BTreeMap<u32, String>>,
    /// For how long movers look turn after turn, at least.
    hot: OnceLock<Duration>,
}

/// One mover: a source of an event loop, with some of the links.
struct LinkMover {
    number: usize,
    own: Weak<LinkMover>,
    hooks: Arc<OnceLock<Hooks>>,
    shared: Arc<MoverShared>,
    /// There are links.
    used: AtomicBool,
    /// Kernels may be running.
    active: AtomicBool,
    /// It naps between turns: a launch is to wake it.
    napping: AtomicBool,
    state: Mutex<MoverState>,
}

#[derive(Default)]
struct MoverState {
    registration: Option<Registration>,
    links: BTreeMap<u32, WatchedLink>,
    next: u32,
    /// Turns in a row in which nothing was moved, and when the first was.
    idle: u32,
    idle_since: Option<Instant>,
    /// When the communicator is to be told that nothing moves, and that a link is over; none where it was.
    pause_at: Option<Instant>,
    left_at: Option<Instant>,
    /// Ranks with which no connection could be made, which the communicator is to be told.
    unconnected: Vec<u32>,
}

/// A link, and what of its descriptors is waited for.
struct WatchedLink {
    link: MovedLink,
    interests: Vec<Option<(Interest, u32)>>,
}

/// A link's mover, and its number there.
pub(in crate::transport) type MovedLinkId = (usize, u32);

impl Engine {
    /// One without links, which costs nothing.
    pub fn new(rank: u32, hooks: &Arc<OnceLock<Hooks>>, tell: Box<TellPeer>) -> Arc<Engine> {
        let (moved, waiting, lost) = (Condvar::new(), Mutex::new(()), Mutex::default());
        let shared = Arc::new(MoverShared { rank, tell, moved, waiting, lost, hot: OnceLock::new() });
        let mover = |number| {
            Arc::new_cyclic(|own| LinkMover {
                number,
                own: Weak::clone(own),
                hooks: hooks.clone(),
                shared: shared.clone(),
                used: AtomicBool::new(false),
                active: AtomicBool::new(false),
                napping: AtomicBool::new(false),
                state: Mutex::default(),
            })
        };
        let movers = (0..MOVERS_MAX).map(mover).collect();
        Arc::new(Engine { rank, network: OnceLock::new(), movers, shared, forks: sys::forks() })
    }

    /// Says by which network links go, and how many movers serve it.
    pub fn set_network(&self, network: Arc<dyn Network>, movers: usize) {
        let _ = self.network.set((network, movers.clamp(1, MOVERS_MAX)));
    }

    /// The network that links go by.
    ///
    /// # Errors
    /// [`Error::Internal`] where there is none.
    pub fn network(&self) -> Result<&Arc<dyn Network>, Error> {
        let network = self.network.get().map(|(network, _)| network);
        network.ok_or_else(|| Error::Internal(format!("rank {} has no network", self.rank)))
    }

    /// Says with how many processors of the host how many ranks get along: with many, a mover looks longer before it
    /// naps.
    pub fn set_processors(&self, processors: usize, ranks: usize) {
        let hot = if processors >= ranks * HOT_PROCESSORS { HOT_TIME } else { Duration::ZERO };
        let _ = self.shared.hot.set(hot);
    }

    /// Moves data for a link from now on. `turn`: movers take turns by it.
    ///
    /// # Errors
    /// As [`proxy::join`].
    pub fn add(&self, turn: usize, link: MovedLink) -> Result<MovedLinkId, Error> {
        let mover = turn % self.serving().len();
        Ok((mover, self.movers[mover].add(link)?))
    }

    /// The movers that have links.
    fn serving(&self) -> &[Arc<LinkMover>] {
        &self.movers[..self.network.get().map_or(1, |(_, movers)| *movers)]
    }

    /// The ranks that links are with.
    pub fn peers(&self) -> BTreeSet<u32> {
        let peers = |mover: &Arc<LinkMover>| mover.state.lock().links.values().map(|one| one.link.peer).collect();
        self.serving().iter().flat_map::<Vec<u32>, _>(peers).collect()
    }

    /// Why a link with a rank elsewhere is over, if one is.
    pub fn trouble(&self, peer: u32) -> Option<String> {
        self.shared.lost.lock().get(&peer).cloned()
    }

    /// A rank's end of a link, which this one sends on, has left for good.
    pub fn peer_left(&self, id: LinkId) {
        for mover in self.serving() {
            let state = mover.state.lock();
            state.links.values().filter(|one| one.link.id == id).for_each(|one| one.link.peer_left());
        }
    }

    /// A rank does not answer any more: who waits for links that it has never connected leaves. It may have ended in
    /// good order, and nobody need wait for these links: that they are over is no failure yet.
    pub fn peer_gone(&self, peer: u32, why: &str) {
        for mover in self.serving() {
            let mut state = mover.state.lock();
            for one in state.links.values_mut().filter(|one| one.link.peer == peer && !one.link.is_broken()) {
                one.link.peer_gone(why);
                if one.link.is_broken() {
                    self.shared.lose(&one.link);
                }
            }
        }
    }

    /// How long nothing has come from a rank by any of its links; none where that is not known.
    pub fn silence(&self, peer: u32) -> Option<Duration> {
        let silence = |mover: &Arc<LinkMover>| {
            let state = mover.state.lock();
            state.links.values().filter(|one| one.link.peer == peer).filter_map(|one| one.link.silence()).min()
        };
        self.serving().iter().filter_map(silence).min()
    }

    /// All links with a rank are over; whether that is news.
    pub fn lose(&self, peer: u32, why: &str) -> bool {
        let mut news = false;
        self.shared.lost.lock().entry(peer).or_insert_with(|| why.to_string());
        let error = Error::Remote { rank: Some(peer), text: why.to_string() };
        for mover in self.serving() {
            let mut state = mover.state.lock();
            let MoverState { links, left_at, registration, .. } = &mut *state;
            for one in links.values_mut().filter(|one| one.link.peer == peer && !one.link.is_broken()) {
                one.link.end(&error);
                *left_at = Some(Instant::now() + LEFT_PAUSE);
                news = true;
            }
            registration.iter().for_each(Registration::wake);
        }
        news
    }

    /// Closes links.
    pub fn remove(&self, links: &[MovedLinkId]) {
        for mover in self.serving() {
            let numbers = links.iter().filter(|(of, _)| *of == mover.number).map(|(_, number)| *number);
            mover.remove(&numbers.collect::<Vec<u32>>());
        }
    }

    /// Kernels were launched that may post something. Wakes the event loops where they do not look anyway.
    pub fn activate(&self) {
        self.serving().iter().for_each(|mover| mover.activate());
    }

    /// Waits until everything that kernels have posted has arrived, unless this is cancelled, or a peer has no room for
    /// it for a long time. Kernels have ended. After a cancel, too, what the peers have room for goes: they may have
    /// called no more than this rank has done, and an abort must not spoil that.
    pub fn flush(&self, cancel: &Cancel) {
        let used = |mover: &Arc<LinkMover>| mover.used.load(Ordering::Acquire);
        if !self.serving().iter().any(used) || self.forks != sys::forks() {
            return;
        }
        let (start, mut told) = (Instant::now(), false);
        self.activate();
        loop {
            let cancelled = cancel.fired();
            let Some(peer) = self.serving().iter().find_map(|mover| mover.undelivered(cancelled)) else { return };
            if start.elapsed() > if cancelled { CANCELLED_LIMIT } else { FLUSH_LIMIT } {
                log::info!(target: "NET", "rank {} ends with data that rank {peer} has not taken", self.rank);
                return;
            }
            if start.elapsed() > FLUSH_NOTICE && !std::mem::replace(&mut told, true) {
                log::warn!("rank {} waits for rank {peer} to take what was sent to it, before it ends", self.rank);
            }
            // What was moved just before this may have to wait for a look.
            self.shared.moved.wait_for(&mut self.shared.waiting.lock(), LOOK);
        }
    }
}

impl LinkMover {
    fn add(&self, link: MovedLink) -> Result<u32, Error> {
        let mut state = self.state.lock();
        if state.registration.is_none() {
            let (source, address): (Weak<dyn Source>, _) = (self.own.clone(), self.address());
            state.registration = Some(proxy::join_mover(self.number, address, source)?);
        }
        let number = state.next;
        state.next += 1;
        state.links.insert(number, WatchedLink { link, interests: Vec::new() });
        self.used.store(true, Ordering::Release);
        drop(state);
        self.activate();
        Ok(number)
    }

    fn address(&self) -> Address {
        Address { key: sys::random(), rank: self.shared.rank }
    }

    fn remove(&self, numbers: &[u32]) {
        let mut state = self.state.lock();
        let gone: Vec<WatchedLink> = numbers.iter().filter_map(|number| state.links.remove(number)).collect();
        if let Some(registration) = &state.registration {
            gone.iter().for_each(|one| one.unwatch(registration));
        }
        let last = state.links.is_empty();
        self.used.store(!last, Ordering::Release);
        let registration = state.registration.take_if(|_| last);
        drop(state);
        drop((gone, registration));
    }

    /// Has it look turn after turn again.
    fn activate(&self) {
        if !self.used.load(Ordering::Acquire) {
            return;
        }
        let naps = self.napping.swap(false, Ordering::AcqRel);
        if !self.active.swap(true, Ordering::AcqRel) || naps {
            let mut state = self.state.lock();
            (state.idle, state.idle_since) = (0, None);
            state.pause_at = Some(Instant::now() + PAUSE);
            state.registration.iter().for_each(Registration::wake);
        }
    }

    /// A peer that has not been sent all that kernels have posted, or, if `sent_is_enough` is false, does not have it.
    fn undelivered(&self, sent_is_enough: bool) -> Option<u32> {
        let behind = |link: &MovedLink| link.is_behind() || !sent_is_enough && !link.is_delivered();
        self.state.lock().links.values().find(|one| behind(&one.link)).map(|one| one.link.peer)
    }

    /// Whether kernels may still post something: those that run, or graphs that may be launched at any time. Or
    /// connections are still to be made.
    fn may_post(&self) -> bool {
        let hooks = self.hooks.get();
        hooks.is_some_and(|hooks| !(hooks.is_quiet)() || (hooks.has_graphs)())
            || self.state.lock().links.values().any(|one| one.link.is_pending())
    }

    /// When to look again after a turn in which nothing was moved.
    fn rest(&self, idle: u32, look: Option<Instant>, now: Instant) -> Progress {
        let inactive = Progress::at(look);
        if !self.active.load(Ordering::Acquire) {
            return inactive;
        }
        if idle < HOT_TURNS {
            return Progress::at(Some(now));
        }
        self.napping.store(true, Ordering::Release);
        let naps = idle - HOT_TURNS;
        if naps % LOOKS == LOOKS - 1 {
            // In this order: whoever launches afterwards finds it inactive, and wakes it.
            self.active.store(false, Ordering::SeqCst);
            if !self.may_post() {
                return inactive;
            }
            self.active.store(true, Ordering::SeqCst);
        }
        Progress::at(Some(now + (NAP.0 * (1 << naps.min(6))).min(NAP.1)))
    }
}

impl WatchedLink {
    fn unwatch(&self, registration: &Registration) {
        let known = (0..self.interests.len()).filter(|number| self.interests[*number].is_some());
        known.filter_map(|number| self.link.watched(number)).for_each(|watched| registration.unwatch(watched.fd));
    }

    /// Waits for what the link wants to be waited for.
    fn watch(&mut self, token: u32, registration: &Registration) -> Result<(), Error> {
        let count = self.link.descriptors().min(1 << WATCHED_BITS);
        self.interests.resize(count.max(self.interests.len()), None);
        for (number, known) in self.interests.iter_mut().enumerate() {
            let token = token << WATCHED_BITS | number as u32;
            let Some(Watched { fd, interest, stamp }) = self.link.watched(number) else {
                *known = None;
                continue;
            };
            match known {
                Some(before) if *before == (interest, stamp) => continue,
                Some((_, before)) if *before == stamp => registration.rewatch(fd, token, interest)?,
                _ => registration.watch(fd, token, interest)?,
            }
            *known = Some((interest, stamp));
        }
        Ok(())
    }
}

impl MoverState {
    /// Moves what can be moved; whether something was.
    fn turn(&mut self, shared: &MoverShared) -> bool {
        let mut moved = false;
        let MoverState { registration, links, unconnected, left_at, .. } = self;
        let Some(registration) = registration else { return false };
        for (number, one) in links.iter_mut().filter(|(_, one)| !one.link.is_broken()) {
            let turn = one.link.turn();
            moved |= turn.moved;
            if turn.unconnected {
                unconnected.push(one.link.peer);
            }
            if turn.tell_left {
                (shared.tell)(one.link.peer, MoverNotice::Left(one.link.id));
            }
            if turn.ping {
                (shared.tell)(one.link.peer, MoverNotice::Ping);
            }
            // Closing a descriptor ends that it is watched.
            if one.link.is_broken() {
                shared.lose(&one.link);
                *left_at = Some(Instant::now() + LEFT_PAUSE);
            } else if let Err(error) = one.watch(*number, registration) {
                log::warn!("rank {} cannot watch a connection: {error}", shared.rank);
            }
        }
        moved
    }
}

impl MoverShared {
    fn lose(&self, link: &MovedLink) {
        let (rank, trouble) = (self.rank, link.trouble());
        let ended = "its process has died, or it has ended or aborted its communicator";
        let why = format!("its link with rank {rank} is over ({trouble}); {ended}");
        log::info!(target: "NET", "rank {}: {why}", link.peer);
        self.lost.lock().entry(link.peer).or_insert(why);
    }
}

impl Source for LinkMover {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn ready(&self, token: u32, ready: Ready, _: &mut Outbox) {
        let mut state = self.state.lock();
        let Some(one) = state.links.get_mut(&(token >> WATCHED_BITS)) else { return };
        let was_broken = one.link.is_broken();
        one.link.ready((token & ((1 << WATCHED_BITS) - 1)) as usize, ready);
        if one.link.is_broken() && !was_broken {
            self.shared.lose(&one.link);
            state.left_at = Some(Instant::now() + LEFT_PAUSE);
        }
    }

    fn progress(&self, now: Instant, _: &mut Outbox) -> Progress {
        let mut state = self.state.lock();
        if state.turn(&self.shared) {
            (state.idle, state.idle_since) = (0, None);
            state.pause_at = Some(now + PAUSE);
            let unconnected = std::mem::take(&mut state.unconnected);
            drop(state);
            if let Some(hooks) = self.hooks.get() {
                unconnected.into_iter().for_each(|peer| (hooks.unconnected)(peer));
            }
            self.shared.moved.notify_all();
            return Progress { moved: true, next: None };
        }
        let hot = self.shared.hot.get().copied().unwrap_or_default();
        if now >= *state.idle_since.get_or_insert(now) + hot {
            state.idle = state.idle.saturating_add(1);
        }
        let (idle, polled) = (state.idle, state.links.values().any(|one| one.link.is_polled()));
        let looks = state.links.values().filter_map(|one| one.link.next_look());
        let look = looks.chain(polled.then(|| now + IDLE_NAP)).min();
        let MoverState { pause_at, left_at, .. } = &mut *state;
        let paused = [&mut *pause_at, &mut *left_at].map(|at| at.take_if(|at| *at <= now).is_some()).contains(&true);
        let look = look.into_iter().chain(*pause_at).chain(*left_at).min();
        drop(state);
        if paused {
            self.hooks.get().into_iter().for_each(|hooks| (hooks.paused)());
        }
        self.rest(idle, look, now)
    }
}
