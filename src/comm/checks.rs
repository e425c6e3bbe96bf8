//! What a call is checked against, what is found to have failed, and what is done about it: the communicator's side of
//! its [`lifecycle`](super::lifecycle).

use super::Comm;
use super::lifecycle::{CallKind, CommEvent, CommPhase, CommState, Effect, Refusal};
use crate::error::{Code, Error};
use crate::log::{Place, failure, first_failure};
use crate::plan::layout::kernel_error;

/// Something that is found while no call is made that could return it.
struct Found<'a> {
    place: Place<'a>,
    /// What this rank's kernels are told: a code of [`kernel_error`], a rank, the number of a collective.
    report: (u32, u32, u32),
}

impl Comm {
    /// Whether a call is permitted now. The driver is asked whether the context is still there.
    ///
    /// # Errors
    /// Why it is not: while something is in progress, [`Error::InvalidArgument`]; after a failure, that again; and what
    /// else is in the way of this kind of call.
    pub fn check(&self, call: CallKind) -> Result<(), Error> {
        if self.may_fail_now(call) {
            self.notice_lost_context();
        }
        self.check_again(call)
    }

    /// The same without the driver, which is asked once for each call.
    ///
    /// # Errors
    /// As [`Comm::check`].
    pub fn check_again(&self, call: CallKind) -> Result<(), Error> {
        if self.may_fail_now(call) {
            self.notice_kernel_failure();
        }
        // What is in progress fails with its work, which says so.
        match self.lifecycle.permits(call)?.phase() {
            CommPhase::InProgress => self.kernel_failure().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    /// Whether the life of the communicator permits a call, so far as is known.
    ///
    /// # Errors
    /// As [`Comm::check`].
    pub fn permits(&self, call: CallKind) -> Result<(), Error> {
        self.lifecycle.permits(call).map(drop)
    }

    /// Whether a failure that is found now would come before what is in the way of a call already.
    fn may_fail_now(&self, call: CallKind) -> bool {
        matches!(self.state().permits(call), Ok(()) | Err(Refusal::Suspended))
    }

    /// Its state now.
    pub(super) fn state(&self) -> CommState {
        self.lifecycle.state()
    }

    /// Whether this process is a forked child of the one that made the communicator. Threads and
    /// driver are missing in a child, and what it did to shared memory it would do to its parent.
    pub fn is_inherited(&self) -> bool {
        self.lifecycle.is_inherited()
    }

    /// Whether it was destroyed or aborted.
    pub fn has_ended(&self) -> bool {
        self.state().phase() == CommPhase::Ended
    }

    /// What `ncclCommGetAsyncError` reports.
    pub fn async_state(&self) -> Code {
        // Who holds its locks may be missing in a child.
        if self.is_inherited() {
            return Code::InvalidUsage;
        }
        self.notice_lost_device();
        self.notice_kernel_failure();
        self.look_at_peers();
        match self.state().phase() {
            CommPhase::InProgress => Code::InProgress,
            CommPhase::Failed => self.lifecycle.failure().map_or(Code::Success, |error| error.code()),
            _ => Code::Success,
        }
    }

    /// A kernel's report makes the communicator fail, once; no call has returned that error, so that it becomes the
    /// last error here.
    fn notice_kernel_failure(&self) {
        if !self.state().is_watched() {
            return;
        }
        let Some(error) = self.kernel_failure() else { return };
        let place = Place { file: "comm/checks.rs", line: line!(), function: self.identity.function };
        self.find(CommEvent::KernelFailed(&error), place, (kernel_error::MISMATCH, 0, 0));
    }

    /// Something is found that makes the communicator fail. The `report` makes this rank's own kernels leave, too.
    pub(super) fn find(&self, event: CommEvent<'_>, place: Place<'_>, report: (u32, u32, u32)) {
        let found = Found { place, report };
        self.lifecycle.happen(event, |effect| self.carry_out(effect, event, &found));
    }

    /// Something happens to the communicator.
    pub(super) fn happen(&self, event: CommEvent<'_>) {
        let place = Place { file: "comm/checks.rs", line: line!(), function: self.identity.function };
        self.find(event, place, (kernel_error::ABORTED, 0, 0));
    }

    /// Something happens with a call, if that is permitted.
    ///
    /// # Errors
    /// As [`Comm::permits`]; nothing has happened then.
    pub(super) fn claim(&self, call: CallKind, event: CommEvent<'_>) -> Result<(), Error> {
        let place = Place { file: "comm/checks.rs", line: line!(), function: self.identity.function };
        let found = Found { place, report: (kernel_error::ABORTED, 0, 0) };
        self.lifecycle.claim(call, event, |effect| self.carry_out(effect, event, &found))
    }

    fn carry_out(&self, effect: Effect, event: CommEvent<'_>, found: &Found<'_>) {
        match (effect, event.error()) {
            // The lifecycle itself does this.
            (Effect::Show, _) => {}
            (Effect::Log, Some(error)) => failure(&found.place, error),
            (Effect::Tell, Some(error)) => self.note_failure(self.identity.function, error),
            // Only what fails has something to tell.
            (Effect::Log | Effect::Tell, None) => {}
            (Effect::Report, _) => {
                let (code, peer, serial) = found.report;
                self.parts.get().iter().for_each(|parts| parts.flag.report(code, peer, serial));
            }
            (Effect::OweGoodbye, _) => self.happen(CommEvent::GoodbyeOwed),
            (Effect::SayGoodbye, _) => {}
            (Effect::LeaveKernels, _) => self.leave_for_revoke(),
            (Effect::Stop, _) => self.stop(),
            (Effect::WakeGraphWaiters, _) => self.leave_graphs(),
            (Effect::StopSharers, _) => self.stop_sharers(),
        }
    }

    /// Whether this rank is to tell its peers that it has left; once.
    pub fn take_goodbye(&self) -> bool {
        let mut due = false;
        if self.state().owes_goodbye() {
            self.lifecycle.happen(CommEvent::GoodbyeTaken, |effect| due |= effect == Effect::SayGoodbye);
        }
        due
    }

    /// Remembers a failure for good: the communicator can only be aborted after it.
    pub fn fail(&self, error: &Error) {
        self.happen(CommEvent::Failed(error));
    }

    /// The failure of a data call: it is for good where results are polled for.
    pub fn fail_call(&self, error: &Error) {
        if !self.is_blocking() {
            self.happen(CommEvent::PolledCallFailed(error));
        }
    }

    /// What was in progress has ended like this; of no account where it was ended otherwise.
    pub fn end_busy(&self, result: &Result<(), Error>) {
        match result {
            Ok(()) => self.happen(CommEvent::Completed),
            Err(error) => self.happen(CommEvent::WorkFailed(error)),
        }
    }

    /// Says what went wrong on stderr, once for the communicator.
    pub fn note_failure(&self, function: &'static str, error: &Error) {
        let place = Place { file: "comm/checks.rs", line: line!(), function };
        first_failure(&self.first_failure, &place, error);
    }
}
