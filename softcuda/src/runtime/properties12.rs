//! `cudaGetDeviceProperties` in the layout of CUDA 12, which still has the clocks and the modes that CUDA 13 took out.

use std::ffi::c_int;

use super::Out;
use super::context::{check_device, fetch, without_context};
use super::driver;
use super::error::{Code, INVALID_VALUE};
use super::properties::{attributes, name, number, numbers, size};

/// `struct cudaDeviceProp` of CUDA 12, in the manner of `properties`.
#[repr(C)]
struct DeviceProp {
    name: [u8; 256],
    uuid: [u8; 16],
    luid: [u8; 8],
    luid_device_node_mask: u32,
    total_global_mem: usize,
    shared_mem_per_block: usize,
    registers_and_warp: [c_int; 2],
    mem_pitch: usize,
    limits: [c_int; 7],
    clock_rate: c_int,
    total_const_mem: usize,
    capability: [c_int; 2],
    texture_alignment: usize,
    texture_pitch_alignment: usize,
    /// deviceOverlap … computeMode
    processor: [c_int; 6],
    /// maxTexture1D, maxTexture1DMipmap, maxTexture1DLinear
    textures_1d: [c_int; 3],
    /// maxTexture2D … maxTextureCubemapLayered
    textures: [c_int; 23],
    surfaces: [c_int; 14],
    surface_alignment: usize,
    /// concurrentKernels … localL1CacheSupported
    features: [c_int; 16],
    shared_mem_per_multiprocessor: usize,
    /// regsPerMultiprocessor … cooperativeMultiDeviceLaunch
    memory_features: [c_int; 12],
    shared_mem_per_block_optin: usize,
    host_features: [c_int; 4],
    reserved_shared_mem_per_block: usize,
    /// hostRegisterSupported … unifiedFunctionPointers
    interop: [c_int; 13],
    reserved: [c_int; 63],
}

/// `CUdevice_attribute`s where the runs of members differ from those of CUDA 13.
const PROCESSOR: [c_int; 6] = [15, 16, 17, 18, 19, 20];
const TEXTURES_1D: [c_int; 3] = [21, 77, 69];
const FEATURES: [c_int; 16] = [31, 32, 33, 34, 50, 35, 40, 41, 36, 37, 38, 108, 39, 78, 79, 80];
const MEMORY_FEATURES: [c_int; 12] = [82, 83, 84, 85, 86, 87, 88, 89, 90, 91, 95, 96];
const INTEROP: [c_int; 13] = [99, 112, 113, 114, 115, 116, 117, 118, 119, 121, 125, 120, 129];

fn properties(device: c_int) -> Result<DeviceProp, Code> {
    let all_textures = numbers(device, attributes::TEXTURES);
    let mut textures = [0; 23];
    textures.copy_from_slice(&all_textures[2..]);
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
        clock_rate: number(device, 13),
        total_const_mem: size(device, 9),
        capability: numbers(device, attributes::CAPABILITY),
        texture_alignment: size(device, 14),
        texture_pitch_alignment: size(device, 51),
        processor: numbers(device, PROCESSOR),
        textures_1d: numbers(device, TEXTURES_1D),
        textures,
        surfaces: numbers(device, attributes::SURFACES),
        surface_alignment: size(device, 30),
        features: numbers(device, FEATURES),
        shared_mem_per_multiprocessor: size(device, 81),
        memory_features: numbers(device, MEMORY_FEATURES),
        shared_mem_per_block_optin: size(device, 97),
        host_features: numbers(device, attributes::HOST_FEATURES),
        reserved_shared_mem_per_block: size(device, 111),
        interop: numbers(device, INTEROP),
        reserved: [0; 63],
    })
}

/// What `cudaGetDeviceProperties` is for programs compiled with CUDA 12.
#[unsafe(export_name = "softcudart12_cudaGetDeviceProperties_v2")]
extern "C" fn get_device_properties_v2(properties_out: Out<DeviceProp>, device: c_int) -> Code {
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

    /// The numbers are those of NVIDIA's header of CUDA 12.8, for x86-64.
    #[test]
    fn the_layout_is_cuda_12s() {
        let offsets = [
            (offset_of!(DeviceProp, uuid), 256),
            (offset_of!(DeviceProp, total_global_mem), 288),
            (offset_of!(DeviceProp, registers_and_warp), 304),
            (offset_of!(DeviceProp, mem_pitch), 312),
            (offset_of!(DeviceProp, limits), 320),
            (offset_of!(DeviceProp, clock_rate), 348),
            (offset_of!(DeviceProp, total_const_mem), 352),
            (offset_of!(DeviceProp, capability), 360),
            (offset_of!(DeviceProp, texture_alignment), 368),
            (offset_of!(DeviceProp, texture_pitch_alignment), 376),
            (offset_of!(DeviceProp, processor), 384),
            (offset_of!(DeviceProp, textures_1d), 408),
            (offset_of!(DeviceProp, surfaces), 512),
            (offset_of!(DeviceProp, surface_alignment), 568),
            (offset_of!(DeviceProp, features), 576),
            (offset_of!(DeviceProp, shared_mem_per_multiprocessor), 640),
            (offset_of!(DeviceProp, memory_features), 648),
            (offset_of!(DeviceProp, shared_mem_per_block_optin), 696),
            (offset_of!(DeviceProp, host_features), 704),
            (offset_of!(DeviceProp, reserved_shared_mem_per_block), 720),
            (offset_of!(DeviceProp, interop), 728),
            (offset_of!(DeviceProp, reserved), 780),
        ];
        assert!(offsets.iter().all(|(ours, cudas)| ours == cudas), "{offsets:?}");
        assert_eq!(size_of::<DeviceProp>(), 1032);
    }
}
