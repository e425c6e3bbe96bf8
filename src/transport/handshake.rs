//! How the ranks of a unit come by each other's memory. Pure: letters, times and what was made go in, letters come out.
//!
//! A rank that first needs a unit makes its part of the memory and *offers* it to its peers in the unit, saying that it
//! wants theirs. A peer, whatever its user is doing, then makes its own part, if it has not yet, and offers that to all of
//! its peers. So every rank offers its part of a unit once to each peer, and a rank waits for nothing but letters.
//! Letters are not lost, unless a process dies; a rank that waits asks again all the same, to learn of that.
//!
//! `O` is an offer: whatever a peer needs to reach the memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::wiring::Unit;

#[cfg(test)]
mod tests;

/// After how long a rank that waits asks again.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What one rank tells another about a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message<O> {
    /// Its part, and whether it wants the other's.
    Offer { offer: O, wanted: bool },
    /// The other's part is still missing.
    Ask,
    /// It could not make its part, and why.
    Failed(String),
}

/// A rank's own part of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Own {
    #[default]
    None,
    /// Somebody is making it.
    Begun,
    Made,
    Failed(String),
}

/// What is known of a unit.
struct Progress<O> {
    peers: Vec<u32>,
    own: Own,
    /// This rank waits for it.
    wanted: bool,
    theirs: BTreeMap<u32, Result<O, String>>,
    /// All parts were there, and have been given away.
    taken: bool,
    /// When each peer that is waited for was last asked.
    asked: BTreeMap<u32, Duration>,
}

/// The state of all units of a rank. Times count from any fixed moment.
pub(super) struct Handshake<O> {
    units: BTreeMap<Unit, Progress<O>>,
    /// Ranks that will never answer, and why.
    gone: BTreeMap<u32, String>,
}

/// Letters to be sent: to whom, and what.
pub(super) type Letters<O> = Vec<(u32, Message<O>)>;

/// How it stands with a unit that this rank wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// All parts are there.
    Complete,
    /// These ranks have not answered.
    Missing(Vec<u32>),
    /// It cannot come to be; the rank to blame, if it is not this one.
    Failed(Option<u32>, String),
}

impl<O> Handshake<O> {
    pub fn new() -> Handshake<O> {
        Handshake { units: BTreeMap::new(), gone: BTreeMap::new() }
    }

    fn unit(&mut self, unit: Unit, peers: impl FnOnce() -> Vec<u32>) -> &mut Progress<O> {
        self.units.entry(unit).or_insert_with(|| Progress {
            peers: peers(),
            own: Own::None,
            wanted: false,
            theirs: BTreeMap::new(),
            taken: false,
            asked: BTreeMap::new(),
        })
    }

    /// This rank wants a unit. True: the caller is to make its part, and then calls [`Handshake::made`].
    pub fn want(&mut self, unit: Unit, peers: impl FnOnce() -> Vec<u32>, now: Duration) -> (bool, Letters<O>) {
        let progress = self.unit(unit, peers);
        progress.wanted = true;
        match progress.begin() {
            true => (true, Vec::new()),
            false => (false, progress.ask(now, Duration::ZERO)),
        }
    }

    /// A letter about a unit, in which `peers` are those of this rank. True: the caller is to make its part, and then
    /// calls [`Handshake::made`].
    pub fn receive(
        &mut self,
        from: u32,
        unit: Unit,
        message: Message<O>,
        peers: impl FnOnce() -> Vec<u32>,
    ) -> (bool, Letters<O>) {
        let progress = self.unit(unit, peers);
        if !progress.peers.contains(&from) || progress.taken {
            return (false, Vec::new());
        }
        let wanted = match message {
            Message::Offer { offer, wanted } => {
                progress.theirs.entry(from).or_insert(Ok(offer));
                wanted
            }
            Message::Ask => true,
            Message::Failed(text) => {
                progress.theirs.entry(from).or_insert(Err(text));
                false
            }
        };
        match &progress.own {
            Own::Failed(text) if wanted => (false, vec![(from, Message::Failed(text.clone()))]),
            _ => (wanted && progress.begin(), Vec::new()),
        }
    }

    /// This rank's part was made, or not: every peer is told, once. `offer` gives what a peer is offered.
    pub fn made(&mut self, unit: Unit, result: Result<(), String>, now: Duration, mut offer: impl FnMut(u32) -> O) -> Letters<O> {
        let Some(progress) = self.units.get_mut(&unit) else { return Vec::new() };
        let letters: Letters<O> = match &result {
            Ok(()) => {
                let missing = |peer: &u32| progress.wanted && !progress.theirs.contains_key(peer);
                let letter = |peer: &u32| (*peer, Message::Offer { offer: offer(*peer), wanted: missing(peer) });
                progress.peers.iter().map(letter).collect()
            }
            Err(text) => progress.peers.iter().map(|peer| (*peer, Message::Failed(text.clone()))).collect(),
        };
        progress.asked = progress.peers.iter().map(|peer| (*peer, now)).collect();
        progress.own = result.map_or_else(Own::Failed, |()| Own::Made);
        letters
    }

    /// Who has waited long enough to be asked again, about which unit; and when somebody will have.
    pub fn tick(&mut self, now: Duration) -> (Vec<(Unit, Letters<O>)>, Option<Duration>) {
        let (mut letters, mut next) = (Vec::new(), None);
        for (unit, progress) in self.units.iter_mut().filter(|(_, progress)| progress.wanted && progress.own == Own::Made) {
            let asks = progress.ask(now, ASK_AGAIN);
            if !asks.is_empty() {
                letters.push((*unit, asks));
            }
            let due = progress.missing().filter_map(|peer| progress.asked.get(&peer)).min().map(|asked| *asked + ASK_AGAIN);
            next = due.into_iter().chain(next).min();
        }
        (letters, next)
    }

    /// Forgets all units, but not who is gone.
    pub fn restart(&mut self) {
        self.units.clear();
    }

    /// A rank will never answer again.
    pub fn lose(&mut self, rank: u32, why: &str) {
        self.gone.entry(rank).or_insert_with(|| why.to_string());
    }

    /// Why a rank will never answer again; none where it may.
    pub fn lost(&self, rank: u32) -> Option<&str> {
        self.gone.get(&rank).map(String::as_str)
    }

    /// How it stands with a unit.
    pub fn standing(&self, unit: Unit) -> Standing {
        let Some(progress) = self.units.get(&unit) else { return Standing::Missing(Vec::new()) };
        if let Own::Failed(text) = &progress.own {
            return Standing::Failed(None, text.clone());
        }
        let failed = progress.theirs.iter().find_map(|(rank, theirs)| theirs.as_ref().err().map(|text| (*rank, text)));
        let gone = || progress.missing().find_map(|rank| self.gone.get(&rank).map(|text| (rank, text)));
        if let Some((rank, text)) = failed.or_else(gone) {
            return Standing::Failed(Some(rank), text.clone());
        }
        let missing: Vec<u32> = progress.missing().collect();
        match missing.is_empty() && progress.own == Own::Made {
            true => Standing::Complete,
            false => Standing::Missing(missing),
        }
    }

    /// The parts of the peers, of a unit that is complete. They are given once; the unit stays complete.
    pub fn take(&mut self, unit: Unit) -> BTreeMap<u32, O> {
        let Some(progress) = self.units.get_mut(&unit) else { return BTreeMap::new() };
        (progress.wanted, progress.taken) = (false, true);
        std::mem::take(&mut progress.theirs).into_iter().filter_map(|(rank, offer)| Some((rank, offer.ok()?))).collect()
    }
}

impl<O> Progress<O> {
    /// Whether the caller is the one to make this rank's part.
    fn begin(&mut self) -> bool {
        let first = self.own == Own::None;
        if first {
            self.own = Own::Begun;
        }
        first
    }

    /// Peers whose parts are not there.
    fn missing(&self) -> impl Iterator<Item = u32> {
        self.peers.iter().copied().filter(|peer| !self.taken && !self.theirs.contains_key(peer))
    }

    /// Asks those that were not asked for some time.
    fn ask(&mut self, now: Duration, pause: Duration) -> Letters<O> {
        if self.own != Own::Made {
            return Vec::new();
        }
        let due = |peer: &u32| self.asked.get(peer).is_none_or(|asked| now.saturating_sub(*asked) >= pause);
        let due: Vec<u32> = self.missing().filter(due).collect();
        due.into_iter()
            .map(|peer| {
                self.asked.insert(peer, now);
                (peer, Message::Ask)
            })
            .collect()
    }
}
