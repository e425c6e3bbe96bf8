//! The network of every host: TCP. It is a network like those of plug-ins ([`Network`]), and can be read as an example
//! of one.
//!
//! Who listens waits for streams at the listener of the process's event loop. A handle says where that is, at each of
//! the host's interfaces, and has a token by which the listener knows whom a stream is for. A connection has one
//! stream, or several (`NCCL_SOCKET_NTHREADS` × `NCCL_NSOCKS_PERTHREAD` of the rank that listens), each of which shows
//! the token and its own number; long messages are cut into pieces, one for each stream.
//!
//! * `connect` makes connections;
//! * `pieces` says which stream carries what; it is pure;
//! * `send` and `receive` are the two ends;
//! * `settings` says how many threads and streams there are.

mod connect;
mod pieces;
mod receive;
mod send;
mod settings;
#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::bootstrap::INTERFACES_MAX;
use crate::error::Error;
use crate::plugin::network::{NetConnecting, NetListener, NetProperties, NetReceiver, Network};
use crate::proxy::{
    self, Address, ListenAddress, Message, Outbox, Progress, Registration, SecureStream, Source, TcpAddress,
    Undeliverable,
};
use crate::sys;
use connect::SocketConnecting;
use receive::SocketReceiver;
pub use settings::SocketSettings;

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
    /// Its address.
    pub address: SocketAddr,
}

/// The interfaces of a host, and who listens there.
pub struct SocketNetwork {
    settings: SocketSettings,
    properties: Vec<NetProperties>,
    addresses: Vec<SocketAddr>,
    /// The listener at each address.
    listeners: Vec<TcpAddress>,
    own: Address,
    arrivals: Arc<Arrivals>,
    _registration: Registration,
}

/// Streams that have come: a source of the event loop.
struct Arrivals {
    own: Weak<Arrivals>,
    /// By token: those of a connection, by their numbers.
    expected: Mutex<BTreeMap<u64, Vec<Option<SecureStream>>>>,
}

/// What a rank that is to send must know.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SocketHandle {
    /// Where the other listens, at the interface of its choice first.
    at: Vec<TcpAddress>,
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
        SocketInterface { properties, address }
    }
}

impl SocketNetwork {
    /// Listens at interfaces of this host; there is one at least.
    ///
    /// # Errors
    /// [`Error::System`] that names the address where it cannot be listened at, or as [`proxy::join`].
    pub fn open(
        rank: u32,
        interfaces: Vec<SocketInterface>,
        settings: SocketSettings,
    ) -> Result<Arc<SocketNetwork>, Error> {
        let own = Address { key: sys::random(), rank };
        let arrivals = Arc::new_cyclic(|own| Arrivals { own: own.clone(), expected: Mutex::default() });
        let source: Weak<dyn Source> = arrivals.own.clone();
        let registration = proxy::join(own, source)?;
        let (mut properties, mut addresses, mut listeners) = (Vec::new(), Vec::new(), Vec::new());
        for SocketInterface { properties: told, address } in interfaces.into_iter().take(INTERFACES_MAX) {
            let none = || Error::Internal(format!("nobody listens at {address}"));
            let wanted = ListenAddress { encrypted_by: settings.encrypted_by, ..address.into() };
            listeners.push(registration.listen(wanted)?.tcp.ok_or_else(none)?);
            properties.push(told);
            addresses.push(address);
        }
        if addresses.is_empty() {
            return Err(Error::Resource("there is no network interface for sockets".to_string()));
        }
        let network =
            SocketNetwork { settings, properties, addresses, listeners, own, arrivals, _registration: registration };
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
        let streams = self.settings.streams.clamp(1, STREAMS_MAX);
        // Those of the other streams follow.
        let token = sys::random::<u64>() >> 1;
        let mut at = self.listeners.clone();
        at.rotate_left(device % self.listeners.len());
        at.dedup();
        let handle = SocketHandle { at, to: self.own, token, streams, piece_min: self.settings.piece_min };
        let handle = postcard::to_stdvec(&handle).map_err(|error| Error::Internal(format!("a handle: {error}")))?;
        self.arrivals.expected.lock().insert(token, (0..streams).map(|_| None).collect());
        let (arrivals, settings) = (self.arrivals.clone(), self.settings);
        Ok(Box::new(SocketListener { arrivals, token, handle, settings }))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn NetConnecting>, Error> {
        let handle: Option<SocketHandle> =
            if handle.len() <= HANDLE_MAX { postcard::from_bytes(handle).ok() } else { None };
        let usable = |handle: &SocketHandle| {
            !handle.at.is_empty() && handle.at.len() <= INTERFACES_MAX && (1..=STREAMS_MAX).contains(&handle.streams)
        };
        let handle = handle.filter(usable).ok_or_else(|| Error::Remote {
            rank: None,
            text: "what a rank says of its sockets is not what this version expects".to_string(),
        })?;
        let mut from = self.addresses.clone();
        from.rotate_left(device % self.addresses.len());
        // With one interface the system's routes decide.
        let from = if from.len() > 1 { from.into_iter().map(Some).collect() } else { vec![None] };
        Ok(Box::new(SocketConnecting::begin(from, handle, self.settings.buffers)))
    }
}

/// Waits for the streams of one connection.
struct SocketListener {
    arrivals: Arc<Arrivals>,
    token: u64,
    handle: Vec<u8>,
    settings: SocketSettings,
}

impl NetListener for SocketListener {
    fn handle(&self) -> &[u8] {
        &self.handle
    }

    fn accept(&mut self) -> Result<Option<Box<dyn NetReceiver>>, Error> {
        let mut expected = self.arrivals.expected.lock();
        let ready = expected.get(&self.token).is_some_and(|streams| streams.iter().all(Option::is_some));
        let streams = if ready { expected.remove(&self.token) } else { None };
        drop(expected);
        let Some(streams) = streams else { return Ok(None) };
        let streams: Vec<SecureStream> = streams.into_iter().flatten().collect();
        let (send, receive) = self.settings.buffers;
        for stream in &streams {
            let set = stream.tcp().set_buffers(send, receive);
            set.map_err(|error| Error::system("setsockopt", "NCCL_SOCKET_SNDBUF and NCCL_SOCKET_RCVBUF", &error))?;
        }
        Ok(Some(Box::new(SocketReceiver::new(streams, self.settings.piece_min))))
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        self.arrivals.expected.lock().remove(&self.token);
    }
}

impl Source for Arrivals {
    fn receive(&self, _: Message, _: &mut Outbox) {}

    fn undeliverable(&self, _: Address, _: Undeliverable) {}

    /// A stream that nobody waits for is closed. One that comes a second time was made anew.
    fn connected(&self, token: u64, stream: SecureStream) {
        let mut expected = self.expected.lock();
        let streams = expected.range_mut(..=token).next_back();
        let place = streams.and_then(|(first, streams)| streams.get_mut((token - first) as usize));
        match place {
            Some(place) => *place = Some(stream),
            None => log::info!(target: "NET", "somebody has connected whom nobody waits for"),
        }
    }

    fn progress(&self, _: Instant, _: &mut Outbox) -> Progress {
        Progress::at(None)
    }
}
