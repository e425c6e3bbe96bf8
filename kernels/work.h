// Layouts that the host runtime, the host image and the GPU image share: plain data of fixed size,
// little endian, no pointers to code. src/plan/layout.rs declares the same; tests/layout.rs compares them.
// Includes nothing, so that it also compiles where there are no headers (NVRTC).
#pragma once

namespace oxccl {

typedef unsigned char u8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

enum : u32 {
  SLOTS = 8,             // slots of a link
  MAX_FAN = 8,           // links that one step receives from, or sends to
  MAX_WORK = 15,         // work items in a launch's argument
  LAUNCH_BYTES = 2048,   // size of the kernel's one argument
  ERROR_WORDS = 8,       // words of 32 bits of an error report
  ERROR_CLAIM = 7,       // the last of them: kernels settle here whose report it is, before it is complete
  MAX_LINKS = 256,       // links of a work item
  REGISTRATIONS = 256,   // memory that a rank can have registered at a time
  OFFER_BITS = 39,       // bits of an offer below the registration's tag: the offset
  PLACE_UNIT = 512,      // bytes that registered memory is aligned to
};

// Element types, with the numbers of ncclDataType_t.
enum Type : u8 { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, F8E4M3, F8E5M2, NTYPES };

// Operators, with the numbers of ncclRedOp_t. Average is SUM with WORK_PRE (floats) or WORK_POST (integers).
enum Op : u8 { SUM, PROD, MAX, MIN, NOPS };

// How a slot carries data and says that it is there.
// SIMPLE: plain data, and counters. LL: lines of 8 bytes of data that carry flags, so half as much to a slot.
// LL128: lines of 120 bytes of data, 15/16 of a slot; only in the GPU image.
// A link keeps to one of them for life.
enum Proto : u8 { SIMPLE, LL, LL128, NPROTOS };

// Step::flags
enum : u8 {
  STEP_IN = 1,           // the rank's own chunk of the input is a source
  STEP_OUT = 2,          // the output is a destination
  STEP_FROM_OUT = 4,     // the own chunk is read from the output (it was written by an earlier step), unscaled
  STEP_POST = 8,         // the result is final: apply Work::post
  STEP_NO_DATA = 16,     // a signal only: counters move, no data does
  STEP_OFFER = 32,       // a signal that carries offers, see Work::offers
  STEP_VERDICT = 64,     // a signal that says whether a rank reaches what it was offered
  STEP_PULL = 128,       // of a message: received straight from the sender's buffer; sending, the wait for that
};

// Work::flags
enum : u8 {
  WORK_PRE = 1,          // multiply the own input by `pre` before it is reduced
  WORK_POST = 2,         // divide a final result by `post`, toward zero (integers only)
  WORK_PRE_AT = 4,       // with WORK_PRE: `pre` is the address of the scalar, which is read when the item begins
  WORK_OFFER = 8,        // SIMPLE: runs if all ranks agree in its first steps, else the block's next item does
  WORK_PULL = 16,        // with WORK_OFFER: half of a message; the two ranks agree by themselves
};

// LaunchArgs::flags
enum : u32 {
  LAUNCH_ROWS = 2,       // work items are rows: each is all channels' parts of a call (rowPart in interp.cuh)
  LAUNCH_NO_WAKE = 1,    // host image: as on a GPU, no store wakes who waits for it
};

// LaunchArgs::abort, in the word it points to. Any other value also makes kernels leave, without a report.
enum : u32 { ABORT_NONE = 0, ABORT_REPORT = 1 };

// What a kernel leaves in the error word, after the words behind it; the first writer wins.
enum : u32 {
  ERROR_NONE = 0,
  ERROR_ABORTED = 1,     // left because the abort word said ABORT_REPORT: outputs are not complete
  ERROR_BAD_WORK = 2,    // a work item that this kernel cannot run: wrong type or protocol
  ERROR_MISMATCH = 3,    // a peer made another call: behind it are its rank, the own call's serial, both signatures
  ERROR_PEER_LEFT = 4,   // a peer left after an error: the words behind are its rank and the own call's serial
};

// One step of a schedule: receive from these links | reduce | copy | send to these links. Says nothing of
// bytes: the work item gives chunk size, counts and pointers. Read-only, position independent.
struct Step {
  u8 flags, nrecv, nsend;
  u8 place;              // where among the sources the own chunk stands: the order of reduction
  u16 repeat;            // run this often (at least once)...
  i16 stride;            // ...and add this to both chunk numbers each time, modulo Work::nchunks
  u32 in_chunk, out_chunk;
  u8 recv[MAX_FAN];      // indices into Work::links
  u8 send[MAX_FAN];
};

// One counter of a link, on a cache line of its own. All but `waiters` has one writer; `waiters` is set by the
// one thread that waits for it and is only a hint that a wake-up is wanted.
struct alignas(64) Counter {
  u64 value;
  u32 waiters;
  u32 left;              // nonzero: who writes this counter has left for good; whoever waits for it leaves too
  u32 signatures[SLOTS]; // `posted`: Work::signature of whoever filled the slot of this number
                         // `consumed`: whether what the slot offered was taken (WORK_PULL)
  u64 call;              // `posted`, LL: where the sender's last work item began here (low half), and its signature
                         // `posted`, SIMPLE: the sender's offer of its input
  u64 offer;             // `posted`, SIMPLE: the sender's offer of its output; with WORK_PULL: the offer's slot and 1
  // With LINK_MOVED `call` and `offer` are the sizes of the slots.
};

// LinkEnd::peer, where this rank sends: a mover takes what is posted to the peer, and is told how much a slot holds, by
// 16 bits for each slot, in units of SLOT_SIZE_UNIT bytes.
static constexpr u32 LINK_MOVED = 1u << 31, SLOT_SIZE_UNIT = 256, WHOLE_SLOT = 0xffff;

// One end of a one-directional link, as its rank sees it. Only this end writes it.
struct alignas(64) LinkEnd {
  char* slots;           // SLOTS * slot_bytes, in the receiver's memory
  Counter* posted;       // slots filled (LL: up to the last signal); written by the sender, lives with the receiver
  Counter* consumed;     // slots emptied so far; written by the receiver, lives with the sender
  char* direct;          // SIMPLE: the peer's user buffer in place of slots; null: slots. Items with WORK_OFFER set it
  u64 pos;               // slots that this end has passed; persists over launches
  u64 seen;              // the other side's counter when it was last read
  u32 slot_bytes;        // a multiple of 64
  u32 peer;              // the rank at the other end, for reports; LINK_MOVED
  u32 begin;             // LL: low half of `pos` where the last item began; SIMPLE: what came of offers (offers.cuh)
  u32 left;              // nonzero: this end was left for good after an error
};

// One channel's part of one collective.
struct Work {
  const char* in;
  char* out;             // may equal `in`
  const Step* steps;
  LinkEnd* links;
  u64 count;             // elements in all
  u64 block;             // elements of a chunk; the last chunks can be short or empty
  u64 piece;             // elements that travel in one slot
  u64 lo, hi;            // this channel's part of every chunk, in elements from the chunk's begin
  u32 nsteps, nchunks;
  u8 type, op, proto, flags;
  u16 nlinks;
  u16 first;             // LAUNCH_ROWS: the block of channel 0
  u64 pre, post;         // scalars: bits of the element type in the low bytes
  u32 signature;         // says which call this is: both ends of a link must agree; 0: the receiver does not compare
  u32 serial;            // the number of the call in its communicator, for reports
  u64 offers[2];         // WORK_OFFER: input and output, as peers find them (offers.cuh)
};

// The kernel's one argument. Block b runs the items b, b + nchannels, ... below nwork; it skips those without steps
// or elements, whatever else they say. With LAUNCH_ROWS every block runs all items, each for a channel of its own.
struct LaunchArgs {
  u32 nwork, nchannels;
  u32 spin, yields;      // host image: pauses, then sched_yields, before a wait sleeps
  u64 futex_ns;          // host image: the longest sleep; the abort word is looked at after each
  u32* abort;            // ABORT_NONE, or every kernel that sees it leaves; host and kernels see it; may be null
  u32* error;            // ERROR_*, then ERROR_WORDS - 1 words that say more; null: errors are not told, nor to peers
  const Work* items;     // the work items where `work` has too little room; null: they are in `work`
  u32 flags;             // LAUNCH_*
  u32 reserved0;
  const u64* peers;      // REGISTRATIONS words for each rank: its memory as this rank reaches it (offers.cuh), or null
  u64 reserved[8];
  Work work[MAX_WORK];
};

static_assert(sizeof(Step) == 32 && sizeof(Counter) == 64 && sizeof(LinkEnd) == 64, "layout");
static_assert(sizeof(Work) == 128 && sizeof(LaunchArgs) == LAUNCH_BYTES, "layout");

}  // namespace oxccl
