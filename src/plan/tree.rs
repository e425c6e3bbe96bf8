//! Tree algorithms: as many hops as the logarithm of the ranks. Two trees carry half of the data each; almost every
//! rank that has children in one is a leaf in the other, so all send and receive about equally much.

use std::collections::BTreeSet;

use super::layout::step_flag::{FROM_OUT, IN, OUT, POST};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;
use crate::topology::Order;

/// Slots that the trees need: proved by the executor.
const SLOTS_NEEDED: u32 = 2;
/// Chunks: one for each tree.
const TREES: usize = 2;

/// The parent of a seat in the tree over seats 0..n; seat 0 is the root and has one child.
///
/// Seats are numbered in order: all seats below a seat's left child come before it, those below its right child
/// after it. Odd seats are leaves, and the number of a seat's trailing zero bits is its height.
fn parent(seat: u32, n: u32) -> Option<u32> {
    if seat == 0 {
        return None;
    }
    let height = seat & seat.wrapping_neg();
    let above = (seat ^ height) | (height << 1);
    // Where the tree is cut off, the seat hangs from the one that it is to the right of.
    Some(if above < n { above } else { seat ^ height })
}

/// The children of a seat in the tree over seats 0..n: one before it, one after it.
fn children(seat: u32, n: u32) -> (Option<u32>, Option<u32>) {
    let height = seat & seat.wrapping_neg();
    let before = (height > 1).then(|| seat - height / 2);
    // Where the tree is cut off, the child is farther down; below the root, it is as high up as there are seats.
    let room = (n - 1 - seat).min(if seat == 0 { n } else { height / 2 });
    (before, room.checked_ilog2().map(|log| seat + (1 << log)))
}

/// How seats are taken: by which place in the order, counted from that of the tree's seat 0 or root.
#[derive(Clone, Copy, Debug)]
enum Seating {
    /// Seat by seat.
    Straight,
    /// From the last one on.
    Reversed,
    /// From the second one on; the first one comes last.
    Moved,
    /// The root first, then from the last one on.
    ReversedBehindRoot,
    /// The root first, then from the third one on; the second one comes last.
    MovedBehindRoot,
}

impl Seating {
    fn place(self, seat: u32, n: u32) -> u32 {
        match self {
            Seating::Reversed => n - 1 - seat,
            Seating::Moved => (seat + 1) % n,
            Seating::ReversedBehindRoot if seat > 0 => n - seat,
            Seating::MovedBehindRoot if seat > 0 => 1 + seat % (n - 1),
            _ => seat,
        }
    }

    fn seat(self, place: u32, n: u32) -> u32 {
        match self {
            Seating::Reversed => n - 1 - place,
            Seating::Moved => (place + n - 1) % n,
            Seating::ReversedBehindRoot if place > 0 => n - place,
            Seating::MovedBehindRoot if place > 1 => place - 1,
            Seating::MovedBehindRoot if place == 1 => n - 1,
            _ => place,
        }
    }
}

/// A tree: who takes which seat.
#[derive(Clone, Copy, Debug)]
struct Tree<'a> {
    order: &'a Order,
    /// The place in the order from which on places are counted.
    first: u32,
    seating: Seating,
}

impl<'a> Tree<'a> {
    /// The trees of an AllReduce: the second is the first one mirrored, or moved on by a seat, so that odd and even
    /// seats change places.
    fn free(order: &'a Order) -> [Tree<'a>; TREES] {
        let second = if order.nranks().is_multiple_of(2) { Seating::Reversed } else { Seating::Moved };
        [Seating::Straight, second].map(|seating| Tree { order, first: 0, seating })
    }

    /// Two trees that have the same root: the seats behind it change places as in [`Tree::free`].
    fn rooted(order: &'a Order, root: u32) -> Result<[Tree<'a>; TREES], Error> {
        let first = order.place(root).ok_or_else(|| Error::Internal(format!("no tree with root {root}")))?;
        let even = order.nranks().is_multiple_of(2);
        let second = if even { Seating::MovedBehindRoot } else { Seating::ReversedBehindRoot };
        Ok([Seating::Straight, second].map(|seating| Tree { order, first, seating }))
    }

    /// The rank on a seat.
    fn rank(&self, seat: u32) -> u32 {
        self.order.at(self.first + self.seating.place(seat, self.order.nranks()))
    }

    /// The seat of a rank.
    fn seat(&self, rank: u32) -> Option<u32> {
        let n = self.order.nranks();
        let place = (self.order.place(rank)? + n - self.first) % n;
        Some(self.seating.seat(place, n))
    }
}

/// One rank's neighbours in one tree.
#[derive(Debug)]
struct Node {
    parent: Option<u32>,
    /// Those before the rank in order, then those after.
    children: Vec<u32>,
    /// How many children come before the rank: where its own contribution stands.
    place: u8,
    chunk: u32,
}

impl Node {
    /// Finds `rank` in a tree.
    fn find(tree: &Tree<'_>, rank: u32, chunk: u32) -> Result<Node, Error> {
        let n = tree.order.nranks();
        let Some(seat) = tree.seat(rank).filter(|_| n >= 2) else {
            return Err(Error::Internal(format!("no tree of {n} ranks for rank {rank}")));
        };
        let (before, after) = children(seat, n);
        Ok(Node {
            parent: parent(seat, n).map(|seat| tree.rank(seat)),
            place: u8::from(before.is_some()),
            children: before.into_iter().chain(after).map(|seat| tree.rank(seat)).collect(),
            chunk,
        })
    }

    fn neighbours(&self) -> impl Iterator<Item = u32> {
        self.children.iter().copied().chain(self.parent)
    }

    /// Adds up what comes from below, and sends it to the parent; at the root it is the result.
    fn up(&self, s: &mut Schedule, at_root: Draft<'_>) -> Result<(), Error> {
        let draft = match &self.parent {
            Some(parent) => Draft { flags: IN, send: std::slice::from_ref(parent), ..Draft::ONCE },
            None => at_root,
        };
        s.push(Draft { recv: &self.children, place: self.place, ..draft }.chunk(self.chunk))
    }

    /// Passes on what comes from above.
    fn down(&self, s: &mut Schedule, at_root: Draft<'_>) -> Result<(), Error> {
        let draft = match &self.parent {
            Some(parent) => Draft { flags: OUT, recv: std::slice::from_ref(parent), ..Draft::ONCE },
            None => at_root,
        };
        s.push(Draft { send: &self.children, ..draft }.chunk(self.chunk))
    }
}

/// The distances, in the order and around its end, between a rank and its neighbours in all trees: those of an
/// AllReduce and those of every root.
pub(super) fn distances(n: u32) -> BTreeSet<u32> {
    // From another root on, the trees are the same, and an AllReduce's second tree has the first one's distances.
    let order = Order::of_numbers(n);
    let trees = Tree::rooted(&order, 0).into_iter().flatten();
    let edges =
        trees.flat_map(|tree| (1..n).filter_map(move |seat| Some((tree.rank(seat), tree.rank(parent(seat, n)?)))));
    edges.flat_map(|(a, b)| [(a + n - b) % n, (b + n - a) % n]).collect()
}

/// A rank in both trees.
struct Nodes {
    rank: u32,
    nodes: [Node; TREES],
    /// A neighbour in one tree is one in the other, too. Then both trees' data travels over one link, so both ends must
    /// have the same order of trees, and of up and down.
    shared: bool,
}

impl Nodes {
    /// Finds a rank. Leaves come first, since they wait for nobody, but for trees that share links.
    fn find(trees: &[Tree<'_>; TREES], rank: u32) -> Result<Nodes, Error> {
        let mut nodes = [Node::find(&trees[0], rank, 0)?, Node::find(&trees[1], rank, 1)?];
        let shared = nodes[0].neighbours().any(|rank| nodes[1].neighbours().any(|other| other == rank));
        if !shared {
            nodes.sort_by_key(|node| node.children.len());
        }
        Ok(Nodes { rank, nodes, shared })
    }

    fn schedule(&self) -> Schedule {
        Schedule::new(self.rank, LinkClass::Tree, TREES as u32, SLOTS_NEEDED)
    }

    fn up(&self, s: &mut Schedule, at_root: Draft<'_>) -> Result<(), Error> {
        self.nodes.iter().try_for_each(|node| node.up(s, at_root))
    }

    /// Inner nodes come first: others wait for what they pass on.
    fn down(&self, s: &mut Schedule, at_root: Draft<'_>) -> Result<(), Error> {
        self.nodes.iter().rev().try_for_each(|node| node.down(s, at_root))
    }
}

/// No step.
const NEVER: Draft<'static> = Draft { repeat: 0, ..Draft::ONCE };

/// Tree AllReduce: contributions are added up on the way to the root, the result goes down again. Each chunk is
/// reduced in the order of its tree's seats (sums of sums), by its root alone, so all ranks get the same bits.
///
/// # Errors
/// [`Error::Internal`] where `order` has fewer than two ranks, or not `rank`.
pub fn all_reduce(order: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&Tree::free(order), rank)?;
    let mut s = me.schedule();
    let finish = Draft { flags: IN | OUT | POST, ..Draft::ONCE };
    if me.shared {
        me.up(&mut s, finish)?;
        me.down(&mut s, Draft { flags: IN | FROM_OUT, ..Draft::ONCE })?;
        return Ok(s);
    }
    // A root sends the result down in the step that makes it.
    for node in &me.nodes {
        node.up(&mut s, Draft { send: &node.children, ..finish })?;
    }
    me.down(&mut s, NEVER)?;
    Ok(s)
}

/// Tree Broadcast: the root feeds both trees.
///
/// # Errors
/// As [`all_reduce`]; also where `order` has no `root`.
pub fn broadcast(order: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&Tree::rooted(order, root)?, rank)?;
    let mut s = me.schedule();
    me.down(&mut s, Draft { flags: IN | OUT, ..Draft::ONCE })?;
    Ok(s)
}

/// Tree Reduce: both trees end at the root. The order of reduction is the order of seats, counted from the root.
///
/// # Errors
/// As [`broadcast`].
pub fn reduce(order: &Order, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&Tree::rooted(order, root)?, rank)?;
    let mut s = me.schedule();
    me.up(&mut s, Draft { flags: IN | OUT | POST, ..Draft::ONCE })?;
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(tree: &Tree<'_>, rank: u32) -> u32 {
        match Node::find(tree, rank, 0).unwrap().parent {
            Some(parent) => 1 + depth(tree, parent),
            None => 0,
        }
    }

    #[test]
    fn trees_are_flat_and_narrow_and_complement_each_other() {
        for n in (2..=64).chain([255, 256, 1000]) {
            let order = Order::of_numbers(n);
            for trees in [Tree::free(&order), Tree::rooted(&order, n / 3).unwrap()] {
                let mut twice = 0;
                for rank in 0..n {
                    let nodes = trees.each_ref().map(|tree| Node::find(tree, rank, 0).unwrap());
                    assert!(nodes.iter().all(|node| node.children.len() <= 2));
                    twice += u32::from(nodes.iter().all(|node| !node.children.is_empty()));
                    assert!(trees.iter().all(|tree| depth(tree, rank) <= n.ilog2() + 1), "n = {n}");
                }
                // Only roots have children in both.
                assert!(twice <= 2, "n = {n}: {twice}");
            }
        }
    }

    #[test]
    fn children_are_those_whose_parent_one_is() {
        for n in 2..=130 {
            for seat in 0..n {
                let below = |range: std::ops::Range<u32>| {
                    range.filter(|child| parent(*child, n) == Some(seat)).collect::<Vec<_>>()
                };
                let (before, after) = children(seat, n);
                assert_eq!(below(0..seat), Vec::from_iter(before), "seat {seat} of {n}");
                assert_eq!(below(seat..n), Vec::from_iter(after), "seat {seat} of {n}");
            }
        }
    }

    #[test]
    fn everybody_has_one_seat() {
        let order = Order::new(vec![3, 1, 4, 0, 2, 5, 6]).unwrap();
        for n in [2, 3, 7] {
            let order = if n == 7 { order.clone() } else { Order::of_numbers(n) };
            for tree in Tree::free(&order).into_iter().chain(Tree::rooted(&order, n - 1).unwrap()) {
                assert!((0..n).all(|seat| tree.seat(tree.rank(seat)) == Some(seat)), "{tree:?}");
            }
        }
    }
}
