//! A communicator's life, as two tables: what happens to it, and which calls are permitted. There is no clock, lock or
//! CUDA here: [`SharedLifecycle`](super::shared_lifecycle::SharedLifecycle) keeps a [`Lifecycle`] for all threads, and
//! [`Comm`](super::Comm) carries out the effects.
//!
//! ```text
//!                  Completed
//!   creation ─► InProgress ───► Ready
//!                   │  ◄───────── │
//!                   │    Begun    │
//!                   └─► Failed ◄──┘         from everywhere, for good: Ended
//! ```
//!
//! Besides its phase a communicator has marks: *stopped* (by revoke, or by a shrink with ABORT), *finalized*,
//! *suspended*, *aborted*, and that it *owes a goodbye* to its peers. Only a suspension and the goodbye come off again.
//!
//! What an event changes, by phase. An arrow leads to the new phase; what stands before it is done before anybody can
//! see the change, what stands after it afterwards. A dash: nothing.
//!
//! | [`CommEvent`]      | `InProgress`           | `Ready`                                       | `Failed` | `Ended` |
//! |--------------------|------------------------|-----------------------------------------------|----------|---------|
//! | `Begun`            | –                      | → `InProgress`                                | –        | –       |
//! | `Completed`        | → `Ready`              | –                                             | –        | –       |
//! | `WorkFailed`       | tell → `Failed`        | tell                                          | tell     | –       |
//! | `PolledInitFailed` | log, tell → `Failed`   | tell                                          | tell     | –       |
//! | `Failed`           | → `Failed`             | → `Failed`                                    | –        | –       |
//! | `PolledCallFailed` | –                      | → `Failed`, unless stopped                    | –        | –       |
//! | `KernelFailed`     | –                      | as `Lost`, unless stopped                     | –        | –       |
//! | `Lost`             | –                      | log, tell → `Failed`, report, owe a goodbye   | –        | –       |
//! | `SharerAborted`    | → `Failed`, stop       | → `Failed`, stop                              | stop     | –       |
//! | `Ended`            | → `Ended`              | → `Ended`                                     | → `Ended`| –       |
//!
//! | [`CommEvent`]      | in every phase                                                     |
//! |--------------------|--------------------------------------------------------------------|
//! | `Finalized`        | finalized                                                          |
//! | `Suspended`        | suspended                                                          |
//! | `Resumed`          | suspended no more                                                  |
//! | `Shrunk`           | stopped by shrink, unless it is stopped                            |
//! | `Revoked`          | stopped by revoke; then kernels leave                              |
//! | `Aborted`          | aborted; then stop, wake who waits for graphs, stop sharers        |
//! | `GoodbyeOwed`      | owes a goodbye                                                     |
//! | `GoodbyeTaken`     | owes none any more; then, if it did, the goodbye is said           |
//!
//! [`Effect`] says what the words mean. In a forked child nothing happens to its parent's communicator.
//!
//! What a call needs, in the order in which it is refused:
//!
//! | [`CallKind`] | before all    | phase                 | then          | used for                             |
//! |--------------|---------------|-----------------------|---------------|--------------------------------------|
//! | `Use`        |               | `Ready`               |               | questions, split, grow, suspend, …   |
//! | `Data`       | not stopped   | `Ready`               |               | a data call, and its launch          |
//! | `Enqueue`    |               | `Ready`               | not suspended | the end of a group                   |
//! | `Continue`   |               | `Ready`, `InProgress` |               | a step of work in the background     |
//! | `Launch`     | not stopped   | `Ready`, `InProgress` | not suspended | its launch                           |
//! | `Stop`       |               | `Ready`, `Failed`     |               | shrink with ABORT                    |
//! | `Revoke`     | not finalized | `Ready`, `Failed`     | not revoked   | revoke                               |
//! | `Refuse`     |               | `Ready`, `Failed`     |               | to take no part in a derivation      |
//! | `Finalize`   | not revoked   | any                   | not finalized | finalize, besides `Use`              |
//! | `Suspend`    |               | any                   | not suspended | suspend, besides `Use`               |
//! | `Resume`     |               | any                   | suspended     | resume, besides `Use`                |
//!
//! Destroy and abort need no permission.

mod calls;
mod events;
#[cfg(test)]
mod tests;

use crate::error::Error;

pub use calls::CallKind;
pub(super) use calls::Refusal;
pub(super) use events::{CommEvent, Effect};

use CommPhase::{Ended, Failed, InProgress, Inherited, Ready};

/// Where a communicator is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommPhase {
    /// Creation is under way, or a call that its caller does not wait for.
    InProgress,
    /// In use.
    Ready,
    /// Something failed; only abort is left.
    Failed,
    /// It was destroyed or aborted.
    Ended,
    /// It is that of a parent, in a forked child, whatever its phase there.
    Inherited,
}

/// What has made kernels leave for good, but for an abort. There are no data calls after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoppedBy {
    /// `ncclCommShrink` with the flag ABORT.
    Shrink,
    /// `ncclCommRevoke`.
    Revoke,
}

/// What there is to know of a communicator's life, but for its error. It fits in a byte, so that one can look at it
/// without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommState {
    phase: CommPhase,
    stopped: Option<StoppedBy>,
    finalized: bool,
    suspended: bool,
    aborted: bool,
    owes_goodbye: bool,
}

/// A communicator's state, and the error that it has failed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lifecycle {
    state: CommState,
    failure: Option<Error>,
}

impl CommState {
    /// That of a communicator whose creation begins.
    pub(super) const CREATED: CommState = CommState {
        phase: InProgress,
        stopped: None,
        finalized: false,
        suspended: false,
        aborted: false,
        owes_goodbye: false,
    };

    /// Where it is in its life.
    pub(super) fn phase(self) -> CommPhase {
        self.phase
    }

    /// Whether kernels were told to leave for good, but for an abort.
    pub(super) fn is_stopped(self) -> bool {
        self.stopped.is_some()
    }

    /// Whether it is suspended.
    pub(super) fn is_suspended(self) -> bool {
        self.suspended
    }

    /// Whether its user has aborted it.
    pub(super) fn is_aborted(self) -> bool {
        self.aborted
    }

    /// Whether the peers are still to hear that this rank leaves.
    pub(super) fn owes_goodbye(self) -> bool {
        self.owes_goodbye
    }

    /// Whether a failure of kernels or peers that is found now makes it fail.
    pub(super) fn is_watched(self) -> bool {
        self.phase == Ready && self.stopped.is_none()
    }

    /// How a forked child sees it.
    pub(super) fn inherited(self) -> CommState {
        CommState { phase: Inherited, ..self }
    }

    /// The state in a byte.
    pub(super) fn bits(self) -> u8 {
        let phase = match self.phase {
            InProgress => 0,
            Ready => 1,
            Failed => 2,
            // None is inherited but in the eyes of a child.
            Ended | Inherited => 3,
        };
        let stopped = match self.stopped {
            None => 0,
            Some(StoppedBy::Shrink) => 1,
            Some(StoppedBy::Revoke) => 2,
        };
        let marks = [self.finalized, self.suspended, self.aborted, self.owes_goodbye];
        marks.iter().fold(stopped << 2 | phase, |bits: u8, mark| bits << 1 | u8::from(*mark))
    }

    /// The state that [`CommState::bits`] has made a byte of.
    pub(super) fn of_bits(bits: u8) -> CommState {
        let mark = |place: u8| bits >> place & 1 == 1;
        CommState {
            phase: [InProgress, Ready, Failed, Ended][usize::from(bits >> 4 & 3)],
            stopped: [None, Some(StoppedBy::Shrink), Some(StoppedBy::Revoke), None][usize::from(bits >> 6)],
            finalized: mark(3),
            suspended: mark(2),
            aborted: mark(1),
            owes_goodbye: mark(0),
        }
    }
}

impl Lifecycle {
    /// That of a communicator whose creation begins.
    pub(super) fn new() -> Lifecycle {
        Lifecycle { state: CommState::CREATED, failure: None }
    }

    /// All but the error.
    pub(super) fn state(&self) -> CommState {
        self.state
    }

    /// The error that it has failed with.
    pub(super) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// The life after an event, and what is to be done: see [`CommState::after`].
    pub(super) fn after(&self, event: CommEvent<'_>) -> (Lifecycle, &'static [Effect]) {
        let (state, effects) = self.state.after(event);
        let failure = match (self.state.phase, state.phase) {
            (Failed, Failed) => self.failure.clone(),
            (_, Failed) => event.error().cloned(),
            _ => None,
        };
        (Lifecycle { state, failure }, effects)
    }
}
