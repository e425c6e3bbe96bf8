//! Devices and their primary contexts.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::driver::{Driver, PEER_ACCESS_ALREADY_ENABLED, SUCCESS};
use super::image::Stream;
use crate::error::Error;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const ATTRIBUTE_CAPABILITY: (c_int, c_int) = (75, 76);
/// `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`.
const PEER_ATTRIBUTE_NATIVE_ATOMICS: c_int = 3;
/// `CU_STREAM_NON_BLOCKING`.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls that a capture of another kind would forbid are allowed.
const CAPTURE_MODE_RELAXED: c_int = 2;

/// The number of CUDA devices that this process sees.
pub fn device_count() -> Result<i32, Error> {
    let driver = Driver::get()?;
    let mut count = 0;
    // SAFETY: the pointer is to a live integer.
    driver.check("cuDeviceGetCount", unsafe { (driver.table.device_count)(&mut count) })?;
    Ok(count)
}

/// The ordinal of the calling thread's current device; 0 when no context is current, as in the
/// runtime API.
pub fn current_device() -> Result<i32, Error> {
    let driver = Driver::get()?;
    let mut context: *mut c_void = null_mut();
    // SAFETY: the pointer is to a live variable.
    driver.check("cuCtxGetCurrent", unsafe { (driver.table.ctx_current)(&mut context) })?;
    if context.is_null() {
        return Ok(0);
    }
    let mut device = 0;
    // SAFETY: a context is current; the pointer is to a live integer.
    driver.check("cuCtxGetDevice", unsafe { (driver.table.ctx_device)(&mut device) })?;
    Ok(device)
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
}

/// A retained primary context, with a stream of its own for set-up work. Dropping it releases both.
pub struct Context {
    driver: &'static Driver,
    device: i32,
    raw: *mut c_void,
    // Not blocking: set-up must not wait for the default stream, where a kernel may wait for a peer.
    setup: *mut c_void,
}

// SAFETY: a CUcontext may be used from any thread; the driver serialises access to it.
unsafe impl Send for Context {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    pub fn retain(device: i32) -> Result<Arc<Context>, Error> {
        let driver = Driver::get()?;
        let mut raw = null_mut();
        // SAFETY: the pointer is to a live variable; the driver checks the ordinal.
        driver.check("cuDevicePrimaryCtxRetain", unsafe { (driver.table.primary_retain)(&mut raw, device) })?;
        let mut context = Context { driver, device, raw, setup: null_mut() };
        let mut setup = null_mut();
        let entered = context.enter()?;
        // SAFETY: a context is current; the pointer is to a live variable.
        driver.check("cuStreamCreate", unsafe { (driver.table.stream_create)(&mut setup, STREAM_NON_BLOCKING) })?;
        drop(entered);
        context.setup = setup;
        Ok(Arc::new(context))
    }

    /// Fills device memory with zeroes and waits for it. The range must be an allocation of ours.
    pub(super) fn zero(&self, address: u64, bytes: usize) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range; the stream is ours.
        let code = unsafe { (self.driver.table.set_bytes)(address, 0, bytes, self.setup) };
        self.driver.check("cuMemsetD8Async", code)?;
        self.finish_setup()
    }

    /// Copies host bytes to device memory and waits for it. The range must be an allocation of ours.
    pub(super) fn upload(&self, address: u64, data: &[u8]) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range; the source lives until the wait below.
        let code = unsafe { (self.driver.table.copy_to_device)(address, data.as_ptr().cast(), data.len(), self.setup) };
        self.driver.check("cuMemcpyHtoDAsync", code)?;
        self.finish_setup()
    }

    /// Copies device memory to the host and waits for it. The range must be an allocation of ours.
    pub(super) fn download(&self, data: &mut [u8], address: u64) -> Result<(), Error> {
        let _entered = self.enter()?;
        // SAFETY: the caller vouches for the range; the destination lives until the wait below.
        let code = unsafe { (self.driver.table.copy_to_host)(data.as_mut_ptr().cast(), address, data.len(), self.setup) };
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

    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }

    /// Makes the context current for the guard's life, and lifts stream-capture limits of the thread.
    pub fn enter(&self) -> Result<Entered<'_>, Error> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the context is retained, so it is alive.
        self.driver.check("cuCtxPushCurrent", unsafe { (self.driver.table.ctx_push)(self.raw) })?;
        // SAFETY: the pointer is to a live integer that holds a valid mode; it receives the old one.
        let code = unsafe { (self.driver.table.capture_mode)(&mut mode) };
        let entered = Entered { context: self, capture_mode: (code == SUCCESS).then_some(mode) };
        Ok(entered)
    }

    /// Makes the context current if it is not, without touching the capture mode: for launches.
    pub fn enter_for_launch(&self) -> Result<Option<Entered<'_>>, Error> {
        let mut current = null_mut();
        // SAFETY: the pointer is to a live variable.
        self.driver.check("cuCtxGetCurrent", unsafe { (self.driver.table.ctx_current)(&mut current) })?;
        if current == self.raw {
            return Ok(None);
        }
        // SAFETY: the context is retained, so it is alive.
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
        let code = unsafe { (self.driver.table.event_record)(event as *mut c_void, stream.raw()) };
        self.driver.check("cuEventRecord", code)
    }

    /// The facts of this context's device that peers compare.
    pub fn facts(&self) -> Result<DeviceFacts, Error> {
        let mut uuid = [0; 16];
        // SAFETY: the pointer is to 16 live bytes.
        self.driver.check("cuDeviceGetUuid", unsafe { (self.driver.table.device_uuid)(&mut uuid, self.device) })?;
        Ok(DeviceFacts { uuid, bus_id: self.bus_id()?, capability: self.capability()? })
    }

    /// The device's compute capability, major × 10 + minor.
    pub(super) fn capability(&self) -> Result<i32, Error> {
        Ok(self.attribute(ATTRIBUTE_CAPABILITY.0)? * 10 + self.attribute(ATTRIBUTE_CAPABILITY.1)?)
    }

    pub(super) fn attribute(&self, number: c_int) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: the pointer is to a live integer.
        let code = unsafe { (self.driver.table.device_attribute)(&mut value, number, self.device) };
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

    /// The uuids of the devices of this process whose memory this device can reach, its own included.
    pub fn reachable(&self) -> Result<Vec<[u8; 16]>, Error> {
        self.peers(|other| {
            let mut yes = 0;
            // SAFETY: the pointer is to a live integer; both ordinals are in range.
            let code = unsafe { (self.driver.table.can_access_peer)(&mut yes, self.device, other) };
            self.driver.check("cuDeviceCanAccessPeer", code).map(|()| yes != 0)
        })
    }

    /// The uuids of the devices of this process that this device reaches over NVLink, its own included. What tells is
    /// that atomics of one work in the memory of the other, which PCIe cannot do between devices.
    pub fn linked(&self) -> Result<Vec<[u8; 16]>, Error> {
        self.peers(|other| {
            let mut yes = 0;
            // SAFETY: the pointer is to a live integer; both ordinals are in range.
            let code = unsafe { (self.driver.table.peer_attribute)(&mut yes, PEER_ATTRIBUTE_NATIVE_ATOMICS, self.device, other) };
            // A driver that cannot say does not vouch for it.
            Ok(code == SUCCESS && yes != 0)
        })
    }

    /// The uuid of this device, and of those other devices of the process of which the question is answered by yes.
    fn peers(&self, question: impl Fn(c_int) -> Result<bool, Error>) -> Result<Vec<[u8; 16]>, Error> {
        let mut uuids = Vec::new();
        for other in 0..device_count()? {
            if other != self.device && !question(other)? {
                continue;
            }
            let mut uuid = [0; 16];
            // SAFETY: the pointer is to 16 live bytes.
            self.driver.check("cuDeviceGetUuid", unsafe { (self.driver.table.device_uuid)(&mut uuid, other) })?;
            uuids.push(uuid);
        }
        Ok(uuids)
    }

    /// Lets kernels of this device use memory of a peer device of the same process.
    pub fn enable_peer(&self, peer: &Context) -> Result<(), Error> {
        if peer.device == self.device {
            return Ok(());
        }
        let _entered = self.enter()?;
        // SAFETY: the peer context is retained; the flags must be 0.
        match unsafe { (self.driver.table.enable_peer)(peer.raw, 0) } {
            PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.driver.check("cuCtxEnablePeerAccess", code),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(_entered) = self.enter() {
            // SAFETY: the stream is ours and idle: every use of it waits for its end.
            unsafe { (self.driver.table.stream_destroy)(self.setup) };
        }
        // SAFETY: pairs with the retain; a failure at process exit has nobody to be told to.
        unsafe { (self.driver.table.primary_release)(self.device) };
    }
}

/// A context that is current; dropping the guard restores what was current before.
pub struct Entered<'a> {
    context: &'a Context,
    capture_mode: Option<c_int>,
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
