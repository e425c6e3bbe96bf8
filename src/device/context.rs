//! Devices and contexts: the primary ones, and those that programs make.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{
    CUcontext, CUdevice_P2PAttribute, CUdevice_attribute, CUevent, CUresult, CUstream, CUstream_flags,
    CUstreamCaptureMode, CUuuid,
};
use parking_lot::Mutex;

use super::driver::{CONTEXT_IS_DESTROYED, Driver, PEER_ACCESS_ALREADY_ENABLED, SUCCESS};
use super::image::Stream;
use super::nvml;
use crate::error::Error;

/// The driver is shutting down.
const DEINITIALIZED: c_int = CUresult::CUDA_ERROR_DEINITIALIZED as c_int;
/// What drivers say where a context is gone.
const GONE: [c_int; 3] = [CONTEXT_IS_DESTROYED, DEINITIALIZED, CUresult::CUDA_ERROR_INVALID_CONTEXT as c_int];
/// A stream that does not wait for the default stream.
pub(super) const STREAM_NON_BLOCKING: c_uint = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
/// Calls that a capture of another kind would forbid are allowed.
const CAPTURE_MODE_RELAXED: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;

/// The number of CUDA devices that this process sees.
pub fn device_count() -> Result<i32, Error> {
    let driver = Driver::get()?;
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    driver.check("cuDeviceGetCount", unsafe { (driver.table.device_count)(&mut count) })?;
    Ok(count)
}

/// The calling thread's current context; NULL where there is none.
fn current(driver: &Driver) -> Result<CUcontext, Error> {
    let mut context = null_mut();
    // SAFETY: the pointer is to a live variable.
    driver.check("cuCtxGetCurrent", unsafe { (driver.table.ctx_current)(&mut context) })?;
    Ok(context)
}

/// The ordinal of the current context's device. A context must be current.
fn device_of_current(driver: &Driver) -> Result<i32, Error> {
    let mut device = 0;
    // SAFETY: a context is current; the pointer is to a live integer.
    driver.check("cuCtxGetDevice", unsafe { (driver.table.ctx_device)(&mut device) })?;
    Ok(device)
}

/// The driver's uuid of a device.
fn uuid(driver: &Driver, device: i32) -> Result<[u8; 16], Error> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is to a live uuid.
    driver.check("cuDeviceGetUuid", unsafe { (driver.table.device_uuid)(&mut uuid, device) })?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

/// What other ranks need to know about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// The driver's uuid of the device; the same in every process of the host.
    pub uuid: [u8; 16],
    /// PCI bus id as one number: domain, bus, device and function, 4 bits per hexadecimal digit.
    pub bus_id: u64,
    /// Compute capability, major × 10 + minor.
    pub capability: i32,
    /// Its number among all devices of the host, as NVML counts; its ordinal where NVML is not asked.
    pub nvml_device: i32,
}

/// The driver's handle of a context, and its number where the driver has numbers: handles are used again.
pub type ContextKey = (usize, Option<u64>);

/// A context, with a stream of its own for set-up work. A primary one is retained; others belong to whoever made them,
/// and may go at any time, as a primary one does by a reset. Dropping it releases both.
pub struct Context {
    driver: &'static Driver,
    device: i32,
    raw: CUcontext,
    primary: bool,
    /// The driver's number of the context, which no other one ever has; none where the driver has no numbers.
    number: Option<u64>,
    /// It was found to be gone.
    gone: AtomicBool,
    // Not blocking: set-up must not wait for the default stream, where a kernel may wait for a peer.
    setup: CUstream,
}

// SAFETY: a CUcontext may be used from any thread; the driver serialises access to it.
unsafe impl Send for Context {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    ///
    /// # Errors
    /// [`Error::NoCuda`] or [`Error::Cuda`] without a usable device.
    pub fn retain(device: i32) -> Result<Arc<Context>, Error> {
        let driver = Driver::get()?;
        let raw = retain_primary(driver, device)?;
        Context::open(driver, device, raw, true)
    }

    /// The context that the calling thread works in: its current one, else the primary one of device 0, as in the
    /// runtime API.
    ///
    /// # Errors
    /// As [`Context::retain`].
    pub fn of_thread() -> Result<Arc<Context>, Error> {
        let driver = Driver::get()?;
        let raw = current(driver)?;
        if raw.is_null() {
            return Context::retain(0);
        }
        let device = match device_of_current(driver) {
            // A primary context that was reset is made anew when somebody retains it.
            Err(Error::Cuda { code: CONTEXT_IS_DESTROYED, .. }) if primary_device(raw).is_some() => primary_device(raw),
            known => Some(known?),
        };
        Context::at(driver, device.unwrap_or(0), raw)
    }

    /// The same context once more, with a stream of its own.
    ///
    /// # Errors
    /// As [`Context::retain`], and where the context is gone.
    pub fn again(&self) -> Result<Arc<Context>, Error> {
        self.check_alive()?;
        Context::at(self.driver, self.device, self.raw)
    }

    /// A context of a device, which is retained where it is the primary one.
    fn at(driver: &'static Driver, device: i32, raw: CUcontext) -> Result<Arc<Context>, Error> {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the pointers are to live integers; the ordinal is the driver's own.
        let code = unsafe { (driver.table.primary_state)(device, &mut flags, &mut active) };
        driver.check("cuDevicePrimaryCtxGetState", code)?;
        // To retain one that is not active would make it, which is costly.
        if active != 0 || primary_device(raw) == Some(device) {
            if retain_primary(driver, device)? == raw {
                return Context::open(driver, device, raw, true);
            }
            // SAFETY: pairs with the retain.
            unsafe { (driver.table.primary_release)(device) };
        }
        Context::open(driver, device, raw, false)
    }

    /// Takes over a context; one that is `primary` has been retained.
    fn open(driver: &'static Driver, device: i32, raw: CUcontext, primary: bool) -> Result<Arc<Context>, Error> {
        let (number, gone) = (None, AtomicBool::new(false));
        // From here on the drop releases it.
        let mut context = Context { driver, device, raw, primary, number, gone, setup: null_mut() };
        context.number = context.ask_number().transpose()?;
        let mut setup = null_mut();
        let entered = context.enter()?;
        // SAFETY: a context is current; the pointer is to a live variable.
        driver.check("cuStreamCreate", unsafe { (driver.table.stream_create)(&mut setup, STREAM_NON_BLOCKING) })?;
        drop(entered);
        context.setup = setup;
        Ok(Arc::new(context))
    }

    /// The number that the driver has for the context now; none where it has no numbers.
    fn ask_number(&self) -> Option<Result<u64, Error>> {
        let mut number = 0;
        // SAFETY: the pointer is to a live number; the driver checks the context.
        let code = unsafe { (self.driver.context_number()?)(self.raw, &mut number) };
        Some(self.driver.check("cuCtxGetId", code).map(|()| number))
    }

    /// Whether the context is still the one that it was: none of its memory, modules, streams and events outlives it.
    ///
    /// # Errors
    /// [`Error::Cuda`] where it was reset or destroyed, or where the driver has shut down; from then on for good.
    pub fn check_alive(&self) -> Result<(), Error> {
        if self.gone.load(Ordering::Acquire) {
            return Err(self.lost("cuCtxGetId", CONTEXT_IS_DESTROYED));
        }
        match self.ask_number() {
            Some(Ok(number)) if Some(number) != self.number => Err(self.lost("cuCtxGetId", CONTEXT_IS_DESTROYED)),
            Some(Err(Error::Cuda { call, code, .. })) if GONE.contains(&code) => Err(self.lost(call, code)),
            Some(known) => known.map(drop),
            None if self.primary => self.check_active(),
            None => Ok(()),
        }
    }

    /// What a driver without numbers knows of a primary context.
    fn check_active(&self) -> Result<(), Error> {
        const CALL: &str = "cuDevicePrimaryCtxGetState";
        let (mut flags, mut active) = (0, 0);
        // SAFETY: the pointers are to live integers.
        match unsafe { (self.driver.table.primary_state)(self.device, &mut flags, &mut active) } {
            SUCCESS if active == 0 => Err(self.lost(CALL, CONTEXT_IS_DESTROYED)),
            code if GONE.contains(&code) => Err(self.lost(CALL, code)),
            code => self.driver.check(CALL, code),
        }
    }

    /// Whether it was found to be gone.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether the device is lost, and the context with it: nobody says when what ran there has stopped.
    pub fn is_lost(&self) -> bool {
        self.check_alive().is_err() && !self.is_gone()
    }

    fn lost(&self, call: &'static str, code: c_int) -> Error {
        self.gone.store(true, Ordering::Release);
        let (device, raw) = (self.device, self.raw);
        let text = match code {
            DEINITIALIZED => {
                format!("the CUDA driver is shutting down, and context {raw:p} of device {device} is gone")
            }
            _ => format!("context {raw:p} of device {device} is gone: it was reset (cudaDeviceReset) or destroyed"),
        };
        Error::Cuda { call, code, text }
    }

    /// Whether it is the calling thread's current context.
    pub(super) fn is_current(&self) -> bool {
        current(self.driver).is_ok_and(|current| current == self.raw)
    }

    /// By what contexts of the process are told apart, also from those that are gone.
    pub fn key(&self) -> ContextKey {
        (self.raw.addr(), self.number)
    }

    /// Checks that a stream is one of this context, before a call on it. Default streams are those of this context,
    /// unless another context of its device is current, which has streams of the same names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a stream of another context, which is named; what the driver gives for no stream.
    pub fn check_stream(&self, stream: Stream) -> Result<(), Error> {
        let mut owner = null_mut();
        if stream.is_default() {
            owner = current(self.driver)?;
            if owner.is_null() || owner == self.raw || device_of_current(self.driver)? != self.device {
                return Ok(());
            }
        } else {
            // SAFETY: the pointer is to a live variable; the driver checks the stream.
            let code = unsafe { (self.driver.table.stream_context)(stream.raw(), &mut owner) };
            self.driver.check("cuStreamGetCtx", code)?;
        }
        if owner == self.raw {
            return Ok(());
        }
        let (stream, raw, device) = (stream.0, self.raw, self.device);
        let other =
            self.device_of(owner).map_or_else(|| "an unknown device".to_string(), |device| format!("device {device}"));
        Err(Error::InvalidArgument(format!(
            "stream {stream:#x} belongs to CUDA context {owner:p} of {other}, and the communicator to context {raw:p} of device \
             {device}"
        )))
    }

    /// The ordinal of the device of a context.
    fn device_of(&self, context: CUcontext) -> Option<i32> {
        // SAFETY: the driver checks the context.
        if unsafe { (self.driver.table.ctx_push)(context) } != SUCCESS {
            return None;
        }
        let device = device_of_current(self.driver);
        // SAFETY: the pointer is to a live variable; the context was pushed above.
        unsafe { (self.driver.table.ctx_pop)(&mut null_mut()) };
        device.ok()
    }

    /// Fills device memory with zeroes and waits for it. The range must be an allocation of ours.
    pub fn zero(&self, address: u64, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range; the stream is ours.
        let code = unsafe { (self.driver.table.set_bytes)(address, 0, bytes, self.setup) };
        self.driver.check("cuMemsetD8Async", code)?;
        self.finish_setup()
    }

    /// Copies host bytes to device memory and waits for it. The range must be an allocation of ours.
    pub fn upload(&self, address: u64, data: &[u8]) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range; the source lives until the wait below.
        let code = unsafe { (self.driver.table.copy_to_device)(address, data.as_ptr().cast(), data.len(), self.setup) };
        self.driver.check("cuMemcpyHtoDAsync", code)?;
        self.finish_setup()
    }

    /// Copies device memory to the host and waits for it. The range must be an allocation of ours.
    pub fn download(&self, data: &mut [u8], address: u64) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range; the destination lives until the wait below.
        let code =
            unsafe { (self.driver.table.copy_to_host)(data.as_mut_ptr().cast(), address, data.len(), self.setup) };
        self.driver.check("cuMemcpyDtoHAsync", code)?;
        self.finish_setup()
    }

    fn finish_setup(&self) -> Result<(), Error> {
        // SAFETY: the stream is ours.
        self.driver.check("cuStreamSynchronize", unsafe { (self.driver.table.stream_sync)(self.setup) })
    }

    /// The context's own stream, which waits for no other.
    pub fn setup_stream(&self) -> Stream {
        Stream(self.setup as usize)
    }

    /// The device's ordinal in this process.
    pub fn device(&self) -> i32 {
        self.device
    }

    /// The driver that the context belongs to.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Makes the context current for the guard's life, and lifts stream-capture limits of the thread.
    ///
    /// # Errors
    /// As [`Context::check_alive`].
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        self.check_alive()?;
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the context is alive; the driver checks it once more.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.table.ctx_push)(self.raw) })?;
        // SAFETY: the pointer is to a live integer that holds a valid mode; it receives the old one.
        let code = unsafe { (self.driver.table.capture_mode)(&mut mode) };
        let entered = Entered { context: self, capture_mode: (code == SUCCESS).then_some(mode) };
        Ok(entered)
    }

    /// Makes the context current if it is not, without touching the capture mode: for launches, before which
    /// [`Context::check_alive`] was asked.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn enter_for_launch(&self) -> Result<Option<Entered<'_>>, Error> {
        if current(self.driver)? == self.raw {
            return Ok(None);
        }
        // SAFETY: the context is alive; the driver checks it once more.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.table.ctx_push)(self.raw) })?;
        Ok(Some(Entered { context: self, capture_mode: None }))
    }

    /// Copies device memory on a stream of the user's. The context must be current.
    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) -> Result<(), Error> {
        // SAFETY: the buffers are the user's; the driver checks the stream.
        let code = unsafe { (self.driver.table.copy_async)(to, from, bytes, stream.raw()) };
        self.driver.check("cuMemcpyDtoDAsync", code)
    }

    /// Records an event of the user's on a stream of the user's. The context must be current.
    pub fn record_user_event(&self, event: usize, stream: Stream) -> Result<(), Error> {
        // SAFETY: the driver checks both handles.
        let code = unsafe { (self.driver.table.event_record)(event as CUevent, stream.raw()) };
        self.driver.check("cuEventRecord", code)
    }

    /// The facts of this context's device that peers compare.
    pub fn facts(&self) -> Result<DeviceFacts, Error> {
        let uuid = uuid(self.driver, self.device)?;
        let nvml_device = nvml::facts(uuid).map_or(self.device, |facts| facts.index);
        Ok(DeviceFacts { uuid, bus_id: self.bus_id()?, capability: self.capability()?, nvml_device })
    }

    /// The device's compute capability, major × 10 + minor.
    pub(super) fn capability(&self) -> Result<i32, Error> {
        let major = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(major * 10 + minor)
    }

    pub(super) fn attribute(&self, which: CUdevice_attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { (self.driver.table.device_attribute)(&mut value, which, self.device) };
        self.driver.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    fn bus_id(&self) -> Result<u64, Error> {
        let mut text = [0 as c_char; 64];
        // SAFETY: the buffer is live and its length is passed, less one byte for a terminator.
        let code = unsafe { (self.driver.table.device_bus_id)(text.as_mut_ptr(), 63, self.device) };
        self.driver.check("cuDeviceGetPCIBusId", code)?;
        // SAFETY: the driver wrote a NUL-terminated string; the last byte is zero in any case.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        Ok(u64::from_str_radix(&digits, 16).unwrap_or(0))
    }

    /// The uuids of the devices of this process whose memory this device cannot reach. Of those that the process does
    /// not see (`CUDA_VISIBLE_DEVICES`) nothing is known.
    pub fn unreachable(&self) -> Result<Vec<[u8; 16]>, Error> {
        self.others(|other| self.can_reach(self.device, other).map(|reaches| !reaches))
    }

    /// The other devices of this process that reach this device's memory.
    pub(super) fn devices_that_reach(&self) -> Result<Vec<i32>, Error> {
        let reaches = |other: &i32| *other != self.device && self.can_reach(*other, self.device).unwrap_or(false);
        Ok((0..device_count()?).filter(reaches).collect())
    }

    /// Whether a device of this process can reach the memory of another one.
    fn can_reach(&self, device: c_int, memory_of: c_int) -> Result<bool, Error> {
        let mut yes = 0;
        // SAFETY: the pointer is to a live integer; both ordinals are in range.
        let code = unsafe { (self.driver.table.can_access_peer)(&mut yes, device, memory_of) };
        self.driver.check("cuDeviceCanAccessPeer", code).map(|()| yes != 0)
    }

    /// The uuids of the devices that this device reaches over NVLink, its own included. What tells is that atomics of
    /// one work in the memory of the other, which PCIe cannot do between devices; NVML knows of devices that this
    /// process does not see.
    pub fn linked(&self) -> Result<Vec<[u8; 16]>, Error> {
        let atomics = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let mut linked = self.others(|other| {
            let mut yes = 0;
            // SAFETY: the pointer is to a live integer; both ordinals are in range.
            let code = unsafe { (self.driver.table.peer_attribute)(&mut yes, atomics, self.device, other) };
            // A driver that cannot say does not vouch for it.
            Ok(code == SUCCESS && yes != 0)
        })?;
        let own = uuid(self.driver, self.device)?;
        let unseen = nvml::facts(own).unwrap_or_default().linked;
        linked.extend(unseen.into_iter().filter(|other| !linked.contains(other)).collect::<Vec<_>>());
        linked.push(own);
        Ok(linked)
    }

    /// The uuids of those other devices of the process of which the question is answered by yes.
    fn others(&self, question: impl Fn(c_int) -> Result<bool, Error>) -> Result<Vec<[u8; 16]>, Error> {
        let mut uuids = Vec::new();
        for other in 0..device_count()? {
            if other != self.device && question(other)? {
                uuids.push(uuid(self.driver, other)?);
            }
        }
        Ok(uuids)
    }

    /// Lets kernels of this context use memory of a context on a peer device of the same process.
    pub fn enable_peer(&self, peer: &Context) -> Result<(), Error> {
        // Two contexts of one device cannot reach each other, and do not try.
        if peer.device == self.device {
            return Ok(());
        }
        let _entered = self.enter()?;
        peer.check_alive()?;
        // SAFETY: the peer context is alive; the flags must be 0.
        match unsafe { (self.driver.table.enable_peer)(peer.raw, 0) } {
            PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.driver.check("cuCtxEnablePeerAccess", code),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !self.setup.is_null()
            && let Ok(_entered) = self.enter()
        {
            // SAFETY: the stream is ours and idle: every use of it waits for its end.
            unsafe { (self.driver.table.stream_destroy)(self.setup) };
        }
        if self.primary {
            // A reset leaves the number of retains as it is.
            // SAFETY: pairs with the retain; a failure at process exit has nobody to be told to.
            unsafe { (self.driver.table.primary_release)(self.device) };
        }
    }
}

/// The primary contexts that this library has retained, by device. A device's primary context has one handle for good.
static PRIMARIES: Mutex<BTreeMap<i32, usize>> = Mutex::new(BTreeMap::new());

/// Retains a device's primary context.
fn retain_primary(driver: &Driver, device: i32) -> Result<CUcontext, Error> {
    let mut raw: CUcontext = null_mut();
    // SAFETY: the pointer is to a live variable; the driver checks the ordinal.
    driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.table.primary_retain)(&mut raw, device) })?;
    PRIMARIES.lock().insert(device, raw.addr());
    Ok(raw)
}

/// The device of which a context is the primary one, as far as it was seen.
fn primary_device(context: CUcontext) -> Option<i32> {
    PRIMARIES.lock().iter().find(|(_, raw)| **raw == context.addr()).map(|(device, _)| *device)
}

/// A context that is current; dropping the guard restores what was current before.
pub struct Entered<'a> {
    context: &'a Context,
    capture_mode: Option<c_uint>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let table = &self.context.driver.table;
        if let Some(mut mode) = self.capture_mode {
            // SAFETY: the pointer is to a live integer that holds the mode the driver gave us.
            unsafe { (table.capture_mode)(&mut mode) };
        }
        let mut popped = null_mut();
        // SAFETY: the guard pushed this context on this thread; guards nest.
        unsafe { (table.ctx_pop)(&mut popped) };
    }
}
