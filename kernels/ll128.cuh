// LL128: a slot is a row of lines of 128 bytes, of which 120 are data and the last 8 say that all of it is there.
//
// Only where the threads of a warp move in step and what they store to one line with one instruction arrives
// whole: on GPUs (sm_70 and later), in memory of the same device or over NVLink. Eight threads with 16 bytes each
// load or store a line; the last of them has one word of data and the flag.
//
// The flag is the number of slots posted so far, this one included, with all its 64 bits: it is never 0, which is
// what a fresh slot says, and never comes round again, so old lines need no cleaning as LL's do. Nothing but LL128
// may use a link's slots: other data could look like a flag.
//
// A warp moves a row at once: four groups of threads with two lines each, `half` 0 and 1. The two lines of a group
// are 240 bytes of data in order, which it reads from the user's memory in 15 packs of 16 bytes that are aligned
// if the user's pointer is: the eighth pack, its last thread's, is shared out, one word to the end of each line.
#pragma once
#include "ll.cuh"

namespace oxccl {
namespace {

// --- what lies where ------------------------------------------------------------------------------------

constexpr u32 WARP = 32, GROUP = 8;               // threads; those of one line
constexpr u32 WIDE_DATA = 120, WIDE_BYTES = 128;  // of a line
constexpr u32 ROW_DATA = 960, ROW_BYTES = 1024;   // of a row; a slot is whole rows

// Whether a thread has the flags, and for data only one word of each line.
constexpr FN bool flagger(u32 lane) { return lane % GROUP == GROUP - 1; }
// Where in a row's data the pack of 16 bytes lies that a thread has in a half; a flagger's is the same in both.
constexpr FN u32 dataAt(u32 lane, u32 half) {
  return lane / GROUP * (2 * WIDE_DATA) + lane % GROUP * 16 + (flagger(lane) ? 0 : half * WIDE_BYTES);
}
// Where in a row's bytes the 16 bytes lie that a thread moves in a half. A half is four lines side by side.
constexpr FN u32 wireAt(u32 lane, u32 half) { return half * (WARP * 16) + lane * 16; }
// Whether a thread's line in a half has any of a row's first `left` bytes of data. Lines that have none do not travel.
constexpr FN bool travels(u32 lane, u32 half, u64 left) { return left > (2 * (lane / GROUP) + half) * WIDE_DATA; }

static_assert(ROW_DATA == 2 * WARP / GROUP * WIDE_DATA && ROW_BYTES == 2 * WARP / GROUP * WIDE_BYTES,
              "a row is eight lines");

// --- one thread's share -----------------------------------------------------------------------------------

// The user's pack that begins at p; `left` of its bytes are there, which may be none.
template<Type T> FN Pack<16> loadShare(const char* p, u64 left) {
  if (left >= 16 && (u64)p % 16 == 0) return load<16>(p);
  return packOfLine(Line{loadUser<T, false>(p, left), loadUser<T, false>(p + 8, left > 8 ? left - 8 : 0)});
}
template<Type T> FN void storeShare(char* p, u64 left, const Pack<16>& v) {
  if (left >= 16 && (u64)p % 16 == 0) return store<16>(p, v);
  const Line l = lineOfPack(v);
  storeUser<T>(p, left, l.low);
  storeUser<T>(p + 8, left > 8 ? left - 8 : 0, l.high);
}

// A thread among the rows of a turn: it moves those from `at` on, in hops, below `end`.
struct Rows {
  u64 at, end, hop;
  u64 bytes;   // of data in all
  u32 lane;
  MEMBER u64 data(int u, int half) const { return (at + u * hop) * ROW_DATA + dataAt(lane, half); }
  MEMBER u64 wire(int u, int half) const { return (at + u * hop) * ROW_BYTES + wireAt(lane, half); }
  MEMBER u64 left(u64 from) const { return from < bytes ? bytes - from : 0; }
  MEMBER bool carried(int u, int half) const { return travels(lane, half, left((at + u * hop) * ROW_DATA)); }
};

// A compiled loop: type, how many rows at once, and whether it is for the bulk of the data, which are full rows
// without scaling whose packs are aligned in the user's memory.
template<Type T_, int U_, bool BULK_> struct Sweep {
  static constexpr Type T = T_;
  static constexpr int N = 2 * U_, U = U_;   // packs, rows
  static constexpr bool BULK = BULK_;
};

template<class S> FN void loadRows(const char* user, const Rows& r, Pack<16> (&x)[S::N]) {
  UNROLL for (int i = 0; i < S::N; i++) {
    const u64 at = r.data(i / 2, i % 2);
    if constexpr (S::BULK) x[i] = load<16>(user + at);
    else x[i] = loadShare<S::T>(user + at, r.left(at));
  }
}
template<class S> FN void storeRows(char* user, const Rows& r, const Pack<16> (&x)[S::N]) {
  UNROLL for (int i = 0; i < S::N; i++) {
    const u64 at = r.data(i / 2, i % 2);
    if constexpr (S::BULK) store<16>(user + at, x[i]);
    else storeShare<S::T>(user + at, r.left(at), x[i]);
  }
}

// Rows of a source's slot, as soon as all their lines carry the flag; false: the block leaves, as all threads of the
// warp learn.
template<class S> FN bool receiveRows(const Block& b, const Turn& t, u32 source, const Rows& r, Pack<16> (&x)[S::N]) {
  const char* slot = t.src[source];
  const u64 flag = t.src_pos[source] + 1;
  Watch watch = {t, source, false};
  for (Patience patience;;) {
    Line l[S::N];
    bool missing = false;
    warpInStep();
    UNROLL for (int i = 0; i < S::N; i++) l[i] = loadLine(slot + r.wire(i / 2, i % 2));
    UNROLL for (int i = 0; i < S::N; i++)
      missing |= flagger(r.lane) && l[i].high != flag && (S::BULK || r.carried(i / 2, i % 2));
    if (!anyOfWarp(missing)) {
      UNROLL for (int i = 0; i < S::N; i++) x[i] =
          packOfLine(flagger(r.lane) ? Line{l[i & ~1].low, l[i | 1].low} : l[i]);
      return true;
    }
    if (anyOfWarp(!patience.lasts(b, watch))) return false;
  }
}
template<class S> FN void sendRows(char* slot, u64 flag, const Rows& r, const Pack<16> (&x)[S::N]) {
  warpInStep();
  UNROLL for (int i = 0; i < S::N; i++) {
    const Line l = lineOfPack(x[i]);
    if (S::BULK || r.carried(i / 2, i % 2))
      storeLine(slot + r.wire(i / 2, i % 2), flagger(r.lane) ? Line{i % 2 ? l.high : l.low, flag} : l);
  }
}

// --- a turn -----------------------------------------------------------------------------------------------

// The rows of one source.
template<class S> FN bool fetchRows(const Block& b, const Turn& t, u32 s, const Rows& r, Pack<16> (&x)[S::N]) {
  if (s != t.place || !(t.user & STEP_IN)) return receiveRows<S>(b, t, s, r, x);
  loadRows<S>(t.src[s], r, x);
  if constexpr (!S::BULK)
    if (t.scale & WORK_PRE) UNROLL for (int i = 0; i < S::N; i++) x[i] = scaled<S::T, 16>(x[i], t.pre);
  return true;
}

// Moves rows as long as U fit; leaves `r` at the first one not moved. False: told to leave. All threads of a warp
// take the same way through it.
template<class S> FN bool sweepRows(const Block& b, const Turn& t, Rows& r) {
  for (; r.at + (S::U - 1) * r.hop < r.end; r.at += S::U * r.hop) {
    Pack<16> sum[S::N];
    if (!fetchRows<S>(b, t, 0, r, sum)) return false;
    for (u32 s = 1; s < t.nsrc; s++) {
      Pack<16> x[S::N];
      if (!fetchRows<S>(b, t, s, r, x)) return false;
      combineLines<S::T, 16, S::N>(t.op, sum, x);
    }
    if constexpr (!S::BULK && isInteger<S::T>)
      if (t.scale & WORK_POST) UNROLL for (int i = 0; i < S::N; i++) sum[i] = divide<S::T, 16>(sum[i], t.post);
    for (u32 d = 0; d < t.ndst; d++) {
      if (d == 0 && (t.user & STEP_OUT)) storeRows<S>(t.dst[d], r, sum);
      else sendRows<S>(t.dst[d], t.dst_pos[d] + 1, r, sum);
    }
  }
  return true;
}

// Whether a turn has a bulk.
FN bool bulky(const Turn& t) {
  const u64 in = t.user & STEP_IN ? (u64)t.src[t.place] : 0, out = t.user & STEP_OUT ? (u64)t.dst[0] : 0;
  return !t.scale && (in | out) % 16 == 0;
}

// LL128 as the interpreter sees it. Blocks are whole warps.
struct WideLines {
  static constexpr u8 ID = LL128;
  static constexpr bool COUNTED = false, ALONE = true;
  static MEMBER bool tidies(const Turn&) { return false; }
  template<Type T> static MEMBER bool move(const Block& b, const Turn& t) {
    Rows r = {b.tid() / WARP, bulky(t) ? t.bytes / ROW_DATA : 0, b.threads() / WARP, t.bytes, b.tid() % WARP};
    if (!sweepRows<Sweep<T, ROW_FLIGHT<T>, true>>(b, t, r)) return false;
    r.end = (t.bytes + ROW_DATA - 1) / ROW_DATA;
    return sweepRows<Sweep<T, 1, false>>(b, t, r);
  }
};

}  // namespace
}  // namespace oxccl
