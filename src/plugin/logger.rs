//! What plug-ins call: the logger, and what stands for a profiler.
//!
//! A plug-in says by a WARN line why a call of it has failed, and returns a bare number. So the last WARN line of a
//! thread is kept while the thread is in a plug-in; that of a plug-in's own thread is kept for the next call that
//! fails.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Once;

use parking_lot::Mutex;

use crate::log as lines;

/// `ncclDebugLogger_t`, which takes a format and more arguments as printf does.
pub type PluginLogger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
/// `ncclProfilerCallback_t`.
pub type ProfilerCallback = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> c_int;

/// `NCCL_LOG_WARN`.
const WARN: c_int = 2;
/// `ncclProfilerNetEventStart`.
const EVENT_START: c_int = 0;

/// Whether a line would be shown, or is to be kept.
type LineWanted = extern "C" fn(c_int, c_ulong) -> c_int;
/// Takes a finished line.
type TakeLine = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char);

// SAFETY: they are in logger.c.
unsafe extern "C" {
    fn oxccl_plugin_logger_set(wanted: LineWanted, take: TakeLine);
    fn oxccl_plugin_logger(level: c_int, flags: c_ulong, file: *const c_char, line: c_int, format: *const c_char, ...);
}

thread_local! {
    /// The last WARN line of a plug-in that this thread is in; none while it is in no plug-in.
    static WARNING: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The last WARN line of a thread that is a plug-in's own.
static FROM_ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

/// The logger, for any plug-in.
pub fn logger() -> PluginLogger {
    static READY: Once = Once::new();
    // SAFETY: both functions are of the right type, and stay.
    READY.call_once(|| unsafe { oxccl_plugin_logger_set(wanted, take) });
    oxccl_plugin_logger
}

/// What stands for a profiler, for any plug-in: there is none.
pub extern "C" fn no_profiler(
    event: *mut *mut c_void,
    kind: c_int,
    _parent: *mut c_void,
    _plugin: i64,
    _data: *mut c_void,
) -> c_int {
    if kind == EVENT_START && !event.is_null() {
        // SAFETY: a plug-in that begins an event gives a place for it, or none.
        unsafe { event.write(ptr::null_mut()) };
    }
    0
}

/// Calls a plug-in, and gives the WARN line that says why it has failed, if `failed` and there is one.
pub fn listening<T>(call: impl FnOnce() -> T, failed: impl FnOnce(&T) -> bool) -> (T, Option<String>) {
    WARNING.with_borrow_mut(|warning| *warning = Some(String::new()));
    let result = call();
    let own = WARNING.with_borrow_mut(Option::take).filter(|text| !text.is_empty());
    let warning = if failed(&result) { own.or_else(|| FROM_ELSEWHERE.lock().take()) } else { None };
    (result, warning)
}

extern "C" fn wanted(level: c_int, flags: c_ulong) -> c_int {
    let shown = catch_unwind(|| level == WARN || lines::shows_plugin_line(level, flags));
    c_int::from(shown.unwrap_or(false))
}

/// # Safety
/// The texts are C's, or NULL.
unsafe extern "C" fn take(level: c_int, flags: c_ulong, file: *const c_char, line: c_int, text: *const c_char) {
    let read = |at: *const c_char| {
        // SAFETY: what is not NULL is a text.
        let text = (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) });
        text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
    };
    // A plug-in may give no file.
    let (file, text) = (read(file), read(text));
    // Nothing may unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if level == WARN {
            keep(&text);
        }
        lines::plugin_line(level, flags, (&file, u32::try_from(line).unwrap_or(0)), &text);
    }));
}

fn keep(text: &str) {
    let kept = WARNING.try_with(|warning| match warning.borrow_mut().as_mut() {
        Some(warning) => {
            *warning = text.to_string();
            true
        }
        None => false,
    });
    if !kept.unwrap_or(false) {
        *FROM_ELSEWHERE.lock() = Some(text.to_string());
    }
}
