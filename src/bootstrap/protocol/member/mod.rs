//! A member: joins at the root, connects its place in the tree, and then exchanges blocks and messages.
//!
//! The driver starts an operation (`join` begins at once, then [`Member::start_all_gather`],
//! [`Member::send_message`], [`Member::start_receive`]) and runs the machine until its result is there or
//! [`Member::error`] is. While the communicator is being made, the first error stays: every later operation returns it.
//!
//! Once it is made ([`Member::complete`]), the end of a rank is only the end of what needs that rank: exchanges of
//! all ranks are over for good, messages among the others are not (`survive`).

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::checkin::{CheckIn, CheckInSettings, Entry, Welcome};
use super::failure::Failure;
use super::roots::{Algorithm, RootPlace};
use super::tree::{self, TreePlace};
use super::wire::{Decoder, Encoder, Frame, FrameKind, Malformed, Preamble, Reader, Service};
use super::{Action, Cause, Conn, ConnectError, HANDSHAKE, Level, MAX_BLOCK, MAX_PENDING, Machine};
use crate::bootstrap::id::show;
use crate::error::Error;

mod book;
mod dial;
mod door;
mod gather;
mod join;
mod messages;
mod rounds;
mod survive;

use book::Book;
use dial::Dials;
pub use dial::Retry;
use gather::Gather;
use messages::Messages;

/// The most bytes of a connection that has not said who it is: preamble, hello, and a failure's text.
const MAX_EARLY: usize = 8 << 10;

/// What a member must know.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// Its rank.
    pub rank: u32,
    /// How many ranks there are.
    pub nranks: u32,
    /// The run's magic, from the id.
    pub magic: u64,
    /// The root's address, from the id.
    pub root: SocketAddr,
    /// The root's address is fixed: the root may come later than this rank.
    pub fixed: bool,
    /// The library's version code.
    pub version: u32,
    /// `host:pid`, for messages.
    pub process: String,
    /// Settings on which the ranks should agree.
    pub settings: CheckInSettings,
    /// Where this rank listens, on which interface, and its facts.
    pub entry: Entry,
    /// Facts that ranks have in common, such as those of a host.
    pub common: Vec<u8>,
    /// How all ranks meet.
    pub algorithm: Algorithm,
    /// How long it waits before it connects to its root.
    pub delay: Duration,
    /// The root that this rank checks in at, whose address and magic are above.
    pub place: RootPlace,
    /// Limit for the rendezvous and for each exchange.
    pub timeout: Option<Duration>,
    /// How often a connect is tried again.
    pub retry: Retry,
}

/// What a connection between two members is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Purpose {
    /// From a child to its parent.
    Tree = 1,
    /// From a rank to the next one.
    Ring = 2,
    /// Messages from a rank to another one.
    Messages = 3,
}

impl Purpose {
    fn from_byte(byte: u8) -> Option<Purpose> {
        [Purpose::Tree, Purpose::Ring, Purpose::Messages].into_iter().find(|purpose| *purpose as u8 == byte)
    }

    /// The longest payload that may come on such a connection.
    fn limit(self) -> usize {
        match self {
            Purpose::Tree => gather::TREE_FRAME,
            Purpose::Ring => gather::PIECE + 64,
            Purpose::Messages => MAX_BLOCK + 64,
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Our root; `true` once it has answered.
    Root(bool),
    /// Accepted, not identified, since then.
    Unknown(Duration),
    /// A rank that we connected to; `true` once it has answered.
    Out(u32, Purpose, bool),
    /// A rank that connected to us.
    In(u32, Purpose),
}

struct Link {
    role: Role,
    address: SocketAddr,
    reader: Reader,
    /// It said that it leaves.
    bye: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberPhase {
    /// Waiting for the root's welcome.
    Root,
    /// Connecting the tree.
    Links,
    /// Exchanging addresses and facts, where the root did not tell them.
    Roster,
    Ready,
}

/// The state machine.
pub struct Member {
    config: MemberConfig,
    place: TreePlace,
    phase: MemberPhase,
    failure: Option<Error>,
    /// The initialisation is complete.
    complete: bool,
    /// Why there are no exchanges any more, though this rank is well.
    broken: Option<Failure>,
    /// The error of the operation in progress alone.
    trouble: Option<Error>,
    /// This rank comes only to tell the others that it has failed.
    verdict: Option<Failure>,
    links: BTreeMap<Conn, Link>,
    next_conn: Conn,
    dials: Dials,
    /// The magic of connections between members; known from the welcome on.
    token: Option<u64>,
    root: Option<Conn>,
    parent: Option<Conn>,
    parent_answered: bool,
    /// One for each range of `place.children`.
    children: Vec<Option<Conn>>,
    /// What is known about the other ranks.
    roster: Book,
    gather: Gather,
    messages: Messages,
    /// When the operation in progress must be over.
    limit: Option<Duration>,
    actions: VecDeque<Action>,
}

impl Member {
    /// A member that begins to join now.
    pub fn new(config: MemberConfig, now: Duration) -> Member {
        // A rank that is out of range comes only to say so (`reporting`), and gets no place.
        let rank = config.rank.min(config.nranks - 1);
        let place = match config.algorithm {
            Algorithm::Tree => tree::place(rank, config.nranks),
            Algorithm::Ring => TreePlace { span: rank..rank + 1, parent: None, children: Vec::new() },
        };
        let mut member = Member {
            children: vec![None; place.children.len()],
            gather: Gather::new(&place),
            // The root's own limit names who is missing; this one is for a root that is silent.
            limit: config.timeout.map(|timeout| now + timeout + super::HANG_UP),
            place,
            phase: MemberPhase::Root,
            failure: None,
            complete: false,
            broken: None,
            trouble: None,
            verdict: None,
            links: BTreeMap::new(),
            next_conn: 1,
            dials: Dials::default(),
            token: None,
            root: None,
            parent: None,
            parent_answered: false,
            roster: Book::new(config.nranks),
            messages: Messages::default(),
            actions: VecDeque::new(),
            config,
        };
        member.dial_root(now);
        member
    }

    /// A member that has failed already, and checks in only to end the initialisation of the others.
    /// It is over when [`Member::error`] is there: the root sends the news to all.
    pub fn reporting(config: MemberConfig, error: &Error, now: Duration) -> Member {
        let verdict = Failure::of(config.rank, error);
        Member { verdict: Some(verdict), ..Member::new(config, now) }
    }

    /// Whether the root knows this rank, or will as soon as what was sent arrives.
    pub fn checked_in(&self) -> bool {
        self.root.is_some() || self.phase != MemberPhase::Root
    }

    /// The first error, if there was one; else that of the operation in progress.
    pub fn error(&self) -> Option<&Error> {
        self.failure.as_ref().or(self.trouble.as_ref())
    }

    /// Why a rank that this one is, or was, connected with is gone.
    pub fn why_gone(&self, rank: u32) -> Option<Error> {
        let (why, bye) = self.messages.heard_of_end(rank)?;
        Some(self.absence(rank, &why, bye).error())
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.config.nranks
    }

    /// Whether this rank has failed because its root is not there, does not answer or has gone.
    pub fn has_lost_root(&self) -> bool {
        self.dials.lost_root
    }

    /// Whether the rendezvous is over and the tree connected.
    pub fn joined(&self) -> bool {
        self.phase == MemberPhase::Ready
    }

    /// A rank's facts; empty if they are not known.
    pub fn facts(&self, rank: u32) -> &[u8] {
        self.roster.facts(rank)
    }

    /// Which of the facts that ranks have in common are a rank's, and the facts.
    pub fn common(&self, rank: u32) -> (u32, &[u8]) {
        self.roster.common(rank)
    }

    /// What is known about a rank; everything once [`Member::joined`].
    pub fn entry(&self, rank: u32) -> Option<Entry> {
        self.roster.get(rank)
    }

    /// Tells the root that this rank's initialisation is complete, and parts from it.
    pub fn complete(&mut self) {
        self.complete = true;
        if let Some(conn) = self.root.take() {
            self.send(conn, Encoder::new(FrameKind::Done, 0).finish());
            self.close(conn);
        }
    }

    /// Whether this rank has told the root of a failure and waits for the root's own word of it, which comes when all
    /// others have been told. The root may be a thread of this process, which may end any moment.
    pub fn awaits_root(&self) -> bool {
        self.failure.is_some() && self.root.is_some_and(|root| self.links.contains_key(&root))
    }

    /// The root's answer to a failure: anything else that was on its way is of no account.
    fn hear_root(&mut self, conn: Conn) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        if link.role == Role::Root(false) && link.reader.preamble().is_some() {
            link.role = Role::Root(true);
        }
        while link.role == Role::Root(true) {
            match link.reader.frame(super::FULL_ROSTER + 64) {
                Ok(None) => return,
                Ok(Some(frame)) if frame.kind != FrameKind::Fail => {}
                Ok(Some(_)) | Err(_) => {
                    self.root = None;
                    return;
                }
            }
        }
    }

    /// Parts from everybody in peace: an operation that needs this rank fails there, nothing else does.
    pub fn leave(&mut self) {
        if self.failure.is_none() {
            self.complete();
        }
        let conns: Vec<Conn> = self.links.keys().copied().collect();
        for conn in conns {
            if self.failure.is_none() && !matches!(self.links[&conn].role, Role::Unknown(_)) {
                self.send(conn, Encoder::new(FrameKind::Bye, 0).finish());
            }
            self.close(conn);
        }
        self.failure.get_or_insert(Error::InvalidUsage("this rank has left its communicator".to_string()));
    }

    /// This rank has failed: tells the root and the tree. The error stays.
    pub fn fail(&mut self, error: Error) {
        let failure = Failure::of(self.config.rank, &error);
        self.spread(&failure, error);
    }

    /// Another rank has failed, or the way to it: tells the others, and keeps the error that all return.
    fn fail_with(&mut self, failure: &Failure) {
        if self.complete {
            return self.hurt(failure, failure.error());
        }
        self.spread(failure, failure.error());
    }

    fn spread(&mut self, failure: &Failure, error: Error) {
        if self.failure.is_some() {
            return;
        }
        let bytes = failure.encode();
        let told: Vec<Conn> = self.links.iter().filter(|(_, link)| is_told(link.role)).map(|(conn, _)| *conn).collect();
        for conn in told {
            self.send(conn, bytes.clone());
        }
        // Whoever comes now must not wait for an answer.
        let unknown: Vec<Conn> =
            self.links.iter().filter(|(_, link)| !is_told(link.role)).map(|(conn, _)| *conn).collect();
        for conn in unknown {
            self.close(conn);
        }
        self.actions.push_back(Action::StopListening);
        for conn in self.dials.clear() {
            self.actions.push_back(Action::Close { conn });
        }
        self.failure = Some(error);
        self.limit = None;
    }

    fn log(&mut self, level: Level, text: String) {
        self.actions.push_back(Action::Log(level, text));
    }

    fn send(&mut self, conn: Conn, bytes: Arc<[u8]>) {
        self.actions.push_back(Action::Send { conn, bytes });
    }

    fn close(&mut self, conn: Conn) {
        self.links.remove(&conn);
        self.actions.push_back(Action::Close { conn });
    }

    /// The root that this rank checks in at, for messages.
    fn root_name(&self) -> String {
        match self.config.place {
            RootPlace { count: 1, .. } => "the root".to_string(),
            RootPlace { index, count, .. } => format!("the root of ncclUniqueId {index} of {count}"),
        }
    }

    /// A rank with its address and interface.
    fn name(&self, rank: u32) -> String {
        match self.roster.get(rank) {
            Some(entry) => format!("rank {rank} ({}:{})", entry.interface, show(entry.address)),
            None => format!("rank {rank}"),
        }
    }

    /// Works off what has arrived on a connection.
    fn advance(&mut self, now: Duration, conn: Conn) {
        while self.failure.is_none() {
            let Some(link) = self.links.get_mut(&conn) else {
                return;
            };
            let more = match link.role {
                Role::Unknown(_) => self.identify(now, conn),
                Role::Root(false) | Role::Out(_, _, false) => self.answer(now, conn),
                Role::Root(true) => self.next_frame(now, conn, super::FULL_ROSTER + 64),
                Role::In(_, purpose) | Role::Out(_, purpose, true) => self.next_frame(now, conn, purpose.limit()),
            };
            if !more {
                return;
            }
        }
    }

    fn next_frame(&mut self, now: Duration, conn: Conn, most: usize) -> bool {
        let Some(link) = self.links.get_mut(&conn) else {
            return false;
        };
        let role = link.role;
        match link.reader.frame(most) {
            Ok(None) => false,
            Ok(Some(frame)) => {
                self.frame(now, conn, role, frame);
                true
            }
            Err(bad) => {
                self.broken(now, conn, &format!("it sent {bad}"));
                false
            }
        }
    }

    fn frame(&mut self, now: Duration, conn: Conn, role: Role, frame: Frame) {
        let payload = frame.payload;
        let outcome = match (role, frame.kind) {
            // On its way when exchanges ended.
            (_, FrameKind::Up | FrameKind::Down | FrameKind::Ring | FrameKind::Round) if self.broken.is_some() => {
                Ok(())
            }
            (_, FrameKind::Fail) => Failure::decode(&payload).map(|failure| {
                self.bad_news(&failure);
                // The root has told all others.
                self.root.take_if(|root| *root == conn);
            }),
            (Role::In(_, Purpose::Tree) | Role::Out(_, Purpose::Tree, _), FrameKind::Refuse) => {
                self.refusal(conn, &payload)
            }
            (Role::In(_, Purpose::Ring) | Role::Out(_, Purpose::Ring, _), FrameKind::Refuse) if self.goes_round() => {
                self.refusal(conn, &payload)
            }
            (Role::Root(_), FrameKind::Welcome) if self.phase == MemberPhase::Root => {
                Welcome::decode(&payload).and_then(|welcome| self.welcome(now, welcome))
            }
            (Role::Root(_), FrameKind::Progress) => Decoder(&payload).text().map(|text| self.log(Level::Info, text)),
            (_, FrameKind::Bye) => {
                if let Some(link) = self.links.get_mut(&conn) {
                    link.bye = true;
                }
                Ok(())
            }
            (Role::In(_, Purpose::Ring), FrameKind::Round) if self.goes_round() => self.round_piece(payload),
            (Role::In(from, Purpose::Tree), FrameKind::Up) => self.up(now, from, &payload),
            (Role::Out(_, Purpose::Tree, _), FrameKind::Down) => self.down(now, payload),
            (Role::In(_, Purpose::Ring), FrameKind::Ring) => self.ring_piece(now, payload),
            (Role::In(from, Purpose::Messages), FrameKind::Message) => self.message(from, &payload),
            (_, kind) => Err(Malformed(format!("an unexpected {kind:?}"))),
        };
        if let Err(bad) = outcome {
            self.broken(now, conn, &format!("it sent {bad}"));
        }
    }

    /// A connection that sends nonsense: closed, and as good as ended.
    fn broken(&mut self, now: Duration, conn: Conn, why: &str) {
        self.actions.push_back(Action::Close { conn });
        self.lost(now, conn, why);
    }

    /// A connection has ended.
    fn lost(&mut self, now: Duration, conn: Conn, why: &str) {
        let Some(link) = self.links.remove(&conn) else {
            return;
        };
        let Link { role, address, bye, .. } = link;
        match role {
            Role::Unknown(_) => {
                let text = format!(
                    "Bootstrap: a connection from {} to rank {} ended before it said who it is ({why})",
                    show(address),
                    self.config.rank
                );
                self.log(Level::Info, text);
            }
            Role::Root(false) | Role::Out(_, _, false) => self.dial_again(now, conn, Cause::Refused, why),
            Role::Root(true) => self.root_lost(why),
            Role::Out(rank, purpose, _) => self.peer_lost(rank, purpose, true, why, bye),
            Role::In(rank, purpose) => self.peer_lost(rank, purpose, false, why, bye),
        }
    }

    /// The root went away. It stays until all ranks are complete, so that this is a death; but a rank that is
    /// connected with its neighbours hears of all that matters to it from them.
    fn root_lost(&mut self, why: &str) {
        self.root = None;
        if self.phase == MemberPhase::Ready {
            return;
        }
        let text = format!(
            "rank {} has lost {} at {} before all ranks had joined ({why}): the process that made the ncclUniqueId has probably ended",
            self.config.rank,
            self.root_name(),
            show(self.config.root)
        );
        self.dials.lost_root = true;
        self.fail_with(&Failure::remote(None, text));
    }

    /// A connection with another rank is gone: an error only where an operation needs it. A rank that is
    /// through may leave while others still wait for ranks elsewhere.
    fn peer_lost(&mut self, rank: u32, purpose: Purpose, outgoing: bool, why: &str, bye: bool) {
        let needed = match (purpose, outgoing) {
            (Purpose::Tree, _) => match self.phase {
                // It was connected: that it has had all it wanted is no harm yet.
                MemberPhase::Root | MemberPhase::Links => !bye,
                MemberPhase::Roster | MemberPhase::Ready => self.gather.needs_tree(bye),
            },
            // They were connected: that the other one has had all it wanted is no harm yet.
            (Purpose::Ring, _) if matches!(self.phase, MemberPhase::Root | MemberPhase::Links) => !bye,
            (Purpose::Ring, true) => self.gather.next_lost(why, bye),
            (Purpose::Ring, false) => self.gather.previous_lost(why, bye),
            (Purpose::Messages, true) => {
                // What the rank has sent comes by its own connection, in order before its end.
                self.messages.queued_for(rank) || (self.messages.waits_for(rank) && !self.receives_from(rank))
            }
            (Purpose::Messages, false) => self.messages.waits_for(rank),
        };
        self.messages.gone(rank, why, bye);
        if needed {
            self.fail_with(&self.absence(rank, why, bye));
        }
    }

    /// Whether a rank has a connection to this one for its messages.
    fn receives_from(&self, rank: u32) -> bool {
        self.links.values().any(|link| link.role == Role::In(rank, Purpose::Messages))
    }

    /// The failure for a rank that is not there any more.
    fn absence(&self, rank: u32, why: &str, bye: bool) -> Failure {
        let name = self.name(rank);
        let text = if bye {
            format!("{name} has left while rank {} needs it", self.config.rank)
        } else {
            format!("{name} is gone ({why}); its process has probably died")
        };
        Failure::remote(Some(rank), text)
    }

    fn tick_limit(&mut self, now: Duration) {
        if self.limit.is_none_or(|limit| now < limit) {
            return;
        }
        self.limit = None;
        let seconds = self.config.timeout.unwrap_or_default().as_secs_f32();
        let (rank, root) = (self.config.rank, show(self.config.root));
        let failure = match self.phase {
            MemberPhase::Root => Failure::timeout(
                None,
                format!("rank {rank} has waited {seconds} s for the root at {root}, which does not say who is missing"),
            ),
            MemberPhase::Links => self.links_late(seconds),
            MemberPhase::Roster | MemberPhase::Ready => self.operation_late(seconds),
        };
        self.fail_with(&failure);
    }
}

/// Reads bytes as whatever a member reads, for tests of garbage.
#[cfg(test)]
pub(super) fn decode_as_anything(bytes: &[u8], nranks: u32) {
    gather::decode_as_anything(bytes, nranks);
    rounds::decode_as_anything(bytes);
    let _ = door::read_hello(bytes, 0, nranks);
    let mut book = Book::new(nranks);
    let _ = book.fill(vec![Vec::new()], (0..nranks).map(|_| (bytes, 0)));
}

/// Who is told about a failure directly.
fn is_told(role: Role) -> bool {
    !matches!(role, Role::Unknown(_))
}

impl Machine for Member {
    fn accepted(&mut self, now: Duration, from: SocketAddr) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let mut pending =
            self.links.iter().filter(|(_, link)| matches!(link.role, Role::Unknown(_))).map(|(conn, _)| *conn);
        if let (Some(oldest), Some(_)) = (pending.next(), pending.nth(MAX_PENDING)) {
            self.drop_stranger(oldest, "too many connections have not said who they are");
        }
        self.links
            .insert(conn, Link { role: Role::Unknown(now), address: from, reader: Reader::default(), bye: false });
        conn
    }

    fn connected(&mut self, now: Duration, conn: Conn, outcome: Result<(), ConnectError>) {
        if self.failure.is_some() {
            return;
        }
        match outcome {
            Ok(()) => self.dial_through(now, conn),
            Err(error) => self.dial_again(now, conn, error.cause, &error.text),
        }
    }

    fn received(&mut self, now: Duration, conn: Conn, bytes: &[u8]) {
        let Some(link) = self.links.get_mut(&conn) else {
            return;
        };
        link.reader.push(bytes);
        if self.failure.is_some() && self.root == Some(conn) {
            return self.hear_root(conn);
        }
        if matches!(link.role, Role::Unknown(_)) && link.reader.rest().len() > MAX_EARLY {
            return self.drop_stranger(conn, "it sends too much before it says who it is");
        }
        self.advance(now, conn);
    }

    fn closed(&mut self, now: Duration, conn: Conn, error: Option<String>) {
        if self.failure.is_some() {
            self.links.remove(&conn);
            return;
        }
        let why = error.unwrap_or_else(|| "it closed the connection".to_string());
        self.lost(now, conn, &why);
    }

    fn mismatched(&mut self, _: Duration, conn: Conn, text: &str) {
        let link = self.links.remove(&conn);
        if let Some(link) = link.filter(|_| self.failure.is_none()) {
            self.fail_with(&self.mismatch(&link, text));
        }
    }

    fn preamble(&self) -> Option<Preamble> {
        self.token.map(|token| Preamble::new(token, Service::Peer))
    }

    fn tick(&mut self, now: Duration) {
        if self.failure.is_some() {
            return;
        }
        self.tick_links(now);
        self.tick_dials(now);
        self.tick_limit(now);
    }

    fn deadline(&self) -> Option<Duration> {
        if self.failure.is_some() {
            return None;
        }
        let unknown = self.links.values().filter_map(|link| match link.role {
            Role::Unknown(since) if self.token.is_some() => Some(since + HANDSHAKE),
            _ => None,
        });
        unknown.chain(self.dials.deadline()).chain(self.limit).min()
    }

    fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
