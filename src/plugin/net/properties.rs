//! What plug-ins say of their devices: the structures of versions 6 to 12, as C lays them out, and what becomes of
//! them.

use std::ffi::{CStr, c_char, c_int};
use std::mem::{offset_of, size_of};

use crate::plugin::network::NetProperties;

/// The most bytes of a message of a plug-in that does not say.
pub const UNSAID_MAX_BYTES: usize = 1 << 30;
/// More than this no plug-in may say.
const MAX_BYTES: usize = 1 << 40;
/// What a device needs nothing special in kernels for.
const DEVICE_HOST: c_int = 0;

#[repr(C)]
struct PropertiesV6 {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    pointers: c_int,
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    max_recvs: c_int,
}

#[repr(C)]
struct PropertiesV7 {
    base: PropertiesV6,
    device_type: c_int,
    device_version: c_int,
}

#[repr(C)]
struct PropertiesV8 {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    pointers: c_int,
    global_registration: c_int,
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    max_recvs: c_int,
    device_type: c_int,
    device_version: c_int,
}

/// What versions 9 and 10 begin with, and all after them.
#[repr(C)]
struct PropertiesHead {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    pointers: c_int,
    global_registration: c_int,
    force_flush: c_int,
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    max_recvs: c_int,
    device_type: c_int,
    device_version: c_int,
}

/// Physical devices of a virtual one.
#[repr(C)]
struct VirtualDevice<const N: usize> {
    count: c_int,
    devices: [c_int; N],
}

#[repr(C)]
struct PropertiesV9 {
    head: PropertiesHead,
    physical: VirtualDevice<4>,
    max_p2p_bytes: usize,
    max_coll_bytes: usize,
}

#[repr(C)]
struct PropertiesV11 {
    base: PropertiesV9,
    max_multi_request: c_int,
}

#[repr(C)]
struct PropertiesV12 {
    head: PropertiesHead,
    physical: VirtualDevice<8>,
    max_p2p_bytes: usize,
    max_coll_bytes: usize,
    max_multi_request: c_int,
    rail: i16,
    plane: i16,
}

const _: () = {
    assert!(size_of::<PropertiesV6>() == 48 && offset_of!(PropertiesV6, max_recvs) == 44);
    assert!(offset_of!(PropertiesV6, pointers) == 24 && offset_of!(PropertiesV6, speed) == 28);
    assert!(offset_of!(PropertiesV6, port) == 32 && offset_of!(PropertiesV6, latency) == 36);
    assert!(size_of::<PropertiesV7>() == 56);
    assert!(offset_of!(PropertiesV7, device_type) == 48 && offset_of!(PropertiesV7, device_version) == 52);
    assert!(size_of::<PropertiesV8>() == 64 && offset_of!(PropertiesV8, global_registration) == 28);
    assert!(offset_of!(PropertiesV8, speed) == 32 && offset_of!(PropertiesV8, latency) == 40);
    assert!(offset_of!(PropertiesV8, max_recvs) == 48 && offset_of!(PropertiesV8, device_version) == 56);
    assert!(offset_of!(PropertiesHead, force_flush) == 32 && offset_of!(PropertiesHead, speed) == 36);
    assert!(offset_of!(PropertiesHead, latency) == 44 && offset_of!(PropertiesHead, max_recvs) == 52);
    assert!(offset_of!(PropertiesHead, device_version) == 60 && size_of::<PropertiesHead>() == 64);
    assert!(size_of::<VirtualDevice<4>>() == 20 && size_of::<VirtualDevice<8>>() == 36);
    assert!(size_of::<PropertiesV9>() == 104 && offset_of!(PropertiesV9, physical) == 64);
    assert!(offset_of!(PropertiesV9, max_p2p_bytes) == 88 && offset_of!(PropertiesV9, max_coll_bytes) == 96);
    assert!(size_of::<PropertiesV11>() == 112 && offset_of!(PropertiesV11, max_multi_request) == 104);
    assert!(size_of::<PropertiesV12>() == 128 && offset_of!(PropertiesV12, max_p2p_bytes) == 104);
    assert!(offset_of!(PropertiesV12, max_coll_bytes) == 112 && offset_of!(PropertiesV12, max_multi_request) == 120);
    assert!(offset_of!(PropertiesV12, rail) == 124 && offset_of!(PropertiesV12, plane) == 126);
};

/// Room for what `getProperties` of any version writes, and of one that writes more than it should.
#[repr(C, align(16))]
pub struct PropertiesBuffer([u8; 256]);

impl PropertiesBuffer {
    pub fn new() -> PropertiesBuffer {
        PropertiesBuffer([0; 256])
    }

    pub fn as_mut_ptr(&mut self) -> *mut std::ffi::c_void {
        self.0.as_mut_ptr().cast()
    }

    /// What a plug-in of a version has written.
    ///
    /// # Errors
    /// Why the device cannot be used.
    ///
    /// # Safety
    /// `getProperties` of that version has succeeded with it, and its strings are still there.
    pub unsafe fn read(&self, version: u32) -> Result<NetProperties, String> {
        let at = self.0.as_ptr();
        // SAFETY: the buffer is larger than any of the structures, aligned for them, and any bytes are valid for them.
        let (head, max_bytes) = unsafe {
            match version {
                6 => ((&*at.cast::<PropertiesV6>()).head(DEVICE_HOST, 0), UNSAID_MAX_BYTES),
                7 => {
                    let PropertiesV7 { base, device_type, device_version } = &*at.cast::<PropertiesV7>();
                    (base.head(*device_type, *device_version), UNSAID_MAX_BYTES)
                }
                8 => ((&*at.cast::<PropertiesV8>()).head(), UNSAID_MAX_BYTES),
                9 | 10 => {
                    let found = &*at.cast::<PropertiesV9>();
                    (found.head.copy(), found.max_p2p_bytes)
                }
                11 => {
                    let found = &(*at.cast::<PropertiesV11>()).base;
                    (found.head.copy(), found.max_p2p_bytes)
                }
                _ => {
                    let found = &*at.cast::<PropertiesV12>();
                    (found.head.copy(), found.max_p2p_bytes)
                }
            }
        };
        // SAFETY: the strings are there.
        unsafe { head.checked(max_bytes) }
    }
}

impl PropertiesV6 {
    fn head(&self, device_type: c_int, device_version: c_int) -> PropertiesHead {
        let PropertiesV6 { name, pci_path, guid, pointers, speed, port, latency, max_comms, max_recvs } = *self;
        let (global_registration, force_flush) = (0, 0);
        PropertiesHead {
            name,
            pci_path,
            guid,
            pointers,
            global_registration,
            force_flush,
            speed,
            port,
            latency,
            max_comms,
            max_recvs,
            device_type,
            device_version,
        }
    }
}

impl PropertiesV8 {
    fn head(&self) -> PropertiesHead {
        let PropertiesV8 { name, pci_path, guid, pointers, speed, port, latency, max_comms, max_recvs, .. } = *self;
        let old = PropertiesV6 { name, pci_path, guid, pointers, speed, port, latency, max_comms, max_recvs };
        PropertiesHead {
            global_registration: self.global_registration,
            ..old.head(self.device_type, self.device_version)
        }
    }
}

impl PropertiesHead {
    fn copy(&self) -> PropertiesHead {
        PropertiesHead { ..*self }
    }

    /// # Safety
    /// The strings are there, or NULL.
    unsafe fn checked(&self, max_bytes: usize) -> Result<NetProperties, String> {
        // SAFETY: the caller says so.
        let text =
            |at: *const c_char| (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned());
        let pointers = u32::try_from(self.pointers).unwrap_or(0);
        let name = text(self.name).unwrap_or_else(|| "?".to_string());
        if pointers & NetProperties::HOST == 0 {
            return Err(format!(
                "device {name} does not take memory of the host (ptrSupport {:#x} lacks NCCL_PTR_HOST)",
                self.pointers
            ));
        }
        if self.device_type != DEVICE_HOST {
            return Err(format!(
                "device {name} needs kernels to unpack what it receives (netDeviceType {}), which these do not",
                self.device_type
            ));
        }
        if !(1..=MAX_BYTES).contains(&max_bytes) {
            return Err(format!("device {name} says maxP2pBytes {max_bytes}; 1 to {MAX_BYTES} makes sense"));
        }
        let count = |value: c_int| u32::try_from(value).unwrap_or(0).max(1);
        Ok(NetProperties {
            name,
            pci_path: text(self.pci_path).filter(|path| !path.is_empty()),
            guid: self.guid,
            pointers,
            global_registration: self.global_registration != 0,
            force_flush: self.force_flush != 0,
            speed: u32::try_from(self.speed).unwrap_or(0),
            port: self.port,
            latency: self.latency,
            max_connections: count(self.max_comms),
            max_receives: count(self.max_recvs),
            max_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a plug-in of a version would write, with some bytes replaced.
    fn written(changes: &[(usize, &[u8])]) -> PropertiesBuffer {
        let mut buffer = PropertiesBuffer::new();
        for (at, bytes) in changes {
            buffer.0[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        buffer
    }

    fn read(version: u32, changes: &[(usize, &[u8])]) -> Result<NetProperties, String> {
        let name = c"net7".as_ptr().addr().to_ne_bytes();
        let all: Vec<(usize, &[u8])> = [(0, &name[..])].into_iter().chain(changes.iter().copied()).collect();
        // SAFETY: the only string is a constant.
        unsafe { written(&all).read(version) }
    }

    #[test]
    fn fields_are_found_where_each_version_has_them() {
        let (host, speed, mega, flag) = (1i32.to_ne_bytes(), 25_000i32.to_ne_bytes(), (1u64 << 20).to_ne_bytes(), [1]);
        let device = read(6, &[(24, &host), (28, &speed)]).unwrap();
        assert_eq!((device.name.as_str(), device.speed, device.max_bytes), ("net7", 25_000, 1 << 30));
        assert!(!device.global_registration && !device.force_flush && device.pci_path.is_none());
        let device = read(8, &[(24, &host), (28, &flag), (32, &speed)]).unwrap();
        assert_eq!((device.global_registration, device.speed, device.max_receives), (true, 25_000, 1));
        for (version, max_at) in [(9, 88), (10, 88), (11, 88), (12, 104)] {
            let device = read(version, &[(24, &host), (32, &flag), (36, &speed), (max_at, &mega)]).unwrap();
            assert_eq!((device.force_flush, device.speed, device.max_bytes), (true, 25_000, 1 << 20));
        }
    }

    #[test]
    fn devices_that_cannot_be_used_say_why() {
        let (host, cuda, one) = (1i32.to_ne_bytes(), 2i32.to_ne_bytes(), 1i32.to_ne_bytes());
        assert!(read(7, &[(24, &cuda)]).unwrap_err().contains("net7 does not take memory of the host"));
        assert!(read(7, &[(24, &host), (48, &one)]).unwrap_err().contains("netDeviceType 1"));
        assert!(read(12, &[(24, &host)]).unwrap_err().contains("maxP2pBytes 0"));
        let much = ((1u64 << 40) + 1).to_ne_bytes();
        assert!(read(9, &[(24, &host), (88, &much)]).unwrap_err().contains("maxP2pBytes 1099511627777"));
    }
}
