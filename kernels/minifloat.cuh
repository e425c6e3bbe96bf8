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
  static constexpr int BIAS = (1 << (E - 1)) - 1;
  static constexpr int DROP = 23 - M;                              // mantissa bits that float has more
  static constexpr u32 MAGNITUDE = (1u << (E + M)) - 1;
  static constexpr u32 TOP = ((1u << E) - 1) << M;                 // exponent all ones
  static constexpr u32 LARGEST = INF ? TOP - 1 : MAGNITUDE - 1;    // largest finite
  static constexpr u32 LARGEST_FLOAT = (LARGEST << DROP) + ((127u - BIAS) << 23);
  static constexpr u32 FLOAT_INF = 0x7f800000u;
  static constexpr u32 NAN_BITS = OVER == TO_FINITE ? MAGNITUDE : TOP | 1u << (M - 1);

  template<class F, class W> static MEMBER F widen(W h) {
    const W mag = h & MAGNITUDE;
    // The exponent field lands in float's, too low by the difference in bias; a multiplication mends it,
    // and normalises what was subnormal.
    const F f = asFloat<F>(mag << DROP) * asFloat<float>((254u - BIAS) << 23);
    const W special = (W)(INF ? mag >= TOP : mag == MAGNITUDE);
    const W w = special ? (asWord<W>(f) | FLOAT_INF) : asWord<W>(f);
    return asFloat<F>(w | (h & (MAGNITUDE + 1)) << (31 - E - M));
  }

  template<class F, class W> static MEMBER W narrow(F f) {
    const W w = asWord<W>(f), sign = (w >> 31) << (E + M), mag0 = w & 0x7fffffffu;
    const W mag = OVER == TO_FINITE ? least(mag0, W{} + LARGEST_FLOAT) : mag0;
    const W normal = (mag + (((1u << (DROP - 1)) - 1) - ((127u - BIAS) << 23)) + ((mag >> DROP) & 1)) >> DROP;
    // Subnormal results: adding this power of two puts the last bit that is kept at the end of the
    // float's mantissa, and the addition rounds.
    constexpr u32 ALIGN = (127u + 24 - BIAS - M) << 23;
    const W tiny = asWord<W>(asFloat<F>(mag) + asFloat<float>(ALIGN)) - ALIGN;
    const W finite = mag < ((128u - BIAS) << 23) ? tiny : normal;
    const W bounded = OVER == TO_FINITE ? finite : least(finite, W{} + TOP);
    return (f != f ? W{} + NAN_BITS : bounded) | sign;
  }

 private:
  template<class W> static MEMBER W least(W a, W b) { return a < b ? a : b; }
};

typedef Mini<5, 10, true, TO_INFINITY> Half;
typedef Mini<4, 3, false, TO_FINITE> E4m3;
typedef Mini<5, 2, true, TO_FINITE> E5m2;

// bfloat16: the upper half of a float.
struct Brain {
  template<class F, class W> static MEMBER F widen(W h) { return asFloat<F>(h << 16); }
  template<class F, class W> static MEMBER W narrow(F f) {
    const W w = asWord<W>(f), round = (w + 0x7fffu + ((w >> 16) & 1)) >> 16;
    return f != f ? (w >> 16) | 0x40u : round;
  }
};

// How a small type computes. fp8 results go by way of fp16 (nccl-abi §5.1), whose own rounding must show.
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
