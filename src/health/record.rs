//! Records of calls, and the sentence that names who has called what.

use serde::{Deserialize, Serialize};

use crate::plan::call::{DataType, Func, Op};

/// Words of 64 bits that a record takes on a flight recorder.
pub const WORDS: usize = 4;
/// What kernels are given as the number of a captured collective, which has none.
pub const CAPTURED: u32 = u32::MAX;
/// The number of a user's operator on a flight recorder: one past the last built-in one.
const USER_OP: u8 = Op::Avg as u8 + 1;

/// A collective call, as one rank has made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// Its number among the collectives of the communicator.
    pub serial: u64,
    /// The number of the function ([`Func`]).
    pub func: u8,
    /// The number of the element type ([`DataType`]).
    pub datatype: u8,
    /// The number of the operator; those of users share one.
    pub op: u8,
    /// The root; 0 where the function has none.
    pub root: u32,
    /// Elements.
    pub count: u64,
}

impl Record {
    /// The record as words. The last one is the first one turned around, so that a record that is just being
    /// overwritten is not taken for one.
    pub fn to_words(self) -> [u64; WORDS] {
        let [func, datatype, op] = [self.func, self.datatype, self.op].map(u64::from);
        [self.serial, func | datatype << 8 | op << 16 | u64::from(self.root) << 32, self.count, !self.serial]
    }

    /// The record in some words, unless they are not one.
    pub fn from_words(words: [u64; WORDS]) -> Option<Record> {
        let byte = |place: u32| (words[1] >> (8 * place)) as u8;
        let record = Record {
            serial: words[0],
            func: byte(0),
            datatype: byte(1),
            op: byte(2),
            root: (words[1] >> 32) as u32,
            count: words[2],
        };
        (words[3] == !words[0]).then_some(record)
    }

    /// What all ranks must say alike, as words. Where data only move, ranks may give the same bytes different types,
    /// and there is no operator.
    pub fn agreed(&self) -> [u64; 5] {
        let moves = Func::from_number(self.func).is_some_and(|func| !func.reduces());
        let size = DataType::from_c(i32::from(self.datatype)).map_or(1, DataType::size) as u64;
        let (unit, datatype, op) = if moves { (size, 0, 0) } else { (1, self.datatype, self.op) };
        [self.func.into(), datatype.into(), op.into(), self.count.wrapping_mul(unit), self.root.into()]
    }

    /// Whether two ranks have made the same call.
    pub fn matches(&self, other: &Record) -> bool {
        self.serial == other.serial && self.agreed() == other.agreed()
    }

    /// The call in words: "AllReduce of 8 ncclFloat32, ncclSum".
    pub(super) fn text(&self) -> String {
        let func = Func::from_number(self.func);
        let name = func.map_or("an unknown function", Func::name);
        let datatype = DataType::from_c(i32::from(self.datatype)).map_or("unknown", DataType::name);
        let mut text = format!("{name} of {} {datatype}", self.count);
        if func.is_some_and(Func::reduces) {
            let op = Op::from_c(i32::from(self.op)).map_or("an unknown operator", Op::name);
            text += &format!(", {}", if self.op == USER_OP { "a PreMulSum operator" } else { op });
        }
        if func.is_some_and(Func::has_root) {
            text += &format!(", root {}", self.root);
        }
        text
    }
}

/// The sentence about the first call on which ranks do not agree, among the last calls of some ranks; none where
/// those that can be compared are alike. Ranks that have not made a call yet are out of account.
pub fn disagreement(ranks: &[(u32, Vec<Record>)]) -> Option<String> {
    let mut serials: Vec<u64> =
        ranks.iter().flat_map(|(_, records)| records.iter().map(|record| record.serial)).collect();
    serials.sort_unstable();
    serials.dedup();
    serials.into_iter().find_map(|serial| {
        let mut groups: Vec<(Record, Vec<u32>)> = Vec::new();
        for (rank, records) in ranks {
            let Some(record) = records.iter().find(|record| record.serial == serial) else { continue };
            match groups.iter_mut().find(|(known, _)| known.matches(record)) {
                Some((_, of)) => of.push(*rank),
                None => groups.push((*record, vec![*rank])),
            }
        }
        (groups.len() > 1).then(|| sentence(serial, &groups))
    })
}

fn sentence(serial: u64, groups: &[(Record, Vec<u32>)]) -> String {
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    let who = |ranks: &[u32]| format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, list(ranks));
    let calls: Vec<String> =
        groups.iter().map(|(record, ranks)| format!("{} called {}", who(ranks), record.text())).collect();
    format!("collective {serial} of the communicator does not match: {}", calls.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_reduce(serial: u64, count: u64) -> Record {
        let (func, datatype) = (Func::AllReduce as u8, DataType::Float32 as u8);
        Record { serial, func, datatype, op: Op::Sum as u8, root: 0, count }
    }

    #[test]
    fn the_first_difference_is_named() {
        let broadcast = Record { func: Func::Broadcast as u8, root: 2, ..all_reduce(7, 8) };
        let ranks = [
            (0, vec![all_reduce(6, 4), all_reduce(7, 8)]),
            (1, vec![all_reduce(6, 4), broadcast]),
            (2, vec![all_reduce(6, 4), all_reduce(7, 8), all_reduce(8, 1)]),
            (3, vec![all_reduce(6, 4)]),
        ];
        let text = disagreement(&ranks).expect("a difference");
        assert_eq!(
            text,
            "collective 7 of the communicator does not match: ranks 0, 2 called AllReduce of 8 ncclFloat32, ncclSum; \
             rank 1 called Broadcast of 8 ncclFloat32, root 2"
        );
    }

    #[test]
    fn what_is_alike_or_missing_is_no_difference() {
        let ranks = [(0, vec![all_reduce(6, 4)]), (1, vec![all_reduce(6, 4), all_reduce(7, 1)]), (2, Vec::new())];
        assert_eq!(disagreement(&ranks), None);
    }

    #[test]
    fn equal_bytes_that_only_move_match_whatever_their_type() {
        let floats = Record { func: Func::AllGather as u8, ..all_reduce(7, 8) };
        let bytes = Record { datatype: DataType::Int8 as u8, count: 32, ..floats };
        assert!(floats.matches(&bytes) && bytes.matches(&floats));
        assert_eq!(disagreement(&[(0, vec![floats]), (1, vec![bytes])]), None);
        assert!(!floats.matches(&Record { count: 31, ..bytes }));
        assert!(!floats.matches(&Record { func: Func::AlltoAll as u8, ..bytes }));
        // What is reduced depends on the type.
        let sum = all_reduce(7, 8);
        assert!(!sum.matches(&Record { datatype: DataType::Int32 as u8, ..sum }));
        assert!(!sum.matches(&Record { op: Op::Max as u8, ..sum }));
    }

    proptest! {
        #[test]
        fn records_survive_the_recorder(
            serial: u64,
            root: u32,
            count: u64,
            func in 0..11u8,
            datatype in 0..12u8,
            op in 0..6u8,
        ) {
            let record = Record { serial, func, datatype, op, root, count };
            prop_assert_eq!(Record::from_words(record.to_words()), Some(record));
            prop_assert!(!record.text().is_empty());
        }

        #[test]
        fn any_words_are_read_without_harm(words: [u64; WORDS]) {
            if let Some(record) = Record::from_words(words) {
                let _ = record.text();
            }
        }
    }
}
