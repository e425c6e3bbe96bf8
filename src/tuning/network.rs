//! What a collective does over the network, where ranks are on several hosts.

use crate::plan::algorithm::{Algo, ScheduleKind, compile, is_hierarchical};
use crate::plan::call::Func;
use crate::plan::hierarchical::HostPattern;
use crate::plan::layout::{Step, step_flag};
use crate::plan::schedule::Schedule;
use crate::plan::timing::NetworkModel;
use crate::topology::Graph;

/// Hosts that are looked at, to find the busiest: of more, the first, one in the middle and the last.
const HOSTS_SEEN: u32 = 4;

/// What is sent, or received, for each piece.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct NetworkLoad {
    /// Hops between hosts that wait for each other.
    pub hops: f64,
    /// Slots that the busiest host sends or receives, whichever are more.
    host: f64,
    /// The same of the busiest rank on one channel.
    rank: f64,
    /// Ranks of the busiest host.
    width: f64,
    /// Chunks that the data are cut into.
    nchunks: f64,
    /// Slots go one after the other while others are on their way: as in a ring.
    flows: bool,
    /// Channels go out by different ranks: not those of a root that sends to all hosts, or receives from them.
    spread: bool,
    /// Ranks only pass on.
    one_way: bool,
}

/// Hops between hosts, one after the other, at the most.
fn hops(func: Func, algorithm: Algo, graph: &Graph) -> f64 {
    let (n, h) = (f64::from(graph.nranks()), f64::from(graph.nhosts()));
    let log = h.log2().ceil();
    let star = HostPattern::flattest(graph.nhosts()) == HostPattern::Star;
    let flat = if star { 1.0 } else { log };
    match (func, algorithm) {
        (Func::AllReduce, Algo::Ring) => 2.0 * (n - 1.0) * h / n,
        (Func::AllReduce, Algo::Tree) => 2.0 * log,
        (Func::AllReduce, Algo::TwoStep) => 2.0 * flat,
        (Func::Broadcast | Func::Reduce, Algo::Ring) => h - 1.0,
        (Func::Broadcast | Func::Reduce, Algo::Tree) => log,
        (_, Algo::Ring) => (n - 1.0) * h / n,
        (_, Algo::Pat) => log,
        _ => flat,
    }
}

/// What a function's calls do over the network by an algorithm that there is; nothing on one host.
pub(super) fn of(func: Func, algorithm: Algo, graph: &Graph) -> NetworkLoad {
    let h = graph.nhosts();
    if h < 2 {
        return NetworkLoad::default();
    }
    let rows = graph.ring_rows(0);
    let kind = ScheduleKind { func, algo: algorithm, root: 0 };
    let mut load = NetworkLoad { hops: hops(func, algorithm, graph), ..NetworkLoad::default() };
    load.flows = !is_hierarchical(func, algorithm, graph) && algorithm != Algo::Tree;
    load.one_way = func.has_root();
    load.spread = !(func.has_root() && algorithm == Algo::Direct);
    let seen = (0..h).filter(|host| h <= HOSTS_SEEN || [0, h / 2, h - 1].contains(host));
    for row in seen.map(|host| rows.row(host)) {
        let (mut out, mut into, mut most) = (0.0, 0.0, 0.0f64);
        for schedule in row.iter().filter_map(|rank| compile(kind, graph, 0, *rank).ok()) {
            let (sent, received) = crossing(&schedule, graph.hosts());
            (out, into, most) = (out + sent, into + received, most.max(sent.max(received)));
            load.nchunks = f64::from(schedule.nchunks);
        }
        if out.max(into) > load.host {
            (load.host, load.width) = (out.max(into), row.len() as f64);
        }
        load.rank = load.rank.max(most);
    }
    load
}

/// Slots that a rank sends to other hosts in a piece, and those that it receives from there.
fn crossing(schedule: &Schedule, hosts: &[u32]) -> (f64, f64) {
    let away = |links: &[u8]| {
        let far = |link: &&u8| {
            schedule.links.get(usize::from(**link)).is_some_and(|id| hosts[id.from as usize] != hosts[id.to as usize])
        };
        links.iter().filter(far).count() as f64
    };
    let data = schedule.steps.iter().filter(|step| step.flags & step_flag::NO_DATA == 0);
    let of = |step: &Step| {
        let times = f64::from(step.repeat);
        (times * away(&step.send[..usize::from(step.nsend)]), times * away(&step.recv[..usize::from(step.nrecv)]))
    };
    data.map(of).fold((0.0, 0.0), |(sent, received), (s, r)| (sent + s, received + r))
}

impl NetworkLoad {
    /// How many times a call's bytes the busiest host sends.
    pub(super) fn volume(&self) -> f64 {
        if self.nchunks > 0.0 { self.host / self.nchunks } else { 0.0 }
    }

    /// How often a rank waits for hops, in a call of some bytes on one channel with slots of some bytes: with each
    /// piece, but where ranks only pass on.
    pub(super) fn pieces(&self, bytes: f64, slot_bytes: f64) -> f64 {
        if self.one_way { 1.0 } else { (bytes / self.nchunks.max(1.0) / slot_bytes.max(1.0)).max(1.0) }
    }

    /// Whether there is any.
    pub(super) fn is_any(&self) -> bool {
        self.host > 0.0
    }

    /// Slots of a channel, on average over some channels, that the busiest rank moves: they go out by different ranks.
    fn of_rank(&self, channels: f64) -> f64 {
        let ranks = if self.spread { self.width.max(1.0) } else { 1.0 };
        (self.host / self.width.max(1.0)).max(self.rank / channels.min(ranks))
    }

    /// Microseconds that a rank's mover, or a host's interfaces, take for pieces of some bytes on some channels.
    pub(super) fn wire(&self, network: &NetworkModel, bytes: f64, pieces: f64, channels: f64) -> f64 {
        let mover = self.of_rank(channels) * (network.message * pieces + bytes / network.rank_bandwidth);
        mover.max(self.host * bytes / network.bandwidth) * channels
    }

    /// Microseconds of a piece of some bytes on one channel alone: those of slots on their way, besides hops.
    pub(super) fn alone(&self, network: &NetworkModel, bytes: f64) -> f64 {
        let mover = self.rank * (network.message + bytes / network.rank_bandwidth);
        mover.max(self.host * bytes / network.bandwidth)
    }

    /// Whether ranks only pass on: then they wait for hops in the first piece alone.
    pub(super) fn one_way(&self) -> bool {
        self.one_way
    }

    /// Whether what is on its way keeps nobody from other work.
    pub(super) fn flows(&self) -> bool {
        self.flows
    }
}
