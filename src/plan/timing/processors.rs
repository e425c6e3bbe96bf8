//! Processors that blocks take turns on, as the kernels of software devices do.
//!
//! Each block has a processor, the ranks one after the other. One that waits looks for a while (`spin`) and then yields
//! at each look, so that the next block goes on after a hand-over (`switch`). A block whose next turn is ready keeps
//! its processor. That waiting blocks sleep in the end, and that the system moves threads, is not counted.

use super::machine::SharingModel;
use super::run::{Instant, instant};

#[derive(Clone, Copy, Default)]
struct Processor {
    /// When its block has done what it had to do.
    free: Instant,
    /// The block that was on it last.
    current: Option<usize>,
}

pub(super) struct Processors {
    all: Vec<Processor>,
    /// The rank of each block.
    ranks: Vec<usize>,
    spin: Instant,
    switch: f64,
}

impl Processors {
    /// None where every block has a processor of its own.
    pub fn new(sharing: &SharingModel) -> Option<Processors> {
        let all = vec![Processor::default(); sharing.processors as usize];
        let (ranks, spin) = (Vec::new(), instant(sharing.spin));
        if all.is_empty() { None } else { Some(Processors { all, ranks, spin, switch: sharing.switch }) }
    }

    /// Adds a rank's block: the next number.
    pub fn add(&mut self, rank: usize) {
        self.ranks.push(rank);
    }

    fn of(&mut self, block: usize) -> &mut Processor {
        let n = self.all.len();
        &mut self.all[self.ranks[block] % n]
    }

    /// When a block begins a turn that is ready at `ready`, as things stand now.
    pub fn start(&mut self, block: usize, ready: Instant) -> Instant {
        let (spin, switch) = (self.spin, self.switch);
        let blocks = (self.ranks.len() / self.all.len()).max(1);
        let Processor { free, current } = *self.of(block);
        let Some(current) = current else { return ready.max(free) };
        if ready > free + spin {
            // All blocks of the processor yield to each other: each looks once in a round.
            return ready + instant(blocks as f64 * switch / 2.0);
        }
        if current == block { ready.max(free) } else { free + spin + instant(switch) }
    }

    /// A block has its processor until then.
    pub fn keep(&mut self, block: usize, until: Instant) {
        *self.of(block) = Processor { free: until, current: Some(block) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ready_stays_and_who_waits_gives_way() {
        let sharing = SharingModel { processors: 2, spin: 0.5, switch: 1.0 };
        let mut two = Processors::new(&sharing).expect("processors");
        (0..4).for_each(|rank| two.add(rank));
        let us = instant;
        assert_eq!(two.start(0, us(0.0)), 0);
        two.keep(0, us(10.0));
        // Another processor, the same block, and the other block of this one.
        assert_eq!([two.start(1, us(3.0)), two.start(0, us(10.2)), two.start(2, us(3.0))], [3.0, 10.2, 11.5].map(us));
        // All have yielded: a round of two takes two hand-overs.
        assert_eq!([two.start(0, us(20.0)), two.start(2, us(20.0))], [21.0; 2].map(us));
        assert!(Processors::new(&SharingModel { processors: 0, ..sharing }).is_none());
    }
}
