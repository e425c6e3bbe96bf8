//! The built-in tuner: the cost model's choices, computed once for every function and size.

use super::candidates::Candidates;
use super::cost::CostModel;
use super::tuner::{CallShape, Choice, Tuner};
use super::{ByFunction, by_function};
use crate::plan::call::Func;

/// Sizes are classed by their number of bits.
const CLASSES: usize = 64;

/// Takes what the cost model expects to be quickest. Every rank fills the same table from the same numbers, so that
/// all choose alike.
pub struct CostTuner(ByFunction<SizeTable>);

/// The choice for every size of one function.
#[derive(Clone, Debug)]
struct SizeTable {
    choices: [Choice; CLASSES],
    /// The classes in which ranks shall ask each other if they can do without slots: bit `1 << class`.
    asks: u64,
}

impl CostTuner {
    /// Fills the table. `candidates` are those of calls without a selection of their own; None for functions that
    /// there is no way to carry out.
    pub fn new(model: &CostModel, max_channels: u32, candidates: impl Fn(Func) -> Option<Candidates>) -> CostTuner {
        CostTuner(by_function(|func| SizeTable::fill(model, func, max_channels, candidates(func)?)))
    }

    /// Whether ranks shall ask each other if they can do a call without slots that is carried out as the table says;
    /// None where the table does not know how it is.
    pub(super) fn worth_asking(&self, shape: &CallShape<'_>) -> Option<bool> {
        let table = self.0[shape.func as usize].as_ref().filter(|_| !shape.narrowed)?;
        Some(table.asks & 1 << class(shape.bytes) != 0)
    }
}

/// The class of a size.
fn class(bytes: u64) -> usize {
    (u64::BITS - bytes.leading_zeros()).min(CLASSES as u32 - 1) as usize
}

impl Tuner for CostTuner {
    fn choose(&self, shape: &CallShape<'_>) -> Option<Choice> {
        let table = self.0[shape.func as usize].as_ref().filter(|_| !shape.narrowed);
        match table {
            Some(table) => Some(Choice { channels: shape.channels(table.of(shape.bytes)), ..table.of(shape.bytes) }),
            // The table does not know what the call itself selects.
            None => {
                let (algorithm, protocol) = shape.costs().quickest()?;
                let choice = Choice { algorithm, protocol, channels: shape.max_channels };
                Some(Choice { channels: shape.channels(choice), ..choice })
            }
        }
    }
}

impl SizeTable {
    /// Fills the table; none where no way is open.
    fn fill(model: &CostModel, func: Func, max_channels: u32, candidates: Candidates) -> Option<SizeTable> {
        // The middle of the class.
        let bytes_of = |class: usize| (1u64 << class.min(62)) / 4 * 3;
        let quickest = |class: usize| {
            let bytes = bytes_of(class);
            let (algorithm, protocol) = model.costs(func, bytes, max_channels, candidates).quickest()?;
            let channels = model.channels(func, algorithm, protocol, bytes, max_channels);
            Some(Choice { algorithm, protocol, channels })
        };
        let mut choices = [quickest(0)?; CLASSES];
        for (class, choice) in choices.iter_mut().enumerate().skip(1) {
            *choice = quickest(class)?;
        }
        let worth = |class: &usize| model.worth_asking(func, bytes_of(*class), &choices[*class]);
        let asks = (0..CLASSES).filter(worth).fold(0, |asks, class| asks | 1 << class);
        Some(SizeTable { choices, asks })
    }

    /// The choice for a call of `bytes` bytes.
    fn of(&self, bytes: u64) -> Choice {
        self.choices[class(bytes)]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::algorithm::Algo;
    use crate::plan::layout::Proto;
    use crate::topology::Graph;
    use crate::tuning::{MachineConstants, SlotSizes};

    fn model() -> CostModel {
        CostModel::new(MachineConstants::software(2), Arc::new(Graph::of_host(4)), SlotSizes::default())
    }

    fn shape(model: &CostModel, candidates: Candidates, bytes: u64) -> CallShape<'_> {
        let func = Func::AllReduce;
        CallShape { func, bytes, candidates, max_channels: 1, selected: None, narrowed: false, model }
    }

    #[test]
    fn few_bytes_take_few_hops_and_many_bytes_the_ring() {
        let model = model();
        let tuner = CostTuner::new(&model, 1, |_| Some(Candidates::ALL));
        let of = |bytes| {
            let shape = shape(&model, Candidates::ALL, bytes);
            let choice = tuner.choose(&shape).expect("candidates");
            (choice.algorithm, shape.estimate(&choice))
        };
        assert_eq!(of(8).0, Algo::Direct);
        assert_ne!(of(64 << 20).0, Algo::Direct);
        assert!(of(8).1 < of(1 << 20).1);
    }

    #[test]
    fn filters_are_obeyed() {
        let model = model();
        let candidates = Candidates { algorithms: 1 << Algo::Ring as u8, protocols: 1 << Proto::Ll as u8 };
        let tuner = CostTuner::new(&model, 1, |_| Some(candidates));
        let of = |candidates, narrowed, bits: u32| {
            tuner.choose(&CallShape { narrowed, ..shape(&model, candidates, 1 << bits) })
        };
        let ring = Choice { algorithm: Algo::Ring, protocol: Proto::Ll, channels: 1 };
        assert!((0..40).all(|bits| of(candidates, false, bits) == Some(ring)));
        // A call's own selection is none of the table's.
        let tree = Candidates { algorithms: 1 << Algo::Tree as u8, ..candidates };
        assert!((0..40).all(|bits| of(tree, true, bits) == Some(Choice { algorithm: Algo::Tree, ..ring })));
        let none = Candidates { algorithms: 0, ..candidates };
        assert_eq!(of(none, true, 10), None);
        let nothing = CostTuner::new(&model, 1, |_| Some(none));
        assert_eq!(nothing.choose(&shape(&model, none, 8)), None);
    }

    #[test]
    fn more_bytes_are_worth_more_channels() {
        let channels = |bytes| crate::tuning::tuner::channels(bytes, 8);
        assert_eq!([0, 64 << 10, 128 << 10, 511 << 10, u64::MAX].map(channels), [1, 1, 2, 7, 8]);
    }
}
