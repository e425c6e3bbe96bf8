//! A communicator whose context is gone, by a reset of the device for instance, or whose device is lost.

use super::{Comm, State};
use crate::error::Error;
use crate::log::Place;
use crate::plan::layout::kernel_error;

impl Comm {
    /// A communicator whose context is gone has failed: nothing that lay there may be used.
    pub(super) fn notice_lost_context(&self) {
        if let Err(error) = self.context.check_alive() {
            self.fail_with_context(error);
        }
    }

    /// The same where a device does not do what it was given any more. Only the work that was launched tells.
    pub(super) fn notice_lost_device(&self) {
        if *self.state.lock() != State::Ready {
            return;
        }
        let Some(parts) = self.parts.get() else { return };
        let Ok(_entered) = self.context.enter() else { return self.notice_lost_context() };
        // Held means that something is being launched, which tells itself.
        let ended = parts.order.try_lock().map(|order| order.is_idle());
        if let Some(Err(error)) = ended {
            self.fail_with_context(error);
        }
    }

    fn fail_with_context(&self, error: Error) {
        let place = Place { file: "comm/context.rs", line: line!(), function: self.function };
        self.fail_unasked(&place, error, (kernel_error::ABORTED, 0, 0));
    }

    /// Whether the context is gone, and with it all that this communicator had there.
    pub(super) fn has_lost_context(&self) -> bool {
        self.context.check_alive().is_err() && self.context.is_gone()
    }
}
