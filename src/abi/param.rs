//! ncclParam*: the variables as C sees them.
//!
//! # Safety
//! As the C interface says ([`super`]).

use super::boundary::{guard, invalid, not_null};
use super::types::{ParamHandle, ResultCode};
use super::weak_aliases;
use crate::error::Error;
use crate::log;
use crate::params::{self, Param, TABLE, Typed};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

weak_aliases! {
    ncclParamBind, ncclParamGetI8, ncclParamGetI16, ncclParamGetI32, ncclParamGetI64, ncclParamGetU8,
    ncclParamGetU16, ncclParamGetU32, ncclParamGetU64, ncclParamGetStr, ncclParamGet, ncclParamGetParameter,
    ncclParamGetAllParameterKeys, ncclParamDumpAll,
}

/// What C was lent, kept until the thread's next call of the same kind.
#[derive(Default)]
struct LentText {
    text: CString,
    value: CString,
    names: Vec<CString>,
    table: Vec<*const c_char>,
}

thread_local! {
    static LENT: RefCell<LentText> = RefCell::default();
}

fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The variable of a handle, which points into the table.
fn param_of(name: &str, handle: ParamHandle) -> Result<&'static Param, Error> {
    not_null(name, "handle", handle)?;
    TABLE
        .iter()
        .find(|p| std::ptr::eq(*p, handle))
        .ok_or_else(|| invalid(format!("{name} : handle {handle:p} is none")))
}

/// The variable of a C name.
///
/// # Safety
/// `key` is NULL or NUL-terminated.
unsafe fn param_named(name: &str, key: *const c_char) -> Result<&'static Param, Error> {
    not_null(name, "key", key)?;
    // SAFETY: not NULL, so NUL-terminated by the contract.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    params::find_published(&key).ok_or_else(|| invalid(format!("{name} : parameter {key} is not known")))
}

/// A handle for a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamBind(out: *mut ParamHandle, key: *const c_char) -> ResultCode {
    guard("ncclParamBind", |name| -> Result<(), Error> {
        not_null(name, "out", out)?;
        // SAFETY: NULL or NUL-terminated, by the C contract.
        let param = unsafe { param_named(name, key) }?;
        // SAFETY: not NULL, so valid for writing by the C contract.
        unsafe { out.write(param) };
        Ok(())
    })
}

/// The variable's type must be exactly the one that is asked for: `number` gives the number of a value of that type.
///
/// # Safety
/// `out` is NULL or valid for writing.
unsafe fn get_number<T>(
    handle: ParamHandle,
    out: *mut T,
    c_type: &str,
    number: impl FnOnce(&Typed) -> Option<T>,
) -> Result<(), Error> {
    const NAME: &str = "ncclParamGet";
    let param = param_of(NAME, handle)?;
    not_null(NAME, "out", out)?;
    let value = number(&params::typed_of(param, &environment));
    let value = value.ok_or_else(|| invalid(format!("{NAME} : {} is no {c_type}", param.name)))?;
    // SAFETY: not NULL, so valid for writing by the contract.
    unsafe { out.write(value) };
    Ok(())
}

/// The value of a variable as int8_t; none has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI8(handle: ParamHandle, out: *mut i8) -> ResultCode {
    guard("ncclParamGetI8", |_| {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "int8_t", |_| None) }
    })
}

/// The value of a variable as int16_t; none has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI16(handle: ParamHandle, out: *mut i16) -> ResultCode {
    guard("ncclParamGetI16", |_| {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "int16_t", |_| None) }
    })
}

/// The value of a variable as int32_t; none has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI32(handle: ParamHandle, out: *mut i32) -> ResultCode {
    guard("ncclParamGetI32", |_| {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "int32_t", |_| None) }
    })
}

/// The value of a variable as int64_t; none has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetI64(handle: ParamHandle, out: *mut i64) -> ResultCode {
    guard("ncclParamGetI64", |_| {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "int64_t", |_| None) }
    })
}

/// The value of a variable as uint8_t; none has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU8(handle: ParamHandle, out: *mut u8) -> ResultCode {
    guard("ncclParamGetU8", |_| {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "uint8_t", |_| None) }
    })
}

/// The value of a variable as uint16_t; none has this type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU16(handle: ParamHandle, out: *mut u16) -> ResultCode {
    guard("ncclParamGetU16", |_| {
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "uint16_t", |_| None) }
    })
}

/// The value of a variable as uint32_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU32(handle: ParamHandle, out: *mut u32) -> ResultCode {
    guard("ncclParamGetU32", |_| {
        let number = |value: &Typed| if let Typed::U32(v) = value { Some(*v) } else { None };
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "uint32_t", number) }
    })
}

/// The value of a variable as uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetU64(handle: ParamHandle, out: *mut u64) -> ResultCode {
    guard("ncclParamGetU64", |_| {
        let number = |value: &Typed| if let Typed::U64(v) = value { Some(*v) } else { None };
        // SAFETY: NULL or valid for writing, by the C contract.
        unsafe { get_number(handle, out, "uint64_t", number) }
    })
}

/// The value of a text variable; valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetStr(handle: ParamHandle, out: *mut *const c_char) -> ResultCode {
    guard("ncclParamGetStr", |name| -> Result<(), Error> {
        let param = param_of(name, handle)?;
        not_null(name, "out", out)?;
        let Typed::Text(text) = params::typed_of(param, &environment) else {
            return Err(invalid(format!("{name} : {} is no text", param.name)));
        };
        let lent = LENT.with_borrow_mut(|lent| {
            lent.text = c_string(&text.unwrap_or_default());
            lent.text.as_ptr()
        });
        // SAFETY: not NULL, so valid for writing by the C contract.
        unsafe { out.write(lent) };
        Ok(())
    })
}

/// The bytes of a value.
///
/// Texts with their NUL, a bool as one byte, numbers in their own size. `length` gets the size that is
/// needed where the room is too small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGet(
    handle: ParamHandle,
    out: *mut c_void,
    room: c_int,
    length: *mut c_int,
) -> ResultCode {
    guard("ncclParamGet", |name| -> Result<(), Error> {
        let param = param_of(name, handle)?;
        not_null(name, "out", out)?;
        not_null(name, "len", length)?;
        let bytes = match params::typed_of(param, &environment) {
            Typed::Text(text) => c_string(&text.unwrap_or_default()).into_bytes_with_nul(),
            Typed::Bool(value) => vec![u8::from(value)],
            Typed::Level(level) => level.to_ne_bytes().to_vec(),
            Typed::U32(mask) => mask.to_ne_bytes().to_vec(),
            Typed::U64(mask) => mask.to_ne_bytes().to_vec(),
        };
        // SAFETY: not NULL, so valid for writing by the C contract.
        unsafe { length.write(bytes.len() as c_int) };
        if usize::try_from(room).is_ok_and(|room| bytes.len() <= room) {
            // SAFETY: `out` has room for `room` bytes by the C contract, and that is enough.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
            return Ok(());
        }
        Err(invalid(format!("{name} : {} needs {} bytes, maxLen is {room}", param.name, bytes.len())))
    })
}

/// A value as text, by name; valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetParameter(
    key: *const c_char,
    value: *mut *const c_char,
    length: *mut c_int,
) -> ResultCode {
    guard("ncclParamGetParameter", |name| -> Result<(), Error> {
        not_null(name, "value", value)?;
        not_null(name, "valueLen", length)?;
        // SAFETY: both are not NULL, so valid for writing by the C contract.
        unsafe {
            value.write(std::ptr::null());
            length.write(0);
        }
        // SAFETY: NULL or NUL-terminated, by the C contract.
        let param = unsafe { param_named(name, key) }?;
        let (text, bytes) = LENT.with_borrow_mut(|lent| {
            lent.value = c_string(&params::text_of(param, &environment));
            (lent.value.as_ptr(), lent.value.count_bytes())
        });
        // SAFETY: both are not NULL, so valid for writing by the C contract.
        unsafe {
            value.write(text);
            length.write(bytes as c_int);
        }
        Ok(())
    })
}

/// The names of the variables; valid until the thread's next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamGetAllParameterKeys(
    table: *mut *mut *const c_char,
    length: *mut c_int,
) -> ResultCode {
    guard("ncclParamGetAllParameterKeys", |name| -> Result<(), Error> {
        not_null(name, "table", table)?;
        not_null(name, "tableLen", length)?;
        let (names, count) = LENT.with_borrow_mut(|lent| {
            lent.names = params::published(&environment).iter().map(|p| c_string(p.name)).collect();
            lent.table = lent.names.iter().map(|n| n.as_ptr()).collect();
            (lent.table.as_mut_ptr(), lent.table.len())
        });
        // SAFETY: both are not NULL, so valid for writing by the C contract.
        unsafe {
            table.write(names);
            length.write(count as c_int);
        }
        Ok(())
    })
}

/// Prints all variables to stdout.
///
/// To stdout, because that is what the function is for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pncclParamDumpAll() {
    guard("ncclParamDumpAll", |_| log::to_stdout(&params::dump(&environment)));
}
