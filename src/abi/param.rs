//! ncclParam*: the variables as C sees them (spec §3.8).
//!
//! # Safety
//! The bodies get the arguments of the C functions as they are: pointers are NULL or valid for what the function
//! is documented to do with them.

use super::boundary::{invalid, not_null};
use super::exports;
use super::types::ResultCode;
use crate::error::Error;
use crate::log;
use crate::params::{self, Param, TABLE, Typed};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

exports! {
    /// A handle for a variable.
    fn ncclParamBind = pncclParamBind(out: *mut *const Param, key: *const c_char) -> ResultCode = bind;
    /// The value of a variable as int8_t; none has this type.
    fn ncclParamGetI8 = pncclParamGetI8(handle: *const Param, out: *mut i8) -> ResultCode = get_number;
    /// The value of a variable as int16_t; none has this type.
    fn ncclParamGetI16 = pncclParamGetI16(handle: *const Param, out: *mut i16) -> ResultCode = get_number;
    /// The value of a variable as int32_t; none has this type.
    fn ncclParamGetI32 = pncclParamGetI32(handle: *const Param, out: *mut i32) -> ResultCode = get_number;
    /// The value of a variable as int64_t; none has this type.
    fn ncclParamGetI64 = pncclParamGetI64(handle: *const Param, out: *mut i64) -> ResultCode = get_number;
    /// The value of a variable as uint8_t; none has this type.
    fn ncclParamGetU8 = pncclParamGetU8(handle: *const Param, out: *mut u8) -> ResultCode = get_number;
    /// The value of a variable as uint16_t; none has this type.
    fn ncclParamGetU16 = pncclParamGetU16(handle: *const Param, out: *mut u16) -> ResultCode = get_number;
    /// The value of a variable as uint32_t.
    fn ncclParamGetU32 = pncclParamGetU32(handle: *const Param, out: *mut u32) -> ResultCode = get_number;
    /// The value of a variable as uint64_t.
    fn ncclParamGetU64 = pncclParamGetU64(handle: *const Param, out: *mut u64) -> ResultCode = get_number;
    /// The value of a text variable; valid until the thread's next call.
    fn ncclParamGetStr = pncclParamGetStr(handle: *const Param, out: *mut *const c_char) -> ResultCode = get_text;
    /// The bytes of a value.
    fn ncclParamGet = pncclParamGet(handle: *const Param, out: *mut c_void, room: c_int, length: *mut c_int) -> ResultCode = get_bytes;
    /// A value as text, by name; valid until the thread's next call.
    fn ncclParamGetParameter = pncclParamGetParameter(key: *const c_char, value: *mut *const c_char, length: *mut c_int) -> ResultCode = get_by_name;
    /// The names of the variables; valid until the thread's next call.
    fn ncclParamGetAllParameterKeys = pncclParamGetAllParameterKeys(table: *mut *mut *const c_char, length: *mut c_int) -> ResultCode = get_names;
    /// Prints all variables to stdout.
    fn ncclParamDumpAll = pncclParamDumpAll() -> () = dump_all;
}

/// What C was lent, kept until the thread's next call of the same kind.
#[derive(Default)]
struct Lent {
    text: CString,
    value: CString,
    names: Vec<CString>,
    table: Vec<*const c_char>,
}

thread_local! {
    static LENT: RefCell<Lent> = RefCell::default();
}

fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn c_string(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// The variable of a handle, which points into the table.
fn param_of(name: &str, handle: *const Param) -> Result<&'static Param, Error> {
    not_null(name, "handle", handle)?;
    TABLE.iter().find(|p| std::ptr::eq(*p, handle)).ok_or_else(|| invalid(format!("{name} : handle {handle:p} is none")))
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

unsafe fn bind(out: *mut *const Param, key: *const c_char) -> Result<(), Error> {
    const NAME: &str = "ncclParamBind";
    not_null(NAME, "out", out)?;
    // SAFETY: NULL or NUL-terminated, by the C contract.
    let param = unsafe { param_named(NAME, key) }?;
    // SAFETY: not NULL, so valid for writing by the C contract.
    unsafe { out.write(param) };
    Ok(())
}

/// A C number that a variable may have as its type.
trait Number: Sized {
    const C_NAME: &str;
    fn from_typed(value: &Typed) -> Option<Self>;
}

macro_rules! numbers {
    ($($type:ty = $name:literal, $pattern:pat => $value:expr;)*) => { $(
        impl Number for $type {
            const C_NAME: &str = $name;
            fn from_typed(value: &Typed) -> Option<$type> {
                match value {
                    $pattern => $value,
                    #[allow(unreachable_patterns)]
                    _ => None,
                }
            }
        }
    )* };
}

numbers! {
    i8 = "int8_t", _ => None;
    i16 = "int16_t", _ => None;
    i32 = "int32_t", _ => None;
    i64 = "int64_t", _ => None;
    u8 = "uint8_t", _ => None;
    u16 = "uint16_t", _ => None;
    u32 = "uint32_t", Typed::U32(v) => Some(*v);
    u64 = "uint64_t", Typed::U64(v) => Some(*v);
}

/// The variable's type must be exactly the one that is asked for.
unsafe fn get_number<T: Number>(handle: *const Param, out: *mut T) -> Result<(), Error> {
    const NAME: &str = "ncclParamGet";
    let param = param_of(NAME, handle)?;
    not_null(NAME, "out", out)?;
    let value = T::from_typed(&params::typed_of(param, &environment));
    let value = value.ok_or_else(|| invalid(format!("{NAME} : {} is no {}", param.name, T::C_NAME)))?;
    // SAFETY: not NULL, so valid for writing by the C contract.
    unsafe { out.write(value) };
    Ok(())
}

unsafe fn get_text(handle: *const Param, out: *mut *const c_char) -> Result<(), Error> {
    const NAME: &str = "ncclParamGetStr";
    let param = param_of(NAME, handle)?;
    not_null(NAME, "out", out)?;
    let Typed::Text(text) = params::typed_of(param, &environment) else {
        return Err(invalid(format!("{NAME} : {} is no text", param.name)));
    };
    let lent = LENT.with_borrow_mut(|lent| {
        lent.text = c_string(&text.unwrap_or_default());
        lent.text.as_ptr()
    });
    // SAFETY: not NULL, so valid for writing by the C contract.
    unsafe { out.write(lent) };
    Ok(())
}

/// Texts with their NUL, a bool as one byte, numbers in their own size. `length` gets the size that is
/// needed where the room is too small.
unsafe fn get_bytes(handle: *const Param, out: *mut c_void, room: c_int, length: *mut c_int) -> Result<(), Error> {
    const NAME: &str = "ncclParamGet";
    let param = param_of(NAME, handle)?;
    not_null(NAME, "out", out)?;
    not_null(NAME, "len", length)?;
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
    Err(invalid(format!("{NAME} : {} needs {} bytes, maxLen is {room}", param.name, bytes.len())))
}

unsafe fn get_by_name(key: *const c_char, value: *mut *const c_char, length: *mut c_int) -> Result<(), Error> {
    const NAME: &str = "ncclParamGetParameter";
    not_null(NAME, "value", value)?;
    not_null(NAME, "valueLen", length)?;
    // SAFETY: both are not NULL, so valid for writing by the C contract.
    unsafe {
        value.write(std::ptr::null());
        length.write(0);
    }
    // SAFETY: NULL or NUL-terminated, by the C contract.
    let param = unsafe { param_named(NAME, key) }?;
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
}

unsafe fn get_names(table: *mut *mut *const c_char, length: *mut c_int) -> Result<(), Error> {
    const NAME: &str = "ncclParamGetAllParameterKeys";
    not_null(NAME, "table", table)?;
    not_null(NAME, "tableLen", length)?;
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
}

/// To stdout, because that is what the function is for.
fn dump_all() {
    log::to_stdout(&params::dump(&environment));
}
