//! Which ranks share a host, in the order of a channel.

use std::collections::HashMap;

use super::order::Order;

/// The ranks of an order, host by host: hosts in the order in which they first appear, and in each its ranks. A *place*
/// is that of a host among hosts, or of a rank in its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRows {
    rows: Vec<Vec<u32>>,
    /// By rank, the place of its host, and its place there.
    seats: Vec<(u32, u32)>,
    most: u32,
    fewest: u32,
}

impl HostRows {
    /// Divides an order of ranks whose hosts `hosts` numbers.
    pub(super) fn of(order: &Order, hosts: &[u32]) -> HostRows {
        let (mut places, mut rows): (HashMap<u32, usize>, Vec<Vec<u32>>) = (HashMap::new(), Vec::new());
        let mut seats = vec![(0, 0); hosts.len()];
        for &rank in order.ranks() {
            let host = *places.entry(hosts[rank as usize]).or_insert_with(|| {
                rows.push(Vec::new());
                rows.len() - 1
            });
            seats[rank as usize] = (host as u32, rows[host].len() as u32);
            rows[host].push(rank);
        }
        let lengths = || rows.iter().map(|row| row.len() as u32);
        let (most, fewest) = (lengths().max().unwrap_or(0), lengths().min().unwrap_or(0));
        HostRows { rows, seats, most, fewest }
    }

    /// How many hosts there are.
    pub fn nhosts(&self) -> u32 {
        self.rows.len() as u32
    }

    /// The ranks of a host, in order; hosts are counted around the end.
    ///
    /// # Panics
    /// Where there are no ranks.
    pub fn row(&self, host: u32) -> &[u32] {
        &self.rows[host as usize % self.rows.len()]
    }

    /// The place of a rank's host, and the rank's place there; none where there is no such rank.
    pub fn seat(&self, rank: u32) -> Option<(u32, u32)> {
        self.seats.get(rank as usize).copied()
    }

    /// Ranks of the host that has most.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Ranks of the host that has fewest.
    pub fn fewest(&self) -> u32 {
        self.fewest
    }

    /// The rank of a host that stands for a place of any host: its own at this place, counted around its end where it
    /// has fewer.
    pub fn at(&self, host: u32, place: u32) -> u32 {
        let row = self.row(host);
        row[place as usize % row.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_their_ranks_keep_the_order() {
        let order = Order::new(vec![4, 1, 3, 0, 2]).expect("an order");
        let rows = HostRows::of(&order, &[7, 5, 7, 5, 9]);
        assert_eq!((rows.nhosts(), rows.most(), rows.fewest()), (3, 2, 1));
        assert_eq!([0, 1, 2, 3].map(|host| rows.row(host).to_vec()), [vec![4], vec![1, 3], vec![0, 2], vec![4]]);
        assert_eq!([0, 1, 2, 3, 4].map(|rank| rows.seat(rank)), [(2, 0), (1, 0), (2, 1), (1, 1), (0, 0)].map(Some));
        assert_eq!((rows.seat(5), rows.at(0, 5), rows.at(1, 3)), (None, 4, 3));
    }
}
