//! Stream capture.

use super::{CuResult, Handle, In, Out, boundary};
use crate::context;
use crate::driver::Driver;
use crate::error::{CudaError, Outcome};
use crate::graph::capture::{Info, Mode, exchange_mode};
use std::ffi::{c_int, c_uint};

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`; 0 adds.
const SET: c_uint = 1;

fn begin(stream: Handle, mode: c_int, to: Option<(Handle, Vec<Handle>)>) -> Outcome {
    let driver = Driver::get()?;
    let stream = context::stream(driver, stream)?;
    driver.graphs.captures.begin(driver, stream, Mode::new(mode)?, to)
}

/// The form of CUDA 10.0: always of global mode.
#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture(stream: Handle) -> CuResult {
    boundary(|| begin(stream, Mode::Global as c_int, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> CuResult {
    boundary(|| begin(stream, mode, None))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCaptureToGraph(
    stream: Handle,
    graph: Handle,
    dependencies: In<Handle>,
    edges: In<u64>,
    count: usize,
    mode: c_int,
) -> CuResult {
    boundary(|| {
        check_edges(edges, count)?;
        begin(stream, mode, Some((graph, dependencies.list(count)?)))
    })
}

/// Edge data of the default kind are zero; there are no others here.
pub(super) fn check_edges(edges: In<u64>, count: usize) -> Outcome {
    if edges.is_null() || edges.list(count)?.iter().all(|data| *data == 0) {
        Ok(())
    } else {
        Err(CudaError::NOT_SUPPORTED)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> CuResult {
    boundary(|| {
        let driver = Driver::get()?;
        graph.set(0)?;
        graph.set(driver.graphs.captures.end(driver, context::stream(driver, stream)?)?)
    })
}

fn info(stream: Handle) -> Outcome<Option<Info>> {
    let driver = Driver::get()?;
    if context::is_legacy(stream) && context::current(driver)?.streams.legacy_if_used().is_none() {
        // Asking about the default stream does not make it.
        return Ok(None);
    }
    driver.graphs.captures.info(context::stream(driver, stream)?)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) -> CuResult {
    boundary(|| status.set(info(stream)?.map_or(0, |info| info.status)))
}

/// Where the answers to `cuStreamGetCaptureInfo` go.
struct Answer {
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
}

impl Answer {
    /// The form that asks for the status and the number alone.
    fn of(status: Out<c_int>, id: Out<u64>) -> Answer {
        let (graph, none) = (Out(std::ptr::null_mut()), Out(std::ptr::null_mut()));
        Answer { status, id, graph, dependencies: none, edges: none, count: none }
    }

    fn give(self, stream: Handle) -> Outcome {
        self.status.check()?;
        let info = info(stream)?;
        self.status.set(info.as_ref().map_or(0, |info| info.status))?;
        // The rest means something while a capture is active.
        let info = info.filter(|info| info.status == 1);
        let info = info.unwrap_or(Info { status: 0, id: 0, graph: 0, tail: 0, edges: 0, count: 0 });
        self.id.set_if_wanted(info.id);
        self.graph.set_if_wanted(info.graph);
        self.dependencies.set_if_wanted(info.tail);
        self.edges.set_if_wanted(info.edges);
        self.count.set_if_wanted(info.count);
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo(stream: Handle, status: Out<c_int>, id: Out<u64>) -> CuResult {
    boundary(|| Answer::of(status, id).give(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<usize>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| Answer { graph, dependencies, count, ..Answer::of(status, id) }.give(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<Handle>,
    dependencies: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
) -> CuResult {
    boundary(|| Answer { status, id, graph, dependencies, edges, count }.give(stream))
}

fn update(stream: Handle, dependencies: In<Handle>, edges: In<u64>, count: usize, flags: c_uint) -> Outcome {
    let driver = Driver::get()?;
    let stream = context::stream(driver, stream)?;
    check_edges(edges, count)?;
    if flags > SET {
        return Err(CudaError::INVALID_VALUE);
    }
    driver.graphs.captures.set_tail(driver, stream, dependencies.list(count)?, flags == SET)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamUpdateCaptureDependencies(
    stream: Handle,
    dependencies: In<Handle>,
    count: usize,
    flags: c_uint,
) -> CuResult {
    boundary(|| update(stream, dependencies, In(std::ptr::null()), count, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamUpdateCaptureDependencies_v2(
    stream: Handle,
    dependencies: In<Handle>,
    edges: In<u64>,
    count: usize,
    flags: c_uint,
) -> CuResult {
    boundary(|| update(stream, dependencies, edges, count, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) -> CuResult {
    boundary(|| {
        Driver::get()?;
        let new = Mode::new(mode.get()?)?;
        mode.set(exchange_mode(new) as c_int)
    })
}
