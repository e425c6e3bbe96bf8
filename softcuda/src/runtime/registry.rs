//! What compiled CUDA programs register when they are loaded: which host stub stands for which
//! kernel. The kernels themselves are GPU code, which softcuda cannot run; knowing their names is
//! what makes a launch a clean, named error.

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::Address;
use crate::os;

/// The name of a kernel, in the registering library's read-only data until it unregisters.
#[derive(Clone, Copy)]
struct Name(*const c_char);

// SAFETY: the string is constant and is only read.
unsafe impl Send for Name {}

/// The fat binaries of a process and their kernels.
#[derive(Default)]
struct Registry {
    /// Host stub → name.
    kernels: HashMap<Address, Name>,
    /// Handle of a fat binary → the host stubs that came with it.
    binaries: HashMap<Address, Vec<Address>>,
    /// Kernels whose launch was refused, each named once.
    refused: HashSet<Address>,
    next_handle: Address,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

impl Registry {
    /// Handles look like aligned addresses. Nobody but this file looks behind them.
    fn register(&mut self) -> Address {
        const HANDLE_STEP: Address = 16;
        self.next_handle += HANDLE_STEP;
        self.binaries.insert(self.next_handle, Vec::new());
        self.next_handle
    }

    fn add(&mut self, binary: Address, stub: Address, name: Name) {
        if let Some(stubs) = self.binaries.get_mut(&binary) {
            stubs.push(stub);
            self.kernels.insert(stub, name);
        }
    }

    fn unregister(&mut self, binary: Address) {
        for stub in self.binaries.remove(&binary).unwrap_or_default() {
            self.kernels.remove(&stub);
            self.refused.remove(&stub);
        }
    }
}

/// Whether `stub` stands for a registered kernel.
pub(super) fn is_kernel(stub: Address) -> bool {
    REGISTRY.lock().kernels.contains_key(&stub)
}

/// Says once on stderr that this kernel cannot run here.
pub(super) fn refuse(stub: Address) {
    let mut registry = REGISTRY.lock();
    let Some(&Name(name)) = registry.kernels.get(&stub) else {
        return;
    };
    if name.is_null() || !registry.refused.insert(stub) {
        return;
    }
    // SAFETY: it is a C string as long as it is registered, and the lock keeps it registered.
    let name = unsafe { CStr::from_ptr(name) };
    os::say(&format!(
        "kernel {} is GPU code and cannot run here (cudaErrorInvalidDeviceFunction)",
        name.to_string_lossy()
    ));
}

#[unsafe(export_name = "softcudart___cudaRegisterFatBinary")]
extern "C" fn register_fat_binary(_binary: *const c_void) -> Address {
    REGISTRY.lock().register()
}

#[unsafe(export_name = "softcudart___cudaRegisterFatBinaryEnd")]
extern "C" fn register_fat_binary_end(_handle: Address) {}

#[unsafe(export_name = "softcudart___cudaUnregisterFatBinary")]
extern "C" fn unregister_fat_binary(handle: Address) {
    REGISTRY.lock().unregister(handle);
}

/// The five pointers at the end are limits that only very old compilers fill in.
///
/// # Safety
/// `device_name` is a C string until the fat binary is unregistered.
#[unsafe(export_name = "softcudart___cudaRegisterFunction")]
unsafe extern "C" fn register_function(
    handle: Address,
    stub: Address,
    _device_function: *mut c_char,
    device_name: *const c_char,
) {
    REGISTRY.lock().add(handle, stub, Name(device_name));
}

/// Device variables have no place in memory here; calls that ask for one are not supported.
#[unsafe(export_name = "softcudart___cudaRegisterVar")]
extern "C" fn register_var(_handle: Address) {}

#[unsafe(export_name = "softcudart___cudaRegisterManagedVar")]
extern "C" fn register_managed_var(_handle: Address) {}

#[unsafe(export_name = "softcudart___cudaRegisterHostVar")]
extern "C" fn register_host_var(_handle: Address) {}

#[unsafe(export_name = "softcudart___cudaRegisterUnifiedTable")]
extern "C" fn register_unified_table(_handle: Address, _table: *mut c_void) -> *mut c_void {
    ptr::null_mut()
}

#[unsafe(export_name = "softcudart___cudaInitModule")]
extern "C" fn init_module(_handle: Address) -> c_int {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binarys_kernels_go_with_it() {
        let mut registry = Registry::default();
        let (one, two) = (registry.register(), registry.register());
        registry.add(one, 100, Name(c"a".as_ptr()));
        registry.add(two, 200, Name(c"b".as_ptr()));
        registry.add(9999, 300, Name(c"of no binary".as_ptr()));
        registry.unregister(one);
        registry.unregister(one);
        let stubs: Vec<_> = registry.kernels.keys().copied().collect();
        assert_eq!(stubs, [200]);
    }
}
