//! Outgoing connections: tries, pauses, and when to give up.

use std::time::Duration;

use super::super::wire::{Encoder, FrameKind, Malformed, Preamble, Service};
use super::super::{ANSWER, Action, CONNECT, Cause, Conn, REFUSED};
use super::{CheckIn, Failure, Link, Member, Purpose, Reader, Role, show};

/// How often a connect is tried again: `count` times, after `sleep`, 2 `sleep`, 3 `sleep` …
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Tries after the first.
    pub count: u32,
    /// The first pause.
    pub sleep: Duration,
}

impl Retry {
    /// All pauses together: the time that NCCL's users expect a connect to be tried.
    fn total(self) -> Duration {
        self.sleep.saturating_mul(self.count.saturating_mul(self.count + 1) / 2)
    }
}

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Root,
    Peer(u32, Purpose),
}

enum DialStep {
    /// The connect is under way until then.
    Connecting(Conn, Duration),
    /// Connected; the answer must come until then.
    Answering(Conn, Duration),
    /// A pause until then.
    Pausing(Duration),
}

struct Dial {
    target: Target,
    address: std::net::SocketAddr,
    first: Duration,
    tries: u32,
    step: DialStep,
}

impl Dial {
    fn conn(&self) -> Option<Conn> {
        match self.step {
            DialStep::Connecting(conn, _) | DialStep::Answering(conn, _) => Some(conn),
            DialStep::Pausing(_) => None,
        }
    }

    fn until(&self) -> Duration {
        match self.step {
            DialStep::Connecting(_, until) | DialStep::Answering(_, until) | DialStep::Pausing(until) => until,
        }
    }
}

/// All outgoing connections that are not answered yet: at most root, parent, next, and one per message peer.
#[derive(Default)]
pub(super) struct Dials {
    list: Vec<Dial>,
    /// This rank's root is not there, does not answer or has gone.
    pub lost_root: bool,
}

impl Dials {
    /// Forgets all; returns the connects under way.
    pub(super) fn clear(&mut self) -> Vec<Conn> {
        let dials = std::mem::take(&mut self.list);
        let under_way = dials.iter().filter_map(|dial| match dial.step {
            DialStep::Connecting(conn, _) => Some(conn),
            DialStep::Answering(..) | DialStep::Pausing(_) => None,
        });
        under_way.collect()
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.list.iter().map(Dial::until).min()
    }

    pub(super) fn answered(&mut self, conn: Conn) {
        self.list.retain(|dial| dial.conn() != Some(conn));
    }

    pub(super) fn has(&self, target: Target) -> bool {
        self.list.iter().any(|dial| dial.target == target)
    }

    fn find(&mut self, conn: Conn) -> Option<&mut Dial> {
        self.list.iter_mut().find(|dial| dial.conn() == Some(conn))
    }
}

impl Member {
    pub(super) fn dial_root(&mut self, now: Duration) {
        let (address, first) = (self.config.root, now + self.config.delay);
        if first > now {
            let step = DialStep::Pausing(first);
            return self.dials.list.push(Dial { target: Target::Root, address, first, tries: 0, step });
        }
        self.dial_address(now, Target::Root, address);
    }

    /// Connects to another rank, whose address must be known.
    pub(super) fn dial(&mut self, now: Duration, rank: u32, purpose: Purpose) -> Result<(), Malformed> {
        let address = self.roster.get(rank).map(|entry| entry.address);
        let address = address.ok_or_else(|| Malformed(format!("no address of rank {rank}")))?;
        self.dial_address(now, Target::Peer(rank, purpose), address);
        Ok(())
    }

    fn dial_address(&mut self, now: Duration, target: Target, address: std::net::SocketAddr) {
        let conn = self.start_connect(address);
        self.dials.list.push(Dial {
            target,
            address,
            first: now,
            tries: 0,
            step: DialStep::Connecting(conn, now + CONNECT),
        });
    }

    fn start_connect(&mut self, to: std::net::SocketAddr) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        self.actions.push_back(Action::Connect { conn, to });
        conn
    }

    /// A connect is through: says who we are.
    pub(super) fn dial_through(&mut self, now: Duration, conn: Conn) {
        let Some(dial) = self.dials.find(conn) else {
            return;
        };
        dial.step = DialStep::Answering(conn, now + ANSWER);
        let (target, address) = (dial.target, dial.address);
        let (role, greeting, hello) = match target {
            Target::Root => (Role::Root(false), Preamble::new(self.config.magic, Service::Root), self.check_in()),
            Target::Peer(rank, purpose) => {
                let hello =
                    Encoder::new(FrameKind::Hello, 9).u8(purpose as u8).u32(self.config.rank).u32(rank).finish();
                (Role::Out(rank, purpose, false), Preamble::new(self.token.unwrap_or_default(), Service::Peer), hello)
            }
        };
        match target {
            Target::Root => self.root = Some(conn),
            Target::Peer(_, Purpose::Tree) => self.parent = Some(conn),
            Target::Peer(_, Purpose::Ring) => self.gather.next = Some(conn),
            Target::Peer(rank, Purpose::Messages) => self.messages.connecting(rank, conn),
        }
        self.links.insert(conn, Link { role, address, reader: Reader::default(), bye: false });
        let first = [greeting.encode().as_slice(), &hello].concat();
        self.send(conn, first.into());
        if let (Target::Root, Some(verdict)) = (target, &self.verdict) {
            let bytes = verdict.encode();
            self.send(conn, bytes);
        }
    }

    fn check_in(&self) -> std::sync::Arc<[u8]> {
        let timeout_ms = self.config.timeout.map_or(0, |limit| (limit.as_millis() as u64).max(1));
        let config = &self.config;
        CheckIn {
            rank: config.rank,
            nranks: config.nranks,
            version: config.version,
            timeout_ms,
            process: config.process.clone(),
            settings: config.settings.clone(),
            entry: config.entry.clone(),
            common: config.common.clone(),
            algorithm: config.algorithm,
            place: config.place,
        }
        .encode()
    }

    /// A connect failed, or ended before it was answered: pauses and tries again, or gives up.
    pub(super) fn dial_again(&mut self, now: Duration, conn: Conn, cause: Cause, why: &str) {
        let retry = self.config.retry;
        // Only the listener of a fixed address may still be on its way. All others were there before anybody
        // could know their address: a refusal there means that the process is gone.
        let late_root = self.config.fixed;
        let Some(dial) = self.dials.find(conn) else {
            return;
        };
        let patience = match (cause, dial.target) {
            (Cause::Other, _) => Duration::ZERO,
            (Cause::Refused, Target::Root) if late_root => retry.total(),
            (Cause::Refused, _) => retry.total().min(REFUSED),
            (Cause::Unreachable, _) => retry.total(),
        };
        dial.tries += 1;
        let pause = retry.sleep.saturating_mul(dial.tries);
        if dial.tries <= retry.count && now + pause <= dial.first + patience {
            dial.step = DialStep::Pausing(now + pause);
            return;
        }
        let (target, address, waited) = (dial.target, dial.address, now - dial.first);
        self.dials.list.retain(|dial| dial.conn() != Some(conn));
        self.dials.lost_root |= target == Target::Root;
        let failure = self.unreachable(target, address, cause, why, waited);
        match target {
            Target::Peer(rank, purpose) if self.complete => self.peer_unreachable(rank, purpose, why, &failure),
            _ => self.fail_with(&failure),
        }
    }

    fn unreachable(
        &self,
        target: Target,
        address: std::net::SocketAddr,
        cause: Cause,
        why: &str,
        waited: Duration,
    ) -> Failure {
        let (rank, own) = (self.config.rank, &self.config.entry);
        let (culprit, who) = match target {
            Target::Root => (None, self.root_name()),
            Target::Peer(peer, _) => (Some(peer), self.name(peer)),
        };
        let mut text = format!(
            "rank {rank} ({}:{}) cannot connect to {who} at {}: {why}, after {:.1} s",
            own.interface,
            show(own.address),
            show(address),
            waited.as_secs_f32()
        );
        if target == Target::Root && cause == Cause::Refused {
            text += if self.config.fixed {
                "; does rank 0 run on the host that NCCL_COMM_ID names?"
            } else if address.ip().is_loopback() {
                "; the process that made the ncclUniqueId has ended, or it runs on another host and listens on the loopback interface only (set NCCL_SOCKET_IFNAME there)"
            } else {
                "; the process that made the ncclUniqueId has ended, or the id was used before (an id is for one communicator only)"
            };
        }
        if cause == Cause::Unreachable {
            text += "; is there a firewall, or an address that only its own host knows (container bridge)? NCCL_SOCKET_IFNAME chooses the interface";
        }
        Failure::remote(culprit, text)
    }

    pub(super) fn tick_dials(&mut self, now: Duration) {
        for index in 0..self.dials.list.len() {
            let Some(dial) = self.dials.list.get(index) else {
                return;
            };
            if now < dial.until() {
                continue;
            }
            match dial.step {
                DialStep::Pausing(_) => {
                    let conn = self.start_connect(dial.address);
                    self.dials.list[index].step = DialStep::Connecting(conn, now + CONNECT);
                }
                DialStep::Connecting(conn, _) => {
                    self.actions.push_back(Action::Close { conn });
                    self.dial_again(now, conn, Cause::Unreachable, "no answer");
                }
                // Its process is there; it answers when it comes to an operation of its own.
                DialStep::Answering(conn, _) if self.complete => {
                    self.dials.list[index].step = DialStep::Answering(conn, now + ANSWER)
                }
                DialStep::Answering(conn, _) => {
                    self.close(conn);
                    self.dial_again(now, conn, Cause::Other, "it accepts the connection and does not answer");
                }
            }
        }
    }
}
