//! The C boundary: every exported function of the driver API.
//!
//! An entry point converts its arguments, makes one call, and maps the error. C pointers end here: [`Out`] and [`In`]
//! stand for them in signatures.
#![allow(unsafe_code)]

mod capture;
mod context;
mod copy;
mod device;
mod errors;
mod event;
mod graph;
mod graph_exec;
mod graph_nodes;
mod green;
mod init;
mod ipc;
mod launch;
mod memory;
mod module;
mod per_thread;
mod pointer;
mod pool;
mod procaddr;
mod refused;
mod set;
mod stream;
mod stream_ops;
mod user_object;
mod versions;
mod vmm;

use crate::driver;
use crate::error::{CudaError, Outcome};
use crate::fault;
pub use device::NAME as DEVICE_NAME;
pub use init::DRIVER_VERSION;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `CUresult`
pub type CuResult = c_int;
/// `CUdeviceptr`
pub type DevicePointer = u64;
/// `CUcontext`, `CUstream`, …: opaque to the client, never dereferenced here.
pub type Handle = u64;

/// Runs the body of an entry point: a panic becomes `CUDA_ERROR_UNKNOWN` and a line on stderr (the panic's own). The
/// body is a closure of the exported function itself, whose name `SOFTCUDA_FAULT` goes by.
#[inline]
pub fn boundary<F: FnOnce() -> Outcome>(body: F) -> CuResult {
    if let Some(code) = fault::due::<F>(driver::lose) {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => error.0,
        Err(_) => CudaError::UNKNOWN.0,
    }
}

/// A C pointer to where one value goes; may be null.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Out<T> {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// A pointer of another type.
    pub fn at(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    /// Null is `INVALID_VALUE`.
    pub fn check(self) -> Outcome {
        if self.0.is_null() { Err(CudaError::INVALID_VALUE) } else { Ok(()) }
    }

    /// Writes; null is `INVALID_VALUE`.
    pub fn set(self, value: T) -> Outcome {
        self.check()?;
        self.set_if_wanted(value);
        Ok(())
    }

    /// Writes, unless the client passed null.
    pub fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: such a pointer comes only from a C caller, who must point it at room for a `T`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Writes the value of index `index` of an array.
    pub fn set_at(self, index: usize, value: T) -> Outcome {
        Out(self.0.wrapping_add(index)).set(value)
    }

    /// What stands there now; null is `INVALID_VALUE`.
    pub fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// A C pointer to values that are read; may be null.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> In<T> {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// Reads an array; null is `INVALID_VALUE` unless it is empty.
    pub fn list(self, count: usize) -> Outcome<Vec<T>> {
        (0..count).map(|index| self.get_at(index)).collect()
    }

    /// Reads; null is `INVALID_VALUE`.
    pub fn get(self) -> Outcome<T> {
        self.get_at(0)
    }

    /// Reads the value of index `index` of an array.
    pub fn get_at(self, index: usize) -> Outcome<T> {
        if self.0.is_null() {
            return Err(CudaError::INVALID_VALUE);
        }
        // SAFETY: such a pointer comes only from a C caller, who must point it at initialised values.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

impl<T> In<T> {
    /// Whether the client passed null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The address.
    pub fn address(self) -> usize {
        self.0 as usize
    }
}

impl In<c_char> {
    /// A C string; null is `INVALID_VALUE`.
    pub fn text<'a>(self) -> Outcome<&'a CStr> {
        if self.0.is_null() {
            return Err(CudaError::INVALID_VALUE);
        }
        // SAFETY: such a pointer comes only from a C caller, who must point it at a string that outlives the call.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// Copies text into a C buffer of `length` bytes, cut off where it is too small.
pub fn put_text(to: Out<c_char>, length: c_int, text: &str) -> Outcome {
    let room = usize::try_from(length).ok().filter(|n| *n > 0).ok_or(CudaError::INVALID_VALUE)?;
    for (index, byte) in text.bytes().take(room - 1).chain([0]).enumerate() {
        to.set_at(index, byte as c_char)?;
    }
    Ok(())
}
