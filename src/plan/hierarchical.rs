//! Hierarchical algorithms, of several hosts: what a host has crosses the network to each other host once, and few
//! times one after the other.
//!
//! Chunks have the numbers of ranks. The chunk of the rank at some place of its host is *carried* on every other host
//! by the rank at the same place there, counted around the end where that host has fewer ranks. Carriers pass chunks on
//! from host to host, and each to the other ranks of its own host. So every rank of a host has its share of what goes
//! over the network, and interfaces of their own are all used.
//!
//! *Between hosts* there are two patterns ([`HostPattern`]). Of up to [`STAR_HOSTS`] hosts each sends to every other
//! one: one hop. Or they are binomial trees, as of PAT: as many hops as the logarithm.
//!
//! *In a host* the carrier sends to the others, as many as a step can; if these are more, they pass it on.
//!
//! *AllGather* sends chunks down such trees, *ReduceScatter* is the same read backwards: what comes from below is added
//! to the own contribution and passed on above. *AllReduce in two steps* is the one after the other; *Broadcast* and
//! *Reduce* are one chunk of them. *AllReduce in one step* has one hop between hosts: each host reduces its own share
//! of each chunk, carriers send that to all other hosts, and each adds up what it has from all, in the order of hosts.
//!
//! Ranks go through rounds: first the offsets of a pattern (how many hosts away the chunk's own host is), and in each
//! the places; carriers before those who hear from them. What a rank waits for is of an earlier round, or of a rank
//! that is above it in the same one.

use std::collections::BTreeSet;

use super::layout::step_flag::{FROM_OUT, IN, OUT, POST};
use super::layout::{MAX_FAN, SLOTS};
use super::pat;
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;
use crate::topology::{Graph, HostRows, MAX_PEERS};

/// Hosts of which each can send to every other one in one step, and to a rank of its own.
pub const STAR_HOSTS: u32 = MAX_FAN as u32;
/// The greatest distance between hosts of a binomial tree: with all smaller powers of two, a step has room for a rank
/// of the own host.
const FARTHEST: u32 = 1 << (MAX_FAN - 2);
/// Links of a channel that a rank can have: steps number them in a byte.
const MOST_LINKS: u32 = 250;
/// Slots without which a step that receives and sends waits for itself.
const MIN_SLOTS: u32 = 2;
const FAN: u32 = MAX_FAN as u32;

/// How chunks go from host to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// From its own host to every other one.
    Star,
    /// Along a binomial tree.
    Binomial,
}

impl HostPattern {
    /// The pattern with the fewest hops.
    pub fn flattest(nhosts: u32) -> HostPattern {
        if nhosts <= STAR_HOSTS { HostPattern::Star } else { HostPattern::Binomial }
    }

    /// Hosts away from a chunk's own one, in the order in which all ranks go through them.
    fn offsets(self, nhosts: u32) -> Vec<u32> {
        match self {
            HostPattern::Star => (0..nhosts).collect(),
            HostPattern::Binomial => pat::offsets(nhosts),
        }
    }

    /// The distance to the host above, at an offset that is not 0.
    fn above(self, offset: u32) -> u32 {
        match self {
            HostPattern::Star => offset,
            HostPattern::Binomial => pat::distance(offset, FARTHEST),
        }
    }

    /// The distances to the hosts below.
    fn below(self, offset: u32, nhosts: u32) -> Vec<u32> {
        match self {
            HostPattern::Star if offset == 0 => (1..nhosts).collect(),
            HostPattern::Star => Vec::new(),
            HostPattern::Binomial => pat::children(offset, nhosts, FARTHEST),
        }
    }

    /// Slots that chunks of one place need.
    fn slots(self, nhosts: u32) -> u32 {
        match self {
            HostPattern::Star => 1,
            HostPattern::Binomial => pat::slots(nhosts),
        }
    }
}

/// Whether there are hierarchical algorithms: there are several hosts, and no rank would have too many links.
pub fn fits(graph: &Graph) -> bool {
    let rows = graph.ring_rows(0);
    let (most, fewest, nhosts) = (rows.most(), rows.fewest().max(1), rows.nhosts());
    let distances = if nhosts <= STAR_HOSTS { nhosts - 1 } else { 2 * (FARTHEST.min(nhosts).ilog2() + 1) };
    nhosts > 1 && most <= MAX_PEERS && 2 * (most - 1 + distances * most.div_ceil(fewest)) <= MOST_LINKS
}

/// What a rank does with a chunk that goes down a tree.
struct Passage {
    /// The rank whose chunk it is.
    chunk: u32,
    /// Who sends it; none where it is the rank's own.
    above: Option<u32>,
    /// Whom it is passed on to.
    below: Vec<u32>,
    /// When: by what ranks sort.
    turn: [u32; 5],
}

/// A rank among the ranks of several hosts.
struct HostMember<'a> {
    rows: &'a HostRows,
    rank: u32,
    host: u32,
    place: u32,
    /// Ranks of its host.
    width: u32,
}

impl<'a> HostMember<'a> {
    fn find(rows: &'a HostRows, rank: u32) -> Result<HostMember<'a>, Error> {
        match rows.seat(rank) {
            Some((host, place)) if rows.nhosts() > 1 => {
                Ok(HostMember { rows, rank, host, place, width: rows.row(host).len() as u32 })
            }
            _ => Err(Error::Internal(format!("no schedule of {} hosts for rank {rank}", rows.nhosts()))),
        }
    }

    fn nhosts(&self) -> u32 {
        self.rows.nhosts()
    }

    fn nranks(&self) -> u32 {
        (0..self.nhosts()).map(|host| self.rows.row(host).len() as u32).sum()
    }

    fn schedule(&self, nchunks: u32, slots: u32) -> Schedule {
        Schedule::new(self.rank, LinkClass::Hierarchical, nchunks, slots)
    }

    /// The rank's way to the carrier of a place in its host: how many places after it, counted around.
    fn behind_carrier(&self, place: u32) -> u32 {
        (self.place + self.width - place % self.width) % self.width
    }

    /// The rank that is some places after the carrier of a place.
    fn after_carrier(&self, place: u32, by: u32) -> u32 {
        self.rows.at(self.host, place % self.width + by)
    }

    /// In the own host: who is above and below the rank, and how far down it is, where the carrier of a place sends to
    /// `fan` others at most.
    fn in_host(&self, place: u32, fan: u32) -> (Option<u32>, Vec<u32>, u32) {
        let at = self.behind_carrier(place);
        let first = if at == 0 { 1 } else { fan + FAN * (at - 1) + 1 };
        let count = if at == 0 { fan } else { FAN };
        let below = (first..self.width.min(first + count)).map(|by| self.after_carrier(place, by)).collect();
        let over = |by: u32| if by <= fan { 0 } else { (by - fan - 1) / FAN + 1 };
        let depth = std::iter::successors(Some(at), |by| (*by > 0).then(|| over(*by))).count() as u32 - 1;
        ((at > 0).then(|| self.after_carrier(place, over(at))), below, depth)
    }

    /// What the rank does with the chunk of a place of the host that is `offset` hosts ahead; none where that host has
    /// no such place.
    fn passage(&self, pattern: HostPattern, offset: u32, place: u32) -> Option<Passage> {
        let chunk = *self.rows.row(self.host + offset).get(place as usize)?;
        let hosts = pattern.below(offset, self.nhosts());
        let (above, inner, depth) = self.in_host(place, FAN - hosts.len() as u32);
        let carried = self.behind_carrier(place) == 0;
        let other = |distance: u32| self.rows.at(self.host + self.nhosts() - distance, place);
        let mut below: Vec<u32> = if carried { hosts.into_iter().map(other).collect() } else { Vec::new() };
        below.extend(inner);
        let ahead = || self.rows.at(self.host + pattern.above(offset), place);
        let above = if carried && offset > 0 { Some(ahead()) } else { above };
        // Not all begin with the same carrier; but where ranks pass on for several, all have one order.
        let spread = if self.width <= FAN + 1 { self.width - 1 - self.behind_carrier(place) } else { 0 };
        Some(Passage { chunk, above, below, turn: [0, 0, depth, spread, place] })
    }

    /// Whether ranks go through all places in each round of offsets: else through as many as the smallest host has, and
    /// then through the next ones.
    fn all_places_in_a_round(&self, pattern: HostPattern) -> bool {
        self.groups() * pattern.slots(self.nhosts()) <= SLOTS as u32
    }

    /// Groups of as many places as the smallest host has.
    fn groups(&self) -> u32 {
        self.rows.most().div_ceil(self.rows.fewest().max(1))
    }

    fn slots(&self, pattern: HostPattern) -> u32 {
        let each = pattern.slots(self.nhosts());
        MIN_SLOTS.max(if self.all_places_in_a_round(pattern) { each * self.groups() } else { each })
    }

    /// What the rank does with all chunks that go down, in its order.
    fn passages(&self, pattern: HostPattern) -> Vec<Passage> {
        let together = self.all_places_in_a_round(pattern);
        let mut all = Vec::new();
        for (round, offset) in (0..).zip(pattern.offsets(self.nhosts())) {
            for place in 0..self.rows.most() {
                let Some(mut passage) = self.passage(pattern, offset, place) else { continue };
                (passage.turn[0], passage.turn[1]) =
                    if together { (0, round) } else { (place / self.rows.fewest(), round) };
                all.push(passage);
            }
        }
        all.sort_by_key(|passage| passage.turn);
        all
    }

    /// The one chunk of a Broadcast or Reduce.
    fn of_root(&self, root: u32) -> Result<Passage, Error> {
        let passage = self.rows.seat(root).and_then(|(host, place)| {
            let offset = (host + self.nhosts() - self.host) % self.nhosts();
            self.passage(HostPattern::flattest(self.nhosts()), offset, place)
        });
        passage.ok_or_else(|| Error::Internal(format!("no rank {root}")))
    }
}

impl Passage {
    /// The chunk comes, is written, and goes on; where it is the rank's own, as a draft says.
    fn down(&self, s: &mut Schedule, own: Draft<'_>, chunk: u32) -> Result<(), Error> {
        match &self.above {
            None => s.push(Draft { send: &self.below, out_chunk: chunk, ..own }),
            Some(above) => {
                let recv = std::slice::from_ref(above);
                s.push(Draft { flags: OUT, recv, send: &self.below, ..Draft::ONCE }.chunk(chunk))
            }
        }
    }

    /// What comes from below is added to the own contribution and goes on; where the chunk is the rank's own, as a
    /// draft says.
    fn up(&self, s: &mut Schedule, own: Draft<'_>, chunk: u32) -> Result<(), Error> {
        let (recv, place) = (&self.below[..], self.below.len() as u8);
        match &self.above {
            None => s.push(Draft { recv, place, in_chunk: chunk, ..own }),
            Some(above) => {
                let send = std::slice::from_ref(above);
                s.push(Draft { flags: IN, recv, place, send, ..Draft::ONCE }.chunk(chunk))
            }
        }
    }
}

const WHOLE_SUM: Draft<'static> = Draft { flags: IN | OUT | POST, ..Draft::ONCE };

/// Hierarchical AllGather.
///
/// # Errors
/// [`Error::Internal`] where there is one host, or no `rank`.
pub fn all_gather(rows: &HostRows, pattern: HostPattern, rank: u32) -> Result<Schedule, Error> {
    let me = HostMember::find(rows, rank)?;
    let mut s = me.schedule(me.nranks(), me.slots(pattern));
    let own = Draft { flags: IN | OUT, ..Draft::ONCE };
    me.passages(pattern).iter().try_for_each(|passage| passage.down(&mut s, own, passage.chunk))?;
    Ok(s)
}

/// Hierarchical ReduceScatter: sums of sums.
///
/// # Errors
/// As [`all_gather`].
pub fn reduce_scatter(rows: &HostRows, pattern: HostPattern, rank: u32) -> Result<Schedule, Error> {
    let me = HostMember::find(rows, rank)?;
    let mut s = me.schedule(me.nranks(), me.slots(pattern));
    me.passages(pattern).iter().rev().try_for_each(|passage| passage.up(&mut s, WHOLE_SUM, passage.chunk))?;
    Ok(s)
}

/// Hierarchical AllReduce in two steps: a ReduceScatter, and an AllGather of its results.
///
/// # Errors
/// As [`all_gather`].
pub fn all_reduce_in_two(rows: &HostRows, rank: u32) -> Result<Schedule, Error> {
    let me = HostMember::find(rows, rank)?;
    let pattern = HostPattern::flattest(me.nhosts());
    let mut s = me.schedule(me.nranks(), me.slots(pattern));
    let passages = me.passages(pattern);
    // A result goes down in the step that makes it, if nothing goes up after it.
    let at_once = me.all_places_in_a_round(pattern);
    for passage in passages.iter().rev() {
        let send: &[u32] = if at_once { &passage.below } else { &[] };
        passage.up(&mut s, Draft { send, out_chunk: passage.chunk, ..WHOLE_SUM }, passage.chunk)?;
    }
    for passage in passages.iter().filter(|passage| !at_once || passage.above.is_some()) {
        let made = Draft { flags: IN | FROM_OUT, ..Draft::ONCE }.chunk(passage.chunk);
        passage.down(&mut s, made, passage.chunk)?;
    }
    Ok(s)
}

/// Hierarchical Broadcast.
///
/// # Errors
/// As [`all_gather`]; also where there is no `root`.
pub fn broadcast(rows: &HostRows, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = HostMember::find(rows, rank)?;
    let mut s = me.schedule(1, MIN_SLOTS);
    me.of_root(root)?.down(&mut s, Draft { flags: IN | OUT, ..Draft::ONCE }, 0)?;
    Ok(s)
}

/// Hierarchical Reduce: sums of sums.
///
/// # Errors
/// As [`broadcast`].
pub fn reduce(rows: &HostRows, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = HostMember::find(rows, rank)?;
    let mut s = me.schedule(1, MIN_SLOTS);
    me.of_root(root)?.up(&mut s, WHOLE_SUM, 0)?;
    Ok(s)
}

/// Hierarchical AllReduce in one step: one hop between hosts. There are as many chunks as ranks on the smallest host.
///
/// # Errors
/// As [`all_gather`], and where there are more than [`STAR_HOSTS`].
pub fn all_reduce(rows: &HostRows, rank: u32) -> Result<Schedule, Error> {
    let me = HostMember::find(rows, rank)?;
    if me.nhosts() > STAR_HOSTS {
        return Err(Error::Internal(format!("{} hosts do not send to each other in one step", me.nhosts())));
    }
    let nchunks = rows.fewest();
    let mut s = me.schedule(nchunks, MIN_SLOTS);
    let others: Vec<u32> = (1..me.nhosts()).map(|by| rows.at(me.host + by, me.place)).collect();
    let mut chunks: Vec<(u32, u32, u32)> =
        (0..nchunks).map(|chunk| (me.in_host(chunk, FAN).2, me.behind_carrier(chunk), chunk)).collect();
    // Those that wait for nobody first.
    chunks.sort_by_key(|(depth, behind, _)| (std::cmp::Reverse(*depth), me.width - 1 - behind));
    let alone = me.width == 1;
    for &(.., chunk) in &chunks {
        let (above, below, _) = me.in_host(chunk, FAN);
        let sum = Draft { flags: IN, recv: &below, place: below.len() as u8, ..Draft::ONCE }.chunk(chunk);
        match &above {
            Some(above) => s.push(Draft { send: std::slice::from_ref(above), ..sum })?,
            None => s.push(Draft { flags: if alone { IN } else { IN | OUT }, send: &others, ..sum })?,
        }
    }
    chunks.reverse();
    for &(.., chunk) in &chunks {
        let (above, below, _) = me.in_host(chunk, FAN);
        match &above {
            Some(above) => {
                let recv = std::slice::from_ref(above);
                s.push(Draft { flags: OUT, recv, send: &below, ..Draft::ONCE }.chunk(chunk))?;
            }
            None => me.add_hosts(&mut s, chunk, &below)?,
        }
    }
    Ok(s)
}

impl HostMember<'_> {
    /// Adds up what all hosts have of a chunk that the rank carries, in their order, and sends the result on.
    fn add_hosts(&self, s: &mut Schedule, chunk: u32, send: &[u32]) -> Result<(), Error> {
        let hosts = (0..self.nhosts()).filter(|host| *host != self.host);
        let recv: Vec<u32> = hosts.map(|host| self.rows.at(host, self.place)).collect();
        // A host's sum is where the result will be.
        let own = if self.width == 1 { IN } else { IN | FROM_OUT };
        let sum = Draft { flags: own | OUT | POST, recv: &recv, place: self.host as u8, send, ..Draft::ONCE };
        s.push(sum.chunk(chunk))
    }
}

/// The ranks that a rank has to do with in any of these algorithms.
pub(super) fn neighbours(rows: &HostRows, rank: u32) -> BTreeSet<u32> {
    let Ok(me) = HostMember::find(rows, rank) else { return BTreeSet::new() };
    let mut all = BTreeSet::new();
    for pattern in [HostPattern::flattest(me.nhosts()), HostPattern::Binomial] {
        let passages = me.passages(pattern);
        all.extend(passages.into_iter().flat_map(|passage| passage.below.into_iter().chain(passage.above)));
    }
    let in_one = if me.nhosts() <= STAR_HOSTS { all_reduce(rows, rank).ok() } else { None };
    all.extend(in_one.iter().flat_map(|s| s.links.iter().map(|link| link.from + link.to - rank)));
    all
}
