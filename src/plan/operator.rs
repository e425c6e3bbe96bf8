//! From a reduction as a call names it to what kernels know: an operator and scalars.

use super::call::{DataType, Op};
use super::layout::{KernelOp, work_flag};

/// The part of a work item that says how to reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The operator.
    pub op: KernelOp,
    /// [`work_flag`]s.
    pub flags: u8,
    /// Scalar for [`work_flag::PRE`].
    pub pre: u64,
    /// Scalar for [`work_flag::POST`].
    pub post: u64,
}

/// A reduction as a call asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// One of the interface's own.
    Builtin(Op),
    /// A sum in which every input is multiplied by a scalar first (`ncclRedOpCreatePreMulSum`).
    Scaled(Scalar),
}

/// A user's scalar, of the call's element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// Its bits, in the low bytes.
    Bits(u64),
    /// The device address that it is read from when the call is carried out.
    At(u64),
}

impl Reduction {
    /// The number of the built-in operator; one past the last for a user's.
    pub fn number(self) -> u8 {
        match self {
            Reduction::Builtin(op) => op as u8,
            Reduction::Scaled(_) => Op::Avg as u8 + 1,
        }
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Reduction::Builtin(op) => op.name(),
            Reduction::Scaled(_) => "a PreMulSum operator",
        }
    }

    /// Whether even one rank alone must compute.
    pub fn changes_one_rank(self) -> bool {
        matches!(self, Reduction::Scaled(_))
    }
}

impl Operator {
    /// Plain data: nothing is computed.
    pub const COPY: Operator = Operator { op: KernelOp::Sum, flags: 0, pre: 0, post: 0 };

    /// What kernels do for a reduction over `nranks` ranks.
    pub fn of(reduction: Reduction, datatype: DataType, nranks: u32) -> Operator {
        match reduction {
            Reduction::Builtin(op) => Operator::builtin(op, datatype, nranks),
            Reduction::Scaled(Scalar::Bits(pre)) => Operator { flags: work_flag::PRE, pre, ..Operator::COPY },
            Reduction::Scaled(Scalar::At(pre)) => {
                Operator { flags: work_flag::PRE | work_flag::PRE_AT, pre, ..Operator::COPY }
            }
        }
    }

    /// What kernels do for a built-in reduction over `nranks` ranks.
    ///
    /// An average of floats multiplies every input by 1/n, rounded to the type, before it adds; one of
    /// integers adds and divides once at the end.
    pub fn builtin(op: Op, datatype: DataType, nranks: u32) -> Operator {
        let plain = |op| Operator { op, flags: 0, pre: 0, post: 0 };
        match op {
            Op::Sum => plain(KernelOp::Sum),
            Op::Prod => plain(KernelOp::Prod),
            Op::Max => plain(KernelOp::Max),
            Op::Min => plain(KernelOp::Min),
            Op::Avg if datatype.is_integer() => {
                Operator { flags: work_flag::POST, post: u64::from(nranks.max(1)), ..plain(KernelOp::Sum) }
            }
            Op::Avg => Operator { flags: work_flag::PRE, pre: reciprocal(datatype, nranks), ..plain(KernelOp::Sum) },
        }
    }
}

/// The bits of 1/n in a floating type: to nearest, ties to even, by way of single precision for the small
/// types.
fn reciprocal(datatype: DataType, n: u32) -> u64 {
    let exact = 1.0 / f64::from(n.max(1));
    let single = exact as f32;
    match datatype {
        DataType::Float64 => exact.to_bits(),
        DataType::Float16 => u64::from(shrink(single, 5, 10)),
        DataType::Bfloat16 => u64::from(shrink(single, 8, 7)),
        DataType::Float8e4m3 => u64::from(shrink(single, 4, 3)),
        DataType::Float8e5m2 => u64::from(shrink(single, 5, 2)),
        _ => u64::from(single.to_bits()),
    }
}

/// A float in (0, 1] as a float of fewer bits.
fn shrink(value: f32, exponent_bits: u32, mantissa_bits: u32) -> u32 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = (value.to_bits() >> 23) as i32 - 127;
    // Units of the last place: below the smallest normal number they get no finer.
    let lowest = 1 - bias;
    let ulp = exponent.max(lowest) - mantissa_bits as i32;
    let units = (f64::from(value) * (-ulp as f64).exp2()).round_ties_even() as u32;
    if exponent < lowest { units } else { units + (((exponent + bias - 1) as u32) << mantissa_bits) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_of_floats_scale_before() {
        let pre = |t, n| Operator::builtin(Op::Avg, t, n).pre;
        assert_eq!(pre(DataType::Float64, 3), (1.0f64 / 3.0).to_bits());
        assert_eq!(pre(DataType::Float32, 3), u64::from((1.0f32 / 3.0).to_bits()));
        // By hand: 1/3 = 0x3eaaaaab; the halves and bytes from tables of the formats.
        assert_eq!(pre(DataType::Float16, 3), 0x3555);
        assert_eq!(pre(DataType::Bfloat16, 3), 0x3eab);
        assert_eq!(pre(DataType::Float8e4m3, 3), 0x2b);
        assert_eq!(pre(DataType::Float8e5m2, 3), 0x35);
        assert_eq!(pre(DataType::Float16, 1), 0x3c00);
        assert_eq!(pre(DataType::Float8e4m3, 1), 0x38);
        // The smallest subnormal, the tie below it, and what vanishes.
        assert_eq!(pre(DataType::Float8e4m3, 512), 1);
        assert_eq!(pre(DataType::Float8e4m3, 1024), 0);
        assert_eq!(pre(DataType::Float16, 1 << 24), 1);
        assert_eq!(Operator::builtin(Op::Avg, DataType::Float32, 2).flags, work_flag::PRE);
    }

    #[test]
    fn averages_of_integers_divide_after() {
        let avg = Operator::builtin(Op::Avg, DataType::Int8, 300);
        assert_eq!(avg, Operator { op: KernelOp::Sum, flags: work_flag::POST, pre: 0, post: 300 });
    }
}
