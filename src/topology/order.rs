//! All ranks of a communicator in some order, which can be gone through around its end.

use crate::error::Error;

/// All ranks from 0 on, each once, in some order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    ranks: Vec<u32>,
    /// By rank, where it is in `ranks`.
    places: Vec<u32>,
}

impl Order {
    /// Ranks in the order of their numbers.
    pub fn of_numbers(nranks: u32) -> Order {
        Order { ranks: (0..nranks).collect(), places: (0..nranks).collect() }
    }

    /// The order in which `ranks` lists them.
    ///
    /// # Errors
    /// [`Error::Internal`] where these are not all ranks from 0 on, each once.
    pub fn new(ranks: Vec<u32>) -> Result<Order, Error> {
        let mut places = vec![u32::MAX; ranks.len()];
        for (place, &rank) in (0..).zip(&ranks) {
            match places.get_mut(rank as usize) {
                Some(free) if *free == u32::MAX => *free = place,
                _ => {
                    return Err(Error::Internal(format!(
                        "an order of {} ranks with rank {rank} at {place}",
                        ranks.len()
                    )));
                }
            }
        }
        Ok(Order { ranks, places })
    }

    /// How many ranks there are.
    pub fn nranks(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The ranks, in order.
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// Where a rank is; none where there is no such rank.
    pub fn place(&self, rank: u32) -> Option<u32> {
        self.places.get(rank as usize).copied()
    }

    /// The rank at a place, counted around the end.
    ///
    /// # Panics
    /// Where there are no ranks.
    pub fn at(&self, place: u32) -> u32 {
        self.ranks[(place % self.nranks()) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_ranks_are_each_others_inverse() {
        let order = Order::new(vec![2, 0, 3, 1]).expect("an order");
        assert_eq!((0..4).map(|rank| order.place(rank)).collect::<Vec<_>>(), [1, 3, 0, 2].map(Some));
        assert_eq!((0..6).map(|place| order.at(place)).collect::<Vec<_>>(), [2, 0, 3, 1, 2, 0]);
        assert_eq!((order.place(4), order.nranks(), order.ranks()), (None, 4, &[2, 0, 3, 1][..]));
        assert_eq!(Order::new((0..5).collect()), Ok(Order::of_numbers(5)));
    }

    #[test]
    fn what_leaves_out_a_rank_or_has_it_twice_is_refused() {
        for ranks in [vec![0, 0], vec![1, 2], vec![0, 2], vec![0, 1, 1]] {
            assert!(Order::new(ranks.clone()).is_err(), "{ranks:?}");
        }
    }
}
