//! What a call's buffers look like to a schedule: chunks of input and output, and which of them are one in place.

use super::call::Func;

/// How the elements of a call are divided into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The user's count is cut into as many chunks as the schedule has; the last can be short or empty.
    /// Input and output have the same chunks.
    Divided,
    /// Every chunk has the user's count of elements; the schedule has as many chunks as there are ranks.
    Uniform {
        /// Chunks of the input: 1, or one for each rank.
        input: u32,
        /// Chunks of the output: 1, or one for each rank.
        output: u32,
    },
}

/// The shape of a function's calls. A message between two ranks is one chunk that is cut into one.
pub fn shape(func: Func, nranks: u32) -> Shape {
    match func {
        Func::AllReduce | Func::Broadcast | Func::Reduce | Func::Send | Func::Recv => Shape::Divided,
        Func::AllGather | Func::Gather => Shape::Uniform { input: 1, output: nranks },
        Func::ReduceScatter | Func::Scatter => Shape::Uniform { input: nranks, output: 1 },
        Func::AlltoAll => Shape::Uniform { input: nranks, output: nranks },
    }
}

/// Whether the rank's input is read. Where it is not, the user may pass NULL.
pub fn has_input(func: Func, root: u32, rank: u32) -> bool {
    match func {
        Func::Broadcast | Func::Scatter => rank == root,
        Func::Recv => false,
        _ => true,
    }
}

/// Whether the rank's output is written. Where it is not, the user may pass NULL.
pub fn has_output(func: Func, root: u32, rank: u32) -> bool {
    match func {
        Func::Reduce | Func::Gather => rank == root,
        Func::Send => false,
        _ => true,
    }
}

/// What is one and the same memory when a call is in place (`docs/nccl-behaviour.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// The function cannot be called in place.
    Never,
    /// Every chunk of the input is the chunk of the output with its number.
    Whole,
    /// The only chunk of the input is this chunk of the output.
    InputIs(u32),
    /// The only chunk of the output is this chunk of the input.
    OutputIs(u32),
}

/// What a rank's call in place means. A rank without input or output has nothing that could be one.
pub fn in_place(func: Func, rank: u32) -> InPlace {
    match func {
        Func::AllReduce | Func::Broadcast | Func::Reduce => InPlace::Whole,
        Func::AllGather | Func::Gather => InPlace::InputIs(rank),
        Func::ReduceScatter | Func::Scatter => InPlace::OutputIs(rank),
        Func::AlltoAll | Func::Send | Func::Recv => InPlace::Never,
    }
}
