//! What every collective reads and writes, and where, and what its buffers must hold afterwards: an
//! oracle that shares no code with the library. Sizes are in *blocks* of the call's count.

use super::oracle::{DataType, Format, Kind, Pattern, RedOp, Reduction, hash};

/// A collective of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Func {
    AllReduce,
    Reduce,
    Broadcast,
    /// Broadcast in place, the old form.
    Bcast,
    AllGather,
    ReduceScatter,
    AlltoAll,
    Gather,
    Scatter,
}

impl Func {
    /// All of them.
    pub const ALL: [Func; 9] = [
        Func::AllReduce,
        Func::Reduce,
        Func::Broadcast,
        Func::Bcast,
        Func::AllGather,
        Func::ReduceScatter,
        Func::AlltoAll,
        Func::Gather,
        Func::Scatter,
    ];

    /// The C function.
    pub fn name(self) -> &'static str {
        match self {
            Func::AllReduce => "ncclAllReduce",
            Func::Reduce => "ncclReduce",
            Func::Broadcast => "ncclBroadcast",
            Func::Bcast => "ncclBcast",
            Func::AllGather => "ncclAllGather",
            Func::ReduceScatter => "ncclReduceScatter",
            Func::AlltoAll => "ncclAlltoAll",
            Func::Gather => "ncclGather",
            Func::Scatter => "ncclScatter",
        }
    }

    /// Whether it has an operator.
    pub fn reduces(self) -> bool {
        matches!(self, Func::AllReduce | Func::Reduce | Func::ReduceScatter)
    }

    /// Whether it has a root.
    pub fn rooted(self) -> bool {
        matches!(self, Func::Reduce | Func::Broadcast | Func::Bcast | Func::Gather | Func::Scatter)
    }

    /// Whether one buffer may be both.
    pub fn has_in_place(self) -> bool {
        self != Func::AlltoAll
    }
}

/// How ranks' values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// One that is built in.
    Plain(RedOp),
    /// `ncclRedOpCreatePreMulSum`: each rank multiplies what it gives by a scalar of its own, here
    /// [`Content::scalar`].
    PreMulSum {
        /// The scalar is in device memory and read when the call runs.
        device: bool,
    },
}

impl Operator {
    /// All of them, both residences of the scalar.
    pub fn all() -> impl Iterator<Item = Operator> {
        let own = [false, true].map(|device| Operator::PreMulSum { device });
        RedOp::ALL.map(Operator::Plain).into_iter().chain(own)
    }
}

/// What the ranks of a communicator hold before a call, and what reducing it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Content {
    /// Type of the elements.
    pub dtype: DataType,
    /// The operator; `None`: bits that are only moved, signalling NaNs among them.
    pub operator: Option<Operator>,
    /// Ranks.
    pub nranks: usize,
}

impl Content {
    fn reduction(&self, op: RedOp) -> Reduction {
        Reduction { dtype: self.dtype, op, nranks: self.nranks }
    }

    /// The bits of one element of what `rank` gives; bits above the type's size mean nothing.
    pub fn input_bits(&self, rank: usize, element: usize) -> u64 {
        match self.operator {
            None => hash(rank as u64 + 1, element as u64, 11),
            Some(Operator::Plain(op)) => self.reduction(op).input_bits(rank, element),
            Some(Operator::PreMulSum { .. }) => match self.dtype.kind() {
                Kind::Int(_) => self.reduction(RedOp::Sum).input_bits(rank, element),
                Kind::Float(format) => format.encode(self.product(format, rank, element) / float_scalar(rank)),
            },
        }
    }

    /// The bits of one element of what the reduction gives.
    pub fn reduced_bits(&self, element: usize) -> u64 {
        match self.operator {
            None => 0,
            Some(Operator::Plain(op)) => self.reduction(op).expected_bits(element),
            Some(Operator::PreMulSum { .. }) => match self.dtype.kind() {
                Kind::Int(_) => (0..self.nranks).fold(0, |sum: u64, rank| {
                    sum.wrapping_add(self.input_bits(rank, element).wrapping_mul(self.scalar(rank)))
                }),
                Kind::Float(format) => {
                    let sum: f64 = (0..self.nranks).map(|rank| self.product(format, rank, element)).sum();
                    format.encode(sum + 0.0)
                }
            },
        }
    }

    /// The bits of the scalar of `rank` for [`Operator::PreMulSum`]: a power of two for floats, so that the
    /// product is exact; anything for integers, whose products wrap.
    pub fn scalar(&self, rank: usize) -> u64 {
        match self.dtype.kind() {
            Kind::Int(_) => hash(rank as u64, 0, 12),
            Kind::Float(format) => format.encode(float_scalar(rank)),
        }
    }

    /// What a rank's value is after the scalar: the sums of these are exact in any order.
    fn product(&self, format: Format, rank: usize, element: usize) -> f64 {
        self.reduction(RedOp::Sum).addend(format, rank, element)
    }

    /// What `rank` gives, as a pattern of `period` elements.
    pub fn input(&self, rank: usize, period: usize) -> Pattern {
        Pattern::of(self.dtype.size(), period, |element| self.input_bits(rank, element))
    }

    /// The reduction's result as a pattern.
    pub fn reduced(&self, period: usize) -> Pattern {
        Pattern::of(self.dtype.size(), period, |element| self.reduced_bits(element))
    }
}

fn float_scalar(rank: usize) -> f64 {
    [2.0, 0.5, 1.0, 4.0][rank % 4]
}

/// Where a block of an output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What this rank gives.
    Rank(usize),
    /// The reduction over all ranks.
    Reduced,
}

/// A block of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Whose data.
    pub source: Source,
    /// Which block of the source's send buffer.
    pub block: usize,
}

/// A collective as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contract {
    pub func: Func,
    pub nranks: usize,
    pub root: usize,
    pub rank: usize,
}

impl Contract {
    fn is_root(&self) -> bool {
        self.rank == self.root
    }

    /// Blocks of the send buffer that the call reads; 0: the argument is ignored.
    pub fn sends(&self) -> usize {
        match self.func {
            Func::AllReduce | Func::Reduce | Func::AllGather | Func::Gather => 1,
            Func::Broadcast | Func::Bcast => usize::from(self.is_root()),
            Func::ReduceScatter | Func::AlltoAll => self.nranks,
            Func::Scatter => self.nranks * usize::from(self.is_root()),
        }
    }

    /// The blocks that the call writes, in the order of the receive buffer; none: the argument is ignored.
    pub fn output(&self) -> Vec<Block> {
        let of = |source, block| Block { source, block };
        let all = |block: usize| (0..self.nranks).map(|rank| of(Source::Rank(rank), block)).collect();
        match self.func {
            Func::AllReduce => vec![of(Source::Reduced, 0)],
            Func::ReduceScatter => vec![of(Source::Reduced, self.rank)],
            Func::Broadcast | Func::Bcast => vec![of(Source::Rank(self.root), 0)],
            Func::Scatter => vec![of(Source::Rank(self.root), self.rank)],
            Func::AllGather => all(0),
            Func::AlltoAll => all(self.rank),
            Func::Reduce if self.is_root() => vec![of(Source::Reduced, 0)],
            Func::Gather if self.is_root() => all(0),
            Func::Reduce | Func::Gather => vec![],
        }
    }

    /// In place: the blocks by which the send buffer and the output are into the one buffer.
    pub fn in_place(&self) -> (usize, usize) {
        match self.func {
            Func::AllGather => (self.rank, 0),
            Func::ReduceScatter => (0, self.rank),
            Func::Gather if self.is_root() => (self.root, 0),
            Func::Scatter if self.is_root() => (0, self.root),
            _ => (0, 0),
        }
    }
}
