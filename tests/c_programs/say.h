/* What the programs of tests/c_programs.rs have in common: checks that name the call, and data that add up exactly. */
#ifndef SAY_H
#define SAY_H
#include <stdio.h>
#include <stdlib.h>

#include "cuda_runtime.h"
#include "nccl.h"

#define CUDA(call)                                                         \
  do {                                                                     \
    cudaError_t err_ = (call);                                             \
    if (err_ != cudaSuccess) say_failed(#call, cudaGetErrorString(err_));  \
  } while (0)

#define NCCL(call)                                                         \
  do {                                                                     \
    ncclResult_t err_ = (call);                                            \
    if (err_ != ncclSuccess) say_failed(#call, ncclGetErrorString(err_));  \
  } while (0)

static inline void say_failed(const char *call, const char *why) {
  fprintf(stderr, "%s: %s\n", call, why);
  exit(1);
}

#define COUNT ((size_t)1 << 14)

/* What rank `rank` contributes; small whole numbers, whose sums are exact in a float. */
static inline float input(int rank, size_t i) { return (float)(rank + 1) * (float)(i % 100); }

/* Memory of the current device with a rank's contribution. */
static inline float *filled(int rank) {
  float host[COUNT], *data;
  for (size_t i = 0; i < COUNT; i++) host[i] = input(rank, i);
  CUDA(cudaMalloc((void **)&data, sizeof host));
  CUDA(cudaMemcpy(data, host, sizeof host, cudaMemcpyHostToDevice));
  return data;
}

/* How many elements are not the sum of all contributions; frees the memory. `ranks`: 1 + 2 + ... of those
 * that contribute. */
static inline size_t count_wrong(float *data, int ranks) {
  float host[COUNT];
  size_t wrong = 0;
  CUDA(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost));
  CUDA(cudaFree(data));
  for (size_t i = 0; i < COUNT; i++) wrong += host[i] != (float)ranks * (float)(i % 100);
  return wrong;
}
#endif
