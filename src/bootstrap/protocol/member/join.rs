//! From the root's welcome until this rank is connected with its neighbours and knows all others.

use std::time::Duration;

use super::super::MAX_FACTS;
use super::super::checkin::{Roster, Welcome};
use super::super::ranks;
use super::super::roots::Algorithm;
use super::super::wire::{Decoder, Encoder, FrameKind, HEADER, Malformed};
use super::gather::SharedFacts;
use super::{Conn, Failure, Link, Member, MemberPhase, Purpose, Role};

impl Member {
    pub(super) fn welcome(&mut self, now: Duration, welcome: Welcome) -> Result<(), Malformed> {
        let (rank, nranks) = (self.config.rank, self.config.nranks);
        match welcome.roster {
            Roster::Full { commons, entries } => {
                if entries.len() != nranks as usize {
                    return Err(Malformed(format!("a welcome with {} ranks", entries.len())));
                }
                let encoded = entries.iter().map(|(entry, common)| (entry.block(), *common));
                self.roster.fill(commons, encoded).map_err(|(_, bad)| bad)?;
            }
            Roster::Links { parent, next } => {
                self.roster.insert((rank + 1) % nranks, next);
                if let (Some(parent_rank), Some(parent)) = (self.place.parent, parent) {
                    self.roster.insert(parent_rank, parent);
                }
            }
        }
        self.token = Some(welcome.token);
        self.phase = MemberPhase::Links;
        if let Some(parent) = self.place.parent {
            self.dial(now, parent, Purpose::Tree)?;
        }
        if self.goes_round() {
            self.dial(now, (rank + 1) % nranks, Purpose::Ring)?;
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
        if self.goes_round() && !(self.gather.previous.is_some() && self.next_has_answered()) {
            return;
        }
        if self.roster.complete() {
            self.phase = MemberPhase::Ready;
            self.limit = None;
            return;
        }
        self.phase = MemberPhase::Roster;
        match self.config.algorithm {
            Algorithm::Tree => {
                let (block, common) = (self.config.entry.block(), self.config.common.clone());
                self.begin_gather(now, block, Some(common));
            }
            // As in NCCL's protocol, nothing is shared.
            Algorithm::Ring => {
                let (entry, common) = (self.config.entry.block(), &self.config.common);
                let block = Encoder::new(FrameKind::Round, entry.len() + common.len() + 8).bytes(&entry).bytes(common);
                self.begin_gather(now, block.finish()[HEADER..].to_vec(), None);
            }
        }
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
        let filled = match self.config.algorithm {
            Algorithm::Tree => {
                let SharedFacts { table, of } = self.gather.take_shared();
                self.roster.fill(table, blocks.into_iter().zip(of))
            }
            Algorithm::Ring => split_shared(blocks)
                .and_then(|(blocks, SharedFacts { table, of })| self.roster.fill(table, blocks.into_iter().zip(of))),
        };
        if let Err((rank, bad)) = filled {
            let text = format!("the entry of rank {rank} is malformed: {bad}");
            return self.fail_with(&Failure::remote(Some(rank), text));
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
        let (rank, nranks) = (self.config.rank, self.config.nranks);
        let next = (self.goes_round() && !self.next_has_answered()).then_some((rank + 1) % nranks);
        let previous = (self.goes_round() && self.gather.previous.is_none()).then_some((rank + nranks - 1) % nranks);
        let missing: Vec<u32> = parent.into_iter().chain(children).chain(previous).chain(next).collect();
        let culprit = if missing.len() == 1 { Some(missing[0]) } else { None };
        let text =
            format!("after {seconds} s rank {} has no connection with {}", self.config.rank, ranks::name(&missing));
        Failure::timeout(culprit, text)
    }
}

/// Encoded entries by rank, and what ranks have in common.
type Entries = (Vec<Vec<u8>>, SharedFacts);

/// Takes blocks of an exchange round the ring apart: entries, and what ranks have in common.
fn split_shared(blocks: Vec<Vec<u8>>) -> Result<Entries, (u32, Malformed)> {
    let (mut entries, mut commons) = (Vec::with_capacity(blocks.len()), SharedFacts::default());
    for (rank, block) in (0..).zip(blocks) {
        let mut decoder = Decoder(&block);
        let parts = decoder.bytes(2 * MAX_FACTS).and_then(|entry| Ok((entry, decoder.bytes(MAX_FACTS)?)));
        let (entry, common) = parts.and_then(|parts| decoder.end().map(|()| parts)).map_err(|bad| (rank, bad))?;
        entries.push(entry.to_vec());
        commons.add(common);
    }
    Ok((entries, commons))
}
