//! The host side of the device API: there is none yet, and these are the answers that say so; teams and requirements
//! are arithmetic.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{comm_of, guard, invalid, not_null, place, ready, unsupported};
use super::types::{
    CftTeamMode, CommHandle, DevComm, DevCommRequirements, GinBarrierHandle, GinInboxHandle, GinOutboxHandle, Head,
    LlA2aHandle, LsaBarrierHandle, Properties, ResourceRequirements, ResultCode, Team,
};
use super::weak_aliases;
use crate::comm::config::{MAGIC, VERSION};
use crate::comm::{CallKind, Comm};
use crate::error::Error;
use std::ffi::{c_int, c_uint};

weak_aliases! {
    ncclCommQueryProperties, ncclDevCommCreate, ncclDevCommDestroy, ncclTeamWorld, ncclTeamLsa, ncclTeamRail,
    ncclTeamCft, ncclTeamCftMultimem, ncclTeamRankToWorld, ncclTeamRankToLsa,
    ncclLsaBarrierCreateRequirement, ncclGinBarrierCreateRequirement, ncclLLA2ACalcSlots,
    ncclLLA2ACreateRequirement, ncclGinOutboxCreateRequirement, ncclGinInboxA2ACreateRequirement,
}

/// Bytes of an ncclDevComm of this version.
const DEV_COMM_SIZE: usize = 248;

/// Checks the head of a struct of the device API: here a wrong magic is `ncclInvalidUsage`, where that of a
/// configuration is `ncclInvalidArgument`.
///
/// # Safety
/// `head` is valid for reading.
unsafe fn check_head(name: &str, head: *const Head) -> Result<c_uint, Error> {
    // SAFETY: valid by the contract; every version has these 16 bytes.
    let Head { magic, version, .. } = unsafe { head.read() };
    if magic != MAGIC {
        let text = format!("{name} : argument not initialized via its INITIALIZER macro (got magic {magic:#x})");
        return Err(Error::InvalidUsage(text));
    }
    match version {
        22902..=22903 | 22905..=22907 | 23000..=23007 | 23100..=VERSION => Ok(version),
        newer if newer > VERSION => Err(Error::InvalidUsage(format!(
            "{name} : NCCL library is too old ({VERSION}) for a program compiled with {newer}"
        ))),
        other => {
            Err(Error::InvalidUsage(format!("{name} : version {VERSION} is not backwards compatible with {other}")))
        }
    }
}

/// What a communicator can do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommQueryProperties(comm: CommHandle, properties: *mut Properties) -> ResultCode {
    guard("ncclCommQueryProperties", |name| -> Result<(), Error> {
        let comm = comm_of(name, comm)?;
        not_null(name, "props", properties)?;
        comm.check(CallKind::Use)?;
        // SAFETY: not NULL, so it has the head of the struct by the C contract.
        let version = unsafe { check_head(name, properties.cast::<Head>()) }?;
        // SAFETY: not NULL, and as long as the struct of this version by the C contract.
        unsafe { write_properties(&comm, version, properties) };
        Ok(())
    })
}

/// Writes the fields that the caller's version has, whatever its size says, and no padding.
///
/// # Safety
/// `p` is valid for writing the struct of `version`.
unsafe fn write_properties(comm: &Comm, version: c_uint, p: *mut Properties) {
    // SAFETY: every field that is written exists in the struct of this version.
    unsafe {
        (&raw mut (*p).rank).write(comm.rank());
        (&raw mut (*p).nranks).write(comm.nranks());
        (&raw mut (*p).cuda_device).write(comm.cuda_device());
        (&raw mut (*p).nvml_device).write(comm.nvml_device());
        (&raw mut (*p).device_api_support).write(false);
        (&raw mut (*p).multimem_support).write(false);
        if version <= 22903 {
            // The struct of that time had its ginType in the byte behind.
            (&raw mut (*p).multimem_support).cast::<u8>().add(1).write(0);
            return;
        }
        (&raw mut (*p).gin_type).write(0);
        (&raw mut (*p).lsa_teams).write(comm.nranks());
        (&raw mut (*p).host_rma_support).write(false);
        (&raw mut (*p).railed_gin_type).write(0);
        if version >= 23100 {
            (&raw mut (*p).comm_hash).write(comm.hash());
            (&raw mut (*p).gin_min_stride).write(c_int::MAX);
            (&raw mut (*p).gin_connection_type).write(0);
            (&raw mut (*p).gin_support).write([false; 64]);
            (&raw mut (*p).dev_comm_runtime_version_size).write(DEV_COMM_SIZE);
        }
        if version >= 23200 {
            (&raw mut (*p).cft_support).write(false);
            (&raw mut (*p).cft_multicast_support).write(false);
            (&raw mut (*p).cft_counted_support).write(false);
        }
    }
}

/// Makes a device communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclDevCommCreate(
    comm: CommHandle,
    requirements: *const DevCommRequirements,
    _out: *mut DevComm,
) -> ResultCode {
    guard("ncclDevCommCreate", |name| -> Result<(), Error> {
        comm_of(name, comm)?;
        not_null(name, "reqs", requirements)?;
        // SAFETY: not NULL, so it has the head of the struct by the C contract.
        unsafe { check_head(name, requirements) }?;
        Err(Error::InvalidUsage(format!("{name} : symmetric memory is not supported on this communicator")))
    })
}

/// Frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclDevCommDestroy(comm: CommHandle, dev_comm: *const DevComm) -> ResultCode {
    guard("ncclDevCommDestroy", |name| -> Result<(), Error> {
        comm_of(name, comm)?;
        not_null(name, "devComm", dev_comm)?;
        Err(invalid(format!("{name} : devComm {dev_comm:p} was not made by this communicator")))
    })
}

/// A team of a communicator; `{0,0,0}` for what is none, where NCCL crashes.
fn team(name: &str, comm: CommHandle, make: fn(&Comm) -> Team) -> Team {
    match ready(name, comm) {
        Ok(comm) => make(&comm),
        Err(error) => {
            crate::log::failure(&place(name), &error);
            Team::NONE
        }
    }
}

fn world(comm: &Comm) -> Team {
    Team { nranks: comm.nranks(), rank: comm.rank(), stride: 1 }
}

/// All ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamWorld(comm: CommHandle) -> Team {
    guard("ncclTeamWorld", |name| team(name, comm, world))
}

/// The ranks whose memory this one can load and store.
///
/// No rank maps another's symmetric memory, so the team is the rank itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamLsa(comm: CommHandle) -> Team {
    guard("ncclTeamLsa", |name| team(name, comm, |_| Team::SELF))
}

/// One rank of each load/store team.
///
/// With load/store teams of one rank, every rank has the same place in its team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamRail(comm: CommHandle) -> Team {
    guard("ncclTeamRail", |name| team(name, comm, world))
}

/// The ranks of the compute fabric.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamCft(comm: CommHandle, mode: CftTeamMode) -> Team {
    guard("ncclTeamCft", |name| -> Team {
        match mode {
            0..=2 => team(name, comm, |_| Team::SELF),
            _ => Team::NONE,
        }
    })
}

/// The ranks of its multicast.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamCftMultimem(comm: CommHandle) -> Team {
    guard("ncclTeamCftMultimem", |name| team(name, comm, |_| Team::SELF))
}

/// `own` is this rank in the numbering that is wanted.
fn translate(own: c_int, team: Team, rank: c_int) -> c_int {
    own.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride))
}

/// A team's rank as a rank of the communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamRankToWorld(comm: CommHandle, own_team: Team, rank: c_int) -> c_int {
    guard("ncclTeamRankToWorld", |name| -> c_int {
        match team(name, comm, world) {
            Team::NONE => -1,
            world => translate(world.rank, own_team, rank),
        }
    })
}

/// A team's rank as a rank of the load/store team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclTeamRankToLsa(comm: CommHandle, own_team: Team, rank: c_int) -> c_int {
    guard("ncclTeamRankToLsa", |name| -> c_int {
        match team(name, comm, |_| Team::SELF) {
            Team::NONE => -1,
            lsa => translate(lsa.rank, own_team, rank),
        }
    })
}

const NO_REQUIREMENT: ResourceRequirements = ResourceRequirements {
    next: std::ptr::null_mut(),
    buffer_size: 0,
    buffer_align: 0,
    out_buffer_handle: std::ptr::null_mut(),
    gin_signal_count: 0,
    gin_counter_count: 0,
    out_gin_signal_start: std::ptr::null_mut(),
    out_gin_counter_start: std::ptr::null_mut(),
};

/// Counts that a requirement is made from must not be negative.
fn count(name: &str, argument: &str, value: c_int) -> Result<usize, Error> {
    usize::try_from(value).map_err(|_| invalid(format!("{name} : invalid {argument} {value}")))
}

/// What barriers of a load/store team need.
///
/// (3·n + n·ranks) words of 4 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclLsaBarrierCreateRequirement(
    team: Team,
    barriers: c_int,
    handle: *mut LsaBarrierHandle,
    requirement: *mut ResourceRequirements,
) -> ResultCode {
    guard("ncclLsaBarrierCreateRequirement", |name| -> Result<(), Error> {
        not_null(name, "outHandle", handle)?;
        not_null(name, "outReq", requirement)?;
        let (n, ranks) = (count(name, "nBarriers", barriers)?, count(name, "team", team.nranks)?);
        // SAFETY: both are not NULL, so valid for writing by the C contract.
        unsafe {
            (&raw mut (*handle).barriers).write(barriers);
            requirement.write(ResourceRequirements {
                buffer_size: (3 * n + n * ranks) * 4,
                buffer_align: 4,
                out_buffer_handle: &raw mut (*handle).buffer,
                ..NO_REQUIREMENT
            });
        }
        Ok(())
    })
}

/// What barriers over the network need.
///
/// n·ranks signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGinBarrierCreateRequirement(
    comm: CommHandle,
    team: Team,
    barriers: c_int,
    handle: *mut GinBarrierHandle,
    requirement: *mut ResourceRequirements,
) -> ResultCode {
    guard("ncclGinBarrierCreateRequirement", |name| -> Result<(), Error> {
        comm_of(name, comm)?;
        not_null(name, "outHandle", handle)?;
        not_null(name, "outReq", requirement)?;
        let signals = count(name, "nBarriers", barriers)? * count(name, "team", team.nranks)?;
        let signals = c_int::try_from(signals).map_err(|_| invalid(format!("{name} : too many signals: {signals}")))?;
        // SAFETY: both are not NULL, so valid for writing by the C contract.
        unsafe {
            requirement.write(ResourceRequirements {
                gin_signal_count: signals,
                out_gin_signal_start: &raw mut (*handle).signal0,
                ..NO_REQUIREMENT
            });
        }
        Ok(())
    })
}

/// Slots for a low-latency all-to-all.
///
/// Elements · ⌈bytes of one / 8⌉.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclLLA2ACalcSlots(elements: c_int, element_size: c_int) -> c_int {
    guard("ncclLLA2ACalcSlots", |_| elements.wrapping_mul(element_size.wrapping_add(7) / 8))
}

/// What it needs.
///
/// blocks · (1 + 2·slots) lines of 16 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclLLA2ACreateRequirement(
    blocks: c_int,
    slots: c_int,
    handle: *mut LlA2aHandle,
    requirement: *mut ResourceRequirements,
) -> ResultCode {
    guard("ncclLLA2ACreateRequirement", |name| -> Result<(), Error> {
        not_null(name, "outHandle", handle)?;
        not_null(name, "outReq", requirement)?;
        let size = count(name, "nBlocks", blocks)? * (1 + 2 * count(name, "nSlots", slots)?) * 16;
        // SAFETY: both are not NULL, so valid for writing by the C contract.
        unsafe {
            (&raw mut (*handle).slots).write(slots as u32);
            requirement.write(ResourceRequirements {
                buffer_size: size,
                buffer_align: 16,
                out_buffer_handle: &raw mut (*handle).buffer,
                ..NO_REQUIREMENT
            });
        }
        Ok(())
    })
}

/// Scratch of NCCL's own network kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGinOutboxCreateRequirement(
    _blocks: c_int,
    _size_log2: c_int,
    _handle: *mut GinOutboxHandle,
    _requirement: *mut ResourceRequirements,
) -> ResultCode {
    guard("ncclGinOutboxCreateRequirement", |name| -> Result<(), Error> { Err(unsupported(name)) })
}

/// Scratch of NCCL's own network kernels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGinInboxA2ACreateRequirement(
    _peers: Team,
    _blocks: c_int,
    _size_log2: c_int,
    _handle: *mut GinInboxHandle,
    _requirement: *mut ResourceRequirements,
) -> ResultCode {
    guard("ncclGinInboxA2ACreateRequirement", |name| -> Result<(), Error> { Err(unsupported(name)) })
}
