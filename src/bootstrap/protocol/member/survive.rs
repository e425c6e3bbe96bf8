//! After the initialisation: what the end of a rank, or its refusal to take part, means for the others.
//!
//! An exchange of all ranks needs all ranks. When one is gone, exchanges are over for good and every rank hears why;
//! messages among the others go on. A rank that is well and takes no part in one exchange *refuses* it: the exchange
//! fails on every rank, and the next one is as good as any.

use std::sync::Arc;

use super::super::wire::{Decoder, Encoder, FrameKind, HEADER, Malformed};
use super::super::{Conn, MAX_REFUSALS};
use super::{Error, Failure, Member, Purpose, is_told};

impl Member {
    /// Takes no part in the next exchange of all ranks, for a reason of this rank's own; the others' exchange fails,
    /// and names it. It does not wait for anybody.
    pub fn refuse(&mut self, error: &Error) {
        debug_assert!(!self.gather.active(), "one operation at a time");
        if self.failure.is_some() || self.broken.is_some() || !self.complete {
            return;
        }
        let number = self.gather.number();
        if !self.gather.is_refused(number) {
            self.note_refusal(number, Failure::of(self.config.rank, error), None);
        }
        let _ = self.gather.pass_refused();
    }

    /// The operation in progress is given up. An exchange is over on all ranks then, since nobody can tell how far it
    /// came.
    pub fn give_up(&mut self, error: Error) {
        let failure = Failure::of(self.config.rank, &error);
        self.hurt(&failure, error);
    }

    /// Whether an exchange can begin.
    ///
    /// # Errors
    /// Why there are none any more, or why there is not this one: it is over then.
    pub(super) fn check_exchange(&mut self) -> Result<(), Error> {
        self.trouble = None;
        if let Some(broken) = &self.broken {
            return Err(broken.error());
        }
        self.gather.pass_refused().map_or(Ok(()), |failure| Err(failure.error()))
    }

    /// The communicator has a failure, whatever this rank does at the moment.
    pub(super) fn bad_news(&mut self, failure: &Failure) {
        if self.complete {
            return self.break_exchanges(failure, failure.error());
        }
        self.fail_with(failure);
    }

    /// The operation in progress cannot be completed.
    pub(super) fn hurt(&mut self, failure: &Failure, error: Error) {
        if self.gather.in_progress() {
            return self.break_exchanges(failure, error);
        }
        self.messages.stop();
        self.trouble = Some(error);
        self.limit = None;
    }

    /// There will be no exchange any more; whoever is connected with this rank is told, once.
    fn break_exchanges(&mut self, failure: &Failure, error: Error) {
        if self.failure.is_some() {
            return;
        }
        if self.broken.is_none() {
            self.broken = Some(failure.clone());
            let bytes = failure.encode();
            let told: Vec<Conn> =
                self.links.iter().filter(|(_, link)| is_told(link.role)).map(|(conn, _)| *conn).collect();
            told.into_iter().for_each(|conn| self.send(conn, bytes.clone()));
        }
        if self.gather.in_progress() {
            self.gather.stop();
            self.trouble = Some(error);
            self.limit = None;
        }
    }

    /// No connection can be made with a rank: bad if the operation in progress needs it.
    pub(super) fn peer_unreachable(&mut self, rank: u32, purpose: Purpose, why: &str, failure: &Failure) {
        let needed = match purpose {
            Purpose::Tree => true,
            Purpose::Ring if self.goes_round() => true,
            Purpose::Ring => self.gather.next_lost(why, false),
            Purpose::Messages => {
                self.messages.queued_for(rank) || (self.messages.waits_for(rank) && !self.receives_from(rank))
            }
        };
        self.messages.gone(rank, why, false);
        if needed {
            self.hurt(failure, failure.error());
        }
    }

    /// A neighbour in the tree has heard of a refusal.
    pub(super) fn refusal(&mut self, conn: Conn, payload: &[u8]) -> Result<(), Malformed> {
        let mut decoder = Decoder(payload);
        let number = decoder.u64()?;
        let failure = Failure::decode(decoder.0)?;
        let current = self.gather.number();
        if number > current + MAX_REFUSALS {
            return Err(Malformed(format!("a refusal of exchange {number} in exchange {current}")));
        }
        if number >= current && !self.gather.is_refused(number) {
            self.note_refusal(number, failure, Some(conn));
        }
        Ok(())
    }

    /// Keeps a refusal, passes it on to all neighbours in the tree but the one that it came from, and ends the exchange
    /// if it is the one in progress.
    fn note_refusal(&mut self, number: u64, failure: Failure, from: Option<Conn>) {
        let frame = refusal_frame(number, &failure);
        let tree = self.parent.into_iter().chain(self.children.iter().copied().flatten());
        let ring = self.gather.next.into_iter().chain(self.gather.previous).filter(|_| self.goes_round());
        let neighbours: Vec<Conn> = tree.chain(ring).collect();
        for conn in neighbours {
            if Some(conn) != from && self.links.contains_key(&conn) {
                self.send(conn, frame.clone());
            }
        }
        self.gather.refuse(number, failure);
        if self.gather.active() && number == self.gather.number() {
            self.trouble = self.gather.pass_refused().map(|failure| failure.error());
            self.limit = None;
        }
    }
}

fn refusal_frame(number: u64, failure: &Failure) -> Arc<[u8]> {
    let failure = failure.encode();
    Encoder::new(FrameKind::Refuse, 8 + failure.len()).u64(number).raw(&failure[HEADER..]).finish()
}
