//! What goes from process to process, and its bytes, whatever carries them.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::frame::Hello;
use super::stream::ConnectingStream;
use crate::error::Error;
use crate::secure::{Protection, Secret, SecureHandshake};
use crate::sys::{self, MailboxName, PortRange, TcpStream};

/// What a message of this library begins with, so that a stranger's is none.
const MAGIC: u32 = 0x6f78_7032;

/// A source, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// A number that no other source has.
    pub key: u64,
    /// The rank that it is in its communicator.
    pub rank: u32,
}

/// Where a process receives messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Location {
    /// Its mailbox, for processes of its host.
    pub mailbox: MailboxName,
    /// Where it listens for others, if it does.
    pub tcp: Option<TcpAddress>,
}

impl Location {
    /// Where messages to it go. `here`: from a process of the same host that can pass descriptors to it. Who is
    /// elsewhere and does not listen cannot be reached: what goes to its mailbox is told as undeliverable.
    pub fn destination(&self, here: bool) -> Destination {
        match self.tcp {
            Some(tcp) if !here => Destination::Tcp(tcp),
            _ => Destination::Unix(self.mailbox),
        }
    }
}

/// Where a process listens, and the number that shows it that somebody is no stranger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TcpAddress {
    ip: IpAddr,
    port: u16,
    /// The interface of a link-local address.
    scope: u32,
    /// The listener's secret. It is told to processes of the same communicator alone, by connections that are sealed.
    key: u128,
    /// Data that come by streams are sealed, too.
    sealed: bool,
}

impl TcpAddress {
    pub(super) fn new(address: SocketAddr, key: u128, sealed: bool) -> TcpAddress {
        TcpAddress { ip: address.ip(), port: address.port(), scope: scope(address), key, sealed }
    }

    /// How a connection is protected that is for something. Messages are always sealed: they have secrets in them.
    fn protection(&self, hello: Hello) -> Protection {
        match hello {
            Hello::Stream(..) if !self.sealed => Protection::Plain,
            Hello::Messages | Hello::Stream(..) => Protection::Sealed,
        }
    }

    /// The handshake of a connection to there, or of one that has come in there.
    pub(super) fn handshake(&self, hello: Hello, connects: bool) -> SecureHandshake {
        let secret = Secret::of(&self.key.to_le_bytes(), b"listener");
        let make = if connects { SecureHandshake::connect } else { SecureHandshake::accept };
        make(&hello.encode(), &secret, self.protection(hello), sys::random_bytes())
    }

    /// A stream for a source of this process, with a token that the source knows; `tcp` connects to its listener.
    pub fn stream(&self, tcp: TcpStream, to: Address, token: u64) -> ConnectingStream {
        let hello = Hello::Stream(to, token);
        ConnectingStream::new(tcp, hello.encode(), self.handshake(hello, true))
    }

    /// The same where data are sealed, or not.
    #[cfg(test)]
    pub(super) fn with_sealed(self, sealed: bool) -> TcpAddress {
        TcpAddress { sealed, ..self }
    }

    /// The address of the listener.
    pub fn socket(&self) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, self.port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
        }
    }
}

fn scope(address: SocketAddr) -> u32 {
    if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 }
}

impl std::fmt::Debug for TcpAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.socket())
    }
}

/// Where a process wants to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// An address of this host; with port 0 the system chooses a port.
    pub at: SocketAddr,
    /// The ports that it may be, where `at` has none.
    pub ports: Option<PortRange>,
    /// What others are told in place of that address, with the port of the listener.
    pub advertise: Option<SocketAddr>,
    /// The fingerprint of the user's key, where data that come by streams are to be encrypted. Whoever wants something
    /// else in this has another listener.
    pub encrypted_by: Option<u128>,
}

impl From<SocketAddr> for ListenAddress {
    fn from(at: SocketAddr) -> ListenAddress {
        ListenAddress { at, ports: None, advertise: None, encrypted_by: None }
    }
}

/// Where a message goes, and by which carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the mailbox of a process of this host.
    Unix(MailboxName),
    /// To the listener of a process, which may be anywhere.
    Tcp(TcpAddress),
    /// Over the connection that a message has come by, while it lasts.
    Back(u32),
}

/// A message from a source to another one.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where the process of that one receives it; of a message that has come, where an answer goes.
    pub destination: Destination,
    /// Whom it is for.
    pub to: Address,
    /// Who sends it.
    pub from: Address,
    /// Where the sender's process receives messages.
    pub reply: Location,
    /// What it says.
    pub content: Content,
    /// What goes with it; it stays open until the message is sent. By [`Destination::Unix`] alone.
    pub fd: Option<Arc<OwnedFd>>,
    /// Something went with it, but this process could open no more files.
    pub lost: bool,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// What the source that it is for understands.
    Bytes(Vec<u8>),
    /// There is no source where a message went: this one is from the event loop there.
    NoSource,
}

/// Why a message cannot arrive, or may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undeliverable {
    /// The process has no such source any more.
    NoSource,
    /// The process is gone.
    Died,
    /// Its host does not answer any more, or cannot be reached.
    Silent,
    /// It was refused, or the process cannot be reached.
    Failed(Error),
}

impl Message {
    /// A message with some bytes; who sends it is filled in when it is sent.
    pub fn new(destination: Destination, to: Address, bytes: Vec<u8>, fd: Option<Arc<OwnedFd>>) -> Message {
        let (from, reply) = (Address { key: 0, rank: 0 }, Location::default());
        Message { destination, to, from, reply, content: Content::Bytes(bytes), fd, lost: false }
    }

    /// The bytes; none where it says something else.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Bytes(bytes) => bytes,
            Content::NoSource => &[],
        }
    }

    /// What came with it, once.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.fd.take().and_then(Arc::into_inner)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // Nothing of it can fail: it writes to memory.
        postcard::to_stdvec(&(MAGIC, self.to, self.from, self.reply, &self.content)).unwrap_or_default()
    }

    /// The message in some bytes that came by a connection; none where they are something else.
    pub(super) fn decode(bytes: &[u8], connection: u32) -> Option<Message> {
        let (magic, to, from, reply, content) =
            postcard::from_bytes::<(u32, Address, Address, Location, Content)>(bytes).ok()?;
        let destination = Destination::Back(connection);
        (magic == MAGIC).then_some(Message { destination, to, from, reply, content, fd: None, lost: false })
    }

    /// The message in a datagram, with what came with it.
    pub(super) fn decode_datagram(bytes: &[u8], fd: Option<OwnedFd>, lost: bool) -> Option<Message> {
        let message = Message::decode(bytes, 0)?;
        Some(Message { destination: Destination::Unix(message.reply.mailbox), fd: fd.map(Arc::new), lost, ..message })
    }

    /// What goes back where there is no such source; nothing goes back for that itself.
    pub(super) fn bounce(&self) -> Option<Message> {
        let (destination, to, from, content) = (self.destination, self.from, self.to, Content::NoSource);
        let back = Message { destination, to, from, reply: Location::default(), content, fd: None, lost: false };
        matches!(self.content, Content::Bytes(_)).then_some(back)
    }
}
