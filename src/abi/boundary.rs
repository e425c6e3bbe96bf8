//! What every entry point does: catch panics, turn results into codes, check handles and pointers.

use super::types::{CommHandle, ResultCode, Team};
use crate::comm::{self, CallKind, Comm, Outcome};
use crate::error::{Code, Error};
use crate::log::{self, Place};
use crate::{group, params};
use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;

/// What the C result is after a panic.
pub(super) trait AfterPanic {
    /// The value.
    fn after_panic() -> Self;
}

impl AfterPanic for ResultCode {
    fn after_panic() -> ResultCode {
        ResultCode::from(Code::Internal)
    }
}

impl AfterPanic for c_int {
    fn after_panic() -> c_int {
        -1
    }
}

impl AfterPanic for Team {
    fn after_panic() -> Team {
        Team::NONE
    }
}

impl AfterPanic for *const c_char {
    fn after_panic() -> *const c_char {
        c"".as_ptr()
    }
}

impl AfterPanic for () {
    fn after_panic() {}
}

/// What a body gives, turned into the C result `T`.
pub(super) trait Answer<T> {
    /// The C result; errors are shown.
    fn answer(self, call: &Place<'_>) -> T;
}

impl<T: AfterPanic> Answer<T> for T {
    fn answer(self, _: &Place<'_>) -> T {
        self
    }
}

impl Answer<ResultCode> for Result<Outcome, Error> {
    fn answer(self, call: &Place<'_>) -> ResultCode {
        match self {
            Ok(Outcome::Done) => Code::Success.into(),
            Ok(Outcome::InProgress) => Code::InProgress.into(),
            Err(error) => {
                log::failure(call, &error);
                failed(&error)
            }
        }
    }
}

/// The code of a call that has failed, perhaps since another thread has aborted its communicator: then this one was the
/// last to have it, and frees it.
fn failed(error: &Error) -> ResultCode {
    comm::free_ended();
    error.code().into()
}

impl Answer<ResultCode> for Result<(), Error> {
    fn answer(self, call: &Place<'_>) -> ResultCode {
        self.map(|()| Outcome::Done).answer(call)
    }
}

thread_local! {
    /// The last error that a call in this thread's open group has shown.
    static SHOWN: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// A result of the end of a group: an error that a call in the group has shown is not shown again.
pub(super) struct EndOfGroup(pub Result<Outcome, Error>);

impl Answer<ResultCode> for EndOfGroup {
    fn answer(self, call: &Place<'_>) -> ResultCode {
        let shown = if group::is_open() { None } else { SHOWN.take() };
        match self.0 {
            Err(error) if Some(&error) == shown.as_ref() => failed(&error),
            result => result.answer(call),
        }
    }
}

/// Runs the body of an entry point, after what the calling thread still has to do for earlier calls. The body is given
/// the function's name, for its messages.
#[track_caller]
pub(super) fn guard<T: AfterPanic, R: Answer<T>>(function: &'static str, body: impl FnOnce(&'static str) -> R) -> T {
    let call = place(function);
    log::install();
    let body = || {
        comm::handover::take_up();
        body(function).answer(&call)
    };
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        log::failure(&call, &Error::Internal(format!("{function} panicked: {text}")));
        T::after_panic()
    })
}

/// Where the caller is, as log lines say it.
#[track_caller]
pub(super) fn place(function: &str) -> Place<'_> {
    let here = Location::caller();
    Place { file: source(here.file()), line: here.line(), function }
}

/// A source file as log lines name it.
pub(super) fn source(path: &str) -> &str {
    path.rsplit_once("src/").map_or(path, |(_, file)| file)
}

/// The first call that initialises something reads the configuration files.
pub(super) fn prepare() {
    params::load(&mut super::environment::ProcessEnvironment);
}

/// An error that says that an argument is wrong by itself.
pub(super) fn invalid(text: impl Into<String>) -> Error {
    Error::InvalidArgument(text.into())
}

/// The honest answer for what this version does not do.
pub(super) fn unsupported(function: &str) -> Error {
    Error::InvalidUsage(format!("{function} is not supported by this version of oxccl"))
}

/// The communicator of a handle; `name` is how messages call the operation.
pub(super) fn comm_of(name: &str, handle: CommHandle) -> Result<Arc<Comm>, Error> {
    if handle.is_null() {
        return Err(null(name, "comm"));
    }
    comm::lookup(handle as usize).ok_or_else(|| {
        let what = "it is not a communicator, or one that was destroyed";
        invalid(format!("Error: corrupted comm object detected ({name} : comm {handle:p}: {what})"))
    })
}

/// The same, and the communicator can be used now.
pub(super) fn ready(name: &str, handle: CommHandle) -> Result<Arc<Comm>, Error> {
    let comm = comm_of(name, handle)?;
    comm.check(CallKind::Use)?;
    Ok(comm)
}

/// An argument that must not be NULL is.
pub(super) fn null(name: &str, argument: &str) -> Error {
    invalid(format!("{name} : {argument} argument is NULL"))
}

/// Checks that a pointer is not NULL.
pub(super) fn not_null<T>(name: &str, argument: &str, pointer: *const T) -> Result<(), Error> {
    if pointer.is_null() { Err(null(name, argument)) } else { Ok(()) }
}

/// Writes a result through a pointer of the caller.
///
/// # Safety
/// `to` is NULL or valid for writing a `T`.
pub(super) unsafe fn store<T>(name: &str, argument: &str, to: *mut T, value: T) -> Result<(), Error> {
    not_null(name, argument, to)?;
    // SAFETY: it is not NULL, so it is valid by the contract.
    unsafe { to.write(value) };
    Ok(())
}

/// stderr is told why there is no communicator, or no id for one, whatever NCCL_DEBUG says.
#[track_caller]
pub(super) fn never_made(function: &str, error: &Error) {
    log::tell_stderr(&place(function), error);
}

/// Passes a result on; an error is remembered by the thread's open group.
pub(super) fn noted<T>(result: Result<T, Error>) -> Result<T, Error> {
    result.inspect_err(|error| {
        group::note_error(error);
        if group::is_open() {
            SHOWN.set(Some(error.clone()));
        }
    })
}
