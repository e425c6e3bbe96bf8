// A turn, and what its loops have in common.
#pragma once
#include "links.cuh"

namespace oxccl {
namespace {

// What all threads of a block do between two barriers. Lies in shared memory.
struct Turn {
  const char* src[MAX_FAN + 1];   // in the order of reduction
  char* dst[MAX_FAN + 1];
  u64 bytes;                      // a multiple of the element size; 0: nothing moves
  u64 pre, post;                  // scalars, used as `scale` says
  u32 nsrc, ndst;
  u32 op;
  u32 scale;                      // WORK_PRE: multiply source `place` by pre; WORK_POST: divide the result by post
  u32 place;
  u32 user;                       // STEP_IN: source `place` is the user's memory; STEP_OUT: destination 0 is
  // LL only: what each link has passed, and the size of its slots.
  u64 src_pos[MAX_FAN + 1], dst_pos[MAX_FAN + 1];
  u32 dst_bytes[MAX_FAN + 1];
  const LinkEnd* from[MAX_FAN + 1];   // the links of sources
  u32 signature, serial;                   // of the work item
};

// A compiled loop: type, operator (-1: read from the turn), with scaling or without, and how many sources
// and destinations (0: read from the turn).
template<Type T_, int OP_, bool SCALE_, int NSRC_, int NDST_> struct Job {
  static constexpr Type T = T_;
  static constexpr int OP = OP_, NSRC = NSRC_, NDST = NDST_;
  static constexpr bool SCALE = SCALE_;
  static constexpr int FLIGHT = flight<T, SCALE, NSRC == 1>;
};

// Source number `source`, where it is the one to be scaled.
template<class J, int B, int U> FN void prescale(const Turn& t, u32 source, Pack<B> (&x)[U]) {
  if constexpr (J::SCALE)
    if ((t.scale & WORK_PRE) && source == t.place)
      UNROLL for (int u = 0; u < U; u++) x[u] = scaled<J::T, B>(x[u], t.pre);
}
// A result, where it is final.
template<class J, int B, int U> FN void postscale(const Turn& t, Pack<B> (&sum)[U]) {
  if constexpr (J::SCALE && isInteger<J::T>)
    if (t.scale & WORK_POST) UNROLL for (int u = 0; u < U; u++) sum[u] = divide<J::T, B>(sum[u], t.post);
}

}  // namespace
}  // namespace oxccl
