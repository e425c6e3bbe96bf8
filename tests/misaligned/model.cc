// Turns whose data is not aligned, as GPUs run them: kernels/reduce.cuh compiled for the host with loads and stores
// that are as strict as a GPU's. Every turn is run by threads that meet at the block's barrier, and compared byte for
// byte with one that goes by single elements. Prints what is wrong; exit status 1 where something is.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <vector>

#include "ll.cuh"

using namespace oxccl;

namespace {

constexpr u32 THREADS = 4;
constexpr u8 OLD = 0x5a;   // what was there before

unsigned long wrong = 0, cases = 0;

// Memory with bytes around it that must not change. It begins `offset` bytes behind a multiple of 64.
struct Buffer {
  static constexpr u64 GUARD = 64;
  std::vector<char> memory;
  u64 offset, bytes;

  Buffer(u64 offset, u64 bytes) : memory(3 * GUARD + offset + bytes + GUARD, (char)OLD), offset(offset), bytes(bytes) {}
  char* at() { return (char*)(((u64)memory.data() + GUARD + 63) / 64 * 64 + offset); }
  bool guarded() {
    for (const char* p = memory.data(); p < memory.data() + memory.size(); p++)
      if ((p < at() || p >= at() + bytes) && *p != (char)OLD) return false;
    return true;
  }
};

struct Running {
  const LaunchArgs* args;
  const Turn* turn;
  char* barrier;
  u32 thread;
};
template<Type T> void* runThread(void* of) {
  const Running& r = *(const Running*)of;
  softcudaBlock s = {};
  s.blockDim[0] = THREADS;
  s.threadIdx[0] = r.thread;
  s.barrier = r.barrier;
  moveTurn<T>(Block(s, *r.args), *r.turn);
  return nullptr;
}
template<Type T> void runAll(const Turn& t) {
  LaunchArgs args = {};
  args.yields = 1000;
  args.futex_ns = 1000000;
  alignas(64) char barrier[256] = {};
  Running running[THREADS];
  pthread_t threads[THREADS];
  for (u32 i = 0; i < THREADS; i++) running[i] = {&args, &t, barrier, i};
  for (u32 i = 1; i < THREADS; i++)
    if (pthread_create(&threads[i], nullptr, runThread<T>, &running[i])) __builtin_trap();
  runThread<T>(&running[0]);
  for (u32 i = 1; i < THREADS; i++) pthread_join(threads[i], nullptr);
}

// What an element of the result is.
template<Type T> Pack<sizeOf<T>> element(const Turn& t, u64 at) {
  constexpr int B = sizeOf<T>;
  Pack<B> sum[1] = {};
  for (u32 s = 0; s < t.nsrc; s++) {
    Pack<B> x[1];
    memcpy(x, t.src[s] + at, B);
    if ((t.scale & WORK_PRE) && s == t.place) x[0] = scaled<T, B>(x[0], t.pre);
    if (s == 0) sum[0] = x[0];
    else if (t.op == SUM) combine<T, SUM, B, 1>(t.op, sum, x);
    else if (t.op == PROD) combine<T, PROD, B, 1>(t.op, sum, x);
    else if (t.op == MAX) combine<T, MAX, B, 1>(t.op, sum, x);
    else combine<T, MIN, B, 1>(t.op, sum, x);
  }
  if constexpr (isInteger<T>)
    if (t.scale & WORK_POST) sum[0] = divide<T, B>(sum[0], t.post);
  return sum[0];
}

struct Case {
  u64 count;
  std::vector<u64> sources, destinations;   // elements by which each is off
  u32 op, scale;
  bool in_place;   // the first source and the first destination are one
};

template<Type T> void check(const Case& c, u32 seed) {
  constexpr int B = sizeOf<T>;
  const u64 bytes = c.count * B;
  std::vector<Buffer> in, out;
  for (u64 offset : c.sources) in.emplace_back(offset * B, bytes);
  for (u64 offset : c.destinations) out.emplace_back(offset * B, bytes);
  Turn t = {};
  t.bytes = bytes;
  t.nsrc = (u32)in.size();
  t.ndst = (u32)out.size();
  t.op = c.op;
  t.scale = c.scale;
  t.place = t.nsrc - 1;
  t.pre = 0x4040404040404040ull;
  t.post = 3;
  u32 random = seed;
  // Floats without the top bit of the exponent: there is no NaN, whose bits could depend on the order of operands.
  const u32 bits = isInteger<T> ? 0xff : 0xbf;
  for (Buffer& b : in)
    for (u64 i = 0; i < bytes; i++) b.at()[i] = (char)((random = random * 1664525 + 1013904223) >> 24 & bits);
  for (u32 i = 0; i < t.nsrc; i++) t.src[i] = in[i].at();
  for (u32 i = 0; i < t.ndst; i++) t.dst[i] = out[i].at();
  if (c.in_place) t.dst[0] = in[0].at();
  std::vector<char> want(bytes);
  for (u64 at = 0; at < bytes; at += B) {
    const Pack<B> e = element<T>(t, at);
    memcpy(want.data() + at, &e, B);
  }
  runAll<T>(t);
  bool right = true;
  for (u32 i = 0; i < t.ndst; i++) right &= !memcmp(t.dst[i], want.data(), bytes);
  for (Buffer& b : in) right &= b.guarded();
  for (Buffer& b : out) right &= b.guarded();
  cases++;
  if (right || ++wrong > 20) return;
  printf("wrong: type %u, %llu elements, %u to %u, offsets %llu and %llu, operator %u, scale %u\n", T, c.count, t.nsrc,
         t.ndst, c.sources[0], c.destinations[0], c.op, c.scale);
}

// A line of LL, loaded by whole words, at every offset and up to the end of the data.
template<Type T> void lines() {
  alignas(64) char memory[64];
  for (u32 i = 0; i < sizeof memory; i++) memory[i] = (char)(17 * i + 3);
  for (u64 offset = 0; offset < 24; offset += sizeOf<T>)
    for (u64 left = sizeOf<T>; left < 20; left += sizeOf<T>) {
      u64 want = 0;
      memcpy(&want, memory + offset, left < LINE_DATA ? left : LINE_DATA);
      const u64 words = loadUser<T, true>(memory + offset, left), bytes = loadUser<T, false>(memory + offset, left);
      cases++;
      if ((words == want && bytes == want) || ++wrong > 20) continue;
      printf("wrong: a line of type %u at %llu, %llu left\n", T, offset, left);
    }
}

// Copies to one, and to several that are off from each other; reductions of two and three, in place and not.
template<Type T> void every() {
  lines<T>();
  const u64 pack = 16 / sizeOf<T>, unit = pack < 4 ? 1 : pack / 4;
  const u64 block = THREADS * pack;   // what one pack of each thread is
  u32 seed = T;
  for (u64 count : {u64(1), u64(2), u64(3), pack - 1, pack, pack + 1, 2 * pack + 1, block + 3, 5 * block + 7,
                    9 * block + pack + 5})
    for (u64 from = 0; from < pack + 2; from += 1 + (from > 4 ? unit : 0))
      for (u64 to = 0; to < pack + 2; to += 1 + (to > 3 ? unit : 0)) {
        check<T>({count, {from}, {to}, SUM, 0, false}, ++seed);
        check<T>({count, {from}, {to, 0, from + 1, to}, SUM, 0, false}, ++seed);
        check<T>({count, {from, 0}, {to, 0}, seed % NOPS, 0, false}, ++seed);
        check<T>({count, {from, to + 1, 0}, {from}, seed % NOPS, 0, true}, ++seed);
        check<T>({count, {from, to}, {0, to, from}, SUM, seed % 4, false}, ++seed);
        check<T>({count, {from}, {to, 0}, SUM, 1 + seed % 3, false}, ++seed);
      }
}

}  // namespace

int main() {
#if defined(OXCCL_FEW)   // enough to find what is broken
  every<U8>(), every<F32>();
#else
  every<I8>(), every<U8>(), every<I32>(), every<U32>(), every<I64>(), every<U64>();
  every<F16>(), every<BF16>(), every<F32>(), every<F64>(), every<F8E4M3>(), every<F8E5M2>();
#endif
  printf("%lu cases, %lu wrong\n", cases, wrong);
  return wrong != 0;
}
