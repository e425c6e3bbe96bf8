//! What the library does by now. Tests of the rest are left out, and say so.

use crate::common::contract::Func;

/// The collectives.
pub const FUNCS: &[Func] = &Func::ALL;
/// Operators made by `ncclRedOpCreatePreMulSum`.
pub const PRE_MUL_SUM: bool = true;
/// `launchCompletionEvent` of a call's configuration.
pub const COMPLETION_EVENTS: bool = true;
/// `ncclGroupSimulateEnd` with an estimate.
pub const SIMULATION: bool = true;
/// Send and Recv.
pub const POINT_TO_POINT: bool = true;
/// The words of `NCCL_ALGO`.
pub const ALGORITHMS: &[&str] = &["Ring", "Tree", "PAT", "Direct", "Direct2"];
/// The words of `NCCL_PROTO`.
pub const PROTOCOLS: &[&str] = &["Simple", "LL"];

/// Whether the calling test has what it needs; says so where it has not.
pub fn has(what: &str, there: bool) -> bool {
    if !there {
        let test = std::thread::current().name().unwrap_or("a test").to_string();
        eprintln!("NOT BUILT {test}: it needs {what}");
    }
    there
}
