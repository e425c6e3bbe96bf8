//! Who has seen what: vector clocks, for schedules that reach into a peer's buffers.
//!
//! Without such reach a run is confluent and needs none of this. With it, one run proves a schedule for all
//! timings if every two accesses to a cell, one of them a write, are ordered by messages: this is checked.

/// How far each actor's own time was seen.
type VectorClock = Vec<u32>;

/// Who touched a cell since it was last written, and when by its own time.
#[derive(Clone, Default)]
struct Touched {
    written: Option<(usize, u32)>,
    read: Vec<(usize, u32)>,
}

/// What happened before what.
pub(super) struct Races {
    clocks: Vec<VectorClock>,
    /// By link, then slot: what its sender had seen when it filled the slot.
    filled: Vec<Vec<VectorClock>>,
    /// By link, then slot: what its receiver had seen when it emptied the slot.
    emptied: Vec<Vec<VectorClock>>,
    /// By actor, then cell.
    cells: Vec<Vec<Touched>>,
}

fn join(into: &mut VectorClock, from: &VectorClock) {
    for (mine, theirs) in into.iter_mut().zip(from) {
        *mine = (*mine).max(*theirs);
    }
}

impl Races {
    pub fn new(actors: usize, links: usize, slots: usize) -> Races {
        let clock = vec![0; actors];
        let slots = vec![vec![clock.clone(); slots]; links];
        Races { clocks: vec![clock; actors], filled: slots.clone(), emptied: slots, cells: vec![Vec::new(); actors] }
    }

    /// A new moment in an actor's time.
    pub fn tick(&mut self, actor: usize) {
        self.clocks[actor][actor] += 1;
    }

    /// An actor saw that a slot was filled.
    pub fn saw_filled(&mut self, actor: usize, link: usize, slot: usize) {
        join(&mut self.clocks[actor], &self.filled[link][slot]);
    }

    /// An actor saw that a slot was emptied.
    pub fn saw_emptied(&mut self, actor: usize, link: usize, slot: usize) {
        join(&mut self.clocks[actor], &self.emptied[link][slot]);
    }

    pub fn fill(&mut self, actor: usize, link: usize, slot: usize) {
        self.filled[link][slot].clone_from(&self.clocks[actor]);
    }

    pub fn empty(&mut self, actor: usize, link: usize, slot: usize) {
        self.emptied[link][slot].clone_from(&self.clocks[actor]);
    }

    /// The owner gets `cells` new cells in place of its old ones: a write to all of them. Names who may be at
    /// one of them still.
    pub fn renew(&mut self, owner: usize, cells: usize) -> Result<(), usize> {
        for cell in 0..self.cells[owner].len() {
            self.write(owner, owner, cell)?;
        }
        let now = (owner, self.clocks[owner][owner]);
        self.cells[owner] = vec![Touched { written: Some(now), read: Vec::new() }; cells];
        Ok(())
    }

    /// An actor reads a cell. Names who may be writing it.
    pub fn read(&mut self, actor: usize, owner: usize, cell: usize) -> Result<(), usize> {
        let clock = &self.clocks[actor];
        let touched = &mut self.cells[owner][cell];
        match touched.written {
            Some((by, at)) if clock[by] < at => Err(by),
            _ => {
                touched.read.push((actor, clock[actor]));
                Ok(())
            }
        }
    }

    /// An actor writes a cell. Names who may be reading or writing it.
    pub fn write(&mut self, actor: usize, owner: usize, cell: usize) -> Result<(), usize> {
        let clock = &self.clocks[actor];
        let touched = &mut self.cells[owner][cell];
        if let Some(&(by, _)) = touched.read.iter().chain(&touched.written).find(|(by, at)| clock[*by] < *at) {
            return Err(by);
        }
        *touched = Touched { written: Some((actor, clock[actor])), read: Vec::new() };
        Ok(())
    }
}
