//! What a call of a collective is about: function, datatype, operator. The numbers are the C interface's.

/// An element type; the number is its `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// Signed, 1 byte.
    Int8 = 0,
    /// Unsigned, 1 byte.
    Uint8 = 1,
    /// Signed, 4 bytes.
    Int32 = 2,
    /// Unsigned, 4 bytes.
    Uint32 = 3,
    /// Signed, 8 bytes.
    Int64 = 4,
    /// Unsigned, 8 bytes.
    Uint64 = 5,
    /// IEEE binary16.
    Float16 = 6,
    /// IEEE binary32.
    Float32 = 7,
    /// IEEE binary64.
    Float64 = 8,
    /// bfloat16.
    Bfloat16 = 9,
    /// 8 bits, 4 of exponent.
    Float8e4m3 = 10,
    /// 8 bits, 5 of exponent.
    Float8e5m2 = 11,
}

impl DataType {
    /// All types; the place in the list is the number.
    pub const ALL: [DataType; 12] = [
        DataType::Int8,
        DataType::Uint8,
        DataType::Int32,
        DataType::Uint32,
        DataType::Int64,
        DataType::Uint64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Bfloat16,
        DataType::Float8e4m3,
        DataType::Float8e5m2,
    ];

    /// The type with a number of the C interface.
    pub fn from_c(number: i32) -> Option<DataType> {
        usize::try_from(number).ok().and_then(|index| DataType::ALL.get(index).copied())
    }

    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8e4m3 | DataType::Float8e5m2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    /// Whether the type is one of the integers.
    pub fn is_integer(self) -> bool {
        (self as u8) < DataType::Float16 as u8
    }

    /// The name in log lines and messages, as NCCL writes it.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Int8 => "ncclInt8",
            DataType::Uint8 => "ncclUint8",
            DataType::Int32 => "ncclInt32",
            DataType::Uint32 => "ncclUint32",
            DataType::Int64 => "ncclInt64",
            DataType::Uint64 => "ncclUint64",
            DataType::Float16 => "ncclFloat16",
            DataType::Float32 => "ncclFloat32",
            DataType::Float64 => "ncclFloat64",
            DataType::Bfloat16 => "ncclBfloat16",
            DataType::Float8e4m3 => "ncclFloat8e4m3",
            DataType::Float8e5m2 => "ncclFloat8e5m2",
        }
    }
}

/// A built-in reduction; the number is its `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The sum.
    Sum = 0,
    /// The product.
    Prod = 1,
    /// The greater one.
    Max = 2,
    /// The lesser one.
    Min = 3,
    /// The mean.
    Avg = 4,
}

impl Op {
    /// The name in messages, as NCCL writes it.
    pub fn name(self) -> &'static str {
        match self {
            Op::Sum => "ncclSum",
            Op::Prod => "ncclProd",
            Op::Max => "ncclMax",
            Op::Min => "ncclMin",
            Op::Avg => "ncclAvg",
        }
    }

    /// The operator with a number of the C interface.
    pub fn from_c(number: i32) -> Option<Op> {
        [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg].into_iter().find(|op| *op as i32 == number)
    }
}

/// A collective function; the number is the plug-ins' `ncclFunc_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Func {
    /// `ncclBroadcast`.
    Broadcast = 0,
    /// `ncclReduce`.
    Reduce = 1,
    /// `ncclAllGather`.
    AllGather = 2,
    /// `ncclReduceScatter`.
    ReduceScatter = 3,
    /// `ncclAllReduce`.
    AllReduce = 4,
    /// `ncclSend`.
    Send = 6,
    /// `ncclRecv`.
    Recv = 7,
    /// `ncclAlltoAll`.
    AlltoAll = 8,
    /// `ncclScatter`.
    Scatter = 9,
    /// `ncclGather`.
    Gather = 10,
}

impl Func {
    /// Whether the call is half of a message between two ranks: then a count of 0 is a message too.
    pub fn has_peer(self) -> bool {
        matches!(self, Func::Send | Func::Recv)
    }

    /// All collectives: what is no half of a message.
    pub const COLLECTIVES: [Func; 8] = [
        Func::Broadcast,
        Func::Reduce,
        Func::AllGather,
        Func::ReduceScatter,
        Func::AllReduce,
        Func::AlltoAll,
        Func::Scatter,
        Func::Gather,
    ];

    /// The function with a number; messages are none.
    pub fn from_number(number: u8) -> Option<Func> {
        Func::COLLECTIVES.into_iter().find(|func| *func as u8 == number)
    }

    /// Whether one rank is different from the others.
    pub fn has_root(self) -> bool {
        matches!(self, Func::Broadcast | Func::Reduce | Func::Scatter | Func::Gather)
    }

    /// Whether elements are reduced; else they only move.
    pub fn reduces(self) -> bool {
        matches!(self, Func::Reduce | Func::ReduceScatter | Func::AllReduce)
    }

    /// The name without `nccl`, as messages use it.
    pub fn name(self) -> &'static str {
        match self {
            Func::Broadcast => "Broadcast",
            Func::Reduce => "Reduce",
            Func::AllGather => "AllGather",
            Func::ReduceScatter => "ReduceScatter",
            Func::AllReduce => "AllReduce",
            Func::Send => "Send",
            Func::Recv => "Recv",
            Func::AlltoAll => "AlltoAll",
            Func::Scatter => "Scatter",
            Func::Gather => "Gather",
        }
    }
}
