// One process, several devices: ncclCommInitAll, two calls in groups. Linked with -lnccl.
#include "say.h"

constexpr int DEVICES = 3;

int main() {
  ncclComm_t comms[DEVICES];
  cudaStream_t streams[DEVICES];
  float* data[DEVICES];
  NCCL(ncclCommInitAll(comms, DEVICES, nullptr));
  for (int d = 0; d < DEVICES; d++) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamCreate(&streams[d]));
    data[d] = filled(d);
  }
  NCCL(ncclGroupStart());
  for (int d = 0; d < DEVICES; d++)
    NCCL(ncclAllReduce(data[d], data[d], COUNT, ncclFloat, ncclSum, comms[d], streams[d]));
  NCCL(ncclGroupEnd());
  NCCL(ncclGroupStart());
  for (int d = 0; d < DEVICES; d++) NCCL(ncclBcast(data[d], COUNT, ncclFloat, 1, comms[d], streams[d]));
  NCCL(ncclGroupEnd());
  size_t wrong = 0;
  for (int d = 0; d < DEVICES; d++) {
    CUDA(cudaSetDevice(d));
    CUDA(cudaStreamSynchronize(streams[d]));
    CUDA(cudaStreamDestroy(streams[d]));
    wrong += count_wrong(data[d], DEVICES * (DEVICES + 1) / 2);
    NCCL(ncclCommDestroy(comms[d]));
  }
  printf("%d devices: %zu sums are wrong\n", DEVICES, wrong);
  return wrong != 0;
}
