//! Questions about a communicator, reduction operators, buffer registration (spec §3.3 to §3.5).
//!
//! # Safety
//! The bodies get the arguments of the C functions as they are: pointers are NULL or valid for what the function
//! is documented to do with them.

use super::boundary::{comm_of, invalid, not_null, ready, store};
use super::exports;
use super::types::{Handle, ResultCode};
use crate::comm::{self, Comm, MemoryStat};
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::operator::Scalar;
use std::ffi::{c_int, c_void};

exports! {
    /// The number of ranks.
    fn ncclCommCount = pncclCommCount(comm: Handle, count: *mut c_int) -> ResultCode = comm_count;
    /// The CUDA device of this rank.
    fn ncclCommCuDevice = pncclCommCuDevice(comm: Handle, device: *mut c_int) -> ResultCode = cuda_device;
    /// The number of this rank.
    fn ncclCommUserRank = pncclCommUserRank(comm: Handle, rank: *mut c_int) -> ResultCode = user_rank;
    /// The state of a communicator: success, in progress, or its error.
    fn ncclCommGetAsyncError = pncclCommGetAsyncError(comm: Handle, error: *mut c_int) -> ResultCode = async_error;
    /// Bytes of memory that a communicator uses.
    fn ncclCommMemStats = pncclCommMemStats(comm: Handle, stat: c_int, value: *mut u64) -> ResultCode = mem_stats;
    /// A hint that a buffer will be used often.
    fn ncclCommRegister = pncclCommRegister(comm: Handle, buffer: *mut c_void, size: usize, handle: *mut *mut c_void) -> ResultCode = register;
    /// Takes the hint back.
    fn ncclCommDeregister = pncclCommDeregister(comm: Handle, handle: *mut c_void) -> ResultCode = deregister;
    /// Makes an operator that multiplies before it adds.
    fn ncclRedOpCreatePreMulSum = pncclRedOpCreatePreMulSum(op: *mut c_int, scalar: *mut c_void, datatype: c_int, residence: c_int, comm: Handle) -> ResultCode = create_op;
    /// Frees such an operator.
    fn ncclRedOpDestroy = pncclRedOpDestroy(op: c_int, comm: Handle) -> ResultCode = destroy_op;
}

/// The checks that the three simple questions have in common.
unsafe fn ask(name: &str, argument: &str, comm: Handle, to: *mut c_int, what: fn(&Comm) -> i32) -> Result<(), Error> {
    let comm = comm_of(name, comm)?;
    not_null(name, argument, to)?;
    comm.check_ready()?;
    // SAFETY: NULL or valid for writing, by the C contract.
    unsafe { store(name, argument, to, what(&comm)) }
}

unsafe fn comm_count(comm: Handle, to: *mut c_int) -> Result<(), Error> {
    // SAFETY: the contract is the same.
    unsafe { ask("CommCount", "count", comm, to, Comm::nranks) }
}

unsafe fn cuda_device(comm: Handle, to: *mut c_int) -> Result<(), Error> {
    // SAFETY: the contract is the same.
    unsafe { ask("CommCuDevice", "device", comm, to, Comm::cuda_device) }
}

unsafe fn user_rank(comm: Handle, to: *mut c_int) -> Result<(), Error> {
    // SAFETY: the contract is the same.
    unsafe { ask("CommUserRank", "rank", comm, to, Comm::rank) }
}

unsafe fn async_error(comm: Handle, to: *mut c_int) -> Result<(), Error> {
    const NAME: &str = "ncclGetAsyncError";
    let comm = comm_of(NAME, comm)?;
    let code = comm.async_state();
    crate::launch::farewell_if_due(&comm);
    // SAFETY: NULL or valid for writing, by the C contract.
    unsafe { store(NAME, "asyncError", to, code as c_int) }
}

unsafe fn mem_stats(comm: Handle, stat: c_int, value: *mut u64) -> Result<(), Error> {
    const NAME: &str = "ncclCommMemStats";
    let comm = ready(NAME, comm)?;
    not_null(NAME, "value", value)?;
    let stat = MemoryStat::from_c(stat).ok_or_else(|| invalid(format!("{NAME} : invalid stat {stat}")))?;
    comm::check_managed(NAME)?;
    // SAFETY: NULL or valid for writing, by the C contract.
    unsafe { store(NAME, "value", value, comm.memory(stat)) }
}

/// Registration is a hint; a NULL handle says that nothing came of it.
unsafe fn register(comm: Handle, buffer: *mut c_void, size: usize, handle: *mut *mut c_void) -> Result<(), Error> {
    let comm = comm_of("ncclCommRegister", comm)?;
    if !handle.is_null() {
        // SAFETY: not NULL, so valid for writing by the C contract.
        unsafe { handle.write(comm.register(buffer as u64, size as u64) as *mut c_void) };
    }
    Ok(())
}

fn deregister(comm: Handle, handle: *mut c_void) -> Result<(), Error> {
    let comm = comm_of("ncclCommDeregister", comm)?;
    if handle.is_null() { Ok(()) } else { comm.deregister(handle as usize) }
}

/// `ncclScalarHostImmediate`.
const HOST_IMMEDIATE: c_int = 1;

/// NCCL calls a wrong datatype its own bug (3) here; an argument error is what it is. A device's scalar is read
/// when a call runs.
unsafe fn create_op(op: *mut c_int, scalar: *mut c_void, datatype: c_int, residence: c_int, comm: Handle) -> Result<(), Error> {
    const NAME: &str = "ncclRedOpCreatePreMulSum";
    let comm = ready(NAME, comm)?;
    let known = DataType::from_c(datatype).ok_or_else(|| invalid(format!("{NAME} : invalid type {datatype}")))?;
    not_null(NAME, "op", op)?;
    not_null(NAME, "scalar", scalar)?;
    let scalar = if residence == HOST_IMMEDIATE {
        let mut bits = [0; 8];
        // SAFETY: the scalar is an element of the datatype, by the C contract; none is larger than 8 bytes.
        unsafe { std::ptr::copy_nonoverlapping(scalar.cast::<u8>(), bits.as_mut_ptr(), known.size()) };
        Scalar::Bits(u64::from_le_bytes(bits))
    } else {
        Scalar::At(scalar as u64)
    };
    let number = comm.operators().create(known, scalar);
    // SAFETY: NULL or valid for writing, by the C contract.
    unsafe { store(NAME, "op", op, number) }
}

fn destroy_op(op: c_int, comm: Handle) -> Result<(), Error> {
    crate::comm::check_destroyable(op)?;
    comm_of("ncclRedOpDestroy", comm)?.operators().destroy(op)
}
