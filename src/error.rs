//! The one error type of the library, and the one function that maps it to a result code.
//!
//! Every variant names the thing that failed: the call, the argument, the peer, the path. The text of
//! an error is what `ncclGetLastError` returns and what the WARN line says.

/// A result code of the C interface, with NCCL's numbers (`ncclResult_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The call did what was asked.
    Success = 0,
    /// A CUDA call failed.
    UnhandledCuda = 1,
    /// A system call failed, or a limit of the system was met.
    System = 2,
    /// A bug in this library, and nothing else.
    Internal = 3,
    /// One argument is wrong by itself.
    InvalidArgument = 4,
    /// The call is not allowed now, or does not fit what other ranks do.
    InvalidUsage = 5,
    /// A peer failed, left or cannot be reached.
    Remote = 6,
    /// Not an error: the operation goes on in the background.
    InProgress = 7,
    /// A time limit that the user set has passed.
    Timeout = 8,
}

/// What went wrong. Comparable, so that tests can name the expected error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A CUDA driver call returned an error; `text` is the driver's own word for it.
    #[error("Cuda failure '{text}' ({code}) in {call}")]
    Cuda {
        /// The driver function.
        call: &'static str,
        /// Its `CUresult`.
        code: i32,
        /// The driver's description of the code.
        text: String,
    },
    /// There is no usable CUDA driver or device; the text says what was looked for.
    #[error("{0}")]
    NoCuda(String),
    /// A system call failed. `what` names its object: a path, an address, a size.
    #[error("Call to {call} failed: {} ({what})", errno_text(*.errno))]
    System {
        /// The system call.
        call: &'static str,
        /// The object it was used on.
        what: String,
        /// The error number.
        errno: i32,
    },
    /// A limit or facility of the system is missing; the text names it and how to mend it.
    #[error("{0}")]
    Resource(String),
    /// One argument is wrong by itself.
    #[error("{0}")]
    InvalidArgument(String),
    /// The call is not allowed now, or does not fit what other ranks do.
    #[error("{0}")]
    InvalidUsage(String),
    /// A peer failed, left, or cannot be reached. `rank` is the culprit where it is known.
    #[error("{text}")]
    Remote {
        /// The rank to blame.
        rank: Option<u32>,
        /// What it did.
        text: String,
    },
    /// A time limit that the user set has passed; the text names who is missing.
    #[error("{0}")]
    Timeout(String),
    /// The communicator was aborted by its user.
    #[error("the operation was aborted by ncclCommAbort")]
    Aborted,
    /// A bug in this library.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// The result code that the C interface returns for this error.
    pub fn code(&self) -> Code {
        match self {
            Error::Cuda { .. } | Error::NoCuda(_) => Code::UnhandledCuda,
            Error::System { .. } | Error::Resource(_) => Code::System,
            Error::InvalidArgument(_) => Code::InvalidArgument,
            Error::InvalidUsage(_) | Error::Aborted => Code::InvalidUsage,
            Error::Remote { .. } => Code::Remote,
            Error::Timeout(_) => Code::Timeout,
            Error::Internal(_) => Code::Internal,
        }
    }

    /// A failed system call, from the last OS error or one that a crate returned.
    pub fn system(call: &'static str, what: impl Into<String>, error: &std::io::Error) -> Error {
        Error::System { call, what: what.into(), errno: error.raw_os_error().unwrap_or(0) }
    }
}

/// The system's text for an error number, without Rust's "(os error N)".
fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    match text.split_once(" (os error") {
        Some((head, _)) => head.to_string(),
        None => text,
    }
}
