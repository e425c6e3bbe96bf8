//! Streams.

use super::{CuResult, Handle, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::event;
use crate::graph::Work;
use crate::stream::{self, Stream};
use std::ffi::{c_int, c_uint};

/// `CU_EVENT_WAIT_EXTERNAL`: in a capture, a wait that happens at each launch. It means nothing elsewhere.
const EXTERNAL: c_uint = 1;

fn create(to: Out<Handle>, flags: c_uint, priority: c_int) -> Outcome {
    let driver = Driver::get()?;
    let context = context::current(driver)?;
    to.check()?;
    to.set(Stream::create(driver, &context.streams, flags, priority)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(to: Out<Handle>, flags: c_uint) -> CuResult {
    boundary(|| create(to, flags, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreateWithPriority(to: Out<Handle>, flags: c_uint, priority: c_int) -> CuResult {
    boundary(|| create(to, flags, priority))
}

/// The work goes on; the default streams cannot be destroyed.
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        driver.streams.get(stream).map_or(Ok(()), Stream::check)?;
        Stream::destroy(driver, stream)
    })
}

/// A stream whose progress the client may watch now, as regards captures.
fn watched(driver: &'static Driver, stream: Handle) -> Outcome<&'static Stream> {
    let stream = context::stream(driver, stream)?;
    if stream.is_captured() {
        return Err(driver.graphs.captures.disturb(stream));
    }
    driver.graphs.captures.allow_unsafe()?;
    Ok(stream)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> CuResult {
    boundary(|| {
        let pending = stream::ends(watched(Driver::get()?, stream)?);
        pending.iter().for_each(|end| end.stream.nudge());
        if pending.is_empty() { Ok(()) } else { Err(CudaError::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> CuResult {
    boundary(|| stream::synchronize_stream(watched(Driver::get()?, stream)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let stream = context::stream(driver, stream)?;
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        let object = event::lookup(driver, event)?;
        let captures = &driver.graphs.captures;
        match (stream.is_captured(), flags == EXTERNAL) {
            (true, true) => captures.add(driver, stream, Work::Wait(event)),
            (false, true) => Err(CudaError::INVALID_VALUE),
            (false, false) if object.captured().is_none() => object.hold_up(stream),
            _ => captures.wait(driver, stream, object),
        }
    })
}

fn of<T>(stream: Handle, to: Out<T>, value: impl FnOnce(&'static Stream) -> T) -> Outcome {
    to.set(value(context::stream(Driver::get()?, stream)?))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) -> CuResult {
    boundary(|| of(stream, priority, Stream::priority))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) -> CuResult {
    boundary(|| of(stream, flags, Stream::flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(stream: Handle, id: Out<u64>) -> CuResult {
    boundary(|| of(stream, id, Stream::id))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> CuResult {
    boundary(|| of(stream, context, Stream::context_handle))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetDevice(stream: Handle, device: Out<c_int>) -> CuResult {
    boundary(|| device.set(context::of_stream(Driver::get()?, stream)?.device() as c_int))
}

/// Attributes (access policy, synchronisation policy, …) are hints; there is nothing to copy.
#[unsafe(no_mangle)]
extern "C" fn cuStreamCopyAttributes(to: Handle, from: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        context::stream(driver, to)?;
        context::stream(driver, from).map(|_| ())
    })
}
