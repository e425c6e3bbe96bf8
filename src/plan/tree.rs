//! Tree algorithms: as many hops as the logarithm of the ranks. Two trees carry half of the data each; almost every
//! rank that has children in one is a leaf in the other, so all send and receive about equally much.

use super::layout::step_flag::{FROM_OUT, IN, OUT, POST};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;

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
    /// Finds `rank` in a tree whose seats are taken by `ranks`.
    fn find(ranks: &[u32], rank: u32, chunk: u32) -> Result<Node, Error> {
        let n = ranks.len() as u32;
        let seat = ranks.iter().position(|r| *r == rank);
        let Some(seat) = seat.filter(|_| n >= 2).map(|seat| seat as u32) else {
            return Err(Error::Internal(format!("no tree of {n} ranks for rank {rank}")));
        };
        let below: Vec<u32> = (0..n).filter(|child| parent(*child, n) == Some(seat)).collect();
        Ok(Node {
            parent: parent(seat, n).map(|p| ranks[p as usize]),
            place: below.iter().filter(|child| **child < seat).count() as u8,
            children: below.iter().map(|child| ranks[*child as usize]).collect(),
            chunk,
        })
    }

    fn is_neighbour(&self, rank: u32) -> bool {
        self.parent == Some(rank) || self.children.contains(&rank)
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

/// The trees of an AllReduce over ranks 0..n: the second is the first one mirrored, or moved on by a seat, so that
/// odd and even seats change places.
fn free_trees(n: u32) -> [Vec<u32>; TREES] {
    let first: Vec<u32> = (0..n).collect();
    let mut second = first.clone();
    if n.is_multiple_of(2) {
        second.reverse()
    } else {
        second.rotate_left(1)
    }
    [first, second]
}

/// Two trees that have the same root: the seats behind it change places as in [`free_trees`].
fn rooted_trees(n: u32, root: u32) -> [Vec<u32>; TREES] {
    let first: Vec<u32> = (0..n).map(|seat| (root + seat) % n).collect();
    let mut second = first.clone();
    if n.is_multiple_of(2) {
        second[1..].rotate_left(1)
    } else {
        second[1..].reverse()
    }
    [first, second]
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
    fn find(trees: &[Vec<u32>; TREES], rank: u32) -> Result<Nodes, Error> {
        let mut nodes = [Node::find(&trees[0], rank, 0)?, Node::find(&trees[1], rank, 1)?];
        let shared = trees[0].iter().any(|other| nodes.iter().all(|node| node.is_neighbour(*other)));
        if !shared {
            nodes.sort_by_key(|node| node.children.len());
        }
        Ok(Nodes { rank, nodes, shared })
    }

    fn schedule(&self) -> Schedule {
        Schedule::new(self.rank, LinkClass::Mesh, TREES as u32, SLOTS_NEEDED)
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
/// [`Error::Internal`] where there are fewer than two ranks, or no `rank` among them.
pub fn all_reduce(nranks: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&free_trees(nranks), rank)?;
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
/// As [`all_reduce`].
pub fn broadcast(nranks: u32, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&rooted_trees(nranks, root), rank)?;
    let mut s = me.schedule();
    me.down(&mut s, Draft { flags: IN | OUT, ..Draft::ONCE })?;
    Ok(s)
}

/// Tree Reduce: both trees end at the root. The order of reduction is the order of seats, counted from the root.
///
/// # Errors
/// As [`all_reduce`].
pub fn reduce(nranks: u32, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&rooted_trees(nranks, root), rank)?;
    let mut s = me.schedule();
    me.up(&mut s, Draft { flags: IN | OUT | POST, ..Draft::ONCE })?;
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(ranks: &[u32], rank: u32) -> u32 {
        match Node::find(ranks, rank, 0).unwrap().parent {
            Some(parent) => 1 + depth(ranks, parent),
            None => 0,
        }
    }

    #[test]
    fn trees_are_flat_and_narrow_and_complement_each_other() {
        for n in (2..=64).chain([255, 256]) {
            for trees in [free_trees(n), rooted_trees(n, n / 3)] {
                let mut twice = 0;
                for rank in 0..n {
                    let nodes = trees.each_ref().map(|ranks| Node::find(ranks, rank, 0).unwrap());
                    assert!(nodes.iter().all(|node| node.children.len() <= 2));
                    twice += u32::from(nodes.iter().all(|node| !node.children.is_empty()));
                    assert!(trees.iter().all(|ranks| depth(ranks, rank) <= n.ilog2() + 1), "n = {n}");
                }
                // Only roots have children in both.
                assert!(twice <= 2, "n = {n}: {twice}");
            }
        }
    }
}
