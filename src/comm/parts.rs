//! What a communicator has once its creation has succeeded.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::LaunchOrder;
use super::context_order::Orders;
use super::watch::Watch;
use crate::bootstrap::Bootstrap;
use crate::device::{Charge, HostFlag, Kernels, Stream};
use crate::error::Error;
use crate::health::{FlightRecorder, Record};
use crate::memory::{ItemStore, Lent, Registrations};
use crate::plan::layout::{LaunchArgs, Work};
use crate::schedules::{LaunchParameters, Schedules};
use crate::transport::{ConnectionGroup, Links, PeerFacts, Probe};
use crate::tuning::Tuning;

/// What a communicator has once its creation has succeeded. The fields drop in this order.
pub struct Parts {
    /// The kernels of the device.
    pub(super) kernels: Arc<Kernels>,
    /// How collectives are carried out.
    pub(super) tuning: Tuning,
    /// What all launches have in common.
    pub(super) launch: LaunchParameters,
    /// Steps and links on the device.
    pub(super) schedules: Schedules,
    /// Work items that do not fit a launch's argument.
    pub(super) items: ItemStore,
    /// What the ranks of the host have called lately, and registered.
    pub(super) recorder: Option<FlightRecorder>,
    /// Memory that is registered; none where ranks cannot map it, or need not.
    pub(super) registrations: Option<Registrations>,
    /// Orders of launches.
    pub(super) orders: Orders,
    /// "Leave now", for kernels.
    pub(super) flag: HostFlag,
    /// Memory that was shared to see whether that works; none with one rank.
    pub(super) _probe: Option<Probe>,
    /// The links, which are connected when they are needed; none with one rank.
    pub(super) links: Option<Arc<Links>>,
    /// What all of this holds, but for what counts itself.
    pub(super) _charges: Vec<Charge>,
    /// Every rank's facts.
    pub(super) peers: Vec<PeerFacts>,
    /// The ring of sockets.
    pub(super) bootstrap: Mutex<Option<Bootstrap>>,
    /// Looks at the other ranks.
    pub(super) watch: Mutex<Watch>,
    /// The connection groups of links that are to be connected at the end of a suspension.
    pub(super) to_reconnect: Mutex<Vec<ConnectionGroup>>,
}

impl Parts {
    /// Steps and links on the device.
    pub fn schedules(&self) -> &Schedules {
        &self.schedules
    }

    /// How collectives are carried out.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// What all launches have in common.
    pub fn launch(&self) -> &LaunchParameters {
        &self.launch
    }

    /// The kernels of the device.
    pub fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// The argument of a launch, but for its work.
    pub fn launch_arguments(&self) -> LaunchArgs {
        let mut arguments = self.launch.arguments(self.flag.address());
        arguments.peers = self.registrations.as_ref().map_or(0, Registrations::table);
        arguments
    }

    /// Copies work items to memory that kernels can read.
    ///
    /// # Errors
    /// What the driver gives when it has no memory.
    pub fn lend_items(&self, items: &[Work]) -> Result<Lent, Error> {
        self.items.lend(items)
    }

    /// Takes work items back that the stream's work up to now reads. The context must be current.
    ///
    /// # Errors
    /// As [`ItemStore::give_back`].
    pub fn give_items_back(&self, lent: Lent, stream: Stream) -> Result<(), Error> {
        self.items.give_back(lent, stream)
    }

    /// The order of launches among streams. Who holds it knows that the communicator does not end meanwhile.
    pub fn order(&self) -> MutexGuard<'_, LaunchOrder> {
        self.orders.own.lock()
    }

    /// The order of launches among communicators, where this one is in it. To be locked after [`Parts::order`].
    pub fn launch_order(&self) -> Option<MutexGuard<'_, LaunchOrder>> {
        self.orders.of_all.as_ref().map(|order| order.lock())
    }

    /// Kernels were launched: where a mover serves links, it looks at them from now on.
    pub fn launched(&self) {
        self.links.iter().for_each(|links| links.launched());
    }

    /// Writes a collective on the flight recorder; false where another rank has called something else.
    pub fn note(&self, record: Record) -> bool {
        self.recorder.as_ref().is_none_or(|recorder| recorder.note(record))
    }

    /// What registered memory is offered through; none where ranks cannot map it, or need not. What peers have
    /// registered since the last call is mapped; `quiet` says that no kernel of the device may be waiting.
    pub fn offers(&self, quiet: impl FnOnce() -> bool) -> Option<RegisteredBuffers<'_>> {
        let (registrations, recorder) = self.registered()?;
        let asks = registrations.look(recorder, quiet);
        if let Some(links) = &self.links {
            asks.into_iter().for_each(|(rank, bytes)| links.send_registration(rank, bytes, None));
        }
        Some(RegisteredBuffers { registrations, recorder })
    }

    /// The registrations, with the flight recorder that they stand on.
    pub(super) fn registered(&self) -> Option<(&Registrations, &FlightRecorder)> {
        Some((self.registrations.as_ref()?, self.recorder.as_ref()?))
    }
}

/// Buffers as peers find them.
pub struct RegisteredBuffers<'a> {
    registrations: &'a Registrations,
    recorder: &'a FlightRecorder,
}

impl RegisteredBuffers<'_> {
    /// A buffer as peers find it: see [`Registrations::offer`].
    pub fn offer(&self, address: u64, bytes: u64) -> u64 {
        self.registrations.offer(self.recorder, address, bytes)
    }
}
