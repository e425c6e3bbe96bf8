// LL: a slot is a row of lines, each 8 bytes of data that say themselves that they are there, so that the
// receiver neither waits for a counter nor the sender for its stores.
//
// A line is 16 bytes: {4 of data, flag, 4 of data, flag}. Either half is one 64-bit word, written and read
// whole. The flag is the low half of the number of slots posted so far, this one included: it differs from
// what the line said when the slot was last used. A short turn leaves the rest of its slot as it was, so a
// line can be as old as the link; before the flag comes round again, SLOTS turns in a row fill their slots
// to the end (`cleans`). Nothing but LL may use a link's slots: other data could look like a flag.
#pragma once
#include "reduce.cuh"

namespace oxccl {
namespace {

constexpr int LINE_DATA = 8, LINE_BYTES = 16;   // a slot of n bytes takes n / 2 of data
// Turns between two cleanings: a fraction of the 2^32 after which a flag comes round.
constexpr u64 CLEANING = 1ull << 30;

FN u32 flagOf(u64 pos) { return (u32)(pos + 1); }
FN bool cleans(u64 pos) { return pos % CLEANING >= CLEANING - SLOTS; }

// The line of a user's bytes that begins at p; `left` of them are there, a multiple of the element size. WORDS: where
// only alignment is wanting, by whole words (which take registers), else byte by byte.
template<Type T, bool WORDS> FN u64 loadUser(const char* p, u64 left) {
  if (left >= LINE_DATA && (!NEEDS_ALIGNMENT || (u64)p % LINE_DATA == 0)) return bitsOf<8>(load<8>(p));
  if constexpr (WORDS && NEEDS_ALIGNMENT) {
    // One or two whole words that have some of these bytes, which lie in no other page.
    const u32 before = (u32)((u64)p % LINE_DATA), shift = 8 * before, n = left < LINE_DATA ? (u32)left : LINE_DATA;
    u64 v = bitsOf<8>(load<8>(p - before)) >> shift;
    if (before + n > LINE_DATA) v |= bitsOf<8>(load<8>(p - before + LINE_DATA)) << (64 - shift);
    return v & ~0ull >> (64 - 8 * n);
  }
  u64 v = 0;
  UNROLL for (u32 i = 0; i < LINE_DATA; i += sizeOf<T>)
    if (i < left) v |= bitsOf<sizeOf<T>>(load<sizeOf<T>>(p + i)) << 8 * i;
  return v;
}
template<Type T> FN void storeUser(char* p, u64 left, u64 v) {
  if (left >= LINE_DATA && (!NEEDS_ALIGNMENT || (u64)p % LINE_DATA == 0)) return store<8>(p, packOf<8>(v));
  UNROLL for (u32 i = 0; i < LINE_DATA; i += sizeOf<T>)
    if (i < left) store<sizeOf<T>>(p + i, packOf<sizeOf<T>>(v >> 8 * i));
}

// What a sender says besides its lines, for who waits for them.
struct Watch {
  const Turn& t;
  u32 source;
  bool left;
  // False: nothing will come. Who has left may have sent before, so there is one more look at the lines.
  MEMBER bool lasts(const LaunchArgs& a) {
    const LinkEnd& l = *t.from[source];
    if (callMismatch(a, l, t.serial, t.signature)) return false;
    if (left) report(a, ERROR_PEER_LEFT, peerOf(l), t.serial);
    if (left) return false;
    left = loadLeft(*l.posted);
    return true;
  }
};

// U lines of a source's slot, as soon as they carry the flag; false: the block leaves.
template<int U> FN bool receive(const Block& b, const Turn& t, u32 source, const Walk& w, u64 (&x)[U]) {
  const char* slot = t.src[source];
  const u32 flag = flagOf(t.src_pos[source]);
  Watch watch = {t, source, false};
  for (Patience patience;;) {
    bool there = true;
    UNROLL for (int u = 0; u < U; u++) {
      const Line l = loadLine(slot + LINE_BYTES / LINE_DATA * (w.at + u * w.hop));
      there &= (u32)(l.low >> 32) == flag && (u32)(l.high >> 32) == flag;
      x[u] = (u32)l.low | l.high << 32;
    }
    if (there) return true;
    if (!patience.lasts(b, watch)) return false;
  }
}
FN void send(char* slot, u32 flag, u64 at, u64 v) {
  const u64 bits = (u64)flag << 32;
  storeLine(slot + LINE_BYTES / LINE_DATA * at, Line{(u32)v | bits, v >> 32 | bits});
}

// The lines of one source.
template<Type T, int U> FN bool fetchLines(const Block& b, const Turn& t, u32 s, const Walk& w, Pack<8> (&x)[U]) {
  u64 bits[U];
  const bool user = s == t.place && (t.user & STEP_IN);
  if (user) {
    UNROLL for (int u = 0; u < U; u++)
      bits[u] = loadUser<T, true>(t.src[s] + w.at + u * w.hop, t.bytes - w.at - u * w.hop);
  } else if (!receive<U>(b, t, s, w, bits)) {
    return false;
  }
  UNROLL for (int u = 0; u < U; u++) x[u] = packOf<8>(bits[u]);
  if (user && (t.scale & WORK_PRE)) UNROLL for (int u = 0; u < U; u++) x[u] = scaled<T, 8>(x[u], t.pre);
  return true;
}

template<Type T, int B, int U> FN void combineLines(u32 op, Pack<B> (&sum)[U], const Pack<B> (&x)[U]) {
  if (op == SUM) combine<T, SUM, B, U>(op, sum, x);
  else if (op == PROD) combine<T, PROD, B, U>(op, sum, x);
  else if (op == MAX) combine<T, MAX, B, U>(op, sum, x);
  else combine<T, MIN, B, U>(op, sum, x);
}

// Moves U lines at once, as long as U fit; leaves the walk at the first one not moved. False: the block leaves,
// and then nothing was sent that did not come.
template<Type T, int U, bool COPY> FN bool sweepLines(const Block& b, const Turn& t, Walk& w) {
  for (; w.at + (U - 1) * w.hop < w.end; w.at += U * w.hop) {
    Pack<8> sum[U];
    if (!fetchLines<T, U>(b, t, 0, w, sum)) return false;
    for (u32 s = 1; !COPY && s < t.nsrc; s++) {
      Pack<8> x[U];
      if (!fetchLines<T, U>(b, t, s, w, x)) return false;
      combineLines<T, 8, U>(t.op, sum, x);
    }
    if constexpr (isInteger<T> && !COPY)
      if (t.scale & WORK_POST) UNROLL for (int u = 0; u < U; u++) sum[u] = divide<T, 8>(sum[u], t.post);
    for (u32 d = 0; d < t.ndst; d++) {
      UNROLL for (int u = 0; u < U; u++) {
        const u64 at = w.at + u * w.hop, v = bitsOf<8>(sum[u]);
        if (d == 0 && (t.user & STEP_OUT)) storeUser<T>(t.dst[d] + at, t.bytes - at, v);
        else send(t.dst[d], flagOf(t.dst_pos[d]), at, v);
      }
    }
  }
  return true;
}

// Gives the lines behind the turn's data, to the end of each slot, the turn's flag.
FN void cleanSlots(const Block& b, const Turn& t) {
  const u64 used = (t.bytes + LINE_DATA - 1) / LINE_DATA;
  for (u32 d = t.user & STEP_OUT ? 1 : 0; d < t.ndst; d++) {
    if (!cleans(t.dst_pos[d])) continue;
    for (u64 line = used + b.tid(); line < t.dst_bytes[d] / LINE_BYTES; line += b.threads())
      send(t.dst[d], flagOf(t.dst_pos[d]), line * LINE_DATA, 0);
  }
}

// LL as the interpreter sees it.
struct LowLatency {
  static constexpr u8 ID = LL;
  static constexpr bool COUNTED = false, ALONE = true;
  // Whether a turn without data has something to do all the same.
  static MEMBER bool tidies(const Turn& t) {
    bool any = false;
    for (u32 d = t.user & STEP_OUT ? 1 : 0; d < t.ndst; d++) any |= cleans(t.dst_pos[d]);
    return any;
  }
  template<Type T> static MEMBER bool move(const Block& b, const Turn& t) {
    return moveLines<T, false, LINE_FLIGHT>(b, t);
  }
  // COPY: there is one source, and nothing to compute. FLIGHT: lines of a thread in flight.
  template<Type T, bool COPY, int FLIGHT> static MEMBER bool moveLines(const Block& b, const Turn& t) {
    Walk w = walk<LINE_DATA>(b, 0, t.bytes);
    if (FLIGHT > 1 && !sweepLines<T, FLIGHT, COPY>(b, t, w)) return false;
    if (FLIGHT > 2 && !sweepLines<T, 2, COPY>(b, t, w)) return false;
    if (!sweepLines<T, 1, COPY>(b, t, w)) return false;
    if (tidies(t)) cleanSlots(b, t);
    return true;
  }
};

}  // namespace
}  // namespace oxccl
