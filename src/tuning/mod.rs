//! Which algorithm and protocol a collective is carried out by, and on how many channels. Pure: no socket, clock,
//! thread, CUDA or environment.
//!
//! * [`Tuner`] is the seam: told of a call's [`CallShape`], a tuner makes a [`Choice`]. [`CostTuner`] is the built-in
//!   one: what the [`CostModel`] expects to be quickest on a machine with some [`MachineConstants`];
//! * [`Filters`] are what `NCCL_ALGO` and `NCCL_PROTO` leave, [`selection`] what a call's configuration selects;
//! * [`Agreed`] is what all ranks of a communicator do alike, with the sizes of slots and the links that follow;
//! * [`Tuning`] is all of this for one communicator.

mod agreement;
mod candidates;
mod cost;
mod cost_tuner;
mod filter;
mod machine;
mod network;
pub mod selection;
mod slots;
#[cfg(test)]
mod tests;
mod tuner;
mod turns;
mod zero_copy;

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Error;
use crate::plan::algorithm::Algo;
use crate::plan::call::Func;
use crate::plan::layout::Proto;
use crate::plan::zero_copy::{algo, can_agree};
use crate::topology::Graph;

pub use agreement::{Agreed, Preferences};
pub use candidates::{Candidates, FUNCTIONS, Filters, SimpleInstead};
pub use cost::{CostModel, CostTable};
pub use cost_tuner::CostTuner;
pub use machine::{LinkKind, MachineConstants, ProcessorConstants};
pub use slots::{
    CHANNELS_MAX, SlotSizes, halvings, preferred_channels, preferred_message_channels, preferred_slot_bytes,
    valid_slot_bytes,
};
pub use tuner::{CallShape, Choice, Tuner, channels};

/// Bytes for which registered buffers are used in place of slots: of calls on software devices, and of messages. Less
/// is not worth the question.
const OFFER_BYTES: u64 = 128 << 10;

/// One thing for each collective, by its number; None for numbers that are no collective's.
type ByFunction<T> = [Option<T>; Func::Gather as usize + 1];

/// Makes one thing for each collective that has one.
fn by_function<T>(of: impl Fn(Func) -> Option<T>) -> ByFunction<T> {
    array::from_fn(|number| Func::from_number(number as u8).and_then(&of))
}

/// How the collectives of one communicator are carried out. Nothing here locks or allocates at a call.
pub struct Tuning {
    agreed: Agreed,
    model: CostModel,
    /// What is open to each function; none where there is no way to carry it out, as with one rank.
    open: ByFunction<Open>,
    built_in: CostTuner,
    /// A tuner that is asked first.
    tuner: Option<Box<dyn Tuner>>,
}

/// What is open to the calls of a function.
struct Open {
    candidates: Candidates,
    /// `NCCL_ALGO` has left nothing, and nobody has been told yet.
    untold: AtomicBool,
    /// The tuner's choice was not open, and the user has been told.
    told_of_tuner: AtomicBool,
}

impl Open {
    /// Where the filter leaves no algorithm, all are open.
    fn of(func: Func, model: &CostModel, filtered: Candidates) -> Option<Open> {
        let untold = !model.has_any(func, filtered);
        let all = Candidates { algorithms: Candidates::ALL.algorithms, ..filtered };
        let candidates = if untold { all } else { filtered };
        model.has_any(func, candidates).then(|| Open {
            candidates,
            untold: AtomicBool::new(untold),
            told_of_tuner: AtomicBool::new(false),
        })
    }
}

impl Tuning {
    /// What ranks that have agreed so do on a machine.
    pub fn new(machine: MachineConstants, graph: Arc<Graph>, agreed: Agreed) -> Tuning {
        let software = matches!(machine, MachineConstants::Processors(_));
        let slots = agreed.slot_sizes(&graph, software);
        let model = CostModel::new(machine, graph, slots);
        let open = by_function(|func| Open::of(func, &model, agreed.filters.of(func)));
        let candidates = |func: Func| open[func as usize].as_ref().map(|open| open.candidates);
        let built_in = CostTuner::new(&model, agreed.channels, candidates);
        Tuning { agreed, model, open, built_in, tuner: None }
    }

    /// The same with a tuner that is asked first. All ranks must have the same one.
    pub fn with_tuner(self, tuner: Box<dyn Tuner>) -> Tuning {
        Tuning { tuner: Some(tuner), ..self }
    }

    /// Bytes of a slot of the links that a function's calls use by an algorithm and protocol.
    pub fn slot_bytes(&self, func: Func, algorithm: Algo, protocol: Proto) -> u32 {
        self.model.slot_bytes(func, algorithm, protocol)
    }

    /// The most channels of a call.
    pub fn max_channels(&self) -> u32 {
        self.agreed.channels
    }

    /// What a tuner is told of a call of `bytes` bytes in its larger buffer. `selected` are the algorithms that the
    /// call's configuration selects, as bits. Where the filter has left nothing to the function, the user is told,
    /// once.
    ///
    /// # Errors
    /// [`Error::Internal`] where there is no way to carry out calls of the function.
    pub fn shape(&self, func: Func, bytes: u64, selected: Option<u8>) -> Result<CallShape<'_>, Error> {
        let open = self.open(func)?;
        if open.untold.load(Ordering::Relaxed) && open.untold.swap(false, Ordering::Relaxed) {
            let name = func.name();
            log::warn!("NCCL_ALGO leaves no algorithm for {name}; choosing among all that oxccl has");
        }
        // A selection is a hint: where nothing is left of it, it is as if there were none.
        let own = selected.map(|algorithms| Candidates { algorithms, ..self.agreed.filters.of(func) });
        let own = own.filter(|candidates| self.model.has_any(func, *candidates));
        Ok(CallShape {
            func,
            bytes,
            candidates: own.unwrap_or(open.candidates),
            max_channels: self.agreed.channels,
            selected,
            narrowed: own.is_some(),
            model: &self.model,
        })
    }

    /// Chooses how a call is carried out.
    ///
    /// # Errors
    /// As [`Tuning::shape`].
    pub fn choose(&self, shape: &CallShape<'_>) -> Result<Choice, Error> {
        let choice = self.of_tuner(shape).or_else(|| self.built_in.choose(shape));
        let choice = choice.ok_or_else(|| no_way(shape.func))?;
        if log::log_enabled!(target: "TUNING", log::Level::Info) {
            self.log_choice(shape, &choice);
        }
        Ok(choice)
    }

    /// What the tuner chooses, if that is open to the call. If it is not, the user is told, once for each function.
    fn of_tuner(&self, shape: &CallShape<'_>) -> Option<Choice> {
        let choice = self.tuner.as_ref()?.choose(shape)?;
        if shape.allows(&choice) {
            return Some(Choice { channels: choice.channels.clamp(1, shape.max_channels.max(1)), ..choice });
        }
        let open = self.open[shape.func as usize].as_ref()?;
        if !open.told_of_tuner.swap(true, Ordering::Relaxed) {
            let (name, way) = (shape.func.name(), way(choice.algorithm, choice.protocol));
            log::warn!("the tuner chooses {way} for {name}, which is not available; choosing by the cost model");
        }
        None
    }

    fn open(&self, func: Func) -> Result<&Open, Error> {
        self.open.get(func as usize).and_then(Option::as_ref).ok_or_else(|| no_way(func))
    }

    /// Whether ranks ever ask each other for buffers in place of slots. All ranks come to the same answer.
    pub fn offers_buffers(&self) -> bool {
        let agree = |func| can_agree(func, algo(func), self.model.graph());
        self.agreed.maps_buffers && Func::COLLECTIVES.into_iter().any(agree)
    }

    /// Whether the ranks shall ask each other if they can do a call without slots that is carried out so otherwise.
    /// On GPUs, where the cost model expects less of that, by the size's number of bits as choices are made; on
    /// software devices, from some size on. The answer depends on nothing that ranks do not have in common: what is
    /// registered is none of it.
    pub fn offers_buffers_for(&self, shape: &CallShape<'_>, choice: &Choice) -> bool {
        let algorithm = algo(shape.func);
        let selected = shape.selected.is_none_or(|algorithms| algorithms & 1 << algorithm as u8 != 0);
        let open = self.agreed.filters.of(shape.func).allows(algorithm, Proto::Simple) && selected;
        let built_in = if self.tuner.is_none() { self.built_in.worth_asking(shape) } else { None };
        let worth = || built_in.unwrap_or_else(|| self.model.worth_asking(shape.func, shape.bytes, choice));
        open && self.offers_buffers() && worth()
    }

    /// The protocol of a message of some bytes between two ranks.
    pub fn message_protocol(&self, bytes: u64) -> Proto {
        self.agreed.message_protocol(bytes)
    }

    /// Whether a message of some bytes is read from the sender's buffer, where that is registered. Both ranks come to
    /// the same answer.
    pub fn pulls_message(&self, bytes: u64) -> bool {
        self.offers_buffers() && bytes >= OFFER_BYTES && self.message_protocol(bytes) == Proto::Simple
    }

    /// "AllReduce 65536 B: direct/Simple, 1 channels, est. 9.0 us; ring/Simple 14.0 us".
    fn log_choice(&self, shape: &CallShape<'_>, choice: &Choice) {
        let CallShape { func, bytes, .. } = *shape;
        let chosen = (choice.algorithm, choice.protocol);
        let costs = self.model.costs(func, bytes, self.agreed.channels, self.agreed.filters.of(func));
        let mut others: Vec<(Algo, Proto, f64)> =
            costs.entries().filter(|(algorithm, protocol, _)| (*algorithm, *protocol) != chosen).collect();
        others.sort_by(|(.., a), (.., b)| a.total_cmp(b));
        let text =
            |(algorithm, protocol, us): &(Algo, Proto, f64)| format!("; {} {us:.1} us", way(*algorithm, *protocol));
        let others: String = others.iter().map(text).collect();
        let (name, channels, us) = (func.name(), choice.channels, shape.estimate(choice));
        let way = way(choice.algorithm, choice.protocol);
        log::info!(target: "TUNING", "{name} {bytes} B: {way}, {channels} channels, est. {us:.1} us{others}");
    }
}

/// As log lines have it: `ring/Simple`.
fn way(algorithm: Algo, protocol: Proto) -> String {
    format!("{}/{}", algorithm.name(), protocol.name())
}

fn no_way(func: Func) -> Error {
    Error::Internal(format!("no way to carry out {}", func.name()))
}
