//! What a network is: the table of NCCL's net plug-ins, as traits. Whoever moves data between ranks knows no more of a
//! network than this, be it the library's own sockets or a plug-in.
//!
//! A network has *devices*. A rank that is to receive *listens* on a device, and gives the *handle* that comes of it to
//! the rank that is to send, which *connects* with it. A connection carries messages one way, in order; each is
//! received whole into memory that the receiver has given for it, in the same order. Nothing of it waits: who asks for
//! what is not there yet asks again later. A connection is used by one thread at a time.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::sys::{Interest, Ready};

/// The most bytes of a handle of a plug-in.
pub const PLUGIN_HANDLE_BYTES: usize = 128;
/// The most messages of a connection that may be under way.
pub const REQUESTS_MAX: usize = 32;

/// What a network says of one of its devices.
#[derive(Clone, Debug, PartialEq)]
pub struct NetProperties {
    /// `mlx5_0`, `eth0`.
    pub name: String,
    /// Where it is in sysfs; none for what is no PCI device.
    pub pci_path: Option<String>,
    /// A number that devices of one card share.
    pub guid: u64,
    /// The kinds of memory that it sends from and receives into: a sum of [`NetProperties::HOST`], ....
    pub pointers: u32,
    /// Memory that is registered for one connection can be used by all.
    pub global_registration: bool,
    /// What was received into device memory must be flushed, whatever the device.
    pub force_flush: bool,
    /// Mbit/s.
    pub speed: u32,
    /// The port of the card, from 1.
    pub port: i32,
    /// Microseconds; 0 where it is not known.
    pub latency: f32,
    /// The most connections that it has at a time.
    pub max_connections: u32,
    /// The most messages that one call receives.
    pub max_receives: u32,
    /// The most bytes of a message.
    pub max_bytes: usize,
}

impl NetProperties {
    /// It takes memory of the host.
    pub const HOST: u32 = 1;
    /// It takes memory of a CUDA device by its address.
    pub const CUDA: u32 = 2;
    /// It takes memory of a CUDA device by a DMA-BUF.
    pub const DMABUF: u32 = 4;
}

/// Memory that messages are sent from, or received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetMemory {
    /// Where it is.
    pub address: u64,
    /// How long it is.
    pub bytes: usize,
    /// One of [`NetProperties::HOST`], [`NetProperties::CUDA`].
    pub kind: u32,
}

/// What registering memory has given; it means something for the connection alone that it was registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionId(pub u64);

/// A message that is under way; it means something for its connection alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetRequest(pub u64);

/// A part of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetBuffer {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: usize,
    /// What it lies in.
    pub region: RegionId,
}

/// A descriptor that is to be waited for.
pub struct Watched<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// What it is waited for.
    pub interest: Interest,
    /// Another one of the same number has another stamp.
    pub stamp: u32,
}

/// A network.
pub trait Network: Send + Sync {
    /// `Socket`, `IB`, or the plug-in's own name.
    fn name(&self) -> &str;

    /// Its devices. There is one at least.
    fn devices(&self) -> &[NetProperties];

    /// Listens for one connection.
    ///
    /// # Errors
    /// What the network or the system says.
    fn listen(&self, device: usize) -> Result<Box<dyn NetListener>, Error>;

    /// Begins to connect with whoever has given a handle, which comes from another process.
    ///
    /// # Errors
    /// What the network or the system says; [`Error::Remote`] where the handle is none.
    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn NetConnecting>, Error>;
}

/// Who listens for a connection. Dropping it ends that.
pub trait NetListener: Send {
    /// What the sender connects with.
    fn handle(&self) -> &[u8];

    /// The connection, once it is there.
    ///
    /// # Errors
    /// What the network says; there will be no connection then.
    fn accept(&mut self) -> Result<Option<Box<dyn NetReceiver>>, Error>;
}

/// A connection that is being made. Dropping it ends that.
pub trait NetConnecting: Send {
    /// The connection, once it is there.
    ///
    /// # Errors
    /// What the network says; there will be no connection then.
    fn connect(&mut self) -> Result<Option<Box<dyn NetSender>>, Error>;
}

/// What both ends of a connection do. Dropping one closes it; no message may be under way whose memory goes.
pub trait NetConnection: Send {
    /// Lets messages be sent from memory, or received into it.
    ///
    /// # Errors
    /// What the network says.
    ///
    /// # Safety
    /// The memory lives until it is deregistered or the connection is dropped.
    unsafe fn register(&mut self, memory: NetMemory) -> Result<RegionId, Error>;

    /// Ends that.
    fn deregister(&mut self, region: RegionId);

    /// How many bytes the message had, once all is done that its memory is needed for. A request that is done is not
    /// asked for again. Requests are asked for in their order.
    ///
    /// # Errors
    /// What the network says; the connection is over then.
    fn test(&mut self, request: NetRequest) -> Result<Option<usize>, Error>;

    /// How many descriptors it has at most.
    fn descriptors(&self) -> usize {
        0
    }

    /// The descriptor of a number below that, and what of it is to be waited for until there is something to do; none
    /// where there is none now. One that is gone was closed.
    fn watched(&self, _number: usize) -> Option<Watched<'_>> {
        None
    }

    /// It is to be tried again and again, since no descriptor tells when there is something to do.
    fn is_polled(&self) -> bool {
        self.descriptors() == 0
    }

    /// When it is to be tried again though no descriptor is ready.
    fn next_look(&self) -> Option<Instant> {
        None
    }

    /// How long nothing has come from the other side's host; none where that is not known.
    fn silence(&self) -> Option<Duration> {
        None
    }

    /// A descriptor of that number is ready.
    ///
    /// # Errors
    /// The connection is over.
    fn ready(&mut self, _number: usize, _ready: Ready) -> Result<(), Error> {
        Ok(())
    }
}

/// The end that sends.
pub trait NetSender: NetConnection {
    /// Begins to send a message. None: later.
    ///
    /// # Errors
    /// What the network says; the connection is over then.
    ///
    /// # Safety
    /// The buffer lies in registered memory, and nobody writes it until the request is done or the connection closed.
    unsafe fn send(&mut self, buffer: NetBuffer) -> Result<Option<NetRequest>, Error>;

    /// Whether what was sent is out of danger: that it arrives does not depend on this process any more.
    fn is_delivered(&self) -> bool {
        true
    }
}

/// The end that receives.
pub trait NetReceiver: NetConnection {
    /// Gives memory for the next message, which may be shorter. None: later.
    ///
    /// # Errors
    /// What the network says; the connection is over then.
    ///
    /// # Safety
    /// The buffer lies in registered memory, and nobody reads or writes it until the request is done or the connection
    /// closed.
    unsafe fn receive(&mut self, buffer: NetBuffer) -> Result<Option<NetRequest>, Error>;
}
