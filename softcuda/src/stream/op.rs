//! What a stream can be told to do.

use super::{State, Stream, Target};
use crate::callout::{Callback, HostCall};
use crate::config::Defect;
use crate::error::{CudaError, Outcome};
use crate::launch::{self, Launch};
use crate::memory::access::{Fill, Staged, Transfer, ValueWait, ValueWrite};
use crate::memory::shared::SharedEvent;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A copy that stalls looks this often whether its device is lost.
const STALL_LOOK: Duration = Duration::from_millis(10);

/// Gets what a stream is given that captures, or may not be used because of a capture.
pub trait Recorder: Sync {
    /// An operation given to it. Error: the capture cannot have it.
    fn submit(&'static self, stream: &'static Stream, operation: Op) -> Outcome;

    /// Its handle is gone.
    fn destroyed(&'static self, stream: &'static Stream);
}

/// Wants to know when a place in a stream is reached.
pub trait Mark: Sync {
    /// It is: the one with this number, at this time.
    fn reached(&self, number: u64, time: u64);
}

/// What others have a stream do.
pub trait Task: Send + Sync {
    /// See [`Op::is_copy`].
    fn is_copy(&self) -> bool;

    /// Does it, or stops waiting when `stop` says so.
    fn run(&self, driver: &'static State, stop: &dyn Fn() -> bool);
}

/// A copy of `depth` planes; the first is given.
pub struct Transfer3d {
    /// The planes, each a two-dimensional copy.
    pub planes: Vec<Transfer>,
}

/// One operation of a stream.
pub enum Op {
    /// A kernel.
    Launch(Box<Launch>),
    /// A copy.
    Copy(Transfer),
    /// A copy of several planes.
    Copy3d(Box<Transfer3d>),
    /// A copy whose source was read at submission.
    CopyStaged(Staged),
    /// A memset.
    Fill(Fill),
    /// `cuLaunchHostFunc`
    Host(HostCall),
    /// `cuStreamAddCallback`
    Callback(Box<Callback>),
    /// A timed event's record with its number.
    Record(&'static dyn Mark, u64),
    /// Goes on when the place is reached.
    Wait(Target),
    /// Goes on when the place's last operation has started: it is ahead in a queue that streams share.
    Behind(Target),
    /// An interprocess event's record with its ticket.
    Announce(Arc<SharedEvent>, u64),
    /// Goes on when another process's record is reached.
    Await(Arc<SharedEvent>, u64),
    /// `cuStreamWriteValue`
    Write(ValueWrite),
    /// `cuStreamWaitValue`
    WaitValue(ValueWait),
    /// `cuMemFreeAsync` of the allocation that begins there.
    Free(usize),
    /// A node of a graph.
    Node(Arc<dyn Task>),
    /// The end of a graph's launch, which lets go of what the graph kept alive.
    Retire(Arc<dyn Send + Sync>),
}

impl State {
    /// Runs a launch to its end. The record comes back for use again.
    pub fn launch(&'static self, launch: Box<Launch>) -> Option<Box<Launch>> {
        launch::execute(self, &self.threads, launch)
    }
}

impl Op {
    /// Reads or writes memory that the client may free when it hears of a lost device: such an operation is not left
    /// half done.
    pub fn is_copy(&self) -> bool {
        match self {
            Op::Copy(_) | Op::Copy3d(_) | Op::CopyStaged(_) | Op::Fill(_) => true,
            Op::Node(node) => node.is_copy(),
            _ => false,
        }
    }

    /// What is left of it where the device is lost: callbacks hear of that.
    pub fn abandon(self, error: CudaError) {
        if let Op::Callback(callback) = self {
            callback.run(error.0);
        }
    }

    /// Does it. A launch's record comes back for use again. What only waits ends when the device is lost.
    pub fn execute(self, driver: &'static State, stream: &Stream) -> Option<Box<Launch>> {
        let lost = || stream.check().is_err();
        match self {
            Op::Launch(launch) => return driver.launch(launch),
            Op::Copy(transfer) => carry(driver, stream, &transfer),
            Op::Copy3d(copy) => copy.planes.iter().for_each(|plane| carry(driver, stream, plane)),
            Op::CopyStaged(staged) => staged.run(),
            Op::Fill(fill) => fill.run(),
            Op::Host(call) => call.run(),
            Op::Callback(callback) => callback.run(0),
            Op::Record(event, number) => event.reached(number, driver.now()),
            // The owner has seen that the place is reached.
            Op::Wait(_) | Op::Behind(_) => {}
            Op::Announce(event, ticket) => event.announce(ticket),
            Op::Await(event, ticket) => event.wait(ticket, lost),
            Op::Write(write) => write.run(),
            Op::WaitValue(wait) => wait.run(lost),
            Op::Free(base) => driver.memory.forget(driver, base),
            Op::Node(node) => node.run(driver, &lost),
            Op::Retire(held) => drop(held),
        }
        None
    }
}

/// A copy over what lies between the stream's device and those that have the memory (`SOFTCUDA_LINKS`).
fn carry(driver: &State, stream: &Stream, transfer: &Transfer) {
    if driver.config.links.are_sound() {
        return transfer.run();
    }
    let defect = |address| {
        let range = driver.memory.find(address).filter(|range| range.kind.is_device());
        range.and_then(|range| driver.link(stream.device(), range.home).defect)
    };
    let defects = [transfer.destination().0, transfer.source().0].map(defect);
    for defect in defects {
        if let Some(Defect::Stall(time)) = defect {
            let until = Instant::now() + time;
            while Instant::now() < until && stream.check().is_ok() {
                sleep(STALL_LOOK);
            }
        }
    }
    match defects.map(|defect| defect == Some(Defect::Lost)) {
        [true, _] => {}
        [_, true] => transfer.spoil(),
        _ => transfer.run(),
    }
}
