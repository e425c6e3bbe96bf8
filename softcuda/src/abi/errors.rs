//! Names and texts of error codes.

use super::{CuResult, Out, boundary};
use crate::error::{self, CudaError, Outcome};
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

fn tell(found: Option<&'static CStr>, to: Out<*const c_char>) -> Outcome {
    to.set(found.map_or(ptr::null(), CStr::as_ptr))?;
    found.map(|_| ()).ok_or(CudaError::INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: c_int, name: Out<*const c_char>) -> CuResult {
    boundary(|| tell(error::name(error), name))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: c_int, text: Out<*const c_char>) -> CuResult {
    boundary(|| tell(error::text(error), text))
}
