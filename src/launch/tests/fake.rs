//! A communicator without a device: it writes down what launches ask it to do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::comm::CallKind;
use crate::comm::handover::{self, Giver};
use crate::device::Stream;
use crate::error::Error;
use crate::health::Record;
use crate::launch::plan::Launch;
use crate::launch::{Call, LaunchComm, LaunchSubmission, LaunchTarget};
use crate::plan::call::{DataType, Func, Op};
use crate::plan::layout::{LaunchArgs, Proto, Work};
use crate::plan::offer::{MISSING, UNUSED};
use crate::plan::operator::Reduction;
use crate::plan::wiring::Wiring;
use crate::schedules::ScheduleIndex;
use crate::topology::Graph;
use crate::transport::ConnectionGroup;
use crate::tuning::{Agreed, Filters, MachineConstants, Tuning};

/// The address of work items that were lent.
pub const LENT_AT: u64 = 0xe000;
/// What an offer of a registered buffer is, besides its address.
pub const OFFERED: u64 = 1 << 60;

type BackgroundWork = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// What has been done, by all communicators that share it, in its order.
#[derive(Clone, Default)]
pub struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn add(&self, event: String) {
        self.0.lock().push(event);
    }

    /// What has been done since this was asked last.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// See the module. It is one rank, by default 1, of some on one host.
pub struct FakeComm {
    pub name: &'static str,
    pub hash: u64,
    pub rank: i32,
    pub nranks: i32,
    pub blocking: bool,
    pub software: bool,
    pub tuning: Tuning,
    pub schedules: ScheduleIndex,
    /// Addresses from here on are registered.
    pub registered_from: u64,
    pub fault: FakeFault,
    /// What else is in the way of all calls.
    pub failure: Mutex<Option<Error>>,
    /// The captures of streams.
    pub captures: Mutex<HashMap<usize, u64>>,
    pub events: Events,
    /// Launches that were made.
    pub launched: Mutex<Vec<Launch<Vec<Work>>>>,
    /// Background work that waits to be run; none is kept where it is run at once.
    pub background: Option<Mutex<Vec<BackgroundWork>>>,
    pub collectives: AtomicU64,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FakeFault {
    Nothing,
    /// Another rank has called something else.
    Mismatch,
    /// The driver refuses kernels.
    Refused,
}

impl FakeComm {
    /// Rank 1 of some ranks, with two channels, and Simple alone.
    pub fn of(nranks: u32, events: &Events) -> FakeComm {
        FakeComm::tuned(nranks, "", events)
    }

    /// The same, where `NCCL_ALGO` says `algorithms`.
    pub fn tuned(nranks: u32, algorithms: &str, events: &Events) -> FakeComm {
        let rank = u32::from(nranks > 1);
        let wiring = (nranks > 1).then(|| Wiring::of_host(nranks, Proto::Simple, 2, 4096).expect("a wiring"));
        let filters = Filters::parse(algorithms, "Simple").expect("filters");
        let agreed = Agreed::with_filters(filters);
        FakeComm {
            name: "a",
            hash: 1,
            rank: rank as i32,
            nranks: nranks as i32,
            blocking: true,
            software: false,
            tuning: Tuning::new(MachineConstants::software(2), Arc::new(Graph::of_host(nranks)), agreed),
            schedules: ScheduleIndex::without_device(rank, 2, wiring.as_ref()),
            registered_from: u64::MAX,
            fault: FakeFault::Nothing,
            failure: Mutex::new(None),
            captures: Mutex::default(),
            events: events.clone(),
            launched: Mutex::default(),
            background: None,
            collectives: AtomicU64::new(0),
        }
    }

    /// The same, where ranks can map each other's buffers; those from an address on are registered.
    pub fn with_zero_copy(self, registered_from: u64) -> FakeComm {
        let filters = Filters::parse("", "Simple").expect("filters");
        let agreed = Agreed { maps_buffers: true, ..Agreed::with_filters(filters) };
        let graph = Arc::new(Graph::of_host(self.nranks as u32));
        FakeComm { tuning: Tuning::new(MachineConstants::software(2), graph, agreed), registered_from, ..self }
    }

    /// Runs what waits to be run in the background.
    pub fn run_background(&self) -> Vec<Result<(), Error>> {
        let waiting = self.background.as_ref().map(|waiting| std::mem::take(&mut *waiting.lock()));
        waiting.unwrap_or_default().into_iter().map(|work| work()).collect()
    }

    fn event(&self, event: impl std::fmt::Display) {
        self.events.add(format!("{}: {event}", self.name));
    }

    fn permitted(&self) -> Result<(), Error> {
        self.failure.lock().clone().map_or(Ok(()), Err)
    }
}

/// A call of bytes on stream 7.
pub fn call(func: Func, count: usize) -> Call {
    let reduction = Reduction::Builtin(Op::Sum);
    let (send, recv, datatype) = (0x10_0000, 0x80_0000, DataType::Int8);
    Call { func, send, recv, count, datatype, reduction, root: 0, stream: 7, config: None }
}

impl LaunchTarget for &FakeComm {
    type Lent = Vec<Work>;

    fn rank(&self) -> i32 {
        self.rank
    }

    fn nranks(&self) -> i32 {
        self.nranks
    }

    fn handle(&self) -> usize {
        0
    }

    fn is_software(&self) -> bool {
        self.software
    }

    fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    fn schedules(&self) -> &ScheduleIndex {
        &self.schedules
    }

    fn offer(&self, buffers: [Option<(u64, u64)>; 2]) -> [u64; 2] {
        buffers.map(|buffer| match buffer {
            None => UNUSED,
            Some((address, _)) if address < self.registered_from => MISSING,
            Some((address, _)) => OFFERED | address,
        })
    }

    fn launch_arguments(&self) -> LaunchArgs {
        LaunchArgs { spin: 5, ..LaunchArgs::default() }
    }

    fn lend_items(&self, items: &[Work]) -> Result<(Vec<Work>, u64), Error> {
        Ok((items.to_vec(), LENT_AT))
    }

    fn count_call(&self) -> u64 {
        0
    }

    fn count_collective(&self) -> u64 {
        self.collectives.fetch_add(1, Ordering::Relaxed)
    }

    fn note(&self, record: Record) -> bool {
        self.event(format_args!("notes {}", record.serial));
        self.fault != FakeFault::Mismatch
    }
}

impl LaunchSubmission<Vec<Work>> for &FakeComm {
    fn before(&self, stream: Stream) -> Result<(), Error> {
        self.event(format_args!("{} waits for the last launch", stream.0));
        Ok(())
    }

    fn join(&self, other: Stream, stream: Stream) -> Result<(), Error> {
        self.event(format_args!("{} waits for {}", stream.0, other.0));
        Ok(())
    }

    fn launch(&self, launch: Launch<Vec<Work>>, stream: Stream) -> Result<(), Error> {
        self.event(format_args!("kernel on {}", stream.0));
        self.launched.lock().push(launch);
        match self.fault == FakeFault::Refused {
            true => Err(Error::Cuda { call: "cuLaunchKernel", code: 1, text: "refused".to_string() }),
            false => Ok(()),
        }
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Error> {
        self.event(format_args!("copy of {bytes} from {from:#x} to {to:#x} on {}", stream.0));
        Ok(())
    }

    fn after(&mut self, stream: Stream) -> Result<(), Error> {
        self.event(format_args!("end marked on {}", stream.0));
        Ok(())
    }

    fn record_event(&self, event: usize, stream: Stream) -> Result<(), Error> {
        self.event(format_args!("event {event} on {}", stream.0));
        Ok(())
    }
}

impl LaunchComm for FakeComm {
    type Target<'a> = &'a FakeComm;
    type Submission<'a> = &'a FakeComm;
    type Lent = Vec<Work>;
    type Capture = u64;
    type Captured = u64;

    fn rank(&self) -> i32 {
        self.rank
    }

    fn nranks(&self) -> i32 {
        self.nranks
    }

    fn hash(&self) -> u64 {
        self.hash
    }

    fn is_blocking(&self) -> bool {
        self.blocking
    }

    fn target(&self) -> Result<&FakeComm, Error> {
        Ok(self)
    }

    fn check(&self, _call: CallKind) -> Result<(), Error> {
        self.permitted()
    }

    fn check_again(&self, _call: CallKind) -> Result<(), Error> {
        self.permitted()
    }

    fn check_context(&self) -> Result<(), Error> {
        self.permitted()
    }

    fn check_stream(&self, stream: Stream) -> Result<(), Error> {
        match stream.0 {
            666 => Err(Error::InvalidArgument("a stream of another context".to_string())),
            _ => Ok(()),
        }
    }

    fn each_capture(
        &self,
        mut streams: impl Iterator<Item = Stream>,
        mut visit: impl FnMut(Stream, Option<u64>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        streams.try_for_each(|stream| visit(stream, self.captures.lock().get(&stream.0).copied()))
    }

    fn capture_id(capture: &u64) -> u64 {
        *capture
    }

    fn captured_id(captured: &u64) -> u64 {
        *captured
    }

    fn captured(self: &Arc<FakeComm>, capture: &u64) -> Result<Arc<u64>, Error> {
        self.event(format_args!("capture {capture}"));
        Ok(Arc::new(*capture))
    }

    fn ask_for_links(&self, groups: &[ConnectionGroup]) -> Result<(), Error> {
        self.event(format_args!("asks for {}", groups.len()));
        Ok(())
    }

    fn connect(&self, groups: &[ConnectionGroup], busy: bool) -> Result<(), Error> {
        self.event(format_args!("connects {}{}", groups.len(), if busy { ", busy" } else { "" }));
        groups.iter().for_each(|group| self.schedules.note_connected(*group));
        Ok(())
    }

    fn submit<'a>(&'a self, captured: Option<&'a u64>) -> Result<&'a FakeComm, Error> {
        self.event(match captured {
            Some(capture) => format!("submits to capture {capture}"),
            None => "submits".to_string(),
        });
        Ok(self)
    }

    fn fail(&self, error: &Error) {
        self.event(format_args!("fails: {error}"));
    }

    fn end_busy(&self, result: &Result<(), Error>) {
        self.event(if result.is_ok() { "is ready" } else { "is ready no more" });
    }

    fn has_ended(&self) -> bool {
        true
    }

    fn goodbye_if_due(&self) {
        self.event("says goodbye if due");
    }

    fn hand_over(_comms: &[Arc<FakeComm>]) -> Result<Giver, Error> {
        handover::to_this_thread(&[])
    }

    fn carry_on(
        comms: Vec<Arc<FakeComm>>,
        work: impl FnOnce() -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        comms.iter().for_each(|comm| comm.event("is busy"));
        match &comms[0].background {
            Some(waiting) => waiting.lock().push(Box::new(work)),
            // Its result is what the communicators are told.
            None => drop(work()),
        }
        Ok(())
    }
}
