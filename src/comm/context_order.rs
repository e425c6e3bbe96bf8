//! The order of launches among communicators (`launchOrderImplicit`).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::order::{CaptureEnd, LaunchOrder};
use crate::device::{Context, ContextKey};
use crate::error::Error;

/// The orders that a communicator's launches are in.
pub struct Orders {
    /// Among streams.
    pub own: Mutex<LaunchOrder>,
    /// Among communicators; none where none was asked for. To be locked after the own one.
    pub of_all: Option<Arc<ContextOrder>>,
}

/// Launches of all communicators of a context that asked for it run one after another, in the order in which the
/// program has made them: kernels of two communicators that do not fit on the device together then never wait for each
/// other, as long as all ranks make their calls in one order.
///
/// A call that goes on in the background (a communicator that does not block, links that are connected first) is in
/// the order from when it is enqueued.
pub struct ContextOrder {
    context: Arc<Context>,
    order: Mutex<LaunchOrder>,
    /// Captures by number, as long as a communicator keeps something for them.
    captures: Mutex<HashMap<u64, Weak<CaptureEnd>>>,
}

impl ContextOrder {
    /// The order of a context, which lives as long as a communicator or a graph is in it.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn of(context: &Arc<Context>) -> Result<Arc<ContextOrder>, Error> {
        // Communicators of one context know nothing of each other.
        static ORDERS: Mutex<Option<HashMap<ContextKey, Weak<ContextOrder>>>> = Mutex::new(None);
        let mut guard = ORDERS.lock();
        let orders = guard.get_or_insert_default();
        orders.retain(|_, order| order.strong_count() > 0);
        if let Some(order) = orders.get(&context.key()).and_then(Weak::upgrade) {
            return Ok(order);
        }
        // Whatever the graphs of a communicator do, those of others are in order with them.
        let order = Mutex::new(LaunchOrder::create(context, true)?);
        let made = Arc::new(ContextOrder { context: context.clone(), order, captures: Mutex::default() });
        orders.insert(context.key(), Arc::downgrade(&made));
        Ok(made)
    }

    /// To be held while something is launched.
    pub fn lock(&self) -> MutexGuard<'_, LaunchOrder> {
        self.order.lock()
    }

    /// The end of what all communicators launch in a capture.
    ///
    /// # Errors
    /// What the driver gives.
    pub fn captured(&self, capture: u64) -> Result<Arc<CaptureEnd>, Error> {
        let mut captures = self.captures.lock();
        captures.retain(|_, end| end.strong_count() > 0);
        if let Some(end) = captures.get(&capture).and_then(Weak::upgrade) {
            return Ok(end);
        }
        let made = Arc::new(CaptureEnd::create(&self.context)?);
        captures.insert(capture, Arc::downgrade(&made));
        Ok(made)
    }
}
