//! The stream that a client means: default streams go by the current context, or by the thread.

use super::{Context, State, current};
use crate::error::{CudaError, Outcome};
use crate::os;
use crate::stream::Stream;
use std::cell::{Cell, RefCell};

/// Handle that means the legacy default stream, as NULL does.
const LEGACY_HANDLE: u64 = 1;
/// Handle that means the per-thread default stream.
const PER_THREAD_HANDLE: u64 = 2;

/// Per-thread default streams of this thread, by context id.
#[derive(Default)]
struct ThreadStreams {
    driver: Option<&'static State>,
    streams: Vec<(u64, u64)>,
}

impl Drop for ThreadStreams {
    fn drop(&mut self) {
        let Some(driver) = self.driver.filter(|_| !os::is_forked()) else {
            return;
        };
        for (_, handle) in &self.streams {
            let _ = Stream::destroy(driver, *handle);
        }
    }
}

thread_local! {
    static THREAD_STREAMS: RefCell<ThreadStreams> = RefCell::default();
    /// Set during a call that means the per-thread default stream by 0.
    static OWN_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call for which stream 0 is the per-thread default stream.
pub fn with_own_default<T>(call: impl FnOnce() -> T) -> T {
    let before = OWN_DEFAULT.replace(true);
    let answer = call();
    OWN_DEFAULT.set(before);
    answer
}

/// A green context has none.
fn per_thread(driver: &'static State, context: &'static Context) -> Outcome<&'static Stream> {
    if context.green() != 0 {
        return Err(CudaError::INVALID_HANDLE);
    }
    THREAD_STREAMS.with_borrow_mut(|own| {
        let known = own.streams.iter().find(|(id, _)| *id == context.id());
        let handle = match known.filter(|(_, handle)| driver.streams.get(*handle).is_some()) {
            Some((_, handle)) => *handle,
            None => {
                let handle = Stream::create(driver, &context.streams, 0, 0)?;
                // Those of contexts that are gone went with them.
                own.streams.retain(|(_, handle)| driver.streams.get(*handle).is_some());
                own.streams.push((context.id(), handle));
                own.driver = Some(driver);
                handle
            }
        };
        driver.streams.get(handle).ok_or(CudaError::INVALID_HANDLE)
    })
}

/// Whether this means the legacy default stream.
pub fn is_legacy(handle: u64) -> bool {
    handle == LEGACY_HANDLE || handle == 0 && !OWN_DEFAULT.get()
}

/// The stream that a client means: a handle, or one of the default streams of its current context. Error: none, or one
/// of a device that is lost.
#[inline]
pub fn stream(driver: &'static State, handle: u64) -> Outcome<&'static Stream> {
    match handle {
        0 if OWN_DEFAULT.get() => per_thread(driver, current(driver)?),
        0 | LEGACY_HANDLE => Ok(current(driver)?.streams.legacy()),
        PER_THREAD_HANDLE => per_thread(driver, current(driver)?),
        _ => match driver.streams.get(handle) {
            Some(stream) if !stream.is_detached() => driver.check(stream.device()).map(|()| stream),
            Some(_) => Err(CudaError::STREAM_DETACHED),
            None => Err(CudaError::INVALID_HANDLE),
        },
    }
}
