//! What happens to a communicator, and what is to be done then.

use super::CommPhase::{Ended, Failed, InProgress, Inherited, Ready};
use super::{CommState, StoppedBy};
use crate::error::Error;

/// What happens to a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) enum CommEvent<'a> {
    /// Work begins that its caller does not wait for.
    Begun,
    /// Creation, or such work, has succeeded.
    Completed,
    /// Creation, or such work, has failed.
    WorkFailed(&'a Error),
    /// A creation has failed whose caller polls: no call returns the error.
    PolledInitFailed(&'a Error),
    /// A call has failed, or is about to, after which the communicator cannot be used.
    Failed(&'a Error),
    /// A data call of a communicator whose user polls has failed. One that has merely come too early changes nothing,
    /// nor does one where there are no data calls at all any more, and others are permitted.
    PolledCallFailed(&'a Error),
    /// A kernel has reported a failure. Kernels that are stopped leave at different times and have nothing to say.
    KernelFailed(&'a Error),
    /// The context, the device or a peer is found to be lost, while no call is made that could return it.
    Lost(&'a Error),
    /// A communicator with which this one shares its resources was aborted.
    SharerAborted(&'a Error),
    /// The peers are to hear that this rank leaves.
    GoodbyeOwed,
    /// Somebody is about to tell the peers that.
    GoodbyeTaken,
    /// `ncclCommFinalize`.
    Finalized,
    /// `ncclCommSuspend` begins.
    Suspended,
    /// `ncclCommResume` has succeeded.
    Resumed,
    /// `ncclCommShrink` with the flag ABORT.
    Shrunk,
    /// `ncclCommRevoke`.
    Revoked,
    /// `ncclCommAbort` begins.
    Aborted,
    /// Its handle is gone, and nothing is launched any more.
    Ended,
}

impl CommEvent<'_> {
    /// What has failed, if something has.
    pub(in crate::comm) fn error(&self) -> Option<&Error> {
        match self {
            CommEvent::WorkFailed(error) | CommEvent::PolledInitFailed(error) | CommEvent::Failed(error) => Some(error),
            CommEvent::PolledCallFailed(error) | CommEvent::KernelFailed(error) => Some(error),
            CommEvent::Lost(error) | CommEvent::SharerAborted(error) => Some(error),
            _ => None,
        }
    }
}

/// What is to be done when something has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) enum Effect {
    /// From here on the new state can be seen.
    Show,
    /// The error is logged, and becomes the last error: no call returns it.
    Log,
    /// stderr is told the error, once for the communicator.
    Tell,
    /// What was found is reported to this rank's kernels, which leave.
    Report,
    /// [`CommEvent::GoodbyeOwed`].
    OweGoodbye,
    /// The peers are told that this rank leaves.
    SayGoodbye,
    /// Kernels leave, now and for good.
    LeaveKernels,
    /// Waits, derivations and kernels end.
    Stop,
    /// Who waits for graphs sees that the communicator was aborted.
    WakeGraphWaiters,
    /// [`CommEvent::SharerAborted`] for all that share resources with this one.
    StopSharers,
}

impl CommState {
    /// The table of events: the state after one, and what is to be done, in this order.
    pub(in crate::comm) fn after(self, event: CommEvent<'_>) -> (CommState, &'static [Effect]) {
        use Effect::{
            LeaveKernels, Log, OweGoodbye, Report, SayGoodbye, Show, Stop, StopSharers, Tell, WakeGraphWaiters,
        };
        let to = |phase| CommState { phase, ..self };
        match (event, self.phase) {
            (_, Inherited) => (self, &[]),

            (CommEvent::Begun, Ready) => (to(InProgress), &[Show]),
            (CommEvent::Begun, _) => (self, &[]),

            (CommEvent::Completed, InProgress) => (to(Ready), &[Show]),
            (CommEvent::Completed, _) => (self, &[]),

            (CommEvent::WorkFailed(_), InProgress) => (to(Failed), &[Tell, Show]),
            (CommEvent::PolledInitFailed(_), InProgress) => (to(Failed), &[Log, Tell, Show]),
            (CommEvent::WorkFailed(_) | CommEvent::PolledInitFailed(_), Ready | Failed) => (self, &[Tell]),
            (CommEvent::WorkFailed(_) | CommEvent::PolledInitFailed(_), Ended) => (self, &[]),

            (CommEvent::Failed(_), InProgress | Ready) => (to(Failed), &[Show]),
            (CommEvent::Failed(_), _) => (self, &[]),

            (CommEvent::PolledCallFailed(_), Ready) if !self.is_stopped() => (to(Failed), &[Show]),
            (CommEvent::PolledCallFailed(_), _) => (self, &[]),

            (CommEvent::KernelFailed(_), Ready) if self.is_stopped() => (self, &[]),
            // Who polls and sees it asks for the last error next. Kernels leave last: whoever waits for them may end
            // the process then.
            (CommEvent::KernelFailed(_) | CommEvent::Lost(_), Ready) => {
                (to(Failed), &[Log, Tell, Show, Report, OweGoodbye])
            }
            (CommEvent::KernelFailed(_) | CommEvent::Lost(_), _) => (self, &[]),

            (CommEvent::SharerAborted(_), InProgress | Ready) => (to(Failed), &[Show, Stop]),
            (CommEvent::SharerAborted(_), Failed) => (self, &[Show, Stop]),
            (CommEvent::SharerAborted(_), Ended) => (self, &[]),

            (CommEvent::GoodbyeOwed, _) => (CommState { owes_goodbye: true, ..self }, &[Show]),
            (CommEvent::GoodbyeTaken, _) if self.owes_goodbye => {
                (CommState { owes_goodbye: false, ..self }, &[Show, SayGoodbye])
            }
            (CommEvent::GoodbyeTaken, _) => (self, &[]),

            (CommEvent::Finalized, _) => (CommState { finalized: true, ..self }, &[Show]),
            (CommEvent::Suspended, _) => (CommState { suspended: true, ..self }, &[Show]),
            (CommEvent::Resumed, _) => (CommState { suspended: false, ..self }, &[Show]),

            (CommEvent::Shrunk, _) => {
                (CommState { stopped: self.stopped.or(Some(StoppedBy::Shrink)), ..self }, &[Show])
            }
            (CommEvent::Revoked, _) => (CommState { stopped: Some(StoppedBy::Revoke), ..self }, &[Show, LeaveKernels]),
            (CommEvent::Aborted, _) => {
                (CommState { aborted: true, ..self }, &[Show, Stop, WakeGraphWaiters, StopSharers])
            }
            (CommEvent::Ended, _) => (to(Ended), &[Show]),
        }
    }
}
