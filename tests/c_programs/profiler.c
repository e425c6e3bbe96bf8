/* A profiler that interposes some nccl functions over their pnccl twins, to be loaded by LD_PRELOAD. At exit it says
 * how often each was called: what the library does inside must not count. */
#include <stdio.h>
#include <stdlib.h>

#include "nccl.h"

ncclResult_t pncclAllReduce(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
ncclResult_t pncclBroadcast(const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t);
ncclResult_t pncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t pncclCommInitAll(ncclComm_t *, int, const int *);
ncclResult_t pncclGetUniqueId(ncclUniqueId *);
ncclResult_t pncclGroupStart(void);
ncclResult_t pncclGroupEnd(void);
ncclResult_t pncclCommDestroy(ncclComm_t);
const char *pncclGetErrorString(ncclResult_t);

static int reduces, broadcasts, init_ranks, init_alls, ids, starts, ends, destroys, texts;

static void report(void) {
  printf("profiler: AllReduce %d Broadcast %d CommInitRank %d CommInitAll %d GetUniqueId %d GroupStart %d GroupEnd %d "
         "CommDestroy %d GetErrorString %d\n",
         reduces, broadcasts, init_ranks, init_alls, ids, starts, ends, destroys, texts);
}

__attribute__((constructor)) static void begin(void) { atexit(report); }

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  reduces++;
  return pncclAllReduce(in, out, count, type, op, comm, stream);
}
ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  broadcasts++;
  return pncclBroadcast(in, out, count, type, root, comm, stream);
}
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank) {
  init_ranks++;
  return pncclCommInitRank(comm, nranks, id, rank);
}
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices) {
  init_alls++;
  return pncclCommInitAll(comms, ndev, devices);
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  ids++;
  return pncclGetUniqueId(id);
}
ncclResult_t ncclGroupStart(void) {
  starts++;
  return pncclGroupStart();
}
ncclResult_t ncclGroupEnd(void) {
  ends++;
  return pncclGroupEnd();
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  destroys++;
  return pncclCommDestroy(comm);
}
const char *ncclGetErrorString(ncclResult_t result) {
  texts++;
  return pncclGetErrorString(result);
}
