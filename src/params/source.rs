//! Where values come from, and what the library needs of the process to read them.

use std::fmt;
use std::path::Path;

/// Where a value was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
    /// The process environment, before the library read its files.
    Environment,
    /// A configuration file.
    File {
        /// Its path.
        path: String,
        /// The line, from 1.
        line: usize,
    },
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueSource::Environment => write!(f, "environment"),
            ValueSource::File { path, line } => write!(f, "{path}:{line}"),
        }
    }
}

/// The process environment and the files that are read into it; a test gives its own.
pub trait Environment: Files {
    /// The value of a variable. Bytes that are not UTF-8 are replaced.
    fn get(&self, name: &str) -> Option<String>;
    /// Sets a variable that is not set. `name` has no `=`, neither has a NUL.
    fn set(&mut self, name: &str, value: &str);
}

/// Reading whole files.
pub trait Files {
    /// The bytes of a regular file, at most `limit` of them.
    fn read(&self, path: &Path, limit: u64) -> std::io::Result<Vec<u8>>;
}
