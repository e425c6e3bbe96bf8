//! How the nodes of a graph are laid out on streams.
//!
//! A lane is a chain: each of its nodes depends, directly or not, on the one before. So nodes that know nothing of each
//! other are in different lanes and run at the same time, and a lane adds no order that the graph does not have. Only
//! beyond [`MAX_LANES`] at once do nodes share lanes that are no chains, as a GPU runs so many kernels and no more.

use crate::stream::{State, Stream};
use parking_lot::Mutex;

/// Parts of one graph that run at once (resident grids of a GPU of this compute capability).
pub const MAX_LANES: usize = 128;

/// A layout.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Of each node.
    pub lane: Vec<usize>,
    /// Nodes in other lanes that each node must wait for by itself; what its lane has waited for already is left out.
    pub waits: Vec<Vec<usize>>,
    /// The last node of each lane.
    pub tails: Vec<usize>,
}

/// For each lane, how many of its first nodes come before a node.
type Clock = Vec<u32>;

fn raise(clock: &mut Clock, lane: usize, place: u32) {
    if clock.len() <= lane {
        clock.resize(lane + 1, 0);
    }
    clock[lane] = clock[lane].max(place);
}

fn at(clock: &Clock, lane: usize) -> u32 {
    clock.get(lane).copied().unwrap_or(0)
}

#[derive(Default)]
struct Planner {
    plan: Plan,
    /// Of each node: its own place in its lane included.
    clocks: Vec<Clock>,
    lengths: Vec<u32>,
}

impl Planner {
    /// The lane for the next node, which comes after all that `clock` says.
    fn choose(&self, clock: &Clock, dependencies: &[usize]) -> usize {
        let ends_before = |lane: &usize| at(clock, *lane) == self.lengths[*lane];
        let near = dependencies.iter().map(|node| self.plan.lane[*node]).find(ends_before);
        let lanes = self.lengths.len();
        let any = near.or_else(|| (0..lanes).find(ends_before));
        any.unwrap_or(if lanes < MAX_LANES { lanes } else { self.clocks.len() % MAX_LANES })
    }

    fn add(&mut self, dependencies: &[usize]) {
        let mut clock = Clock::new();
        for node in dependencies {
            self.clocks[*node].iter().enumerate().for_each(|(lane, place)| raise(&mut clock, lane, *place));
        }
        let lane = self.choose(&clock, dependencies);
        let node = self.clocks.len();
        if lane == self.lengths.len() {
            self.lengths.push(0);
            self.plan.tails.push(node);
        }
        let before = if self.lengths[lane] == 0 { Clock::new() } else { self.clocks[self.plan.tails[lane]].clone() };
        self.plan.waits.push(self.waits(dependencies, lane, &before));
        before.iter().enumerate().for_each(|(lane, place)| raise(&mut clock, lane, *place));
        self.lengths[lane] += 1;
        raise(&mut clock, lane, self.lengths[lane]);
        self.plan.tails[lane] = node;
        self.plan.lane.push(lane);
        self.clocks.push(clock);
    }

    fn waits(&self, dependencies: &[usize], lane: usize, before: &Clock) -> Vec<usize> {
        let known = |node: &usize| {
            let other = self.plan.lane[*node];
            other == lane || at(before, other) >= at(&self.clocks[*node], other)
        };
        dependencies.iter().copied().filter(|node| !known(node)).collect()
    }
}

/// Lays out nodes given by what they depend on, in an order in which dependencies come first.
pub fn plan(dependencies: &[Vec<usize>]) -> Plan {
    let mut planner = Planner::default();
    dependencies.iter().for_each(|node| planner.add(node));
    planner.plan
}

/// Streams that no graph uses at the moment. They are never freed: as many exist as were ever used at once.
#[derive(Default)]
pub struct Pool {
    free: Mutex<Vec<&'static Stream>>,
}

impl Pool {
    /// `count` idle streams, at least one.
    pub fn take(&self, driver: &'static State, count: usize) -> Vec<&'static Stream> {
        let mut taken = Vec::new();
        self.free.lock().retain(|stream| {
            // A graph destroyed while it runs leaves a stream busy: nobody may have to wait for that.
            let take = taken.len() < count.max(1) && stream.is_idle();
            taken.extend(take.then_some(*stream));
            !take
        });
        taken.resize_with(count.max(1), || Stream::make_lane(driver));
        taken
    }

    /// Whether one that was given back is still busy.
    pub fn is_busy(&self) -> bool {
        self.free.lock().iter().any(|stream| stream.is_busy())
    }

    /// Gives streams back.
    pub fn give(&self, lanes: &[&'static Stream]) {
        self.free.lock().extend(lanes);
    }
}
