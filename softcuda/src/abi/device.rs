//! Devices and peers.

use super::{CuResult, In, Out, boundary, put_text};
use crate::config::Path;
use crate::device::{self, attributes};
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::identity;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// What `cuDeviceGetName` says.
pub const NAME: &str = "softcuda device";

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> CuResult {
    boundary(|| {
        Driver::get()?.device(ordinal)?;
        device.set(ordinal)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> CuResult {
    boundary(|| count.set(Driver::get()?.devices.len() as c_int))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: c_int) -> CuResult {
    boundary(|| {
        Driver::get()?.device(device)?;
        put_text(name, length, NAME)
    })
}

fn get_uuid(uuid: Out<[u8; 16]>, device: c_int) -> Outcome {
    uuid.set(identity::uuid(Driver::get()?.device(device)?.ordinal))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) -> CuResult {
    boundary(|| get_uuid(uuid, device))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) -> CuResult {
    boundary(|| get_uuid(uuid, device))
}

/// Windows only.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetLuid(_luid: *mut c_char, _mask: *mut c_uint, _device: c_int) -> CuResult {
    boundary(|| Err(CudaError::NOT_SUPPORTED))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> CuResult {
    boundary(|| bytes.set(Driver::get()?.device(device)?.total as usize))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> CuResult {
    boundary(|| {
        let device = Driver::get()?.device(device)?;
        value.set(attributes::value(device, attribute).ok_or(CudaError::INVALID_VALUE)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) -> CuResult {
    boundary(|| {
        Driver::get()?.device(device)?;
        major.set(device::COMPUTE_CAPABILITY.0)?;
        minor.set(device::COMPUTE_CAPABILITY.1)
    })
}

/// `CUdevprop`
#[repr(C)]
struct Properties {
    max_threads_per_block: c_int,
    max_block: [c_int; 3],
    max_grid: [c_int; 3],
    shared_per_block: c_int,
    total_constant: c_int,
    warp: c_int,
    pitch: c_int,
    registers: c_int,
    clock: c_int,
    texture_align: c_int,
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetProperties(properties: *mut c_void, device: c_int) -> CuResult {
    boundary(|| {
        let device = Driver::get()?.device(device)?;
        let of = |attribute| attributes::value(device, attribute).unwrap_or(0);
        Out(properties.cast::<Properties>()).set(Properties {
            max_threads_per_block: of(1),
            max_block: [of(2), of(3), of(4)],
            max_grid: [of(5), of(6), of(7)],
            shared_per_block: of(8),
            total_constant: of(9),
            warp: of(10),
            pitch: of(11),
            registers: of(12),
            clock: of(13),
            texture_align: of(14),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(id: Out<c_char>, length: c_int, device: c_int) -> CuResult {
    boundary(|| {
        let text = identity::pci_text(Driver::get()?.device(device)?.ordinal);
        // Half a bus id would be another device's.
        if usize::try_from(length).is_ok_and(|room| room > text.len()) {
            put_text(id, length, &text)
        } else {
            Err(CudaError::INVALID_VALUE)
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetByPCIBusId(device: Out<c_int>, id: In<c_char>) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        device.check()?;
        let text = id.text()?.to_str().map_err(|_| CudaError::INVALID_VALUE)?;
        let (domain, bus, slot) = identity::parse_pci(text).ok_or(CudaError::INVALID_VALUE)?;
        let found = driver.devices.iter().find(|d| slot == 0 && identity::pci_place(d.ordinal) == (domain, bus));
        device.set(found.ok_or(CudaError::INVALID_DEVICE)?.index as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let (device, peer) = (driver.device(device)?, driver.device(peer)?);
        let reached = device.index != peer.index && driver.link(device.index, peer.ordinal).has_access();
        can.set(c_int::from(reached))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: c_int, source: c_int, to: c_int) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let (source, to) = (driver.device(source)?, driver.device(to)?);
        if source.index == to.index {
            return Err(CudaError::INVALID_DEVICE);
        }
        let link = driver.link(source.index, to.ordinal);
        // Rank 0 is the best; atomics work over NVLink, CUDA arrays do not exist.
        value.set(match attribute {
            1 => c_int::from(link.path != Path::NvLink),
            2 => c_int::from(link.has_access()),
            3 => c_int::from(link.path == Path::NvLink),
            4 | 5 => 0,
            _ => return Err(CudaError::INVALID_VALUE),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetExecAffinitySupport(supported: Out<c_int>, _kind: c_int, device: c_int) -> CuResult {
    boundary(|| {
        Driver::get()?.device(device)?;
        supported.set(0)
    })
}

/// There is nothing between a write and who reads it.
#[unsafe(no_mangle)]
extern "C" fn cuFlushGPUDirectRDMAWrites(_target: c_int, _scope: c_int) -> CuResult {
    boundary(|| Err(CudaError::NOT_SUPPORTED))
}
