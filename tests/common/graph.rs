//! Typed bindings to the driver's calls for capture, graphs and events, loaded at run time.

use std::ffi::{c_int, c_uint, c_void};

use super::cuda::Stream;
use super::nccl::{open, symbol};

/// How strict a capture is about calls of other threads (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CaptureMode {
    /// Unsafe calls of any thread spoil it.
    Global = 0,
    /// Unsafe calls of this thread spoil it.
    ThreadLocal = 1,
    /// Nothing does.
    Relaxed = 2,
}

/// A `CUgraph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Graph(*mut c_void);

/// A `CUgraphExec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Exec(*mut c_void);

// SAFETY: the driver allows a graph to be used from any thread, one at a time.
unsafe impl Send for Exec {}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
struct UpdateResult {
    result: c_int,
    nodes: [*mut c_void; 2],
}

/// A `CUevent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Event(pub *mut c_void);

/// The functions. Each panics where the driver returns an error: tests do not go on then.
#[derive(Clone, Copy)]
pub struct Graphs {
    begin: unsafe extern "C" fn(Stream, CaptureMode) -> c_int,
    end: unsafe extern "C" fn(Stream, *mut Graph) -> c_int,
    instantiate: unsafe extern "C" fn(*mut Exec, Graph, u64) -> c_int,
    launch: unsafe extern "C" fn(Exec, Stream) -> c_int,
    destroy: unsafe extern "C" fn(Graph) -> c_int,
    destroy_exec: unsafe extern "C" fn(Exec) -> c_int,
    nodes: unsafe extern "C" fn(Graph, *mut *mut c_void, *mut usize) -> c_int,
    update: unsafe extern "C" fn(Exec, Graph, *mut UpdateResult) -> c_int,
    event_create: unsafe extern "C" fn(*mut Event, c_uint) -> c_int,
    event_record: unsafe extern "C" fn(Event, Stream) -> c_int,
    event_destroy: unsafe extern "C" fn(Event) -> c_int,
    event_query: unsafe extern "C" fn(Event) -> c_int,
    stream_wait: unsafe extern "C" fn(Stream, Event, c_uint) -> c_int,
    stream_query: unsafe extern "C" fn(Stream) -> c_int,
    fill_async: unsafe extern "C" fn(u64, u8, usize, Stream) -> c_int,
    copy_async: unsafe extern "C" fn(u64, u64, usize, Stream) -> c_int,
}

fn expect(call: &str, code: c_int) {
    assert_eq!(code, 0, "{call} returned {code}");
}

impl Graphs {
    /// Takes the functions from `libcuda.so.1`.
    ///
    /// # Errors
    /// If it cannot be loaded or lacks one.
    pub fn load() -> Result<Graphs, String> {
        let l = open("libcuda.so.1")?;
        // SAFETY: the types of the fields are the prototypes of cuda.h.
        unsafe {
            Ok(Graphs {
                begin: symbol(l, "cuStreamBeginCapture_v2")?,
                end: symbol(l, "cuStreamEndCapture")?,
                instantiate: symbol(l, "cuGraphInstantiateWithFlags")?,
                launch: symbol(l, "cuGraphLaunch")?,
                destroy: symbol(l, "cuGraphDestroy")?,
                destroy_exec: symbol(l, "cuGraphExecDestroy")?,
                nodes: symbol(l, "cuGraphGetNodes")?,
                update: symbol(l, "cuGraphExecUpdate_v2")?,
                event_create: symbol(l, "cuEventCreate")?,
                event_record: symbol(l, "cuEventRecord")?,
                event_destroy: symbol(l, "cuEventDestroy_v2")?,
                event_query: symbol(l, "cuEventQuery")?,
                stream_wait: symbol(l, "cuStreamWaitEvent")?,
                stream_query: symbol(l, "cuStreamQuery")?,
                fill_async: symbol(l, "cuMemsetD8Async")?,
                copy_async: symbol(l, "cuMemcpyDtoDAsync_v2")?,
            })
        }
    }

    /// Begins a capture.
    pub fn begin(&self, stream: Stream, mode: CaptureMode) {
        // SAFETY: the driver checks the stream.
        expect("cuStreamBeginCapture", unsafe { (self.begin)(stream, mode) });
    }

    /// Ends a capture. It must not have been spoilt.
    pub fn end(&self, stream: Stream) -> Graph {
        let mut graph = Graph(std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle.
        expect("cuStreamEndCapture", unsafe { (self.end)(stream, &mut graph) });
        graph
    }

    /// Ends a capture that may have been spoilt: the code as it is.
    pub fn end_code(&self, stream: Stream) -> i32 {
        let mut graph = Graph(std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle.
        let code = unsafe { (self.end)(stream, &mut graph) };
        if code == 0 && !graph.0.is_null() {
            self.destroy(graph);
        }
        code
    }

    /// Makes a graph that can be launched.
    pub fn instantiate(&self, graph: Graph) -> Exec {
        let mut exec = Exec(std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle; the driver checks the graph.
        expect("cuGraphInstantiateWithFlags", unsafe { (self.instantiate)(&mut exec, graph, 0) });
        exec
    }

    /// Captures what `work` puts on a stream.
    pub fn capture(&self, stream: Stream, mode: CaptureMode, work: impl FnOnce()) -> Graph {
        self.begin(stream, mode);
        work();
        self.end(stream)
    }

    /// Puts a graph on a stream.
    pub fn launch(&self, exec: Exec, stream: Stream) {
        // SAFETY: the driver checks both.
        expect("cuGraphLaunch", unsafe { (self.launch)(exec, stream) });
    }

    /// Destroys a graph.
    pub fn destroy(&self, graph: Graph) {
        // SAFETY: callers use it once here.
        expect("cuGraphDestroy", unsafe { (self.destroy)(graph) });
    }

    /// Destroys an executable graph.
    pub fn destroy_exec(&self, exec: Exec) {
        // SAFETY: callers use it once here.
        expect("cuGraphExecDestroy", unsafe { (self.destroy_exec)(exec) });
    }

    /// How many nodes a graph has.
    pub fn count_nodes(&self, graph: Graph) -> usize {
        let mut n = 0;
        // SAFETY: NULL asks for the number only.
        expect("cuGraphGetNodes", unsafe { (self.nodes)(graph, std::ptr::null_mut(), &mut n) });
        n
    }

    /// Gives an executable graph the work of another graph of the same shape.
    pub fn update(&self, exec: Exec, graph: Graph) {
        let mut told = UpdateResult { result: 0, nodes: [std::ptr::null_mut(); 2] };
        // SAFETY: the pointer is to a live structure; the driver checks the rest.
        let code = unsafe { (self.update)(exec, graph, &mut told) };
        assert_eq!((code, told.result), (0, 0), "cuGraphExecUpdate: code, and what differs");
    }

    /// An event without times.
    pub fn event(&self) -> Event {
        const NO_TIMING: c_uint = 2;
        let mut event = Event(std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle.
        expect("cuEventCreate", unsafe { (self.event_create)(&mut event, NO_TIMING) });
        event
    }

    /// Records an event.
    pub fn record(&self, event: Event, stream: Stream) {
        // SAFETY: the driver checks both.
        expect("cuEventRecord", unsafe { (self.event_record)(event, stream) });
    }

    /// Whether what an event stands for is done.
    pub fn is_done(&self, event: Event) -> bool {
        // SAFETY: the driver checks the event.
        unsafe { (self.event_query)(event) == 0 }
    }

    /// Destroys an event.
    pub fn destroy_event(&self, event: Event) {
        // SAFETY: callers use it once here.
        expect("cuEventDestroy", unsafe { (self.event_destroy)(event) });
    }

    /// Makes `later` wait for what `earlier` has now; in a capture it becomes a part of it.
    pub fn follow(&self, later: Stream, earlier: Stream) {
        let event = self.event();
        self.record(event, earlier);
        // SAFETY: the driver checks both; an event may be destroyed while it is waited for.
        expect("cuStreamWaitEvent", unsafe { (self.stream_wait)(later, event, 0) });
        self.destroy_event(event);
    }

    /// Makes a stream wait for an event.
    pub fn hold(&self, stream: Stream, event: Event) {
        // SAFETY: the driver checks both.
        expect("cuStreamWaitEvent", unsafe { (self.stream_wait)(stream, event, 0) });
    }

    /// `cuStreamQuery`: the code as it is; 600 while there is work.
    pub fn query(&self, stream: Stream) -> i32 {
        // SAFETY: the driver checks the stream.
        unsafe { (self.stream_query)(stream) }
    }

    /// Queues a fill.
    pub fn fill(&self, at: u64, byte: u8, bytes: usize, stream: Stream) {
        // SAFETY: the driver knows its allocations.
        expect("cuMemsetD8Async", unsafe { (self.fill_async)(at, byte, bytes, stream) });
    }

    /// Queues a copy between device addresses.
    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) {
        // SAFETY: the driver knows its allocations.
        expect("cuMemcpyDtoDAsync", unsafe { (self.copy_async)(to, from, bytes, stream) });
    }
}
