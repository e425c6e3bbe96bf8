// The only file that knows whether this is built by nvcc or NVRTC (GPU) or by a C++ compiler (host image).
// Either target provides, under the same names:
//   FN, MEMBER, RARE, UNROLL  how functions and unrolled loops are declared
//   Block                     one thread's view of its block: id, manager lanes, barriers
//   wait, post, abandon       links: counters with acquire and release at system scope, no fences
//   loadWord, storeWord       words of counters whose order with others does not matter
//   aborted, broken, report   what the host says, and is told
//   HOST_IS_NEAR              whether looking at the host's words costs nothing
//   STATE_IS_NEAR             ... at steps and links
//   loadFlag, storeFlag       words in shared memory that several threads write
//   Pack<B>, load, store      B bytes in registers
//   wordsOf, packOfWords      ... of 16 bytes as words of 32 bits, and back
//   funnel                    32 bits of two words
//   bitsOf, packOf            ... as a number, and back; B is at most 8
//   Line, loadLine, storeLine a line of LL: two words of 64 bits, each moved whole; no order between them
//   Patience                  how a thread waits for lines
//   OXCCL_WARPS               GPU only: threads move in step, and there are warpInStep, anyOfWarp, packOfLine,
//                             lineOfPack and ROW_FLIGHT for LL128
//   combine, scaled, divide   element arithmetic on packs
//   packBytes, flight,        how the loops are compiled
//   SMALLER_FLIGHTS,
//   LINE_FLIGHT,
//   NEEDS_ALIGNMENT,
//   RUNTIME_OPERATOR
//   Walk, walk                which bytes of a range this thread moves
//   OXCCL_KERNEL              an entry point
#pragma once
#include "work.h"

namespace oxccl {
namespace {

// How waiting for a counter ends.
enum Waited : u32 {
  READY,
  TOLD,       // the host says that the block is to leave, or another block failed
  PEER_LEFT,  // whoever writes the counter has left
};

}  // namespace
}  // namespace oxccl

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "gpu.cuh"
#else
#include "host.cuh"
#endif
