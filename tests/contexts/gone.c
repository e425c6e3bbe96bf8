/* What calls return when the context of a communicator is gone, or its device.
 *
 *   gone WAY CALL BLOCKING
 *     WAY: r cudaDeviceReset, d cuCtxDestroy of a context of its own, l the device is lost, k the same while an
 *          AllReduce waits for rank 1, u the driver has shut down: everything happens in an exit handler
 *
 * Two processes, of which rank 0 meets with that after an AllReduce. It prints what the call returned and the state,
 * then ends the communicator by destroy and abort, and where there is a device still, makes another one. Rank 1 only
 * aborts. */
#include <cuda.h>
#include <cuda_runtime.h>
#include <nccl.h>
#include <softcuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 1024, PATIENCE = 60 };

static char way, call;
static ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
static ncclComm_t comm;
static float *data;
static CUcontext own;

static ncclResult_t settle(ncclComm_t of, ncclResult_t code) {
  while (code == ncclInProgress) {
    ncclResult_t asked = ncclCommGetAsyncError(of, &code);
    if (asked != ncclSuccess) return asked;
  }
  return code;
}

static ncclResult_t reduce(ncclComm_t on) {
  return settle(on, ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, on, NULL));
}

static ncclComm_t make(int ranks, ncclUniqueId id, int rank) {
  ncclComm_t made = NULL;
  ncclResult_t code = settle(made, ncclCommInitRankConfig(&made, ranks, id, rank, &config));
  if (code == ncclInProgress || !config.blocking) code = settle(made, ncclInProgress);
  if (code != ncclSuccess) printf("rank %d has no communicator: %d %s\n", rank, code, ncclGetLastError(NULL));
  if (cudaMalloc((void **)&data, COUNT * sizeof *data) != cudaSuccess) printf("no memory\n");
  return made;
}

static ncclResult_t derive(int shrinks) {
  ncclComm_t made = NULL;
  int gone = 1;
  ncclResult_t code = shrinks ? ncclCommShrink(comm, &gone, 1, &made, &config, NCCL_SHRINK_ABORT)
                              : ncclCommSplit(comm, 0, 0, &made, &config);
  return settle(comm, code);
}

static ncclResult_t group(void) {
  ncclGroupStart();
  ncclAllReduce(data, data, COUNT, ncclFloat, ncclSum, comm, NULL);
  ncclSend(data, COUNT, ncclFloat, 1, comm, NULL);
  return settle(comm, ncclGroupEnd());
}

static ncclResult_t operator(void) {
  ncclRedOp_t made;
  float scalar = 2;
  return ncclRedOpCreatePreMulSum(&made, &scalar, ncclFloat, ncclScalarHostImmediate, comm);
}

static ncclResult_t one_call(void) {
  ncclUniqueId id;
  uint64_t bytes;
  void *handle = NULL;
  int number;
  switch (call) {
  case 'D': return settle(comm, ncclCommDestroy(comm));
  case 'A': return settle(comm, ncclCommAbort(comm));
  case 'F': return settle(comm, ncclCommFinalize(comm));
  case 'R': return reduce(comm);
  case 'P': return group();
  case 'S': return derive(0);
  case 'K': return derive(1);
  case 'U': return settle(comm, ncclCommSuspend(comm, 1));
  case 'Z': return settle(comm, ncclCommResume(comm));
  case 'V': return settle(comm, ncclCommRevoke(comm, 0));
  case 'E': return ncclCommRegister(comm, data, COUNT, &handle);
  case 'M': return ncclCommMemStats(comm, ncclStatGpuMemTotal, &bytes);
  case 'C': return ncclCommCount(comm, &number);
  case 'O': return operator();
  case 'I': return ncclCommGetUniqueId(comm, &id);
  default: return ncclSuccess;
  }
}

/* What cuts the ground from under the communicator; by then everything else is as it should be. */
static void lose(void) {
  if (way == 'r') cudaDeviceReset();
  if (way == 'd') {
    cuCtxPopCurrent(&own);
    cuCtxDestroy(own);
  }
  if (way == 'k' && reduce(comm) != ncclSuccess) printf("no call to be stuck in\n");
  if (way == 'l' || way == 'k') softcudaLoseDevice(0, CUDA_ERROR_LAUNCH_FAILED);
}

static void after(void) {
  ncclResult_t state = ncclSuccess, code = one_call();
  ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  printf("call %d state %d %d text %s\n", code, asked, state, ncclGetLastError(comm));
  ncclResult_t destroyed = settle(comm, ncclCommDestroy(comm));
  printf("destroy %d abort %d\n", destroyed, settle(comm, ncclCommAbort(comm)));
  fflush(stdout);
}

static void again(void) {
  ncclUniqueId id;
  if (cudaSetDevice(0) != cudaSuccess || ncclGetUniqueId(&id) != ncclSuccess) printf("no more device\n");
  ncclComm_t next = make(1, id, 0);
  printf("again %d", reduce(next));
  printf(" %d\n", ncclCommDestroy(next));
}

static int rank_0(ncclUniqueId id, int told, int readies) {
  char done = 0, ready;
  cudaSetDevice(0);
  if (way == 'd' && cuCtxCreate(&own, NULL, 0, 0) != CUDA_SUCCESS) return 3;
  comm = make(2, id, 0);
  if (reduce(comm) != ncclSuccess || cudaDeviceSynchronize() != cudaSuccess) return 4;
  if (read(readies, &ready, 1) != 1) return 5;
  if (way == 'u') return write(told, &done, 1) == 1 ? 0 : 5;
  lose();
  after();
  if (write(told, &done, 1) != 1) return 5;
  if (way == 'r' || way == 'd') again();
  return 0;
}

static int rank_1(ncclUniqueId id, int told, int ready) {
  char done = 0;
  cudaSetDevice(1);
  comm = make(2, id, 1);
  if (reduce(comm) != ncclSuccess || cudaDeviceSynchronize() != cudaSuccess) return 4;
  if (write(ready, &done, 1) != 1 || read(told, &done, 1) < 0) return 5;
  return ncclCommAbort(comm);
}

int main(int count, char **arguments) {
  int ids[2], told[2], ready[2], status;
  ncclUniqueId id;
  if (count != 4 || pipe(ids) || pipe(told) || pipe(ready)) return 2;
  way = *arguments[1], call = *arguments[2], config.blocking = *arguments[3] - '0';
  alarm(PATIENCE);
  pid_t other = fork();
  if (other == 0) {
    alarm(PATIENCE);
    close(told[1]);
    close(ready[0]);
    return read(ids[0], &id, sizeof id) == sizeof id ? rank_1(id, told[0], ready[1]) : 6;
  }
  if (ncclGetUniqueId(&id) != ncclSuccess || write(ids[1], &id, sizeof id) != sizeof id) return 6;
  close(told[0]);
  close(ready[1]);
  /* Before the driver's own handler, so that this one comes after it. */
  if (way == 'u' && atexit(after)) return 2;
  int code = rank_0(id, told[1], ready[0]);
  close(told[1]);
  waitpid(other, &status, 0);
  printf("rank 1 %d\n", status);
  return code;
}
