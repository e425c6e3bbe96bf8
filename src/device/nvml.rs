//! NVML, which knows all devices of the host: also those that `CUDA_VISIBLE_DEVICES` hides from this process.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// NVML's soname.
const SONAME: &str = "libnvidia-ml.so.1";
/// `NVML_P2P_CAPS_INDEX_NVLINK`
const NVLINK: c_int = 2;
/// Bytes of a device's uuid as text (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_TEXT: usize = 96;

/// `nvmlDevice_t`
type NvmlDevice = *mut c_void;

/// The functions that this library calls.
struct Nvml {
    count: unsafe extern "C" fn(*mut c_uint) -> c_int,
    by_index: unsafe extern "C" fn(c_uint, *mut NvmlDevice) -> c_int,
    uuid: unsafe extern "C" fn(NvmlDevice, *mut c_char, c_uint) -> c_int,
    p2p_status: unsafe extern "C" fn(NvmlDevice, NvmlDevice, c_int, *mut c_int) -> c_int,
    // Kept so that the functions stay mapped.
    _library: Library,
}

/// What NVML knows of a device of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NvmlFacts {
    /// Its number among all devices of the host.
    pub index: i32,
    /// The uuids of the devices to which it has NVLink.
    pub linked: Vec<[u8; 16]>,
}

/// What NVML knows of the device with a uuid; none where it is not there, or does not know it. It is asked only where
/// `CUDA_VISIBLE_DEVICES` is set: else the driver knows all devices that NVML does.
pub(super) fn facts(own: [u8; 16]) -> Option<NvmlFacts> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    std::env::var_os("CUDA_VISIBLE_DEVICES")?;
    NVML.get_or_init(Nvml::load).as_ref()?.facts(own)
}

impl Nvml {
    fn load() -> Option<Nvml> {
        // SAFETY: loading the library of NVIDIA's driver; its initialisers are the driver's own.
        let library = unsafe { Library::open(Some(SONAME), RTLD_LAZY | RTLD_LOCAL) }.ok()?;
        // SAFETY: NVML declares the symbols with these signatures; once initialised, it stays so.
        unsafe {
            let init = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2").ok()?;
            let count = *library.get(b"nvmlDeviceGetCount_v2").ok()?;
            let by_index = *library.get(b"nvmlDeviceGetHandleByIndex_v2").ok()?;
            let uuid = *library.get(b"nvmlDeviceGetUUID").ok()?;
            let p2p_status = *library.get(b"nvmlDeviceGetP2PStatus").ok()?;
            (init() == 0).then_some(Nvml { count, by_index, uuid, p2p_status, _library: library })
        }
    }

    fn facts(&self, own: [u8; 16]) -> Option<NvmlFacts> {
        let devices = self.devices();
        let (index, (_, handle)) = devices.iter().enumerate().find(|(_, (uuid, _))| *uuid == own)?;
        let linked = devices.iter().filter(|(uuid, other)| *uuid != own && self.is_linked(*handle, *other));
        Some(NvmlFacts { index: index as i32, linked: linked.map(|(uuid, _)| *uuid).collect() })
    }

    /// All devices of the host, by their NVML numbers; those that this process may not look at have no uuid.
    fn devices(&self) -> Vec<([u8; 16], NvmlDevice)> {
        let mut count = 0;
        // SAFETY: the pointer is to a live number.
        if unsafe { (self.count)(&mut count) } != 0 {
            return Vec::new();
        }
        (0..count).map(|index| self.device(index).unwrap_or(([0; 16], null_mut()))).collect()
    }

    fn device(&self, index: c_uint) -> Option<([u8; 16], NvmlDevice)> {
        let (mut handle, mut text) = (null_mut(), [0 as c_char; UUID_TEXT]);
        // SAFETY: the pointers are to a live handle, and to a live buffer whose length is passed, less a terminator.
        let found = unsafe {
            (self.by_index)(index, &mut handle) == 0
                && (self.uuid)(handle, text.as_mut_ptr(), UUID_TEXT as c_uint - 1) == 0
        };
        // SAFETY: the last byte is zero in any case.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        found.then_some(())?;
        Some((parse(text.to_str().ok()?)?, handle))
    }

    fn is_linked(&self, one: NvmlDevice, other: NvmlDevice) -> bool {
        let mut status = -1;
        // SAFETY: handles of this library's, and the pointer is to a live number.
        !other.is_null() && unsafe { (self.p2p_status)(one, other, NVLINK, &mut status) } == 0 && status == 0
    }
}

/// The bytes of `GPU-8e5a…-…`.
fn parse(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.strip_prefix("GPU-")?.chars().filter(|digit| *digit != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn uuids() {
        let bytes = parse("GPU-736f6674-6375-6461-4000-800000000001").expect("a uuid");
        assert_eq!((&bytes[..8], bytes[15]), (&b"softcuda"[..], 1));
        for text in ["", "GPU-", "MIG-736f6674-6375-6461-4000-800000000001", "GPU-x36f6674-6375-6461-4000-800000000001"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
