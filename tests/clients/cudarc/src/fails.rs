//! What makes the program give up.

use std::fmt;

use cudarc::driver::DriverError;
use cudarc::nccl::result::NcclError;

/// A call that failed, in words.
pub struct Fails(pub String);

impl fmt::Display for Fails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<DriverError> for Fails {
    fn from(error: DriverError) -> Fails {
        Fails(error.to_string())
    }
}

impl From<std::io::Error> for Fails {
    fn from(error: std::io::Error) -> Fails {
        Fails(error.to_string())
    }
}

/// An answer of cudarc's `nccl` module; its error does not say which one it is, the code in it does.
pub fn nccl<T>(answer: Result<T, NcclError>) -> Result<T, Fails> {
    answer.map_err(|error| Fails(format!("{:?}", error.0)))
}
