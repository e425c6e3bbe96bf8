//! The network of every host: TCP. It is a network like those of plug-ins ([`Network`]), and can be read as an example
//! of one.
//!
//! Who listens waits for streams at the listener of the process's event loop. A handle says where that is, at each of
//! the host's interfaces, and has a token by which the listener knows whom a stream is for. A connection has one
//! stream, or several (`NCCL_SOCKET_NTHREADS` × `NCCL_NSOCKS_PERTHREAD` of the rank that listens), each of which shows
//! the token and its own number; long messages are cut into pieces, one for each stream.
//!
//! * `ways` says from which interface to which one a stream goes; it is pure but for what it remembers;
//! * `connect` makes connections;
//! * `pieces` says which stream carries what; it is pure;
//! * `send` and `receive` are the two ends;
//! * `resume` is what they say to each other where a stream that was lost is made anew;
//! * `settings` says how many threads and streams there are.

mod connect;
mod pieces;
mod receive;
mod resume;
mod send;
mod settings;
#[cfg(test)]
pub(super) mod tests;
mod ways;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{HostInterface, INTERFACES_MAX};
use crate::error::Error;
use crate::plugin::network::{NetConnecting, NetListener, NetProperties, NetReceiver, Network};
use crate::proxy::{
    self, Address, ListenAddress, Message, Outbox, Progress, Registration, SecureStream, Source, TcpAddress,
    Undeliverable,
};
use crate::sys;
use connect::{SocketConnecting, StreamSource, TOKEN_RESUMES};
use receive::{ArrivingStreams, SocketReceiver};
pub use settings::SocketSettings;
use ways::{LostWays, OwnAddress, WayEnds};

/// The most streams of a connection, as NCCL has it.
pub(in crate::transport) const STREAMS_MAX: u32 = 64;
/// Mbit/s of an interface that does not tell, as NCCL has it.
const SPEED: u32 = 10_000;
/// The most bytes of a handle: addresses of all interfaces.
const HANDLE_MAX: usize = 1024;

/// An interface that connections go by.
#[derive(Clone, Debug)]
pub struct SocketInterface {
    /// What is told of it.
    pub properties: NetProperties,
    /// Where it is listened at.
    pub at: ListenAddress,
    /// Bits of its network's prefix.
    pub prefix: u8,
}

/// The interfaces of a host, and who listens there.
pub struct SocketNetwork {
    settings: SocketSettings,
    properties: Vec<NetProperties>,
    addresses: Vec<OwnAddress>,
    /// The listener at each address. Those beyond the devices are for when nothing else leads to a rank.
    listeners: Vec<TcpAddress>,
    lost_ways: Arc<LostWays>,
    own: Address,
    arrivals: Arc<Arrivals>,
    _registration: Registration,
}

/// Streams that have come: a source of the event loop.
struct Arrivals {
    own: Weak<Arrivals>,
    /// By token of the first stream: the connections that are waited for, and those whose streams may be made anew.
    expected: Mutex<BTreeMap<u64, Arc<ArrivingStreams>>>,
}

/// What a rank that is to send must know.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SocketHandle {
    /// Where the other listens, at the interface of its choice first.
    at: Vec<TcpAddress>,
    /// So many of these share the data; others are used where nothing else leads there.
    shared_by: u32,
    to: Address,
    /// The token of the first stream; those of others follow.
    token: u64,
    streams: u32,
    piece_min: u32,
}

impl SocketInterface {
    /// One of which no more than its address is known.
    pub fn unknown(address: SocketAddr) -> SocketInterface {
        let properties = NetProperties {
            name: address.ip().to_string(),
            pci_path: None,
            guid: 0,
            pointers: NetProperties::HOST,
            global_registration: true,
            force_flush: false,
            speed: SPEED,
            port: 0,
            latency: 0.0,
            max_connections: 65536,
            max_receives: 1,
            max_bytes: 1 << 30,
        };
        SocketInterface { properties, at: address.into(), prefix: 128 }
    }

    /// One of this host.
    pub fn of_host(of: &HostInterface, at: ListenAddress) -> SocketInterface {
        let unknown = SocketInterface::unknown(of.address);
        let (name, pci_path, speed) = (of.name.clone(), of.pci_path.clone(), of.speed.unwrap_or(SPEED));
        let properties = NetProperties { name, pci_path, speed, ..unknown.properties };
        SocketInterface { properties, at, prefix: of.prefix }
    }
}

/// Puts interfaces first that share the data: those that are not slower than half of the fastest one. How many those
/// are.
fn put_fast_first(interfaces: &mut [SocketInterface]) -> usize {
    let fastest = interfaces.iter().map(|one| one.properties.speed).max().unwrap_or(0);
    let is_slow = |one: &SocketInterface| u64::from(one.properties.speed) * 2 < u64::from(fastest);
    interfaces.sort_by_key(is_slow);
    interfaces.iter().filter(|one| !is_slow(one)).count()
}

impl SocketNetwork {
    /// Listens at interfaces of this host; there is one at least. One that cannot be listened at is left out where
    /// there is another one.
    ///
    /// # Errors
    /// [`Error::System`] that names the address where it cannot be listened at, or as [`proxy::join`].
    pub fn open(
        rank: u32,
        mut interfaces: Vec<SocketInterface>,
        settings: SocketSettings,
    ) -> Result<Arc<SocketNetwork>, Error> {
        let own = Address { key: sys::random(), rank };
        let arrivals = Arc::new_cyclic(|own| Arrivals { own: own.clone(), expected: Mutex::default() });
        let source: Weak<dyn Source> = arrivals.own.clone();
        let registration = proxy::join(own, source)?;
        interfaces.truncate(INTERFACES_MAX);
        let fast = put_fast_first(&mut interfaces);
        let (mut properties, mut addresses, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
        let mut failed = Error::Resource("there is no network interface for sockets".to_string());
        for (number, SocketInterface { properties: told, at, prefix }) in interfaces.into_iter().enumerate() {
            let none = || Error::Internal(format!("nobody listens at {}", at.at));
            let wanted = ListenAddress { encrypted_by: settings.encrypted_by, ..at };
            match registration.listen(wanted).and_then(|location| location.tcp.ok_or_else(none)) {
                Ok(listener) => listeners.push(listener),
                Err(error) => {
                    log::info!(target: "NET", "NET/Socket : {} is left out: {error}", told.name);
                    failed = error;
                    continue;
                }
            }
            addresses.push(OwnAddress { at: at.at, prefix });
            if number < fast || properties.is_empty() {
                properties.push(told);
            }
        }
        if addresses.is_empty() {
            return Err(failed);
        }
        let (lost_ways, _registration) = (Arc::default(), registration);
        let network =
            SocketNetwork { settings, properties, addresses, listeners, lost_ways, own, arrivals, _registration };
        Ok(Arc::new(network))
    }
}

impl Network for SocketNetwork {
    fn name(&self) -> &str {
        "Socket"
    }

    fn devices(&self) -> &[NetProperties] {
        &self.properties
    }

    fn listen(&self, device: usize) -> Result<Box<dyn NetListener>, Error> {
        let devices = self.properties.len();
        let streams = self.settings.streams.unwrap_or(devices as u32).clamp(1, STREAMS_MAX);
        // Those of the other streams follow.
        let token = sys::random::<u64>() >> 1;
        let mut at = self.listeners.clone();
        at[..devices].rotate_left(device % devices);
        let (to, piece_min) = (self.own, self.settings.piece_min);
        let handle = SocketHandle { at, shared_by: devices as u32, to, token, streams, piece_min };
        let handle = postcard::to_stdvec(&handle).map_err(|error| Error::Internal(format!("a handle: {error}")))?;
        let arriving = Arc::new(ArrivingStreams::new(streams as usize));
        self.arrivals.expected.lock().insert(token, arriving.clone());
        let arriving = ExpectedStreams { arrivals: self.arrivals.clone(), token, arriving };
        Ok(Box::new(SocketListener { expected: Some(arriving), handle, settings: self.settings }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn NetConnecting>, Error> {
        Ok(Box::new(self.connecting(device, handle)?))
    }
}

impl SocketNetwork {
    fn connecting(&self, device: usize, handle: &[u8]) -> Result<SocketConnecting, Error> {
        let handle: Option<SocketHandle> =
            if handle.len() <= HANDLE_MAX { postcard::from_bytes(handle).ok() } else { None };
        let usable = |handle: &SocketHandle| {
            (1..=INTERFACES_MAX).contains(&handle.at.len())
                && (1..=handle.at.len()).contains(&(handle.shared_by as usize))
                && (1..=STREAMS_MAX).contains(&handle.streams)
        };
        let handle = handle.filter(usable).ok_or_else(|| Error::Remote {
            rank: None,
            text: "what a rank says of its sockets is not what this version expects".to_string(),
        })?;
        let (mut from, devices) = (self.addresses.clone(), self.properties.len());
        from[..devices].rotate_left(device % devices);
        let ends = WayEnds { from, from_shared: devices, to: handle.at, to_shared: handle.shared_by as usize };
        let (lost_ways, buffers) = (self.lost_ways.clone(), self.settings.buffers);
        let source = StreamSource { ends, lost_ways, to: handle.to, token: handle.token, buffers };
        Ok(SocketConnecting::begin(source, handle.streams, handle.piece_min as usize))
    }
}

/// Streams of one connection that the event loop is to let in. Dropped, it lets in none any more.
struct ExpectedStreams {
    arrivals: Arc<Arrivals>,
    token: u64,
    arriving: Arc<ArrivingStreams>,
}

/// Waits for the streams of one connection.
struct SocketListener {
    expected: Option<ExpectedStreams>,
    handle: Vec<u8>,
    settings: SocketSettings,
}

impl NetListener for SocketListener {
    fn handle(&self) -> &[u8] {
        &self.handle
    }

    fn accept(&mut self) -> Result<Option<Box<dyn NetReceiver>>, Error> {
        let Some(streams) = self.expected.as_ref().map(|expected| expected.arriving.take_all()) else {
            return Ok(None);
        };
        let Some(streams) = streams? else { return Ok(None) };
        let (send, receive) = self.settings.buffers;
        for stream in &streams {
            let set = stream.tcp().set_buffers(send, receive);
            set.map_err(|error| Error::system("setsockopt", "NCCL_SOCKET_SNDBUF and NCCL_SOCKET_RCVBUF", &error))?;
        }
        let resumes = self.expected.take().filter(|expected| expected.arriving.resumes());
        Ok(Some(Box::new(SocketReceiver::new(streams, self.settings.piece_min, resumes))))
    }
}

impl ExpectedStreams {
    fn streams(&self) -> &ArrivingStreams {
        &self.arriving
    }
}

impl Drop for ExpectedStreams {
    fn drop(&mut self) {
        self.arrivals.expected.lock().remove(&self.token);
    }
}

impl Source for Arrivals {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    /// A stream that nobody waits for is closed. One that comes a second time was made anew.
    fn connected(&self, token: u64, stream: SecureStream) {
        let (resumes, token) = (token & TOKEN_RESUMES != 0, token & !TOKEN_RESUMES);
        let expected = self.expected.lock();
        let known = expected.range(..=token).next_back().map(|(first, arriving)| (token - first, arriving.clone()));
        drop(expected);
        if !known.is_some_and(|(number, arriving)| arriving.put(number as usize, resumes, stream)) {
            log::info!(target: "NET", "somebody has connected whom nobody waits for");
        }
    }

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::at(None)
    }
}
