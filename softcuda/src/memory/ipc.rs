//! IPC handles of memory: which descriptor of which process holds it, and what proves that it still does.

use super::{HUGE, Mapping, PAGE, Range};
use crate::error::{CudaError, Outcome};
use crate::os;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of `CUipcMemHandle` and `CUipcEventHandle`.
pub const HANDLE_BYTES: usize = 64;
/// First bytes of a handle of ours, with the version of its layout.
const MAGIC: [u8; 8] = *b"SCIPC\0\0\x02";

/// What a handle is for.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Memory.
    Memory = 1,
    /// An event.
    Event = 2,
}

/// Where a memfd can be had from another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryHandle {
    /// The process and its descriptor.
    pid: u32,
    fd: i32,
    /// Bytes that the client asked for; those of the whole block for a piece of one.
    size: u64,
    /// Bytes from the file's begin to the allocation: 0, but for a piece of a block.
    offset: u64,
    /// Inode of the file; with the tag, which is in the file's name, it proves that the descriptor is still the same.
    inode: u64,
    /// Random number of the process and number of the allocation.
    pub tag: u128,
    /// Number on the machine of the device that has the memory.
    pub home: u8,
}

impl MemoryHandle {
    /// For an allocation of this process on the device `home`.
    pub fn of_range(range: &Range, home: u32) -> Outcome<MemoryHandle> {
        let home = u8::try_from(home).map_err(|_| CudaError::INVALID_VALUE)?;
        if let Some(piece) = &range.piece {
            let whole = MemoryHandle::of_mapping(&piece.block.mapping, range.tag, HUGE)?;
            return Ok(MemoryHandle { offset: piece.offset as u64, home, ..whole });
        }
        let mapping = range.mapping.as_ref().ok_or(CudaError::INVALID_VALUE)?;
        Ok(MemoryHandle { home, ..MemoryHandle::of_mapping(mapping, range.tag, range.size)? })
    }

    /// For a mapping of this process with the file name of `tag`.
    pub fn of_mapping(mapping: &Mapping, tag: u128, size: usize) -> Outcome<MemoryHandle> {
        let file = mapping.file().filter(|_| tag != 0).ok_or(CudaError::INVALID_VALUE)?;
        let inode = status(file).map_err(|_| CudaError::OPERATING_SYSTEM)?.ino();
        let (pid, fd) = (std::process::id(), file.as_raw_fd());
        Ok(MemoryHandle { pid, fd, size: size as u64, offset: 0, inode, tag, home: 0 })
    }

    /// Made by this very process.
    pub fn is_own(&self) -> bool {
        self.pid == std::process::id() && self.tag >> 64 == u128::from(process_tag())
    }

    /// Bytes that are shared: those that the exporter's client asked for, or a whole block.
    pub fn bytes(&self) -> usize {
        self.size as usize
    }

    /// Where in them the allocation begins.
    pub fn offset(&self) -> usize {
        self.offset as usize
    }

    /// Maps the memory here. `MAP_FAILED`: the process or the allocation is gone, or may not be looked at.
    pub fn map(&self) -> Outcome<Mapping> {
        let size = mapped_size(self.bytes()).ok_or(CudaError::INVALID_HANDLE)?;
        let file = self.open().map_err(|_| CudaError::MAP_FAILED)?;
        if !self.is_same(&file) || status(&file).map_or(0, |status| status.len()) < size as u64 {
            return Err(CudaError::MAP_FAILED);
        }
        mark_open(&file);
        Ok(Mapping::of_file(file, size)?.without_file())
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        match File::options().read(true).write(true).open(path) {
            Ok(file) => os::off_standard(file.into()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => duplicate(self.pid, self.fd),
            Err(error) => Err(error),
        }
    }

    /// The file is the one that the handle was made for: right name, which holds the tag, and right inode.
    fn is_same(&self, file: &OwnedFd) -> bool {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let wanted = file_name(self.tag);
        let named = name.is_ok_and(|name| name.to_string_lossy().contains(&*wanted.to_string_lossy()));
        named && status(file).is_ok_and(|status| status.ino() == self.inode)
    }

    /// The client's 64 bytes.
    pub fn encode(&self, purpose: Purpose) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.pid.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.size.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.inode.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.tag.to_le_bytes());
        [bytes[48], bytes[49]] = [purpose as u8, self.home];
        bytes[56..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// `INVALID_HANDLE` for bytes that are no handle for that purpose.
    pub fn decode(bytes: &[u8; HANDLE_BYTES], purpose: Purpose) -> Outcome<MemoryHandle> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let (size, tag) = (word(16), u128::from(word(40)) << 64 | u128::from(word(32)));
        let sane = bytes[..8] == MAGIC && bytes[48] == purpose as u8 && bytes[50..56].iter().all(|b| *b == 0);
        let (offset, home) = (word(56), bytes[49]);
        if !sane || size == 0 || tag == 0 || offset >= size {
            return Err(CudaError::INVALID_HANDLE);
        }
        Ok(MemoryHandle { pid: word(8) as u32, fd: (word(8) >> 32) as i32, size, offset, inode: word(24), tag, home })
    }
}

/// Bytes of whole pages that hold so many; huge pages for large ones. `None`: too many.
pub fn mapped_size(bytes: usize) -> Option<usize> {
    let size = bytes.checked_next_multiple_of(if bytes >= HUGE { HUGE } else { PAGE })?;
    (size <= isize::MAX as usize / 2).then_some(size)
}

/// A random number of this process.
fn process_tag() -> u64 {
    static TAG: OnceLock<u64> = OnceLock::new();
    *TAG.get_or_init(|| {
        let mut bytes = [0; 8];
        let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        // Without /dev/urandom: what differs between processes.
        let instead = || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64);
        if read.is_ok() { u64::from_le_bytes(bytes) } else { instead() ^ u64::from(std::process::id()) << 40 }
    })
}

/// A tag that no other allocation has, here or in any process.
pub fn new_tag() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    u128::from(process_tag()) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Name of the memfd with this tag.
pub fn file_name(tag: u128) -> CString {
    CString::new(format!("softcuda-{tag:032x}")).unwrap_or_else(|_| CStr::to_owned(c"softcuda"))
}

/// What the system knows of a file.
pub fn status(file: &OwnedFd) -> io::Result<std::fs::Metadata> {
    File::from(file.try_clone()?).metadata()
}

/// A lock of this process on a file that another one has made, and which it has opened anew. The mapping keeps the
/// lock: it ends with it, or with the process.
fn mark_open(file: &OwnedFd) {
    let mut lock = whole_file(libc::F_RDLCK);
    // SAFETY: a descriptor of ours and a valid lock. That it fails is no matter: then nobody is told.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) };
}

/// How long a process that has died may take to lose its locks: the system closes a dead process's pipes, by which its
/// peers hear of it, before it gives up what its mappings kept.
const DEATH_TAKES: Duration = Duration::from_millis(500);
const NAP: Duration = Duration::from_millis(1);

/// Whether another process has a file of ours open as [`MemoryHandle::map`] does, and keeps it open.
pub fn is_open_elsewhere(file: &OwnedFd) -> bool {
    let until = Instant::now() + DEATH_TAKES;
    while is_locked_elsewhere(file) {
        if Instant::now() >= until {
            return true;
        }
        std::thread::sleep(NAP);
    }
    false
}

fn is_locked_elsewhere(file: &OwnedFd) -> bool {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: a descriptor of ours and a valid lock, which receives the answer.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    let whence = libc::SEEK_SET as libc::c_short;
    libc::flock { l_type: kind as libc::c_short, l_whence: whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// `pidfd_getfd`: where /proc is not to be had but tracing is allowed.
fn duplicate(pid: u32, fd: RawFd) -> io::Result<OwnedFd> {
    let own = |fd: libc::c_long| {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
    };
    // SAFETY: plain numbers.
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: plain numbers; the process descriptor is open.
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) }).and_then(os::off_standard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles() {
        let tag = new_tag();
        let mapping = Mapping::with_file(PAGE, &file_name(tag)).expect("a page");
        let handle = MemoryHandle::of_mapping(&mapping, tag, 100).expect("a file");
        let bytes = handle.encode(Purpose::Memory);
        assert_eq!(MemoryHandle::decode(&bytes, Purpose::Memory), Ok(handle));
        assert_eq!(MemoryHandle::decode(&bytes, Purpose::Event), Err(CudaError::INVALID_HANDLE));
        assert_eq!(MemoryHandle::decode(&[7; 64], Purpose::Memory), Err(CudaError::INVALID_HANDLE));
        assert!(handle.is_own());
        assert!(handle.map().is_ok());
        let foreign = MemoryHandle { tag: new_tag(), ..handle };
        assert_eq!(foreign.map().err(), Some(CudaError::MAP_FAILED));
        drop(mapping);
        assert_eq!(handle.map().err(), Some(CudaError::MAP_FAILED));
    }

    #[test]
    fn sizes() {
        assert_eq!(mapped_size(1), Some(PAGE));
        assert_eq!(mapped_size(HUGE + 1), Some(2 * HUGE));
        assert_eq!(mapped_size(usize::MAX), None);
    }
}
