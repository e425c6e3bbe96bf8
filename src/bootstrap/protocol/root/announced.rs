//! Ranks that have called, and have not checked in yet: what they do first can take long, and they can die meanwhile.

use std::time::Duration;

use super::super::Conn;
use super::super::failure::Failure;
use super::super::roots;
use super::{Phase, Root, State};
use crate::bootstrap::id::show_ip;

impl Root {
    /// The process of a rank that was about to check in is gone. Of no account where it has checked in, or all is over.
    pub(super) fn vanished(&mut self, now: Duration, conn: Conn, why: &str) {
        let Some(visit) = self.take_visit(conn) else { return };
        let State::Announced(announcement) = visit.state else { return };
        let (rank, nranks) = (announcement.rank, announcement.nranks);
        let (index, count) = announcement.root;
        let block = roots::block(index, count, nranks);
        let seated = self.seat(rank).is_some();
        let agrees = self.others.as_ref().is_none_or(|others| others.nranks == nranks);
        if seated || !agrees || !block.contains(&rank) || !matches!(self.phase, Phase::Collecting) {
            return;
        }
        if self.seats.is_empty() {
            self.claimed = block.len();
        }
        self.told.insert(rank);
        let who = format!("rank {rank} ({}, {})", announcement.process, show_ip(visit.from.ip()));
        let text = format!("{who} is gone before it had joined ({why}); its process has probably died");
        self.fail(now, Failure::remote(Some(rank), text));
    }
}
