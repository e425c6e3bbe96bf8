//! Physical memory without addresses (`cuMemCreate`): a memfd, whose name tells an importing process what it is.

use super::{HUGE, ipc};
use crate::device::{Device, State};
use crate::error::{CudaError, Outcome};
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

/// Sizes and addresses of physical memory are multiples of this many bytes (`cuMemGetAllocationGranularity`).
pub const GRANULARITY: usize = HUGE;
/// First part of the names of our files.
const PREFIX: &str = "softcuda-vmm";
/// Nobody can take pages away that somebody else has mapped.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Where physical memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// On the device with this number in the process.
    Device(usize),
    /// On a device that this process does not see (`CUDA_VISIBLE_DEVICES`).
    Elsewhere(u32),
    /// On the host.
    Host,
    /// On a NUMA node of the host.
    Node(i32),
}

impl Location {
    /// Not on a device.
    pub fn is_host(self) -> bool {
        matches!(self, Location::Host | Location::Node(_))
    }

    /// `CUmemLocation`: kind and number.
    pub fn numbers(self) -> (i32, i32) {
        match self {
            Location::Device(index) => (1, index as i32),
            // CU_MEM_LOCATION_TYPE_INVISIBLE, CU_DEVICE_INVALID
            Location::Elsewhere(_) => (5, -2),
            Location::Host => (2, 0),
            Location::Node(node) => (3, node),
        }
    }

    /// The number on the machine of its device.
    pub fn home(self, driver: &State) -> Option<u32> {
        match self {
            Location::Device(index) => driver.devices.get(index).map(|device| device.ordinal),
            Location::Elsewhere(ordinal) => Some(ordinal),
            Location::Host | Location::Node(_) => None,
        }
    }

    /// In file names: a device by its number on the machine, which all processes share.
    fn text(self, driver: &State) -> String {
        match self {
            Location::Device(_) | Location::Elsewhere(_) => format!("d{}", self.home(driver).unwrap_or(0)),
            Location::Host => "h".into(),
            Location::Node(node) => format!("n{node}"),
        }
    }

    fn parse(driver: &State, text: &str) -> Option<Location> {
        let number = text.get(1..)?;
        match text.get(..1)? {
            "d" => {
                let ordinal = number.parse().ok()?;
                let seen = driver.devices.iter().find(|device| device.ordinal == ordinal);
                Some(seen.map_or(Location::Elsewhere(ordinal), |device| Location::Device(device.index)))
            }
            "n" => number.parse().ok().map(Location::Node),
            "h" if number.is_empty() => Some(Location::Host),
            _ => None,
        }
    }
}

/// Whether the host has this NUMA node; 0 stands for a host without NUMA as well.
pub fn is_node(node: i32) -> bool {
    node == 0 || (node > 0 && Path::new(&format!("/sys/devices/system/node/node{node}")).exists())
}

/// What a client asks of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Where it is to be.
    pub location: Location,
    /// `CUmemAllocationHandleType` bits: as what it can be exported.
    pub handle_types: u32,
}

/// Bytes of a device's budget, given back when dropped.
struct Charge {
    device: &'static Device,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device.give_memory(self.bytes);
    }
}

/// Physical memory. It lives as long as a handle or a mapping refers to it.
pub struct Physical {
    /// The client's handle, the same for each retain.
    pub handle: u64,
    /// Bytes.
    pub size: usize,
    /// As created, by whichever process.
    pub properties: Properties,
    /// Of another process, or by way of a descriptor.
    pub imported: bool,
    file: OwnedFd,
    _charge: Option<Charge>,
}

impl Physical {
    /// `cuMemCreate`; device memory counts against the budget of its device.
    pub fn create(driver: &'static State, handle: u64, size: usize, properties: Properties) -> Outcome<Physical> {
        let charge = match properties.location {
            Location::Device(index) => {
                let device = driver.devices.get(index).ok_or(CudaError::INVALID_DEVICE)?;
                device.take_memory(size as u64)?;
                Some(Charge { device, bytes: size as u64 })
            }
            _ => None,
        };
        let file = super::map::memfd(&name(driver, size, properties)?)?;
        let bytes = libc::off_t::try_from(size).map_err(|_| CudaError::OUT_OF_MEMORY)?;
        // SAFETY: the descriptor is ours, the rest are numbers.
        let made = unsafe {
            libc::ftruncate(file.as_raw_fd(), bytes) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
        };
        if !made {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        Ok(Physical { handle, size, properties, imported: false, file, _charge: charge })
    }

    /// `cuMemImportFromShareableHandle`: memory of any process, by a descriptor that stays the client's.
    /// `INVALID_VALUE`: not open, or not something that softcuda exported.
    pub fn import(driver: &'static State, handle: u64, fd: RawFd) -> Outcome<Physical> {
        let file = duplicate(fd)?;
        let (size, properties) = read_name(driver, &file).ok_or(CudaError::INVALID_VALUE)?;
        // SAFETY: a descriptor of ours and a number.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let whole = ipc::status(&file).is_ok_and(|status| status.len() == size as u64);
        if seals & SEALS != SEALS || seals < 0 || !whole {
            return Err(CudaError::INVALID_VALUE);
        }
        Ok(Physical { handle, size, properties, imported: true, file, _charge: None })
    }

    /// `cuMemExportToShareableHandle`: a new descriptor, which is the client's.
    pub fn export(&self) -> Outcome<OwnedFd> {
        self.file.try_clone().map_err(|_| CudaError::OPERATING_SYSTEM)
    }

    /// The memory, to be mapped.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}

fn duplicate(fd: RawFd) -> Outcome<OwnedFd> {
    // SAFETY: a number; that it may be no descriptor is what the call finds out.
    if fd < 0 || unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: it was open just now, and is the client's to keep open during this call.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|_| CudaError::OPERATING_SYSTEM)
}

fn name(driver: &State, size: usize, properties: Properties) -> Outcome<CString> {
    let Properties { location, handle_types } = properties;
    let text = format!("{PREFIX}-{:032x}-{}-{handle_types}-{size}", ipc::new_tag(), location.text(driver));
    CString::new(text).map_err(|_| CudaError::UNKNOWN)
}

/// Size and properties, as the name of a file of ours tells them.
fn read_name(driver: &State, file: &OwnedFd) -> Option<(usize, Properties)> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let name = link.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?.strip_prefix(PREFIX)?;
    let mut parts = name.strip_prefix('-')?.split('-').skip(1);
    let location = Location::parse(driver, parts.next()?)?;
    let handle_types = parts.next()?.parse().ok()?;
    let size = parts.next()?.parse().ok()?;
    (size > 0 && parts.next().is_none()).then_some((size, Properties { location, handle_types }))
}
