//! Listeners and connections of a plug-in.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::plugin::PluginSession;
use super::properties::UNSAID_MAX_BYTES;
use super::table::{AcceptCall, ConnectCall, IrecvCall, IsendCall, ListenCall, RegMrCall};
use crate::error::Error;
use crate::plugin::network::{
    NetBuffer, NetConnecting, NetConnection, NetListener, NetMemory, NetReceiver, NetRequest, NetSender,
    PLUGIN_HANDLE_BYTES, REQUESTS_MAX, RegionId,
};

/// The most messages that may be under way on a connection of version 6.
const REQUESTS_MAX_V6: usize = 8;
/// The code of a message that is too long for a version: `ncclInternalError`.
const TOO_LONG: c_int = 3;
/// The tag of all messages: a connection carries those of one link alone.
const TAG: c_int = 0;
/// The most messages that one request of a plug-in receives: room for their sizes.
const GROUP_MAX: usize = 8;

/// A handle, where plug-ins may also keep how far they have come with connecting.
#[repr(C, align(16))]
#[derive(Clone)]
struct HandleBuffer([u8; PLUGIN_HANDLE_BYTES]);

/// Whoever listens for a connection.
pub struct PluginListener {
    session: Arc<PluginSession>,
    comm: *mut c_void,
    handle: Box<HandleBuffer>,
}

// SAFETY: plug-ins let any thread use what they have made, one at a time.
unsafe impl Send for PluginListener {}

impl PluginListener {
    /// Listens on a device.
    pub(super) fn new(session: &Arc<PluginSession>, device: c_int) -> Result<PluginListener, Error> {
        let mut handle = Box::new(HandleBuffer([0; PLUGIN_HANDLE_BYTES]));
        let mut comm = ptr::null_mut();
        let to = handle.0.as_mut_ptr().cast();
        let plugin = &session.plugin;
        // SAFETY: the arguments are those of the version.
        plugin.call("listen", || unsafe {
            match session.calls.listen {
                ListenCall::V6(listen) => listen(device, to, &mut comm),
                ListenCall::V11(listen) => listen(session.context, device, to, &mut comm),
            }
        })?;
        if comm.is_null() {
            return Err(plugin.error("listen", 0, Some("it has given no listenComm".to_string())));
        }
        Ok(PluginListener { session: session.clone(), comm, handle })
    }
}

impl NetListener for PluginListener {
    fn handle(&self) -> &[u8] {
        &self.handle.0
    }

    fn accept(&mut self) -> Result<Option<Box<dyn NetReceiver>>, Error> {
        let (mut comm, mut device_handle) = (ptr::null_mut(), ptr::null_mut());
        let plugin = &self.session.plugin;
        // SAFETY: the arguments are those of the version.
        plugin.call("accept", || unsafe {
            match self.session.calls.accept {
                AcceptCall::V6(accept) => accept(self.comm, &mut comm),
                AcceptCall::V7(accept) => accept(self.comm, &mut comm, &mut device_handle),
            }
        })?;
        let made = (!comm.is_null()).then(|| PluginConnection::new(&self.session, comm, End::Receives));
        Ok(made.map(|connection| Box::new(connection) as Box<dyn NetReceiver>))
    }
}

impl Drop for PluginListener {
    fn drop(&mut self) {
        let plugin = &self.session.plugin;
        // SAFETY: it is what `listen` has given.
        plugin.end("closeListen", || unsafe { (self.session.calls.close.listen)(self.comm) });
    }
}

/// A connection that is being made. The interface has no call that ends that: what a plug-in has begun stays with it.
pub struct PluginConnecting {
    session: Arc<PluginSession>,
    device: c_int,
    /// The same in each call.
    handle: Box<HandleBuffer>,
}

impl PluginConnecting {
    /// Will connect with whoever has given a handle.
    pub(super) fn new(session: &Arc<PluginSession>, device: c_int, handle: &[u8]) -> Result<PluginConnecting, Error> {
        let handle = handle.try_into().map_err(|_| Error::Remote {
            rank: None,
            text: format!(
                "NET/Plugin: {}: a handle has {PLUGIN_HANDLE_BYTES} bytes, and there are {}",
                session.plugin.name(),
                handle.len()
            ),
        })?;
        Ok(PluginConnecting { session: session.clone(), device, handle: Box::new(HandleBuffer(handle)) })
    }
}

impl NetConnecting for PluginConnecting {
    fn connect(&mut self) -> Result<Option<Box<dyn NetSender>>, Error> {
        let (mut comm, mut device_handle) = (ptr::null_mut(), ptr::null_mut());
        let mut config = *self.session.config;
        let (device, handle) = (self.device, self.handle.0.as_mut_ptr().cast());
        let plugin = &self.session.plugin;
        // SAFETY: the arguments are those of the version.
        plugin.call("connect", || unsafe {
            match self.session.calls.connect {
                ConnectCall::V6(connect) => connect(device, handle, &mut comm),
                ConnectCall::V7(connect) => connect(device, handle, &mut comm, &mut device_handle),
                ConnectCall::V10(connect) => connect(device, &mut config, handle, &mut comm, &mut device_handle),
                ConnectCall::V11(connect) => {
                    connect(self.session.context, device, handle, &mut comm, &mut device_handle)
                }
            }
        })?;
        let made = (!comm.is_null()).then(|| PluginConnection::new(&self.session, comm, End::Sends));
        Ok(made.map(|connection| Box::new(connection) as Box<dyn NetSender>))
    }
}

/// Which end of a connection one is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Sends,
    Receives,
}

/// An end of a connection.
pub struct PluginConnection {
    session: Arc<PluginSession>,
    comm: *mut c_void,
    end: End,
    /// Memory that is registered.
    regions: Vec<RegionId>,
    /// What is under way, the oldest first, with the bytes of its memory.
    requests: VecDeque<(NetRequest, usize)>,
}

// SAFETY: plug-ins let any thread use what they have made, one at a time.
unsafe impl Send for PluginConnection {}

impl PluginConnection {
    fn new(session: &Arc<PluginSession>, comm: *mut c_void, end: End) -> PluginConnection {
        let session = session.clone();
        PluginConnection { session, comm, end, regions: Vec::new(), requests: VecDeque::new() }
    }

    fn version(&self) -> u32 {
        self.session.plugin.version
    }

    /// Whether no more messages may be under way.
    fn is_full(&self) -> bool {
        self.requests.len() >= if self.version() == 6 { REQUESTS_MAX_V6 } else { REQUESTS_MAX }
    }

    /// A length as old versions take it.
    fn length(&self, function: &str, bytes: usize) -> Result<c_int, Error> {
        let fits = c_int::try_from(bytes).ok().filter(|_| bytes <= UNSAID_MAX_BYTES);
        let why = || format!("{bytes} bytes are more than {UNSAID_MAX_BYTES}, the most of this version");
        fits.ok_or_else(|| self.session.plugin.error(function, TOO_LONG, Some(why())))
    }

    /// What a call has begun, if anything.
    fn begun(&mut self, request: *mut c_void, bytes: usize) -> Option<NetRequest> {
        let request = (!request.is_null()).then(|| NetRequest(request.expose_provenance() as u64))?;
        self.requests.push_back((request, bytes));
        Some(request)
    }
}

fn pointer(number: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(number as usize)
}

impl NetConnection for PluginConnection {
    // SAFETY: the trait says what the caller must see to.
    unsafe fn register(&mut self, memory: NetMemory) -> Result<RegionId, Error> {
        let plugin = &self.session.plugin;
        let (at, kind, comm) = (pointer(memory.address), memory.kind as c_int, self.comm);
        let mut region = ptr::null_mut();
        let short = match self.session.calls.reg_mr {
            RegMrCall::V6(_) => self.length("regMr", memory.bytes)?,
            RegMrCall::V8(_) => 0,
        };
        // SAFETY: the arguments are those of the version; the caller says that the memory is there.
        plugin.call("regMr", || unsafe {
            match self.session.calls.reg_mr {
                RegMrCall::V6(reg_mr) => reg_mr(comm, at, short, kind, &mut region),
                RegMrCall::V8(reg_mr) => reg_mr(comm, at, memory.bytes, kind, &mut region),
            }
        })?;
        let region = RegionId(region.expose_provenance() as u64);
        self.regions.push(region);
        Ok(region)
    }

    fn deregister(&mut self, region: RegionId) {
        let Some(at) = self.regions.iter().position(|known| *known == region) else { return };
        self.regions.swap_remove(at);
        let plugin = &self.session.plugin;
        // SAFETY: it is what `regMr` has given, and was not deregistered.
        plugin.end("deregMr", || unsafe { (self.session.calls.dereg_mr)(self.comm, pointer(region.0)) });
    }

    fn test(&mut self, request: NetRequest) -> Result<Option<usize>, Error> {
        let plugin = &self.session.plugin;
        let known = self.requests.iter().position(|(known, _)| *known == request);
        let Some(at) = known else {
            return Err(Error::Internal(format!("{}: a request that is not under way", plugin.name())));
        };
        let (mut done, mut sizes) = (0, [0; GROUP_MAX]);
        let (test, tested) = (self.session.calls.test, pointer(request.0));
        // SAFETY: it is what `isend` or `irecv` has given, and was not done.
        plugin.call("test", || unsafe { test(tested, &mut done, sizes.as_mut_ptr()) })?;
        if done == 0 {
            return Ok(None);
        }
        let (_, given) = self.requests.remove(at).unwrap_or((request, 0));
        if self.end == End::Sends {
            return Ok(Some(given));
        }
        let received = usize::try_from(sizes[0]).ok().filter(|bytes| *bytes <= given);
        let why = || format!("it says that {} bytes came into memory of {given}", sizes[0]);
        received.map(Some).ok_or_else(|| plugin.error("test", 0, Some(why())))
    }
}

impl NetSender for PluginConnection {
    // SAFETY: the trait says what the caller must see to.
    unsafe fn send(&mut self, buffer: NetBuffer) -> Result<Option<NetRequest>, Error> {
        if self.is_full() {
            return Ok(None);
        }
        let plugin = &self.session.plugin;
        let (comm, at, bytes) = (self.comm, pointer(buffer.address), buffer.bytes);
        let (region, mut request) = (pointer(buffer.region.0), ptr::null_mut());
        let short = match self.session.calls.isend {
            IsendCall::V6(_) => self.length("isend", bytes)?,
            IsendCall::V9(_) | IsendCall::V10(_) => 0,
        };
        // SAFETY: the arguments are those of the version; the caller says that the memory is registered.
        plugin.call("isend", || unsafe {
            match self.session.calls.isend {
                IsendCall::V6(isend) => isend(comm, at, short, TAG, region, &mut request),
                IsendCall::V9(isend) => isend(comm, at, bytes, TAG, region, &mut request),
                IsendCall::V10(isend) => isend(comm, at, bytes, TAG, region, ptr::null_mut(), &mut request),
            }
        })?;
        Ok(self.begun(request, bytes))
    }
}

impl NetReceiver for PluginConnection {
    // SAFETY: the trait says what the caller must see to.
    unsafe fn receive(&mut self, buffer: NetBuffer) -> Result<Option<NetRequest>, Error> {
        if self.is_full() {
            return Ok(None);
        }
        let plugin = &self.session.plugin;
        let (comm, bytes) = (self.comm, buffer.bytes);
        let (mut at, mut region, mut tag) = (pointer(buffer.address), pointer(buffer.region.0), TAG);
        let (mut long, mut phandle) = (bytes, ptr::null_mut());
        let mut short = match self.session.calls.irecv {
            IrecvCall::V6(_) => self.length("irecv", bytes)?,
            IrecvCall::V9(_) | IrecvCall::V10(_) => 0,
        };
        // NULL asks for an ordinary request: one whose completion is not optional, of one message.
        let mut request = ptr::null_mut();
        // SAFETY: the arguments are those of the version; the caller says that the memory is registered.
        plugin.call("irecv", || unsafe {
            match self.session.calls.irecv {
                IrecvCall::V6(irecv) => irecv(comm, 1, &mut at, &mut short, &mut tag, &mut region, &mut request),
                IrecvCall::V9(irecv) => irecv(comm, 1, &mut at, &mut long, &mut tag, &mut region, &mut request),
                IrecvCall::V10(irecv) => {
                    irecv(comm, 1, &mut at, &mut long, &mut tag, &mut region, &mut phandle, &mut request)
                }
            }
        })?;
        Ok(self.begun(request, bytes))
    }
}

impl Drop for PluginConnection {
    fn drop(&mut self) {
        let plugin = self.session.plugin.clone();
        while let Some(region) = self.regions.last().copied() {
            self.deregister(region);
        }
        let (name, close) = match self.end {
            End::Sends => ("closeSend", self.session.calls.close.send),
            End::Receives => ("closeRecv", self.session.calls.close.recv),
        };
        // SAFETY: it is what `connect` or `accept` has given.
        plugin.end(name, || unsafe { close(self.comm) });
    }
}
