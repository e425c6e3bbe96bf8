//! ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{EndOfGroup, guard, invalid};
use super::read::versioned;
use super::types::{ResultCode, SimInfo};
use super::weak_aliases;
use crate::comm::Outcome;
use crate::comm::config::VERSION;
use crate::error::Error;
use crate::group;

weak_aliases! {
    ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd,
}

/// Opens a group of calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupStart() -> ResultCode {
    guard("ncclGroupStart", |_| -> Result<(), Error> {
        group::start();
        ::log::trace!(target: "CALL", "ncclGroupStart()");
        Ok(())
    })
}

/// Closes a group; the outermost one carries out what was collected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupEnd() -> ResultCode {
    guard("ncclGroupEnd", |_| -> EndOfGroup {
        ::log::trace!(target: "CALL", "ncclGroupEnd()");
        EndOfGroup(group::end())
    })
}

/// The magic of an `ncclSimInfo_t`.
const SIM_MAGIC: u32 = 0x7468_5283;

/// Closes a group and only estimates its time.
///
/// NULL is ncclGroupEnd. The estimate stays -1 where no collective was costed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclGroupSimulateEnd(info: *mut SimInfo) -> ResultCode {
    guard("ncclGroupSimulateEnd", |_| -> Result<Outcome, Error> {
        if info.is_null() {
            return group::end();
        }
        let initial = SimInfo { size: 0, magic: 0, version: VERSION, estimated_time: -1.0 };
        // SAFETY: an ncclSimInfo_t begins with its size and is C numbers.
        let read = unsafe { versioned(info.cast_const(), initial) };
        if read.magic != SIM_MAGIC {
            let magic = read.magic;
            let error = invalid(format!(
                "ncclSimInfo_t argument not initialized via its INITIALIZER macro (got magic {magic:#x})"
            ));
            group::note_error(&error);
            return group::end();
        }
        if let Some(us) = group::simulate_end()? {
            // SAFETY: the struct has the size that its first version had, which ends behind this field.
            unsafe { (&raw mut (*info).estimated_time).write(us as f32) };
        }
        Ok(Outcome::Done)
    })
}
