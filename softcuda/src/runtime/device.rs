//! Devices: which there are, which is current, what they can do to each other.

use std::ffi::{c_char, c_int, c_uint};

use super::context::{self, call, check_device, current_device, in_context, primary, primary_state, without_context};
use super::error::{Code, INVALID_DEVICE, INVALID_VALUE, check, report};
use super::{Handle, Out, driver};

/// `cudaInitDeviceFlagsAreValid`.
const FLAGS_ARE_VALID: c_uint = 1;
/// `cudaDeviceMapHost`: always on, and reported as on.
const MAP_HOST: c_uint = 8;
/// `cudaDeviceMask`.
const DEVICE_FLAGS: c_uint = 0xff;

#[unsafe(export_name = "softcudart_cudaGetDeviceCount")]
extern "C" fn get_device_count(count: Out<c_int>) -> Code {
    without_context(|| check(driver::cuDeviceGetCount(count)))
}

#[unsafe(export_name = "softcudart_cudaGetDevice")]
extern "C" fn get_device(device: Out<c_int>) -> Code {
    without_context(|| {
        device.ok_or(INVALID_VALUE)?.write(current_device());
        Ok(())
    })
}

#[unsafe(export_name = "softcudart_cudaSetDevice")]
extern "C" fn set_device(device: c_int) -> Code {
    without_context(|| {
        check_device(device)?;
        context::activate(device)
    })
}

#[unsafe(export_name = "softcudart_cudaInitDevice")]
extern "C" fn init_device(device: c_int, device_flags: c_uint, flags: c_uint) -> Code {
    without_context(|| {
        check_device(device)?;
        if flags & FLAGS_ARE_VALID != 0 {
            set_flags(device, device_flags)?;
        }
        primary(device).map(|_| ())
    })
}

fn set_flags(device: c_int, flags: c_uint) -> Result<(), Code> {
    if flags & !DEVICE_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    check(driver::cuDevicePrimaryCtxSetFlags_v2(device, flags & !MAP_HOST))
}

#[unsafe(export_name = "softcudart_cudaSetDeviceFlags")]
extern "C" fn set_device_flags(flags: c_uint) -> Code {
    without_context(|| set_flags(current_device(), flags))
}

#[unsafe(export_name = "softcudart_cudaGetDeviceFlags")]
extern "C" fn get_device_flags(flags: Out<c_uint>) -> Code {
    without_context(|| {
        let (set, _) = primary_state(current_device())?;
        flags.ok_or(INVALID_VALUE)?.write(set | MAP_HOST);
        Ok(())
    })
}

#[unsafe(export_name = "softcudart_cudaDeviceGetAttribute")]
extern "C" fn device_get_attribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Code {
    without_context(|| check(driver::cuDeviceGetAttribute(value, attribute, device)))
}

#[unsafe(export_name = "softcudart_cudaDeviceSynchronize")]
extern "C" fn device_synchronize() -> Code {
    call(|| driver::cuCtxSynchronize())
}

/// Names of CUDA 2, which CUDA 12 still has.
#[unsafe(export_name = "softcudart12_cudaThreadSynchronize")]
extern "C" fn thread_synchronize() -> Code {
    device_synchronize()
}

#[unsafe(export_name = "softcudart12_cudaThreadExit")]
extern "C" fn thread_exit() -> Code {
    device_reset()
}

#[unsafe(export_name = "softcudart_cudaDeviceReset")]
extern "C" fn device_reset() -> Code {
    report(context::reset())
}

#[unsafe(export_name = "softcudart_cudaDeviceSetLimit")]
extern "C" fn device_set_limit(limit: c_int, value: usize) -> Code {
    call(|| driver::cuCtxSetLimit(limit, value))
}

#[unsafe(export_name = "softcudart_cudaDeviceGetLimit")]
extern "C" fn device_get_limit(value: Out<usize>, limit: c_int) -> Code {
    call(|| driver::cuCtxGetLimit(value, limit))
}

#[unsafe(export_name = "softcudart_cudaDeviceSetCacheConfig")]
extern "C" fn device_set_cache_config(config: c_int) -> Code {
    call(|| driver::cuCtxSetCacheConfig(config))
}

#[unsafe(export_name = "softcudart_cudaDeviceGetCacheConfig")]
extern "C" fn device_get_cache_config(config: Out<c_int>) -> Code {
    call(|| driver::cuCtxGetCacheConfig(config))
}

#[unsafe(export_name = "softcudart_cudaDeviceGetStreamPriorityRange")]
extern "C" fn stream_priority_range(least: Out<c_int>, greatest: Out<c_int>) -> Code {
    call(|| driver::cuCtxGetStreamPriorityRange(least, greatest))
}

/// # Safety
/// `bus_id` is a C string or NULL.
#[unsafe(export_name = "softcudart_cudaDeviceGetByPCIBusId")]
unsafe extern "C" fn device_by_pci_bus_id(device: Out<c_int>, bus_id: *const c_char) -> Code {
    // SAFETY: the caller's string goes to the driver as it is.
    without_context(|| check(unsafe { driver::cuDeviceGetByPCIBusId(device, bus_id) }))
}

/// # Safety
/// `bus_id` has room for `len` bytes, or is NULL.
#[unsafe(export_name = "softcudart_cudaDeviceGetPCIBusId")]
unsafe extern "C" fn pci_bus_id(bus_id: *mut c_char, len: c_int, device: c_int) -> Code {
    // SAFETY: the caller's buffer goes to the driver as it is.
    without_context(|| check(unsafe { driver::cuDeviceGetPCIBusId(bus_id, len, device) }))
}

#[unsafe(export_name = "softcudart_cudaDeviceCanAccessPeer")]
extern "C" fn can_access_peer(answer: Out<c_int>, device: c_int, peer: c_int) -> Code {
    without_context(|| check(driver::cuDeviceCanAccessPeer(answer, device, peer)))
}

/// The primary context of a device other than the current one.
fn peer_context(peer: c_int) -> Result<Handle, Code> {
    check_device(peer)?;
    if peer == current_device() { Err(INVALID_DEVICE) } else { primary(peer) }
}

#[unsafe(export_name = "softcudart_cudaDeviceEnablePeerAccess")]
extern "C" fn enable_peer_access(peer: c_int, flags: c_uint) -> Code {
    in_context(|| check(driver::cuCtxEnablePeerAccess(peer_context(peer)?, flags)))
}

#[unsafe(export_name = "softcudart_cudaDeviceDisablePeerAccess")]
extern "C" fn disable_peer_access(peer: c_int) -> Code {
    in_context(|| check(driver::cuCtxDisablePeerAccess(peer_context(peer)?)))
}

#[unsafe(export_name = "softcudart_cudaDeviceGetP2PAttribute")]
extern "C" fn p2p_attribute(value: Out<c_int>, attribute: c_int, src: c_int, dst: c_int) -> Code {
    without_context(|| check(driver::cuDeviceGetP2PAttribute(value, attribute, src, dst)))
}

/// Profiling is for tools that look at a GPU; there is nothing to switch on.
#[unsafe(export_name = "softcudart_cudaProfilerStart")]
extern "C" fn profiler_start() -> Code {
    without_context(|| Ok(()))
}

#[unsafe(export_name = "softcudart_cudaProfilerStop")]
extern "C" fn profiler_stop() -> Code {
    without_context(|| Ok(()))
}
