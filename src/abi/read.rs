//! Reading the versioned structs of the caller: never more than it says it has.

use super::types;
use crate::comm::config::{CollConfig, CollRequest, Config, ConfigRequest, MAGIC, UNDEF, VERSION};
use crate::error::Error;
use crate::params;
use std::ffi::{CStr, c_char};

/// Copies the first min(size, own size) bytes of a struct whose first field is its size over `initial`.
///
/// # Safety
/// `from` is valid for reading 8 bytes and then as many as they say. `T` is a C struct of integers and
/// pointers, so that any bytes are a value of it.
pub(super) unsafe fn versioned<T: Copy>(from: *const T, initial: T) -> T {
    let mut value = initial;
    // SAFETY: every versioned struct begins with its size.
    let size = unsafe { from.cast::<usize>().read_unaligned() }.min(size_of::<T>());
    // SAFETY: the caller says that so many bytes are there; `value` has room for all of T.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast::<u8>(), size) };
    value
}

/// Bytes of a versioned struct up to and with its magic: size, then magic.
const HEAD: usize = size_of::<usize>() + size_of::<u32>();

/// Refuses a struct that ends before its magic, so that nothing shows that it is one.
///
/// # Safety
/// `from` is valid for reading 8 bytes.
unsafe fn check_size<T>(name: &str, from: *const T) -> Result<(), Error> {
    // SAFETY: every versioned struct begins with its size.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size >= HEAD {
        return Ok(());
    }
    let text = format!(
        "{name} argument not initialized via its INITIALIZER macro (got magic 0x0: its size {size} ends before that)"
    );
    Err(Error::InvalidArgument(text))
}

/// A copy of a C string; None for NULL.
///
/// # Safety
/// `text` is NULL or NUL-terminated.
pub(super) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is not NULL, so it is NUL-terminated by the contract.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The configuration of a new communicator; NULL means the defaults.
///
/// # Safety
/// `config` is NULL or points to an `ncclConfig_t` of any version; its strings are NULL or NUL-terminated.
pub(super) unsafe fn config(config: *const types::RawConfig) -> Result<Config, Error> {
    // SAFETY: the contract is the same.
    let request = unsafe { request(config) }?;
    Config::resolve(request, &params::snapshot())
}

/// The configuration of a communicator that is derived from another one; NULL means the parent's.
///
/// # Safety
/// As [`config`].
pub(super) unsafe fn child_config(from: *const types::RawConfig, parent: &Config) -> Result<Config, Error> {
    match from.is_null() {
        true => Config::resolve_over(parent, ConfigRequest::default(), &params::snapshot()),
        // SAFETY: the contract is the same.
        false => unsafe { config(from) },
    }
}

/// # Safety
/// As [`config`].
unsafe fn request(config: *const types::RawConfig) -> Result<ConfigRequest, Error> {
    if config.is_null() {
        return Ok(ConfigRequest::default());
    }
    // SAFETY: it is not NULL, so it begins with its size by the contract.
    unsafe { check_size("ncclConfig_t", config) }?;
    // SAFETY: an ncclConfig_t begins with its size and is C integers and pointers.
    let c = unsafe { versioned(config, types::RawConfig::default()) };
    // The strings are not looked at in a struct that is none, or that is older than the field.
    Ok(c.with_texts(|string, exists| match exists && c.magic == MAGIC {
        // SAFETY: the field exists in this struct, so it is NULL or NUL-terminated.
        true => unsafe { text(string) },
        false => None,
    }))
}

/// The configuration of one call; None for NULL.
///
/// # Safety
/// `config` is NULL or points to an `ncclCollConfig_t` of any version; its string is NULL or NUL-terminated.
pub(super) unsafe fn coll_config(config: *const types::RawCollConfig) -> Result<Option<CollConfig>, Error> {
    if config.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL, so it begins with its size by the contract.
    unsafe { check_size("ncclCollConfig_t", config) }?;
    let initial = types::RawCollConfig {
        size: 0,
        magic: 0,
        version: VERSION,
        ext: std::ptr::null(),
        min_ctas: UNDEF,
        max_ctas: UNDEF,
        nvls_ctas: UNDEF,
        cga_cluster_size: UNDEF,
        alg_selection: std::ptr::null(),
        force_alg_selection: 1,
        cta_policy: UNDEF,
        user_profiler_tag: 0,
        launch_completion_event: std::ptr::null_mut(),
    };
    // SAFETY: an ncclCollConfig_t begins with its size and is C integers and pointers.
    let c = unsafe { versioned(config, initial) };
    let selection = match c.magic == MAGIC {
        // SAFETY: the struct is one, so its string is NULL or NUL-terminated.
        true => unsafe { text(c.alg_selection) },
        false => None,
    };
    let request = CollRequest {
        magic: c.magic,
        min_ctas: c.min_ctas,
        max_ctas: c.max_ctas,
        nvls_ctas: c.nvls_ctas,
        cga_cluster_size: c.cga_cluster_size,
        selection,
        force_selection: c.force_alg_selection,
        cta_policy: c.cta_policy,
        profiler_tag: c.user_profiler_tag,
        launch_completion_event: c.launch_completion_event as usize,
    };
    CollConfig::resolve(request).map(Some)
}
