//! `cuGetProcAddress`: the function of a name that a program built for some CUDA version expects.

use super::versions::VERSIONS;
use super::{CuResult, In, Out, boundary};
use crate::error::{CudaError, Outcome};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `CUdriverProcAddressQueryResult`
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;
const VERSION_NOT_SUFFICIENT: c_int = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const PER_THREAD: u64 = 2;
/// This and `CU_GET_PROC_ADDRESS_LEGACY_STREAM`.
const FLAGS: u64 = 3;

/// This library, as the dynamic linker knows it.
fn library() -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let find = || {
        // SAFETY: an address within this library, and room for the answer, whose name stays while the library is
        // loaded; RTLD_NOLOAD only looks it up.
        unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            let own = cuGetProcAddress as *const c_void;
            if libc::dladdr(own, &mut info) == 0 || info.dli_fname.is_null() {
                return 0;
            }
            libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD) as usize
        }
    };
    *LIBRARY.get_or_init(find) as *mut c_void
}

fn exported(symbol: &CStr) -> Option<*mut c_void> {
    // SAFETY: a handle of `dlopen` (or null, which means the default search) and a C string.
    let found = unsafe { libc::dlsym(library(), symbol.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The function under its name for per-thread default streams, if it has one.
fn exported_per_thread(symbol: &CStr) -> Option<*mut c_void> {
    let symbol = symbol.to_str().ok()?;
    let forms = ["_ptsz", "_ptds"].map(|suffix| CString::new(format!("{symbol}{suffix}")));
    forms.into_iter().find_map(|form| exported(&form.ok()?))
}

/// The symbol of a name for a version: the n-th version of a function has the suffix `_vN`.
fn symbol(name: &str, version: c_int) -> Result<CString, c_int> {
    let at = VERSIONS.binary_search_by(|(known, _)| (*known).cmp(name)).map_err(|_| NOT_FOUND)?;
    let nth = VERSIONS[at].1.iter().take_while(|first| **first <= version).count();
    let symbol = match nth {
        0 => return Err(VERSION_NOT_SUFFICIENT),
        1 => name.to_owned(),
        _ => format!("{name}_v{nth}"),
    };
    CString::new(symbol).map_err(|_| NOT_FOUND)
}

fn find(name: In<c_char>, to: Out<*mut c_void>, version: c_int, flags: u64) -> Outcome<c_int> {
    let name = name.text()?;
    to.set(std::ptr::null_mut())?;
    if flags & !FLAGS != 0 || flags == FLAGS || name.is_empty() {
        return Err(CudaError::INVALID_VALUE);
    }
    match symbol(&name.to_string_lossy(), version) {
        Err(status) => Ok(status),
        Ok(symbol) => {
            let own = if flags & PER_THREAD != 0 { exported_per_thread(&symbol) } else { None };
            match own.or_else(|| exported(&symbol)) {
                None => Ok(NOT_FOUND),
                Some(address) => to.set(address).map(|()| FOUND),
            }
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(name: In<c_char>, to: Out<*mut c_void>, version: c_int, flags: u64) -> CuResult {
    boundary(|| match find(name, to, version, flags)? {
        FOUND => Ok(()),
        _ => Err(CudaError::NOT_FOUND),
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: In<c_char>,
    to: Out<*mut c_void>,
    version: c_int,
    flags: u64,
    status: Out<c_int>,
) -> CuResult {
    boundary(|| {
        let found = find(name, to, version, flags)?;
        status.set_if_wanted(found);
        if found == FOUND { Ok(()) } else { Err(CudaError::NOT_FOUND) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_choose_symbols() {
        let of = |name: &str, version| symbol(name, version).map(|s| s.to_string_lossy().into_owned());
        assert_eq!(of("cuMemAlloc", 12000).as_deref(), Ok("cuMemAlloc_v2"));
        assert_eq!(of("cuCtxCreate", 11000).as_deref(), Ok("cuCtxCreate_v2"));
        assert_eq!(of("cuCtxCreate", 11040).as_deref(), Ok("cuCtxCreate_v3"));
        assert_eq!(of("cuCtxCreate", 13000).as_deref(), Ok("cuCtxCreate_v4"));
        assert_eq!(of("cuStreamGetCaptureInfo", 11030).as_deref(), Ok("cuStreamGetCaptureInfo_v2"));
        assert_eq!(of("cuInit", 13000).as_deref(), Ok("cuInit"));
        assert_eq!(of("cuMemAllocAsync", 11000), Err(VERSION_NOT_SUFFICIENT));
        assert_eq!(of("cuNonsense", 13000), Err(NOT_FOUND));
        assert!(VERSIONS.is_sorted_by(|a, b| a.0 < b.0));
    }
}
