//! The root's thread: one for each id, named `oxccl-root`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use socket2::Socket;

use super::cancel::Cancel;
use super::driver::{Driver, Stop};
use super::socket::{self, Buffers};
use crate::bootstrap::config::{CommId, NetConfig};
use crate::bootstrap::id::{fnv1a, show};
use crate::bootstrap::net::interface;
use crate::bootstrap::protocol::failure::Failure;
use crate::bootstrap::protocol::root::{Root, RootConfig};
use crate::error::Error;
use crate::sys;

/// How long a fixed address may be in use by the root of an earlier run before that is an error.
const FIXED_BIND: Duration = Duration::from_secs(5);
const FIXED_BIND_PAUSE: Duration = Duration::from_millis(50);

/// How long a root that is stopped stays to tell ranks that are on their way.
const STOPPED_STAY: Duration = Duration::from_secs(1);

/// Most roots of a process that have failed and stay for ranks that come late, each with a thread and three
/// descriptors.
const LATE_ROOTS: usize = 8;
/// Those roots, the oldest first. They outlive the calls and communicators that they were made for, and have no other
/// owner.
static LATE: Mutex<VecDeque<Cancel>> = Mutex::new(VecDeque::new());

/// A root has failed: it may stay a while, and where there are too many of its kind, the oldest goes.
fn stay(cancel: &Cancel) {
    let mut late = LATE.lock();
    late.push_back(cancel.clone());
    let over = late.len().saturating_sub(LATE_ROOTS);
    late.drain(..over).for_each(|oldest| oldest.fire());
}

/// Starts the thread of a root that listens on `listener`; `stop` ends it before its time.
///
/// # Errors
/// `System` if the thread or its descriptors cannot be made.
pub fn start(
    config: &NetConfig,
    listener: Socket,
    (magic, token): (u64, u64),
    fixed: bool,
    stop: Option<Cancel>,
) -> Result<(), Error> {
    let settings = RootConfig {
        magic,
        token,
        process: crate::bootstrap::process(),
        fixed,
        timeout: config.timeout,
        progress: config.progress,
        idle: config.root_idle,
        linger: config.failed_linger,
    };
    let cancel = Cancel::new()?;
    let mut driver = Driver::new(Some(listener), Some(cancel.clone()), Buffers::from(config))?;
    driver.watch(stop)?;
    let run = move || {
        let mut root = Root::new(settings, driver.now());
        let mut stays = false;
        let outcome = driver.run(&mut root, None, |root| {
            if root.has_failed() && !std::mem::replace(&mut stays, true) {
                stay(&cancel);
            }
            root.finished()
        });
        let text = match outcome {
            Err(Stop::System(error)) => Some(format!("the root has failed: {error}")),
            Err(Stop::Cancelled) if !driver.cancelled() => {
                Some("the rank that made the id of this communicator has given up".to_string())
            }
            _ => None,
        };
        if let Some(text) = text {
            let _ = driver.watch(None);
            root.fail(driver.now(), Failure::remote(None, text));
            let limit = driver.now() + STOPPED_STAY;
            let _ = driver.run(&mut root, Some(limit), |root| root.finished());
        }
        LATE.lock().retain(|late| !late.is(&cancel));
        driver.goodbye(&mut root);
    };
    let spawned = sys::spawn("oxccl-root", run);
    spawned.map(drop).map_err(|error| Error::system("pthread_create", "thread of the bootstrap's root", &error))
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
