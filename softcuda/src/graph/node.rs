//! What a node does.

use crate::callout::HostCall;
use crate::error::{CudaError, Outcome};
use crate::launch::Launch;
use crate::memory::access::{Fill, Transfer, ValueWait, ValueWrite};
use crate::os;
use crate::stream::{self, Op, Task};
use parking_lot::Mutex;
use std::sync::Arc;

/// A kernel with its arguments. Never changed: a client that reads a node's parameters points into it.
pub struct Kernel {
    /// The launch that is made each time.
    pub launch: Launch,
    /// Addresses of the arguments in it.
    pub pointers: Vec<usize>,
}

impl Kernel {
    /// From a complete launch.
    pub fn new(launch: Launch) -> Kernel {
        Kernel { pointers: launch.arguments.addresses(), launch }
    }
}

/// The work of a node.
#[derive(Clone)]
pub enum Work {
    /// A kernel.
    Kernel(Arc<Kernel>),
    /// A copy, plane by plane.
    Copy(Arc<Vec<Transfer>>),
    /// A memset.
    Fill(Fill),
    /// A host function.
    Host(HostCall),
    /// Another graph, which belongs to the node.
    Child(u64),
    /// Nothing.
    Empty,
    /// Waits for an event, by handle, as it stands at the launch.
    Wait(u64),
    /// Records an event, by handle.
    Record(u64),
    /// Writes a word.
    Write(ValueWrite),
    /// Waits for a word.
    WaitValue(ValueWait),
}

impl Work {
    /// The node that an operation of a stream becomes. What cannot be captured is an error.
    pub fn captured(operation: Op) -> Outcome<Work> {
        Ok(match operation {
            Op::Launch(launch) => Work::Kernel(Arc::new(Kernel::new(*launch))),
            Op::Copy(transfer) => Work::Copy(Arc::new(vec![transfer])),
            Op::Copy3d(copy) => Work::Copy(Arc::new(copy.planes)),
            // Pageable memory is read when the graph runs, as by any node.
            Op::CopyStaged(staged) => Work::Copy(Arc::new(vec![staged.transfer()])),
            Op::Fill(fill) => Work::Fill(fill),
            Op::Host(call) => Work::Host(call),
            Op::Write(write) => Work::Write(write),
            Op::WaitValue(wait) => Work::WaitValue(wait),
            Op::Free(_) => return Err(no_memory_nodes()),
            _ => return Err(CudaError::STREAM_CAPTURE_UNSUPPORTED),
        })
    }

    /// `CUgraphNodeType`
    pub fn kind(&self) -> i32 {
        match self {
            Work::Kernel(_) => 0,
            Work::Copy(_) => 1,
            Work::Fill(_) => 2,
            Work::Host(_) => 3,
            Work::Child(_) => 4,
            Work::Empty => 5,
            Work::Wait(_) => 6,
            Work::Record(_) => 7,
            Work::Write(_) | Work::WaitValue(_) => 12,
        }
    }
}

impl Work {
    /// What a drawing of the graph calls it.
    pub fn label(&self) -> String {
        match self {
            Work::Kernel(kernel) => format!("kernel {:?} x {:?}", kernel.launch.grid, kernel.launch.block),
            Work::Copy(planes) => format!("memcpy {} bytes", planes.iter().map(Transfer::bytes).sum::<usize>()),
            Work::Fill(_) => "memset".to_owned(),
            Work::Host(_) => "host".to_owned(),
            Work::Child(_) => "graph".to_owned(),
            Work::Empty => "empty".to_owned(),
            Work::Wait(_) => "event wait".to_owned(),
            Work::Record(_) => "event record".to_owned(),
            Work::Write(_) | Work::WaitValue(_) => "memory operation".to_owned(),
        }
    }
}

/// Allocation in stream order inside a graph is not built.
pub fn no_memory_nodes() -> CudaError {
    os::say_once(
        "graph memory",
        "memory nodes of graphs (cuMemAllocAsync, cuMemFreeAsync in a capture) are not supported",
    );
    CudaError::NOT_SUPPORTED
}

/// A node of an instantiated graph.
pub struct Step {
    /// What it does.
    pub work: Work,
    /// A launch record for use again.
    spare: Mutex<Option<Box<Launch>>>,
}

impl Step {
    /// Ready to run.
    pub fn new(work: Work) -> Step {
        Step { work, spare: Mutex::new(None) }
    }

    fn run_kernel(&self, driver: &'static stream::State, kernel: &Kernel) {
        let mut launch = self.spare.lock().take().unwrap_or_default();
        // Anew each time: a kernel may write to its parameters.
        launch.copy_from(&kernel.launch);
        *self.spare.lock() = driver.launch(launch);
    }
}

impl Task for Step {
    fn is_copy(&self) -> bool {
        matches!(self.work, Work::Copy(_) | Work::Fill(_))
    }

    /// Events and child graphs are dealt with at the launch.
    fn run(&self, driver: &'static stream::State, stop: &dyn Fn() -> bool) {
        match &self.work {
            Work::Kernel(kernel) => self.run_kernel(driver, kernel),
            Work::Copy(planes) => planes.iter().for_each(Transfer::run),
            Work::Fill(fill) => fill.run(),
            Work::Host(call) => call.run(),
            Work::Write(write) => write.run(),
            Work::WaitValue(wait) => wait.run(stop),
            Work::Child(_) | Work::Empty | Work::Wait(_) | Work::Record(_) => {}
        }
    }
}
