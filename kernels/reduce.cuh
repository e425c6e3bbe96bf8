// The one loop that copies and reduces: every destination gets the reduction of all sources.
#pragma once
#include "misaligned.cuh"

namespace oxccl {
namespace {

// N pointers held in registers, or (N = 0) left where they are.
template<class P, int N> struct Pointers {
  P p[N];
  MEMBER explicit Pointers(const P* from) {
    UNROLL for (int i = 0; i < N; i++) p[i] = from[i];
  }
  MEMBER P operator[](int i) const { return p[i]; }
};
template<class P> struct Pointers<P, 0> {
  const P* p;
  MEMBER explicit Pointers(const P* from) : p(from) {}
  MEMBER P operator[](int i) const { return p[i]; }
};

// Moves packs of B bytes, U of them at once, as long as U fit; leaves the walk at the first one not moved.
template<class J, int B, int U> FN void sweep(const Turn& t, Walk& w) {
  const Pointers<const char*, J::NSRC> src(t.src);
  const Pointers<char*, J::NDST> dst(t.dst);
  const u32 nsrc = J::NSRC ? J::NSRC : t.nsrc, ndst = J::NDST ? J::NDST : t.ndst, op = t.op;
  for (; w.at + (U - 1) * w.hop + B <= w.end; w.at += U * w.hop) {
    Pack<B> sum[U];
    UNROLL for (int u = 0; u < U; u++) sum[u] = load<B>(src[0] + w.at + u * w.hop);
    prescale<J, B, U>(t, 0, sum);
    for (u32 s = 1; s < nsrc; s++) {
      const char* from = src[s] + w.at;
      Pack<B> x[U];
      UNROLL for (int u = 0; u < U; u++) x[u] = load<B>(from + u * w.hop);
      prescale<J, B, U>(t, s, x);
      combine<J::T, J::OP, B, U>(op, sum, x);
    }
    postscale<J, B, U>(t, sum);
    for (u32 d = 0; d < ndst; d++) {
      char* to = dst[d] + w.at;
      UNROLL for (int u = 0; u < U; u++) store<B>(to + u * w.hop, sum[u]);
    }
  }
}

template<int B> FN bool aligned(const Turn& t) {
  u64 bits = 0;
  for (u32 i = 0; i < t.nsrc; i++) bits |= (u64)t.src[i];
  for (u32 i = 0; i < t.ndst; i++) bits |= (u64)t.dst[i];
  return bits % B == 0;
}

// What does not fill all packs in flight: single packs, then single elements. One function for all shapes.
template<Type T, int OP, bool SCALE> RARE void rest(const Turn& t, Walk packs, Walk elements) {
  typedef Job<T, OP, SCALE, 0, 0> J;
  sweep<J, packBytes<T>, 1>(t, packs);
  sweep<J, sizeOf<T>, 1>(t, elements);
}

template<class J> FN void run(const Block& b, const Turn& t) {
  constexpr int B = packBytes<J::T>;
  if constexpr (NEEDS_ALIGNMENT && J::NSRC != 1)
    if (!aligned<B>(t)) return reduceMisaligned<J>(b, t);
  const u64 packed = t.bytes / B * B;
  Walk packs = walk<B>(b, 0, packed);
  sweep<J, B, J::FLIGHT>(t, packs);
  if constexpr (SMALLER_FLIGHTS && J::FLIGHT > 4) sweep<J, B, 4>(t, packs);
  if constexpr (SMALLER_FLIGHTS && J::FLIGHT > 2) sweep<J, B, 2>(t, packs);
  rest<J::T, J::OP, J::SCALE>(t, packs, walk<sizeOf<J::T>>(b, packed, t.bytes));
}

template<Type T, int OP, bool SCALE> FN void runShape(const Block& b, const Turn& t) {
  if (RUNTIME_OPERATOR) return run<Job<T, OP, SCALE, 0, 0>>(b, t);
  if (t.nsrc == 2 && t.ndst == 1) run<Job<T, OP, SCALE, 2, 1>>(b, t);
  else if (t.nsrc == 2 && t.ndst == 2) run<Job<T, OP, SCALE, 2, 2>>(b, t);
  else run<Job<T, OP, SCALE, 0, 0>>(b, t);
}

// One source, nothing to compute. ONE: and one destination.
template<Type T, bool ONE> FN void copy(const Block& b, const Turn& t) {
  if constexpr (NEEDS_ALIGNMENT)
    if (!aligned<packBytes<T>>(t)) return copyMisaligned<T>(b, t, t.src[0], ONE ? 1 : (1u << t.ndst) - 1);
  if (ONE || t.ndst == 1) return run<Job<T, SUM, false, 1, 1>>(b, t);
  return run<Job<T, SUM, false, 1, 0>>(b, t);
}

// Runs the loop that fits the turn. Scaling goes with SUM only (average, PreMulSum).
template<Type T> FN void moveTurn(const Block& b, const Turn& t) {
  if (t.scale) return runShape<T, SUM, true>(b, t);
  if (t.nsrc == 1) return copy<T, false>(b, t);
  if constexpr (RUNTIME_OPERATOR) return runShape<T, -1, false>(b, t);
  switch (t.op) {
    case SUM: return runShape<T, SUM, false>(b, t);
    case PROD: return runShape<T, PROD, false>(b, t);
    case MAX: return runShape<T, MAX, false>(b, t);
    default: return runShape<T, MIN, false>(b, t);
  }
}

}  // namespace
}  // namespace oxccl
