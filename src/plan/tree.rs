//! Tree algorithms: as many hops as the logarithm of the ranks. Two trees carry half of the data each; almost every
//! rank that has children in one is a leaf in the other, so all send and receive about equally much.
//!
//! Of several hosts, these are trees of hosts, and each host has trees of its ranks: data go from host to host once, by
//! as many hops as the logarithm of the hosts. One rank of a host sends and receives for it, another one in each tree.

use std::collections::BTreeSet;

use super::layout::step_flag::{FROM_OUT, IN, OUT, POST};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;
use crate::topology::HostRows;

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

/// A tree over some places: which of them takes which seat.
#[derive(Clone, Copy, Debug)]
struct Tree {
    n: u32,
    /// The place from which on places are counted.
    first: u32,
    seating: Seating,
}

impl Tree {
    /// The trees of an AllReduce: the second is the first one mirrored, or moved on by a seat, so that odd and even
    /// seats change places.
    fn free(n: u32) -> [Tree; TREES] {
        let second = if n.is_multiple_of(2) { Seating::Reversed } else { Seating::Moved };
        [Seating::Straight, second].map(|seating| Tree { n, first: 0, seating })
    }

    /// Two trees that have the same root, at place `first`: the seats behind it change places as in [`Tree::free`].
    fn rooted(n: u32, first: u32) -> [Tree; TREES] {
        let second = if n.is_multiple_of(2) { Seating::MovedBehindRoot } else { Seating::ReversedBehindRoot };
        [Seating::Straight, second].map(|seating| Tree { n, first, seating })
    }

    /// The place of a seat.
    fn place(&self, seat: u32) -> u32 {
        (self.first + self.seating.place(seat, self.n)) % self.n
    }

    /// The seat of a place.
    fn seat(&self, place: u32) -> u32 {
        self.seating.seat((place + self.n - self.first) % self.n, self.n)
    }

    /// The places above and below a place.
    fn around(&self, place: u32) -> Neighbours {
        let seat = self.seat(place);
        let (before, after) = children(seat, self.n);
        let place = |seat| self.place(seat);
        Neighbours { parent: parent(seat, self.n).map(place), before: before.map(place), after: after.map(place) }
    }
}

/// Places next to one in a tree: below it one before it in order, one after it.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    parent: Option<u32>,
    before: Option<u32>,
    after: Option<u32>,
}

/// A tree of trees: one of hosts, and on each host one of its ranks. Where ranks have a root, its host's tree begins
/// there. What goes between hosts, one rank of each sends and receives: the *head*, whatever the root.
#[derive(Clone, Copy, Debug)]
struct HostTree<'a> {
    rows: &'a HostRows,
    hosts: Tree,
    /// The host of the root, and the tree there.
    rooted: Option<(u32, Tree)>,
    /// 0, or 1: the second tree.
    number: usize,
}

impl<'a> HostTree<'a> {
    /// The trees of an AllReduce.
    fn free(rows: &'a HostRows) -> [HostTree<'a>; TREES] {
        let hosts = Tree::free(rows.nhosts());
        [0, 1].map(|number| HostTree { rows, hosts: hosts[number], rooted: None, number })
    }

    /// Two trees that have the same root.
    fn rooted(rows: &'a HostRows, root: u32) -> Result<[HostTree<'a>; TREES], Error> {
        let none = || Error::Internal(format!("no tree with root {root}"));
        let (host, place) = rows.seat(root).ok_or_else(none)?;
        let (hosts, there) = (Tree::rooted(rows.nhosts(), host), Tree::rooted(rows.row(host).len() as u32, place));
        Ok([0, 1].map(|number| HostTree { rows, hosts: hosts[number], rooted: Some((host, there[number])), number }))
    }

    /// The tree of a host that has not the root: from its head on.
    fn of_host(&self, host: u32) -> Tree {
        Tree::free(self.rows.row(host).len() as u32)[self.number]
    }

    /// The rank that sends and receives for a host.
    fn head(&self, host: u32) -> u32 {
        self.rows.at(host, self.of_host(host).place(0))
    }
}

/// One rank's neighbours in one tree.
#[derive(Debug)]
struct Node {
    parent: Option<u32>,
    /// Those before the rank in order, then those after: of other hosts before those of its own, then after.
    children: Vec<u32>,
    /// How many children come before the rank: where its own contribution stands.
    place: u8,
    chunk: u32,
}

impl Node {
    /// Finds `rank` in a tree.
    fn find(tree: &HostTree<'_>, rank: u32) -> Result<Node, Error> {
        let several = tree.rows.nhosts() > 1 || tree.rows.most() > 1;
        let Some((host, place)) = tree.rows.seat(rank).filter(|_| several) else {
            return Err(Error::Internal(format!("no tree of hosts with {} ranks for rank {rank}", tree.rows.most())));
        };
        let rooted = tree.rooted.filter(|(of, _)| *of == host).map(|(_, there)| there);
        let here = rooted.unwrap_or_else(|| tree.of_host(host)).around(place);
        let is_head = tree.head(host) == rank;
        let hosts = if is_head { tree.hosts.around(host) } else { Neighbours::default() };
        let local = |place: u32| tree.rows.at(host, place);
        let before: Vec<u32> =
            hosts.before.map(|host| tree.head(host)).into_iter().chain(here.before.map(local)).collect();
        let after = here.after.map(local).into_iter().chain(hosts.after.map(|host| tree.head(host)));
        Ok(Node {
            parent: here.parent.map(local).or(hosts.parent.map(|host| tree.head(host))),
            place: before.len() as u8,
            children: before.iter().copied().chain(after).collect(),
            chunk: tree.number as u32,
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

/// The distances, in the order and around its end, between a rank and its neighbours in all trees of one host: those of
/// an AllReduce and those of every root.
pub(super) fn distances(n: u32) -> BTreeSet<u32> {
    // From another root on, the trees are the same, and an AllReduce's second tree has the first one's distances.
    let trees = Tree::rooted(n, 0).into_iter();
    let edges =
        trees.flat_map(|tree| (1..n).filter_map(move |seat| Some((tree.place(seat), tree.place(parent(seat, n)?)))));
    edges.flat_map(|(a, b)| [(a + n - b) % n, (b + n - a) % n]).collect()
}

/// The neighbours of a rank in all trees of several hosts.
pub(super) fn neighbours(rows: &HostRows, rank: u32) -> BTreeSet<u32> {
    // The roots of one other host do not differ here; each of the own one's do.
    let own = rows.seat(rank).map_or(0, |(host, _)| host);
    let roots =
        (0..rows.nhosts()).flat_map(|host| rows.row(host).iter().take(if host == own { usize::MAX } else { 1 }));
    let rooted = roots.filter_map(|root| HostTree::rooted(rows, *root).ok()).flatten();
    let trees = HostTree::free(rows).into_iter().chain(rooted);
    trees
        .filter_map(|tree| Node::find(&tree, rank).ok())
        .flat_map(|node| node.neighbours().collect::<Vec<_>>())
        .collect()
}

/// A rank in both trees.
struct Nodes {
    rank: u32,
    nodes: [Node; TREES],
    /// A neighbour in one tree is one in the other, too; of several hosts, one on the same side. Then both trees' data
    /// travels over one link, so both ends must have the same order of trees, and of up and down.
    shared: bool,
}

impl Nodes {
    /// Finds a rank. Leaves come first, since they wait for nobody, but for trees that share links.
    fn find(trees: &[HostTree<'_>; TREES], rank: u32) -> Result<Nodes, Error> {
        let mut nodes = [Node::find(&trees[0], rank)?, Node::find(&trees[1], rank)?];
        let one_host = trees[0].rows.nhosts() == 1;
        let shared = match one_host {
            true => nodes[0].neighbours().any(|rank| nodes[1].neighbours().any(|other| other == rank)),
            // What goes up one tree and down the other is in one order at both ends.
            false => {
                let parent = nodes[0].parent.is_some() && nodes[0].parent == nodes[1].parent;
                parent || nodes[0].children.iter().any(|child| nodes[1].children.contains(child))
            }
        };
        if !shared && one_host {
            nodes.sort_by_key(|node| node.children.len());
        } else if !shared {
            // On several hosts more ranks than roots have children in both: their order is that of the trees.
            nodes.sort_by_key(|node| !node.children.is_empty());
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
/// [`Error::Internal`] where `rows` have fewer than two ranks, or not `rank`.
pub fn all_reduce(rows: &HostRows, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&HostTree::free(rows), rank)?;
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
/// As [`all_reduce`]; also where `rows` have no `root`.
pub fn broadcast(rows: &HostRows, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&HostTree::rooted(rows, root)?, rank)?;
    let mut s = me.schedule();
    me.down(&mut s, Draft { flags: IN | OUT, ..Draft::ONCE })?;
    Ok(s)
}

/// Tree Reduce: both trees end at the root. The order of reduction is the order of seats, counted from the root.
///
/// # Errors
/// As [`broadcast`].
pub fn reduce(rows: &HostRows, root: u32, rank: u32) -> Result<Schedule, Error> {
    let me = Nodes::find(&HostTree::rooted(rows, root)?, rank)?;
    let mut s = me.schedule();
    me.up(&mut s, Draft { flags: IN | OUT | POST, ..Draft::ONCE })?;
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Graph;

    fn depth(tree: &HostTree<'_>, rank: u32) -> u32 {
        match Node::find(tree, rank).unwrap().parent {
            Some(parent) => 1 + depth(tree, parent),
            None => 0,
        }
    }

    /// Every tree of a graph, with the root of a rooted one.
    fn all_trees(rows: &HostRows, root: u32) -> [[HostTree<'_>; TREES]; 2] {
        [HostTree::free(rows), HostTree::rooted(rows, root).unwrap()]
    }

    #[test]
    fn trees_are_flat_and_narrow_and_complement_each_other() {
        for n in (2..=64).chain([255, 256, 1000]) {
            let graph = Graph::of_host(n);
            for trees in all_trees(graph.tree_rows(0), n / 3) {
                let mut twice = 0;
                for rank in 0..n {
                    let nodes = trees.each_ref().map(|tree| Node::find(tree, rank).unwrap());
                    assert!(nodes.iter().all(|node| node.children.len() <= 2));
                    twice += u32::from(nodes.iter().all(|node| !node.children.is_empty()));
                    assert!(trees.iter().all(|tree| depth(tree, rank) <= n.ilog2() + 1), "n = {n}");
                }
                // Only roots have children in both.
                assert!(twice <= 2, "n = {n}: {twice}");
            }
        }
    }

    /// Data enter every host but the root's once, and take a logarithm of hops between hosts and in each.
    #[test]
    fn trees_of_hosts_enter_each_once() {
        for (n, nhosts) in [(2, 2), (5, 3), (12, 4), (16, 2), (30, 7), (64, 8), (400, 50)] {
            let graph = Graph::shuffled(n, nhosts, 1, u64::from(n));
            let (rows, hosts) = (graph.tree_rows(0), graph.hosts());
            for tree in all_trees(rows, n / 3).into_iter().flatten() {
                let parents = (0..n).map(|rank| (rank, Node::find(&tree, rank).unwrap().parent));
                let crossing = |(rank, parent): &(u32, Option<u32>)| {
                    parent.is_some_and(|parent| hosts[parent as usize] != hosts[*rank as usize])
                };
                assert_eq!(parents.filter(crossing).count() as u32, nhosts - 1, "{n} ranks on {nhosts}");
                let most = nhosts.ilog2() + 1 + 2 * (rows.most().ilog2() + 1);
                assert!((0..n).all(|rank| depth(&tree, rank) <= most), "{n} ranks on {nhosts}");
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
        for n in [1, 2, 3, 7, 8] {
            for tree in Tree::free(n).into_iter().chain(Tree::rooted(n, n - 1)) {
                assert!((0..n).all(|seat| tree.seat(tree.place(seat)) == seat), "{tree:?}");
            }
        }
    }
}
