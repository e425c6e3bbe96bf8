//! A network in memory: one thread, a seeded order of events, a clock of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::checkin::Entry;
use super::super::member::{Member, MemberConfig, Retry};
use super::super::root::{Root, RootConfig};
use super::super::roots::{Algorithm, RootAddress, RootPlace, root_of};
use super::super::wire::FrameKind;
use super::super::{Action, Cause, Conn, ConnectError, Level, Machine, tree};
use crate::error::Error;

pub const MAGIC: u64 = 0x1122_3344_5566_7788;
pub const TOKEN: u64 = 0x99aa_bbcc_ddee_ff00;
/// Who is at an end of a connection.
pub type Id = usize;

enum NetworkEvent {
    Start,
    Arrive {
        from: Id,
        conn: Conn,
        to: SocketAddr,
    },
    Connected {
        conn: Conn,
        ok: bool,
    },
    Deliver {
        conn: Conn,
        bytes: Arc<[u8]>,
        piece: Range<usize>,
    },
    End {
        conn: Conn,
        reset: bool,
    },
    Tick,
    Kill,
    Fail,
    /// A stranger connects to this machine, says something, and stays, leaves or resets.
    Visit {
        bytes: Vec<u8>,
        stay: bool,
    },
    /// A connection of this machine breaks in the middle of the network.
    Cut,
    /// A member that is through goes on with its script.
    Script,
}

/// What a member does once its initialisation is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberOp {
    /// An exchange of all ranks.
    Gather,
    /// No part in the next exchange.
    Refuse,
    /// A message to a rank.
    Send(u32),
    /// One from a rank.
    Receive(u32),
    /// The end of the operation in progress comes first, unless it is quick.
    GiveUp,
}

#[allow(clippy::large_enum_variant)]
enum SimulatedNode {
    Idle(MemberConfig),
    Member { member: Member, step: u32 },
    Root(Root),
    Gone,
}

struct Pipe {
    peer: Option<(Id, Conn)>,
    /// Bytes and ends keep their order.
    last: Duration,
}

/// What a node has sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub connects: u64,
    pub messages_in: u64,
    pub messages_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// The kind of a frame that brings a result down the tree.
const DOWN: u8 = FrameKind::Down as u8;

pub struct World {
    pub rng: StdRng,
    pub now: Duration,
    pub events: u64,
    pub max_delay_us: u64,
    pub warnings: Vec<String>,
    pub infos: Vec<String>,
    /// What the members did in the end: an error, or everything.
    pub outcomes: BTreeMap<Id, Option<Error>>,
    queue: BinaryHeap<Reverse<(Duration, u64, Id)>>,
    bodies: BTreeMap<u64, NetworkEvent>,
    sequence: u64,
    nodes: Vec<SimulatedNode>,
    ticks: Vec<Option<Duration>>,
    pipes: BTreeMap<(Id, Conn), Pipe>,
    /// The first root; the others follow it.
    pub root: Id,
    roots: u32,
    /// How the members meet.
    pub algorithm: Algorithm,
    /// Every step through the network takes this long, and pieces arrive as they were sent.
    pub even_delay: Option<Duration>,
    /// The part of connects that are refused though somebody listens.
    pub refusing: f64,
    /// The part of what is sent in which a byte changes on its way.
    pub corrupting: f64,
    /// Members that do not read results which are larger: all but every so many.
    pub unread: Option<u32>,
    /// By id: what it has sent and received.
    pub traffic: Vec<Traffic>,
    listens: Vec<bool>,
    facts: usize,
    /// All-gathers that every member does after the rendezvous.
    pub rounds: u32,
    /// After them a message.
    pub exchange: bool,
    /// Half of the members leave when they are through.
    pub leave: bool,
    /// The size of the blocks of the all-gathers.
    pub block: usize,
    /// By id.
    ranks: Vec<u32>,
    /// What members do after their initialisation.
    scripts: BTreeMap<Id, VecDeque<MemberOp>>,
    /// How each operation of a script went, in order.
    pub done: BTreeMap<Id, Vec<Result<(), Error>>>,
    /// The operation that a member is in.
    current: BTreeMap<Id, MemberOp>,
}

fn address(id: Id) -> SocketAddr {
    let [_, a, b, c] = (id as u32).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, a, b, c)), 7)
}

/// What rank `rank` brings to round `round`.
fn block(rank: u32, round: u32, size: usize) -> Vec<u8> {
    let size = if size == 0 { 0 } else { size / 2 + (rank as usize * 31 + round as usize) % size };
    (0..size).map(|i| (i as u32).wrapping_mul(rank + 3).wrapping_add(round) as u8).collect()
}

impl World {
    /// A root, and no member yet.
    pub fn new(seed: u64, nranks: u32, root: RootConfig) -> World {
        World::with_roots(seed, nranks, root, 1)
    }

    /// Several roots.
    pub fn with_roots(seed: u64, nranks: u32, root: RootConfig, count: u32) -> World {
        let root_id = nranks as usize + 8;
        let top = root_id + count as usize;
        let mut world = World {
            rng: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            events: 0,
            max_delay_us: 20_000,
            warnings: Vec::new(),
            infos: Vec::new(),
            outcomes: BTreeMap::new(),
            queue: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            sequence: 0,
            nodes: (0..top).map(|_| SimulatedNode::Gone).collect(),
            ticks: vec![None; top],
            pipes: BTreeMap::new(),
            root: root_id,
            roots: count,
            algorithm: Algorithm::Tree,
            even_delay: None,
            refusing: 0.0,
            corrupting: 0.0,
            unread: None,
            traffic: vec![Traffic::default(); top],
            listens: vec![true; top],
            facts: 20,
            rounds: if nranks < 500 { 3 } else { 1 },
            exchange: true,
            leave: true,
            block: 50,
            ranks: vec![0; top],
            scripts: BTreeMap::new(),
            done: BTreeMap::new(),
            current: BTreeMap::new(),
        };
        for index in 0..count {
            let own = RootConfig { magic: MAGIC + u64::from(index), token: TOKEN + u64::from(index), ..root.clone() };
            world.nodes[root_id + index as usize] = SimulatedNode::Root(Root::new(own, Duration::ZERO));
            world.after(root_id + index as usize);
        }
        world
    }

    pub fn root_config() -> RootConfig {
        RootConfig {
            magic: MAGIC,
            token: TOKEN,
            process: "host0:0".to_string(),
            fixed: false,
            timeout: None,
            progress: Duration::from_secs(30),
            idle: Duration::from_secs(3600),
            linger: Duration::from_secs(20),
            pending: 1 << 17,
        }
    }

    /// The settings of an ordinary member.
    pub fn member(&self, id: Id, rank: u32, nranks: u32) -> MemberConfig {
        let of = |index: u32| (address(self.root + index as usize), MAGIC + u64::from(index));
        let above = |index: u32| RootAddress { address: of(index).0, magic: of(index).1, secret: [index as u8; 32] };
        let count = self.roots.min(nranks);
        let index = root_of(rank.min(nranks - 1), count, nranks);
        MemberConfig {
            rank,
            nranks,
            magic: of(index).1,
            root: of(index).0,
            fixed: false,
            version: 23203,
            process: format!("host{}:{id}", id / 8),
            settings: vec![("NCCL_ALGO".to_string(), "Ring".to_string())],
            entry: Entry { address: address(id), interface: "eth0".to_string(), facts: vec![rank as u8; self.facts] },
            common: ((id / 8) as u32).to_le_bytes().repeat(10),
            algorithm: self.algorithm,
            delay: Duration::ZERO,
            place: RootPlace { index, count, digest: 7, above: tree::place(index, count).parent.map(above) },
            timeout: None,
            retry: Retry { count: 34, sleep: Duration::from_millis(100) },
        }
    }

    fn push(&mut self, at: Duration, id: Id, event: NetworkEvent) {
        self.sequence += 1;
        self.queue.push(Reverse((at, self.sequence, id)));
        self.bodies.insert(self.sequence, event);
    }

    fn delay(&mut self) -> Duration {
        if let Some(delay) = self.even_delay {
            return delay;
        }
        Duration::from_micros(self.rng.random_range(1..=self.max_delay_us))
    }

    pub fn start(&mut self, id: Id, config: MemberConfig, at: Duration) {
        self.ranks[id] = config.rank;
        self.nodes[id] = SimulatedNode::Idle(config);
        self.push(at, id, NetworkEvent::Start);
    }

    /// Changes a member that was announced and has not started.
    pub fn restart(&mut self, id: Id, config: MemberConfig) {
        self.ranks[id] = config.rank;
        self.nodes[id] = SimulatedNode::Idle(config);
    }

    pub fn kill(&mut self, id: Id, at: Duration) {
        self.push(at, id, NetworkEvent::Kill);
    }

    pub fn fail(&mut self, id: Id, at: Duration) {
        self.push(at, id, NetworkEvent::Fail);
    }

    pub fn visit(&mut self, id: Id, at: Duration, bytes: Vec<u8>, stay: bool) {
        self.push(at, id, NetworkEvent::Visit { bytes, stay });
    }

    pub fn cut(&mut self, id: Id, at: Duration) {
        self.push(at, id, NetworkEvent::Cut);
    }

    /// Lets a member that is through carry out operations, one after the other, from a moment on.
    pub fn script(&mut self, id: Id, at: Duration, ops: &[MemberOp]) {
        self.scripts.entry(id).or_default().extend(ops);
        self.push(at, id, NetworkEvent::Script);
    }

    /// Whether a member has carried out its script.
    pub fn script_over(&self, id: Id) -> bool {
        self.scripts.get(&id).is_none_or(VecDeque::is_empty) && !self.current.contains_key(&id)
    }

    /// Goes on with a script as far as it gets. A member reads nothing while it has no operation to carry out, as in
    /// life; here it does, which must make no difference.
    fn follow_script(&mut self, id: Id) {
        let (now, rank) = (self.now, self.ranks[id]);
        loop {
            let SimulatedNode::Member { member, .. } = &mut self.nodes[id] else {
                return;
            };
            if let Some(op) = self.current.get(&id).copied() {
                let error = member.error().cloned();
                let over = match op {
                    _ if error.is_some() => true,
                    MemberOp::Gather => member.take_gathered().is_some(),
                    MemberOp::Send(to) => member.sent(to),
                    MemberOp::Receive(from) => member.take_message().is_some_and(|message| {
                        assert_eq!(message, block(from, 1, 30), "rank {rank}");
                        true
                    }),
                    MemberOp::Refuse | MemberOp::GiveUp => true,
                };
                if !over {
                    return;
                }
                self.current.remove(&id);
                self.done.entry(id).or_default().push(error.map_or(Ok(()), Err));
            }
            let Some(op) = self.scripts.get_mut(&id).and_then(VecDeque::pop_front) else {
                return;
            };
            let begun = match op {
                MemberOp::Gather => member.start_all_gather(now, &block(rank, 1, 30)),
                MemberOp::Send(to) => member.send_message(now, to, 1, &block(rank, 1, 30)),
                MemberOp::Receive(from) => member.start_receive(now, from, 1),
                MemberOp::Refuse => {
                    member.refuse(&Error::Resource(format!("rank {rank} does not want to")));
                    Ok(())
                }
                MemberOp::GiveUp => Ok(()),
            };
            match begun {
                Ok(()) if op != MemberOp::Refuse => drop(self.current.insert(id, op)),
                outcome => self.done.entry(id).or_default().push(outcome),
            }
            if op == MemberOp::Gather && self.scripts[&id].front() == Some(&MemberOp::GiveUp) {
                self.scripts.get_mut(&id).and_then(VecDeque::pop_front);
                member.give_up(Error::Aborted);
            }
        }
    }

    pub fn root_finished(&self) -> bool {
        self.nodes[self.root..].iter().all(|node| match node {
            SimulatedNode::Root(root) => root.finished(),
            _ => true,
        })
    }

    /// Runs until every one of `wanted` has an outcome, or until `limit`; whether they have.
    pub fn run(&mut self, wanted: &[Id], limit: Duration) -> bool {
        loop {
            let enough = self.outcomes.len() >= wanted.len();
            if enough && wanted.iter().all(|id| self.outcomes.contains_key(id)) {
                return true;
            }
            if !self.step(limit) {
                return false;
            }
        }
    }

    /// Runs on until `limit`, whatever happens.
    pub fn run_until(&mut self, limit: Duration) {
        while self.step(limit) {}
    }

    fn step(&mut self, limit: Duration) -> bool {
        let Some(Reverse((at, sequence, id))) = self.queue.pop() else {
            return false;
        };
        if at > limit {
            self.queue.push(Reverse((at, sequence, id)));
            return false;
        }
        self.now = self.now.max(at);
        self.events += 1;
        let event = self.bodies.remove(&sequence).expect("an event has a body");
        self.handle(id, event);
        self.after(id);
        true
    }

    fn machine(&mut self, id: Id) -> Option<&mut dyn Machine> {
        match &mut self.nodes[id] {
            SimulatedNode::Member { member, .. } => Some(member),
            SimulatedNode::Root(root) => Some(root),
            SimulatedNode::Idle(_) | SimulatedNode::Gone => None,
        }
    }

    fn handle(&mut self, id: Id, event: NetworkEvent) {
        let now = self.now;
        match event {
            NetworkEvent::Start => {
                if let SimulatedNode::Idle(config) = &self.nodes[id] {
                    self.nodes[id] = SimulatedNode::Member { member: Member::new(config.clone(), now), step: 0 };
                }
            }
            NetworkEvent::Arrive { from, conn, to } => return self.arrive(from, conn, to, id),
            NetworkEvent::Connected { conn, ok } => {
                let refused = ConnectError { cause: Cause::Refused, text: "Connection refused".to_string() };
                if let Some(machine) = self.machine(id) {
                    machine.connected(now, conn, if ok { Ok(()) } else { Err(refused) });
                }
            }
            NetworkEvent::Deliver { conn, bytes, piece } => self.delivered(id, conn, &bytes, piece),
            NetworkEvent::End { conn, reset } => {
                if self.pipes.remove(&(id, conn)).is_some()
                    && let Some(machine) = self.machine(id)
                {
                    machine.closed(now, conn, reset.then(|| "Connection reset by peer".to_string()));
                }
            }
            NetworkEvent::Tick => {
                if let Some(machine) = self.machine(id)
                    && machine.deadline().is_some_and(|deadline| deadline <= now)
                {
                    machine.tick(now);
                }
            }
            NetworkEvent::Kill => self.killed(id),
            NetworkEvent::Fail => self.failed(id),
            NetworkEvent::Visit { bytes, stay } => self.visited(id, bytes, stay),
            NetworkEvent::Script => {}
            NetworkEvent::Cut => {
                let conns: Vec<Conn> = self.pipes.range((id, 0)..=(id, Conn::MAX)).map(|(key, _)| key.1).collect();
                if !conns.is_empty() {
                    let conn = conns[self.rng.random_range(0..conns.len())];
                    self.hang_up(id, conn, true);
                    let at = self.pipes[&(id, conn)].last.max(now);
                    self.push(at, id, NetworkEvent::End { conn, reset: true });
                }
            }
        }
        self.look(id);
        if self.outcomes.get(&id) == Some(&None) {
            self.follow_script(id);
        }
    }

    fn delivered(&mut self, id: Id, conn: Conn, bytes: &Arc<[u8]>, piece: Range<usize>) {
        if !self.pipes.contains_key(&(id, conn)) {
            return;
        }
        self.traffic[id].bytes_in += piece.len() as u64;
        self.traffic[id].messages_in += 1;
        let (now, rank) = (self.now, self.ranks[id]);
        let unread = self.unread.is_some_and(|every| !rank.is_multiple_of(every) && bytes.get(4) == Some(&DOWN));
        match &mut self.nodes[id] {
            SimulatedNode::Member { member, .. } if unread => member.pass_on_unread(bytes),
            SimulatedNode::Member { member, .. } => member.received(now, conn, &bytes[piece]),
            SimulatedNode::Root(root) => root.received(now, conn, &bytes[piece]),
            SimulatedNode::Idle(_) | SimulatedNode::Gone => {}
        }
    }

    /// A connect request reaches `to`.
    fn arrive(&mut self, from: Id, conn: Conn, to: SocketAddr, id: Id) {
        let now = self.now;
        let listens = match &self.nodes[id] {
            SimulatedNode::Root(_) | SimulatedNode::Member { .. } => self.listens[id],
            SimulatedNode::Idle(_) | SimulatedNode::Gone => false,
        };
        debug_assert_eq!(to, address(id));
        let back = now + self.delay();
        let listens = listens && !(self.refusing > 0.0 && self.rng.random_bool(self.refusing));
        if listens && let Some(machine) = self.machine(id) {
            let theirs = machine.accepted(now, address(from));
            self.pipes.insert((id, theirs), Pipe { peer: Some((from, conn)), last: back });
            self.pipes.insert((from, conn), Pipe { peer: Some((id, theirs)), last: back });
        }
        self.push(back, from, NetworkEvent::Connected { conn, ok: listens });
    }

    /// A member fails by itself; one that has not started joins only to say so.
    fn failed(&mut self, id: Id) {
        let error = Error::Resource("no memory left".to_string());
        match &mut self.nodes[id] {
            SimulatedNode::Idle(config) => {
                let member = Member::reporting(config.clone(), &error, self.now);
                self.nodes[id] = SimulatedNode::Member { member, step: 0 };
            }
            SimulatedNode::Member { member, .. } if member.checked_in() => member.fail(error),
            _ => self.push(self.now + Duration::from_millis(5), id, NetworkEvent::Fail),
        }
    }

    fn killed(&mut self, id: Id) {
        if matches!(self.nodes[id], SimulatedNode::Gone) {
            return;
        }
        self.nodes[id] = SimulatedNode::Gone;
        let reset = self.rng.random_bool(0.5);
        let conns: Vec<Conn> = self.pipes.range((id, 0)..=(id, Conn::MAX)).map(|(key, _)| key.1).collect();
        for conn in conns {
            self.hang_up(id, conn, reset);
            self.pipes.remove(&(id, conn));
        }
    }

    fn visited(&mut self, id: Id, bytes: Vec<u8>, stay: bool) {
        let now = self.now;
        let listens = self.listens[id];
        let Some(machine) = self.machine(id).filter(|_| listens) else {
            return;
        };
        let conn = machine.accepted(now, SocketAddr::from(([192, 0, 2, 9], 99)));
        self.pipes.insert((id, conn), Pipe { peer: None, last: now });
        self.transmit(id, conn, &bytes.into());
        if !stay {
            let at = self.pipes[&(id, conn)].last;
            let reset = self.rng.random_bool(0.5);
            self.push(at, id, NetworkEvent::End { conn, reset });
        }
    }

    fn corrupted(&mut self, bytes: &Arc<[u8]>) -> Arc<[u8]> {
        if self.corrupting == 0.0 || bytes.is_empty() || !self.rng.random_bool(self.corrupting) {
            return bytes.clone();
        }
        let mut changed = bytes.to_vec();
        let at = self.rng.random_range(0..changed.len());
        changed[at] = self.rng.random();
        changed.into()
    }

    /// Bytes on their way to the connection `conn` of `id`, in pieces.
    fn transmit(&mut self, id: Id, conn: Conn, bytes: &Arc<[u8]>) {
        let bytes = &self.corrupted(bytes);
        let mut rest = 0..bytes.len();
        while !rest.is_empty() {
            let some = if rest.len() > 1 && self.even_delay.is_none() && self.rng.random_bool(0.3) {
                self.rng.random_range(1..=rest.len())
            } else {
                rest.len()
            };
            let piece = rest.start..rest.start + some;
            rest.start += some;
            let at = self.now + self.delay();
            let Some(pipe) = self.pipes.get_mut(&(id, conn)) else {
                return;
            };
            pipe.last = pipe.last.max(at);
            let at = pipe.last;
            self.push(at, id, NetworkEvent::Deliver { conn, bytes: bytes.clone(), piece });
        }
    }

    /// `id` ends its side of `conn`.
    fn hang_up(&mut self, id: Id, conn: Conn, reset: bool) {
        let Some((peer, theirs)) = self.pipes.get(&(id, conn)).and_then(|pipe| pipe.peer) else {
            return;
        };
        let at = self.now + self.delay();
        if let Some(pipe) = self.pipes.get_mut(&(peer, theirs)) {
            pipe.last = pipe.last.max(at);
            let at = pipe.last;
            self.push(at, peer, NetworkEvent::End { conn: theirs, reset });
        }
    }

    /// Carries out what a machine wants, and plans its next tick.
    fn after(&mut self, id: Id) {
        while let Some(action) = self.machine(id).and_then(|machine| machine.action()) {
            match action {
                Action::Connect { conn, to } => {
                    self.traffic[id].connects += 1;
                    let at = self.now + self.delay();
                    let target = match to.ip() {
                        IpAddr::V4(ip) => (u32::from(ip) & 0xff_ffff) as usize,
                        IpAddr::V6(_) => usize::MAX,
                    };
                    // Where an address was corrupted, nobody may be there.
                    match target < self.nodes.len() && address(target) == to {
                        true => self.push(at, target, NetworkEvent::Arrive { from: id, conn, to }),
                        false => self.push(at, id, NetworkEvent::Connected { conn, ok: false }),
                    }
                }
                Action::Send { conn, bytes } => {
                    self.traffic[id].messages_out += 1;
                    self.traffic[id].bytes_out += bytes.len() as u64;
                    if let Some((peer, theirs)) = self.pipes.get(&(id, conn)).and_then(|pipe| pipe.peer) {
                        self.transmit(peer, theirs, &bytes);
                    }
                }
                Action::Close { conn } => {
                    self.hang_up(id, conn, false);
                    self.pipes.remove(&(id, conn));
                }
                Action::StopListening => self.listens[id] = false,
                Action::Log(Level::Warn | Level::Attention, text) => self.warnings.push(text),
                Action::Log(Level::Info, text) => self.infos.push(text),
            }
        }
        let deadline = self.machine(id).and_then(|machine| machine.deadline());
        if let Some(at) = deadline
            && self.ticks[id].is_none_or(|planned| planned != at || planned <= self.now)
        {
            self.ticks[id] = Some(at);
            self.push(at.max(self.now), id, NetworkEvent::Tick);
        }
    }

    /// Takes the next steps of a member's script: rendezvous, some all-gathers, a message to the next rank
    /// but one and one from the last but one, complete, and perhaps leave.
    fn look(&mut self, id: Id) {
        while !self.outcomes.contains_key(&id) && self.take_step(id) {}
    }

    /// Whether a step is over and the next one begun.
    fn take_step(&mut self, id: Id) -> bool {
        let (now, size, rounds, rank) = (self.now, self.block, self.rounds, self.ranks[id]);
        let exchange = self.exchange;
        let leaves = self.leave && self.rng.random_bool(0.5);
        let SimulatedNode::Member { member, step } = &mut self.nodes[id] else {
            return false;
        };
        if let Some(error) = member.error() {
            self.outcomes.insert(id, Some(error.clone()));
            // The process reports the error and leaves.
            member.leave();
            return false;
        }
        let nranks = member.nranks();
        let (to, from) = ((rank + 2) % nranks, (rank + 2 * nranks - 2) % nranks);
        let over = match *step {
            0 => member.joined(),
            round if round <= rounds => match member.take_gathered() {
                None => false,
                Some(blocks) => {
                    for (other, found) in (0u32..).zip(&blocks) {
                        assert!(*found == block(other, round, size), "rank {rank} got wrong bytes of rank {other}");
                    }
                    blocks.len() == nranks as usize
                }
            },
            sending if sending == rounds + 1 => member.sent(to),
            _ => member.take_message().is_some_and(|message| {
                assert_eq!(message, block(from, 99, 40), "rank {rank}");
                true
            }),
        };
        if !over {
            return false;
        }
        *step += 1;
        if *step <= rounds {
            let _ = member.start_all_gather(now, &block(rank, *step, size));
        } else if *step == rounds + 1 && exchange {
            let _ = member.send_message(now, to, 5, &block(rank, 99, 40));
        } else if *step == rounds + 2 && exchange {
            let _ = member.start_receive(now, from, 5);
        } else {
            member.complete();
            if leaves {
                member.leave();
            }
            self.outcomes.insert(id, None);
        }
        true
    }
}

/// What NVIDIA's library says first: magic, type, the length of a record, and the record.
pub fn nvidia_hello(rank: u32, nranks: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_le_bytes().to_vec();
    for word in [1u32, 180, rank, nranks] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.resize(bytes.len() + 172, 0);
    bytes
}

/// A frame of any kind, for strangers that speak the protocol.
pub fn frame_of(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
    super::super::wire::Encoder::new(kind, payload.len()).raw(payload).finish().to_vec()
}
