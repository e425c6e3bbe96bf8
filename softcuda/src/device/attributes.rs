//! The answers of `cuDeviceGetAttribute`: those of a data-centre GPU of compute capability 9.0 where they describe
//! limits, and the truth where they describe abilities.

use super::Device;
use crate::identity;

/// First number after those of CUDA 13's `CUdevice_attribute`.
const END: i32 = 162;

/// `None`: no such attribute.
pub fn value(device: &Device, attribute: i32) -> Option<i32> {
    if !(1..END).contains(&attribute) {
        return None;
    }
    let known = identity_and_size(device, attribute).or_else(|| limits(attribute)).or_else(|| abilities(attribute));
    Some(known.unwrap_or(0))
}

fn identity_and_size(device: &Device, attribute: i32) -> Option<i32> {
    Some(match attribute {
        16 => device.sms.count() as i32,                    // MULTIPROCESSOR_COUNT
        33 => identity::pci_place(device.ordinal).1 as i32, // PCI_BUS_ID
        34 => 0,                                            // PCI_DEVICE_ID
        50 => identity::pci_place(device.ordinal).0 as i32, // PCI_DOMAIN_ID
        75 => super::COMPUTE_CAPABILITY.0,                  // COMPUTE_CAPABILITY_MAJOR
        76 => super::COMPUTE_CAPABILITY.1,                  // COMPUTE_CAPABILITY_MINOR
        85 => device.ordinal as i32,                        // MULTI_GPU_BOARD_GROUP_ID
        131 | 134 => -1,                                    // NUMA_ID, HOST_NUMA_ID: none
        _ => return None,
    })
}

fn limits(attribute: i32) -> Option<i32> {
    Some(match attribute {
        1..=3 => super::MAX_BLOCK_THREADS as i32, // MAX_THREADS_PER_BLOCK, MAX_BLOCK_DIM_X, _Y
        4 => 64,                                  // MAX_BLOCK_DIM_Z
        5 => i32::MAX,                            // MAX_GRID_DIM_X
        6 | 7 => 65_535,                          // MAX_GRID_DIM_Y, _Z
        8 => super::SHARED_PER_BLOCK as i32,      // MAX_SHARED_MEMORY_PER_BLOCK
        9 => 65_536,                              // TOTAL_CONSTANT_MEMORY
        10 => 32,                                 // WARP_SIZE
        11 => i32::MAX,                           // MAX_PITCH
        12 | 82 => 65_536,                        // MAX_REGISTERS_PER_BLOCK, _PER_MULTIPROCESSOR
        13 => 1_980_000,                          // CLOCK_RATE, kHz
        14 => 512,                                // TEXTURE_ALIGNMENT
        21 => 131_072,                            // MAXIMUM_TEXTURE1D_WIDTH
        22 => 131_072,                            // MAXIMUM_TEXTURE2D_WIDTH
        23 => 65_536,                             // MAXIMUM_TEXTURE2D_HEIGHT
        24..=26 => 16_384,                        // MAXIMUM_TEXTURE3D_*
        27 | 28 | 42 | 45 | 46 | 52 | 53 => 32_768, // layered, gather and cube textures
        29 | 43 => 2_048,                         // their layers
        30 => 512,                                // SURFACE_ALIGNMENT
        36 => 2_619_000,                          // MEMORY_CLOCK_RATE, kHz
        37 => 5_120,                              // GLOBAL_MEMORY_BUS_WIDTH, bits
        38 => 50 << 20,                           // L2_CACHE_SIZE
        39 => super::THREADS_PER_SM as i32,       // MAX_THREADS_PER_MULTIPROCESSOR
        40 => 3,                                  // ASYNC_ENGINE_COUNT
        47..=49 => 8_192,                         // MAXIMUM_TEXTURE3D_*_ALTERNATE
        51 => 32,                                 // TEXTURE_PITCH_ALIGNMENT
        54 | 68 => 2_046,                         // cube map layers
        55..=67 => 32_768,                        // surfaces
        69 => 268_435_456,                        // MAXIMUM_TEXTURE1D_LINEAR_WIDTH
        70 | 73 | 77 => 131_072,                  // linear and mipmapped widths
        71 | 74 => 65_000,                        // linear and mipmapped heights
        72 => 2_097_120,                          // MAXIMUM_TEXTURE2D_LINEAR_PITCH
        81 => super::SHARED_PER_SM as i32,        // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        87 => 2,                                  // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
        97 => super::SHARED_PER_BLOCK_OPTIN as i32, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        106 => 32,                                // MAX_BLOCKS_PER_MULTIPROCESSOR
        111 => 1_024,                             // RESERVED_SHARED_MEMORY_PER_BLOCK
        126 => 1,                                 // MEM_SYNC_DOMAIN_COUNT
        _ => return None,
    })
}

/// Attributes that say yes; all others (multicast, fabric handles, memory pools of other processes, clusters, …) say
/// no.
fn abilities(attribute: i32) -> Option<i32> {
    let yes = matches!(
        attribute,
        15 | 19   // GPU_OVERLAP, CAN_MAP_HOST_MEMORY
        | 31      // CONCURRENT_KERNELS
        | 41      // UNIFIED_ADDRESSING
        | 78..=80 // STREAM_PRIORITIES_SUPPORTED, GLOBAL_ and LOCAL_L1_CACHE_SUPPORTED
        | 83      // MANAGED_MEMORY
        | 86      // HOST_NATIVE_ATOMIC_SUPPORTED
        | 89 | 90 // CONCURRENT_MANAGED_ACCESS, COMPUTE_PREEMPTION_SUPPORTED
        | 91      // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | 92..=95 // stream memory operations of both versions, COOPERATIVE_LAUNCH
        | 99      // HOST_REGISTER_SUPPORTED
        | 102 | 103 // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | 113     // READ_ONLY_HOST_REGISTER_SUPPORTED
        | 115     // MEMORY_POOLS_SUPPORTED
        | 122 | 123 // CAN_USE_64_BIT_STREAM_MEM_OPS, CAN_USE_STREAM_WAIT_VALUE_NOR
        | 125     // IPC_EVENT_SUPPORTED
        | 129     // UNIFIED_FUNCTION_POINTERS
        | 141 | 145 // HOST_NUMA_ and HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    );
    yes.then_some(1)
}
