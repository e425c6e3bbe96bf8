//! The seam of tuners: who chooses how a call is carried out.

use super::candidates::Candidates;
use super::cost::{CostModel, CostTable};
use crate::plan::algorithm::Algo;
use crate::plan::call::Func;
use crate::plan::layout::Proto;

/// Bytes of a call for which another channel is worth its while.
const CHANNEL_BYTES: u64 = 64 << 10;

/// Chooses how collectives are carried out. The built-in tuner is [`super::CostTuner`]; a tuner plug-in of NCCL's
/// interface fits here too: what its `getCollInfo` is given is in the [`CallShape`], where each call is chosen for by
/// itself (`numPipeOps` is 1) and without a look at whether its buffers are registered, which ranks do not agree on.
pub trait Tuner: Send + Sync {
    /// Chooses how a call is carried out. None leaves it to the built-in tuner, and so does a choice that is not open
    /// to the call. It is asked at every call: it should neither lock nor allocate. All ranks must come to the same
    /// choice from the same shape.
    fn choose(&self, shape: &CallShape<'_>) -> Option<Choice>;
}

/// What is known of a collective when it is decided how to carry it out. It is the same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct CallShape<'a> {
    /// The function.
    pub func: Func,
    /// Bytes of the larger buffer.
    pub bytes: u64,
    /// What the filters and the call's own selection leave: at least one way to carry it out.
    pub candidates: Candidates,
    /// The most channels.
    pub max_channels: u32,
    /// The algorithms that the call's configuration selects, as bits; None where it selects none.
    pub(super) selected: Option<u8>,
    /// The candidates follow from that selection, not from the filters alone.
    pub(super) narrowed: bool,
    pub(super) model: &'a CostModel,
}

impl CallShape<'_> {
    /// The number of channels that the call is worth if it is carried out so; [`Choice::channels`] is not looked at.
    pub fn channels(&self, choice: Choice) -> u32 {
        self.model.channels(self.func, choice.algorithm, choice.protocol, self.bytes, self.max_channels)
    }

    /// What the cost model expects each open way to take.
    pub fn costs(&self) -> CostTable {
        self.model.costs(self.func, self.bytes, self.max_channels, self.candidates)
    }

    /// Whether the call can be carried out so.
    pub fn allows(&self, choice: &Choice) -> bool {
        self.model.has(self.func, choice.algorithm, choice.protocol, self.candidates)
    }

    /// What the call is expected to take if it is carried out so, in microseconds.
    pub fn estimate(&self, choice: &Choice) -> f64 {
        self.model.estimate(self.func, choice.algorithm, choice.protocol, self.bytes, choice.channels)
    }
}

/// How a collective is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algo,
    /// The protocol.
    pub protocol: Proto,
    /// The most channels: a call with fewer lines of data than that uses fewer.
    pub channels: u32,
}

/// The channels that a call or message of some bytes is worth, of at most `max`.
pub fn channels(bytes: u64, max: u32) -> u32 {
    (bytes / CHANNEL_BYTES).clamp(1, u64::from(max.max(1))) as u32
}
