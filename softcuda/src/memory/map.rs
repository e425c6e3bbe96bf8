//! Pages from the operating system.

use super::{HUGE, PAGE};
use crate::error::{CudaError, Outcome};
use crate::os;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

/// Mapped pages, unmapped when dropped.
pub struct Mapping {
    base: usize,
    size: usize,
    file: Option<OwnedFd>,
}

impl Mapping {
    /// Shared memory in a memfd of that name: other processes can map it through the descriptor.
    pub fn with_file(size: usize, name: &CStr) -> Outcome<Mapping> {
        let file = memfd(name)?;
        // SAFETY: the descriptor is ours.
        let grown = unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) };
        if grown != 0 {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        Mapping::of_file(file, size)
    }

    /// Maps a file that another process made.
    pub fn of_file(file: OwnedFd, size: usize) -> Outcome<Mapping> {
        let base = map(size, Some(&file)).ok_or(CudaError::OUT_OF_MEMORY)?;
        Ok(Mapping { base, size, file: Some(file) })
    }

    /// Private memory.
    pub fn anonymous(size: usize) -> Outcome<Mapping> {
        let base = map(size, None).ok_or(CudaError::OUT_OF_MEMORY)?;
        Ok(Mapping { base, size, file: None })
    }

    /// First address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Bytes, whole pages.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The file behind it.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }

    /// Keeps the mapping but not the descriptor: it cannot be exported.
    pub fn without_file(mut self) -> Mapping {
        self.file = None;
        self
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these pages were mapped by us and nothing else is in them; the client may no longer use them.
        unsafe { libc::munmap(self.base as *mut _, self.size) };
    }
}

/// A new memfd, which can be sealed.
pub fn memfd(name: &CStr) -> Outcome<OwnedFd> {
    for attempt in 0..2 {
        // SAFETY: a C string and flags.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd >= 0 {
            // SAFETY: a new descriptor that nobody else owns.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            return os::off_standard(fd).map_err(|_| CudaError::OUT_OF_MEMORY);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EMFILE) || attempt > 0 || !raise_file_limit() {
            os::say_once(
                "memfd",
                &format!("memfd_create: {error} (each allocation needs a descriptor, see ulimit -n)"),
            );
            break;
        }
    }
    Err(CudaError::OUT_OF_MEMORY)
}

/// Raises the soft limit of open files to the hard one; false if it is there already.
fn raise_file_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 || limit.rlim_cur >= limit.rlim_max {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is initialised.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0 }
}

/// Maps `size` bytes (whole pages); large ones at a multiple of 2 MiB and with huge pages where the system has them.
fn map(size: usize, file: Option<&OwnedFd>) -> Option<usize> {
    let align = if size >= HUGE { HUGE } else { PAGE };
    let reserved = size.checked_add(align - PAGE)?;
    let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe { libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, none, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start as usize;
    let base = start.next_multiple_of(align);
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: replaces pages of the reservation just made.
    let mapped = unsafe { libc::mmap(base as *mut _, size, rights, flags | libc::MAP_FIXED, fd, 0) };
    let end = if mapped == libc::MAP_FAILED { start } else { base + size };
    unmap(start, if mapped == libc::MAP_FAILED { start } else { base });
    unmap(end, start + reserved);
    if mapped == libc::MAP_FAILED {
        return None;
    }
    if size >= HUGE {
        // SAFETY: advice on pages that we mapped; it may be refused, no matter.
        unsafe { libc::madvise(base as *mut _, size, libc::MADV_HUGEPAGE) };
    }
    Some(base)
}

fn unmap(from: usize, to: usize) {
    if to > from {
        // SAFETY: pages of a reservation of `map` that nobody was told of.
        unsafe { libc::munmap(from as *mut _, to - from) };
    }
}
