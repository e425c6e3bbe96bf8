use super::super::exec::{Fault, Input, SimulatedMessage, execute_messages};
use super::*;

/// A message of a group: from, to, and how many pieces it is cut into.
type SentMessage = (u32, u32, u32);

/// Numbers from a seed: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) % u64::from(limit)) as u32
    }
}

/// Both schedules of every message.
fn halves(group: &[SentMessage]) -> Vec<(Schedule, Schedule)> {
    group.iter().map(|&(from, to, _)| (send(from, to).unwrap(), receive(to, from).unwrap())).collect()
}

/// The messages that a rank sends, in the order in which it visits them: places in the group.
fn sends_of(rank: u32, nranks: u32, group: &[SentMessage]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..group.len()).filter(|i| group[*i].0 == rank).collect();
    order.sort_by_key(|i| send_distance(rank, group[*i].1, nranks));
    order
}

fn receives_of(rank: u32, nranks: u32, group: &[SentMessage]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..group.len()).filter(|i| group[*i].1 == rank).collect();
    order.sort_by_key(|i| receive_distance(rank, group[*i].0, nranks));
    order
}

/// Runs a group as two halves for each rank, and compares what comes with what was sent.
fn prove(nranks: u32, group: &[SentMessage], slots: u32) {
    let schedules = halves(group);
    let mut lists = Vec::new();
    let mut receivers = Vec::new();
    let mut call = vec![0; group.len()];
    for rank in 0..nranks {
        let sends = sends_of(rank, nranks, group);
        sends.iter().enumerate().for_each(|(place, i)| call[*i] = place as u32);
        lists.push(
            sends
                .iter()
                .map(|i| SimulatedMessage { schedule: &schedules[*i].0, pieces: group[*i].2 })
                .collect::<Vec<_>>(),
        );
        let receives = receives_of(rank, nranks, group);
        lists.push(
            receives.iter().map(|i| SimulatedMessage { schedule: &schedules[*i].1, pieces: group[*i].2 }).collect(),
        );
        receivers.push((lists.len() - 1, receives));
    }
    let got =
        execute_messages(&lists, slots).unwrap_or_else(|e| panic!("{nranks} ranks, {slots} slots, {group:?}: {e}"));
    for (list, receives) in receivers {
        assert_eq!(got[list].len(), receives.len());
        for (message, i) in got[list].iter().zip(receives) {
            let (rank, _, pieces) = group[i];
            let sent = |piece| Some(Input { rank, chunk: 0, piece, call: call[i] });
            assert_eq!(*message, (0..pieces).map(sent).collect::<Vec<_>>(), "message {i} of {group:?}");
        }
    }
}

#[test]
fn random_groups_are_right() {
    let groups = if std::env::var_os("OXCCL_LONG").is_some() { 20_000 } else { 400 };
    for seed in 1..=groups {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let nranks = 2 + random.below(9);
        let messages = 1 + random.below(50);
        let mut group = Vec::new();
        for _ in 0..messages {
            let from = random.below(nranks);
            let to = (from + 1 + random.below(nranks - 1)) % nranks;
            // Some are far longer than there are slots.
            let pieces = if random.below(4) == 0 { 1 + random.below(40) } else { 1 + random.below(3) };
            group.push((from, to, pieces));
        }
        for slots in [1, 2, 8] {
            prove(nranks, &group, slots);
        }
    }
}

#[test]
fn all_pairs_and_rings_are_right() {
    for n in [2, 3, 4, 5, 8, 16, 33] {
        let pairs = |pieces| (0..n).flat_map(move |from| (0..n).map(move |to| (from, to, pieces)));
        prove(n, &pairs(9).filter(|(from, to, _)| from != to).collect::<Vec<_>>(), 2);
        prove(n, &(0..n).map(|rank| (rank, (rank + 1) % n, 20)).collect::<Vec<_>>(), 1);
    }
}

/// Why there are two halves: one that sends and receives in turn waits for itself around the ring.
#[test]
fn one_half_for_both_deadlocks() {
    let n = 4;
    let group: Vec<SentMessage> = (0..n).map(|rank| (rank, (rank + 1) % n, 9)).collect();
    let schedules = halves(&group);
    let both = |rank: u32| {
        let receives = receives_of(rank, n, &group);
        let sends = sends_of(rank, n, &group)
            .into_iter()
            .map(|i| SimulatedMessage { schedule: &schedules[i].0, pieces: group[i].2 });
        sends
            .chain(receives.into_iter().map(|i| SimulatedMessage { schedule: &schedules[i].1, pieces: group[i].2 }))
            .collect()
    };
    let lists: Vec<Vec<SimulatedMessage<'_>>> = (0..n).map(both).collect();
    let fault = execute_messages(&lists, 8);
    assert!(matches!(fault, Err(Fault::Deadlock { blocked: 4, .. })), "{fault:?}");
    // With as many slots as pieces it would not show.
    assert!(execute_messages(&lists, 9).is_ok());
}

/// Why all visit the pairs in the same order: here each rank receives first what comes last.
#[test]
fn another_order_deadlocks() {
    let (n, pieces) = (3, 9);
    let pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to, pieces)));
    let group: Vec<SentMessage> = pairs.filter(|(from, to, _)| from != to).collect();
    let schedules = halves(&group);
    let mut lists: Vec<Vec<SimulatedMessage<'_>>> = Vec::new();
    for rank in 0..n {
        let mut receives = receives_of(rank, n, &group);
        receives.reverse();
        let sends = sends_of(rank, n, &group);
        lists.push(sends.iter().map(|i| SimulatedMessage { schedule: &schedules[*i].0, pieces }).collect());
        lists.push(receives.iter().map(|i| SimulatedMessage { schedule: &schedules[*i].1, pieces }).collect());
    }
    let fault = execute_messages(&lists, 8);
    assert!(matches!(fault, Err(Fault::Deadlock { blocked: 6, .. })), "{fault:?}");
}

#[test]
fn messages_to_one_peer_keep_their_order() {
    let group = [(0, 1, 3), (0, 1, 1), (1, 0, 2), (0, 1, 2)];
    assert_eq!(sends_of(0, 2, &group), [0, 1, 3]);
    assert_eq!(receives_of(1, 2, &group), [0, 1, 3]);
    prove(2, &group, 1);
}

#[test]
fn halves_are_one_step_on_link_0() {
    let (s, r, c) = (send(5, 2).unwrap(), receive(2, 5).unwrap(), copy(3).unwrap());
    assert_eq!((s.steps.len(), s.links.len(), s.nchunks), (1, 1, 1));
    assert_eq!(s.links, r.links);
    assert_eq!((s.links[0].class, s.links[0].from, s.links[0].to), (LinkClass::Peer, 5, 2));
    assert_eq!(s.steps, send(7, 0).unwrap().steps);
    assert_eq!((c.steps[0].flags, c.links.len()), (IN | OUT | POST, 0));
    for schedule in [s, r, c] {
        assert_eq!(schedule.check(1), Ok(()));
    }
}
