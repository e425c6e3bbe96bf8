// The GPU target, for nvcc and NVRTC: needs no header but work.h, so that it compiles where there is none.
// One block runs one channel; the first warp's lanes look after the links.
#pragma once

#define FN __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define RARE __device__ __forceinline__   // a call would need a stack
#define UNROLL _Pragma("unroll")
#define OXCCL_WARPS

namespace oxccl {
namespace {

class Block {
 public:
  MEMBER explicit Block(const LaunchArgs& args) : args_(args) {}
  MEMBER u32 tid() const { return threadIdx.x; }
  MEMBER u32 threads() const { return blockDim.x; }
  MEMBER u32 index() const { return blockIdx.x; }
  MEMBER const LaunchArgs& args() const { return args_; }
  MEMBER bool manager() const { return threadIdx.x < 32; }
  MEMBER u32 lane() const { return threadIdx.x; }
  MEMBER u32 lanes() const { return blockDim.x < 32 ? blockDim.x : 32; }
  MEMBER void lanesBarrier() const { __syncwarp(blockDim.x < 32 ? (1u << blockDim.x) - 1 : ~0u); }
  MEMBER void barrier() const { __syncthreads(); }

 private:
  const LaunchArgs& args_;
};

// --- links ---------------------------------------------------------------------------------------------

// In shared memory, between threads.
FN u32 loadFlag(const u32* p) { return *(const volatile u32*)p; }
FN void storeFlag(u32* p, u32 v) { *(volatile u32*)p = v; }

FN u64 loadAcquire(const u64* p) {
  u64 v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
FN u32 aborted(const LaunchArgs& a) {
  u32 v = ABORT_NONE;
  if (a.abort) asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(a.abort) : "memory");
  return v;
}
// Whether a block of this rank failed by itself: then the rank is lost, and all of its blocks leave.
FN bool broken(const LaunchArgs& a) {
  u32 claim = ERROR_NONE;
  if (a.error)
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(claim) : "l"(a.error + ERROR_CLAIM) : "memory");
  return claim != ERROR_NONE && claim != ERROR_ABORTED;
}
// Kernels of a context report one at a time. Not all systems can compare and swap in the host's memory, so this lies in
// the device's.
__device__ u32 reporting;

FN void storeHost(u32* p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
// Says it if nobody has said anything. What it says more is there before the first word is.
FN void sayFirst(u32* words, u32 error, u32 peer, u32 serial, u32 own, u32 theirs) {
  u32 claim;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(claim) : "l"(words + ERROR_CLAIM) : "memory");
  if (claim != ERROR_NONE) return;
  storeHost(words + ERROR_CLAIM, error);
  storeHost(words + 1, peer);
  storeHost(words + 2, serial);
  storeHost(words + 3, own);
  storeHost(words + 4, theirs);
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(words), "r"(error) : "memory");
}
// Reports an error if it is the first. Threads of a warp that come together must not wait for each other behind the
// loop, so each does its work inside.
RARE void report(const LaunchArgs& a, u32 error, u32 peer = 0, u32 serial = 0, u32 own = 0, u32 theirs = 0) {
  for (bool told = !a.error; !told;) {
    u32 busy;
    asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, 1;" : "=r"(busy) : "l"(&reporting) : "memory");
    if (busy) continue;
    sayFirst(a.error, error, peer, serial, own, theirs);
    asm volatile("st.release.gpu.global.u32 [%0], 0;" ::"l"(&reporting) : "memory");
    told = true;
  }
}
// The host's words are a microsecond away: nothing looks at them that is not waiting anyway.
constexpr bool HOST_IS_NEAR = false;
// Each load of a step or a link is a third of a microsecond.
constexpr bool STATE_IS_NEAR = false;

FN u64 loadWord(const u64* p) {
  u64 v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
FN void storeWord(u64* p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
// Whether who writes a counter has left for good; what it wrote before is seen then.
FN u32 loadLeft(const Counter& c) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(&c.left) : "memory");
  return v;
}

// Whoever waits looks this seldom at what else there is: the host's words may be a microsecond away.
constexpr u32 POLLS_PER_CHECK = 1024;

FN bool reached(u64 seen, u64 want) { return (long long)(seen - want) >= 0; }

// Waits until the counter is at least `want`. An acquire empties the SM's cache, so there is one, when it is over.
FN Waited wait(const Block& b, Counter* c, u64 want, u64& seen) {
  if (reached(seen, want)) return READY;
  for (u32 polls = 1; !reached(loadWord(&c->value), want); polls++) {
    if (polls % POLLS_PER_CHECK) continue;
    if (aborted(b.args()) || broken(b.args())) return TOLD;
    // What was posted before counts.
    if (loadLeft(*c) && !reached(loadWord(&c->value), want)) return PEER_LEFT;
  }
  seen = loadAcquire(&c->value);
  return READY;
}
// Moves a counter. The block's barrier before makes this release cover what all its threads did.
FN void post(Counter* c, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(&c->value), "l"(value) : "memory");
}
// Who writes a counter leaves for good.
FN void abandon(Counter* c) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&c->left), "r"(1) : "memory"); }

// --- data ----------------------------------------------------------------------------------------------

template<int B> struct Pack {
  u32 w[(B + 3) / 4];
};

// Volatile, so that several stay in flight; plain loads, never the read-only cache: a peer writes slots
// while the kernel runs.
template<int B> FN Pack<B> load(const char* p) {
  Pack<B> r;
  if constexpr (B == 16)
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
                 : "l"(p));
  else if constexpr (B == 8) asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(r.w[0]), "=r"(r.w[1]) : "l"(p));
  else if constexpr (B == 4) asm volatile("ld.global.u32 %0, [%1];" : "=r"(r.w[0]) : "l"(p));
  else if constexpr (B == 2)
    asm volatile("{.reg .u16 t; ld.global.u16 t, [%1]; cvt.u32.u16 %0, t;}" : "=r"(r.w[0]) : "l"(p));
  else asm volatile("ld.global.u8 %0, [%1];" : "=r"(r.w[0]) : "l"(p));
  return r;
}
template<int B> FN void store(char* p, const Pack<B>& r) {
  if constexpr (B == 16)
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(r.w[0]), "r"(r.w[1]), "r"(r.w[2]), "r"(r.w[3])
                 : "memory");
  else if constexpr (B == 8)
    asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(r.w[0]), "r"(r.w[1]) : "memory");
  else if constexpr (B == 4) asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(r.w[0]) : "memory");
  else if constexpr (B == 2)
    asm volatile("{.reg .u16 t; cvt.u16.u32 t, %1; st.global.u16 [%0], t;}" ::"l"(p), "r"(r.w[0]) : "memory");
  else asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(r.w[0]) : "memory");
}

template<int B> FN u64 bitsOf(const Pack<B>& p) {
  if constexpr (B == 8) return p.w[0] | (u64)p.w[1] << 32;
  else return p.w[0] & (u32)((1ull << 8 * B) - 1);
}
template<int B> FN Pack<B> packOf(u64 bits) {
  Pack<B> p;
  p.w[0] = (u32)bits;
  if constexpr (B == 8) p.w[1] = (u32)(bits >> 32);
  return p;
}

// A pack's words, and back; and of two words the 32 bits from bit `by` on, which is below 32.
FN void wordsOf(const Pack<16>& p, u32* w) { UNROLL for (int i = 0; i < 4; i++) w[i] = p.w[i]; }
FN Pack<16> packOfWords(const u32 (&w)[4]) { return {{w[0], w[1], w[2], w[3]}}; }
FN u32 funnel(u32 low, u32 high, u32 by) { return __funnelshift_r(low, high, by); }

// The memory model promises that each word of a vector is moved whole.
struct Line {
  u64 low, high;
};
FN Line loadLine(const char* p) {
  Line l;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0,%1}, [%2];" : "=l"(l.low), "=l"(l.high) : "l"(p) : "memory");
  return l;
}
FN void storeLine(char* p, const Line& l) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1,%2};" ::"l"(p), "l"(l.low), "l"(l.high) : "memory");
}

// The threads of a warp, all of which call: what comes next they do with one instruction.
FN void warpInStep() { __syncwarp(); }
// ... and whether any of them says so.
FN bool anyOfWarp(bool x) { return __any_sync(~0u, x); }
// A line as a pack, and back.
FN Pack<16> packOfLine(const Line& l) { return {{(u32)l.low, (u32)(l.low >> 32), (u32)l.high, (u32)(l.high >> 32)}}; }
FN Line lineOfPack(const Pack<16>& p) { return {p.w[0] | (u64)p.w[1] << 32, p.w[2] | (u64)p.w[3] << 32}; }

class Patience {
 public:
  // To be called after each look in vain; false: told to leave, or `watch` finds that nothing will come.
  template<class W> MEMBER bool lasts(const Block& b, W& watch) {
    return ++polls_ % POLLS_PER_CHECK || !(aborted(b.args()) || broken(b.args()) || !watch.lasts(b.args()));
  }

 private:
  u32 polls_ = 0;
};

template<class F> FN F asFloat(u32 w) { return __uint_as_float(w); }
template<class W> FN W asWord(float f) { return __float_as_uint(f); }

}  // namespace
}  // namespace oxccl
#include "minifloat.cuh"
namespace oxccl {
namespace {

// A compiled loop per operator would be four times the code: the operator is read at run time.
constexpr bool RUNTIME_OPERATOR = true;
constexpr bool NEEDS_ALIGNMENT = true;
template<Type T> constexpr int packBytes = 16;

#if __CUDA_ARCH__ >= 890
constexpr bool FP8_IN_HARDWARE = true;
#else
constexpr bool FP8_IN_HARDWARE = false;
#endif
// A pack is so much code that it is compiled once and not for each pack in flight.
template<Type T> constexpr bool LONG_CODE = Small<T>::viaHalf && !FP8_IN_HARDWARE;
// Packs in flight: what 128 registers hold at 512 threads without spilling.
template<Type T, bool SCALE, bool COPY> constexpr int flight =
    COPY && !SCALE ? 8 : SCALE && (isInteger<T> || LONG_CODE<T>) ? 1 : 4;

// What is left is less than that: small slots would move pack by pack.
constexpr bool SMALLER_FLIGHTS = true;

// Lines in flight, and rows of LL128, which are two lines to a thread.
constexpr int LINE_FLIGHT = 4;
template<Type T> constexpr int ROW_FLIGHT = 2;

template<int OP, class E> FN E applyInteger(E a, E b) {
  return OP == SUM ? a + b : OP == PROD ? a * b : OP == MAX ? (a > b ? a : b) : (a < b ? a : b);
}
// max.f32 and min.f32 drop a NaN; the _rn forms are never contracted to a fused multiply-add.
template<int OP> FN float applyFloat(float a, float b) {
  return OP == SUM ? __fadd_rn(a, b) : OP == PROD ? __fmul_rn(a, b) : OP == MAX ? fmaxf(a, b) : fminf(a, b);
}
template<int OP> FN double applyDouble(double a, double b) {
  return OP == SUM ? __dadd_rn(a, b) : OP == PROD ? __dmul_rn(a, b) : OP == MAX ? fmax(a, b) : fmin(a, b);
}

// Two halves at once.
template<int OP> FN u32 applyHalf2(u32 a, u32 b) {
  u32 r;
  if constexpr (OP == SUM) asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else if constexpr (OP == PROD) asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#if __CUDA_ARCH__ >= 800
  else if constexpr (OP == MAX) asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
  else {
    r = 0;
    UNROLL for (int i = 0; i < 32; i += 16) {
      const float x = Half::widen<float, u32>(a >> i & 0xffff), y = Half::widen<float, u32>(b >> i & 0xffff);
      r |= Half::narrow<float, u32>(applyFloat<OP>(x, y)) << i;
    }
  }
#endif
  return r;
}

// Two bfloat16 at once. a + b is a * 1 + b and a * b is a * b + -0, both rounded once.
template<int OP> FN u32 applyBrain2(u32 a, u32 b) {
  u32 r = 0;
#if __CUDA_ARCH__ >= 800
  if constexpr (OP == SUM) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(0x3f803f80u), "r"(b));
  else if constexpr (OP == PROD) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u));
  else if constexpr (OP == MAX) asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
  UNROLL for (int i = 0; i < 32; i += 16) {
    const float x = Brain::widen<float, u32>(a >> i & 0xffff), y = Brain::widen<float, u32>(b >> i & 0xffff);
    r |= Brain::narrow<float, u32>(applyFloat<OP>(x, y)) << i;
  }
#endif
  return r;
}

// Two fp8 in the low 16 bits, by way of fp16.
template<Type T, int OP> FN u32 applyByte2(u32 a, u32 b) {
#if __CUDA_ARCH__ >= 890
  u32 x, y, r;
  const u16 a16 = (u16)a, b16 = (u16)b;
  u16 r16;
  if constexpr (T == F8E4M3) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(x) : "h"(a16));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(b16));
    r = applyHalf2<OP>(x, y);
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(r16) : "r"(r));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(x) : "h"(a16));
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(b16));
    r = applyHalf2<OP>(x, y);
    asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(r16) : "r"(r));
  }
  return r16;
#else
  typedef typename Small<T>::Format Format;
  u32 r = 0;
  UNROLL for (int i = 0; i < 16; i += 8) {
    const float x = Format::template widen<float, u32>(a >> i & 0xff),
                y = Format::template widen<float, u32>(b >> i & 0xff);
    const float half = Half::nearest<float, u32>(applyFloat<OP>(x, y));
    r |= Format::template narrow<float, u32>(half) << i;
  }
  return r;
#endif
}

// Four 8-bit integers at once.
template<Type T, int OP> FN u32 applyByte4(u32 a, u32 b) {
  if constexpr (OP == SUM) return __vadd4(a, b);
  else if constexpr (OP == MAX) return T == I8 ? __vmaxs4(a, b) : __vmaxu4(a, b);
  else if constexpr (OP == MIN) return T == I8 ? __vmins4(a, b) : __vminu4(a, b);
  else {
    u32 r = 0;
    UNROLL for (int i = 0; i < 32; i += 8) r |= ((a >> i & 255) * (b >> i & 255) & 255) << i;
    return r;
  }
}

// All elements of a 32-bit word.
template<Type T, int OP> FN u32 applyWord(u32 a, u32 b) {
  if constexpr (T == F16) return applyHalf2<OP>(a, b);
  else if constexpr (T == BF16) return applyBrain2<OP>(a, b);
  else if constexpr (Small<T>::viaHalf) return applyByte2<T, OP>(a, b) | applyByte2<T, OP>(a >> 16, b >> 16) << 16;
  else if constexpr (sizeOf<T> == 1) return applyByte4<T, OP>(a, b);
  else if constexpr (T == F32) return __float_as_uint(applyFloat<OP>(__uint_as_float(a), __uint_as_float(b)));
  else if constexpr (T == I32) return (u32)applyInteger<OP>((i32)a, (i32)b);
  else return applyInteger<OP>(a, b);
}
template<Type T, int OP> FN u64 applyLong(u64 a, u64 b) {
  if constexpr (T == F64)
    return __double_as_longlong(applyDouble<OP>(__longlong_as_double(a), __longlong_as_double(b)));
  else if constexpr (T == I64 && OP >= MAX) return (u64)applyInteger<OP>((long long)a, (long long)b);
  else return applyInteger<OP>(a, b);
}

template<Type T, int OP, int B> FN Pack<B> applyPack(const Pack<B>& a, const Pack<B>& b) {
  Pack<B> r;
  if constexpr (sizeOf<T> == 8) {
    UNROLL for (int i = 0; i < B / 4; i += 2) {
      const u64 x = applyLong<T, OP>(a.w[i] | (u64)a.w[i + 1] << 32, b.w[i] | (u64)b.w[i + 1] << 32);
      r.w[i] = (u32)x;
      r.w[i + 1] = (u32)(x >> 32);
    }
  } else {
    UNROLL for (int i = 0; i < (B + 3) / 4; i++) r.w[i] = applyWord<T, OP>(a.w[i], b.w[i]);
  }
  return r;
}
template<Type T, int OP, int B, int U> FN void applyAll(Pack<B> (&sum)[U], const Pack<B> (&x)[U]) {
  if constexpr (LONG_CODE<T> && B > 4 && U > 1) {
    // The packs pass by in turn, since registers have no index.
    Pack<B> rest[U];
    UNROLL for (int u = 0; u < U; u++) rest[u] = x[u];
    _Pragma("unroll 1") for (int n = 0; n < U; n++) {
      const Pack<B> first = applyPack<T, OP, B>(sum[0], rest[0]);
      UNROLL for (int u = 1; u < U; u++) {
        sum[u - 1] = sum[u];
        rest[u - 1] = rest[u];
      }
      sum[U - 1] = first;
    }
  } else {
    UNROLL for (int u = 0; u < U; u++) sum[u] = applyPack<T, OP, B>(sum[u], x[u]);
  }
}
// sum = sum op x, for all packs in flight: one test of the operator.
template<Type T, int OP, int B, int U> FN void combine(u32 op, Pack<B> (&sum)[U], const Pack<B> (&x)[U]) {
  if constexpr (OP >= 0) applyAll<T, OP>(sum, x);
  else if (op == SUM) applyAll<T, SUM>(sum, x);
  else if (op == PROD) applyAll<T, PROD>(sum, x);
  else if (op == MAX) applyAll<T, MAX>(sum, x);
  else applyAll<T, MIN>(sum, x);
}

// a times the scalar with these bits.
template<Type T, int B> FN Pack<B> scaled(const Pack<B>& a, u64 bits) {
  const u32 low = (u32)bits;
  const u32 word = sizeOf<T> == 1 ? (low & 0xff) * 0x01010101u : sizeOf<T> == 2 ? (low & 0xffff) * 0x10001u : low;
  Pack<B> s;
  UNROLL for (int i = 0; i < (B + 3) / 4; i++) s.w[i] = sizeOf<T> == 8 && i % 2 ? (u32)(bits >> 32) : word;
  return applyPack<T, PROD, B>(a, s);
}

// Integer division toward zero.
template<Type T> FN u32 divideWord(u32 a, u32 by) {
  if constexpr (T == I32) return (u32)((i32)a / (i32)by);
  else if constexpr (T == U32) return a / by;
  else {
    u32 r = 0;
    UNROLL for (int i = 0; i < 32; i += 8) {
      const u32 e = a >> i & 0xff;
      r |= ((T == I8 ? (u32)((i32)(signed char)e / (i32)by) : e / by) & 0xff) << i;
    }
    return r;
  }
}
template<Type T, int B> FN Pack<B> divide(Pack<B> a, u64 by) {
  if constexpr (sizeOf<T> == 8) {
    UNROLL for (int i = 0; i < B / 4; i += 2) {
      const u64 x = a.w[i] | (u64)a.w[i + 1] << 32, q = T == I64 ? (u64)((long long)x / (long long)by) : x / by;
      a.w[i] = (u32)q;
      a.w[i + 1] = (u32)(q >> 32);
    }
  } else {
    UNROLL for (int i = 0; i < (B + 3) / 4; i++) a.w[i] = divideWord<T>(a.w[i], (u32)by);
  }
  return a;
}

// This thread's share of a range: every n-th pack, so that neighbours read neighbouring memory.
struct Walk {
  u64 at, end, hop;
};
template<int B>
FN Walk walk(const Block& b, u64 from, u64 to) {
  return {from + b.tid() * B, to, (u64)b.threads() * B};
}

}  // namespace
}  // namespace oxccl

// --- entry points ----------------------------------------------------------------------------------------

#define OXCCL_KERNEL(name, type, protocol)                                                                \
  extern "C" __global__ void __launch_bounds__(512, 1) name(const __grid_constant__ oxccl::LaunchArgs args) { \
    __shared__ oxccl::Shared shared;                                                                      \
    oxccl::interpret<type, protocol>(oxccl::Block(args), shared);                                         \
  }
