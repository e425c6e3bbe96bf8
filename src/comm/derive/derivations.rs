//! What a communicator has to do with others that are derived from it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::bootstrap::{self, Cancel, Growth, RootHandle, UniqueId};
use crate::comm::lifecycle::CommEvent;
use crate::comm::{Comm, settings};
use crate::error::Error;

/// A communicator's part in deriving others.
#[derive(Default)]
pub(in crate::comm) struct Derivations {
    /// How many were derived, or tried to be. All ranks count alike, but for those that a shrink has left out.
    count: AtomicU32,
    /// The derivations under way.
    deriving: Mutex<Vec<Cancel>>,
    /// Where the new ranks of the next grow meet the old ones, on the rank that made their id.
    growth: Mutex<Option<RootHandle>>,
    /// The communicators that end with it, if it shares their resources.
    sharers: Mutex<Option<Arc<Sharers>>>,
}

/// Communicators that share their resources: what aborts one of them stops all.
#[derive(Default)]
pub(in crate::comm) struct Sharers(Mutex<Vec<Weak<Comm>>>);

impl Derivations {
    /// How many communicators were derived before.
    pub(in crate::comm) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Counts one more; returns how many there were before.
    pub(in crate::comm) fn next(&self) -> u32 {
        self.count.fetch_add(1, Ordering::AcqRel)
    }

    /// The number that all ranks give to what they derive now, from what each had derived before: a rank that has
    /// missed some takes over the count of the others.
    pub(in crate::comm) fn agree(&self, counts: impl Iterator<Item = u32>) -> u32 {
        let count = counts.max().unwrap_or(0);
        self.count.fetch_max(count + 1, Ordering::AcqRel);
        count
    }

    /// The rendezvous of the next grow, if this rank has made its id. It is no good for any other.
    pub(in crate::comm) fn take_growth(&self) -> Option<RootHandle> {
        self.growth.lock().take()
    }

    /// Notes that something is being derived, for as long as the result lives.
    pub(in crate::comm) fn derive(&self, cancel: &Cancel) -> Deriving<'_> {
        self.deriving.lock().push(cancel.clone());
        Deriving { derivations: self, cancel: cancel.clone() }
    }

    /// Makes everything that is being derived give up.
    pub(in crate::comm) fn stop_deriving(&self) {
        self.deriving.lock().iter().for_each(Cancel::fire);
    }
}

/// See [`Derivations::derive`].
pub(in crate::comm) struct Deriving<'a> {
    derivations: &'a Derivations,
    cancel: Cancel,
}

impl Drop for Deriving<'_> {
    fn drop(&mut self) {
        self.derivations.deriving.lock().retain(|other| !other.is(&self.cancel));
    }
}

impl Comm {
    /// Makes an id by which new ranks join the ranks that there are (`ncclCommGetUniqueId`). It is good until the next
    /// communicator is derived.
    ///
    /// # Errors
    /// As [`bootstrap::create_root`].
    pub fn growth_id(&self) -> Result<UniqueId, Error> {
        let net = settings::Settings::read()?.net;
        let growth = Growth { parent: self.hash(), count: self.derivations.count() };
        let root = bootstrap::create_root(&net, Some(growth))?;
        let id = *root.id();
        // The id that was made before leads nowhere now.
        drop(self.derivations.growth.lock().replace(root));
        Ok(id)
    }

    /// From now on an abort of this communicator or of `child` stops both.
    pub(in crate::comm) fn adopt(self: &Arc<Comm>, child: &Arc<Comm>) {
        let mut sharers = self.derivations.sharers.lock();
        let sharers = sharers.get_or_insert_with(|| {
            let sharers = Arc::new(Sharers::default());
            sharers.0.lock().push(Arc::downgrade(self));
            sharers
        });
        let mut members = sharers.0.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(Arc::downgrade(child));
        *child.derivations.sharers.lock() = Some(sharers.clone());
    }

    /// Stops the communicators that share resources with this one, which is aborted. They can only be aborted after it.
    pub(in crate::comm) fn stop_sharers(&self) {
        let Some(sharers) = self.derivations.sharers.lock().clone() else { return };
        let members: Vec<Arc<Comm>> = sharers.0.lock().iter().filter_map(Weak::upgrade).collect();
        let text = format!("comm {:#x}, with which this one shares its resources, was aborted", self.handle());
        for member in members {
            if !std::ptr::eq(&*member, self) {
                member.happen(CommEvent::SharerAborted(&Error::InvalidUsage(text.clone())));
            }
        }
    }
}
