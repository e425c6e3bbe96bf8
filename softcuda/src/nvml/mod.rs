//! NVML, as far as programs look for devices with it: how many, which, where, how much memory, what between them.
//!
//! `libnvidia-ml.so.1` is a table of jumps like `libcudart.so` (see `build.rs`); a function marked
//! `export_name = "softnvml_nvmlInit_v2"` here is what a program's `nvmlInit_v2` reaches. NVML sees all devices of the
//! machine, whatever `CUDA_VISIBLE_DEVICES` says. What is not built says "not supported".
#![allow(unsafe_code)]

mod device;
mod error;
mod link;
mod system;

use crate::config::{Config, Link};
use crate::driver;
use crate::fault;
use error::{ARGUMENT_TOO_SMALL, INVALID_ARGUMENT, NvmlError, UNINITIALIZED, UNKNOWN};
use parking_lot::Mutex;
use std::ffi::{c_char, c_int, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `nvmlReturn_t`
type Return = c_int;
/// `nvmlDevice_t`: opaque to the client, never dereferenced here.
type Device = usize;
type Outcome<T = ()> = Result<T, NvmlError>;

/// Handles look like addresses; the ordinal stands in their middle.
const HANDLE_BASE: Device = 0x6e76_0000_0000;
const HANDLE_SHIFT: u32 = 8;

/// What `nvmlInit` made.
struct State {
    references: u32,
    config: Config,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// Runs the body of an entry point: a panic becomes `NVML_ERROR_UNKNOWN`.
fn boundary<F: FnOnce() -> Outcome>(body: F) -> Return {
    if let Some(code) = fault::due::<F>(driver::lose) {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.0,
        Err(_) => UNKNOWN.0,
    }
}

/// `nvmlInit`: counted.
fn init() {
    let mut state = STATE.lock();
    match &mut *state {
        Some(state) => state.references += 1,
        None => *state = Some(State { references: 1, config: Config::from_environment() }),
    }
}

/// `nvmlShutdown`: the last one ends it.
fn release(state: &mut Option<State>) -> Outcome {
    let left = &mut state.as_mut().ok_or(UNINITIALIZED)?.references;
    *left -= 1;
    if *left == 0 {
        *state = None;
    }
    Ok(())
}

/// Devices of the machine.
fn count() -> Outcome<u32> {
    STATE.lock().as_ref().map(|state| state.config.devices).ok_or(UNINITIALIZED)
}

/// Bytes of memory of each device.
fn memory() -> Outcome<u64> {
    STATE.lock().as_ref().map(|state| state.config.memory).ok_or(UNINITIALIZED)
}

/// What lies between two devices of the machine.
fn between(a: u32, b: u32) -> Outcome<Link> {
    STATE.lock().as_ref().map(|state| state.config.links.between(a, b)).ok_or(UNINITIALIZED)
}

fn handle(ordinal: u32) -> Device {
    HANDLE_BASE | (ordinal as Device + 1) << HANDLE_SHIFT
}

/// The ordinal of a handle.
fn ordinal(device: Device) -> Outcome<u32> {
    let count = count()?;
    let found = (0..count).find(|ordinal| handle(*ordinal) == device);
    found.ok_or(INVALID_ARGUMENT)
}

/// Copies text; half of it is no answer.
fn put_text(to: crate::abi::Out<c_char>, length: c_uint, text: &str) -> Outcome {
    to.check().map_err(|_| INVALID_ARGUMENT)?;
    if (length as usize) <= text.len() {
        return Err(ARGUMENT_TOO_SMALL);
    }
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        to.set_at(index, byte as c_char).map_err(|_| INVALID_ARGUMENT)?;
    }
    Ok(())
}

/// Writes an answer; null is an invalid argument.
fn put<T>(to: crate::abi::Out<T>, value: T) -> Outcome {
    to.set(value).map_err(|_| INVALID_ARGUMENT)
}
