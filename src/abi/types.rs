//! The structs of the C interface, with NCCL's layouts. A test holds them against NVIDIA's header.
#![allow(missing_docs)] // the fields have the names and meaning of the C structs

use crate::comm::config::{ConfigRequest, Given};
use crate::error::Code;
use crate::params::Param;
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

// Handles are never followed. cbindgen.toml gives these names their C types, so that the C compiler tells apart what
// are plain pointers and integers here.

/// `ncclComm_t`.
pub type CommHandle = *mut c_void;
/// `cudaStream_t`.
pub type StreamHandle = *mut c_void;
/// `ncclWindow_t`.
pub type WindowHandle = *mut c_void;
/// `ncclParamHandle_t`: points into the table of variables.
pub type ParamHandle = *const Param;

// C enums are integers, of which any may come.

/// `ncclDataType_t`.
pub type DataTypeCode = c_int;
/// `ncclRedOp_t`.
pub type RedOpCode = c_int;
/// `ncclScalarResidence_t`.
pub type ScalarResidence = c_int;
/// `ncclCommMemStat_t`.
pub type MemStat = c_int;
/// `ncclCftTeamMode_t`.
pub type CftTeamMode = c_int;

/// `ncclUniqueId`, which C passes by value.
pub use crate::bootstrap::UniqueId;

/// `ncclConfig_t`.
pub type RawConfig = ConfigRequest<*const c_char>;

impl Given for *const c_char {
    const UNSET: *const c_char = std::ptr::null();
}

/// `ncclCollConfig_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RawCollConfig {
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

/// `ncclMultimemHandle_t`, which C passes by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MultimemHandle {
    pub base: *mut c_void,
}

/// `ncclDevComm_t`, of which nothing is read or written.
pub struct DevComm {
    _private: [u8; 0],
}

/// `ncclGinOutboxHandle`, likewise.
pub struct GinOutboxHandle {
    _private: [u8; 0],
}

/// `ncclGinInboxA2AHandle`, likewise.
pub struct GinInboxHandle {
    _private: [u8; 0],
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

/// `ncclDevCommRequirements_t`: only its head is read.
pub type DevCommRequirements = Head;

/// `ncclCommProperties_t`. Never written as a whole: the caller's may be shorter.
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
