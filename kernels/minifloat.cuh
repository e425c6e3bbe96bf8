// Small floats as bit patterns, for scalars (GPU) and vectors (host) alike. F is float or a vector of
// floats, W the unsigned 32-bit integer of the same shape; a target provides asFloat and asWord.
// Rounding is to nearest even; subnormals are kept. Nothing here branches, so vectors stay vectors.
#pragma once

namespace oxccl {
namespace {

enum Overflow { TO_INFINITY, TO_FINITE };

// A sign, E exponent bits and M mantissa bits. With INF the top exponent means infinity and NaN (IEEE);
// without, only the pattern of all ones is NaN (e4m3).
template<int E, int M, bool INF, Overflow OVER> struct Mini {
  static constexpr u32 BIAS = (1u << (E - 1)) - 1;
  static constexpr int DROP = 23 - M;                              // mantissa bits that float has more
  static constexpr u32 MAGNITUDE = (1u << (E + M)) - 1;
  static constexpr u32 TOP = ((1u << E) - 1) << M;                 // exponent all ones
  static constexpr u32 NAN_BITS = OVER == TO_FINITE ? MAGNITUDE : TOP | 1u << (M - 1);
  static constexpr u32 FLOAT_INF = 0x7f800000u;
  // Bits of floats: the largest finite value, the first beyond it, the smallest that is not subnormal.
  static constexpr u32 LARGEST = (((INF ? TOP : MAGNITUDE) - 1) << DROP) + ((127 - BIAS) << 23);
  static constexpr u32 BEYOND = (TOP << DROP) + ((127 - BIAS) << 23);
  static constexpr u32 NORMAL = (128 - BIAS) << 23;
  // Adding this power of two puts the last bit that a subnormal keeps at the end of a float's mantissa, so
  // that the addition rounds.
  static constexpr u32 ALIGN = (127 + 24 - BIAS - M) << 23;

  // The value of a pattern.
  template<class F, class W> static MEMBER F widen(W h) {
    const W mag = h & MAGNITUDE;
    // The exponent field lands in float's, too low by the difference in bias; a multiplication mends it,
    // and normalises what was subnormal.
    const F f = asFloat<F>(mag << DROP) * asFloat<float>((254 - BIAS) << 23);
    W special;
    if constexpr (INF) special = (W)(f >= asFloat<float>(BEYOND));
    else special = (W)(mag == MAGNITUDE);
    const W w = special ? (asWord<W>(f) | FLOAT_INF) : asWord<W>(f);
    return asFloat<F>(w | (h & (MAGNITUDE + 1)) << (31 - E - M));
  }

  // The nearest pattern.
  template<class F, class W> static MEMBER W narrow(F f) {
    const W w = asWord<W>(f), sign = (w >> 31) << (E + M);
    F mag = asFloat<F>(w & 0x7fffffffu);
    if constexpr (OVER == TO_FINITE) mag = least(mag, asFloat<float>(LARGEST));
    const W tiny = asWord<W>(mag + asFloat<float>(ALIGN)) - ALIGN;
    const W normal = (roundBits(asWord<W>(mag)) - ((127 - BIAS) << 23)) >> DROP;
    W r = (W)(mag < asFloat<float>(NORMAL)) ? tiny : normal;
    if constexpr (OVER == TO_INFINITY) r = (W)(mag >= asFloat<float>(OVERFLOW)) ? W{} + TOP : r;
    return ((W)(f != f) ? W{} + NAN_BITS : r) | sign;
  }

  // The nearest value of this format, as a float. What is beyond the largest stays beyond it.
  template<class F, class W> static MEMBER F nearest(F f) {
    const W sign = asWord<W>(f) & 0x80000000u;
    const F mag = asFloat<F>(asWord<W>(f) & 0x7fffffffu);
    const W tiny = asWord<W>((mag + asFloat<float>(ALIGN)) - asFloat<float>(ALIGN));
    const W normal = roundBits(asWord<W>(mag)) & ~((1u << DROP) - 1);
    const W r = (W)(mag < asFloat<float>(NORMAL)) ? tiny : normal;
    return f != f ? f : asFloat<F>(r | sign);
  }

 private:
  // Half way from the largest finite value to what would be the next.
  static constexpr u32 OVERFLOW = LARGEST + (1u << (DROP - 1));
  template<class W> static MEMBER W roundBits(W mag) { return mag + ((1u << (DROP - 1)) - 1) + ((mag >> DROP) & 1); }
  template<class F> static MEMBER F least(F a, float b) { return a < b ? a : F{} + b; }
};

typedef Mini<5, 10, true, TO_INFINITY> Half;
typedef Mini<4, 3, false, TO_FINITE> E4m3;
typedef Mini<5, 2, true, TO_FINITE> E5m2;

// bfloat16: the upper half of a float.
struct Brain {
  template<class F, class W> static MEMBER F widen(W h) { return asFloat<F>(h << 16); }
  template<class F, class W> static MEMBER W narrow(F f) {
    // A NaN is cut, not rounded: what arithmetic makes, and what widen makes, has its payload in the upper half.
    const W w = asWord<W>(f), up = 0x7fffu + ((w >> 16) & 1);
    return (w + (f == f ? up : W{})) >> 16;
  }
};

// How a small type computes. fp8 results go by way of fp16, as NCCL computes them, and its own rounding
// must show.
template<Type T> struct Small { static constexpr bool viaHalf = false; };
template<> struct Small<F16> { typedef Half Format; static constexpr bool viaHalf = false; };
template<> struct Small<BF16> { typedef Brain Format; static constexpr bool viaHalf = false; };
template<> struct Small<F8E4M3> { typedef E4m3 Format; static constexpr bool viaHalf = true; };
template<> struct Small<F8E5M2> { typedef E5m2 Format; static constexpr bool viaHalf = true; };

template<Type T> constexpr bool isSmall = T == F16 || T == BF16 || T == F8E4M3 || T == F8E5M2;
template<Type T> constexpr bool isInteger = T < F16;
template<Type T> constexpr int sizeOf =
    T <= U8 || T == F8E4M3 || T == F8E5M2 ? 1 : T == F16 || T == BF16 ? 2 : T == I64 || T == U64 || T == F64 ? 8 : 4;

}  // namespace
}  // namespace oxccl
