//! Questions about a communicator, reduction operators, buffer registration.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{comm_of, guard, invalid, not_null, ready, store};
use super::types::{CommHandle, DataTypeCode, MemStat, RedOpCode, ResultCode, ScalarResidence};
use super::weak_aliases;
use crate::comm::{self, CallKind, Comm, MemoryStat};
use crate::error::Error;
use crate::plan::call::DataType;
use crate::plan::operator::Scalar;
use std::ffi::{c_int, c_void};

weak_aliases! {
    ncclCommCount, ncclCommCuDevice, ncclCommUserRank, ncclCommGetAsyncError, ncclCommMemStats,
    ncclCommRegister, ncclCommDeregister, ncclRedOpCreatePreMulSum, ncclRedOpDestroy,
}

/// The checks that the three simple questions have in common.
unsafe fn ask(
    name: &str,
    argument: &str,
    comm: CommHandle,
    to: *mut c_int,
    what: fn(&Comm) -> i32,
) -> Result<(), Error> {
    let comm = comm_of(name, comm)?;
    not_null(name, argument, to)?;
    comm.check(CallKind::Use)?;
    // SAFETY: NULL or valid for writing, by the C contract.
    unsafe { store(name, argument, to, what(&comm)) }
}

/// The number of ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommCount(comm: CommHandle, to: *mut c_int) -> ResultCode {
    guard("ncclCommCount", |_| -> Result<(), Error> {
        // SAFETY: the contract is the same.
        unsafe { ask("CommCount", "count", comm, to, Comm::nranks) }
    })
}

/// The CUDA device of this rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommCuDevice(comm: CommHandle, to: *mut c_int) -> ResultCode {
    guard("ncclCommCuDevice", |_| -> Result<(), Error> {
        // SAFETY: the contract is the same.
        unsafe { ask("CommCuDevice", "device", comm, to, Comm::cuda_device) }
    })
}

/// The number of this rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommUserRank(comm: CommHandle, to: *mut c_int) -> ResultCode {
    guard("ncclCommUserRank", |_| -> Result<(), Error> {
        // SAFETY: the contract is the same.
        unsafe { ask("CommUserRank", "rank", comm, to, Comm::rank) }
    })
}

/// The state of a communicator: success, in progress, or its error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommGetAsyncError(comm: CommHandle, to: *mut ResultCode) -> ResultCode {
    guard("ncclCommGetAsyncError", |_| -> Result<(), Error> {
        const NAME: &str = "ncclGetAsyncError";
        let comm = comm_of(NAME, comm)?;
        let code = comm.async_state();
        crate::launch::goodbye_if_due(&comm);
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { store(NAME, "asyncError", to, code.into()) }
    })
}

/// Bytes of memory that a communicator uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommMemStats(comm: CommHandle, stat: MemStat, value: *mut u64) -> ResultCode {
    guard("ncclCommMemStats", |name| -> Result<(), Error> {
        let comm = ready(name, comm)?;
        not_null(name, "value", value)?;
        let stat = MemoryStat::from_c(stat).ok_or_else(|| invalid(format!("{name} : invalid stat {stat}")))?;
        comm::check_managed(name)?;
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { store(name, "value", value, comm.memory(stat)) }
    })
}

/// A hint that a buffer will be used often.
///
/// Registration is a hint; a NULL handle says that nothing came of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommRegister(
    comm: CommHandle,
    buffer: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ResultCode {
    guard("ncclCommRegister", |name| -> Result<(), Error> {
        let comm = comm_of(name, comm)?;
        if !handle.is_null() {
            // SAFETY: not NULL, so valid for writing by the C contract.
            unsafe { handle.write(comm.register(buffer as u64, size as u64) as *mut c_void) };
        }
        Ok(())
    })
}

/// Takes the hint back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclCommDeregister(comm: CommHandle, handle: *mut c_void) -> ResultCode {
    guard("ncclCommDeregister", |name| -> Result<(), Error> {
        let comm = comm_of(name, comm)?;
        if handle.is_null() { Ok(()) } else { comm.deregister(handle as usize) }
    })
}

/// `ncclScalarHostImmediate`.
const HOST_IMMEDIATE: c_int = 1;

/// Makes an operator that multiplies before it adds.
///
/// NCCL calls a wrong datatype its own bug (3) here; an argument error is what it is. A device's scalar is read
/// when a call runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclRedOpCreatePreMulSum(
    op: *mut RedOpCode,
    scalar: *mut c_void,
    datatype: DataTypeCode,
    residence: ScalarResidence,
    comm: CommHandle,
) -> ResultCode {
    guard("ncclRedOpCreatePreMulSum", |name| -> Result<(), Error> {
        let comm = ready(name, comm)?;
        let known = DataType::from_c(datatype).ok_or_else(|| invalid(format!("{name} : invalid type {datatype}")))?;
        not_null(name, "op", op)?;
        not_null(name, "scalar", scalar)?;
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
        unsafe { store(name, "op", op, number) }
    })
}

/// Frees such an operator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclRedOpDestroy(op: RedOpCode, comm: CommHandle) -> ResultCode {
    guard("ncclRedOpDestroy", |name| -> Result<(), Error> {
        crate::comm::check_destroyable(op)?;
        comm_of(name, comm)?.operators().destroy(op)
    })
}
