use super::*;
use crate::plan::exec::{self, Setting, SimulatedCall};
use crate::plan::wiring::{ConnectionGroup, LinkSet, Wiring};

fn wiring(graph: &Graph, channels: u32) -> Wiring {
    let set = |class, channels| LinkSet { class, proto: Proto::Simple, channels, slot_bytes: 4096 };
    let mut sets = LinkClass::COLLECTIVE.map(|class| set(class, channels)).to_vec();
    sets.push(set(LinkClass::Peer, 1));
    Wiring::new(graph.clone(), sets).expect("a wiring")
}

fn images(graph: &Graph, channels: u32) -> (Wiring, Vec<Image>) {
    let wiring = wiring(graph, channels);
    let compile = |rank| DeviceSchedules::compile(rank, graph, channels, &wiring.links(rank)).expect("schedules");
    let images = (0..graph.nranks()).map(compile).collect();
    (wiring, images)
}

/// What a kernel would do on a channel: steps as they are on the device, with the links that it finds there.
fn as_loaded(wiring: &Wiring, image: &Image, schedule: DeviceSchedule, rank: u32, channel: u32) -> Schedule {
    let group = ConnectionGroup::Channel { class: schedule.class, proto: Proto::Simple, channel };
    let first = schedule.steps as usize / size_of::<Step>();
    Schedule {
        rank,
        class: schedule.class,
        nchunks: schedule.nchunks,
        slots: 1,
        steps: image.steps[first..first + schedule.nsteps as usize].to_vec(),
        links: wiring.group_links(rank, group).iter().map(|need| need.id).collect(),
    }
}

/// Every function by every algorithm, on channels with rings, trees and orders of peers of their own.
fn prove(graph: &Graph, channels: u32, roots: &[u32]) {
    let (wiring, images) = images(graph, channels);
    let mut proved = 0;
    for (func, algo) in Func::COLLECTIVES.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo))) {
        for &root in if func.has_root() { roots } else { &roots[..1] } {
            for channel in 0..channels {
                let load = |(rank, image): (u32, &Image)| {
                    let schedules = image.schedules.collective(func, algo, root)?;
                    Some(as_loaded(&wiring, image, schedules[channel as usize % schedules.len()], rank, channel))
                };
                let Some(schedules) = (0..).zip(&images).map(load).collect::<Option<Vec<_>>>() else { continue };
                let setting = Setting { slots: 8, pieces: 2, in_place: true, calls: 1, direct: Default::default() };
                let ran = exec::execute(SimulatedCall { func, root }, &schedules, setting)
                    .and_then(|outcome| outcome.prove());
                ran.unwrap_or_else(|e| panic!("{func:?} by {algo:?} from {root} on channel {channel}: {e}"));
                proved += 1;
            }
        }
    }
    let kinds = Func::COLLECTIVES.into_iter().flat_map(|func| Algo::ALL.map(|algo| (func, algo)));
    let there = kinds.filter(|(func, algo)| algorithm::available(*func, *algo, graph));
    let expected: usize = there.map(|(func, _)| if func.has_root() { roots.len() } else { 1 }).sum();
    assert_eq!(proved, expected * channels as usize);
}

#[test]
fn channels_with_different_orders_are_right_as_loaded() {
    for (n, hosts) in [(2, 1), (3, 1), (5, 2), (12, 3)] {
        // More channels than the graph has, and fewer.
        prove(&Graph::shuffled(n, hosts, 3, u64::from(n)), 4, &[0, n - 1]);
        prove(&Graph::shuffled(n, hosts, 3, u64::from(n)), 2, &[1]);
    }
}

#[test]
fn equal_lists_of_steps_are_kept_once() {
    let bytes = |graph: &Graph, channels| images(graph, channels).1[1].steps().len();
    let host = Graph::of_host(8);
    assert_eq!(bytes(&host, 8), bytes(&host, 1));
    let channel = host.channel(0).clone();
    let same = Graph::new(vec![0; 8], vec![channel.clone(), channel]).expect("a graph");
    assert_eq!(bytes(&same, 8), bytes(&host, 1));
    assert!(bytes(&Graph::shuffled(8, 1, 2, 3), 8) > bytes(&host, 1));
}

#[test]
fn a_rank_that_leaves_names_every_link_of_a_channel() {
    let (wiring, images) = images(&Graph::shuffled(7, 2, 2, 9), 2);
    for channel in 0..2 {
        for goodbye in images[3].schedules.goodbyes(channel).iter().filter(|goodbye| goodbye.class != LinkClass::Peer) {
            let loaded = as_loaded(&wiring, &images[3], *goodbye, 3, channel);
            let named = |step: &Step| if step.nrecv > 0 { step.recv[0] } else { step.send[0] };
            let mut places: Vec<usize> = loaded.steps.iter().map(|step| usize::from(named(step))).collect();
            places.sort_unstable();
            assert_eq!(places, (0..loaded.links.len()).collect::<Vec<_>>());
            assert_eq!(loaded.check(8), Ok(()));
        }
    }
}
