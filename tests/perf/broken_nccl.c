/* A library that perf must catch: its AllReduce does nothing, or (BROKEN=hang) never returns, or
 * (BROKEN=die) ends the process. Everything else succeeds.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

static struct ncclComm *const handle = (struct ncclComm *)0x40;

ncclResult_t ncclGetVersion(int *version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return memset(id, 1, sizeof *id), ncclSuccess; }
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n, ncclUniqueId id, int rank) {
  (void)n, (void)id, (void)rank;
  return *comm = handle, ncclSuccess;
}
ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *list) {
  (void)list;
  for (int i = 0; i < n; i++) comms[i] = handle;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) { return (void)comm, ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return (void)comm, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return (void)comm, ncclSuccess; }
ncclResult_t ncclCommCount(const ncclComm_t comm, int *n) { return (void)comm, *n = 0, ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *e) {
  return (void)comm, *e = ncclSuccess, ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t result) { return (void)result, "an error"; }
const char *ncclGetLastError(ncclComm_t comm) { return (void)comm, ""; }
ncclResult_t ncclGroupStart(void) { return ncclSuccess; }
ncclResult_t ncclGroupEnd(void) { return ncclSuccess; }
ncclResult_t ncclMemAlloc(void **p, size_t n) { return (void)n, *p = NULL, ncclSuccess; }
ncclResult_t ncclMemFree(void *p) { return (void)p, ncclSuccess; }

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  const char *how = getenv("BROKEN");
  (void)send, (void)recv, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  if (how && !strcmp(how, "hang")) {
    for (;;) pause();
  }
  if (how && !strcmp(how, "die")) _exit(7);
  return ncclSuccess;
}
