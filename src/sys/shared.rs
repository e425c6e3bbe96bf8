//! Memory that processes of one host share, on a memfd: `/dev/shm` need not be there.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::off_standard;
use crate::error::Error;

/// A memfd whose size cannot change. Dropping it closes the descriptor; mappings stay.
pub struct SharedFile {
    fd: OwnedFd,
    bytes: usize,
}

/// Mapped memory that a fork does not copy: of a memfd, or of this process alone. Dropping it unmaps the memory.
pub struct SharedMemory {
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: the object is an address; what is done with the memory is the user's affair.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedFile {
    /// Makes a file of zeroes of a size in bytes, without memory behind it yet; see [`SharedFile::reserve`].
    ///
    /// # Errors
    /// [`Error::Resource`] where the machine has no memory of that size; it names the size.
    pub fn create(name: &str, bytes: usize) -> Result<SharedFile, Error> {
        // Asked for more than there is, the kernel would first take the memory of everybody else.
        if available_memory().is_some_and(|available| bytes as u64 > available) {
            return Err(Error::Resource(format!(
                "{bytes} bytes of shared memory ({name}) are more than this machine has free"
            )));
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(std::io::Error::from)
            .and_then(off_standard)
            .map_err(|error| Error::system("memfd_create", name, &error))?;
        rustix::fs::ftruncate(&fd, bytes as u64)
            .map_err(|errno| Error::system("ftruncate", format!("{bytes} bytes of {name}"), &errno.into()))?;
        // A sealed size: no holder of the descriptor can shrink the memory under the others.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| Error::system("fcntl(F_ADD_SEALS)", name, &errno.into()))?;
        Ok(SharedFile { fd, bytes })
    }

    /// Takes a file that a peer made.
    ///
    /// # Errors
    /// [`Error::Remote`] when the file is smaller than the size that is expected, or its size is not sealed.
    pub fn adopt(fd: OwnedFd, bytes: usize) -> Result<SharedFile, Error> {
        let size = rustix::fs::fstat(&fd)
            .map_err(|errno| Error::system("fstat", "shared memory of a peer", &errno.into()))?
            .st_size;
        let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed || usize::try_from(size).is_ok_and(|size| size < bytes) {
            let text = format!(
                "the shared memory that a peer passed is not usable: {size} bytes, {bytes} expected, sealed: {sealed}"
            );
            return Err(Error::Remote { rank: None, text });
        }
        Ok(SharedFile { fd, bytes })
    }

    /// Reserves the pages of a part now, so that a full memory limit shows here and never as SIGBUS later. They
    /// are this process's: near its processor, and part of its limit.
    ///
    /// # Errors
    /// [`Error::Resource`] when the memory cannot be reserved; it names the size.
    pub fn reserve(&self, offset: usize, bytes: usize) -> Result<(), Error> {
        let flags = rustix::fs::FallocateFlags::empty();
        loop {
            match rustix::fs::fallocate(&self.fd, flags, offset as u64, bytes as u64) {
                Ok(()) => return Ok(()),
                // What was reserved so far stays reserved, or is given back: either way the whole is asked for again.
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    let why = std::io::Error::from(errno);
                    return Err(Error::Resource(format!(
                        "cannot reserve {bytes} bytes of shared memory: {why}; check the memory limit of this container or job"
                    )));
                }
            }
        }
    }

    /// Maps the whole file.
    pub fn map(&self) -> Result<SharedMemory, Error> {
        let (bytes, protection) = (self.bytes, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe { rustix::mm::mmap(null_mut(), bytes, protection, MapFlags::SHARED, &self.fd, 0) };
        let address =
            address.map_err(|errno| Error::system("mmap", format!("{bytes} bytes of shared memory"), &errno.into()))?;
        Ok(SharedMemory { address, bytes })
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The descriptor, to be passed to a peer.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor alone.
    pub fn into_descriptor(self) -> OwnedFd {
        self.fd
    }
}

impl SharedMemory {
    /// Maps memory of zeroes that no other process gets.
    ///
    /// # Errors
    /// [`Error::System`] where the machine has no memory of that size in bytes.
    pub fn anonymous(bytes: usize) -> Result<SharedMemory, Error> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let address = unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, protection, flags) };
        let address =
            address.map_err(|errno| Error::system("mmap", format!("{bytes} bytes of memory"), &errno.into()))?;
        Ok(SharedMemory { address, bytes })
    }

    /// The memory as words that all who map it use as atomics.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is live, page-aligned and that long; all of its users take it as atomics.
        unsafe { std::slice::from_raw_parts(self.address.cast::<AtomicU64>(), self.bytes / size_of::<AtomicU64>()) }
    }

    /// Where the memory is mapped. It stays there until the object is dropped.
    pub fn address(&self) -> *mut c_void {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and its users have ended before the owner drops it.
        let _ = unsafe { rustix::mm::munmap(self.address, self.bytes) };
    }
}

/// Wakes one who sleeps on a word, in any process that maps it.
pub fn wake_sleeper(word: &AtomicU32) {
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), 1);
}

/// Bytes that the machine can give without swapping; none where `/proc` does not tell.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// A range of addresses that is set aside and reads as zero: a source of unique numbers that look
/// like pointers and never fault when read.
pub struct AddressRange {
    base: usize,
    bytes: usize,
}

impl AddressRange {
    /// Sets aside a range of a size in bytes; it costs no memory.
    pub fn reserve(bytes: usize) -> Result<AddressRange, Error> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let address =
            address.map_err(|errno| Error::system("mmap", format!("{bytes} bytes of address space"), &errno.into()))?;
        Ok(AddressRange { base: address as usize, bytes })
    }

    /// The first address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dup(file: &SharedFile) -> OwnedFd {
        file.descriptor().try_clone_to_owned().expect("dup")
    }

    #[test]
    fn two_mappings_show_the_same_bytes_and_outlive_their_files() {
        let made = SharedFile::create("test", 10_000).expect("create");
        made.reserve(4096, 10_000 - 4096).expect("reserve");
        let copy = SharedFile::adopt(dup(&made), made.bytes()).expect("adopt");
        let (first, second) = (made.map().expect("map"), copy.map().expect("map"));
        drop((made, copy));
        // SAFETY: both mappings are live and at least 10,000 bytes long.
        unsafe {
            first.address().cast::<u8>().add(9_999).write(42);
            assert_eq!(second.address().cast::<u8>().add(9_999).read(), 42);
        }
    }

    #[test]
    fn only_what_is_reserved_takes_memory() {
        let file = SharedFile::create("test", 1 << 20).expect("create");
        let blocks = || rustix::fs::fstat(&file.fd).expect("fstat").st_blocks;
        assert_eq!(blocks(), 0);
        file.reserve(8192, 4096).expect("reserve");
        assert_eq!(blocks() * 512, 4096);
    }

    #[test]
    fn a_peer_cannot_announce_more_than_there_is() {
        let made = SharedFile::create("test", 4096).expect("create");
        let error = SharedFile::adopt(dup(&made), 8192).err().expect("too short");
        assert!(matches!(error, Error::Remote { .. }), "{error}");
    }

    #[test]
    fn memory_whose_size_can_change_is_refused() {
        let loose = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&loose, 4096).expect("ftruncate");
        assert!(SharedFile::adopt(loose, 4096).is_err());
    }

    #[test]
    fn a_size_that_no_machine_has_is_an_error_and_not_a_fault() {
        let error = SharedFile::create("test", 1 << 60).err().expect("an exabyte");
        assert!(matches!(error, Error::Resource(_)), "{error}");
    }
}
