//! Memory that kernels use: on the device, on the host, and of a peer process.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cudarc::driver::sys::{CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUipcMem_flags, CUipcMemHandle};
use zerocopy::{Immutable, IntoBytes};

use super::context::Context;
use super::driver::{HOST_MEMORY_ALREADY_REGISTERED, IpcMemHandle};
use crate::error::Error;
use crate::sys::SharedMemory;

/// All contexts may use the memory, and kernels reach it.
const PORTABLE_MAPPED: c_uint = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
/// The only way to open a handle.
const LAZY_PEER_ACCESS: c_uint = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;

/// Device memory of this process. Dropping it frees it.
pub struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl DeviceMemory {
    /// Allocates and zeroes memory. The address is aligned to at least 256 bytes.
    pub fn zeroed(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, Error> {
        DeviceMemory::zeroed_at_first(context, bytes, bytes)
    }

    /// Allocates memory whose content is anything. The address is aligned to at least 256 bytes.
    pub fn allocate(context: &Arc<Context>, bytes: usize) -> Result<DeviceMemory, Error> {
        DeviceMemory::zeroed_at_first(context, bytes, 0)
    }

    /// Allocates memory of which only the first `zeroed` bytes are zero: what is behind must be written before it is
    /// read. The address is aligned to at least 256 bytes.
    pub fn zeroed_at_first(context: &Arc<Context>, bytes: usize, zeroed: usize) -> Result<DeviceMemory, Error> {
        assert!(zeroed <= bytes, "zeroes past the end");
        let _entered = context.enter()?;
        let driver = context.driver();
        let mut address = 0;
        // SAFETY: a context is current; the pointer is to a live variable.
        driver.check("cuMemAlloc", unsafe { (driver.table.mem_alloc)(&mut address, bytes) })?;
        let memory = DeviceMemory { context: context.clone(), address, bytes };
        context.zero(address, zeroed)?;
        Ok(memory)
    }

    /// The context that it lives in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes from the host to an offset and waits for the copy.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        assert!(offset.checked_add(data.len()).is_some_and(|end| end <= self.bytes), "write past the end");
        self.context.upload(self.address + offset as u64, data)
    }

    /// Copies bytes from an offset to the host and waits for the copy.
    pub fn read(&self, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        assert!(offset.checked_add(data.len()).is_some_and(|end| end <= self.bytes), "read past the end");
        self.context.download(data, self.address + offset as u64)
    }

    /// A handle by which another process of this host can map the memory.
    pub fn export(&self) -> Result<IpcMemHandle, Error> {
        let _entered = self.context.enter()?;
        let driver = self.context.driver();
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the pointer is to a live handle; the address is an allocation's start.
        driver.check("cuIpcGetMemHandle", unsafe { (driver.table.ipc_get)(&mut handle, self.address) })?;
        Ok(handle.into())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the allocation is ours; its users have ended before its owner drops it.
            unsafe { (self.context.driver().table.mem_free)(self.address) };
        }
    }
}

/// Device memory of another process, mapped here. Dropping it unmaps it.
pub struct PeerMemory {
    context: Arc<Context>,
    address: u64,
}

impl PeerMemory {
    /// Maps the allocation behind a handle that another process exported.
    pub fn open(context: &Arc<Context>, handle: IpcMemHandle) -> Result<PeerMemory, Error> {
        let _entered = context.enter()?;
        let driver = context.driver();
        let mut address = 0;
        // SAFETY: the pointer is to a live variable; the driver checks the handle.
        let code = unsafe { (driver.table.ipc_open)(&mut address, handle.into(), LAZY_PEER_ACCESS) };
        driver.check("cuIpcOpenMemHandle", code)?;
        Ok(PeerMemory { context: context.clone(), address })
    }

    /// The address in this process.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the mapping is ours; its users have ended before its owner drops it.
            unsafe { (self.context.driver().table.ipc_close)(self.address) };
        }
    }
}

/// Host memory of this process that a device may use, registered for the life of the object.
pub struct RegisteredMemory {
    context: Arc<Context>,
    host: *mut c_void,
    address: u64,
    registered: bool,
}

// SAFETY: the pointer is only handed back to the driver, which may be called from any thread.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl RegisteredMemory {
    /// Registers `bytes` bytes at `host`.
    ///
    /// # Safety
    /// The range must stay mapped as long as the object lives.
    pub unsafe fn register(context: &Arc<Context>, host: *mut c_void, bytes: usize) -> Result<RegisteredMemory, Error> {
        let _entered = context.enter()?;
        let driver = context.driver();
        // SAFETY: the caller vouches for the range.
        let registered = match unsafe { (driver.table.host_register)(host, bytes, PORTABLE_MAPPED) } {
            HOST_MEMORY_ALREADY_REGISTERED => false,
            code => driver.check("cuMemHostRegister", code).map(|()| true)?,
        };
        let mut memory = RegisteredMemory { context: context.clone(), host, address: 0, registered };
        // SAFETY: the pointer is to a live variable; the range is registered.
        let code = unsafe { (driver.table.host_pointer)(&mut memory.address, host, 0) };
        driver.check("cuMemHostGetDevicePointer", code)?;
        Ok(memory)
    }

    /// The address by which the device reaches the memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Before the memory is unmapped: where the device is lost it stays, since what ran there may still use it.
    pub fn keep_if_lost(&self, memory: &Arc<SharedMemory>) {
        if self.context.is_lost() {
            std::mem::forget(memory.clone());
        }
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if !self.registered {
            return;
        }
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this object registered the range.
            unsafe { (self.context.driver().table.host_unregister)(self.host) };
        }
    }
}

/// Pinned host memory that kernels can reach, zeroed when it is made. Dropping it frees it. The memory is this
/// library's and only registered with CUDA, so that the host can use it when the context is gone, too. The fields drop
/// in this order.
pub struct HostMemory {
    registered: RegisteredMemory,
    memory: Arc<SharedMemory>,
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.registered.keep_if_lost(&self.memory);
    }
}

impl HostMemory {
    /// Allocates `bytes` bytes of zeroes.
    pub fn create(context: &Arc<Context>, bytes: usize) -> Result<HostMemory, Error> {
        let memory = Arc::new(SharedMemory::anonymous(bytes)?);
        // SAFETY: the mapping lives as long as the registration, which is dropped first.
        let registered = unsafe { RegisteredMemory::register(context, memory.address(), bytes) }?;
        Ok(HostMemory { registered, memory })
    }

    /// The address by which the device reaches the memory.
    pub fn address(&self) -> u64 {
        self.registered.address()
    }

    /// The size in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// The memory as words that kernels may read while they are written.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Copies plain data to the begin of the memory, which no kernel may be using.
    pub fn write<T: IntoBytes + Immutable>(&mut self, data: &[T]) {
        let data = data.as_bytes();
        assert!(data.len() <= self.bytes(), "write past the end");
        // SAFETY: the memory is live and long enough, and nothing else of this process refers to it.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory.address().cast(), data.len()) };
    }
}

/// Words in pinned host memory that host and kernels both see: "leave now", and an error report.
pub struct HostFlag(HostMemory);

impl HostFlag {
    /// Bytes from the flag to the error report: a cache line of its own each.
    pub const ERROR_OFFSET: u64 = 64;
    /// Words of 32 bits of an error report, as kernels know it.
    pub const ERROR_WORDS: usize = 8;
    /// The word of a report that its writer claims first.
    pub const ERROR_CLAIM: usize = 7;
    /// Bytes from the flag to the host's own report, behind the kernels'. A kernel on a GPU cannot compare and swap in
    /// this memory, so host and kernels may find the claim free at the same time: each has words of its own.
    const HOST_OFFSET: u64 = HostFlag::ERROR_OFFSET + 4 * HostFlag::ERROR_WORDS as u64;
    /// Bytes of all words.
    pub const BYTES: usize = 128;

    /// Allocates all words as zero.
    pub fn create(context: &Arc<Context>) -> Result<HostFlag, Error> {
        HostMemory::create(context, HostFlag::BYTES).map(HostFlag)
    }

    fn word(&self, place: usize) -> &AtomicU32 {
        assert!(place < HostFlag::BYTES / 4, "no such word");
        // SAFETY: the word is live and aligned, and used as an atomic by all.
        unsafe { &*self.0.memory.address().cast::<AtomicU32>().add(place) }
    }

    /// Tells running kernels to leave.
    pub fn raise(&self) {
        self.word(0).store(1, Ordering::Release);
    }

    /// Whether the flag is up.
    pub fn is_raised(&self) -> bool {
        self.word(0).load(Ordering::Acquire) != 0
    }

    /// The report that a kernel or the host left; its first word is 0 where there is none.
    pub fn error(&self) -> [u32; HostFlag::ERROR_WORDS] {
        let reports = [HostFlag::ERROR_OFFSET, HostFlag::HOST_OFFSET].map(|offset| self.report_at(offset));
        if reports[0][0] != 0 { reports[0] } else { reports[1] }
    }

    fn report_at(&self, offset: u64) -> [u32; HostFlag::ERROR_WORDS] {
        let mut words = [0; HostFlag::ERROR_WORDS];
        let first = offset as usize / 4;
        words[0] = self.word(first).load(Ordering::Acquire);
        if words[0] != 0 {
            (1..HostFlag::ERROR_WORDS)
                .for_each(|place| words[place] = self.word(first + place).load(Ordering::Relaxed));
        }
        words
    }

    /// Leaves a report as a kernel would, about a peer and the own call `serial`: kernels of this rank leave on it. The
    /// first report stays.
    pub fn report(&self, code: u32, peer: u32, serial: u32) {
        let claim = self.word(HostFlag::ERROR_OFFSET as usize / 4 + HostFlag::ERROR_CLAIM);
        if claim.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let first = HostFlag::HOST_OFFSET as usize / 4;
            self.word(first + 1).store(peer, Ordering::Relaxed);
            self.word(first + 2).store(serial, Ordering::Relaxed);
            self.word(first).store(code, Ordering::Release);
        }
    }

    /// The device address of the flag; the error report follows at [`HostFlag::ERROR_OFFSET`].
    pub fn address(&self) -> u64 {
        self.0.address()
    }
}
