// Ranks, links and ring schedules in C++, to drive the host image without the rest of the library.
// Written apart from src/plan, so that a mistake there does not hide here.
#pragma once
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "image.h"
#include "work.h"

namespace oxccl {

// Zeroed memory that begins with a cache line and ends where it ends. Given back by the process's end.
static char* lines(size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 64, bytes)) exit(2);
  return (char*)memset(p, 0, bytes);
}

struct Policy {
  u32 spin = 20, yields = 200;
  u64 futex_ns = 1000000;
};

// One rank of a ring: link 0 receives from the rank before, link 1 sends to the next.
struct RingRank {
  Step steps[5];
  u32 nsteps;
  LinkEnd* ends;
  LaunchArgs args;
};

static Step ringStep(u8 flags, u8 nrecv, u8 nsend, u8 place, u32 repeat, u32 chunk) {
  Step s = {};
  s.flags = flags;
  s.nrecv = nrecv;
  s.nsend = nsend;
  s.place = place;
  s.repeat = (u16)repeat;
  s.stride = -1;
  s.in_chunk = s.out_chunk = chunk;
  s.recv[0] = 0;
  s.send[0] = 1;
  return s;
}

static u32 ringSteps(u32 n, u32 r, Step* s) {
  u32 k = 0;
  s[k++] = ringStep(STEP_IN, 0, 1, 0, 1, (r + n - 1) % n);
  if (n > 2) s[k++] = ringStep(STEP_IN, 1, 1, 1, n - 2, (r + n - 2) % n);
  s[k++] = ringStep(STEP_IN | STEP_OUT | STEP_POST, 1, 1, 1, 1, r);
  if (n > 2) s[k++] = ringStep(STEP_OUT, 1, 1, 0, n - 2, (r + n - 1) % n);
  s[k++] = ringStep(STEP_OUT, 1, 0, 0, 1, (r + 1) % n);
  return k;
}

// All ranks and the links between them. Links carry on from one launch to the next.
struct Ring {
  u32 n, slot_bytes;
  Proto proto;
  std::vector<RingRank> ranks;
  u32* abort;

  Ring(u32 n, u32 slot_bytes, Proto proto = SIMPLE, u64 start = 0, bool short_slots = false,
       bool misaligned = false, Policy policy = {})
      : n(n), slot_bytes(slot_bytes), proto(proto), ranks(n) {
    const size_t size = (size_t)(short_slots ? SLOTS - 1 : SLOTS) * slot_bytes;
    // One allocation per link, with what slots can hold that have come this far.
    std::vector<char*> data;
    for (u32 r = 0; r < n; r++) data.push_back((char*)memset(lines(size), 0x55, size));
    Counter* counters = (Counter*)lines(2 * n * sizeof(Counter));
    abort = (u32*)lines(64);
    for (u32 i = 0; i < 2 * n; i++) counters[i].value = start;
    for (u32 r = 0; r < n; r++) {
      RingRank& rank = ranks[r];
      const u32 before = (r + n - 1) % n;
      rank.ends = (LinkEnd*)(lines(2 * sizeof(LinkEnd) + 64) + (misaligned ? 4 : 0));
      Counter* const incoming = &counters[2 * before];
      const LinkEnd ends[2] = {  // the last fields: peer, begin, left
          {data[before], incoming, incoming + 1, nullptr, start, start, slot_bytes, before, 0, 0},
          {data[r], &counters[2 * r], &counters[2 * r + 1], nullptr, start, start, slot_bytes, (r + 1) % n, 0, 0}};
      memcpy((void*)rank.ends, ends, sizeof ends);
      rank.nsteps = ringSteps(n, r, rank.steps);
      rank.args = {};
      rank.args.nwork = rank.args.nchannels = 1;
      rank.args.spin = policy.spin;
      rank.args.yields = policy.yields;
      rank.args.futex_ns = policy.futex_ns;
      rank.args.abort = abort;
      rank.args.error = (u32*)lines(ERROR_WORDS * sizeof(u32));
    }
  }

  // Prepares an AllReduce of `count` elements (sum); `signature` says which call it is.
  template<class E> void allReduce(u32 r, const E* in, E* out, u64 count, u32 signature = 1) {
    RingRank& rank = ranks[r];
    Work& w = rank.args.work[0];
    w = {};
    w.in = (const char*)in;
    w.out = (char*)out;
    w.steps = rank.steps;
    w.links = rank.ends;
    w.count = count;
    w.block = (count + n - 1) / n;
    const u64 line = 64 / sizeof(E);
    if (w.block >= line) w.block = (w.block + line - 1) / line * line;
    w.piece = (proto == LL ? slot_bytes / 2 : slot_bytes) / sizeof(E);
    w.hi = w.block;
    w.nsteps = rank.nsteps;
    w.nchunks = n;
    w.type = sizeof(E) == 1 ? U8 : F32;
    w.op = SUM;
    w.proto = proto;
    w.nlinks = 2;
    w.signature = signature;
    w.serial = 1;
  }
};

// Two ranks that copy to each other, without slots if they agree and by slots otherwise, over one link each way. Link 0
// receives, link 1 sends. Schedules are written apart from src/plan, too: here each rank writes the other's output.
struct Pair {
  static constexpr u32 TAG = 1 << 6;   // of registration 0
  struct Rank {
    Step direct[6], slots[2];
    LinkEnd* ends;
    LaunchArgs args;
    u64 peers[2 * REGISTRATIONS];
  } ranks[2];
  u32* abort;

  static Step step(u8 flags, u8 nrecv, u8 nsend) {
    Step s = {};
    s.flags = flags;
    s.nrecv = nrecv;
    s.nsend = nsend;
    s.repeat = 1;
    s.send[0] = 1;
    return s;
  }

  explicit Pair(u32 slot_bytes, Policy policy = {}) {
    abort = (u32*)lines(64);
    Counter* counters = (Counter*)lines(4 * sizeof(Counter));
    char* slots[2] = {lines(SLOTS * slot_bytes), lines(SLOTS * slot_bytes)};
    for (u32 r = 0; r < 2; r++) {
      Rank& rank = ranks[r];
      rank.ends = (LinkEnd*)lines(2 * sizeof(LinkEnd));
      const LinkEnd ends[2] = {
          {slots[r], &counters[2 * r], &counters[2 * r + 1], nullptr, 0, 0, slot_bytes, 1 - r, 0, 0},
          {slots[1 - r], &counters[2 - 2 * r], &counters[3 - 2 * r], nullptr, 0, 0, slot_bytes, 1 - r, 0, 0}};
      memcpy((void*)rank.ends, ends, sizeof ends);
      Step* s = rank.direct;
      for (u8 flag : {STEP_OFFER, STEP_VERDICT})
        for (u8 sends : {1, 0}) *s++ = step(STEP_NO_DATA | flag, !sends, sends);
      *s++ = step(STEP_IN, 0, 1);
      *s++ = step(STEP_NO_DATA, 1, 0);
      rank.slots[0] = step(STEP_IN, 0, 1);
      rank.slots[1] = step(STEP_OUT, 1, 0);
      rank.args = {};
      rank.args.nwork = 2;
      rank.args.nchannels = 1;
      rank.args.spin = policy.spin;
      rank.args.yields = policy.yields;
      rank.args.futex_ns = policy.futex_ns;
      rank.args.abort = abort;
      rank.args.error = (u32*)lines(ERROR_WORDS * sizeof(u32));
      rank.args.peers = rank.peers;
    }
  }

  // Prepares a call of `bytes` bytes; `signature` says which. A rank that has not mapped the other's memory declines.
  void exchange(u32 r, const char* in, char* out, u64 bytes, bool offers, u32 signature) {
    Work& w = ranks[r].args.work[0];
    w = {};
    w.in = in;
    w.out = out;
    w.links = ranks[r].ends;
    w.count = w.block = w.hi = w.piece = bytes;
    w.steps = ranks[r].direct;
    w.nsteps = 6;
    w.nchunks = 1;
    w.type = U8;
    w.nlinks = 2;
    w.signature = signature;
    w.serial = 1;
    Work& slots = ranks[r].args.work[1] = w;
    w.flags = WORK_OFFER;
    w.offers[1] = offers ? (u64)TAG << OFFER_BITS | ((u64)out % PLACE_UNIT) : ~0ull;
    slots.steps = ranks[r].slots;
    slots.nsteps = 2;
    slots.piece = ranks[r].ends[0].slot_bytes;
  }
  // What rank r has mapped of the other's memory. Another thread may do it while kernels look.
  void map(u32 r, const char* out) {
    const u64 word = out ? (u64)TAG << OFFER_BITS | (u64)out / PLACE_UNIT : 0;
    __atomic_store_n(&ranks[r].peers[(1 - r) * REGISTRATIONS], word, __ATOMIC_RELEASE);
  }
};

// Rank 0 sends messages to rank 1: by LL over the second link, else over the first, by slots or read where they are.
struct MessagePair {
  enum Way : u32 { LINES, BY_SLOTS, READ, UNMAPPED, NOT_OFFERED, NWAYS };
  Step slots[2], offer[2], pull;   // by slots: sending, receiving
  LinkEnd* ends[2];
  LaunchArgs args[2];
  u64 peers[2 * REGISTRATIONS] = {};
  u32 slot_bytes;

  static Step step(u8 flags, bool receives) {
    Step s = {};
    s.flags = flags;
    s.nrecv = receives;
    s.nsend = !receives;
    s.repeat = 1;
    return s;
  }

  explicit MessagePair(u32 bytes, Policy policy = {}) : slot_bytes(bytes) {
    slots[0] = step(STEP_IN, false);
    slots[1] = step(STEP_OUT, true);
    offer[0] = step(STEP_NO_DATA | STEP_OFFER, false);
    offer[1] = step(STEP_NO_DATA | STEP_PULL, false);
    pull = step(STEP_OUT | STEP_PULL, true);
    u32* abort = (u32*)lines(64);
    Counter* counters = (Counter*)lines(4 * sizeof(Counter));
    char* memory[2] = {lines(SLOTS * slot_bytes), lines(SLOTS * slot_bytes)};
    for (u32 r = 0; r < 2; r++) {
      ends[r] = (LinkEnd*)lines(2 * sizeof(LinkEnd));
      for (u32 l = 0; l < 2; l++) {
        const LinkEnd end = {memory[l], &counters[2 * l], &counters[2 * l + 1], nullptr, 0, 0, slot_bytes, 1 - r, 0, 0};
        memcpy((void*)&ends[r][l], &end, sizeof end);
      }
      args[r] = {};
      args[r].nchannels = 1;
      args[r].spin = policy.spin;
      args[r].yields = policy.yields;
      args[r].futex_ns = policy.futex_ns;
      args[r].abort = abort;
      args[r].error = (u32*)lines(ERROR_WORDS * sizeof(u32));
      args[r].peers = peers;
    }
  }

  // No messages yet. All messages of a launch find the same table.
  void clear(bool mapped, const char* in) {
    const u64 place = (u64)Pair::TAG << OFFER_BITS | (u64)in / PLACE_UNIT;
    __atomic_store_n(&peers[0], mapped ? place : 0, __ATOMIC_RELEASE);
    args[0].nwork = args[1].nwork = 0;
  }

  void message(Way way, const char* in, char* out, u64 bytes) {
    for (u32 r = 0; r < 2; r++) {
      Work w = {};
      w.in = in;
      w.out = out;
      w.links = &ends[r][way == LINES];
      w.count = w.block = w.hi = bytes;
      w.piece = way == LINES ? slot_bytes / 2 : slot_bytes;
      w.nchunks = w.nlinks = w.nsteps = 1;
      w.type = I8;
      w.proto = way == LINES ? LL : SIMPLE;
      w.steps = &slots[r];
      w.serial = 1;
      if (way == READ || way == UNMAPPED || (way == NOT_OFFERED && r == 1)) {
        Work& direct = args[r].work[args[r].nwork++] = w;
        direct.flags = WORK_OFFER | WORK_PULL;
        direct.piece = bytes;
        direct.steps = r ? &pull : offer;
        direct.nsteps = r ? 1 : 2;
        direct.offers[0] = (u64)Pair::TAG << OFFER_BITS | ((u64)in % PLACE_UNIT);
      }
      args[r].work[args[r].nwork++] = w;
    }
  }
};

static const softcudaFunction& kernel(const softcudaImage* image, const std::string& name) {
  for (u32 i = 0; i < image->nfunctions; i++)
    if (name == image->functions[i].name) return image->functions[i];
  fprintf(stderr, "no kernel %s\n", name.c_str());
  exit(2);
}

// Runs one thread of one block.
struct BlockMemory {
  alignas(64) char shared[4096];
  alignas(64) char barrier[256];
};
static void runThread(const softcudaFunction& f, LaunchArgs& args, BlockMemory& m, u32 threads, u32 thread) {
  softcudaBlock b = {};
  for (int i = 0; i < 3; i++) b.gridDim[i] = b.blockDim[i] = 1;
  b.blockDim[0] = threads;
  b.threadIdx[0] = thread;
  b.shared = m.shared;
  b.barrier = m.barrier;
  void* params[] = {&args};
  f.entry(&b, params);
}

}  // namespace oxccl
