//! Device memory by way of the driver's virtual memory management: made and mapped without waiting for what runs on the
//! device, which `cuMemAlloc` may do, and handed to other processes by descriptors. It comes in multiples of 2 MiB.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use super::context::Context;
use super::driver::{Driver, SUCCESS, VirtualTable};
use crate::error::Error;
use crate::params;
use crate::sys::off_standard;

/// What a device must be able to do.
const ATTRIBUTES: [CUdevice_attribute; 2] = [
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
];
/// Network cards can reach such memory, if it is made for them.
const RDMA: CUdevice_attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
/// How the memory is handed to other processes.
const FILE_DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const MINIMUM: CUmemAllocationGranularity_flags = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;

/// The memory of a device.
fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Memory of a device that can be handed to other processes, and to network cards where the device can do that.
fn properties(context: &Context) -> CUmemAllocationProp {
    let rdma = context.attribute(RDMA).is_ok_and(|value| value != 0);
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: FILE_DESCRIPTOR,
        location: location(context.device()),
        win32HandleMetaData: null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Device memory that is mapped in this process, made here or by another one. Dropping it unmaps it; the memory lives
/// until nobody has it mapped, in any process.
pub struct PhysicalMemory {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    /// The size of each part that is mapped, from the begin on.
    mapped: Vec<usize>,
    /// By which it is handed on; none for what another process has made.
    handle: Option<Handle>,
}

impl PhysicalMemory {
    /// Whether the driver and the device can do this.
    pub fn is_possible(context: &Context) -> bool {
        let has = |attribute| context.attribute(attribute).is_ok_and(|value| value != 0);
        context.driver().virtual_memory.is_some() && ATTRIBUTES.into_iter().all(has)
    }

    /// Whether memory for others is made in this way: where it is possible, unless `NCCL_CUMEM_ENABLE=0`.
    pub fn is_wanted(context: &Context) -> bool {
        params::snapshot().int(params::CUMEM_ENABLE) != 0 && PhysicalMemory::is_possible(context)
    }

    /// Allocates memory of at least `bytes` bytes, whose content is anything.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the device has no memory, or the driver cannot do this.
    pub fn allocate(context: &Arc<Context>, bytes: usize) -> Result<PhysicalMemory, Error> {
        let (driver, table, _entered) = (context.driver(), table(context)?, context.enter()?);
        let (properties, mut unit) = (properties(context), 0);
        // SAFETY: the pointers are to a live number and to live properties.
        let code = unsafe { (table.granularity)(&mut unit, &properties, MINIMUM) };
        driver.check("cuMemGetAllocationGranularity", code)?;
        let (bytes, mut handle) = (bytes.next_multiple_of(unit.max(1)), 0);
        // SAFETY: as above.
        driver.check("cuMemCreate", unsafe { (table.create)(&mut handle, bytes, &properties, 0) })?;
        let handle = Handle { table, handle };
        let mut memory = PhysicalMemory::map(context, [(&handle, bytes)])?;
        memory.handle = Some(handle);
        Ok(memory)
    }

    /// A descriptor by which other processes can map memory that was made here.
    ///
    /// # Errors
    /// [`Error::System`] where the process may open no more files, [`Error::Internal`] for another process's memory.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        let none = || Error::Internal("memory of another process is not handed on".to_string());
        let handle = self.handle.as_ref().ok_or_else(none)?;
        let _entered = self.context.enter()?;
        handle.export(self.context.driver())
    }

    /// Maps memory of [`PhysicalMemory::bytes`] bytes that another process has made.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the descriptor is of something else, or the driver cannot do this.
    pub fn import(context: &Arc<Context>, fd: BorrowedFd<'_>, bytes: usize) -> Result<PhysicalMemory, Error> {
        let segment = ImportedSegment::of(context, fd, bytes)?;
        PhysicalMemory::of_segments(context, std::slice::from_ref(&segment))
    }

    /// Maps memory of other processes side by side, as it is there.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the driver cannot do this.
    pub fn of_segments(context: &Arc<Context>, segments: &[ImportedSegment]) -> Result<PhysicalMemory, Error> {
        PhysicalMemory::map(context, segments.iter().map(|segment| (&segment.handle, segment.bytes)))
    }

    fn map<'a>(
        context: &Arc<Context>,
        parts: impl IntoIterator<Item = (&'a Handle, usize), IntoIter: Clone>,
    ) -> Result<PhysicalMemory, Error> {
        let (driver, table, _entered) = (context.driver(), table(context)?, context.enter()?);
        let parts = parts.into_iter();
        let bytes = parts.clone().map(|(_, bytes)| bytes).sum();
        let mut address = 0;
        // SAFETY: a context is current; the pointer is to a live variable.
        driver.check("cuMemAddressReserve", unsafe { (table.reserve)(&mut address, bytes, 0, 0, 0) })?;
        let mut memory = PhysicalMemory { context: context.clone(), address, bytes, mapped: Vec::new(), handle: None };
        for (handle, bytes) in parts {
            // SAFETY: the addresses were just reserved; the driver checks the handle.
            driver.check("cuMemMap", unsafe { (table.map)(address, bytes, 0, handle.handle, 0) })?;
            address += bytes as u64;
            memory.mapped.push(bytes);
        }
        memory.let_reach(context.device())?;
        Ok(memory)
    }

    /// Lets kernels of a device of this process use the memory.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn let_reach(&self, device: i32) -> Result<(), Error> {
        let_reach(&self.context, self.address, self.bytes, device)
    }

    /// The context that it was made for.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes, which can be more than was asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        let (Ok(table), Ok(_entered)) = (table(&self.context), self.context.enter()) else { return };
        // SAFETY: the mapping and the addresses are ours; users have ended before the owner drops them.
        unsafe {
            let mut address = self.address;
            for bytes in &self.mapped {
                (table.unmap)(address, *bytes);
                address += *bytes as u64;
            }
            (table.free_address)(self.address, self.bytes);
        }
    }
}

/// A handle of physical memory. A mapping does without it.
struct Handle {
    table: &'static VirtualTable,
    handle: CUmemGenericAllocationHandle,
}

impl Handle {
    /// A descriptor by which other processes can map the memory. A context must be current.
    fn export(&self, driver: &Driver) -> Result<OwnedFd, Error> {
        let mut fd: c_int = -1;
        // SAFETY: the pointer is to a live integer, which is what this kind of handle is.
        let code = unsafe { (self.table.export)((&raw mut fd).cast(), self.handle, FILE_DESCRIPTOR, 0) };
        driver.check("cuMemExportToShareableHandle", code)?;
        // SAFETY: the driver has made the descriptor for us.
        let fd = off_standard(unsafe { OwnedFd::from_raw_fd(fd) });
        fd.map_err(|error| Error::system("fcntl(F_DUPFD_CLOEXEC)", "memory of the device", &error))
    }

    /// That of the memory that is mapped at an address.
    fn mapped_at(context: &Context, address: u64) -> Result<Handle, Error> {
        let (table, mut handle) = (table(context)?, 0);
        let at = std::ptr::without_provenance_mut(address as usize);
        // SAFETY: the pointer is to a live handle; the driver checks the address.
        context.driver().check("cuMemRetainAllocationHandle", unsafe { (table.retain)(&mut handle, at) })?;
        Ok(Handle { table, handle })
    }
}

/// Whether memory that is mapped at an address was made by `cuMemCreate` so that descriptors of it can be had.
pub(super) fn has_descriptor(context: &Context, address: u64) -> bool {
    let Ok(_entered) = context.enter() else { return false };
    let Ok(handle) = Handle::mapped_at(context, address) else { return false };
    let mut properties = MaybeUninit::<CUmemAllocationProp>::zeroed();
    // SAFETY: the pointer is to properties, the handle is live.
    let code = unsafe { (handle.table.properties)(properties.as_mut_ptr(), handle.handle) };
    // SAFETY: it was zeroed, and then perhaps filled in; of its fields only one, an integer, is looked at.
    let kinds = unsafe { (&raw const (*properties.as_ptr()).requestedHandleTypes).cast::<c_uint>().read() };
    code == SUCCESS && kinds & FILE_DESCRIPTOR.0 != 0
}

/// A descriptor of memory that is mapped at an address.
///
/// # Errors
/// What the driver gives where there is no such memory any more.
pub(super) fn descriptor_of(context: &Context, address: u64) -> Result<OwnedFd, Error> {
    let _entered = context.enter()?;
    Handle::mapped_at(context, address)?.export(context.driver())
}

/// Lets kernels of a device use memory that was mapped by this process.
///
/// # Errors
/// What the driver gives.
pub fn let_reach(context: &Context, address: u64, bytes: usize, device: i32) -> Result<(), Error> {
    let table = table(context)?;
    let access =
        CUmemAccessDesc { location: location(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: the pointer is to one live description; the driver checks the range.
    let code = unsafe { (table.set_access)(address, bytes, &access, 1) };
    context.driver().check("cuMemSetAccess", code)
}

/// Memory of another process, not mapped yet.
pub struct ImportedSegment {
    handle: Handle,
    bytes: usize,
}

impl ImportedSegment {
    /// Memory of some bytes behind a descriptor.
    ///
    /// # Errors
    /// [`Error::Cuda`] where the descriptor is of something else, or the driver cannot do this.
    pub fn of(context: &Context, fd: BorrowedFd<'_>, bytes: usize) -> Result<ImportedSegment, Error> {
        let (driver, table, _entered) = (context.driver(), table(context)?, context.enter()?);
        let mut handle = 0;
        let number = std::ptr::without_provenance_mut(fd.as_raw_fd() as usize);
        // SAFETY: the pointer is to a live handle; a descriptor is passed as if it were a pointer.
        let code = unsafe { (table.import)(&mut handle, number, FILE_DESCRIPTOR) };
        driver.check("cuMemImportFromShareableHandle", code)?;
        Ok(ImportedSegment { handle: Handle { table, handle }, bytes })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is ours.
        unsafe { (self.table.release)(self.handle) };
    }
}

fn table(context: &Context) -> Result<&'static VirtualTable, Error> {
    let driver = context.driver();
    let lacks =
        || Error::NoCuda(format!("the CUDA driver, version {}, has no virtual memory management", driver.version()));
    driver.virtual_memory.as_ref().ok_or_else(lacks)
}
