//! The root of a rendezvous: collects the ranks, compares what they bring, answers all at once, and
//! carries bad news until every rank's initialisation is complete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::checkin::{Announcement, CheckIn, MAX_CHECKIN, Welcome};
use super::failure::Failure;
use super::roots::{Algorithm, MAX_SUMMARY, RootHello};
use super::stranger::{self, Visitor};
use super::wire::{FrameKind, PROTOCOL, Preamble, Reader, Service};
use super::{ANSWER, Action, Conn, ConnectError, FULL_ROSTER, HANDSHAKE, HANG_UP, Level, MAX_FACTS, Machine, tree};
use crate::bootstrap::id::show;

mod announced;
mod checks;
mod others;

use others::OtherRoots;

/// How long the root waits for the rank number of a rank that runs NVIDIA's library.
const NVIDIA_RECORD: Duration = Duration::from_millis(200);
/// The most bytes that a visitor may send before it is identified.
const MAX_UNIDENTIFIED: usize = MAX_CHECKIN + 64;

/// What a root must know.
#[derive(Clone, Debug)]
pub struct RootConfig {
    /// The run's magic, from the id.
    pub magic: u64,
    /// The magic of the members' connections.
    pub token: u64,
    /// `host:pid` of the root's process.
    pub process: String,
    /// The address is fixed: a failed root must not keep it, since a new run may want it.
    pub fixed: bool,
    /// Limit from the first check-in until everybody is in; members may bring a shorter one.
    pub timeout: Option<Duration>,
    /// How often a waiting root says who is missing.
    pub progress: Duration,
    /// How long nobody may come.
    pub idle: Duration,
    /// How long a failed root stays to tell late ranks why.
    pub linger: Duration,
    /// Connections that have not said yet who they are; beyond this the oldest is dropped. All ranks may come at once.
    pub pending: usize,
}

/// A rank that has checked in.
struct Seat {
    conn: Conn,
    from: SocketAddr,
    record: CheckIn,
    done: bool,
}

enum State {
    /// Nothing known yet, since then.
    New(Duration),
    /// NVIDIA's library; its record may still come until then.
    Nvidia(Duration),
    /// A rank of this run; its check-in may still come.
    Greeted(Duration),
    /// Checked in as this rank.
    Seated(u32),
    /// It is about to check in, by another connection.
    Announced(Announcement),
    /// A root below, which came before the first rank.
    Early(RootHello),
    /// A root below, by its position among them.
    Below(usize),
    /// The root above, which has not answered, since then.
    AboveAsked(Duration),
    /// The root above.
    Above,
    /// Was told the failure and should hang up.
    Told,
}

impl State {
    /// When the visitor must have said who it is.
    fn deadline(&self) -> Option<Duration> {
        match self {
            State::New(since) | State::Greeted(since) => Some(*since + HANDSHAKE),
            State::Nvidia(until) => Some(*until),
            State::AboveAsked(since) => Some(*since + ANSWER),
            State::Seated(_) | State::Announced(_) | State::Told => None,
            State::Early(_) | State::Below(_) | State::Above => None,
        }
    }
}

struct Visit {
    from: SocketAddr,
    reader: Reader,
    state: State,
}

enum Phase {
    Collecting,
    /// Everybody is in; the count of ranks that are not done.
    Running(u32),
    Failed {
        failure: Failure,
        at: Duration,
    },
    Finished,
}

/// The state machine.
pub struct Root {
    config: RootConfig,
    phase: Phase,
    visits: BTreeMap<Conn, Visit>,
    /// Visitors that must still say who they are, and until when.
    pending: BTreeSet<(Duration, Conn)>,
    next_conn: Conn,
    /// By rank, from the first one of this root's block on; sized by the first check-in.
    seats: Vec<Option<Seat>>,
    /// Known from the first check-in on.
    others: Option<OtherRoots>,
    seated: u32,
    /// Ranks that were told a failure, or are gone.
    told: BTreeSet<u32>,
    /// How many ranks there are by the word of a first one that could not be seated.
    claimed: usize,
    started: Duration,
    first: Option<Duration>,
    next_progress: Duration,
    timeout: Option<Duration>,
    actions: VecDeque<Action>,
}

impl Root {
    /// A root that begins to wait now.
    pub fn new(config: RootConfig, now: Duration) -> Root {
        Root {
            timeout: config.timeout,
            config,
            phase: Phase::Collecting,
            visits: BTreeMap::new(),
            pending: BTreeSet::new(),
            next_conn: 1,
            seats: Vec::new(),
            others: None,
            seated: 0,
            told: BTreeSet::new(),
            claimed: 0,
            started: now,
            first: None,
            next_progress: Duration::MAX,
            actions: VecDeque::new(),
        }
    }

    /// Nothing is left to do: the driver can end once the last actions are carried out.
    pub fn finished(&self) -> bool {
        matches!(self.phase, Phase::Finished)
    }

    /// It has failed, and is there only to say so to ranks that come late.
    pub fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed { .. })
    }

    /// Ends the rendezvous with an error for all: for instance the system refuses more descriptors.
    pub fn fail(&mut self, now: Duration, failure: Failure) {
        if matches!(self.phase, Phase::Failed { .. } | Phase::Finished) {
            return;
        }
        self.log(Level::Attention, format!("Bootstrap: the initialisation has failed: {}", failure.text));
        let bytes = failure.encode();
        let members = self.own_last().into_iter().filter(|seat| !seat.done).map(|seat| (seat.conn, seat.record.rank));
        let members: Vec<(Conn, u32)> = members.collect();
        for (conn, rank) in members {
            self.actions.push_back(Action::Send { conn, bytes: bytes.clone() });
            self.told.insert(rank);
            self.set_state(conn, State::Told);
        }
        self.tell_others(&failure);
        if self.config.fixed || matches!(self.phase, Phase::Running(_)) {
            self.actions.push_back(Action::StopListening);
        }
        self.phase = Phase::Failed { failure, at: now };
        self.check_finished(now);
    }

    /// The ranks that are there in the order in which they are told: the root's own process may end as soon as it
    /// knows, so that it comes last.
    fn own_last(&self) -> Vec<&Seat> {
        let (own, others): (Vec<&Seat>, Vec<&Seat>) =
            self.seats.iter().flatten().partition(|seat| seat.record.process == self.config.process);
        others.into_iter().chain(own).collect()
    }

    fn log(&mut self, level: Level, text: String) {
        self.actions.push_back(Action::Log(level, text));
    }

    fn set_state(&mut self, conn: Conn, state: State) {
        let Some(visit) = self.visits.get_mut(&conn) else {
            return;
        };
        if let Some(limit) = visit.state.deadline() {
            self.pending.remove(&(limit, conn));
        }
        visit.state = state;
        if let Some(limit) = visit.state.deadline() {
            self.pending.insert((limit, conn));
        }
    }

    fn take_visit(&mut self, conn: Conn) -> Option<Visit> {
        let visit = self.visits.remove(&conn)?;
        if let Some(limit) = visit.state.deadline() {
            self.pending.remove(&(limit, conn));
        }
        Some(visit)
    }

    fn drop_visit(&mut self, conn: Conn, why: &str) {
        if let Some(visit) = self.take_visit(conn) {
            self.actions.push_back(Action::Close { conn });
            self.log(Level::Info, format!("Bootstrap: dropped a connection from {}: {why}", show(visit.from)));
        }
    }

    /// Tells one visitor alone, and waits for it to hang up.
    fn turn_away(&mut self, conn: Conn, failure: &Failure) {
        self.actions.push_back(Action::Send { conn, bytes: failure.encode() });
        self.set_state(conn, State::Told);
    }

    fn advance(&mut self, now: Duration, conn: Conn) {
        loop {
            let Some(visit) = self.visits.get_mut(&conn) else {
                return;
            };
            match visit.state {
                State::New(_) => match stranger::identify(visit.reader.rest(), self.config.magic, Service::Root) {
                    Visitor::Unknown => return,
                    Visitor::Expected => {
                        visit.reader.preamble();
                        self.set_state(conn, State::Greeted(now));
                        let answer = Preamble::new(self.config.magic, Service::RootAnswer).encode();
                        self.actions.push_back(Action::Send { conn, bytes: answer.to_vec().into() });
                    }
                    other => return self.unexpected(now, conn, other),
                },
                State::Nvidia(_) => {
                    if let Visitor::Nvidia(Some(who)) =
                        stranger::identify(visit.reader.rest(), self.config.magic, Service::Root)
                    {
                        self.nvidia(now, conn, Some(who));
                    }
                    return;
                }
                State::AboveAsked(_) => {
                    if !self.above_answers(now, conn) {
                        return;
                    }
                }
                State::Below(_) | State::Above => match visit.reader.frame(MAX_SUMMARY) {
                    Ok(None) => return,
                    Ok(Some(frame)) => {
                        if !self.root_frame(now, conn, frame.kind, &frame.payload) {
                            return self.broken(now, conn, &format!("it sent an unexpected {:?}", frame.kind));
                        }
                    }
                    Err(bad) => return self.broken(now, conn, &bad.0),
                },
                // What it says next waits for the first rank.
                State::Early(_) => return,
                State::Greeted(_) | State::Seated(_) | State::Announced(_) => match visit.reader.frame(MAX_CHECKIN) {
                    Ok(None) => return,
                    Ok(Some(frame)) => self.frame(now, conn, frame.kind, &frame.payload),
                    Err(bad) => return self.broken(now, conn, &bad.0),
                },
                State::Told => return,
            }
        }
    }

    fn unexpected(&mut self, now: Duration, conn: Conn, visitor: Visitor) {
        match visitor {
            Visitor::Nvidia(Some(who)) => self.nvidia(now, conn, Some(who)),
            Visitor::Nvidia(None) => {
                self.set_state(conn, State::Nvidia(now + NVIDIA_RECORD));
            }
            Visitor::OtherProtocol(protocol) => {
                let from = self.visits.get(&conn).map_or(String::new(), |visit| show(visit.from));
                let text = format!(
                    "the rank at {from} speaks version {protocol} of oxccl's bootstrap protocol and this root version {PROTOCOL}: install the same release of oxccl on all hosts"
                );
                self.drop_visit(conn, "it runs another release of oxccl");
                self.fail(now, Failure::usage(None, text));
            }
            Visitor::Stranger(what) => self.drop_visit(conn, &format!("not a rank of this communicator ({what})")),
            Visitor::Unknown | Visitor::Expected => {}
        }
    }

    /// A rank runs NVIDIA's library: it will never understand us, so all ranks end now.
    fn nvidia(&mut self, now: Duration, conn: Conn, who: Option<(u32, u32)>) {
        let from = self.visits.get(&conn).map_or(String::new(), |visit| show(visit.from));
        let name = who.map_or("a rank".to_string(), |(rank, nranks)| format!("rank {rank} of {nranks}"));
        self.drop_visit(conn, "it runs NVIDIA's NCCL");
        let text = format!(
            "{name} at {from} runs NVIDIA's NCCL and not oxccl: LD_PRELOAD or LD_LIBRARY_PATH is probably missing on that rank"
        );
        self.fail(now, Failure::usage(who.map(|(rank, _)| rank), text));
    }

    /// A connection of this run that sends nonsense or breaks.
    fn broken(&mut self, now: Duration, conn: Conn, why: &str) {
        match self.visits.get(&conn).map(|visit| &visit.state) {
            Some(State::Seated(_) | State::Below(_) | State::Above | State::AboveAsked(_)) => {
                self.actions.push_back(Action::Close { conn });
                self.closed(now, conn, Some(why.to_string()));
            }
            _ => self.drop_visit(conn, why),
        }
    }

    /// A rank that was in is gone before it was done.
    fn lost(&mut self, now: Duration, conn: Conn, rank: u32, why: &str) {
        self.take_visit(conn);
        let name = self.name(rank);
        let text =
            format!("{name} is gone before its initialisation was complete ({why}); its process has probably died");
        self.mark_done(rank);
        self.told.insert(rank);
        self.fail(now, Failure::remote(Some(rank), text));
    }

    fn frame(&mut self, now: Duration, conn: Conn, kind: FrameKind, payload: &[u8]) {
        let state = self.visits.get(&conn).map(|visit| &visit.state);
        match (state, kind) {
            (Some(State::Greeted(_)), FrameKind::Join) => match CheckIn::decode(payload) {
                Ok(record) => self.check_in(now, conn, record),
                Err(bad) => self.drop_visit(conn, &format!("its check-in is malformed: {bad}")),
            },
            (Some(State::Greeted(_)), FrameKind::Dismiss) if payload == self.config.token.to_le_bytes() => {
                self.dismissed(conn)
            }
            (Some(State::Greeted(_)), FrameKind::RootHello) => match RootHello::decode(payload) {
                Ok(hello) => self.root_below(now, conn, hello),
                Err(bad) => self.drop_visit(conn, &format!("what it says of its root is malformed: {bad}")),
            },
            // A rank whose own root cannot be reached.
            (Some(State::Greeted(_)), FrameKind::Fail) => match Failure::decode(payload) {
                Ok(failure) => {
                    self.drop_visit(conn, "it came to tell of a failure");
                    self.fail(now, failure);
                }
                Err(bad) => self.drop_visit(conn, &format!("what it tells of a failure is malformed: {bad}")),
            },
            (Some(State::Greeted(_)), FrameKind::Announce) => match Announcement::decode(payload) {
                Ok(announcement) => self.set_state(conn, State::Announced(announcement)),
                Err(bad) => self.drop_visit(conn, &format!("its announcement is malformed: {bad}")),
            },
            (Some(State::Announced(_)), FrameKind::Done) => self.drop_visit(conn, "it was announced, and is done"),
            (Some(State::Seated(rank)), FrameKind::Done) => {
                let rank = *rank;
                self.done(now, conn, rank);
            }
            (Some(State::Seated(rank)), FrameKind::Fail) => {
                let rank = *rank;
                let failure = Failure::decode(payload)
                    .unwrap_or_else(|bad| Failure::remote(Some(rank), format!("rank {rank} failed ({bad})")));
                self.fail(now, failure);
            }
            _ => self.broken(now, conn, &format!("it sent an unexpected {kind:?}")),
        }
    }

    /// Somebody who has the id says that nobody will come: the ranks meet elsewhere. Of no account once a rank has
    /// come.
    fn dismissed(&mut self, conn: Conn) {
        if !matches!(self.phase, Phase::Collecting) || self.first.is_some() {
            return self.drop_visit(conn, "it came to say that nobody will come");
        }
        self.log(Level::Info, "Bootstrap: this ncclUniqueId is not needed, its root ends".to_string());
        self.actions.push_back(Action::StopListening);
        self.finish();
    }

    fn finish(&mut self) {
        self.phase = Phase::Finished;
        self.pending.clear();
        let open = std::mem::take(&mut self.visits);
        self.actions.extend(open.into_keys().map(|conn| Action::Close { conn }));
    }

    /// Where a rank's seat is.
    fn place_of(&self, rank: u32) -> Option<usize> {
        let first = self.others.as_ref().map_or(0, |others| others.place.block(others.nranks).start);
        rank.checked_sub(first).map(|place| place as usize).filter(|place| *place < self.seats.len())
    }

    fn seat(&self, rank: u32) -> Option<&Seat> {
        self.place_of(rank).and_then(|place| self.seats[place].as_ref())
    }

    fn mark_done(&mut self, rank: u32) {
        if let Some(place) = self.place_of(rank) {
            self.seats[place].iter_mut().for_each(|seat| seat.done = true);
        }
    }

    fn done(&mut self, now: Duration, conn: Conn, rank: u32) {
        self.mark_done(rank);
        self.take_visit(conn);
        self.actions.push_back(Action::Close { conn });
        match &mut self.phase {
            Phase::Running(left) => *left -= 1,
            // Done before everybody is in: it gave up in peace, and the others cannot succeed.
            Phase::Collecting => {
                let text = format!("{} left before all ranks had joined", self.name(rank));
                self.fail(now, Failure::remote(Some(rank), text));
            }
            Phase::Failed { .. } | Phase::Finished => {}
        }
        self.check_finished(now);
    }

    fn check_in(&mut self, now: Duration, conn: Conn, record: CheckIn) {
        self.learn_of_others(now, conn, &record);
        match &self.phase {
            Phase::Failed { failure, .. } => {
                let failure = failure.clone();
                self.count_told(&record);
                return self.turn_away(conn, &failure);
            }
            Phase::Running(_) | Phase::Finished => {
                let text = format!(
                    "rank {} came when all {} ranks of this ncclUniqueId had joined already: an id is for one communicator only",
                    record.rank,
                    self.others.as_ref().map_or(self.seats.len() as u32, |others| others.nranks)
                );
                return self.turn_away(conn, &Failure::usage(Some(record.rank), text));
            }
            Phase::Collecting => {}
        }
        match self.objection(conn, &record) {
            Some(failure) => {
                self.claimed = record.place.block(record.nranks).len();
                self.count_told(&record);
                self.turn_away(conn, &failure);
                self.fail(now, failure);
            }
            None => self.take_seat(now, conn, record),
        }
    }

    /// How many ranks there are; 0 before anybody has said so.
    fn expected(&self) -> usize {
        if self.seats.is_empty() { self.claimed } else { self.seats.len() }
    }

    /// A rank that is turned away counts among those that are to be told only if it is one of them: with a rank
    /// number or a number of ranks that does not fit, it takes nobody's place, and the one that fits still comes.
    fn count_told(&mut self, record: &CheckIn) {
        let block = record.place.block(record.nranks);
        let comes_here = self.others.as_ref().is_none_or(|others| others.place == record.place);
        if comes_here && block.contains(&record.rank) && block.len() == self.expected() {
            self.told.insert(record.rank);
        }
    }

    fn take_seat(&mut self, now: Duration, conn: Conn, record: CheckIn) {
        let Some(visit) = self.visits.get(&conn) else {
            return;
        };
        let from = visit.from;
        let is_first = self.first.is_none();
        if is_first {
            self.first = Some(now);
            self.next_progress = now + self.config.progress;
            self.seats.resize_with(record.place.block(record.nranks).len(), || None);
        }
        if record.timeout_ms > 0 {
            let limit = Duration::from_millis(record.timeout_ms);
            self.timeout = Some(self.timeout.map_or(limit, |known| known.min(limit)));
        }
        self.set_state(conn, State::Seated(record.rank));
        let (place, alone) = (self.place_of(record.rank), record.place.count == 1);
        if let Some(place) = place {
            self.seats[place] = Some(Seat { conn, from, record, done: false });
            self.seated += 1;
        }
        if is_first {
            self.meet_others(now);
        }
        match self.seated as usize == self.seats.len() {
            true if alone => self.everybody_is_in(now),
            true => self.climb(now),
            false => {}
        }
    }

    fn everybody_is_in(&mut self, now: Duration) {
        if let Some(failure) = self.loopback_across_hosts() {
            return self.fail(now, failure);
        }
        self.warn_about_settings();
        self.actions.push_back(Action::StopListening);
        self.phase = Phase::Running(self.seated);
        let seats = || self.seats.iter().flatten();
        let (mut commons, mut numbers): (Vec<&[u8]>, BTreeMap<&[u8], u32>) = (Vec::new(), BTreeMap::new());
        for seat in seats() {
            let common = seat.record.common.as_slice();
            numbers.entry(common).or_insert_with(|| {
                commons.push(common);
                commons.len() as u32 - 1
            });
        }
        let bytes: usize = seats().map(|seat| seat.record.entry.bytes() + 4).sum();
        let shared: usize = commons.iter().map(|common| common.len() + 4).sum();
        let entries: Vec<_> =
            seats().map(|seat| (&seat.record.entry, numbers[seat.record.common.as_slice()])).collect();
        let (token, algorithm) = (self.config.token, seats().next().map(|seat| seat.record.algorithm));
        let goes_round = algorithm == Some(Algorithm::Ring);
        if !goes_round && (bytes + shared) * entries.len() <= FULL_ROSTER {
            let bytes = Welcome::encode_full(token, &commons, entries.iter().copied());
            let sends = self.own_last().into_iter().map(|seat| Action::Send { conn: seat.conn, bytes: bytes.clone() });
            let sends: Vec<Action> = sends.collect();
            self.actions.extend(sends);
            return;
        }
        let welcome = |seat: &Seat| {
            let rank = seat.record.rank;
            let parent = if goes_round { None } else { tree::place(rank, self.seated).parent };
            let next = entries[((rank + 1) % self.seated) as usize].0;
            let parent = parent.map(|parent| entries[parent as usize].0);
            Action::Send { conn: seat.conn, bytes: Welcome::encode_links(token, parent, next) }
        };
        let sends: Vec<Action> = self.own_last().into_iter().map(welcome).collect();
        self.actions.extend(sends);
    }

    fn tick_collecting(&mut self, now: Duration) {
        let Some(first) = self.first else {
            if now < self.started + self.config.idle {
                return;
            }
            if self.visits.is_empty() {
                let waited = self.config.idle.as_secs();
                self.log(
                    Level::Info,
                    format!("Bootstrap: nobody has used this ncclUniqueId for {waited} s, its root ends"),
                );
                self.actions.push_back(Action::StopListening);
                self.phase = Phase::Finished;
            }
            self.started = now;
            return;
        };
        if let Some(limit) = self.timeout.filter(|limit| now >= first + *limit + self.courtesy()) {
            let seconds = limit.as_secs_f32();
            let missing = self.missing();
            let culprit = if missing.len() == 1 { Some(missing[0]) } else { None };
            let text = format!(
                "after {seconds} s {}; do all ranks run, and do they use the same ncclUniqueId?",
                self.waits_for().unwrap_or("another root has not told who is missing".to_string())
            );
            return self.fail(now, Failure::timeout(culprit, text));
        }
        if now >= self.next_progress {
            self.next_progress = now + self.config.progress;
            if let Some(missing) = self.waits_for() {
                let text = format!("Bootstrap: waiting for {:.0} s: {missing}", (now - first).as_secs_f32());
                self.tell_progress(&text, None);
                self.log(Level::Warn, text);
            }
        }
    }

    /// Visitors that have not said in time who they are.
    fn tick_visits(&mut self, now: Duration) {
        while let Some(&(limit, conn)) = self.pending.first() {
            if now < limit {
                return;
            }
            if matches!(self.visits.get(&conn), Some(visit) if matches!(visit.state, State::Nvidia(_))) {
                self.nvidia(now, conn, None);
            } else if matches!(self.visits.get(&conn), Some(visit) if matches!(visit.state, State::AboveAsked(_))) {
                self.above_is_silent(now, conn, ANSWER.as_secs());
            } else {
                self.drop_visit(conn, &format!("it has not said in {} s who it is", HANDSHAKE.as_secs()));
            }
        }
    }

    /// A failed root ends when its members have hung up and the late ones were told, or could have been.
    fn check_finished(&mut self, now: Duration) {
        match &self.phase {
            Phase::Running(0) if self.others.as_ref().is_none_or(OtherRoots::all_done) => self.part_from_above(),
            Phase::Failed { at, .. } => {
                let at = *at;
                if now >= at + HANG_UP {
                    let told = self.visits.extract_if(.., |_, visit| matches!(visit.state, State::Told));
                    self.actions.extend(told.map(|(conn, _)| Action::Close { conn }));
                }
                let hung_up = !self.visits.values().any(|visit| matches!(visit.state, State::Told));
                let known = self.others.as_ref().is_some_and(OtherRoots::all_known) || self.seats.is_empty();
                let all_told = self.expected() > 0 && self.told.len() >= self.expected() && known;
                let late_come =
                    !self.config.fixed && !all_told && now < at + self.config.linger && self.listening_after_failure();
                let dials = self.others.as_ref().is_some_and(OtherRoots::is_dialling);
                if !hung_up || late_come || dials {
                    return;
                }
                self.actions.push_back(Action::StopListening);
            }
            _ => return,
        }
        self.finish();
    }

    /// Ranks may still come only if not all had joined.
    fn listening_after_failure(&self) -> bool {
        let unknown = self.others.as_ref().is_some_and(|others| !others.all_known());
        self.seats.is_empty() || unknown || (self.seated as usize) < self.seats.len()
    }
}

impl Machine for Root {
    fn accepted(&mut self, now: Duration, from: SocketAddr) -> Conn {
        let conn = self.next_conn;
        self.next_conn += 1;
        if self.pending.len() >= self.config.pending
            && let Some(&(_, oldest)) = self.pending.first()
        {
            self.drop_visit(oldest, "too many connections have not said who they are");
        }
        let visit = Visit { from, reader: Reader::default(), state: State::Told };
        self.visits.insert(conn, visit);
        self.set_state(conn, State::New(now));
        conn
    }

    fn connected(&mut self, now: Duration, conn: Conn, outcome: Result<(), ConnectError>) {
        self.above_connected(now, conn, outcome);
    }

    fn received(&mut self, now: Duration, conn: Conn, bytes: &[u8]) {
        let Some(visit) = self.visits.get_mut(&conn) else {
            return;
        };
        if matches!(visit.state, State::Told) {
            return;
        }
        visit.reader.push(bytes);
        let most = match visit.state {
            State::Below(_) | State::Early(_) | State::Above => MAX_SUMMARY,
            _ => MAX_UNIDENTIFIED + MAX_FACTS,
        };
        if visit.reader.rest().len() > most {
            return self.broken(now, conn, "it sends too much");
        }
        self.advance(now, conn);
    }

    fn closed(&mut self, now: Duration, conn: Conn, error: Option<String>) {
        let Some(visit) = self.visits.get(&conn) else {
            return;
        };
        let why = error.unwrap_or_else(|| "it closed the connection".to_string());
        match &visit.state {
            State::Seated(rank) => self.lost(now, conn, *rank, &why),
            State::Announced(_) => self.vanished(now, conn, &why),
            State::Nvidia(_) => self.nvidia(now, conn, None),
            State::Below(position) => self.root_lost(now, conn, Some(*position), &why),
            State::Above | State::AboveAsked(_) => self.root_lost(now, conn, None, &why),
            State::Early(_) => self.early_lost(now, conn, &why),
            State::Told => {
                self.take_visit(conn);
            }
            State::New(_) | State::Greeted(_) => {
                let from = show(visit.from);
                self.take_visit(conn);
                self.log(
                    Level::Info,
                    format!("Bootstrap: a connection from {from} ended before it said who it is ({why})"),
                );
            }
        }
        self.check_finished(now);
    }

    fn mismatched(&mut self, now: Duration, conn: Conn, text: &str) {
        let Some(visit) = self.take_visit(conn) else {
            return;
        };
        let text = format!("the process at {} cannot join: {text}", show(visit.from));
        self.fail(now, Failure::usage(None, text));
    }

    fn secret(&self, magic: u64) -> Option<[u8; 32]> {
        self.others.as_ref().and_then(|others| others.secret(magic))
    }

    fn preamble(&self) -> Option<Preamble> {
        Some(Preamble::new(self.config.magic, Service::Root))
    }

    fn tick(&mut self, now: Duration) {
        self.tick_visits(now);
        self.dial_above(now);
        if matches!(self.phase, Phase::Collecting) {
            self.tick_collecting(now);
        }
        self.check_finished(now);
    }

    fn deadline(&self) -> Option<Duration> {
        let visits = self.pending.first().map(|(limit, _)| *limit);
        let phase = match &self.phase {
            Phase::Collecting => match self.first {
                None => Some(self.started + self.config.idle),
                Some(first) => {
                    let limit = self.timeout.map(|limit| first + limit + self.courtesy());
                    let dial = self.others.as_ref().and_then(OtherRoots::deadline);
                    [Some(self.next_progress), limit, dial].into_iter().flatten().min()
                }
            },
            Phase::Failed { at, .. } => {
                let told = self.visits.values().any(|visit| matches!(visit.state, State::Told));
                Some(if told { *at + HANG_UP } else { *at + self.config.linger })
            }
            Phase::Running(_) | Phase::Finished => None,
        };
        visits.into_iter().chain(phase).min()
    }

    fn action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
