//! Events.

use super::{CuResult, Handle, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::event::{self, Event};
use crate::graph::Work;
use std::ffi::{c_float, c_uint};

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(to: Out<Handle>, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        to.check()?;
        to.set(Event::create(driver, context::current(driver)?.owner(), flags, None)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> CuResult {
    boundary(|| {
        event::lookup(Driver::get()?, event)?;
        Event::destroy(Driver::get()?, event)
    })
}

/// `CU_EVENT_RECORD_EXTERNAL`: in a capture, a record that happens at each launch. It means nothing elsewhere.
const EXTERNAL: c_uint = 1;

fn record(event: Handle, stream: Handle, flags: c_uint) -> Outcome {
    let driver = Driver::get()?;
    let (object, stream) = (event::lookup(driver, event)?, context::stream(driver, stream)?);
    let external = flags == EXTERNAL;
    if flags > EXTERNAL || external && !stream.is_captured() {
        return Err(CudaError::INVALID_VALUE);
    }
    if !stream.is_captured() {
        return object.record(stream);
    }
    object.check_stream(stream)?;
    let captures = &driver.graphs.captures;
    if external { captures.add(driver, stream, Work::Record(event)) } else { captures.record(stream, object) }
}

/// An event whose progress the client may watch now, as regards captures.
fn watched(event: Handle) -> Outcome<&'static Event> {
    let driver = Driver::get()?;
    let object = event::lookup(driver, event)?;
    match object.captured() {
        Some(captured) => Err(driver.graphs.captures.disturb_event(&captured)),
        None => driver.graphs.captures.allow_unsafe().map(|()| object),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> CuResult {
    boundary(|| record(event, stream, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) -> CuResult {
    boundary(|| record(event, stream, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> CuResult {
    boundary(|| watched(event)?.query())
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: Handle) -> CuResult {
    boundary(|| watched(event)?.synchronize(Driver::get()?))
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
