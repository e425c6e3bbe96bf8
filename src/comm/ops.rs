//! Operators that users create (`ncclRedOpCreatePreMulSum`).

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::error::Error;
use crate::plan::call::{DataType, Op};
use crate::plan::operator::{Reduction, Scalar};
use crate::sys;

/// The numbers of the operators that every communicator has end before this one.
const FIRST: i32 = Op::Avg as i32 + 1;
/// Numbers that users' operators are spread over; with [`FIRST`] they stay positive.
const NUMBERS: u32 = 1 << 30;

/// The operators that were made for one communicator. Numbers start at random, so that another communicator's
/// operator is most likely unknown here.
#[derive(Default)]
pub struct Operators(Mutex<OperatorTable>);

#[derive(Default)]
struct OperatorTable {
    start: Option<u32>,
    made: u32,
    known: HashMap<i32, (DataType, Scalar)>,
}

impl Operators {
    /// Adds an operator; returns its number.
    pub fn create(&self, datatype: DataType, scalar: Scalar) -> i32 {
        let mut table = self.0.lock();
        let start = *table.start.get_or_insert_with(sys::random);
        loop {
            let number = FIRST + (start.wrapping_add(table.made) % NUMBERS) as i32;
            table.made = table.made.wrapping_add(1);
            if let std::collections::hash_map::Entry::Vacant(place) = table.known.entry(number) {
                place.insert((datatype, scalar));
                return number;
            }
        }
    }

    /// Forgets an operator; calls that have named it keep it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an operator of every communicator, and for a number that was never given
    /// out or was destroyed.
    pub fn destroy(&self, number: i32) -> Result<(), Error> {
        check_destroyable(number)?;
        match self.0.lock().known.remove(&number) {
            Some(_) => Ok(()),
            None => Err(Error::InvalidArgument(format!(
                "ncclRedOpDestroy : operator {number} unknown to this communicator"
            ))),
        }
    }

    /// What a number stands for in a call of `name` with elements of `datatype`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that stands for nothing, or for an operator of another type.
    pub fn find(&self, name: &str, number: i32, datatype: DataType) -> Result<Reduction, Error> {
        if let Some(op) = Op::from_c(number) {
            return Ok(Reduction::Builtin(op));
        }
        if number < 0 {
            return Err(Error::InvalidArgument(format!("{name} : invalid reduction operation {number}")));
        }
        match self.0.lock().known.get(&number) {
            None => Err(Error::InvalidArgument(format!(
                "{name} : reduction operation {number} unknown to this communicator"
            ))),
            Some((made_for, _)) if *made_for != datatype => Err(Error::InvalidArgument(format!(
                "Data type supplied to user-created ncclRedOp_t does not match type given to reduction operation \
                 ({name}: {} and {})",
                made_for.name(),
                datatype.name()
            ))),
            Some((_, scalar)) => Ok(Reduction::Scaled(*scalar)),
        }
    }
}

/// What is wrong with destroying an operator, whatever the communicator.
///
/// # Errors
/// [`Error::InvalidArgument`] for an operator that every communicator has, and a negative number.
pub fn check_destroyable(number: i32) -> Result<(), Error> {
    if Op::from_c(number).is_some() {
        return Err(Error::InvalidArgument(format!("ncclRedOpDestroy : operator {number} is a NCCL builtin")));
    }
    if number < 0 {
        return Err(Error::InvalidArgument(format!("ncclRedOpDestroy : operator {number} is garbage")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_lives_from_creation_to_destruction() {
        let ops = Operators::default();
        let number = ops.create(DataType::Float32, Scalar::Bits(1));
        assert!(number >= FIRST);
        let found = ops.find("AllReduce", number, DataType::Float32);
        assert_eq!(found, Ok(Reduction::Scaled(Scalar::Bits(1))));
        let text = ops.find("AllReduce", number, DataType::Float64).unwrap_err().to_string();
        assert!(text.starts_with("Data type supplied to user-created ncclRedOp_t does not match"), "{text}");
        assert_eq!(ops.destroy(number), Ok(()));
        assert!(ops.destroy(number).is_err() && ops.find("Reduce", number, DataType::Float32).is_err());
        assert!(ops.destroy(0).is_err() && ops.destroy(-3).is_err());
    }

    #[test]
    fn numbers_differ() {
        let ops = Operators::default();
        let mut numbers: Vec<i32> = (0..1000).map(|_| ops.create(DataType::Int8, Scalar::At(8))).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
        assert!(numbers.iter().all(|number| *number >= FIRST));
    }
}
