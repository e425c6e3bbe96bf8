//! How the ranks of a connection group come by each other's memory. Pure: notices, times and what was made go in,
//! notices come out.
//!
//! A rank that first needs a connection group makes its part of the memory and *offers* it to its peers in the
//! connection group, saying that it wants theirs. A peer, whatever its user is doing, takes what it is offered (maps
//! it), and says so; then it makes its own part, if it has not yet, and offers that to all of its peers. So every rank
//! offers its part of a connection group once to each peer, and waits for nothing but notices. A connection group is
//! complete for a rank that has all parts and whose own part all peers have: what it does from then on reaches them
//! even if it dies the moment after.
//!
//! Notices are not lost, unless a process dies; a rank that waits asks again all the same, to learn of that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::plan::wiring::ConnectionGroup;

#[cfg(test)]
mod tests;

/// After how long a rank that waits asks again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What one rank tells another about a connection group. What is offered goes with it and is none of this file's
/// business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Here is its part; and whether it wants the other's.
    Offer { wanted: bool },
    /// It has the other's part.
    Taken,
    /// Something of the other is still missing.
    Ask,
    /// It could not make its part, or take the other's, and why.
    Failed(String),
}

/// What the caller is to do about a notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Todo {
    /// Take the part that is offered, then call [`Handshake::taken`].
    pub take: bool,
    /// Make this rank's part, then call [`Handshake::made`].
    pub make: bool,
}

/// This rank's part of a connection group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum OwnPart {
    #[default]
    None,
    /// Somebody is making it.
    Begun,
    Made,
    Failed(String),
}

/// What is known of a connection group.
struct GroupProgress {
    peers: Vec<u32>,
    own: OwnPart,
    /// This rank waits for it.
    wanted: bool,
    /// The peers' parts: whether each has been taken, or somebody is about to.
    theirs: BTreeMap<u32, bool>,
    /// The peers that have this rank's part.
    has_mine: BTreeSet<u32>,
    failed: BTreeMap<u32, String>,
    /// It was complete, and the parts have been given away.
    done: bool,
    /// When each peer that is waited for was last asked.
    asked: BTreeMap<u32, Duration>,
}

/// The state of all connection groups of a rank. Times count from any fixed moment.
pub(super) struct Handshake {
    groups: BTreeMap<ConnectionGroup, GroupProgress>,
    /// Ranks that will never answer, and why.
    gone: BTreeMap<u32, String>,
}

/// Notices to be sent: to whom, and what.
pub(super) type Notices = Vec<(u32, Notice)>;

/// How it stands with a connection group that this rank wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Everybody has everything.
    Complete,
    /// Something is missing of, or at, these ranks.
    Missing(Vec<u32>),
    /// It cannot come to be; the rank to blame, if it is not this one.
    Failed(Option<u32>, String),
}

impl Handshake {
    pub fn new() -> Handshake {
        Handshake { groups: BTreeMap::new(), gone: BTreeMap::new() }
    }

    fn group(&mut self, group: ConnectionGroup, peers: impl FnOnce() -> Vec<u32>) -> &mut GroupProgress {
        self.groups.entry(group).or_insert_with(|| GroupProgress {
            peers: peers(),
            own: OwnPart::None,
            wanted: false,
            theirs: BTreeMap::new(),
            has_mine: BTreeSet::new(),
            failed: BTreeMap::new(),
            done: false,
            asked: BTreeMap::new(),
        })
    }

    /// This rank wants a connection group, in which `peers` are its peers. True: the caller is to make its part.
    pub fn want(&mut self, group: ConnectionGroup, peers: impl FnOnce() -> Vec<u32>, now: Duration) -> (bool, Notices) {
        let progress = self.group(group, peers);
        progress.wanted = !progress.done;
        match progress.begin() {
            true => (true, Vec::new()),
            false => (false, progress.ask(now, Duration::ZERO)),
        }
    }

    /// A notice about a connection group, in which `peers` are those of this rank; and what is to be answered at once.
    pub fn receive(
        &mut self,
        from: u32,
        group: ConnectionGroup,
        notice: Notice,
        peers: impl FnOnce() -> Vec<u32>,
    ) -> (Todo, Notices) {
        let progress = self.group(group, peers);
        let (mut todo, mut answers) = (Todo::default(), Vec::new());
        if !progress.peers.contains(&from) {
            return (todo, answers);
        }
        let wanted = match notice {
            Notice::Offer { wanted } => {
                todo.take = !progress.done && !progress.theirs.contains_key(&from);
                if todo.take {
                    progress.theirs.insert(from, false);
                }
                wanted
            }
            Notice::Taken => {
                progress.has_mine.insert(from);
                false
            }
            Notice::Ask => {
                if progress.done || progress.theirs.get(&from).is_some_and(|taken| *taken) {
                    answers.push((from, Notice::Taken));
                }
                true
            }
            Notice::Failed(text) => {
                progress.failed.entry(from).or_insert(text);
                false
            }
        };
        match &progress.own {
            OwnPart::Failed(text) if wanted => answers.push((from, Notice::Failed(text.clone()))),
            _ => todo.make = wanted && progress.begin(),
        }
        (todo, answers)
    }

    /// What a peer is told whose part was taken, or not. To be sent before [`Handshake::taken`] is called, or without
    /// fail afterwards: whoever waits goes on then, and may end the process.
    pub fn answer(&self, group: ConnectionGroup, from: u32, result: &Result<(), String>) -> Notices {
        let notice = || result.as_ref().map_or_else(|text| Notice::Failed(text.clone()), |()| Notice::Taken);
        if self.groups.contains_key(&group) { vec![(from, notice())] } else { Vec::new() }
    }

    /// A peer's part was taken, or not; the peer is told.
    pub fn taken(&mut self, group: ConnectionGroup, from: u32, result: Result<(), String>) -> Notices {
        let answer = self.answer(group, from, &result);
        let Some(progress) = self.groups.get_mut(&group) else { return answer };
        match result {
            Ok(()) => drop(progress.theirs.insert(from, true)),
            Err(text) => drop(progress.failed.entry(from).or_insert(text)),
        }
        answer
    }

    /// This rank's part was made, or not: every peer is told, once.
    pub fn made(&mut self, group: ConnectionGroup, result: Result<(), String>, now: Duration) -> Notices {
        let Some(progress) = self.groups.get_mut(&group) else { return Vec::new() };
        let notice = |peer: &u32| match &result {
            Ok(()) => Notice::Offer { wanted: progress.wanted && !progress.theirs.contains_key(peer) },
            Err(text) => Notice::Failed(text.clone()),
        };
        let notices: Notices = progress.peers.iter().map(|peer| (*peer, notice(peer))).collect();
        progress.asked = progress.peers.iter().map(|peer| (*peer, now)).collect();
        progress.own = result.map_or_else(OwnPart::Failed, |()| OwnPart::Made);
        notices
    }

    /// Who has waited long enough to be asked again, about which connection group; and when somebody will have.
    pub fn tick(&mut self, now: Duration) -> (Vec<(ConnectionGroup, Notices)>, Option<Duration>) {
        let (mut notices, mut next) = (Vec::new(), None);
        for (group, progress) in
            self.groups.iter_mut().filter(|(_, progress)| progress.wanted && progress.own == OwnPart::Made)
        {
            let asks = progress.ask(now, ASK_AGAIN);
            if !asks.is_empty() {
                notices.push((*group, asks));
            }
            let due =
                progress.missing().filter_map(|peer| progress.asked.get(&peer)).min().map(|asked| *asked + ASK_AGAIN);
            next = due.into_iter().chain(next).min();
        }
        (notices, next)
    }

    /// Forgets all connection groups, but not who is gone.
    pub fn restart(&mut self) {
        self.groups.clear();
    }

    /// A rank will never answer again.
    pub fn lose(&mut self, rank: u32, why: &str) {
        self.gone.entry(rank).or_insert_with(|| why.to_string());
    }

    /// How it stands with a connection group.
    pub fn standing(&self, group: ConnectionGroup) -> Standing {
        let Some(progress) = self.groups.get(&group) else { return Standing::Missing(Vec::new()) };
        if progress.done {
            return Standing::Complete;
        }
        if let OwnPart::Failed(text) = &progress.own {
            return Standing::Failed(None, text.clone());
        }
        let gone = || progress.missing().find_map(|rank| self.gone.get(&rank).map(|text| (rank, text)));
        if let Some((rank, text)) = progress.failed.iter().next().map(|(rank, text)| (*rank, text)).or_else(gone) {
            return Standing::Failed(Some(rank), text.clone());
        }
        let missing: Vec<u32> = progress.missing().collect();
        match missing.is_empty() && progress.own == OwnPart::Made {
            true => Standing::Complete,
            false => Standing::Missing(missing),
        }
    }

    /// Why the rank `left` may have left: it, or this one, could not do its share of a connection group. The rank to
    /// blame as by [`Handshake::standing`].
    pub fn failure(&self, left: u32) -> Option<(ConnectionGroup, Option<u32>, String)> {
        let own = |(group, progress): (&ConnectionGroup, &GroupProgress)| match &progress.own {
            OwnPart::Failed(text) => Some((*group, None, text.clone())),
            _ => None,
        };
        let theirs = |(group, progress): (&ConnectionGroup, &GroupProgress)| {
            Some((*group, Some(left), progress.failed.get(&left)?.clone()))
        };
        self.groups.iter().find_map(own).or_else(|| self.groups.iter().find_map(theirs))
    }

    /// A connection group that is complete is of no account any more; it stays complete.
    pub fn finish(&mut self, group: ConnectionGroup) {
        if let Some(progress) = self.groups.get_mut(&group) {
            (progress.wanted, progress.done) = (false, true);
            progress.theirs.clear();
        }
    }
}

impl GroupProgress {
    /// Whether the caller is the one to make this rank's part.
    fn begin(&mut self) -> bool {
        let first = self.own == OwnPart::None;
        if first {
            self.own = OwnPart::Begun;
        }
        first
    }

    /// Peers whose parts are not there, or that do not have this rank's.
    fn missing(&self) -> impl Iterator<Item = u32> {
        let there = |peer: &u32| self.has_mine.contains(peer) && self.theirs.get(peer).is_some_and(|taken| *taken);
        self.peers.iter().copied().filter(move |peer| !self.done && !there(peer))
    }

    /// Asks those that were not asked for some time.
    fn ask(&mut self, now: Duration, pause: Duration) -> Notices {
        if self.own != OwnPart::Made {
            return Vec::new();
        }
        let due = |peer: &u32| self.asked.get(peer).is_none_or(|asked| now.saturating_sub(*asked) >= pause);
        let due: Vec<u32> = self.missing().filter(due).collect();
        due.into_iter()
            .map(|peer| {
                self.asked.insert(peer, now);
                (peer, Notice::Ask)
            })
            .collect()
    }
}
