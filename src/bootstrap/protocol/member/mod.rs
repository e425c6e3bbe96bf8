//! A member: joins at the root, connects its place in the tree, and then exchanges blocks and messages.
//!
//! The driver starts an operation (`join` begins at once, then [`Member::start_all_gather`],
//! [`Member::send`], [`Member::start_receive`]) and runs the machine until its result is there or
//! [`Member::error`] is. The first error stays: every later operation returns it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::checkin::{CheckIn, Entry, Roster, Settings, Welcome};
use super::failure::Failure;
use super::stranger::{self, Visitor};
use super::tree::{self, Place};
use super::wire::{Decoder, Encoder, Frame, Kind, PREAMBLE, PROTOCOL, Preamble, Reader, Service};
use super::{Action, Cause, Conn, ConnectError, HANDSHAKE, Level, MAX_BLOCK, MAX_PENDING, Machine};
use crate::bootstrap::id::show;
use crate::error::Error;

mod dial;
mod gather;
mod messages;

use dial::Dials;
pub use dial::Retry;
use gather::Gather;
use messages::Messages;

/// Bytes of a hello frame: header, purpose, from, to.
const HELLO: usize = super::wire::HEADER + 9;
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
    pub settings: Settings,
    /// Where this rank listens, on which interface, and its facts.
    pub entry: Entry,
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
    fn limit(self, nranks: u32) -> usize {
        let sizes = 64 + 4 * nranks as usize;
        match self {
            Purpose::Tree => gather::TREE_BYTES + sizes,
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
enum Phase {
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
    place: Place,
    phase: Phase,
    failure: Option<Error>,
    links: BTreeMap<Conn, Link>,
    next_conn: Conn,
    dials: Dials,
    /// The magic of connections between members; known from the welcome on.
    token: Option<u64>,
    root: Option<Conn>,
    parent: Option<Conn>,
    /// One for each range of `place.children`.
    children: Vec<Option<Conn>>,
    /// What is known about the other ranks.
    roster: BTreeMap<u32, Entry>,
    gather: Gather,
    messages: Messages,
    /// When the operation in progress must be over.
    limit: Option<Duration>,
    actions: VecDeque<Action>,
}

impl Member {
    /// A member that begins to join now.
    pub fn new(config: MemberConfig, now: Duration) -> Member {
        let place = tree::place(config.rank, config.nranks);
        let mut member = Member {
            children: vec![None; place.children.len()],
            gather: Gather::new(&place),
            // The root's own limit names who is missing; this one is for a root that is silent.
            limit: config.timeout.map(|timeout| now + timeout + super::HANG_UP),
            place,
            phase: Phase::Root,
            failure: None,
            links: BTreeMap::new(),
            next_conn: 1,
            dials: Dials::default(),
            token: None,
            root: None,
            parent: None,
            roster: BTreeMap::new(),
            messages: Messages::default(),
            actions: VecDeque::new(),
            config,
        };
        member.dial_root(now);
        member
    }

    /// The first error, if there was one.
    pub fn error(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Whether the rendezvous is over and the tree connected.
    pub fn joined(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// What is known about a rank; everything once [`Member::joined`].
    pub fn entry(&self, rank: u32) -> Option<&Entry> {
        self.roster.get(&rank)
    }

    /// Tells the root that this rank's initialisation is complete, and parts from it.
    pub fn complete(&mut self) {
        if let Some(conn) = self.root.take() {
            self.send(conn, Encoder::new(Kind::Done, 0).finish());
            self.close(conn);
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
                self.send(conn, Encoder::new(Kind::Bye, 0).finish());
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
        self.failure = Some(error);
        self.dials.clear();
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

    fn drop_stranger(&mut self, conn: Conn, why: &str) {
        let Some(link) = self.links.get(&conn) else {
            return;
        };
        let text = format!("Bootstrap: rank {} dropped a connection from {}: {why}", self.config.rank, show(link.address));
        self.close(conn);
        self.log(Level::Info, text);
    }

    /// A rank with its address and interface.
    fn name(&self, rank: u32) -> String {
        match self.roster.get(&rank) {
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
                Role::In(_, purpose) | Role::Out(_, purpose, true) => {
                    self.next_frame(now, conn, purpose.limit(self.config.nranks))
                }
            };
            if !more {
                return;
            }
        }
    }

    /// The preamble and hello of an accepted connection.
    fn identify(&mut self, now: Duration, conn: Conn) -> bool {
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
                    Ok(Some(Frame { kind: Kind::Hello, payload })) => self.hello(now, conn, &payload),
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
    fn hello(&mut self, now: Duration, conn: Conn, payload: &[u8]) -> bool {
        let Some((from, purpose)) = read_hello(payload, self.config.rank, self.config.nranks) else {
            self.drop_stranger(conn, "its hello is malformed");
            return false;
        };
        let taken = match purpose {
            Purpose::Tree => self.take_child(conn, from),
            Purpose::Ring => from == (self.config.rank + self.config.nranks - 1) % self.config.nranks,
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

    fn take_child(&mut self, conn: Conn, from: u32) -> bool {
        let Some(index) = self.place.children.iter().position(|span| span.start == from) else {
            return false;
        };
        // A child that connects again has lost its first connection before the answer.
        self.children[index] = Some(conn);
        true
    }

    /// The preamble that answers ours.
    fn answer(&mut self, now: Duration, conn: Conn) -> bool {
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
            Role::Out(_, Purpose::Ring, _) => self.ring_flush(),
            Role::Out(rank, Purpose::Messages, _) => self.flush_messages(rank),
            _ => self.links_complete(now),
        }
        true
    }

    fn wrong_answer(&mut self, conn: Conn) {
        let Some(link) = self.links.get(&conn) else {
            return;
        };
        let (rank, who) = match link.role {
            Role::Out(rank, ..) => (Some(rank), self.name(rank)),
            _ => (None, "the root".to_string()),
        };
        let text = format!(
            "something that is not oxccl answers rank {} at {}, where {who} should listen",
            self.config.rank,
            show(link.address)
        );
        self.fail_with(&Failure::remote(rank, text));
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
            (_, Kind::Fail) => Failure::decode(&payload).map(|failure| self.fail_with(&failure)),
            (Role::Root(_), Kind::Welcome) if self.phase == Phase::Root => {
                Welcome::decode(&payload).and_then(|welcome| self.welcome(now, welcome))
            }
            (Role::Root(_), Kind::Progress) => Decoder(&payload).text().map(|text| self.log(Level::Info, text)),
            (_, Kind::Bye) => {
                if let Some(link) = self.links.get_mut(&conn) {
                    link.bye = true;
                }
                Ok(())
            }
            (Role::In(from, Purpose::Tree), Kind::Up) => self.up(now, from, &payload),
            (Role::Out(_, Purpose::Tree, _), Kind::Down) => self.down(now, payload),
            (Role::In(_, Purpose::Ring), Kind::Ring) => self.ring_piece(now, payload),
            (Role::In(from, Purpose::Messages), Kind::Message) => self.message(from, &payload),
            (_, kind) => Err(super::wire::Malformed(format!("an unexpected {kind:?}"))),
        };
        if let Err(bad) = outcome {
            self.broken(now, conn, &format!("it sent {bad}"));
        }
    }

    fn welcome(&mut self, now: Duration, welcome: Welcome) -> Result<(), super::wire::Malformed> {
        let (rank, nranks) = (self.config.rank, self.config.nranks);
        match welcome.roster {
            Roster::Full(entries) => {
                if entries.len() != nranks as usize {
                    return Err(super::wire::Malformed(format!("a welcome with {} ranks", entries.len())));
                }
                self.roster = (0..nranks).zip(entries).collect();
            }
            Roster::Links { parent, next } => {
                self.roster.insert((rank + 1) % nranks, next);
                if let (Some(parent_rank), Some(parent)) = (self.place.parent, parent) {
                    self.roster.insert(parent_rank, parent);
                }
            }
        }
        self.token = Some(welcome.token);
        self.phase = Phase::Links;
        if let Some(parent) = self.place.parent {
            self.dial(now, parent, Purpose::Tree)?;
        }
        let waiting: Vec<Conn> =
            self.links.iter().filter(|(_, link)| matches!(link.role, Role::Unknown(_))).map(|(conn, _)| *conn).collect();
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
    fn links_complete(&mut self, now: Duration) {
        if self.phase != Phase::Links || self.children.iter().any(Option::is_none) {
            return;
        }
        let answered = |conn: Conn| matches!(self.links.get(&conn), Some(Link { role: Role::Out(_, _, true), .. }));
        if self.place.parent.is_some() && !self.parent.is_some_and(answered) {
            return;
        }
        if self.roster.len() == self.config.nranks as usize {
            self.phase = Phase::Ready;
            self.limit = None;
            return;
        }
        self.phase = Phase::Roster;
        let own = self.config.entry.clone();
        let block = own.encode(Encoder::new(Kind::Join, own.bytes())).finish();
        self.begin_gather(now, &block[super::wire::HEADER..]);
        self.roster_complete();
    }

    /// The first all-gather brings the roster, where the root did not.
    fn roster_complete(&mut self) {
        if self.phase != Phase::Roster {
            return;
        }
        let Some(blocks) = self.gather.take() else {
            return;
        };
        for (rank, block) in (0..self.config.nranks).zip(blocks) {
            match Entry::decode(&mut Decoder(&block)) {
                Ok(entry) => {
                    self.roster.insert(rank, entry);
                }
                Err(bad) => {
                    return self.fail_with(&Failure::remote(Some(rank), format!("the entry of rank {rank} is malformed: {bad}")));
                }
            }
        }
        self.phase = Phase::Ready;
        self.limit = None;
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
            Role::Root(false) | Role::Out(_, Purpose::Tree | Purpose::Ring, false) => {
                self.dial_again(now, conn, Cause::Refused, why)
            }
            Role::Root(true) => self.root_lost(why),
            Role::Out(rank, ..) | Role::In(rank, _) => self.peer_lost(rank, why, bye),
        }
    }

    /// The root went away. After the welcome it is only one of two ways for bad news.
    fn root_lost(&mut self, why: &str) {
        self.root = None;
        if self.phase != Phase::Root {
            return;
        }
        let text = format!(
            "rank {} has lost the root at {} before all ranks had joined ({why}): the process that made the ncclUniqueId has probably ended",
            self.config.rank,
            show(self.config.root)
        );
        self.fail_with(&Failure::remote(None, text));
    }

    /// A neighbour went away: an error only where an operation needs it.
    fn peer_lost(&mut self, rank: u32, why: &str, bye: bool) {
        let busy = self.gather.active() || self.phase != Phase::Ready || self.messages.waits_for(rank);
        self.messages.gone(rank, why, bye);
        if busy {
            self.fail_with(&self.absence(rank, why, bye));
        }
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

    fn tick_links(&mut self, now: Duration) {
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

    fn tick_limit(&mut self, now: Duration) {
        if self.limit.is_none_or(|limit| now < limit) {
            return;
        }
        self.limit = None;
        let seconds = self.config.timeout.unwrap_or_default().as_secs_f32();
        let (rank, root) = (self.config.rank, show(self.config.root));
        let failure = match self.phase {
            Phase::Root => Failure::timeout(
                None,
                format!("rank {rank} has waited {seconds} s for the root at {root}, which does not say who is missing"),
            ),
            Phase::Links => self.links_late(seconds),
            Phase::Roster | Phase::Ready => self.operation_late(seconds),
        };
        self.fail_with(&failure);
    }

    fn links_late(&self, seconds: f32) -> Failure {
        let children =
            self.place.children.iter().zip(&self.children).filter(|(_, conn)| conn.is_none()).map(|(span, _)| span.start);
        let parent = self.place.parent.filter(|_| self.parent.is_none());
        let missing: Vec<u32> = parent.into_iter().chain(children).collect();
        let culprit = if missing.len() == 1 { Some(missing[0]) } else { None };
        let text = format!("after {seconds} s rank {} has no connection with {}", self.config.rank, super::ranks::name(&missing));
        Failure::timeout(culprit, text)
    }
}

/// Who is told about a failure directly.
fn is_told(role: Role) -> bool {
    !matches!(role, Role::Unknown(_))
}

/// Sender and purpose of a hello that is meant for `rank`.
fn read_hello(payload: &[u8], rank: u32, nranks: u32) -> Option<(u32, Purpose)> {
    let mut decoder = Decoder(payload);
    let purpose = Purpose::from_byte(decoder.u8().ok()?)?;
    let (from, to) = (decoder.u32().ok()?, decoder.u32().ok()?);
    decoder.end().ok()?;
    (from < nranks && to == rank).then_some((from, purpose))
}

impl Machine for Member {
    fn accepted(&mut self, now: Duration, from: SocketAddr) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        let mut pending = self.links.iter().filter(|(_, link)| matches!(link.role, Role::Unknown(_))).map(|(conn, _)| *conn);
        if let (Some(oldest), Some(_)) = (pending.next(), pending.nth(MAX_PENDING)) {
            self.drop_stranger(oldest, "too many connections have not said who they are");
        }
        self.links.insert(conn, Link { role: Role::Unknown(now), address: from, reader: Reader::default(), bye: false });
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
