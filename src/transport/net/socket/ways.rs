//! From which interface of this host to which one of the other's a stream goes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use parking_lot::Mutex;

use crate::bootstrap::same_network;
use crate::proxy::TcpAddress;

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnAddress {
    pub at: SocketAddr,
    /// Bits of its network's prefix.
    pub prefix: u8,
}

/// From an address of this host to one of the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// None: the system's routes decide.
    pub from: Option<SocketAddr>,
    pub to: TcpAddress,
    /// Both are in one network: it should lead there.
    pub direct: bool,
}

/// The addresses of both ends, those first that the connection's devices have.
#[derive(Clone, Debug)]
pub(super) struct WayEnds {
    pub from: Vec<OwnAddress>,
    /// So many of them share the data, from the first one on; the others are for when nothing else leads there.
    pub from_shared: usize,
    pub to: Vec<TcpAddress>,
    pub to_shared: usize,
}

/// Ways of a communicator that were found not to lead there.
#[derive(Default)]
pub(super) struct LostWays(Mutex<BTreeSet<(Option<SocketAddr>, SocketAddr)>>);

/// The place of a number among some that take turns, where a turn begins with another one; others keep theirs.
fn place(number: usize, turn: usize, shared: usize) -> usize {
    if number < shared { (number + shared - turn % shared) % shared } else { number }
}

impl WayEnds {
    /// The ways of a stream, in the order in which they are to be tried: those within one network first, and streams
    /// take turns at the interfaces of both ends.
    pub fn ways(&self, stream: usize) -> Vec<Way> {
        let pairs = || (0..self.to.len()).flat_map(|to| (0..self.from.len()).map(move |from| (from, to)));
        let way = |(from, to): (usize, usize)| {
            let (own, to) = (self.from[from], self.to[to]);
            let direct = same_network(own.at.ip(), to.socket().ip(), own.prefix);
            Way { from: (self.from.len() > 1).then_some(own.at), to, direct }
        };
        let is_one_family =
            |(from, to): &(usize, usize)| self.from[*from].at.is_ipv4() == self.to[*to].socket().is_ipv4();
        let mut pairs: Vec<(usize, usize)> = pairs().filter(is_one_family).collect();
        pairs.sort_by_key(|(from, to)| {
            let slow = *from >= self.from_shared || *to >= self.to_shared;
            let turns = (place(*to, stream, self.to_shared), place(*from, stream, self.from_shared));
            (slow, !way((*from, *to)).direct, turns)
        });
        pairs.into_iter().map(way).collect()
    }
}

impl LostWays {
    /// Remembers that a way does not lead there; whether that is new.
    pub fn add(&self, way: &Way) -> bool {
        self.0.lock().insert((way.from, way.to.socket()))
    }

    /// A way leads there.
    pub fn remove(&self, way: &Way) {
        self.0.lock().remove(&(way.from, way.to.socket()));
    }

    /// Puts ways last that were found not to lead there.
    pub fn put_last(&self, ways: &mut [Way]) {
        let lost = self.0.lock();
        ways.sort_by_key(|way| lost.contains(&(way.from, way.to.socket())));
    }
}

/// How a way is shown.
impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from.map(|from| from.ip()) {
            Some(IpAddr::V4(from)) => write!(f, "{} from {from}", self.to.socket()),
            Some(IpAddr::V6(from)) => write!(f, "{} from {from}", self.to.socket()),
            None => write!(f, "{}", self.to.socket()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(addresses: &[&str]) -> Vec<OwnAddress> {
        let one = |text: &&str| OwnAddress { at: SocketAddr::new(text.parse().expect("an address"), 0), prefix: 24 };
        addresses.iter().map(one).collect()
    }

    fn told(addresses: &[&str]) -> Vec<TcpAddress> {
        let one = |text: &&str| {
            let ip: IpAddr = text.parse().expect("an address");
            let bytes = postcard::to_stdvec(&(ip, 7u16, 0u32, 1u128, false)).expect("bytes");
            postcard::from_bytes(&bytes).expect("an address")
        };
        addresses.iter().map(one).collect()
    }

    /// The ways of a stream, as the last bytes of networks and of both addresses.
    fn shown(ends: &WayEnds, stream: usize) -> Vec<String> {
        let last = |address: SocketAddr| address.ip().to_string().split_off(5);
        let show = |way: &Way| format!("{}>{}", way.from.map_or("any".into(), last), last(way.to.socket()));
        ends.ways(stream).iter().map(show).collect()
    }

    #[test]
    fn streams_take_turns_and_stay_in_one_network() {
        let (here, there) = (["10.0.1.1", "10.0.2.1"], ["10.0.1.2", "10.0.2.2"]);
        let ends = WayEnds { from: own(&here), from_shared: 2, to: told(&there), to_shared: 2 };
        assert_eq!(shown(&ends, 0), ["1.1>1.2", "2.1>2.2", "2.1>1.2", "1.1>2.2"]);
        assert_eq!(shown(&ends, 1)[..2], ["2.1>2.2", "1.1>1.2"]);
        assert_eq!(shown(&ends, 2), shown(&ends, 0));
        // One interface there: the one that is in its network.
        let ends = WayEnds { to: told(&there[1..]), to_shared: 1, ..ends };
        assert_eq!([shown(&ends, 0), shown(&ends, 1)].map(|ways| ways[0].clone()), ["2.1>2.2"; 2]);
    }

    #[test]
    fn where_routes_lead_everywhere_each_end_takes_turns() {
        let ends = WayEnds {
            from: own(&["10.0.1.1", "10.0.2.1", "10.0.3.1"]),
            from_shared: 3,
            to: told(&["10.0.7.1", "10.0.8.1"]),
            to_shared: 2,
        };
        let firsts: Vec<String> = (0..6).map(|stream| shown(&ends, stream)[0].clone()).collect();
        assert_eq!(firsts, ["1.1>7.1", "2.1>8.1", "3.1>7.1", "1.1>8.1", "2.1>7.1", "3.1>8.1"]);
        // With one interface the system decides.
        let ends = WayEnds { from: own(&["10.0.1.1"]), from_shared: 1, ..ends };
        assert_eq!(shown(&ends, 1), ["any>8.1", "any>7.1"]);
    }

    #[test]
    fn slow_ones_and_those_of_another_kind_are_for_when_nothing_else_leads_there() {
        let ends = WayEnds {
            from: own(&["10.0.2.1", "10.0.1.1", "fd00::1"]),
            from_shared: 1,
            to: told(&["10.0.2.2", "10.0.1.2"]),
            to_shared: 1,
        };
        for stream in 0..3 {
            assert_eq!(shown(&ends, stream)[..2], ["2.1>2.2", "1.1>1.2"], "{stream}");
            assert_eq!(shown(&ends, stream).len(), 4);
        }
    }

    #[test]
    fn what_did_not_lead_there_comes_last_and_is_told_once() {
        let ends = WayEnds {
            from: own(&["10.0.1.1", "10.0.2.1"]),
            from_shared: 2,
            to: told(&["10.0.1.2", "10.0.2.2"]),
            to_shared: 2,
        };
        let (lost, mut ways) = (LostWays::default(), ends.ways(0));
        assert_eq!([lost.add(&ways[0]), lost.add(&ways[0])], [true, false]);
        let first = ways[0];
        lost.put_last(&mut ways);
        assert_eq!((ways[3], ways[0].to_string().as_str()), (first, "10.0.2.2:7 from 10.0.2.1"));
        lost.remove(&first);
        lost.put_last(&mut ways);
        assert_eq!(ways[3], first, "the order of others stays");
        assert!(lost.add(&first));
    }
}
