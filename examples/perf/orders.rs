//! What the parent tells its workers, and what they answer: one JSON line each, over a socket.

use serde::{Deserialize, Serialize};

use crate::common::contract::{Content, Operator};
use crate::common::oracle::{DataType, RedOp};
use crate::subject::Subject;

/// What a worker process learns at its start (in [`crate::worker::CONFIG`]).
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Config {
    /// Number of the first worker in this process.
    pub first: usize,
    /// Workers in this process, a thread each.
    pub threads: usize,
    /// Ranks that each worker drives.
    pub per_worker: usize,
    /// Ranks in all.
    pub nranks: usize,
    /// Buffers are of `ncclMemAlloc`, and registered.
    pub register: bool,
    /// Name or path of the library.
    pub nccl: String,
}

/// One call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Case {
    /// What is called.
    pub subject: Subject,
    /// Elements of a block.
    pub count: usize,
    /// `ncclDataType_t`.
    pub dtype: usize,
    /// `ncclRedOp_t`; of no meaning where nothing is reduced.
    pub op: usize,
    /// The root; of no meaning where there is none.
    pub root: usize,
    /// The result replaces the input.
    pub in_place: bool,
}

impl Case {
    /// The type of the elements.
    pub fn dtype(&self) -> DataType {
        DataType::all().nth(self.dtype).unwrap_or(DataType::Float32)
    }

    /// The operator.
    pub fn op(&self) -> RedOp {
        RedOp::ALL[self.op.min(4)]
    }

    /// What the ranks hold, for the oracle.
    pub fn content(&self, nranks: usize) -> Content {
        let operator = self.subject.reduces().then(|| Operator::Plain(self.op()));
        Content { dtype: self.dtype(), operator, nranks }
    }
}

/// An order to one worker or to all.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum Order {
    /// Make a unique id.
    UniqueId,
    /// Make communicators with this id (hexadecimal).
    Init(String),
    /// Make buffers of this many bytes.
    Allocate(usize),
    /// Meet the other ranks, then make so many calls and wait for the last, or for each.
    Run {
        /// What is called.
        case: Case,
        /// How often.
        calls: u64,
        /// Wait after each call.
        blocking: bool,
    },
    /// Make one call on fresh data and compare; the number makes the data differ from the last time's.
    Check(Case, usize),
    /// Release everything and end.
    Quit,
}

/// A worker's answer.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub enum Reply {
    /// The libraries are loaded.
    Ready {
        /// `ncclGetVersion`.
        version: i32,
        /// Names of the devices of its ranks.
        devices: Vec<String>,
    },
    /// An id (hexadecimal).
    UniqueId(String),
    /// Seconds that the order took by the worker's clock; for [`Order::Run`] those of the calls only.
    Took(f64),
    /// Elements that differ from what they should be, and the first of them in words.
    Wrong(usize, Option<String>),
    /// The order failed.
    Failed(String),
    /// The process has ended, or its socket is broken.
    Gone,
}

/// The id's bytes as text.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The reverse of [`to_hex`].
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_a_line() {
        let case = Case { subject: Subject::Reduce, count: 5, dtype: 9, op: 4, root: 1, in_place: true };
        for order in [
            Order::UniqueId,
            Order::Init("00ff".into()),
            Order::Run { case, calls: 7, blocking: false },
            Order::Check(case, 1),
        ] {
            let line = serde_json::to_string(&order).expect("serialises");
            assert!(!line.contains('\n'));
            assert_eq!(serde_json::from_str::<Order>(&line).expect("parses"), order);
        }
        let operator = Some(Operator::Plain(RedOp::Avg));
        assert_eq!(case.content(3), Content { dtype: DataType::Bfloat16, operator, nranks: 3 });
    }

    #[test]
    fn hex_goes_there_and_back() {
        assert_eq!(from_hex(&to_hex(&[0, 255, 16])), Some(vec![0, 255, 16]));
        assert_eq!(from_hex("0g"), None);
    }
}
