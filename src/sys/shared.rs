//! Memory that processes of one host share, on a memfd: `/dev/shm` need not be there.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::Error;

/// A mapped memfd. Dropping it unmaps the memory and closes the descriptor.
pub struct SharedMemory {
    fd: OwnedFd,
    address: *mut c_void,
    bytes: usize,
}

// SAFETY: the object is an address and a descriptor; what is done with the memory is the user's affair.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes zeroed memory of a size in bytes. The pages are reserved now, so that a full memory
    /// limit shows here and never as SIGBUS later.
    ///
    /// # Errors
    /// [`Error::Resource`] when the memory cannot be reserved; it names the size.
    pub fn create(name: &str, bytes: usize) -> Result<SharedMemory, Error> {
        // Asked for more than there is, the kernel would first take the memory of everybody else.
        if available_memory().is_some_and(|available| bytes as u64 > available) {
            return Err(Error::Resource(format!("{bytes} bytes of shared memory ({name}) are more than this machine has free")));
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|errno| Error::system("memfd_create", name, &errno.into()))?;
        rustix::fs::fallocate(&fd, rustix::fs::FallocateFlags::empty(), 0, bytes as u64).map_err(|errno| {
            Error::Resource(format!(
                "cannot reserve {bytes} bytes of shared memory ({name}): {}; check the memory limit of this container or job",
                std::io::Error::from(errno)
            ))
        })?;
        // A sealed size: no holder of the descriptor can shrink the memory under the others.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| Error::system("fcntl(F_ADD_SEALS)", name, &errno.into()))?;
        SharedMemory::map(fd, bytes)
    }

    /// Maps memory that a peer made.
    ///
    /// # Errors
    /// [`Error::Remote`] when the descriptor is smaller than the size that the peer announced, or
    /// its size is not sealed.
    pub fn adopt(fd: OwnedFd, bytes: usize) -> Result<SharedMemory, Error> {
        let size =
            rustix::fs::fstat(&fd).map_err(|errno| Error::system("fstat", "shared memory of a peer", &errno.into()))?.st_size;
        let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        if !sealed || usize::try_from(size).is_ok_and(|size| size < bytes) {
            let text =
                format!("the shared memory that a peer passed is not usable: {size} bytes, {bytes} announced, sealed: {sealed}");
            return Err(Error::Remote { rank: None, text });
        }
        SharedMemory::map(fd, bytes)
    }

    fn map(fd: OwnedFd, bytes: usize) -> Result<SharedMemory, Error> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let address =
            unsafe { rustix::mm::mmap(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0) };
        let address = address.map_err(|errno| Error::system("mmap", format!("{bytes} bytes of shared memory"), &errno.into()))?;
        Ok(SharedMemory { fd, address, bytes })
    }

    /// Where the memory is mapped. It stays there until the object is dropped.
    pub fn address(&self) -> *mut c_void {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The descriptor, to be passed to a peer.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and its users have ended before the owner drops it.
        let _ = unsafe { rustix::mm::munmap(self.address, self.bytes) };
    }
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
        let address =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), bytes, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE) };
        let address = address.map_err(|errno| Error::system("mmap", format!("{bytes} bytes of address space"), &errno.into()))?;
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

    fn dup(memory: &SharedMemory) -> OwnedFd {
        memory.descriptor().try_clone_to_owned().expect("dup")
    }

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let made = SharedMemory::create("test", 10_000).expect("create");
        let mapped = SharedMemory::adopt(dup(&made), made.bytes()).expect("adopt");
        // SAFETY: both mappings are live and at least 10,000 bytes long.
        unsafe {
            made.address().cast::<u8>().add(9_999).write(42);
            assert_eq!(mapped.address().cast::<u8>().add(9_999).read(), 42);
        }
    }

    #[test]
    fn a_peer_cannot_announce_more_than_there_is() {
        let made = SharedMemory::create("test", 4096).expect("create");
        let error = SharedMemory::adopt(dup(&made), 8192).err().expect("too short");
        assert!(matches!(error, Error::Remote { .. }), "{error}");
    }

    #[test]
    fn memory_whose_size_can_change_is_refused() {
        let loose = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memfd");
        rustix::fs::ftruncate(&loose, 4096).expect("ftruncate");
        assert!(SharedMemory::adopt(loose, 4096).is_err());
    }

    #[test]
    fn a_size_that_no_machine_has_is_an_error_and_not_a_fault() {
        let error = SharedMemory::create("test", 1 << 60).err().expect("an exabyte");
        assert!(matches!(error, Error::Resource(_)), "{error}");
    }
}
