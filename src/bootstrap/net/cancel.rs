//! A way to end waits of another thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::sys;
use crate::sys::sync::Mutex;

/// Shared between the thread that waits and the one that ends the wait. Once fired it stays so.
#[derive(Clone)]
pub struct Cancel(Arc<Inner>);

struct Inner {
    fired: AtomicBool,
    /// Who is told; those that are gone are taken out when others come.
    listeners: Mutex<Vec<Weak<dyn CancelListener>>>,
    /// How often the process had been forked: what waits in it is no affair of a child's.
    forks: u32,
}

/// What hears of a [`Cancel`].
pub trait CancelListener: Send + Sync {
    /// It was fired. Called in the thread that has fired it, which holds none of the listener's locks.
    fn cancelled(&self);
}

impl Cancel {
    /// Not fired.
    pub fn new() -> Cancel {
        let listeners = Mutex::new(Vec::new());
        Cancel(Arc::new(Inner { fired: AtomicBool::new(false), listeners, forks: sys::forks() }))
    }

    /// Every wait with this `Cancel`, now and later, returns [`crate::error::Error::Aborted`] at once. In a forked
    /// child nobody hears of it.
    pub fn fire(&self) {
        if self.0.fired.swap(true, Ordering::AcqRel) || self.0.forks != sys::forks() {
            return;
        }
        let listeners = std::mem::take(&mut *self.0.listeners.lock());
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener.cancelled());
    }

    /// Tells a listener when it is fired. It may have been fired already: then the listener hears nothing.
    pub(super) fn listen(&self, listener: Weak<dyn CancelListener>) {
        let mut listeners = self.0.listeners.lock();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    /// Whether both end the same waits.
    pub fn is(&self, other: &Cancel) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether it was fired.
    pub fn fired(&self) -> bool {
        self.0.fired.load(Ordering::Acquire)
    }
}

impl Default for Cancel {
    fn default() -> Cancel {
        Cancel::new()
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("fired", &self.fired()).finish_non_exhaustive()
    }
}
