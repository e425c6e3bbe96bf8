//! Whether a rank takes part in a derivation, and what the others hear if it does not.

use super::DerivePlan;
use crate::comm::lifecycle::CallKind;
use crate::comm::{Comm, Parts};
use crate::error::Error;

impl Comm {
    /// This rank takes no part in a derivation: others that wait for it hear why.
    pub fn refuse(&self, plan: &DerivePlan, error: &Error) {
        let Some(parts) = self.parts.get().filter(|_| self.identity.nranks > 1 && !self.is_inherited()) else { return };
        drop(self.derivations.take_growth());
        self.derivations.next();
        self.tell_refusal(parts, plan, error);
    }

    /// The same for a call with a wrong argument, or one that is not allowed now. One that comes too early is no part
    /// of what the ranks do together.
    pub fn refuse_call(&self, plan: &DerivePlan, error: &Error) {
        if self.permits(CallKind::Refuse).is_ok() {
            self.refuse(plan, error);
        }
    }

    /// Whether something can be derived now. A shrink that stops what runs is possible where something has failed.
    ///
    /// # Errors
    /// As [`Comm::check`].
    pub fn check_derivable(&self, plan: &DerivePlan) -> Result<(), Error> {
        match plan {
            DerivePlan::Shrink { abort: true, .. } if self.is_blocking() => self.check(CallKind::Stop),
            _ => self.check(CallKind::Use),
        }
    }

    fn tell_refusal(&self, parts: &Parts, plan: &DerivePlan, error: &Error) {
        let (me, function) = (self.identity.rank, plan.function());
        let told = Error::Remote { rank: Some(me), text: format!("{function} : rank {me} takes no part: {error}") };
        // Held: this rank takes part in something at this moment, so that others wait for that.
        match parts.bootstrap.try_lock().as_deref_mut() {
            Some(Some(bootstrap)) => bootstrap.refuse_in(&plan.participants(), &told),
            _ => ::log::info!(target: "INIT", "{function} : the other ranks are not told that rank {me} takes no part"),
        }
    }
}
