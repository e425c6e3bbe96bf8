//! What a data call is made of: datatypes, operators, operations, with NCCL's numbers and names
//! (spec §2.3, §2.4, §10.2).

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DataType {
    /// ncclInt8, ncclChar.
    Int8 = 0,
    /// ncclUint8.
    Uint8 = 1,
    /// ncclInt32, ncclInt.
    Int32 = 2,
    /// ncclUint32.
    Uint32 = 3,
    /// ncclInt64.
    Int64 = 4,
    /// ncclUint64.
    Uint64 = 5,
    /// ncclFloat16, ncclHalf.
    Float16 = 6,
    /// ncclFloat32, ncclFloat.
    Float32 = 7,
    /// ncclFloat64, ncclDouble.
    Float64 = 8,
    /// ncclBfloat16.
    Bfloat16 = 9,
    /// ncclFloat8e4m3.
    Float8e4m3 = 10,
    /// ncclFloat8e5m2.
    Float8e5m2 = 11,
}

impl DataType {
    /// All of them, in the order of their numbers.
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

    /// The type of an `ncclDataType_t`; None for a number that is none.
    pub fn from_c(number: i32) -> Option<DataType> {
        DataType::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            DataType::Int8 | DataType::Uint8 | DataType::Float8e4m3 | DataType::Float8e5m2 => 1,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int32 | DataType::Uint32 | DataType::Float32 => 4,
            DataType::Int64 | DataType::Uint64 | DataType::Float64 => 8,
        }
    }

    /// NCCL's name, as profilers are told it.
    pub const fn name(self) -> &'static str {
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

/// A built-in reduction operator. Note NCCL's order: Max is 2, Min is 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Op {
    /// ncclSum.
    Sum = 0,
    /// ncclProd.
    Prod = 1,
    /// ncclMax.
    Max = 2,
    /// ncclMin.
    Min = 3,
    /// ncclAvg.
    Avg = 4,
}

impl Op {
    /// All of them, in the order of their numbers.
    pub const ALL: [Op; 5] = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::Avg];

    /// The built-in operator of an `ncclRedOp_t`; None for handles of user-made ones and other numbers.
    pub fn from_c(number: i32) -> Option<Op> {
        Op::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// NCCL's name.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Sum => "ncclSum",
            Op::Prod => "ncclProd",
            Op::Max => "ncclMax",
            Op::Min => "ncclMin",
            Op::Avg => "ncclAvg",
        }
    }
}

/// An operation, with the numbers of NCCL's plug-in interface (spec §10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Func {
    /// ncclBroadcast, ncclBcast.
    Broadcast = 0,
    /// ncclReduce.
    Reduce = 1,
    /// ncclAllGather.
    AllGather = 2,
    /// ncclReduceScatter.
    ReduceScatter = 3,
    /// ncclAllReduce.
    AllReduce = 4,
    /// ncclSend.
    Send = 6,
    /// ncclRecv.
    Recv = 7,
    /// ncclAlltoAll.
    AlltoAll = 8,
    /// ncclScatter.
    Scatter = 9,
    /// ncclGather.
    Gather = 10,
    /// ncclPutSignal.
    PutSignal = 12,
    /// ncclSignal.
    Signal = 13,
    /// ncclWaitSignal.
    WaitSignal = 14,
}

impl Func {
    /// The name as messages and logs say it: the C name without `nccl`.
    pub const fn name(self) -> &'static str {
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
            Func::PutSignal => "PutSignal",
            Func::Signal => "Signal",
            Func::WaitSignal => "WaitSignal",
        }
    }

    /// Whether the operation reduces, so that its operator matters.
    pub const fn reduces(self) -> bool {
        matches!(self, Func::Reduce | Func::ReduceScatter | Func::AllReduce)
    }

    /// Whether the operation is one-to-one or one-sided; its peer is given where others have a root.
    pub const fn has_peer(self) -> bool {
        matches!(
            self,
            Func::Send | Func::Recv | Func::PutSignal | Func::Signal
        )
    }
}
