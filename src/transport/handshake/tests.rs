use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::plan::LinkClass;
use crate::plan::layout::Proto;

const MESH: ConnectionGroup = ConnectionGroup::Channel { class: LinkClass::Direct, proto: Proto::Simple, channel: 0 };
const RING: ConnectionGroup = ConnectionGroup::Channel { class: LinkClass::Ring, proto: Proto::Simple, channel: 0 };

/// The peers of a rank in a connection group of `n` ranks.
fn peers(n: u32, rank: u32, group: ConnectionGroup) -> Vec<u32> {
    let mut peers: BTreeSet<u32> = match group {
        ConnectionGroup::Channel { class: LinkClass::Ring, .. } => [(rank + 1) % n, (rank + n - 1) % n].into(),
        ConnectionGroup::Channel { .. } => (0..n).collect(),
        ConnectionGroup::Pair { low, high } if low == rank || high == rank => [low, high].into(),
        ConnectionGroup::Pair { .. } => BTreeSet::new(),
    };
    peers.remove(&rank);
    peers.into_iter().collect()
}

const OFFER: Notice = Notice::Offer { wanted: false };
const WANTED: Notice = Notice::Offer { wanted: true };

fn todo(take: bool, make: bool) -> Todo {
    Todo { take, make }
}

fn now(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Two ranks, of which only one wants the pair: the other gives its part, and waits for nothing itself.
#[test]
fn a_peer_that_wants_nothing_answers() {
    let group = ConnectionGroup::pair(0, 1);
    let (mut a, mut b) = (Handshake::new(), Handshake::new());
    assert_eq!(a.want(group, || vec![1], now(0)), (true, Vec::new()));
    assert_eq!(a.standing(group), Standing::Missing(vec![1]));
    assert_eq!(a.made(group, Ok(()), now(0)), [(1, WANTED)]);
    assert_eq!(b.receive(0, group, WANTED, || vec![0]), (todo(true, true), Vec::new()));
    assert_eq!(b.taken(group, 0, Ok(())), [(0, Notice::Taken)]);
    assert_eq!(b.made(group, Ok(()), now(0)), [(0, OFFER)]);
    // In whatever order they come.
    assert_eq!(a.receive(1, group, OFFER, || vec![1]), (todo(true, false), Vec::new()));
    assert_eq!(a.taken(group, 1, Ok(())), [(1, Notice::Taken)]);
    assert_eq!(a.standing(group), Standing::Missing(vec![1]), "nobody has its own part yet");
    assert_eq!(a.receive(1, group, Notice::Taken, || vec![1]), (todo(false, false), Vec::new()));
    assert_eq!(a.standing(group), Standing::Complete);
    a.finish(group);
    assert_eq!(a.standing(group), Standing::Complete);
    // Later the other wants it, too: everything is there, even if the first has died.
    b.receive(0, group, Notice::Taken, || vec![0]);
    b.lose(0, "it has died");
    assert_eq!(b.want(group, || vec![0], now(9)), (false, Vec::new()));
    assert_eq!(b.standing(group), Standing::Complete);
    b.finish(group);
    assert_eq!((a.tick(now(99)), b.tick(now(99))), ((Vec::new(), None), (Vec::new(), None)));
}

#[test]
fn who_waits_asks_again_and_learns_that_a_peer_is_gone() {
    let mut a = Handshake::new();
    a.want(RING, || vec![1, 2], now(0));
    assert_eq!(a.tick(now(5)), (Vec::new(), None), "its own part is not made");
    a.made(RING, Ok(()), now(5));
    a.receive(2, RING, OFFER, || vec![1, 2]);
    a.taken(RING, 2, Ok(()));
    a.receive(2, RING, Notice::Taken, || vec![1, 2]);
    assert_eq!(a.tick(now(5)), (Vec::new(), Some(now(6))));
    assert_eq!(a.tick(now(6)), (vec![(RING, vec![(1, Notice::Ask)])], Some(now(7))));
    a.lose(2, "no matter");
    assert_eq!(a.standing(RING), Standing::Missing(vec![1]));
    a.lose(1, "it has died");
    assert_eq!(a.standing(RING), Standing::Failed(Some(1), "it has died".to_string()));
}

#[test]
fn a_part_that_cannot_be_made_is_told_to_all_who_wait() {
    let (mut a, mut b): (Handshake, Handshake) = (Handshake::new(), Handshake::new());
    let failed = || Notice::Failed("no memory".into());
    a.want(RING, || vec![1, 2], now(0));
    assert_eq!(a.made(RING, Err("no memory".into()), now(0)), [(1, failed()), (2, failed())]);
    assert_eq!(a.standing(RING), Standing::Failed(None, "no memory".into()));
    b.want(RING, || vec![0, 2], now(0));
    b.made(RING, Ok(()), now(0));
    b.receive(0, RING, failed(), || vec![0, 2]);
    assert_eq!(b.standing(RING), Standing::Failed(Some(0), "no memory".into()));
    // Who asks later hears it, too.
    assert_eq!(a.receive(2, RING, Notice::Ask, || vec![1, 2]), (todo(false, false), vec![(2, failed())]));
}

#[test]
fn a_part_that_cannot_be_taken_is_told() {
    let mut a: Handshake = Handshake::new();
    a.want(RING, || vec![1, 2], now(0));
    a.made(RING, Ok(()), now(0));
    assert!(a.receive(1, RING, OFFER, || vec![1, 2]).0.take);
    assert_eq!(a.taken(RING, 1, Err("no handle".into())), [(1, Notice::Failed("no handle".into()))]);
    assert_eq!(a.standing(RING), Standing::Failed(Some(1), "no handle".into()));
}

#[test]
fn strangers_and_repetitions_change_nothing() {
    let mut a = Handshake::new();
    let nothing = (todo(false, false), Vec::new());
    assert_eq!(a.receive(7, MESH, WANTED, || vec![1]), nothing);
    assert_eq!(a.receive(1, MESH, OFFER, || vec![1]), (todo(true, false), Vec::new()));
    assert_eq!(a.receive(1, MESH, WANTED, || vec![1]), (todo(false, true), Vec::new()), "the first one counts");
    assert_eq!(a.receive(1, MESH, Notice::Ask, || vec![1]), nothing, "somebody makes it already");
    a.taken(MESH, 1, Ok(()));
    assert_eq!(a.receive(1, MESH, Notice::Ask, || vec![1]), (todo(false, false), vec![(1, Notice::Taken)]));
    a.made(MESH, Ok(()), now(0));
    a.want(MESH, || vec![1], now(0));
    a.receive(1, MESH, Notice::Taken, || vec![1]);
    a.finish(MESH);
    assert_eq!(a.receive(1, MESH, WANTED, || vec![1]), nothing);
    a.restart();
    assert_eq!(a.standing(MESH), Standing::Missing(Vec::new()));
}

/// Ranks whose notices arrive in any order, some of them twice.
struct World {
    ranks: Vec<Handshake>,
    alive: Vec<bool>,
    notices: Vec<(u32, u32, ConnectionGroup, Notice)>,
    /// Parts that somebody has begun to make.
    begun: Vec<(u32, ConnectionGroup)>,
    /// Parts that somebody is taking: who, in which connection group, of whom.
    taking: Vec<(u32, ConnectionGroup, u32)>,
    /// Parts that were taken.
    taken: BTreeSet<(u32, ConnectionGroup, u32)>,
    made: BTreeSet<(u32, ConnectionGroup)>,
    clock: Duration,
}

impl World {
    fn new(n: u32) -> World {
        let ranks = (0..n).map(|_| Handshake::new()).collect();
        let alive = vec![true; n as usize];
        World {
            ranks,
            alive,
            notices: Vec::new(),
            begun: Vec::new(),
            taking: Vec::new(),
            taken: BTreeSet::new(),
            made: BTreeSet::new(),
            clock: Duration::ZERO,
        }
    }

    fn n(&self) -> u32 {
        self.ranks.len() as u32
    }

    fn send(&mut self, from: u32, group: ConnectionGroup, notices: Notices) {
        self.notices.extend(notices.into_iter().map(|(to, notice)| (from, to, group, notice)));
    }

    fn want(&mut self, rank: u32, group: ConnectionGroup) {
        let n = self.n();
        if peers(n, rank, group).is_empty() || !self.alive[rank as usize] {
            return;
        }
        let (make, notices) = self.ranks[rank as usize].want(group, || peers(n, rank, group), self.clock);
        self.begun.extend(make.then_some((rank, group)));
        self.send(rank, group, notices);
    }

    /// Something happens, as `pick` says; false where nothing is left to happen.
    fn step(&mut self, pick: usize) -> bool {
        let (notices, begun) = (self.notices.len(), self.begun.len());
        let events = notices + begun + self.taking.len();
        if events == 0 {
            return false;
        }
        let place = pick % events;
        if place < notices {
            self.deliver(place, pick.is_multiple_of(5));
        } else if place < notices + begun {
            let (rank, group) = self.begun.swap_remove(place - notices);
            assert!(self.made.insert((rank, group)), "rank {rank} makes {group:?} twice");
            let notices = self.ranks[rank as usize].made(group, Ok(()), self.clock);
            self.send(rank, group, notices);
        } else {
            let (rank, group, from) = self.taking.swap_remove(place - notices - begun);
            assert!(self.taken.insert((rank, group, from)), "rank {rank} takes {group:?} of rank {from} twice");
            let notices = self.ranks[rank as usize].taken(group, from, Ok(()));
            self.send(rank, group, notices);
        }
        true
    }

    fn deliver(&mut self, place: usize, twice: bool) {
        let (from, to, group, notice) = self.notices.swap_remove(place);
        if !self.alive[to as usize] {
            return self.ranks[from as usize].lose(to, "dead");
        }
        let n = self.n();
        for _ in 0..if twice { 2 } else { 1 } {
            let (todo, answers) = self.ranks[to as usize].receive(from, group, notice.clone(), || peers(n, to, group));
            self.begun.extend(todo.make.then_some((to, group)));
            self.taking.extend(todo.take.then_some((to, group, from)));
            self.send(to, group, answers);
        }
    }

    fn settle(&mut self, picks: &mut impl Iterator<Item = usize>) {
        for _ in 0..3 {
            while self.step(picks.next().unwrap_or(0)) {}
            self.clock += ASK_AGAIN;
            for rank in (0..self.n()).filter(|rank| self.alive[*rank as usize]).collect::<Vec<_>>() {
                let (asks, _) = self.ranks[rank as usize].tick(self.clock);
                asks.into_iter().for_each(|(group, notices)| self.send(rank, group, notices));
            }
        }
    }
}

fn group(n: u32, number: usize) -> ConnectionGroup {
    match number % 4 {
        0 => RING,
        1 => MESH,
        _ => {
            ConnectionGroup::pair(number as u32 / 4 % n, (number as u32 / 4 % n + 1 + number as u32 / 64 % (n - 1)) % n)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whoever wants a connection group gets it, with what its peers have made for it, whatever the order of things.
    #[test]
    fn what_is_wanted_comes(
        n in 2..7u32,
        wants in prop::collection::vec((0..7u32, 0..1000usize), 1..30),
        picks in prop::collection::vec(0..1000usize, 300),
    ) {
        let mut world = World::new(n);
        let mut picks = picks.into_iter().cycle();
        for (rank, number) in &wants {
            world.want(rank % n, group(n, *number));
            (0..picks.next().unwrap_or(0) % 4).for_each(|_| {
                world.step(picks.next().unwrap_or(0));
            });
        }
        // Not for ever: notices are bounded.
        world.settle(&mut picks.by_ref().take(100_000));
        for (rank, number) in wants {
            let (rank, group) = (rank % n, group(n, number));
            let peers = peers(n, rank, group);
            if peers.is_empty() {
                continue;
            }
            prop_assert_eq!(world.ranks[rank as usize].standing(group), Standing::Complete);
            let both = |peer: &u32| {
                [(*peer, group, rank), (rank, group, *peer)].iter().all(|part| world.taken.contains(part))
            };
            prop_assert!(peers.iter().all(both), "all peers have its part, and it has theirs");
            world.ranks[rank as usize].finish(group);
        }
        prop_assert!(world.notices.is_empty() && world.begun.is_empty() && world.taking.is_empty());
    }

    /// Where ranks die, those who wait for them hear it, and nobody waits for ever.
    #[test]
    fn nobody_waits_for_the_dead(
        n in 2..7u32,
        dead in 0..7u32,
        wants in prop::collection::vec((0..7u32, 0..1000usize), 1..30),
        picks in prop::collection::vec(0..1000usize, 300),
        when in 0..40usize,
    ) {
        let (mut world, dead) = (World::new(n), dead % n);
        let mut picks = picks.into_iter().cycle();
        for (at, (rank, number)) in wants.iter().enumerate() {
            world.want(rank % n, group(n, *number));
            (0..picks.next().unwrap_or(0) % 4).for_each(|_| {
                world.step(picks.next().unwrap_or(0));
            });
            if at == when {
                world.alive[dead as usize] = false;
                world.begun.retain(|(rank, _)| *rank != dead);
                world.taking.retain(|(rank, ..)| *rank != dead);
            }
        }
        world.settle(&mut picks.by_ref().take(100_000));
        for (rank, number) in wants.into_iter().filter(|(rank, _)| world.alive[(rank % n) as usize]) {
            let (rank, group) = (rank % n, group(n, number));
            let standing = world.ranks[rank as usize].standing(group);
            let known = peers(n, rank, group).is_empty()
                || standing == Standing::Complete
                || standing == Standing::Failed(Some(dead), "dead".to_string());
            prop_assert!(known, "rank {} of {}: {:?}", rank, n, standing);
        }
    }
}

#[test]
fn whoever_left_is_no_failure_by_what_is_known_of_groups() {
    let group = ConnectionGroup::pair(0, 1);
    let peers = || vec![1];
    // This rank could not make its part, which rank 1 had asked for.
    let mut own: Handshake = Handshake::new();
    let (todo, _) = own.receive(1, group, Notice::Ask, peers);
    assert!(todo.make && own.failure(1).is_none());
    own.made(group, Err("out of memory".to_string()), Duration::ZERO);
    assert_eq!(own.failure(1), Some((group, None, "out of memory".to_string())));
    // Rank 1 could not make its own; nothing is known of another one.
    let mut theirs: Handshake = Handshake::new();
    theirs.want(group, peers, Duration::ZERO);
    theirs.receive(1, group, Notice::Failed("no files".to_string()), peers);
    assert_eq!(theirs.failure(1), Some((group, Some(1), "no files".to_string())));
    assert_eq!(theirs.failure(2), None);
}
