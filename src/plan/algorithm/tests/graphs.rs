//! Graphs of other orders: on several hosts, and with channels that differ.

use super::*;
use crate::topology::Order;

/// Every function by every algorithm that a graph has, on each of its channels.
pub(super) fn prove_channels(graph: &Graph, every_root: bool) {
    let n = graph.nranks();
    for (func, algo) in FUNCS.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo))) {
        if !available(func, algo, graph) {
            continue;
        }
        for channel in 0..graph.nchannels() {
            let all = roots(func, n);
            let some = if all.len() == 1 || every_root { 1 } else { 3 };
            for root in all.into_iter().filter(|root| root % some == channel % some) {
                let kind = ScheduleKind { func, algo, root };
                let schedules = compile_on(kind, graph, channel);
                schedules.iter().for_each(|s| s.check(8).unwrap_or_else(|e| panic!("{kind:?}: {e}")));
                prove(kind, &schedules, setting(schedules[0].slots, 3, true));
                prove(kind, &schedules, setting(8, 1, false));
            }
        }
    }
}

#[test]
fn every_order_is_right() {
    let many: &[u32] = if long() { &[25, 31, 32, 33, 40, 48, 63, 64] } else { &[33] };
    for n in (2..=18).chain(many.iter().copied()) {
        for nhosts in [1, 2, 3].into_iter().filter(|nhosts| nhosts * 2 <= n && (n <= 9 || *nhosts == 2)) {
            prove_channels(&Graph::shuffled(n, nhosts, 2, u64::from(n * 8 + nhosts)), n <= 9 || long());
        }
    }
}

/// The ranks of an order from a place on, around to the one before.
fn from(order: &Order, place: u32) -> Vec<u32> {
    (0..order.nranks()).map(|i| order.at(place + i)).collect()
}

#[test]
fn reductions_follow_the_channels_orders() {
    for n in [2, 3, 6, 9, 16, 17, 23] {
        let graph = Graph::shuffled(n, 1 + n / 6, 3, u64::from(n));
        for number in 0..3 {
            let ran = |func, algo, root| {
                let kind = ScheduleKind { func, algo, root };
                outcome(kind, &compile_on(kind, &graph, number), setting(8, 1, true))
            };
            let channel = graph.channel(number);
            let ring = &channel.ring;
            let place = |rank| ring.place(rank).unwrap();
            let all_reduce = ran(Func::AllReduce, Algo::Ring, 0);
            (0..n).for_each(|chunk| assert_eq!(all_reduce.order(0, chunk), from(ring, chunk + 1)));
            for algo in if graph.nhosts() == 1 { vec![Algo::Ring, Algo::Pat] } else { vec![Algo::Ring] } {
                let scatter = ran(Func::ReduceScatter, algo, 0);
                (0..n).for_each(|rank| assert_eq!(scatter.order(rank, 0), from(ring, place(rank) + 1)));
            }
            let (tree, root) = (&channel.tree, n / 3);
            assert_eq!(ran(Func::AllReduce, Algo::Tree, 0).order(0, 0), from(tree, 0));
            let rooted = ran(Func::Reduce, Algo::Tree, root).order(root, 0);
            if graph.nhosts() > 1 {
                assert_eq!(rooted[0], root);
                continue;
            }
            assert_eq!(rooted, from(tree, tree.place(root).unwrap()));
            // On one host direct algorithms add in the order of ranks, whatever the graph.
            let numbers: Vec<u32> = (0..n).collect();
            assert_eq!(ran(Func::AllReduce, Algo::Direct, 0).order(0, 0), numbers);
            let in_two = ran(Func::AllReduce, Algo::TwoStep, 0);
            (0..n).for_each(|chunk| assert_eq!(in_two.order(0, chunk), numbers));
        }
    }
}

/// Channels of one graph are cut from one call: they must have as many chunks.
#[test]
fn channels_divide_a_call_alike() {
    let graph = Graph::shuffled(11, 2, 4, 5);
    for (func, algo) in FUNCS.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo))) {
        if available(func, algo, &graph) {
            let chunks = |channel| compile(ScheduleKind { func, algo, root: 2 }, &graph, channel, 3).unwrap().nchunks;
            assert!((1..6).all(|channel| chunks(channel) == chunks(0)), "{func:?} {algo:?}");
        }
    }
}

/// More ranks than are linked with one another: trees and PAT have links of their own then.
#[test]
fn trees_and_pat_are_right_with_many_ranks() {
    let all: &[u32] = &[65, 66, 96, 127, 128, 129, 200, 255, 256, 257, 511, 512, 513, 777, 1000, 1001, 1023, 1024];
    for &n in if long() { all } else { &[65, 129, 1000] } {
        for (graph, channel) in [(Graph::of_host(n), 0), (Graph::shuffled(n, 1 + n / 16, 2, u64::from(n)), 1)] {
            assert!(!graph.has_peers());
            let kinds = FUNCS.into_iter().flat_map(|func| [Algo::Tree, Algo::Pat].map(|algo| (func, algo)));
            for (func, algo) in kinds.filter(|(func, algo)| available(*func, *algo, &graph)) {
                // PAT has as many turns as ranks, on each of them: one graph for each function.
                let heavy = algo == Algo::Pat && n > 200 && !long();
                if heavy && (channel == 0) == (func == Func::ReduceScatter) {
                    continue;
                }
                let few = n > 200 && !long();
                let roots = if few { vec![1, n - 1] } else { vec![0, 1, n / 2, n - 1] };
                for root in if func.has_root() { roots } else { vec![0] } {
                    let kind = ScheduleKind { func, algo, root };
                    let schedules = compile_on(kind, &graph, channel);
                    let pieces = if algo == Algo::Pat || few { 1 } else { 3 };
                    let calls = if heavy { 1 } else { 2 };
                    prove(kind, &schedules, Setting { calls, ..setting(schedules[0].slots, pieces, true) });
                }
            }
        }
    }
}
