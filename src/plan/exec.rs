//! The symbolic executor: runs the schedules of all ranks on names instead of numbers, with bounded slots.
//!
//! A rank waits only for its own links, and counters only grow; so the run is confluent: if one order of
//! events finishes, every order does, with the same result. One run proves a schedule for all timings.
//!
//! Values are terms: which rank's input, and what was added to what in which order. Two ranks that hold
//! the same term hold the same bits.

use std::collections::HashMap;

use super::layout::{Step, step_flag};
use super::schedule::{LinkId, Schedule};

/// How the schedules are run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Slots of every link.
    pub slots: u32,
    /// Pieces of every chunk: with two or more, slots are used again and pieces could be mixed up.
    pub pieces: u32,
    /// The output is the input.
    pub in_place: bool,
}

/// What is wrong with a set of schedules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The schedules do not belong together, or a step is malformed.
    #[error("{0}")]
    Malformed(String),
    /// Some ranks wait for each other for ever; one of them, and the link it waits for.
    #[error("deadlock: {blocked} ranks wait, e.g. rank {rank} for {link:?}")]
    Deadlock {
        /// Ranks that wait.
        blocked: usize,
        /// One of them.
        rank: u32,
        /// The link it waits for.
        link: LinkId,
    },
    /// A rank reads an output chunk that was not written.
    #[error("rank {rank} reads chunk {chunk} of its output before it is written")]
    Unwritten {
        /// The rank.
        rank: u32,
        /// The chunk.
        chunk: u32,
    },
    /// In place: a rank reads an input chunk after it was overwritten.
    #[error("rank {rank} reads chunk {chunk} of its input after it was overwritten")]
    Overwritten {
        /// The rank.
        rank: u32,
        /// The chunk.
        chunk: u32,
    },
    /// A link has slots left in it.
    #[error("{link:?} is left with {left} slots filled")]
    NotDrained {
        /// The link.
        link: LinkId,
        /// Slots that nobody read.
        left: u64,
    },
    /// A result is not what the collective promises.
    #[error("rank {rank}, chunk {chunk}: {what}")]
    Wrong {
        /// The rank.
        rank: u32,
        /// The chunk.
        chunk: u32,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A term by number. Equal terms have equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct TermId(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Term {
    /// A rank's own input.
    Input { rank: u32, chunk: u32, piece: u32 },
    /// Left, then right.
    Reduced(TermId, TermId),
    /// What `post` was applied to.
    Posted(TermId),
    /// A signal: no data.
    Nothing,
}

/// All terms of a run; each is kept once.
#[derive(Default)]
struct Terms {
    list: Vec<Term>,
    ids: HashMap<Term, TermId>,
}

impl Terms {
    fn id(&mut self, term: Term) -> TermId {
        let list = &mut self.list;
        *self.ids.entry(term).or_insert_with(|| {
            list.push(term);
            TermId(list.len() as u32 - 1)
        })
    }

    fn get(&self, id: TermId) -> Term {
        self.list[id.0 as usize]
    }

    /// The inputs of a term from left to right, and whether `post` was applied anywhere in it.
    fn leaves(&self, id: TermId) -> (Vec<Term>, bool) {
        let (mut leaves, mut posted, mut open) = (Vec::new(), false, vec![id]);
        while let Some(id) = open.pop() {
            match self.get(id) {
                Term::Reduced(left, right) => open.extend([right, left]),
                Term::Posted(of) => {
                    posted = true;
                    open.push(of);
                }
                leaf => leaves.push(leaf),
            }
        }
        (leaves, posted)
    }
}

#[derive(Default)]
struct Link {
    posted: u64,
    consumed: u64,
    /// What lies in the slots; slot `i % slots` holds the i-th.
    slots: Vec<Option<TermId>>,
    /// The rank that waits for this link, in either role.
    waiters: Vec<usize>,
}

/// One rank in the course of the run.
struct Rank<'a> {
    schedule: &'a Schedule,
    /// The schedule's links, by number in [`Run::links`].
    links: Vec<usize>,
    /// The output (and in place, the input), by piece and chunk.
    output: Vec<Option<TermId>>,
    piece: u32,
    step: usize,
    round: u32,
}

impl Rank<'_> {
    fn current(&self, pieces: u32) -> Option<&Step> {
        if self.piece < pieces { self.schedule.steps.get(self.step) } else { None }
    }

    fn advance(&mut self) {
        self.round += 1;
        if self.round >= u32::from(self.schedule.steps[self.step].repeat) {
            self.round = 0;
            self.step += 1;
        }
        if self.step == self.schedule.steps.len() {
            self.step = 0;
            self.piece += 1;
        }
    }

    /// The chunk of this round, from the step's first.
    fn chunk(&self, first: u32, step: &Step) -> u32 {
        let moved = i64::from(first) + i64::from(self.round) * i64::from(step.stride);
        moved.rem_euclid(i64::from(self.schedule.nchunks)) as u32
    }

    fn cell(&self, chunk: u32) -> usize {
        (self.piece * self.schedule.nchunks + chunk) as usize
    }
}

/// A finished run.
pub struct Outcome {
    terms: Terms,
    /// By rank, then piece, then chunk.
    outputs: Vec<Vec<Option<TermId>>>,
    ranks: Vec<u32>,
    nchunks: u32,
    pieces: u32,
    /// Turns that all ranks took together.
    pub turns: u64,
}

struct Run<'a> {
    setting: Setting,
    ranks: Vec<Rank<'a>>,
    links: Vec<Link>,
    names: Vec<LinkId>,
    terms: Terms,
    turns: u64,
}

/// Runs the schedules of all ranks of a collective to the end.
///
/// # Errors
/// The first [`Fault`] that shows.
pub fn execute(schedules: &[Schedule], setting: Setting) -> Result<Outcome, Fault> {
    let mut run = Run::new(schedules, setting)?;
    let mut ready: Vec<usize> = (0..schedules.len()).rev().collect();
    while let Some(r) = ready.pop() {
        while let Some(blocked_on) = run.blocked(r) {
            match blocked_on {
                Some(link) => {
                    run.links[link].waiters.push(r);
                    break;
                }
                None => run.turn(r, &mut ready)?,
            }
        }
    }
    run.finish()
}

impl<'a> Run<'a> {
    fn new(schedules: &'a [Schedule], setting: Setting) -> Result<Run<'a>, Fault> {
        let mut numbers = HashMap::new();
        let mut names = Vec::new();
        let mut ranks = Vec::new();
        for s in schedules {
            s.check(setting.slots.max(s.slots)).map_err(|e| Fault::Malformed(e.to_string()))?;
            if s.nchunks != schedules[0].nchunks {
                return Err(Fault::Malformed(format!("rank {} has {} chunks", s.rank, s.nchunks)));
            }
            let number = |id: &LinkId| {
                *numbers.entry(*id).or_insert_with(|| {
                    names.push(*id);
                    names.len() - 1
                })
            };
            let links = s.links.iter().map(number).collect();
            let cells = (setting.pieces * s.nchunks) as usize;
            ranks.push(Rank { schedule: s, links, output: vec![None; cells], piece: 0, step: 0, round: 0 });
        }
        let link = || Link { slots: vec![None; setting.slots as usize], ..Link::default() };
        let links = names.iter().map(|_| link()).collect();
        Ok(Run { setting, ranks, links, names, terms: Terms::default(), turns: 0 })
    }

    /// `None`: the rank is done. `Some(Some(link))`: it waits for that link. `Some(None)`: it can go on.
    fn blocked(&self, r: usize) -> Option<Option<usize>> {
        let rank = &self.ranks[r];
        let step = rank.current(self.setting.pieces)?;
        let number = |&i: &u8| rank.links[usize::from(i)];
        let empty = |&l: &usize| self.links[l].posted == self.links[l].consumed;
        let full = |&l: &usize| self.links[l].posted - self.links[l].consumed >= u64::from(self.setting.slots);
        let recv = step.recv[..usize::from(step.nrecv)].iter().map(number).find(empty);
        Some(recv.or_else(|| step.send[..usize::from(step.nsend)].iter().map(number).find(full)))
    }

    /// One turn of a rank whose links are ready; ranks that waited for them become ready.
    fn turn(&mut self, r: usize, ready: &mut Vec<usize>) -> Result<(), Fault> {
        let rank = &self.ranks[r];
        let step = rank.schedule.steps[rank.step];
        let recv: Vec<usize> = step.recv[..usize::from(step.nrecv)].iter().map(|&i| rank.links[usize::from(i)]).collect();
        let send: Vec<usize> = step.send[..usize::from(step.nsend)].iter().map(|&i| rank.links[usize::from(i)]).collect();
        let value = self.value(r, &step, &recv)?;
        let slots = u64::from(self.setting.slots);
        for &l in &recv {
            self.links[l].consumed += 1;
        }
        for &l in &send {
            let link = &mut self.links[l];
            link.slots[(link.posted % slots) as usize] = Some(value);
            link.posted += 1;
        }
        for &l in recv.iter().chain(&send) {
            ready.append(&mut self.links[l].waiters);
        }
        if step.flags & step_flag::OUT != 0 {
            let rank = &mut self.ranks[r];
            let cell = rank.cell(rank.chunk(step.out_chunk, &step));
            rank.output[cell] = Some(value);
        }
        self.ranks[r].advance();
        self.turns += 1;
        Ok(())
    }

    /// What a turn makes of its sources, in the order of reduction.
    fn value(&mut self, r: usize, step: &Step, recv: &[usize]) -> Result<TermId, Fault> {
        if step.flags & step_flag::NO_DATA != 0 {
            return Ok(self.terms.id(Term::Nothing));
        }
        let slots = u64::from(self.setting.slots);
        let mut sources = Vec::with_capacity(recv.len() + 1);
        for &l in recv {
            let link = &self.links[l];
            // `blocked` saw the slot posted, so it is filled.
            sources.extend(link.slots[(link.consumed % slots) as usize]);
        }
        if step.flags & step_flag::IN != 0 {
            let own = self.own(r, step)?;
            sources.insert(usize::from(step.place), own);
        }
        let nothing = self.terms.id(Term::Nothing);
        let mut sum = sources[0];
        for &next in &sources[1..] {
            sum = self.terms.id(Term::Reduced(sum, next));
        }
        if sources.contains(&nothing) {
            return Err(Fault::Malformed(format!("rank {} reduces a signal", self.ranks[r].schedule.rank)));
        }
        Ok(if step.flags & step_flag::POST != 0 { self.terms.id(Term::Posted(sum)) } else { sum })
    }

    /// The rank's own chunk.
    fn own(&mut self, r: usize, step: &Step) -> Result<TermId, Fault> {
        let me = &self.ranks[r];
        let rank = me.schedule.rank;
        let chunk = me.chunk(step.in_chunk, step);
        let written = me.output[me.cell(chunk)];
        if step.flags & step_flag::FROM_OUT != 0 {
            return written.ok_or(Fault::Unwritten { rank, chunk });
        }
        if self.setting.in_place && written.is_some() {
            return Err(Fault::Overwritten { rank, chunk });
        }
        let piece = me.piece;
        Ok(self.terms.id(Term::Input { rank, chunk, piece }))
    }

    fn finish(self) -> Result<Outcome, Fault> {
        let waiting: Vec<usize> =
            (0..self.ranks.len()).filter(|&r| self.ranks[r].current(self.setting.pieces).is_some()).collect();
        if let Some(&r) = waiting.first() {
            let link = self.blocked(r).flatten().unwrap_or_default();
            let rank = self.ranks[r].schedule.rank;
            return Err(Fault::Deadlock { blocked: waiting.len(), rank, link: self.names[link] });
        }
        for (link, &name) in self.links.iter().zip(&self.names) {
            if link.posted != link.consumed {
                return Err(Fault::NotDrained { link: name, left: link.posted - link.consumed });
            }
        }
        Ok(Outcome {
            terms: self.terms,
            ranks: self.ranks.iter().map(|r| r.schedule.rank).collect(),
            nchunks: self.ranks.first().map_or(0, |r| r.schedule.nchunks),
            outputs: self.ranks.into_iter().map(|r| r.output).collect(),
            pieces: self.setting.pieces,
            turns: self.turns,
        })
    }
}

impl Outcome {
    /// Proves an AllReduce: every chunk of every rank's output holds every rank's contribution exactly once,
    /// `post` was applied once, at the very end, and all ranks have the same order of reduction.
    ///
    /// # Errors
    /// [`Fault::Wrong`], naming the first chunk that is not so.
    pub fn prove_all_reduce(&self) -> Result<(), Fault> {
        for piece in 0..self.pieces {
            for chunk in 0..self.nchunks {
                let cell = (piece * self.nchunks + chunk) as usize;
                let term = self.outputs.first().and_then(|o| o[cell]);
                let wrong = |rank: u32, what| Fault::Wrong { rank, chunk, what };
                let first = term.ok_or(wrong(self.ranks[0], "never written"))?;
                self.prove_sum(first, chunk, piece).map_err(|what| wrong(self.ranks[0], what))?;
                for (output, &rank) in self.outputs.iter().zip(&self.ranks) {
                    if output[cell] != Some(first) {
                        return Err(wrong(rank, "another value or order than on the first rank"));
                    }
                }
            }
        }
        Ok(())
    }

    fn prove_sum(&self, id: TermId, chunk: u32, piece: u32) -> Result<(), &'static str> {
        let Term::Posted(sum) = self.terms.get(id) else { return Err("not finished with post") };
        let (leaves, posted) = self.terms.leaves(sum);
        if posted {
            return Err("post applied twice");
        }
        let mut missing: HashMap<u32, ()> = self.ranks.iter().map(|&r| (r, ())).collect();
        for leaf in leaves {
            match leaf {
                Term::Input { rank, chunk: c, piece: p } if (c, p) == (chunk, piece) => {
                    missing.remove(&rank).ok_or("a contribution twice")?;
                }
                _ => return Err("data of another chunk"),
            }
        }
        if missing.is_empty() { Ok(()) } else { Err("a contribution is missing") }
    }

    /// The order of reduction of a chunk on the first rank: ranks from left to right.
    pub fn order(&self, chunk: u32) -> Vec<u32> {
        let id = self.outputs.first().and_then(|o| o[chunk as usize]);
        let leaves = id.map(|id| self.terms.leaves(id).0).unwrap_or_default();
        let rank = |t: Term| if let Term::Input { rank, .. } = t { Some(rank) } else { None };
        leaves.into_iter().filter_map(rank).collect()
    }
}

#[cfg(test)]
mod tests;
