//! The layouts of `kernels/work.h`, for the host side. Little endian, fixed size, plain data.
//!
//! Pointers are kept as `u64`: they are device addresses, which this side stores and never follows. All
//! types can be copied to device memory byte by byte; none has padding. `tests/layout.rs` compares size,
//! alignment and every offset with the header.

use serde::{Deserialize, Serialize};
use zerocopy::{Immutable, IntoBytes};

use super::call::DataType;

/// Slots of a link.
pub const SLOTS: usize = 8;
/// The most links that one step receives from, and the most it sends to.
pub const MAX_FAN: usize = 8;
/// The most work items in a launch's argument.
pub const MAX_WORK: usize = 15;
/// Size of a kernel's one argument, in bytes.
pub const LAUNCH_BYTES: usize = 2048;
/// Words of 32 bits of an error report: a [`kernel_error`], then what it says more.
pub const ERROR_WORDS: usize = 8;
/// The last of them, in which kernels settle whose report it is. The report is complete when the first is not 0.
pub const ERROR_CLAIM: usize = 7;
/// The most links of a work item.
pub const MAX_LINKS: usize = 256;
/// Pieces of memory that a rank can have registered at a time.
pub const REGISTRATIONS: usize = 256;
/// Bits of an offer below the registration's tag ([`super::offer`]).
pub const OFFER_BITS: u32 = 39;
/// Bytes that registered memory is aligned to.
pub const PLACE_UNIT: u64 = 512;

/// The operator that kernels know, with the numbers of `ncclRedOp_t`. An average is a sum with scalars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KernelOp {
    /// Addition.
    Sum = 0,
    /// Multiplication.
    Prod = 1,
    /// The greater; a NaN loses.
    Max = 2,
    /// The smaller; a NaN loses.
    Min = 3,
}

/// How a slot carries data and says that it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Proto {
    /// Plain data; counters say what is there.
    Simple = 0,
    /// Lines of 16 bytes: twice 4 bytes of data and a flag that says that they are there.
    Ll = 1,
    /// Lines of 128 bytes: 120 of data and a flag. Only on GPUs, where stores to a line arrive whole.
    Ll128 = 2,
}

impl Proto {
    /// All protocols; the place in the list is the number.
    pub const ALL: [Proto; 3] = [Proto::Simple, Proto::Ll, Proto::Ll128];
    /// Those that the host image has.
    pub const HOST: [Proto; 2] = [Proto::Simple, Proto::Ll];

    /// The protocols that a device has kernels for, in the order of their numbers.
    pub fn of_device(software: bool) -> &'static [Proto] {
        if software { &Proto::HOST } else { &Proto::ALL }
    }

    /// The name, as `NCCL_PROTO` and log lines have it.
    pub fn name(self) -> &'static str {
        match self {
            Proto::Simple => "Simple",
            Proto::Ll => "LL",
            Proto::Ll128 => "LL128",
        }
    }

    /// Bytes of data that a slot of `slot_bytes` takes. LL128 moves 960 in 1024 bytes at a time.
    pub fn slot_data(self, slot_bytes: u64) -> u64 {
        match self {
            Proto::Simple => slot_bytes,
            Proto::Ll => slot_bytes / 2,
            Proto::Ll128 => slot_bytes / 1024 * 960,
        }
    }

    /// Bytes that are moved for each byte of data: half of a line of LL is data, and 15 of 16 bytes of one of LL128.
    pub fn expansion(self) -> f64 {
        match self {
            Proto::Simple => 1.0,
            Proto::Ll => 2.0,
            Proto::Ll128 => 128.0 / 120.0,
        }
    }

    /// The name of the kernel for this protocol and type, in the host image and in the fatbin alike.
    pub fn kernel_name(self, datatype: DataType) -> String {
        let proto = match self {
            Proto::Simple => "simple",
            Proto::Ll => "ll",
            Proto::Ll128 => "ll128",
        };
        format!("oxccl_{proto}_{}", short_name(datatype))
    }
}

/// How a type is called in the names of kernels.
fn short_name(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Int8 => "i8",
        DataType::Uint8 => "u8",
        DataType::Int32 => "i32",
        DataType::Uint32 => "u32",
        DataType::Int64 => "i64",
        DataType::Uint64 => "u64",
        DataType::Float16 => "f16",
        DataType::Float32 => "f32",
        DataType::Float64 => "f64",
        DataType::Bfloat16 => "bf16",
        DataType::Float8e4m3 => "f8e4m3",
        DataType::Float8e5m2 => "f8e5m2",
    }
}

/// Flags of a [`Step`].
pub mod step_flag {
    /// The rank's own chunk of the input is a source.
    pub const IN: u8 = 1;
    /// The output is a destination.
    pub const OUT: u8 = 2;
    /// The own chunk is read from the output, where an earlier step put it, and is not scaled.
    pub const FROM_OUT: u8 = 4;
    /// The result is final: `post` is applied.
    pub const POST: u8 = 8;
    /// A signal only: counters move, no data does.
    pub const NO_DATA: u8 = 16;
    /// A signal that carries offers ([`super::Work::offers`]).
    pub const OFFER: u8 = 32;
    /// A signal that says whether a rank reaches what it was offered.
    pub const VERDICT: u8 = 64;
    /// Of a message: it is received straight from the sender's buffer; where it is sent, the wait for that.
    pub const PULL: u8 = 128;
}

/// Flags of a [`Work`].
pub mod work_flag {
    /// Multiply the own input by `pre` before it is reduced.
    pub const PRE: u8 = 1;
    /// Divide a final result by `post`, toward zero; integers only.
    pub const POST: u8 = 2;
    /// With [`PRE`]: `pre` is the address of the scalar, which is read when the item begins.
    pub const PRE_AT: u8 = 4;
    /// Simple: the item runs if all ranks agree in its first steps, else the block's next item does.
    pub const OFFER: u8 = 8;
    /// With [`OFFER`]: half of a message. The two ranks agree by themselves.
    pub const PULL: u8 = 16;
}

/// Bits of [`LaunchArgs::flags`].
pub mod launch_flag {
    /// Host image: as on a GPU, no store wakes who waits for it. Waits sleep for short times and look again.
    pub const NO_WAKE: u32 = 1;
    /// Work items are rows: each is a call on all channels, and every block runs all of them. `lo` and `hi` are the
    /// part of channel 0; block b has channel (b - first) modulo `nchannels`, the part of that number, and from `links`
    /// on the links of channel b, `nlinks` for each.
    pub const ROWS: u32 = 2;
}

/// Values of the word that [`LaunchArgs::abort`] points to. Any other value also makes kernels leave, but
/// without a report in the error word.
pub mod abort {
    /// Go on.
    pub const NONE: u32 = 0;
    /// Leave, and say so in the error word.
    pub const REPORT: u32 = 1;
}

/// Values that kernels leave in the word that [`LaunchArgs::error`] points to; the first writer wins.
pub mod kernel_error {
    /// All is well.
    pub const NONE: u32 = 0;
    /// A kernel left because of [`super::abort::REPORT`]: outputs are not complete.
    pub const ABORTED: u32 = 1;
    /// A work item that the kernel cannot run: wrong type, operator or protocol.
    pub const BAD_WORK: u32 = 2;
    /// A peer made another call. The words behind: its rank, the own call's serial, the own signature, the peer's.
    pub const MISMATCH: u32 = 3;
    /// A peer left after an error. The words behind: its rank, the own call's serial.
    pub const PEER_LEFT: u32 = 4;
}

/// One step of a schedule: receive | reduce | copy | send, on chunk numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Immutable, IntoBytes)]
#[repr(C)]
pub struct Step {
    /// [`step_flag`]s.
    pub flags: u8,
    /// How many of `recv` are used.
    pub nrecv: u8,
    /// How many of `send` are used.
    pub nsend: u8,
    /// Where among the sources the own chunk stands: the order of reduction.
    pub place: u8,
    /// How often the step runs, at least once.
    pub repeat: u16,
    /// What is added to both chunk numbers each time, modulo the number of chunks.
    pub stride: i16,
    /// The chunk that is read from the input.
    pub in_chunk: u32,
    /// The chunk that is written to the output.
    pub out_chunk: u32,
    /// Links to receive from: indices into the work item's links.
    pub recv: [u8; MAX_FAN],
    /// Links to send to.
    pub send: [u8; MAX_FAN],
}

/// One counter of a link, on a cache line of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Counter {
    /// Slots filled, or emptied, so far; one side writes it.
    pub value: u64,
    /// Nonzero while the other side may sleep on the low word of `value` (a hint).
    pub waiters: u32,
    /// Nonzero once the writer has left for good.
    pub left: u32,
    /// In `posted`: [`Work::signature`] of whoever filled the slot of this number.
    pub signatures: [u32; SLOTS],
    /// In `posted`, for LL: where the sender's last work item began on this link (low half), and its signature. For
    /// Simple: the sender's offer of its input. On a link with [`LINK_MOVED`] it and `offer` are the sizes of the
    /// slots, as [`SLOTS`] numbers of 16 bits, in units of [`SLOT_SIZE_UNIT`].
    pub call: u64,
    /// In `posted`, for Simple: the sender's offer of its output.
    pub offer: u64,
}

/// In [`LinkEnd::peer`], where this rank sends: a mover takes what is posted to the peer, and is told how much a slot
/// holds.
pub const LINK_MOVED: u32 = 1 << 31;
/// Bytes of a unit in which the sizes of slots are told.
pub const SLOT_SIZE_UNIT: u32 = 256;
/// What is told of a slot that is larger than can be told: all of it counts.
pub const WHOLE_SLOT: u16 = u16::MAX;

/// One end of a one-directional link, as its rank sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub struct LinkEnd {
    /// Address of [`SLOTS`] slots of `slot_bytes`, in the receiver's memory; aligned to 64.
    pub slots: u64,
    /// Address of the [`Counter`] that the sender writes; it lives with the receiver.
    pub posted: u64,
    /// Address of the [`Counter`] that the receiver writes; it lives with the sender.
    pub consumed: u64,
    /// Address of the peer's user buffer that takes the place of the slots, or 0. Items with [`work_flag::OFFER`] set
    /// it.
    pub direct: u64,
    /// Slots that this end has passed. Persists over launches; kernels write it.
    pub pos: u64,
    /// The other side's counter when it was last read; kernels write it.
    pub seen: u64,
    /// Bytes of one slot, a multiple of 64.
    pub slot_bytes: u32,
    /// The rank at the other end, for reports, and perhaps [`LINK_MOVED`].
    pub peer: u32,
    /// LL: low half of `pos` where the last work item began. Simple: what came of offers. Kernels write it.
    pub begin: u32,
    /// Nonzero once this end was left for good after an error; kernels write it.
    pub left: u32,
}

/// One channel's part of one collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Immutable, IntoBytes)]
#[repr(C)]
pub struct Work {
    /// Address of the user's input; aligned to the element size.
    pub input: u64,
    /// Address of the user's output; may equal `input`.
    pub output: u64,
    /// Address of `nsteps` [`Step`]s.
    pub steps: u64,
    /// Address of `nlinks` [`LinkEnd`]s.
    pub links: u64,
    /// Elements in all.
    pub count: u64,
    /// Elements of a chunk; the last chunks can be short or empty.
    pub block: u64,
    /// Elements that travel in one slot.
    pub piece: u64,
    /// First element of this channel's part of every chunk, counted from the chunk's begin.
    pub lo: u64,
    /// End of this channel's part.
    pub hi: u64,
    /// Steps of the schedule.
    pub nsteps: u32,
    /// Chunks of the data.
    pub nchunks: u32,
    /// A [`DataType`].
    pub datatype: u8,
    /// A [`KernelOp`].
    pub op: u8,
    /// A [`Proto`].
    pub proto: u8,
    /// [`work_flag`]s.
    pub flags: u8,
    /// Links of the schedule.
    pub nlinks: u16,
    /// With [`launch_flag::ROWS`]: the block of channel 0.
    pub first: u16,
    /// Scalar of [`work_flag::PRE`]: the bits of an element, in the low bytes, or their address.
    pub pre: u64,
    /// Scalar of [`work_flag::POST`]: the divisor.
    pub post: u64,
    /// Says which call this is: both ends of a link must agree. 0: the receiver does not compare.
    pub signature: u32,
    /// The number of the call in its communicator, for reports.
    pub serial: u32,
    /// With [`work_flag::OFFER`]: input and output as peers find them ([`super::offer`]).
    pub offers: [u64; 2],
}

/// A kernel's one argument, by value. Block b runs the items b, b + `nchannels`, … below `nwork`, or all of them
/// ([`launch_flag::ROWS`]); it skips those without steps or elements, whatever else they say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LaunchArgs {
    /// Work items that are used; without `items` at most [`MAX_WORK`].
    pub nwork: u32,
    /// Blocks of the launch, at least 1.
    pub nchannels: u32,
    /// Host image: pauses of a wait before it yields.
    pub spin: u32,
    /// Host image: yields of a wait before it sleeps. The abort word is looked at from the first on.
    pub yields: u32,
    /// Host image: the longest sleep, in nanoseconds.
    pub futex_ns: u64,
    /// Address of the [`mod@abort`] word, which host and kernels see, or 0.
    pub abort: u64,
    /// Address of [`ERROR_WORDS`] words, the first a [`kernel_error`]. 0: errors are not told, to peers neither.
    pub error: u64,
    /// Address of the work items where `work` has too little room; 0: they are in `work`.
    pub items: u64,
    /// [`launch_flag`]s.
    pub flags: u32,
    /// Zero.
    pub reserved0: u32,
    /// Address of [`REGISTRATIONS`] words for each rank: its memory as this rank reaches it ([`super::offer`]), or 0.
    pub peers: u64,
    /// Zero.
    pub reserved: [u64; 8],
    /// The work items.
    pub work: [Work; MAX_WORK],
}

const _: () = assert!(size_of::<Step>() == 32 && size_of::<Counter>() == 64 && size_of::<LinkEnd>() == 64);
const _: () = assert!(size_of::<Work>() == 128 && size_of::<LaunchArgs>() == LAUNCH_BYTES);
