//! `cudaGetDeviceProperties`: the driver's attributes as one struct, in the layout of CUDA 13.

use std::ffi::c_int;

use super::context::{check_device, fetch, without_context};
use super::error::{Code, INVALID_VALUE, check};
use super::{Out, driver};

/// `struct cudaDeviceProp`. Consecutive C members of one type are an array where one loop fills
/// them; the comments name the members.
#[repr(C)]
struct DeviceProp {
    name: [u8; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_device_node_mask: u32,
    total_global_mem: usize,
    shared_mem_per_block: usize,
    /// regsPerBlock, warpSize
    registers_and_warp: [c_int; 2],
    mem_pitch: usize,
    /// maxThreadsPerBlock, maxThreadsDim, maxGridSize
    limits: [c_int; 7],
    total_const_mem: usize,
    /// major, minor
    capability: [c_int; 2],
    texture_alignment: usize,
    texture_pitch_alignment: usize,
    /// multiProcessorCount, integrated, canMapHostMemory
    processor: [c_int; 3],
    /// maxTexture1D … maxTextureCubemapLayered
    textures: [c_int; 25],
    /// maxSurface1D … maxSurfaceCubemapLayered
    surfaces: [c_int; 14],
    surface_alignment: usize,
    /// concurrentKernels … localL1CacheSupported
    features: [c_int; 15],
    shared_mem_per_multiprocessor: usize,
    /// regsPerMultiprocessor … cooperativeLaunch
    memory_features: [c_int; 10],
    shared_mem_per_block_optin: usize,
    /// pageableMemoryAccessUsesHostPageTables … accessPolicyMaxWindowSize
    host_features: [c_int; 4],
    reserved_shared_mem_per_block: usize,
    /// hostRegisterSupported … hostNumaMultinodeIpcSupported
    interop: [c_int; 20],
    reserved: [c_int; 56],
}

/// The `CUdevice_attribute`s of each run of members, in the struct's order.
pub(super) mod attributes {
    use std::ffi::c_int;

    pub(in crate::runtime) const REGISTERS_AND_WARP: [c_int; 2] = [12, 10];
    pub(in crate::runtime) const LIMITS: [c_int; 7] = [1, 2, 3, 4, 5, 6, 7];
    pub(in crate::runtime) const CAPABILITY: [c_int; 2] = [75, 76];
    pub(in crate::runtime) const PROCESSOR: [c_int; 3] = [16, 18, 19];
    pub(in crate::runtime) const TEXTURES: [c_int; 25] =
        [21, 77, 22, 23, 73, 74, 70, 71, 72, 45, 46, 24, 25, 26, 47, 48, 49, 52, 42, 43, 27, 28, 29, 53, 54];
    pub(in crate::runtime) const SURFACES: [c_int; 14] = [55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68];
    pub(in crate::runtime) const FEATURES: [c_int; 15] = [31, 32, 33, 34, 50, 35, 40, 41, 37, 38, 108, 39, 78, 79, 80];
    pub(in crate::runtime) const MEMORY_FEATURES: [c_int; 10] = [82, 83, 84, 85, 86, 88, 89, 90, 91, 95];
    pub(in crate::runtime) const HOST_FEATURES: [c_int; 4] = [100, 101, 106, 109];
    pub(in crate::runtime) const INTEROP: [c_int; 20] =
        [99, 112, 113, 114, 115, 116, 117, 118, 119, 121, 125, 120, 129, 130, 131, 133, 134, 139, 140, 143];
}

/// One attribute; what the driver does not know is 0, "has none".
pub(super) fn number(device: c_int, attribute: c_int) -> c_int {
    fetch(|value| driver::cuDeviceGetAttribute(value, attribute, device)).unwrap_or(0)
}

/// Several of them.
pub(super) fn numbers<const N: usize>(device: c_int, attributes: [c_int; N]) -> [c_int; N] {
    attributes.map(|attribute| number(device, attribute))
}

/// An attribute whose member is a `size_t`.
pub(super) fn size(device: c_int, attribute: c_int) -> usize {
    usize::try_from(number(device, attribute)).unwrap_or(0)
}

/// The device's name as C has it.
pub(super) fn name(device: c_int) -> Result<[u8; 256], Code> {
    let mut name = [0; 256];
    // SAFETY: the length is the array's.
    check(unsafe { driver::cuDeviceGetName(name.as_mut_ptr().cast(), 256, device) })?;
    Ok(name)
}

fn properties(device: c_int) -> Result<DeviceProp, Code> {
    Ok(DeviceProp {
        name: name(device)?,
        uuid: fetch(|uuid| driver::cuDeviceGetUuid_v2(uuid, device))?,
        luid: [0; 8], // Windows only
        luid_device_node_mask: 0,
        total_global_mem: fetch(|bytes| driver::cuDeviceTotalMem_v2(bytes, device))?,
        shared_mem_per_block: size(device, 8),
        registers_and_warp: numbers(device, attributes::REGISTERS_AND_WARP),
        mem_pitch: size(device, 11),
        limits: numbers(device, attributes::LIMITS),
        total_const_mem: size(device, 9),
        capability: numbers(device, attributes::CAPABILITY),
        texture_alignment: size(device, 14),
        texture_pitch_alignment: size(device, 51),
        processor: numbers(device, attributes::PROCESSOR),
        textures: numbers(device, attributes::TEXTURES),
        surfaces: numbers(device, attributes::SURFACES),
        surface_alignment: size(device, 30),
        features: numbers(device, attributes::FEATURES),
        shared_mem_per_multiprocessor: size(device, 81),
        memory_features: numbers(device, attributes::MEMORY_FEATURES),
        shared_mem_per_block_optin: size(device, 97),
        host_features: numbers(device, attributes::HOST_FEATURES),
        reserved_shared_mem_per_block: size(device, 111),
        interop: numbers(device, attributes::INTEROP),
        reserved: [0; 56],
    })
}

#[unsafe(export_name = "softcudart13_cudaGetDeviceProperties")]
extern "C" fn get_device_properties(properties_out: Out<DeviceProp>, device: c_int) -> Code {
    without_context(|| {
        let to = properties_out.ok_or(INVALID_VALUE)?;
        check_device(device)?;
        to.write(properties(device)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The numbers are NVIDIA's header's, for x86-64; `tests/headers.rs` holds the C header
    /// against it.
    #[test]
    fn the_layout_is_cudas() {
        let offsets = [
            (offset_of!(DeviceProp, name), 0),
            (offset_of!(DeviceProp, uuid), 256),
            (offset_of!(DeviceProp, total_global_mem), 288),
            (offset_of!(DeviceProp, registers_and_warp), 304),
            (offset_of!(DeviceProp, mem_pitch), 312),
            (offset_of!(DeviceProp, limits), 320),
            (offset_of!(DeviceProp, total_const_mem), 352),
            (offset_of!(DeviceProp, capability), 360),
            (offset_of!(DeviceProp, texture_alignment), 368),
            (offset_of!(DeviceProp, processor), 384),
            (offset_of!(DeviceProp, textures), 396),
            (offset_of!(DeviceProp, surfaces), 496),
            (offset_of!(DeviceProp, surface_alignment), 552),
            (offset_of!(DeviceProp, features), 560),
            (offset_of!(DeviceProp, shared_mem_per_multiprocessor), 624),
            (offset_of!(DeviceProp, memory_features), 632),
            (offset_of!(DeviceProp, shared_mem_per_block_optin), 672),
            (offset_of!(DeviceProp, host_features), 680),
            (offset_of!(DeviceProp, reserved_shared_mem_per_block), 696),
            (offset_of!(DeviceProp, interop), 704),
            (offset_of!(DeviceProp, reserved), 784),
        ];
        assert!(offsets.iter().all(|(ours, cudas)| ours == cudas), "{offsets:?}");
        assert_eq!(size_of::<DeviceProp>(), 1008);
    }
}
