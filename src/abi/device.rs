//! The host side of the device API (spec §11, delta §4): there is none yet, and these are the answers that
//! say so; teams and requirements are arithmetic.
//!
//! # Safety
//! The bodies get the arguments of the C functions as they are: pointers are NULL or valid for what the function
//! is documented to do with them.

use super::boundary::{comm_of, invalid, not_null, ready, unsupported};
use super::exports;
use super::types::{
    GinBarrierHandle, Handle, Head, LlA2aHandle, LsaBarrierHandle, Properties, ResourceRequirements, ResultCode, Team,
};
use crate::comm::Comm;
use crate::comm::config::{MAGIC, VERSION};
use crate::error::Error;
use std::ffi::{c_int, c_uint, c_void};

exports! {
    /// What a communicator can do.
    fn ncclCommQueryProperties = pncclCommQueryProperties(comm: Handle, properties: *mut Properties) -> ResultCode = query_properties;
    /// Makes a device communicator.
    fn ncclDevCommCreate = pncclDevCommCreate(comm: Handle, requirements: *const Head, out: *mut c_void) -> ResultCode = dev_comm_create;
    /// Frees it.
    fn ncclDevCommDestroy = pncclDevCommDestroy(comm: Handle, dev_comm: *const c_void) -> ResultCode = dev_comm_destroy;
    /// All ranks.
    fn ncclTeamWorld = pncclTeamWorld(comm: Handle) -> Team = team_world;
    /// The ranks whose memory this one can load and store.
    fn ncclTeamLsa = pncclTeamLsa(comm: Handle) -> Team = team_lsa;
    /// One rank of each load/store team.
    fn ncclTeamRail = pncclTeamRail(comm: Handle) -> Team = team_rail;
    /// The ranks of the compute fabric.
    fn ncclTeamCft = pncclTeamCft(comm: Handle, mode: c_int) -> Team = team_cft;
    /// The ranks of its multicast.
    fn ncclTeamCftMultimem = pncclTeamCftMultimem(comm: Handle) -> Team = team_cft_multimem;
    /// A team's rank as a rank of the communicator.
    fn ncclTeamRankToWorld = pncclTeamRankToWorld(comm: Handle, team: Team, rank: c_int) -> c_int = rank_to_world;
    /// A team's rank as a rank of the load/store team.
    fn ncclTeamRankToLsa = pncclTeamRankToLsa(comm: Handle, team: Team, rank: c_int) -> c_int = rank_to_lsa;
    /// What barriers of a load/store team need.
    fn ncclLsaBarrierCreateRequirement = pncclLsaBarrierCreateRequirement(team: Team, barriers: c_int, handle: *mut LsaBarrierHandle, requirement: *mut ResourceRequirements) -> ResultCode = lsa_barrier;
    /// What barriers over the network need.
    fn ncclGinBarrierCreateRequirement = pncclGinBarrierCreateRequirement(comm: Handle, team: Team, barriers: c_int, handle: *mut GinBarrierHandle, requirement: *mut ResourceRequirements) -> ResultCode = gin_barrier;
    /// Slots for a low-latency all-to-all.
    fn ncclLLA2ACalcSlots = pncclLLA2ACalcSlots(elements: c_int, element_size: c_int) -> c_int = calc_slots;
    /// What it needs.
    fn ncclLLA2ACreateRequirement = pncclLLA2ACreateRequirement(blocks: c_int, slots: c_int, handle: *mut LlA2aHandle, requirement: *mut ResourceRequirements) -> ResultCode = ll_a2a;
    /// Scratch of NCCL's own network kernels.
    fn ncclGinOutboxCreateRequirement = pncclGinOutboxCreateRequirement(blocks: c_int, size_log2: c_int, handle: *mut c_void, requirement: *mut ResourceRequirements) -> ResultCode = gin_outbox;
    /// Scratch of NCCL's own network kernels.
    fn ncclGinInboxA2ACreateRequirement = pncclGinInboxA2ACreateRequirement(peers: Team, blocks: c_int, size_log2: c_int, handle: *mut c_void, requirement: *mut ResourceRequirements) -> ResultCode = gin_inbox;
}

/// Bytes of an ncclDevComm of this version (delta §4.4).
const DEV_COMM_SIZE: usize = 248;

/// Checks the head of a struct of the device API: here a wrong magic is a wrong use (spec §12, trap 4).
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
        newer if newer > VERSION => {
            Err(Error::InvalidUsage(format!("{name} : NCCL library is too old ({VERSION}) for a program compiled with {newer}")))
        }
        other => Err(Error::InvalidUsage(format!("{name} : version {VERSION} is not backwards compatible with {other}"))),
    }
}

unsafe fn query_properties(comm: Handle, properties: *mut Properties) -> Result<(), Error> {
    const NAME: &str = "ncclCommQueryProperties";
    let comm = comm_of(NAME, comm)?;
    not_null(NAME, "props", properties)?;
    comm.check_ready()?;
    // SAFETY: not NULL, so it has the head of the struct by the C contract.
    let version = unsafe { check_head(NAME, properties.cast::<Head>()) }?;
    // SAFETY: not NULL, and as long as the struct of this version by the C contract.
    unsafe { write_properties(&comm, version, properties) };
    Ok(())
}

/// Writes the fields that the caller's version has, whatever its size says (delta §4.2), and no padding.
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

unsafe fn dev_comm_create(comm: Handle, requirements: *const Head, _out: *mut c_void) -> Result<(), Error> {
    const NAME: &str = "ncclDevCommCreate";
    comm_of(NAME, comm)?;
    not_null(NAME, "reqs", requirements)?;
    // SAFETY: not NULL, so it has the head of the struct by the C contract.
    unsafe { check_head(NAME, requirements) }?;
    Err(Error::InvalidUsage(format!("{NAME} : symmetric memory is not supported on this communicator")))
}

fn dev_comm_destroy(comm: Handle, dev_comm: *const c_void) -> Result<(), Error> {
    const NAME: &str = "ncclDevCommDestroy";
    comm_of(NAME, comm)?;
    not_null(NAME, "devComm", dev_comm)?;
    Err(invalid(format!("{NAME} : devComm {dev_comm:p} was not made by this communicator")))
}

/// A team of a communicator; `{0,0,0}` for what is none, where NCCL crashes.
fn team(name: &str, comm: Handle, make: fn(&Comm) -> Team) -> Team {
    match ready(name, comm) {
        Ok(comm) => make(&comm),
        Err(error) => {
            let place = crate::log::Place { file: "abi/device.rs", line: line!(), function: name };
            crate::log::failure(&place, &error);
            Team::NONE
        }
    }
}

fn world(comm: &Comm) -> Team {
    Team { nranks: comm.nranks(), rank: comm.rank(), stride: 1 }
}

fn team_world(comm: Handle) -> Team {
    team("ncclTeamWorld", comm, world)
}

/// No rank maps another's symmetric memory, so the team is the rank itself.
fn team_lsa(comm: Handle) -> Team {
    team("ncclTeamLsa", comm, |_| Team::SELF)
}

/// With load/store teams of one rank, every rank has the same place in its team.
fn team_rail(comm: Handle) -> Team {
    team("ncclTeamRail", comm, world)
}

fn team_cft(comm: Handle, mode: c_int) -> Team {
    match mode {
        0..=2 => team("ncclTeamCft", comm, |_| Team::SELF),
        _ => Team::NONE,
    }
}

fn team_cft_multimem(comm: Handle) -> Team {
    team("ncclTeamCftMultimem", comm, |_| Team::SELF)
}

/// `own` is this rank in the numbering that is wanted.
fn translate(own: c_int, team: Team, rank: c_int) -> c_int {
    own.wrapping_add(rank.wrapping_sub(team.rank).wrapping_mul(team.stride))
}

fn rank_to_world(comm: Handle, own_team: Team, rank: c_int) -> c_int {
    match team("ncclTeamRankToWorld", comm, world) {
        Team::NONE => -1,
        world => translate(world.rank, own_team, rank),
    }
}

fn rank_to_lsa(comm: Handle, own_team: Team, rank: c_int) -> c_int {
    match team("ncclTeamRankToLsa", comm, |_| Team::SELF) {
        Team::NONE => -1,
        lsa => translate(lsa.rank, own_team, rank),
    }
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

/// (3·n + n·ranks) words of 4 bytes.
unsafe fn lsa_barrier(
    team: Team,
    barriers: c_int,
    handle: *mut LsaBarrierHandle,
    requirement: *mut ResourceRequirements,
) -> Result<(), Error> {
    const NAME: &str = "ncclLsaBarrierCreateRequirement";
    not_null(NAME, "outHandle", handle)?;
    not_null(NAME, "outReq", requirement)?;
    let (n, ranks) = (count(NAME, "nBarriers", barriers)?, count(NAME, "team", team.nranks)?);
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
}

/// n·ranks signals.
unsafe fn gin_barrier(
    comm: Handle,
    team: Team,
    barriers: c_int,
    handle: *mut GinBarrierHandle,
    requirement: *mut ResourceRequirements,
) -> Result<(), Error> {
    const NAME: &str = "ncclGinBarrierCreateRequirement";
    comm_of(NAME, comm)?;
    not_null(NAME, "outHandle", handle)?;
    not_null(NAME, "outReq", requirement)?;
    let signals = count(NAME, "nBarriers", barriers)? * count(NAME, "team", team.nranks)?;
    let signals = c_int::try_from(signals).map_err(|_| invalid(format!("{NAME} : too many signals: {signals}")))?;
    // SAFETY: both are not NULL, so valid for writing by the C contract.
    unsafe {
        requirement.write(ResourceRequirements {
            gin_signal_count: signals,
            out_gin_signal_start: &raw mut (*handle).signal0,
            ..NO_REQUIREMENT
        });
    }
    Ok(())
}

/// Elements · ⌈bytes of one / 8⌉.
fn calc_slots(elements: c_int, element_size: c_int) -> c_int {
    elements.wrapping_mul(element_size.wrapping_add(7) / 8)
}

/// blocks · (1 + 2·slots) lines of 16 bytes.
unsafe fn ll_a2a(
    blocks: c_int,
    slots: c_int,
    handle: *mut LlA2aHandle,
    requirement: *mut ResourceRequirements,
) -> Result<(), Error> {
    const NAME: &str = "ncclLLA2ACreateRequirement";
    not_null(NAME, "outHandle", handle)?;
    not_null(NAME, "outReq", requirement)?;
    let size = count(NAME, "nBlocks", blocks)? * (1 + 2 * count(NAME, "nSlots", slots)?) * 16;
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
}

fn gin_outbox(_: c_int, _: c_int, _: *mut c_void, _: *mut ResourceRequirements) -> Result<(), Error> {
    Err(unsupported("ncclGinOutboxCreateRequirement"))
}

fn gin_inbox(_: Team, _: c_int, _: c_int, _: *mut c_void, _: *mut ResourceRequirements) -> Result<(), Error> {
    Err(unsupported("ncclGinInboxA2ACreateRequirement"))
}
