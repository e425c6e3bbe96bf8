//! TCP sockets whose calls never wait, and what all TCP sockets of the library have in common.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

use super::{ChildCloses, off_standard, random};
use crate::error::Error;

/// The system caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// A host that has vanished is noticed after this and five probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBE: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 5;

/// How often the other side's system is asked before it counts as gone.
const HEARTBEATS: u64 = 3;

/// Nobody answers: something was sent so often again, and for so long nothing was confirmed.
const SENT_AGAIN: u8 = 3;
const UNANSWERED: Duration = Duration::from_millis(1500);

/// First and last port that a listener may take.
pub type PortRange = (u16, u16);

/// A socket that waits for connections. A child has none.
pub struct TcpListener(TcpSocket);

/// A connection, or one that is being made. A child has none.
pub struct TcpStream(TcpSocket);

struct TcpSocket {
    // Before what it closes.
    _child_closes: ChildCloses,
    socket: Socket,
}

impl TcpListener {
    /// Listens at an address of this host, as [`listen`].
    ///
    /// # Errors
    /// [`Error::System`] that names the address, [`Error::Resource`] where all ports of the range are taken.
    pub fn open(at: SocketAddr, ports: Option<PortRange>) -> Result<TcpListener, Error> {
        let socket = listen(at, ports, BACKLOG).map_err(|error| {
            let other = || Error::system("bind", format!("listening for messages on {at}"), &error);
            no_port_left(at, ports, &error).unwrap_or_else(other)
        })?;
        Ok(TcpListener(TcpSocket::new(socket)))
    }

    /// The address with its port.
    ///
    /// # Errors
    /// [`Error::System`]; cannot happen for a socket that is bound.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        let local = self.0.socket.local_addr();
        let local = local.map_err(|error| Error::system("getsockname", "listening socket", &error))?;
        local.as_socket().ok_or_else(|| Error::Internal("a TCP socket has no IP address".to_string()))
    }

    /// The next connection; none where there is none now.
    ///
    /// # Errors
    /// What the system says, but for what concerns one connection only.
    pub fn accept(&self) -> io::Result<Option<TcpStream>> {
        Ok(accept(&self.0.socket)?.map(|(socket, _)| TcpStream(TcpSocket::new(socket))))
    }
}

impl TcpStream {
    /// Begins to connect; the socket can be written when the outcome is known.
    ///
    /// # Errors
    /// The connect failed at once.
    pub fn connect(to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect_from(None, to)
    }

    /// The same, from an address of this host where one is given, so that the connection goes by its interface.
    ///
    /// # Errors
    /// As [`TcpStream::connect`], and where this host has no such address.
    pub fn connect_from(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = socket(to, Type::STREAM.nonblocking())?;
        tune(&socket)?;
        from.map_or(Ok(()), |from| bind_to(&socket, from))?;
        begin_connect(&socket, to)?;
        Ok(TcpStream(TcpSocket::new(socket)))
    }

    /// As [`connect_outcome`].
    ///
    /// # Errors
    /// Why it failed.
    pub fn outcome(&self) -> io::Result<()> {
        connect_outcome(&self.0.socket)
    }

    /// Sets the sizes of the system's buffers, where something is asked for.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_buffers(&self, send: Option<usize>, receive: Option<usize>) -> io::Result<()> {
        send.map_or(Ok(()), |bytes| self.0.socket.set_send_buffer_size(bytes))?;
        receive.map_or(Ok(()), |bytes| self.0.socket.set_recv_buffer_size(bytes))
    }

    /// As [`TcpStream::send`], from several places.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send_parts(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            match self.0.socket.send_vectored_with_flags(parts, libc::MSG_NOSIGNAL) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                other => return other,
            }
        }
    }

    /// As [`TcpStream::receive`], to several places.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn receive_parts(&self, parts: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        loop {
            match (&self.0.socket).read_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                other => return other.map(Some),
            }
        }
    }

    /// Bytes that the other side's system does not have yet; 0 where that cannot be known. Who closes before may lose
    /// them: what the other side sends meanwhile makes this side's system reset the connection.
    pub fn unacknowledged(&self) -> usize {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the call writes one integer, which lives.
        let done = unsafe { libc::ioctl(self.0.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        if done == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
    }

    /// Has the other side's system asked now and then whether it is there, and ends the connection where it does not
    /// answer for `limit`, nor confirm what was sent. A process that is stopped, or hangs, is another thing: its system
    /// answers. Not for connections whose other side may have no room for a long time: the system would end them, too.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_heartbeat(&self, limit: Duration) -> io::Result<()> {
        // The system counts in seconds.
        let beat = Duration::from_secs((limit.as_secs() / HEARTBEATS).max(1));
        let keepalive = TcpKeepalive::new().with_time(beat).with_interval(beat).with_retries(HEARTBEATS as u32);
        self.0.socket.set_tcp_keepalive(&keepalive)?;
        self.0.socket.set_tcp_user_timeout(Some(limit))
    }

    /// How long nothing has come from the other side's system; none where that cannot be known.
    pub fn silence(&self) -> Option<Duration> {
        let info = self.info()?;
        Some(Duration::from_millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv).into()))
    }

    fn info(&self) -> Option<libc::tcp_info> {
        // SAFETY: it is integers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut bytes = size_of_val(&info) as libc::socklen_t;
        let (fd, place) = (self.0.socket.as_raw_fd(), (&raw mut info).cast());
        // SAFETY: the call writes as many bytes as the structure has, at most.
        let done = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut bytes) };
        (done == 0).then_some(info)
    }

    /// Whether the other side's system has not confirmed anything for a while of what was sent again and again: its
    /// host, an interface or the network between is gone. A process that does not read is another thing: its system
    /// answers. False where that cannot be known.
    pub fn is_unanswered(&self) -> bool {
        let Some(info) = self.info() else { return false };
        let silent = Duration::from_millis(info.tcpi_last_ack_recv.into());
        // Where this host has no route any more nothing is sent at all, and the system probes instead. Probes of a side
        // that has no room are answered, which sets their count back.
        let again = info.tcpi_unacked > 0 && info.tcpi_retransmits >= SENT_AGAIN || info.tcpi_probes >= SENT_AGAIN;
        again && silent >= UNANSWERED
    }

    /// The address of the other side.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.0.socket.peer_addr().ok()?.as_socket()
    }

    /// Hands bytes to the system; how many it has taken, 0 where it has no room now. A peer that is gone is an error,
    /// and no SIGPIPE.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(&self.0.socket, bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                other => return other,
            }
        }
    }

    /// Takes bytes that have come; how many, 0 where the peer has closed the connection, none where nothing has come.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match (&self.0.socket).read(bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                other => return other.map(Some),
            }
        }
    }
}

/// Binds a socket to an address of this host, from which it is to connect.
fn bind_to(socket: &Socket, from: SocketAddr) -> io::Result<()> {
    // The port is chosen when it is known where the connection goes, or a host would soon have no free one.
    let late: libc::c_int = 1;
    let (place, bytes) = ((&raw const late).cast(), size_of_val(&late) as libc::socklen_t);
    // SAFETY: the call reads one integer, which lives. Where the system does not know it, ports are scarcer.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, place, bytes) };
    socket.bind(&SockAddr::from(SocketAddr::new(from.ip(), 0)))
}

/// Whether a connection has failed because its way does not lead to the other side any more; there may be another one.
pub fn is_lost_way(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    matches!(error.kind(), HostUnreachable | NetworkDown | NetworkUnreachable | TimedOut)
}

impl TcpSocket {
    fn new(socket: Socket) -> TcpSocket {
        TcpSocket { _child_closes: ChildCloses::of(socket.as_fd()), socket }
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

/// A new socket that can connect to an address, or listen at it.
///
/// # Errors
/// The process may open no more files.
pub fn socket(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), kind.cloexec(), Some(Protocol::TCP)).and_then(off_standard)
}

/// A socket that listens at exactly this address; with port 0 the system chooses a port, or it is one of `ports`.
///
/// # Errors
/// What the system says: `AddrInUse` where all ports of the range are taken.
pub fn listen(at: SocketAddr, ports: Option<PortRange>, backlog: i32) -> io::Result<Socket> {
    let open = |at: SocketAddr| -> io::Result<Socket> {
        let socket = socket(at, Type::STREAM.nonblocking())?;
        // Connections of an earlier run in TIME_WAIT do not hold the port; another listener does.
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(at))?;
        socket.listen(backlog)?;
        Ok(socket)
    };
    let Some((first, last)) = ports.filter(|_| at.port() == 0) else { return open(at) };
    let count = u32::from(last - first) + 1;
    // From a random one, so that many ranks of a host do not all try the same.
    let start = random::random::<u32>() % count;
    for i in 0..count {
        let mut at = at;
        at.set_port(first + ((start + i) % count) as u16);
        match open(at) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            outcome => return outcome,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// What to say where [`listen`] has failed because all ports of the range are taken; none where it is something else.
pub fn no_port_left(at: SocketAddr, ports: Option<PortRange>, error: &io::Error) -> Option<Error> {
    let (first, last) = ports.filter(|_| at.port() == 0 && error.kind() == io::ErrorKind::AddrInUse)?;
    Some(Error::Resource(format!(
        "all ports of OXCCL_PORT_RANGE={first}-{last} are in use on {}: widen the range",
        at.ip()
    )))
}

/// The next connection at a listening socket, and who has made it; none where there is none now. It does not wait.
///
/// # Errors
/// What the system says, but for connections that broke before they were accepted.
pub fn accept(listener: &Socket) -> io::Result<Option<(Socket, SockAddr)>> {
    loop {
        match listener.accept().and_then(|(socket, peer)| Ok((off_standard(socket)?, peer))) {
            Ok((socket, peer)) => {
                if socket.set_nonblocking(true).and_then(|()| tune(&socket)).is_ok() {
                    return Ok(Some((socket, peer)));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if passes(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Begins to connect a socket that does not wait; it can be written when the outcome is known.
///
/// # Errors
/// The connect failed at once.
pub fn begin_connect(socket: &Socket, to: SocketAddr) -> io::Result<()> {
    match socket.connect(&SockAddr::from(to)) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        outcome => outcome,
    }
}

/// The outcome of a connect, once the socket can be written. A connection of a socket with itself, which happens where
/// the wanted port is the one that the system chose here, counts as refused.
///
/// # Errors
/// Why it failed.
pub fn connect_outcome(socket: &Socket) -> io::Result<()> {
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    let (local, peer) = (socket.local_addr(), socket.peer_addr()?.as_socket());
    match local.is_ok_and(|local| local.as_socket() == peer) {
        true => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
        false => Ok(()),
    }
}

/// Hands bytes to the system; how many it has taken. All that is sent by TCP goes through here: a peer that has gone is
/// an error, and no SIGPIPE for the program.
///
/// # Errors
/// What the system says.
pub fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    socket.send_with_flags(bytes, libc::MSG_NOSIGNAL)
}

/// What every connection has: no delay, and probes by which a host that has vanished is noticed.
///
/// # Errors
/// What the system says.
pub fn tune(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_PROBE).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Errors that concern one connection only: it was reset while it waited, or the network had a hiccup (accept(2)).
fn passes(error: &io::Error) -> bool {
    let transient = [
        libc::EINTR,
        libc::ECONNABORTED,
        libc::EPROTO,
        libc::ENETDOWN,
        libc::ENOPROTOOPT,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EOPNOTSUPP,
        libc::ENETUNREACH,
    ];
    transient.iter().any(|errno| error.raw_os_error() == Some(*errno))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn wait<T>(mut get: impl FnMut() -> Option<T>) -> T {
        let limit = Instant::now() + LIMIT;
        loop {
            if let Some(value) = get() {
                return value;
            }
            assert!(Instant::now() < limit, "nothing comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn bytes_go_both_ways_and_the_end_is_told() {
        let listener = TcpListener::open((Ipv4Addr::LOCALHOST, 0).into(), None).expect("a listener");
        assert!(listener.accept().expect("accept").is_none());
        let here = TcpStream::connect(listener.address().expect("an address")).expect("connect");
        let there = wait(|| listener.accept().expect("accept"));
        wait(|| here.outcome().ok());
        let mut bytes = [0; 16];
        assert_eq!(there.receive(&mut bytes).expect("receive"), None);
        assert_eq!(here.send(b"hello").expect("send"), 5);
        assert_eq!(wait(|| there.receive(&mut bytes).expect("receive")), 5);
        let sent: usize =
            std::iter::repeat_with(|| there.send(&[7; 65536]).expect("send")).take_while(|n| *n > 0).sum();
        drop(there);
        let mut got = 0;
        while wait(|| here.receive(&mut bytes).expect("receive")) > 0 {
            got += 1;
        }
        assert!(got > 0 && got <= sent);
        wait(|| here.send(b"x").err());
        assert!(here.send(b"x").is_err());
    }

    #[test]
    fn a_range_of_ports_is_kept_to_and_its_end_is_told() {
        let at = SocketAddr::from(([127, 0, 0, 7], 0));
        let ports = Some((47_101, 47_103));
        let listeners: Vec<TcpListener> =
            (0..3).map(|_| TcpListener::open(at, ports).expect("a port is left")).collect();
        let mut taken: Vec<u16> =
            listeners.iter().map(|listener| listener.address().expect("an address").port()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [47_101, 47_102, 47_103]);
        let error = TcpListener::open(at, ports).err().expect("no port is left").to_string();
        assert!(error.contains("OXCCL_PORT_RANGE=47101-47103") && error.contains("127.0.0.7"), "{error}");
        drop(listeners);
        assert!(TcpListener::open(at, Some((47_102, 47_102))).is_ok());
    }

    #[test]
    fn a_port_that_nobody_has_refuses() {
        let listener = TcpListener::open((Ipv4Addr::LOCALHOST, 0).into(), None).expect("a listener");
        let address = listener.address().expect("an address");
        drop(listener);
        let outcome = TcpStream::connect(address).and_then(|stream| {
            wait(|| match stream.outcome() {
                Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
                outcome => Some(outcome),
            })
        });
        assert_eq!(outcome.expect_err("nobody listens").kind(), io::ErrorKind::ConnectionRefused);
        let error = TcpListener::open((Ipv4Addr::new(192, 0, 2, 1), 0).into(), None).err();
        let error = error.expect("no address of this host");
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }
}
