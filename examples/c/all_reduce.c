/* AllReduce by several processes, without MPI: rank 0 writes the unique id to a file that the others read.
 *
 *   ./all_reduce RANK RANKS FILE      once for each rank, e.g. in two terminals:
 *   ./all_reduce 0 2 /tmp/id          ./all_reduce 1 2 /tmp/id
 *
 * Plain CUDA runtime API and nccl.h: the same source compiles against NVIDIA's headers and libraries.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_runtime.h"
#include "nccl.h"

#define COUNT ((size_t)1 << 20)
#define WAIT_SECONDS 60

#define CUDA(call)                                                                              \
  do {                                                                                          \
    cudaError_t err = (call);                                                                   \
    if (err != cudaSuccess) fail(#call, cudaGetErrorString(err));                               \
  } while (0)

#define NCCL(call)                                                                              \
  do {                                                                                          \
    ncclResult_t err = (call);                                                                  \
    if (err != ncclSuccess) {                                                                   \
      fprintf(stderr, "%s\n", ncclGetLastError(NULL));                                          \
      fail(#call, ncclGetErrorString(err));                                                     \
    }                                                                                           \
  } while (0)

static void fail(const char *call, const char *why) {
  fprintf(stderr, "%s: %s\n", call, why);
  exit(1);
}

/* Written aside and renamed, so that a reader sees all of it or nothing. */
static void write_id(const char *path, const ncclUniqueId *id) {
  char aside[4096];
  snprintf(aside, sizeof aside, "%s.%ld", path, (long)getpid());
  FILE *file = fopen(aside, "wb");
  if (!file) fail(aside, strerror(errno));
  if (fwrite(id, sizeof *id, 1, file) != 1 || fclose(file) != 0) fail(aside, strerror(errno));
  if (rename(aside, path) != 0) fail(path, strerror(errno));
}

static void read_id(const char *path, ncclUniqueId *id) {
  const struct timespec pause = {0, 10 * 1000 * 1000};
  for (int tries = 0; tries < WAIT_SECONDS * 100; tries++) {
    FILE *file = fopen(path, "rb");
    if (file) {
      size_t got = fread(id, sizeof *id, 1, file);
      fclose(file);
      if (got == 1) return;
    }
    nanosleep(&pause, NULL);
  }
  fail(path, "rank 0 did not write it in time");
}

/* What rank `rank` contributes; small whole numbers, whose sums are exact in a float. */
static float input(int rank, size_t i) { return (float)(rank + 1) * (float)(i % 1000); }

static size_t count_wrong(const float *got, int nranks) {
  size_t wrong = 0;
  for (size_t i = 0; i < COUNT; i++) {
    float want = (float)(nranks * (nranks + 1) / 2) * (float)(i % 1000);
    wrong += got[i] != want;
  }
  return wrong;
}

static size_t all_reduce(ncclComm_t comm, int rank, int nranks) {
  float *host = malloc(COUNT * sizeof *host), *send, *recv;
  cudaStream_t stream;
  if (!host) fail("malloc", strerror(errno));
  CUDA(cudaMalloc((void **)&send, COUNT * sizeof *send));
  CUDA(cudaMalloc((void **)&recv, COUNT * sizeof *recv));
  CUDA(cudaStreamCreate(&stream));
  for (size_t i = 0; i < COUNT; i++) host[i] = input(rank, i);

  CUDA(cudaMemcpyAsync(send, host, COUNT * sizeof *host, cudaMemcpyHostToDevice, stream));
  NCCL(ncclAllReduce(send, recv, COUNT, ncclFloat, ncclSum, comm, stream));
  CUDA(cudaMemcpyAsync(host, recv, COUNT * sizeof *host, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));

  size_t wrong = count_wrong(host, nranks);
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFree(send));
  CUDA(cudaFree(recv));
  free(host);
  return wrong;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s RANK RANKS FILE\n", argv[0]);
    return 2;
  }
  int rank = atoi(argv[1]), nranks = atoi(argv[2]), devices = 0;
  ncclUniqueId id;
  ncclComm_t comm;

  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(rank % devices));
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&id));
    write_id(argv[3], &id);
  } else {
    read_id(argv[3], &id);
  }
  NCCL(ncclCommInitRank(&comm, nranks, id, rank));
  size_t wrong = all_reduce(comm, rank, nranks);
  NCCL(ncclCommDestroy(comm));
  printf("rank %d of %d: %zu of %zu sums are wrong\n", rank, nranks, wrong, COUNT);
  return wrong != 0;
}
