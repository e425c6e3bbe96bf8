// The only file that knows whether this is built by nvcc or NVRTC (GPU) or by a C++ compiler (host image).
// Either target provides, under the same names:
//   FN, MEMBER, UNROLL          how functions and unrolled loops are declared
//   Block                       one thread's view of its block: id, manager lanes, barriers
//   wait, post, aborted,        links: counters with acquire and release at system scope, no fences
//   report
//   Pack<B>, load, store        B bytes in registers; unaligned on the host, aligned to B on a GPU
//   combine, splat, divide      element arithmetic on packs (nccl-abi §5)
//   Walk, walk                  which bytes of a range this thread moves
//   moveTurn                    picks the compiled loop that fits a turn
#pragma once
#include "work.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#include "gpu.cuh"
#else
#include "host.cuh"
#endif
