//! The other roots of a communicator, where it has several: who is above this one and below it in the tree of roots,
//! and what they tell each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use super::super::checkin::{CheckIn, CheckInSettings, Entry, Welcome};
use super::super::failure::Failure;
use super::super::roots::{
    self, Algorithm, Everyone, Listening, MAX_SUMMARY, RootAddress, RootHello, RootPlace, Summary,
};
use super::super::tree::{self, TreePlace};
use super::super::wire::{Decoder, Encoder, FrameKind, PREAMBLE, Preamble, Reader, Service};
use super::super::{Action, Cause, Conn, ConnectError, HANG_UP, Level, REFUSED, ranks};
use super::{Phase, Root, Seat, State, Visit};
use crate::bootstrap::id::{show, show_ip};

/// How long a connect to the root above is tried again where nobody answers at all.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause before a connect is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// What this root knows of the others: from the first rank that comes on.
pub(super) struct OtherRoots {
    pub place: RootPlace,
    pub nranks: u32,
    hello: RootHello,
    tree: TreePlace,
    above: Option<Above>,
    below: Vec<Below>,
    /// What the roots below have said, of all that have.
    summary: Summary,
    /// The root above knows that all are in here.
    told: bool,
    /// Why it is over, for the root above, with which a connect may be under way.
    failure: Option<Failure>,
}

/// The root above, and the connect to it.
struct Above {
    address: SocketAddr,
    magic: u64,
    secret: [u8; 32],
    conn: Option<Conn>,
    /// The connect under way.
    dial: Option<Conn>,
    /// Since when it is tried, and when again.
    first: Duration,
    again: Option<Duration>,
}

/// A root below.
struct Below {
    /// The roots from there down.
    span: Range<u32>,
    conn: Option<Conn>,
    /// It has connected once.
    known: bool,
    /// All ranks of those roots are in.
    full: bool,
    /// They have all completed their initialisation.
    done: bool,
}

impl OtherRoots {
    /// What the first check-in says of them.
    pub(super) fn new(record: &CheckIn, witness: String, now: Duration) -> OtherRoots {
        let place = record.place;
        let tree = tree::place(place.index, place.count);
        let below =
            |span: &Range<u32>| Below { span: span.clone(), conn: None, known: false, full: false, done: false };
        OtherRoots {
            place,
            nranks: record.nranks,
            hello: RootHello {
                place,
                nranks: record.nranks,
                version: record.version,
                algorithm: record.algorithm,
                witness,
            },
            above: place.above.map(|RootAddress { address, magic, secret }| Above {
                address,
                magic,
                secret,
                conn: None,
                dial: None,
                first: now,
                again: Some(now),
            }),
            below: tree.children.iter().map(below).collect(),
            tree,
            summary: Summary::default(),
            told: false,
            failure: None,
        }
    }

    /// The secret of a root that this one connects to.
    pub(super) fn secret(&self, magic: u64) -> Option<[u8; 32]> {
        self.above.as_ref().filter(|above| above.magic == magic).map(|above| above.secret)
    }

    /// When the root above is to be dialled again.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.above.as_ref().and_then(|above| above.again)
    }

    /// Whether every root below has been heard of.
    pub(super) fn all_known(&self) -> bool {
        self.below.iter().all(|below| below.known)
    }

    /// Whether a connect to the root above is under way, which must hear how it ended.
    pub(super) fn is_dialling(&self) -> bool {
        self.above.as_ref().is_some_and(|above| above.dial.is_some())
    }

    /// Whether all ranks of all roots below are through.
    pub(super) fn all_done(&self) -> bool {
        self.below.iter().all(|below| below.done)
    }

    fn conns(&self) -> impl Iterator<Item = Conn> {
        let above = self.above.iter().filter_map(|above| above.conn);
        above.chain(self.below.iter().filter_map(|below| below.conn)).collect::<Vec<_>>().into_iter()
    }

    /// A root with the ranks that check in there.
    fn name(&self, index: u32) -> String {
        root_name(index, self.place.count, self.nranks)
    }

    /// The ranks of roots below from which nobody has heard anything.
    fn unheard(&self) -> Vec<u32> {
        let unheard = self.below.iter().filter(|below| !below.known).map(|below| below.span.start);
        unheard.flat_map(|index| roots::block(index, self.place.count, self.nranks)).collect()
    }
}

impl Root {
    /// Whether it is one of several roots.
    fn is_one_of_several(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.place.count > 1)
    }

    /// What the first check-in that can be says of the other roots.
    pub(super) fn learn_of_others(&mut self, now: Duration, conn: Conn, record: &CheckIn) {
        let fits = record.place.count <= record.nranks && record.place.block(record.nranks).contains(&record.rank);
        let Some(visit) = self.visits.get(&conn).filter(|_| fits && self.others.is_none()) else { return };
        let witness = format!("rank {} ({}, {})", record.rank, record.process, show_ip(visit.from.ip()));
        let others = self.others.insert(OtherRoots::new(record, witness, now));
        if let Phase::Failed { failure, .. } = &self.phase {
            others.failure = Some(failure.clone());
            self.dial_above(now);
        }
    }

    /// Roots below that have come before any rank of this root.
    fn early(&self) -> Vec<Conn> {
        let early = self.visits.iter().filter(|(_, visit)| matches!(visit.state, State::Early(_)));
        early.map(|(conn, _)| *conn).collect()
    }

    /// The first rank has come: this root looks for the one above, and at those below that have come before.
    pub(super) fn meet_others(&mut self, now: Duration) {
        for conn in self.early() {
            let Some(Visit { state: State::Early(hello), .. }) = self.visits.get(&conn) else { continue };
            let hello = hello.clone();
            self.root_below(now, conn, hello);
            self.advance(now, conn);
        }
        self.dial_above(now);
    }

    /// Dials the root above where it is time.
    pub(super) fn dial_above(&mut self, now: Duration) {
        let next = self.next_conn;
        let Some(above) = self.others.as_mut().and_then(|others| others.above.as_mut()) else { return };
        if above.again.is_none_or(|again| now < again) || matches!(self.phase, Phase::Running(_) | Phase::Finished) {
            return;
        }
        (above.again, above.dial) = (None, Some(next));
        self.next_conn += 1;
        self.actions.push_back(Action::Connect { conn: next, to: above.address });
    }

    /// The connect to the root above is through, or not.
    pub(super) fn above_connected(&mut self, now: Duration, conn: Conn, outcome: Result<(), ConnectError>) {
        let Some(others) = self.others.as_mut() else { return };
        let (hello, index) = (others.hello.encode(), others.tree.parent.unwrap_or_default());
        let name = others.name(index);
        let Some(above) = others.above.as_mut().filter(|above| above.dial == Some(conn)) else { return };
        above.dial = None;
        let failure = others.failure.clone();
        if let Err(ConnectError { cause, text }) = outcome {
            if failure.is_some() {
                return self.check_finished(now);
            }
            let patience = if cause == Cause::Unreachable { PATIENCE } else { REFUSED };
            let waited = now - above.first;
            above.again = (cause != Cause::Other && waited < patience).then_some(now + PAUSE);
            if above.again.is_none() {
                let text = format!(
                    "{name} cannot be reached at {}: {text}, after {:.1} s; has the process ended that made its ncclUniqueId, or was the id used before?",
                    show(above.address),
                    waited.as_secs_f32()
                );
                self.fail(now, Failure::remote(None, text));
            }
            return;
        }
        let first = [Preamble::new(above.magic, Service::Root).encode().as_slice(), &hello].concat();
        let from = above.address;
        self.actions.push_back(Action::Send { conn, bytes: first.into() });
        if let Some(failure) = failure {
            self.actions.push_back(Action::Send { conn, bytes: failure.encode() });
            self.actions.push_back(Action::Close { conn });
            return self.check_finished(now);
        }
        above.conn = Some(conn);
        self.visits.insert(conn, Visit { from, reader: Reader::default(), state: State::Told });
        self.set_state(conn, State::AboveAsked(now));
        self.climb(now);
    }

    /// The preamble by which the root above answers; whether there may be more to read.
    pub(super) fn above_answers(&mut self, now: Duration, conn: Conn) -> bool {
        let magic = self.others.as_ref().and_then(|others| others.above.as_ref()).map(|above| above.magic);
        let (Some(magic), Some(visit)) = (magic, self.visits.get_mut(&conn)) else { return false };
        if visit.reader.rest().len() < PREAMBLE {
            return false;
        }
        if visit.reader.preamble() == Some(Preamble::new(magic, Service::RootAnswer)) {
            self.set_state(conn, State::Above);
            return true;
        }
        let text = format!(
            "something that is not oxccl answers at {}, where {} should listen",
            show(visit.from),
            self.above()
        );
        self.drop_visit(conn, "it is not the root above");
        self.fail(now, Failure::remote(None, text));
        false
    }

    /// The root above, for messages.
    fn above(&self) -> String {
        let index = |others: &OtherRoots| others.tree.parent.map(|index| others.name(index));
        self.others.as_ref().and_then(index).unwrap_or("another root".to_string())
    }

    /// The root above does not answer.
    pub(super) fn above_is_silent(&mut self, now: Duration, conn: Conn, seconds: u64) {
        let text = format!("{} accepts a connection and does not answer within {seconds} s", self.above());
        self.drop_visit(conn, "it does not answer");
        self.fail(now, Failure::remote(None, text));
    }

    /// A root below says who it is.
    pub(super) fn root_below(&mut self, now: Duration, conn: Conn, hello: RootHello) {
        if let Phase::Failed { failure, .. } = &self.phase {
            let failure = failure.clone();
            self.note_known(hello.place.index);
            return self.turn_away(conn, &failure);
        }
        let Some(others) = self.others.as_mut() else { return self.set_state(conn, State::Early(hello)) };
        if let Some(failure) = mismatch(&others.hello, &hello) {
            others
                .below
                .iter_mut()
                .filter(|below| below.span.start == hello.place.index)
                .for_each(|below| below.known = true);
            self.turn_away(conn, &failure);
            return self.fail(now, failure);
        }
        let position =
            others.below.iter().position(|below| below.span.start == hello.place.index && below.conn.is_none());
        let Some(position) = position else {
            let text = format!(
                "{} says that it is below root {}, which it is not, or twice",
                others.name(hello.place.index),
                others.place.index
            );
            return self.drop_visit(conn, &text);
        };
        (others.below[position].conn, others.below[position].known) = (Some(conn), true);
        self.set_state(conn, State::Below(position));
    }

    fn note_known(&mut self, index: u32) {
        let below = self.others.iter_mut().flat_map(|others| &mut others.below);
        below.filter(|below| below.span.start == index).for_each(|below| below.known = true);
    }

    /// A frame of another root; false where it is none that may come from there.
    pub(super) fn root_frame(&mut self, now: Duration, conn: Conn, kind: FrameKind, payload: &[u8]) -> bool {
        let below = match self.visits.get(&conn).map(|visit| &visit.state) {
            Some(State::Below(position)) => Some(*position),
            Some(State::Above) => None,
            _ => return false,
        };
        match (kind, below) {
            (FrameKind::Fail, _) => match Failure::decode(payload) {
                Ok(failure) => self.fail(now, failure),
                Err(_) => return false,
            },
            (FrameKind::Progress, _) => self.pass_on_progress(conn, payload),
            (FrameKind::RootUp, Some(position)) => match Summary::decode(payload) {
                Ok(summary) => self.below_is_full(now, position, summary),
                Err(_) => return false,
            },
            (FrameKind::Done, Some(position)) => {
                self.take_visit(conn);
                self.actions.push_back(Action::Close { conn });
                if let Some(others) = &mut self.others {
                    (others.below[position].conn, others.below[position].done) = (None, true);
                }
                self.check_finished(now);
            }
            (FrameKind::RootDown, None) if matches!(self.phase, Phase::Collecting) => match Everyone::decode(payload) {
                Ok(everyone) => self.everyone(&everyone),
                Err(_) => return false,
            },
            _ => return false,
        }
        true
    }

    fn pass_on_progress(&mut self, from: Conn, payload: &[u8]) {
        let Ok(text) = Decoder(payload).text() else { return };
        self.log(Level::Info, text.clone());
        self.tell_progress(&text, Some(from));
    }

    /// Tells ranks and other roots who is missing.
    pub(super) fn tell_progress(&mut self, text: &str, from: Option<Conn>) {
        let frame = Encoder::new(FrameKind::Progress, text.len()).text(text).finish();
        let seats = self.seats.iter().flatten().map(|seat| seat.conn);
        let others = self.others.iter().flat_map(OtherRoots::conns).filter(|conn| Some(*conn) != from);
        let sends = seats.chain(others).map(|conn| Action::Send { conn, bytes: frame.clone() });
        let sends: Vec<Action> = sends.collect();
        self.actions.extend(sends);
    }

    fn below_is_full(&mut self, now: Duration, position: usize, summary: Summary) {
        let Some(others) = &mut self.others else { return };
        if !std::mem::replace(&mut others.below[position].full, true) {
            others.summary.merge(summary);
            self.climb(now);
        }
    }

    /// If all ranks of this root are in, and those of the roots below: tells the root above, or is the first.
    pub(super) fn climb(&mut self, now: Duration) {
        let seated = self.seated as usize == self.seats.len() && !self.seats.is_empty();
        let Some(others) = self.others.as_ref().filter(|others| seated && others.place.count > 1 && !others.told)
        else {
            return;
        };
        let way_up = others.above.as_ref().map(|above| above.conn);
        if !others.below.iter().all(|below| below.full) || way_up == Some(None) {
            return;
        }
        let mut summary = self.summary();
        let Some(others) = &mut self.others else { return };
        others.told = true;
        summary.merge(others.summary.clone());
        if let (Some((name, (rank, entry), host)), Some((other, their_host))) = (&summary.local, &summary.remote)
            && host != their_host
        {
            let failure = unreachable_address(*rank, name, entry, other);
            return self.fail(now, failure);
        }
        match way_up.flatten() {
            Some(conn) => self.actions.push_back(Action::Send { conn, bytes: summary.encode() }),
            None => {
                let groups: BTreeMap<&CheckInSettings, Vec<u32>> = summary
                    .settings
                    .iter()
                    .map(|(settings, ranges)| (settings, ranges.iter().cloned().flatten().collect()))
                    .collect();
                self.warn_about(&groups);
                self.everyone(&Everyone { token: self.config.token, listening: summary.listening });
            }
        }
    }

    /// What others must know of this root's own ranks.
    fn summary(&self) -> Summary {
        let Some(others) = &self.others else { return Summary::default() };
        let block = others.place.block(others.nranks);
        let mut wanted = BTreeSet::from([block.start]);
        if others.hello.algorithm == Algorithm::Tree && block.end < others.nranks {
            wanted.extend(tree::above(block.end, others.nranks).into_iter().filter(|rank| block.contains(rank)));
        }
        let seats = || self.seats.iter().flatten();
        let listening = seats()
            .filter(|seat| wanted.contains(&seat.record.rank))
            .map(|seat| (seat.record.rank, seat.record.entry.bare()));
        let mut groups: BTreeMap<&CheckInSettings, Vec<Range<u32>>> = BTreeMap::new();
        for seat in seats() {
            let (rank, ranges) = (seat.record.rank, groups.entry(&seat.record.settings).or_default());
            match ranges.last_mut().filter(|last| last.end == rank) {
                Some(last) => last.end = rank + 1,
                None => ranges.push(rank..rank + 1),
            }
        }
        let is_local = |seat: &&Seat| seat.record.entry.address.ip().is_loopback();
        let host = |seat: &Seat| show_ip(seat.from.ip());
        let local = seats().find(is_local);
        let remote =
            seats().find(|seat| !is_local(seat) && local.is_none_or(|local| local.from.ip() != seat.from.ip()));
        Summary {
            listening: listening.collect(),
            settings: groups.into_iter().map(|(settings, ranges)| (settings.clone(), ranges)).collect(),
            local: local.map(|seat| {
                let (rank, entry) = (seat.record.rank, seat.record.entry.bare());
                (self.name(rank), (rank, entry), host(seat))
            }),
            remote: remote.map(|seat| (self.name(seat.record.rank), host(seat))),
        }
    }

    /// All ranks of all roots are in.
    fn everyone(&mut self, everyone: &Everyone) {
        let Some(others) = &self.others else { return };
        let frame = everyone.encode();
        let below: Vec<Conn> = others.below.iter().filter_map(|below| below.conn).collect();
        let (nranks, algorithm) = (others.nranks, others.hello.algorithm);
        self.actions.extend(below.into_iter().map(|conn| Action::Send { conn, bytes: frame.clone() }));
        self.actions.push_back(Action::StopListening);
        self.phase = Phase::Running(self.seated);
        let elsewhere: BTreeMap<u32, &Entry> =
            everyone.listening.iter().map(|(rank, entry): &Listening| (*rank, entry)).collect();
        let entry = |rank: u32| self.seat(rank).map(|seat| &seat.record.entry).or(elsewhere.get(&rank).copied());
        let mut sends = Vec::new();
        for seat in self.own_last() {
            let rank = seat.record.rank;
            let parent = match algorithm {
                Algorithm::Tree => tree::place(rank, nranks).parent,
                Algorithm::Ring => None,
            };
            // A rank that another root has not told of is a bug there: its neighbour says that it has no address.
            let Some(next) = entry((rank + 1) % nranks) else { continue };
            let bytes = Welcome::encode_links(everyone.token, parent.and_then(entry), next);
            sends.push(Action::Send { conn: seat.conn, bytes });
        }
        self.actions.extend(sends);
    }

    /// Tells the other roots of a failure, and parts from them.
    pub(super) fn tell_others(&mut self, failure: &Failure) {
        let conns: Vec<Conn> = self.others.iter().flat_map(OtherRoots::conns).collect();
        for conn in conns {
            self.actions.push_back(Action::Send { conn, bytes: failure.encode() });
            self.actions.push_back(Action::Close { conn });
            self.take_visit(conn);
        }
        if let Some(others) = &mut self.others {
            others.failure = Some(failure.clone());
            others.above.iter_mut().for_each(|above| (above.conn, above.again) = (None, None));
            others.below.iter_mut().for_each(|below| below.conn = None);
        }
        self.early().into_iter().for_each(|conn| self.turn_away(conn, failure));
    }

    /// All ranks here and below are through: the root above may hear it.
    pub(super) fn part_from_above(&mut self) {
        let above = self.others.as_mut().and_then(|others| others.above.as_mut());
        if let Some(conn) = above.and_then(|above| above.conn.take()) {
            self.actions.push_back(Action::Send { conn, bytes: Encoder::new(FrameKind::Done, 0).finish() });
        }
    }

    /// A connection with another root has ended.
    pub(super) fn root_lost(&mut self, now: Duration, conn: Conn, below: Option<usize>, why: &str) {
        self.take_visit(conn);
        let name = match (&self.others, below) {
            (Some(others), Some(position)) => others.name(others.below[position].span.start),
            _ => self.above(),
        };
        if let Some(others) = &mut self.others {
            others.above.iter_mut().filter(|above| above.conn == Some(conn)).for_each(|above| above.conn = None);
            others.below.iter_mut().filter(|below| below.conn == Some(conn)).for_each(|below| below.conn = None);
        }
        self.fail(now, Failure::remote(None, gone(&name, why)));
    }

    /// The same for a root below that came before the first rank here: it may have said why.
    pub(super) fn early_lost(&mut self, now: Duration, conn: Conn, why: &str) {
        let Some(Visit { state: State::Early(hello), mut reader, .. }) = self.take_visit(conn) else { return };
        while let Ok(Some(frame)) = reader.frame(MAX_SUMMARY) {
            if let (FrameKind::Fail, Ok(failure)) = (frame.kind, Failure::decode(&frame.payload)) {
                return self.fail(now, failure);
            }
        }
        let name = root_name(hello.place.index, hello.place.count, hello.nranks);
        self.fail(now, Failure::remote(None, gone(&name, why)));
    }

    /// Who is missing, as far as this root knows; none where others know better.
    pub(super) fn waits_for(&self) -> Option<String> {
        let Some(others) = self.others.as_ref().filter(|_| self.is_one_of_several()) else {
            return Some(self.attendance());
        };
        let unheard = others.unheard();
        let (index, count) = (others.place.index, others.place.count);
        if (self.seated as usize) < self.seats.len() {
            let block = format!("at root {index} of {count} {}", self.attendance());
            return Some(if unheard.is_empty() { block } else { format!("{block}, and {}", ranks::name(&unheard)) });
        }
        (!unheard.is_empty()).then(|| format!("none of their roots has heard of {}", ranks::name(&unheard)))
    }

    /// By how much a limit is longer where other roots know better who is missing.
    pub(super) fn courtesy(&self) -> Duration {
        let full = (self.seated as usize) == self.seats.len();
        if self.is_one_of_several() && full && self.waits_for().is_none() { HANG_UP } else { Duration::ZERO }
    }
}

/// A root with the ranks that check in there.
fn root_name(index: u32, count: u32, nranks: u32) -> String {
    let block: Vec<u32> = roots::block(index, count, nranks).collect();
    format!("root {index} of {count} (of {})", ranks::name(&block))
}

fn gone(name: &str, why: &str) -> String {
    format!(
        "{name} is gone before all initialisations were complete ({why}): the process that made its ncclUniqueId has probably ended"
    )
}

/// A rank that listens on a loopback address, and one of another host.
pub(super) fn unreachable_address(rank: u32, name: &str, entry: &Entry, other: &str) -> Failure {
    let text = format!(
        "{name} advertises {} on interface {}, which {other} cannot reach: set NCCL_SOCKET_IFNAME on that rank to an interface that all hosts share",
        show(entry.address),
        entry.interface,
    );
    Failure::usage(Some(rank), text)
}

/// Why ranks of two roots do not fit together.
fn mismatch(ours: &RootHello, theirs: &RootHello) -> Option<Failure> {
    let (us, them) = (&ours.witness, &theirs.witness);
    let text = if ours.nranks != theirs.nranks {
        let (one, other) = (ours.nranks, theirs.nranks);
        format!("the ranks do not agree how many they are: {us} expects {one} ranks, {them} expects {other}")
    } else if (ours.place.count, ours.place.digest) != (theirs.place.count, theirs.place.digest) {
        different_ids(us, ours.place.count, them, theirs.place.count)
    } else if ours.version != theirs.version {
        let (one, other) = (ours.version, theirs.version);
        format!("Mismatched NCCL version detected : {them} version {other}, {us} version {one}")
    } else if ours.algorithm != theirs.algorithm {
        different_algorithms((us, ours.algorithm), (them, theirs.algorithm))
    } else {
        return None;
    };
    Some(Failure::usage(None, text))
}

/// Two ranks were given different lists of ids.
pub(super) fn different_ids(one: &str, count: u32, other: &str, others: u32) -> String {
    format!(
        "the ranks do not have the same list of ncclUniqueIds: {one} has {count}, {other} has {others}; all ranks must give ncclCommInitRankScalable the same ids in the same order"
    )
}

/// Two ranks meet in different ways.
pub(super) fn different_algorithms(one: (&str, Algorithm), other: (&str, Algorithm)) -> String {
    let ((one, ours), (other, theirs)) = (one, other);
    format!(
        "OXCCL_BOOTSTRAP_ALGO is '{}' on {one} and '{}' on {other}: it must be the same on all ranks",
        ours.name(),
        theirs.name()
    )
}
