//! What the tests call besides the common bindings.

use std::ffi::{c_int, c_uint, c_void};

use crate::common::abi::{Comm, Config, UniqueId};
use crate::common::communicators::Communicators;
use crate::common::cuda::{Context, Cuda, Stream};
use crate::common::launch::Place;
use crate::common::nccl::{Nccl, open, symbol};

/// `CUstream` values with a meaning: NULL, legacy, per thread.
pub const NULL_STREAM: Stream = Stream(std::ptr::null_mut());
pub const LEGACY: Stream = Stream(std::ptr::without_provenance_mut(1));
pub const PER_THREAD: Stream = Stream(std::ptr::without_provenance_mut(2));

/// A `CUevent`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Event(*mut c_void);

/// Both libraries.
#[derive(Clone, Copy)]
pub struct Api {
    pub nccl: Nccl,
    pub cuda: Cuda,
    comms: Communicators,
    copy_async: unsafe extern "C" fn(u64, u64, usize, Stream) -> c_int,
    fill_async: unsafe extern "C" fn(u64, u8, usize, Stream) -> c_int,
    stream_create: unsafe extern "C" fn(*mut Stream, c_uint) -> c_int,
    stream_wait: unsafe extern "C" fn(Stream, Event, c_uint) -> c_int,
    event_create: unsafe extern "C" fn(*mut Event, c_uint) -> c_int,
    event_record: unsafe extern "C" fn(Event, Stream) -> c_int,
    event_destroy: unsafe extern "C" fn(Event) -> c_int,
    begin_capture: unsafe extern "C" fn(Stream, c_int) -> c_int,
    end_capture: unsafe extern "C" fn(Stream, *mut *mut c_void) -> c_int,
    destroy_graph: unsafe extern "C" fn(*mut c_void) -> c_int,
    host_func: unsafe extern "C" fn(Stream, extern "C" fn(*mut c_void), *mut c_void) -> c_int,
    ctx_current: unsafe extern "C" fn(*mut Context) -> c_int,
}

impl Api {
    /// Loads the libraries of this build.
    pub fn load() -> Api {
        let cuda = open("libcuda.so.1").expect("libcuda");
        let missing = "a function of the library";
        // SAFETY: the types of the fields are the prototypes of cuda.h.
        unsafe {
            Api {
                nccl: Nccl::load("libnccl.so.2").expect("libnccl"),
                cuda: Cuda::load("libcuda.so.1").expect("libcuda"),
                comms: Communicators::load(),
                copy_async: symbol(cuda, "cuMemcpyDtoDAsync_v2").expect(missing),
                fill_async: symbol(cuda, "cuMemsetD8Async").expect(missing),
                stream_create: symbol(cuda, "cuStreamCreate").expect(missing),
                stream_wait: symbol(cuda, "cuStreamWaitEvent").expect(missing),
                event_create: symbol(cuda, "cuEventCreate").expect(missing),
                event_record: symbol(cuda, "cuEventRecord").expect(missing),
                event_destroy: symbol(cuda, "cuEventDestroy_v2").expect(missing),
                begin_capture: symbol(cuda, "cuStreamBeginCapture_v2").expect(missing),
                end_capture: symbol(cuda, "cuStreamEndCapture").expect(missing),
                destroy_graph: symbol(cuda, "cuGraphDestroy").expect(missing),
                host_func: symbol(cuda, "cuLaunchHostFunc").expect(missing),
                ctx_current: symbol(cuda, "cuCtxGetCurrent").expect(missing),
            }
        }
    }

    /// `ncclCommInitRankConfig`; the result code as it is.
    pub fn init_config(&self, comm: &mut Comm, place: (usize, usize), id: UniqueId, config: Option<&Config>) -> i32 {
        // SAFETY: the handle lives until the call is over (without blocking it is written at once).
        unsafe { self.comms.init_config(comm, place, id, config.map_or(std::ptr::null(), std::ptr::from_ref)) }
    }

    /// The same with the words of a configuration, of which the first is its size.
    pub fn init_words(&self, comm: &mut Comm, place: (usize, usize), id: UniqueId, config: &[u64]) -> i32 {
        // SAFETY: as above; a configuration begins with its size.
        unsafe { self.comms.init_config(comm, place, id, config.as_ptr().cast()) }
    }

    /// The device and the rank of a communicator.
    pub fn place_of(&self, comm: Comm) -> (i32, i32) {
        (self.comms.cu_device(comm).expect("a device"), self.comms.user_rank(comm).expect("a rank"))
    }

    /// The current context of this thread.
    pub fn current(&self) -> Context {
        let mut context = Context(std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle.
        assert_eq!(unsafe { (self.ctx_current)(&mut context) }, 0);
        context
    }

    /// A stream that waits for the legacy stream, and the other way round.
    pub fn blocking_stream(&self) -> Stream {
        let mut stream = NULL_STREAM;
        // SAFETY: the pointer is to a live handle.
        assert_eq!(unsafe { (self.stream_create)(&mut stream, 0) }, 0);
        stream
    }

    /// Queues a copy between device addresses.
    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: Stream) {
        // SAFETY: the driver knows its allocations.
        assert_eq!(unsafe { (self.copy_async)(to, from, bytes, stream) }, 0);
    }

    /// Queues a fill.
    pub fn fill(&self, at: u64, byte: u8, bytes: usize, stream: Stream) {
        // SAFETY: the driver knows its allocations.
        assert_eq!(unsafe { (self.fill_async)(at, byte, bytes, stream) }, 0);
    }

    /// Makes `later` wait for what `earlier` has now.
    pub fn follow(&self, later: Stream, earlier: Stream) {
        let mut event = Event(std::ptr::null_mut());
        // SAFETY: the pointer is to a live handle; an event may be destroyed while it is waited for.
        let codes = unsafe {
            [
                (self.event_create)(&mut event, 2),
                (self.event_record)(event, earlier),
                (self.stream_wait)(later, event, 0),
                (self.event_destroy)(event),
            ]
        };
        assert_eq!(codes, [0; 4]);
    }

    /// Captures what `work` puts on a stream into a graph that is thrown away; its end must succeed.
    pub fn capture<R>(&self, stream: Stream, work: impl FnOnce() -> R) -> R {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the driver checks the stream; mode 0 is the strictest one.
        assert_eq!(unsafe { (self.begin_capture)(stream, 0) }, 0);
        let result = work();
        // SAFETY: the pointer is to a live handle.
        assert_eq!(unsafe { (self.end_capture)(stream, &mut graph) }, 0, "the capture is not spoilt");
        // SAFETY: nobody else has the graph.
        assert_eq!(unsafe { (self.destroy_graph)(graph) }, 0);
        result
    }

    /// Queues a call of a host function.
    pub fn host(&self, stream: Stream, function: extern "C" fn(*mut c_void)) {
        // SAFETY: the function takes no data.
        assert_eq!(unsafe { (self.host_func)(stream, function, std::ptr::null_mut()) }, 0);
    }

    /// How processes meet: rank 0 publishes an id under a name that is used once.
    pub fn meet(&self, me: &Place, name: &str) -> UniqueId {
        if me.rank == 0 {
            me.publish(name, &self.nccl.unique_id().expect("an id").0);
        }
        UniqueId(me.await_published(name).try_into().expect("an id has 128 bytes"))
    }

    /// A blocking `ncclCommInitRank` on the current device.
    pub fn init(&self, nranks: usize, id: UniqueId, rank: usize) -> Comm {
        let mut comm = Comm::NULL;
        // SAFETY: the handle lives until the call is over.
        unsafe { self.nccl.init_rank(&mut comm, nranks, id, rank) }.expect("a communicator");
        comm
    }
}
