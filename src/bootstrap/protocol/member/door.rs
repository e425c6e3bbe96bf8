//! Who is at the other end of a connection: the preamble and the hello, in both directions.

use std::time::Duration;

use super::super::stranger::{self, Visitor};
use super::super::wire::{Decoder, Frame, FrameKind, HEADER, PREAMBLE, PROTOCOL, Preamble, Service};
use super::super::{Conn, HANDSHAKE, Level};
use super::{Failure, Link, Member, Purpose, Role, show};

/// Bytes of a hello frame: header, purpose, from, to.
const HELLO: usize = HEADER + 9;

impl Member {
    pub(super) fn drop_stranger(&mut self, conn: Conn, why: &str) {
        let Some(link) = self.links.get(&conn) else {
            return;
        };
        let text =
            format!("Bootstrap: rank {} dropped a connection from {}: {why}", self.config.rank, show(link.address));
        self.close(conn);
        self.log(Level::Info, text);
    }

    /// The preamble and hello of an accepted connection.
    pub(super) fn identify(&mut self, now: Duration, conn: Conn) -> bool {
        // Before the welcome nobody can be told apart; a child that was quicker waits.
        let (Some(token), Some(link)) = (self.token, self.links.get_mut(&conn)) else {
            return false;
        };
        match stranger::identify(link.reader.rest(), token, Service::Peer) {
            Visitor::Unknown => false,
            Visitor::Expected if link.reader.rest().len() < PREAMBLE + HELLO => false,
            Visitor::Expected => {
                link.reader.preamble();
                match link.reader.frame(HELLO) {
                    Ok(Some(Frame { kind: FrameKind::Hello, payload })) => self.hello(now, conn, &payload),
                    _ => {
                        self.drop_stranger(conn, "it does not say who it is");
                        false
                    }
                }
            }
            Visitor::OtherProtocol(protocol) => {
                self.drop_stranger(conn, &format!("it speaks version {protocol} of the protocol and not {PROTOCOL}"));
                false
            }
            Visitor::Nvidia(_) => {
                self.drop_stranger(conn, "it runs NVIDIA's NCCL");
                false
            }
            Visitor::Stranger(what) => {
                self.drop_stranger(conn, &format!("not a rank of this communicator ({what})"));
                false
            }
        }
    }

    /// Who a connection comes from and what it is for.
    pub(super) fn hello(&mut self, now: Duration, conn: Conn, payload: &[u8]) -> bool {
        let Some((from, purpose)) = read_hello(payload, self.config.rank, self.config.nranks) else {
            self.drop_stranger(conn, "its hello is malformed");
            return false;
        };
        let taken = match purpose {
            Purpose::Tree => self.take_child(conn, from),
            Purpose::Ring => self.take_previous(conn, from),
            Purpose::Messages => true,
        };
        if !taken {
            self.drop_stranger(conn, &format!("rank {from} is not a neighbour of rank {}", self.config.rank));
            return false;
        }
        if let Some(link) = self.links.get_mut(&conn) {
            link.role = Role::In(from, purpose);
        }
        let answer = Preamble::new(self.token.unwrap_or_default(), Service::PeerAnswer).encode();
        self.send(conn, answer.to_vec().into());
        self.links_complete(now);
        true
    }

    pub(super) fn take_child(&mut self, conn: Conn, from: u32) -> bool {
        let Some(index) = self.place.children.iter().position(|span| span.start == from) else {
            return false;
        };
        // A child that connects again has lost its first connection before the answer.
        self.children[index] = Some(conn);
        true
    }

    fn take_previous(&mut self, conn: Conn, from: u32) -> bool {
        let is_previous = from == (self.config.rank + self.config.nranks - 1) % self.config.nranks;
        if is_previous && self.goes_round() {
            self.gather.previous = Some(conn);
        }
        is_previous
    }

    /// The preamble that answers ours.
    pub(super) fn answer(&mut self, now: Duration, conn: Conn) -> bool {
        let Some(link) = self.links.get_mut(&conn) else {
            return false;
        };
        let (magic, service) = match link.role {
            Role::Root(_) => (self.config.magic, Service::RootAnswer),
            _ => (self.token.unwrap_or_default(), Service::PeerAnswer),
        };
        if link.reader.rest().len() < PREAMBLE {
            return false;
        }
        let answer = link.reader.preamble();
        let expected = Preamble::new(magic, service);
        if answer != Some(expected) {
            self.wrong_answer(conn);
            return false;
        }
        match &mut link.role {
            Role::Root(answered) | Role::Out(_, _, answered) => *answered = true,
            Role::Unknown(_) | Role::In(..) => {}
        }
        let role = link.role;
        self.dials.answered(conn);
        match role {
            Role::Out(_, Purpose::Tree, _) => {
                self.parent_answered = true;
                self.links_complete(now);
            }
            Role::Out(_, Purpose::Ring, _) => {
                self.ring_flush();
                self.links_complete(now);
            }
            Role::Out(rank, Purpose::Messages, _) => self.flush_messages(rank),
            _ => self.links_complete(now),
        }
        true
    }

    pub(super) fn wrong_answer(&mut self, conn: Conn) {
        let Some(link) = self.links.get(&conn) else {
            return;
        };
        let (rank, who) = match link.role {
            Role::Out(rank, ..) => (Some(rank), self.name(rank)),
            _ => (None, self.root_name()),
        };
        let text = format!(
            "something that is not oxccl answers rank {} at {}, where {who} should listen",
            self.config.rank,
            show(link.address)
        );
        self.dials.lost_root |= rank.is_none();
        self.fail_with(&Failure::remote(rank, text));
    }

    /// The failure where the other end of a connection is protected otherwise.
    pub(super) fn mismatch(&self, link: &Link, text: &str) -> Failure {
        let (rank, who) = match link.role {
            Role::Root(_) => (None, "the root".to_string()),
            Role::Out(rank, ..) | Role::In(rank, _) => (Some(rank), self.name(rank)),
            Role::Unknown(_) => (None, "a rank".to_string()),
        };
        let text = format!("rank {} and {who} at {} cannot meet: {text}", self.config.rank, show(link.address));
        Failure::usage(rank, text)
    }

    pub(super) fn tick_links(&mut self, now: Duration) {
        if self.token.is_none() {
            return;
        }
        let late: Vec<Conn> = self
            .links
            .iter()
            .filter(|(_, link)| matches!(link.role, Role::Unknown(since) if now >= since + HANDSHAKE))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in late {
            self.drop_stranger(conn, &format!("it has not said in {} s who it is", HANDSHAKE.as_secs()));
        }
    }
}

/// Sender and purpose of a hello that is meant for `rank`.
pub(super) fn read_hello(payload: &[u8], rank: u32, nranks: u32) -> Option<(u32, Purpose)> {
    let mut decoder = Decoder(payload);
    let purpose = Purpose::from_byte(decoder.u8().ok()?)?;
    let (from, to) = (decoder.u32().ok()?, decoder.u32().ok()?);
    decoder.end().ok()?;
    (from < nranks && to == rank).then_some((from, purpose))
}
