/* AllReduce by the processes of an MPI job: MPI starts them and hands the unique id around.
 *
 *   mpiexec -n 2 ./all_reduce_mpi
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_runtime.h"
#include "nccl.h"

#define COUNT ((size_t)1 << 20)

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
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Ranks of one host use its devices in turn. */
static int local_rank(void) {
  MPI_Comm host;
  int rank;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &rank);
  MPI_Comm_free(&host);
  return rank;
}

/* The same sum by MPI is what the result is compared with; whole numbers, so both are exact. */
static long count_wrong(const float *input, const float *got) {
  float *want = malloc(COUNT * sizeof *want);
  long wrong = 0;
  if (!want) fail("malloc", "out of memory");
  MPI_Allreduce(input, want, (int)COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (size_t i = 0; i < COUNT; i++) wrong += got[i] != want[i];
  free(want);
  return wrong;
}

static long all_reduce(ncclComm_t comm, int rank) {
  float *input = malloc(COUNT * sizeof *input), *output = malloc(COUNT * sizeof *output), *data;
  cudaStream_t stream;
  if (!input || !output) fail("malloc", "out of memory");
  for (size_t i = 0; i < COUNT; i++) input[i] = (float)((i * 7 + (size_t)rank * 13) % 1001) - 500.0f;

  CUDA(cudaMalloc((void **)&data, COUNT * sizeof *data));
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaMemcpyAsync(data, input, COUNT * sizeof *input, cudaMemcpyHostToDevice, stream));
  NCCL(ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, stream)); /* in place */
  CUDA(cudaMemcpyAsync(output, data, COUNT * sizeof *output, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));

  long wrong = count_wrong(input, output);
  CUDA(cudaStreamDestroy(stream));
  CUDA(cudaFree(data));
  free(input);
  free(output);
  return wrong;
}

int main(int argc, char **argv) {
  int rank, nranks, devices = 0;
  ncclUniqueId id;
  ncclComm_t comm;

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &nranks);
  CUDA(cudaGetDeviceCount(&devices));
  CUDA(cudaSetDevice(local_rank() % devices));

  if (rank == 0) NCCL(ncclGetUniqueId(&id));
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
  NCCL(ncclCommInitRank(&comm, nranks, id, rank));
  long wrong = all_reduce(comm, rank);
  NCCL(ncclCommDestroy(comm));

  printf("rank %d of %d: %ld of %zu sums are wrong\n", rank, nranks, wrong, COUNT);
  MPI_Finalize();
  return wrong != 0;
}
