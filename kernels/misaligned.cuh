// Turns whose data is not aligned, or not alike: for targets that load and store only aligned packs.
//
// Stores are aligned packs of 16 bytes: where these begin a destination says. A source that is off from it is loaded by
// the aligned packs around, and shifted. Only what is before the first pack and behind the last moves by elements.
// Destinations that are off from each other are written one after the other.
#pragma once
#include "turn.cuh"

namespace oxccl {
namespace {

constexpr u32 PACK = 16;

// Of 32 bytes the 16 from byte `by` on, which is below 16. Registers have no index, so words are chosen step by step.
FN Pack<16> shifted(const Pack<16>& low, const Pack<16>& high, u32 by) {
  u32 c[8], d[6], e[5], r[4];
  wordsOf(low, c);
  wordsOf(high, c + 4);
  UNROLL for (int i = 0; i < 6; i++) d[i] = by & 8 ? c[i + 2] : c[i];
  UNROLL for (int i = 0; i < 5; i++) e[i] = by & 4 ? d[i + 1] : d[i];
  UNROLL for (int i = 0; i < 4; i++) r[i] = funnel(e[i], e[i + 1], by % 4 * 8);
  return packOfWords(r);
}

// U packs from anywhere. Each aligned pack that is loaded has some byte that is wanted, so it is in the same memory.
template<int U> FN void loadShifted(const char* from, u64 hop, Pack<16> (&x)[U]) {
  const u32 by = (u64)from % PACK;
  if (!by) {
    UNROLL for (int u = 0; u < U; u++) x[u] = load<16>(from + u * hop);
    return;
  }
  Pack<16> high[U];
  UNROLL for (int u = 0; u < U; u++) {
    x[u] = load<16>(from - by + u * hop);
    high[u] = load<16>(from - by + PACK + u * hop);
  }
  UNROLL for (int u = 0; u < U; u++) x[u] = shifted(x[u], high[u], by);
}
// U packs or elements.
template<int B, int U> FN void loadAll(const char* from, u64 hop, Pack<B> (&x)[U]) {
  if constexpr (B == PACK) loadShifted<U>(from, hop, x);
  else UNROLL for (int u = 0; u < U; u++) x[u] = load<B>(from + u * hop);
}

// Some of a turn's destinations, a bit for each, whose packs begin alike, and the source of a copy.
struct Share {
  u32 to;
  const char* from;
};

// As `sweep`, for some of the destinations.
template<class J, int B, int U> FN void sweepShare(const Turn& t, const Share& share, Walk& w) {
  const u32 op = t.op;
  for (; w.at + (U - 1) * w.hop + B <= w.end; w.at += U * w.hop) {
    Pack<B> sum[U];
    if constexpr (J::NSRC == 1) {
      loadAll<B, U>(share.from + w.at, w.hop, sum);
    } else {
      loadAll<B, U>(t.src[0] + w.at, w.hop, sum);
      prescale<J, B, U>(t, 0, sum);
      for (u32 s = 1; s < t.nsrc; s++) {
        Pack<B> x[U];
        loadAll<B, U>(t.src[s] + w.at, w.hop, x);
        prescale<J, B, U>(t, s, x);
        combine<J::T, J::OP, B, U>(op, sum, x);
      }
      postscale<J, B, U>(t, sum);
    }
    for (u32 d = 0; d < t.ndst; d++) {
      if (!(share.to >> d & 1)) continue;
      char* to = t.dst[d] + w.at;
      UNROLL for (int u = 0; u < U; u++) store<B>(to + u * w.hop, sum[u]);
    }
  }
}

// Moves all data to some destinations, the first of which is `first`.
template<class J> FN void moveShare(const Block& b, const Turn& t, const Share& share, u32 first) {
  constexpr int SIZE = sizeOf<J::T>;
  const u64 before = -(u64)t.dst[first] % PACK, head = before < t.bytes ? before : t.bytes,
            tail = head + (t.bytes - head) / PACK * PACK;
  Walk packs = walk<PACK>(b, head, tail);
  if constexpr (J::NSRC == 1) sweepShare<J, PACK, 4>(t, share, packs);
  if constexpr (!J::SCALE) sweepShare<J, PACK, 2>(t, share, packs);
  sweepShare<J, PACK, 1>(t, share, packs);
  Walk edge = walk<SIZE>(b, 0, head);
  sweepShare<J, SIZE, 1>(t, share, edge);
  edge = walk<SIZE>(b, tail, t.bytes);
  sweepShare<J, SIZE, 1>(t, share, edge);
}

// Destinations of `among` whose packs begin where those of `first` do.
FN u32 alike(const Turn& t, u32 first, u32 among) {
  u32 to = 0;
  for (u32 d = first; d < t.ndst; d++)
    if (((u64)t.dst[d] - (u64)t.dst[first]) % PACK == 0) to |= 1u << d;
  return to & among;
}

// Copies to the destinations of `to`.
template<Type T> FN void copyMisaligned(const Block& b, const Turn& t, const char* from, u32 to) {
  for (u32 first = 0; first < t.ndst; first++) {
    if (!(to >> first & 1)) continue;
    const u32 share = alike(t, first, to);
    moveShare<Job<T, SUM, false, 1, 0>>(b, t, {share, from}, first);
    to &= ~share;
  }
}

// Reduces to the first destination and those like it, and copies from there to the others.
template<class J> FN void reduceMisaligned(const Block& b, const Turn& t) {
  const u32 all = (1u << t.ndst) - 1, share = alike(t, 0, all);
  if (!all) return;
  moveShare<J>(b, t, {share, nullptr}, 0);
  if (share == all) return;
  b.barrier();
  copyMisaligned<J::T>(b, t, t.dst[0], all & ~share);
}

}  // namespace
}  // namespace oxccl
