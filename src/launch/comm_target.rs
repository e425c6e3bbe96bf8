//! Communicators as launches ask them.

use std::sync::Arc;

use parking_lot::{MutexGuard, RwLockReadGuard};

use super::plan::{Launch, Plan};
use super::target::{LaunchComm, LaunchSubmission, LaunchTarget};
use crate::comm::handover::{self, Giver};
use crate::comm::{CallKind, Captured, Comm, LaunchOrder, Parts, jobs};
use crate::device::{Capture, Entered, Stream, gate};
use crate::error::Error;
use crate::health::Record;
use crate::memory::Lent;
use crate::plan::layout::{LaunchArgs, Work};
use crate::plan::offer::{MISSING, UNUSED};
use crate::schedules::ScheduleIndex;
use crate::transport::ConnectionGroup;
use crate::tuning::Tuning;

/// A communicator, with what its creation has made.
pub struct CreatedComm<'a> {
    comm: &'a Comm,
    parts: &'a Parts,
}

impl LaunchTarget for CreatedComm<'_> {
    type Lent = Lent;

    fn rank(&self) -> i32 {
        self.comm.rank()
    }

    fn nranks(&self) -> i32 {
        self.comm.nranks()
    }

    fn handle(&self) -> usize {
        self.comm.handle()
    }

    fn is_software(&self) -> bool {
        self.parts.launch().software
    }

    fn tuning(&self) -> &Tuning {
        self.parts.tuning()
    }

    fn schedules(&self) -> &ScheduleIndex {
        self.parts.schedules().index()
    }

    fn offer(&self, buffers: [Option<(u64, u64)>; 2]) -> [u64; 2] {
        let offers = self.parts.offers(|| self.comm.device_is_quiet());
        buffers.map(|buffer| match (buffer, &offers) {
            (None, _) => UNUSED,
            (Some((address, bytes)), Some(offers)) => offers.offer(address, bytes),
            (Some(_), None) => MISSING,
        })
    }

    fn launch_arguments(&self) -> LaunchArgs {
        self.parts.launch_arguments()
    }

    fn lend_items(&self, items: &[Work]) -> Result<(Lent, u64), Error> {
        let lent = self.parts.lend_items(items)?;
        let address = lent.address();
        Ok((lent, address))
    }

    fn count_call(&self) -> u64 {
        self.comm.counters().count_call()
    }

    fn count_collective(&self) -> u64 {
        self.comm.counters().count_collective()
    }

    fn note(&self, record: Record) -> bool {
        self.parts.note(record)
    }
}

/// Puts the work of a communicator on streams. The fields drop in this order.
pub struct CommSubmission<'a> {
    launch_order: Option<MutexGuard<'a, LaunchOrder>>,
    order: MutexGuard<'a, LaunchOrder>,
    _gate: RwLockReadGuard<'static, ()>,
    _entered: Option<Entered<'a>>,
    comm: &'a Comm,
    parts: &'a Parts,
    captured: Option<&'a Captured>,
}

impl LaunchSubmission<Lent> for CommSubmission<'_> {
    fn before(&self, stream: Stream) -> Result<(), Error> {
        self.order.before(stream, self.captured.map(Captured::end))?;
        let of_all = self.captured.and_then(Captured::end_of_all);
        self.launch_order.as_ref().map_or(Ok(()), |order| order.before(stream, of_all))
    }

    fn join(&self, other: Stream, stream: Stream) -> Result<(), Error> {
        self.order.join(other, stream)
    }

    fn launch(&self, launch: Launch<Lent>, stream: Stream) -> Result<(), Error> {
        go(launch, self.parts, stream, self.captured)
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Error> {
        self.comm.context().copy(to, from, bytes as usize, stream)
    }

    fn after(&mut self, stream: Stream) -> Result<(), Error> {
        let marked = self.order.after(stream, self.captured.map(Captured::end));
        let of_all = self.captured.and_then(Captured::end_of_all);
        let marked_for_all = self.launch_order.as_mut().map_or(Ok(()), |order| order.after(stream, of_all));
        self.parts.launched();
        marked.and(marked_for_all)
    }

    fn record_event(&self, event: usize, stream: Stream) -> Result<(), Error> {
        self.comm.context().record_user_event(event, stream)
    }
}

/// Launches, or adds to a capture. The context must be current.
fn go(launch: Launch<Lent>, parts: &Parts, stream: Stream, captured: Option<&Captured>) -> Result<(), Error> {
    let (blocks, threads) = (launch.arguments.nchannels, parts.launch().threads);
    // SAFETY: the kernels take this structure by value; steps, links and items live as long as the communicator,
    // which waits for its launches before it frees them, and which graphs keep; buffers are the user's.
    let launched = unsafe { parts.kernels().launch(launch.kernel, blocks, threads, stream, &launch.arguments) };
    match (launch.lent, captured) {
        (Some(lent), None) => launched.and(parts.give_items_back(lent, stream)),
        (Some(lent), Some(captured)) => {
            captured.keep(lent);
            launched
        }
        (None, _) => launched,
    }
}

impl LaunchComm for Comm {
    type Target<'a> = CreatedComm<'a>;
    type Submission<'a> = CommSubmission<'a>;
    type Lent = Lent;
    type Capture = Capture;
    type Captured = Captured;

    fn rank(&self) -> i32 {
        Comm::rank(self)
    }

    fn nranks(&self) -> i32 {
        Comm::nranks(self)
    }

    fn hash(&self) -> u64 {
        Comm::hash(self)
    }

    fn is_blocking(&self) -> bool {
        Comm::is_blocking(self)
    }

    fn target(&self) -> Result<CreatedComm<'_>, Error> {
        Ok(CreatedComm { comm: self, parts: self.parts()? })
    }

    fn check(&self, call: CallKind) -> Result<(), Error> {
        Comm::check(self, call)
    }

    fn check_again(&self, call: CallKind) -> Result<(), Error> {
        Comm::check_again(self, call)
    }

    fn check_context(&self) -> Result<(), Error> {
        self.context().check_alive()
    }

    fn check_stream(&self, stream: Stream) -> Result<(), Error> {
        self.context().check_stream(stream)
    }

    fn each_capture(
        &self,
        mut streams: impl Iterator<Item = Stream>,
        mut visit: impl FnMut(Stream, Option<Capture>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _entered = self.context().enter_for_launch()?;
        streams.try_for_each(|stream| visit(stream, Capture::of(self.context(), stream)?))
    }

    fn capture_id(capture: &Capture) -> u64 {
        capture.id()
    }

    fn captured_id(captured: &Captured) -> u64 {
        captured.capture()
    }

    fn captured(self: &Arc<Comm>, capture: &Capture) -> Result<Arc<Captured>, Error> {
        Comm::captured(self, capture)
    }

    fn ask_for_links(&self, groups: &[ConnectionGroup]) -> Result<(), Error> {
        Comm::ask_for_links(self, groups)
    }

    fn connect(&self, groups: &[ConnectionGroup], busy: bool) -> Result<(), Error> {
        Comm::connect(self, groups, busy)
    }

    fn submit<'a>(&'a self, captured: Option<&'a Captured>) -> Result<CommSubmission<'a>, Error> {
        let parts = self.parts()?;
        let entered = self.context().enter_for_launch()?;
        let gate = gate::launching(self.context().device());
        let (order, launch_order) = (parts.order(), parts.launch_order());
        Ok(CommSubmission { launch_order, order, _gate: gate, _entered: entered, comm: self, parts, captured })
    }

    fn fail(&self, error: &Error) {
        Comm::fail(self, error);
    }

    fn end_busy(&self, result: &Result<(), Error>) {
        Comm::end_busy(self, result);
    }

    fn has_ended(&self) -> bool {
        Comm::has_ended(self)
    }

    fn goodbye_if_due(&self) {
        goodbye_if_due(self);
    }

    fn hand_over(comms: &[Arc<Comm>]) -> Result<Giver, Error> {
        handover::to_this_thread(comms)
    }

    fn carry_on(comms: Vec<Arc<Comm>>, work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error> {
        jobs::carry_on(comms, work)
    }
}

/// Where a communicator has failed because ranks are out of step: marks all links of this rank, once, so that whoever
/// waits for it leaves, too.
pub fn goodbye_if_due(comm: &Comm) {
    if !comm.take_goodbye() {
        return;
    }
    comm.tell_leaving();
    let told = comm.target().and_then(|target| {
        let _entered = comm.context().enter()?;
        let launches = Plan::goodbye(&target)?;
        launches.into_iter().try_for_each(|launch| go(launch, target.parts, comm.context().setup_stream(), None))
    });
    if let Err(why) = told {
        log::info!(target: "COLL", "rank {} could not tell its peers that it leaves: {why}", comm.rank());
    }
}
