//! From the root's welcome until this rank is connected with its neighbours and knows all others.

use std::time::Duration;

use super::super::checkin::{Roster, Welcome};
use super::super::ranks;
use super::super::wire::{Encoder, FrameKind, HEADER, Malformed};
use super::{Conn, Failure, Link, Member, MemberPhase, Purpose, Role};

impl Member {
    pub(super) fn welcome(&mut self, now: Duration, welcome: Welcome) -> Result<(), Malformed> {
        let (rank, nranks) = (self.config.rank, self.config.nranks);
        match welcome.roster {
            Roster::Full(entries) => {
                if entries.len() != nranks as usize {
                    return Err(Malformed(format!("a welcome with {} ranks", entries.len())));
                }
                for (other, entry) in (0..nranks).zip(&entries) {
                    self.roster.insert(other, entry);
                }
            }
            Roster::Links { parent, next } => {
                self.roster.insert((rank + 1) % nranks, &next);
                if let (Some(parent_rank), Some(parent)) = (self.place.parent, parent) {
                    self.roster.insert(parent_rank, &parent);
                }
            }
        }
        self.token = Some(welcome.token);
        self.phase = MemberPhase::Links;
        if let Some(parent) = self.place.parent {
            self.dial(now, parent, Purpose::Tree)?;
        }
        let waiting: Vec<Conn> = self
            .links
            .iter()
            .filter(|(_, link)| matches!(link.role, Role::Unknown(_)))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in waiting {
            if let Some(Link { role: Role::Unknown(since), .. }) = self.links.get_mut(&conn) {
                *since = now;
            }
            self.advance(now, conn);
        }
        self.links_complete(now);
        Ok(())
    }

    /// The rendezvous goes on once the parent has answered and all children are there.
    pub(super) fn links_complete(&mut self, now: Duration) {
        if self.phase != MemberPhase::Links || self.children.iter().any(Option::is_none) {
            return;
        }
        if self.place.parent.is_some() && !self.parent_answered {
            return;
        }
        if self.roster.complete() {
            self.phase = MemberPhase::Ready;
            self.limit = None;
            return;
        }
        self.phase = MemberPhase::Roster;
        let own = self.config.entry.clone();
        let block = own.encode(Encoder::new(FrameKind::Join, own.bytes())).finish();
        self.begin_gather(now, &block[HEADER..]);
        self.roster_complete();
    }

    /// The first all-gather brings the roster, where the root did not.
    pub(super) fn roster_complete(&mut self) {
        if self.phase != MemberPhase::Roster {
            return;
        }
        let Some(blocks) = self.gather.take() else {
            return;
        };
        for (rank, block) in (0..self.config.nranks).zip(blocks) {
            if let Err(bad) = self.roster.decode(rank, &block) {
                let text = format!("the entry of rank {rank} is malformed: {bad}");
                return self.fail_with(&Failure::remote(Some(rank), text));
            }
        }
        self.phase = MemberPhase::Ready;
        self.limit = None;
    }

    pub(super) fn links_late(&self, seconds: f32) -> Failure {
        let children = self
            .place
            .children
            .iter()
            .zip(&self.children)
            .filter(|(_, conn)| conn.is_none())
            .map(|(span, _)| span.start);
        let parent = self.place.parent.filter(|_| self.parent.is_none());
        let missing: Vec<u32> = parent.into_iter().chain(children).collect();
        let culprit = if missing.len() == 1 { Some(missing[0]) } else { None };
        let text =
            format!("after {seconds} s rank {} has no connection with {}", self.config.rank, ranks::name(&missing));
        Failure::timeout(culprit, text)
    }
}
