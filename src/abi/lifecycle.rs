//! Making and ending communicators (spec §3.2, §6).
//!
//! # Safety
//! The bodies get the arguments of the C functions as they are: pointers are NULL or valid for what the function
//! is documented to do with them.

use super::boundary::{comm_of, invalid, not_null, noted, null, prepare, ready, store, unsupported};
use super::environment::library_path;
use super::exports;
use super::read;
use super::types::{Config, Handle, ResultCode, UniqueId};
use crate::bootstrap;
use crate::comm::{self, InitRequest, Outcome};
use crate::error::Error;
use crate::group;
use crate::{log, params};
use std::ffi::c_int;

exports! {
    /// Makes a communicator with the default configuration.
    fn ncclCommInitRank = pncclCommInitRank(newcomm: *mut Handle, nranks: c_int, id: UniqueId, rank: c_int) -> ResultCode = init_rank;
    /// Makes a communicator.
    fn ncclCommInitRankConfig = pncclCommInitRankConfig(newcomm: *mut Handle, nranks: c_int, id: UniqueId, rank: c_int, config: *mut Config) -> ResultCode = init_rank_config;
    /// Makes a communicator; several ids share the work of meeting.
    fn ncclCommInitRankScalable = pncclCommInitRankScalable(newcomm: *mut Handle, nranks: c_int, rank: c_int, nids: c_int, ids: *mut UniqueId, config: *mut Config) -> ResultCode = init_rank_scalable;
    /// Makes the communicators of all ranks in one process.
    fn ncclCommInitAll = pncclCommInitAll(comms: *mut Handle, ndev: c_int, devlist: *const c_int) -> ResultCode = init_all;
    /// Makes communicators of the ranks that say the same colour.
    fn ncclCommSplit = pncclCommSplit(comm: Handle, color: c_int, key: c_int, newcomm: *mut Handle, config: *mut Config) -> ResultCode = split;
    /// Makes a communicator without some ranks.
    fn ncclCommShrink = pncclCommShrink(comm: Handle, excluded: *mut c_int, count: c_int, newcomm: *mut Handle, config: *mut Config, flags: c_int) -> ResultCode = shrink;
    /// Makes an id by which new ranks join a communicator.
    fn ncclCommGetUniqueId = pncclCommGetUniqueId(comm: Handle, id: *mut UniqueId) -> ResultCode = comm_unique_id;
    /// Makes a communicator with more ranks.
    fn ncclCommGrow = pncclCommGrow(comm: Handle, nranks: c_int, id: *const UniqueId, rank: c_int, newcomm: *mut Handle, config: *mut Config) -> ResultCode = grow;
    /// Flushes a communicator before it is destroyed.
    fn ncclCommFinalize = pncclCommFinalize(comm: Handle) -> ResultCode = finalize;
    /// Frees a communicator.
    fn ncclCommDestroy = pncclCommDestroy(comm: Handle) -> ResultCode = destroy;
    /// Stops what runs and frees a communicator.
    fn ncclCommAbort = pncclCommAbort(comm: Handle) -> ResultCode = abort;
    /// Stops what runs and keeps a communicator.
    fn ncclCommRevoke = pncclCommRevoke(comm: Handle, flags: c_int) -> ResultCode = revoke;
    /// Gives memory back for a while.
    fn ncclCommSuspend = pncclCommSuspend(comm: Handle, flags: c_int) -> ResultCode = suspend;
    /// Takes the memory again.
    fn ncclCommResume = pncclCommResume(comm: Handle) -> ResultCode = resume;
}

unsafe fn init_rank(newcomm: *mut Handle, nranks: c_int, id: UniqueId, rank: c_int) -> Result<Outcome, Error> {
    // SAFETY: the caller keeps the C contract.
    unsafe { init("ncclCommInitRank", newcomm, nranks, || Ok(id), rank, std::ptr::null()) }
}

unsafe fn init_rank_config(
    newcomm: *mut Handle,
    nranks: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> Result<Outcome, Error> {
    // SAFETY: the caller keeps the C contract.
    unsafe { init("ncclCommInitRankConfig", newcomm, nranks, || Ok(id), rank, config) }
}

/// The first id alone is used: it names the communicator (spec §3.2), and one root serves thousands of ranks.
unsafe fn init_rank_scalable(
    newcomm: *mut Handle,
    nranks: c_int,
    rank: c_int,
    nids: c_int,
    ids: *mut UniqueId,
    config: *mut Config,
) -> Result<Outcome, Error> {
    const NAME: &str = "ncclCommInitRankScalable";
    let id = || {
        if nids <= 0 || nids > nranks {
            return Err(invalid(format!("{NAME} : invalid nId {nids} (it should be in the 1..{nranks} range)")));
        }
        not_null(NAME, "commIds", ids)?;
        // SAFETY: it is not NULL and has `nids` ids by the C contract; at least one.
        Ok(unsafe { ids.read() })
    };
    // SAFETY: the caller keeps the C contract.
    unsafe { init(NAME, newcomm, nranks, id, rank, config) }
}

/// What the three ways of making one rank's communicator have in common. A missing driver is told before
/// anything else and not remembered by a group, as by NCCL; what goes wrong afterwards is.
///
/// # Safety
/// `newcomm` is NULL or valid for writing until the call (in a group: the group, without blocking: the
/// initialisation) is over; `config` is NULL or an `ncclConfig_t`.
unsafe fn init(
    function: &'static str,
    newcomm: *mut Handle,
    nranks: c_int,
    id: impl FnOnce() -> Result<UniqueId, Error>,
    rank: c_int,
    config: *const Config,
) -> Result<Outcome, Error> {
    prepare();
    let id = id().map(|id| bootstrap::UniqueId(id.internal));
    let excuse = |error: &Error| id.iter().for_each(|id| comm::excuse(id, nranks, rank, error));
    comm::check_cuda().inspect_err(excuse).inspect_err(|error| never_made(function, error))?;
    log::banner(rank, library_path);
    noted((|| {
        let admit = || {
            // SAFETY: NULL or valid for writing by the contract.
            unsafe { store(function, "newcomm", newcomm, std::ptr::null_mut()) }?;
            if nranks < 1 || rank < 0 || rank >= nranks {
                return Err(invalid(format!("Invalid rank requested : {rank}/{nranks} ({function})")));
            }
            // SAFETY: the contract is the same.
            Ok((id.clone()?, unsafe { read::config(config) }?))
        };
        let (id, config) = admit().inspect_err(excuse)?;
        ::log::trace!(target: "CALL", "{function}({newcomm:p},{nranks},{:02x?},{rank})", &id.0[..8]);
        let always_blocking = function == "ncclCommInitRank";
        let request = InitRequest { function, nranks, rank, id, config, always_blocking, device: None };
        let to = newcomm as usize;
        // SAFETY: `newcomm` is not NULL and stays valid by the contract.
        group::init_rank(request, move |handle| unsafe { (to as *mut Handle).write(handle as Handle) })
    })())
    .inspect_err(|error| never_made(function, error))
}

/// stderr is told why a communicator was not made, whatever NCCL_DEBUG says.
fn never_made(function: &str, error: &Error) {
    log::failed_creation(&log::Place { file: "abi/lifecycle.rs", line: line!(), function }, error);
}

unsafe fn init_all(comms: *mut Handle, ndev: c_int, devlist: *const c_int) -> Result<(), Error> {
    prepare();
    comm::check_cuda().inspect_err(|error| never_made("ncclCommInitAll", error))?;
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
        unsafe { comms.add(i).write(handle as Handle) };
    }
    Ok(())
}

unsafe fn split(comm: Handle, _color: c_int, _key: c_int, newcomm: *mut Handle, config: *mut Config) -> Result<(), Error> {
    const NAME: &str = "ncclCommSplit";
    noted((|| {
        let comm = comm_of(NAME, comm)?;
        // SAFETY: NULL or valid for writing by the C contract.
        unsafe { store(NAME, "newcomm", newcomm, std::ptr::null_mut()) }?;
        comm.check_ready()?;
        // SAFETY: NULL or an ncclConfig_t by the C contract.
        unsafe { read::config(config) }?;
        Err(unsupported(NAME))
    })())
}

unsafe fn shrink(
    comm: Handle,
    excluded: *mut c_int,
    count: c_int,
    newcomm: *mut Handle,
    config: *mut Config,
    _flags: c_int,
) -> Result<(), Error> {
    const NAME: &str = "ncclCommShrink";
    noted((|| {
        let comm = comm_of(NAME, comm)?;
        // SAFETY: NULL or valid for writing by the C contract.
        unsafe { store(NAME, "newcomm", newcomm, std::ptr::null_mut()) }?;
        not_null(NAME, "excludeRanksList", excluded)?;
        if count <= 0 {
            return Err(invalid(format!("{NAME} : invalid excludeRanksCount {count}")));
        }
        // SAFETY: not NULL, so a list of `count` ints by the C contract.
        let excluded = unsafe { std::slice::from_raw_parts(excluded, count as usize) };
        if excluded.contains(&comm.rank()) {
            return Err(invalid(format!("{NAME} : rank {} is in its own excludeRanksList", comm.rank())));
        }
        comm.check_ready()?;
        // SAFETY: NULL or an ncclConfig_t by the C contract.
        unsafe { read::config(config) }?;
        Err(unsupported(NAME))
    })())
}

unsafe fn comm_unique_id(comm: Handle, id: *mut UniqueId) -> Result<(), Error> {
    const NAME: &str = "ncclCommGetUniqueId";
    ready(NAME, comm)?;
    not_null(NAME, "uniqueId", id)?;
    if params::snapshot().text(params::COMM_ID).is_some() {
        return Err(Error::InvalidUsage(format!("{NAME} : not possible while NCCL_COMM_ID is set")));
    }
    Err(unsupported(NAME))
}

unsafe fn grow(
    comm: Handle,
    nranks: c_int,
    id: *const UniqueId,
    rank: c_int,
    newcomm: *mut Handle,
    config: *mut Config,
) -> Result<(), Error> {
    const NAME: &str = "ncclCommGrow";
    // SAFETY: NULL or valid for writing by the C contract.
    unsafe { store(NAME, "newcomm", newcomm, std::ptr::null_mut()) }?;
    if nranks <= 0 {
        return Err(invalid(format!("{NAME} : invalid nRanks {nranks}")));
    }
    match comm.is_null() {
        true if rank < 0 || rank >= nranks => {
            return Err(invalid(format!("{NAME} : invalid rank {rank}/{nranks}")));
        }
        true if id.is_null() => return Err(null(NAME, "uniqueId")),
        true => {}
        false => check_grown(&*comm_of(NAME, comm)?, nranks, rank)?,
    }
    // SAFETY: NULL or an ncclConfig_t by the C contract.
    unsafe { read::config(config) }?;
    Err(unsupported(NAME))
}

/// What a rank that exists may ask of a grow.
fn check_grown(comm: &comm::Comm, nranks: c_int, rank: c_int) -> Result<(), Error> {
    if nranks <= comm.nranks() {
        let old = comm.nranks();
        return Err(invalid(format!("ncclCommGrow : nRanks {nranks} is not above the {old} ranks that exist")));
    }
    if rank != -1 {
        return Err(invalid(format!("ncclCommGrow : rank {rank} was given by a rank that exists; it must be -1")));
    }
    comm.check_ready()
}

fn finalize(comm: Handle) -> Result<Outcome, Error> {
    if comm.is_null() {
        return Ok(Outcome::Done);
    }
    noted(comm_of("ncclCommFinalize", comm).and_then(|comm| {
        // In a forked child there is nothing of its own to wait for.
        if !comm.is_inherited() {
            comm.check_ready()?;
        }
        group::finalize(comm)
    }))
}

fn destroy(comm: Handle) -> Result<Outcome, Error> {
    if comm.is_null() {
        return Ok(Outcome::Done);
    }
    noted(comm_of("ncclCommDestroy", comm).and_then(group::destroy))
}

fn abort(comm: Handle) -> Result<Outcome, Error> {
    if comm.is_null() {
        return Ok(Outcome::Done);
    }
    noted(comm_of("ncclCommAbort", comm).and_then(group::abort))
}

fn revoke(comm: Handle, flags: c_int) -> Result<(), Error> {
    const NAME: &str = "ncclCommRevoke";
    if comm.is_null() {
        return Ok(());
    }
    noted(comm_of(NAME, comm).and_then(|_| match flags {
        0 => Err(unsupported(NAME)),
        _ => Err(invalid(format!("{NAME} : invalid flags {flags:#x}"))),
    }))
}

/// `NCCL_SUSPEND_MEM`: other bits of the flags say nothing (spec §3.4).
const SUSPEND_MEMORY: c_int = 1;

fn suspend(comm: Handle, flags: c_int) -> Result<Outcome, Error> {
    const NAME: &str = "ncclCommSuspend";
    noted((|| {
        let comm = ready(NAME, comm)?;
        comm::check_managed(NAME)?;
        if flags & SUSPEND_MEMORY == 0 { Ok(Outcome::Done) } else { group::suspend(comm) }
    })())
}

fn resume(comm: Handle) -> Result<Outcome, Error> {
    const NAME: &str = "ncclCommResume";
    noted((|| {
        let comm = ready(NAME, comm)?;
        comm::check_managed(NAME)?;
        group::resume(comm)
    })())
}
