//! Inputs for a reduction, and what it must give: an oracle that shares no code with the library.
//!
//! Inputs are chosen so that the result is exact in the element type whatever the order of operations
//! (NCCL leaves the order open), so every comparison is bit for bit:
//!
//! * integers: anything; sums and products wrap, an average is the wrapped sum divided, truncating;
//! * float `sum`: whole multiples of one power of two, small enough that every partial sum is exact;
//! * float `prod`: powers of two, and one odd factor that a different rank holds in every element;
//! * `max`, `min`: any finite value but −0;
//! * float `avg`: inputs are multiplied by 1/n rounded to the type, then added. Two ranks hold
//!   the same power of two and the others 0, so that this is exact for every n; which two changes from
//!   element to element.
//!
//! Values repeat with a [`PERIOD`] that is prime, so that data in a wrong place is noticed, and checking a
//! large buffer is comparing it with a tile. [`Pattern::phase`] makes two runs differ.

/// Elements after which inputs repeat. A prime: no chunk or slot size is a multiple of it.
pub const PERIOD: usize = 8191;

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DataType {
    Int8 = 0,
    Uint8 = 1,
    Int32 = 2,
    Uint32 = 3,
    Int64 = 4,
    Uint64 = 5,
    Float16 = 6,
    Float32 = 7,
    Float64 = 8,
    Bfloat16 = 9,
    Float8e4m3 = 10,
    Float8e5m2 = 11,
}

/// `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum RedOp {
    Sum = 0,
    Prod = 1,
    Max = 2,
    Min = 3,
    Avg = 4,
}

impl RedOp {
    /// All of them, in the order of their numbers.
    pub const ALL: [RedOp; 5] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg];

    /// The name that nccl-tests uses.
    pub fn name(self) -> &'static str {
        ["sum", "prod", "max", "min", "avg"][self as usize]
    }
}

/// How a type's values are made of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An integer; the flag says whether it has a sign.
    Int(bool),
    /// A binary float.
    Float(Format),
}

/// A binary float format with gradual underflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bits of the stored fraction.
    pub fraction: u32,
    /// Bits of the exponent.
    pub exponent: u32,
    /// e4m3: no infinities, all ones is the only NaN, and the top exponent holds numbers.
    pub finite: bool,
    /// Values out of range become the largest finite one (the fp8 types).
    pub saturating: bool,
}

const fn format(fraction: u32, exponent: u32, finite: bool, saturating: bool) -> Kind {
    Kind::Float(Format { fraction, exponent, finite, saturating })
}

/// Name as nccl-tests has it, bytes, and kind, by number.
const TYPES: [(DataType, &str, usize, Kind); 12] = [
    (DataType::Int8, "int8", 1, Kind::Int(true)),
    (DataType::Uint8, "uint8", 1, Kind::Int(false)),
    (DataType::Int32, "int32", 4, Kind::Int(true)),
    (DataType::Uint32, "uint32", 4, Kind::Int(false)),
    (DataType::Int64, "int64", 8, Kind::Int(true)),
    (DataType::Uint64, "uint64", 8, Kind::Int(false)),
    (DataType::Float16, "half", 2, format(10, 5, false, false)),
    (DataType::Float32, "float", 4, format(23, 8, false, false)),
    (DataType::Float64, "double", 8, format(52, 11, false, false)),
    (DataType::Bfloat16, "bfloat16", 2, format(7, 8, false, false)),
    (DataType::Float8e4m3, "fp8_e4m3", 1, format(3, 4, true, true)),
    (DataType::Float8e5m2, "fp8_e5m2", 1, format(2, 5, false, true)),
];

impl DataType {
    /// All of them, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = DataType> {
        TYPES.iter().map(|row| row.0)
    }

    /// The name that nccl-tests uses.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        TYPES[self as usize].2
    }

    /// How its values are made of bits.
    pub fn kind(self) -> Kind {
        TYPES[self as usize].3
    }
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The exponent of the smallest normal number.
    fn min_exponent(self) -> i32 {
        1 - self.bias()
    }

    /// The bit pattern of the largest finite number.
    fn max_bits(self) -> u64 {
        let top = ((1u64 << self.exponent) - 1) << self.fraction;
        if self.finite { top | ((1 << self.fraction) - 2) } else { top - 1 }
    }

    /// The value of a bit pattern. Exact: every format here fits an f64.
    pub fn decode(self, bits: u64) -> f64 {
        let fraction = bits & ((1 << self.fraction) - 1);
        let exponent = (bits >> self.fraction) & ((1 << self.exponent) - 1);
        let negative = bits >> (self.fraction + self.exponent) & 1 == 1;
        let top = (1 << self.exponent) - 1;
        let magnitude = if self.finite && exponent == top && fraction == (1 << self.fraction) - 1 {
            f64::NAN
        } else if !self.finite && exponent == top {
            if fraction == 0 { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            scaled(fraction as f64, self.min_exponent() - self.fraction as i32)
        } else {
            let whole = (fraction | 1 << self.fraction) as f64;
            scaled(whole, exponent as i32 - self.bias() - self.fraction as i32)
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The bit pattern of a value, rounded to nearest, ties to even.
    pub fn encode(self, value: f64) -> u64 {
        let sign = u64::from(value.is_sign_negative()) << (self.fraction + self.exponent);
        let infinity = ((1u64 << self.exponent) - 1) << self.fraction;
        if value.is_nan() {
            return infinity | ((1 << self.fraction) - 1);
        }
        let magnitude = value.abs();
        let bits = if magnitude.is_infinite() { u64::MAX } else { self.round(magnitude) };
        let over = if self.saturating { self.max_bits() } else { infinity };
        sign | if bits > self.max_bits() { over } else { bits }
    }

    /// Rounds a finite magnitude; the answer can be above [`Format::max_bits`].
    fn round(self, magnitude: f64) -> u64 {
        if magnitude == 0.0 {
            return 0;
        }
        let exponent = exponent_of(magnitude).max(self.min_exponent());
        if exponent > self.bias() + 1 {
            return u64::MAX;
        }
        // In units of the last place; below 2^53, so the product and the rounding are exact.
        let units = scaled(magnitude, self.fraction as i32 - exponent).round_ties_even() as u64;
        // A carry out of the fraction moves into the exponent by itself; subnormals have exponent 0.
        ((exponent - self.min_exponent()) as u64) * (1 << self.fraction) + units
    }
}

/// `value` times two to the `exponent`, in steps that stay exact for results that are representable.
fn scaled(mut value: f64, mut exponent: i32) -> f64 {
    while exponent != 0 {
        let step = exponent.clamp(-1000, 1000);
        value *= 2f64.powi(step);
        exponent -= step;
    }
    value
}

/// The exponent of the leading bit of a finite positive number.
fn exponent_of(magnitude: f64) -> i32 {
    let stored = (magnitude.to_bits() >> 52) as i32;
    if stored == 0 { exponent_of(magnitude * 2f64.powi(64)) - 64 } else { stored - 1023 }
}

/// A scramble of a few numbers (splitmix64's finaliser, twice): the same everywhere, no state.
pub fn hash(a: u64, b: u64, c: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.rotate_left(32) ^ c.wrapping_mul(0xd1b5_4a32_d192_ed03);
    for _ in 0..2 {
        x ^= x >> 30;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 27;
        x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}

/// A reduction whose inputs and result are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduction {
    /// Type of the elements.
    pub dtype: DataType,
    /// The operator.
    pub op: RedOp,
    /// How many ranks contribute.
    pub nranks: usize,
}

/// One period of elements, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    tile: Vec<u8>,
    size: usize,
}

impl Reduction {
    /// What `rank` contributes.
    pub fn input(&self, rank: usize) -> Pattern {
        self.pattern(|element| self.input_bits(rank, element))
    }

    /// What every rank must get.
    pub fn expected(&self) -> Pattern {
        self.pattern(|element| self.expected_bits(element))
    }

    fn pattern(&self, bits: impl Fn(usize) -> u64) -> Pattern {
        Pattern::of(self.dtype.size(), PERIOD, bits)
    }

    /// The bits of one element of what `rank` contributes; bits above the type's size mean nothing.
    pub fn input_bits(&self, rank: usize, element: usize) -> u64 {
        match self.dtype.kind() {
            Kind::Int(_) => hash(rank as u64, element as u64, 1),
            Kind::Float(format) => match self.op {
                RedOp::Sum => format.encode(self.addend(format, rank, element)),
                RedOp::Prod => format.encode(self.factor(format, rank, element)),
                RedOp::Max | RedOp::Min => any_finite(format, hash(rank as u64, element as u64, 2)),
                RedOp::Avg => format.encode(self.average_input(rank, element)),
            },
        }
    }

    /// The bits of one element of the result; bits above the type's size mean nothing.
    pub fn expected_bits(&self, element: usize) -> u64 {
        let inputs = (0..self.nranks).map(|rank| self.input_bits(rank, element));
        match self.dtype.kind() {
            Kind::Int(signed) => self.reduce_ints(signed, inputs),
            Kind::Float(format) => {
                let values = inputs.map(|bits| format.decode(bits));
                format.encode(self.reduce_floats(format, values))
            }
        }
    }

    fn reduce_ints(&self, signed: bool, inputs: impl Iterator<Item = u64>) -> u64 {
        let shift = 64 - 8 * self.dtype.size() as u32;
        let widen = |x: u64| {
            if signed { i128::from((x << shift) as i64 >> shift) } else { i128::from(x << shift >> shift) }
        };
        let wrapped = inputs.map(widen).reduce(|a, b| match self.op {
            RedOp::Sum | RedOp::Avg => widen((a + b) as u64),
            RedOp::Prod => widen(a.wrapping_mul(b) as u64),
            RedOp::Max => a.max(b),
            RedOp::Min => a.min(b),
        });
        let result = wrapped.unwrap_or(0);
        let result = if self.op == RedOp::Avg { result / self.nranks as i128 } else { result };
        result as u64
    }

    /// In f64, where nothing rounds: sums have at most 53 bits, products one odd factor.
    fn reduce_floats(&self, format: Format, values: impl Iterator<Item = f64>) -> f64 {
        match self.op {
            RedOp::Sum => values.sum::<f64>() + 0.0,
            RedOp::Prod => values.product(),
            RedOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
            RedOp::Min => values.fold(f64::INFINITY, f64::min),
            RedOp::Avg => {
                let share = format.decode(format.encode(1.0 / self.nranks as f64));
                values.sum::<f64>() * share + 0.0
            }
        }
    }

    /// A multiple of a power of two; the magnitudes of all ranks add up to no more than fits the fraction.
    pub fn addend(&self, format: Format, rank: usize, element: usize) -> f64 {
        let limit = 1u64 << (format.fraction + 1);
        let n = self.nranks as u64;
        let each = limit / n;
        let h = hash(rank as u64, element as u64, 3);
        let whole = if each > 0 {
            (h >> 1) % (each + 1)
        } else {
            // More ranks than units: a different part of them contributes to each element.
            u64::from((rank as u64 + element as u64) % n < limit)
        };
        let sign = if h & 1 == 0 || whole == 0 { 1.0 } else { -1.0 };
        sign * whole as f64 * 2f64.powi((element % 3) as i32 - 1)
    }

    /// ±1 or ±2 or ±1/2, but for one rank that holds an odd number.
    fn factor(&self, format: Format, rank: usize, element: usize) -> f64 {
        let h = hash(rank as u64, element as u64, 4);
        let sign = if h & 1 == 0 { 1.0 } else { -1.0 };
        let place = (rank + element) % self.nranks;
        let room = if format.exponent > 5 { 40 } else { 3 };
        let magnitude = match place {
            0 => (((h >> 8) % (1 << format.fraction)) | 1) as f64,
            p if p <= room => [0.5, 1.0, 2.0][(h >> 1) as usize % 3],
            _ => 1.0,
        };
        sign * magnitude
    }

    /// The same power of two on two ranks, 0 on the others.
    fn average_input(&self, rank: usize, element: usize) -> f64 {
        let n = self.nranks;
        let first = element % n;
        let second = hash(element as u64, 0, 5) as usize % n;
        let h = hash(element as u64, 0, 6);
        let power = 2f64.powi((h >> 1) as i32 & 3);
        let sign = if h & 1 == 0 { 1.0 } else { -1.0 };
        if rank == first || rank == second { sign * power } else { 0.0 }
    }
}

/// A finite value but −0, from random bits.
fn any_finite(format: Format, h: u64) -> u64 {
    let width = format.fraction + format.exponent;
    let magnitude = (h >> 1) % (format.max_bits() + 1);
    let sign = if magnitude == 0 { 0 } else { h & 1 };
    magnitude | sign << width
}

impl Pattern {
    /// `period` elements of `size` bytes that repeat; a prime `period` is best (see [`PERIOD`]).
    pub fn of(size: usize, period: usize, bits: impl Fn(usize) -> u64) -> Pattern {
        let tile = (0..period).flat_map(|element| bits(element).to_le_bytes().into_iter().take(size));
        Pattern { tile: tile.collect(), size }
    }

    /// Fills whole elements of `buffer`, beginning `phase` elements into the period.
    pub fn fill(&self, buffer: &mut [u8], phase: usize) {
        for (chunk, tile) in self.chunks(buffer.len(), phase) {
            buffer[chunk].copy_from_slice(tile);
        }
    }

    /// How many elements of `buffer` differ from what [`Pattern::fill`] would have put there.
    pub fn count_wrong(&self, buffer: &[u8], phase: usize) -> usize {
        let size = self.size;
        self.chunks(buffer.len(), phase)
            .filter(|(chunk, tile)| &buffer[chunk.clone()] != *tile)
            .map(|(chunk, tile)| {
                let pairs = buffer[chunk].chunks(size).zip(tile.chunks(size));
                pairs.filter(|(got, want)| got != want).count()
            })
            .sum()
    }

    /// The first element that differs: its index, what is there, and what should be.
    pub fn first_wrong(&self, buffer: &[u8], phase: usize) -> Option<(usize, Vec<u8>, Vec<u8>)> {
        let size = self.size;
        // Almost all are right, and compared as a whole.
        let mut wrong = self.chunks(buffer.len(), phase).filter(|(chunk, tile)| &buffer[chunk.clone()] != *tile);
        wrong.find_map(|(chunk, tile)| {
            let start = chunk.start / size;
            let mut pairs = buffer[chunk].chunks(size).zip(tile.chunks(size)).enumerate();
            let (at, (got, want)) = pairs.find(|(_, (got, want))| got != want)?;
            Some((start + at, got.to_vec(), want.to_vec()))
        })
    }

    /// Pieces of a buffer of `length` bytes, each with the part of the tile that belongs there.
    fn chunks(&self, length: usize, phase: usize) -> impl Iterator<Item = (std::ops::Range<usize>, &[u8])> {
        let period = self.tile.len();
        let mut at = 0;
        let mut from = phase % (period / self.size) * self.size;
        std::iter::from_fn(move || {
            let n = (period - from).min(length - at);
            let piece = (at..at + n, &self.tile[from..from + n]);
            at += n;
            from = 0;
            (n > 0).then_some(piece)
        })
    }
}
