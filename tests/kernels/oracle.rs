//! What a ring AllReduce must give, bit for bit, from NCCL's rules of arithmetic alone: exact
//! arithmetic in f64 and i128, and small floats rounded by searching the table of all their values.

use std::sync::LazyLock;

use nccl::plan::call::{DataType, Op};

/// All nonnegative finite values of a small float format, in ascending order: the place is the pattern.
pub struct Format {
    values: Vec<f64>,
    sign: u32,
    /// Pattern of infinity, where overflow gives one.
    infinity: Option<u32>,
    nan_from: u32,
    /// Half way between the largest value and the next that there would be.
    overflow: f64,
}

impl Format {
    /// `top` is the first pattern that is no finite number.
    fn new(exponent: u32, mantissa: u32, top: u32, infinity: bool, nan_from: u32) -> Format {
        let bias = (1 << (exponent - 1)) - 1;
        let value = |p: u32| {
            let (e, m) = ((p >> mantissa) as i32, f64::from(p & ((1 << mantissa) - 1)) / f64::from(1 << mantissa));
            if e == 0 { m * 2f64.powi(1 - bias) } else { (1.0 + m) * 2f64.powi(e - bias) }
        };
        Format {
            values: (0..top).map(value).collect(),
            sign: 1 << (exponent + mantissa),
            infinity: infinity.then_some(top),
            nan_from,
            overflow: (value(top - 1) + value(top)) / 2.0,
        }
    }

    /// The value of a pattern. Infinities of a format that never makes one are read all the same.
    pub fn value(&self, bits: u32) -> f64 {
        let mag = bits & (self.sign - 1);
        let v = match self.values.get(mag as usize) {
            Some(v) => *v,
            None if mag >= self.nan_from => f64::NAN,
            None => f64::INFINITY,
        };
        if bits & self.sign != 0 { -v } else { v }
    }

    /// The nearest pattern, ties to the even one. Beyond the largest: infinity, or the largest.
    pub fn round(&self, value: f64) -> u32 {
        if value.is_nan() {
            return self.nan_from;
        }
        let sign = if value.is_sign_negative() { self.sign } else { 0 };
        let v = value.abs();
        let largest = self.values.len() as u32 - 1;
        let above = self.values.partition_point(|&x| x < v) as u32;
        let pattern = if above > largest {
            self.infinity.filter(|_| v >= self.overflow).unwrap_or(largest)
        } else if above == 0 || self.values[above as usize] == v {
            above
        } else {
            let (low, high) = (self.values[above as usize - 1], self.values[above as usize]);
            match (v - low).total_cmp(&(high - v)) {
                std::cmp::Ordering::Less => above - 1,
                std::cmp::Ordering::Greater => above,
                std::cmp::Ordering::Equal => above - above % 2,
            }
        };
        pattern | sign
    }
}

static HALF: LazyLock<Format> = LazyLock::new(|| Format::new(5, 10, 0x7c00, true, 0x7c01));
static BRAIN: LazyLock<Format> = LazyLock::new(|| Format::new(8, 7, 0x7f80, true, 0x7f81));
static E4M3: LazyLock<Format> = LazyLock::new(|| Format::new(4, 3, 0x7f, false, 0x7f));
static E5M2: LazyLock<Format> = LazyLock::new(|| Format::new(5, 2, 0x7c, false, 0x7d));

/// The format of a small float type.
pub fn format(datatype: DataType) -> Option<&'static Format> {
    match datatype {
        DataType::Float16 => Some(&HALF),
        DataType::Bfloat16 => Some(&BRAIN),
        DataType::Float8e4m3 => Some(&E4M3),
        DataType::Float8e5m2 => Some(&E5M2),
        _ => None,
    }
}

/// Max and Min of floats: what is not a NaN wins.
fn choose(op: Op, a: f64, b: f64) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if (op == Op::Max) == (a > b) => a,
        _ => b,
    }
}

fn float(op: Op, a: f64, b: f64) -> f64 {
    match op {
        Op::Sum | Op::Avg => a + b,
        Op::Prod => a * b,
        Op::Max | Op::Min => choose(op, a, b),
    }
}

fn small(datatype: DataType, format: &Format, op: Op, a: u64, b: u64) -> u64 {
    // f64 has more than twice the bits of any of these plus two, so rounding twice is rounding once; but
    // fp8 goes by way of fp16, and that shows.
    let exact = float(op, format.value(a as u32), format.value(b as u32));
    let fp8 = datatype.size() == 1;
    let value = if fp8 { HALF.value(HALF.round(exact)) } else { exact };
    u64::from(format.round(value))
}

/// An integer of a type from its bits, and back (modulo its size).
fn integer(datatype: DataType, bits: u64) -> i128 {
    match datatype {
        DataType::Int8 => i128::from(bits as u8 as i8),
        DataType::Uint8 => i128::from(bits as u8),
        DataType::Int32 => i128::from(bits as u32 as i32),
        DataType::Uint32 => i128::from(bits as u32),
        DataType::Int64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn mask(datatype: DataType) -> u64 {
    u64::MAX >> (64 - 8 * datatype.size())
}

/// One reduction of two elements, given as bits.
pub fn reduce(datatype: DataType, op: Op, a: u64, b: u64) -> u64 {
    if let Some(format) = format(datatype) {
        return small(datatype, format, op, a, b);
    }
    match datatype {
        DataType::Float32 => {
            let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
            let r = match op {
                Op::Sum | Op::Avg => x + y,
                Op::Prod => x * y,
                _ => choose(op, x.into(), y.into()) as f32,
            };
            u64::from(r.to_bits())
        }
        DataType::Float64 => float(op, f64::from_bits(a), f64::from_bits(b)).to_bits(),
        _ => {
            let (x, y) = (integer(datatype, a), integer(datatype, b));
            let r = match op {
                Op::Sum | Op::Avg => x.wrapping_add(y),
                Op::Prod => x.wrapping_mul(y),
                Op::Max => x.max(y),
                Op::Min => x.min(y),
            };
            r as u64 & mask(datatype)
        }
    }
}

/// A rank's contribution: an average of floats multiplies by 1/n first, rounded to the type.
pub fn contribution(datatype: DataType, op: Op, bits: u64, n: u32) -> u64 {
    if op != Op::Avg || datatype.is_integer() {
        return bits;
    }
    let nth = 1.0 / f64::from(n);
    let scalar = match datatype {
        DataType::Float64 => nth.to_bits(),
        DataType::Float32 => u64::from((nth as f32).to_bits()),
        _ => u64::from(format(datatype).expect("a float").round(f64::from(nth as f32))),
    };
    reduce(datatype, Op::Prod, bits, scalar)
}

/// What is done to a finished sum: an average of integers divides, toward zero.
pub fn finish(datatype: DataType, op: Op, bits: u64, n: u32) -> u64 {
    if op == Op::Avg && datatype.is_integer() {
        return (integer(datatype, bits) / i128::from(n)) as u64 & mask(datatype);
    }
    bits
}

/// Whether two results are equal: to the bit, but for which NaN it is, and for the sign of zero in Max and
/// Min, which the specification leaves open.
pub fn same(datatype: DataType, op: Op, a: u64, b: u64) -> bool {
    if a == b {
        return true;
    }
    let value = |bits: u64| match datatype {
        DataType::Float32 => f64::from(f32::from_bits(bits as u32)),
        DataType::Float64 => f64::from_bits(bits),
        _ => format(datatype).map_or(1.0, |f| f.value(bits as u32)),
    };
    let (x, y) = (value(a), value(b));
    (x.is_nan() && y.is_nan()) || (matches!(op, Op::Max | Op::Min) && x == 0.0 && y == 0.0)
}

/// The element of a reduced chunk: `inputs` are the ranks' elements in ring order, `owner` the chunk.
pub fn all_reduce(datatype: DataType, op: Op, inputs: &[u64], owner: usize) -> u64 {
    let n = inputs.len();
    let part = |position: usize| contribution(datatype, op, inputs[(owner + position) % n], n as u32);
    let sum = (2..=n).fold(part(1), |sum, position| reduce(datatype, op, sum, part(position)));
    finish(datatype, op, sum, n as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that can be looked up in the formats' definitions.
    #[test]
    fn formats_are_right() {
        assert_eq!(
            (HALF.round(1.0), HALF.round(65504.0), HALF.round(65519.0), HALF.round(65520.0)),
            (0x3c00, 0x7bff, 0x7bff, 0x7c00)
        );
        assert_eq!((HALF.round(-2f64.powi(-24)), HALF.round(2f64.powi(-25))), (0x8001, 0));
        assert_eq!((BRAIN.round(1.0), BRAIN.round(-3.0), BRAIN.round(f64::INFINITY)), (0x3f80, 0xc040, 0x7f80));
        assert_eq!(
            (E4M3.round(448.0), E4M3.round(1e9), E4M3.round(-1e9), E4M3.round(f64::INFINITY)),
            (0x7e, 0x7e, 0xfe, 0x7e)
        );
        assert_eq!((E5M2.round(57344.0), E5M2.round(f64::INFINITY), E5M2.round(1.0)), (0x7b, 0x7b, 0x3c));
        assert!(E4M3.value(0x7f).is_nan() && E5M2.value(0x7e).is_nan() && E5M2.value(0xfc) == f64::NEG_INFINITY);
    }
}
