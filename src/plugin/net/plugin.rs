//! A net plug-in that is loaded, and what it is for one communicator.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use parking_lot::ReentrantMutex;

use super::NetSelection;
use super::connection::{PluginConnecting, PluginListener};
use super::properties::PropertiesBuffer;
use super::table::{InitCall, NetCalls, NetCommConfig, NetHead};
use crate::error::Error;
use crate::plugin::library::{PluginLibrary, file_of};
use crate::plugin::logger::{listening, logger, no_profiler};
use crate::plugin::network::{NetConnecting, NetListener, NetProperties, Network};

/// The versions of the interface, the newest first.
const VERSIONS: [u32; 7] = [12, 11, 10, 9, 8, 7, 6];
/// Versions that are too old.
const OLD_VERSIONS: [u32; 4] = [5, 4, 3, 2];
/// What a plug-in is told where nobody says a traffic class.
const NO_TRAFFIC_CLASS: c_int = -1;
/// The most devices that a plug-in may have.
const DEVICES_MAX: c_int = 1024;

/// The names of result codes.
const CODES: [&str; 9] = [
    "ncclSuccess",
    "ncclUnhandledCudaError",
    "ncclSystemError",
    "ncclInternalError",
    "ncclInvalidArgument",
    "ncclInvalidUsage",
    "ncclRemoteError",
    "ncclInProgress",
    "ncclTimeout",
];

/// A net plug-in. It stays loaded: it may have threads, and what it has started can be ended by nothing else.
pub struct NetPlugin {
    pub(super) version: u32,
    table: *const c_void,
    name: String,
    init: InitCall,
    /// Who holds it may initialise the plug-in, or end that.
    state: ReentrantMutex<RefCell<PluginState>>,
    /// What the functions lie in.
    _library: PluginLibrary,
}

/// What has been done once in the process.
#[derive(Default)]
struct PluginState {
    /// `init` has succeeded, where that is for the process.
    initialised: bool,
    devices: Option<PluginDevices>,
}

/// The devices that can be used, with the plug-in's numbers for them.
type PluginDevices = Arc<Vec<(c_int, NetProperties)>>;

// SAFETY: a plug-in's functions may be called by any thread, as NCCL does; the table is changed by `init` alone.
unsafe impl Send for NetPlugin {}
// SAFETY: as above; whoever calls `init` or reads the table holds the state.
unsafe impl Sync for NetPlugin {}

impl NetPlugin {
    /// The plug-in that a library has.
    ///
    /// # Errors
    /// Why there is none.
    pub fn find(library: PluginLibrary) -> Result<NetPlugin, String> {
        let symbol = |version| library.data(&format!("ncclNetPlugin_v{version}")).map(|table| (version, table));
        let Some((version, table)) = VERSIONS.into_iter().find_map(symbol) else {
            return Err(match OLD_VERSIONS.into_iter().find_map(symbol) {
                Some((old, _)) => format!("has ncclNetPlugin_v{old} at best, and v6 to v12 can be used"),
                None => "has no symbol ncclNetPlugin_v6 to _v12".to_string(),
            });
        };
        // SAFETY: the symbol's name says what it is; nothing of the plug-in has been called.
        let NetHead { name, init } = unsafe { NetHead::read(table, version) }
            .map_err(|member| format!("has an ncclNetPlugin_v{version} whose member `{member}` is NULL"))?;
        // SAFETY: the name is a C string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        log::info!(target: "INIT,NET", "NET/Plugin: Loaded net plugin {name} (v{version})");
        let collnet = |version| library.data(&format!("ncclCollNetPlugin_v{version}")).map(|_| version);
        if let Some(version) = VERSIONS.into_iter().find_map(collnet) {
            log::info!(target: "INIT,NET", "NET/Plugin: {name} has CollNet (v{version}): it is not used");
        }
        Ok(NetPlugin { version, table, name, init, state: ReentrantMutex::default(), _library: library })
    }

    /// What it calls itself before it is initialised.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that it lies in.
    pub fn file(&self) -> String {
        file_of(self.table)
    }

    /// Whether its table is not complete, so that it may have another name once it is initialised.
    pub fn may_rename(&self) -> bool {
        let _nobody_initialises = self.state.lock();
        // SAFETY: the version is that of the table.
        unsafe { NetCalls::read(self.table, self.version) }.is_err()
    }

    /// Initialises it for a communicator; none where it has no device.
    ///
    /// # Errors
    /// What it says, or why none of its devices can be used.
    pub(super) fn open(self: &Arc<NetPlugin>, selection: &NetSelection<'_>) -> Result<Option<PluginNetwork>, Error> {
        let traffic_class = selection.traffic_class.unwrap_or(NO_TRAFFIC_CLASS);
        let state = self.state.lock();
        let session = Arc::new(self.init(&state, selection.comm, NetCommConfig { traffic_class })?);
        let known = state.borrow().devices.clone();
        let devices = known.map_or_else(|| self.devices(&session.calls).map(Arc::new), Ok)?;
        if devices.is_empty() {
            return Ok(None);
        }
        state.borrow_mut().devices = Some(devices.clone());
        let (numbers, properties) = devices.iter().cloned().unzip();
        Ok(Some(PluginNetwork { name: self.name_now(), session, numbers, properties }))
    }

    fn init(
        self: &Arc<NetPlugin>,
        state: &RefCell<PluginState>,
        comm: u64,
        config: NetCommConfig,
    ) -> Result<PluginSession, Error> {
        let mut context = ptr::null_mut();
        let mut config = Box::new(config);
        // SAFETY: the arguments are those of the version; the configuration stays where it is for the communicator.
        let init = || unsafe {
            match self.init {
                InitCall::V6(init) => init(logger()),
                InitCall::V10(init) => init(logger(), no_profiler),
                InitCall::V11(init) => init(&mut context, comm, &mut *config, logger(), no_profiler),
            }
        };
        let each = matches!(self.init, InitCall::V11(_));
        if each || !state.borrow().initialised {
            self.call("init", init)?;
            state.borrow_mut().initialised = true;
            log::info!(target: "INIT,NET", "Initialized NET plugin {}", self.name_now());
        }
        // SAFETY: the version is that of the table; whoever could change it waits for the state.
        let calls = unsafe { NetCalls::read(self.table, self.version) }.map_err(|member| {
            let why = format!("the member `{member}` of its table is NULL");
            Error::InvalidUsage(format!("NET/Plugin: {} (v{}): {why}", self.name, self.version))
        })?;
        Ok(PluginSession { plugin: self.clone(), calls, context, config })
    }

    /// What it calls itself now.
    pub fn name_now(&self) -> String {
        let _nobody_initialises = self.state.lock();
        // SAFETY: the version is that of the table, and nobody changes it. The name is a C string that lives as long as
        // the library.
        let name = unsafe { NetHead::read(self.table, self.version).map(|head| CStr::from_ptr(head.name)) };
        name.map_or_else(|_| self.name.clone(), |name| name.to_string_lossy().into_owned())
    }

    /// The devices that can be used.
    fn devices(&self, calls: &NetCalls) -> Result<Vec<(c_int, NetProperties)>, Error> {
        let mut count = 0;
        // SAFETY: the arguments are what the function takes.
        self.call("devices", || unsafe { (calls.devices)(&mut count) })?;
        if !(0..=DEVICES_MAX).contains(&count) {
            return Err(self.error("devices", 3, Some(format!("it says that it has {count} devices"))));
        }
        let (mut usable, mut refused) = (Vec::new(), Vec::new());
        for number in 0..count {
            match self.properties(calls, number)? {
                Ok(properties) => usable.push((number, properties)),
                Err(why) => refused.push(why),
            }
        }
        refused.iter().for_each(|why| log::info!(target: "INIT,NET", "NET/Plugin: {}: {why}: not used", self.name));
        match refused.first() {
            Some(why) if usable.is_empty() => Err(Error::InvalidUsage(format!("NET/Plugin: {}: {why}", self.name))),
            _ => Ok(usable),
        }
    }

    fn properties(&self, calls: &NetCalls, number: c_int) -> Result<Result<NetProperties, String>, Error> {
        let mut buffer = PropertiesBuffer::new();
        // SAFETY: the buffer is large enough for what any version writes.
        self.call("getProperties", || unsafe { (calls.get_properties)(number, buffer.as_mut_ptr()) })?;
        // SAFETY: it has been filled by this version, whose strings stay.
        Ok(unsafe { buffer.read(self.version) })
    }

    /// Calls one of its functions.
    ///
    /// # Errors
    /// If it returns anything but success: an error with its code, which names plug-in, function and code, and says
    /// what the plug-in has logged about it.
    pub(super) fn call(&self, function: &str, call: impl FnOnce() -> c_int) -> Result<(), Error> {
        match listening(call, |code| *code != 0) {
            (0, _) => Ok(()),
            (code, warning) => Err(self.error(function, code, warning)),
        }
    }

    /// An error of a code that a function has returned.
    pub(super) fn error(&self, function: &str, code: c_int, why: Option<String>) -> Error {
        let name = usize::try_from(code).ok().and_then(|at| CODES.get(at)).unwrap_or(&"unknown result code");
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let version = self.version;
        let text = format!("NET/Plugin: {} (v{version}): {function} returned {code} ({name}){why}", self.name);
        match code {
            1 => Error::NoCuda(text),
            2 => Error::Resource(text),
            4 => Error::InvalidArgument(text),
            5 => Error::InvalidUsage(text),
            6 => Error::Remote { rank: None, text },
            8 => Error::Timeout(text),
            _ => Error::Internal(text),
        }
    }

    /// Calls a function that ends something, whose failure changes nothing.
    pub(super) fn end(&self, function: &str, call: impl FnOnce() -> c_int) {
        if let Err(error) = self.call(function, call) {
            log::info!(target: "NET", "{error}");
        }
    }
}

/// A plug-in that was initialised for a communicator. Dropping it ends that.
pub struct PluginSession {
    pub(super) plugin: Arc<NetPlugin>,
    pub(super) calls: NetCalls,
    /// What `init` has given; NULL before version 11.
    pub(super) context: *mut c_void,
    pub(super) config: Box<NetCommConfig>,
}

// SAFETY: the plug-in's functions take the context in any thread.
unsafe impl Send for PluginSession {}
// SAFETY: as above; the configuration is not written.
unsafe impl Sync for PluginSession {}

impl Drop for PluginSession {
    fn drop(&mut self) {
        if let Some(finalize) = self.calls.finalize {
            let _one_at_a_time = self.plugin.state.lock();
            // SAFETY: it is what `init` has given, and nothing that was made with it is left.
            self.plugin.end("finalize", || unsafe { finalize(self.context) });
        }
    }
}

/// A plug-in as a network. Connections keep what they need of it.
pub struct PluginNetwork {
    name: String,
    session: Arc<PluginSession>,
    /// The plug-in's numbers of the devices.
    numbers: Vec<c_int>,
    properties: Vec<NetProperties>,
}

impl PluginNetwork {
    /// The plug-in's number of a device.
    fn number(&self, device: usize) -> Result<c_int, Error> {
        let count = self.numbers.len();
        let none = || Error::Internal(format!("{} has {count} devices, and no device {device}", self.name()));
        self.numbers.get(device).copied().ok_or_else(none)
    }
}

impl Network for PluginNetwork {
    fn name(&self) -> &str {
        &self.name
    }

    fn devices(&self) -> &[NetProperties] {
        &self.properties
    }

    fn listen(&self, device: usize) -> Result<Box<dyn NetListener>, Error> {
        Ok(Box::new(PluginListener::new(&self.session, self.number(device)?)?))
    }

    fn connect(&self, device: usize, handle: &[u8]) -> Result<Box<dyn NetConnecting>, Error> {
        Ok(Box::new(PluginConnecting::new(&self.session, self.number(device)?, handle)?))
    }
}
