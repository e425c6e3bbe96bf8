//! Links are connected when a call first needs them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{CallKind, Comm, arena};
use crate::error::Error;
use crate::health::liveness::{self, HealthNotice};
use crate::health::reports::PeerReports;
use crate::health::{FailureCause, FlightRecorder, Record};
use crate::plan::layout::{LINK_MOVED, LinkEnd, kernel_error};
use crate::plan::wiring::LinkNeed;
use crate::transport::{ConnectionGroup, Hooks, LinkAddresses, Links};

/// Of so many ranks all are asked what they have called, and so long they are waited for.
const ASKED_MAX: u32 = 64;
const REPORTS_LIMIT: Duration = Duration::from_secs(1);

impl Comm {
    /// Asks the peers for connection groups of links, and waits for nobody.
    ///
    /// # Errors
    /// As [`Comm::connect`].
    pub fn ask_for_links(&self, groups: &[ConnectionGroup]) -> Result<(), Error> {
        self.links()?.ask(groups)
    }

    /// Connects connection groups of links: waits for answers of the peers' event loops, whatever their users do.
    /// `busy` says that the communicator may be busy, with this. A failure is for good, and the peers are told.
    ///
    /// # Errors
    /// [`Error::Remote`] for a peer that is gone, [`Error::Aborted`]; what ranks that do not agree on a call get; what
    /// the driver gives when it has no memory.
    pub fn connect(&self, groups: &[ConnectionGroup], busy: bool) -> Result<(), Error> {
        let parts = self.parts()?;
        let (schedules, links) = (&parts.schedules, self.links()?);
        let connected = |group| schedules.is_connected(group);
        let look = || self.check_again(CallKind::step(busy));
        let result = links.connect(groups, connected, &look, |group, ends| schedules.connect(group, &link_ends(ends)));
        // A peer that is gone may have gone for a reason that is known here.
        let result = result.map_err(|error| look().err().unwrap_or(error));
        result.inspect_err(|error| self.lose_links(links, error))
    }

    /// This rank will not take part in a call that others may have launched.
    fn lose_links(&self, links: &Links, error: &Error) {
        if *error == Error::Aborted {
            return;
        }
        self.fail(error);
        liveness::tell_leaving(links, FailureCause::of(self.identity.rank, error));
    }

    fn links(&self) -> Result<&Arc<Links>, Error> {
        let links = self.parts()?.links.as_ref();
        links.ok_or_else(|| Error::Internal("a communicator of one rank has no links".to_string()))
    }

    /// Lets links ask this communicator what they must know.
    pub(super) fn hook(self: &Arc<Comm>, links: &Links) {
        let own = || Arc::downgrade(self);
        let (quiet, graphs, left, memory, lost, untold, paused) = (own(), own(), own(), own(), own(), own(), own());
        let with = |comm: &Weak<Comm>| comm.upgrade().filter(|comm| !comm.is_inherited());
        links.set_hooks(Hooks {
            is_quiet: Box::new(move || with(&quiet).is_none_or(|comm| comm.device_is_quiet())),
            has_graphs: Box::new(move || with(&graphs).is_some_and(|comm| comm.has_graphs())),
            registration: Box::new(move |rank, bytes, fd| {
                if let Some(comm) = with(&memory) {
                    comm.told_of_registration(rank, bytes, fd);
                }
            }),
            unconnected: Box::new(move |rank| {
                if let Some(comm) = with(&lost) {
                    comm.peer_has_left(rank);
                    comm.tell_leaving();
                }
            }),
            told: Box::new(move |rank, bytes| match liveness::heard(bytes) {
                Some(HealthNotice::Leaving { cause }) => {
                    log::info!(target: "COLL", "rank {rank} says that it has met an error: {cause:?}");
                    if let Some(comm) = with(&left) {
                        comm.told_of_cause(rank, cause);
                        comm.peer_has_left(rank);
                    }
                }
                Some(HealthNotice::Calls { calls, ask }) => {
                    if let Some(comm) = with(&left) {
                        comm.told_of_calls(rank, calls, ask);
                    }
                }
                None => log::info!(target: "COLL", "rank {rank} tells what cannot be read"),
            }),
            untold: Box::new(move |rank| with(&untold).into_iter().for_each(|comm| comm.rank_is_silent(rank))),
            paused: Box::new(move || with(&paused).into_iter().for_each(|comm| comm.data_have_paused())),
        });
    }

    /// A rank takes part in nothing any more: kernels that wait for it leave.
    fn peer_has_left(&self, rank: u32) {
        let Some(parts) = self.parts.get() else { return };
        let serial = self.counters.collectives().saturating_sub(1) as u32;
        if matches!(parts.flag.error()[0], kernel_error::NONE | kernel_error::ABORTED) {
            parts.flag.report(kernel_error::PEER_LEFT, rank, serial);
        }
        // Where ranks of other hosts may know more, whoever asks for the state asks them: that cannot wait here.
        if parts.recorder.as_ref().is_none_or(|recorder| recorder.ranks().len() == parts.peers.len()) {
            self.async_state();
        }
    }

    /// A rank of another host tells its last calls. Where they are not this rank's, its kernels leave.
    fn told_of_calls(&self, rank: u32, calls: Vec<Record>, ask: bool) {
        let Some(parts) = self.parts.get() else { return };
        let (Some(recorder), Some(links)) = (&parts.recorder, &parts.links) else { return };
        let differs = recorder.learn(rank, calls);
        if ask {
            links.tell(rank, HealthNotice::Calls { calls: recorder.own_calls(), ask: false }.encode());
        }
        if let Some(serial) = differs.filter(|_| self.state().is_watched()) {
            log::info!(target: "COLL", "rank {rank} tells that it made another call than collective {serial}");
            recorder.raise_trouble();
            parts.flag.report(kernel_error::MISMATCH, rank, serial as u32);
        }
    }

    fn reports(&self) -> Option<&PeerReports> {
        Some(self.parts.get()?.recorder.as_ref()?.reports())
    }

    /// A rank tells why it leaves.
    fn told_of_cause(&self, rank: u32, cause: Option<FailureCause>) {
        // What this rank has met it knows better itself, or will in a moment.
        let cause = cause.filter(|cause| cause.rank() != Some(self.identity.rank));
        if let (Some(reports), Some(cause)) = (self.reports(), cause) {
            reports.learn_cause(rank, cause);
        }
    }

    /// What a rank was asked or told does not reach it.
    fn rank_is_silent(&self, rank: u32) {
        self.reports().into_iter().for_each(|reports| reports.give_up(rank));
    }

    /// No data move between hosts. In the thread of a mover.
    fn data_have_paused(&self) {
        self.tell_calls();
        self.accuse();
    }

    /// Where kernels wait for a rank whose link is over, tells all others, which may only see ranks leave for that:
    /// this rank's user may ask for its state much later.
    fn accuse(&self) {
        let Some(parts) = self.parts.get().filter(|_| self.state().is_watched()) else { return };
        let (Some(reports), Some(links)) = (self.reports(), &parts.links) else { return };
        let [code, peer, ..] = parts.flag.error();
        if code != kernel_error::PEER_LEFT || reports.cause(peer).is_some() {
            return;
        }
        if let Some(error) = links.failure(peer).filter(|_| reports.is_to_accuse()) {
            liveness::tell_leaving(links, FailureCause::of(self.identity.rank, &error));
        }
    }

    /// Tells the ranks of other hosts that this one has links with what it has called, and asks what they have. Of
    /// calls that do not match the data may show nothing: ranks that carry them out by other links each wait for the
    /// other, and two roots send to each other and are done.
    fn tell_calls(&self) {
        let Some(parts) = self.parts.get().filter(|_| self.state().is_watched()) else { return };
        let (Some(recorder), Some(links)) = (&parts.recorder, &parts.links) else { return };
        if recorder.last(recorder.mine()).is_some_and(|last| recorder.reports().is_to_tell(&last)) {
            ask(links, recorder, &links.moved_peers().into_iter().collect::<Vec<_>>());
        }
    }

    /// The ranks of other hosts; none where they are too many to be asked one by one.
    fn ranks_elsewhere(&self) -> Option<Vec<u32>> {
        let Some((nranks, recorder)) =
            self.parts.get().and_then(|parts| Some((parts.peers.len() as u32, parts.recorder.as_ref()?)))
        else {
            return Some(Vec::new());
        };
        (nranks <= ASKED_MAX).then(|| (0..nranks).filter(|rank| !recorder.ranks().contains(rank)).collect())
    }

    /// Asks ranks of other hosts for their last calls anew, and waits for nothing: those that are asked. Of very many
    /// ranks, those that this one has links with.
    pub(super) fn ask_again(&self) -> Vec<u32> {
        let Some(parts) = self.parts.get() else { return Vec::new() };
        let (Some(recorder), Some(links)) = (&parts.recorder, &parts.links) else { return Vec::new() };
        let ranks = self.ranks_elsewhere().unwrap_or_else(|| links.moved_peers().into_iter().collect());
        recorder.reports().ask_again();
        ask(links, recorder, &ranks);
        ranks
    }

    /// Tells ranks of other hosts what this one has called, where something does not match, or `peer` has `left`, and
    /// waits a while for what they have called, or why that one has left, the first time. Of very many ranks, only the
    /// one that is to blame.
    pub(super) fn await_reports(&self, peer: u32, left: bool) {
        let Some(parts) = self.parts.get() else { return };
        let (Some(recorder), Some(links)) = (&parts.recorder, &parts.links) else { return };
        let reports = recorder.reports();
        let ranks = self.ranks_elsewhere().unwrap_or_else(|| vec![peer]);
        if ranks.is_empty() || links.is_loop_thread() {
            return;
        }
        let (first, until) = reports.ask(REPORTS_LIMIT);
        if first {
            ask(links, recorder, &ranks);
        }
        let enough = || recorder.disagreement().is_some() || left && reports.cause(peer).is_some();
        reports.wait_for(&ranks, enough, until);
    }

    /// Tells the peers that this rank leaves, by their event loops: they may wait on links that this rank has not
    /// connected.
    pub fn tell_leaving(&self) {
        if let Some(links) = self.parts.get().and_then(|parts| parts.links.as_ref()) {
            let cause = self.lifecycle.failure().and_then(|error| FailureCause::of(self.identity.rank, &error));
            liveness::tell_leaving(links, cause);
        }
    }
}

/// Tells ranks this one's calls, and asks for theirs.
fn ask(links: &Links, recorder: &FlightRecorder, ranks: &[u32]) {
    let notice = HealthNotice::Calls { calls: recorder.own_calls(), ask: true }.encode();
    ranks.iter().for_each(|rank| links.tell(*rank, notice.clone()));
}

/// The ends of links as kernels read them, before their first use.
fn link_ends(links: &[(LinkNeed, LinkAddresses)]) -> Vec<LinkEnd> {
    let end = |(_, at): &(LinkNeed, LinkAddresses)| {
        let (slots, posted, consumed) = (at.slots, at.posted, at.consumed);
        let peer = if at.moved { at.peer | LINK_MOVED } else { at.peer };
        LinkEnd { slots, posted, consumed, slot_bytes: at.slot_bytes, peer, ..LinkEnd::default() }
    };
    links.iter().map(end).collect()
}

/// Live communicators of a device in this process.
pub(super) fn comms_on(device: i32) -> usize {
    let mut count = 0;
    arena::each(|comm| count += usize::from(comm.device.number == device));
    count
}
