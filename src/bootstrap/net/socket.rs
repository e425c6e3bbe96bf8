//! Sockets with the options that every connection of the bootstrap has.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use crate::bootstrap::config::NetConfig;
use crate::bootstrap::id::show;
use crate::bootstrap::protocol::{Cause, ConnectError};
use crate::error::Error;
use crate::sys::{self, off_standard};

/// The system caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 16384;
/// A host that vanished is noticed after this and three probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// Sizes of the system's socket buffers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    send: Option<usize>,
    receive: Option<usize>,
}

impl From<&NetConfig> for Buffers {
    fn from(config: &NetConfig) -> Buffers {
        Buffers { send: config.send_buffer, receive: config.receive_buffer }
    }
}

/// A listening socket on exactly this address; port 0 takes any, or one of `ports`.
///
/// # Errors
/// `System` that names the address; `Resource` if every port of the range is taken.
pub fn listen(address: SocketAddr, ports: Option<(u16, u16)>, purpose: &str) -> Result<Socket, Error> {
    let candidates: Vec<u16> = match ports {
        Some((first, last)) if address.port() == 0 => shuffled(first, last),
        _ => vec![address.port()],
    };
    let count = candidates.len();
    for port in candidates {
        let wanted = SocketAddr::new(address.ip(), port);
        let wanted = if let (SocketAddr::V6(mut v6), SocketAddr::V6(given)) = (wanted, address) {
            v6.set_scope_id(given.scope_id());
            SocketAddr::V6(v6)
        } else {
            wanted
        };
        match listen_at(wanted) {
            Ok(socket) => {
                let local = socket.local_addr().ok().and_then(|local| local.as_socket());
                let at = local.map_or(String::new(), show);
                log::info!(target: "BOOTSTRAP", "Bootstrap: listening for {purpose} on {at}");
                return Ok(socket);
            }
            Err(error) if count > 1 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(Error::system("bind", format!("listening for {purpose} on {}", show(wanted)), &error));
            }
        }
    }
    Err(Error::Resource(format!(
        "all {count} ports of the configured range are in use on {}: widen the range",
        address.ip()
    )))
}

/// The ports of a range from a random start, so that many ranks of a host do not all try the same.
fn shuffled(first: u16, last: u16) -> Vec<u16> {
    let (first, last) = (first.min(last), first.max(last));
    let count = u32::from(last - first) + 1;
    let start = sys::random::<u32>() % count;
    (0..count).map(|i| first + ((start + i) % count) as u16).collect()
}

/// A new socket that can connect to an address, or listen at it.
fn new(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), kind.cloexec(), Some(Protocol::TCP)).and_then(off_standard)
}

fn listen_at(address: SocketAddr) -> io::Result<Socket> {
    let socket = new(address, Type::STREAM.nonblocking())?;
    // Connections of an earlier run in TIME_WAIT do not hold the port; another listener does.
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// The next connection: `None` when there is none now.
///
/// # Errors
/// What the system says, but for the connections that broke before they were accepted.
pub fn accept(listener: &Socket, buffers: Buffers) -> io::Result<Option<(Socket, SocketAddr)>> {
    loop {
        let (socket, peer) = match listener.accept().and_then(|(socket, peer)| Ok((off_standard(socket)?, peer))) {
            Ok(pair) => pair,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if passes(&error) => continue,
            Err(error) => return Err(error),
        };
        let Some(peer) = peer.as_socket() else {
            continue;
        };
        if socket.set_nonblocking(true).and_then(|()| tune(&socket, buffers)).is_ok() {
            return Ok(Some((socket, peer)));
        }
    }
}

/// Errors that concern one connection only: it was reset while it waited, or the network had a hiccup (accept(2)).
fn passes(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let transient = [
        Errno::INTR,
        Errno::CONNABORTED,
        Errno::PROTO,
        Errno::NETDOWN,
        Errno::NOPROTOOPT,
        Errno::HOSTDOWN,
        Errno::HOSTUNREACH,
        Errno::OPNOTSUPP,
        Errno::NETUNREACH,
    ];
    transient.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn tune(socket: &Socket, buffers: Buffers) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_PROBE).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    if let Some(bytes) = buffers.send {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = buffers.receive {
        socket.set_recv_buffer_size(bytes)?;
    }
    Ok(())
}

/// Begins to connect; the socket becomes writable when the outcome is known.
///
/// # Errors
/// The connect failed at once.
pub fn connect(to: SocketAddr, buffers: Buffers) -> Result<Socket, ConnectError> {
    let begin = || -> io::Result<Socket> {
        let socket = new(to, Type::STREAM.nonblocking())?;
        tune(&socket, buffers)?;
        match socket.connect(&SockAddr::from(to)) {
            Ok(()) => Ok(socket),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(socket),
            Err(error) => Err(error),
        }
    };
    let exhausted = |error: &io::Error| error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
    let outcome = match begin() {
        Err(error) if exhausted(&error) && super::connections::raise_descriptor_limit() => begin(),
        outcome => outcome,
    };
    outcome.map_err(|error| connect_error(&error))
}

/// A connection whose calls wait, each for at most `limit`.
///
/// # Errors
/// What the system says.
pub fn connect_and_wait(to: SocketAddr, limit: Duration) -> io::Result<Socket> {
    let socket = new(to, Type::STREAM)?;
    socket.connect_timeout(&SockAddr::from(to), limit)?;
    socket.set_read_timeout(Some(limit))?;
    socket.set_write_timeout(Some(limit))?;
    Ok(socket)
}

/// Hands bytes to the system; how many it has taken. All that is sent goes through here: a peer that has gone is an
/// error, and no SIGPIPE for the program.
///
/// # Errors
/// What the system says.
pub fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    socket.send_with_flags(bytes, libc::MSG_NOSIGNAL)
}

/// Sends everything over a connection whose calls wait.
///
/// # Errors
/// What the system says, `WriteZero` where it takes nothing more.
pub fn send_all(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(socket, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The outcome of a connect that has become writable. A connection of a socket with itself, which happens
/// when the wanted port is the one that the system chose here, counts as refused.
///
/// # Errors
/// Why it failed.
pub fn connect_outcome(socket: &Socket) -> Result<(), ConnectError> {
    match socket.take_error() {
        Ok(None) => {}
        Ok(Some(error)) | Err(error) => return Err(connect_error(&error)),
    }
    let ends = (socket.local_addr().map(|a| a.as_socket()), socket.peer_addr().map(|a| a.as_socket()));
    match ends {
        (Ok(local), Ok(peer)) if local == peer => {
            Err(ConnectError { cause: Cause::Refused, text: "Connection refused".to_string() })
        }
        (_, Err(error)) => Err(connect_error(&error)),
        _ => Ok(()),
    }
}

fn connect_error(error: &io::Error) -> ConnectError {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut};
    let cause = match error.kind() {
        ConnectionRefused | ConnectionReset => Cause::Refused,
        TimedOut | HostUnreachable | NetworkUnreachable | io::ErrorKind::AddrNotAvailable => Cause::Unreachable,
        _ => Cause::Other,
    };
    ConnectError { cause, text: text(error) }
}

/// The system's text without Rust's "(os error N)".
pub fn text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_string()
}

/// The local end of a socket.
///
/// # Errors
/// `System`; cannot happen for a socket that is bound.
pub fn local_address(socket: &Socket) -> Result<SocketAddr, Error> {
    let address = socket.local_addr().map_err(|error| Error::system("getsockname", "listening socket", &error))?;
    address.as_socket().ok_or_else(|| Error::Internal(format!("descriptor {:?} is no IP socket", socket.as_fd())))
}
