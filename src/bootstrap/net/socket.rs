//! Sockets with the options that every connection of the bootstrap has.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{SockAddr, Socket, Type};

use super::secure_layer::{ConnectionSecurity, LayerEnd, SecureLayer};
use crate::bootstrap::config::NetConfig;
use crate::bootstrap::id::show;
use crate::bootstrap::protocol::wire::Preamble;
use crate::bootstrap::protocol::{Cause, ConnectError};
use crate::error::Error;
use crate::sys::{self, PortRange, tcp};

/// The system caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 16384;
/// Sizes of the system's socket buffers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffers {
    send: Option<usize>,
    receive: Option<usize>,
}

impl From<&NetConfig> for Buffers {
    fn from(config: &NetConfig) -> Buffers {
        Buffers { send: config.buffers.0, receive: config.buffers.1 }
    }
}

impl Buffers {
    fn apply(self, socket: &Socket) -> io::Result<()> {
        self.send.map_or(Ok(()), |bytes| socket.set_send_buffer_size(bytes))?;
        self.receive.map_or(Ok(()), |bytes| socket.set_recv_buffer_size(bytes))
    }
}

/// A listening socket on exactly this address; port 0 takes any, or one of `ports`.
///
/// # Errors
/// `System` that names the address; `Resource` if every port of the range is taken.
pub fn listen(address: SocketAddr, ports: Option<PortRange>, purpose: &str) -> Result<Socket, Error> {
    let socket = tcp::listen(address, ports, BACKLOG).map_err(|error| {
        let other = || Error::system("bind", format!("listening for {purpose} on {}", show(address)), &error);
        tcp::no_port_left(address, ports, &error).unwrap_or_else(other)
    })?;
    let at = local_address(&socket).map_or(String::new(), show);
    log::info!(target: "BOOTSTRAP", "Bootstrap: listening for {purpose} on {at}");
    Ok(socket)
}

/// The next connection: `None` when there is none now.
///
/// # Errors
/// What the system says, but for the connections that broke before they were accepted.
pub fn accept(listener: &Socket, buffers: Buffers) -> io::Result<Option<(Socket, SocketAddr)>> {
    while let Some((socket, peer)) = tcp::accept(listener)? {
        if let (Some(peer), Ok(())) = (peer.as_socket(), buffers.apply(&socket)) {
            return Ok(Some((socket, peer)));
        }
    }
    Ok(None)
}

/// Begins to connect; the socket becomes writable when the outcome is known.
///
/// # Errors
/// The connect failed at once.
pub fn connect(to: SocketAddr, buffers: Buffers) -> Result<Socket, ConnectError> {
    let begin = || -> io::Result<Socket> {
        let socket = tcp::socket(to, Type::STREAM.nonblocking())?;
        tcp::tune(&socket)?;
        buffers.apply(&socket)?;
        tcp::begin_connect(&socket, to)?;
        Ok(socket)
    };
    let exhausted = |error: &io::Error| error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
    let outcome = match begin() {
        Err(error) if exhausted(&error) && super::connections::raise_descriptor_limit() => begin(),
        outcome => outcome,
    };
    outcome.map_err(|error| connect_error(&error))
}

/// How long it may take until the ends have met, where somebody is there: many ranks may come at the same time, and one
/// event loop meets all of them.
const MEET_LIMIT: Duration = Duration::from_secs(2);

/// A connection whose calls wait, each for at most a limit.
pub struct SecureSocket {
    socket: Socket,
    layer: SecureLayer,
}

impl SecureSocket {
    /// Connects, and returns when the ends have met.
    ///
    /// # Errors
    /// What the system says; `InvalidData` where the other side is none of this run, or is set otherwise.
    pub fn connect(
        to: SocketAddr,
        limit: Duration,
        preamble: Preamble,
        security: &ConnectionSecurity,
    ) -> io::Result<SecureSocket> {
        let socket = tcp::socket(to, Type::STREAM)?;
        socket.connect_timeout(&SockAddr::from(to), limit)?;
        socket.set_read_timeout(Some(limit.max(MEET_LIMIT)))?;
        socket.set_write_timeout(Some(limit))?;
        let mut layer = SecureLayer::connecting();
        layer.begin(security, preamble.encode(), sys::random_bytes());
        send_all(&socket, &layer.output())?;
        while !layer.is_open() {
            let (mut bytes, mut plain) = ([0; 256], Vec::new());
            let count = read(&socket, &mut bytes)?;
            let outcome = layer.receive(&bytes[..count], (security, None), sys::random_bytes, &mut plain);
            send_all(&socket, &layer.output())?;
            let refused = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
            match outcome {
                Err(LayerEnd::Broken(why)) => return Err(refused(why)),
                Err(LayerEnd::Mismatch(why)) => return Err(refused(why.text().to_string())),
                Ok(()) if count == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(()) if layer.is_foreign() => return Err(refused("it is not oxccl".to_string())),
                Ok(()) => {}
            }
        }
        socket.set_read_timeout(Some(limit))?;
        Ok(SecureSocket { socket, layer })
    }

    /// Sends everything.
    ///
    /// # Errors
    /// What the system says, `WriteZero` where it takes nothing more.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut records = Vec::new();
        match self.layer.seal(bytes, &mut records) {
            true => send_all(&self.socket, &records),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Reads something that is of no account; 0 where the other side has closed the connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn read_some(&mut self) -> io::Result<usize> {
        read(&self.socket, &mut [0; 64])
    }
}

impl AsFd for SecureSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads from a connection whose calls wait; a signal does not end that.
fn read(mut socket: &Socket, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Sends everything over a connection whose calls wait.
fn send_all(socket: &Socket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match tcp::send(socket, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The outcome of a connect that has become writable: as [`tcp::connect_outcome`].
///
/// # Errors
/// Why it failed.
pub fn connect_outcome(socket: &Socket) -> Result<(), ConnectError> {
    tcp::connect_outcome(socket).map_err(|error| connect_error(&error))
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
