//! What launches ask of a communicator: as little as there is, so that tests stand in for one without a device.
//!
//! * [`LaunchTarget`] is what is asked while calls are planned: who the rank is, how calls are cut, what is offered;
//! * [`LaunchSubmission`] puts work on streams, for one thread at a time;
//! * [`LaunchComm`] is the rest: checks, captures, connecting, the background.

use std::sync::Arc;

use super::plan::Launch;
use crate::comm::CallKind;
use crate::comm::handover::Giver;
use crate::device::Stream;
use crate::error::Error;
use crate::health::Record;
use crate::plan::layout::{LaunchArgs, Work};
use crate::schedules::ScheduleIndex;
use crate::transport::ConnectionGroup;
use crate::tuning::Tuning;

/// What the planning of a launch asks of one rank's communicator.
pub trait LaunchTarget {
    /// Memory with work items that a launch reads.
    type Lent;

    /// This rank.
    fn rank(&self) -> i32;

    /// The number of ranks.
    fn nranks(&self) -> i32;

    /// What the C interface calls the communicator; for log lines.
    fn handle(&self) -> usize;

    /// Whether the device is software: then blocks beyond the first need threads of their own.
    fn is_software(&self) -> bool;

    /// How collectives are carried out.
    fn tuning(&self) -> &Tuning;

    /// What calls are cut from.
    fn schedules(&self) -> &ScheduleIndex;

    /// Buffers, each an address and a size, as peers find them: [`crate::plan::offer::UNUSED`] for none. Before that,
    /// what the peers have registered meanwhile is mapped.
    fn offer(&self, buffers: [Option<(u64, u64)>; 2]) -> [u64; 2];

    /// The argument of a launch, but for its work.
    fn launch_arguments(&self) -> LaunchArgs;

    /// Copies work items to memory that kernels can read; gives it with its address.
    ///
    /// # Errors
    /// What the driver gives when it has no memory.
    fn lend_items(&self, items: &[Work]) -> Result<(Self::Lent, u64), Error>;

    /// Counts a call; gives how many came before.
    fn count_call(&self) -> u64;

    /// Counts a collective, and gives its number.
    fn count_collective(&self) -> u64;

    /// Writes a collective on the flight recorder; false where another rank has called something else.
    fn note(&self, record: Record) -> bool;
}

/// Puts the work of one communicator on streams. While there is one, the communicator's context is current, nobody else
/// launches for it, and who ends it waits for that.
pub trait LaunchSubmission<Lent> {
    /// Makes a stream wait for the launches before.
    ///
    /// # Errors
    /// What the driver gives, as everywhere here.
    fn before(&self, stream: Stream) -> Result<(), Error>;

    /// Makes a stream wait for the work that another stream has now.
    ///
    /// # Errors
    /// What the driver gives.
    fn join(&self, other: Stream, stream: Stream) -> Result<(), Error>;

    /// Launches a kernel.
    ///
    /// # Errors
    /// What the driver gives.
    fn launch(&self, launch: Launch<Lent>, stream: Stream) -> Result<(), Error>;

    /// Copies bytes on the device.
    ///
    /// # Errors
    /// What the driver gives.
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result<(), Error>;

    /// Marks the end of the launches, and has whoever moves data for links look at them from now on.
    ///
    /// # Errors
    /// What the driver gives; nobody knows then when they end.
    fn after(&mut self, stream: Stream) -> Result<(), Error>;

    /// Records an event of the user's.
    ///
    /// # Errors
    /// What the driver gives.
    fn record_event(&self, event: usize, stream: Stream) -> Result<(), Error>;
}

/// A communicator as data calls are launched on it.
pub trait LaunchComm: Send + Sync + Sized + 'static {
    /// What planning asks.
    type Target<'a>: LaunchTarget<Lent = Self::Lent>
    where
        Self: 'a;
    /// Puts work on streams.
    type Submission<'a>: LaunchSubmission<Self::Lent>
    where
        Self: 'a;
    /// Memory with work items that a launch reads.
    type Lent: Send;
    /// An active capture of a stream.
    type Capture;
    /// What calls in one capture have in common.
    type Captured: Send + Sync;

    /// This rank.
    fn rank(&self) -> i32;

    /// The number of ranks.
    fn nranks(&self) -> i32;

    /// A number of the communicator that is the same on all ranks.
    fn hash(&self) -> u64;

    /// Whether its callers wait.
    fn is_blocking(&self) -> bool;

    /// What planning asks.
    ///
    /// # Errors
    /// As [`LaunchComm::check`]: only what was created has it.
    fn target(&self) -> Result<Self::Target<'_>, Error>;

    /// Whether a call is permitted now. The driver is asked whether the context is still there.
    ///
    /// # Errors
    /// Why it is not.
    fn check(&self, call: CallKind) -> Result<(), Error>;

    /// The same without the driver.
    ///
    /// # Errors
    /// As [`LaunchComm::check`].
    fn check_again(&self, call: CallKind) -> Result<(), Error>;

    /// Whether the context is still there.
    ///
    /// # Errors
    /// [`Error::Cuda`] where it is not.
    fn check_context(&self) -> Result<(), Error>;

    /// Whether a stream is one of the communicator's context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where it is not.
    fn check_stream(&self, stream: Stream) -> Result<(), Error>;

    /// Visits streams with their captures; none where a stream carries out what it is given.
    ///
    /// # Errors
    /// What the driver gives, and the first error of the visits.
    fn each_capture(
        &self,
        streams: impl Iterator<Item = Stream>,
        visit: impl FnMut(Stream, Option<Self::Capture>) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// The number of a capture.
    fn capture_id(capture: &Self::Capture) -> u64;

    /// The number of the capture that calls were in.
    fn captured_id(captured: &Self::Captured) -> u64;

    /// What is kept for calls in a capture.
    ///
    /// # Errors
    /// What the driver gives.
    fn captured(self: &Arc<Self>, capture: &Self::Capture) -> Result<Arc<Self::Captured>, Error>;

    /// Asks the peers for connection groups of links, and waits for nobody.
    ///
    /// # Errors
    /// As [`LaunchComm::connect`].
    fn ask_for_links(&self, groups: &[ConnectionGroup]) -> Result<(), Error>;

    /// Connects connection groups of links. `busy` says that the communicator may be busy, with this.
    ///
    /// # Errors
    /// Of a peer that is gone, of an abort, of the driver.
    fn connect(&self, groups: &[ConnectionGroup], busy: bool) -> Result<(), Error>;

    /// Begins to put work on streams: calls that are captured, or that are carried out now.
    ///
    /// # Errors
    /// What the driver gives, and as [`LaunchComm::target`].
    fn submit<'a>(&'a self, captured: Option<&'a Self::Captured>) -> Result<Self::Submission<'a>, Error>;

    /// Remembers a failure for good.
    fn fail(&self, error: &Error);

    /// What was in progress has ended like this.
    fn end_busy(&self, result: &Result<(), Error>);

    /// Whether it was destroyed or aborted.
    fn has_ended(&self) -> bool;

    /// Where it has failed because ranks are out of step: lets whoever waits for this rank leave, too; once.
    fn goodbye_if_due(&self);

    /// Announces something that the calling thread is to do for communicators.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] in a thread that is ending.
    fn hand_over(comms: &[Arc<Self>]) -> Result<Giver, Error>;

    /// Starts `work` in the background; the communicators are busy until [`LaunchComm::end_busy`], and fail with it.
    ///
    /// # Errors
    /// [`Error::System`] when there is no thread; the communicators have then failed.
    fn carry_on(comms: Vec<Arc<Self>>, work: impl FnOnce() -> Result<(), Error> + Send + 'static) -> Result<(), Error>;
}
