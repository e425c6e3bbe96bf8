//! What a call takes on GPUs, counted in turns: in closed form what [`crate::plan::timing`] simulates, so that a
//! communicator can weigh every way for every size as it is made. A test compares the two.
//!
//! A block takes its turns one after the other, piece by piece. So a piece takes the data's time in each turn, and a
//! hop's time wherever the next turn waits for what a peer makes of the last one (the *chain*). All channels do so at
//! the same time; what they send shares the rank's links.

use std::array;

use super::network::{self, NetworkLoad};
use crate::plan::algorithm::{Algo, ScheduleKind, available, compile};
use crate::plan::call::{DataType, Func};
use crate::plan::layout::{MAX_FAN, Proto, Step, step_flag};
use crate::plan::schedule::Schedule;
use crate::plan::timing::{KernelModel, MachineModel, TimedCall};
use crate::topology::Graph;

/// Turns that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LikeTurns {
    /// How many in a piece.
    pub count: f64,
    /// Links received from, and whether the rank's own data are a source.
    received: usize,
    own: bool,
    /// Links sent to, and places written.
    pub sent: usize,
    pub ndst: usize,
}

impl LikeTurns {
    /// How many sources there are.
    pub fn nsrc(&self) -> usize {
        self.received + usize::from(self.own)
    }

    /// Whether they need no other rank.
    pub fn is_local(&self) -> bool {
        self.received + self.sent == 0
    }

    /// What a load of each source takes: first of those from other ranks, then of the rank's own data.
    pub fn loads(&self, received: f64, own: f64) -> [f64; MAX_FAN + 1] {
        array::from_fn(|source| if source < self.received { received } else { own })
    }
}

/// What the busiest rank of a call does.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallTurns {
    nchunks: u32,
    turns: Vec<LikeTurns>,
    /// Pieces that the rank sends or receives for each piece, whichever are more.
    carried: f64,
    /// Hops that a rank waits for in each piece.
    chain: f64,
    /// Hops until the last rank has the first piece, where ranks only pass on.
    depth: f64,
    /// Of several hosts: what goes between them.
    network: NetworkLoad,
    two_trees: bool,
    tree: bool,
}

/// Hops in a rank's own turns of a piece, and from the first rank to the last. Of several hosts, those in hosts.
fn hops(func: Func, algorithm: Algo, graph: &Graph, network: &NetworkLoad) -> (f64, f64) {
    let n = f64::from(graph.nranks());
    let log = n.log2().ceil();
    let several = graph.nhosts() > 1;
    let width = f64::from(graph.ring_rows(0).most());
    let (one, local_log) =
        (f64::from(u8::from(width > 1.0)), if width > 1.0 { width.log2().floor() + 1.0 } else { 0.0 });
    match (func, algorithm) {
        (Func::AllReduce, Algo::Ring) => (2.0 * (n - 1.0) - network.hops, 0.0),
        (Func::Broadcast | Func::Reduce, Algo::Ring) => (0.0, n - 1.0 - network.hops),
        (_, Algo::Ring) => (n - 1.0 - network.hops, 0.0),
        (Func::AllReduce, Algo::Tree) if several => (2.0 * local_log, 0.0),
        (_, Algo::Tree) if several => (0.0, local_log),
        (Func::AllReduce, Algo::Direct | Algo::TwoStep) if several => (2.0 * one, 0.0),
        (Func::Broadcast | Func::Reduce, _) if several => (0.0, one),
        (Func::Gather | Func::Scatter | Func::AlltoAll, _) if several => (0.0, 0.0),
        _ if several => (one, 0.0),
        // Of two ranks each is the root of one tree and the leaf of the other, and turns wait for both.
        (Func::AllReduce, Algo::Tree) if n == 2.0 => (6.0, 0.0),
        (Func::AllReduce, Algo::Tree) => (2.0 * log + 2.0, 0.0),
        (Func::AllReduce, Algo::TwoStep) => (2.0, 0.0),
        (Func::Broadcast | Func::Reduce, Algo::Tree) => (0.0, log),
        (Func::Broadcast | Func::Reduce | Func::Gather | Func::Scatter, _) => (0.0, 1.0),
        (_, Algo::Pat) => (if n <= 16.0 { log } else { n / 4.0 }, 0.0),
        _ => (1.0, 0.0),
    }
}

/// What a function's calls take by an algorithm; None where there is none.
pub(super) fn of(func: Func, algorithm: Algo, graph: &Graph) -> Option<CallTurns> {
    if !available(func, algorithm, graph) {
        return None;
    }
    let n = graph.nranks();
    let kind = ScheduleKind { func, algo: algorithm, root: 0 };
    // All of few; else the root, and who is somewhere in the middle of rings and trees.
    let ranks = (0..n).filter(|rank| n <= SAMPLE || [0, 1, 2, 3, n / 2, n / 2 + 1, n - 2, n - 1].contains(rank));
    let schedules = ranks.filter_map(|rank| compile(kind, graph, 0, rank).ok());
    let hosts = graph.hosts();
    let busiest = schedules.max_by_key(|schedule| (carried(schedule, hosts), turns(schedule)))?;
    let network = network::of(func, algorithm, graph);
    let (chain, depth) = hops(func, algorithm, graph, &network);
    let two_trees = algorithm == Algo::Tree && func != Func::AllReduce;
    let carried = f64::from(carried(&busiest, hosts)) * if two_trees { HELD_UP } else { 1.0 };
    Some(CallTurns {
        nchunks: busiest.nchunks,
        turns: like(&busiest),
        carried,
        chain,
        depth,
        network,
        two_trees,
        tree: algorithm == Algo::Tree,
    })
}

/// The part of a link's time that is lost to one channel's other work is one in this many.
const IDLE: f64 = 2.0;

/// Where ranks only pass on along two trees, each holds the other one up: so much longer the links take, by simulation.
const HELD_UP: f64 = 1.4;

/// The same between hosts, where more channels fill the gaps: so much longer with one.
const TREES_HELD_UP: f64 = 1.5;

/// Where data go up two trees and down again between hosts: so much longer networks take, by simulation.
const UP_AND_DOWN: f64 = 1.2;

/// Ranks of which all are looked at, to find the busiest.
const SAMPLE: u32 = 16;

/// Pieces that a rank sends or receives in its host, whichever are more.
fn carried(schedule: &Schedule, hosts: &[u32]) -> u32 {
    let data = schedule.steps.iter().filter(|step| step.flags & step_flag::NO_DATA == 0);
    let near = |links: &[u8]| {
        let here = |link: &&u8| {
            schedule.links.get(usize::from(**link)).is_none_or(|id| hosts[id.from as usize] == hosts[id.to as usize])
        };
        links.iter().filter(here).count() as u32
    };
    let times = |links: &[u8], step: &Step| u32::from(step.repeat) * near(links);
    let both = data.map(|step| {
        (times(&step.send[..usize::from(step.nsend)], step), times(&step.recv[..usize::from(step.nrecv)], step))
    });
    let (sent, received) = both.fold((0, 0), |(sent, received), (s, r)| (sent + s, received + r));
    sent.max(received)
}

fn turns(schedule: &Schedule) -> u32 {
    schedule.steps.iter().map(|step| u32::from(step.repeat)).sum()
}

/// A schedule's turns with data.
pub(super) fn like(schedule: &Schedule) -> Vec<LikeTurns> {
    let mut all: Vec<LikeTurns> = Vec::new();
    for step in schedule.steps.iter().filter(|step| step.flags & step_flag::NO_DATA == 0) {
        let has = |flag| step.flags & flag != 0;
        let (received, sent) = (usize::from(step.nrecv), usize::from(step.nsend));
        let ndst = sent + usize::from(has(step_flag::OUT));
        let turn = LikeTurns { count: f64::from(step.repeat), received, own: has(step_flag::IN), sent, ndst };
        match all.iter_mut().find(|known| LikeTurns { count: turn.count, ..**known } == turn) {
            Some(known) => known.count += turn.count,
            None => all.push(turn),
        }
    }
    all
}

impl CallTurns {
    /// Microseconds of a call of this function and algorithm.
    pub(super) fn estimate(&self, machine: &MachineModel, kernel: &KernelModel, call: &TimedCall) -> f64 {
        let Ok(geometry) = call.geometry(self.nchunks) else { return f64::INFINITY };
        let size = DataType::Float32.size() as u64;
        let (protocol, channels) = (call.protocol, geometry.nchannels);
        let (part, piece) = (geometry.part * size, geometry.piece * size);
        let pieces = (part as f64 / piece.max(1) as f64).max(1.0);
        let of_piece = |bytes: u64| self.piece_time(machine, kernel, protocol, bytes);
        let sent = |bytes: f64| self.carried * bytes * protocol.expansion() * f64::from(channels);
        let through = self.depth * self.passing_on(machine, kernel, protocol, piece);
        let (busy, wire) = (pieces * of_piece(piece), sent(part as f64) / machine.path.bandwidth);
        if self.network.is_any() {
            let wire = wire.max(self.network.wire(&machine.network, part as f64, pieces, f64::from(channels)));
            return machine.launch
                + through
                + self.over_network(machine, kernel, (busy, wire), (pieces, piece, channels));
        }
        // A link is idle now and then where few channels share it.
        let idle = busy.min(wire) / (IDLE * f64::from(channels));
        machine.launch + through + busy.max(wire) + idle
    }

    /// Microseconds of pieces in one rank's block where some go over the network, by what they take in hosts, and by
    /// what links and networks take for all channels.
    fn over_network(
        &self,
        machine: &MachineModel,
        kernel: &KernelModel,
        (busy, wire): (f64, f64),
        (pieces, piece, channels): (f64, u64, u32),
    ) -> f64 {
        let path = &machine.path;
        let network = &machine.network;
        let seen = network.latency + machine.block.poll / 2.0 + between(machine, kernel);
        let slot = network.message + piece as f64 / network.rank_bandwidth.min(network.bandwidth);
        let way = self.network.hops * (seen + path.fence * f64::from(kernel.fences));
        let (own, alone) = (busy / pieces, self.network.alone(network, piece as f64));
        if self.network.one_way() {
            // All but the first piece follow closely.
            let wire = if self.two_trees { wire * (1.0 + TREES_HELD_UP / f64::from(channels)) } else { wire };
            let first = own + way + self.network.hops * slot;
            return first + ((pieces - 1.0) * own.max(alone)).max(wire - slot);
        }
        let each = match self.network.flows() {
            true => (own + way + self.network.hops * slot).max(alone),
            false => own + way + alone.max(self.network.hops * slot),
        };
        // Networks wait for the first piece, or kernels for the last one; and trees for each other's two ways.
        let wire = if self.tree { wire * UP_AND_DOWN } else { wire };
        let (busy, wire) = (pieces * each, wire + own + way);
        busy.max(wire) + busy.min(wire) / (IDLE * f64::from(channels)) * (1.0 - 1.0 / pieces)
    }

    /// Microseconds of one piece in one rank's block, waits included.
    fn piece_time(&self, machine: &MachineModel, kernel: &KernelModel, protocol: Proto, bytes: u64) -> f64 {
        let time = |turns: &LikeTurns| {
            let fenced = turns.sent > 0 && protocol == Proto::Simple && !kernel.overlaps;
            let fences = if fenced { machine.path.fence * f64::from(kernel.fences) } else { 0.0 };
            turns.count * (self.turn_time(machine, kernel, protocol, bytes, turns) + fences)
        };
        let count: f64 = self.turns.iter().map(|turns| turns.count).sum();
        let own: f64 = self.turns.iter().map(time).sum();
        let hop = self.passing_on(machine, kernel, protocol, bytes);
        // A hop is a turn as well, of this rank or of one that it waits for.
        let alone = (count - self.chain).max(0.0) / count.max(1.0);
        own.max(own * alone + self.chain * hop)
    }

    /// Microseconds from a rank's receipt of a piece to that of the rank it passes it on to.
    fn passing_on(&self, machine: &MachineModel, kernel: &KernelModel, protocol: Proto, bytes: u64) -> f64 {
        let seen = machine.path.latency + machine.block.poll / 2.0;
        if protocol != Proto::Simple {
            // Lines are waited for within a turn, which has begun before they come; own data perhaps are loaded then.
            let own = !kernel.early && self.turns.iter().any(|turns| turns.own && turns.received > 0);
            return seen + if own { machine.block.load } else { 0.0 };
        }
        let turns = self.turns.iter().map(|turns| self.turn_time(machine, kernel, protocol, bytes, turns));
        seen + machine.path.fence * f64::from(kernel.fences) + turns.fold(0.0, f64::max)
    }

    /// Microseconds of one turn without waits.
    fn turn_time(
        &self,
        machine: &MachineModel,
        kernel: &KernelModel,
        protocol: Proto,
        bytes: u64,
        turns: &LikeTurns,
    ) -> f64 {
        let loads = turns.loads(machine.path.receive_load, machine.block.load);
        let loads = &loads[..turns.nsrc()];
        between(machine, kernel) + kernel.move_time(&machine.block, protocol, bytes, loads, turns.ndst)
    }
}

/// Microseconds between the data of one turn and those of the next.
pub(super) fn between(machine: &MachineModel, kernel: &KernelModel) -> f64 {
    if kernel.overlaps { machine.block.turn / 2.0 } else { machine.block.turn }
}
