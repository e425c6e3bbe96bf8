// LL128 without a GPU: kernels/ll128.cuh compiled for the host, and a model of a block whose threads run one after
// the other. What arrives is always there when it is looked for, so the model shows where data goes and what is
// computed, not how threads wait for each other. Prints what is wrong; exit status 1 where something is.
#include <stdio.h>
#include <string.h>

#include <vector>

#include "../../kernels/target.cuh"

namespace oxccl {
namespace {

// One thread at a time: what it sees, all see.
void warpInStep() {}
bool anyOfWarp(bool x) { return x; }
Pack<16> packOfLine(const Line& l) {
  Pack<16> p;
  memcpy(&p, &l, sizeof p);
  return p;
}
Line lineOfPack(const Pack<16>& p) {
  Line l;
  memcpy(&l, &p, sizeof l);
  return l;
}
template<Type T> constexpr int ROW_FLIGHT = 2;

}  // namespace
}  // namespace oxccl
#if !defined(OXCCL_MODEL_OF)   // a test may want a broken one
#define OXCCL_MODEL_OF "../../kernels/ll128.cuh"
#endif
#include OXCCL_MODEL_OF

using namespace oxccl;

namespace {

constexpr u32 SLOT = 8 * ROW_BYTES;
constexpr u8 OLD = 0x55;   // what was there before
constexpr u64 POSITION = (5ull << 32) + 7;

unsigned long wrong = 0, cases = 0;
void expect(bool right, const char* what, u64 a = 0, u64 b = 0, u64 c = 0) {
  if (right || ++wrong > 20) return;
  printf("wrong: %s (%llu, %llu, %llu)\n", what, a, b, c);
}

// --- the layout by itself -----------------------------------------------------------------------------------

// Every byte of a row has one place, in the line of its number; and the rest are flags.
void layoutIsOneToOne() {
  std::vector<int> data(ROW_DATA, -1), wire(ROW_BYTES, -1);
  for (u32 lane = 0; lane < WARP; lane++) {
    for (u32 half = 0; half < 2; half++) {
      const u32 skip = flagger(lane) ? 8 * half : 0, bytes = flagger(lane) ? 8 : 16;
      for (u32 i = 0; i < bytes; i++) {
        const u32 d = dataAt(lane, half) + skip + i, w = wireAt(lane, half) + i;
        expect(d < ROW_DATA && data[d] < 0 && w < ROW_BYTES && wire[w] < 0, "a byte has two places", d, w);
        data[d] = (int)w;
        wire[w] = (int)d;
        expect(travels(lane, half, d + 1), "the line of a byte travels", lane, half, d);
        expect(!travels(lane, half, d / WIDE_DATA * WIDE_DATA), "a line without data stays", lane, half, d);
      }
      if (!flagger(lane)) continue;
      for (u32 i = 8; i < 16; i++) wire[wireAt(lane, half) + i] = -2;
      expect(wireAt(lane, half) % WIDE_BYTES == WIDE_BYTES - 16, "a flag ends its line", lane, half);
    }
  }
  for (u32 d = 0; d < ROW_DATA; d++) {
    expect(data[d] >= 0, "a byte has no place", d);
    const u32 line = (u32)data[d] / WIDE_BYTES;
    expect(line % 4 * 2 + line / 4 == d / WIDE_DATA, "a byte is in its line", d, line);
  }
  for (u32 w = 0; w < ROW_BYTES; w++) expect(wire[w] != -1, "a place has no byte", w);
}

// --- turns ----------------------------------------------------------------------------------------------------

struct Model {
  LaunchArgs args = {};
  u32 abort = ABORT_NONE, threads;

  explicit Model(u32 threads) : threads(threads) { args.abort = &abort; }
  // All threads of a block, one after the other; whether all went to the end.
  template<Type T> bool move(const Turn& t) {
    bool all = true;
    for (u32 i = 0; i < threads; i++) {
      softcudaBlock s = {};
      s.blockDim[0] = threads;
      s.threadIdx[0] = i;
      all &= WideLines::move<T>(Block(s, args), t);
    }
    return all;
  }
};

// Memory with bytes around it that must not change.
struct Buffer {
  static constexpr u64 GUARD = 256;
  std::vector<u64> words;
  u64 offset, bytes;

  Buffer(u64 offset, u64 bytes) : words((2 * GUARD + offset + bytes) / 8 + 3, 0), offset(offset), bytes(bytes) {
    memset(words.data(), OLD, words.size() * 8);
  }
  // 16-byte aligned, but for the offset.
  char* at() { return (char*)(((u64)words.data() + GUARD + 15) / 16 * 16 + offset); }
  bool guarded() {
    const char* first = (const char*)words.data();
    const char* end = first + words.size() * 8;
    for (const char* p = first; p < at(); p++)
      if (*p != OLD) return false;
    for (const char* p = at() + bytes; p < end; p++)
      if (*p != OLD) return false;
    return true;
  }
};

Turn turn(u64 bytes, u32 user) {
  Turn t = {};
  t.bytes = bytes;
  t.user = user;
  t.place = user & STEP_IN ? 0 : ~0u;
  t.op = SUM;
  return t;
}

// What a slot looks like after `bytes` were sent: lines with data have this turn's flag, the others are as before.
void checkSlot(Buffer& slot, u64 bytes) {
  const u64 rows = (bytes + ROW_DATA - 1) / ROW_DATA;
  for (u64 line = 0; line < SLOT / WIDE_BYTES; line++) {
    const u64 row = line / 8, number = row * 8 + line % 4 * 2 + line % 8 / 4;
    const char* p = slot.at() + line * WIDE_BYTES;
    u64 flag;
    memcpy(&flag, p + WIDE_DATA, 8);
    if (number * WIDE_DATA < bytes) {
      expect(row < rows && flag == POSITION + 1, "flag", line, flag, bytes);
    } else {
      for (u32 i = 0; i < WIDE_BYTES; i++) expect(p[i] == OLD, "a line that does not travel", line, i, bytes);
    }
  }
}

template<Type T> void send(Model& m, Buffer& in, Buffer& slot) {
  Turn t = turn(in.bytes, STEP_IN);
  t.nsrc = t.ndst = 1;
  t.src[0] = in.at();
  t.dst[0] = slot.at();
  t.dst_pos[0] = POSITION;
  expect(m.move<T>(t), "send", in.bytes);
}

// User's memory to a slot and from there to user's memory: nothing is changed, nothing else is touched.
template<Type T> void identity(u64 count, u64 from, u64 to, u32 threads) {
  const u64 size = sizeOf<T>, bytes = count * size;
  Model m(threads);
  Buffer in(from * size, bytes), slot(0, SLOT), out(to * size, bytes);
  for (u64 i = 0; i < bytes; i++) in.at()[i] = (char)(i * 131 + i / 251 + 1);
  send<T>(m, in, slot);
  checkSlot(slot, bytes);
  Turn t = turn(bytes, STEP_OUT);
  t.nsrc = t.ndst = 1;
  t.src[0] = slot.at();
  t.src_pos[0] = POSITION;
  t.dst[0] = out.at();
  expect(m.move<T>(t), "receive", bytes);
  expect(!memcmp(in.at(), out.at(), bytes), "data comes out as it went in", T, count, from * 100 + to);
  expect(in.guarded() && slot.guarded() && out.guarded(), "bytes around buffers", T, count, from * 100 + to);
  cases++;
}

// Own and received data, reduced in place and sent on, then received: both hold (3 * pre + 4) / post for each element.
template<Type T, class E> void reduction(u64 count, u64 offset, E pre, E post) {
  Model m(64);
  const u64 bytes = count * sizeof(E);
  Buffer theirs(0, bytes), mine(offset * sizeof(E), bytes), slot(0, SLOT), next(0, SLOT), last(0, bytes);
  for (u64 i = 0; i < count; i++) {
    ((E*)theirs.at())[i] = (E)4;
    ((E*)mine.at())[i] = (E)3;
  }
  send<T>(m, theirs, slot);
  Turn t = turn(bytes, STEP_IN | STEP_OUT);
  t.nsrc = t.ndst = 2;
  t.place = 1;
  t.src[0] = slot.at();
  t.src[1] = t.dst[0] = mine.at();
  t.dst[1] = next.at();
  t.src_pos[0] = t.dst_pos[1] = POSITION;
  t.scale = (pre != 1 ? WORK_PRE : 0) | (post != 1 ? WORK_POST : 0);
  memcpy(&t.pre, &pre, sizeof pre);
  memcpy(&t.post, &post, sizeof post);
  expect(m.move<T>(t), "reduce", bytes);
  checkSlot(next, bytes);
  t = turn(bytes, STEP_OUT);
  t.nsrc = t.ndst = 1;
  t.src[0] = next.at();
  t.src_pos[0] = POSITION;
  t.dst[0] = last.at();
  expect(m.move<T>(t), "receive what was reduced", bytes);
  const E want = (E)((3 * pre + 4) / post);
  for (u64 i = 0; i < count; i++)
    expect(((E*)mine.at())[i] == want && ((E*)last.at())[i] == want, "a sum", T, count, i);
  expect(mine.guarded() && next.guarded() && last.guarded(), "bytes around sums", T, count);
  cases++;
}

// A line that has not come, and one of another turn: nothing is taken from them, and who is told to leave leaves.
void waitsForEveryLine(u64 bytes, u64 line) {
  Model m(32);
  m.abort = 7;
  Buffer in(0, bytes), slot(0, SLOT), out(0, bytes);
  send<U8>(m, in, slot);
  memset(out.at(), 1, bytes);
  const u64 old = POSITION + 1 - (1ull << 32);
  memcpy(slot.at() + line * WIDE_BYTES + WIDE_DATA, &old, 8);
  Turn t = turn(bytes, STEP_OUT);
  t.nsrc = t.ndst = 1;
  t.src[0] = slot.at();
  t.src_pos[0] = POSITION;
  t.dst[0] = out.at();
  // The thread with the flag is the one that speaks for all in a warp; here it speaks for itself.
  softcudaBlock s = {};
  s.blockDim[0] = 32;
  s.threadIdx[0] = (u32)(line % 4 * GROUP + GROUP - 1);
  expect(!WideLines::move<U8>(Block(s, m.args), t), "an old flag is not taken", bytes, line);
  cases++;
}

template<Type T> void identities() {
  const u64 size = sizeOf<T>, row = ROW_DATA / size;
  for (u64 count : {u64(1), u64(2), u64(3), u64(15), 119 / size, 120 / size, 120 / size + 1, 239 / size, 240 / size + 1,
                    row - 1, row, row + 1, 2 * row - 1, 2 * row, 3 * row + 7, 4 * row, 5 * row, 8 * row - 1, 8 * row})
    for (u64 from = 0; from < 4; from++)
      for (u64 to = 0; to < 4; to++)
        for (u32 threads : {32u, 64u, 96u}) identity<T>(count, from, to, threads);
}

}  // namespace

int main() {
  layoutIsOneToOne();
  identities<I8>(), identities<U8>(), identities<I32>(), identities<U32>(), identities<I64>(), identities<U64>();
  identities<F16>(), identities<BF16>(), identities<F32>(), identities<F64>(), identities<F8E4M3>(),
      identities<F8E5M2>();
  for (u64 count : {1, 15, 100, 240, 960})
    for (u64 offset : {0, 1}) {
      reduction<I8, signed char>(count, offset, 1, 3);
      reduction<U8, u8>(count, offset, 1, 1);
      reduction<I32, i32>(count, offset, 1, 1);
      reduction<I32, i32>(count, offset, 1, 2);
      reduction<U64, u64>(count, offset, 1, 7);
      reduction<F32, float>(count, offset, 0.5f, 1);
      reduction<F32, float>(count, offset, 1, 1);
      reduction<F64, double>(count, offset, 0.25, 1);
    }
  for (u64 line : {0, 3, 4, 7}) waitsForEveryLine(ROW_DATA, line);
  printf("%lu cases, %lu wrong\n", cases, wrong);
  return wrong != 0;
}
