// The host image's target: one OS thread is one thread of a block. Compiled once per instruction set, all of it
// in anonymous namespaces, so that the linker cannot put one build's code into the other.
#pragma once
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include "image.h"

#define FN static inline __attribute__((always_inline))
#define MEMBER inline __attribute__((always_inline))
#define RARE static __attribute__((noinline))
#define UNROLL _Pragma("GCC unroll 16")

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a futex is the low word of a 64-bit counter");

namespace oxccl {
namespace {

FN void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// With OXCCL_LIKE_GPU (tests/misaligned, tests/tsan), loads and stores are as strict as a GPU's, and what only GPUs do
// is done, too.
#if defined(OXCCL_LIKE_GPU)
constexpr bool NEEDS_ALIGNMENT = true;
#else
constexpr bool NEEDS_ALIGNMENT = false;
#endif

// Negative controls for ThreadSanitizer: tests/tsan builds images in which it must find a race.
#if defined(OXCCL_BREAK_RELEASE)
constexpr int RELEASE = __ATOMIC_RELAXED;
#else
constexpr int RELEASE = __ATOMIC_RELEASE;
#endif

// Sleeps until `word` is seen to differ from `old`, somebody wakes it, or `ns` have passed. An early or
// missed wake-up is harmless: callers look again.
FN void futexWait(u32* word, u32 old, u64 ns, int scope) {
  const u64 second = 1000000000;
  struct timespec limit = {(time_t)(ns / second), (long)(ns % second)};
  syscall(SYS_futex, word, FUTEX_WAIT | scope, old, &limit, nullptr, 0);
}
FN void futexWake(u32* word, int threads, int scope) {
  syscall(SYS_futex, word, FUTEX_WAKE | scope, threads, nullptr, nullptr, 0);
}

// The sleep of who waits for a store that wakes nobody.
constexpr u64 NAP_NS = 50000;
FN void nap(u64 ns) {
  const struct timespec time = {0, (long)(ns < NAP_NS ? ns : NAP_NS)};
  nanosleep(&time, nullptr);
}
FN bool wakes(const LaunchArgs& a) { return !(a.flags & LAUNCH_NO_WAKE); }

// The block's barrier, in the 256 zeroed bytes that the launch gives. What is written on different sides
// lies on different cache lines.
struct Barrier {
  alignas(64) u32 arrived;
  alignas(64) u32 generation;
  u32 sleepers;
};
static_assert(sizeof(Barrier) <= 256, "softcudaBlock::barrier");

class Block {
 public:
  MEMBER Block(const softcudaBlock& s, const LaunchArgs& args)
      : id_(s.threadIdx[0]),
        threads_(s.blockDim[0]),
        index_(s.blockIdx[0]),
        barrier_((Barrier*)s.barrier),
        args_(args) {}
  MEMBER u32 tid() const { return id_; }
  MEMBER u32 threads() const { return threads_; }
  MEMBER u32 index() const { return index_; }
  MEMBER const LaunchArgs& args() const { return args_; }
  // Thread 0 alone looks after the links.
  MEMBER bool manager() const { return id_ == 0; }
  MEMBER u32 lane() const { return 0; }
  MEMBER u32 lanes() const { return 1; }
  MEMBER void lanesBarrier() const {}
  MEMBER void barrier() const {
    if (threads_ > 1) meet();
  }

 private:
  __attribute__((noinline)) void meet() const {
#if !defined(OXCCL_BREAK_BARRIER)
    Barrier& b = *barrier_;
    const u32 now = __atomic_load_n(&b.generation, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&b.arrived, 1, __ATOMIC_ACQ_REL) < threads_) return waitNext(b, now);
    __atomic_store_n(&b.arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&b.generation, now + 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b.sleepers, __ATOMIC_SEQ_CST)) futexWake(&b.generation, 1 << 30, FUTEX_PRIVATE_FLAG);
#endif
  }
  // The others of the block wait as long as the manager waits for a peer, so they sleep too.
  void waitNext(Barrier& b, u32 now) const {
    for (u32 n = 0; __atomic_load_n(&b.generation, __ATOMIC_ACQUIRE) == now; n++) {
      if (n < args_.spin) {
        pause();
      } else if (n < args_.spin + args_.yields) {
        sched_yield();
      } else if (!wakes(args_)) {
        nap(args_.futex_ns);
        n--;   // does not wrap, however long this lasts
      } else {
        __atomic_add_fetch(&b.sleepers, 1, __ATOMIC_SEQ_CST);
        futexWait(&b.generation, now, args_.futex_ns, FUTEX_PRIVATE_FLAG);
        __atomic_sub_fetch(&b.sleepers, 1, __ATOMIC_RELAXED);
      }
    }
  }

  u32 id_, threads_, index_;
  Barrier* barrier_;
  const LaunchArgs& args_;
};

FN u32 loadFlag(const u32* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
FN void storeFlag(u32* p, u32 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
FN u32 aborted(const LaunchArgs& a) { return a.abort ? loadFlag(a.abort) : (u32)ABORT_NONE; }
// Whether a block of this rank failed by itself: then the rank is lost, and all of its blocks leave.
FN bool broken(const LaunchArgs& a) {
  const u32 claim = a.error ? loadFlag(a.error + ERROR_CLAIM) : (u32)ERROR_NONE;
  return claim != ERROR_NONE && claim != ERROR_ABORTED;
}
// Reports an error if it is the first. What it says more is there before the first word is.
RARE void report(const LaunchArgs& a, u32 error, u32 peer = 0, u32 serial = 0, u32 own = 0, u32 theirs = 0) {
  u32 none = ERROR_NONE;
  if (!a.error ||
      !__atomic_compare_exchange_n(a.error + ERROR_CLAIM, &none, error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return;
  const u32 more[] = {peer, serial, own, theirs};
  for (u32 i = 0; i < sizeof more / sizeof *more; i++) storeFlag(a.error + 1 + i, more[i]);
  __atomic_store_n(a.error, error, RELEASE);
}
constexpr bool HOST_IS_NEAR = true;
constexpr bool STATE_IS_NEAR = !NEEDS_ALIGNMENT;

FN u64 loadWord(const u64* p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
FN void storeWord(u64* p, u64 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }

// Whether who writes a counter has left for good; what it wrote before is seen then.
FN u32 loadLeft(const Counter& c) { return __atomic_load_n(&c.left, __ATOMIC_ACQUIRE); }

FN bool reached(u64 seen, u64 want) { return (long long)(seen - want) >= 0; }

// There is no fence between a post and its look at `waiters`: a wake-up can get lost, and then costs the
// rest of one sleep (futex_ns), while the fast path pays one load.
RARE Waited waitSlow(const LaunchArgs& a, Counter& c, u64 want, u64& seen) {
  for (u32 n = 0;; n++) {
    seen = __atomic_load_n(&c.value, __ATOMIC_ACQUIRE);
    if (reached(seen, want)) return READY;
    if (n < a.spin) {
      pause();
      continue;
    }
    if (aborted(a) || broken(a)) return TOLD;
    if (loadLeft(c)) {
      seen = __atomic_load_n(&c.value, __ATOMIC_ACQUIRE);   // what was posted before counts
      return reached(seen, want) ? READY : PEER_LEFT;
    }
    if (n - a.spin < a.yields) {
      sched_yield();
      continue;
    }
    n = a.spin + a.yields;   // does not wrap, however long this lasts
    if (!wakes(a)) {
      nap(a.futex_ns);
      continue;
    }
    __atomic_store_n(&c.waiters, 1, __ATOMIC_SEQ_CST);
    seen = __atomic_load_n(&c.value, __ATOMIC_SEQ_CST);
    // Not FUTEX_PRIVATE: the other end may be another process.
    if (!reached(seen, want)) futexWait((u32*)&c.value, (u32)seen, a.futex_ns, 0);
    __atomic_store_n(&c.waiters, 0, __ATOMIC_RELAXED);
  }
}
// Waits until the counter is at least `want`.
FN Waited wait(const Block& b, Counter* c, u64 want, u64& seen) {
  if (reached(seen, want)) return READY;
  seen = __atomic_load_n(&c->value, __ATOMIC_ACQUIRE);
  return reached(seen, want) ? READY : waitSlow(b.args(), *c, want, seen);
}
// Moves a counter: what this block read or wrote before is done. Where stores wake nobody, nobody sets `waiters`.
FN void post(Counter* c, u64 value) {
  __atomic_store_n(&c->value, value, RELEASE);
  if (__builtin_expect(loadFlag(&c->waiters), 0)) futexWake((u32*)&c->value, 1, 0);
}
// Who writes a counter leaves for good.
RARE void abandon(Counter* c) {
  __atomic_store_n(&c->left, 1, RELEASE);
  if (loadFlag(&c->waiters)) futexWake((u32*)&c->value, 1, 0);
}

// Kernels run on the application's own threads, whose float modes are not ours: sums must be rounded to
// nearest and keep subnormals.
class FloatMode {
#if defined(__x86_64__)
 public:
  MEMBER FloatMode() : old_(_mm_getcsr()) {
    if ((old_ & CONTROL) != DEFAULT) _mm_setcsr(DEFAULT);
  }
  MEMBER ~FloatMode() {
    if ((old_ & CONTROL) != DEFAULT) _mm_setcsr(old_);
  }

 private:
  static constexpr u32 CONTROL = 0xffc0, DEFAULT = 0x1f80;   // all but the sticky flags; all exceptions masked
  u32 old_;
#endif
};

// --- data ---------------------------------------------------------------------------------------------

// Bytes of a vector register; wider vectors would be lowered through the stack.
#if defined(__AVX2__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

template<class E, int B> struct VectorOf {
  typedef E V __attribute__((vector_size(B), aligned(1), may_alias));
};
template<class E, int B> using Vector = typename VectorOf<E, B>::V;
template<int B> using Pack = Vector<u8, B>;

template<int B> FN Pack<B> load(const char* p) {
  if (NEEDS_ALIGNMENT && (u64)p % B) __builtin_trap();
  return *(const Pack<B>*)p;
}
template<int B> FN void store(char* p, Pack<B> v) {
  if (NEEDS_ALIGNMENT && (u64)p % B) __builtin_trap();
  *(Pack<B>*)p = v;
}

template<int B> FN u64 bitsOf(Pack<B> p) {
  u64 bits = 0;
  __builtin_memcpy(&bits, &p, B);
  return bits;
}
template<int B> FN Pack<B> packOf(u64 bits) {
  Pack<B> p;
  __builtin_memcpy(&p, &bits, B);
  return p;
}

FN void wordsOf(const Pack<16>& p, u32* w) { __builtin_memcpy(w, &p, sizeof p); }
FN Pack<16> packOfWords(const u32 (&w)[4]) {
  Pack<16> p;
  __builtin_memcpy(&p, w, sizeof p);
  return p;
}
FN u32 funnel(u32 low, u32 high, u32 by) { return (u32)(((u64)high << 32 | low) >> by); }

struct Line {
  u64 low, high;
};
// A word is data and flag at once, so it needs no order with anything else.
FN Line loadLine(const char* p) {
  return {__atomic_load_n((const u64*)p, __ATOMIC_RELAXED), __atomic_load_n((const u64*)p + 1, __ATOMIC_RELAXED)};
}
FN void storeLine(char* p, const Line& l) {
#if defined(OXCCL_BREAK_LINES)
  *(Line*)p = l;
  return;
#endif
  __atomic_store_n((u64*)p, l.low, __ATOMIC_RELAXED);
  __atomic_store_n((u64*)p + 1, l.high, __ATOMIC_RELAXED);
}

// Waiting for lines: nobody ever wakes who waits.
class Patience {
 public:
  // To be called after each look in vain; false: told to leave, or `watch` finds that nothing will come.
  template<class W> MEMBER bool lasts(const Block& b, W& watch) {
    if (looks_ < b.args().spin) {
      pause();
      looks_++;
      return true;
    }
    return lastsLonger(b, watch);
  }

 private:
  template<class W> __attribute__((noinline)) bool lastsLonger(const Block& b, W& watch) {
    if (aborted(b.args()) || broken(b.args()) || !watch.lasts(b.args())) return false;
    if (looks_ - b.args().spin < b.args().yields) {
      sched_yield();
      looks_++;
    } else {
      nap(NAP_NS);
    }
    return true;
  }

  u32 looks_ = 0;
};

template<class F, class W> FN F asFloat(W w) {
  static_assert(sizeof(F) == sizeof(W), "");
  F f;
  __builtin_memcpy(&f, &w, sizeof f);
  return f;
}
template<class W, class F> FN W asWord(F f) {
  static_assert(sizeof(F) == sizeof(W), "");
  W w;
  __builtin_memcpy(&w, &f, sizeof w);
  return w;
}

}  // namespace
}  // namespace oxccl
#include "minifloat.cuh"
namespace oxccl {
namespace {

template<Type T> struct ElementOf;
template<> struct ElementOf<I8> { typedef signed char E; typedef u8 U; };
template<> struct ElementOf<U8> { typedef u8 E; typedef u8 U; };
template<> struct ElementOf<I32> { typedef i32 E; typedef u32 U; };
template<> struct ElementOf<U32> { typedef u32 E; typedef u32 U; };
template<> struct ElementOf<I64> { typedef long long E; typedef u64 U; };
template<> struct ElementOf<U64> { typedef u64 E; typedef u64 U; };
template<> struct ElementOf<F16> { typedef u16 E; };
template<> struct ElementOf<BF16> { typedef u16 E; };
template<> struct ElementOf<F32> { typedef float E; };
template<> struct ElementOf<F64> { typedef double E; };
template<> struct ElementOf<F8E4M3> { typedef u8 E; };
template<> struct ElementOf<F8E5M2> { typedef u8 E; };
template<Type T> using Element = typename ElementOf<T>::E;

template<class X> struct WideOf { typedef X E; };
template<> struct WideOf<signed char> { typedef i32 E; };
template<> struct WideOf<u8> { typedef u32 E; };

// The operator is compiled in: loops are small here, and a test inside them would cost.
constexpr bool RUNTIME_OPERATOR = false;
// Packs in flight. What is left of a thread's share is few.
constexpr bool SMALLER_FLIGHTS = NEEDS_ALIGNMENT;
constexpr int LINE_FLIGHT = 1;
template<Type T, bool SCALE, bool COPY> constexpr int flight = SCALE ? 2 : COPY ? 8 : Small<T>::viaHalf ? 1 : 4;

#if defined(__F16C__)
constexpr bool HALF_IN_HARDWARE = true;
#else
constexpr bool HALF_IN_HARDWARE = false;
#endif

// Bytes of a type's pack. The hardware converts halves between registers of one and of two halves' size.
template<Type T> constexpr int packBytes = T == F16 && HALF_IN_HARDWARE ? 16 : REGISTER;

// MAX and MIN drop a NaN: `b != b` takes `a` where b is one, a comparison with a NaN in `a` is false and
// takes b. For integers the test costs nothing.
template<int OP, class V> FN V apply(V a, V b) {
  if constexpr (OP == SUM) return a + b;
  else if constexpr (OP == PROD) return a * b;
  else if constexpr (OP == MAX) return ((a > b) | (b != b)) ? a : b;
  else return ((a < b) | (b != b)) ? a : b;
}

// An fp8 result is rounded to fp16 first.
template<class F, class W> FN F throughHalf(F f) {
#if defined(__F16C__)
  if constexpr (sizeof(F) == 32)
    return (F)_mm256_cvtph_ps(_mm256_cvtps_ph(asWord<__m256>(f), _MM_FROUND_TO_NEAREST_INT));
#endif
  return Half::nearest<F, W>(f);
}

// One small float in the low bits of a word, or of each word of a vector.
template<Type T, int OP, class F, class W> FN W applyLow(W a, W b) {
  typedef typename Small<T>::Format Format;
  constexpr u32 MASK = (1u << (8 * sizeOf<T>)) - 1;
  F f = apply<OP>(Format::template widen<F, W>(a & MASK), Format::template widen<F, W>(b & MASK));
  if constexpr (Small<T>::viaHalf) f = throughHalf<F, W>(f);
  return Format::template narrow<F, W>(f);
}

// Small floats: the elements of each 32-bit word one after the other, all words of the pack side by side.
// Nothing has to be moved between words.
template<Type T, int OP, int B> FN Pack<B> applySmall(Pack<B> a, Pack<B> b) {
  if constexpr (B == sizeOf<T>) {
    return asWord<Pack<B>>((Element<T>)applyLow<T, OP, float, u32>(asWord<Element<T>>(a), asWord<Element<T>>(b)));
  } else {
    typedef Vector<float, B> F;
    typedef Vector<u32, B> W;
    W r = {};
    UNROLL for (int bit = 0; bit < 32; bit += 8 * sizeOf<T>)
      r |= applyLow<T, OP, F, W>((W)a >> bit, (W)b >> bit) << bit;
    return (Pack<B>)r;
  }
}

#if defined(__F16C__)
template<int OP> FN Pack<16> applyHalves(Pack<16> a, Pack<16> b) {
  typedef Vector<float, 32> F;
  const F x = (F)_mm256_cvtph_ps(asWord<__m128i>(a)), y = (F)_mm256_cvtph_ps(asWord<__m128i>(b));
  return asWord<Pack<16>>(_mm256_cvtps_ph(asWord<__m256>(apply<OP>(x, y)), _MM_FROUND_TO_NEAREST_INT));
}
#endif

template<Type T, int OP, int B> FN Pack<B> applyPack(Pack<B> a, Pack<B> b) {
#if defined(__F16C__)
  if constexpr (T == F16 && B == 16) return applyHalves<OP>(a, b);
#endif
  if constexpr (isSmall<T>) {
    return applySmall<T, OP, B>(a, b);
  } else if constexpr (isInteger<T> && OP <= PROD) {   // wraps: unsigned, where overflow is defined
    typedef Vector<typename ElementOf<T>::U, B> V;
    return (Pack<B>)apply<OP>((V)a, (V)b);
  } else {
    typedef Vector<Element<T>, B> V;
    return (Pack<B>)apply<OP>((V)a, (V)b);
  }
}

// sum = sum op x, for all packs in flight. OP is never -1 here.
template<Type T, int OP, int B, int U> FN void combine(u32, Pack<B> (&sum)[U], const Pack<B> (&x)[U]) {
  UNROLL for (int u = 0; u < U; u++) sum[u] = applyPack<T, OP, B>(sum[u], x[u]);
}

// a times the scalar with these bits.
template<Type T, int B> FN Pack<B> scaled(Pack<B> a, u64 bits) {
  Element<T> e;
  __builtin_memcpy(&e, &bits, sizeof e);
  return applyPack<T, PROD, B>(a, (Pack<B>)(Vector<Element<T>, B>{} + e));
}
// Integer division; C++ truncates toward zero, as an average of integers does in NCCL. Bytes divide as int: there can
// be more ranks than a byte counts.
template<Type T, int B> RARE Pack<B> divide(Pack<B> a, u64 by) {
  typedef typename WideOf<Element<T>>::E Wide;
  Vector<Element<T>, B> v = (Vector<Element<T>, B>)a;
  for (int i = 0; i < B / sizeOf<T>; i++) v[i] = (Element<T>)((Wide)v[i] / (Wide)by);
  return (Pack<B>)v;
}

// This thread's share of a range: one run of whole cache lines, so that threads do not share lines.
struct Walk {
  u64 at, end, hop;
};
template<int B> FN Walk walk(const Block& b, u64 from, u64 to) {
  if (b.threads() == 1) return {from, to, B};
  const u64 share = ((to - from + b.threads() - 1) / b.threads() + 63) / 64 * 64;
  const u64 at = from + b.tid() * share, end = at + share;
  return {at < to ? at : to, end < to ? end : to, B};
}

}  // namespace
}  // namespace oxccl

// --- entry points ---------------------------------------------------------------------------------------

#define OXCCL_KERNEL(name, type, protocol)                                                                \
  static void name(const softcudaBlock* block, void* const* params) {                                     \
    const oxccl::FloatMode mode;                                                                          \
    const oxccl::Block b(*block, *(const oxccl::LaunchArgs*)params[0]);                                   \
    oxccl::interpret<type, protocol>(b, *(oxccl::Shared*)block->shared);                                  \
  }

// The build's table of functions, OXCCL_IMAGE its name.
#define OXCCL_FUNCTION(name) {#name, name, sizeof(oxccl::Shared), 1024, 1, 0, oxccl_param_sizes},
#define OXCCL_IMAGE_TABLE(functions)                                                                      \
  static const uint32_t oxccl_param_sizes[] = {sizeof(oxccl::LaunchArgs)};                                \
  static const softcudaFunction oxccl_functions[] = {functions};                                          \
  extern "C" __attribute__((visibility("hidden"))) const softcudaImage OXCCL_IMAGE = {                    \
      SOFTCUDA_IMAGE_MAGIC, SOFTCUDA_IMAGE_VERSION, sizeof oxccl_functions / sizeof oxccl_functions[0], 0, \
      oxccl_functions};
