//! A look at the other ranks while a collective does not end. Whoever asks for the communicator's state looks, as the
//! watchdogs of frameworks do all the time; nobody else has to pay for it.

use std::time::{Duration, Instant};

use super::Comm;
use super::lifecycle::CommEvent;
use crate::error::Error;
use crate::health::{FlightRecorder, Peer, Record, Verdict, Waiting, liveness};
use crate::log::Place;
use crate::params;
use crate::plan::layout::kernel_error;
use crate::transport::PeerFacts;

/// The shortest time between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// What a communicator remembers of its looks.
#[derive(Default)]
pub(super) struct Watch {
    start: Option<Instant>,
    /// When the next look is due, after `start`.
    next: Duration,
    waiting: Option<Waiting>,
    /// Ranks of other hosts that were asked for their last collectives.
    asked: Vec<u32>,
}

impl Comm {
    /// Looks for ranks that the last collective waits for in vain: one that is gone makes the communicator fail, one
    /// that does not come is named once.
    pub(super) fn look_at_peers(&self) {
        let Some(parts) = self.parts.get().filter(|_| self.state().is_watched()) else { return };
        let Some(recorder) = &parts.recorder else { return };
        // Somebody else looks already.
        let Some(mut watch) = parts.watch.try_lock() else { return };
        let now = watch.start.get_or_insert_with(Instant::now).elapsed();
        if now < watch.next || !self.state().is_watched() {
            return;
        }
        watch.next = now + LOOK;
        // A message waits for one peer only, a call without elements for none. Where there are graphs, one may run.
        let collective = || self.counters.end_with_collective() || self.has_graphs();
        let waits = |record: &Record| record.count > 0 && collective() && !self.is_idle();
        let Some(mine) = recorder.last(recorder.mine()).filter(waits) else {
            watch.waiting = None;
            return;
        };
        if watch.waiting.as_ref().is_none_or(|waiting| !waiting.is_of(&mine)) {
            watch.waiting = Some(Waiting::new(mine, now));
            watch.asked.clear();
        }
        let Watch { waiting, asked, .. } = &mut *watch;
        let Some(waiting) = waiting.as_mut().filter(|waiting| waiting.is_due(now)) else { return };
        if waiting.is_to_ask(now, late()) {
            *asked = self.ask_again();
        }
        let elsewhere = asked.iter().map(|rank| peer_elsewhere(recorder, *rank));
        let peers: Vec<Peer> = peers(recorder, &parts.peers).into_iter().chain(elsewhere).collect();
        match waiting.judge(self.identity.rank, &peers, now, late()) {
            Verdict::Patience => {}
            Verdict::Late(text) => log::warn!("comm {:#x}: {text}", self.handle()),
            Verdict::Lost(rank, text) => {
                let place = Place { file: "comm/watch.rs", line: line!(), function: self.identity.function };
                let error = Error::Remote { rank: Some(rank), text };
                let report = (kernel_error::PEER_LEFT, rank, mine.serial as u32);
                self.find(CommEvent::Lost(&error), place, report);
            }
        }
    }
}

/// After how long missing ranks are named; none: never.
fn late() -> Option<Duration> {
    let seconds = params::snapshot().int(params::LATE_WARN);
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// The other ranks of the host. What a rank that is gone has written is there: it is read afterwards.
fn peers(recorder: &FlightRecorder, facts: &[PeerFacts]) -> Vec<Peer> {
    let me = &facts[recorder.ranks()[recorder.mine()] as usize];
    let others = recorder.ranks().iter().enumerate().filter(|(place, _)| *place != recorder.mine());
    others
        .map(|(place, rank)| {
            let gone = liveness::has_ended(me, &facts[*rank as usize]);
            Peer { rank: *rank, gone, ended: recorder.has_ended(place), last: recorder.last(place), mute: false }
        })
        .collect()
}

/// A rank of another host that was asked: what it has answered, if it has.
fn peer_elsewhere(recorder: &FlightRecorder, rank: u32) -> Peer {
    let answer = recorder.reports().answer(rank);
    Peer { rank, last: answer.flatten(), gone: false, ended: false, mute: answer.is_none() }
}
