//! The structs of the C interface, with NCCL's layouts (spec §2, §11.1, delta §2, §4). A test holds them
//! against NVIDIA's header.
#![allow(missing_docs)] // the fields have the names and meaning of the C structs

use crate::error::Code;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `ncclResult_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct ResultCode(pub c_int);

impl From<Code> for ResultCode {
    fn from(code: Code) -> ResultCode {
        ResultCode(code as c_int)
    }
}

/// `ncclComm_t`, `cudaStream_t`, `ncclWindow_t`: a handle, never followed.
pub type Handle = *mut c_void;

/// `ncclUniqueId`, which C passes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId {
    pub internal: [u8; 128],
}

/// `ncclConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Config {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cga_cluster_size: c_int,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub net_name: *const c_char,
    pub split_share: c_int,
    pub traffic_class: c_int,
    pub comm_name: *const c_char,
    pub collnet_enable: c_int,
    pub cta_policy: c_int,
    pub shrink_share: c_int,
    pub nvls_ctas: c_int,
    pub channels_per_net_peer: c_int,
    pub nvlink_centric_sched: c_int,
    pub graph_usage_mode: c_int,
    pub num_rma_ctx: c_int,
    pub max_p2p_peers: c_int,
    pub graph_stream_ordering: c_int,
    pub launch_order_implicit: c_int,
    pub num_rma_sig: c_int,
    pub rma_eager_init: c_int,
    pub host_cft_mode: c_int,
    pub nvls_host_mode: c_int,
}

/// `ncclCollConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CollConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *const c_void,
    pub min_ctas: c_int,
    pub max_ctas: c_int,
    pub nvls_ctas: c_int,
    pub cga_cluster_size: c_int,
    pub alg_selection: *const c_char,
    pub force_alg_selection: c_int,
    pub cta_policy: c_int,
    pub user_profiler_tag: u64,
    pub launch_completion_event: *mut c_void,
}

/// `ncclSimInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SimInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimated_time: f32,
}

/// `ncclEncryptionConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EncryptionConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}

/// `ncclWaitSignalDesc_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct WaitSignalDesc {
    pub op_count: c_int,
    pub peer: c_int,
    pub signal: c_int,
    pub context: c_int,
}

/// `ncclTeam_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Team {
    pub nranks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}

impl Team {
    /// The answer for no communicator.
    pub const NONE: Team = Team { nranks: 0, rank: 0, stride: 0 };
    /// A team of one rank.
    pub const SELF: Team = Team { nranks: 1, rank: 0, stride: 1 };
}

/// `ncclLsaBarrierHandle_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LsaBarrierHandle {
    pub buffer: u32,
    pub barriers: c_int,
}

/// `ncclGinBarrierHandle_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct GinBarrierHandle {
    pub signal0: u32,
    pub unused: u32,
}

/// `ncclLLA2AHandle_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LlA2aHandle {
    pub buffer: u32,
    pub slots: u32,
}

/// `ncclDevResourceRequirements_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ResourceRequirements {
    pub next: *mut ResourceRequirements,
    pub buffer_size: usize,
    pub buffer_align: usize,
    pub out_buffer_handle: *mut u32,
    pub gin_signal_count: c_int,
    pub gin_counter_count: c_int,
    pub out_gin_signal_start: *mut u32,
    pub out_gin_counter_start: *mut u32,
}

/// What every versioned struct begins with.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Head {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
}

/// `ncclCommProperties_t`. Never written as a whole: the caller's may be shorter (delta §4.2).
#[repr(C)]
pub struct Properties {
    pub head: Head,
    pub rank: c_int,
    pub nranks: c_int,
    pub cuda_device: c_int,
    pub nvml_device: c_int,
    pub device_api_support: bool,
    pub multimem_support: bool,
    pub gin_type: c_int,
    pub lsa_teams: c_int,
    pub host_rma_support: bool,
    pub railed_gin_type: c_int,
    pub comm_hash: u64,
    pub gin_min_stride: c_int,
    pub gin_connection_type: c_int,
    pub gin_support: [bool; 64],
    pub dev_comm_runtime_version_size: usize,
    pub cft_support: bool,
    pub cft_multicast_support: bool,
    pub cft_counted_support: bool,
}
