//! A communicator whose context is gone, by a reset of the device for instance, or whose device is lost.

use super::Comm;
use super::lifecycle::{CommEvent, CommPhase};
use crate::error::Error;
use crate::log::Place;
use crate::plan::layout::kernel_error;

impl Comm {
    /// A communicator whose context is gone has failed: nothing that lay there may be used.
    pub(super) fn notice_lost_context(&self) {
        if let Err(error) = self.device.context.check_alive() {
            self.fail_with_context(&error);
        }
    }

    /// The same where a device does not do what it was given any more.
    pub(super) fn notice_lost_device(&self) {
        if self.state().phase() == CommPhase::Ready
            && let Err(error) = self.check_device()
        {
            self.fail_with_context(&error);
        }
    }

    /// Whether there is still the context, and a device that does its work. Only what was launched tells of the device.
    ///
    /// # Errors
    /// What the driver gives where there is not.
    pub(super) fn check_device(&self) -> Result<(), Error> {
        self.ask_idle().map(drop)
    }

    fn fail_with_context(&self, error: &Error) {
        let place = Place { file: "comm/context.rs", line: line!(), function: self.identity.function };
        self.find(CommEvent::Lost(error), place, (kernel_error::ABORTED, 0, 0));
    }
}
