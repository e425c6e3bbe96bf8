//! The process environment and the path of the library: what `params` and `log` must be told.

use crate::params::{Environment, Files};
use crate::sys;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// The environment of this process and its files.
pub(super) struct ProcessEnvironment;

impl Files for ProcessEnvironment {
    fn read(&self, path: &Path, limit: u64) -> std::io::Result<Vec<u8>> {
        // A FIFO would block, a directory cannot be read.
        if !std::fs::metadata(path)?.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(Error::new(ErrorKind::FileTooLarge, format!("longer than {limit} bytes")));
        }
        Ok(bytes)
    }
}

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn set(&mut self, name: &str, value: &str) {
        // SAFETY: as with NCCL, which does the same at the same moment, no other thread of the program may
        // use the environment during the first initialisation. Name and value were checked.
        unsafe { std::env::set_var(name, value) };
    }
}

/// The file that this code was loaded from.
pub(super) fn library_path() -> String {
    let here = library_path as fn() -> String;
    sys::loaded_file(here as usize).unwrap_or_else(|| "an unknown file".to_string())
}
