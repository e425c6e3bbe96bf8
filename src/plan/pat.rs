//! PAT, parallel aggregated trees: AllGather and ReduceScatter in as many rounds as the logarithm of the ranks, for
//! any number of ranks. (NCCL's algorithm of this name joins chunks into messages; here every chunk is a turn of its
//! own, and what is aggregated are the hops.)
//!
//! Every rank is the root of a binomial tree for its own chunk, and all trees are the same but for where they begin.
//! The rank o places before chunk c's own is at *offset* o of its tree. It is o's lowest set bit away from its parent,
//! and its children are all smaller powers of two away. So a rank has to do with ranks at distances 1, 2, 4, … only,
//! counted in the order of the ring. With more than 256 ranks, distances end at 128, since a step has no more than
//! [`MAX_FAN`] children: offsets that are multiples of 128 are a chain then, each the parent of the next. Data that
//! goes far goes first, while there is little of it.
//!
//! *AllGather* sends chunks down their trees: a chunk that comes in is written to the output and passed on to all
//! children in one step. *ReduceScatter* is the same read backwards: what the children have added up is added to the
//! own contribution and passed on to the parent in one step. Sums so far lie in the slots of links, since the user's
//! buffers have no room for them; a chunk waits there until its turn has come.
//!
//! The *order* in which a rank goes through the offsets decides how many slots that takes. By rounds (farthest first,
//! which gives the fewest hops one after the other) it takes half as many as there are ranks. So ranks go through
//! blocks of twice as many offsets as there are slots, and by rounds within a block.

use std::collections::BTreeSet;

use super::layout::step_flag::{IN, OUT, POST};
use super::layout::{MAX_FAN, SLOTS};
use super::schedule::{Draft, LinkClass, Schedule};
use crate::error::Error;
use crate::topology::Order;

/// Offsets of a block.
const BLOCK: u32 = 2 * SLOTS as u32;
/// The greatest distance between a rank and its parent: with all smaller powers of two a step has as many children as
/// it can.
const FARTHEST: u32 = 1 << (MAX_FAN - 1);
/// Slots without which a step that receives and sends waits for itself.
const MIN_SLOTS: u32 = 2;

/// The distance between offset `o` of a tree, where that is not 0, and its parent: a power of two up to `farthest`.
pub(super) fn distance(o: u32, farthest: u32) -> u32 {
    (o & o.wrapping_neg()).min(farthest)
}

/// Distances to the children of offset `o` of `n`, the greatest first.
pub(super) fn children(o: u32, n: u32, farthest: u32) -> Vec<u32> {
    let limit = if o.is_multiple_of(farthest) { n } else { distance(o, farthest) };
    powers_below(limit, farthest).filter(|d| o + d < n).collect()
}

/// Slots that a chunk of each of `n` takes on a link: that to the nearest carries every second offset of a block before
/// its first is needed.
pub(super) fn slots(n: u32) -> u32 {
    (n.min(BLOCK) / 2).max(1)
}

/// Powers of two that are less than `limit` and not above `farthest`, from the greatest on.
fn powers_below(limit: u32, farthest: u32) -> impl Iterator<Item = u32> {
    let greatest = limit.saturating_sub(1).min(farthest);
    (0..greatest.checked_ilog2().map_or(0, |log| log + 1)).rev().map(|log| 1 << log)
}

/// Offsets in the order in which all ranks go through them.
pub(super) fn offsets(n: u32) -> Vec<u32> {
    let bits = BLOCK.ilog2();
    let mut offsets: Vec<u32> = (0..n).collect();
    // Within a block, with the lowest bit as the most significant: farthest first.
    offsets.sort_by_key(|o| (o / BLOCK, (o % BLOCK).reverse_bits() >> (u32::BITS - bits)));
    offsets
}

/// The distances, in the order and around its end, between a rank and its neighbours in all trees.
pub(super) fn distances(n: u32) -> BTreeSet<u32> {
    powers_below(n, FARTHEST).flat_map(|distance| [distance, n - distance]).collect()
}

/// A rank among all.
struct PatPlace<'a> {
    order: &'a Order,
    rank: u32,
    at: u32,
    n: u32,
}

impl<'a> PatPlace<'a> {
    fn find(order: &'a Order, rank: u32) -> Result<PatPlace<'a>, Error> {
        let n = order.nranks();
        match order.place(rank) {
            Some(at) if n >= 2 => Ok(PatPlace { order, rank, at, n }),
            _ => Err(Error::Internal(format!("no trees of {n} ranks for rank {rank}"))),
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule::new(self.rank, LinkClass::Pat, self.n, MIN_SLOTS.max(slots(self.n)))
    }

    /// The rank, or its chunk, this far ahead.
    fn ahead(&self, distance: u32) -> u32 {
        self.order.at(self.at + distance % self.n)
    }

    fn behind(&self, distance: u32) -> u32 {
        self.order.at(self.at + self.n - distance)
    }

    /// The parent at offset `o`; at the root, whose parent nobody asks for, some rank.
    fn parent(&self, o: u32) -> u32 {
        self.ahead(distance(o, FARTHEST))
    }

    /// Distances to the children of offset `o`, the greatest first.
    fn children(&self, o: u32) -> Vec<u32> {
        children(o, self.n, FARTHEST)
    }
}

/// PAT AllGather.
///
/// # Errors
/// [`Error::Internal`] where `order` has fewer than two ranks, or not `rank`.
pub fn all_gather(order: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = PatPlace::find(order, rank)?;
    let mut s = me.schedule();
    for o in offsets(me.n) {
        let send: Vec<u32> = me.children(o).iter().map(|d| me.behind(*d)).collect();
        let parent = [me.parent(o)];
        let draft = Draft { flags: OUT, send: &send, ..Draft::ONCE }.chunk(me.ahead(o));
        s.push(match o {
            0 => Draft { flags: IN | OUT, in_chunk: 0, ..draft },
            _ => Draft { recv: &parent, ..draft },
        })?;
    }
    Ok(s)
}

/// PAT ReduceScatter. The order of reduction of a chunk is that of a ring, from the rank behind the chunk's own around
/// to its own, but in sums of sums.
///
/// # Errors
/// As [`all_gather`].
pub fn reduce_scatter(order: &Order, rank: u32) -> Result<Schedule, Error> {
    let me = PatPlace::find(order, rank)?;
    let mut s = me.schedule();
    for o in offsets(me.n).into_iter().rev() {
        let recv: Vec<u32> = me.children(o).iter().map(|d| me.behind(*d)).collect();
        let parent = [me.parent(o)];
        let draft = Draft { flags: IN, recv: &recv, place: recv.len() as u8, in_chunk: me.ahead(o), ..Draft::ONCE };
        s.push(match o {
            0 => Draft { flags: IN | OUT | POST, ..draft },
            _ => Draft { send: &parent, ..draft },
        })?;
    }
    Ok(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_go_far_first() {
        assert_eq!(offsets(8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(offsets(5), [0, 4, 2, 1, 3]);
        assert_eq!(offsets(20)[14..], [7, 15, 16, 18, 17, 19]);
        let (order, two) = (Order::of_numbers(13), Order::of_numbers(2));
        let me = PatPlace::find(&order, 0).unwrap();
        assert_eq!(me.children(0), [8, 4, 2, 1]);
        assert_eq!(me.children(8), [4, 2, 1]);
        assert!(me.children(12).is_empty());
        assert_eq!(PatPlace::find(&two, 0).unwrap().children(0), [1]);
        let thousand = Order::of_numbers(1000);
        let me = PatPlace::find(&thousand, 0).unwrap();
        assert_eq!([0, 512, 896].map(|o| me.children(o)[0]), [128, 128, 64]);
        assert_eq!((me.children(768).len(), me.children(64).len(), distance(512, FARTHEST)), (MAX_FAN, 6, 128));
    }
}
