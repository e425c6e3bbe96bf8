//! What goes from host to host: against what has to.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Placements: the host of each rank. Contiguous, interleaved and reversed ones, hosts of unequal size, hosts of one.
const SHAPES: [&[u32]; 9] = [
    &[0, 1],
    &[0, 1, 2],
    &[0, 1, 1, 1],
    &[0, 0, 1, 1],
    &[0, 1, 0, 1],
    &[1, 1, 0, 0],
    &[0, 0, 1, 1, 1, 2],
    &[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1],
    &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3],
];

/// What crosses from one host to another in a call, in parts of the user's count; also by pairs of hosts.
struct Crossed(BTreeMap<(u32, u32), f64>);

impl Crossed {
    /// Runs a collective on a channel of a graph.
    fn run(kind: ScheduleKind, graph: &Graph, channel: u32) -> Crossed {
        let schedules = compile_on(kind, graph, channel);
        let ran = outcome(kind, &schedules, setting(8, 1, false));
        ran.prove().unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        let divided = matches!(kind.func, Func::AllReduce | Func::Broadcast | Func::Reduce);
        let each = if divided { 1.0 / f64::from(schedules[0].nchunks) } else { 1.0 };
        let mut all = BTreeMap::new();
        for (link, slots) in ran.carried() {
            let [from, to] = [link.from, link.to].map(|rank| graph.hosts()[rank as usize]);
            if from != to {
                *all.entry((from, to)).or_insert(0.0) += slots as f64 * each;
            }
        }
        Crossed(all)
    }

    fn all(&self) -> f64 {
        self.0.values().sum()
    }

    fn out_of(&self, host: u32) -> f64 {
        self.0.iter().filter(|((from, _), _)| *from == host).map(|(_, crossed)| crossed).sum()
    }

    fn into(&self, host: u32) -> f64 {
        self.0.iter().filter(|((_, to), _)| *to == host).map(|(_, crossed)| crossed).sum()
    }

    fn pair(&self, from: u32, to: u32) -> f64 {
        self.0.get(&(from, to)).copied().unwrap_or(0.0)
    }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// Hosts with their ranks.
fn sizes(places: &[u32]) -> BTreeMap<u32, f64> {
    places.iter().fold(BTreeMap::new(), |mut sizes, host| {
        *sizes.entry(*host).or_insert(0.0) += 1.0;
        sizes
    })
}

/// A call of every kind on every channel.
fn each(places: &[u32], func: Func, algo: Algo, check: impl Fn(&Crossed, u32, &str)) {
    let graph = Graph::of_hosts(places.to_vec());
    let roots = if func.has_root() { 0..graph.nranks() } else { 0..1 };
    for (channel, root) in (0..graph.nchannels()).flat_map(|channel| roots.clone().map(move |root| (channel, root))) {
        let crossed = Crossed::run(ScheduleKind { func, algo, root }, &graph, channel);
        check(&crossed, root, &format!("{func:?} by {algo:?} from {root} on {channel} of {places:?}: {:?}", crossed.0));
    }
}

/// No AllReduce can do with less than 2S(H - 1) over all hosts: each of H has to give and to get (H - 1)/H of it.
#[test]
fn all_reduce() {
    for places in SHAPES {
        let (n, hosts) = (places.len() as f64, sizes(places));
        let h = hosts.len() as f64;
        each(places, Func::AllReduce, Algo::Ring, |crossed, _, what| {
            assert!(crossed.0.len() == hosts.len(), "{what}");
            assert!(crossed.0.values().all(|over| same(*over, 2.0 * (n - 1.0) / n)), "{what}");
        });
        each(places, Func::AllReduce, Algo::TwoStep, |crossed, _, what| {
            assert!(same(crossed.all(), 2.0 * (h - 1.0)), "{what}");
            for ((from, a), (to, b)) in hosts.iter().flat_map(|from| hosts.iter().map(move |to| (from, to))) {
                assert!(from == to || same(crossed.pair(*from, *to), (a + b) / n), "{what}");
            }
        });
        each(places, Func::AllReduce, Algo::Tree, |crossed, _, what| {
            assert!(same(crossed.all(), 2.0 * (h - 1.0)), "{what}");
            assert!(hosts.keys().all(|host| crossed.out_of(*host) <= 2.0), "{what}");
        });
        // All of it from each host to each other one: one hop.
        each(places, Func::AllReduce, Algo::Direct, |crossed, _, what| {
            assert!(
                crossed.0.len() as f64 == h * (h - 1.0) && crossed.0.values().all(|over| same(*over, 1.0)),
                "{what}"
            );
        });
    }
}

/// What a host has enters each other one once, but along a ring, where some of it comes back.
#[test]
fn all_gather_and_reduce_scatter() {
    for places in SHAPES {
        let (n, hosts) = (places.len() as f64, sizes(places));
        for algo in [Algo::Direct, Algo::Pat] {
            each(places, Func::AllGather, algo, |crossed, _, what| {
                assert!(hosts.iter().all(|(host, own)| same(crossed.into(*host), n - own)), "{what}");
            });
            each(places, Func::ReduceScatter, algo, |crossed, _, what| {
                assert!(hosts.iter().all(|(host, own)| same(crossed.out_of(*host), n - own)), "{what}");
            });
        }
        for func in [Func::AllGather, Func::ReduceScatter] {
            each(places, func, Algo::Ring, |crossed, _, what| {
                assert!(
                    crossed.0.len() == hosts.len() && crossed.0.values().all(|over| same(*over, n - 1.0)),
                    "{what}"
                );
            });
        }
    }
}

#[test]
fn broadcast_and_reduce() {
    for places in SHAPES {
        let hosts = sizes(places);
        for algo in [Algo::Tree, Algo::Direct] {
            each(places, Func::Broadcast, algo, |crossed, root, what| {
                let wanted = |host: u32| if host == places[root as usize] { 0.0 } else { 1.0 };
                assert!(hosts.keys().all(|host| same(crossed.into(*host), wanted(*host))), "{what}");
            });
            each(places, Func::Reduce, algo, |crossed, root, what| {
                let wanted = |host: u32| if host == places[root as usize] { 0.0 } else { 1.0 };
                assert!(hosts.keys().all(|host| same(crossed.out_of(*host), wanted(*host))), "{what}");
            });
        }
        // A chain along the ring may come back to the root's host, for those before it there.
        for func in [Func::Broadcast, Func::Reduce] {
            each(places, func, Algo::Ring, |crossed, _, what| {
                assert!(crossed.0.values().all(|over| *over <= 1.0) && crossed.all() <= hosts.len() as f64, "{what}");
            });
        }
    }
}

/// Exactly the data.
#[test]
fn what_is_for_one_rank_crosses_once() {
    for places in SHAPES {
        let hosts = sizes(places);
        let pairs = || hosts.iter().flat_map(|from| hosts.iter().map(move |to| (from, to))).filter(|(a, b)| a != b);
        each(places, Func::AlltoAll, Algo::Direct, |crossed, _, what| {
            assert!(pairs().all(|((from, a), (to, b))| same(crossed.pair(*from, *to), a * b)), "{what}");
        });
        each(places, Func::Gather, Algo::Direct, |crossed, root, what| {
            let home = places[root as usize];
            let wanted = |to: u32, a: f64| if to == home { a } else { 0.0 };
            assert!(pairs().all(|((from, a), (to, _))| same(crossed.pair(*from, *to), wanted(*to, *a))), "{what}");
        });
        each(places, Func::Scatter, Algo::Direct, |crossed, root, what| {
            let home = places[root as usize];
            let wanted = |from: u32, b: f64| if from == home { b } else { 0.0 };
            assert!(pairs().all(|((from, _), (to, b))| same(crossed.pair(*from, *to), wanted(*from, *b))), "{what}");
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if long() { 2000 } else { 60 }, ..ProptestConfig::default() })]

    /// Any placement on up to 4 hosts with up to 5 ranks each: every function by every algorithm, on every channel.
    #[test]
    fn any_placement_is_right(sizes in prop::collection::vec(1u32..=5, 1..=4), seed: u64) {
        use rand::SeedableRng;
        use rand::seq::SliceRandom;
        let mut places: Vec<u32> = (0..).zip(&sizes).flat_map(|(host, n)| vec![host; *n as usize]).collect();
        places.shuffle(&mut rand::rngs::StdRng::seed_from_u64(seed));
        if places.len() > 1 {
            super::graphs::prove_channels(&Graph::of_hosts(places), false);
        }
    }
}

/// More hosts than send to each other, and hosts with more ranks than a step names.
#[test]
fn large_shapes_are_right() {
    let shapes: [(u32, u32); 6] = [(9, 1), (10, 3), (33, 1), (2, 12), (3, 20), (8, 8)];
    for (nhosts, width) in shapes {
        let places: Vec<u32> = (0..nhosts * width).map(|rank| rank / width).collect();
        super::graphs::prove_channels(&first_channels(places.clone()), false);
        // The last host has one more, or one less.
        let less = places[..places.len() - usize::from(width > 1)].to_vec();
        super::graphs::prove_channels(&first_channels(less), false);
    }
    for places in [vec![0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], vec![0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2]] {
        super::graphs::prove_channels(&first_channels(places), true);
    }
}

/// A graph with its first two channels.
fn first_channels(places: Vec<u32>) -> Graph {
    let all = Graph::of_hosts(places.clone());
    let channels = (0..all.nchannels().min(2)).map(|channel| all.channel(channel).clone());
    Graph::new(places, channels.collect()).expect("a graph")
}
