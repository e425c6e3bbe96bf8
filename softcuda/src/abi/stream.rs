//! Streams.

use super::{CuResult, Handle, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::event;
use crate::stream::{self, LEGACY_HANDLE, PER_THREAD_HANDLE, Stream};
use std::cell::Cell;
use std::ffi::{c_int, c_uint};

fn create(to: Out<Handle>, flags: c_uint, priority: c_int) -> Outcome {
    let driver = Driver::get()?;
    let context = context::current(driver)?;
    to.check()?;
    to.set(Stream::create(driver, context, flags, priority)?)
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
    boundary(|| Stream::destroy(Driver::get()?, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(stream: Handle) -> CuResult {
    boundary(|| {
        let pending = stream::ends(stream::lookup(Driver::get()?, stream)?);
        pending.iter().for_each(|end| end.stream.nudge());
        if pending.is_empty() { Ok(()) } else { Err(CudaError::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: Handle) -> CuResult {
    boundary(|| {
        stream::synchronize_stream(stream::lookup(Driver::get()?, stream)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        let stream = stream::lookup(driver, stream)?;
        if flags > 1 {
            return Err(CudaError::INVALID_VALUE);
        }
        event::lookup(driver, event)?.hold_up(stream);
        Ok(())
    })
}

fn of<T>(stream: Handle, to: Out<T>, value: impl FnOnce(&'static Stream) -> T) -> Outcome {
    to.set(value(stream::lookup(Driver::get()?, stream)?))
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

/// There are no green contexts.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx_v2(stream: Handle, context: Out<Handle>, green: Out<Handle>) -> CuResult {
    boundary(|| {
        green.set_if_wanted(0);
        of(stream, context, Stream::context_handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetDevice(stream: Handle, device: Out<c_int>) -> CuResult {
    boundary(|| device.set(stream::lookup(Driver::get()?, stream)?.context()?.device() as c_int))
}

/// Attributes (access policy, synchronisation policy, …) are hints; there is nothing to copy.
#[unsafe(no_mangle)]
extern "C" fn cuStreamCopyAttributes(to: Handle, from: Handle) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        stream::lookup(driver, to)?;
        stream::lookup(driver, from).map(|_| ())
    })
}

thread_local! {
    /// `CU_STREAM_CAPTURE_MODE_GLOBAL` until exchanged.
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) -> CuResult {
    boundary(|| {
        Driver::get()?;
        let new = mode.get()?;
        if !(0..=2).contains(&new) {
            return Err(CudaError::INVALID_VALUE);
        }
        mode.set(CAPTURE_MODE.replace(new))
    })
}

/// `CU_STREAM_CAPTURE_STATUS_NONE`
const NOT_CAPTURING: c_int = 0;

fn capture_status(stream: Handle, status: Out<c_int>) -> Outcome {
    let driver = Driver::get()?;
    // Asking about a default stream needs no context to exist yet.
    if !matches!(stream, 0 | LEGACY_HANDLE | PER_THREAD_HANDLE) {
        stream::lookup(driver, stream)?;
    } else {
        context::current(driver)?;
    }
    status.set(NOT_CAPTURING)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) -> CuResult {
    boundary(|| capture_status(stream, status))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_int>, id: Out<u64>) -> CuResult {
    boundary(|| {
        id.set_if_wanted(0);
        capture_status(stream, status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<Handle>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| {
        id.set_if_wanted(0);
        graph.set_if_wanted(0);
        dependencies.set_if_wanted(0);
        count.set_if_wanted(0);
        capture_status(stream, status)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<Handle>,
    edges: Out<Handle>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| {
        id.set_if_wanted(0);
        graph.set_if_wanted(0);
        dependencies.set_if_wanted(0);
        edges.set_if_wanted(0);
        count.set_if_wanted(0);
        capture_status(stream, status)
    })
}
