//! What is between devices: what `SOFTCUDA_LINKS` says. No device shows single NVLinks.

use super::error::{INVALID_ARGUMENT, NOT_SUPPORTED};
use super::{Device, Outcome, Return, between, boundary, ordinal, put};
use crate::abi::Out;
use crate::config::Path;
use std::ffi::{c_int, c_uint, c_void};

/// `NVML_NVLINK_MAX_LINKS`
const MAX_LINKS: c_uint = 18;
/// `NVML_P2P_STATUS_OK`, `_NOT_SUPPORTED`
const OK: c_int = 0;
const NOT: c_int = 5;

/// A device, a number that may be a link's, and the answer of a GPU without any.
fn no_link(device: Device, link: c_uint) -> Outcome {
    ordinal(device)?;
    Err(if link < MAX_LINKS { NOT_SUPPORTED } else { INVALID_ARGUMENT })
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetNvLinkState")]
extern "C" fn nvmlDeviceGetNvLinkState(device: Device, link: c_uint, _active: Out<c_int>) -> Return {
    boundary(|| no_link(device, link))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetNvLinkVersion")]
extern "C" fn nvmlDeviceGetNvLinkVersion(device: Device, link: c_uint, _version: Out<c_uint>) -> Return {
    boundary(|| no_link(device, link))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetNvLinkRemotePciInfo")]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo(device: Device, link: c_uint, _pci: *mut c_void) -> Return {
    boundary(|| no_link(device, link))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetNvLinkRemotePciInfo_v2")]
extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, link: c_uint, _pci: *mut c_void) -> Return {
    boundary(|| no_link(device, link))
}

#[unsafe(export_name = "softnvml_nvmlDeviceGetNvLinkCapability")]
extern "C" fn nvmlDeviceGetNvLinkCapability(device: Device, link: c_uint, _which: c_int, _to: Out<c_uint>) -> Return {
    boundary(|| no_link(device, link))
}

/// Reading, writing, NVLink, atomics, PCI (`nvmlGpuP2PCapsIndex_t`).
#[unsafe(export_name = "softnvml_nvmlDeviceGetP2PStatus")]
extern "C" fn nvmlDeviceGetP2PStatus(device: Device, peer: Device, which: c_int, status: Out<c_int>) -> Return {
    boundary(|| {
        let (device, peer) = (ordinal(device)?, ordinal(peer)?);
        if device == peer {
            return Err(INVALID_ARGUMENT);
        }
        let link = between(device, peer)?;
        let works = match which {
            0 | 1 => link.has_access(),
            2 | 3 => link.path == Path::NvLink,
            4 => true,
            _ => return Err(INVALID_ARGUMENT),
        };
        put(status, if works { OK } else { NOT })
    })
}
