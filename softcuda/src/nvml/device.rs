//! Devices.

use super::error::{INVALID_ARGUMENT, NOT_FOUND, VERSION_MISMATCH};
use super::{Device, Outcome, Return, boundary, count, handle, memory, ordinal, put, put_text};
use crate::abi::{DEVICE_NAME, In, Out};
use crate::device::COMPUTE_CAPABILITY;
use crate::driver::Driver;
use crate::identity;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

/// `NVML_DEVICE_ARCH_HOPPER`: what compute capability 9.0 is.
const ARCHITECTURE: c_uint = 9;

#[unsafe(export_name = "softnvml_nvmlDeviceGetCount")]
extern "C" fn nvmlDeviceGetCount(to: Out<c_uint>) -> Return {
    boundary(|| put(to, count()?))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetCount_v2")]
extern "C" fn nvmlDeviceGetCount_v2(to: Out<c_uint>) -> Return {
    boundary(|| put(to, count()?))
}

fn by_index(index: c_uint, to: Out<Device>) -> Outcome {
    let known = (index < count()?).then(|| handle(index));
    put(to, known.ok_or(INVALID_ARGUMENT)?)
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetHandleByIndex")]
extern "C" fn nvmlDeviceGetHandleByIndex(index: c_uint, to: Out<Device>) -> Return {
    boundary(|| by_index(index, to))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetHandleByIndex_v2")]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: Out<Device>) -> Return {
    boundary(|| by_index(index, to))
}

fn by_text(text: In<c_char>, to: Out<Device>, names: impl Fn(&str, u32) -> bool) -> Outcome {
    let count = count()?;
    let text = text.text().map_err(|_| INVALID_ARGUMENT)?.to_string_lossy();
    let found = (0..count).find(|ordinal| names(&text, *ordinal)).ok_or(NOT_FOUND)?;
    put(to, handle(found))
}

fn is_pci(text: &str, ordinal: u32) -> bool {
    let (domain, bus) = identity::pci_place(ordinal);
    identity::parse_pci(text) == Some((domain, bus, 0))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetHandleByPciBusId")]
extern "C" fn nvmlDeviceGetHandleByPciBusId(id: In<c_char>, to: Out<Device>) -> Return {
    boundary(|| by_text(id, to, is_pci))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetHandleByPciBusId_v2")]
extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(id: In<c_char>, to: Out<Device>) -> Return {
    boundary(|| by_text(id, to, is_pci))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetHandleByUUID")]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: In<c_char>, to: Out<Device>) -> Return {
    boundary(|| by_text(uuid, to, |text, ordinal| text == identity::uuid_text(ordinal)))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetIndex")]
extern "C" fn nvmlDeviceGetIndex(device: Device, to: Out<c_uint>) -> Return {
    boundary(|| put(to, ordinal(device)?))
}

/// There is no /dev/nvidia*; this is the number that it would have.
#[unsafe(export_name = "softnvml_nvmlDeviceGetMinorNumber")]
extern "C" fn nvmlDeviceGetMinorNumber(device: Device, to: Out<c_uint>) -> Return {
    boundary(|| put(to, ordinal(device)?))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetName")]
extern "C" fn nvmlDeviceGetName(device: Device, to: Out<c_char>, length: c_uint) -> Return {
    boundary(|| {
        ordinal(device)?;
        put_text(to, length, DEVICE_NAME)
    })
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetUUID")]
extern "C" fn nvmlDeviceGetUUID(device: Device, to: Out<c_char>, length: c_uint) -> Return {
    boundary(|| put_text(to, length, &identity::uuid_text(ordinal(device)?)))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetCudaComputeCapability")]
extern "C" fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<c_int>, minor: Out<c_int>) -> Return {
    boundary(|| {
        ordinal(device)?;
        put(major, COMPUTE_CAPABILITY.0)?;
        put(minor, COMPUTE_CAPABILITY.1)
    })
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetArchitecture")]
extern "C" fn nvmlDeviceGetArchitecture(device: Device, to: Out<c_uint>) -> Return {
    boundary(|| {
        ordinal(device)?;
        put(to, ARCHITECTURE)
    })
}

/// `nvmlPciInfo_t` as far as all its versions agree.
#[derive(Clone, Copy)]
#[repr(C)]
struct PciHead {
    /// `busId` once, `busIdLegacy` now.
    bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    /// Device and vendor: none.
    id: c_uint,
}

/// Its second version.
#[repr(C)]
struct PciV2 {
    head: PciHead,
    subsystem: c_uint,
    reserved: [c_uint; 4],
}

/// Its third.
#[repr(C)]
struct PciV3 {
    head: PciHead,
    subsystem: c_uint,
    /// With a domain of eight digits.
    bus_id: [u8; 32],
}

fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn pci_head(device: Device) -> Outcome<PciHead> {
    let ordinal = ordinal(device)?;
    let bus_id = text(&identity::pci_text(ordinal));
    let (domain, bus) = identity::pci_place(ordinal);
    Ok(PciHead { bus_id, domain, bus, device: 0, id: 0 })
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetPciInfo")]
extern "C" fn nvmlDeviceGetPciInfo(device: Device, to: *mut std::ffi::c_void) -> Return {
    boundary(|| put(Out::at(to.cast()), pci_head(device)?))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetPciInfo_v2")]
extern "C" fn nvmlDeviceGetPciInfo_v2(device: Device, to: *mut std::ffi::c_void) -> Return {
    boundary(|| put(Out::at(to.cast()), PciV2 { head: pci_head(device)?, subsystem: 0, reserved: [0; 4] }))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetPciInfo_v3")]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, to: *mut std::ffi::c_void) -> Return {
    boundary(|| {
        let head = pci_head(device)?;
        let long = format!("0000{}", identity::pci_text(ordinal(device)?));
        put(Out::at(to.cast()), PciV3 { head, subsystem: 0, bus_id: text(&long) })
    })
}

/// `nvmlMemory_t`: total, free, used. What other processes use is not known.
fn usage(device: Device) -> Outcome<[c_ulonglong; 3]> {
    let (ordinal, total) = (ordinal(device)?, memory()?);
    let ours = Driver::running().and_then(|driver| driver.devices.iter().find(|device| device.ordinal == ordinal));
    let free = ours.map_or(total, |device| device.free_memory().min(total));
    Ok([total, free, total - free])
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetMemoryInfo")]
extern "C" fn nvmlDeviceGetMemoryInfo(device: Device, to: Out<[c_ulonglong; 3]>) -> Return {
    boundary(|| put(to, usage(device)?))
}

/// `nvmlMemory_v2_t`
#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// Size and number of the version.
const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

#[unsafe(export_name = "softnvml_nvmlDeviceGetMemoryInfo_v2")]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: *mut std::ffi::c_void) -> Return {
    boundary(|| {
        let to = Out::at(to.cast::<MemoryV2>());
        let [total, free, used] = usage(device)?;
        if to.get().map_err(|_| INVALID_ARGUMENT)?.version != MEMORY_V2 {
            return Err(VERSION_MISMATCH);
        }
        put(to, MemoryV2 { version: MEMORY_V2, total, reserved: 0, free, used })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes are those of NVIDIA's `nvml.h`.
    #[test]
    fn layouts() {
        assert_eq!((size_of::<PciHead>(), size_of::<PciV2>(), size_of::<PciV3>()), (32, 52, 68));
        assert_eq!(MEMORY_V2, 0x0200_0028);
    }
}
