//! The run itself: actors that take turns until all are done or none can go on.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::super::layout::{MAX_FAN, Step, step_flag};
use super::super::schedule::{LinkId, Schedule};
use super::memory::{Cell, Layout};
use super::races::Races;
use super::terms::{Folded, Input, Term, TermId, Terms};
use super::{DirectAccess, Fault};

/// The size of uniform chunks: all have one, and it is not checked.
const ANY_SIZE: u32 = u32::MAX;

/// One schedule to run, once for every piece.
#[derive(Clone)]
pub(super) struct ScheduleJob<'a> {
    pub schedule: &'a Schedule,
    pub layout: Layout,
    pub pieces: u32,
}

/// Whoever goes through a list of jobs by itself: a rank, or half of one.
pub(super) struct Actor<'a> {
    pub rank: u32,
    jobs: Vec<ScheduleJob<'a>>,
    /// The schedules' links, by number in [`Run::links`]; one list for each job.
    links: Vec<Vec<usize>>,
    cells: Vec<Cell>,
    /// What the output held at the end of each job that is done.
    outputs: Vec<Vec<Option<TermId>>>,
    job: usize,
    piece: u32,
    step: usize,
    round: u32,
}

impl<'a> Actor<'a> {
    pub fn new(rank: u32, jobs: Vec<ScheduleJob<'a>>) -> Actor<'a> {
        Actor {
            rank,
            jobs,
            links: Vec::new(),
            cells: Vec::new(),
            outputs: Vec::new(),
            job: 0,
            piece: 0,
            step: 0,
            round: 0,
        }
    }

    fn current(&self) -> Option<&Step> {
        self.jobs.get(self.job)?.schedule.steps.get(self.step)
    }

    fn layout(&self) -> &Layout {
        &self.jobs[self.job].layout
    }

    /// The chunk of this round, from the step's first.
    fn chunk(&self, first: u32, step: &Step) -> u32 {
        let moved = i64::from(first) + i64::from(self.round) * i64::from(step.stride);
        moved.rem_euclid(i64::from(self.jobs[self.job].schedule.nchunks)) as u32
    }

    /// To the next turn; true: the job is done.
    fn advance(&mut self) -> bool {
        let job = &self.jobs[self.job];
        self.round += 1;
        if self.round >= u32::from(job.schedule.steps[self.step].repeat) {
            self.round = 0;
            self.step += 1;
        }
        if self.step == job.schedule.steps.len() {
            self.step = 0;
            self.piece += 1;
        }
        self.piece == job.pieces
    }
}

/// What lies in a slot.
#[derive(Clone, Copy)]
struct Slot {
    value: TermId,
    /// The chunk that said how many elements there are.
    size: u32,
}

struct SimulatedLink {
    name: LinkId,
    posted: u64,
    consumed: u64,
    /// Slot `i % slots` holds the i-th.
    slots: Vec<Slot>,
    /// Actors that wait for this link, in either role.
    waiters: Vec<usize>,
    sender: Option<usize>,
    receiver: Option<usize>,
}

/// A turn: what is the same for all that happens in it.
struct Turn {
    actor: usize,
    step: Step,
    in_chunk: u32,
    out_chunk: u32,
    /// The chunk that says how many elements move.
    size: u32,
    piece: u32,
    /// Numbers of the step's links, as many as it says.
    links: ([usize; MAX_FAN], [usize; MAX_FAN]),
}

impl Turn {
    fn recv(&self) -> &[usize] {
        &self.links.0[..usize::from(self.step.nrecv)]
    }

    fn send(&self) -> &[usize] {
        &self.links.1[..usize::from(self.step.nsend)]
    }

    fn has(&self, flag: u8) -> bool {
        self.step.flags & flag != 0
    }
}

/// All actors and links.
pub(super) struct Run<'a> {
    slots: u32,
    direct: DirectAccess,
    actors: Vec<Actor<'a>>,
    links: Vec<SimulatedLink>,
    numbers: HashMap<LinkId, usize, BuildHasherDefault<Folded>>,
    terms: Terms,
    races: Option<Races>,
    turns: u64,
}

/// What is left when all actors are done.
pub(super) struct Finished {
    pub terms: Terms,
    pub ranks: Vec<u32>,
    /// By actor, then job: the cells of the output by piece and chunk.
    pub outputs: Vec<Vec<Vec<Option<TermId>>>>,
    /// What was posted to each link.
    pub posted: Vec<(LinkId, u64)>,
    pub turns: u64,
}

impl Finished {
    /// The input that a cell holds, if it holds one unchanged.
    pub fn input(&self, cell: Option<TermId>) -> Option<Input> {
        match self.terms.get(cell?) {
            Term::Input(input) => Some(input),
            _ => None,
        }
    }
}

impl<'a> Run<'a> {
    pub fn new(slots: u32, direct: DirectAccess) -> Run<'a> {
        let (actors, links, numbers) = (Vec::new(), Vec::new(), HashMap::default());
        Run { slots, direct, actors, links, numbers, terms: Terms::new(), races: None, turns: 0 }
    }

    /// Adds an actor and the links of its jobs.
    pub fn add(&mut self, mut actor: Actor<'a>) -> Result<(), Fault> {
        let number = self.actors.len();
        for job in &actor.jobs {
            let s = job.schedule;
            s.check(self.slots.max(s.slots)).map_err(|e| Fault::Malformed(e.to_string()))?;
            if s.rank != actor.rank || s.steps.is_empty() || job.pieces == 0 {
                return Err(Fault::Malformed(format!("rank {}: nothing to do, or somebody else's", actor.rank)));
            }
            let links = s.links.iter().map(|id| self.link(*id)).collect::<Vec<_>>();
            for &link in &links {
                let link = &mut self.links[link];
                let end = if link.name.from == actor.rank { &mut link.sender } else { &mut link.receiver };
                *end = Some(number);
            }
            actor.links.push(links);
        }
        self.actors.push(actor);
        Ok(())
    }

    fn link(&mut self, name: LinkId) -> usize {
        *self.numbers.entry(name).or_insert_with(|| {
            let slots = vec![Slot { value: Terms::NOTHING, size: ANY_SIZE }; self.slots as usize];
            let (sender, receiver) = (None, None);
            self.links.push(SimulatedLink {
                name,
                posted: 0,
                consumed: 0,
                slots,
                waiters: Vec::new(),
                sender,
                receiver,
            });
            self.links.len() - 1
        })
    }

    /// Lets the actors take turns until all are done.
    pub fn complete(mut self) -> Result<Finished, Fault> {
        if self.direct != DirectAccess::default() {
            self.races = Some(Races::new(self.actors.len(), self.links.len(), self.slots as usize));
        }
        for actor in 0..self.actors.len() {
            self.begin(actor)?;
        }
        let mut ready: Vec<usize> = (0..self.actors.len()).rev().collect();
        while let Some(actor) = ready.pop() {
            while let Some(blocked_on) = self.blocked(actor) {
                match blocked_on {
                    Some(link) => {
                        self.links[link].waiters.push(actor);
                        break;
                    }
                    None => self.turn(actor, &mut ready)?,
                }
            }
        }
        self.finish()
    }

    /// Fills an actor's buffers for its job, if it has one more.
    fn begin(&mut self, a: usize) -> Result<(), Fault> {
        let actor = &mut self.actors[a];
        actor.piece = 0;
        let Some(job) = actor.jobs.get(actor.job) else { return Ok(()) };
        actor.cells = job.layout.fresh(&mut self.terms, actor.rank, actor.job as u32, job.pieces);
        if let Some(races) = &mut self.races {
            races.tick(a);
            let raced = races.renew(a, self.actors[a].cells.len());
            raced.map_err(|other| self.race(a, other, a, "buffers"))?;
        }
        Ok(())
    }

    /// An actor is done with its job.
    fn end(&mut self, a: usize) -> Result<(), Fault> {
        let actor = &self.actors[a];
        let cells: Vec<usize> = actor.layout().outputs_of(actor.piece).collect();
        let held = |&cell: &usize| if actor.cells[cell].written { actor.cells[cell].value } else { None };
        let output = cells.iter().map(held).collect();
        for cell in cells {
            self.touch(a, a, cell, false, "output")?;
        }
        let actor = &mut self.actors[a];
        actor.outputs.push(output);
        actor.job += 1;
        self.begin(a)
    }

    /// `None`: the actor is done. `Some(Some(link))`: it waits for that link. `Some(None)`: it can go on.
    fn blocked(&self, a: usize) -> Option<Option<usize>> {
        let actor = &self.actors[a];
        let step = actor.current()?;
        let number = |&i: &u8| actor.links[actor.job][usize::from(i)];
        let empty = |&l: &usize| self.links[l].posted == self.links[l].consumed;
        let full = |&l: &usize| self.links[l].posted - self.links[l].consumed >= u64::from(self.slots);
        let recv = step.recv[..usize::from(step.nrecv)].iter().map(number).find(empty);
        Some(recv.or_else(|| step.send[..usize::from(step.nsend)].iter().map(number).find(full)))
    }

    fn describe(&self, a: usize, step: Step) -> Turn {
        let actor = &self.actors[a];
        let numbers = &actor.links[actor.job];
        let mut links = ([0; MAX_FAN], [0; MAX_FAN]);
        let recv = links.0.iter_mut().zip(&step.recv[..usize::from(step.nrecv)]);
        let send = links.1.iter_mut().zip(&step.send[..usize::from(step.nsend)]);
        for (number, link) in recv.chain(send) {
            *number = numbers[usize::from(*link)];
        }
        let (in_chunk, out_chunk) = (actor.chunk(step.in_chunk, &step), actor.chunk(step.out_chunk, &step));
        let of = if step.flags & step_flag::OUT != 0 { out_chunk } else { in_chunk };
        Turn {
            actor: a,
            step,
            in_chunk,
            out_chunk,
            size: if actor.layout().divided { of } else { ANY_SIZE },
            piece: actor.piece,
            links,
        }
    }

    /// One turn of an actor whose links are ready; actors that waited for them become ready.
    fn turn(&mut self, a: usize, ready: &mut Vec<usize>) -> Result<(), Fault> {
        let Some(&step) = self.actors[a].current() else { return Ok(()) };
        let turn = self.describe(a, step);
        self.meet(&turn);
        let value = self.value(&turn)?;
        if turn.has(step_flag::OUT) && !turn.has(step_flag::NO_DATA) {
            self.write(a, &turn, value)?;
        }
        self.deliver(&turn, value)?;
        for &l in turn.recv().iter().chain(turn.send()) {
            ready.append(&mut self.links[l].waiters);
        }
        self.turns += 1;
        if self.actors[a].advance() { self.end(a) } else { Ok(()) }
    }

    /// The actor has seen its links' counters.
    fn meet(&mut self, turn: &Turn) {
        let Some(races) = &mut self.races else { return };
        let slot = |count: u64| (count % u64::from(self.slots)) as usize;
        races.tick(turn.actor);
        for &l in turn.recv() {
            races.saw_filled(turn.actor, l, slot(self.links[l].consumed));
        }
        for &l in turn.send() {
            races.saw_emptied(turn.actor, l, slot(self.links[l].posted));
        }
    }

    /// The turn's effect on its links.
    fn deliver(&mut self, turn: &Turn, value: TermId) -> Result<(), Fault> {
        for &l in turn.recv() {
            let link = &mut self.links[l];
            let slot = (link.consumed % u64::from(self.slots)) as usize;
            link.consumed += 1;
            if let Some(races) = &mut self.races {
                races.empty(turn.actor, l, slot);
            }
        }
        for &l in turn.send() {
            let written = self.direct.write && !turn.has(step_flag::NO_DATA);
            if written {
                let to = self.links[l].receiver.unwrap_or(turn.actor);
                self.write(to, turn, value)?;
            }
            let value = if written { Terms::NOTHING } else { value };
            let link = &mut self.links[l];
            let slot = (link.posted % u64::from(self.slots)) as usize;
            link.slots[slot] = Slot { value, size: turn.size };
            link.posted += 1;
            if let Some(races) = &mut self.races {
                races.fill(turn.actor, l, slot);
            }
        }
        Ok(())
    }

    /// What a turn makes of its sources, in the order of reduction.
    fn value(&mut self, turn: &Turn) -> Result<TermId, Fault> {
        let mut sum = None;
        let add = |terms: &mut Terms, sum: &mut Option<TermId>, next| {
            *sum = Some(sum.map_or(next, |sum| terms.id(Term::Reduced(sum, next))));
        };
        for (i, &l) in turn.recv().iter().enumerate() {
            if i == usize::from(turn.step.place) && turn.has(step_flag::IN) {
                let own = self.own(turn)?;
                add(&mut self.terms, &mut sum, own);
            }
            let next = self.received(turn, l)?;
            add(&mut self.terms, &mut sum, next);
        }
        if turn.has(step_flag::NO_DATA) {
            return Ok(Terms::NOTHING);
        }
        if turn.has(step_flag::IN) && turn.step.place == turn.step.nrecv {
            let own = self.own(turn)?;
            add(&mut self.terms, &mut sum, own);
        }
        // The schedule's check has seen that there is a source.
        let sum = sum.unwrap_or(Terms::NOTHING);
        Ok(if turn.has(step_flag::POST) { self.terms.id(Term::Posted(sum)) } else { sum })
    }

    /// What a link gives to a turn.
    fn received(&mut self, turn: &Turn, l: usize) -> Result<TermId, Fault> {
        if self.direct.read && !turn.has(step_flag::NO_DATA) {
            return self.fetch(turn, l);
        }
        let link = &self.links[l];
        let slot = link.slots[(link.consumed % u64::from(self.slots)) as usize];
        let rank = self.actors[turn.actor].rank;
        let name = |nothing| if nothing { "a signal" } else { "data" };
        let (signal, expected) = (slot.value == Terms::NOTHING, turn.has(step_flag::NO_DATA));
        if signal != expected {
            return Err(Fault::Signal { rank, link: link.name, took: name(expected), carried: name(signal) });
        }
        self.check_size(turn, slot.size)?;
        Ok(slot.value)
    }

    fn check_size(&self, turn: &Turn, chunk: u32) -> Result<(), Fault> {
        let sized = turn.size != ANY_SIZE && !turn.has(step_flag::NO_DATA);
        if sized && chunk != turn.size {
            return Err(Fault::Size { rank: self.actors[turn.actor].rank, chunk, as_chunk: turn.size });
        }
        Ok(())
    }

    /// Reads the sender's input, where it is now.
    fn fetch(&mut self, turn: &Turn, l: usize) -> Result<TermId, Fault> {
        self.check_size(turn, turn.in_chunk)?;
        let from = self.links[l].sender.unwrap_or(turn.actor);
        let sender = &self.actors[from];
        let missing = Fault::NoBuffer { rank: sender.rank, chunk: turn.in_chunk, buffer: "input" };
        let job = sender.jobs.get(sender.job).or(sender.jobs.last());
        let cell = job.and_then(|job| job.layout.input(turn.piece, turn.in_chunk)).ok_or(missing.clone())?;
        let value = sender.cells[cell].value.ok_or(missing)?;
        self.touch(turn.actor, from, cell, false, "input")?;
        Ok(value)
    }

    /// Writes a turn's chunk of somebody's output.
    fn write(&mut self, to: usize, turn: &Turn, value: TermId) -> Result<(), Fault> {
        self.check_size(turn, turn.out_chunk)?;
        let owner = &self.actors[to];
        let missing = Fault::NoBuffer { rank: owner.rank, chunk: turn.out_chunk, buffer: "output" };
        let job = owner.jobs.get(owner.job).or(owner.jobs.last());
        let cell = job.and_then(|job| job.layout.output(turn.piece, turn.out_chunk)).ok_or(missing)?;
        self.touch(turn.actor, to, cell, true, "output")?;
        self.actors[to].cells[cell] = Cell { value: Some(value), written: true };
        Ok(())
    }

    /// The rank's own chunk.
    fn own(&mut self, turn: &Turn) -> Result<TermId, Fault> {
        let me = &self.actors[turn.actor];
        let (rank, chunk, piece) = (me.rank, turn.in_chunk, turn.piece);
        let old = turn.has(step_flag::FROM_OUT);
        let (buffer, cell) =
            if old { ("output", me.layout().output(piece, chunk)) } else { ("input", me.layout().input(piece, chunk)) };
        let cell = cell.ok_or(Fault::NoBuffer { rank, chunk, buffer })?;
        let held = me.cells[cell];
        let call = me.job as u32;
        self.check_size(turn, chunk)?;
        self.touch(turn.actor, turn.actor, cell, false, buffer)?;
        if old {
            return held.value.filter(|_| held.written).ok_or(Fault::Unwritten { rank, chunk });
        }
        let input = self.terms.id(Term::Input(Input { rank, chunk, piece, call }));
        if held.value == Some(input) { Ok(input) } else { Err(Fault::Overwritten { rank, chunk }) }
    }

    fn touch(&mut self, a: usize, owner: usize, cell: usize, write: bool, buffer: &'static str) -> Result<(), Fault> {
        let Some(races) = &mut self.races else { return Ok(()) };
        let raced = if write { races.write(a, owner, cell) } else { races.read(a, owner, cell) };
        raced.map_err(|other| self.race(a, other, owner, buffer))
    }

    fn race(&self, a: usize, other: usize, owner: usize, buffer: &'static str) -> Fault {
        let rank = |a: usize| self.actors[a].rank;
        Fault::Race { rank: rank(a), other: rank(other), owner: rank(owner), buffer }
    }

    fn finish(self) -> Result<Finished, Fault> {
        let waiting: Vec<usize> = (0..self.actors.len()).filter(|&a| self.actors[a].current().is_some()).collect();
        if let Some(&a) = waiting.first() {
            let link = self.blocked(a).flatten().unwrap_or_default();
            return Err(Fault::Deadlock {
                blocked: waiting.len(),
                rank: self.actors[a].rank,
                link: self.links[link].name,
            });
        }
        if let Some(link) = self.links.iter().find(|link| link.posted != link.consumed) {
            return Err(Fault::NotDrained { link: link.name, left: link.posted - link.consumed });
        }
        Ok(Finished {
            terms: self.terms,
            ranks: self.actors.iter().map(|actor| actor.rank).collect(),
            posted: self.links.iter().map(|link| (link.name, link.posted)).collect(),
            outputs: self.actors.into_iter().map(|actor| actor.outputs).collect(),
            turns: self.turns,
        })
    }
}
