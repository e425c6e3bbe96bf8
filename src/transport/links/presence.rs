//! Whether ranks of other hosts are still there.
//!
//! With each rank that this one has links with over a network it stays connected for messages, too. A process that ends
//! ends the connection. A host that is gone says nothing; but the systems at both ends ask each other now and then, and
//! whoever gets no answer for long takes the host for gone. Nobody has to run for that: a process that is stopped, by a
//! debugger say, or that waits long for its device, is still there.

use std::time::Duration;

use super::Links;
use crate::params;
use crate::proxy::Address;

/// After how long without an answer a host counts as gone; none: as long as the system tries.
fn heartbeat() -> Option<Duration> {
    let seconds = params::snapshot().int(params::HEARTBEAT);
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

impl Links {
    /// Stays connected to all ranks of other hosts that it has links with.
    pub(super) fn keep_in_touch(&self) {
        let new = |rank: &u32| self.state.lock().kept.insert(*rank);
        self.keep(self.moved_peers().into_iter().filter(new).collect());
    }

    fn keep(&self, ranks: Vec<u32>) {
        let Some(connectivity) = self.connectivity.get() else { return };
        let registration = self.registration.lock();
        let Some(registration) = registration.as_ref().filter(|_| !ranks.is_empty()) else { return };
        let heartbeat = heartbeat();
        for peer in ranks.into_iter().map(|rank| &connectivity.facts[rank as usize]) {
            if let Some(at) = peer.location.tcp {
                registration.keep(at, Address { key: peer.links, rank: peer.rank }, heartbeat);
            }
        }
    }

    /// The host of a rank does not answer messages. It is gone, unless data come from there by another interface: why
    /// the rank is gone, then. In the event loop.
    pub(super) fn give_up(&self, rank: u32) -> Option<String> {
        let (me, limit, connectivity) = (self.rank, heartbeat(), self.connectivity.get()?);
        let host = &connectivity.facts[rank as usize].host.name;
        let first = self.state.lock().silent.insert(rank);
        // What came by both just before it went may be as old as this.
        let lately = |silence: &Duration| limit.is_none_or(|limit| *silence < limit / 2);
        if let Some(silence) = self.engine.silence(rank).filter(lately) {
            if first {
                let text = "messages do not get there, but data do";
                log::warn!("rank {rank}'s host {host} does not answer rank {me}: {text} ({silence:?} ago)");
            }
            self.keep(vec![rank]);
            return None;
        }
        let seconds = |limit: Duration| format!(" for {} s (OXCCL_HEARTBEAT)", limit.as_secs());
        let for_long = limit.map_or(String::new(), seconds);
        let why = format!("its host {host} has not answered rank {me}{for_long}: it is down or cut off");
        if self.engine.lose(rank, &why) {
            log::warn!("rank {rank} is gone: {why}");
        }
        Some(why)
    }
}
