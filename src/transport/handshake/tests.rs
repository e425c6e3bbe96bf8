use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::plan::LinkClass;
use crate::plan::layout::Proto;

/// Who made it, in which unit, for whom: no two offers are the same.
type Offer = (u32, Unit, u32);

const MESH: Unit = Unit::Channel { class: LinkClass::Mesh, proto: Proto::Simple, channel: 0 };
const RING: Unit = Unit::Channel { class: LinkClass::Ring, proto: Proto::Simple, channel: 0 };

/// The peers of a rank in a unit of `n` ranks.
fn peers(n: u32, rank: u32, unit: Unit) -> Vec<u32> {
    let mut peers: BTreeSet<u32> = match unit {
        Unit::Channel { class: LinkClass::Ring, .. } => [(rank + 1) % n, (rank + n - 1) % n].into(),
        Unit::Channel { .. } => (0..n).collect(),
        Unit::Pair { low, high } if low == rank || high == rank => [low, high].into(),
        Unit::Pair { .. } => BTreeSet::new(),
    };
    peers.remove(&rank);
    peers.into_iter().collect()
}

fn offer(rank: u32, unit: Unit) -> impl Fn(u32) -> Offer {
    move |to| (rank, unit, to)
}

fn now(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Two ranks, of which only one wants the pair: the other gives its part, and waits for nothing itself.
#[test]
fn a_peer_that_wants_nothing_answers() {
    let unit = Unit::pair(0, 1);
    let (mut a, mut b) = (Handshake::new(), Handshake::new());
    assert_eq!(a.want(unit, || vec![1], now(0)), (true, Vec::new()));
    assert_eq!(a.standing(unit), Standing::Missing(vec![1]));
    let sent = a.made(unit, Ok(()), now(0), offer(0, unit));
    assert_eq!(sent, [(1, Message::Offer { offer: (0, unit, 1), wanted: true })]);
    let (make, answers) = b.receive(0, unit, sent[0].1.clone(), || vec![0]);
    assert!(make && answers.is_empty());
    let answer = b.made(unit, Ok(()), now(0), offer(1, unit));
    assert_eq!(answer, [(0, Message::Offer { offer: (1, unit, 0), wanted: false })]);
    assert_eq!(a.receive(1, unit, answer[0].1.clone(), || vec![1]), (false, Vec::new()));
    assert_eq!(a.standing(unit), Standing::Complete);
    assert_eq!(a.take(unit), BTreeMap::from([(1, (1, unit, 0))]));
    assert_eq!(a.standing(unit), Standing::Complete);
    // Later the other wants it, too: everything is there.
    assert_eq!(b.want(unit, || vec![0], now(9)), (false, Vec::new()));
    assert_eq!(b.take(unit), BTreeMap::from([(0, (0, unit, 1))]));
    assert_eq!((a.tick(now(99)), b.tick(now(99))), ((Vec::new(), None), (Vec::new(), None)));
}

#[test]
fn who_waits_asks_again_and_learns_that_a_peer_is_gone() {
    let mut a: Handshake<Offer> = Handshake::new();
    a.want(RING, || vec![1, 2], now(0));
    assert_eq!(a.tick(now(5)), (Vec::new(), None), "its own part is not made");
    a.made(RING, Ok(()), now(5), offer(0, RING));
    a.receive(2, RING, Message::Offer { offer: (2, RING, 0), wanted: false }, || vec![1, 2]);
    assert_eq!(a.tick(now(5)), (Vec::new(), Some(now(6))));
    assert_eq!(a.tick(now(6)), (vec![(RING, vec![(1, Message::Ask)])], Some(now(7))));
    a.lose(2, "no matter");
    assert_eq!(a.standing(RING), Standing::Missing(vec![1]));
    a.lose(1, "it has died");
    assert_eq!(a.standing(RING), Standing::Failed(Some(1), "it has died".to_string()));
}

#[test]
fn a_part_that_cannot_be_made_is_told_to_all_who_wait() {
    let (mut a, mut b): (Handshake<Offer>, Handshake<Offer>) = (Handshake::new(), Handshake::new());
    a.want(RING, || vec![1, 2], now(0));
    let told = a.made(RING, Err("no memory".into()), now(0), offer(0, RING));
    assert_eq!(told.len(), 2);
    assert_eq!(a.standing(RING), Standing::Failed(None, "no memory".into()));
    b.want(RING, || vec![0, 2], now(0));
    b.made(RING, Ok(()), now(0), offer(1, RING));
    b.receive(0, RING, told[0].1.clone(), || vec![0, 2]);
    assert_eq!(b.standing(RING), Standing::Failed(Some(0), "no memory".into()));
    // Who asks later hears it, too.
    assert_eq!(a.receive(2, RING, Message::Ask, || vec![1, 2]), (false, vec![(2, Message::Failed("no memory".into()))]));
}

#[test]
fn strangers_and_repetitions_change_nothing() {
    let mut a: Handshake<Offer> = Handshake::new();
    let from = |rank: u32, wanted| Message::Offer { offer: (rank, MESH, wanted as u32), wanted };
    assert_eq!(a.receive(7, MESH, from(7, true), || vec![1]), (false, Vec::new()));
    assert_eq!(a.receive(1, MESH, from(1, false), || vec![1]), (false, Vec::new()));
    assert_eq!(a.receive(1, MESH, from(1, true), || vec![1]), (true, Vec::new()));
    assert_eq!(a.receive(1, MESH, Message::Ask, || vec![1]), (false, Vec::new()), "somebody makes it already");
    a.made(MESH, Ok(()), now(0), offer(0, MESH));
    a.want(MESH, || vec![1], now(0));
    assert_eq!(a.take(MESH), BTreeMap::from([(1, (1, MESH, 0))]), "the first one counts");
    assert_eq!(a.receive(1, MESH, from(1, true), || vec![1]), (false, Vec::new()));
    a.restart();
    assert_eq!(a.standing(MESH), Standing::Missing(Vec::new()));
}

/// Ranks whose letters arrive in any order, some of them twice.
struct World {
    ranks: Vec<Handshake<Offer>>,
    alive: Vec<bool>,
    letters: Vec<(u32, u32, Unit, Message<Offer>)>,
    /// Parts that somebody has begun to make.
    begun: Vec<(u32, Unit)>,
    made: BTreeSet<(u32, Unit)>,
    clock: Duration,
}

impl World {
    fn new(n: u32) -> World {
        let ranks = (0..n).map(|_| Handshake::new()).collect();
        let alive = vec![true; n as usize];
        World { ranks, alive, letters: Vec::new(), begun: Vec::new(), made: BTreeSet::new(), clock: Duration::ZERO }
    }

    fn n(&self) -> u32 {
        self.ranks.len() as u32
    }

    fn send(&mut self, from: u32, unit: Unit, letters: Letters<Offer>) {
        self.letters.extend(letters.into_iter().map(|(to, message)| (from, to, unit, message)));
    }

    fn want(&mut self, rank: u32, unit: Unit) {
        let n = self.n();
        if peers(n, rank, unit).is_empty() || !self.alive[rank as usize] {
            return;
        }
        let (make, letters) = self.ranks[rank as usize].want(unit, || peers(n, rank, unit), self.clock);
        self.begun.extend(make.then_some((rank, unit)));
        self.send(rank, unit, letters);
    }

    /// Something happens, as `pick` says; false where nothing is left to happen.
    fn step(&mut self, pick: usize) -> bool {
        let events = self.letters.len() + self.begun.len();
        if events == 0 {
            return false;
        }
        match (pick % events).checked_sub(self.letters.len()) {
            None => self.deliver(pick % events, pick.is_multiple_of(5)),
            Some(place) => {
                let (rank, unit) = self.begun.swap_remove(place);
                assert!(self.made.insert((rank, unit)), "rank {rank} makes {unit:?} twice");
                let letters = self.ranks[rank as usize].made(unit, Ok(()), self.clock, offer(rank, unit));
                self.send(rank, unit, letters);
            }
        }
        true
    }

    fn deliver(&mut self, place: usize, twice: bool) {
        let (from, to, unit, message) = self.letters.swap_remove(place);
        if !self.alive[to as usize] {
            return self.ranks[from as usize].lose(to, "dead");
        }
        let n = self.n();
        for _ in 0..if twice { 2 } else { 1 } {
            let (make, answers) = self.ranks[to as usize].receive(from, unit, message.clone(), || peers(n, to, unit));
            self.begun.extend(make.then_some((to, unit)));
            self.send(to, unit, answers);
        }
    }

    fn settle(&mut self, picks: &mut impl Iterator<Item = usize>) {
        for _ in 0..3 {
            while self.step(picks.next().unwrap_or(0)) {}
            self.clock += ASK_AGAIN;
            for rank in (0..self.n()).filter(|rank| self.alive[*rank as usize]).collect::<Vec<_>>() {
                let (asks, _) = self.ranks[rank as usize].tick(self.clock);
                asks.into_iter().for_each(|(unit, letters)| self.send(rank, unit, letters));
            }
        }
    }
}

fn unit(n: u32, number: usize) -> Unit {
    match number % 4 {
        0 => RING,
        1 => MESH,
        _ => Unit::pair(number as u32 / 4 % n, (number as u32 / 4 % n + 1 + number as u32 / 64 % (n - 1)) % n),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whoever wants a unit gets it, with what its peers have made for it, whatever the order of things.
    #[test]
    fn what_is_wanted_comes(n in 2..7u32, wants in prop::collection::vec((0..7u32, 0..1000usize), 1..30), picks in prop::collection::vec(0..1000usize, 300)) {
        let mut world = World::new(n);
        let mut picks = picks.into_iter().cycle();
        for (rank, number) in &wants {
            world.want(rank % n, unit(n, *number));
            (0..picks.next().unwrap_or(0) % 4).for_each(|_| {
                world.step(picks.next().unwrap_or(0));
            });
        }
        // Not for ever: letters are bounded.
        world.settle(&mut picks.by_ref().take(100_000));
        for (rank, number) in wants {
            let (rank, unit) = (rank % n, unit(n, number));
            let peers = peers(n, rank, unit);
            if peers.is_empty() {
                continue;
            }
            prop_assert_eq!(world.ranks[rank as usize].standing(unit), Standing::Complete);
            let theirs = world.ranks[rank as usize].take(unit);
            if !theirs.is_empty() {
                prop_assert_eq!(theirs, peers.iter().map(|peer| (*peer, (*peer, unit, rank))).collect::<BTreeMap<_, _>>());
            }
        }
        prop_assert!(world.letters.is_empty() && world.begun.is_empty());
    }

    /// Where ranks die, those who wait for them hear it, and nobody waits for ever.
    #[test]
    fn nobody_waits_for_the_dead(n in 2..7u32, dead in 0..7u32, wants in prop::collection::vec((0..7u32, 0..1000usize), 1..30), picks in prop::collection::vec(0..1000usize, 300), when in 0..40usize) {
        let (mut world, dead) = (World::new(n), dead % n);
        let mut picks = picks.into_iter().cycle();
        for (at, (rank, number)) in wants.iter().enumerate() {
            world.want(rank % n, unit(n, *number));
            (0..picks.next().unwrap_or(0) % 4).for_each(|_| {
                world.step(picks.next().unwrap_or(0));
            });
            if at == when {
                world.alive[dead as usize] = false;
                world.begun.retain(|(rank, _)| *rank != dead);
            }
        }
        world.settle(&mut picks.by_ref().take(100_000));
        for (rank, number) in wants.into_iter().filter(|(rank, _)| world.alive[(rank % n) as usize]) {
            let (rank, unit) = (rank % n, unit(n, number));
            let standing = world.ranks[rank as usize].standing(unit);
            let known = peers(n, rank, unit).is_empty()
                || standing == Standing::Complete
                || standing == Standing::Failed(Some(dead), "dead".to_string());
            prop_assert!(known, "rank {} of {}: {:?}", rank, n, standing);
        }
    }
}
