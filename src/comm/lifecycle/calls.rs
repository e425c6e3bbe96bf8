//! Which calls are permitted.

use super::CommPhase::{Ended, Failed, InProgress, Inherited, Ready};
use super::{CommPhase, CommState, StoppedBy};
use crate::error::Error;

use CallKind as Call;

/// What a call, or a step of one, needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A question, a derivation, a suspension: all that needs a communicator that can be used.
    Use,
    /// A data call of this name, when it is made; its launch, where that is waited for.
    Data(&'static str),
    /// The data calls of a group, at its end.
    Enqueue,
    /// A step of work that the communicator is in progress with.
    Continue,
    /// A launch of such work.
    Launch,
    /// What stops the kernels first, also of a communicator that has failed.
    Stop,
    /// `ncclCommRevoke`.
    Revoke,
    /// `ncclCommFinalize`, besides [`CallKind::Use`].
    Finalize,
    /// `ncclCommSuspend`, besides [`CallKind::Use`].
    Suspend,
    /// `ncclCommResume`, besides [`CallKind::Use`].
    Resume,
    /// To tell the other ranks that this one takes no part in a derivation. A call that comes too early is no part of
    /// what the ranks do together.
    Refuse,
}

impl CallKind {
    /// A step of a call that is waited for, or with `busy` of work that the communicator may be in progress with.
    pub fn step(busy: bool) -> CallKind {
        if busy { Call::Continue } else { Call::Use }
    }

    /// A launch of data calls likewise.
    pub fn launch(busy: bool) -> CallKind {
        if busy { Call::Launch } else { Call::Data(LAUNCH) }
    }
}

/// How messages call a launch.
const LAUNCH: &str = "the launch";

/// Why a call is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::comm) enum Refusal {
    /// The communicator is in progress.
    InProgress,
    /// It has failed.
    Failed,
    /// It has ended.
    Ended,
    /// It is that of a parent, in a forked child.
    Inherited,
    /// A data call of this name; the communicator was stopped.
    Stopped(StoppedBy, &'static str),
    /// A data call; the communicator is suspended.
    Suspended,
    /// `ncclCommSuspend` for the second time.
    SuspendedAlready,
    /// `ncclCommResume`.
    NotSuspended,
    /// This function; the communicator is finalized.
    FinalizedAlready(&'static str),
    /// `ncclCommRevoke` for the second time.
    RevokedAlready,
    /// `ncclCommFinalize`.
    FinalizedAfterRevoke,
}

impl Refusal {
    /// The error that says so; `failure` is that of the communicator.
    pub(in crate::comm) fn error(self, failure: Option<&Error>) -> Error {
        let (argument, usage) =
            (|text: &str| Error::InvalidArgument(text.into()), |text: &str| Error::InvalidUsage(text.into()));
        match (self, failure) {
            (Refusal::Failed, Some(failure)) => failure.clone(),
            // It has ended in the meantime.
            (Refusal::Failed, None) | (Refusal::Ended, _) => argument("Error: corrupted comm object detected"),
            (Refusal::InProgress, _) => {
                argument("Attempt to use communicator before the previous operation returned ncclSuccess")
            }
            (Refusal::Inherited, _) => {
                usage("the communicator belongs to the parent of this forked process, which cannot use it")
            }
            (Refusal::Stopped(StoppedBy::Revoke, name), _) => usage(&format!("{name}: communicator was revoked")),
            (Refusal::Stopped(StoppedBy::Shrink, name), _) => {
                usage(&format!("{name}: communicator was stopped by ncclCommShrink with NCCL_SHRINK_ABORT"))
            }
            (Refusal::Suspended, _) => {
                usage("the communicator is suspended (ncclCommSuspend); it can be used again after ncclCommResume")
            }
            (Refusal::SuspendedAlready, _) => usage("ncclCommSuspend: the communicator is suspended already"),
            (Refusal::NotSuspended, _) => usage("ncclCommResume: the communicator is not suspended"),
            (Refusal::FinalizedAlready(name), _) => argument(&format!("{name}: the communicator is finalized already")),
            (Refusal::RevokedAlready, _) => argument("ncclCommRevoke: the communicator is revoked already"),
            (Refusal::FinalizedAfterRevoke, _) => argument("ncclCommFinalize: the communicator was revoked"),
        }
    }
}

impl CommState {
    /// The table of calls: whether one is permitted.
    ///
    /// # Errors
    /// Why it is not.
    pub(in crate::comm) fn permits(self, call: CallKind) -> Result<(), Refusal> {
        match call {
            Call::Use => self.needs(&[Ready]),
            Call::Data(name) => self.needs_running(name).and_then(|()| self.needs(&[Ready])),
            Call::Enqueue => self.needs(&[Ready]).and_then(|()| self.needs_awake()),
            Call::Continue => self.needs(&[Ready, InProgress]),
            Call::Launch => {
                self.needs_running(LAUNCH)?;
                self.needs(&[Ready, InProgress])?;
                self.needs_awake()
            }
            Call::Stop | Call::Refuse => self.needs(&[Ready, Failed]),
            Call::Revoke => {
                self.needs_unfinalized("ncclCommRevoke")?;
                self.needs(&[Ready, Failed])?;
                refuse_if(self.stopped == Some(StoppedBy::Revoke), Refusal::RevokedAlready)
            }
            Call::Finalize => {
                refuse_if(self.stopped == Some(StoppedBy::Revoke), Refusal::FinalizedAfterRevoke)?;
                self.needs_unfinalized("ncclCommFinalize")
            }
            Call::Suspend => refuse_if(self.suspended, Refusal::SuspendedAlready),
            Call::Resume => refuse_if(!self.suspended, Refusal::NotSuspended),
        }
    }

    fn needs(self, phases: &[CommPhase]) -> Result<(), Refusal> {
        match self.phase {
            phase if phases.contains(&phase) => Ok(()),
            InProgress => Err(Refusal::InProgress),
            Failed => Err(Refusal::Failed),
            Inherited => Err(Refusal::Inherited),
            Ready | Ended => Err(Refusal::Ended),
        }
    }

    /// The counters of links are in disorder once kernels have left.
    fn needs_running(self, name: &'static str) -> Result<(), Refusal> {
        self.stopped.map_or(Ok(()), |by| Err(Refusal::Stopped(by, name)))
    }

    fn needs_awake(self) -> Result<(), Refusal> {
        refuse_if(self.suspended, Refusal::Suspended)
    }

    fn needs_unfinalized(self, name: &'static str) -> Result<(), Refusal> {
        refuse_if(self.finalized, Refusal::FinalizedAlready(name))
    }
}

fn refuse_if(refused: bool, why: Refusal) -> Result<(), Refusal> {
    if refused { Err(why) } else { Ok(()) }
}
