//! Descriptors of the library are never 0, 1 or 2.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The lowest number that is no standard stream's.
const FIRST: i32 = 3;

/// Gives a new descriptor another number where it is a standard stream's, which a program may have closed: what the
/// program, or this library's log, writes to stderr must not end up in a socket or in shared memory.
///
/// # Errors
/// The process may open no more files.
pub fn off_standard<F: AsFd + From<OwnedFd>>(fd: F) -> io::Result<F> {
    if fd.as_fd().as_raw_fd() >= FIRST {
        return Ok(fd);
    }
    let moved = rustix::io::fcntl_dupfd_cloexec(&fd, FIRST)?;
    Ok(F::from(moved))
}
