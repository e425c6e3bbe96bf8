//! NCCL's C interface, written down once for all tests: result codes, types, structures, and the prototypes of
//! `nccl.h` as types of functions. [`super::nccl`], [`super::communicators`] and [`super::collectives`] call it.

use std::ffi::{CStr, c_char, c_float, c_int, c_uint, c_void};
use std::marker::PhantomData;

/// `ncclSuccess`.
pub const SUCCESS: c_int = 0;
/// `ncclUnhandledCudaError`.
pub const UNHANDLED_CUDA_ERROR: c_int = 1;
/// `ncclSystemError`.
pub const SYSTEM_ERROR: c_int = 2;
/// `ncclInvalidArgument`.
pub const INVALID_ARGUMENT: c_int = 4;
/// `ncclInvalidUsage`.
pub const INVALID_USAGE: c_int = 5;
/// `ncclRemoteError`.
pub const REMOTE_ERROR: c_int = 6;
/// `ncclInProgress`.
pub const IN_PROGRESS: c_int = 7;
/// `ncclTimeout`.
pub const TIMEOUT: c_int = 8;

/// `NCCL_API_MAGIC`, in every structure that has a size.
pub const MAGIC: c_uint = 0xcafe_beef;
/// `NCCL_VERSION_CODE` of the header.
pub const VERSION: c_uint = 23203;
/// `NCCL_CONFIG_UNDEF_INT`.
pub const UNDEF_INT: c_int = c_int::MIN;
/// `NCCL_SPLIT_NOCOLOR`.
pub const NO_COLOR: c_int = -1;
/// `NCCL_SHRINK_ABORT`.
pub const SHRINK_ABORT: c_int = 1;
/// `NCCL_SUSPEND_MEM`.
pub const SUSPEND_MEMORY: c_int = 1;
/// `ncclScalarDevice` and `ncclScalarHostImmediate`.
pub const SCALAR_DEVICE: c_int = 0;
pub const SCALAR_HOST_IMMEDIATE: c_int = 1;

/// `ncclCommMemStat_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum MemStat {
    /// Bytes that a suspension would give back.
    Suspend = 0,
    /// 1 while the communicator is suspended.
    Suspended = 1,
    /// Bytes that stay.
    Persist = 2,
    /// The sum.
    Total = 3,
}

/// `ncclUniqueId`: 128 bytes, handed over by value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// `ncclComm_t`: an opaque handle. It may move between threads; only one uses it at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Comm(pub *mut c_void);

// SAFETY: NCCL allows to hand a communicator from thread to thread.
unsafe impl Send for Comm {}
// SAFETY: it is a number; what is done with it by whom is the user's affair.
unsafe impl Sync for Comm {}

impl Comm {
    /// `NCCL_COMM_NULL`.
    pub const NULL: Comm = Comm(std::ptr::null_mut());

    /// A handle of any value, which the library must cope with.
    pub fn from_number(number: usize) -> Comm {
        Comm(number as *mut c_void)
    }
}

/// `ncclConfig_t`.
#[derive(Clone, Copy, Debug)]
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
    /// `nvlsCTAs` to `nvlsHostMode`, which no test sets one by one.
    pub others: [c_int; 12],
}

/// `NCCL_CONFIG_INITIALIZER`.
impl Default for Config {
    fn default() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: VERSION,
            blocking: UNDEF_INT,
            cga_cluster_size: UNDEF_INT,
            min_ctas: UNDEF_INT,
            max_ctas: UNDEF_INT,
            net_name: std::ptr::null(),
            split_share: UNDEF_INT,
            traffic_class: UNDEF_INT,
            comm_name: std::ptr::null(),
            collnet_enable: UNDEF_INT,
            cta_policy: UNDEF_INT,
            shrink_share: UNDEF_INT,
            others: [UNDEF_INT; 12],
        }
    }
}

impl Config {
    /// Bytes of the structure in version 2.14, where it ended with `blocking`: the oldest, which every later library
    /// takes.
    pub const OLDEST: usize = 24;

    /// As a program of version 2.14 fills it.
    pub fn oldest(blocking: c_int) -> Config {
        Config { size: Config::OLDEST, version: 21400, blocking, ..Config::default() }
    }

    /// A configuration whose calls return before they are done, of the oldest size.
    pub fn nonblocking() -> Config {
        Config { size: Config::OLDEST, blocking: 0, ..Config::default() }
    }
}

/// `ncclCollConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CollConfig {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *const c_void,
    pub ctas: [c_int; 4],
    /// `algSelection`: a C string or NULL.
    pub selection: *const c_char,
    /// `forceAlgSelection`.
    pub force: c_int,
    pub policy: c_int,
    pub tag: u64,
    /// `launchCompletionEvent`: a `CUevent` or NULL.
    pub event: *mut c_void,
}

/// `NCCL_COLLCONFIG_INITIALIZER`.
impl Default for CollConfig {
    fn default() -> CollConfig {
        CollConfig {
            size: size_of::<CollConfig>(),
            magic: MAGIC,
            version: VERSION,
            ext: std::ptr::null(),
            ctas: [UNDEF_INT; 4],
            selection: std::ptr::null(),
            force: 1,
            policy: UNDEF_INT,
            tag: 0,
            event: std::ptr::null_mut(),
        }
    }
}

/// `ncclSimInfo_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SimInfo {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    /// Microseconds; -1 where nothing was estimated.
    pub estimated: c_float,
}

/// `NCCL_SIM_INFO_INITIALIZER`, which has a magic number of its own.
impl Default for SimInfo {
    fn default() -> SimInfo {
        SimInfo { size: size_of::<SimInfo>(), magic: 0x7468_5283, version: VERSION, estimated: -1.0 }
    }
}

/// An `ncclResult_t`.
pub type Code = c_int;
type Ptr = *mut c_void;

// --- the library ---------------------------------------------------------------------------------

pub type GetVersion = unsafe extern "C" fn(*mut c_int) -> Code;
pub type GetErrorString = unsafe extern "C" fn(Code) -> *const c_char;
pub type GetLastError = unsafe extern "C" fn(Comm) -> *const c_char;
pub type ResetDebugInit = unsafe extern "C" fn();
pub type MemAlloc = unsafe extern "C" fn(*mut Ptr, usize) -> Code;
pub type MemFree = unsafe extern "C" fn(Ptr) -> Code;
/// `ncclGroupStart`, `ncclGroupEnd`.
pub type Group = unsafe extern "C" fn() -> Code;
pub type GroupSimulateEnd = unsafe extern "C" fn(*mut SimInfo) -> Code;

// --- communicators -------------------------------------------------------------------------------

pub type GetUniqueId = unsafe extern "C" fn(*mut UniqueId) -> Code;
pub type CommInitRank = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> Code;
pub type CommInitAll = unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> Code;
pub type CommInitRankConfig = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *const Config) -> Code;
/// Ranks, rank, number of ids, ids.
pub type CommInitRankScalable =
    unsafe extern "C" fn(*mut Comm, c_int, c_int, c_int, *const UniqueId, *const Config) -> Code;
/// Colour, key, child.
pub type CommSplit = unsafe extern "C" fn(Comm, c_int, c_int, *mut Comm, *const Config) -> Code;
/// Ranks to leave out and their number, child, flags.
pub type CommShrink = unsafe extern "C" fn(Comm, *mut c_int, c_int, *mut Comm, *const Config, c_int) -> Code;
/// Ranks, id, rank, new communicator.
pub type CommGrow = unsafe extern "C" fn(Comm, c_int, *const UniqueId, c_int, *mut Comm, *const Config) -> Code;
pub type CommGetUniqueId = unsafe extern "C" fn(Comm, *mut UniqueId) -> Code;
/// `ncclCommCount`, `ncclCommCuDevice`, `ncclCommUserRank`, `ncclCommGetAsyncError`.
pub type CommQuery = unsafe extern "C" fn(Comm, *mut c_int) -> Code;
/// `ncclCommFinalize`, `ncclCommDestroy`, `ncclCommAbort`, `ncclCommResume`.
pub type OfComm = unsafe extern "C" fn(Comm) -> Code;
/// `ncclCommRevoke`, `ncclCommSuspend`.
pub type OfCommWithFlags = unsafe extern "C" fn(Comm, c_int) -> Code;
pub type CommMemStats = unsafe extern "C" fn(Comm, c_int, *mut u64) -> Code;
pub type CommRegister = unsafe extern "C" fn(Comm, Ptr, usize, *mut Ptr) -> Code;
pub type CommDeregister = unsafe extern "C" fn(Comm, Ptr) -> Code;
pub type SetEncryption = unsafe extern "C" fn(*const EncryptionConfig<'_>) -> Code;
pub type CommWindowRegister = unsafe extern "C" fn(Comm, Ptr, usize, *mut Ptr, c_int) -> Code;

/// `ncclEncryptionConfig_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EncryptionConfig<'a> {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
    _key: PhantomData<&'a CStr>,
}

impl EncryptionConfig<'_> {
    /// With a key.
    pub fn new(key: &CStr) -> EncryptionConfig<'_> {
        let (size, psk) = (size_of::<EncryptionConfig>(), key.as_ptr());
        EncryptionConfig { size, magic: MAGIC, version: VERSION, mode: 1, psk, _key: PhantomData }
    }
}

// --- collectives, messages, operators ------------------------------------------------------------

/// `ncclAllReduce`, `ncclReduceScatter`: send, receive, count, type, operator.
pub type Reducing = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Comm, Ptr) -> Code;
/// `ncclReduce`: the same and the root.
pub type ReducingTo = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, c_int, Comm, Ptr) -> Code;
/// `ncclAllGather`, `ncclAlltoAll`: send, receive, count, type.
pub type Moving = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Comm, Ptr) -> Code;
/// `ncclBroadcast`, `ncclGather`, `ncclScatter`: the same and the root.
pub type MovingOf = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Comm, Ptr) -> Code;
/// `ncclBcast`, `ncclSend`, `ncclRecv`: a buffer, count, type, root or peer.
pub type OneBuffer = unsafe extern "C" fn(Ptr, usize, c_int, c_int, Comm, Ptr) -> Code;
pub type ReducingConfig = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Comm, Ptr, *const CollConfig) -> Code;
pub type ReducingToConfig =
    unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, c_int, Comm, Ptr, *const CollConfig) -> Code;
pub type MovingConfig = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, Comm, Ptr, *const CollConfig) -> Code;
pub type MovingOfConfig = unsafe extern "C" fn(Ptr, Ptr, usize, c_int, c_int, Comm, Ptr, *const CollConfig) -> Code;
/// Operator, scalar, type, where the scalar is.
pub type RedOpCreatePreMulSum = unsafe extern "C" fn(*mut c_int, Ptr, c_int, c_int, Comm) -> Code;
pub type RedOpDestroy = unsafe extern "C" fn(c_int, Comm) -> Code;
