//! Making and ending communicators.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{comm_of, guard, invalid, never_made, not_null, noted, null, prepare, ready, store};
use super::environment::library_path;
use super::read;
use super::types::{CommHandle, RawConfig, ResultCode, UniqueId};
use super::weak_aliases;
use crate::bootstrap;
use crate::comm::derive::{DerivePlan, Publish};
use crate::comm::{self, CallKind, InitRequest, Outcome};
use crate::error::Error;
use crate::group;
use crate::{log, params};
use std::ffi::c_int;
use std::sync::Arc;

weak_aliases! {
    ncclCommInitRank, ncclCommInitRankConfig, ncclCommInitRankScalable, ncclCommInitAll, ncclCommSplit,
    ncclCommShrink, ncclCommGetUniqueId, ncclCommGrow, ncclCommFinalize, ncclCommDestroy, ncclCommAbort,
    ncclCommRevoke, ncclCommSuspend, ncclCommResume,
}

/// Makes a communicator with the default configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitRank(
    newcomm: *mut CommHandle,
    nranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> ResultCode {
    guard("ncclCommInitRank", |name| -> Result<Outcome, Error> {
        // SAFETY: the caller keeps the C contract.
        unsafe {
            init(
                Rank { function: name, always_blocking: true, newcomm, nranks, rank },
                || Ok(vec![id]),
                std::ptr::null(),
            )
        }
    })
}

/// Makes a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitRankConfig(
    newcomm: *mut CommHandle,
    nranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut RawConfig,
) -> ResultCode {
    guard("ncclCommInitRankConfig", |name| -> Result<Outcome, Error> {
        // SAFETY: the caller keeps the C contract.
        unsafe { init(Rank { function: name, always_blocking: false, newcomm, nranks, rank }, || Ok(vec![id]), config) }
    })
}

/// Makes a communicator; several ids share the work of meeting.
///
/// The first id names the communicator. Each root serves a block of the ranks, and roots tell each other in a tree.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitRankScalable(
    newcomm: *mut CommHandle,
    nranks: c_int,
    rank: c_int,
    nids: c_int,
    ids: *mut UniqueId,
    config: *mut RawConfig,
) -> ResultCode {
    guard("ncclCommInitRankScalable", |name| -> Result<Outcome, Error> {
        let id = || {
            if nids <= 0 || nids > nranks {
                return Err(invalid(format!("{name} : invalid nId {nids} (it should be in the 1..{nranks} range)")));
            }
            not_null(name, "commIds", ids)?;
            // SAFETY: it is not NULL and has `nids` ids by the C contract; at least one.
            let ids = unsafe { std::slice::from_raw_parts(ids, nids as usize) };
            Ok(ids.to_vec())
        };
        // SAFETY: the caller keeps the C contract.
        unsafe { init(Rank { function: name, always_blocking: false, newcomm, nranks, rank }, id, config) }
    })
}

/// What the three ways of making one rank's communicator are told alike.
struct Rank {
    /// The C function.
    function: &'static str,
    /// Neither a configuration nor the environment can make the communicator one that does not block.
    always_blocking: bool,
    newcomm: *mut CommHandle,
    nranks: c_int,
    rank: c_int,
}

/// What the three ways of making one rank's communicator have in common. A missing driver is told before anything else
/// and not remembered by a group, as by NCCL; what goes wrong afterwards is. `ids` gives the ids.
///
/// # Safety
/// `rank.newcomm` is NULL or valid for writing until the call (in a group: the group, without blocking: the
/// initialisation) is over; `config` is NULL or an `ncclConfig_t`.
unsafe fn init(
    rank: Rank,
    ids: impl FnOnce() -> Result<Vec<UniqueId>, Error>,
    config: *const RawConfig,
) -> Result<Outcome, Error> {
    let Rank { function, always_blocking, newcomm, nranks, rank } = rank;
    prepare();
    let ids = ids();
    let report_failure = |error: &Error| ids.iter().for_each(|ids| comm::report_failure(ids, nranks, rank, error));
    comm::check_cuda().inspect_err(report_failure).inspect_err(|error| never_made(function, error))?;
    log::banner(rank, library_path);
    noted((|| {
        let admit = || {
            // SAFETY: NULL or valid for writing by the contract.
            unsafe { store(function, "newcomm", newcomm, std::ptr::null_mut()) }?;
            if nranks < 1 || rank < 0 || rank >= nranks {
                return Err(invalid(format!("Invalid rank requested : {rank}/{nranks} ({function})")));
            }
            // SAFETY: the contract is the same.
            Ok((ids.clone()?, unsafe { read::config(config) }?))
        };
        let (ids, config) = admit().inspect_err(report_failure)?;
        ::log::trace!(target: "CALL", "{function}({newcomm:p},{nranks},{:02x?},{rank})", &ids[0].0[..8]);
        let request = InitRequest { always_blocking, ..InitRequest::new(function, (nranks, rank), ids[0], config) };
        // SAFETY: `newcomm` is not NULL and stays valid by the contract.
        let publish = unsafe { publish_to(newcomm) };
        group::init_rank(request, ids, publish)
    })())
    .inspect_err(|error| never_made(function, error))
}

/// Makes the communicators of all ranks in one process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommInitAll(comms: *mut CommHandle, ndev: c_int, devlist: *const c_int) -> ResultCode {
    guard("ncclCommInitAll", |name| -> Result<(), Error> {
        prepare();
        // SAFETY: the contract is the same.
        unsafe { make_all(comms, ndev, devlist) }.inspect_err(|error| never_made(name, error))
    })
}

unsafe fn make_all(comms: *mut CommHandle, ndev: c_int, devlist: *const c_int) -> Result<(), Error> {
    comm::check_cuda()?;
    not_null("CommInitAll", "comms", comms)?;
    let count = usize::try_from(ndev).map_err(|_| invalid(format!("Invalid device count requested : {ndev}")))?;
    log::banner(0, library_path);
    // SAFETY: NULL stands for the default configuration.
    let config = unsafe { read::config(std::ptr::null()) }?;
    let devices: Vec<i32> = match devlist.is_null() {
        true => comm::first_devices(ndev)?,
        // SAFETY: not NULL, so a list of `ndev` ints by the C contract.
        false => unsafe { std::slice::from_raw_parts(devlist, count) }.to_vec(),
    };
    for (i, handle) in group::init_all(&devices, config)?.into_iter().take(count).enumerate() {
        // SAFETY: `comms` has room for `ndev` handles by the C contract.
        unsafe { comms.add(i).write(handle as CommHandle) };
    }
    Ok(())
}

/// `NCCL_SPLIT_NOCOLOR`.
const NO_COLOR: c_int = -1;
/// `NCCL_SHRINK_ABORT`; other bits are ignored.
const SHRINK_ABORT: c_int = 1;

/// Hands the handle of a communicator to C.
///
/// # Safety
/// `to` is not NULL and stays valid for writing until the creation of the communicator is over.
unsafe fn publish_to(to: *mut CommHandle) -> Publish {
    let to = to as usize;
    // SAFETY: it stays valid by the contract.
    Box::new(move |handle| unsafe { (to as *mut CommHandle).write(handle as CommHandle) })
}

/// What split and shrink check: where the new communicator goes, that the parent is ready, the configuration, which it
/// gives.
///
/// # Safety
/// `newcomm` is NULL or valid for writing, `config` NULL or an `ncclConfig_t`.
unsafe fn admit_child(
    parent: &comm::Comm,
    plan: &DerivePlan,
    newcomm: *mut CommHandle,
    config: *const RawConfig,
) -> Result<comm::Config, Error> {
    // SAFETY: the contract is the same.
    unsafe { store(plan.function(), "newcomm", newcomm, std::ptr::null_mut()) }?;
    parent.check_derivable(plan)?;
    // SAFETY: the contract is the same.
    let config = unsafe { read::child_config(config, parent.config()) }?;
    plan.check_config(parent, &config).map(|()| config)
}

/// Makes communicators of the ranks that say the same colour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommSplit(
    comm: CommHandle,
    color: c_int,
    key: c_int,
    newcomm: *mut CommHandle,
    config: *mut RawConfig,
) -> ResultCode {
    guard("ncclCommSplit", |name| -> Result<(), Error> {
        ::log::trace!(target: "CALL", "{name}({comm:p},{color},{key},{newcomm:p})");
        noted((|| {
            let parent = comm_of(name, comm)?;
            let plan = DerivePlan::Split { color: Some(color).filter(|color| *color != NO_COLOR), key };
            // SAFETY: NULL or valid by the C contract.
            let config = unsafe { admit_child(&parent, &plan, newcomm, config) };
            let config = config.inspect_err(|error| parent.refuse_call(&plan, error))?;
            // SAFETY: it is not NULL, and valid until the call (in a group: the group, else the polling) is over.
            let publish = unsafe { publish_to(newcomm) };
            group::derive(parent, plan, config, publish).map(drop)
        })())
    })
}

/// Makes a communicator without some ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommShrink(
    comm: CommHandle,
    excluded: *mut c_int,
    count: c_int,
    newcomm: *mut CommHandle,
    config: *mut RawConfig,
    flags: c_int,
) -> ResultCode {
    guard("ncclCommShrink", |name| -> Result<(), Error> {
        ::log::trace!(target: "CALL", "{name}({comm:p},{excluded:p},{count},{newcomm:p},{flags})");
        noted((|| {
            let parent = comm_of(name, comm)?;
            // SAFETY: NULL or a list of `count` ints by the C contract.
            let ranks = unsafe { staying(name, excluded, count, &parent) }.inspect_err(|_| {
                // SAFETY: NULL or valid for writing by the C contract.
                let _ = unsafe { store(name, "newcomm", newcomm, std::ptr::null_mut()) };
            })?;
            let plan = DerivePlan::Shrink { ranks, abort: flags & SHRINK_ABORT != 0 };
            // SAFETY: NULL or valid by the C contract.
            let config = unsafe { admit_child(&parent, &plan, newcomm, config) };
            let config = config.inspect_err(|error| parent.refuse_call(&plan, error))?;
            // SAFETY: as for a split.
            let publish = unsafe { publish_to(newcomm) };
            group::derive(parent, plan, config, publish).map(drop)
        })())
    })
}

/// The ranks that a shrink keeps. The list is sorted in place, as by NCCL.
///
/// # Safety
/// `excluded` is NULL or a list of `count` ints.
unsafe fn staying(name: &str, excluded: *mut c_int, count: c_int, parent: &comm::Comm) -> Result<Vec<u32>, Error> {
    not_null(name, "excludeRanksList", excluded)?;
    if count <= 0 {
        return Err(invalid(format!("{name} : invalid excludeRanksCount {count}")));
    }
    // SAFETY: not NULL, so a list of `count` ints by the contract.
    let excluded = unsafe { std::slice::from_raw_parts_mut(excluded, count as usize) };
    excluded.sort_unstable();
    if excluded.contains(&parent.rank()) {
        return Err(invalid(format!("{name} : rank {} is in its own excludeRanksList", parent.rank())));
    }
    let ranks = 0..parent.nranks();
    if let Some(wrong) = excluded.iter().find(|rank| !ranks.contains(rank)) {
        let last = parent.nranks() - 1;
        return Err(invalid(format!(
            "{name} : excludeRanksList names rank {wrong} (it should be in the 0..{last} range)"
        )));
    }
    if let Some(twice) = excluded.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(invalid(format!("{name} : excludeRanksList names rank {} twice", twice[0])));
    }
    Ok(ranks.filter(|rank| excluded.binary_search(rank).is_err()).map(i32::cast_unsigned).collect())
}

/// Makes an id by which new ranks join a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommGetUniqueId(comm: CommHandle, id: *mut UniqueId) -> ResultCode {
    guard("ncclCommGetUniqueId", |name| -> Result<(), Error> {
        let comm = ready(name, comm)?;
        not_null(name, "uniqueId", id)?;
        if params::snapshot().text(params::COMM_ID).is_some() {
            return Err(Error::InvalidUsage(format!("{name} : not possible while NCCL_COMM_ID is set")));
        }
        let made = comm.growth_id()?;
        // SAFETY: it is not NULL, so valid for writing by the C contract.
        unsafe { id.write(made) };
        Ok(())
    })
}

/// Makes a communicator with more ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommGrow(
    comm: CommHandle,
    nranks: c_int,
    id: *const UniqueId,
    rank: c_int,
    newcomm: *mut CommHandle,
    config: *mut RawConfig,
) -> ResultCode {
    guard("ncclCommGrow", |name| -> Result<(), Error> {
        ::log::trace!(target: "CALL", "{name}({comm:p},{nranks},{id:p},{rank},{newcomm:p})");
        // SAFETY: not NULL, so an id by the C contract.
        let given = (!id.is_null()).then(|| unsafe { id.read() });
        match comm.is_null() {
            // SAFETY: the caller keeps the C contract.
            true => unsafe { grow_new(nranks, given, rank, newcomm, config) },
            // SAFETY: as above.
            false => unsafe { grow_old(&comm_of(name, comm)?, nranks, given, rank, newcomm, config) },
        }
    })
}

/// The part of a rank that joins. As by NCCL, a group does not remember that an argument was wrong.
unsafe fn grow_new(
    nranks: c_int,
    id: Option<UniqueId>,
    rank: c_int,
    newcomm: *mut CommHandle,
    config: *const RawConfig,
) -> Result<(), Error> {
    const NAME: &str = "ncclCommGrow";
    // SAFETY: NULL or valid for writing by the C contract.
    unsafe { store(NAME, "newcomm", newcomm, std::ptr::null_mut()) }?;
    if nranks <= 0 {
        return Err(invalid(format!("{NAME} : invalid nRanks {nranks}")));
    }
    if rank < 0 || rank >= nranks {
        return Err(invalid(format!("{NAME} : invalid rank {rank}/{nranks}")));
    }
    let id = id.ok_or_else(|| null(NAME, "uniqueId"))?;
    if bootstrap::growth(&id)?.is_none() {
        return Err(invalid(format!("{NAME} : the id was not made by ncclCommGetUniqueId")));
    }
    prepare();
    // SAFETY: NULL or an ncclConfig_t by the C contract.
    let config =
        unsafe { read::config(config) }.inspect_err(|error| comm::report_failure(&[id], nranks, rank, error))?;
    log::banner(rank, library_path);
    // SAFETY: it is not NULL, and stays valid as for every creation.
    let publish = unsafe { publish_to(newcomm) };
    noted(group::init_rank(InitRequest::new(NAME, (nranks, rank), id, config), vec![id], publish)).map(drop)
}

/// The part of a rank that exists.
unsafe fn grow_old(
    parent: &Arc<comm::Comm>,
    nranks: c_int,
    id: Option<UniqueId>,
    rank: c_int,
    newcomm: *mut CommHandle,
    config: *const RawConfig,
) -> Result<(), Error> {
    const NAME: &str = "ncclCommGrow";
    let plan = DerivePlan::Grow { nranks, id };
    let admit = || {
        // SAFETY: NULL or valid for writing by the C contract.
        unsafe { store(NAME, "newcomm", newcomm, std::ptr::null_mut()) }?;
        check_grown(parent, nranks, rank)?;
        // SAFETY: NULL or an ncclConfig_t by the C contract.
        unsafe { read::child_config(config, parent.config()) }
    };
    let config = admit().inspect_err(|error| parent.refuse_call(&plan, error))?;
    // SAFETY: it is not NULL, and stays valid as for every creation.
    let publish = unsafe { publish_to(newcomm) };
    noted(group::grow(parent, plan, config, publish)).map(drop)
}

/// What a rank that exists may ask of a grow.
fn check_grown(comm: &comm::Comm, nranks: c_int, rank: c_int) -> Result<(), Error> {
    if nranks <= 0 {
        return Err(invalid(format!("ncclCommGrow : invalid nRanks {nranks}")));
    }
    if nranks <= comm.nranks() {
        let old = comm.nranks();
        return Err(invalid(format!("ncclCommGrow : nRanks {nranks} is not above the {old} ranks that exist")));
    }
    if rank != -1 {
        return Err(invalid(format!("ncclCommGrow : rank {rank} was given by a rank that exists; it must be -1")));
    }
    comm.check(CallKind::Use)
}

/// Flushes a communicator before it is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommFinalize(comm: CommHandle) -> ResultCode {
    guard("ncclCommFinalize", |name| -> Result<Outcome, Error> {
        if comm.is_null() {
            return Ok(Outcome::Done);
        }
        noted(comm_of(name, comm).and_then(|comm| {
            comm.permits(CallKind::Finalize)?;
            // In a forked child there is nothing of its own to wait for.
            if !comm.is_inherited() {
                comm.check(CallKind::Use)?;
            }
            group::finalize(comm)
        }))
    })
}

/// Frees a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommDestroy(comm: CommHandle) -> ResultCode {
    guard("ncclCommDestroy", |name| -> Result<Outcome, Error> {
        if comm.is_null() {
            return Ok(Outcome::Done);
        }
        noted(comm_of(name, comm).and_then(group::destroy))
    })
}

/// Stops what runs and frees a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommAbort(comm: CommHandle) -> ResultCode {
    guard("ncclCommAbort", |name| -> Result<Outcome, Error> {
        if comm.is_null() {
            return Ok(Outcome::Done);
        }
        noted(comm_of(name, comm).and_then(group::abort))
    })
}

/// Stops what runs and keeps a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommRevoke(comm: CommHandle, flags: c_int) -> ResultCode {
    guard("ncclCommRevoke", |name| -> Result<Outcome, Error> {
        if comm.is_null() {
            return Ok(Outcome::Done);
        }
        noted(comm_of(name, comm).and_then(|comm| match flags {
            0 => group::revoke(comm),
            _ => Err(invalid(format!("{name} : invalid flags {flags:#x}"))),
        }))
    })
}

/// `NCCL_SUSPEND_MEM`: other bits of the flags say nothing.
const SUSPEND_MEMORY: c_int = 1;

/// Gives memory back for a while.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommSuspend(comm: CommHandle, flags: c_int) -> ResultCode {
    guard("ncclCommSuspend", |name| -> Result<Outcome, Error> {
        let comm = ready(name, comm)?;
        comm::check_managed(name)?;
        if flags & SUSPEND_MEMORY == 0 { Ok(Outcome::Done) } else { group::suspend(comm) }
    })
}

/// Takes the memory again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommResume(comm: CommHandle) -> ResultCode {
    guard("ncclCommResume", |name| -> Result<Outcome, Error> {
        let comm = ready(name, comm)?;
        comm::check_managed(name)?;
        group::resume(comm)
    })
}
