//! Events.

use super::{CuResult, Handle, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::event::{self, Event};
use crate::stream;
use std::ffi::{c_float, c_uint};

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(to: Out<Handle>, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        to.set(Event::create(driver, context::current(driver)?, flags, None)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> CuResult {
    boundary(|| Event::destroy(Driver::get()?, event))
}

fn record(event: Handle, stream: Handle) -> Outcome {
    let driver = Driver::get()?;
    event::lookup(driver, event)?.record(stream::lookup(driver, stream)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> CuResult {
    boundary(|| record(event, stream))
}

/// The external flag means something to a capture only.
#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) -> CuResult {
    boundary(|| if flags <= 1 { record(event, stream) } else { Err(CudaError::INVALID_VALUE) })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> CuResult {
    boundary(|| event::lookup(Driver::get()?, event)?.query())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> CuResult {
    boundary(|| event::lookup(Driver::get()?, event)?.synchronize())
}

fn elapsed(to: Out<c_float>, start: Handle, end: Handle) -> Outcome {
    let driver = Driver::get()?;
    to.check()?;
    to.set(event::lookup(driver, start)?.elapsed(event::lookup(driver, end)?)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(to: Out<c_float>, start: Handle, end: Handle) -> CuResult {
    boundary(|| elapsed(to, start, end))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(to: Out<c_float>, start: Handle, end: Handle) -> CuResult {
    boundary(|| elapsed(to, start, end))
}
