//! The root of a rendezvous as a source of the event loop: one for each id, which keeps itself until its end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use socket2::Socket;

use super::cancel::{Cancel, CancelListener};
use super::connections::{Connections, WireSettings};
use super::driver::GOODBYE;
use super::secure_layer::ConnectionSecurity;
use super::socket::{self, Buffers};
use crate::bootstrap::config::{CommId, NetConfig};
use crate::bootstrap::id::{fnv1a, show};
use crate::bootstrap::net::interface;
use crate::bootstrap::protocol::MAX_PENDING;
use crate::bootstrap::protocol::failure::Failure;
use crate::bootstrap::protocol::root::{Root, RootConfig};
use crate::error::Error;
use crate::proxy::{self, Address, Message, Outbox, Progress, Source, Undeliverable};
use crate::secure::Secret;
use crate::sys::{self, Ready};

/// How long a fixed address may be in use by the root of an earlier run before that is an error.
const FIXED_BIND: Duration = Duration::from_secs(5);
const FIXED_BIND_PAUSE: Duration = Duration::from_millis(50);

/// How long a root that is stopped stays to tell ranks that are on their way.
const STOPPED_STAY: Duration = Duration::from_secs(1);

/// Most roots of a process that have failed and stay for ranks that come late, each with a listener.
const LATE_ROOTS: usize = 8;
/// Those roots, the oldest first. They outlive the calls and communicators that they were made for, and have no other
/// owner.
static LATE: Mutex<VecDeque<Cancel>> = Mutex::new(VecDeque::new());

/// A root has failed: it may stay a while, and where there are too many of its kind, the oldest goes.
fn stay(cancel: Cancel) {
    let mut late = LATE.lock();
    late.push_back(cancel);
    let over = late.len().saturating_sub(LATE_ROOTS);
    let oldest: Vec<Cancel> = late.drain(..over).collect();
    drop(late);
    oldest.iter().for_each(Cancel::fire);
}

/// A root and its connections.
struct ServedRoot(Mutex<RootState>);

struct RootState {
    connections: Connections<Root>,
    stage: RootStage,
    /// Fired where there are too many roots that stay.
    evicted: Cancel,
    /// Fired where nobody needs it.
    stop: Option<Cancel>,
    /// It has failed, and is one of those that stay.
    stays: bool,
    /// Itself, until its end.
    own: Option<Arc<ServedRoot>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RootStage {
    Serving,
    /// It was stopped, and ends at this time at the latest.
    Stopped(Duration),
    /// All is said; what the system has not taken by then is lost.
    Flushing(Duration),
    Over,
}

/// What the ranks of a root know of it.
pub struct RootIdentity {
    /// What connections to it begin with.
    pub magic: u64,
    /// What those among ranks begin with.
    pub token: u64,
    /// What shows that somebody has the id.
    pub secret: Secret,
}

/// Starts a root that listens on `listener`; `stop` ends it before its time.
///
/// # Errors
/// `System` if the event loop has no descriptors or thread.
pub fn start(
    config: &NetConfig,
    listener: Socket,
    identity: RootIdentity,
    fixed: bool,
    stop: Option<Cancel>,
) -> Result<(), Error> {
    let RootIdentity { magic, token, secret } = identity;
    let security = ConnectionSecurity::of_root(secret, config.user_key.clone());
    let wire = WireSettings { buffers: Buffers::from(config), security };
    let settings = RootConfig {
        magic,
        token,
        process: crate::bootstrap::process(),
        fixed,
        timeout: config.timeout,
        progress: config.progress,
        idle: config.root_idle,
        linger: config.failed_linger,
        pending: pending_most(),
    };
    let connections = Connections::new(|now| Root::new(settings, now), Some(listener), wire);
    let (stage, evicted) = (RootStage::Serving, Cancel::new());
    let state = RootState { connections, stage, evicted, stop, stays: false, own: None };
    let served = Arc::new(ServedRoot(Mutex::new(state)));
    let source: Arc<dyn Source> = served.clone();
    let mut state = served.0.lock();
    // Its first turn waits for the lock.
    let registration = proxy::join(Address { key: sys::random(), rank: 0 }, Arc::downgrade(&source))?;
    state.connections.register(registration)?;
    state.connections.attended = true;
    for cancel in [Some(&state.evicted), state.stop.as_ref()].into_iter().flatten() {
        let listener: Arc<dyn CancelListener> = served.clone();
        let listener: Weak<dyn CancelListener> = Arc::downgrade(&listener);
        cancel.listen(listener);
    }
    state.own = Some(served.clone());
    // It was registered with a turn to come, in which it says when it wants the next one.
    Ok(())
}

/// How many connections may be open that have not said who they are: half of the descriptors that the process may have,
/// so that strangers leave some for ranks.
fn pending_most() -> usize {
    use rustix::process::{Resource, getrlimit};
    let most = getrlimit(Resource::Nofile).maximum.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    (most / 2).clamp(MAX_PENDING, 1 << 17)
}

impl ServedRoot {
    /// Does something in the event loop's thread, where the root alone lives. A panic is its end.
    fn turn(&self, act: impl FnOnce(&mut RootState)) -> Option<Instant> {
        let mut state = self.0.lock();
        let done = catch_unwind(AssertUnwindSafe(|| {
            act(&mut state);
            state.settle();
        }));
        if done.is_err() {
            state.connections.close();
            state.stage = RootStage::Over;
        }
        let stays = state.connections.machine.has_failed() && state.stage == RootStage::Serving;
        let stays = stays && !std::mem::replace(&mut state.stays, true);
        let (evicted, next) = (state.evicted.clone(), state.next());
        let own = if state.stage == RootStage::Over { state.own.take() } else { None };
        drop(state);
        if own.is_some() {
            LATE.lock().retain(|late| !late.is(&evicted));
        } else if stays {
            stay(evicted);
        }
        // Who calls has another one.
        drop(own);
        done.unwrap_or_else(|panic| resume_unwind(panic));
        next
    }
}

impl Source for ServedRoot {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    fn ready(&self, token: u32, ready: Ready, _: &mut Outbox) {
        self.turn(|state| state.connections.ready(token, ready));
    }

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::at(self.turn(|state| state.connections.tick()))
    }
}

impl CancelListener for ServedRoot {
    fn cancelled(&self) {
        self.0.lock().connections.registration().into_iter().for_each(proxy::Registration::wake);
    }
}

impl RootState {
    /// Carries out what the root wants, and goes on to the next stage where it is time.
    fn settle(&mut self) {
        self.connections.carry_out();
        while let Some(next) = self.next_stage() {
            match next {
                RootStage::Flushing(_) => self.connections.stop_listening(),
                RootStage::Over => self.connections.close(),
                RootStage::Serving | RootStage::Stopped(_) => {}
            }
            self.stage = next;
            self.connections.carry_out();
        }
    }

    fn next_stage(&mut self) -> Option<RootStage> {
        let now = self.connections.now();
        let through = self.evicted.fired() || self.connections.machine.finished();
        match self.stage {
            RootStage::Serving | RootStage::Stopped(_) if through => Some(RootStage::Flushing(now + GOODBYE)),
            RootStage::Serving => {
                let text = self.reason_to_stop()?;
                self.connections.machine.fail(now, Failure::remote(None, text));
                Some(RootStage::Stopped(now + STOPPED_STAY))
            }
            RootStage::Stopped(until) => (now >= until).then_some(RootStage::Flushing(now + GOODBYE)),
            RootStage::Flushing(until) => (now >= until || self.connections.flushed()).then_some(RootStage::Over),
            RootStage::Over => None,
        }
    }

    fn reason_to_stop(&mut self) -> Option<String> {
        if let Some(error) = self.connections.take_error() {
            return Some(format!("the root has failed: {error}"));
        }
        let stopped = self.stop.as_ref().is_some_and(Cancel::fired);
        stopped.then(|| "the rank that made the id of this communicator has given up".to_string())
    }

    /// When it wants a turn.
    fn next(&self) -> Option<Instant> {
        let stage = match self.stage {
            RootStage::Stopped(until) | RootStage::Flushing(until) => Some(until),
            RootStage::Serving => None,
            RootStage::Over => return None,
        };
        let next = stage.into_iter().chain(self.connections.deadline()).min();
        next.and_then(|next| self.connections.instant(next))
    }
}

/// A listener on the address of `NCCL_COMM_ID`. The root of an earlier run may still be closing there.
///
/// # Errors
/// `InvalidUsage` if the address is not one of this host, `Resource` if it stays in use, `Aborted`, `System`.
pub fn listen_fixed(address: SocketAddr, cancel: Option<&Cancel>) -> Result<Socket, Error> {
    let first = Instant::now();
    loop {
        let error = match socket::listen(address, None, "the ranks (root, NCCL_COMM_ID)") {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let Error::System { errno, .. } = &error else {
            return Err(error);
        };
        if *errno == rustix::io::Errno::ADDRNOTAVAIL.raw_os_error() {
            return Err(Error::InvalidUsage(format!(
                "NCCL_COMM_ID names {}, which is no address of this host: rank 0 must run on the host that it names",
                show(address)
            )));
        }
        if *errno != rustix::io::Errno::ADDRINUSE.raw_os_error() {
            return Err(error);
        }
        if first.elapsed() >= FIXED_BIND {
            return Err(Error::Resource(format!(
                "NCCL_COMM_ID names {}, and another process listens there: an earlier run that has not ended?",
                show(address)
            )));
        }
        if cancel.is_some_and(Cancel::fired) {
            return Err(Error::Aborted);
        }
        std::thread::sleep(FIXED_BIND_PAUSE);
    }
}

/// The address of `NCCL_COMM_ID`; a name is an interface of this host, or is looked up.
///
/// # Errors
/// `InvalidArgument` if the name is unknown.
pub fn resolve(config: &NetConfig, comm_id: &CommId) -> Result<SocketAddr, Error> {
    let (name, port) = match comm_id {
        CommId::Address(address) => return Ok(*address),
        CommId::Name(name, port) => (name, *port),
    };
    let fits = |address: &SocketAddr| config.family.is_none_or(|family| family.contains(address.ip()));
    let own = interface::list()?.into_iter().find(|one| one.name == *name && fits(&one.at(port)));
    if let Some(own) = own {
        return Ok(own.at(port));
    }
    let found = std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), port));
    let mut addresses = found
        .map_err(|error| Error::InvalidArgument(format!("NCCL_COMM_ID: cannot find the host '{name}': {error}")))?;
    addresses.find(fits).ok_or_else(|| {
        Error::InvalidArgument(format!("NCCL_COMM_ID: the host '{name}' has no address of the wanted family"))
    })
}

/// The magic of a fixed rendezvous, which every process must come to by itself.
pub fn fixed_magic(config: &NetConfig, address: SocketAddr) -> u64 {
    let seed = config.magic.unwrap_or(0x006f_7863_636c_0001);
    fnv1a(format!("{seed:016x} {address}").as_bytes())
}

/// The secret of a fixed rendezvous: worth no more than what it is made of. Who knows the address knows it, unless
/// `NCCL_SOCKET_MAGIC` is a number that nobody else knows.
pub fn fixed_secret(config: &NetConfig, address: SocketAddr) -> Secret {
    let magic = config.magic.map_or(String::new(), |magic| format!("{magic:016x}"));
    Secret::of(format!("{magic} {address}").as_bytes(), b"NCCL_COMM_ID")
}

#[cfg(test)]
mod tests;
